//! Waits that Ctrl-C ends.

use parking_lot::{Condvar, Mutex};
use pyo3::prelude::*;
use std::sync::Arc;
use std::task::Wake;
use std::time::{Duration, Instant};

/// The longest wait before signals are handled.
pub(crate) const SLICE: Duration = Duration::from_millis(50);

/// A point in time, or never.
#[derive(Clone, Copy)]
pub(crate) struct Deadline(Option<Instant>);

impl Deadline {
    /// After this many seconds; negative numbers count as 0. `None` and numbers too large for a clock: never.
    pub(crate) fn after(seconds: Option<f64>) -> Deadline {
        let duration = seconds.and_then(|s| Duration::try_from_secs_f64(s.max(0.0)).ok());
        Deadline(duration.and_then(|d| Instant::now().checked_add(d)))
    }

    /// The next wait: at most a slice. Zero once the time is over.
    pub(crate) fn slice(self) -> Duration {
        self.0.map_or(SLICE, |end| end.saturating_duration_since(Instant::now()).min(SLICE))
    }
}

/// Repeats `step`, without the interpreter's lock, until it has a result or the time is over. `step` gets the longest
/// time that it may wait. Between steps, signal handlers run; if one raises, as Ctrl-C does, the wait ends with that.
pub(crate) fn repeat<R: Send>(
    py: Python<'_>,
    deadline: Deadline,
    mut step: impl FnMut(Duration) -> Option<R> + Send,
) -> PyResult<Option<R>> {
    loop {
        let slice = deadline.slice();
        if let Some(result) = py.detach(|| step(slice)) {
            return Ok(Some(result));
        }
        py.check_signals()?;
        if slice.is_zero() {
            return Ok(None);
        }
    }
}

/// Wakes a thread that waits for a future.
#[derive(Default)]
pub(crate) struct Alarm {
    rung: Mutex<bool>,
    changed: Condvar,
}

impl Alarm {
    /// Waits until it rings, for at most this long.
    pub(crate) fn wait(&self, at_most: Duration) {
        let mut rung = self.rung.lock();
        if !*rung {
            self.changed.wait_for(&mut rung, at_most);
        }
        *rung = false;
    }
}

impl Wake for Alarm {
    fn wake(self: Arc<Self>) {
        *self.rung.lock() = true;
        self.changed.notify_all();
    }
}
