//! What a run of commits comes to: per file its name or none, its size, its newest ranges.
//!
//! Recovery and the living store make this final state so; operations are never replayed one by one
//! (rename a→b, create a, crash, rename a→b again: b would be lost).

use crate::error::{Error, Result};
use crate::layer::Layer;
use crate::record::{FileRef, Op, Record};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

/// The final state of one file.
#[derive(Clone, Debug)]
pub struct FileState {
    /// The identity in the file's attribute.
    pub id: u64,
    /// Every name that it had, oldest first; it may be found under any of them after a crash.
    pub names: Vec<PathBuf>,
    /// Its final name; `None`: unlinked.
    pub name: Option<PathBuf>,
    /// Made by these commits, with this mode.
    pub created: Option<u32>,
    /// New permission bits.
    pub mode: Option<u32>,
    /// New contents.
    pub layer: Layer,
    /// What the file must hold at least before the first of these commits.
    pub previous: u64,
    /// First of these commits that touches it.
    pub first: u64,
    /// Last of these commits that touches it.
    pub last: u64,
}

impl FileState {
    fn new(file: &FileRef, sequence: u64) -> FileState {
        FileState {
            id: file.id,
            names: vec![file.path.clone()],
            name: Some(file.path.clone()),
            created: None,
            mode: None,
            layer: Layer::default(),
            previous: file.previous,
            first: sequence,
            last: sequence,
        }
    }

    /// The newest name, for messages.
    pub fn shown_name(&self) -> &Path {
        self.name.as_deref().unwrap_or_else(|| self.names.last().expect("a file has a name"))
    }

    /// A file that was made and unlinked again never needs to exist.
    pub fn never_was(&self) -> bool {
        self.created.is_some() && self.name.is_none()
    }
}

/// The final state of a directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DirState {
    /// It exists at the end.
    pub exists: bool,
    /// New permission bits.
    pub mode: Option<u32>,
}

/// The final state of everything that a run of commits touched.
#[derive(Clone, Debug, Default)]
pub struct FinalState {
    /// By identity.
    pub files: BTreeMap<u64, FileState>,
    /// By path.
    pub dirs: BTreeMap<PathBuf, DirState>,
}

impl FinalState {
    /// Takes in the next commit.
    pub fn absorb(&mut self, record: &Record, sequence: u64) -> Result<()> {
        let gap = |path: &Path, what: &str| Err(Error::corrupt(path, format!("commit {sequence}: {what}")));
        for file in &record.files {
            let Some(state) = self.files.get_mut(&file.id) else {
                self.files.insert(file.id, FileState::new(file, sequence));
                continue;
            };
            if state.last != file.previous {
                return gap(&file.path, "a commit before it that touched this file is missing");
            }
            if state.name.as_deref() != Some(&file.path) {
                return gap(&file.path, "it names a file that has another name by then");
            }
            state.last = sequence;
        }
        for op in &record.ops {
            self.absorb_op(record, op);
        }
        Ok(())
    }

    fn file(&mut self, record: &Record, index: u32) -> &mut FileState {
        let id = record.files[index as usize].id;
        self.files.get_mut(&id).expect("listed files were taken in")
    }

    fn absorb_op(&mut self, record: &Record, op: &Op) {
        match op {
            Op::Put { file, range, source } => self.file(record, *file).layer.insert(range.clone(), source.clone()),
            Op::Truncate { file, size } => self.file(record, *file).layer.truncate(*size),
            Op::Create { file, mode } => self.file(record, *file).created = Some(*mode),
            Op::Rename { file, to } => {
                let state = self.file(record, *file);
                state.names.push(to.clone());
                state.name = Some(to.clone());
            }
            Op::Unlink { file } => {
                let state = self.file(record, *file);
                state.name = None;
                state.layer = Layer::default();
            }
            Op::Mode { file, mode } => self.file(record, *file).mode = Some(*mode),
            Op::Mkdir { path, mode } => {
                self.dirs.insert(path.clone(), DirState { exists: true, mode: Some(*mode) });
            }
            Op::Rmdir { path } => {
                self.dirs.insert(path.clone(), DirState { exists: false, mode: None });
            }
            Op::DirMode { path, mode } => {
                let exists = self.dirs.get(path).is_none_or(|d| d.exists);
                self.dirs.insert(path.clone(), DirState { exists, mode: Some(*mode) });
            }
        }
    }

    /// Keeps only these files, and no directories: what a journal set aside still owes.
    pub fn only(&mut self, ids: &BTreeSet<u64>) {
        self.files.retain(|id, _| ids.contains(id));
        self.dirs.clear();
    }

    /// Directories whose entries change.
    pub fn touched_dirs(&self) -> BTreeSet<PathBuf> {
        let mut dirs = BTreeSet::new();
        let parent = |path: &Path| path.parent().unwrap_or(Path::new("")).to_owned();
        for file in self.files.values() {
            if file.created.is_some() || file.names.len() > 1 || file.name.is_none() {
                dirs.extend(file.names.iter().map(|name| parent(name)));
            }
        }
        for (path, dir) in &self.dirs {
            dirs.insert(parent(path));
            if dir.exists {
                dirs.insert(path.clone());
            }
        }
        // A directory that is gone needs no sync of its own.
        dirs.retain(|dir| self.dirs.get(dir).is_none_or(|d| d.exists));
        dirs
    }

    /// Whether a name is one that a file had or gets, or that of a directory that changes.
    pub fn has_name(&self, path: &Path) -> bool {
        self.dirs.contains_key(path) || self.files.values().any(|f| f.names.iter().any(|name| name == path))
    }

    /// Whether names change at all.
    pub fn has_name_changes(&self) -> bool {
        !self.dirs.is_empty()
            || self
                .files
                .values()
                .any(|f| f.created.is_some() || f.names.len() > 1 || f.name.is_none() || f.mode.is_some())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(id: u64, previous: u64, path: &str) -> FileRef {
        FileRef { id, previous, path: path.into() }
    }

    #[test]
    fn rename_then_create_under_the_old_name() {
        let mut state = FinalState::default();
        let rename = Record { files: vec![file(1, 0, "a")], ops: vec![Op::Rename { file: 0, to: "b".into() }] };
        let create = Record { files: vec![file(2, 0, "a")], ops: vec![Op::Create { file: 0, mode: 0o600 }] };
        state.absorb(&rename, 5).unwrap();
        state.absorb(&create, 6).unwrap();
        assert_eq!(state.files[&1].name.as_deref(), Some(Path::new("b")));
        assert_eq!(state.files[&2].name.as_deref(), Some(Path::new("a")));
    }

    #[test]
    fn a_missing_predecessor_is_seen() {
        let mut state = FinalState::default();
        let touch =
            |previous| Record { files: vec![file(1, previous, "a")], ops: vec![Op::Truncate { file: 0, size: 1 }] };
        state.absorb(&touch(3), 7).unwrap();
        assert!(state.absorb(&touch(8), 9).is_err());
        assert!(state.absorb(&touch(7), 9).is_ok());
    }
}
