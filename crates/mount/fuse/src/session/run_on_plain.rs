//! `untorn run`: gives a program all-or-nothing files in a plain directory, which is plain again afterwards.

use crate::import_export::held_back::Skips;
use crate::processes::passed_signals::{self, Meant, Signals};
use crate::session::put_back::{PutBack, put_back};
use crate::session::session_dir::{Condition, SessionDir, condition};
use crate::session::session_mount::{BY_SIGNAL, Progress};
use anyhow::{Context, Result, bail};
use rustix::fd::{AsRawFd, OwnedFd};
use rustix::io::FdFlags;
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::Pid;
use serde_json::json;
use std::ffi::OsString;
use std::fs::File;
use std::io::Read;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Command, ExitStatus, Stdio};
use untorn_terminal::table::count;
use untorn_terminal::{Output, log, tell};

/// The session could not begin, was killed, or could not commit everything; `timeout`, `chroot` and others use the same
/// code.
pub const COULD_NOT: u8 = 125;
/// Not all is put back: somebody else changed the same names, or the directory refused some.
pub const CONFLICT: u8 = 124;

/// Runs a program on a directory; returns its exit code.
pub fn run(on: &Path, commit: &str, command: &[OsString]) -> Result<u8> {
    let cwd = std::env::current_dir().context("the working directory")?;
    let program = std::env::current_exe().context("cannot tell which program this is")?;
    let before = Signals::that_are_passed_on().block()?;
    let session = SessionDir::begin(on)?;
    let meant = passed_signals::pass_on()?;
    let run = |command: &mut Command, is_meant: fn(&Meant, Pid)| -> Result<ExitStatus> {
        let mut child = command.spawn().with_context(|| format!("cannot start {}", program.display()))?;
        is_meant(&meant, Pid::from_child(&child));
        let status = child.wait().context("cannot wait");
        meant.is_nobody();
        status
    };
    let mut import = Command::new(&program);
    import.arg("import").arg("--manifest").arg(session.manifest()).arg("--").arg(session.of()).arg(session.store());
    let status = run(before.for_command(&mut import).stdin(Stdio::null()).stdout(Stdio::null()), Meant::is_preparing);
    // The signal may have come after the import.
    if let Some(signal) = meant.ended_by() {
        tell!(
            "untorn-mount: ended by signal {signal} before the program began; {} is as it was",
            session.of().display()
        );
        session.remove()?;
        return Ok(u8::try_from(BY_SIGNAL + signal).unwrap_or(COULD_NOT));
    }
    match status {
        Ok(status) if status.success() => {}
        status => {
            session.remove()?;
            return status.map(|status| match status.code() {
                Some(1) | None => COULD_NOT,
                Some(code) => u8::try_from(code).unwrap_or(COULD_NOT),
            });
        }
    }
    // A pipe, not a file, because a full disk has no room for a file.
    let (hears, tells) = pipe_with(PipeFlags::CLOEXEC).context("a pipe")?;
    let mut serve = Command::new(&program);
    serve
        .arg("session")
        .args(log::options())
        .arg(format!("--commit={commit}"))
        .arg(format!("--parent={}", std::process::id()));
    serve.arg(format!("--blocked={}", before.0)).arg(format!("--tells={}", tells.as_raw_fd()));
    serve.arg("--").args([&session.store(), session.of(), &cwd]).args(command);
    rustix::io::fcntl_setfd(&tells, FdFlags::empty()).context("a pipe")?;
    let status = run(passed_signals::ends_with_us(&mut serve), Meant::is);
    drop(tells);
    let (status, progress) = (status?, heard(hears)?);
    let shown = session.of().display().to_string();
    let by_signal = status.signal().map_or(String::new(), |number| format!(" (by signal {number})"));
    let code = match progress {
        Progress::Nothing => {
            // Only this command had the files, so nothing is lost.
            session.remove()?;
            if status.code() != Some(COULD_NOT.into()) {
                bail!("the session on {shown} was ended{by_signal} before the program began; {shown} is as it was");
            }
            // The session has printed the reason.
            return Ok(COULD_NOT);
        }
        Progress::Begun => bail!(
            "the session on {shown} was ended{by_signal}; what it committed is kept: `untorn recover {shown}` puts it back"
        ),
        Progress::Exited(code) => bail!(
            "the program ended with exit code {code}, but the session was ended{by_signal} before everything was committed: \
             nothing is put back to {shown} yet. All that the program synced is kept in {}. When the reason is gone (after a \
             full disk: when there is room), `untorn recover {shown}` puts that back; `untorn recover --discard {shown}` \
             throws it away",
            session.store().display()
        ),
        Progress::Committed(code) => code,
    };
    match finish(session, false, &Skips::default())? {
        Finished::All(..) => Ok(code),
        Finished::NotAll(text) => {
            tell!("untorn-mount: {text}\nuntorn-mount: the program ended with exit code {code}");
            Ok(CONFLICT)
        }
    }
}

