//! Ctrl-C and SIGTERM.

use crate::store::fresh::remove;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use untorn_terminal::{Failure, signals, tell};

fn unwatched(e: std::io::Error) -> Failure {
    Failure::new(format!("cannot watch for Ctrl-C: {e}"))
}

/// A flag that the first signal sets, with this sentence for the user. The second one ends the process at once.
///
/// # Errors
/// Signals cannot be watched.
pub fn stop_flag(ends: &'static str) -> Result<Arc<AtomicBool>, Failure> {
    let is_stopped = Arc::new(AtomicBool::new(false));
    let stop = is_stopped.clone();
    let handled = signals::handle(move || {
        if stop.swap(true, Ordering::SeqCst) {
            std::process::exit(130);
        }
        tell!("untorn-ship: {ends}; interrupt it again to end at once");
    });
    handled.map(|()| is_stopped).map_err(unwatched)
}

/// A signal ends the process, and removes this directory, with this sentence for the user.
///
/// # Errors
/// Signals cannot be watched.
pub fn remove_at_end(left: PathBuf, told: &'static str) -> Result<(), Failure> {
    let handled = signals::on_interrupt("untorn-ship", told, move || {
        signals::remove_meanwhile_by(&left, || remove(&left));
    });
    handled.map_err(unwatched)
}
