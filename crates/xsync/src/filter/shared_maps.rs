//! The supervisor's answers to system calls that the filter forwards.
//!
//! These are maps that are shared with files; with `--maps=strict` the flushes of a session that has such a map; with
//! `--exact` the rings of io_uring.

use crate::filter::renames::Renames;
use crate::filter::rings;
use crate::filter::stale_maps::StaleMaps;
use crate::filter::syscall_filter::{Call, Maps, call_of};
use crate::host::outer_streams::tell;
use crate::invariant::MAPS_BY_DESCRIPTOR;
use crate::report::session_report::Counters;
use crate::volumes::committer::Committer;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::{FileType, Mode, OFlags, fstat, fstatfs, open};
use rustix::io::Errno;
use rustix::process::{Pid, Signal, kill_process};
use std::collections::HashSet;
use std::fs::{self, File};
use std::io::{self, Read};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use untorn_os::holds;

/// `_IOWR('!', 0, struct seccomp_notif)`, `_IOWR('!', 1, struct seccomp_notif_resp)` of `<linux/seccomp.h>`.
const RECEIVE: libc::Ioctl = 0xC050_2100;
const SEND: libc::Ioctl = 0xC018_2101;
const CONTINUE: u32 = 1;
/// The `f_type` of tmpfs. Files there are not on the volume.
const TMPFS: rustix::fs::FsWord = 0x0102_1994;
/// The beginning of a 32-bit ELF file: magic number and class.
const ELF32: [u8; 5] = *b"\x7fELF\x01";

/// Answers the system calls of one session.
pub struct Answering {
    /// The treatment of shared maps, and whether flushes return exact results (`--exact`).
    pub calls: (Maps, bool),
    /// Makes commits.
    pub committer: Arc<Committer>,
    /// Counters for the status.
    pub counters: Arc<Counters>,
    /// Maps that may miss the session's later writes.
    pub stale: StaleMaps,
    /// Renames that an overlay refuses.
    pub renames: Renames,
    /// Programs that were ended because a session does not support their ABI.
    pub ended: HashSet<PathBuf>,
}

enum Decided {
    /// The kernel does the call.
    Continue,
    /// Zero, or an error.
    Answer(i32),
    /// The call has been answered already.
    Done,
}

impl Answering {
    /// Answers until the session has ended.
    pub fn answer(mut self, listener: &OwnedFd) {
        loop {
            let mut ready = [PollFd::new(listener, PollFlags::IN)];
            match poll(&mut ready, None) {
                Err(Errno::INTR) => continue,
                // No process is left that could ask.
                Ok(_) if !ready[0].revents().contains(PollFlags::IN) => break,
                Err(_) => break,
                Ok(_) => {}
            }
            // SAFETY: a structure of numbers, for which zero is a value; the kernel asks for zeros.
            let mut asked: libc::seccomp_notif = unsafe { std::mem::zeroed() };
            // SAFETY: the request fills `asked`, which outlives the call.
            if unsafe { libc::ioctl(listener.as_raw_fd(), RECEIVE, &mut asked) } != 0 {
                match io::Error::last_os_error().raw_os_error() {
                    // The process that asked has been killed meanwhile, or this one got a signal.
                    Some(libc::ENOENT | libc::EINTR) => continue,
                    _ => break,
                }
            }
            let (error, flags) = match self.decide(listener, &asked) {
                Decided::Continue => (0, CONTINUE),
                Decided::Answer(error) => (-error, 0),
                Decided::Done => continue,
            };
            let mut answer = libc::seccomp_notif_resp { id: asked.id, val: 0, error, flags };
            // SAFETY: the request reads `answer`, which outlives the call. An error means that the process is gone, and
            // is ignored.
            unsafe { libc::ioctl(listener.as_raw_fd(), SEND, &mut answer) };
        }
        self.stale.tell_of_those_that_were();
    }

    fn decide(&mut self, listener: &OwnedFd, asked: &libc::seccomp_notif) -> Decided {
        let (call, pid, arguments) = (call_of(&asked.data), asked.pid, asked.data.args);
        match call {
            Call::Map => self.map(pid, arguments[2], arguments[4] as i32),
            Call::OldMap => match old_map(pid, arguments[0]) {
                Some((protection, descriptor)) => self.map(pid, protection, descriptor),
                None => Decided::Continue,
            },
            Call::Flush | Call::Sync => {
                let descriptor = (call == Call::Flush).then_some(arguments[0] as i32);
                // With `--exact` the overlay returns the result.
                match flush(pid, descriptor, &self.committer, &self.counters) {
                    Decided::Answer(0) if self.calls.1 && call == Call::Flush => Decided::Continue,
                    flushed => flushed,
                }
            }
            Call::Rename(path) => {
                let from = path.checked_sub(1).map(|from| arguments[from] as i32);
                self.renames.look_at(pid, from, arguments[path], self.stale.written());
                Decided::Continue
            }
            Call::Ring => rings::answer(listener, asked).map_or_else(Decided::Answer, |()| Decided::Done),
            Call::Unknown => {
                self.end(pid);
                Decided::Answer(libc::ENOSYS)
            }
        }
    }

