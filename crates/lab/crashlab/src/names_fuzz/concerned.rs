//! Determines the names that may have to wait while the kernel refuses something; all others must not wait.

use crate::names_fuzz::tree::NameTree;
use crate::simulation::Refusal;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

/// The names that a refusal concerns: directly, or because a concerned name must come or go first.
pub(super) struct Concerned {
    refusal: Refusal,
    names: BTreeSet<PathBuf>,
}

impl Concerned {
    /// The names that a refusal concerns in these commits, any of which may be the last.
    pub fn by(refusal: Refusal, commits: &[NameTree]) -> Concerned {
        let mut files: BTreeMap<u64, BTreeSet<&PathBuf>> = BTreeMap::new();
        let mut dirs = BTreeSet::new();
        for history in commits.iter().map(NameTree::history) {
            for (id, names) in &history.files {
                files.entry(*id).or_default().extend(names);
            }
            dirs.extend(&history.dirs);
        }
        let all = files.values().flatten().chain(&dirs);
        let mut names: BTreeSet<PathBuf> =
            all.filter(|name| refusal.concerns(name)).map(|name| (*name).clone()).collect();
        loop {
            let before = names.len();
            for own in files.values() {
                // A file waits for its directory, and for directories whose name it gets or leaves.
                let waits =
                    |name: &PathBuf| names.iter().any(|other| name.starts_with(other) || other.starts_with(name));
                if own.iter().any(|name| waits(name)) {
                    names.extend(own.iter().map(|name| (*name).clone()));
                }
            }
            for dir in &dirs {
                if names.iter().any(|other| dir.starts_with(other)) {
                    names.insert((*dir).clone());
                }
            }
            if names.len() == before {
                return Concerned { refusal, names };
            }
        }
    }

    /// Whether the entry of this name may wait: the name, one above it, or one below it is concerned.
    pub fn has(&self, path: &Path) -> bool {
        self.names.iter().any(|name| path.starts_with(name) || name.starts_with(path))
    }

    /// Whether this is the creation temporary of a file for a name that may wait. The next recovery without a refusal
    /// removes it.
    pub fn leaves(&self, path: &Path) -> bool {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let id = name.strip_prefix('.').and_then(|name| name.strip_suffix(".untorn")).unwrap_or_default();
        let is_temporary = id.len() == 16 && id.chars().all(|c| c.is_ascii_hexdigit());
        let beside = |name: &PathBuf| name.parent() == path.parent();
        is_temporary && (self.refusal.concerns(path) || self.names.iter().any(beside))
    }

    /// Whether a change of this name must be possible in spite of the refusal.
    pub fn spares(&self, path: &Path) -> bool {
        let concerned = |name: &Path| self.refusal.concerns(name) || self.has(name);
        path.ancestors().filter(|above| !above.as_os_str().is_empty()).all(|above| !concerned(above))
    }
}
