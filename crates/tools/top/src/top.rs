//! `untorn top`.

use crate::screen;
use crate::summary;
use crate::watched::Watched;
use clap::{Args, ValueHint};
use std::io::IsTerminal;
use std::path::PathBuf;
use std::time::Duration;
use untorn_terminal::{Failure, Output, write};

/// Show the work of stores right now, each in a line.
///
/// Rates and times are those of the last interval: commits per second; commits per flush; times of a commit, from the
/// call until it is durable, half and 99 of 100 of which are shorter; half of the flushes; commits that waited for a
/// checkpoint. Then the share of the journal that a checkpoint would free, memory of files with commits that are not
/// in the data files yet, commits that readers hold (and the space kept for them), and the last commit.
///
/// On a terminal the keys are: up and down choose a store, s its stages, c its commits, f its files, Escape goes back,
/// q ends; the same key again closes the view. Commits and files are followed only while they are shown. Without a
/// terminal, prints the table each interval.
#[derive(Args)]
pub struct Top {
    /// Stores: directories, or files with a store of their own.
    #[arg(value_hint = ValueHint::AnyPath, default_value = ".")]
    paths: Vec<PathBuf>,
    /// The time between two looks, in seconds. Owners publish four times a second.
    #[arg(short, long, value_name = "SECONDS", default_value = "1", value_parser = seconds)]
    interval: Duration,
    /// Print one interval, and end.
    #[arg(long)]
    once: bool,
    /// Print a line of JSON for each store and interval, for programs.
    #[arg(long)]
    json: bool,
}

/// The time in which an owner that commits publishes its first figures.
pub const FIRST_FIGURES: Duration = Duration::from_millis(600);

/// A time from a quarter of a second to an hour.
pub fn seconds(text: &str) -> Result<Duration, String> {
    let seconds: f64 = text.parse().map_err(|_| "it is no number of seconds".to_owned())?;
    match (0.25..=3600.0).contains(&seconds) {
        true => Ok(Duration::from_secs_f64(seconds)),
        false => Err("from 0.25 to 3600".to_owned()),
    }
}

impl Top {
    pub fn run(self) -> Result<Output, Failure> {
        let mut stores = Watched::some(&self.paths)?;
        if !self.once && !self.json && std::io::stdout().is_terminal() && std::io::stdin().is_terminal() {
            screen::run(stores, self.interval)?;
            return Ok(Output::default());
        }
        // The first look tells owners that somebody watches, the next one has their first figures.
        stores.iter_mut().for_each(|store| drop(store.look()));
        std::thread::sleep(FIRST_FIGURES);
        let looks = if self.once { 2 } else { u64::MAX };
        for n in 0..looks {
            let found: Vec<_> = stores.iter_mut().map(|store| (store.path().to_owned(), store.look())).collect();
            let found: Vec<_> = found.iter().map(|(path, state)| (path.as_path(), state.clone())).collect();
            let text = match self.json {
                true => found.iter().map(|(path, state)| summary::value(path, state).to_string() + "\n").collect(),
                false => summary::text(&found),
            };
            if (n > 0 || !self.once) && !write(text.as_bytes())? {
                break;
            }
            if n + 1 < looks {
                std::thread::sleep(self.interval);
            }
        }
        Ok(Output::default())
    }
}
