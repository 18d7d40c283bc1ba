//! The net effect of a run of commits: for each file its name, if it has one, its size, and its newest ranges.
//!
//! Recovery and the open store apply this final state; operations are never replayed one by one
//! (rename a→b, create a, crash, rename a→b again: b would be lost).

use crate::commits::overlay::Overlay;
use crate::commits::record::{FileRef, Op, Record};
use crate::error::{Error, Result};
use crate::invariant;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use untorn_os::holds;

/// The final state of one file.
#[derive(Clone, Debug)]
pub struct FileState {
    /// The identity in the file's attribute.
    pub id: u64,
    /// Names that the file had, oldest first. After a crash it may be under any of them.
    pub names: Vec<PathBuf>,
    /// Its final name, or `None` if it is unlinked.
    pub name: Option<PathBuf>,
    /// Mode with which these commits create the file.
    pub created: Option<u32>,
    /// New permission bits.
    pub mode: Option<u32>,
    /// New contents.
    pub overlay: Overlay,
    /// The file must hold all commits up to this LSN before the first of these is applied.
    pub previous_lsn: u64,
    /// LSN of the first of these commits that touches it.
    pub first_lsn: u64,
    /// LSN of the last of these commits that touches it.
    pub last_lsn: u64,
}

impl FileState {
    /// A file of this name without commits in the log.
    pub fn named(id: u64, path: &Path) -> FileState {
        FileState::new(&FileRef { id, previous_lsn: 0, path: path.to_owned() }, 0)
    }

    fn new(file: &FileRef, lsn: u64) -> FileState {
        FileState {
            id: file.id,
            names: vec![file.path.clone()],
            name: Some(file.path.clone()),
            created: None,
            mode: None,
            overlay: Overlay::default(),
            previous_lsn: file.previous_lsn,
            first_lsn: lsn,
            last_lsn: lsn,
        }
    }

    /// Takes over a record that restates everything that the file lacks. Its predecessors need not be consecutive,
    /// because the log may have lost the first of them.
    fn restated(&mut self, file: &FileRef, lsn: u64) {
        debug_assert!(lsn >= self.last_lsn, "record {lsn} restates {} behind it", self.last_lsn);
        if holds(invariant::RESTATED_WHOLE) {
            self.previous_lsn = self.previous_lsn.min(file.previous_lsn);
        }
        if !self.names.contains(&file.path) {
            self.names.push(file.path.clone());
        }
        self.last_lsn = lsn;
    }

    /// The newest name, for messages.
    pub fn display_name(&self) -> &Path {
        self.name.as_deref().unwrap_or_else(|| self.names.last().expect("a file has a name"))
    }

    /// The permission bits that these commits give the file.
    pub fn final_mode(&self) -> Option<u32> {
        self.mode.or(self.created)
    }

