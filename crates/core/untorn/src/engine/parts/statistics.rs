//! How long the stages of commits and checkpoints take, for programs that watch the store.
//!
//! Nothing is measured while nobody watches. The background thread looks for watchers and publishes. These locks are
//! the innermost ones of a store, and are held for moments.

use crate::engine::waiting::concurrency::{AtomicBool, Instant, Mutex};
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;
use untorn_journal::statistics::figures::{Figures, Stage};

/// The time between two looks for watchers, and between two publications.
pub(crate) const PUBLISH_EVERY: Duration = Duration::from_millis(250);

/// The measurements of an open store.
pub(crate) struct Statistics {
    opened: Instant,
    /// Whether a program watches.
    watched: AtomicBool,
    /// The last look for watchers.
    looked: Mutex<Option<Instant>>,
    /// When the records of the present group were written.
    written: Mutex<Option<Instant>>,
    figures: Mutex<Figures>,
}

impl Statistics {
    /// Those of a store that is opened now.
    pub(crate) fn new() -> Statistics {
        Statistics {
            opened: Instant::now(),
            watched: AtomicBool::new(false),
            looked: Mutex::default(),
            written: Mutex::default(),
            figures: Mutex::default(),
        }
    }

    /// The time since the store was opened.
    pub(crate) fn open_for(&self) -> Duration {
        self.opened.elapsed()
    }

    /// Whether a program watches.
    pub(crate) fn is_watched(&self) -> bool {
        self.watched.load(Relaxed)
    }

    /// Notes whether a program watches, and returns whether one did before.
    pub(crate) fn set_watched(&self, watched: bool) -> bool {
        self.watched.swap(watched, Relaxed)
    }

    /// Whether it is time to look for watchers; notes that the caller looks now.
    pub(crate) fn is_due(&self) -> bool {
        let mut looked = self.looked.lock();
        let is_due = looked.as_ref().is_none_or(|looked| looked.elapsed() >= PUBLISH_EVERY);
        if is_due {
            *looked = Some(Instant::now());
        }
        is_due
    }

    /// The time now, if a program watches.
    pub(crate) fn begin(&self) -> Option<Instant> {
        self.is_watched().then(Instant::now)
    }

    /// Counts a stage that began then.
    pub(crate) fn note(&self, stage: Stage, begun: Option<&Instant>) {
        if let Some(begun) = begun {
            self.figures.lock().stage_mut(stage).note(begun.elapsed());
        }
    }

    /// Notes that the records of a group are written, and its flush begins.
    pub(crate) fn note_written(&self) {
        *self.written.lock() = self.begin();
    }

    /// Counts the write and the flush of a group that began then.
    pub(crate) fn note_group(&self, begun: Option<&Instant>) {
        let (Some(begun), Some(written)) = (begun, self.written.lock().take()) else { return };
        let (whole, flush) = (begun.elapsed(), written.elapsed());
        let mut figures = self.figures.lock();
        figures.stage_mut(Stage::Write).note(whole.saturating_sub(flush));
        figures.stage_mut(Stage::Flush).note(flush);
    }

    /// Completes the figures, and returns them.
    pub(crate) fn figures(&self, complete: impl FnOnce(&mut Figures)) -> Figures {
        let mut figures = self.figures.lock();
        complete(&mut figures);
        figures.clone()
    }
}
