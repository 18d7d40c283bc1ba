//! A running program beside the reference model: the parts that all its operations share.

use crate::programs::fixture::{Expect, plain_files, umask};
use crate::programs::program::Setup;
use crate::programs::reference_model::{Change, Changes, Model as Reference, Node};
use crate::simulation::SimDisk;
use crate::simulation::SimProcess;
use crate::simulation::Snapshot;
use std::path::Path;
use std::sync::Arc;
use untorn::{Error, FailureClass, File, Map, Outcome, Store, Ticket};

/// The reason why a run ended early.
pub(crate) enum Stop {
    /// A violation.
    Wrong(String),
    /// The program cannot continue after a planned fault, which is allowed.
    GaveUp,
}

pub(crate) type Step<T> = Result<T, Stop>;

pub(crate) fn wrong<T>(what: impl Into<String>) -> Step<T> {
    Err(Stop::Wrong(what.into()))
}

/// The file that is mapped.
pub(crate) struct Mapped {
    pub map: Map,
    /// Its name.
    pub name: String,
}

/// Ends a process before its store is dropped: dropping would close the store, which is not part of the program.
pub(crate) struct KillOnDrop(pub Arc<SimProcess>);

impl Drop for KillOnDrop {
    fn drop(&mut self) {
        self.0.kill();
    }
}

/// A running program, beside the reference model.
pub(crate) struct Runner<'d> {
    pub disk: &'d SimDisk,
    pub setup: &'d Setup,
    pub reference: Reference,
    pub class: FailureClass,
    pub exposed: bool,
    pub away: bool,
    /// A fault is planned, so errors are expected.
    pub faults: bool,
    /// An error was seen.
    pub troubled: bool,
    pub serial: usize,
    pub handles: Vec<File>,
    pub tickets: Vec<(Ticket, usize)>,
    /// The file that is mapped, if one is.
    pub mapped: Option<Mapped>,
    /// Files are mapped with the tracker `explicit`.
    pub told: bool,
    /// The moments of the last operation, or of the whole program if a fault is planned.
    pub snapshots: Vec<Snapshot>,
    /// The last operation did something.
    pub moved: bool,
}

impl<'d> Runner<'d> {
    /// A program on a disk made by [`prepare`](crate::programs::fixture::prepare).
    pub fn new(disk: &'d SimDisk, setup: &'d Setup, faults: bool) -> Runner<'d> {
        Runner {
            disk,
            setup,
            reference: Reference::new(plain_files(disk)),
            class: FailureClass::Power,
            exposed: false,
            away: false,
            faults,
            troubled: false,
            serial: 0,
            handles: Vec::new(),
            tickets: Vec::new(),
            mapped: None,
            told: false,
            snapshots: Vec::new(),
            moved: false,
        }
    }

    pub fn mark(&self) {
        let allowed = self.reference.allowed();
        let expect = Expect { allowed, class: self.class, exposed: self.exposed, away: self.away };
        self.disk.set_mark(expect.pack());
    }

    /// Handles an error of an operation that is not a commit.
    pub fn refused(&mut self, what: &str, e: &Error) -> Step<()> {
        self.troubled = true;
        if self.faults { Ok(()) } else { wrong(format!("{what} failed: {e}")) }
    }

    /// Takes the result of a commit; true if it was acknowledged.
    pub fn take_result(&mut self, number: usize, result: Result<(), Error>) -> Step<bool> {
        let done = result.is_ok();
        match result {
            Ok(()) => self.reference.acknowledge(number),
            Err(Error::SyncFailed { outcome: Outcome::UnknownUntilReopened, .. }) if self.faults => {
                self.troubled = true;
            }
            Err(e) => {
                self.reference.refuse(number);
                self.refused("commit", &e)?;
            }
        }
        self.mark();
        Ok(done)
    }

    /// Takes the results of asynchronous commits that have been written by now.
    pub fn take_results(&mut self) -> Step<()> {
        for (ticket, number) in std::mem::take(&mut self.tickets) {
            match ticket.poll() {
                Some(result) => drop(self.take_result(number, result)?),
                None => self.tickets.push((ticket, number)),
            }
        }
        Ok(())
    }

    /// The handle of a file; a missing file is created first, by a commit of its own.
    pub fn handle(&mut self, store: &Store, name: &str) -> Step<Option<usize>> {
        let path = Path::new(name);
        if self.reference.now.contains_key(path) {
            return match store.open_file(name) {
                Ok(file) => self.keep(file),
                Err(e) => self.refused("opening a file", &e).map(|()| None),
            };
        }
        // A change of names of unknown outcome has happened for the model, but not for the store.
        if self.troubled && store.open_file(name).is_ok() {
            return Ok(None);
        }
        let node = Node::File(Vec::new(), 0o666 & !umask());
        let number = self.submit(vec![Change::Set(path.to_owned(), node.clone())]);
        let created = store.open_or_create_file(name);
        let (file, result) = match created {
            Ok(file) => (Some(file), Ok(())),
            Err(e) => (None, Err(e)),
        };
        if self.take_result(number, result)? {
            self.reference.now.insert(path.to_owned(), node);
        }
        file.map_or(Ok(None), |file| self.keep(file))
    }

    pub fn keep(&mut self, file: File) -> Step<Option<usize>> {
        self.handles.push(file);
        Ok(Some(self.handles.len() - 1))
    }

    pub fn forget_changes(&mut self, name: &str) {
        let path = Path::new(name);
        match self.reference.committed_at(path) {
            Some(node) => drop(self.reference.now.insert(path.to_owned(), node)),
            None => drop(self.reference.now.remove(path)),
        }
    }

    pub fn submit(&mut self, changes: Changes) -> usize {
        self.exposed |= self.class == FailureClass::Process;
        let number = self.reference.submit(changes);
        self.mark();
        number
    }

    /// The changes that a commit of these files makes.
    pub fn changes_of(&self, names: &[String]) -> Changes {
        let node = |name: &String| self.reference.now.get(Path::new(name)).cloned();
        names.iter().filter_map(|name| Some(Change::Set(name.into(), node(name)?))).collect()
    }
}
