//! Starts sessions in a process of their own.

use crate::measuring::child::{JOB_VARIABLE, Job, SessionJob};
use anyhow::{Context, Result, bail, ensure};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use untorn_xsync::commands::run_session::Wanted;

/// Runs the session of a job in this process, which must have one thread. Fails unless the program's exit code is 0.
pub fn run(job: SessionJob) -> Result<()> {
    let SessionJob { gate, exact, volume, place, listen, program } = job;
    let listen: Vec<std::net::SocketAddr> =
        listen.into_iter().map(|port| (std::net::Ipv4Addr::LOCALHOST, port).into()).collect();
    let bytes = 1 << 30;
    let volume = volume.map(|path| (path, Some(bytes)));
    let program = program.into_iter().map(Into::into).collect();
    let code = Wanted { gate, exact, volume, place, bytes, listen, ..Wanted::new(program) }.run()?;
    ensure!(code == 0, "the session ended with code {code}");
    Ok(())
}

/// The command of a guest: this program, with a job in its environment.
pub fn guest(job: &Job) -> Result<Vec<String>> {
    let program = std::env::current_exe()?.to_str().context("the path of this program")?.to_owned();
    Ok(vec!["env".to_owned(), format!("{JOB_VARIABLE}={}", serde_json::to_string(job)?), program])
}

/// The directory of the sessions' volumes.
pub struct Host {
    dir: PathBuf,
}

impl Host {
    pub fn new(dir: &Path) -> Host {
        Host { dir: dir.to_owned() }
    }

    /// A session on a volume that is kept, so that it is made only once.
    pub fn on_volume(&self, gate: bool, listen: Option<u16>, program: Vec<String>) -> SessionJob {
        let volume = Some(self.dir.join("volume.img"));
        SessionJob { gate, exact: false, volume, place: self.dir.clone(), listen, program }
    }

    /// A session over its working directory.
    pub fn over_a_directory(&self, program: Vec<String>) -> SessionJob {
        SessionJob { gate: true, exact: false, volume: None, place: self.dir.clone(), listen: None, program }
    }
}

/// The command of a session. Its working directory is that of this program, so that a guest can see the program.
pub fn command(job: &SessionJob) -> Result<Command> {
    let program = std::env::current_exe()?;
    let mut command = Command::new(&program);
    command.env(JOB_VARIABLE, serde_json::to_string(&Job::Session(job.clone()))?);
    command.current_dir(program.parent().context("the directory of this program")?).stdin(Stdio::null());
    Ok(command)
}

/// Waits for the process to end, and fails unless it succeeded.
pub fn wait(mut child: Child) -> Result<()> {
    let status = child.wait()?;
    if !status.success() {
        bail!("a process of the benchmark ended badly: {status}");
    }
    Ok(())
}
