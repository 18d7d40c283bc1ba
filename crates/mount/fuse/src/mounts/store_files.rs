//! Names of all files that belong to the store of a tree: nothing else in its directory is removed with it.

use crate::mounts::mount_point;
use anyhow::{Context, Result, bail, ensure};
use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use untorn::__private::is_own_name;
use untorn_tree::{PACK, TABLE};

/// The journal's directory in a store.
pub const JOURNAL: &str = ".untorn";
/// The directory of a tree's objects.
pub const OBJECTS: &str = "obj";

/// The most names that a message lists.
const TOLD: usize = 5;

/// Names in a store's directory, relative to it; a directory comes after its contents.
#[derive(Default)]
struct Names {
    /// Each name of the store, and whether it is a directory.
    of_store: Vec<(PathBuf, bool)>,
    others: Vec<PathBuf>,
}

impl Names {
    fn of(store: &Path) -> Result<Names> {
        let mut names = Names::default();
        let found = names.add(store, Path::new(""));
        found.with_context(|| format!("cannot read {}", store.display()))?;
        names.others.sort();
        Ok(names)
    }

    fn add(&mut self, store: &Path, below: &Path) -> std::io::Result<()> {
        for entry in fs::read_dir(store.join(below))? {
            let entry = entry?;
            let (path, is_dir) = (below.join(entry.file_name()), entry.file_type()?.is_dir());
            if !is_of_store(&path, is_dir) {
                self.others.push(path);
                continue;
            }
            if is_dir {
                self.add(store, &path)?;
            }
            self.of_store.push((path, is_dir));
        }
        Ok(())
    }

    /// Refuses names that do not belong to a store.
    fn check(&self, store: &Path) -> Result<()> {
        let shown: Vec<_> = self.others.iter().take(TOLD).map(|path| path.display().to_string()).collect();
        let more = match self.others.len().saturating_sub(TOLD) {
            0 => String::new(),
            n => format!(" and {n} more"),
        };
        ensure!(
            self.others.is_empty(),
            "{} has files that do not belong to a store: {}{more}; move them out of it first",
            store.display(),
            shown.join(", ")
        );
        Ok(())
    }
}

fn is_of_store(path: &Path, is_dir: bool) -> bool {
    let parts: Vec<&[u8]> = path.iter().map(OsStrExt::as_bytes).collect();
    let [first, rest @ ..] = &parts[..] else { return false };
    let is = |name: &str| *first == name.as_bytes();
    let is_number = |name: &[u8]| name.iter().all(u8::is_ascii_hexdigit);
    match (rest, is_dir) {
        ([], true) => is(JOURNAL) || is(OBJECTS),
        ([], false) => is(TABLE) || is(PACK) || is_temporary(first),
        ([name, ..], _) if is(JOURNAL) => is_own_name(OsStr::from_bytes(name)),
        ([name], true) => is(OBJECTS) && is_number(name),
        ([name] | [_, name], false) if is_temporary(name) => is(OBJECTS),
        ([_, name], false) => is(OBJECTS) && is_number(name),
        _ => false,
    }
}

/// Whether a name is that of a creation temporary, a file that the store is making.
fn is_temporary(name: &[u8]) -> bool {
    let id = name.strip_prefix(b".").and_then(|name| name.strip_suffix(b".untorn"));
    id.is_some_and(|id| id.len() == 16 && id.iter().all(u8::is_ascii_hexdigit))
}

/// Whether the store of a tree is at a path, perhaps with other files.
pub fn is_tree(path: &Path) -> bool {
    path.join(JOURNAL).is_dir() && path.join(TABLE).is_file()
}

/// Refuses a store whose directory has other files, too.
pub fn check(store: &Path) -> Result<()> {
    Names::of(store)?.check(store)
}

/// Removes a store; removes nothing if its directory has other files.
pub fn remove(store: &Path) -> Result<()> {
    remove_from(store)?;
    fs::remove_dir(store).with_context(|| format!("cannot remove {}", store.display()))
}

/// Removes a store like [`remove`], but keeps the directory.
pub fn remove_from(store: &Path) -> Result<()> {
    let names = Names::of(store)?;
    names.check(store)?;
    // Files that appear meanwhile stay, as a directory is removed only when it is empty.
    for (path, is_dir) in names.of_store.iter().map(|(path, is_dir)| (store.join(path), *is_dir)) {
        let removed = if is_dir { fs::remove_dir(&path) } else { fs::remove_file(&path) };
        removed.with_context(|| format!("cannot remove {}", path.display()))?;
    }
    Ok(())
}

/// Refuses a place for a new store inside another store.
pub fn check_place(place: &Path) -> Result<()> {
    let at = place.canonicalize().or_else(|_| mount_point::absolute(place))?;
    if let Some(store) = at.ancestors().skip(1).find(|above| above.join(JOURNAL).is_dir()) {
        bail!(
            "{} lies in the store {}, and a store cannot contain another store; give a directory outside of it",
            place.display(),
            store.display()
        );
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_a_store_are_told_from_others() {
        let dir = [".untorn", "obj", "obj/1f", ".untorn/journal", ".untorn/undo", ".untorn/quarantine.7"];
        let file = [
            "table",
            "pack",
            "obj/0/17",
            ".untorn/lock",
            ".untorn/journal/0",
            ".untorn/undo/index.1",
            ".0123456789abcdef.untorn",
        ];
        assert!(dir.iter().all(|name| is_of_store(Path::new(name), true)));
        assert!(file.iter().all(|name| is_of_store(Path::new(name), false)));
        let others = ["README", "obj/in", "obj/0/in", "obj/0/1/2", ".untorn/in", "in/table", "table.old", ".a.untorn"];
        for name in others {
            assert!(!is_of_store(Path::new(name), false) && !is_of_store(Path::new(name), true), "{name}");
        }
        assert!(!is_of_store(Path::new("table"), true) && !is_of_store(Path::new("obj"), false));
    }
}
