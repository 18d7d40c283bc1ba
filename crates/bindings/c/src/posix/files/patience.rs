//! Calls that wait for files that another process has open.

use std::time::{Duration, Instant};

use crate::boundary::error::untorn_error::UNTORN_E_BUSY;
use crate::boundary::error::{Failure, Result};
use crate::posix::state::settings::patience;

/// The pause between two tries.
pub(super) const MOMENT: Duration = Duration::from_millis(10);

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
