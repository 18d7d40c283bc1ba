//! The supervisor: it makes the session, relays between it and the outside, and waits for its end.

use crate::control::{Control, News, Order, Takes};
use crate::filter::renames::Renames;
use crate::filter::shared_maps::Answering;
use crate::filter::stale_maps::StaleMaps;
use crate::filter::syscall_filter::Maps;
use crate::host::host_mounts::{Following, HostMounts};
use crate::host::host_view::{View, Written};
use crate::host::outer_streams::{are_one_target, is_null, tell};
use crate::host::private_mounts::NOT_ALLOWED;
use crate::network::session_network::{HostNetwork, Net};
use crate::relays::datagrams::Datagrams;
use crate::relays::listen::{Port, Served, Threads};
use crate::relays::outgoing::Outgoing;
use crate::relays::relay::{self, End, Outlet, Reader};
use crate::report::session_report::{Counters, Report};
use crate::report::status_socket::StatusSocket;
use crate::session::outer_terminal::OuterTerminal;
use crate::session::session_init::{self, COULD_NOT, Session, Stream};
use crate::session::signal_thread::{self, Heard};
use crate::session::watcher::Watcher;
use crate::volumes::committer::Committer;
use anyhow::{Context, Result, bail};
use rustix::pipe::{PipeFlags, fcntl_setpipe_size, pipe_with};
use rustix::process::{Pid, Resource, Rlimit, Signal, WaitOptions, getrlimit, setrlimit, waitpid};
use std::collections::HashSet;
use std::ffi::OsString;
use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::atomic::Ordering::SeqCst;
use std::sync::{Arc, OnceLock, Weak};
use std::thread::{self, JoinHandle};
use std::time::Duration;
use untorn_terminal::user_namespace::is_root;

/// The size of the pipes between program and supervisor.
const PIPE_BYTES: usize = 1 << 20;
/// The size of the first version of `struct clone_args`.
const CLONE_ARGS_BYTES: usize = 64;
/// The time between eager commits.
const EAGER_PAUSE: Duration = Duration::from_micros(50);

/// A session that is to be run.
#[derive(Debug)]
pub struct Job {
    /// The program and its arguments.
    pub command: Vec<OsString>,
    /// The part of the host that the session sees.
    pub view: View,
    /// The treatment of shared maps.
    pub maps: Maps,
    /// Flushes return the results that they have outside of a session.
    pub exact: bool,
    /// The traffic that may leave the session.
    pub net: Net,
    /// The ports that clients outside may connect to when the session listens.
    pub ports: Arc<Vec<Port>>,
    /// The report, still without counts.
    pub report: Report,
    /// The watcher that holds outside readers of the session's directory.
    pub watcher: Option<Watcher>,
    /// The host's mounts, so that the session lets go of those that the host unmounts.
    pub host_mounts: HostMounts,
}

/// The result of a session.
#[derive(Debug)]
pub struct Ended {
    /// The exit code: the program's, or 128 and the number of a signal.
    pub code: u8,
    /// The final report.
    pub report: Report,
    /// Bytes of output that were dropped because a commit failed.
    pub lost_bytes: u64,
    /// Whether all changes of the program are durable.
    pub durable: bool,
}

/// The program's standard streams: the session's ends, and the supervisor's ends.
struct Streams {
    theirs: [Stream; 3],
    input: Option<OwnedFd>,
    outputs: [Option<OwnedFd>; 2],
}

/// Runs a session to its end. This process must have one thread.
pub fn run(job: Job, committer: Committer, mut status: StatusSocket) -> Result<(Ended, Committer)> {
    let [input, output, error] = [rustix::stdio::stdin(), rustix::stdio::stdout(), rustix::stdio::stderr()];
    let outer = OuterTerminal::of(input, [output, error])?;
    let streams = streams([input, output, error])?;
    let (control, theirs) = Control::pair()?;
    let signals = signal_thread::block()?;
    let written = job.view.written.clone();
    let session = Session {
        view: job.view,
        maps: job.maps,
        exact: job.exact,
        command: job.command,
        streams: streams.theirs,
        terminal: outer.as_ref().map(|outer| outer.like()).transpose()?,
        network: (job.net == Net::Gated).then(HostNetwork::look),
        signals,
    };
    let init = begin(session, theirs)?;
    raise_descriptors();
    let mut watcher = job.watcher;
    watcher.iter_mut().try_for_each(|watcher| watcher.until_the_end_of(init))?;
    let running = Running {
        control: Arc::new(control),
        committer: Arc::new(committer),
        counters: Arc::new(Counters::default()),
        outer: outer.map(Arc::new),
        calls: (job.maps, job.exact),
        written,
        report: job.report,
        ports: job.ports,
        relays: Vec::new(),
        network: None,
        ways_out: Vec::new(),
        takes_datagrams: Vec::new(),
        outgoing: None,
        datagrams: None,
        served: None,
        answers: None,
        master: Arc::new(OnceLock::new()),
        input_failed: Arc::default(),
        host_mounts: Some(job.host_mounts),
        following: None,
    };
    let (committer, counters, report) =
        (Arc::downgrade(&running.committer), running.counters.clone(), running.report.clone());
    status.answer(move || {
        let commits = committer.upgrade().map_or(0, |committer| committer.commits());
        report.clone().counted(&counters, commits)
    });
    if running.committer.is_eager() {
        let committer = Arc::downgrade(&running.committer);
        thread::spawn(move || commit_on(&committer));
    }
    let ended = running.until_its_end(init, streams.input, streams.outputs);
    // The watcher ends after the last commit.
    drop(watcher);
    ended
}

