//! Ways to make cuts, and the thread that makes them in the background: it commits a live heap at intervals, if
//! something was stored to it.

use crate::heap::log::live_head::LiveHead;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::{Acquire, Release};
use std::thread::{Builder, JoinHandle};
use std::time::{Duration, Instant};
use untorn_journal::{Error, Result};
use untorn_os::{own_thread, process_generation, wait_shared, wake_shared, without_signals};

/// The longest interval; a longer one is shortened to this.
const EVERY_MOST: Duration = Duration::from_secs(365 * 24 * 3600);
/// The pause after a cut that failed.
const FAILED_PAUSE: Duration = Duration::from_millis(10);
/// The time after a failed cut in which no cut is made early.
const DUE_PAUSE: Duration = Duration::from_secs(1);

/// How a cut of a live heap treats threads that store meanwhile.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Cuts {
    /// A signal stops all threads of the process for a moment, wherever they are. Stores need no guard, and a section
    /// that has not ended is undone in the cut.
    Stop,
    /// The cut waits until no thread holds a guard or is in a section; every store must be made in one of these.
    Wait,
}

/// The times for which cuts stopped the threads.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct StopTimes {
    /// The number of cuts that stopped the threads.
    pub count: u64,
    /// The time for the last one.
    pub last: Duration,
    /// The longest time, including attempts that were repeated.
    pub longest: Duration,
}

/// The assumed speed of a cut before the first one.
const BYTES_PER_SECOND_FIRST: f64 = 100e6;
/// A cut of fewer bytes than this says little about the speed of cuts.
const TOLD_LEAST: u64 = 1 << 20;
/// The number of polls within the allowed time of a cut, to see whether a cut is due. Polls are at least `LOOK_LEAST`
/// apart.
const LOOKS: u32 = 4;
const LOOK_LEAST: Duration = Duration::from_millis(10);

/// Decides when cuts are made, so that none takes longer than `most`.
pub(crate) struct Within {
    most: Duration,
    bytes_per_second: f64,
}

impl Within {
    pub(crate) fn new(most: Duration) -> Within {
        Within { most, bytes_per_second: BYTES_PER_SECOND_FIRST }
    }

    /// Whether a cut is due. The factor 2 allows for as many stores again until the next poll.
    fn is_due(&self, bytes: u64) -> bool {
        2.0 * bytes as f64 >= self.bytes_per_second * self.most.as_secs_f64()
    }

    fn pause(&self) -> Duration {
        (self.most / LOOKS).max(LOOK_LEAST)
    }

    /// Notes the time that a cut of this many bytes took. A slow cut counts fully, a fast one only by an eighth.
    fn note(&mut self, bytes: u64, took: Duration) {
        if bytes < TOLD_LEAST {
            return;
        }
        let rate = bytes as f64 / took.as_secs_f64().max(1e-6);
        let share = if rate < self.bytes_per_second { 1.0 } else { 0.125 };
        self.bytes_per_second += share * (rate - self.bytes_per_second);
    }
}

/// The thread that makes cuts; it ends when this value is dropped.
pub(crate) struct Cutter {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
    process: u64,
    head: LiveHead,
    /// Whether a cut would wait for the calling thread.
    would_wait: Box<dyn Fn() -> bool + Send + Sync>,
}

impl Cutter {
    /// Starts a thread that calls `cut` at intervals if `stored` reports bytes, until this value is dropped. It calls
    /// `cut` at once if another process asks for it, or if a later cut would take longer than `within`. A long cut is
    /// followed by a pause as long as it was. `would_wait` says whether a running cut waits for the thread that calls
    /// it.
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
                    // An error here is reported by the cut.
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
                    // A cut that another process asked for is tried again, after a pause.
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
        // If the cut waits for this thread, the cutter is not joined; it ends by itself after the cut.
        if let Some(thread) = self.thread.take().filter(|_| !(self.would_wait)()) {
            // Wake it repeatedly: it may have been about to wait.
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
        // A small cut says nothing about the speed.
        within.note(4096, Duration::from_secs(1));
        assert!(!within.is_due(90_000_000));
        within.note(10_000_000, Duration::from_secs(1));
        assert!(!within.is_due(9_000_000) && within.is_due(10_000_000));
        within.note(90_000_000, Duration::from_secs(1));
        assert!(!within.is_due(19_000_000) && within.is_due(20_000_000));
        assert_eq!(Within::new(Duration::from_millis(1)).pause(), LOOK_LEAST);
    }
}
