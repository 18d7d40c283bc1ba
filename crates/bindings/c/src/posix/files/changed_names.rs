//! The names that uncommitted changes of a store give to files. On the disk there are still the old ones.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::managed_files::Managed;
use super::name::Name;
use crate::posix::state::posix_descriptor::Key;

/// The file of a name.
#[derive(Clone)]
pub(super) enum Holder {
    Nobody,
    /// A file that the changes create.
    Made(Arc<Managed>),
    /// A managed file, and its name on the disk.
    Open(Arc<Managed>, PathBuf),
    /// A file that is not managed.
    Plain(Key),
}

#[derive(Default)]
pub(super) struct ChangedNames(HashMap<PathBuf, Holder>);

impl ChangedNames {
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub fn is_changed(&self, path: &Path) -> bool {
        self.0.contains_key(path)
    }

    /// Whether the changes give the name to a file.
    pub fn is_given(&self, path: &Path) -> bool {
        self.0.get(path).is_some_and(|holder| !matches!(holder, Holder::Nobody))
    }

    /// Whether there is a file of the name after the changes so far.
    pub fn is_taken(&self, name: &Name) -> bool {
        if self.is_changed(&name.path) { self.is_given(&name.path) } else { !name.is_missing() }
    }

    /// The file of the name after the changes so far.
    pub fn holder(&self, name: &Name) -> Holder {
        match (self.0.get(&name.path), &name.file, name.key()) {
            (Some(holder), ..) => holder.clone(),
            (None, Some(file), _) => Holder::Open(file.clone(), name.path.clone()),
            (None, None, Some(key)) => Holder::Plain(key),
            (None, None, None) => Holder::Nobody,
        }
    }

    pub fn set(&mut self, path: &Path, holder: Holder) {
        self.0.insert(path.to_owned(), holder);
    }

    pub fn into_given(self) -> impl Iterator<Item = (PathBuf, Holder)> {
        self.0.into_iter()
    }
}