/// Makes the session's streams: its own terminal in place of terminals, pipes in place of all else. No descriptor of
/// the host's streams gets into the session.
fn streams(outside: [BorrowedFd<'_>; 3]) -> Result<Streams> {
    let mut made = Streams { theirs: [Stream::Null, Stream::Null, Stream::Null], input: None, outputs: [None, None] };
    for (n, outside) in outside.into_iter().enumerate() {
        if rustix::termios::isatty(outside) {
            made.theirs[n] = Stream::Terminal;
            continue;
        }
        if is_null(outside) {
            continue;
        }
        if n == 2
            && let Stream::Pipe(output) = &made.theirs[1]
            && are_one_target(rustix::stdio::stdout(), outside)
        {
            // With two pipes, the order of the outputs would be lost.
            made.theirs[2] = Stream::Pipe(output.try_clone().context("a pipe to the session")?);
            continue;
        }
        let (read, write) = pipe_with(PipeFlags::CLOEXEC).context("a pipe to the session")?;
        // If this fails, the relay is slower.
        let _ = fcntl_setpipe_size(&write, PIPE_BYTES);
        if n == 0 {
            (made.theirs[n], made.input) = (Stream::Pipe(read), Some(write));
        } else {
            (made.theirs[n], made.outputs[n - 1]) = (Stream::Pipe(write), Some(read));
        }
    }
    Ok(made)
}

/// Starts the session's first process in namespaces of its own.
fn begin(session: Session, control: Control) -> Result<Pid> {
    // SAFETY: a structure of numbers, for which zero is a value.
    let mut arguments: libc::clone_args = unsafe { std::mem::zeroed() };
    let namespaces = libc::CLONE_NEWNS | libc::CLONE_NEWPID | libc::CLONE_NEWIPC | libc::CLONE_NEWNET;
    arguments.flags = (namespaces | libc::CLONE_NEWCGROUP) as u64;
    arguments.exit_signal = libc::SIGCHLD as u64;
    // SAFETY: without CLONE_VM this is a fork; this process has one thread, so that no lock is held by another one.
    match unsafe { libc::syscall(libc::SYS_clone3, &arguments, CLONE_ARGS_BYTES) } {
        0 => session_init::run(session, control),
        pid if pid > 0 => Ok(Pid::from_raw(pid as i32).expect("a process has a number")),
        _ => {
            let why = if is_root() { NOT_ALLOWED } else { "cannot make namespaces for the session" };
            Err(io::Error::last_os_error()).context(why)
        }
    }
}

/// Raises the limit of open files, because each connection needs two descriptors. The program has started already, and
/// keeps the user's limit.
fn raise_descriptors() {
    let limit = getrlimit(Resource::Nofile);
    // If this fails, clients may have to wait for each other.
    let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit });
}

/// Commits one after another until the session has ended.
fn commit_on(committer: &Weak<Committer>) {
    while committer.upgrade().is_some_and(|committer| committer.commit().is_ok()) {
        // A commit when nothing changed takes no time.
        thread::sleep(EAGER_PAUSE);
    }
}

/// Takes the committer out of its `Arc`. Waits while another thread still uses it, for example for a report.
fn last_of(mut committer: Arc<Committer>) -> Committer {
    loop {
        match Arc::try_unwrap(committer) {
            Ok(committer) => return committer,
            Err(shared) => committer = shared,
        }
        thread::sleep(Duration::from_millis(1));
    }
}

