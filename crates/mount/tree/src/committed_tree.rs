//! A tree as of one commit, for readers of its store: names, attributes and contents, without a change.
//!
//! The owner of the store continues meanwhile. Damaged data is an error; no lookup or read goes on for ever.

use crate::interface::file_tree::{Attributes, Ino, Kind, ROOT};
use crate::small_files::pack::PACK;
use crate::table::inode::{Inode, Place};
use crate::table::inode_table::{damaged, damaged_at, is_missing, read_slots, table_bytes};
use crate::table::row::{InodeRow, Row};
use crate::tree::core::object_path;
use std::collections::{BTreeMap, HashMap};
use std::ffi::{OsStr, OsString};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use untorn::reader::{Snapshot, SnapshotFile};
use untorn::{Error, Result};

/// The most symbolic links in one lookup, as in Linux.
const LINKS_MAX: u32 = 40;

type Names = BTreeMap<Arc<[u8]>, Ino>;

/// The tree in a snapshot of its store.
pub struct CommittedTree {
    snapshot: Snapshot,
    inodes: HashMap<Ino, InodeRow>,
    directories: HashMap<Ino, Names>,
}

/// A file of a [`CommittedTree`].
pub struct CommittedFile {
    len: u64,
    /// The file of the store with the bytes; `None` if all of the file is a hole.
    stored: Option<Stored>,
}

struct Stored {
    file: SnapshotFile,
    /// Position of the first byte.
    offset: u64,
    /// Number of the bytes, for a file in the pack. An object may be shorter than the file: the rest is a hole.
    packed: Option<u64>,
}

impl CommittedTree {
    /// Reads the names and attributes of the tree.
    ///
    /// # Errors
    /// Those of the snapshot; [`Error::Corrupt`] if the table is damaged or lost, [`Error::NewerVersion`] if it is
    /// newer.
    pub fn open(snapshot: Snapshot) -> Result<CommittedTree> {
        let (mut inodes, mut directories) = (HashMap::new(), HashMap::<Ino, Names>::new());
        let mut twice = None;
        read_slots(&table_bytes(&snapshot)?, &mut |offset, _, row| {
            let is_first = match row {
                None | Some(Row::Xattr { .. }) => true,
                Some(Row::Inode(ino, row)) => inodes.insert(ino, row).is_none(),
                Some(Row::Name { dir, name, ino, .. }) => {
                    directories.entry(dir).or_default().insert(name, ino).is_none()
                }
            };
            if !is_first {
                twice = Some(offset);
            }
        })?;
        let tree = CommittedTree { snapshot, inodes, directories };
        match twice {
            Some(at) => Err(damaged_at(at as usize)),
            None if tree.row(ROOT)?.kind != Kind::Directory => Err(damaged("the root is not a directory".to_owned())),
            None => Ok(tree),
        }
    }

    /// LSN of the commit.
    pub fn lsn(&self) -> u64 {
        self.snapshot.lsn()
    }

    /// Checks that everything that was read so far is of this one commit.
    pub fn check(&self) -> Result<()> {
        self.snapshot.check()
    }

    fn row(&self, ino: Ino) -> Result<&InodeRow> {
        self.inodes.get(&ino).ok_or_else(|| damaged(format!("inode {ino} is missing")))
    }

    /// The attributes of an inode.
    pub fn attributes(&self, ino: Ino) -> Result<Attributes> {
        Ok(Inode::new(self.row(ino)?.clone()).attributes(ino))
    }

