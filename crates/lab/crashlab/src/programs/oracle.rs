//! Opens a store after a crash, and decides whether its state is allowed.

use crate::programs::differences::{compare_views, mixture, shown_files};
use crate::programs::fixture::{ELSEWHERE, Expect, find_state, plain_files, store_options};
use crate::programs::program::{How, Setup};
use crate::programs::reference_model::{COMMITS_MAX, Files, Model, Node};
use crate::simulation::SimDisk;
use crate::simulation::SimProcess;
use crate::simulation::Snapshot;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use untorn::__private::OpenStoreOn;
use untorn::{Error, FailureClass, Store};
use untorn_journal::directories::store_dir::StoreDir;
use untorn_journal::format::{Attribute, AttributeFound};

/// Decides whether the states after crashes of one run are allowed.
#[derive(Clone, Copy)]
pub(crate) struct Oracle<'r> {
    pub setup: &'r Setup,
    pub reference: &'r Model,
    /// The state after the commit that is made when a store has been recovered ([`AGAIN`]).
    pub again: Option<&'r Files>,
}

/// The number of the commit that is made when a store has been recovered.
const AGAIN: usize = COMMITS_MAX;

/// A store that was opened after a crash.
pub(crate) struct Reopened {
    store: Store,
    process: Arc<SimProcess>,
    files: Files,
    /// The state was unknown, and was accepted as it is.
    pub accepted: bool,
    expect: Expect,
}

/// The machine after a crash. A file that was moved away is moved back.
pub(crate) fn crash(snapshot: &Snapshot, how: How) -> SimDisk {
    let disk = match how {
        How::Killed => snapshot.killed(),
        How::Power(cut) => snapshot.power_cut(cut).disk,
    };
    bring_back(disk, snapshot.mark())
}

pub(crate) fn bring_back(disk: SimDisk, mark: u64) -> SimDisk {
    if Expect::unpack(mark).away && disk.rename(ELSEWHERE, "a").is_ok() {
        disk.settle();
    }
    disk
}

/// The failure class to open in after a crash: sometimes the other one.
pub(crate) fn class_after(snapshot: &Snapshot) -> FailureClass {
    match (Expect::unpack(snapshot.mark()).class, snapshot.call() % 3 == 1) {
        (FailureClass::Power, true) | (FailureClass::Process, false) => FailureClass::Process,
        _ => FailureClass::Power,
    }
}

