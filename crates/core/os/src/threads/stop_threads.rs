//! Stops all other threads of the process for a moment, each at an arbitrary instruction, like `SIGKILL`.
//!
//! A real-time signal goes to every thread, and its handler waits until the moment is over. Threads are listed again
//! until a list has no new one. A system call ends before its thread stops, so the kernel has stored its results for
//! the thread.
//!
//! **While the threads are stopped, the caller may take no lock and allocate nothing**, because one of them may hold
//! the lock.

use crate::descriptors::fork::process_generation;
use crate::threads::futex;
use rustix::fs::{self, Mode, OFlags, RawDir, SeekFrom};
use std::fmt;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::ptr::null_mut;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::atomic::{AtomicI32, AtomicU32, AtomicU64};
use std::time::{Duration, Instant};

/// Limit for the threads that can be stopped.
const THREADS_MOST: usize = 4096;
/// Limit for the threads of this library.
const OWN_MOST: usize = 1024;
/// Time after which a thread that does not stop is examined.
const LOOK: Duration = Duration::from_millis(1);

/// Odd while the threads are to stop; they stay stopped until the number changes.
static EPOCH: AtomicU32 = AtomicU32::new(0);
/// Counts the threads that have stopped.
static ANSWERS: AtomicU32 = AtomicU32::new(0);
/// For each index in the list of threads: the last epoch in which that thread stopped.
static STOPPED: [AtomicU32; THREADS_MOST] = [const { AtomicU32::new(0) }; THREADS_MOST];
/// The generation of the process that is stopping its threads; 0 if none is.
static STOPPING: AtomicU64 = AtomicU64::new(0);
/// The signal; 0 if none was chosen yet.
static SIGNAL: AtomicI32 = AtomicI32::new(0);
/// Threads that need not stop: the generation of the process, and the thread's id.
static OWN: [AtomicU64; OWN_MOST] = [const { AtomicU64::new(0) }; OWN_MOST];

/// Why the threads were not stopped.
#[derive(Debug)]
pub enum NotStopped {
    /// No signal is available.
    NoSignal(io::Error),
    /// The program now has its own handler for the signal.
    Taken(i32),
    /// A thread does not stop.
    Thread {
        /// Its id.
        id: i32,
        /// Its name.
        name: String,
        /// The signal.
        signal: i32,
        /// Whether it blocks the signal.
        blocks: bool,
        /// Whether it waits in a call such as `sigwait`, which takes the signal in place of the handler.
        waits_for_signals: bool,
    },
    /// There are more threads than can be stopped.
    TooMany(usize),
    /// The threads cannot be listed.
    List(io::Error),
}

impl fmt::Display for NotStopped {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            NotStopped::NoSignal(e) => write!(f, "there is no signal to stop threads with: {e}"),
            NotStopped::Taken(signal) => write!(
                f,
                "the program uses signal {signal}, which Untorn needs to stop threads, for something else; name \
                 another signal in UNTORN_STOP_SIGNAL"
            ),
            NotStopped::Thread { id, name, signal, waits_for_signals: true, .. } => write!(
                f,
                "thread {id} ({name}) waits for signals (sigwait, sigtimedwait), and so receives signal {signal}, \
                 which should stop it, before the signal handler does. Remove this signal from the set that the thread \
                 waits for, and unblock it in the thread (sigdelset before pthread_sigmask and sigwait); or wait for \
                 signals with a signalfd"
            ),
            NotStopped::Thread { id, name, signal, blocks: true, .. } => {
                write!(
                    f,
                    "thread {id} ({name}) blocks signal {signal}, with which Untorn stops threads; unblock it, or name \
                     another signal in UNTORN_STOP_SIGNAL"
                )
            }
            NotStopped::Thread { id, name, .. } => write!(
                f,
                "thread {id} ({name}) does not stop: a debugger has stopped it, or it is in a long system call that \
                 cannot be interrupted"
            ),
            NotStopped::TooMany(most) => write!(f, "the process has more than {most} threads"),
            NotStopped::List(e) => write!(f, "/proc/self/task cannot be read: {e}"),
        }
    }
}

