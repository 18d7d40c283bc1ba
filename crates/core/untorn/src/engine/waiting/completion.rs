//! The result of a commit, passed from the thread that writes it to the threads that wait for it.

use crate::engine::waiting::concurrency::Mutex;
use std::io;
use std::sync::Arc;
use std::task::Waker;
use untorn_journal::{Error, Outcome, Result};

/// The result of one commit, once it is known.
#[derive(Default)]
pub(crate) struct Completion {
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    result: Option<Result<()>>,
    /// The commit's place in the log.
    lsn: Option<u64>,
    /// Tasks that wait for the result.
    wakers: Vec<Waker>,
}

impl Completion {
    pub(crate) fn complete(&self, result: Result<()>) {
        let wakers = {
            let mut state = self.state.lock();
            let before = state.result.replace(result);
            debug_assert!(before.is_none(), "a commit had a result: {before:?}");
            std::mem::take(&mut state.wakers)
        };
        wakers.into_iter().for_each(Waker::wake);
    }

    /// Notes the commit's place in the log, before the result.
    pub(crate) fn note_lsn(&self, lsn: u64) {
        self.state.lock().lsn = Some(lsn);
    }

    /// The commit's place in the log, once it has a result and may be there.
    pub(crate) fn lsn(&self) -> Option<u64> {
        let state = self.state.lock();
        let unknown = Outcome::UnknownUntilReopened;
        let may_be_there = match &state.result {
            Some(Err(Error::SyncFailed { outcome, .. })) => *outcome == unknown,
            result => matches!(result, Some(Ok(()))),
        };
        state.lsn.filter(|_| may_be_there)
    }

    pub(crate) fn result(&self) -> Option<Result<()>> {
        self.state.lock().result.clone()
    }

    /// The result; if it is not known yet, the task is woken when it is.
    pub(crate) fn result_or_wake(&self, waker: &Waker) -> Option<Result<()>> {
        let mut state = self.state.lock();
        if state.result.is_none() && !state.wakers.iter().any(|known| known.will_wake(waker)) {
            state.wakers.push(waker.clone());
        }
        state.result.clone()
    }
}

/// Why commits fail whose writer panicked.
pub(crate) const PANICKED: &str =
    "the thread that wrote the commit panicked, which is a bug in Untorn or in a callback";

/// The completion of a commit in the hands of its writer. If the writer panics, the commit has failed, and only the
/// reopened store shows whether it happened.
pub(crate) struct Promise(pub(crate) Arc<Completion>);

impl Promise {
    pub(crate) fn complete(&self, result: Result<()>) {
        self.0.complete(result);
    }

    pub(crate) fn note_lsn(&self, lsn: u64) {
        self.0.note_lsn(lsn);
    }
}

impl Drop for Promise {
    fn drop(&mut self) {
        if std::thread::panicking() && self.0.result().is_none() {
            let source = Arc::new(io::Error::other(PANICKED));
            self.0.complete(Err(Error::SyncFailed { outcome: Outcome::UnknownUntilReopened, source }));
        }
    }
}
