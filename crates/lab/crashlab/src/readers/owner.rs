//! The owners of a program: each opens the store, changes it, and closes it or is killed.

use super::plan::{LARGE, LifePlan, Plan, Stop, done};
use super::world::{Tree, World};
use crate::programs::runner::KillOnDrop;
use crate::simulation::turns::Seat;
use crate::simulation::{SimDisk, SimProcess};
use fastrand::Rng;
use parking_lot::Mutex;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use untorn::__private::{OpenStoreOn, StoreSteps};
use untorn::{Store, StoreOptions};
use untorn_journal::directories::store_dir::StoreDir;

/// All names that an owner uses.
pub(super) const NAMES: [&str; 5] = ["a", "b", "c", "d", "e"];
/// The name to which another program moves a file for a while.
pub(super) const ELSEWHERE: &str = "elsewhere";
/// A name that a transaction uses, and that no commit shows.
const TEMPORARY: &str = "temporary";
/// The directory of all that is kept for readers.
const UNDO: &str = ".untorn/undo";
const FILE_BYTES_MAX: usize = 9000;
/// The most calls of one step, whatever readers do.
const STEP_CALLS_MAX: u64 = 6000;

/// Opens the store of a program in a process.
pub(super) fn open(process: &Arc<SimProcess>, plan: &Plan, has_page: bool) -> untorn::Result<Store> {
    let (journal, first, inline) = plan.sizes;
    let options = StoreOptions::new().create(true).background(false).sizes(journal, first, inline).page(has_page);
    let options = match plan.may_give_up {
        // Of these programs, half keep nothing at all.
        true => options.readers_space(if plan.keeps_nothing { 0 } else { 2 * journal }),
        false => options,
    };
    options.open_on(process.clone(), StoreDir::of_directory(), PathBuf::new())
}

/// The whole tree of an open store.
pub(super) fn tree_of(store: &Store) -> untorn::Result<Tree> {
    let mut tree = Tree::new();
    for name in store.list("")? {
        let file = store.open_file(&name)?;
        let mut contents = vec![0; file.len()? as usize];
        file.read_exact_at(&mut contents, 0)?;
        tree.insert(name.to_string_lossy().into(), contents);
    }
    Ok(tree)
}

/// The owners of a program, one after the other.
pub(super) struct Owner<'p> {
    pub rng: Rng,
    pub disk: &'p SimDisk,
    pub world: &'p Mutex<World>,
    pub plan: &'p Plan,
    /// The calls of each step.
    pub calls: Vec<(&'static str, u64)>,
    /// The most names that were in the directory of all that is kept.
    pub kept_most: u64,
}

/// One life of the owner. The process ends before the store is dropped.
struct Life {
    process: KillOnDrop,
    store: Store,
}

impl Life {
    fn done<T>(&self, what: &str, result: untorn::Result<T>) -> Result<T, Stop> {
        done(&self.process.0, what, result)
    }
}

