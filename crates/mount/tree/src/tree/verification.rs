//! Verifies a tree as of one commit, as a reader of its store: whether its rows fit together, and its objects exist.
//!
//! Nothing is changed, and the owner of the store continues meanwhile.

use crate::interface::access_list::{self, AccessList};
use crate::interface::file_tree::{Ino, Kind, ROOT};
use crate::small_files::pack::PACK;
use crate::small_files::pack_room::Extent;
use crate::table::inode_table::{is_missing, read_slots, table_bytes};
use crate::table::row::{InodeRow, Key, Row};
use crate::tree::core::object_path;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::path::PathBuf;
use untorn::Result;
use untorn::reader::Snapshot;

/// The most problems that are listed.
const TOLD: usize = 100;

/// The result of verifying a tree.
#[derive(Clone, Debug, Default)]
pub struct Verified {
    /// Number of files.
    pub files: u64,
    /// Number of directories, with the root.
    pub directories: u64,
    /// Number of links, devices and the like.
    pub others: u64,
    /// Bytes of all files.
    pub bytes: u64,
    /// Inodes without names: removed, and in use when the commit was made.
    pub removed: u64,
    /// Objects that no row has: of files that the commit does not include yet.
    pub unknown_objects: u64,
    /// The problems, at most a hundred.
    pub problems: Vec<String>,
    /// The number of problems.
    pub problem_count: u64,
}

type Bytes = Box<[u8]>;

#[derive(Default)]
struct FoundRows {
    inodes: HashMap<Ino, InodeRow>,
    /// Directory and name of each of an inode's names.
    names: HashMap<Ino, Vec<(Ino, Bytes)>>,
    xattrs: Vec<(Ino, Bytes, Bytes)>,
    places: BTreeSet<(Ino, u64)>,
    verified: Verified,
}

impl FoundRows {
    fn problem(&mut self, what: String) {
        self.verified.problem_count += 1;
        if self.verified.problems.len() < TOLD {
            self.verified.problems.push(what);
        }
    }

    /// A path of an inode, for messages.
    fn path(&self, ino: Ino) -> PathBuf {
        let (mut parts, mut at) = (Vec::new(), ino);
        // Bounded, because damaged rows may form a circle.
        while at != ROOT && parts.len() < 200 {
            let Some((dir, name)) = self.names.get(&at).and_then(|names| names.first()) else { break };
            parts.push(String::from_utf8_lossy(name).into_owned());
            at = *dir;
        }
        parts.iter().rev().collect()
    }

    fn shown(&self, ino: Ino) -> String {
        match self.names.contains_key(&ino) {
            true => format!("{} (inode {ino})", self.path(ino).display()),
            false => format!("inode {ino}"),
        }
    }

    fn row(&mut self, row: Row) {
        match row {
            Row::Inode(ino, row) => drop(self.inodes.insert(ino, row)),
            Row::Name { dir, name, cookie, ino } => {
                if !self.places.insert((dir, cookie)) || cookie == 0 {
                    self.problem(format!("two names have one place in the directory of inode {dir}"));
                }
                self.names.entry(ino).or_default().push((dir, name[..].into()));
            }
            Row::Xattr { ino, name, value } => self.xattrs.push((ino, name, value)),
        }
    }

    /// Checks that names and inodes fit together.
    fn names(&mut self) {
        let mut below = BTreeMap::<Ino, Vec<Ino>>::new();
        let mut problems = Vec::new();
        for (ino, names) in &self.names {
            if !self.inodes.contains_key(ino) {
                problems.push(format!("{} names no inode", self.shown(*ino)));
            }
            for (dir, name) in names {
                let is_dir = self.inodes.get(dir).is_some_and(|row| row.kind == Kind::Directory);
                if !is_dir {
                    let name = String::from_utf8_lossy(name);
                    problems.push(format!("{name} (inode {ino}) lies in {}, which is no directory", self.shown(*dir)));
                }
                below.entry(*dir).or_default().push(*ino);
            }
        }
        let is_dir = |ino: &&Ino| self.inodes.get(ino).is_some_and(|row| row.kind == Kind::Directory);
        for (ino, row) in &self.inodes {
            let names = self.names.get(ino).map_or(0, Vec::len) as u64;
            let expected = match row.kind {
                Kind::Directory if *ino == ROOT || names == 1 => {
                    2 + below.get(ino).map_or(0, |inos| inos.iter().filter(is_dir).count() as u64)
                }
                Kind::Directory if names > 1 => {
                    problems.push(format!("the directory {} has {names} names", self.shown(*ino)));
                    continue;
                }
                Kind::Directory => 0,
                _ => names,
            };
            if u64::from(row.nlink) != expected {
                problems.push(format!(
                    "{} has a link count of {}, but should have {expected}",
                    self.shown(*ino),
                    row.nlink
                ));
            }
        }
        // Finds all inodes that can be reached from the root.
        let (mut reached, mut ahead) = (BTreeSet::from([ROOT]), vec![ROOT]);
        while let Some(dir) = ahead.pop() {
            let inos = below.get(&dir).into_iter().flatten();
            ahead.extend(inos.filter(|ino| reached.insert(**ino)));
        }
        for ino in self.names.keys().filter(|ino| !reached.contains(ino)) {
            problems.push(format!("{} cannot be reached from the root", self.shown(*ino)));
        }
        if !self.inodes.get(&ROOT).is_some_and(|row| row.kind == Kind::Directory) {
            problems.push("there is no root".to_owned());
        }
        problems.sort_unstable();
        problems.into_iter().for_each(|what| self.problem(what));
    }

