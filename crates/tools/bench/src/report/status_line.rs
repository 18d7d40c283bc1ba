//! A line on the terminal that shows the current measurement.

use crate::report::outcome::clock;
use indicatif::{ProgressBar, ProgressStyle};
use std::cell::RefCell;
use std::io::IsTerminal;
use std::time::{Duration, Instant};
use untorn_terminal::{say, tell};

/// A progress line. If standard error is not a terminal, one plain line for each cell instead.
pub struct StatusLine {
    bar: ProgressBar,
    plain: bool,
    start: Instant,
    /// The benchmark that is running, and its number.
    benchmark: RefCell<String>,
}

impl StatusLine {
    pub fn new() -> StatusLine {
        let bar = ProgressBar::new_spinner();
        bar.set_style(ProgressStyle::with_template("{spinner} [{elapsed}] {prefix} {msg}").expect("a valid template"));
        bar.enable_steady_tick(Duration::from_millis(250));
        StatusLine::of(bar, !std::io::stderr().is_terminal())
    }

    /// A line that is not shown, for tests.
    #[cfg(test)]
    pub fn hidden() -> StatusLine {
        StatusLine::of(ProgressBar::with_draw_target(None, indicatif::ProgressDrawTarget::hidden()), false)
    }

    fn of(bar: ProgressBar, plain: bool) -> StatusLine {
        StatusLine { bar, plain, start: Instant::now(), benchmark: RefCell::default() }
    }

    /// Shows the benchmark that starts now, the `number`th of all.
    pub fn benchmark(&self, what: &str, number: usize, all: usize) {
        if self.plain {
            let elapsed = clock(self.start.elapsed().as_secs_f64());
            tell!("{elapsed}, {number} of {all}, {} remain: {what}", all - number);
        }
        self.benchmark.replace(format!("{number} of {all}: "));
        self.bar.set_prefix(format!("{number} of {all}: {what}"));
    }

    /// Shows the cell that starts now.
    pub fn cell(&self, what: impl Into<String>) {
        let what = what.into();
        if self.plain {
            tell!("{what}");
        }
        self.bar.set_prefix(format!("{}{what}", self.benchmark.borrow()));
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
