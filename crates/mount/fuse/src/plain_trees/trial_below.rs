//! Limits of a mount: changes that its underlying file system refuses, found out by trying them on files made for that.

use crate::plain_trees::copying::{self, path_of};
use crate::plain_trees::manifest::Fixed;
use parking_lot::Mutex;
use rustix::fd::OwnedFd;
use rustix::fs::{AtFlags, FileType, Mode, OFlags, XattrFlags, linkat, mkdirat, mknodat, openat, symlinkat, unlinkat};
use rustix::io::Errno as SystemErrno;
use rustix::process::{Resource, getrlimit};
use std::ffi::OsStr;
use std::fs::{self, File};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use untorn_tree::{Attributes, Change, Errno, Ino, Kind, Limits, Result, SetTime, Xattrs};

/// Number of names that every file system allows for a file.
const LINKS: u32 = 100;
/// A name that some file systems refuse.
const STRANGE: &[u8] = b"\xff:\\?*\"<>| .";
const FILE: &str = "file";
const DIRECTORY: &str = "directory";
const OTHER: &str = "other";

/// The longest file that the file system of a directory allows.
pub struct SizeTrial(u64);

impl SizeTrial {
    /// Finds the limit with an unnamed file, or one that is unlinked at once; if none can be made, there is no limit.
    pub fn of(directory: &Path) -> SizeTrial {
        let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
        let file = rustix::fs::open(directory, flags, Mode::RUSR | Mode::WUSR);
        SizeTrial(file.map_or(u64::MAX, |file| longest(&File::from(file))))
    }
}

impl Limits for SizeTrial {
    fn size(&self, bytes: u64) -> Result<()> {
        if bytes > self.0 { Err(Errno(libc::EFBIG)) } else { Ok(()) }
    }
}

fn longest(file: &File) -> u64 {
    let takes = |size: u64| file.set_len(size).is_ok();
    // Not beyond the process's own limit, where a signal would end the process.
    let (mut least, mut most) = (0, i64::MAX as u64);
    most = getrlimit(Resource::Fsize).current.map_or(most, |limit| limit.min(most));
    if takes(most) || !takes(1) {
        least = u64::MAX;
    }
    while least < most && most - least > 1 {
        let middle = least + (most - least) / 2;
        *if takes(middle) { &mut least } else { &mut most } = middle;
    }
    let _ = file.set_len(0);
    least
}

/// The user of a session in a user namespace that knows no other users.
///
/// The kernel refuses to change files of unknown users there (`EOVERFLOW`), so all files are shown as this user's, with
/// the rights that the user has.
pub struct User {
    uid: u32,
    gid: u32,
    groups: Vec<u32>,
}

impl User {
    /// The user of this process, which is in no namespace of its own yet.
    pub fn present() -> io::Result<User> {
        let groups = rustix::process::getgroups()?.iter().map(|group| group.as_raw()).collect();
        Ok(User { uid: rustix::process::geteuid().as_raw(), gid: rustix::process::getegid().as_raw(), groups })
    }

    fn owns(&self, of: &Attributes) -> bool {
        of.uid == self.uid
    }

    /// The user's rights to a file of another user: read, write, execute bits.
    fn rights(&self, of: &Attributes) -> u32 {
        let is_in_group = of.gid == self.gid || self.groups.contains(&of.gid);
        let class = if is_in_group { of.mode >> 3 } else { of.mode };
        class & 7
    }
}

/// Limits of a session: the changes that its plain directory refuses.
pub struct Trial {
    size: SizeTrial,
    /// Directory with the files for the trials.
    directory: OwnedFd,
    name_max: usize,
    /// Whether the file system allows names of any bytes.
    takes_strange_names: bool,
    /// Inodes that nobody may change, and for each whether names may be added to it.
    fixed: Fixed,
    /// The user in whose user namespace the session is.
    user: Option<User>,
    tried: Mutex<Tried>,
}

