//! Threads of the process: waiting, barriers, and stopping them briefly. Stands on `descriptors`.

pub(crate) mod asymmetric_barrier;
pub(crate) mod both_at_once;
pub(crate) mod futex;
pub(crate) mod stop_threads;
pub(crate) mod thread_signals;
