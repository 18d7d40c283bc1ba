//! The store's one thread: asynchronous commits, checkpoints before the journal is full, durable marks when nothing
//! was committed for a while.

use crate::engine::Engine;
use crate::engine::waiting::concurrency::thread;
use crate::engine::waiting::wakeup::Wakeup;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Weak};
use std::time::Duration;
use untorn_journal::{Error, Result};
use untorn_os::{own_thread, without_signals};

/// Without commits for this long, a durable mark is due.
const IDLE: Duration = Duration::from_millis(100);
/// As long as files are parked, a look comes so often whether somebody holds them.
const LOOK_AT_LEASES: Duration = Duration::from_secs(1);
/// After a failed checkpoint the next one waits, at first this long, then twice as long each time.
const RETRY_MIN: Duration = Duration::from_secs(1);
const RETRY_MAX: Duration = Duration::from_secs(60);

/// Starts the thread of a store.
pub(crate) fn start(engine: &Arc<Engine>) -> Result<()> {
    let (weak, wakeup) = (Arc::downgrade(engine), engine.wakeup.clone());
    let start = || thread::Builder::new().name("untorn".into()).spawn(move || run(&weak, &wakeup));
    let thread = without_signals(start).map_err(|e| Error::io("start a thread for", &engine.path, e))?;
    engine.wakeup.started(thread);
    Ok(())
}

fn run(engine: &Weak<Engine>, wakeup: &Wakeup) {
    let _own = own_thread();
    // The store may close while the thread waits: nothing of it is kept alive then.
    let mut retry = RETRY_MIN;
    while let Some(pause) = engine.upgrade().map(|engine| work(&engine, &mut retry)) {
        if !wakeup.wait(pause) {
            return;
        }
    }
}

/// Makes a checkpoint, and writes commits between its steps. Whether it went well.
fn checkpoint(engine: &Engine) -> bool {
    loop {
        match engine.checkpoint_step(u64::MAX) {
            Ok(true) => write_waiting(engine),
            Ok(false) => return true,
            Err(e) => {
                tracing::warn!(error = %e, "checkpoint failed");
                return false;
            }
        }
    }
}

fn write_waiting(engine: &Engine) {
    while engine.has_waiting() {
        engine.write_one_batch();
    }
}

/// Does what is due; returns how long to wait at most for more.
fn work(engine: &Engine, retry: &mut Duration) -> Option<Duration> {
    write_waiting(engine);
    if engine.merge_wanted.swap(false, Relaxed) {
        engine.merge_layers();
    }
    let wants_checkpoint = engine.wants_checkpoint(&engine.journal.lock()) || engine.checkpoint_failed.load(Relaxed);
    let failed = wants_checkpoint && !checkpoint(engine);
    let busy = engine.wakeup.take_busy();
    if !busy {
        let journal = &mut engine.journal.lock().journal;
        if let Err(e) = journal.write_durable_mark() {
            tracing::warn!(error = %e, "mark failed");
            engine.note_failure(journal);
        }
    }
    let parked = engine.remove_unheld();
    let pause = *retry;
    *retry = if failed { (2 * pause).min(RETRY_MAX) } else { RETRY_MIN };
    match (busy, failed) {
        (_, true) => Some(pause),
        (true, false) => Some(IDLE),
        (false, false) => parked.then_some(LOOK_AT_LEASES),
    }
}