impl Oracle<'_> {
    /// Opens the store, and finds the commit that it shows. From then on the disk's mark allows only that one.
    pub fn recover(&self, disk: &SimDisk, mark: u64, class: FailureClass, power: bool) -> Result<Reopened, String> {
        let expect = Expect::unpack(mark);
        let options = store_options(self.setup, class);
        let process = disk.spawn();
        let open = |o: &untorn::StoreOptions| o.open_on(process.clone(), StoreDir::of_directory(), PathBuf::new());
        let store = match open(&options) {
            Ok(store) => store,
            Err(Error::UnknownState { .. }) if power && expect.exposed => {
                let taken = open(&options.accept_unknown(true));
                let store = taken.map_err(|e| format!("accepting the unknown state failed: {e}"))?;
                return Ok(Reopened { store, process, files: plain_files(disk), accepted: true, expect });
            }
            Err(e) => return Err(format!("the store cannot be opened after the crash: {e}")),
        };
        let quarantined = store.status().quarantined;
        if !quarantined.is_empty() {
            process.kill();
            return Err(format!("files are quarantined after the crash: {quarantined:?}"));
        }
        let files = shown_files(&store, disk)?;
        let is_again = expect.allowed >> AGAIN & 1 == 1 && self.again == Some(&files);
        let found = is_again.then_some(AGAIN).or_else(|| find_state(self.reference, expect.allowed, &files));
        let Some(number) = found else {
            process.kill();
            return Err(mixture(self.reference, expect.allowed, &files));
        };
        let exposed = expect.exposed && class == FailureClass::Process;
        let expect = Expect { allowed: 1 << number, class, exposed, away: false };
        disk.set_mark(expect.pack());
        Ok(Reopened { store, process, files, accepted: false, expect })
    }

    /// Runs a recovery that meets a fault. It may fail or leave files for later; then its process dies.
    pub fn attempt(&self, disk: &SimDisk, class: FailureClass) {
        let process = disk.spawn();
        let opened =
            store_options(self.setup, class).open_on(process.clone(), StoreDir::of_directory(), PathBuf::new());
        process.kill();
        drop(opened);
        disk.clear_faults();
    }

    /// Checks that the store works as before: it shows the files, takes a commit, and closes to plain, complete files.
    /// Returns the files.
    pub fn use_again(&self, disk: &SimDisk, reopened: Reopened) -> Result<Files, String> {
        let Reopened { store, process, mut files, expect, .. } = reopened;
        let used = self.use_store(disk, &store, &mut files, expect);
        if used.is_err() {
            process.kill();
        }
        used?;
        store.close().map_err(|e| format!("the store cannot be closed again: {e}"))?;
        disk.set_mark(Expect { allowed: 1 << AGAIN, exposed: false, ..expect }.pack());
        let found = plain_files(disk);
        if found != files {
            return Err(format!("after one more commit and a close, {}", mixture(&Model::new(files), 1, &found)));
        }
        check_leftovers(disk)?;
        check_marks(disk).map(|()| files)
    }

    fn use_store(&self, disk: &SimDisk, store: &Store, files: &mut Files, expect: Expect) -> Result<(), String> {
        compare_views(store, files)?;
        let is_file = |name: &str| matches!(files.get(Path::new(name)), Some(Node::File(..)));
        let name = ["a", "b"].into_iter().find(|name| is_file(name)).unwrap_or("z");
        let text = |e: Error| format!("the store cannot be used again: {e}");
        let exposed = expect.exposed || expect.class == FailureClass::Process;
        // A missing file is created by a commit of its own; the state between the two is not checked.
        let checked = name != "z";
        let allowed = if checked { expect.allowed | 1 << AGAIN } else { 0 };
        disk.set_mark(Expect { allowed, exposed, ..expect }.pack());
        let file = store.open_or_create_file(name).map_err(text)?;
        file.write_at(b"again", 2).map_err(text)?;
        file.commit().map_err(text)?;
        disk.set_mark(Expect { allowed: 1 << AGAIN, exposed, ..expect }.pack());
        let mode = 0o666 & !crate::programs::fixture::umask();
        let node = files.entry(name.into()).or_insert(Node::File(Vec::new(), mode));
        if let Node::File(contents, _) = node {
            contents.resize(contents.len().max(7), 0);
            contents[2..7].copy_from_slice(b"again");
        }
        Ok(())
    }
}

/// After a clean close, only the lock and an empty journal of Untorn's files are left.
pub(crate) fn check_leftovers(disk: &SimDisk) -> Result<(), String> {
    for (path, _) in disk.tree() {
        let text = path.to_string_lossy();
        match text.strip_prefix(".untorn") {
            Some("" | "/owner" | "/lock" | "/journal" | "/journal/header") | None => {}
            Some(inside) if inside.starts_with("/journal/segment.") => {}
            Some(_) => return Err(format!("{text} is left over")),
        }
    }
    Ok(())
}

/// After a clean close, no file waits for a journal any more, whichever owner marked it.
pub(crate) fn check_marks(disk: &SimDisk) -> Result<(), String> {
    // A file in an archived journal, left from an exchange of names, belongs to nobody.
    for (path, entry) in
        disk.tree().into_iter().filter(|(path, _)| !path.to_string_lossy().starts_with("untorn-salvage."))
    {
        let found = Attribute::decode(entry.attribute.as_deref());
        if let AttributeFound::Valid(Attribute { pending: true, .. }) = found {
            return Err(format!("{} still says after a close that its journal must be consulted", path.display()));
        }
    }
    Ok(())
}