/// Limits found by trials so far.
struct Tried {
    links: u32,
    target: usize,
}

impl Trial {
    /// Makes a directory for the trials. Programs do not see it.
    pub fn begin(at: &Path, fixed: Fixed, user: Option<User>) -> io::Result<Trial> {
        fs::create_dir(at)?;
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let directory = rustix::fs::open(at, flags, Mode::empty())?;
        let mode = Mode::RUSR | Mode::WUSR;
        for file in [FILE, OTHER] {
            openat(&directory, file, OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY | OFlags::CLOEXEC, mode)?;
        }
        mkdirat(&directory, DIRECTORY, Mode::RWXU)?;
        let longest = File::options().write(true).open(path_of(&directory).join(FILE)).map(|file| longest(&file))?;
        let name_max = rustix::fs::fstatvfs(&directory)?.f_namemax as usize;
        let tried = Mutex::new(Tried { links: 1, target: 0 });
        let mut trial =
            Trial { size: SizeTrial(longest), directory, name_max, takes_strange_names: true, fixed, user, tried };
        trial.takes_strange_names = trial.try_name(STRANGE).is_ok();
        Ok(trial)
    }

    fn try_name(&self, name: &[u8]) -> Result<()> {
        mknodat(&self.directory, name, FileType::RegularFile, Mode::RUSR, 0).map_err(error)?;
        unlinkat(&self.directory, name, AtFlags::empty()).map_err(error)
    }

    /// Gives a file exactly these attributes.
    fn try_xattrs(&self, at: &Path, xattrs: &Xattrs) -> rustix::io::Result<()> {
        let there = copying::own_attributes(at)?;
        let is_wanted = |name: &OsStr| xattrs.contains_key(name.as_bytes());
        for (name, _) in there.iter().filter(|(name, _)| is_tried(name.as_bytes()) && !is_wanted(name)) {
            rustix::fs::lremovexattr(at, name)?;
        }
        for (name, value) in xattrs.iter().filter(|(name, _)| is_tried(name)) {
            let name = OsStr::from_bytes(name);
            if !there.iter().any(|(known, now)| known == name && **now == **value) {
                rustix::fs::lsetxattr(at, name, value, XattrFlags::empty())?;
            }
        }
        Ok(())
    }
}

fn error(e: SystemErrno) -> Errno {
    Errno(e.raw_os_error())
}

/// Whether an attribute is tried. Those that the system itself uses are not: the kernel has refused them already, or
/// sets them itself.
fn is_tried(name: &[u8]) -> bool {
    name.starts_with(b"user.") || name.starts_with(b"trusted.")
}

impl Limits for Trial {
    fn size(&self, bytes: u64) -> Result<()> {
        self.size.size(bytes)
    }

    fn links(&self, links: u32) -> Result<()> {
        let mut tried = self.tried.lock();
        while links > LINKS && links > tried.links {
            let name = format!("link{}", tried.links);
            linkat(&self.directory, OTHER, &self.directory, name, AtFlags::empty()).map_err(error)?;
            tried.links += 1;
        }
        Ok(())
    }

    fn name(&self, name: &[u8]) -> Result<()> {
        let is_plain = name.iter().all(|byte| byte.is_ascii_alphanumeric() || b"-_.".contains(byte));
        match name.len() > self.name_max {
            true => Err(Errno(libc::ENAMETOOLONG)),
            false if self.takes_strange_names || is_plain && name.last() != Some(&b'.') => Ok(()),
            false => {
                let _one = self.tried.lock();
                // The trials' own names are plain, so they do not collide with this one.
                self.try_name(name)
            }
        }
    }

    fn target(&self, target: &[u8]) -> Result<()> {
        let mut tried = self.tried.lock();
        if target.len() > tried.target {
            symlinkat(target, &self.directory, "symlink").map_err(error)?;
            unlinkat(&self.directory, "symlink", AtFlags::empty()).map_err(error)?;
            tried.target = target.len();
        }
        Ok(())
    }

