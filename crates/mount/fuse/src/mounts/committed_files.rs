//! `untorn cat` and `untorn ls` of a mount's store: the files of the tree as of its last commit, by their names in the
//! tree. A mount's daemon continues meanwhile.

use crate::mounts::store_files::JOURNAL;
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use untorn::Reader;
use untorn_terminal::{Failure, ListingForm, Output, shown, stays_within, write};
use untorn_tree::{CommittedTree, Ino, Kind};

/// Bytes of a file that are read at once.
const PIECE_BYTES: usize = 1 << 20;

/// A name in a listing.
struct Listed {
    name: PathBuf,
    ino: Ino,
    kind: Kind,
    mode: u32,
    bytes: u64,
    /// The target of a symbolic link.
    target: Option<PathBuf>,
}

/// Prints files; all files of one store are of one commit.
pub fn cat(paths: &[PathBuf]) -> Result<Output, Failure> {
    let mut trees: Vec<(PathBuf, CommittedTree)> = Vec::new();
    let mut sources = Vec::new();
    for path in paths {
        let (store, name) = locate(path)?;
        if name.as_os_str().is_empty() {
            let path = path.display();
            return Err(Failure::new(format!("{path} is a store; name a file in it (`untorn ls {path}` lists them)")));
        }
        let of = match trees.iter().position(|(known, _)| *known == store) {
            Some(of) => of,
            None => {
                let tree = open(&store)?;
                trees.push((store, tree));
                trees.len() - 1
            }
        };
        // A wrong name is refused before anything is printed.
        let ino = trees[of].1.find(&name, true).map_err(|e| failure(path, &e))?;
        trees[of].1.open_file(ino, &name).map_err(|e| failure(path, &e))?;
        sources.push((path, of, name, ino));
    }
    let mut piece = vec![0; PIECE_BYTES];
    for (path, of, name, ino) in sources {
        let file = trees[of].1.open_file(ino, &name).map_err(|e| failure(path, &e))?;
        let mut at = 0;
        while at < file.len() {
            let n = file.read_at(&mut piece, at).map_err(|e| failure(path, &e))?;
            if !write(&piece[..n])? {
                return Ok(Output::default());
            }
            at += n as u64;
        }
    }
    Ok(Output::default())
}

/// Lists a directory, or a file.
pub fn ls(path: &Path, form: ListingForm) -> Result<Output, Failure> {
    let (store, name) = locate(path)?;
    let tree = open(&store)?;
    let listed = list(&tree, &name, form.recursive).map_err(|e| failure(path, &e))?;
    if form.json {
        let entries: Vec<Value> = listed.iter().map(Listed::json).collect();
        return Ok(Output::text(format!("{:#}\n", json!({ "lsn": tree.lsn(), "entries": entries }))));
    }
    Ok(Output::text(listed.iter().map(|listed| listed.line(form.long)).collect::<String>()))
}

fn list(tree: &CommittedTree, name: &Path, recursive: bool) -> untorn::Result<Vec<Listed>> {
    let top = Listed::of(tree, name.to_owned(), tree.find(name, false)?)?;
    let mut listed = Vec::new();
    if top.kind != Kind::Directory {
        listed.push(top);
    } else {
        let names = |dir: &Listed, below: &Path| -> untorn::Result<Vec<Listed>> {
            let names = tree.names(dir.ino).map(|(name, ino)| Listed::of(tree, below.join(name), ino));
            names.collect()
        };
        // The next name is the last one. In a damaged tree, a directory may be in itself.
        let (mut ahead, mut seen) = (names(&top, Path::new(""))?, BTreeSet::from([top.ino]));
        ahead.reverse();
        while let Some(next) = ahead.pop() {
            if recursive && next.kind == Kind::Directory && seen.insert(next.ino) {
                ahead.extend(names(&next, &next.name)?.into_iter().rev());
            }
            listed.push(next);
        }
    }
    tree.check()?;
    Ok(listed)
}

impl Listed {
    fn of(tree: &CommittedTree, name: PathBuf, ino: Ino) -> untorn::Result<Listed> {
        let of = tree.attributes(ino)?;
        let target = if of.kind == Kind::Symlink { Some(tree.target(ino)?) } else { None };
        let bytes = if of.kind == Kind::Directory { 0 } else { of.size };
        Ok(Listed { name, ino, kind: of.kind, mode: of.mode, bytes, target })
    }

    fn line(&self, long: bool) -> String {
        let name = shown(&self.name);
        if !long {
            return format!("{name}\n");
        }
        let target = self.target.as_ref().map_or(String::new(), |target| format!(" -> {}", shown(target)));
        format!("{:04o} {:>12}  {name}{target}\n", self.mode, self.bytes)
    }

    fn json(&self) -> Value {
        let kind = match self.kind {
            Kind::File => "file",
            Kind::Directory => "directory",
            Kind::Symlink => "symlink",
            Kind::Fifo => "fifo",
            Kind::Socket => "socket",
            Kind::CharDevice => "character device",
            Kind::BlockDevice => "block device",
        };
        let (path, mode) = (self.name.to_string_lossy(), format!("{:04o}", self.mode));
        let mut value = json!({ "path": path, "kind": kind, "mode": mode, "bytes": self.bytes });
        if let Some(target) = &self.target {
            value["target"] = target.to_string_lossy().into();
        }
        value
    }
}

fn failure(path: &Path, e: &untorn::Error) -> Failure {
    Failure::new(format!("{}: {e}", path.display()))
}

fn open(store: &Path) -> Result<CommittedTree, Failure> {
    let snapshot = Reader::open(store)?.snapshot()?;
    CommittedTree::open(snapshot).map_err(|e| failure(store, &e))
}

/// Splits a path into the store and the path in its tree.
fn locate(path: &Path) -> Result<(PathBuf, PathBuf), Failure> {
    let whole = std::path::absolute(path).map_err(|e| Failure::io("find", path, e))?;
    for store in whole.ancestors().filter(|dir| dir.join(JOURNAL).is_dir()) {
        let name = whole.strip_prefix(store).expect("an ancestor");
        if stays_within(name) {
            let store = store.canonicalize().map_err(|e| Failure::io("open", store, e))?;
            return Ok((store, name.to_owned()));
        }
    }
    Err(Failure::new(format!("{} is not in the store of a mount", path.display())))
}