    /// Finds the inode of a path from the root. A symbolic link at the end of the path is followed if `follows`, all
    /// others always.
    ///
    /// # Errors
    /// [`Error::Io`] with the system's error number; [`Error::Unsupported`] if the path leads out of the tree.
    pub fn find(&self, path: &Path, follows: bool) -> Result<Ino> {
        let refused = |number| Err(Error::io("find", path, io::Error::from_raw_os_error(number)));
        let leads_out = || Error::Unsupported {
            path: path.to_owned(),
            detail: "the path leads out of the mounted tree".to_owned(),
        };
        // The directories from the root to the present one, and the parts of the path that are left, the next one last.
        let (mut above, mut at, mut ahead, mut links) = (Vec::new(), ROOT, parts(path), 0);
        if path.is_absolute() {
            return Err(leads_out());
        }
        while let Some(part) = ahead.pop() {
            if self.row(at)?.kind != Kind::Directory {
                return refused(libc::ENOTDIR);
            }
            match part.as_bytes() {
                b"." => continue,
                b".." => {
                    at = above.pop().ok_or_else(leads_out)?;
                    continue;
                }
                _ => {}
            }
            let Some(&ino) = self.directories.get(&at).and_then(|names| names.get(part.as_bytes())) else {
                return refused(libc::ENOENT);
            };
            let row = self.row(ino)?;
            if row.kind != Kind::Symlink || ahead.is_empty() && !follows {
                above.push(at);
                at = ino;
                continue;
            }
            links += 1;
            if links > LINKS_MAX {
                return refused(libc::ELOOP);
            }
            let target = Path::new(OsStr::from_bytes(&row.target));
            if target.is_absolute() {
                return Err(leads_out());
            }
            ahead.extend(parts(target));
        }
        Ok(at)
    }

    /// The names in a directory, sorted, with their inodes; none if the inode is not a directory.
    pub fn names(&self, dir: Ino) -> impl Iterator<Item = (&OsStr, Ino)> {
        let names = self.directories.get(&dir).into_iter().flatten();
        names.map(|(name, ino)| (OsStr::from_bytes(name), *ino))
    }

    /// The target of a symbolic link; empty for any other inode.
    pub fn target(&self, ino: Ino) -> Result<PathBuf> {
        Ok(OsStr::from_bytes(&self.row(ino)?.target).into())
    }

    /// Opens a regular file for reading.
    ///
    /// # Errors
    /// [`Error::Io`] with `EISDIR` for a directory; [`Error::Unsupported`] for another inode that is not a file;
    /// [`Error::Corrupt`] if the contents are missing.
    pub fn open_file(&self, ino: Ino, path: &Path) -> Result<CommittedFile> {
        let row = self.row(ino)?;
        match row.kind {
            Kind::File => {}
            Kind::Directory => {
                return Err(Error::io("read", path, io::Error::from_raw_os_error(libc::EISDIR)));
            }
            _ => {
                return Err(Error::Unsupported {
                    path: path.to_owned(),
                    detail: "it is not a regular file".to_owned(),
                });
            }
        }
        if i64::try_from(row.size).is_err() {
            return Err(damaged(format!("inode {ino} has a size of {}", row.size)));
        }
        let open = |name: PathBuf| {
            let missing = || damaged(format!("the contents of inode {ino} are missing: {}", name.display()));
            self.snapshot.open(&name).map_err(|e| if is_missing(&e) { missing() } else { e })
        };
        let stored = match Inode::new(row.clone()).place() {
            Place::Pack(extent) => {
                let packed = Some(extent.len() as u64);
                Some(Stored { file: open(PACK.into())?, offset: extent.offset, packed })
            }
            Place::Object => Some(Stored { file: open(object_path(ino))?, offset: 0, packed: None }),
            Place::Nowhere | Place::Draft => None,
        };
        Ok(CommittedFile { len: row.size, stored })
    }
}

impl CommittedFile {
    /// Length in bytes.
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Whether the file is empty.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Reads as many bytes as there are, up to the length of `buf`.
    ///
    /// # Errors
    /// Those of the snapshot, and [`Error::Corrupt`] if the bytes are missing: `buf` may hold anything then.
    pub fn read_at(&self, buf: &mut [u8], offset: u64) -> Result<usize> {
        let len = self.len.saturating_sub(offset).min(buf.len() as u64) as usize;
        let buf = &mut buf[..len];
        let Some(stored) = &self.stored else {
            buf.fill(0);
            return Ok(len);
        };
        let most = stored.packed.map_or(len as u64, |packed| packed.saturating_sub(offset).min(len as u64)) as usize;
        let mut done = 0;
        while done < most {
            match stored.file.read_at(&mut buf[done..most], stored.offset + offset + done as u64)? {
                0 if stored.packed.is_some() => {
                    return Err(damaged(format!("{PACK} ends before the contents at byte {}", stored.offset)));
                }
                0 => break,
                n => done += n,
            }
        }
        buf[done..].fill(0);
        Ok(len)
    }
}

/// The parts of a relative path, the first one last.
fn parts(path: &Path) -> Vec<OsString> {
    path.components().rev().map(|part| part.as_os_str().to_owned()).collect()
}