    fn xattrs(&self, kind: Kind, xattrs: &Xattrs) -> Result<()> {
        let _one = self.tried.lock();
        let at = path_of(&self.directory).join(if kind == Kind::Directory { DIRECTORY } else { FILE });
        self.try_xattrs(&at, xattrs).map_err(|e| {
            // A failed trial may leave some of the attributes; the next trial must begin without them.
            let _ = self.try_xattrs(&at, &Xattrs::new());
            error(e)
        })
    }

    fn change(&self, ino: Ino) -> Result<()> {
        if self.fixed.contains_key(&ino) { Err(Errno(libc::EPERM)) } else { Ok(()) }
    }

    fn add_name(&self, dir: Ino) -> Result<()> {
        if self.fixed.get(&dir) == Some(&false) { Err(Errno(libc::EPERM)) } else { Ok(()) }
    }
    fn shown(&self, of: Attributes) -> Attributes {
        match &self.user {
            Some(user) if user.owns(&of) => Attributes { gid: user.gid, ..of },
            Some(user) => {
                let mode = of.mode & !0o700 | user.rights(&of) << 6;
                Attributes { uid: user.uid, gid: user.gid, mode, ..of }
            }
            None => of,
        }
    }

    /// Refuses changes that only the owner may make, because the kernel takes the user for the owner.
    fn attributes(&self, of: &Attributes, change: &Change) -> Result<Change> {
        let Some(user) = self.user.as_ref().filter(|user| !user.owns(of)) else { return Ok(*change) };
        let change = Change { mode: change.mode.map(|mode| mode & 0o6000 | of.mode & !0o6000), ..*change };
        // Any writer may clear these bits. The kernel sends the time of a write that it had cached together with the
        // time of the change.
        let loses_bits = change.mode.is_some_and(|mode| mode != of.mode && mode & !of.mode == 0);
        let sets = |time: Option<SetTime>| matches!(time, Some(SetTime::At(_)));
        if change.mode.is_some() && !loses_bits
            || change.uid.is_some()
            || change.gid.is_some()
            || sets(change.atime)
            || sets(change.mtime) && change.ctime.is_none()
        {
            return Err(Errno(libc::EPERM));
        }
        // The kernel also sends the time of a change that it has made itself, such as a rename, with the other time
        // unchanged.
        let is_known = change.ctime.is_some() && change.mtime == Some(SetTime::At(of.mtime));
        let touches = change.atime.is_some() || change.mtime.is_some() && !is_known;
        if touches && user.rights(of) & 2 == 0 {
            return Err(Errno(libc::EACCES));
        }
        Ok(change)
    }

