//! A session's changes go back to the plain directory: to what the session changed, and to nothing that somebody else did.
//!
//! New versions are made beside, all of them, and are durable before the first is renamed into its place. From then on every
//! step can be repeated: what has its place already is left alone.

use crate::copying::path_of;
use crate::export::Export;
use crate::manifest::{self, Manifest, Plain, Stored};
use crate::mounted_store;
use crate::session_dir::SessionDir;
use anyhow::{Context, Result};
use rustix::fd::OwnedFd;
use rustix::fs::{
    AtFlags, CWD, Mode, OFlags, RenameFlags, ResolveFlags, Timestamps, lstat, openat2, renameat_with, utimensat,
};
use rustix::io::Errno as SystemErrno;
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::fs::{self, DirBuilder, File, Permissions};
use std::io::ErrorKind;
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::{Path, PathBuf};
use untorn_tree::{Attributes, FileTree, Ino, Kind, ROOT, StoreTree};

/// What became of the changes.
pub enum PutBack {
    /// All of them are where they belong: so many names were made or changed, so many removed.
    All(usize, usize),
    /// Somebody else changed these names: the rest is put back if this came up late, and the session's directory stays.
    Conflicts(Vec<PathBuf>),
}

/// Puts back what a session did. With `overwrite`, also where somebody else has changed the same.
pub fn put_back(session: &SessionDir, overwrite: bool) -> Result<PutBack> {
    let manifest = manifest::read(&session.manifest())?;
    let tree = mounted_store::open_to_export(&session.store())?;
    tree.write_back()
        .map_err(|e| std::io::Error::from_raw_os_error(e.0))
        .context("cannot bring the session's store up to date")?;
    let mut now = BTreeMap::new();
    list(&tree, ROOT, Path::new(""), &mut now)?;
    let changes = Changes::between(&manifest, &now);
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let root = rustix::fs::open(session.of(), flags, Mode::empty());
    let root = root.with_context(|| format!("cannot open {}", session.of().display()))?;
    let mut putting = Putting {
        session,
        root,
        manifest: &manifest,
        changes: &changes,
        staged: BTreeMap::new(),
        overwrite,
        conflicts: BTreeSet::new(),
        export: Export::new(&tree, &session.new_files(), "putting back"),
    };
    match fs::read_to_string(session.staged()) {
        Ok(text) => putting.read_staged(&text).context("the session's list of new files is damaged")?,
        Err(e) if e.kind() == ErrorKind::NotFound => {
            putting.look_for_conflicts()?;
            if !putting.conflicts.is_empty() {
                return Ok(PutBack::Conflicts(putting.conflicts.into_iter().collect()));
            }
            putting.stage()?;
        }
        Err(e) => return Err(e).context("cannot read the session's list of new files"),
    }
    putting.put()?;
    let Putting { conflicts, export, .. } = putting;
    export.report.say_what_was_left_out();
    if !conflicts.is_empty() {
        return Ok(PutBack::Conflicts(conflicts.into_iter().collect()));
    }
    let durable = File::open(session.of()).and_then(|of| Ok(rustix::fs::syncfs(of)?));
    durable.with_context(|| format!("cannot make {} durable; try again", session.of().display()))?;
    manifest::write_whole(&session.done(), b"")?;
    Ok(PutBack::All(changes.install.len() + changes.make.len(), changes.remove.len()))
}

type Names = BTreeMap<PathBuf, Attributes>;

fn list(tree: &StoreTree, ino: Ino, path: &Path, found: &mut Names) -> Result<()> {
    let error = |e: untorn_tree::Errno| std::io::Error::from_raw_os_error(e.0);
    let about = tree.attributes(ino).map_err(error)?;
    found.insert(path.to_owned(), about);
    let mut start = 0;
    if about.kind != Kind::Directory {
        return Ok(());
    }
    loop {
        let entries = tree.read_dir(ino, start, 1024).map_err(error)?;
        let Some(last) = entries.last() else { return Ok(()) };
        start = last.next;
        for entry in entries {
            list(tree, entry.ino, &path.join(&entry.name), found)?;
        }
    }
}

