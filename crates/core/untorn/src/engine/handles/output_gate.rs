//! The output gate: it holds back bytes for the outside until the commit that they report is durable.

use crate::engine::commit::ticket::Ticket;
use crate::engine::waiting::concurrency::{Condvar, Mutex, MutexGuard, thread};
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::fs::{FileType, fstat};
use rustix::io::Errno;
use rustix::net::{SendFlags, send};
use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;
use untorn_journal::format::sized_memory;
use untorn_journal::{Error, Result};
use untorn_os::Fd;

/// Limit for the bytes that an output holds, unless the gate was made with another number.
pub const GATE_BYTES_DEFAULT: usize = 1 << 20;
/// Bytes that a ready pipe takes without blocking (`PIPE_BUF`).
const PIPE_PIECE_BYTES: usize = 4096;

/// Holds back output until the commits that it depends on are durable.
///
/// A server changes its data, starts a commit with `commit_async`, hands its answer to the gate together with the
/// ticket, and continues with the next request: nothing that a client was told can be lost, and no request waits for
/// the disk. All answers that are pending when a commit starts share it.
///
/// ```
/// # let dir = tempfile::tempdir().unwrap();
/// # let (mut client, server) = std::os::unix::net::UnixStream::pair().unwrap();
/// use untorn::{Gate, Store};
///
/// let store = Store::open_or_create(dir.path())?;
/// let log = store.open_or_create_file("log")?;
/// let gate = Gate::new()?;
/// let answers = gate.output(server.into());
/// log.append(b"an order\n")?;
/// answers.write(b"we have your order\n", Some(&log.commit_async()?))?;
/// # drop(answers);
/// gate.drain()?; // before the program ends
/// # let mut said = String::new();
/// # std::io::Read::read_to_string(&mut client, &mut said).unwrap();
/// # assert_eq!(said, "we have your order\n");
/// # Ok::<(), untorn::Error>(())
/// ```
///
/// If a commit fails, the gate is poisoned: held bytes are discarded, and every later call fails with the commit's
/// error. Output whose commit was durable is still sent. Dropping the gate discards held bytes; [`Gate::drain`] waits
/// for them.
#[derive(Debug)]
pub struct Gate {
    shared: Arc<Shared>,
    thread: Option<thread::JoinHandle<()>>,
}

/// One descriptor behind a [`Gate`]. Bytes are sent in the order in which they were written. The descriptor is closed
/// when this is dropped and everything was sent.
#[derive(Debug)]
pub struct Output {
    shared: Arc<Shared>,
    number: u64,
}

/// The destination of an output's bytes.
pub trait Sink: Send {
    /// Takes some of the bytes without blocking, and returns their number.
    fn take(&mut self, bytes: &[u8]) -> io::Result<usize>;
    /// The descriptor that becomes ready when more bytes can be taken. Without one, the sink is always ready.
    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        None
    }
}

struct Shared {
    state: Mutex<State>,
    /// Some bytes were sent, or will never be sent.
    changed: Condvar,
    /// Wakes the thread.
    wake: Fd,
    bytes_max: usize,
    has_thread: bool,
}

#[derive(Default)]
struct State {
    /// Bytes that wait for their commit, in the order of writing.
    held: VecDeque<Held>,
    outputs: BTreeMap<u64, Queue>,
    next: u64,
    failed: Option<Error>,
    stop: bool,
}

struct Held {
    ticket: Option<Ticket>,
    output: u64,
    bytes: Vec<u8>,
}

struct Queue {
    sink: Box<dyn Sink>,
    /// Durable bytes that the sink has not taken yet.
    ready: VecDeque<u8>,
    /// Number of written bytes that the sink has not taken yet.
    bytes: usize,
    /// The [`Output`] was dropped, so no more bytes come.
    dropped: bool,
    failed: Option<Error>,
}