    fn removal(&self, dir: &Attributes, of: &Attributes) -> Result<()> {
        let is_others = |user: &User| !user.owns(dir) && !user.owns(of);
        match dir.mode & libc::S_ISVTX != 0 && self.user.as_ref().is_some_and(is_others) {
            true => Err(Errno(libc::EPERM)),
            false => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(uid: u32, gid: u32, mode: u32) -> Attributes {
        let time = untorn_tree::Time::default();
        Attributes {
            ino: 2,
            kind: Kind::File,
            mode,
            nlink: 1,
            uid,
            gid,
            rdev: 0,
            size: 0,
            blocks: 0,
            atime: time,
            mtime: time,
            ctime: time,
        }
    }

    fn trial(dir: &Path) -> Trial {
        let user = User { uid: 1000, gid: 1000, groups: vec![50] };
        Trial::begin(&dir.join("trial"), Fixed::from([(7, false), (8, true)]), Some(user)).unwrap()
    }

    #[test]
    fn what_is_of_others_is_shown_with_the_rights_that_the_user_has() {
        let dir = tempfile::tempdir().unwrap();
        let trial = trial(dir.path());
        let shown = |uid, gid, mode| {
            let shown = trial.shown(of(uid, gid, mode));
            assert_eq!((shown.uid, shown.gid), (1000, 1000));
            shown.mode
        };
        assert_eq!(shown(1000, 0, 0o640), 0o640);
        assert_eq!(shown(0, 50, 0o746), 0o446);
        assert_eq!(shown(0, 0, 0o746), 0o646);
        let refused = |of: &Attributes, change: Change| trial.attributes(of, &change).err().map(|e| e.0);
        let mode = |mode| Change { mode: Some(mode), ..Change::default() };
        let touch = Change { mtime: Some(SetTime::Now), ..Change::default() };
        assert_eq!(refused(&of(0, 0, 0o644), mode(0o666)), Some(libc::EPERM));
        assert_eq!(refused(&of(1000, 0, 0o644), mode(0o666)), None);
        assert_eq!(refused(&of(0, 0, 0o644), touch), Some(libc::EACCES));
        assert_eq!(refused(&of(0, 0, 0o646), touch), None);
        let time = |seconds| untorn_tree::Time { seconds, nanoseconds: 0 };
        let told = |mtime| Change { mtime: Some(SetTime::At(mtime)), ctime: Some(time(9)), ..Change::default() };
        assert_eq!(refused(&of(0, 0, 0o644), told(of(0, 0, 0).mtime)), None, "the kernel tells of a rename");
        assert_eq!(refused(&of(0, 0, 0o644), told(time(7))), Some(libc::EACCES));
        assert_eq!(trial.attributes(&of(0, 0, 0o4706), &mode(0o606)).unwrap().mode, Some(0o706));
        assert_eq!(refused(&of(0, 0, 0o646), Change { uid: Some(1000), ..Change::default() }), Some(libc::EPERM));
        let sticky = of(0, 0, 0o1777);
        assert_eq!(trial.removal(&sticky, &of(0, 0, 0o666)), Err(Errno(libc::EPERM)));
        assert!(
            trial.removal(&sticky, &of(1000, 0, 0)).is_ok() && trial.removal(&of(0, 0, 0o777), &of(0, 0, 0)).is_ok()
        );
    }

    #[test]
    fn what_is_tried_is_taken_or_refused_as_below() {
        let dir = tempfile::tempdir().unwrap();
        let trial = trial(dir.path());
        assert_eq!(trial.change(7), Err(Errno(libc::EPERM)));
        assert_eq!((trial.add_name(7), trial.add_name(8)), (Err(Errno(libc::EPERM)), Ok(())));
        assert!(trial.links(300).is_ok());
        assert_eq!(trial.tried.lock().links, 300);
        assert!(trial.target(&[b'x'; 900]).is_ok() && trial.name(b"a name").is_ok());
        assert_eq!(trial.name(&[b'n'; 300]), Err(Errno(libc::ENAMETOOLONG)));
        let xattrs = |names: &[&str]| -> Xattrs {
            names.iter().map(|name| (name.as_bytes().into(), b"value".as_slice().into())).collect()
        };
        for names in [&["user.a", "user.b"][..], &["user.b"], &["user.c", "security.selinux"], &[]] {
            match trial.xattrs(Kind::File, &xattrs(names)) {
                Err(Errno(libc::EOPNOTSUPP)) => return untorn_terminal::tell!("skipped: no attributes here"),
                done => done.unwrap(),
            }
            let mut there = [0; 256];
            let len = rustix::fs::llistxattr(dir.path().join("trial/file"), &mut there[..]).unwrap();
            let there = there[..len].split(|byte| *byte == 0).filter(|name| name.starts_with(b"user."));
            let is_tried = names.iter().map(|name| name.as_bytes()).filter(|name| name.starts_with(b"user."));
            assert_eq!(there.collect::<Vec<_>>(), is_tried.collect::<Vec<_>>());
        }
    }
}