/// What the session has changed, in the order of paths.
struct Changes<'a> {
    /// New directories.
    make: Vec<&'a Path>,
    /// New or changed files.
    install: Vec<(&'a Path, &'a Attributes)>,
    /// Names that are gone, or that are of the other kind now: files and directories, the deepest first.
    remove: Vec<&'a Path>,
    /// New or changed directories, the deepest first.
    settle: Vec<(&'a Path, &'a Attributes)>,
    /// Names of removed ones at which, or above which, something of the other kind is to be.
    in_the_way: BTreeSet<&'a Path>,
}

impl<'a> Changes<'a> {
    fn between(manifest: &'a Manifest, now: &'a Names) -> Changes<'a> {
        let is_dir = |about: &Attributes| about.kind == Kind::Directory;
        let mut changes =
            Changes { make: vec![], install: vec![], remove: vec![], settle: vec![], in_the_way: BTreeSet::new() };
        for (path, about) in now {
            let before = manifest.get(path);
            if before.is_some_and(|(_, stored)| *stored == Stored::of(about)) {
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
            changes.remove.push(path);
            if other_kind.is_some_and(|above| path.starts_with(above)) {
                changes.in_the_way.insert(path);
            }
        }
        changes.remove.reverse();
        changes.settle.reverse();
        changes
    }
}

/// A name, and the directory that it lies in.
struct Reached {
    full: PathBuf,
    _parent: OwnedFd,
}

struct Putting<'a> {
    session: &'a SessionDir,
    /// The plain directory.
    root: OwnedFd,
    manifest: &'a Manifest,
    changes: &'a Changes<'a>,
    /// The inode of the new version of a file, by its number in the store.
    staged: BTreeMap<Ino, u64>,
    overwrite: bool,
    conflicts: BTreeSet<PathBuf>,
    export: Export<'a>,
}