    /// Whether the file was created and unlinked again, so that it never needs to exist.
    pub fn is_created_and_unlinked(&self) -> bool {
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
    /// Adds the record of the next commit.
    pub fn add_record(&mut self, record: &Record, lsn: u64) -> Result<()> {
        let gap = |path: &Path, what: &str| Err(Error::corrupt(path, format!("commit {lsn}: {what}")));
        for file in &record.files {
            let Some(state) = self.files.get_mut(&file.id) else {
                self.files.insert(file.id, FileState::new(file, lsn));
                continue;
            };
            if record.restates() {
                state.restated(file, lsn);
                continue;
            }
            if state.last_lsn != file.previous_lsn {
                return gap(&file.path, "an earlier commit to this file is missing");
            }
            if state.name.as_deref() != Some(&file.path) {
                return gap(&file.path, "it uses a name that the file does not have at this commit");
            }
            debug_assert!(lsn >= state.last_lsn, "record {lsn} is added behind {}", state.last_lsn);
            state.last_lsn = lsn;
        }
        for op in &record.ops {
            self.add_op(record, op);
        }
        Ok(())
    }

    fn file(&mut self, record: &Record, index: u32) -> &mut FileState {
        let id = record.files[index as usize].id;
        self.files.get_mut(&id).expect("listed files were added")
    }

    fn add_op(&mut self, record: &Record, op: &Op) {
        match op {
            Op::Write { file, range, source } => self.file(record, *file).overlay.insert(range.clone(), source.clone()),
            Op::Truncate { file, size } => self.file(record, *file).overlay.truncate(*size),
            Op::Create { file, mode } => self.file(record, *file).created = Some(*mode),
            Op::Rename { file, to } => {
                let state = self.file(record, *file);
                state.names.push(to.clone());
                state.name = Some(to.clone());
                debug_assert!(state.names.len() > 1, "a renamed file had no name: {to:?}");
            }
            Op::Unlink { file } => {
                let state = self.file(record, *file);
                state.name = None;
                state.overlay = Overlay::default();
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
            Op::Restate => {}
        }
    }

    /// Directories in this state that contain a name of the file.
    pub fn dirs_of(&self, file: &FileState) -> BTreeSet<PathBuf> {
        let holds_a_name = |dir: &&PathBuf| file.names.iter().any(|name| name.starts_with(dir));
        self.dirs.keys().filter(holds_a_name).cloned().collect()
    }

    /// Adds the name changes of this state to a record, for files that lack all commits after their `previous_lsn`.
    pub fn restate_names(&self, record: &mut Record, previous_lsn: impl Fn(&FileState) -> u64) {
        debug_assert!(record.restates(), "names are restated by a commit: {:?}", record.ops.first());
        for file in self.files.values() {
            let (index, path) = (record.files.len() as u32, file.names[0].clone());
            record.files.push(FileRef { id: file.id, previous_lsn: previous_lsn(file), path });
            record.ops.extend(file.created.map(|mode| Op::Create { file: index, mode }));
            let renamed = file.names[1..].iter().map(|to| Op::Rename { file: index, to: to.clone() });
            record.ops.extend(renamed);
            record.ops.extend(file.mode.map(|mode| Op::Mode { file: index, mode }));
            record.ops.extend(file.name.is_none().then_some(Op::Unlink { file: index }));
        }
        record.ops.extend(self.dirs.iter().map(|(path, dir)| match (dir.exists, dir.mode) {
            (true, mode) => Op::Mkdir { path: path.clone(), mode: mode.unwrap_or(0o700) },
            (false, _) => Op::Rmdir { path: path.clone() },
        }));
    }

    /// Keeps only the files and directories for which a quarantined journal is still needed. A directory above one of
    /// these stays, too, because its mode may forbid changes in it.
    pub fn retain(&mut self, files: &BTreeSet<u64>, dirs: &BTreeSet<PathBuf>) {
        self.files.retain(|id, _| files.contains(id));
        self.dirs.retain(|path, _| dirs.iter().any(|dir| dir.starts_with(path)));
    }

    /// Directories whose entries change, removed ones too: they stay if the disk refuses their removal.
    pub fn touched_dirs(&self) -> BTreeSet<PathBuf> {
        let mut dirs = BTreeSet::new();
        let parent = |path: &Path| path.parent().unwrap_or(Path::new("")).to_owned();
        for file in self.files.values() {
            if file.created.is_some() || file.names.len() > 1 || file.name.is_none() {
                dirs.extend(file.names.iter().map(|name| parent(name)));
            }
        }
        dirs.extend(self.dirs.keys().flat_map(|path| [parent(path), path.clone()]));
        dirs
    }

    /// Whether a path depends on name changes in this state: it is a name that a file had or gets, or a changed
    /// directory, or lies in such a directory, or is a directory in which something changes.
    pub fn depends_on(&self, path: &Path) -> bool {
        let mut files = self.files.values().flat_map(|file| &file.names);
        files.any(|name| name.starts_with(path))
            || self.dirs.keys().any(|dir| dir.starts_with(path) || path.starts_with(dir))
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

    fn file(id: u64, previous_lsn: u64, path: &str) -> FileRef {
        FileRef { id, previous_lsn, path: path.into() }
    }

    #[test]
    fn rename_then_create_under_the_old_name() {
        let mut state = FinalState::default();
        let rename = Record { files: vec![file(1, 0, "a")], ops: vec![Op::Rename { file: 0, to: "b".into() }] };
        let create = Record { files: vec![file(2, 0, "a")], ops: vec![Op::Create { file: 0, mode: 0o600 }] };
        state.add_record(&rename, 5).unwrap();
        state.add_record(&create, 6).unwrap();
        assert_eq!(state.files[&1].name.as_deref(), Some(Path::new("b")));
        assert_eq!(state.files[&2].name.as_deref(), Some(Path::new("a")));
    }

    #[test]
    fn a_missing_predecessor_is_seen() {
        let mut state = FinalState::default();
        let touch = |previous_lsn| Record {
            files: vec![file(1, previous_lsn, "a")],
            ops: vec![Op::Truncate { file: 0, size: 1 }],
        };
        state.add_record(&touch(3), 7).unwrap();
        assert!(state.add_record(&touch(8), 9).is_err());
        assert!(state.add_record(&touch(7), 9).is_ok());
    }
}
