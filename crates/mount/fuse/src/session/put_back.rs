//! Puts a session's changes back to the plain directory, without overwriting changes that anybody else made there.
//!
//! All new versions of files are made beside the directory, and are durable, before the first is renamed into its
//! place. From then on every step can be repeated: files that have their place already are left alone.

use crate::import_export::export::{self, Export};
use crate::import_export::held_back::{HeldBack, Skips};
use crate::import_export::widened_modes::WidenedModes;
use crate::mounts::mount_point;
use crate::mounts::mounted_store;
use crate::plain_trees::copying::path_of;
use crate::plain_trees::deep_paths::{Below, Reached, remove_all};
use crate::plain_trees::manifest::{self, Manifest, Plain};
use crate::session::session_changes::{self, Changes, Names};
use crate::session::session_dir::SessionDir;
use anyhow::{Context, Result};
use rustix::fs::{CWD, IFlags, Mode, OFlags, RenameFlags, fstat, lstat, renameat_with};
use rustix::io::Errno as SystemErrno;
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::fs::{self, DirBuilder, File, Permissions};
use std::io::ErrorKind;
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::{Path, PathBuf};
use untorn_tree::{Attributes, Ino};

/// Result of putting changes back.
pub enum PutBack {
    /// All changes are in place: the number of names that were made or changed, and of names that were removed.
    All(usize, usize),
    /// Somebody else changed these names, or the directory refused them. The rest is put back, and the session's
    /// directory stays. If conflicts were found before the first change, nothing is put back.
    NotAll { conflicts: Vec<PathBuf>, held: HeldBack },
}

/// Puts back the changes of a session, except skipped names; with `overwrite`, also over changes of others.
pub fn put_back(session: &SessionDir, overwrite: bool, skips: &Skips) -> Result<PutBack> {
    let manifest = manifest::read(&session.manifest())?;
    let tree = mounted_store::open_to_export(&session.store())?;
    tree.write_back()
        .map_err(|e| std::io::Error::from_raw_os_error(e.0))
        .context("cannot bring the session's store up to date")?;
    let now = session_changes::names(&tree)?;
    let changes = Changes::between(&manifest, &now, skips);
    skips.check()?;
    let below = Below::at(session.of()).with_context(|| format!("cannot open {}", session.of().display()))?;
    let mut putting = Putting {
        session,
        below,
        manifest: &manifest,
        now: &now,
        changes: &changes,
        staged: BTreeMap::new(),
        overwrite,
        conflicts: BTreeSet::new(),
        held: HeldBack::default(),
        unplaced: changes.skipped.clone(),
        stays: BTreeSet::new(),
        export: Export::new(&tree, "putting back"),
    };
    match fs::read_to_string(session.staged()) {
        Ok(text) => {
            putting.read_staged(&text).context("the session's list of new files is damaged")?;
            putting.stage(false)?;
        }
        Err(e) if e.kind() == ErrorKind::NotFound => {
            putting.look_for_conflicts()?;
            if !putting.conflicts.is_empty() {
                let conflicts = putting.conflicts.into_iter().collect();
                return Ok(PutBack::NotAll { conflicts, held: putting.held });
            }
            putting.stage(true)?;
        }
        Err(e) => return Err(e).context("cannot read the session's list of new files"),
    }
    putting.put()?;
    let Putting { conflicts, held, export, .. } = putting;
    export.report.say_what_was_left_out();
    if !conflicts.is_empty() || held.len() > 0 {
        return Ok(PutBack::NotAll { conflicts: conflicts.into_iter().collect(), held });
    }
    let durable = File::open(session.of()).and_then(|of| Ok(rustix::fs::syncfs(of)?));
    durable.with_context(|| format!("cannot make {} durable; try again", session.of().display()))?;
    manifest::write_whole(&session.done(), b"")?;
    Ok(PutBack::All(changes.install.len() + changes.make.len(), changes.remove.len()))
}

