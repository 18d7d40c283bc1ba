//! `untorn ls`.

use super::cp::is_unmanaged;
use crate::json;
use crate::siblings;
use clap::{Args, ValueHint};
use serde::Serialize;
use std::path::{Path, PathBuf};
use untorn::Reader;
use untorn::reader::Snapshot;
use untorn_terminal::{Failure, ListingForm, Output, shown};

/// List the files of a store as of its last durable commit, while a program may have the store open.
///
/// For a directory of a store, prints the names in it; for a file, the file's name. Symbolic links, pipes and devices
/// do not belong to a store, and are left out. In names, control characters, backslashes and bytes that are not UTF-8
/// are escaped. Changes nothing.
///
/// For the store of a mount, lists the mount's files, of all kinds (the program untorn-mount): PATH is the store, or
/// the store's path followed by a path from the mount point.
#[derive(Args)]
pub struct Ls {
    /// A store's directory, a directory or file in a store, or a file with its own store.
    #[arg(value_hint = ValueHint::AnyPath)]
    path: PathBuf,
    #[command(flatten)]
    form: ListingForm,
}

/// A listing of one commit.
#[derive(Serialize)]
struct Listing {
    lsn: u64,
    entries: Vec<Entry>,
}

#[derive(Serialize)]
struct Entry {
    #[serde(serialize_with = "json::path")]
    path: PathBuf,
    kind: &'static str,
    mode: String,
    bytes: u64,
}

impl Ls {
    pub fn run(self) -> Result<Output, Failure> {
        if siblings::is_in_tree(&self.path) {
            return Err(siblings::Other::Ls.execute());
        }
        let (reader, name) = Reader::open_containing(&self.path)?;
        let snapshot = reader.snapshot()?;
        let mut entries = Vec::new();
        if snapshot.metadata(&name)?.is_directory {
            list(&snapshot, &name, Path::new(""), self.form.recursive, &mut entries)?;
        } else {
            entries.push(entry(&snapshot, &name, &name)?);
        }
        snapshot.check()?;
        let listing = Listing { lsn: snapshot.lsn(), entries };
        if self.form.json {
            return json::output(&listing);
        }
        let line = |entry: &Entry| match self.form.long {
            true => format!("{} {:>12}  {}\n", entry.mode, entry.bytes, shown(&entry.path)),
            false => format!("{}\n", shown(&entry.path)),
        };
        Ok(Output::text(listing.entries.iter().map(line).collect::<String>()))
    }
}

fn entry(snapshot: &Snapshot, path: &Path, shown: &Path) -> untorn::Result<Entry> {
    let found = snapshot.metadata(path)?;
    let kind = if found.is_directory { "directory" } else { "file" };
    Ok(Entry { path: shown.to_owned(), kind, mode: format!("{:04o}", found.mode), bytes: found.len })
}

fn list(
    snapshot: &Snapshot,
    dir: &Path,
    shown: &Path,
    recursive: bool,
    entries: &mut Vec<Entry>,
) -> untorn::Result<()> {
    for name in snapshot.list(dir)? {
        let (path, shown) = (dir.join(&name), shown.join(&name));
        let found = match entry(snapshot, &path, &shown) {
            Err(e) if is_unmanaged(&e) => continue,
            done => done?,
        };
        let below = recursive && found.kind == "directory";
        entries.push(found);
        if below {
            list(snapshot, &path, &shown, recursive, entries)?;
        }
    }
    Ok(())
}