struct Running {
    control: Arc<Control>,
    committer: Arc<Committer>,
    counters: Arc<Counters>,
    outer: Option<Arc<OuterTerminal>>,
    calls: (Maps, bool),
    /// The directories whose changes are kept in layers.
    written: Vec<Written>,
    report: Report,
    ports: Arc<Vec<Port>>,
    relays: Vec<JoinHandle<End>>,
    network: Option<OwnedFd>,
    ways_out: Vec<OwnedFd>,
    takes_datagrams: Vec<OwnedFd>,
    outgoing: Option<Outgoing>,
    datagrams: Option<Datagrams>,
    served: Option<Threads>,
    answers: Option<JoinHandle<()>>,
    master: Arc<OnceLock<OwnedFd>>,
    host_mounts: Option<HostMounts>,
    following: Option<Following>,
    /// The error that kept part of the input from the program.
    input_failed: Arc<OnceLock<anyhow::Error>>,
}

impl Running {
    fn until_its_end(
        mut self,
        init: Pid,
        input: Option<OwnedFd>,
        outputs: [Option<OwnedFd>; 2],
    ) -> Result<(Ended, Committer)> {
        let outside = [(rustix::stdio::stdout(), "standard output"), (rustix::stdio::stderr(), "standard error")];
        for (n, (output, (to, name))) in outputs.into_iter().zip(outside).enumerate() {
            if let Some(output) = output {
                let outlet = Outlet { to: to.try_clone_to_owned()?, name, reader: Reader::Patient, goes_on: n == 1 };
                self.bring_out(output, outlet, init);
            }
        }
        if let Some(input) = input {
            self.bring_in(input);
        }
        self.hear_signals(init)?;
        let (mut code, mut failed, mut mounts) = (None, None, None);
        while let Some((news, descriptor)) = self.control.receive::<News>()? {
            match (news, descriptor) {
                (News::Filter, Some(listener)) => self.answer(listener),
                (News::Terminal, Some(master)) => self.take_terminal(master, init)?,
                (News::Network, network) => self.network = network,
                (News::Mounts, Some(namespace)) => mounts = Some(namespace),
                (News::MountTable, Some(table)) => {
                    if let (Some(host), Some(namespace)) = (self.host_mounts.take(), mounts.take()) {
                        self.following = Some(host.follow(namespace, table)?);
                    }
                }
                (News::WayOut(Takes::Connections), Some(socket)) => self.ways_out.push(socket),
                (News::WayOut(Takes::Datagrams), Some(socket)) => self.takes_datagrams.push(socket),
                (News::Running(missing), _) => {
                    missing.iter().for_each(|line| tell(format_args!("{line}")));
                    self.open_ports(init)?;
                }
                (News::Stopped, _) => self.stop_with_the_program(),
                (News::Ended(ended), _) => code = Some(ended),
                (News::Failed(why, ended), _) => (failed, code) = (Some(why), Some(ended)),
                (news, None) => bail!("the session sent {news:?} without a descriptor"),
            }
        }
        waitpid(Some(init), WaitOptions::empty()).context("waiting for the session's end")?;
        self.finish(code, failed)
    }

    fn bring_out(&mut self, from: OwnedFd, outlet: Outlet, init: Pid) {
        let (committer, counters) = (self.committer.clone(), self.counters.clone());
        let relay = thread::spawn(move || {
            let end = relay::bring_out(&from, &outlet, &committer, &counters);
            if matches!(end, End::Held) {
                // The program's further actions can never become durable.
                let _ = rustix::process::kill_process(init, Signal::KILL);
            }
            end
        });
        self.relays.push(relay);
    }

    fn open_ports(&mut self, init: Pid) -> Result<()> {
        if self.ports.is_empty() && self.ways_out.is_empty() {
            return Ok(());
        }
        let network = self.network.take().context("the session's network")?;
        if !self.takes_datagrams.is_empty() {
            let (sockets, network) = (std::mem::take(&mut self.takes_datagrams), network.try_clone()?);
            self.datagrams = Some(Datagrams::begin(sockets, network, &self.committer, &self.counters)?);
        }
        let threads = Served::begin(init, network, !self.ways_out.is_empty(), &self.committer, &self.counters)?;
        self.ports.iter().try_for_each(|port| port.open(threads.served().clone()))?;
        let sockets = std::mem::take(&mut self.ways_out);
        self.outgoing = Some(Outgoing::begin(sockets, threads.served(), &self.committer, &self.counters)?);
        self.served = Some(threads);
        Ok(())
    }

    /// Relays the input in a thread that is not joined, because it may wait for input that never comes.
    fn bring_in(&self, to: OwnedFd) {
        let (counters, input_failed) = (self.counters.clone(), self.input_failed.clone());
        thread::spawn(move || {
            if let Err(e) = relay::bring_in(rustix::stdio::stdin(), &to, &counters) {
                // Set before the pipe is closed, because the program takes that for the end of the input.
                let _ = input_failed.set(e);
            }
        });
    }