/// Marks this thread as one of the library's own, which has all signals blocked and stores to no memory of the program.
/// Until the result is dropped, it keeps running when the others are stopped.
pub fn own_thread() -> OwnThread {
    let this = process_generation() << 32 | u64::from(gettid() as u32);
    OwnThread(OWN.iter().find(|slot| slot.compare_exchange(0, this, SeqCst, SeqCst).is_ok()))
}

/// See [`own_thread`].
pub struct OwnThread(Option<&'static AtomicU64>);

impl Drop for OwnThread {
    fn drop(&mut self) {
        if let Some(slot) = self.0 {
            slot.store(0, SeqCst);
        }
    }
}

fn is_own(thread: i32) -> bool {
    let wanted = process_generation() << 32 | u64::from(thread as u32);
    OWN.iter().any(|slot| slot.load(SeqCst) == wanted)
}

fn gettid() -> i32 {
    // SAFETY: a call without arguments.
    unsafe { libc::syscall(libc::SYS_gettid) as i32 }
}

/// `siginfo_t` of a signal that carries a number.
#[repr(C)]
struct Queued {
    signal: i32,
    error: i32,
    code: i32,
    unused: i32,
    pid: i32,
    uid: u32,
    value: u64,
    rest: [u64; 12],
}

const _: () = assert!(size_of::<Queued>() == 128);

/// The signal handler, in which a thread waits until the moment is over. Everything in it is async-signal-safe.
extern "C" fn stand(_signal: libc::c_int, info: *mut libc::siginfo_t, _context: *mut libc::c_void) {
    // SAFETY: the kernel passes a whole `siginfo_t`; only a queued signal has these fields.
    let info = unsafe { &*info.cast::<Queued>() };
    // SAFETY: a call without arguments; and this thread's own error number.
    let (pid, errno) = unsafe { (libc::getpid(), libc::__errno_location()) };
    if info.code != libc::SI_QUEUE || info.pid != pid {
        return;
    }
    let (epoch, number) = ((info.value >> 32) as u32, info.value as u32 as usize);
    let Some(stopped) = STOPPED.get(number) else { return };
    // SAFETY: as above.
    let kept = unsafe { *errno };
    if epoch % 2 == 1 && EPOCH.load(SeqCst) == epoch {
        stopped.store(epoch, SeqCst);
        ANSWERS.fetch_add(1, SeqCst);
        futex::wake(&ANSWERS);
        while EPOCH.load(SeqCst) == epoch {
            futex::wait(&EPOCH, epoch, None);
        }
    }
    // SAFETY: as above.
    unsafe { *errno = kept };
}

/// The present action of a signal.
fn action_of(signal: i32) -> Option<libc::sigaction> {
    // SAFETY: numbers, which the call fills.
    unsafe {
        let mut now: libc::sigaction = std::mem::zeroed();
        (libc::sigaction(signal, std::ptr::null(), &raw mut now) == 0).then_some(now)
    }
}

fn take(signal: i32) -> io::Result<()> {
    // SAFETY: numbers; the calls fill them, and take a handler that is async-signal-safe.
    let done = unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = stand as *const () as usize;
        action.sa_flags = libc::SA_SIGINFO | libc::SA_RESTART | libc::SA_ONSTACK;
        // While a thread is stopped, no other handler of the program runs in it.
        libc::sigfillset(&raw mut action.sa_mask);
        libc::sigaction(signal, &raw const action, null_mut())
    };
    if done == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// The signal that stops threads: the one in `UNTORN_STOP_SIGNAL`, or the highest real-time signal below `SIGRTMAX`
/// that the program does not use.
fn signal() -> Result<i32, NotStopped> {
    let is_ours = |signal| action_of(signal).is_some_and(|now| now.sa_sigaction == stand as *const () as usize);
    let known = SIGNAL.load(SeqCst);
    if known != 0 {
        return if is_ours(known) { Ok(known) } else { Err(NotStopped::Taken(known)) };
    }
    let is_free = |signal: &i32| action_of(*signal).is_some_and(|now| now.sa_sigaction == libc::SIG_DFL);
    let invalid = |why: &str| NotStopped::NoSignal(io::Error::new(io::ErrorKind::InvalidInput, why));
    let chosen = match std::env::var("UNTORN_STOP_SIGNAL").ok().filter(|name| !name.is_empty()) {
        Some(name) => {
            let signal = name.parse().map_err(|_| invalid("UNTORN_STOP_SIGNAL is not the number of a signal"))?;
            if !is_free(&signal) {
                return Err(invalid(
                    "the program uses the signal that UNTORN_STOP_SIGNAL names, or no such signal exists",
                ));
            }
            signal
        }
        None => {
            let mut all = (libc::SIGRTMIN()..libc::SIGRTMAX()).rev();
            all.find(is_free).ok_or_else(|| invalid("the program uses all real-time signals"))?
        }
    };
    take(chosen).map_err(NotStopped::NoSignal)?;
    SIGNAL.store(chosen, SeqCst);
    Ok(chosen)
}

struct Target {
    /// 0 if the thread is gone.
    thread: i32,
    stands: bool,
}

/// Ends the moment when dropped, also if the work in it panics.
struct Moment {
    epoch: u32,
}

impl Moment {
    fn begin() -> Moment {
        // One moment at a time. A child that forked during a moment of another thread must not wait for that one.
        let this = process_generation();
        loop {
            let now = STOPPING.load(SeqCst);
            if now != this && STOPPING.compare_exchange(now, this, SeqCst, SeqCst).is_ok() {
                break;
            }
            std::thread::sleep(Duration::from_micros(100));
        }
        let epoch = EPOCH.load(SeqCst).wrapping_add(1) | 1;
        EPOCH.store(epoch, SeqCst);
        Moment { epoch }
    }
}

impl Drop for Moment {
    fn drop(&mut self) {
        EPOCH.store(self.epoch.wrapping_add(1), SeqCst);
        futex::wake(&EPOCH);
        STOPPING.store(0, SeqCst);
    }
}

/// Runs `work` while all other threads of this process are stopped, and returns how long that was. Fails without
/// calling `work` if a thread does not stop within `most`.
///
/// `work` must allocate nothing and take no lock.
pub fn with_threads_stopped<T>(most: Duration, work: impl FnOnce() -> T) -> Result<(T, Duration), NotStopped> {
    let signal = signal()?;
    let tasks = fs::open(c"/proc/self/task", OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty());
    let tasks = tasks.map_err(|e| NotStopped::List(e.into()))?;
    let mut targets: Vec<Target> = Vec::with_capacity(THREADS_MOST);
    let moment = Moment::begin();
    let begun = Instant::now();
    let stopped = stop(signal, moment.epoch, &tasks, &mut targets, begun + most);
    let done = match stopped {
        Ok(()) => Ok(work()),
        Err(e) => Err(e),
    };
    drop(moment);
    let took = begun.elapsed();
    match done {
        Ok(value) => Ok((value, took)),
        Err(Unfinished::Thread(id)) => Err(name_thread(id, signal)),
        Err(Unfinished::TooMany) => Err(NotStopped::TooMany(THREADS_MOST)),
        Err(Unfinished::List(e)) => Err(NotStopped::List(e)),
    }
}

enum Unfinished {
    Thread(i32),
    TooMany,
    List(io::Error),
}

fn stop(signal: i32, epoch: u32, tasks: &OwnedFd, targets: &mut Vec<Target>, until: Instant) -> Result<(), Unfinished> {
    let this = gettid();
    loop {
        let mut new = false;
        let list = |e: rustix::io::Errno| Unfinished::List(e.into());
        fs::seek(tasks, SeekFrom::Start(0)).map_err(list)?;
        let mut room = [MaybeUninit::uninit(); 4096];
        let mut all = RawDir::new(tasks, &mut room);
        while let Some(entry) = all.next() {
            let entry = entry.map_err(list)?;
            let name = entry.file_name().to_bytes();
            let id =
                name.iter().try_fold(0, |id, digit| digit.is_ascii_digit().then(|| id * 10 + i32::from(digit - b'0')));
            let Some(id) = id.filter(|id| *id != 0 && *id != this) else { continue };
            if targets.iter().any(|target| target.thread == id) || is_own(id) {
                continue;
            }
            if targets.len() == THREADS_MOST {
                return Err(Unfinished::TooMany);
            }
            new = true;
            // This stays within the reserved capacity.
            targets.push(Target { thread: id, stands: false });
            send(signal, epoch, targets.len() - 1, id, until);
        }
        if !new {
            return Ok(());
        }
        wait(epoch, targets, until)?;
    }
}

fn send(signal: i32, epoch: u32, number: usize, thread: i32, until: Instant) {
    // SAFETY: calls without pointers.
    let (pid, uid) = unsafe { (libc::getpid(), libc::getuid()) };
    let value = u64::from(epoch) << 32 | number as u64;
    let info = Queued { signal, error: 0, code: libc::SI_QUEUE, unused: 0, pid, uid, value, rest: [0; 12] };
    loop {
        // SAFETY: a whole `siginfo_t`. To a thread of this process, or to nobody.
        let sent = unsafe { libc::syscall(libc::SYS_rt_tgsigqueueinfo, pid, thread, signal, &raw const info) };
        // The queue of signals may be full at the moment. A thread that is gone is noticed later.
        let full = sent != 0
            && rustix::io::Errno::from_io_error(&io::Error::last_os_error()) == Some(rustix::io::Errno::AGAIN);
        if !full || Instant::now() >= until {
            return;
        }
        futex::wait(&ANSWERS, ANSWERS.load(SeqCst), Some(Duration::from_micros(100)));
    }
}

/// Waits until all of them are stopped, or gone.
fn wait(epoch: u32, targets: &mut [Target], until: Instant) -> Result<(), Unfinished> {
    let mut look = Instant::now() + LOOK;
    loop {
        let answers = ANSWERS.load(SeqCst);
        for (number, target) in targets.iter_mut().enumerate() {
            target.stands = target.stands || target.thread == 0 || STOPPED[number].load(SeqCst) == epoch;
        }
        let Some(first) = targets.iter().find(|target| !target.stands).map(|target| target.thread) else {
            return Ok(());
        };
        let now = Instant::now();
        if now >= look {
            for target in targets.iter_mut().filter(|target| !target.stands) {
                if is_gone(target.thread) || is_own(target.thread) {
                    // Clear the id, because another thread may get it.
                    (target.thread, target.stands) = (0, true);
                }
            }
            look = now + LOOK;
            continue;
        }
        if now >= until {
            return Err(Unfinished::Thread(first));
        }
        futex::wait(&ANSWERS, answers, Some(LOOK));
    }
}

/// A file of a thread in `/proc`, read without allocating.
fn read_of<'b>(thread: i32, name: &[u8], room: &'b mut [u8]) -> Option<&'b [u8]> {
    let mut path = [0u8; 64];
    let mut len = 0;
    let mut add = |bytes: &[u8]| {
        path[len..len + bytes.len()].copy_from_slice(bytes);
        len += bytes.len();
    };
    add(b"/proc/self/task/");
    let (mut digits, mut n, mut at) = ([0u8; 10], thread, 10);
    while n > 0 {
        at -= 1;
        digits[at] = b'0' + (n % 10) as u8;
        n /= 10;
    }
    add(&digits[at..]);
    add(b"/");
    add(name);
    let path = std::ffi::CStr::from_bytes_until_nul(&path).ok()?;
    let file = fs::open(path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()).ok()?;
    let n = rustix::io::read(&file, &mut *room).ok()?;
    Some(&room[..n])
}

