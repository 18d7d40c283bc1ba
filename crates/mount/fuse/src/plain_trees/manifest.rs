//! The manifest of a session: each name of the plain tree as it was at the start, and its inode in the session's store.

use anyhow::{Context, Result};
use rustix::fs::{FileType, Stat};
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::Write;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use untorn_tree::{Attributes, Ino, Kind};

/// The properties of a plain file or directory that show whether it has changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Plain {
    /// Whether it is a directory.
    pub is_dir: bool,
    /// Number of the inode.
    pub ino: u64,
    /// Size in bytes.
    pub size: i64,
    /// Last change of the contents: seconds, nanoseconds.
    pub mtime: (i64, i64),
    /// Last change of the inode: seconds, nanoseconds.
    pub ctime: (i64, i64),
}

impl Plain {
    /// Takes the properties from a `stat`.
    pub fn of(about: &Stat) -> Plain {
        Plain {
            is_dir: FileType::from_raw_mode(about.st_mode).is_dir(),
            ino: about.st_ino,
            size: about.st_size,
            mtime: (about.st_mtime, about.st_mtime_nsec as i64),
            ctime: (about.st_ctime, about.st_ctime_nsec as i64),
        }
    }

    /// Whether the contents are the same. Ignores `ctime`, which new links change.
    pub fn has_contents_of(&self, other: &Plain) -> bool {
        Plain { ctime: other.ctime, ..*self } == *other
    }
}

/// The properties of an inode in the store that show whether the session has changed it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stored {
    /// Number of the inode.
    pub ino: Ino,
    is_dir: bool,
    size: u64,
    ctime: (i64, i64),
}

impl Stored {
    /// Takes the properties from the tree's attributes.
    pub fn of(about: &Attributes) -> Stored {
        let ctime = (about.ctime.seconds, about.ctime.nanoseconds.into());
        Stored { ino: about.ino, is_dir: about.kind == Kind::Directory, size: about.size, ctime }
    }
}

/// Names below the directory, with their state at the start; the directory itself has the empty name.
pub type Manifest = BTreeMap<PathBuf, (Plain, Stored)>;

/// Writes a manifest atomically and durably.
pub fn write(manifest: &Manifest, to: &Path) -> Result<()> {
    let mut bytes = Vec::new();
    for (path, (plain, stored)) in manifest {
        let Plain { is_dir, ino, size, mtime, ctime } = plain;
        write!(
            bytes,
            "{} {ino} {size} {} {} {} {} {} {} {} {} ",
            u8::from(*is_dir),
            mtime.0,
            mtime.1,
            ctime.0,
            ctime.1,
            stored.ino,
            stored.size,
            stored.ctime.0,
            stored.ctime.1
        )?;
        bytes.extend(path.as_os_str().as_bytes());
        bytes.push(0);
    }
    write_whole(to, &bytes)
}

/// Replaces a file atomically and durably.
pub fn write_whole(to: &Path, bytes: &[u8]) -> Result<()> {
    let shown = to.display();
    let new = to.with_extension("new");
    let written = File::create(&new).and_then(|mut file| {
        file.write_all(bytes)?;
        file.sync_all()
    });
    written.and_then(|()| fs::rename(&new, to)).with_context(|| format!("cannot write {shown}"))?;
    let directory = to.parent().context("it lies in a directory")?;
    File::open(directory).and_then(|open| open.sync_all()).with_context(|| format!("cannot make {shown} durable"))
}

/// Inodes of the store whose plain files nobody may change (`chattr +i`, `+a`), and whether names may be added to them.
pub type Fixed = BTreeMap<Ino, bool>;

/// Path of the file with these inodes, beside the store.
fn fixed(store: &Path) -> PathBuf {
    store.with_file_name("fixed")
}

/// Writes the fixed inodes beside the store.
pub fn write_fixed(inodes: &Fixed, store: &Path) -> Result<()> {
    let lines = inodes.iter().map(|(ino, takes_names)| format!("{ino} {}\n", u8::from(*takes_names)));
    write_whole(&fixed(store), lines.collect::<String>().as_bytes())
}

/// Reads the fixed inodes.
pub fn read_fixed(store: &Path) -> Result<Fixed> {
    let from = fixed(store);
    let text = fs::read_to_string(&from).with_context(|| format!("cannot read {}", from.display()))?;
    let line = |line: &str| {
        let (ino, takes_names) = line.split_once(' ')?;
        Some((ino.parse().ok()?, takes_names == "1"))
    };
    let read: Option<Fixed> = text.lines().map(line).collect();
    read.with_context(|| format!("{} is damaged", from.display()))
}

/// Reads a manifest.
pub fn read(from: &Path) -> Result<Manifest> {
    let bytes = fs::read(from).with_context(|| format!("cannot read {}", from.display()))?;
    let lines = bytes.split(|byte| *byte == 0).filter(|line| !line.is_empty());
    let read: Option<Manifest> = lines.map(line).collect();
    read.with_context(|| format!("{} is damaged; the session's files are in the store beside it", from.display()))
}

fn line(line: &[u8]) -> Option<(PathBuf, (Plain, Stored))> {
    let mut words = line.splitn(12, |byte| *byte == b' ');
    let mut number = || std::str::from_utf8(words.next()?).ok()?.parse::<i64>().ok();
    let is_dir = number()? != 0;
    let ino = number()?.cast_unsigned();
    let size = number()?;
    let (mtime, ctime) = ((number()?, number()?), (number()?, number()?));
    let plain = Plain { is_dir, ino, size, mtime, ctime };
    let (ino, size) = (number()?.cast_unsigned(), number()?.cast_unsigned());
    let stored = Stored { ino, is_dir, size, ctime: (number()?, number()?) };
    let path = std::ffi::OsString::from_vec(words.next()?.to_vec());
    Some((path.into(), (plain, stored)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read() {
        let dir = tempfile::tempdir().unwrap();
        let plain = Plain { is_dir: false, ino: 7, size: 8, mtime: (-9, 10), ctime: (11, 12) };
        let stored = Stored { ino: 3, is_dir: false, size: 8, ctime: (4, 5) };
        let names = ["", "a b/c\n", "d"].map(PathBuf::from);
        let manifest: Manifest = names.into_iter().map(|name| (name, (plain, stored))).collect();
        let at = dir.path().join("manifest");
        write(&manifest, &at).unwrap();
        assert_eq!(read(&at).unwrap(), manifest);
        let inodes = Fixed::from([(3, false), (u64::MAX, true)]);
        write_fixed(&inodes, &dir.path().join("store")).unwrap();
        assert_eq!(read_fixed(&dir.path().join("store")).unwrap(), inodes);
        fs::write(&at, "1 2 3\0").unwrap();
        assert!(read(&at).unwrap_err().to_string().contains("is damaged"));
    }
}