    /// Decides about a map that is shared with a file.
    fn map(&mut self, pid: u32, protection: u64, descriptor: i32) -> Decided {
        let Some(flags) = open_flags(pid, descriptor) else { return Decided::Continue };
        if flags & libc::O_ACCMODE == libc::O_RDONLY {
            return match self.stale.refuses(pid, descriptor) {
                true => Decided::Answer(libc::ENODEV),
                false => Decided::Continue,
            };
        }
        // A later mprotect may allow stores that the first protection forbids.
        let may_store = holds(MAPS_BY_DESCRIPTOR) || protection & libc::PROT_WRITE as u64 != 0;
        if flags & libc::O_ACCMODE != libc::O_RDWR || !may_store || !is_kept(pid, descriptor) {
            return Decided::Continue;
        }
        self.counters.shared_maps.fetch_add(1, SeqCst);
        match self.calls.0 {
            Maps::Refuse => Decided::Answer(libc::EPERM),
            Maps::Allow | Maps::Strict => Decided::Continue,
        }
    }

    /// Ends a program of an ABI whose calls the filter does not know, with a message, because it would crash without
    /// one. Other programs may probe whether the kernel has such an ABI, and are left alone.
    fn end(&mut self, pid: u32) {
        let (exe, mut head) = (format!("/proc/{pid}/exe"), [0; ELF32.len()]);
        let Ok(()) = File::open(&exe).and_then(|mut file| file.read_exact(&mut head)) else { return };
        if head != ELF32 {
            return;
        }
        let path = fs::read_link(&exe).unwrap_or_default();
        if self.ended.insert(path.clone()) {
            tell(format_args!(
                "{} is ended: it is a 32-bit program of a kind whose system calls a session does not know; run it outside \
                 of the session, or build it for this machine's 64 bits",
                path.display()
            ));
        }
        let _ = Pid::from_raw(pid as i32).map(|pid| kill_process(pid, Signal::SYS));
    }
}

/// Reads the arguments of the old 32-bit mmap: protection and descriptor, if the map is shared and of a file.
fn old_map(pid: u32, at: u64) -> Option<(u64, i32)> {
    let mut bytes = [0; 24];
    File::open(format!("/proc/{pid}/mem")).ok()?.read_exact_at(&mut bytes, at).ok()?;
    let argument = |n: usize| i32::from_ne_bytes(bytes[4 * n..4 * n + 4].try_into().expect("four bytes"));
    let flags = argument(3);
    let shared = flags & libc::MAP_ANONYMOUS == 0 && flags & libc::MAP_SHARED != 0;
    shared.then(|| (argument(2) as u64, argument(4)))
}

/// Answers a flush in `--maps=strict`: with 0 at once while no map is shared with a file, else after a commit.
fn flush(pid: u32, descriptor: Option<i32>, committer: &Committer, counters: &Counters) -> Decided {
    let exists = |descriptor| fs::symlink_metadata(format!("/proc/{pid}/fd/{descriptor}")).is_ok();
    if !descriptor.is_none_or(exists) {
        return Decided::Answer(libc::EBADF);
    }
    if counters.shared_maps.load(SeqCst) > 0 && committer.commit().is_err() {
        return Decided::Answer(libc::EIO);
    }
    Decided::Answer(0)
}

/// The flags with which a file was opened.
fn open_flags(pid: u32, descriptor: i32) -> Option<i32> {
    let info = fs::read_to_string(format!("/proc/{pid}/fdinfo/{descriptor}")).ok()?;
    let flags = info.lines().find_map(|line| line.strip_prefix("flags:"))?;
    i32::from_str_radix(flags.trim(), 8).ok()
}

/// Whether a descriptor is of a regular file on the volume.
fn is_kept(pid: u32, descriptor: i32) -> bool {
    let path = format!("/proc/{pid}/fd/{descriptor}");
    let Ok(file) = open(path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty()) else { return false };
    let regular = fstat(&file).is_ok_and(|stat| FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile);
    // A file system that cannot be asked is not in memory.
    regular && fstatfs(&file).map_or(true, |fs| fs.f_type != TMPFS)
}
