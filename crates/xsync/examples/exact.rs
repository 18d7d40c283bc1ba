//! Flushes of many kinds, for tests of sessions with `--exact`: `exact WHAT [ARGUMENT…]`.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::sync::atomic::{AtomicU32, Ordering::SeqCst};

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let done = match words[..] {
        ["results", dir] => results(dir),
        ["write", kind, path, count] => write(kind, path, count.parse().expect("a number")),
        ["mixed", dir, count, seed] => mixed(dir, count.parse().expect("a number"), seed.parse().expect("a number")),
        ["ring", path] => ring(path),
        ["told", path, note] => told(path, note),
        _ => panic!("no such thing: {words:?}"),
    };
    done.expect("it works");
}

fn checked(result: libc::c_long) -> io::Result<libc::c_long> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

/// Prints the results of flushes of each kind of descriptor: the number of the error, or `0`.
fn results(dir: &str) -> io::Result<()> {
    let file = File::create(format!("{dir}/file"))?;
    let read_only = File::open(format!("{dir}/file"))?;
    let path = OpenOptions::new().read(true).custom_flags(libc::O_PATH).open(format!("{dir}/file"))?;
    let (directory, outside) = (File::open(dir)?, File::open("/etc")?);
    let (pipe, _other) = io::pipe()?;
    let closed = 77;
    let descriptors = [
        ("file", file.as_raw_fd()),
        ("read-only", read_only.as_raw_fd()),
        ("directory", directory.as_raw_fd()),
        ("outside", outside.as_raw_fd()),
        ("pipe", pipe.as_raw_fd()),
        ("path", path.as_raw_fd()),
        ("closed", closed),
    ];
    for (name, descriptor) in descriptors {
        // SAFETY: any number may be asked about.
        let calls = unsafe {
            let say = |result: i32| checked(result.into()).map_or_else(error, i64::from);
            let (all, data) = (say(libc::fsync(descriptor)), say(libc::fdatasync(descriptor)));
            [all, data, say(libc::syncfs(descriptor)), say(libc::sync_file_range(descriptor, 0, 0, 0))]
        };
        println!("{name} {calls:?}");
    }
    Ok(())
}

fn error(e: io::Error) -> i64 {
    e.raw_os_error().unwrap_or_default().into()
}

/// Waits for a line, then writes and flushes a file in one way, `count` times.
fn write(kind: &str, path: &str, count: u32) -> io::Result<()> {
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true).truncate(false);
    if kind == "o-sync" {
        options.custom_flags(libc::O_SYNC);
    }
    let file = options.open(path)?;
    file.set_len(4096)?;
    println!("ready");
    io::stdin().read_line(&mut String::new())?;
    let mut ring = if kind == "ring" { Some(Ring::new()?) } else { None };
    for n in 0..count {
        let text = format!("{n:08}");
        match (kind, &mut ring) {
            ("rwf-sync", _) => flushed(&file, text.as_bytes(), 0, libc::RWF_SYNC)?,
            ("rwf-dsync", _) => flushed(&file, text.as_bytes(), 0, libc::RWF_DSYNC)?,
            ("ring", Some(ring)) => ring.write_and_flush(&file, text.as_bytes(), 0)?,
            _ => file.write_all_at(text.as_bytes(), 0)?,
        }
        match kind {
            "fsync" => file.sync_all()?,
            "msync" => map_and_flush(&file)?,
            _ => {}
        }
    }
    println!("done");
    Ok(())
}

fn map_and_flush(file: &File) -> io::Result<()> {
    use rustix::mm::{MapFlags, MsyncFlags, ProtFlags, mmap, msync, munmap};
    // SAFETY: a new mapping of a file that is longer, unmapped at the end.
    unsafe {
        let at = mmap(std::ptr::null_mut(), 4096, ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED, file, 0)?;
        let byte = at.cast::<u8>();
        byte.write_volatile(byte.read_volatile().wrapping_add(1));
        msync(at, 4096, MsyncFlags::SYNC)?;
        Ok(munmap(at, 4096)?)
    }
}

