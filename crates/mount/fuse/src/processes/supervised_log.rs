//! The log of uncommitted changes that outlives the daemon: in memory, or, if it is long, in an unnamed file on the
//! store's file system.

use crate::processes::supervised::Supervised;
use anyhow::{Context, Result};
use parking_lot::Mutex;
use rustix::fd::{AsFd, OwnedFd};
use rustix::fs::{MemfdFlags, Mode, OFlags, ftruncate, memfd_create};
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;
use untorn_tree::HandoverLog;

/// A log that is longer than this at its start goes to the file system.
const IN_MEMORY: u64 = 32 << 20;
/// Bytes that are read at a time.
const PIECE: usize = 256 << 10;
/// Length of the head of a log: its number, counted from 1, or 0 while it is incomplete.
const HEAD: u64 = 8;
/// Letters under which the supervisor keeps the files: two in memory, two on disk.
const NAMES: [u8; 4] = *b"abcd";

struct State {
    /// Index of the file with the valid log, and the number of that log.
    current: usize,
    number: u64,
    /// Position of the next frame, in the file `next` while a new log is being written.
    end: u64,
    next: Option<usize>,
}

/// The part of the log that was read last.
#[derive(Default)]
struct Piece {
    bytes: Vec<u8>,
    at: u64,
}

/// The log, in alternating files.
pub struct SupervisedLog {
    files: Vec<File>,
    state: Mutex<State>,
    piece: Mutex<Piece>,
}

impl SupervisedLog {
    /// Takes the log that the supervisor keeps, or creates a new one.
    pub fn of(supervised: &Supervised, store: &Path) -> Result<Arc<SupervisedLog>> {
        let mut files = Vec::new();
        for name in NAMES {
            let file = match supervised.kept(name) {
                Some(kept) => kept,
                None => {
                    let made = match files.len() < 2 {
                        true => in_memory().context("memory for the log")?,
                        false => on_disk(store).or_else(|_| in_memory()).context("a file for the log")?,
                    };
                    supervised.keep(name, &[], made.as_fd())?;
                    made
                }
            };
            files.push(File::from(file));
        }
        let numbers = files.iter().map(number).collect::<io::Result<Vec<u64>>>().context("the log")?;
        let current = (0..files.len()).max_by_key(|n| numbers[*n]).unwrap_or(0);
        let end = files[current].metadata().context("the log")?.len();
        let state = State { current, number: numbers[current], end, next: None };
        Ok(Arc::new(SupervisedLog { files, state: Mutex::new(state), piece: Mutex::default() }))
    }

    fn forget_piece(&self) {
        *self.piece.lock() = Piece::default();
    }
}

fn number(file: &File) -> io::Result<u64> {
    let mut head = [0; HEAD as usize];
    match file.metadata()?.len() < HEAD {
        true => Ok(0),
        false => file.read_exact_at(&mut head, 0).map(|()| u64::from_ne_bytes(head)),
    }
}

fn in_memory() -> rustix::io::Result<OwnedFd> {
    memfd_create("untorn-mount", MemfdFlags::CLOEXEC)
}

/// Makes an unnamed file. On a file system that has none, makes a file and unlinks it.
fn on_disk(store: &Path) -> rustix::io::Result<OwnedFd> {
    let (flags, mode) = (OFlags::RDWR | OFlags::CLOEXEC, Mode::RUSR | Mode::WUSR);
    rustix::fs::open(store, flags | OFlags::TMPFILE, mode).or_else(|_| {
        let path = store.with_file_name(format!(".untorn-mount-{}", std::process::id()));
        let file = rustix::fs::open(&path, flags | OFlags::CREATE | OFlags::EXCL, mode)?;
        rustix::fs::unlink(&path)?;
        Ok(file)
    })
}

impl HandoverLog for SupervisedLog {
    fn len(&self) -> io::Result<u64> {
        let state = self.state.lock();
        Ok(if state.number == 0 { 0 } else { state.end.saturating_sub(HEAD) })
    }

    fn read_at(&self, bytes: &mut [u8], at: u64) -> io::Result<()> {
        let (file, end) = {
            let state = self.state.lock();
            (&self.files[state.current], state.end)
        };
        let at = HEAD + at;
        // Read ahead: frames are short, and are read one after the other while programs wait.
        let mut piece = self.piece.lock();
        let covers = |piece: &Piece| piece.at <= at && at + bytes.len() as u64 <= piece.at + piece.bytes.len() as u64;
        if !covers(&piece) {
            let len = (end.saturating_sub(at) as usize).min(PIECE.max(bytes.len()));
            let mut read = vec![0; len];
            file.read_exact_at(&mut read, at)?;
            *piece = Piece { bytes: read, at };
        }
        if !covers(&piece) {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let from = (at - piece.at) as usize;
        bytes.copy_from_slice(&piece.bytes[from..from + bytes.len()]);
        Ok(())
    }

    fn append(&self, parts: &[&[u8]]) -> io::Result<()> {
        let mut state = self.state.lock();
        let file = &self.files[state.next.unwrap_or(state.current)];
        let len: usize = parts.iter().map(|part| part.len()).sum();
        let slices: Vec<io::IoSlice<'_>> = parts.iter().map(|part| io::IoSlice::new(part)).collect();
        // One call, which writes from the front to the back: after a kill, bytes beyond the file's length were not
        // written.
        let mut done = rustix::io::pwritev(file, &slices, state.end)?;
        if done < len {
            let whole = parts.concat();
            while done < len {
                done += file.write_at(&whole[done..], state.end + done as u64)?;
            }
        }
        state.end += len as u64;
        Ok(())
    }

    fn cut(&self, len: u64) -> io::Result<()> {
        self.forget_piece();
        let mut state = self.state.lock();
        ftruncate(&self.files[state.current], HEAD + len)?;
        state.end = HEAD + len;
        Ok(())
    }

    fn begin(&self, bytes: u64) -> io::Result<()> {
        self.forget_piece();
        let mut state = self.state.lock();
        let first = if bytes > IN_MEMORY { 2 } else { 0 };
        let next = if state.current == first { first + 1 } else { first };
        ftruncate(&self.files[next], 0)?;
        self.files[next].write_all_at(&[0; HEAD as usize], 0)?;
        (state.next, state.end) = (Some(next), HEAD);
        Ok(())
    }

    fn finish(&self) -> io::Result<()> {
        let mut state = self.state.lock();
        let Some(next) = state.next.take() else { return Ok(()) };
        state.number += 1;
        self.files[next].write_all_at(&state.number.to_ne_bytes(), 0)?;
        let last = std::mem::replace(&mut state.current, next);
        if last != next {
            ftruncate(&self.files[last], 0)?;
        }
        Ok(())
    }

    fn give_up(&self) {
        let mut state = self.state.lock();
        state.number = 0;
        for file in &self.files {
            let _ = ftruncate(file, 0);
        }
    }
}
