//! Runs a program on a simulated disk, step by step beside the reference model.

use crate::programs::differences::{mixture, shown_files};
use crate::programs::fixture::{ELSEWHERE, MANY, find_state, many_name, store_options};
use crate::programs::program::{Op, Start};
use crate::programs::reference_model::{Files, Node};
use crate::programs::runner::{KillOnDrop, Runner, Step, Stop, wrong};
use crate::simulation::SimProcess;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use untorn::__private::{Checkpoint, OpenStoreOn, StoreSteps};
use untorn::{Error, FailureClass, File, Store};
use untorn_journal::directories::store_dir::StoreDir;

/// A checkpoint that a program has begun.
enum Stage<'s> {
    Cut(Checkpoint<'s>),
    Applied(Checkpoint<'s>),
}

fn stage_number(stage: &Option<Stage<'_>>) -> u8 {
    match stage {
        None => 0,
        Some(Stage::Cut(_)) => 1,
        Some(Stage::Applied(_)) => 2,
    }
}

fn other(class: FailureClass) -> FailureClass {
    match class {
        FailureClass::Power | FailureClass::Memory | FailureClass::Remote => FailureClass::Process,
        FailureClass::Process => FailureClass::Power,
    }
}

/// The way in which an epoch ends: one opening of the store by the program.
enum End {
    /// Closed; the next opening is of this class.
    Closed(FailureClass),
    Killed,
    Away,
    Finished,
}

/// A change of one file.
enum Edit {
    Write(u64, usize),
    Append(usize),
    Size(u64),
    Zero(u64, u64),
}

impl Runner<'_> {
    /// Runs a program, and keeps the moments of its last operation.
    pub fn run(&mut self, ops: &[Op]) -> Result<(), String> {
        if ops.is_empty() || self.faults {
            self.disk.record();
        }
        self.mark();
        let done = self.epochs(ops);
        if self.snapshots.is_empty() {
            self.snapshots = self.disk.recorded();
        }
        self.moved |= self.snapshots.len() > 1;
        match done {
            Err(Stop::Wrong(what)) => Err(what),
            Ok(()) | Err(Stop::GaveUp) => Ok(()),
        }
    }

    fn epochs(&mut self, ops: &[Op]) -> Step<()> {
        let mut at = 0;
        loop {
            let process = self.disk.spawn();
            let store = self.open(&process)?;
            let guard = KillOnDrop(process);
            if at == 0 && self.setup.start == Start::Pending && self.serial == 0 {
                for name in ["a", "b"] {
                    self.edit_and_commit(&store, name, Edit::Write(30, 9))?;
                }
            }
            let end = self.epoch(&store, ops, &mut at)?;
            if matches!(end, End::Killed | End::Away) {
                guard.0.kill();
            }
            if !matches!(end, End::Finished) {
                self.mapped = None;
                self.handles.clear();
            }
            match end {
                End::Closed(next) => {
                    let closed = store.close();
                    self.take_results()?;
                    match closed {
                        Ok(()) => self.exposed = false,
                        Err(e) => self.refused("close", &e)?,
                    }
                    self.class = next;
                }
                End::Killed => {}
                End::Away => self.while_away()?,
                End::Finished => {
                    self.snapshots = self.disk.recorded();
                    self.disk.clear_faults();
                    return if self.troubled { Ok(()) } else { self.compare(&store) };
                }
            }
            self.tickets.clear();
            self.mark();
            at += 1;
        }
    }

    /// Runs operations from one opening of the store to its end.
    fn epoch<'s>(&mut self, store: &'s Store, ops: &[Op], at: &mut usize) -> Step<End> {
        let mut stage: Option<Stage<'s>> = None;
        while let Some(op) = ops.get(*at) {
            let last = *at + 1 == ops.len();
            if last && !self.faults {
                self.disk.record();
            }
            let state =
                |runner: &Self, stage: &_| (runner.reference.allowed(), stage_number(stage), runner.mapped.is_some());
            let before = (self.reference.now.clone(), state(self, &stage));
            match op {
                Op::Close => return Ok(End::Closed(self.class)),
                Op::Other => return Ok(End::Closed(other(self.class))),
                Op::Kill => return Ok(End::Killed),
                Op::Away => return Ok(End::Away),
                Op::Cut => self.advance(store, &mut stage, 1)?,
                Op::Apply => self.advance(store, &mut stage, 2)?,
                Op::Retire => self.advance(store, &mut stage, 3)?,
                Op::Mark => {
                    if let Err(e) = store.write_durable_mark() {
                        self.refused("mark", &e)?;
                    }
                }
                op => {
                    // A commit that finds the journal full would wait for the running checkpoint.
                    if stage.is_some()
                        && (self.room_bytes(store) < self.setup.journal.room_bytes_min() || self.may_checkpoint(*op))
                    {
                        self.advance(store, &mut stage, 3)?;
                    }
                    self.operate(store, *op)?;
                }
            }
            self.compare_memory()?;
            self.moved = last && (&before.0, before.1) != (&self.reference.now, state(self, &stage));
            *at += 1;
        }
        Ok(End::Finished)
    }

    /// The room in the journal. With a fault planned, room that must be allocated first does not count.
    fn room_bytes(&self, store: &Store) -> u64 {
        let status = store.status();
        let all = if self.faults { status.journal_bytes_allocated } else { status.journal_bytes_max };
        all.saturating_sub(status.journal_bytes_pending)
    }

    // --- opening

    fn open(&mut self, process: &Arc<SimProcess>) -> Step<Store> {
        let options = store_options(self.setup, self.class);
        let mut opened = options.open_on(process.clone(), StoreDir::of_directory(), PathBuf::new());
        if let (Err(e), true) = (&opened, self.faults) {
            self.refused("open", &e.clone())?;
            opened = options.open_on(process.clone(), StoreDir::of_directory(), PathBuf::new());
        }
        if let (Err(Error::UnknownState { .. }), true, true) = (&opened, self.faults, self.exposed) {
            // A flush failed that had to cover unflushed commits of class `process`.
            return Err(Stop::GaveUp);
        }
        let store = opened.or_else(|e| wrong(format!("the store cannot be opened again: {e}")))?;
        let status = store.status();
        if !status.quarantined.is_empty() {
            let what = format!("files are quarantined: {:?}", status.quarantined);
            process.kill();
            return if self.faults { Err(Stop::GaveUp) } else { wrong(what) };
        }
        let mut shown = shown_files(&store, self.disk);
        if shown.is_err() && self.faults {
            // This is the planned fault.
            self.troubled = true;
            shown = shown_files(&store, self.disk);
        }
        let shown = shown.or_else(wrong);
        let (allowed, found) = (self.reference.allowed(), shown?);
        match find_state(&self.reference, allowed, &found) {
            Some(number) => self.reference.settle(number),
            None => return wrong(mixture(&self.reference, allowed, &found)),
        }
        if self.class == FailureClass::Power {
            self.exposed = false;
        }
        self.mark();
        Ok(store)
    }

    /// Another program moves `a` away from a killed store, which then opens without `a`; and moves it back.
    fn while_away(&mut self) -> Step<()> {
        if self.disk.rename("a", ELSEWHERE).is_err() {
            return Ok(());
        }
        self.away = true;
        self.disk.settle();
        self.mark();
        let process = self.disk.spawn();
        let options = store_options(self.setup, self.class);
        let opened = options.open_on(process.clone(), StoreDir::of_directory(), PathBuf::new());
        process.kill();
        if let Err(e) = opened {
            self.refused("opening without `a`", &e)?;
        }
        self.disk.rename(ELSEWHERE, "a").or_else(|e| wrong(format!("`a` cannot be moved back: {e}")))?;
        self.disk.settle();
        self.away = false;
        Ok(())
    }

    // --- checkpoints

    fn advance<'s>(&mut self, store: &'s Store, stage: &mut Option<Stage<'s>>, to: u8) -> Step<()> {
        while stage_number(stage) < to {
            let result = match stage.take() {
                None => match store.begin_checkpoint() {
                    Ok(None) => return Ok(()),
                    Ok(Some(checkpoint)) => Ok(Some(Stage::Cut(checkpoint))),
                    Err(e) => Err(e),
                },
                Some(Stage::Cut(checkpoint)) => checkpoint.apply().map(|c| Some(Stage::Applied(c))),
                Some(Stage::Applied(checkpoint)) => {
                    return match checkpoint.truncate_log() {
                        Ok(()) => Ok(()),
                        Err(e) => self.refused("retire", &e),
                    };
                }
            };
            match result {
                Ok(next) => *stage = next,
                Err(e) => return self.refused("checkpoint", &e),
            }
        }
        Ok(())
    }

    // --- operations

    fn operate(&mut self, store: &Store, op: Op) -> Step<()> {
        let size = |files: &Files| match files.get(Path::new("a")) {
            Some(Node::File(contents, _)) => contents.len() as u64,
            _ => 0,
        };
        let size = size(&self.reference.now);
        match op {
            Op::One => self.edit_and_commit(store, "a", Edit::Write(0, 1)),
            Op::Across => self.edit_and_commit(store, "a", Edit::Write(4090, 20)),
            Op::Large => self.edit_and_commit(store, "b", Edit::Write(100, 4097)),
            Op::Whole => self.edit_and_commit(store, "a", Edit::Write(50, 4000)),
            Op::Append => self.edit_and_commit(store, "b", Edit::Append(600)),
            Op::Empty => self.edit_and_commit(store, "a", Edit::Size(0)),
            Op::Shrink => self.edit_and_commit(store, "a", Edit::Size(size.saturating_sub(1000))),
            Op::Grow => self.edit_and_commit(store, "a", Edit::Size(size + 3000)),
            Op::Zero => self.edit_and_commit(store, "a", Edit::Zero(1000, 4000)),
            Op::Dirty => self.edit(store, "a", Edit::Write(200, 4097)).map(drop),
            Op::Both => self.both(store),
            Op::Async => {
                if self.edit(store, "a", Edit::Write(300, 2))? {
                    self.commit_async("a")?;
                }
                Ok(())
            }
            Op::Group => self.group(store),
            Op::Rollback => self.rollback(store),
            Op::Many => self.many(store),
            Op::Only => {
                let Some(at) = self.handle(store, "a")? else { return Ok(()) };
                self.handles[at].checkpoint().or_else(|e| self.refused("a checkpoint of `a`", &e))
            }
            op if op.is_of_maps() => self.on_mapped(store, op),
            op => self.names(store, op),
        }?;
        self.take_results_if_written(op)
    }

    /// Takes the results of earlier asynchronous commits, which are known after an operation that waits.
    fn take_results_if_written(&mut self, op: Op) -> Step<()> {
        let waits = matches!(op, Op::Async | Op::Dirty | Op::Later | Op::Poke | Op::Undo | Op::Abort)
            || matches!(op, Op::Map | Op::Told | Op::Unmap | Op::Stretch | Op::Clip);
        if waits { Ok(()) } else { self.take_results() }
    }

    /// Changes a file without committing. False: the change was refused.
    fn edit(&mut self, store: &Store, name: &str, edit: Edit) -> Step<bool> {
        let Some(at) = self.handle(store, name)? else { return Ok(false) };
        self.serial += 1;
        let serial = self.serial;
        let bytes = |len: usize| (0..len).map(|i| (serial * 16 + i * 5 % 241) as u8 | 1).collect::<Vec<u8>>();
        let Some(Node::File(contents, _)) = self.reference.now.get(Path::new(name)) else {
            return wrong(format!("{name} is no file"));
        };
        let mut contents = contents.clone();
        let file = &self.handles[at];
        let put = |contents: &mut Vec<u8>, offset: usize, bytes: &[u8]| {
            contents.resize(contents.len().max(offset + bytes.len()), 0);
            contents[offset..offset + bytes.len()].copy_from_slice(bytes);
        };
        let result = match edit {
            Edit::Write(offset, len) => {
                put(&mut contents, offset as usize, &bytes(len));
                file.write_all_at(&bytes(len), offset)
            }
            Edit::Append(len) => {
                let end = contents.len();
                put(&mut contents, end, &bytes(len));
                file.append(&bytes(len)).map(drop)
            }
            Edit::Size(size) => {
                contents.resize(size as usize, 0);
                file.set_len(size)
            }
            Edit::Zero(offset, len) => {
                put(&mut contents, offset as usize, &vec![0; len as usize]);
                file.zero(offset, len)
            }
        };
        if let Err(e) = result {
            // A part of the change may have been made; it is rolled back.
            let back = file.rollback();
            self.refused("a change", &e)?;
            if back.is_ok() {
                self.forget_changes(name);
            }
            return Ok(false);
        }
        if let Some(Node::File(old, _)) = self.reference.now.get_mut(Path::new(name)) {
            *old = contents;
        }
        Ok(true)
    }

    fn edit_and_commit(&mut self, store: &Store, name: &str, edit: Edit) -> Step<()> {
        if self.edit(store, name, edit)? {
            let number = self.submit(self.changes_of(&[name.to_owned()]));
            let result = self.last_handle().commit();
            self.take_result(number, result)?;
        }
        Ok(())
    }

    fn last_handle(&self) -> &File {
        self.handles.last().expect("a handle was just opened")
    }

    fn commit_async(&mut self, name: &str) -> Step<()> {
        let number = self.submit(self.changes_of(&[name.to_owned()]));
        match self.last_handle().commit_async() {
            Ok(ticket) => self.tickets.push((ticket, number)),
            Err(e) => drop(self.take_result(number, Err(e))?),
        }
        Ok(())
    }

    fn both(&mut self, store: &Store) -> Step<()> {
        if !self.edit(store, "a", Edit::Write(70, 40))? || !self.edit(store, "b", Edit::Write(500, 40))? {
            return Ok(());
        }
        let number = self.submit(self.changes_of(&["a".into(), "b".into()]));
        let [.., a, b] = &self.handles[..] else { return Ok(()) };
        let result = store.syncv(&[a, b]);
        self.take_result(number, result).map(drop)
    }

    fn group(&mut self, store: &Store) -> Step<()> {
        for (name, offset) in [("b", 600), ("a", 4000)] {
            if self.edit(store, name, Edit::Write(offset, 2))? {
                self.commit_async(name)?;
            }
        }
        for (ticket, number) in std::mem::take(&mut self.tickets) {
            let result = ticket.wait();
            self.take_result(number, result)?;
        }
        Ok(())
    }

    fn rollback(&mut self, store: &Store) -> Step<()> {
        if self.edit(store, "a", Edit::Write(1200, 4097))? {
            let result = self.last_handle().rollback();
            match result {
                Ok(()) => self.forget_changes("a"),
                Err(e) => self.refused("rollback", &e)?,
            }
        }
        self.edit_and_commit(store, "b", Edit::Write(20, 1))
    }

    fn many(&mut self, store: &Store) -> Step<()> {
        let names: Vec<String> = (0..MANY).map(many_name).collect();
        for name in &names {
            if !self.edit(store, name, Edit::Write(10, 10))? {
                return Ok(());
            }
        }
        let number = self.submit(self.changes_of(&names));
        let result = store.syncv(&self.handles[self.handles.len() - MANY..].iter().collect::<Vec<_>>());
        self.take_result(number, result).map(drop)
    }
}
