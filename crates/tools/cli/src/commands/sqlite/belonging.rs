//! The store that a database belongs to.

use crate::sqlite_files::{Database, own_store_of};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use untorn::offline;
use untorn_terminal::{Failure, shown};

/// A database's store.
pub struct Belonging {
    /// The store's directory; for a store of its own, the database.
    pub store: PathBuf,
    /// The database's path in a directory's store.
    pub name: Option<PathBuf>,
}

impl Belonging {
    /// The store that the extension would use without `store=`, if it is there, or one above that has marked the file.
    pub fn of(path: &Path) -> Result<Option<Belonging>, Failure> {
        if own_store_of(path).is_dir() {
            return Ok(Some(Belonging { store: path.to_owned(), name: None }));
        }
        let mark = offline::file_mark(path)?;
        for dir in path.ancestors().skip(1).filter(|dir| dir.join(".untorn").is_dir()) {
            let is_own = mark.as_ref().is_some_and(|mark| id(dir).is_some_and(|id| id == mark.store_id));
            if is_own || path.parent() == Some(dir) {
                return Ok(Some(Belonging::in_directory(dir, path)));
            }
        }
        Ok(None)
    }

    pub fn in_directory(dir: &Path, path: &Path) -> Belonging {
        let name = path.strip_prefix(dir).expect("an ancestor").to_owned();
        Belonging { store: dir.to_owned(), name: Some(name) }
    }

    /// Whether the store has been made.
    pub fn is_there(&self) -> bool {
        match &self.name {
            Some(_) => self.store.join(".untorn").is_dir(),
            None => own_store_of(&self.store).is_dir(),
        }
    }

    /// The URI that opens the database, with `store=` where the extension would not find the store by itself.
    pub fn uri(&self, path: &Path) -> String {
        let store = match &self.name {
            Some(name) if name.components().count() > 1 => format!("&store={}", escaped(&self.store)),
            _ => String::new(),
        };
        format!("file:{}?vfs=untorn{store}", escaped(path))
    }

    /// A description of the store.
    pub fn text(&self) -> String {
        match &self.name {
            Some(_) => shown(&self.store),
            None => format!("{}.untorn, of its own", shown(&self.store)),
        }
    }
}

fn id(dir: &Path) -> Option<String> {
    offline::inspect(dir).ok().map(|found| found.store_id)
}

/// A path in a URI of SQLite.
fn escaped(path: &Path) -> String {
    let mut text = String::new();
    for byte in path.as_os_str().as_encoded_bytes() {
        match byte {
            b'%' | b'?' | b'#' | b'&' | 0..=b' ' | 127.. => text += &format!("%{byte:02X}"),
            _ => text.push(char::from(*byte)),
        }
    }
    text
}

/// The database of a path as SQLite names it, links resolved.
pub fn database(path: &Path) -> Result<(PathBuf, Database), Failure> {
    let whole = path.canonicalize().map_err(|e| match e.kind() {
        ErrorKind::NotFound => Failure::new(format!("{}: there is no such file", shown(path))),
        _ => Failure::io("look at", path, e),
    })?;
    match Database::open(&whole).map_err(|e| Failure::io("read", &whole, e))? {
        Some(database) => Ok((whole, database)),
        None => Err(Failure::new(format!("{} is no SQLite database", shown(path)))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_uri_names_the_store_where_the_extension_would_not_find_it() {
        let (dir, direct, below) = (Path::new("/a b"), Path::new("/a b/x.db"), Path::new("/a b/c/x.db"));
        assert_eq!(Belonging::in_directory(dir, direct).uri(direct), "file:/a%20b/x.db?vfs=untorn");
        assert_eq!(Belonging::in_directory(dir, below).uri(below), "file:/a%20b/c/x.db?vfs=untorn&store=/a%20b");
    }
}
