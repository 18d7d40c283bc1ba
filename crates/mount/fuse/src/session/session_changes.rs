//! The changes of a session: the differences between its store and the manifest of the plain directory.

use crate::import_export::held_back::Skips;
use crate::plain_trees::manifest::{Manifest, Stored};
use anyhow::Result;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use untorn_tree::{Attributes, FileTree, Ino, Kind, ROOT, StoreTree};

/// Names below the directory, and their present attributes.
pub type Names = BTreeMap<PathBuf, Attributes>;

/// All names in a tree.
pub fn names(tree: &StoreTree) -> Result<Names> {
    let error = |e: untorn_tree::Errno| std::io::Error::from_raw_os_error(e.0);
    let mut found = Names::new();
    let mut left: Vec<(PathBuf, Ino)> = vec![(PathBuf::new(), ROOT)];
    while let Some((path, ino)) = left.pop() {
        let about = tree.attributes(ino).map_err(error)?;
        let mut start = (about.kind == Kind::Directory).then_some(0);
        while let Some(from) = start {
            let entries = tree.read_dir(ino, from, 1024).map_err(error)?;
            start = entries.last().map(|last| last.next);
            left.extend(entries.iter().map(|entry| (path.join(&entry.name), entry.ino)));
        }
        found.insert(path, about);
    }
    Ok(found)
}

/// The changes of a session, in the order of paths.
pub struct Changes<'a> {
    /// New directories.
    pub make: Vec<&'a Path>,
    /// New or changed files.
    pub install: Vec<(&'a Path, &'a Attributes)>,
    /// Names that are gone or have changed between file and directory, the deepest first.
    pub remove: Vec<&'a Path>,
    /// New or changed directories, the deepest first.
    pub settle: Vec<(&'a Path, &'a Attributes)>,
    /// Those of `remove` where a file takes the place of a directory or the reverse, and all names below them.
    pub in_the_way: BTreeSet<&'a Path>,
    /// Inodes of the store that get no new name, because the name is skipped.
    pub skipped: BTreeSet<Ino>,
}

impl<'a> Changes<'a> {
    /// Compares the plain directory with the store, except skipped names.
    pub fn between(manifest: &'a Manifest, now: &'a Names, skips: &Skips) -> Changes<'a> {
        let is_dir = |about: &Attributes| about.kind == Kind::Directory;
        let mut changes = Changes {
            make: vec![],
            install: vec![],
            remove: vec![],
            settle: vec![],
            in_the_way: BTreeSet::new(),
            skipped: BTreeSet::new(),
        };
        for (path, about) in now {
            let before = manifest.get(path);
            if before.is_some_and(|(_, stored)| *stored == Stored::of(about)) {
                continue;
            }
            if skips.has(path) {
                changes.skipped.insert(about.ino);
                continue;
            }
            if is_dir(about) {
                changes.settle.push((path, about));
                if before.is_none_or(|(plain, _)| !plain.is_dir) {
                    changes.make.push(path);
                }
            } else {
                changes.install.push((path, about));
            }
        }
        let mut other_kind: Option<&Path> = None;
        for (path, (plain, _)) in manifest {
            match now.get(path) {
                Some(about) if is_dir(about) == plain.is_dir => continue,
                Some(_) => other_kind = Some(path),
                None => {}
            }
            if skips.has(path) {
                continue;
            }
            changes.remove.push(path);
            if other_kind.is_some_and(|above| path.starts_with(above)) {
                changes.in_the_way.insert(path);
            }
        }
        changes.remove.reverse();
        changes.settle.reverse();
        changes
    }

    /// Directories in which names are made, changed or removed, directories with new attributes, and all directories
    /// above them.
    pub fn touched(&self) -> BTreeSet<&'a Path> {
        let installed = self.install.iter().map(|(path, _)| *path);
        let names = installed.chain(self.make.iter().copied()).chain(self.remove.iter().copied());
        let directories = names.filter_map(Path::parent).chain(self.settle.iter().map(|(path, _)| *path));
        let mut touched = BTreeSet::new();
        for directory in directories {
            for above in directory.ancestors() {
                if !touched.insert(above) {
                    break;
                }
            }
        }
        touched
    }
}
