//! The session's first process: it mounts the session's root, starts the program, and reports how the program ends.
//!
//! The supervisor makes it with `clone3` while it has one thread. The process never returns from here. When it ends,
//! the kernel ends everything in the session.

use crate::control::{Control, News, Order};
use crate::filter::syscall_filter::{self, Maps};
use crate::host::capabilities;
use crate::host::host_view::{OWN, View};
use crate::invariant::{CAPABILITIES_DROPPED, DIRECTORY_SEALED, END_HEARD, OWN_TERMINALS};
use crate::network::session_network::{self, HostNetwork};
use crate::view::origins;
use crate::view::sealed_directory;
use crate::view::session_root;
use anyhow::{Context, Result};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{Mode, OFlags, open};
use rustix::io::Errno;
use rustix::process::{Pid, Signal, kill_process, kill_process_group, setsid};
use rustix::pty::{OpenptFlags, ptsname, unlockpt};
use rustix::termios::{Termios, Winsize, tcsetattr, tcsetpgrp, tcsetwinsize};
use std::ffi::OsString;
use std::fs::File;
use std::io::{self, ErrorKind};
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::Path;
use std::process::{Command, ExitStatus, Stdio};
use untorn_os::holds;
use untorn_terminal::user_namespace::is_root;

/// The exit code if the session could not begin, as with `timeout`, `chroot` and others.
pub const COULD_NOT: u8 = 125;
const NOT_EXECUTABLE: u8 = 126;
const NOT_FOUND: u8 = 127;
/// Shells add this to the number of a signal for the exit code.
const BY_SIGNAL: i32 = 128;

/// A standard stream of the program.
#[derive(Debug)]
pub enum Stream {
    /// The session's terminal.
    Terminal,
    /// A pipe to the supervisor.
    Pipe(OwnedFd),
    /// `/dev/null`.
    Null,
}

/// The settings and the size of the session's terminal.
#[derive(Clone, Debug)]
pub struct TerminalLike {
    /// Its settings.
    pub settings: Termios,
    /// Its size.
    pub size: Winsize,
}

/// The session that is to be started.
pub struct Session {
    /// The part of the host that the session sees.
    pub view: View,
    /// The treatment of shared maps.
    pub maps: Maps,
    /// Flushes return the results that they have outside of a session.
    pub exact: bool,
    /// The program and its arguments.
    pub command: Vec<OsString>,
    /// Standard input, output, error.
    pub streams: [Stream; 3],
    /// The session's terminal, if it has one.
    pub terminal: Option<TerminalLike>,
    /// The host's network. None if the session has no way out.
    pub network: Option<HostNetwork>,
    /// The set of blocked signals for the program.
    pub signals: libc::sigset_t,
}

/// Runs the session in this process, which is new and has one thread.
pub fn run(session: Session, control: Control) -> ! {
    let code = match supervised(session, &control) {
        Ok(()) => 0,
        Err((e, code)) => {
            let _ = control.send(&News::Failed(format!("{e:#}"), code), None);
            1
        }
    };
    // SAFETY: ends the process at once; nothing of the supervisor's, which this is a copy of, is to be cleaned up.
    unsafe { libc::_exit(code) }
}

fn supervised(session: Session, control: &Control) -> Result<(), (anyhow::Error, u8)> {
    let could_not = |e| (e, COULD_NOT);
    let Session { view, maps, exact, command, streams, terminal, network, signals } = session;
    end_with_the_supervisor().map_err(could_not)?;
    let of_the_host = terminal.as_ref().filter(|_| !holds(OWN_TERMINALS)).map(|like| open_terminal(like, control));
    let renames = !view.written.iter().all(|written| origins::names_are_kept(&written.dir));
    let mut missing = session_root::enter(&view).map_err(could_not)?;
    let slave = of_the_host.or_else(|| terminal.as_ref().map(|like| open_terminal(like, control)));
    let slave = slave.transpose().map_err(could_not)?;
    begin_session(slave.as_ref()).map_err(could_not)?;
    raise_loopback().map_err(could_not)?;
    show_network(control).map_err(could_not)?;
    show_mounts(control).map_err(could_not)?;
    if let Some(network) = &network
        && let Err(e) = session_network::open(network, control)
    {
        missing.push(format!("the program cannot reach addresses outside: {e:#}"));
    }
    if let Some((_, at)) = view.on.as_ref().filter(|_| holds(DIRECTORY_SEALED)) {
        let written = view.written.iter().map(|written| written.dir.as_path());
        let own = OWN.iter().map(Path::new).filter(|own| !at.starts_with(own));
        sealed_directory::allow_only_in(own.chain(written)).map_err(could_not)?;
    }
    confine((maps, exact, renames), control).map_err(could_not)?;
    let children = children().map_err(could_not)?;
    let child = start(&command, streams, slave.as_ref(), signals)?;
    std::mem::forget(slave);
    close_all_but(&[control.as_fd().as_raw_fd(), children.as_raw_fd()]);
    control.send(&News::Running(missing), None).map_err(could_not)?;
    watch(child, control, &children).map_err(could_not)
}

