//! The user's program and the user's check.

use anyhow::{Context, Result, bail};
use std::fs::{File, OpenOptions};
use std::io::{Read, Seek};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};
use untorn_crashlab::replay::{Check, Program};

const CHECK_TIME_MAX: Duration = Duration::from_secs(30);
/// The number of bytes that are kept of the end of a check's or program's output.
const OUTPUT_BYTES_MAX: usize = 2000;
/// The exit codes of a shell that cannot run a command.
const CANNOT_RUN: [i32; 2] = [126, 127];

/// The user's program, which does not know of the test.
pub struct Theirs<'a> {
    pub program: &'a [String],
    pub setup: Option<&'a str>,
    pub run_time_max: Duration,
}

impl Program for Theirs<'_> {
    fn prepare(&self, dir: &Path) -> Result<()> {
        let Some(setup) = self.setup else { return Ok(()) };
        let output = shell(setup, dir).output().context("cannot run the setup")?;
        if !output.status.success() {
            bail!("the setup failed ({}): {}", output.status, tail(&output.stderr));
        }
        Ok(())
    }

    fn run(&self, dir: &Path, acks: &Path) -> Result<()> {
        let place = dir.to_str().context("a path that is UTF-8")?;
        let words: Vec<String> = self.program.iter().map(|word| word.replace("{}", place)).collect();
        let mut errors = tempfile::tempfile()?;
        let mut command = Command::new(&words[0]);
        command.args(&words[1..]).env("UNTORN_DIR", dir).env("UNTORN_ACKS", acks);
        command.stdin(Stdio::null()).stdout(OpenOptions::new().append(true).open(acks)?).stderr(errors.try_clone()?);
        let mut child = ours_is_not_theirs(&mut command).spawn().with_context(|| format!("cannot run {}", words[0]))?;
        match wait(&mut child, self.run_time_max)? {
            Some(status) if !status.success() => {
                let mut said = Vec::new();
                errors.rewind()?;
                errors.read_to_end(&mut said)?;
                bail!("the program failed ({status}): {}", tail(&said))
            }
            _ => Ok(()),
        }
    }
}

/// A shell command that checks the files after a crash.
pub struct ShellCheck<'a> {
    pub command: &'a str,
    pub acked: &'a Path,
}

impl Check for ShellCheck<'_> {
    fn check(&self, dir: &Path, said: &[String]) -> Result<(), String> {
        self.run(dir, said).unwrap_or_else(|e| Err(format!("the check could not be run: {e:#}")))
    }
}

impl ShellCheck<'_> {
    /// Runs the check, and returns its verdict. The outer error means that the check could not run.
    pub fn run(&self, dir: &Path, said: &[String]) -> Result<Result<(), String>> {
        let lines: String = said.iter().map(|line| format!("{line}\n")).collect();
        std::fs::write(self.acked, lines)?;
        let mut output = tempfile::tempfile()?;
        let mut command = shell(self.command, dir);
        command.env("UNTORN_ACKED", self.acked).stdout(output.try_clone()?).stderr(output.try_clone()?);
        let mut child = command.spawn().context("cannot run the check")?;
        let status = wait(&mut child, CHECK_TIME_MAX)?;
        Ok(match status {
            Some(status) if status.success() => Ok(()),
            Some(status) if status.code().is_some_and(|code| CANNOT_RUN.contains(&code)) => {
                bail!("the shell cannot run the check `{}` ({status})", self.command)
            }
            Some(status) => {
                let said = read_tail(&mut output)?.replace(&*dir.to_string_lossy(), "{}");
                Err(format!("the check says ({status}): {said}"))
            }
            None => Err(format!("the check did not end in {CHECK_TIME_MAX:.0?}")),
        })
    }
}

fn shell(command: &str, dir: &Path) -> Command {
    let mut shell = Command::new("sh");
    shell.arg("-c").arg(command.replace("{}", &dir.to_string_lossy())).env("UNTORN_DIR", dir).stdin(Stdio::null());
    ours_is_not_theirs(&mut shell);
    shell
}

/// Hides this process's own environment variables from a command, and gives it a process group of its own.
///
/// So the command can be ended together with its children.
fn ours_is_not_theirs(command: &mut Command) -> &mut Command {
    command.env_remove("UNTORN_CRASHLAB_WORKER").env_remove("UNTORN_CRASHLAB_PLACE").process_group(0)
}

/// Waits for the process. After the limit, ends it, and returns none.
fn wait(child: &mut Child, limit: Duration) -> Result<Option<ExitStatus>> {
    let started = Instant::now();
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(Some(status));
        }
        if started.elapsed() > limit {
            let group = rustix::process::Pid::from_child(child);
            let _ = rustix::process::kill_process_group(group, rustix::process::Signal::KILL);
            child.wait()?;
            return Ok(None);
        }
        std::thread::sleep(Duration::from_micros(500));
    }
}

fn read_tail(file: &mut File) -> Result<String> {
    let mut bytes = Vec::new();
    file.rewind()?;
    file.read_to_end(&mut bytes)?;
    Ok(tail(&bytes))
}

fn tail(bytes: &[u8]) -> String {
    let text = String::from_utf8_lossy(&bytes[bytes.len().saturating_sub(OUTPUT_BYTES_MAX)..]);
    if text.trim().is_empty() { "nothing".to_owned() } else { text.trim().to_owned() }
}
