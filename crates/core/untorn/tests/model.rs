//! Random programs over files and transactions, run on a store and on a model of plain vectors, and compared in full
//! after every step. `UNTORN_TEST_SEED` chooses the programs; a failing program is printed in its smallest form.

mod common;

use common::*;
use proptest::prelude::*;
use proptest::test_runner::{Config, RngAlgorithm, TestCaseError, TestRng, TestRunner};
use std::collections::BTreeMap;
use std::path::Path;
use untorn::{FailureClass, File, Store, StoreOptions, Txn};

const PROGRAMS: u32 = 60;
const STEPS_MAX: usize = 60;
const FILE_BYTES_MAX: usize = 40_000;
const NAMES: [&str; 5] = ["a", "b", "c", "d/x", "d/y"];

/// One step. Files and names are picked by number, modulo the number of files or names.
#[derive(Clone, Debug)]
enum Step {
    Write { file: usize, offset: usize, len: usize, byte: u8 },
    Append { file: usize, len: usize, byte: u8 },
    Truncate { file: usize, size: usize },
    Zero { file: usize, offset: usize, len: usize },
    Commit { file: usize },
    CommitAsync { file: usize },
    Rollback { file: usize },
    Syncv { files: Vec<usize> },
    CreateFile { name: usize },
    CloseHandle { file: usize },
    Begin,
    Add { file: usize },
    Create { name: usize, len: usize, byte: u8 },
    Rename { from: usize, to: usize },
    Unlink { name: usize },
    End { commit: bool },
    Checkpoint,
    Reopen { class: bool, by_drop: bool },
}

fn step() -> impl Strategy<Value = Step> {
    let file = 0..NAMES.len();
    let name = 0..NAMES.len();
    // Mostly small and unaligned; sometimes whole pages; sometimes more than a record of the small journal can have.
    let len = prop_oneof![8 => 0..300usize, 2 => Just(4096usize), 1 => 8_000..FILE_BYTES_MAX];
    let offset = prop_oneof![6 => 0..FILE_BYTES_MAX, 2 => (0..8usize).prop_map(|page| page * 4096), 1 => 0..64usize];
    prop_oneof![
        8 => (file.clone(), offset.clone(), len.clone(), any::<u8>())
            .prop_map(|(file, offset, len, byte)| Step::Write { file, offset, len, byte }),
        3 => (file.clone(), len.clone(), any::<u8>()).prop_map(|(file, len, byte)| Step::Append { file, len, byte }),
        3 => (file.clone(), offset.clone()).prop_map(|(file, size)| Step::Truncate { file, size }),
        3 => (file.clone(), offset, len.clone()).prop_map(|(file, offset, len)| Step::Zero { file, offset, len }),
        5 => file.clone().prop_map(|file| Step::Commit { file }),
        2 => file.clone().prop_map(|file| Step::CommitAsync { file }),
        2 => file.clone().prop_map(|file| Step::Rollback { file }),
        2 => prop::collection::vec(file.clone(), 0..4).prop_map(|files| Step::Syncv { files }),
        3 => name.clone().prop_map(|name| Step::CreateFile { name }),
        1 => file.clone().prop_map(|file| Step::CloseHandle { file }),
        3 => Just(Step::Begin),
        3 => file.prop_map(|file| Step::Add { file }),
        3 => (name.clone(), len, any::<u8>()).prop_map(|(name, len, byte)| Step::Create { name, len, byte }),
        3 => (name.clone(), name.clone()).prop_map(|(from, to)| Step::Rename { from, to }),
        2 => name.prop_map(|name| Step::Unlink { name }),
        4 => prop::bool::weighted(0.75).prop_map(|commit| Step::End { commit }),
        1 => Just(Step::Checkpoint),
        1 => (any::<bool>(), any::<bool>()).prop_map(|(class, by_drop)| Step::Reopen { class, by_drop }),
    ]
}

/// The number of a file for its whole life, under all of its names.
type Id = usize;

/// The expected state of a file.
#[derive(Clone, Default)]
struct ModelFile {
    committed: Vec<u8>,
    working: Vec<u8>,
    in_txn: bool,
}

