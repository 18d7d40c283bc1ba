//! The store's one thread: asynchronous commits, checkpoints before the journal is full, marks when
//! nothing was committed for a while.

use crate::store::{Inner, lock};
use crate::sync::thread::{self, JoinHandle};
use crate::sync::{AtomicBool, Condvar, Mutex};
use std::sync::atomic::Ordering::SeqCst;
use std::sync::{Arc, Weak};
use std::time::Duration;
use untorn_journal::{Error, Result};

/// Without commits for this long, a mark is due.
const IDLE: Duration = Duration::from_millis(100);
/// After a failed checkpoint the next one waits.
const RETRY: Duration = Duration::from_secs(1);

/// Large commits take little room in the journal, but a descriptor each until they are applied.
const EXTENTS_MOST: usize = 64;

#[derive(Default)]
struct Signal {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    stop: bool,
    wake: bool,
}

#[derive(Default)]
pub(crate) struct Background {
    signal: Arc<Signal>,
    thread: Mutex<Option<JoinHandle<()>>>,
    /// Commits since the last mark.
    busy: AtomicBool,
    /// The thread waits without a time limit, as there is nothing to mark.
    asleep: AtomicBool,
}

impl Background {
    pub(crate) fn start(inner: &Arc<Inner>) -> Result<()> {
        let (weak, signal) = (Arc::downgrade(inner), inner.background.signal.clone());
        let thread = thread::Builder::new()
            .name("untorn".into())
            .spawn(move || run(&weak, &signal))
            .map_err(|e| Error::io("start a thread for", &inner.path, e))?;
        *lock(&inner.background.thread) = Some(thread);
        Ok(())
    }

    /// Something is to be done.
    pub(crate) fn wake(&self) {
        lock(&self.signal.state).wake = true;
        self.signal.changed.notify_one();
    }

    /// A group was committed. Wakes the thread only if it is not about to look by itself.
    pub(crate) fn note_commit(&self) {
        self.busy.store(true, SeqCst);
        if self.asleep.swap(false, SeqCst) {
            self.wake();
        }
    }

    pub(crate) fn stop(&self) {
        lock(&self.signal.state).stop = true;
        self.signal.changed.notify_one();
        if let Some(thread) = lock(&self.thread).take()
            && thread.thread().id() != thread::current().id()
        {
            let _ = thread.join();
        }
    }
}

impl Inner {
    /// The journal is filling up: a checkpoint now spares commits the wait.
    fn wants_checkpoint(&self) -> bool {
        let side = lock(&self.side);
        let full = side.journal.pending_bytes() * 2 > self.options.journal.journal_bytes;
        side.journal.failure().is_none() && (full || side.journal.pending_extents() >= EXTENTS_MOST)
    }

    /// After a group: has the journal grown enough to call the background thread?
    pub(crate) fn nudge(&self) {
        if self.options.background && self.wants_checkpoint() {
            self.background.wake();
        }
    }
}

fn run(weak: &Weak<Inner>, signal: &Signal) {
    loop {
        let Some(inner) = weak.upgrade() else { return };
        let mut failed = false;
        while inner.has_waiting() {
            inner.lead_once();
        }
        if inner.wants_checkpoint()
            && let Err(e) = inner.checkpoint()
        {
            tracing::warn!(error = %e, "checkpoint failed");
            failed = true;
        }
        // In this order: a commit that comes in between sets `busy`, then looks whether we are asleep.
        inner.background.asleep.store(true, SeqCst);
        let busy = inner.background.busy.swap(false, SeqCst);
        if !busy && let Err(e) = lock(&inner.side).journal.mark() {
            tracing::warn!(error = %e, "mark failed");
        }
        if busy || failed {
            inner.background.asleep.store(false, SeqCst);
        }
        let pause = if failed { RETRY } else { IDLE };
        let sleep_on = !busy && !failed;
        // The store may close while we wait: keep nothing of it alive.
        drop(inner);
        let mut state = lock(&signal.state);
        while !state.stop && !state.wake {
            if sleep_on {
                state = signal.changed.wait(state).unwrap_or_else(|e| e.into_inner());
            } else {
                let (s, timeout) = signal.changed.wait_timeout(state, pause).unwrap_or_else(|e| e.into_inner());
                state = s;
                if timeout.timed_out() {
                    break;
                }
            }
        }
        if state.stop {
            return;
        }
        state.wake = false;
    }
}
