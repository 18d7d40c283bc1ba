//! The terminal of the person who started the session.

use crate::session::session_init::TerminalLike;
use anyhow::{Context, Result};
use rustix::termios::{
    OptionalActions, OutputModes, Termios, isatty, tcgetattr, tcgetwinsize, tcsetattr, tcsetwinsize,
};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Mutex;

/// Which of the standard descriptors are terminals, and what the terminal was like.
#[derive(Debug)]
pub struct OuterTerminal {
    /// Typed input comes from here, if it comes from a terminal at all.
    input: Option<OwnedFd>,
    /// Output goes there.
    output: OwnedFd,
    before: Termios,
    is_raw: Mutex<bool>,
}

impl OuterTerminal {
    /// None if neither input nor output is a terminal.
    pub fn of(input: BorrowedFd<'_>, outputs: [BorrowedFd<'_>; 2]) -> Result<Option<OuterTerminal>> {
        let input = isatty(input).then(|| input.try_clone_to_owned()).transpose()?;
        let output = outputs.into_iter().find(|output| isatty(output)).or(input.as_ref().map(|input| input.as_fd()));
        let Some(output) = output else { return Ok(None) };
        let output = output.try_clone_to_owned()?;
        let before = tcgetattr(&output).context("the terminal's settings")?;
        Ok(Some(OuterTerminal { input, output, before, is_raw: Mutex::new(false) }))
    }

    /// Where output goes.
    pub fn output(&self) -> &OwnedFd {
        &self.output
    }

    /// What the session's terminal is to be like.
    pub fn like(&self) -> Result<TerminalLike> {
        let mut settings = self.before.clone();
        if self.input.is_none() {
            // This terminal stays as it is, and does the same once more.
            settings.output_modes -= OutputModes::OPOST;
        }
        Ok(TerminalLike { settings, size: tcgetwinsize(&self.output).context("the terminal's size")? })
    }

    /// From now on the session's terminal treats what is typed; this one passes it on.
    pub fn pass_on(&self) -> Result<()> {
        let Some(input) = &self.input else { return Ok(()) };
        let mut raw = self.before.clone();
        raw.make_raw();
        let mut is_raw = self.is_raw.lock().unwrap_or_else(|e| e.into_inner());
        tcsetattr(input, OptionalActions::Now, &raw).context("the terminal's settings")?;
        *is_raw = true;
        Ok(())
    }

    /// The terminal is as it was before.
    pub fn restore(&self) {
        let mut is_raw = self.is_raw.lock().unwrap_or_else(|e| e.into_inner());
        if let (true, Some(input)) = (*is_raw, &self.input) {
            let _ = tcsetattr(input, OptionalActions::Drain, &self.before);
        }
        *is_raw = false;
    }

    /// Gives the session's terminal the size of this one; the kernel tells the program.
    pub fn pass_size(&self, inner: &OwnedFd) {
        if let Ok(size) = tcgetwinsize(&self.output) {
            let _ = tcsetwinsize(inner, size);
        }
    }
}

impl Drop for OuterTerminal {
    fn drop(&mut self) {
        self.restore();
    }
}