/// The expected state of the store.
#[derive(Default)]
struct Model {
    next: Id,
    files: BTreeMap<Id, ModelFile>,
    /// The committed names.
    names: BTreeMap<&'static str, Id>,
    /// The names after the open transaction.
    txn_names: Option<BTreeMap<&'static str, Id>>,
}

impl Model {
    fn fresh(&mut self) -> Id {
        self.next += 1;
        self.files.insert(self.next, ModelFile::default());
        self.next
    }

    /// The names to which changes refer now.
    fn view(&self) -> &BTreeMap<&'static str, Id> {
        self.txn_names.as_ref().unwrap_or(&self.names)
    }

    fn pick(&self, file: usize) -> Option<Id> {
        let view = self.view();
        view.values().nth(file % view.len().max(1)).copied()
    }

    fn end_txn(&mut self, commit: bool) {
        let Some(names) = self.txn_names.take() else { return };
        if commit {
            self.names = names;
        }
        for file in self.files.values_mut().filter(|file| file.in_txn) {
            file.in_txn = false;
            if commit { file.committed.clone_from(&file.working) } else { file.working.clone_from(&file.committed) }
        }
        let names = &self.names;
        self.files.retain(|id, _| names.values().any(|named| named == id));
    }
}

/// The store beside its model.
struct Pair {
    dir: tempfile::TempDir,
    /// Declared before the store, so that it is dropped first.
    txn: Option<Txn>,
    files: BTreeMap<Id, File>,
    store: Option<Store>,
    model: Model,
}

fn open(dir: &Path, process: bool) -> Store {
    let class = if process { FailureClass::Process } else { FailureClass::Power };
    StoreOptions::new().create(true).journal_bytes(64 << 10).class(class).open(dir).expect("open")
}

impl Pair {
    fn new() -> Pair {
        let dir = directory();
        std::fs::create_dir(dir.path().join("d")).expect("mkdir");
        let store = Some(open(dir.path(), true));
        Pair { dir, txn: None, files: BTreeMap::new(), store, model: Model::default() }
    }

    fn store(&self) -> &Store {
        self.store.as_ref().expect("open between steps")
    }

    fn perform(&mut self, step: &Step) {
        match *step {
            Step::Write { .. } | Step::Append { .. } | Step::Truncate { .. } | Step::Zero { .. } => self.change(step),
            Step::Commit { file } => self.commit(file, File::commit),
            Step::CommitAsync { file } => self.commit(file, |file| file.commit_async()?.wait()),
            Step::Rollback { file } => self.rollback(file),
            Step::Syncv { ref files } => self.syncv(files),
            Step::CreateFile { name } => self.create_file(NAMES[name]),
            Step::CloseHandle { file } => self.close_handle(file),
            Step::Begin | Step::Add { .. } | Step::Create { .. } | Step::Rename { .. } | Step::Unlink { .. } => {
                self.change_txn(step)
            }
            Step::End { commit } => self.end(commit),
            Step::Checkpoint => {
                self.store().checkpoint().expect("checkpoint");
                self.compare_plain();
            }
            Step::Reopen { class, by_drop } => self.reopen(class, by_drop),
        }
    }

    /// A change of one file's bytes.
    fn change(&mut self, step: &Step) {
        let (Step::Write { file, .. }
        | Step::Append { file, .. }
        | Step::Truncate { file, .. }
        | Step::Zero { file, .. }) = *step
        else {
            unreachable!("only changes of bytes come here")
        };
        let Some(id) = self.model.pick(file) else { return };
        let (file, model) = (&self.files[&id], self.model.files.get_mut(&id).expect("picked"));
        let bytes = &mut model.working;
        match *step {
            Step::Write { offset, len, byte, .. } => {
                file.write_all_at(&vec![byte; len], offset as u64).expect("write");
                write(bytes, offset, len, byte);
            }
            Step::Append { len, byte, .. } => {
                assert_eq!(file.append(&vec![byte; len]).expect("append"), bytes.len() as u64);
                write(bytes, bytes.len(), len, byte);
            }
            Step::Truncate { size, .. } => {
                file.set_len(size as u64).expect("truncate");
                bytes.resize(size, 0);
            }
            Step::Zero { offset, len, .. } => {
                file.zero(offset as u64, len as u64).expect("zero");
                write(bytes, offset, len, 0);
            }
            _ => {}
        }
    }