/// Writes files, waits for a line, flushes one of the files, and writes the result to a note elsewhere.
fn told(path: &str, note: &str) -> io::Result<()> {
    (0..9).try_for_each(|n| std::fs::write(format!("{path}{n}"), "text"))?;
    println!("ready");
    let mut go = String::new();
    io::stdin().read_line(&mut go)?;
    let said = File::open(format!("{path}0"))?.sync_all().map_or_else(error, |()| 0);
    std::fs::write(format!("{note}.new"), said.to_string())?;
    std::fs::rename(format!("{note}.new"), note)?;
    io::stdin().read_line(&mut go).map(drop)
}

/// Writes with a flag that makes the write flush by itself.
fn flushed(file: &File, text: &[u8], at: u64, flag: i32) -> io::Result<()> {
    let part = libc::iovec { iov_base: text.as_ptr().cast_mut().cast(), iov_len: text.len() };
    // SAFETY: the call reads the part, which outlives the call.
    let written = checked(unsafe { libc::pwritev2(file.as_raw_fd(), &part, 1, at as i64, flag) } as i64)?;
    assert_eq!(written as usize, text.len());
    Ok(())
}

/// Makes and overwrites files by writes that flush by themselves, in three ways, and by a ring. Prints a line after
/// each change, like `probe mixed`.
fn mixed(dir: &str, count: u64, seed: u64) -> io::Result<()> {
    let (mut chance, mut ring) = (seed, Ring::new()?);
    for n in 1..=count {
        chance = chance.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let (kind, slot) = (chance >> 33 & 3, chance >> 40 & 7);
        let path = format!("{dir}/file{slot}");
        let text = format!("{n:08}").repeat(600 * (1 + (chance >> 50 & 3) as usize));
        let bytes = text.as_bytes();
        match kind {
            0 => {
                let mut options = OpenOptions::new();
                let file = options.write(true).create(true).truncate(true).custom_flags(libc::O_SYNC).open(&path)?;
                file.write_all_at(bytes, 0)?;
            }
            1 => {
                let new = format!("{path}.new");
                flushed(&File::create(&new)?, bytes, 0, libc::RWF_DSYNC)?;
                std::fs::rename(new, &path)?;
            }
            2 => {
                let new = format!("{path}.new");
                ring.write_and_flush(&File::create(&new)?, bytes, 0)?;
                std::fs::rename(new, &path)?;
                File::open(dir)?.sync_all()?;
            }
            _ => {
                let _ = std::fs::remove_file(&path);
                let file = File::create(&path)?;
                ring.write_and_flush(&file, &bytes[..4096], 0)?;
                flushed(&file, &bytes[4096..], 4096, libc::RWF_SYNC)?;
                file.sync_data()?;
            }
        }
        println!("file{slot} {n} {}", text.len());
    }
    Ok(())
}

/// Tries requests of a ring that must work, and requests that must fail.
fn ring(path: &str) -> io::Result<()> {
    let mut ring = Ring::new()?;
    ring.write_and_flush(&File::create(path)?, b"by a ring\n", 0)?;
    println!("written: {}", std::fs::read_to_string(path)?.trim());
    let (pipe, _other) = io::pipe()?;
    println!("flush of a pipe: {}", ring.ask(FSYNC, pipe.as_raw_fd(), 0, 0, 0));
    for family in [libc::AF_VSOCK, libc::AF_INET] {
        println!("socket of family {family}: {}", ring.ask(SOCKET, family, 0, 0, libc::SOCK_STREAM as u64));
    }
    for flags in [1 << 1, 1 << 12, 1 << 14] {
        match Ring::with(flags) {
            Ok(_) => println!("a ring with {flags:#x}"),
            Err(e) => println!("no ring with {flags:#x}: {}", error(e)),
        }
    }
    // SAFETY: an invalid address is refused.
    let bad = checked(unsafe { libc::syscall(libc::SYS_io_uring_setup, 1, 8) });
    println!("without parameters: {}", bad.map_or_else(error, i64::from));
    Ok(())
}

