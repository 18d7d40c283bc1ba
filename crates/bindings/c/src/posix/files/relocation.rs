//! Files that change or lose their names: `rename` and `unlink` of managed files.
//!
//! The stores of both names are closed first, so that plain, whole files change their names, and every crash leaves
//! plain, whole files. A file that stays managed is opened again under its new name, and keeps its maps. A file that
//! lost its name becomes an ordinary file without a name, as in POSIX, until its last descriptor and map are gone.

use std::ffi::{CString, c_char, c_int, c_void};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::{Arc, PoisonError};

use untorn::__private::relocate::{Uncommitted, flush_names, leave_mapping, put_back, take_mapping, uncommitted};
use untorn::{File, MapOptions};

use super::managed_files::{Managed, Managing, forget};
use super::managing::{keep_on_mount_locked, manage_locked};
use super::name::{Name, kept};
use super::windows::{double, renew_maps, windows_of};
use crate::boundary::error::{Failure, Result};
use crate::boundary::log::told;
use crate::posix::state::address_ranges::subtract;
use crate::posix::state::call_section::lock;
use crate::posix::state::descriptor_table::MANAGED;
use crate::posix::state::patterns;
use crate::posix::state::posix_descriptor::{Key, failure, is_regular, key_of, open_descriptors, refusal, system};
use crate::posix::state::report::{errno, tell};

/// A managed file that changes or loses its name. A private store is closed meanwhile.
pub(super) struct Suspended<'m> {
    file: Arc<Managed>,
    closed: File,
    changes: Option<Uncommitted>,
    managing: &'m Managing,
}