/// Makes the kernel end this process, and with it the session, when the supervisor ends.
///
/// If the supervisor has ended before, its end of the socket is closed, and this process notices that soon.
fn end_with_the_supervisor() -> Result<()> {
    rustix::process::set_parent_process_death_signal(Some(Signal::KILL)).context("the supervisor's end")
}

/// Opens a terminal of the session's own devpts. A descriptor of a host's terminal would lead out of the session.
fn open_terminal(like: &TerminalLike, control: &Control) -> Result<OwnedFd> {
    let flags = OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC;
    let master = rustix::pty::openpt(flags).context("a terminal (/dev/ptmx)")?;
    unlockpt(&master).context("a terminal")?;
    let name = ptsname(&master, Vec::new()).context("a terminal's name")?;
    let slave = open(&*name, OFlags::RDWR | OFlags::NOCTTY | OFlags::CLOEXEC, Mode::empty())
        .with_context(|| format!("the terminal {}", name.to_string_lossy()))?;
    tcsetattr(&slave, rustix::termios::OptionalActions::Now, &like.settings).context("the terminal's settings")?;
    tcsetwinsize(&slave, like.size).context("the terminal's size")?;
    control.send(&News::Terminal, Some(master.as_fd()))?;
    Ok(slave)
}

/// Leaves the terminal of the host, and takes the session's own.
fn begin_session(slave: Option<&OwnedFd>) -> Result<()> {
    setsid().context("setsid")?;
    match slave {
        Some(slave) => rustix::process::ioctl_tiocsctty(slave).context("the session's terminal"),
        None => Ok(()),
    }
}

/// Brings up the loopback of the session's network, so that programs in it can talk to each other.
fn raise_loopback() -> Result<()> {
    let family = rustix::net::AddressFamily::INET;
    let socket = rustix::net::socket(family, rustix::net::SocketType::DGRAM, None).context("the session's network")?;
    // SAFETY: a structure of numbers, for which zero is a value.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    request.ifr_name[..2].copy_from_slice(&[b'l' as libc::c_char, b'o' as libc::c_char]);
    request.ifr_ifru.ifru_flags = libc::IFF_UP as libc::c_short;
    // SAFETY: the call reads `request`, which outlives the call.
    if unsafe { libc::ioctl(socket.as_raw_fd(), libc::SIOCSIFFLAGS as libc::Ioctl, &request) } != 0 {
        return Err(io::Error::last_os_error()).context("the session's loopback");
    }
    Ok(())
}

/// Sends the supervisor the network namespace, which it needs even after this process has ended.
fn show_network(control: &Control) -> Result<()> {
    let network = File::open("/proc/self/ns/net").context("the session's network")?;
    control.send(&News::Network, Some(network.as_fd()))
}

/// Sends the supervisor the mount namespace and its mount table. Later, only root of the host could open them.
fn show_mounts(control: &Control) -> Result<()> {
    let namespace = File::open("/proc/self/ns/mnt").context("the session's mounts")?;
    control.send(&News::Mounts, Some(namespace.as_fd()))?;
    let table = File::open("/proc/self/mountinfo").context("the session's mounts")?;
    control.send(&News::MountTable, Some(table.as_fd()))
}

fn confine((maps, exact, renames): (Maps, bool, bool), control: &Control) -> Result<()> {
    let listener = syscall_filter::install(maps, exact, renames)?;
    control.send(&News::Filter, Some(listener.as_fd()))?;
    drop(listener);
    if !is_root() {
        capabilities::drop_all()?;
    } else if holds(CAPABILITIES_DROPPED) {
        capabilities::drop_what_leads_out()?;
    }
    // Keeps the session's processes from reading this process's memory, which is a copy of the supervisor's.
    rustix::process::set_dumpable_behavior(rustix::process::DumpableBehavior::NotDumpable)?;
    Ok(())
}

/// A descriptor that is readable when a child has changed. SIGCHLD itself stays blocked.
fn children() -> Result<OwnedFd> {
    // SAFETY: `set` is a set of signals as soon as `sigemptyset` has filled it, and outlives the calls.
    let descriptor = unsafe {
        let mut set = std::mem::zeroed();
        libc::sigemptyset(&mut set);
        libc::sigaddset(&mut set, libc::SIGCHLD);
        libc::sigprocmask(libc::SIG_BLOCK, &set, std::ptr::null_mut());
        libc::signalfd(-1, &set, libc::SFD_CLOEXEC | libc::SFD_NONBLOCK)
    };
    if descriptor < 0 {
        return Err(io::Error::last_os_error()).context("a descriptor for signals");
    }
    // SAFETY: the call has just returned this descriptor, and nobody else has it.
    Ok(unsafe { OwnedFd::from_raw_fd(descriptor) })
}

