//! A store for which every call of the storage is a point where another thread may run.

pub mod fixture;

use crate::hooked::{Hooked, InThreads};
use shuttle::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::sync::Arc;
use untorn_os::Storage;

/// The most threads that share out the work of a checkpoint.
const THREADS: usize = 3;

/// A simulated process under the scheduler, which may switch threads at an access to an atomic.
pub fn interleaved(below: Arc<dyn Storage>) -> Arc<dyn Storage> {
    let point = AtomicU64::new(0);
    let hook = Arc::new(move |_: &str| _ = point.load(SeqCst));
    let in_threads: InThreads = |most, work| {
        shuttle::thread::scope(|scope| {
            (1..most.min(THREADS)).for_each(|_| _ = scope.spawn(work));
            work();
        });
    };
    Arc::new(Hooked { in_threads, ..Hooked::over(below, hook) })
}
