//! Work in several threads.

use crate::threads::stop_threads::own_thread;
use crate::threads::thread_signals::without_signals;
use parking_lot::Mutex;
use std::sync::OnceLock;
use std::thread::{Builder, Scope};

/// Limits for the number of threads: those that wait for the disk leave a processor to others.
const THREADS: std::ops::RangeInclusive<usize> = 2..=4;

/// Calls the function in this thread and at the same time in others, by the number of processors up to `most` together.
pub(crate) fn in_threads(most: usize, work: &(dyn Fn() + Sync)) {
    static USABLE: OnceLock<usize> = OnceLock::new();
    let processors = || std::thread::available_parallelism().map_or(1, usize::from);
    let usable = *USABLE.get_or_init(|| processors().clamp(*THREADS.start(), *THREADS.end()));
    std::thread::scope(|scope| {
        // Without new threads, this one does all.
        (1..most.min(usable)).take_while(|_| start(scope, work)).for_each(drop);
        work();
    });
}

/// Runs `other` in a new thread and `own` in this one. Without a new thread, runs one after the other.
pub(crate) fn both_at_once(other: &mut (dyn FnMut() + Send), own: &mut dyn FnMut()) {
    let other = Mutex::new(other);
    let work = || (other.lock())();
    std::thread::scope(|scope| {
        if !start(scope, &work) {
            work();
        }
        own();
    });
}

/// Starts a thread, and returns whether that was possible.
fn start<'scope>(scope: &'scope Scope<'scope, '_>, work: &'scope (dyn Fn() + Sync)) -> bool {
    let run = move || {
        let _own = own_thread();
        work();
    };
    without_signals(|| Builder::new().name("untorn".into()).spawn_scoped(scope, run)).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Barrier;

    #[test]
    fn each_can_wait_for_the_other() {
        let meeting = Barrier::new(2);
        let (mut other, mut own) = (false, false);
        both_at_once(
            &mut || {
                meeting.wait();
                other = true;
            },
            &mut || {
                meeting.wait();
                own = true;
            },
        );
        assert!(other && own);
    }
}
