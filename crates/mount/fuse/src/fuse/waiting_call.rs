//! Finds out in which system call a program waits for a sync, and thereby whether the kernel has already sent all dirty
//! pages of the file.
//!
//! `fsync` and `fdatasync` make the kernel send the whole file, and hold the file's lock until they are answered.
//! `msync`, a write that must be durable, and `fsync` of `io_uring` send a range only; yet the kernel's request is the
//! same for all. So the daemon inspects the thread that waits for the answer, which cannot do anything else meanwhile.

use rustix::fd::OwnedFd;
use rustix::fs::{Mode, OFlags};
use std::ffi::c_long;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use untorn_tree::{Ino, KernelCache, Result};

/// After a thread that this process may not inspect, this many syncs are not inspected.
const PASSED_BY: u32 = 64;
/// How often a thread is inspected that has sent the request, and does not wait yet.
const LOOKS: usize = 16;

/// Inspects waiting programs.
pub struct WaitingCalls {
    /// `/proc`; `None` if its thread numbers are not those that the kernel sends to this process.
    proc: Option<OwnedFd>,
    pass_by: AtomicU32,
}

impl WaitingCalls {
    pub fn new() -> WaitingCalls {
        WaitingCalls { proc: own_proc(), pass_by: AtomicU32::new(0) }
    }

    /// Whether a thread waits in a call that has sent all of a file. False where this cannot be told.
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
                // The thread is another user's, or the system does not allow the inspection.
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

/// Opens `/proc`, if it shows this process's own PID namespace.
fn own_proc() -> Option<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let proc = rustix::fs::open("/proc", flags, Mode::empty()).ok()?;
    let is_proc = rustix::fs::fstatfs(&proc).ok()?.f_type == libc::PROC_SUPER_MAGIC;
    // The line has one number for each PID namespace, from that of `/proc` to that of this process.
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let numbers = status.lines().find_map(|line| line.strip_prefix("NSpid:"))?;
    (is_proc && numbers.split_whitespace().count() == 1).then_some(proc)
}

/// Parses a line of `/proc/N/syscall`: the number of the call, six arguments, the stack pointer and the program
/// counter.
fn sends_all(line: &[u8]) -> bool {
    let words: Vec<&str> = std::str::from_utf8(line).unwrap_or_default().split_whitespace().collect();
    let [number, .., stack, code] = words[..] else { return false };
    let is_sync = number.parse().is_ok_and(|number: c_long| [libc::SYS_fsync, libc::SYS_fdatasync].contains(&number));
    // A kernel thread that works for a program shows the number of another call, but no program counter.
    words.len() == 9 && is_sync && stack != "0x0" && code != "0x0"
}

/// Pulls all files except one that the kernel has already sent.
pub struct AllSent<'a> {
    pub ino: Ino,
    pub cache: &'a dyn KernelCache,
}

impl KernelCache for AllSent<'_> {
    fn write_back(&self, ino: Ino) -> Result<()> {
        if ino == self.ino { Ok(()) } else { self.cache.write_back(ino) }
    }

    fn cached(&self, ino: Ino, offset: u64, buf: &mut [u8]) -> Result<()> {
        self.cache.cached(ino, offset, buf)
    }

    fn begin_waiting(&self) {
        self.cache.begin_waiting();
    }

    fn rolled_back(&self, ino: Ino, size: u64) {
        self.cache.rolled_back(ino, size);
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
