//! The time of day, and the clock of the timer.

use crate::interface::file_tree::Time;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// A clock. Tests set their own.
pub trait Clock: Send + Sync {
    /// The time of day, for the times of inodes.
    fn now(&self) -> Time;
    /// Time since the clock started. It never goes back.
    fn elapsed(&self) -> Duration;
}

/// The system's clock.
#[derive(Debug)]
pub struct SystemClock(Instant);

impl SystemClock {
    /// A clock that starts now.
    #[expect(clippy::new_without_default, reason = "a clock starts at a moment")]
    pub fn new() -> SystemClock {
        SystemClock(Instant::now())
    }
}

impl Clock for SystemClock {
    fn now(&self) -> Time {
        match SystemTime::now().duration_since(UNIX_EPOCH) {
            Ok(d) => Time { seconds: d.as_secs() as i64, nanoseconds: d.subsec_nanos() },
            Err(_) => Time::default(),
        }
    }

    fn elapsed(&self) -> Duration {
        self.0.elapsed()
    }
}