fn start(
    command: &[OsString],
    streams: [Stream; 3],
    slave: Option<&OwnedFd>,
    signals: libc::sigset_t,
) -> Result<Pid, (anyhow::Error, u8)> {
    let mut program = Command::new(&command[0]);
    program.args(&command[1..]);
    let stdio = |stream: Stream| -> io::Result<Stdio> {
        Ok(match (stream, slave) {
            (Stream::Pipe(pipe), _) => pipe.into(),
            (Stream::Terminal, Some(slave)) => slave.try_clone()?.into(),
            _ => File::options().read(true).write(true).open("/dev/null")?.into(),
        })
    };
    let [input, output, error] = streams.map(stdio);
    let open = |e: io::Error| (anyhow::Error::new(e).context("the program's descriptors"), COULD_NOT);
    program.stdin(input.map_err(open)?).stdout(output.map_err(open)?).stderr(error.map_err(open)?);
    let terminal = slave.map(|slave| slave.as_raw_fd());
    // The program must not inherit descriptors that the supervisor got from its parent.
    // SAFETY: marks descriptors, and closes none.
    unsafe { libc::syscall(libc::SYS_close_range, 3, u32::MAX, libc::CLOSE_RANGE_CLOEXEC) };
    // SAFETY: the closure makes system calls only, which all may be made after fork.
    unsafe {
        program.pre_exec(move || {
            libc::setpgid(0, 0);
            if let Some(terminal) = terminal {
                // Otherwise this call would stop the process, which is not in the foreground yet.
                libc::signal(libc::SIGTTOU, libc::SIG_IGN);
                tcsetpgrp(rustix::fd::BorrowedFd::borrow_raw(terminal), rustix::process::getpid())?;
                libc::signal(libc::SIGTTOU, libc::SIG_DFL);
            }
            libc::sigprocmask(libc::SIG_SETMASK, &signals, std::ptr::null_mut());
            Ok(())
        });
    }
    match program.spawn() {
        Ok(child) => Ok(Pid::from_child(&child)),
        Err(e) => {
            let code = if e.kind() == ErrorKind::NotFound { NOT_FOUND } else { NOT_EXECUTABLE };
            let what = format!("cannot execute {}", Path::new(&command[0]).display());
            Err((anyhow::Error::new(e).context(what), code))
        }
    }
}

/// Closes all other descriptors that this process inherited from the supervisor. Among them are the program's pipes,
/// whose ends the supervisor waits for.
pub fn close_all_but(kept: &[i32]) {
    let mut kept = kept.to_vec();
    kept.sort_unstable();
    let mut from = 0;
    for descriptor in kept.into_iter().map(|kept| kept as u32).chain([u32::MAX]) {
        if descriptor > from {
            // SAFETY: nothing in this process uses these descriptors any more; it ends without looking at them.
            unsafe { libc::syscall(libc::SYS_close_range, from, descriptor - 1, 0) };
        }
        from = descriptor.saturating_add(1);
    }
}

/// Passes on signals, reaps every ended process, and reports how the program ends.
fn watch(program: Pid, control: &Control, children: &OwnedFd) -> Result<()> {
    const LOOK_EVERY: Timespec = Timespec { tv_sec: 0, tv_nsec: 20_000_000 };
    let time = if holds(END_HEARD) { None } else { Some(&LOOK_EVERY) };
    loop {
        let mut ready = [PollFd::new(control, PollFlags::IN), PollFd::new(children, PollFlags::IN)];
        match poll(&mut ready, time) {
            Err(Errno::INTR) => continue,
            done => done.context("waiting for the program")?,
        };
        if !ready[0].revents().is_empty() {
            match control.receive::<Order>()? {
                Some((Order::Signal(number), _)) => signal(program, number),
                None => return Ok(()),
            }
        }
        if !ready[1].revents().is_empty() {
            let mut seen = [0; 1024];
            while rustix::io::read(children, &mut seen).is_ok_and(|bytes| bytes > 0) {}
            if reap(program, control)? {
                return Ok(());
            }
        }
    }
}

fn signal(program: Pid, number: i32) {
    let Some(signal) = Signal::from_named_raw(number) else { return };
    // The program may have left its original process group.
    if kill_process_group(program, signal).is_err() {
        let _ = kill_process(program, signal);
    }
}

/// Reaps ended processes. True if the program has ended.
fn reap(program: Pid, control: &Control) -> Result<bool> {
    loop {
        let mut status = 0;
        // SAFETY: the call writes `status`, which outlives the call.
        let pid = unsafe { libc::waitpid(-1, &mut status, libc::WNOHANG | libc::WUNTRACED) };
        if pid <= 0 {
            return Ok(false);
        }
        if pid != program.as_raw_pid() {
            continue;
        }
        let status = ExitStatus::from_raw(status);
        if status.stopped_signal().is_some() {
            control.send(&News::Stopped, None)?;
        } else {
            let code = status.code().or(status.signal().map(|number| BY_SIGNAL + number)).unwrap_or(1);
            control.send(&News::Ended(code as u8), None)?;
            return Ok(true);
        }
    }
}