/// Reads how far the process that served the session came, when it has ended.
fn heard(hears: OwnedFd) -> Result<Progress> {
    let mut text = String::new();
    File::from(hears).read_to_string(&mut text).context("cannot tell how the session ended; it is kept")?;
    Ok(Progress::read(&text))
}

enum Finished {
    All(usize, usize),
    NotAll(String),
}

fn finish(session: SessionDir, overwrite: bool, skips: &Skips) -> Result<Finished> {
    let of = session.of().display().to_string();
    let put = put_back(&session, overwrite, skips);
    let put =
        put.with_context(|| format!("not all changes of the session are put back; `untorn recover {of}` continues"));
    match put? {
        PutBack::All(changed, removed) => {
            session.remove()?;
            Ok(Finished::All(changed, removed))
        }
        PutBack::NotAll { conflicts, held } => {
            let mut texts = Vec::new();
            if !conflicts.is_empty() {
                let names: Vec<String> = conflicts.iter().map(|path| format!("  {}", path.display())).collect();
                texts.push(format!(
                    "these names in {of} were changed by the session and by another program, so they were left as they \
                     are:\n{}",
                    names.join("\n")
                ));
            }
            if held.len() > 0 {
                texts.push(format!(
                    "{} cannot be put back to {of}; all others were put back:\n{}\n`untorn recover {of}` tries it \
                     again; `untorn recover --skip NAME {of}` leaves one out.",
                    count(held.len() as u64, "name", "names"),
                    held.lines()
                ));
            }
            let overwrite = match conflicts.is_empty() {
                true => String::new(),
                false => format!("`untorn recover --overwrite {of}` puts them in place of the others, "),
            };
            texts.push(format!(
                "The session's files are in {}: `untorn export` copies them out. {overwrite}`untorn recover --discard {of}` \
                 throws them away.",
                session.store().display()
            ));
            Ok(Finished::NotAll(texts.join("\n")))
        }
    }
}

/// How to end a session that was left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Left {
    /// Put its changes back.
    PutBack,
    /// Put its changes back, also over changes of others.
    Overwrite,
    /// Throw its changes away.
    Discard,
}

/// Ends a session that was killed, or of which not all could be put back.
pub fn recover(of: &Path, what: Left, skips: &Skips) -> Result<Output> {
    let Some(session) = SessionDir::left(of)? else {
        return Ok(Output::text("nothing is left to put back\n"));
    };
    if what == Left::Discard {
        // A half-finished put-back is worse than a complete one, so it is completed first; changes of others stay.
        // Without its store, nothing can be completed any more.
        if session.staged().exists() && session.store().join(".untorn").exists() {
            put_back(&session, false, skips)?;
        }
        session.remove()?;
        return Ok(Output::default());
    }
    match finish(session, what == Left::Overwrite, skips)? {
        Finished::All(changed, removed) => {
            let text = format!("{} put back, {removed} removed\n", count(changed as u64, "name", "names"));
            Ok(Output::text(text))
        }
        Finished::NotAll(text) => {
            tell!("untorn-mount: {text}");
            Ok(Output::default().code(CONFLICT))
        }
    }
}

/// Prints the state of a directory's session. The exit code is 1 if there is something to do.
pub fn status(of: &Path, json: bool) -> Result<Output> {
    let (condition, at) = condition(of)?;
    let output = if json {
        let session = match condition {
            Condition::None => "none",
            Condition::Running => "running",
            Condition::Left => "left",
        };
        let files = (condition != Condition::None).then(|| at.to_string_lossy());
        let value = json!({ "directory": of.to_string_lossy(), "session": session, "files": files });
        Output::text(format!("{value:#}\n"))
    } else {
        let (of, at) = (of.display(), at.display());
        Output::text(match condition {
            Condition::None => format!("{of} is on no mount of Untorn; no session works on it, and none was left\n"),
            Condition::Running => format!("a session works on {of}; its files are in {at}\n"),
            Condition::Left => format!(
                "a session on {of} was killed, or met a conflict; its changes are in {at}: `untorn recover {of}` puts \
                 them back, or lists the conflicts\n"
            ),
        })
    };
    Ok(output.code((condition == Condition::Left).into()))
}