impl Gate {
    /// A gate with its own thread, whose outputs hold [`GATE_BYTES_DEFAULT`] each.
    pub fn new() -> Result<Gate> {
        Gate::with_bytes_max(GATE_BYTES_DEFAULT)
    }

    /// A gate whose outputs hold this many bytes each; a write beyond that waits.
    pub fn with_bytes_max(bytes_max: usize) -> Result<Gate> {
        let mut gate = Gate::make(bytes_max, true)?;
        let shared = gate.shared.clone();
        let work = move || while shared.release(true) {};
        let thread = thread::Builder::new().name("untorn gate".into()).spawn(work);
        gate.thread = Some(thread.map_err(|e| Error::io("start a thread for", "the gate", e))?);
        Ok(gate)
    }

    /// A gate without a thread: all work happens in calls of [`Gate::release`], and in writes that find no room.
    pub(crate) fn without_thread(bytes_max: usize) -> Result<Gate> {
        Gate::make(bytes_max, false)
    }

    fn make(bytes_max: usize, has_thread: bool) -> Result<Gate> {
        let wake = Fd::open(|| eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK));
        let wake = wake.map_err(|e| Error::io("make", "a gate's eventfd", e))?;
        let (state, changed) = (Mutex::new(State::default()), Condvar::new());
        Ok(Gate { shared: Arc::new(Shared { state, changed, wake, bytes_max, has_thread }), thread: None })
    }

    /// Puts a descriptor behind the gate: a socket, a pipe, a terminal or a file. Nothing else may write to it.
    pub fn output(&self, descriptor: OwnedFd) -> Output {
        let is_socket = fstat(&descriptor).is_ok_and(|stat| FileType::from_raw_mode(stat.st_mode) == FileType::Socket);
        self.output_to(Box::new(Descriptor { descriptor, is_socket }))
    }

    /// Puts any sink behind the gate.
    pub(crate) fn output_to(&self, sink: Box<dyn Sink>) -> Output {
        let mut state = self.shared.state.lock();
        let number = state.next;
        state.next += 1;
        let queue = Queue { sink, ready: VecDeque::new(), bytes: 0, dropped: false, failed: None };
        let before = state.outputs.insert(number, queue);
        debug_assert!(before.is_none(), "two outputs have the number {number}");
        Output { shared: self.shared.clone(), number }
    }

    /// Number of bytes that were written and not sent.
    pub fn held_bytes(&self) -> usize {
        self.shared.state.lock().outputs.values().map(|queue| queue.bytes).sum()
    }

    /// Waits for the oldest commit, and sends all bytes that are durable then.
    pub(crate) fn release(&self) {
        self.shared.release(false);
    }

    /// Waits until everything that was written has been sent, even if the other side of an output does not read. Fails
    /// with the error of the commit that poisoned the gate.
    pub fn drain(&self) -> Result<()> {
        let mut state = self.shared.state.lock();
        loop {
            if let Some(e) = &state.failed {
                return Err(e.clone());
            }
            if state.outputs.values().all(|queue| queue.bytes == 0) {
                return Ok(());
            }
            self.shared.check_wake()?;
            self.shared.wait_for_change(&mut state);
        }
    }
}

impl Drop for Gate {
    fn drop(&mut self) {
        let mut state = self.shared.state.lock();
        state.stop = true;
        state.discard();
        drop(state);
        self.shared.call_thread();
        if let Some(thread) = self.thread.take().filter(|_| self.shared.check_wake().is_ok()) {
            // A thread that cannot be woken, because the program has closed the descriptor, is left behind. If the
            // thread panicked, it has sent nothing more.
            let _ = thread.join();
        }
        // Nothing is sent from here on.
        self.shared.state.lock().outputs.retain(|_, queue| {
            (queue.ready, queue.bytes) = (VecDeque::new(), 0);
            !queue.dropped
        });
        self.shared.changed.notify_all();
    }
}

