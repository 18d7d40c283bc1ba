//! Starts a daemon in the background; the starter waits until the daemon is ready, and shows its messages until then.

use anyhow::{Context, Result};
use rustix::process::{Pid, Signal, set_parent_process_death_signal};
use std::ffi::OsString;
use std::fs::OpenOptions;
use std::io::{self, BufRead, BufReader, Write};
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};

const READY: &str = "ready\n";

/// Starts this program again with other arguments, as the daemon.
///
/// Returns 0 when the daemon is ready, else the daemon's exit code; the daemon has printed the reason to standard
/// error.
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

/// Makes the daemon end with its starter: if the starter is killed while it waits, the mount is not wanted any more.
fn ends_with(starter: Pid) -> io::Result<()> {
    set_parent_process_death_signal(Some(Signal::TERM))?;
    // The starter may have been killed before the call above.
    if rustix::process::getppid() == Some(starter) { Ok(()) } else { Err(io::ErrorKind::BrokenPipe.into()) }
}

/// Detaches the daemon from its starter, before it does anything else.
///
/// The starter's terminal can then send no signals to the daemon, and the daemon keeps no descriptor of the starter
/// open: no lock, no pipe whose end another process waits for, no file on another mount.
pub fn leave_starter() -> Result<()> {
    // SAFETY: this process has opened nothing yet that is still open. If the kernel lacks the call, inherited
    // descriptors stay open.
    unsafe { libc::syscall(libc::SYS_close_range, 3, u32::MAX, 0) };
    // Fails for the leader of a process group, which already has a session of its own.
    let _ = rustix::process::setsid();
    std::env::set_current_dir("/").context("/")
}

/// Tells the starter that it need not wait any more. From now on the log goes to the journal or the system's log.
pub fn ready() -> Result<()> {
    let null = OpenOptions::new().read(true).write(true).open("/dev/null").context("/dev/null")?;
    set_parent_process_death_signal(None).context("the end of the starter")?;
    // The starter may have been killed, so a failed write is no error.
    let _ = std::io::stdout().write_all(READY.as_bytes());
    let _ = std::io::stdout().flush();
    rustix::stdio::dup2_stdin(&null)?;
    rustix::stdio::dup2_stdout(&null)?;
    rustix::stdio::dup2_stderr(&null)?;
    untorn_terminal::log::leave_terminal();
    Ok(())
}
