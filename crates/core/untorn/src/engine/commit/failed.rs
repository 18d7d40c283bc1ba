//! Fails commits: either no commit happened, or the outcome is unknown.

use crate::engine::Engine;
use crate::engine::files::name_op::NameOp;
use crate::engine::files::queue::Request;
use std::collections::HashMap;
use std::path::{Path, PathBuf};
use untorn_journal::{Error, Outcome};

impl Engine {
    /// Fails these commits: none of them happened, or the outcome is unknown. Changes that were not committed become
    /// uncommitted again.
    pub(super) fn fail(&self, requests: Vec<Request>, e: &Error) {
        if matches!(e, Error::SyncFailed { outcome: Outcome::UnknownUntilReopened, .. }) {
            for request in requests {
                self.settle_names(&request);
                request.files.iter().for_each(|file| file.write().finish_commit_unknown());
                request.completion.complete(Err(e.clone()));
            }
            return;
        }
        let mut overlays: HashMap<u64, usize> = HashMap::new();
        for file in requests.iter().flat_map(|request| &request.files) {
            *overlays.entry(file.id).or_insert(0) += 1;
        }
        for request in requests.into_iter().rev() {
            let mut e = e.clone().of_commit();
            for file in &request.files {
                let nth = overlays.get_mut(&file.id).expect("counted above");
                *nth -= 1;
                let mut state = file.write();
                if state.outcome_unknown && state.content.committing[*nth].overlay.is_empty() {
                    e = with_unknown_outcome(e);
                }
                state.uncommit(self, *nth, request.is_txn);
                drop(state);
                // If the last handle was closed meanwhile, nothing of the refused commit is kept.
                self.forget_if_idle(file);
            }
            self.settle_names(&request);
            let named: Vec<_> = request.names.iter().flat_map(NameOp::paths).map(Path::to_owned).collect();
            drop(request.names);
            self.forget_names(named.iter().map(PathBuf::as_path));
            request.completion.complete(Err(e));
        }
        debug_assert!(overlays.values().all(|left| *left == 0), "changes of failed commits are left: {overlays:?}");
    }
}

/// Marks an error as one of unknown outcome, because all changes of the failed commit were part of another one, whose
/// outcome is unknown.
pub(super) fn with_unknown_outcome(e: Error) -> Error {
    match e {
        Error::SyncFailed { source, .. } => Error::SyncFailed { outcome: Outcome::UnknownUntilReopened, source },
        other => other,
    }
}