impl Output {
    /// Hands over bytes that may be sent when the ticket's commit is durable; without a ticket, when everything that
    /// was written to the gate before may be sent. Waits while the output is full.
    pub fn write(&self, bytes: &[u8], ticket: Option<&Ticket>) -> Result<()> {
        let mut state = self.shared.state.lock();
        loop {
            if let Some(e) = state.failed.as_ref().or(state.outputs[&self.number].failed.as_ref()) {
                return Err(e.clone());
            }
            if state.stop {
                return Err(closed());
            }
            let held = state.outputs[&self.number].bytes;
            if held == 0 || held + bytes.len() <= self.shared.bytes_max {
                break;
            }
            self.shared.wait_for_change(&mut state);
        }
        if bytes.is_empty() {
            return Ok(());
        }
        if state.held.is_empty() {
            self.shared.check_wake()?;
        }
        let path = Path::new("an output of the gate");
        let copy = sized_memory::copy(bytes, path)?;
        let queue = state.outputs.get_mut(&self.number).expect("an output that is open");
        // Reserve room for all written bytes, so that sending them needs no memory.
        let room = queue.bytes - queue.ready.len() + copy.len();
        queue.ready.try_reserve(room).map_err(|_| sized_memory::none(room, path))?;
        queue.bytes += copy.len();
        state.held.push_back(Held { ticket: ticket.cloned(), output: self.number, bytes: copy });
        let first = state.held.len() == 1;
        drop(state);
        if first {
            self.shared.call_thread();
        }
        Ok(())
    }
}

impl Drop for Output {
    fn drop(&mut self) {
        let mut state = self.shared.state.lock();
        if let Some(queue) = state.outputs.get_mut(&self.number) {
            queue.dropped = true;
            if queue.bytes == 0 || queue.failed.is_some() {
                state.outputs.remove(&self.number);
            }
        }
    }
}

fn closed() -> Error {
    Error::io("write to", "a gate that is closed", io::Error::from(io::ErrorKind::BrokenPipe))
}

impl Shared {
    fn call_thread(&self) {
        // A full counter wakes the thread, too.
        if let Ok(wake) = self.wake.own() {
            let _ = rustix::io::write(wake, &1_u64.to_ne_bytes());
        }
    }

    /// Checks that the thread can be woken.
    fn check_wake(&self) -> Result<()> {
        self.wake.own().map(drop).map_err(|e| Error::io("use", "the gate", e))
    }

    /// Waits for a change; without a thread, the caller does the work.
    fn wait_for_change(&self, state: &mut MutexGuard<'_, State>) {
        if self.has_thread {
            self.changed.wait(state);
        } else {
            self.release_locked(state);
        }
    }

    /// Runs one turn: waits for the oldest commit or for slow sinks, and sends the bytes that may be sent. Returns
    /// false when the gate is closed.
    fn release(&self, wait: bool) -> bool {
        let mut state = self.state.lock();
        if state.stop {
            return false;
        }
        if wait && state.held.is_empty() {
            drop(state);
            self.wait_for_work();
            state = self.state.lock();
        }
        if let Some(ticket) = state.held.front().and_then(|held| held.ticket.clone()) {
            drop(state);
            // The result is used below.
            let _ = ticket.wait();
            state = self.state.lock();
        }
        self.release_locked(&mut state);
        !state.stop
    }

    fn release_locked(&self, state: &mut State) {
        if !self.has_thread
            && let Some(Some(ticket)) = state.held.front().map(|held| &held.ticket)
        {
            let _ = ticket.wait();
        }
        while let Some(held) = state.held.front() {
            match held.ticket.as_ref().map_or(Some(Ok(())), Ticket::poll) {
                None => break,
                Some(Ok(())) => {
                    let Held { output, bytes, .. } = state.held.pop_front().expect("there is one");
                    if let Some(queue) = state.outputs.get_mut(&output).filter(|queue| queue.failed.is_none()) {
                        queue.ready.extend(bytes);
                    }
                }
                Some(Err(e)) => {
                    state.discard();
                    state.failed = Some(e);
                }
            }
        }
        state.outputs.retain(|_, queue| {
            queue.let_out();
            !(queue.dropped && (queue.bytes == 0 || queue.failed.is_some()))
        });
        state.assert_counted();
        self.changed.notify_all();
    }