/// IORING_OP_* of `<linux/io_uring.h>`.
const FSYNC: u8 = 3;
const WRITE: u8 = 23;
const SOCKET: u8 = 45;
const ENTRIES: u32 = 4;
/// IORING_ENTER_GETEVENTS.
const WAIT: u32 = 1;

/// A ring of io_uring, one request at a time.
struct Ring {
    ring: OwnedFd,
    parameters: [u32; 30],
    submitted: *mut u8,
    completed: *mut u8,
    entries: *mut u8,
}

impl Ring {
    fn new() -> io::Result<Ring> {
        Ring::with(0)
    }

    fn with(flags: u32) -> io::Result<Ring> {
        let mut parameters = [0_u32; 30];
        parameters[2] = flags;
        // SAFETY: the parameters are as large as the kernel has them. The kernel returns the places of the structures
        // that it makes, and they are mapped there.
        unsafe {
            let ring = checked(libc::syscall(libc::SYS_io_uring_setup, ENTRIES, parameters.as_mut_ptr()))?;
            let ring = OwnedFd::from_raw_fd(ring as i32);
            let mapped = |at: i64| {
                let (kind, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED | libc::MAP_POPULATE);
                let place = libc::mmap(std::ptr::null_mut(), 4096, kind, flags, ring.as_raw_fd(), at);
                if place == libc::MAP_FAILED { Err(io::Error::last_os_error()) } else { Ok(place.cast::<u8>()) }
            };
            let (submitted, completed, entries) = (mapped(0)?, mapped(0x800_0000)?, mapped(0x1000_0000)?);
            Ok(Ring { ring, parameters, submitted, completed, entries })
        }
    }

    /// The result of a request: a number, or the negative number of an error.
    fn ask(&mut self, operation: u8, descriptor: i32, at: u64, bytes: u32, offset: u64) -> i32 {
        let [sq_tail, sq_array, cq_head, cq_entries] = [11, 16, 20, 25].map(|n| self.parameters[n] as usize);
        // SAFETY: the kernel returned these offsets, which lie within the mappings. It uses the entry during the call
        // only.
        unsafe {
            let entry = self.entries.cast::<u64>();
            entry.write_bytes(0, 8);
            entry.write(u64::from(operation) | (descriptor as u32 as u64) << 32);
            entry.add(1).write(offset);
            entry.add(2).write(at);
            entry.add(3).write(bytes.into());
            self.submitted.add(sq_array).cast::<[u32; ENTRIES as usize]>().write([0; ENTRIES as usize]);
            (*self.submitted.add(sq_tail).cast::<AtomicU32>()).fetch_add(1, SeqCst);
            let ring = self.ring.as_raw_fd();
            let done = checked(libc::syscall(libc::SYS_io_uring_enter, ring, 1, 1, WAIT, 0_usize, 0_usize));
            assert_eq!(done.expect("a ring"), 1);
            let head = (*self.completed.add(cq_head).cast::<AtomicU32>()).fetch_add(1, SeqCst) as usize;
            let seen = head % self.parameters[1] as usize;
            self.completed.add(cq_entries + 16 * seen + 8).cast::<i32>().read_volatile()
        }
    }

    fn write_and_flush(&mut self, file: &File, bytes: &[u8], at: u64) -> io::Result<()> {
        let written = self.ask(WRITE, file.as_raw_fd(), bytes.as_ptr() as u64, bytes.len() as u32, at);
        assert_eq!(written, bytes.len() as i32);
        match self.ask(FSYNC, file.as_raw_fd(), 0, 0, 0) {
            0 => Ok(()),
            error => Err(io::Error::from_raw_os_error(-error)),
        }
    }
}
