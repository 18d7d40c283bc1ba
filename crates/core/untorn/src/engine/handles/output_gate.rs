//! The output gate: it holds back bytes for the outside until the commit that they report is durable.

use crate::engine::commit::ticket::Ticket;
use crate::engine::options::FailureClass;
use crate::engine::waiting::concurrency::{Condvar, Instant, Mutex, MutexGuard, thread};
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::fs::{FileType, fstat};
use rustix::io::Errno;
use rustix::net::{SendFlags, send};
use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;
use std::task::{Wake, Waker};
use std::time::Duration;
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
    /// Bytes for outputs of class `remote` whose commit is durable here and not yet elsewhere; among them, without
    /// bytes, commits that other outputs have told of.
    held_remote: VecDeque<Held>,
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
    class: Option<FailureClass>,
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
        self.output_to(Descriptor::behind(descriptor), None)
    }

    /// Puts a descriptor behind the gate, like [`Gate::output`]: its bytes leave when their commits survive the failures
    /// of this class ([`Ticket::wait_for`]). Outputs of other classes do not wait for it.
    pub fn output_when(&self, descriptor: OwnedFd, class: FailureClass) -> Output {
        self.output_to(Descriptor::behind(descriptor), Some(class))
    }

    /// Puts any sink behind the gate.
    pub(crate) fn output_to(&self, sink: Box<dyn Sink>, class: Option<FailureClass>) -> Output {
        let mut state = self.shared.state.lock();
        let number = state.next;
        state.next += 1;
        let queue = Queue { class, sink, ready: VecDeque::new(), bytes: 0, dropped: false, failed: None };
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
        self.drain_until(Limit::NEVER).map(drop)
    }

    /// Waits as [`Gate::drain`] does, for at most this long. Returns false if bytes are still held.
    pub fn drain_within(&self, at_most: Duration) -> Result<bool> {
        self.drain_until(Limit::after(at_most))
    }

    fn drain_until(&self, limit: Limit) -> Result<bool> {
        let mut state = self.shared.state.lock();
        loop {
            if let Some(e) = &state.failed {
                return Err(e.clone());
            }
            if state.outputs.values().all(|queue| queue.bytes == 0) {
                return Ok(true);
            }
            self.shared.check_wake()?;
            if !self.shared.wait_for_change(&mut state, &limit) {
                return Ok(false);
            }
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
    /// Hands over bytes that may be sent when the ticket's commit is durable, or, behind [`Gate::output_when`], survives
    /// the failures of that class; without a ticket, when everything that was written to the gate before may be sent.
    /// Waits while the output is full.
    pub fn write(&self, bytes: &[u8], ticket: Option<&Ticket>) -> Result<()> {
        self.write_until(bytes, ticket, Limit::NEVER).map(drop)
    }

    /// Hands over bytes as [`Output::write`] does, but waits for at most this long. Returns false if the output is still
    /// full; then none of the bytes were taken.
    pub fn write_within(&self, bytes: &[u8], ticket: Option<&Ticket>, at_most: Duration) -> Result<bool> {
        self.write_until(bytes, ticket, Limit::after(at_most))
    }

    fn write_until(&self, bytes: &[u8], ticket: Option<&Ticket>, limit: Limit) -> Result<bool> {
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
            if !self.shared.wait_for_change(&mut state, &limit) {
                return Ok(false);
            }
        }
        if let (Some(ticket), Some(class)) = (ticket, state.outputs[&self.number].class) {
            ticket.check_class(class)?;
        }
        if bytes.is_empty() {
            return Ok(true);
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
        Ok(true)
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

/// The end of a wait: a time after its start, or never.
struct Limit(Option<(Instant, Duration)>);

impl Limit {
    const NEVER: Limit = Limit(None);

    fn after(at_most: Duration) -> Limit {
        Limit(Some((Instant::now(), at_most)))
    }

    /// The time until the end, if there is one.
    fn rest(&self) -> Option<Duration> {
        self.0.as_ref().map(|(start, at_most)| at_most.saturating_sub(start.elapsed()))
    }
}

fn closed() -> Error {
    Error::io("write to", "a gate that is closed", io::Error::from(io::ErrorKind::BrokenPipe))
}

impl Wake for Shared {
    fn wake(self: Arc<Self>) {
        self.call_thread();
    }
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

    /// Waits for a change; without a thread, the caller does the work. Returns false if the time is over.
    fn wait_for_change(&self, state: &mut MutexGuard<'_, State>, limit: &Limit) -> bool {
        match (self.has_thread, limit.rest()) {
            (_, Some(Duration::ZERO)) => return false,
            (true, None) => {
                self.changed.wait(state);
                return true;
            }
            (true, Some(rest)) => {
                // If the time is over then, the caller looks once more, and the next call says so.
                self.changed.wait_for(state, rest);
                return true;
            }
            (false, _) => {}
        }
        if state.held.is_empty()
            && let Some(Some(ticket)) = state.held_remote.front().map(|held| &held.ticket)
        {
            let _ = ticket.wait_for(FailureClass::Remote);
        }
        self.release_locked(state);
        true
    }

    /// Runs one turn: waits for the oldest commit or for slow sinks, and sends the bytes that may be sent. Returns
    /// false when the gate is closed.
    fn release(self: &Arc<Self>, wait: bool) -> bool {
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
                    let held = state.held.pop_front().expect("there is one");
                    state.pass_on(held);
                }
                Some(Err(e)) => state.fail(e),
            }
        }
        let is_remote = |ticket: &Ticket| ticket.poll_for(FailureClass::Remote);
        while let Some(held) = state.held_remote.front() {
            match held.ticket.as_ref().map_or(Some(Ok(())), is_remote) {
                None => break,
                Some(Ok(())) => {
                    let held = state.held_remote.pop_front().expect("there is one");
                    state.make_ready(held);
                }
                Some(Err(e)) => state.fail(e),
            }
        }
        state.outputs.retain(|_, queue| {
            queue.let_out();
            !(queue.dropped && (queue.bytes == 0 || queue.failed.is_some()))
        });
        state.assert_counted();
        self.changed.notify_all();
    }

    /// Whether the oldest bytes that wait for a slot may be sent; if not, the thread is woken when they may.
    fn is_remote(self: &Arc<Self>) -> bool {
        let ticket = self.state.lock().held_remote.front().and_then(|held| held.ticket.clone());
        let waker = Waker::from(self.clone());
        ticket.is_some_and(|ticket| ticket.poll_or_wake(FailureClass::Remote, &waker).is_some())
    }

    /// Waits until somebody writes, or until a sink can take more.
    fn wait_for_work(self: &Arc<Self>) {
        if self.is_remote() {
            return;
        }
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
        self.held_remote.clear();
        self.outputs.values_mut().for_each(|queue| queue.bytes = queue.ready.len());
        self.assert_counted();
    }

    /// Poisons the gate.
    fn fail(&mut self, e: Error) {
        self.discard();
        self.failed = Some(e);
    }

    /// Lets bytes out whose commit is durable here, or has them wait for the slot.
    fn pass_on(&mut self, held: Held) {
        if self.outputs.get(&held.output).is_some_and(|queue| queue.class == Some(FailureClass::Remote)) {
            self.held_remote.push_back(held);
            return;
        }
        // Others may depend on what this output tells.
        let some_wait = self.outputs.values().any(|queue| queue.class == Some(FailureClass::Remote));
        if let Some(ticket) = held.ticket.as_ref().filter(|ticket| some_wait && ticket.becomes_remote()) {
            let mark = Held { ticket: Some(ticket.clone()), output: held.output, bytes: Vec::new() };
            match self.held_remote.back_mut() {
                Some(Held { ticket: Some(last), bytes, .. }) if bytes.is_empty() && ticket.covers(last) => {
                    last.clone_from(ticket);
                }
                _ => self.held_remote.push_back(mark),
            }
        }
        self.make_ready(held);
    }

    fn make_ready(&mut self, Held { output, bytes, .. }: Held) {
        if let Some(queue) = self.outputs.get_mut(&output).filter(|queue| queue.failed.is_none()) {
            queue.ready.extend(bytes);
        }
    }

    /// Checks that outputs count the bytes that wait for a commit or for the sink.
    fn assert_counted(&self) {
        let works = |output: &u64| self.outputs.get(output).is_some_and(|queue| queue.failed.is_none());
        debug_assert_eq!(
            self.outputs.values().map(|queue| queue.bytes).sum::<usize>(),
            self.outputs.values().map(|queue| queue.ready.len()).sum::<usize>()
                + self
                    .held
                    .iter()
                    .chain(&self.held_remote)
                    .filter(|held| works(&held.output))
                    .map(|held| held.bytes.len())
                    .sum::<usize>(),
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

impl Descriptor {
    fn behind(descriptor: OwnedFd) -> Box<Descriptor> {
        let is_socket = fstat(&descriptor).is_ok_and(|stat| FileType::from_raw_mode(stat.st_mode) == FileType::Socket);
        Box::new(Descriptor { descriptor, is_socket })
    }
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