impl<'m> Suspended<'m> {
    /// Closes the store of a file. `commit`: uncommitted changes are committed before.
    fn begin(file: &Arc<Managed>, commit: bool, managing: &'m Managing) -> Result<Suspended<'m>> {
        let mut slot = file.file.write().unwrap_or_else(PoisonError::into_inner);
        let open = slot.as_ref().ok_or_else(|| Failure::bad_handle("file"))?;
        let changes = match commit {
            true => open.commit().map(|()| None)?,
            false => uncommitted(open)?,
        };
        // A reason that would keep the store from closing shows here, while nothing has changed.
        open.store().checkpoint()?;
        let closed = slot.take().ok_or_else(|| Failure::bad_handle("file"))?;
        drop(slot);
        let suspended = Suspended { file: file.clone(), closed, changes, managing };
        // Changes are restored when the file is opened again.
        told(|| suspended.closed.store().close())?;
        Ok(suspended)
    }

    /// Begins the removal of a name from a file of a named store, which stays open.
    pub fn begin_in_store(file: &Arc<Managed>, managing: &'m Managing) -> Result<Suspended<'m>> {
        let mut slot = file.file.write().unwrap_or_else(PoisonError::into_inner);
        let open = slot.as_ref().ok_or_else(|| Failure::bad_handle("file"))?;
        let changes = uncommitted(open)?;
        // Afterwards the data file has all that is committed.
        open.store().checkpoint()?;
        let closed = slot.take().ok_or_else(|| Failure::bad_handle("file"))?;
        Ok(Suspended { file: file.clone(), closed, changes, managing })
    }

    /// Leaves a file of a named store as it was.
    pub fn resume_in_store(self) {
        *self.file.file.write().unwrap_or_else(PoisonError::into_inner) = Some(self.closed);
    }

    /// Opens the file again, under this name.
    fn resume(self, path: &Path) -> Result<()> {
        let Suspended { file, closed, changes, managing } = self;
        let open = File::open(path).inspect_err(|_| {
            tell(&format!(
                "{} cannot be opened again after its rename: calls on it fail from now on; the file is whole",
                path.display()
            ));
            // The program's maps stay accessible.
            std::mem::forget(closed.try_clone());
        })?;
        take_mapping(&open, &closed)?;
        {
            let mut place = lock(&file.place);
            if let Some(place) = place.as_mut() {
                place.map = open.map()?;
            }
            renew_maps(&file, managing, |old, end| {
                let base = place.as_ref().map_or(0, |place| place.reserved.start);
                let (at, len) = (old.offset(), end as u64 - base as u64 - old.offset());
                Ok(open.map_with(&MapOptions::new().offset(at).len(len).beyond_end(true))?)
            })?;
        }
        if let Some(changes) = &changes {
            put_back(&open, changes)?;
        }
        *file.file.write().unwrap_or_else(PoisonError::into_inner) = Some(open);
        drop(closed);
        file.retake_locks()
    }

    /// Ends the managing of a file that has lost its name: its descriptors and maps become ordinary ones of `fd`'s
    /// file. `fd` is open for reading and writing.
    pub fn become_nameless(self, fd: c_int) -> Result<()> {
        let Suspended { file, closed, changes, managing } = self;
        if let Some(changes) = &changes {
            write_changes(fd, changes)?;
        }
        let windows = windows_of(&file, managing);
        let place = lock(&file.place).take();
        if let Some(place) = &place {
            let mut unused = vec![place.reserved.clone()];
            for window in &windows {
                // The kernel has only one map of each address, so further maps of the same addresses are noted.
                let mut again = vec![window.addresses.clone()];
                for hole in &unused {
                    again = subtract(again, hole);
                }
                again.into_iter().for_each(double);
                let (start, len) = (window.addresses.start, window.addresses.len());
                let both = libc::PROT_READ | libc::PROT_WRITE;
                let at = (start - place.reserved.start) as libc::off_t;
                // SAFETY: replaces a map of the program by a map of the same file, with the same bytes.
                let mapped =
                    unsafe { libc::mmap(start as *mut c_void, len, both, libc::MAP_SHARED | libc::MAP_FIXED, fd, at) };
                if mapped == libc::MAP_FAILED {
                    return Err(system("map the file that lost its name"));
                }
                unused = subtract(unused, &window.addresses);
            }
            leave_mapping(&closed);
            for range in unused {
                // SAFETY: reserved by the mapping that was left, and mapped by no window.
                unsafe { libc::munmap(range.start as *mut c_void, range.len()) };
            }
        }
        forget(&file, managing);
        drop(closed);
        file.leave_store()
    }
}

/// Writes uncommitted changes to a file without a name.
fn write_changes(fd: c_int, changes: &Uncommitted) -> Result<()> {
    let zeros = vec![0; 1 << 16];
    let put = |mut bytes: &[u8], mut at: u64| {
        while !bytes.is_empty() {
            // SAFETY: `bytes` is valid during the call.
            match unsafe { libc::pwrite(fd, bytes.as_ptr().cast(), bytes.len(), at as libc::off_t) } {
                n if n > 0 => {
                    bytes = &bytes[n as usize..];
                    at += n as u64;
                }
                _ => return Err(system("write to the file that lost its name")),
            }
        }
        Ok(())
    };
    // SAFETY: takes numbers.
    if unsafe { libc::ftruncate(fd, changes.size as libc::off_t) } != 0 {
        return Err(system("resize the file that lost its name"));
    }
    for range in &changes.zeros {
        let mut at = range.start;
        while at < range.end {
            let n = zeros.len().min((range.end - at) as usize);
            put(&zeros[..n], at)?;
            at += n as u64;
        }
    }
    changes.bytes.iter().try_for_each(|(at, bytes)| put(bytes, *at))
}

/// A descriptor that is closed when this value is dropped.
pub(crate) struct Descriptor(pub c_int);

impl Descriptor {
    pub fn open(path: &Path, flags: c_int) -> Result<Descriptor> {
        let path = CString::new(path.as_os_str().as_bytes()).map_err(|_| failure(libc::EINVAL, "NUL in a path"))?;
        // SAFETY: `path` ends in NUL.
        match unsafe { libc::open(path.as_ptr(), flags | libc::O_CLOEXEC | libc::O_NOFOLLOW, 0o600) } {
            -1 => Err(system(&format!("open {}", path.to_string_lossy()))),
            fd => Ok(Descriptor(fd)),
        }
    }

    /// Flushes the file, whose path is for the message.
    pub fn flush(&self, path: &Path) -> Result<()> {
        // SAFETY: takes a number.
        match unsafe { libc::fsync(self.0) } {
            0 => Ok(()),
            _ => Err(system(&format!("flush {}", path.display()))),
        }
    }
}

impl Drop for Descriptor {
    fn drop(&mut self) {
        // SAFETY: this value's own descriptor.
        unsafe { libc::close(self.0) };
    }
}

/// Whether this process has a plain, shared, writable map of a file.
pub(super) fn is_mapped_plainly(key: Key) -> bool {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap_or_default();
    maps.lines().any(|line| {
        let mut fields = line.split_whitespace();
        let shared = fields.nth(1).is_some_and(|rights| rights.contains('w') && rights.ends_with('s'));
        // On some file systems the device number differs from the one that `stat` reports.
        shared && fields.nth(2).and_then(|inode| inode.parse().ok()) == Some(key.1)
    })
}

/// Descriptors through which the program may write to a file that is not managed.
pub(super) fn writers(key: Key) -> Vec<c_int> {
    let mut found = open_descriptors(key, &untorn_os::is_own_descriptor);
    // SAFETY: asks only.
    found.retain(|fd| unsafe { libc::fcntl(*fd, libc::F_GETFL) } & libc::O_ACCMODE != libc::O_RDONLY);
    found
}

/// Renames a file, if Untorn handles at least one of the two names. `exchange`: the two files exchange their names.
/// `rename` makes the system's call.
pub(crate) fn rename(
    from: &Name,
    to: &Name,
    exchange: bool,
    rename: impl FnOnce() -> c_int,
    managing: &Managing,
) -> Result<()> {
    from.check_own()?;
    to.check_own()?;
    if from.key().is_some() && from.key() == to.key() {
        // Both names are of one file, or are equal: nothing happens.
        return if rename() == 0 { Ok(()) } else { Err(system("rename")) };
    }
    let becomes_named = from.file.is_none() && patterns::match_path(&to.path);
    if let Some(key) = from.key().filter(|key| becomes_named && is_mapped_plainly(*key)) {
        return Err(refusal(
            libc::EBUSY,
            format!(
                "{} (inode {}) would get a managed name, {}, while it is mapped, but not managed: name its present \
                 path by untorn_manage() or UNTORN_MANAGE, too, before you map it",
                from.path.display(),
                key.1,
                to.path.display()
            ),
        ));
    }
    from.recover()?;
    to.recover()?;
    if from.file.is_none() && from.key().is_some() {
        // The contents must be durable before they replace others.
        Descriptor::open(&from.path, libc::O_RDONLY)?.flush(&from.path)?;
    }
    let replaced = match &to.file {
        Some(_) if !exchange => Some(Descriptor::open(&to.path, libc::O_RDWR)?),
        _ => None,
    };
    let mover = from.file.as_ref().map(|file| Suspended::begin(file, true, managing)).transpose()?;
    let target = match to.file.as_ref().map(|file| Suspended::begin(file, exchange, managing)).transpose() {
        Ok(target) => target,
        Err(e) => {
            mover.map_or(Ok(()), |mover| mover.resume(&from.path))?;
            return Err(e);
        }
    };
    if rename() != 0 {
        let failed = system(&format!("rename {} to {}", from.path.display(), to.path.display()));
        mover.map_or(Ok(()), |mover| mover.resume(&from.path))?;
        target.map_or(Ok(()), |target| target.resume(&to.path))?;
        return Err(failed);
    }
    let mut dirs = vec![to.dir(), from.dir()];
    dirs.dedup();
    let flushed = flush_names(&dirs);
    match (target, replaced) {
        (Some(target), None) => target.resume(&from.path)?,
        (Some(target), Some(replaced)) => target.become_nameless(replaced.0)?,
        _ => {}
    }
    if !exchange {
        untorn::__private::remove_unneeded(&from.path)?;
    }
    match mover {
        Some(mover) => mover.resume(&to.path)?,
        None => {
            if let Some(fd) = from.key().filter(|_| becomes_named).and_then(|key| writers(key).pop()) {
                manage_locked(fd, managing)?;
            }
        }
    }
    Ok(flushed?)
}

/// Whether `link` gives a file a name that is to be managed, outside of a mount.
pub(crate) fn links_to_managed_name(stat: &libc::stat, to: &Name) -> bool {
    is_regular(stat) && to.is_missing() && patterns::match_path(&to.path) && !is_dir_on_mount(to.dir())
}

/// Opens the file that `linkat` gives a further name, to flush it.
///
/// # Safety
/// `path` is NULL or ends in NUL.
pub(crate) unsafe fn open_linked(dir: c_int, path: *const c_char, flags: c_int) -> Result<Descriptor> {
    let follow = if flags & libc::AT_SYMLINK_FOLLOW != 0 { 0 } else { libc::O_NOFOLLOW };
    // SAFETY: the caller's promise.
    let fd = match unsafe { libc::openat(dir, path, libc::O_RDONLY | libc::O_CLOEXEC | follow) } {
        // An empty path stands for `dir`.
        // SAFETY: takes numbers.
        -1 if flags & libc::AT_EMPTY_PATH != 0 => unsafe { libc::fcntl(dir, libc::F_DUPFD_CLOEXEC, 3) },
        fd => fd,
    };
    if fd < 0 { Err(system("open the file that gets a managed name, to flush it")) } else { Ok(Descriptor(fd)) }
}

/// Gives a file a name that is to be managed. If it had no name (`O_TMPFILE`) and the program can still write to it, it
/// is managed from now on. `link` makes the system's call.
pub(crate) fn link(
    stat: &libc::stat,
    file: Descriptor,
    to: &Name,
    link: impl FnOnce() -> c_int,
    managing: &Managing,
) -> Result<()> {
    if is_mapped_plainly(key_of(stat)) {
        let text = "would get a managed name while it is mapped, but not managed: unmap it before";
        return Err(refusal(libc::EBUSY, format!("a file (inode {}) {text}, {}", stat.st_ino, to.path.display())));
    }
    to.recover()?;
    file.flush(&to.path)?;
    drop(file);
    if link() != 0 {
        return Err(system(&format!("link {}", to.path.display())));
    }
    flush_names(&[to.dir()])?;
    if stat.st_nlink == 0 && !writers(key_of(stat)).is_empty() {
        // The descriptor itself does not tell its new name.
        let named = Descriptor::open(&to.path, libc::O_RDWR)?;
        manage_locked(named.0, managing)?;
        MANAGED.clear(named.0);
    }
    Ok(())
}

/// Whether both names are on an Untorn mount, without a store beside them.
pub(crate) fn is_on_mount(from: &Name, to: &Name) -> bool {
    let plain = |name: &Name| name.file.is_none() && !name.has_store;
    let is_on_mount = |name: &Name| kept(name).is_some() || is_dir_on_mount(name.dir());
    // `rename` does not cross file systems, so one name on a mount is enough.
    plain(from) && plain(to) && (is_on_mount(from) || is_on_mount(to))
}

/// Whether a directory is on an Untorn mount.
pub(crate) fn is_dir_on_mount(dir: &Path) -> bool {
    let dir = std::fs::File::open(dir);
    dir.is_ok_and(|dir| untorn_os::mount_calls::is_on_mount(&dir).is_ok_and(|is| is))
}

/// How often the contents are committed again if other threads write between the commit and the rename.
const RENAME_TRIES: usize = 20;

/// Renames a file on an Untorn mount, which commits the rename. Changes in a transaction of this process are
/// committed before.
pub(crate) fn rename_on_mount(
    from: &Name,
    to: &Name,
    exchange: bool,
    rename: impl Fn() -> c_int,
    managing: &Managing,
) -> Result<()> {
    let (mover, target) = (kept(from), kept(to).filter(|_| exchange));
    // The contents must be durable before they replace others.
    let plain = match (&mover, from.key()) {
        (None, Some(_)) => Some(Descriptor::open(&from.path, libc::O_RDONLY)?),
        _ => None,
    };
    plain.as_ref().map_or(Ok(()), |plain| plain.flush(&from.path))?;
    let mut tries = 0..RENAME_TRIES;
    loop {
        for file in mover.iter().chain(&target) {
            file.commit()?;
        }
        if rename() == 0 {
            break;
        }
        // Another thread has written between the commit and the rename.
        if errno() != libc::EBUSY || tries.next().is_none() {
            return Err(system(&format!("rename {} to {}", from.path.display(), to.path.display())));
        }
    }
    if let Some(fd) =
        from.key().filter(|_| mover.is_none() && patterns::match_path(&to.path)).and_then(|key| writers(key).pop())
    {
        keep_on_mount_locked(fd, managing)?;
    }
    // A commit of the file also makes its new name durable.
    match (mover.or_else(|| kept(from)), &plain) {
        (Some(mover), _) => mover.commit(),
        (None, Some(plain)) => plain.flush(&from.path),
        (None, None) => Ok(()),
    }
}

/// Unlinks a file that Untorn handles, and its store. `unlink` makes the system's call.
pub(crate) fn unlink(name: &Name, unlink: impl FnOnce() -> c_int, managing: &Managing) -> Result<()> {
    name.check_own()?;
    let unlinked = || match unlink() {
        0 => Ok(()),
        _ => Err(std::io::Error::last_os_error()),
    };
    let Some(file) = &name.file else {
        return Ok(untorn::__private::unlink(&name.path, unlinked)?);
    };
    let nameless = Descriptor::open(&name.path, libc::O_RDWR)?;
    let suspended = Suspended::begin(file, false, managing)?;
    if let Err(e) = untorn::__private::unlink(&name.path, unlinked) {
        suspended.resume(&name.path)?;
        return Err(e.into());
    }
    suspended.become_nameless(nameless.0)
}
