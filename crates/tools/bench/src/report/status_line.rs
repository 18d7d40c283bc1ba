//! A line on the terminal that shows the current measurement.

use indicatif::{ProgressBar, ProgressStyle};
use std::io::IsTerminal;
use std::time::Duration;
use untorn_terminal::{say, tell};

/// A progress line. If standard error is not a terminal, one plain line for each cell instead.
pub struct StatusLine {
    bar: ProgressBar,
    plain: bool,
}

impl StatusLine {
    pub fn new() -> StatusLine {
        let bar = ProgressBar::new_spinner();
        bar.set_style(ProgressStyle::with_template("{spinner} [{elapsed}] {prefix} {msg}").expect("a valid template"));
        bar.enable_steady_tick(Duration::from_millis(250));
        StatusLine { bar, plain: !std::io::stderr().is_terminal() }
    }

    /// A line that is not shown, for tests.
    #[cfg(test)]
    pub fn hidden() -> StatusLine {
        let bar = ProgressBar::with_draw_target(None, indicatif::ProgressDrawTarget::hidden());
        StatusLine { bar, plain: false }
    }

    /// Shows the cell that starts now.
    pub fn cell(&self, what: impl Into<String>) {
        let what = what.into();
        if self.plain {
            tell!("{what}");
        }
        self.bar.set_prefix(what);
        self.bar.set_message("");
    }

    /// Shows the progress of the cell.
    pub fn tick(&self, round: usize, rounds: usize, batch: usize, batches: usize) {
        if round < rounds {
            self.bar.set_message(format!("round {} of {rounds}, {} %", round + 1, 100 * batch / batches.max(1)));
        } else {
            self.bar.set_message(format!("round {}, until the journal has turned over often enough", round + 1));
        }
    }

    /// Prints to standard output without disturbing the line.
    pub fn print(&self, text: &str) {
        self.bar.suspend(|| say!("{text}"));
    }
}

impl Drop for StatusLine {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}
