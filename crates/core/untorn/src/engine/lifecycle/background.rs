//! The store's background thread: asynchronous commits, checkpoints before the journal is full, durable marks after a
//! while without commits, figures for programs that watch.

use crate::engine::Engine;
use crate::engine::parts::statistics::PUBLISH_EVERY;
use crate::engine::waiting::concurrency::{Instant, thread};
use crate::engine::waiting::wakeup::Wakeup;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Weak};
use std::time::Duration;
use untorn_journal::{Error, Result};
use untorn_os::{own_thread, without_signals};

/// Time without commits after which a durable mark is due.
const IDLE: Duration = Duration::from_millis(100);
/// Interval of checks whether readers still need the data kept for them.
const FREE_KEPT: Duration = Duration::from_secs(1);
/// Delay of the next checkpoint after a failed one. It doubles with each failure, up to the maximum.
const RETRY_MIN: Duration = Duration::from_secs(1);
const RETRY_MAX: Duration = Duration::from_secs(60);

/// Starts the thread of a store.
pub(crate) fn start(engine: &Arc<Engine>) -> Result<()> {
    let (weak, wakeup) = (Arc::downgrade(engine), engine.commits.wakeup.clone());
    if engine.wants_checkpoint(&engine.journal.lock()) {
        wakeup.wake();
    }
    let start = || thread::Builder::new().name("untorn".into()).spawn(move || run(&weak, &wakeup));
    let thread = without_signals(start).map_err(|e| Error::io("start a thread for", &engine.path, e))?;
    engine.commits.wakeup.started(thread);
    Ok(())
}

fn run(engine: &Weak<Engine>, wakeup: &Wakeup) {
    let _own = own_thread();
    // A short session is not held up by a thread that wants the same locks, or that its commit has to wake.
    if !wakeup.wait(Some(IDLE)) {
        return;
    }
    // The thread keeps nothing of the store alive while it waits, so that the store can close.
    let mut retry = Retry::default();
    while let Some(pause) = engine.upgrade().map(|engine| work(&engine, &mut retry)) {
        if !wakeup.wait(pause) {
            return;
        }
    }
}

/// When a failed checkpoint is tried again.
#[derive(Default)]
struct Retry {
    /// The last failure, and the pause after it.
    failed: Option<(Instant, Duration)>,
}

impl Retry {
    /// Whether the pause goes on. Programs that watch wake the thread more often.
    fn waits(&self) -> bool {
        self.failed.as_ref().is_some_and(|(at, pause)| at.elapsed() < *pause)
    }

    /// Notes a failure, and returns the pause after it.
    fn note_failure(&mut self) -> Duration {
        let pause = self.failed.take().map_or(RETRY_MIN, |(_, pause)| (2 * pause).min(RETRY_MAX));
        debug_assert!((RETRY_MIN..=RETRY_MAX).contains(&pause), "the next try comes in {pause:?}");
        self.failed = Some((Instant::now(), pause));
        pause
    }
}

/// Makes a checkpoint, and writes queued commits between its steps. Returns whether it succeeded.
fn checkpoint(engine: &Engine) -> bool {
    loop {
        match engine.checkpoint_step(u64::MAX) {
            Ok(true) => write_waiting(engine),
            Ok(false) => return true,
            Err(e) => {
                tracing::warn!(id = "untorn.checkpoint.failed", error = %e, "a checkpoint in the background failed");
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

/// Does all work that is due; returns the longest wait until the next call.
fn work(engine: &Engine, retry: &mut Retry) -> Option<Duration> {
    write_waiting(engine);
    if engine.checkpoints.merge_wanted.swap(false, Relaxed) {
        engine.merge_layers();
    }
    let wants_checkpoint = engine.wants_checkpoint(&engine.journal.lock()) || engine.checkpoints.failed.load(Relaxed);
    let waits = engine.statistics.is_watched() && retry.waits();
    let failed = wants_checkpoint && !waits && !checkpoint(engine);
    let busy = engine.commits.wakeup.take_busy();
    if !busy {
        let journal = &mut engine.journal.lock().journal;
        if let Err(e) = journal.write_durable_mark() {
            tracing::warn!(id = "untorn.mark.failed", error = %e, "the durable mark could not be written");
            engine.life.note_failure(journal, &engine.path);
        }
    }
    let (kept, is_watched) = (engine.free_kept(), engine.tell_watchers());
    let pause = match (busy, failed) {
        (_, true) => Some(retry.note_failure()),
        (true, false) => Some(IDLE),
        (false, false) => kept.then_some(FREE_KEPT),
    };
    if !failed && !waits {
        *retry = Retry::default();
    }
    if is_watched { Some(pause.unwrap_or(PUBLISH_EVERY).min(PUBLISH_EVERY)) } else { pause }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failed_checkpoint_is_tried_again_after_longer_and_longer_pauses() {
        let mut retry = Retry::default();
        assert!(!retry.waits());
        let pauses: Vec<u64> = (0..8).map(|_| retry.note_failure().as_secs()).collect();
        assert_eq!(pauses, [1, 2, 4, 8, 16, 32, 60, 60]);
        assert!(retry.waits());
    }
}
