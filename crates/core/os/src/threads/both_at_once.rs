//! Two pieces of work at the same time.

use crate::threads::stop_threads::own_thread;
use crate::threads::thread_signals::without_signals;
use parking_lot::Mutex;
use std::thread::Builder;

/// Runs `other` in a new thread and `own` in this one. Without a new thread, runs one after the other.
pub fn both_at_once(other: &mut (dyn FnMut() + Send), own: &mut dyn FnMut()) {
    let other = Mutex::new(other);
    let work = || {
        let _own = own_thread();
        (other.lock())();
    };
    std::thread::scope(|scope| {
        if without_signals(|| Builder::new().name("untorn".into()).spawn_scoped(scope, work)).is_err() {
            (other.lock())();
        }
        own();
    });
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
