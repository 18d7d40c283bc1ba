//! How cuts are made, and cuts in the background: a thread commits a live heap every so often, if something was stored to it.

use crate::heap::log::live_head::LiveHead;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::{Acquire, Release};
use std::thread::{Builder, JoinHandle};
use std::time::{Duration, Instant};
use untorn_journal::{Error, Result};
use untorn_os::{own_thread, process_generation, wait_shared, wake_shared, without_signals};

/// No time is waited for longer.
const EVERY_MOST: Duration = Duration::from_secs(365 * 24 * 3600);
/// After a cut that failed.
const FAILED_PAUSE: Duration = Duration::from_millis(10);
/// And before one is due again, if it was due before its turn.
const DUE_PAUSE: Duration = Duration::from_secs(1);

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

/// How fast a cut is, before one was made.
const BYTES_PER_SECOND_FIRST: f64 = 100e6;
/// Of less, the time that a cut took says little of how fast cuts are.
const TOLD_LEAST: u64 = 1 << 20;
/// So often within the time of a cut it is looked whether one is due, but not more often than that.
const LOOKS: u32 = 4;
const LOOK_LEAST: Duration = Duration::from_millis(10);

/// Has cuts made so early that none takes longer than this.
pub(crate) struct Within {
    most: Duration,
    bytes_per_second: f64,
}

impl Within {
    pub(crate) fn new(most: Duration) -> Within {
        Within { most, bytes_per_second: BYTES_PER_SECOND_FIRST }
    }

    /// Until the next look as much may be stored once more.
    fn is_due(&self, bytes: u64) -> bool {
        2.0 * bytes as f64 >= self.bytes_per_second * self.most.as_secs_f64()
    }

    fn pause(&self) -> Duration {
        (self.most / LOOKS).max(LOOK_LEAST)
    }

    /// A cut of so many bytes took so long. A slow one counts at once, a fast one by and by.
    fn note(&mut self, bytes: u64, took: Duration) {
        if bytes < TOLD_LEAST {
            return;
        }
        let rate = bytes as f64 / took.as_secs_f64().max(1e-6);
        let share = if rate < self.bytes_per_second { 1.0 } else { 0.125 };
        self.bytes_per_second += share * (rate - self.bytes_per_second);
    }
}

/// The thread; it ends with this.
pub(crate) struct Cutter {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
    process: u64,
    head: LiveHead,
    /// A cut waits for what this thread holds.
    would_wait: Box<dyn Fn() -> bool + Send + Sync>,
}

impl Cutter {
    /// Calls `cut` again and again, if there is something `stored` (bytes), until this ends; at once if somebody outside asks
    /// for it, or a later one would take longer than `within`. A cut that takes long is followed by a pause as long.
    /// `would_wait`: a cut that is under way waits for the thread that calls this.
    pub(crate) fn start(
        every: Duration,
        mut within: Option<Within>,
        head: LiveHead,
        would_wait: impl Fn() -> bool + Send + Sync + 'static,
        stored: impl Fn() -> Result<u64> + Send + 'static,
        cut: impl Fn() -> Result<()> + Send + 'static,
        failed: impl Fn(&Error) + Send + 'static,
    ) -> std::io::Result<Cutter> {
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = stop.clone();
        let run = move || {
            let _own = own_thread();
            let every = every.min(EVERY_MOST);
            let mut pause = every;
            let mut due_from = Instant::now();
            loop {
                let until = Instant::now() + pause;
                let asked = loop {
                    if stopped.load(Acquire) {
                        return;
                    }
                    let asked = head.asked().load(Acquire);
                    let now = Instant::now();
                    let left = until.saturating_duration_since(now);
                    // That it cannot be told is told by the cut.
                    let is_due = |within: &Within| now >= due_from && stored().is_ok_and(|bytes| within.is_due(bytes));
                    if asked != head.answered().load(Acquire) || left.is_zero() || within.as_ref().is_some_and(is_due) {
                        break asked;
                    }
                    wait_shared(head.asked(), asked, within.as_ref().map_or(left, |within| left.min(within.pause())));
                };
                let begun = Instant::now();
                let made = stored().and_then(|bytes| if bytes > 0 { cut().map(|()| bytes) } else { Ok(0) });
                if let (Ok(bytes), Some(within)) = (&made, &mut within) {
                    within.note(*bytes, begun.elapsed());
                }
                let done = made.inspect_err(&failed).is_ok();
                if done && asked != head.answered().load(Acquire) {
                    head.answer(asked);
                } else if !done {
                    // One that was asked for is tried again, but not without a pause.
                    std::thread::sleep(FAILED_PAUSE);
                    due_from = Instant::now() + DUE_PAUSE;
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cut_is_due_before_it_would_take_too_long() {
        let mut within = Within::new(Duration::from_secs(2));
        assert!(!within.is_due(90_000_000) && within.is_due(100_000_000));
        // What is small is nothing to go by.
        within.note(4096, Duration::from_secs(1));
        assert!(!within.is_due(90_000_000));
        within.note(10_000_000, Duration::from_secs(1));
        assert!(!within.is_due(9_000_000) && within.is_due(10_000_000));
        within.note(90_000_000, Duration::from_secs(1));
        assert!(!within.is_due(19_000_000) && within.is_due(20_000_000));
        assert_eq!(Within::new(Duration::from_millis(1)).pause(), LOOK_LEAST);
    }
}