/// Whether the thread has ended, or is about to end and runs no more code of the program.
fn is_gone(thread: i32) -> bool {
    let mut room = [0; 512];
    let Some(stat) = read_of(thread, b"stat", &mut room) else { return true };
    let state = stat.iter().rposition(|byte| *byte == b')').and_then(|at| stat.get(at + 2));
    matches!(state, Some(b'Z' | b'X' | b'x'))
}

fn name_thread(id: i32, signal: i32) -> NotStopped {
    let mut room = [0; 64];
    let name =
        read_of(id, b"comm", &mut room).map_or(String::new(), |name| String::from_utf8_lossy(name).trim_end().into());
    let status = std::fs::read_to_string(format!("/proc/self/task/{id}/status")).unwrap_or_default();
    let blocked = status.lines().find_map(|line| line.strip_prefix("SigBlk:"));
    let blocked = blocked.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0);
    let call = std::fs::read_to_string(format!("/proc/self/task/{id}/syscall")).unwrap_or_default();
    let call = call.split(' ').next().and_then(|number| number.parse().ok());
    let waits_for_signals = call == Some(libc::SYS_rt_sigtimedwait);
    NotStopped::Thread { id, name, signal, blocks: blocked >> (signal - 1) & 1 == 1, waits_for_signals }
}

