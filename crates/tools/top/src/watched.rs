//! A store that is watched, and its figures so far.

use crate::interval::Interval;
use std::collections::HashSet;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use untorn::__private::is_store_there;
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
    /// The store cannot be watched, and why. Each look tries again.
    Lost(String),
}

/// A store that was there, and is not any more.
const GONE: &str = "the store is gone: it was removed or moved";

/// A watched store.
pub struct Watched {
    path: PathBuf,
    /// Present while the last look found the store open.
    watch: Option<Watch>,
    /// The reason, if there is no store at the path.
    absence: String,
    last: Option<Figures>,
    interval: Option<Box<Interval>>,
}

impl Watched {
    /// Begins to watch these stores. One that cannot be watched now may be later.
    pub fn all(paths: &[PathBuf]) -> Vec<Watched> {
        // A store that is named twice would have every figure twice.
        let mut known = HashSet::new();
        let is_new = |path: &&PathBuf| {
            let place = std::fs::metadata(path).map(|meta| (meta.dev(), meta.ino()));
            place.is_err() || known.insert(place.ok())
        };
        paths.iter().filter(is_new).map(|path| Watched::begin(path)).collect()
    }

    /// Begins to watch these stores.
    ///
    /// # Errors
    /// None of them can be watched: the reason of the first.
    pub fn some(paths: &[PathBuf]) -> Result<Vec<Watched>, Failure> {
        let stores = Watched::all(paths);
        match stores.first() {
            Some(first) if stores.iter().all(|store| store.absence().is_some()) => {
                Err(Failure::new(first.absence.clone()))
            }
            _ => Ok(stores),
        }
    }

    fn begin(path: &Path) -> Watched {
        // This first opening also looks for files whose store is lost, which may take long.
        let (watch, absence) = match Watch::open(path) {
            Ok(watch) => (Some(watch), GONE.to_owned()),
            Err(e) => (None, e.to_string()),
        };
        Watched { path: path.to_owned(), watch, absence, last: None, interval: None }
    }

    /// The path with which the store was named.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The reason, if the last look found no store to watch.
    pub fn absence(&self) -> Option<&str> {
        self.watch.is_none().then_some(&self.absence)
    }

    /// Looks at the store. The interval is the one between the last two publications that were seen.
    pub fn look(&mut self) -> State {
        let state = self.try_look().unwrap_or_else(|e| State::Lost(e.to_string()));
        if !matches!(state, State::Shown(..)) {
            (self.last, self.interval) = (None, None);
        }
        if matches!(state, State::NoOwner | State::Lost(_)) {
            // Another store may take its place at the path.
            self.watch = None;
        }
        state
    }

    fn try_look(&mut self) -> Result<State, untorn::Error> {
        let watch = match &mut self.watch {
            Some(watch) => watch,
            none if is_store_there(&self.path)? => {
                let watch = none.insert(Watch::open(&self.path)?);
                GONE.clone_into(&mut self.absence);
                watch
            }
            _ => return Ok(State::Lost(self.absence.clone())),
        };
        let Some(figures) = watch.figures()? else {
            return Ok(match watch.owner()? {
                Some(pid) => State::Silent(pid),
                None if is_store_there(&self.path)? => State::NoOwner,
                None => State::Lost(self.absence.clone()),
            });
        };
        let before = self.last.replace(figures.clone());
        if let Some(before) = before.filter(|before| *before != figures) {
            self.interval = Interval::new(before, figures.clone()).map(Box::new);
        }
        Ok(State::Shown(Box::new(figures), self.interval.clone()))
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
