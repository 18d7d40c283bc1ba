//! Name changes of commits behind a held one, so that a reader can undo them: the files that had each name, and the
//! names they have now.

use crate::commits::record::Op;
use crate::scanning::scan::AcceptedRecord;
use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

/// The effect of a run of commits on names.
#[derive(Clone, Debug, Default)]
pub struct NamesSince {
    /// The last of these commits.
    pub to: u64,
    files: BTreeMap<u64, FileSince>,
    /// The files that had these names before.
    before: BTreeMap<PathBuf, u64>,
    /// Names that a file or directory got in these commits.
    got: BTreeSet<PathBuf>,
    /// Directories that were created or removed, and whether they existed before.
    dirs: BTreeMap<PathBuf, bool>,
    /// Directories whose mode changed.
    dir_modes: BTreeSet<PathBuf>,
}

/// A file that these commits touch.
#[derive(Clone, Debug, Default)]
struct FileSince {
    /// Its names, oldest first.
    names: Vec<PathBuf>,
    has_mode: bool,
    /// LSN of the last commit of the file before these.
    previous_lsn: u64,
}

impl NamesSince {
    /// No name changes yet, behind this commit.
    pub fn new(to: u64) -> NamesSince {
        NamesSince { to, ..NamesSince::default() }
    }

    /// Adds the commits up to this one.
    pub fn add(&mut self, accepted: &[AcceptedRecord], to: u64) {
        for AcceptedRecord { record, .. } in accepted.iter().filter(|a| a.lsn > self.to && a.lsn <= to) {
            // A restating record repeats changes that were added before.
            if record.restates() {
                continue;
            }
            let is_made = |index: usize| {
                record.ops.iter().any(|op| matches!(op, Op::Create { file, .. } if *file as usize == index))
            };
            for (index, file) in record.files.iter().enumerate() {
                if let Entry::Vacant(unknown) = self.files.entry(file.id) {
                    let previous_lsn = file.previous_lsn;
                    unknown.insert(FileSince { names: vec![file.path.clone()], has_mode: false, previous_lsn });
                    match is_made(index) {
                        true => _ = self.got.insert(file.path.clone()),
                        false => _ = self.before.insert(file.path.clone(), file.id),
                    }
                }
            }
            for op in &record.ops {
                let file = |index: &u32| record.files[*index as usize].id;
                match op {
                    Op::Rename { file: index, to } => {
                        self.files.entry(file(index)).or_default().names.push(to.clone());
                        self.got.insert(to.clone());
                    }
                    Op::Mode { file: index, .. } => self.files.entry(file(index)).or_default().has_mode = true,
                    Op::Mkdir { path, .. } => _ = self.dirs.entry(path.clone()).or_insert(false),
                    Op::Rmdir { path } => _ = self.dirs.entry(path.clone()).or_insert(true),
                    Op::DirMode { path, .. } => _ = self.dir_modes.insert(path.clone()),
                    Op::Write { .. } | Op::Truncate { .. } | Op::Create { .. } | Op::Unlink { .. } | Op::Restate => {}
                }
            }
        }
        debug_assert!(
            self.before.len() <= self.files.len(),
            "{} names of {} files, up to {to}",
            self.before.len(),
            self.files.len()
        );
        self.to = self.to.max(to);
    }

    /// The file that had this name.
    pub fn file_of(&self, path: &Path) -> Option<u64> {
        self.before.get(path).copied()
    }

    /// LSN of the last commit of a file before these.
    pub fn previous_lsn(&self, id: u64) -> u64 {
        self.files.get(&id).map_or(0, |file| file.previous_lsn)
    }

    /// The names that a file got.
    pub fn names_of(&self, id: u64) -> &[PathBuf] {
        self.files.get(&id).map_or(&[], |file| &file.names)
    }

    /// Whether nothing had this name before these commits, so that its present owner got it since.
    pub fn is_new(&self, path: &Path) -> bool {
        let is_new_dir = |dir: &Path| self.dirs.get(dir) == Some(&false);
        !self.before.contains_key(path) && (self.got.contains(path) || path.ancestors().any(is_new_dir))
    }

    /// Whether a directory existed before; `None` if these commits did not change that.
    pub fn had_dir(&self, path: &Path) -> Option<bool> {
        self.dirs.get(path).copied()
    }

    /// Whether these commits changed the mode.
    pub fn has_mode(&self, path: &Path) -> bool {
        self.dir_modes.contains(path)
            || self.file_of(path).is_some_and(|id| self.files.get(&id).is_some_and(|file| file.has_mode))
    }

    /// Files and directories that had a name in this directory before and were changed since.
    pub fn names_in<'a>(&'a self, dir: &'a Path) -> impl Iterator<Item = &'a Path> {
        let dirs = self.dirs.iter().filter(|(_, was)| **was).map(|(path, _)| path.as_path());
        self.before.keys().map(PathBuf::as_path).chain(dirs).filter(move |path| path.parent() == Some(dir))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commits::record::{FileRef, Record};

    fn record(lsn: u64, files: &[(u64, &str)], ops: Vec<Op>) -> AcceptedRecord {
        let file = |(id, path): &(u64, &str)| FileRef { id: *id, previous_lsn: 0, path: path.into() };
        AcceptedRecord { lsn, record: Record { files: files.iter().map(file).collect(), ops } }
    }

    #[test]
    fn what_has_a_name_now_is_told_from_what_had_it() {
        let mut since = NamesSince::new(4);
        since.add(&[record(4, &[(9, "x")], vec![Op::Unlink { file: 0 }])], 4);
        assert_eq!(since.file_of(Path::new("x")), None, "not behind it");
        since.add(
            &[
                record(5, &[(1, "a"), (2, "b")], vec![Op::Unlink { file: 1 }, Op::Rename { file: 0, to: "b".into() }]),
                record(6, &[(3, "a")], vec![Op::Create { file: 0, mode: 0o600 }]),
                record(7, &[(3, "a")], vec![Op::Rename { file: 0, to: "d/c".into() }]),
                record(8, &[], vec![Op::Mkdir { path: "d".into(), mode: 0o700 }, Op::Rmdir { path: "e".into() }]),
            ],
            8,
        );
        let (a, b) = (Path::new("a"), Path::new("b"));
        assert_eq!((since.file_of(a), since.file_of(b), since.to), (Some(1), Some(2), 8));
        assert_eq!(since.names_of(1), [a, b]);
        assert!(!since.is_new(a) && !since.is_new(b) && since.is_new(Path::new("d/c")));
        assert_eq!((since.had_dir(Path::new("d")), since.had_dir(Path::new("e"))), (Some(false), Some(true)));
        assert_eq!(since.names_in(Path::new("")).collect::<Vec<_>>(), [a, b, Path::new("e")]);
    }
}
