//! One line on the terminal that says what is being measured.

use indicatif::{ProgressBar, ProgressStyle};
use std::io::IsTerminal;
use std::time::Duration;

/// A progress line; where standard error is no terminal, one plain line per cell instead.
pub(crate) struct Progress {
    bar: ProgressBar,
    plain: bool,
}

impl Progress {
    pub(crate) fn new() -> Progress {
        let bar = ProgressBar::new_spinner();
        bar.set_style(ProgressStyle::with_template("{spinner} [{elapsed}] {prefix} {msg}").expect("a valid template"));
        bar.enable_steady_tick(Duration::from_millis(250));
        Progress { bar, plain: !std::io::stderr().is_terminal() }
    }

    /// For tests.
    #[cfg(test)]
    pub(crate) fn hidden() -> Progress {
        let bar = ProgressBar::with_draw_target(None, indicatif::ProgressDrawTarget::hidden());
        Progress { bar, plain: false }
    }

    /// What starts now.
    pub(crate) fn cell(&self, what: impl Into<String>) {
        let what = what.into();
        if self.plain {
            eprintln!("{what}");
        }
        self.bar.set_prefix(what);
        self.bar.set_message("");
    }

    /// How far it is.
    pub(crate) fn tick(&self, round: usize, rounds: usize, batch: usize, batches: usize) {
        if round < rounds {
            self.bar.set_message(format!("round {} of {rounds}, {} %", round + 1, 100 * batch / batches.max(1)));
        } else {
            self.bar.set_message(format!("round {}, until the journal has turned over often enough", round + 1));
        }
    }

    /// Prints to standard output without disturbing the line.
    pub(crate) fn print(&self, text: &str) {
        self.bar.suspend(|| println!("{text}"));
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}
