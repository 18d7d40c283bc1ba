//! A shared mapping of a file, in a process of its own.
//!
//! The process that serves a mount must not map files of it: unmapping waits until the dirty pages are received, and
//! meanwhile no thread of that process can allocate or free memory.

use std::fs::File;
use std::io::{ErrorKind, Read, Write};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::process::{Child, Stdio};
use std::ptr;

pub const PAGE: usize = 4096;

const LEN: &str = "UNTORN_MAPPING_LEN";

/// The mapping, as seen by the process that requests it.
pub struct Mapping {
    process: Child,
    line: UnixStream,
    len: usize,
}

impl Mapping {
    pub fn of(file: &File, len: usize) -> Mapping {
        let (line, theirs) = UnixStream::pair().unwrap();
        let mut command = untorn_testkit::again!("child");
        command.env(LEN, len.to_string());
        command.stdin(file.try_clone().unwrap()).stdout(Stdio::null()).stderr(Stdio::from(OwnedFd::from(theirs)));
        let mut mapping = Mapping { process: command.spawn().unwrap(), line, len };
        assert_eq!(mapping.answer(), 0, "mmap");
        mapping
    }

    fn answer(&mut self) -> i32 {
        let mut answer = [0; 4];
        self.line.read_exact(&mut answer).unwrap();
        i32::from_ne_bytes(answer)
    }

    fn ask(&mut self, what: u8, at: usize, number: usize) -> i32 {
        assert!(at < self.len);
        let asked = [what as usize, at, number];
        self.line.write_all(&asked.map(usize::to_ne_bytes).concat()).unwrap();
        self.answer()
    }

    pub fn store(&mut self, at: usize, byte: u8) {
        self.ask(b's', at, byte.into());
    }

    /// Whether the kernel has a page in its cache.
    pub fn is_cached(&mut self, page: usize) -> bool {
        let found = self.ask(b'c', page * PAGE, 0);
        assert!(found >= 0);
        found & 1 != 0
    }

    pub fn sync(&mut self, at: usize, len: usize) {
        assert!(at + len <= self.len);
        assert_eq!(self.ask(b'm', at, len), 0, "msync");
    }
}

impl Drop for Mapping {
    /// Unmaps.
    fn drop(&mut self) {
        let _ = self.line.shutdown(std::net::Shutdown::Both);
        let _ = self.process.wait();
    }
}

/// The process with the mapping, if the variable is set. It ends when the connection to the requesting process is
/// closed.
#[test]
fn child() {
    let Ok(len) = std::env::var(LEN) else { return };
    let len = len.parse().unwrap();
    let mut line = UnixStream::from(rustix::io::dup(rustix::stdio::stderr()).unwrap());
    let protection = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: a new mapping, wherever there is room.
    let mapped = unsafe { libc::mmap(ptr::null_mut(), len, protection, libc::MAP_SHARED, 0, 0) };
    let nowhere = File::open("/dev/null").unwrap();
    // SAFETY: a system call on descriptors; the file that was given for the mapping is then not held open by a
    // descriptor.
    unsafe { libc::dup2(nowhere.as_raw_fd(), 0) };
    line.write_all(&i32::from(mapped == libc::MAP_FAILED).to_ne_bytes()).unwrap();
    loop {
        let mut asked = [0; 24];
        match line.read_exact(&mut asked) {
            Err(e) if e.kind() == ErrorKind::UnexpectedEof => return,
            read => read.unwrap(),
        }
        let number = |n: usize| usize::from_ne_bytes(asked[8 * n..8 * n + 8].try_into().unwrap());
        let (at, number, what) = (number(1), number(2), number(0) as u8);
        // SAFETY: the requesting process has checked that the range is in the mapping, which nobody else has.
        let answer = unsafe {
            let at = mapped.cast::<u8>().add(at);
            match what {
                b's' => {
                    at.write_volatile(number as u8);
                    0
                }
                b'c' => {
                    let mut found = 0;
                    if libc::mincore(at.cast(), PAGE, &raw mut found) == 0 { found.into() } else { -1 }
                }
                _ => libc::msync(at.cast(), number, libc::MS_SYNC),
            }
        };
        line.write_all(&answer.to_ne_bytes()).unwrap();
    }
}
