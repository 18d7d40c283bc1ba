//! A store for which every call of the storage is a point where another thread may run.

pub mod fixture;

use crate::hooked::Hooked;
use shuttle::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::sync::Arc;
use untorn_os::Storage;

/// A simulated process under the scheduler, which may switch threads at an access to an atomic.
pub fn interleaved(below: Arc<dyn Storage>) -> Arc<dyn Storage> {
    let point = AtomicU64::new(0);
    Hooked::over(below, Arc::new(move |_| _ = point.load(SeqCst)))
}
