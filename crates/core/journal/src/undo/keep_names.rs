//! Keeps the files and directories of names before a commit changes the names: a file also under a name in the undo
//! directory.

use crate::commits::final_state::FinalState;
use crate::error::Result;
use crate::invariant;
use crate::undo::index::{Entry, Old, Was, link_name};
use crate::undo::keep::Undo;
use crate::undo::kept::{Kept, Link};
use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::ops::Range;
use std::path::Path;
use untorn_os::{Kind, holds};

impl Undo {
    /// Keeps the files and directories to which the names of a commit led before, if somebody holds an older commit.
    /// `names` is the net effect of this commit alone, which is not yet on the disk.
    pub fn keep_names(&self, names: &FinalState, lsn: u64) -> Result<()> {
        if !self.page.is_held_before(lsn) || !holds(invariant::NAMES_KEPT) {
            return Ok(());
        }
        let mut kept = self.kept.lock();
        // Each name, and whether it led to a file that the commit has.
        let mut changed: BTreeMap<&Path, bool> = BTreeMap::new();
        for file in names.files.values() {
            let changes = file.created.is_some() || file.names.len() > 1 || file.name.is_none() || file.mode.is_some();
            for (n, name) in file.names.iter().enumerate().filter(|_| changes) {
                *changed.entry(name).or_default() |= n == 0 && file.created.is_none();
            }
        }
        names.dirs.keys().for_each(|dir| _ = changed.entry(dir).or_default());
        loop {
            let held = self.page.holds()?;
            let mut entries = Vec::new();
            for (path, was_file) in &changed {
                let from = kept.names.get(*path).copied().unwrap_or(0);
                if !held.any_in(from..lsn) {
                    continue;
                }
                let commits = from..lsn;
                let was = match was_file {
                    true => self.keep_link(&mut kept, path, &commits),
                    false => match self.storage.stat(path) {
                        Ok(meta) if meta.kind == Kind::Directory => Was::Directory(meta.mode),
                        _ => Was::Nothing,
                    },
                };
                entries.push(Entry { commits, old: Old::Name { path: path.to_path_buf(), was } });
            }
            if self.publish(&mut kept, &held, &entries)? {
                changed.keys().for_each(|path| _ = kept.names.insert(path.to_path_buf(), lsn));
                return Ok(());
            }
        }
    }

    /// Gives the file under a name a second name in the undo directory.
    fn keep_link(&self, kept: &mut Kept, path: &Path, commits: &Range<u64>) -> Was {
        let Ok(meta) = self.storage.stat(path) else { return Was::Lost };
        if meta.kind != Kind::File || !self.is_as_open(path) {
            return Was::Lost;
        }
        let file = (meta.device, meta.inode);
        kept.own_links.add(file.0, file.1);
        let link = kept.next_link;
        let to = self.names().join(link_name(link));
        let made = match self.storage.link(path, &to) {
            Err(e) if e.kind() == ErrorKind::NotFound => {
                let dirs = [&self.dir, &self.names()];
                dirs.into_iter().try_for_each(|dir| self.make_dir(dir)).and_then(|()| self.storage.link(path, &to))
            }
            Err(e) if e.kind() == ErrorKind::AlreadyExists => {
                self.storage.unlink(&to).and_then(|()| self.storage.link(path, &to))
            }
            done => done,
        };
        if made.is_err() {
            kept.own_links.remove(file.0, file.1);
            return Was::Lost;
        }
        kept.next_link += 1;
        kept.links.insert(link, Link { commits: commits.clone(), file, bytes: 0 });
        Was::File { mode: meta.mode, link }
    }

    /// Whether the undo directory gives access to a file under this name to nobody whom a directory on its path keeps
    /// out: by its mode, by another group, or by an access list.
    fn is_as_open(&self, path: &Path) -> bool {
        let Some(own) = self.dir.parent().and_then(|dir| self.storage.stat(dir).ok()) else { return false };
        let mode = own.mode;
        let is_as_open = |dir: &Path| {
            mode & 0o055 == 0
                || self.storage.stat(dir).is_ok_and(|meta| {
                    meta.mode & mode & 0o055 == mode & 0o055
                        && (meta.gid == own.gid || meta.mode & 0o005 == 0o005)
                        && !self.storage.has_access_list(dir)
                })
        };
        path.ancestors().skip(1).all(is_as_open)
    }
}