    /// Commits; or checks that a file in a transaction cannot be committed by itself.
    fn commit(&mut self, pick: usize, commit: impl Fn(&File) -> untorn::Result<()>) {
        let Some(id) = self.model.pick(pick) else { return };
        let done = commit(&self.files[&id]);
        let file = self.model.files.get_mut(&id).expect("picked");
        if file.in_txn {
            refused(done, &["in-transaction"]);
        } else {
            done.expect("commit");
            file.committed.clone_from(&file.working);
        }
    }

    fn rollback(&mut self, pick: usize) {
        let Some(id) = self.model.pick(pick) else { return };
        let done = self.files[&id].rollback();
        let file = self.model.files.get_mut(&id).expect("picked");
        if file.in_txn {
            refused(done, &["in-transaction"]);
        } else {
            done.expect("rollback");
            file.working.clone_from(&file.committed);
        }
    }

    fn syncv(&mut self, picks: &[usize]) {
        let ids: Vec<Id> = picks.iter().filter_map(|pick| self.model.pick(*pick)).collect();
        let done = self.store().syncv(&ids.iter().map(|id| &self.files[id]).collect::<Vec<_>>());
        if ids.iter().any(|id| self.model.files[id].in_txn) {
            refused(done, &["in-transaction"]);
            return;
        }
        done.expect("syncv");
        for id in ids {
            let file = self.model.files.get_mut(&id).expect("picked");
            file.committed.clone_from(&file.working);
        }
    }

    fn create_file(&mut self, name: &'static str) {
        // While a transaction is open, its names may be in the way.
        if self.model.txn_names.is_some() || self.model.names.contains_key(name) {
            return;
        }
        let file = self.store().open_or_create_file(name).expect("create");
        let id = self.model.fresh();
        self.model.names.insert(name, id);
        self.files.insert(id, file);
    }

    fn close_handle(&mut self, pick: usize) {
        let Some(id) = self.model.pick(pick) else { return };
        if self.model.txn_names.is_some() {
            return;
        }
        self.files.remove(&id).expect("a handle for each").close().expect("close");
        let name = self.model.names.iter().find(|(_, named)| **named == id).expect("named").0;
        self.files.insert(id, self.store().open_file(name).expect("open again"));
        let file = self.model.files.get_mut(&id).expect("picked");
        file.working.clone_from(&file.committed);
    }

    fn change_txn(&mut self, step: &Step) {
        if let Step::Begin = step
            && self.txn.is_none()
        {
            self.txn = Some(self.store().begin());
            self.model.txn_names = Some(self.model.names.clone());
        }
        let Some(mut txn) = self.txn.take() else { return };
        match *step {
            Step::Add { file } => {
                if let Some(id) = self.model.pick(file) {
                    self.add(&mut txn, id);
                }
            }
            Step::Create { name, len, byte } => self.create(&mut txn, NAMES[name], len, byte),
            Step::Rename { from, to } => self.rename(&mut txn, NAMES[from], NAMES[to]),
            Step::Unlink { name } => {
                if let Some(id) = self.model.view().get(NAMES[name]).copied() {
                    self.add(&mut txn, id);
                    txn.unlink(NAMES[name]).expect("unlink");
                    self.model.txn_names.as_mut().expect("open").remove(NAMES[name]);
                }
            }
            _ => {}
        }
        self.txn = Some(txn);
    }

    fn add(&mut self, txn: &mut Txn, id: Id) {
        txn.add(&self.files[&id]).expect("add");
        self.model.files.get_mut(&id).expect("there").in_txn = true;
    }

