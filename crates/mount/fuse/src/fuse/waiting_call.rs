//! Which system call a program waits in that asked for a sync: whether the kernel has sent all that is dirty of the file.
//!
//! `fsync` and `fdatasync` have the kernel send the whole file, and hold the file's lock until they are answered. `msync`, a
//! write that is to be durable, and `fsync` of `io_uring` send a range; and the kernel's question is the same. So the thread
//! is looked at that waits for the answer: it cannot do anything else meanwhile.

use rustix::fd::OwnedFd;
use rustix::fs::{Mode, OFlags};
use std::ffi::c_long;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use untorn_tree::{Ino, Pull, Result};

/// Syncs that are not looked at after one that this process may not look at.
const PASSED_BY: u32 = 64;
/// Looks at a thread that has asked, and does not wait yet.
const LOOKS: usize = 16;

/// Looks at waiting programs.
pub struct WaitingCalls {
    /// `/proc`; none if its numbers are not those that the kernel gives this process.
    proc: Option<OwnedFd>,
    pass_by: AtomicU32,
}

impl WaitingCalls {
    pub fn new() -> WaitingCalls {
        WaitingCalls { proc: own_proc(), pass_by: AtomicU32::new(0) }
    }

    /// Whether a thread waits in a call that has sent all of a file. No, where this cannot be told.
    pub fn have_sent_all(&self, thread: u32) -> bool {
        let Some(proc) = &self.proc else { return false };
        let passes_by = self.pass_by.fetch_update(Relaxed, Relaxed, |left| left.checked_sub(1)).is_ok();
        if passes_by || thread == 0 {
            return false;
        }
        let flags = OFlags::RDONLY | OFlags::CLOEXEC;
        let Ok(file) = rustix::fs::openat(proc, format!("{thread}/syscall"), flags, Mode::empty()) else {
            return false;
        };
        let mut text = [0; 256];
        for _ in 0..LOOKS {
            let Ok(len) = rustix::io::pread(&file, &mut text, 0) else {
                // Another user's, or a system that does not allow it.
                self.pass_by.store(PASSED_BY, Relaxed);
                return false;
            };
            match &text[..len] {
                b"running\n" => std::thread::yield_now(),
                line => return sends_all(line),
            }
        }
        false
    }
}

/// `/proc`, if it has this process's own numbers.
fn own_proc() -> Option<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let proc = rustix::fs::open("/proc", flags, Mode::empty()).ok()?;
    let is_proc = rustix::fs::fstatfs(&proc).ok()?.f_type == libc::PROC_SUPER_MAGIC;
    // One number for each namespace from that of `/proc` to this process's.
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let numbers = status.lines().find_map(|line| line.strip_prefix("NSpid:"))?;
    (is_proc && numbers.split_whitespace().count() == 1).then_some(proc)
}

/// A line of `/proc/N/syscall`: the number of the call, six arguments, and where the program's stack and code are.
fn sends_all(line: &[u8]) -> bool {
    let words: Vec<&str> = std::str::from_utf8(line).unwrap_or_default().split_whitespace().collect();
    let [number, .., stack, code] = words[..] else { return false };
    let is_sync = number.parse().is_ok_and(|number: c_long| [libc::SYS_fsync, libc::SYS_fdatasync].contains(&number));
    // A thread of the kernel's own that works for a program has the number of another call, but no code.
    words.len() == 9 && is_sync && stack != "0x0" && code != "0x0"
}

/// Pulls, but a file that the kernel has sent.
pub struct AllSent<'a> {
    pub ino: Ino,
    pub pull: &'a dyn Pull,
}

impl Pull for AllSent<'_> {
    fn pull(&self, ino: Ino) -> Result<()> {
        if ino == self.ino { Ok(()) } else { self.pull.pull(ino) }
    }

    fn cached(&self, ino: Ino, offset: u64, buf: &mut [u8]) -> Result<()> {
        self.pull.cached(ino, offset, buf)
    }

    fn begin_waiting(&self) {
        self.pull.begin_waiting();
    }

    fn rolled_back(&self, ino: Ino, size: u64) {
        self.pull.rolled_back(ino, size);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_calls_that_send_the_whole_file_do() {
        let line = |number: c_long, code: &str| format!("{number} 0x3 0x0 0x0 0x0 0x0 0x0 0x7ffd0 {code}\n");
        assert!(sends_all(line(libc::SYS_fsync, "0x7f12").as_bytes()));
        assert!(sends_all(line(libc::SYS_fdatasync, "0x7f12").as_bytes()));
        for number in [libc::SYS_msync, libc::SYS_pwritev2, libc::SYS_io_uring_enter, libc::SYS_sync_file_range] {
            assert!(!sends_all(line(number, "0x7f12").as_bytes()));
        }
        assert!(!sends_all(line(libc::SYS_fsync, "0x0").as_bytes()), "a worker of the kernel");
        for other in ["running\n", "-1 0x7ffd0 0x7f12\n", "", "74\n"] {
            assert!(!sends_all(other.as_bytes()));
        }
    }
}
