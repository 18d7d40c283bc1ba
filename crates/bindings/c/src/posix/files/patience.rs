//! How long a call waits for files that another process has open.

use std::sync::OnceLock;
use std::time::{Duration, Instant};

use crate::boundary::error::untorn_error::UNTORN_E_BUSY;
use crate::boundary::error::{Failure, Result};
use crate::boundary::log::tell;

/// Seconds, in the environment.
const VARIABLE: &str = "UNTORN_WAIT";
pub(super) const MOMENT: Duration = Duration::from_millis(10);

/// The time that the environment allows.
pub(super) fn patience() -> Duration {
    static GIVEN: OnceLock<Duration> = OnceLock::new();
    *GIVEN.get_or_init(|| {
        let Some(given) = std::env::var_os(VARIABLE).filter(|given| !given.is_empty()) else { return Duration::ZERO };
        let seconds = given.to_str().and_then(|given| given.parse().ok());
        seconds.and_then(|seconds| Duration::try_from_secs_f64(seconds).ok()).unwrap_or_else(|| {
            tell(&format!("{VARIABLE}={}: not a number of seconds, so no call waits", given.display()));
            Duration::ZERO
        })
    })
}

/// Repeats a call while another process has the file or its store open. The call holds no lock between two tries.
pub(crate) fn patiently<T>(mut call: impl FnMut() -> Result<T>) -> Result<T> {
    let started = Instant::now();
    loop {
        match call() {
            Err(Failure { kind: UNTORN_E_BUSY, .. }) if started.elapsed() < patience() => std::thread::sleep(MOMENT),
            done => return done,
        }
    }
}
