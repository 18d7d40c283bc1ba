//! A store that is watched, and its figures so far.

use crate::interval::Interval;
use std::collections::HashSet;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use untorn::reader::{Figures, Watch};
use untorn_terminal::Failure;

/// The state of a watched store.
#[derive(Clone, Debug)]
pub enum State {
    /// No process has the store open.
    NoOwner,
    /// The owner has published nothing yet; its process.
    Silent(u32),
    /// The owner publishes. The interval is there after two publications.
    Shown(Box<Figures>, Option<Box<Interval>>),
    /// The store cannot be watched any more, and why.
    Lost(String),
}

/// A watched store.
pub struct Watched {
    path: PathBuf,
    watch: Watch,
    last: Option<Figures>,
    interval: Option<Box<Interval>>,
}

impl Watched {
    /// Begins to watch these stores.
    pub fn all(paths: &[PathBuf]) -> Result<Vec<Watched>, Failure> {
        let open = |path: &PathBuf| -> Result<Watched, Failure> {
            Ok(Watched { path: path.clone(), watch: Watch::open(path)?, last: None, interval: None })
        };
        // A store that is named twice would have every figure twice.
        let mut known = HashSet::new();
        let is_new = |path: &&PathBuf| {
            let place = std::fs::metadata(path).map(|meta| (meta.dev(), meta.ino()));
            place.is_err() || known.insert(place.ok())
        };
        paths.iter().filter(is_new).map(open).collect()
    }

    /// The path with which the store was named.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Looks at the store. The interval is the one between the last two publications that were seen.
    pub fn look(&mut self) -> State {
        let figures = match self.watch.figures() {
            Ok(figures) => figures,
            Err(e) => return State::Lost(e.to_string()),
        };
        let Some(figures) = figures else {
            (self.last, self.interval) = (None, None);
            return match self.watch.owner() {
                Ok(Some(pid)) => State::Silent(pid),
                Ok(None) => State::NoOwner,
                Err(e) => State::Lost(e.to_string()),
            };
        };
        let before = self.last.replace(figures.clone());
        if let Some(before) = before.filter(|before| *before != figures) {
            self.interval = Interval::new(before, figures.clone()).map(Box::new);
        }
        State::Shown(Box::new(figures), self.interval.clone())
    }
}

/// Why there are no figures, for people.
pub fn silence(state: &State) -> Option<String> {
    match state {
        State::Shown(..) => None,
        State::NoOwner => Some("no process has it open".into()),
        State::Silent(_) => Some(
            "no figures: its owner has not committed since, hangs, works in class `process`, or has no background thread"
                .into(),
        ),
        State::Lost(why) => Some(why.clone()),
    }
}
