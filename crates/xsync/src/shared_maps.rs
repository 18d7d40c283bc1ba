//! The supervisor's answers to system calls that the filter asks about: maps that are shared with files, and with
//! `--maps=strict` the flushes of a session that has such a map; with `--exact`, rings of io_uring.

use crate::cares::Cares;
use crate::committer::Committer;
use crate::rings;
use crate::session_report::Counters;
use crate::syscall_filter::Maps;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::{FileType, Mode, OFlags, fstat, fstatfs, open};
use rustix::io::Errno;
use std::fs;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::atomic::Ordering::SeqCst;

/// `_IOWR('!', 0, struct seccomp_notif)`, `_IOWR('!', 1, struct seccomp_notif_resp)` of `<linux/seccomp.h>`.
const RECEIVE: libc::Ioctl = 0xC050_2100;
const SEND: libc::Ioctl = 0xC018_2101;
const CONTINUE: u32 = 1;
/// `f_type` of tmpfs: what is there is not on the volume.
const TMPFS: rustix::fs::FsWord = 0x0102_1994;

/// Answers until the session has ended.
pub fn answer(
    listener: &OwnedFd,
    (maps, exact): (Maps, bool),
    cares: Cares,
    committer: &Committer,
    counters: &Counters,
) {
    loop {
        let mut ready = [PollFd::new(listener, PollFlags::IN)];
        match poll(&mut ready, None) {
            Err(Errno::INTR) => continue,
            // Nobody is left who could ask.
            Ok(_) if !ready[0].revents().contains(PollFlags::IN) => return,
            Err(_) => return,
            Ok(_) => {}
        }
        // SAFETY: a structure of numbers, for which zero is a value; the kernel asks for zeros.
        let mut asked: libc::seccomp_notif = unsafe { std::mem::zeroed() };
        // SAFETY: `asked` is what the request fills, and outlives the call.
        if unsafe { libc::ioctl(listener.as_raw_fd(), RECEIVE, &mut asked) } != 0 {
            match io::Error::last_os_error().raw_os_error() {
                // The process that asked has been killed meanwhile, or this one got a signal.
                Some(libc::ENOENT | libc::EINTR) => continue,
                _ => return,
            }
        }
        let decided = if libc::c_long::from(asked.data.nr) == libc::SYS_io_uring_setup {
            match rings::answer(listener, &asked) {
                Ok(()) => continue,
                Err(error) => Decided::Answer(error),
            }
        } else {
            decide(&asked, (maps, exact), cares, committer, counters)
        };
        let (error, flags) = match decided {
            Decided::Continue => (0, CONTINUE),
            Decided::Answer(error) => (-error, 0),
        };
        let mut answer = libc::seccomp_notif_resp { id: asked.id, val: 0, error, flags };
        // SAFETY: `answer` is what the request reads, and outlives the call. If the process is gone, so be it.
        unsafe { libc::ioctl(listener.as_raw_fd(), SEND, &mut answer) };
    }
}

enum Decided {
    /// The kernel does the call.
    Continue,
    /// Zero, or an error.
    Answer(i32),
}

fn decide(
    asked: &libc::seccomp_notif,
    (maps, exact): (Maps, bool),
    cares: Cares,
    committer: &Committer,
    counters: &Counters,
) -> Decided {
    let (call, arguments) = (libc::c_long::from(asked.data.nr), asked.data.args);
    if call != libc::SYS_mmap {
        let flushed = flush(asked.pid, call, arguments[0] as i32, committer, counters);
        // The overlay knows the result.
        return match flushed {
            Decided::Answer(0) if exact && call != libc::SYS_sync => Decided::Continue,
            _ => flushed,
        };
    }
    const WRITE: u64 = libc::PROT_WRITE as u64;
    let may_store = if cares.maps_by_descriptor {
        // mprotect may allow later what the first protection does not.
        is_writable_file(asked.pid, arguments[4] as i32)
    } else {
        arguments[2] & WRITE != 0 && is_writable_file(asked.pid, arguments[4] as i32)
    };
    if !may_store {
        return Decided::Continue;
    }
    counters.shared_maps.fetch_add(1, SeqCst);
    match maps {
        Maps::Refuse => Decided::Answer(libc::EPERM),
        Maps::Allow | Maps::Strict => Decided::Continue,
    }
}

/// A flush in `--maps=strict`: 0 at once as long as no map is shared with a file, else after a commit.
fn flush(pid: u32, call: libc::c_long, descriptor: i32, committer: &Committer, counters: &Counters) -> Decided {
    let exists = || fs::symlink_metadata(format!("/proc/{pid}/fd/{descriptor}")).is_ok();
    if call != libc::SYS_sync && !exists() {
        return Decided::Answer(libc::EBADF);
    }
    if counters.shared_maps.load(SeqCst) > 0 && committer.commit().is_err() {
        return Decided::Answer(libc::EIO);
    }
    Decided::Answer(0)
}

/// Whether a descriptor is one of a file on the volume, open for writing.
fn is_writable_file(pid: u32, descriptor: i32) -> bool {
    let info = fs::read_to_string(format!("/proc/{pid}/fdinfo/{descriptor}")).unwrap_or_default();
    let flags = info.lines().find_map(|line| line.strip_prefix("flags:"));
    let Some(flags) = flags.and_then(|text| i32::from_str_radix(text.trim(), 8).ok()) else { return false };
    if flags & libc::O_ACCMODE != libc::O_RDWR {
        return false;
    }
    let path = format!("/proc/{pid}/fd/{descriptor}");
    let Ok(file) = open(path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty()) else { return false };
    let regular = fstat(&file).is_ok_and(|stat| FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile);
    // A file system that cannot be asked is not one in memory.
    regular && fstatfs(&file).map_or(true, |fs| fs.f_type != TMPFS)
}