struct Putting<'a> {
    session: &'a SessionDir,
    /// The plain directory.
    below: Below,
    manifest: &'a Manifest,
    now: &'a Names,
    changes: &'a Changes<'a>,
    /// The inode of the new version of each file, by the file's number in the store.
    staged: BTreeMap<Ino, u64>,
    overwrite: bool,
    conflicts: BTreeSet<PathBuf>,
    /// Names that the directory refused.
    held: HeldBack,
    /// Inodes of the store that lack one of their new names: they keep the old ones.
    unplaced: BTreeSet<Ino>,
    /// Old names that stay for the inodes in `unplaced`.
    stays: BTreeSet<PathBuf>,
    export: Export<'a>,
}

impl Putting<'_> {
    /// Reaches a name through directories only, because a symbolic link may have been put in the way. `None` if a
    /// directory is missing or is none.
    fn reach(&mut self, path: &Path) -> Result<Option<Reached>> {
        match self.below.name(path) {
            Ok(reached) => Ok(Some(reached)),
            Err(SystemErrno::NOENT | SystemErrno::NOTDIR | SystemErrno::LOOP) => Ok(None),
            Err(e) => Err(e).with_context(|| format!("cannot open the directory of {}", path.display())),
        }
    }

    /// Notes a change that the directory refused.
    fn or_hold(&mut self, path: &Path, done: Result<()>) -> Result<()> {
        self.held.or_hold(path, done, self.below.root())
    }

    /// The present state of a name; `None` if nothing is there.
    fn at(&mut self, path: &Path) -> Result<Option<Plain>> {
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

    /// Looks for conflicts before anything is put back: every name that will be touched must be as it was.
    fn look_for_conflicts(&mut self) -> Result<()> {
        if self.overwrite {
            return Ok(());
        }
        let removed: HashSet<&Path> = self.changes.remove.iter().copied().collect();
        // For each directory: whether it and the directories above it are still there.
        let mut places: HashMap<&Path, bool> = HashMap::from([(Path::new(""), self.has_place(Path::new(""))?)]);
        let touched = self.changes.install.iter().map(|(path, _)| *path);
        for path in touched.chain(self.changes.make.iter().copied()).chain(self.changes.remove.iter().copied()) {
            let (now, before) = (self.at(path)?, self.before(path));
            let same = match (&now, before) {
                (Some(now), Some(before)) if before.is_dir => now.is_dir && now.ino == before.ino,
                (now, before) => now.as_ref() == before,
            };
            let both_removed = now.is_none() && removed.contains(path);
            let unknown: Vec<&Path> =
                path.ancestors().skip(1).take_while(|above| !places.contains_key(above)).collect();
            for above in unknown.into_iter().rev() {
                let outer = above.parent().is_none_or(|outer| places.get(outer).copied().unwrap_or(true));
                places.insert(above, outer && self.has_place(above)?);
            }
            let has_place = path.parent().is_none_or(|above| places.get(above).copied().unwrap_or(true));
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

    /// Whether a directory that was there is still there.
    fn has_place(&mut self, directory: &Path) -> Result<bool> {
        let Some(before) = self.before(directory).copied().filter(|before| before.is_dir) else { return Ok(true) };
        Ok(self.at(directory)?.is_some_and(|now| now.is_dir && now.ino == before.ino))
    }

    /// Notes names that somebody else has made in a directory that the session removed.
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

    /// Makes the new versions of files; from then on the set of changes to put back is fixed.
    ///
    /// A later call makes those that the directory refused, if that is possible then.
    fn stage(&mut self, is_first: bool) -> Result<()> {
        let new = self.session.new_files();
        if is_first {
            match remove_all(&new) {
                Err(e) if e.kind() != ErrorKind::NotFound => return Err(e).context("cannot remove an old try"),
                _ => {}
            }
            DirBuilder::new().mode(0o700).create(&new).context("cannot make a directory for new files")?;
        }
        let mut is_new = is_first;
        for (path, about) in &self.changes.install {
            if self.staged.contains_key(&about.ino) || self.unplaced.contains(&about.ino) {
                continue;
            }
            let to = new.join(about.ino.to_string());
            // An earlier run may have been killed while it made this file.
            match fs::remove_file(&to) {
                Err(e) if e.kind() != ErrorKind::NotFound => return Err(e).context("cannot remove an old try"),
                _ => {}
            }
            let made = self.export.entry(about.ino, &to, path);
            match made.with_context(|| format!("cannot put back {}", path.display())) {
                Ok(_) => {
                    self.staged.insert(about.ino, lstat(&to).context("stat")?.st_ino);
                    is_new = true;
                }
                Err(e) => {
                    self.or_hold(path, Err(e))?;
                    self.unplaced.insert(about.ino);
                }
            }
        }
        if !is_new {
            return Ok(());
        }
        let durable = File::open(&new).and_then(|new| Ok(rustix::fs::syncfs(new)?));
        durable.context("cannot make the new files durable")?;
        let lines = self.staged.iter().map(|(ino, staged)| format!("{ino} {staged}\n"));
        let text = format!("{}\n", u8::from(self.overwrite)) + &lines.collect::<String>();
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

    /// Puts everything in its place. Directories that their owner has closed to himself are open meanwhile.
    fn put(&mut self) -> Result<()> {
        // Root needs no change of modes.
        let touched = if mount_point::is_root() { BTreeSet::new() } else { self.changes.touched() };
        let mut widened = WidenedModes::open(self.session.widened(), &mut self.below, &touched)?;
        drop(touched);
        let done = self.put_below(&mut widened);
        done.and(widened.set_all_back(&mut self.below))
    }

    fn put_below(&mut self, widened: &mut WidenedModes) -> Result<()> {
        let (early, late): (Vec<_>, Vec<_>) =
            self.changes.remove.iter().partition(|path| self.changes.in_the_way.contains(**path));
        for path in early {
            let done = self.remove(path);
            self.or_hold(path, done)?;
        }
        for path in &self.changes.make {
            let ino = self.now.get(*path).map(|about| about.ino);
            // If a directory is held back, its contents are, too.
            if !self.held.has(path) {
                let done = self.make(path);
                self.or_hold(path, done)?;
            }
            if self.held.has(path) {
                self.unplaced.extend(ino);
            }
        }
        for (path, about) in &self.changes.install {
            if !self.held.has(path) && self.staged.contains_key(&about.ino) {
                let done = self.install(path, about).with_context(|| format!("cannot put back {}", path.display()));
                self.or_hold(path, done)?;
            }
            if self.held.has(path) || self.conflicts.contains(*path) {
                self.unplaced.insert(about.ino);
            }
        }
        for path in late {
            let done = self.remove(path);
            self.or_hold(path, done)?;
        }
        let open: Vec<PathBuf> = widened.paths().map(Path::to_owned).collect();
        let settle = self.changes.settle.iter().map(|(path, about)| (*path, Some(*about)));
        let mut last: Vec<(&Path, Option<&Attributes>)> =
            settle.chain(open.iter().map(|path| (path.as_path(), None))).collect();
        // The deepest first, because a directory above may become inaccessible.
        last.sort_by(|one, other| other.0.cmp(one.0).then(one.1.is_none().cmp(&other.1.is_none())));
        for (path, about) in last {
            if let Some(about) = about
                && !self.held.has(path)
            {
                let done = self.settle(path, about);
                let shown = if path.as_os_str().is_empty() { Path::new(".") } else { path };
                let done = done.with_context(|| format!("cannot put back the attributes of {}", shown.display()));
                if done.is_ok() {
                    widened.settled(path);
                }
                self.or_hold(path, done)?;
            }
            widened.set_back(path, &mut self.below)?;
        }
        Ok(())
    }

    fn remove(&mut self, path: &Path) -> Result<()> {
        let Some((before, stored)) = self.manifest.get(path).copied() else { return Ok(()) };
        // An inode that lacks its new name keeps the old one, and the directories of that name stay.
        if self.unplaced.contains(&stored.ino) {
            self.stays.insert(path.to_owned());
            return Ok(());
        }
        let (Some(reached), Some(now)) = (self.reach(path)?, self.at(path)?) else { return Ok(()) };
        let full = &reached.full;
        let removed = match (before.is_dir, now.is_dir) {
            // An earlier run has removed it.
            (was_dir, is_dir) if was_dir != is_dir && self.changes.in_the_way.contains(path) => Ok(()),
            (true, true) => fs::remove_dir(full),
            (false, false) if self.overwrite || now.has_contents_of(&before) => fs::remove_file(full),
            _ => Err(ErrorKind::DirectoryNotEmpty.into()),
        };
        match removed {
            Err(e) if e.kind() == ErrorKind::DirectoryNotEmpty => {
                let below = self.stays.range(path.to_owned()..).next();
                if self.held.has_below(path) || below.is_some_and(|below| below.starts_with(path)) {
                    self.stays.insert(path.to_owned());
                } else if !self.overwrite {
                    // The directory has files that somebody else made, so both stay.
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
            // Each of the file's names becomes a link to the one new version.
            let link = self.session.new_files().join("link");
            match fs::remove_file(&link) {
                Err(e) if e.kind() != ErrorKind::NotFound => return Err(e.into()),
                _ => {}
            }
            fs::hard_link(&new, &link)?;
            new = link;
        }
        let renamed = match now {
            // Must not replace a file that appears meanwhile.
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

    /// Makes the directories above a name, which somebody else may have removed.
    fn make_place(&mut self, path: &Path) -> Result<()> {
        if !self.overwrite || self.reach(path)?.is_some() {
            return Ok(());
        }
        let mut above: Vec<&Path> = path.ancestors().skip(1).filter(|above| !above.as_os_str().is_empty()).collect();
        while let Some(directory) = above.pop() {
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

    /// Sets the attributes of a directory when its contents are final. Only those that differ, because the directory
    /// may belong to another user.
    fn settle(&mut self, path: &Path, about: &Attributes) -> Result<()> {
        let Some(reached) = self.reach(path)? else { return Ok(()) };
        // Opened, so that the steps below apply to this directory even if its name changes.
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let opened = match rustix::fs::open(&reached.full, flags, Mode::empty()) {
            Err(SystemErrno::NOENT | SystemErrno::NOTDIR | SystemErrno::LOOP) => return Ok(()),
            opened => opened?,
        };
        let full = path_of(&opened).join(".");
        let now = fstat(&opened)?;
        if (now.st_uid, now.st_gid) != (about.uid, about.gid) {
            self.export.owner(&full, about, path)?;
        }
        self.export.attributes_that_differ(&full, about, path)?;
        match export::set_times(&full, about) {
            // Only its owner can set the times of a directory, and nobody those of a sealed one, below which nothing
            // is put back either.
            Err(SystemErrno::PERM) if is_of_another_user(now.st_uid) || is_sealed(&full) => {}
            done => done.context("cannot set its times")?,
        }
        // Set last, and not by a name in the directory, which this may make inaccessible. Access lists have changed the
        // mode, too.
        if fstat(&opened)?.st_mode & 0o7777 != about.mode {
            fs::set_permissions(path_of(&opened), Permissions::from_mode(about.mode)).context("cannot set its mode")?;
        }
        Ok(())
    }
}

fn is_of_another_user(uid: u32) -> bool {
    uid != rustix::process::geteuid().as_raw() && !mount_point::is_root()
}

/// Whether a directory is immutable, or only takes new names.
fn is_sealed(directory: &Path) -> bool {
    let flags = fs::File::open(directory).and_then(|opened| Ok(rustix::fs::ioctl_getflags(&opened)?));
    flags.is_ok_and(|flags| flags.intersects(IFlags::IMMUTABLE | IFlags::APPEND))
}

/// Whether an error means that the parent directory is gone.
fn is_gone(e: &std::io::Error) -> bool {
    matches!(e.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory)
}