    fn create(&mut self, txn: &mut Txn, name: &'static str, len: usize, byte: u8) {
        if self.model.view().contains_key(name) {
            return;
        }
        let file = txn.create(name, 0o644).expect("create");
        file.append(&vec![byte; len]).expect("append");
        let id = self.model.fresh();
        self.files.insert(id, file);
        let model = self.model.files.get_mut(&id).expect("fresh");
        model.working = vec![byte; len];
        model.in_txn = true;
        self.model.txn_names.as_mut().expect("open").insert(name, id);
    }

    fn rename(&mut self, txn: &mut Txn, from: &'static str, to: &'static str) {
        let view = self.model.view();
        let (Some(moved), replaced) = (view.get(from).copied(), view.get(to).copied()) else { return };
        if from == to {
            return;
        }
        for id in [Some(moved), replaced].into_iter().flatten() {
            self.add(txn, id);
        }
        txn.rename(from, to).expect("rename");
        let names = self.model.txn_names.as_mut().expect("open");
        names.remove(from);
        names.insert(to, moved);
    }

    fn end(&mut self, commit: bool) {
        let Some(txn) = self.txn.take() else { return };
        if commit {
            txn.commit().expect("commit")
        } else {
            txn.abort().expect("abort")
        }
        self.model.end_txn(commit);
        let left = &self.model.files;
        self.files.retain(|id, _| left.contains_key(id));
    }

    fn reopen(&mut self, process: bool, by_drop: bool) {
        self.txn = None;
        self.model.end_txn(false);
        self.files.clear();
        let store = self.store.take().expect("open between steps");
        if by_drop {
            drop(store)
        } else {
            store.close().expect("close")
        }
        self.compare_plain();
        let store = open(self.dir.path(), process);
        assert_eq!(store.status().recovered.commits, 0, "a closed store needs no recovery");
        for (name, id) in &self.model.names {
            self.files.insert(*id, store.open_file(name).expect("open"));
        }
        for file in self.model.files.values_mut() {
            file.working.clone_from(&file.committed);
        }
        self.store = Some(store);
    }

    /// Reads everything back through the handles.
    fn compare(&self) {
        for (name, id) in self.model.view() {
            assert_same(&contents(&self.files[id]), &self.model.files[id].working, name);
        }
        for (name, id) in &self.model.names {
            if self.model.txn_names.is_none() {
                assert_eq!(self.files[id].path(), Path::new(name));
            }
            assert!(self.dir.path().join(name).is_file(), "{name} is there for other programs");
        }
        for name in NAMES.iter().filter(|name| !self.model.names.contains_key(*name)) {
            refused_with_errno(self.store().open_file(name), libc::ENOENT);
            assert!(!self.dir.path().join(name).exists(), "{name} is not there for other programs");
        }
    }

    /// Compares with the files as other programs see them, while no commit is pending.
    fn compare_plain(&self) {
        for (name, id) in &self.model.names {
            assert_same(&plain(self.dir.path().join(name)), &self.model.files[id].committed, name);
        }
    }
}

fn write(bytes: &mut Vec<u8>, offset: usize, len: usize, byte: u8) {
    if len > 0 {
        bytes.resize(bytes.len().max(offset + len), 0);
        bytes[offset..offset + len].fill(byte);
    }
}

#[test]
fn random_programs_do_what_the_model_does() {
    let mut bytes = [0; 32];
    bytes[..8].copy_from_slice(&seed().to_le_bytes());
    let config = Config { cases: PROGRAMS, failure_persistence: None, max_shrink_iters: 2000, ..Config::default() };
    let mut runner = TestRunner::new_with_rng(config, TestRng::from_seed(RngAlgorithm::ChaCha, &bytes));
    let programs = prop::collection::vec(step(), 1..STEPS_MAX);
    let outcome = runner.run(&programs, |program| {
        let mut pair = Pair::new();
        for step in &program {
            pair.perform(step);
            pair.compare();
        }
        pair.reopen(false, false);
        pair.compare();
        Ok::<(), TestCaseError>(())
    });
    if let Err(e) = outcome {
        panic!("{e}");
    }
}
