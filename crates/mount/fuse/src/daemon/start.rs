//! A daemon in the background: its starter waits until it is ready, and shows what it says until then.

use anyhow::{Context, Result};
use rustix::process::{Pid, Signal, set_parent_process_death_signal};
use std::ffi::OsString;
use std::fs::OpenOptions;
use std::io::{self, BufRead, BufReader, Write};
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};

const READY: &str = "ready\n";

/// Starts this program anew with other arguments. Returns 0 when the daemon is ready, else its exit code; the daemon has
/// said why, to standard error.
pub fn start(arguments: &[OsString]) -> Result<u8> {
    let program = std::env::current_exe().context("cannot tell which program this is")?;
    let mut command = Command::new(&program);
    command.args(arguments).stdin(Stdio::null()).stdout(Stdio::piped());
    let starter = rustix::process::getpid();
    // SAFETY: the closure makes system calls only, which may be made after fork.
    unsafe { command.pre_exec(move || ends_with(starter)) };
    let mut daemon = command.spawn().with_context(|| format!("cannot start {}", program.display()))?;
    let mut line = String::new();
    BufReader::new(daemon.stdout.take().expect("it is piped")).read_line(&mut line).context("the daemon")?;
    if line == READY {
        return Ok(0);
    }
    let status = daemon.wait().context("the daemon")?;
    Ok(status.code().and_then(|code| u8::try_from(code).ok()).filter(|code| *code > 0).unwrap_or(1))
}

/// Whoever starts a mount, and is killed while it waits, wants no mount any more.
fn ends_with(starter: Pid) -> io::Result<()> {
    set_parent_process_death_signal(Some(Signal::TERM))?;
    // It may have been killed before.
    if rustix::process::getppid() == Some(starter) { Ok(()) } else { Err(io::ErrorKind::BrokenPipe.into()) }
}

/// In the daemon, before anything else: the starter's terminal has no signals for it, and it keeps nothing that the starter
/// has open: a lock, a pipe whose end somebody waits for, a file on another mount.
pub fn leave_starter() -> Result<()> {
    // SAFETY: this process has opened nothing yet that is still open. Where the kernel cannot, they stay.
    unsafe { libc::syscall(libc::SYS_close_range, 3, u32::MAX, 0) };
    // A leader of a group of processes has a session of its own already.
    let _ = rustix::process::setsid();
    std::env::set_current_dir("/").context("/")
}

/// In the daemon: the starter need not wait any more, and nobody reads what is said from now on.
pub fn ready() -> Result<()> {
    let null = OpenOptions::new().read(true).write(true).open("/dev/null").context("/dev/null")?;
    set_parent_process_death_signal(None).context("the end of the starter")?;
    // The starter may have been killed.
    let _ = std::io::stdout().write_all(READY.as_bytes());
    let _ = std::io::stdout().flush();
    rustix::stdio::dup2_stdin(&null)?;
    rustix::stdio::dup2_stdout(&null)?;
    rustix::stdio::dup2_stderr(&null)?;
    Ok(())
}
