//! The progress of long work: nothing in the first second, then a bar on a terminal, else a line now and then.

use indicatif::{ProgressBar, ProgressStyle};
use std::cell::RefCell;
use std::io::IsTerminal;
use std::time::{Duration, Instant};
use untorn_terminal::tell;

const QUIET: Duration = Duration::from_secs(1);
const BETWEEN_LINES: Duration = Duration::from_secs(5);

/// Shows the number of finished bytes and of all bytes on standard error.
pub struct Progress {
    what: &'static str,
    started: Instant,
    terminal: bool,
    state: RefCell<State>,
}

#[derive(Default)]
struct State {
    bar: Option<ProgressBar>,
    last_line: Option<Instant>,
}

impl Progress {
    pub fn new(what: &'static str) -> Progress {
        let terminal = std::io::stderr().is_terminal();
        Progress { what, started: Instant::now(), terminal, state: RefCell::default() }
    }

    /// Shows the progress. It may be called at any rate.
    pub fn show(&self, done_bytes: u64, all_bytes: u64) {
        if let Some(line) = self.step(done_bytes, all_bytes, Instant::now()) {
            tell!("{line}");
        }
    }

    /// Moves the bar. Without a terminal, returns the line that is due now, if there is one.
    fn step(&self, done_bytes: u64, all_bytes: u64, now: Instant) -> Option<String> {
        let mut state = self.state.borrow_mut();
        if now.duration_since(self.started) < QUIET {
            return None;
        }
        if self.terminal {
            let bar = state.bar.get_or_insert_with(|| bar(self.what));
            bar.set_length(all_bytes);
            bar.set_position(done_bytes);
            return None;
        }
        if state.last_line.is_some_and(|last| now.duration_since(last) < BETWEEN_LINES) {
            return None;
        }
        state.last_line = Some(now);
        let (done, all) = (untorn_terminal::table::bytes(done_bytes), untorn_terminal::table::bytes(all_bytes));
        Some(format!("{}: {done} of {all}", self.what))
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if let Some(bar) = &self.state.borrow().bar {
            bar.finish_and_clear();
        }
    }
}

fn bar(what: &'static str) -> ProgressBar {
    let style = ProgressStyle::with_template("{msg} {wide_bar} {binary_bytes}/{binary_total_bytes} {eta}")
        .expect("the template is a constant");
    ProgressBar::new(0).with_style(style).with_message(what)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quiet_at_first_then_a_line_now_and_then() {
        let start = Instant::now();
        let progress = Progress { what: "recovering", started: start, terminal: false, state: RefCell::default() };
        let at = |ms| progress.step(1 << 20, 4 << 20, start + Duration::from_millis(ms));
        assert_eq!(at(900), None);
        assert_eq!(at(1100).as_deref(), Some("recovering: 1.00 MiB of 4.00 MiB"));
        assert_eq!(at(3000), None);
        assert!(at(6200).is_some());
    }
}
