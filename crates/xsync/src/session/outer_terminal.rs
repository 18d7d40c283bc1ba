//! The terminal in which the user started the session.

use crate::session::session_init::TerminalLike;
use anyhow::{Context, Result};
use parking_lot::Mutex;
use rustix::termios::{
    OptionalActions, OutputModes, Termios, isatty, tcgetattr, tcgetwinsize, tcsetattr, tcsetwinsize,
};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// The standard streams that are a terminal, and the terminal's settings at the start.
#[derive(Debug)]
pub struct OuterTerminal {
    /// The terminal for input, if standard input is one.
    input: Option<OwnedFd>,
    /// The terminal for output.
    output: OwnedFd,
    before: Termios,
    is_raw: Mutex<bool>,
}

impl OuterTerminal {
    /// Finds the terminal. None if neither input nor output is one.
    pub fn of(input: BorrowedFd<'_>, outputs: [BorrowedFd<'_>; 2]) -> Result<Option<OuterTerminal>> {
        let input = isatty(input).then(|| input.try_clone_to_owned()).transpose()?;
        let output = outputs.into_iter().find(|output| isatty(output)).or(input.as_ref().map(|input| input.as_fd()));
        let Some(output) = output else { return Ok(None) };
        let output = output.try_clone_to_owned()?;
        let before = tcgetattr(&output).context("the terminal's settings")?;
        Ok(Some(OuterTerminal { input, output, before, is_raw: Mutex::new(false) }))
    }

    /// The terminal for output.
    pub fn output(&self) -> &OwnedFd {
        &self.output
    }

    /// The settings and size for the session's terminal.
    pub fn like(&self) -> Result<TerminalLike> {
        let mut settings = self.before.clone();
        if self.input.is_none() {
            // The outer terminal keeps its settings, so it processes the output. The session's terminal must not do
            // that, too.
            settings.output_modes -= OutputModes::OPOST;
        }
        Ok(TerminalLike { settings, size: tcgetwinsize(&self.output).context("the terminal's size")? })
    }

    /// Sets the terminal to raw mode: it passes on typed input, and the session's terminal processes it.
    pub fn pass_on(&self) -> Result<()> {
        let Some(input) = &self.input else { return Ok(()) };
        let mut raw = self.before.clone();
        raw.make_raw();
        let mut is_raw = self.is_raw.lock();
        tcsetattr(input, OptionalActions::Now, &raw).context("the terminal's settings")?;
        *is_raw = true;
        Ok(())
    }

    /// Restores the terminal's settings.
    pub fn restore(&self) {
        let mut is_raw = self.is_raw.lock();
        if let (true, Some(input)) = (*is_raw, &self.input) {
            let _ = tcsetattr(input, OptionalActions::Drain, &self.before);
        }
        *is_raw = false;
    }

    /// Gives the session's terminal the size of this one. The kernel then informs the program.
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