    fn attributes(&mut self) {
        for (ino, name, value) in std::mem::take(&mut self.xattrs) {
            let shown = String::from_utf8_lossy(&name).into_owned();
            if !self.inodes.contains_key(&ino) {
                self.problem(format!("the attribute {shown} belongs to inode {ino}, which does not exist"));
            }
            if access_list::is_list(&name) && AccessList::decode(&value).is_err() {
                self.problem(format!("the access list {shown} of {} is invalid", self.shown(ino)));
            }
        }
    }

    /// Checks that contents in the pack lie within it, are no longer than their files, and do not overlap.
    fn packed(&mut self, snapshot: &Snapshot) -> Result<()> {
        let end = match snapshot.metadata(PACK) {
            Ok(found) => found.len,
            Err(e) if is_missing(&e) => 0,
            Err(e) => return Err(e),
        };
        let packed = self.inodes.iter().filter_map(|(ino, row)| Some((row.extent?, *ino, row.size)));
        let mut packed: Vec<(Extent, Ino, u64)> = packed.collect();
        packed.sort_unstable();
        for (extent, ino, size) in &packed {
            if extent.len() as u64 > *size {
                let what = format!("{} has {size} bytes, but its contents have {}", self.shown(*ino), extent.len());
                self.problem(what);
            }
            if extent.end() > end {
                self.problem(format!(
                    "the contents of {} are missing: {PACK}, byte {}",
                    self.shown(*ino),
                    extent.offset
                ));
            }
        }
        let both = packed.windows(2).filter(|pair| pair[0].0.room_end() > pair[1].0.offset);
        for pair in both {
            let what = format!("the contents of {} and of {} overlap", self.shown(pair[0].1), self.shown(pair[1].1));
            self.problem(what);
        }
        Ok(())
    }

    /// Checks that objects exist, and are no longer than their files.
    fn objects(&mut self, snapshot: &Snapshot) -> Result<()> {
        let inos: BTreeSet<Ino> = self.inodes.keys().copied().collect();
        for ino in inos {
            let row = &self.inodes[&ino];
            let (kind, nlink, object, extent) = (row.kind, row.nlink, row.object, row.extent);
            // A file with contents in the pack has an empty object, if any.
            let (size, in_object) = (row.size, if extent.is_some() { 0 } else { row.size });
            let counts = &mut self.verified;
            match kind {
                _ if nlink == 0 => counts.removed += 1,
                Kind::File => (counts.files, counts.bytes) = (counts.files + 1, counts.bytes.saturating_add(size)),
                Kind::Directory => counts.directories += 1,
                _ => counts.others += 1,
            }
            if kind != Kind::File && (object || extent.is_some()) {
                self.problem(format!("{} is not a file, but has contents", self.shown(ino)));
            }
            if !object {
                continue;
            }
            match snapshot.metadata(object_path(ino)) {
                Ok(found) if found.is_directory => {
                    self.problem(format!("the contents of {} are a directory", self.shown(ino)));
                }
                Ok(found) if found.len > in_object => {
                    let what =
                        format!("{} has {in_object} bytes, but its contents have {}", self.shown(ino), found.len);
                    self.problem(what);
                }
                Ok(_) => {}
                Err(e) if is_missing(&e) => {
                    let object = object_path(ino);
                    let what = format!("the contents of {} are missing: {}", self.shown(ino), object.display());
                    self.problem(what);
                }
                Err(e) => return Err(e),
            }
        }
        for dir in snapshot.list("obj")? {
            for object in snapshot.list(PathBuf::from("obj").join(dir))? {
                let ino = object.to_str().and_then(|name| name.parse().ok());
                let known = ino.and_then(|ino: Ino| self.inodes.get(&ino)).is_some_and(|row| row.object);
                self.verified.unknown_objects += u64::from(!known);
            }
        }
        Ok(())
    }
}

/// Verifies a whole tree.
///
/// # Errors
/// Those of the snapshot; [`untorn::Error::Corrupt`] if its table is damaged, [`untorn::Error::NewerVersion`] if it is
/// newer.
pub fn verify(snapshot: &Snapshot) -> Result<Verified> {
    let bytes = table_bytes(snapshot)?;
    let mut found = FoundRows::default();
    let (mut keys, mut twice) = (BTreeSet::<Key>::new(), Vec::new());
    let numbers = read_slots(&bytes, &mut |_, _, row| {
        let Some(row) = row else { return };
        match keys.insert(row.key()) {
            true => found.row(row),
            false => twice.push(row.key()),
        }
    })?;
    twice.iter().for_each(|key| found.problem(format!("the table has two rows of {key:?}")));
    let beyond: Vec<Ino> = found.inodes.keys().copied().filter(|ino| *ino >= numbers.next || *ino == 0).collect();
    for ino in beyond {
        found.problem(format!("the number of inode {ino} was never assigned"));
    }
    if numbers.next > numbers.limit {
        found.problem("more inode numbers were assigned than there is room for".to_owned());
    }
    found.names();
    found.attributes();
    found.packed(snapshot)?;
    found.objects(snapshot)?;
    Ok(found.verified)
}