#[cfg(test)]
mod tests {
    use super::*;
    use parking_lot::{Mutex, MutexGuard};
    use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

    const MOST: Duration = Duration::from_secs(120);

    /// Serialises the tests, because a thread of one test that does not stop would delay the moments of the other.
    fn one_at_a_time() -> MutexGuard<'static, ()> {
        static ONE: Mutex<()> = Mutex::new(());
        ONE.lock()
    }

    /// Ends the threads of a test, also if it fails.
    struct StopAtEnd<'a>(&'a AtomicBool);

    impl Drop for StopAtEnd<'_> {
        fn drop(&mut self) {
            self.0.store(true, Relaxed);
        }
    }

    /// Threads that count, start and end others, sleep and read are stopped, and then continue.
    #[test]
    fn nothing_moves_while_threads_stand() {
        let _turn = one_at_a_time();
        let stop = AtomicBool::new(false);
        let counts = [const { AtomicU64::new(0) }; 4];
        std::thread::scope(|scope| {
            let _stop = StopAtEnd(&stop);
            for count in &counts[..2] {
                scope.spawn(|| {
                    while !stop.load(Relaxed) {
                        count.fetch_add(1, Relaxed);
                    }
                });
            }
            scope.spawn(|| {
                while !stop.load(Relaxed) {
                    std::thread::scope(|inner| _ = inner.spawn(|| counts[2].fetch_add(1, Relaxed)));
                }
            });
            scope.spawn(|| {
                while !stop.load(Relaxed) {
                    std::thread::sleep(Duration::from_micros(50));
                    counts[3].fetch_add(1, Relaxed);
                }
            });
            let now = || counts.each_ref().map(|count| count.load(Relaxed));
            for _ in 0..200 {
                let ((before, after), took) = with_threads_stopped(MOST, || {
                    let before = now();
                    // This must not allocate.
                    let begun = Instant::now();
                    while begun.elapsed() < Duration::from_micros(300) {}
                    (before, now())
                })
                .unwrap();
                assert_eq!(before, after, "stopped for {took:?}");
                let begun = Instant::now();
                while now().iter().zip(before).any(|(now, before)| *now == before) {
                    assert!(begun.elapsed() < MOST, "{:?} after {before:?}", now());
                    std::thread::yield_now();
                }
            }
        });
    }

    /// A thread that blocks all signals is reported, unless it is one of the library's own.
    #[test]
    fn a_thread_that_does_not_stop_is_named() {
        let _turn = one_at_a_time();
        for own in [true, false] {
            let (ready, is_ready) = std::sync::mpsc::channel();
            let (end, ends) = std::sync::mpsc::channel::<()>();
            let start = || {
                std::thread::Builder::new().name("deaf".into()).spawn(move || {
                    let own = own.then(own_thread);
                    ready.send(()).unwrap();
                    let _ = ends.recv();
                    drop(own);
                })
            };
            let thread = crate::without_signals(start).unwrap();
            is_ready.recv().unwrap();
            let stopped = loop {
                match with_threads_stopped(Duration::from_millis(200), || ()) {
                    // A thread of another test.
                    Err(NotStopped::Thread { name, .. }) if name != "deaf" => {}
                    done => break done,
                }
            };
            match stopped {
                Ok(_) => assert!(own),
                Err(e) => assert!(!own && e.to_string().contains("(deaf) blocks signal"), "{e}"),
            }
            drop(end);
            thread.join().unwrap();
        }
    }
}