impl Owner<'_> {
    fn open(&self, life: &LifePlan, seat: Option<&Seat>) -> Result<Life, Stop> {
        let process = KillOnDrop(self.disk.spawn());
        seat.into_iter().for_each(|seat| process.0.take_turns(seat.clone()));
        life.dies_at.into_iter().for_each(|call| process.0.die_at(call));
        process.0.allow(STEP_CALLS_MAX);
        let store = done(&process.0, "opening the store", open(&process.0, self.plan, life.has_page))?;
        Ok(Life { process, store })
    }

    /// Runs one life. Returns [`Stop::Dead`] if the process was killed.
    pub fn live(&mut self, plan: &LifePlan, seat: Option<&Seat>) -> Result<(), Stop> {
        let life = self.open(plan, seat)?;
        if plan.has_file_that_waits {
            self.let_a_file_wait(&life)?;
        } else {
            self.recover(&life)?;
            self.run(&life, plan.steps)?;
        }
        if plan.closes {
            life.process.0.allow(STEP_CALLS_MAX);
            life.done("close", life.store.clone().close())?;
        }
        Ok(())
    }

    fn run(&mut self, life: &Life, steps: usize) -> Result<(), Stop> {
        for _ in 0..steps {
            let before = life.process.0.calls();
            life.process.0.allow(STEP_CALLS_MAX);
            let step = match self.rng.u8(..8) {
                0 | 1 => self.checkpoint(life)?,
                2 if self.rng.bool() => self.checkpoint_of_one(life)?,
                2 => life.done("a durable mark", life.store.write_durable_mark()).map(|_| "durable mark")?,
                _ => self.change(life)?,
            };
            self.calls.push((step, life.process.0.calls() - before));
            self.kept_most = self.kept_most.max(self.kept().len() as u64);
        }
        Ok(())
    }

    /// The names of all that is kept for readers.
    fn kept(&self) -> Vec<std::ffi::OsString> {
        self.disk.machine().state.list(Path::new(UNDO)).unwrap_or_default()
    }

    /// Compares what the opening found with what was committed.
    fn recover(&mut self, life: &Life) -> Result<(), Stop> {
        let tree = life.done("reading the store", tree_of(&life.store))?;
        let lsn = life.store.status().lsn;
        self.world.lock().recover(&tree, lsn).map_err(Stop::Wrong)
    }

    /// Makes a commit that leads to this tree.
    fn commit(&mut self, life: &Life, tree: Tree, act: impl FnOnce() -> untorn::Result<()>) -> Result<(), Stop> {
        let before = life.store.status().lsn;
        self.world.lock().begin(tree, before);
        life.done("a commit", act())?;
        self.world.lock().acknowledge();
        let after = life.store.status().lsn;
        self.world.lock().learn_lsn(after);
        Ok(())
    }

    /// Bytes that depend on the commit that writes them.
    fn bytes(&mut self) -> Vec<u8> {
        let number = self.world.lock().begun() + 1;
        let len = if self.rng.u8(..4) == 0 { self.rng.usize(1..FILE_BYTES_MAX) } else { self.rng.usize(1..600) };
        number.to_le_bytes().into_iter().cycle().take(len).collect()
    }

    fn name(&mut self, tree: &Tree) -> Option<String> {
        self.rng.choice(tree.keys()).cloned()
    }

    /// Makes one commit, of contents or of names.
    fn change(&mut self, life: &Life) -> Result<&'static str, Stop> {
        let mut tree = self.world.lock().tree();
        let Some(name) = self.name(&tree) else { return self.create(life, tree) };
        let store = &life.store;
        match self.rng.u8(..12) {
            10 => self.replace(life, tree, name),
            11 => self.exchange(life, tree, name),
            0..=3 => self.write(life, tree, name),
            4 => {
                let len = self.rng.usize(..FILE_BYTES_MAX / 2);
                let contents = tree.get_mut(&name).expect("a name");
                if contents.len() != len {
                    contents.resize(len, 0);
                    let file = life.done("open", store.open_file(&name))?;
                    self.commit(life, tree, || file.set_len(len as u64).and_then(|()| file.commit()))?;
                }
                Ok("truncate")
            }
            5 | 6 => self.create(life, tree),
            7 | 8 => {
                let to = NAMES[self.rng.usize(..NAMES.len())].to_owned();
                if to != name {
                    let contents = tree.remove(&name).expect("a name");
                    tree.insert(to.clone(), contents);
                    self.commit(life, tree, || store.rename(&name, &to))?;
                }
                Ok("rename")
            }
            _ => {
                tree.remove(&name);
                self.commit(life, tree, || {
                    let mut txn = store.begin();
                    txn.unlink(&name)?;
                    txn.commit()
                })?;
                Ok("unlink")
            }
        }
    }

    /// Writes to one file, or to two of them at once.
    fn write(&mut self, life: &Life, mut tree: Tree, name: String) -> Result<&'static str, Stop> {
        let mut names = vec![name];
        names.extend(self.name(&tree).filter(|other| *other != names[0]));
        let bytes = self.bytes();
        let mut files = Vec::new();
        for name in &names {
            let contents = tree.get_mut(name).expect("a name");
            let at = self.rng.usize(..=contents.len());
            let end = at + bytes.len();
            contents.resize(contents.len().max(end), 0);
            contents[at..end].copy_from_slice(&bytes);
            let file = life.done("open", life.store.open_file(name))?;
            life.done("write", file.write_all_at(&bytes, at as u64))?;
            files.push(file);
        }
        self.commit(life, tree, || life.store.syncv(&files.iter().collect::<Vec<_>>()))?;
        Ok("write")
    }

    /// Creates a file with contents, under a new name or in the place of another file.
    fn create(&mut self, life: &Life, mut tree: Tree) -> Result<&'static str, Stop> {
        let name = NAMES[self.rng.usize(..NAMES.len())].to_owned();
        let bytes = self.bytes();
        let is_new = tree.insert(name.clone(), bytes.clone()).is_none();
        self.commit(life, tree, || {
            let mut txn = life.store.begin();
            if !is_new {
                txn.unlink(&name)?;
            }
            txn.create(&name, 0o644)?.write_all_at(&bytes, 0)?;
            txn.commit()
        })?;
        Ok("create")
    }

    /// Replaces a file by a new one, as programs do: under another name first.
    fn replace(&mut self, life: &Life, mut tree: Tree, name: String) -> Result<&'static str, Stop> {
        let bytes = self.bytes();
        tree.insert(name.clone(), bytes.clone());
        self.commit(life, tree, || {
            let mut txn = life.store.begin();
            txn.create(TEMPORARY, 0o644)?.write_all_at(&bytes, 0)?;
            txn.rename(TEMPORARY, &name)?;
            txn.commit()
        })?;
        Ok("replace")
    }

    /// Exchanges the names of two files.
    fn exchange(&mut self, life: &Life, mut tree: Tree, name: String) -> Result<&'static str, Stop> {
        if let Some(other) = self.name(&tree).filter(|other| *other != name) {
            let [one, two] = [&name, &other].map(|name| tree.remove(name).expect("a name"));
            tree.extend([(name.clone(), two), (other.clone(), one)]);
            self.commit(life, tree, || {
                let mut txn = life.store.begin();
                txn.rename(&name, TEMPORARY)?;
                txn.rename(&other, &name)?;
                txn.rename(TEMPORARY, &other)?;
                txn.commit()
            })?;
        }
        Ok("exchange")
    }

    /// A checkpoint of one file, which leaves the log and the other files.
    fn checkpoint_of_one(&mut self, life: &Life) -> Result<&'static str, Stop> {
        let tree = self.world.lock().tree();
        if let Some(name) = self.name(&tree) {
            let file = life.done("open", life.store.open_file(&name))?;
            life.done("a checkpoint of one file", file.checkpoint())?;
        }
        Ok("checkpoint of one file")
    }

    /// A checkpoint, with commits between its steps, unless the log may get full meanwhile: then a commit makes a
    /// checkpoint of its own.
    fn checkpoint(&mut self, life: &Life) -> Result<&'static str, Stop> {
        let what = "checkpoint";
        if self.plan.sizes != LARGE || life.store.status().journal_bytes_pending > LARGE.0 / 2 {
            life.done(what, life.store.checkpoint())?;
            return Ok(what);
        }
        let Some(begun) = life.done(what, life.store.begin_checkpoint())? else { return Ok(what) };
        for _ in 0..self.rng.usize(..2) {
            self.change(life)?;
        }
        let applied = life.done(what, begun.apply())?;
        for _ in 0..self.rng.usize(..2) {
            self.change(life)?;
        }
        life.done(what, applied.truncate_log())?;
        Ok(what)
    }

    /// Writes contents of two files. One of them waits meanwhile, because another program has moved it away, so that
    /// its commits are restated.
    fn let_a_file_wait(&mut self, life: &Life) -> Result<(), Stop> {
        let (waits, other) = ("a", "b");
        let disk = self.disk;
        let moved =
            |from: &str, to: &str| disk.rename(from, to).map_err(|e| Stop::Wrong(format!("moving a file: {e}")));
        for name in [waits, other] {
            let mut tree = self.world.lock().tree();
            tree.insert(name.into(), vec![1; 3000]);
            self.commit(life, tree, || {
                let mut txn = life.store.begin();
                txn.create(name, 0o644)?.write_all_at(&[1; 3000], 0)?;
                txn.commit()
            })?;
        }
        life.done("a checkpoint", life.store.checkpoint())?;
        for n in 2..63u8 {
            life.process.0.allow(STEP_CALLS_MAX);
            if n == 60 {
                moved(ELSEWHERE, waits)?;
            }
            let name = if n == 2 { waits } else { other };
            let mut tree = self.world.lock().tree();
            tree.insert(name.into(), vec![n; 3000]);
            let file = life.done("open", life.store.open_file(name))?;
            self.commit(life, tree, || file.write_all_at(&[n; 3000], 0).and_then(|()| file.commit()))?;
            if n == 2 {
                moved(waits, ELSEWHERE)?;
            }
        }
        Ok(())
    }

    /// After all readers, one commit and one checkpoint free everything that was kept for them.
    pub fn free(&mut self) -> Result<(), Stop> {
        let life = self.open(&LifePlan::default(), None)?;
        if self.plan.missing.is_none() {
            self.recover(&life)?;
        }
        let tree = self.world.lock().tree();
        self.create(&life, tree)?;
        life.done("a checkpoint", life.store.checkpoint())?;
        let kept = self.kept();
        if !kept.is_empty() {
            return Err(Stop::Wrong(format!("without readers, {kept:?} is kept behind a checkpoint")));
        }
        let (bytes, largest) = self.segment_bytes().map_err(|e| Stop::Wrong(format!("the segments: {e}")))?;
        // The journal may exceed its limit by less than one segment.
        match bytes >= self.plan.sizes.0 + largest {
            true => Err(Stop::Wrong(format!("without readers, the segments have {bytes} bytes behind a checkpoint"))),
            false => Ok(()),
        }
    }

    /// The lengths of all segments together, and of the largest one.
    fn segment_bytes(&self) -> std::io::Result<(u64, u64)> {
        let (machine, journal) = (self.disk.machine(), StoreDir::of_directory().journal());
        let names = machine.state.list(&journal)?.into_iter();
        let segments = names.filter(|name| name.to_string_lossy().starts_with("segment."));
        let mut found = (0, 0);
        for name in segments {
            let bytes = machine.state.meta(machine.state.resolve(&journal.join(name))?)?.size;
            found = (found.0 + bytes, bytes.max(found.1));
        }
        Ok(found)
    }
}