    fn answer(&mut self, listener: OwnedFd) {
        let answering = Answering {
            calls: self.calls,
            committer: self.committer.clone(),
            counters: self.counters.clone(),
            stale: StaleMaps::new(std::mem::take(&mut self.written)),
            renames: Renames::default(),
            ended: HashSet::new(),
        };
        self.answers = Some(thread::spawn(move || answering.answer(&listener)));
    }

    fn take_terminal(&mut self, master: OwnedFd, init: Pid) -> Result<()> {
        let Some(outer) = self.outer.clone() else { bail!("a terminal that nobody asked for") };
        outer.pass_on()?;
        outer.pass_size(&master);
        let to = outer.output().try_clone()?;
        let outlet = Outlet { to, name: "the terminal", reader: Reader::Waiting, goes_on: false };
        self.bring_out(master.try_clone()?, outlet, init);
        if rustix::termios::isatty(rustix::stdio::stdin()) {
            self.bring_in(master.try_clone()?);
        }
        let _ = self.master.set(master);
        Ok(())
    }

    /// Passes on signals, and answers SIGUSR1, in a thread of its own.
    fn hear_signals(&self, init: Pid) -> Result<()> {
        let (control, counters, report) = (Arc::downgrade(&self.control), self.counters.clone(), self.report.clone());
        let (committer, outer, master) = (Arc::downgrade(&self.committer), self.outer.clone(), self.master.clone());
        signal_thread::hear(move |heard| match heard {
            Heard::Report => {
                let commits = committer.upgrade().map_or(0, |committer| committer.commits());
                tell(report.clone().counted(&counters, commits));
            }
            Heard::Size => {
                // The program's own terminal sends it a SIGWINCH.
                if let (Some(outer), Some(master)) = (&outer, master.get()) {
                    outer.pass_size(master);
                }
            }
            Heard::End(signal) => {
                let Some(control) = control.upgrade() else { return };
                let _ = control.send(&Order::Signal(signal), None);
            }
            Heard::Impatience => {
                if committer.upgrade().is_none() || rustix::process::kill_process(init, Signal::KILL).is_err() {
                    // The session is over. Its changes are being applied, or its output is not read outside.
                    outer.iter().for_each(|outer| outer.restore());
                    let volume = &report.volume;
                    tell(format_args!(
                        "interrupted; changes of directories that are not applied yet are in {volume}: \
                         `untorn xsync --resume {volume}` applies them"
                    ));
                    std::process::exit(128 + libc::SIGINT);
                }
            }
        })
    }

    /// Handles Ctrl-Z: stops this process after the program has stopped, and continues both together.
    fn stop_with_the_program(&self) {
        if let Some(outer) = &self.outer {
            outer.restore();
        }
        signal_thread::stop_this_process();
        if let Some(outer) = &self.outer {
            let _ = outer.pass_on();
            self.master.get().into_iter().for_each(|master| outer.pass_size(master));
        }
        let _ = self.control.send(&Order::Signal(libc::SIGCONT), None);
    }

    fn finish(mut self, code: Option<u8>, failed: Option<String>) -> Result<(Ended, Committer)> {
        drop(self.following.take());
        self.ports.iter().for_each(Port::close);
        let mut trouble: Vec<String> = self.input_failed.get().map(|e| format!("{e:#}")).into_iter().collect();
        let mut note = |ended: Result<()>| trouble.extend(ended.err().map(|e| format!("{e:#}")));
        self.outgoing.take().into_iter().for_each(|outgoing| note(outgoing.end()));
        self.datagrams.take().into_iter().for_each(|datagrams| note(datagrams.end()));
        self.served.take().into_iter().for_each(|threads| note(threads.end()));
        for relay in self.relays.drain(..) {
            match relay.join().expect("a relay does not panic") {
                End::Closed | End::Unread | End::Held => {}
                End::Failed(e) => note(Err(e)),
            }
        }
        if let Some(answers) = self.answers.take() {
            answers.join().expect("answers do not panic");
        }
        if let Some(outer) = self.outer.take() {
            outer.restore();
        }
        let durable = self.committer.commit();
        let report = self.report.counted(&self.counters, self.committer.commits());
        let lost_bytes = self.counters.dropped.load(SeqCst);
        let committer = last_of(self.committer);
        failed.iter().for_each(tell);
        if let Err(e) = &durable {
            tell(format_args!("{e:#}"));
        }
        trouble.iter().for_each(tell);
        // A session without an exit code was killed, so the code is that of SIGKILL.
        let code = code.unwrap_or(128 + libc::SIGKILL as u8);
        // The program may exit with 0, because it does not know of a loss.
        let code = if durable.is_err() || (code == 0 && !trouble.is_empty()) { COULD_NOT } else { code };
        Ok((Ended { code, report, lost_bytes, durable: durable.is_ok() }, committer))
    }
}
