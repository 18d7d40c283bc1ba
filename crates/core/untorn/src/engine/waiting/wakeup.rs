//! Wakes a store's background thread for commits, and ends it when the store closes.

use crate::engine::waiting::concurrency::thread::{self, JoinHandle};
use crate::engine::waiting::concurrency::{AtomicBool, Condvar, Mutex};
use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;

/// Wake-ups of the background thread.
#[derive(Default)]
pub(crate) struct Wakeup {
    state: Mutex<State>,
    changed: Condvar,
    thread: Mutex<Option<JoinHandle<()>>>,
    /// Whether a commit happened since the last durable mark.
    busy: AtomicBool,
    /// Whether the thread waits without a time limit, because there is nothing to do.
    asleep: AtomicBool,
}

#[derive(Default)]
struct State {
    stop: bool,
    wake: bool,
    /// The thread works, and so has a part of the store.
    works: bool,
}

impl Wakeup {
    /// Wakes the thread.
    pub(crate) fn wake(&self) {
        self.state.lock().wake = true;
        self.changed.notify_one();
    }

    /// Notes that a batch was committed. Wakes the thread only if it would not check by itself soon.
    pub(crate) fn note_commit(&self) {
        self.busy.store(true, SeqCst);
        if self.asleep.swap(false, SeqCst) {
            self.wake();
        }
    }

    pub(crate) fn started(&self, thread: JoinHandle<()>) {
        let before = self.thread.lock().replace(thread);
        debug_assert!(before.is_none(), "a store has two threads");
    }

    /// Ends the thread, and waits for that if it works, unless the thread itself calls. A thread that waits has nothing
    /// of the store, and ends by itself.
    pub(crate) fn stop(&self) {
        let works = {
            let mut state = self.state.lock();
            state.stop = true;
            state.works
        };
        self.changed.notify_one();
        if let Some(thread) = self.thread.lock().take()
            && works
            && thread.thread().id() != thread::current().id()
        {
            let _ = thread.join();
        }
    }

    /// Called by the thread after its work: whether anything was committed since the last call.
    pub(crate) fn take_busy(&self) -> bool {
        // In this order: a commit in between sets `busy` and then checks whether the thread is asleep.
        self.asleep.store(true, SeqCst);
        self.busy.swap(false, SeqCst)
    }

    /// Waits for a wake-up, for at most this long. Returns false if the thread must end.
    pub(crate) fn wait(&self, most: Option<Duration>) -> bool {
        if most.is_some() {
            self.asleep.store(false, SeqCst);
        }
        let mut state = self.state.lock();
        state.works = false;
        while !state.stop && !state.wake {
            match most {
                None => self.changed.wait(&mut state),
                Some(most) => {
                    if self.changed.wait_for(&mut state, most).timed_out() {
                        break;
                    }
                }
            }
        }
        state.wake = false;
        state.works = !state.stop;
        state.works
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    /// Stops a thread while it waits, or while it works after a wake-up; returns whether it had ended then.
    fn has_ended_when_stopped(works: bool) -> bool {
        let wakeup = Arc::new(Wakeup::default());
        let (ended, begun) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
        let (end, may_end) = std::sync::mpsc::channel();
        let started = {
            let (wakeup, ended, begun) = (wakeup.clone(), ended.clone(), begun.clone());
            thread::Builder::new().spawn(move || {
                while wakeup.wait(None) {
                    begun.store(true, SeqCst);
                    std::thread::sleep(Duration::from_millis(100));
                }
                if !works {
                    // Only a thread that is waited for, wrongly, ends by the time limit.
                    let _ = may_end.recv_timeout(Duration::from_secs(60));
                }
                ended.store(true, SeqCst);
            })
        };
        wakeup.started(started.unwrap());
        if works {
            wakeup.wake();
            while !begun.load(SeqCst) {
                std::thread::yield_now();
            }
        }
        wakeup.stop();
        let has_ended = ended.load(SeqCst);
        let _ = end.send(());
        has_ended
    }

    #[test]
    fn only_a_thread_that_works_is_waited_for() {
        assert!(has_ended_when_stopped(true));
        assert!(!has_ended_when_stopped(false));
    }
}
