//! How cuts are made, and cuts in the background: a thread commits a live heap every so often, if something was stored to it.

use super::live_head::LiveHead;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::{Acquire, Release};
use std::thread::{Builder, JoinHandle};
use std::time::{Duration, Instant};
use untorn_os::{own_thread, process_generation, wait_shared, wake_shared, without_signals};

/// After a cut that failed.
const FAILED_PAUSE: Duration = Duration::from_millis(10);

/// What a cut of a live heap does while threads store.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Cuts {
    /// All threads of the process are stopped for a moment, wherever they are, by a signal. Stores need no guard, and a
    /// section that has not ended is undone in the cut.
    Stop,
    /// A cut waits until no thread holds a guard or is in a section; all stores are made so.
    Wait,
}

/// How long the threads stood in cuts that stopped them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct StopTimes {
    /// Cuts that stopped the threads.
    pub count: u64,
    /// How long in the last one.
    pub last: Duration,
    /// How long in that which took longest, attempts that were followed by another one among them.
    pub longest: Duration,
}

/// The thread; it ends with this.
pub(super) struct Cutter {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
    process: u64,
    head: LiveHead,
    /// A cut waits for what this thread holds.
    would_wait: Box<dyn Fn() -> bool + Send + Sync>,
}

impl Cutter {
    /// Calls `cut` again and again, until this ends; at once if somebody outside asks for it. A cut that takes long is
    /// followed by a pause as long. `would_wait`: a cut that is under way waits for the thread that calls this.
    pub(super) fn start(
        every: Duration,
        head: LiveHead,
        would_wait: impl Fn() -> bool + Send + Sync + 'static,
        cut: impl Fn() -> bool + Send + 'static,
    ) -> std::io::Result<Cutter> {
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = stop.clone();
        let run = move || {
            let _own = own_thread();
            let mut pause = every;
            loop {
                let until = Instant::now() + pause;
                let asked = loop {
                    if stopped.load(Acquire) {
                        return;
                    }
                    let asked = head.asked().load(Acquire);
                    let left = until.saturating_duration_since(Instant::now());
                    if asked != head.answered().load(Acquire) || left.is_zero() {
                        break asked;
                    }
                    wait_shared(head.asked(), asked, left);
                };
                let begun = Instant::now();
                let done = cut();
                if done && asked != head.answered().load(Acquire) {
                    head.answer(asked);
                } else if !done {
                    // One that was asked for is tried again, but not without a pause.
                    std::thread::sleep(FAILED_PAUSE);
                }
                pause = every.max(begun.elapsed());
            }
        };
        let thread = without_signals(|| Builder::new().name("untorn-cuts".into()).spawn(run))?;
        let process = process_generation();
        Ok(Cutter { stop, thread: Some(thread), process, head, would_wait: Box::new(would_wait) })
    }
}

impl Drop for Cutter {
    fn drop(&mut self) {
        // In a forked child there is no such thread.
        if self.process != process_generation() {
            std::mem::forget(self.thread.take());
            return;
        }
        self.stop.store(true, Release);
        wake_shared(self.head.asked());
        // Otherwise it ends by itself, once the cut has ended.
        if let Some(thread) = self.thread.take().filter(|_| !(self.would_wait)()) {
            // It may have been about to wait.
            while !thread.is_finished() {
                wake_shared(self.head.asked());
                std::thread::sleep(Duration::from_micros(200));
            }
            let _ = thread.join();
        }
    }
}