impl Putting<'_> {
    /// Leads to a name by directories alone, as somebody else may have put a link in the way; none if one of them is none.
    fn reach(&self, path: &Path) -> Result<Option<Reached>> {
        let name = path.file_name().unwrap_or(OsStr::new("."));
        let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS;
        match openat2(&self.root, parent, flags, Mode::empty(), resolve) {
            Ok(parent) => Ok(Some(Reached { full: path_of(&parent).join(name), _parent: parent })),
            Err(SystemErrno::NOENT | SystemErrno::NOTDIR | SystemErrno::LOOP) => Ok(None),
            Err(e) => Err(e).with_context(|| format!("cannot open {}", parent.display())),
        }
    }

    /// What is at a name now; none if nothing is.
    fn at(&self, path: &Path) -> Result<Option<Plain>> {
        let Some(reached) = self.reach(path)? else { return Ok(None) };
        match lstat(&reached.full) {
            Ok(about) => Ok(Some(Plain::of(&about))),
            Err(SystemErrno::NOENT | SystemErrno::NOTDIR) => Ok(None),
            Err(e) => Err(e).with_context(|| format!("cannot look at {}", path.display())),
        }
    }

    fn before(&self, path: &Path) -> Option<&Plain> {
        self.manifest.get(path).map(|(plain, _)| plain)
    }

    /// Nothing was put back yet: all that is to be touched must be as it was.
    fn look_for_conflicts(&mut self) -> Result<()> {
        if self.overwrite {
            return Ok(());
        }
        let touched = self.changes.install.iter().map(|(path, _)| *path);
        for path in touched.chain(self.changes.make.iter().copied()).chain(self.changes.remove.iter().copied()) {
            let (now, before) = (self.at(path)?, self.before(path));
            let same = match (&now, before) {
                (Some(now), Some(before)) if before.is_dir => now.is_dir && now.ino == before.ino,
                (now, before) => now.as_ref() == before,
            };
            let both_removed = now.is_none() && self.changes.remove.contains(&path);
            // The directories that it lies in: those that were there must be there.
            let mut has_place = true;
            for above in path.ancestors().skip(1) {
                if let Some(before) = self.before(above).filter(|before| before.is_dir) {
                    has_place &= self.at(above)?.is_some_and(|now| now.is_dir && now.ino == before.ino);
                }
            }
            if !(same && has_place || both_removed) {
                self.conflicts.insert(path.to_owned());
            }
        }
        for path in &self.changes.remove {
            if self.before(path).is_some_and(|before| before.is_dir) {
                self.look_for_new_names(path)?;
            }
        }
        Ok(())
    }

    /// A directory that the session removed is not to be removed with what somebody else made in it.
    fn look_for_new_names(&mut self, directory: &Path) -> Result<()> {
        if !self.at(directory)?.is_some_and(|now| now.is_dir) {
            return Ok(());
        }
        let Some(reached) = self.reach(directory)? else { return Ok(()) };
        let entries = match fs::read_dir(&reached.full) {
            Err(e) if is_gone(&e) => return Ok(()),
            entries => entries.with_context(|| format!("cannot read {}", directory.display()))?,
        };
        for entry in entries {
            let path = directory.join(entry?.file_name());
            if self.before(&path).is_none() {
                self.conflicts.insert(path);
            }
        }
        Ok(())
    }

    /// Makes the new versions; from then on it is settled what is put back.
    fn stage(&mut self) -> Result<()> {
        let new = self.session.new_files();
        match fs::remove_dir_all(&new) {
            Err(e) if e.kind() != ErrorKind::NotFound => return Err(e).context("cannot remove an old try"),
            _ => {}
        }
        DirBuilder::new().mode(0o700).create(&new).context("cannot make a directory for new files")?;
        let mut text = format!("{}\n", u8::from(self.overwrite));
        for (path, about) in &self.changes.install {
            if self.staged.contains_key(&about.ino) {
                continue;
            }
            let to = new.join(about.ino.to_string());
            self.export.entry(about.ino, &to, path).with_context(|| format!("cannot put back {}", path.display()))?;
            let ino = lstat(&to).context("stat")?.st_ino;
            self.staged.insert(about.ino, ino);
            text += &format!("{} {ino}\n", about.ino);
        }
        let durable = File::open(&new).and_then(|new| Ok(rustix::fs::syncfs(new)?));
        durable.context("cannot make the new files durable")?;
        manifest::write_whole(&self.session.staged(), text.as_bytes())
    }

    fn read_staged(&mut self, text: &str) -> Result<()> {
        let mut lines = text.lines();
        self.overwrite |= lines.next() == Some("1");
        for line in lines {
            let (stored, ino) = line.split_once(' ').context("a line of two numbers")?;
            self.staged.insert(stored.parse()?, ino.parse()?);
        }
        Ok(())
    }

    fn put(&mut self) -> Result<()> {
        let (early, late): (Vec<_>, Vec<_>) =
            self.changes.remove.iter().partition(|path| self.changes.in_the_way.contains(**path));
        for path in early {
            self.remove(path)?;
        }
        for path in &self.changes.make {
            self.make(path)?;
        }
        for (path, about) in &self.changes.install {
            self.install(path, about).with_context(|| format!("cannot put back {}", path.display()))?;
        }
        for path in late {
            self.remove(path)?;
        }
        for (path, about) in &self.changes.settle {
            self.settle(path, about)
                .with_context(|| format!("cannot put back the attributes of {}", path.display()))?;
        }
        Ok(())
    }

    fn remove(&mut self, path: &Path) -> Result<()> {
        let before = self.before(path).copied();
        let (Some(reached), Some(now)) = (self.reach(path)?, self.at(path)?) else { return Ok(()) };
        let full = &reached.full;
        let removed = match (before.is_some_and(|before| before.is_dir), now.is_dir) {
            // Done before.
            (was_dir, is_dir) if was_dir != is_dir && self.changes.in_the_way.contains(path) => Ok(()),
            (true, true) => fs::remove_dir(full),
            (false, false) if self.overwrite || before.is_some_and(|before| now.has_contents_of(&before)) => {
                fs::remove_file(full)
            }
            _ => Err(ErrorKind::DirectoryNotEmpty.into()),
        };
        match removed {
            // What somebody else made in a directory stays, and the directory with it.
            Err(e) if e.kind() == ErrorKind::DirectoryNotEmpty => {
                if !self.overwrite {
                    self.conflicts.insert(path.to_owned());
                }
                Ok(())
            }
            done => done.with_context(|| format!("cannot remove {}", path.display())),
        }
    }

    fn make(&mut self, path: &Path) -> Result<()> {
        self.make_place(path)?;
        let Some(reached) = self.reach(path)? else {
            self.conflicts.insert(path.to_owned());
            return Ok(());
        };
        match DirBuilder::new().mode(0o700).create(&reached.full) {
            Err(e) if e.kind() == ErrorKind::AlreadyExists => {
                if !self.at(path)?.is_some_and(|now| now.is_dir) {
                    self.conflicts.insert(path.to_owned());
                }
                Ok(())
            }
            Err(e) if is_gone(&e) => {
                self.conflicts.insert(path.to_owned());
                Ok(())
            }
            made => made.with_context(|| format!("cannot make {}", path.display())),
        }
    }

    fn install(&mut self, path: &Path, about: &Attributes) -> Result<()> {
        let now = self.at(path)?;
        let staged = self.staged.get(&about.ino).context("it is not in the list of new files")?;
        let in_order = match (&now, self.before(path)) {
            (Some(now), _) if now.ino == *staged => return Ok(()),
            (None, _) => true,
            (Some(now), _) if now.is_dir => false,
            (Some(now), before) => self.overwrite || before.is_some_and(|before| now.has_contents_of(before)),
        };
        if !in_order {
            self.conflicts.insert(path.to_owned());
            return Ok(());
        }
        self.make_place(path)?;
        let Some(reached) = self.reach(path)? else {
            self.conflicts.insert(path.to_owned());
            return Ok(());
        };
        let full = &reached.full;
        let mut new = self.session.new_files().join(about.ino.to_string());
        if about.nlink > 1 {
            // Each of its names is a link to the one new version.
            let link = self.session.new_files().join("link");
            match fs::remove_file(&link) {
                Err(e) if e.kind() != ErrorKind::NotFound => return Err(e.into()),
                _ => {}
            }
            fs::hard_link(&new, &link)?;
            new = link;
        }
        let renamed = match now {
            // Where nothing is, something may come in between.
            None if !self.overwrite => match renameat_with(CWD, &new, CWD, full, RenameFlags::NOREPLACE) {
                Err(SystemErrno::INVAL) => fs::rename(&new, full),
                renamed => renamed.map_err(Into::into),
            },
            _ => fs::rename(&new, full),
        };
        match renamed {
            Err(e) if is_gone(&e) || matches!(e.kind(), ErrorKind::IsADirectory | ErrorKind::AlreadyExists) => {
                self.conflicts.insert(path.to_owned());
                Ok(())
            }
            renamed => Ok(renamed?),
        }
    }

    /// Somebody else may have removed the directories that it lies in.
    fn make_place(&self, path: &Path) -> Result<()> {
        let mut above: Vec<&Path> = path.ancestors().skip(1).filter(|above| !above.as_os_str().is_empty()).collect();
        while let Some(directory) = above.pop().filter(|_| self.overwrite) {
            let Some(reached) = self.reach(directory)? else { return Ok(()) };
            match fs::create_dir(&reached.full) {
                Err(e) if e.kind() != ErrorKind::AlreadyExists => {
                    return Err(e).with_context(|| format!("cannot make {}", directory.display()));
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// Attributes of a directory, when nothing in it changes any more: those that differ, as it may be somebody else's.
    fn settle(&mut self, path: &Path, about: &Attributes) -> Result<()> {
        let Some(reached) = self.reach(path)? else { return Ok(()) };
        // Nobody puts another one there from here on.
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let opened = match rustix::fs::open(&reached.full, flags, Mode::empty()) {
            Err(SystemErrno::NOENT | SystemErrno::NOTDIR | SystemErrno::LOOP) => return Ok(()),
            opened => opened?,
        };
        let full = path_of(&opened).join(".");
        let now = lstat(&full)?;
        if (now.st_uid, now.st_gid) != (about.uid, about.gid) {
            self.export.owner(&full, about, path)?;
        }
        self.export.attributes_that_differ(&full, about, path)?;
        if now.st_mode & 0o7777 != about.mode {
            fs::set_permissions(&full, Permissions::from_mode(about.mode))?;
        }
        let time =
            |time: untorn_tree::Time| rustix::fs::Timespec { tv_sec: time.seconds, tv_nsec: time.nanoseconds.into() };
        let times = Timestamps { last_access: time(about.atime), last_modification: time(about.mtime) };
        match utimensat(CWD, &full, &times, AtFlags::SYMLINK_NOFOLLOW) {
            // It is somebody else's.
            Err(SystemErrno::PERM) => Ok(()),
            done => Ok(done?),
        }
    }
}

/// The directory that it should lie in is gone.
fn is_gone(e: &std::io::Error) -> bool {
    matches!(e.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory)
}