    /// Waits until somebody writes, or until a sink can take more.
    fn wait_for_work(&self) {
        // Descriptors are duplicated, so that they stay open while the lock is released.
        let slow: Vec<OwnedFd> = {
            let state = self.state.lock();
            let slow = state.outputs.values().filter(|queue| !queue.ready.is_empty());
            slow.filter_map(|queue| queue.sink.descriptor()?.try_clone_to_owned().ok()).collect()
        };
        let wake = self.wake.own().ok();
        let mut ready: Vec<_> = wake.iter().map(|wake| PollFd::new(wake, PollFlags::IN)).collect();
        ready.extend(slow.iter().map(|descriptor| PollFd::new(descriptor, PollFlags::OUT)));
        // Callers that need the wake-up report that it does not work ([`Shared::check_wake`]).
        let soon = Timespec { tv_sec: 0, tv_nsec: 5_000_000 };
        let _ = poll(&mut ready, if wake.is_some() { None } else { Some(&soon) });
        let mut calls = [0; 8];
        let _ = self.wake.own().map(|wake| rustix::io::read(wake, &mut calls));
    }
}

impl State {
    /// Drops all bytes that wait for a commit.
    fn discard(&mut self) {
        self.held.clear();
        self.outputs.values_mut().for_each(|queue| queue.bytes = queue.ready.len());
        self.assert_counted();
    }

    /// Checks that outputs count the bytes that wait for a commit or for the sink.
    fn assert_counted(&self) {
        let works = |output: &u64| self.outputs.get(output).is_some_and(|queue| queue.failed.is_none());
        debug_assert_eq!(
            self.outputs.values().map(|queue| queue.bytes).sum::<usize>(),
            self.outputs.values().map(|queue| queue.ready.len()).sum::<usize>()
                + self.held.iter().filter(|held| works(&held.output)).map(|held| held.bytes.len()).sum::<usize>(),
            "bytes of {} outputs",
            self.outputs.len()
        );
    }
}

impl Queue {
    fn let_out(&mut self) {
        while self.failed.is_none() && !self.ready.is_empty() {
            match self.sink.take(self.ready.as_slices().0) {
                Ok(0) => return,
                Ok(taken) => {
                    debug_assert!(self.ready.len() <= self.bytes, "{} of {} bytes", self.ready.len(), self.bytes);
                    self.ready.drain(..taken);
                    self.bytes -= taken;
                }
                Err(e) => {
                    self.failed = Some(Error::io("write to", "a descriptor behind a gate", e));
                    (self.ready, self.bytes) = (VecDeque::new(), 0);
                }
            }
        }
    }
}

struct Descriptor {
    descriptor: OwnedFd,
    is_socket: bool,
}

impl Sink for Descriptor {
    fn take(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let taken = if self.is_socket {
            send(&self.descriptor, bytes, SendFlags::NOSIGNAL | SendFlags::DONTWAIT)
        } else {
            let mut ready = [PollFd::new(&self.descriptor, PollFlags::OUT)];
            let now = Timespec { tv_sec: 0, tv_nsec: 0 };
            match poll(&mut ready, Some(&now)) {
                Ok(0) => return Ok(0),
                Ok(_) => rustix::io::write(&self.descriptor, &bytes[..bytes.len().min(PIPE_PIECE_BYTES)]),
                Err(e) => Err(e),
            }
        };
        match taken {
            Err(Errno::AGAIN | Errno::INTR) => Ok(0),
            done => Ok(done?),
        }
    }

    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        Some(self.descriptor.as_fd())
    }
}

impl std::fmt::Debug for Shared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Shared").field("bytes_max", &self.bytes_max).finish_non_exhaustive()
    }
}
