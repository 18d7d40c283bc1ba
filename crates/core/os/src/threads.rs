//! Threads of the process: waiting, barriers, and stopping them briefly. Stands on `descriptors`.

pub(crate) mod asymmetric_barrier;
pub(crate) mod futex;
pub(crate) mod in_threads;
pub(crate) mod stop_threads;
pub(crate) mod thread_signals;
