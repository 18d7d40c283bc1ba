//! Programs over a tree whose process is killed: the next process continues in the same state, and nobody notices.
//!
//! A program runs on the simulated disk. At any call of the disk, and after any piece of the handover log, the process
//! may be killed: then another process opens the store with that log. Programs see the same state as before, the
//! unanswered request is repeated and gets the same answer, the rest of the program runs as without the kill, and a
//! power cut after it leaves a state that the rules allow.

mod common;
mod crashes {
    pub mod model;
}

use common::*;
use crashes::model::{Cache, Dirty, Model, Op, Shown};
use fastrand::Rng;
use parking_lot::Mutex;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use untorn::__private::OpenStoreOn;
use untorn_crashlab::{Cut, Fault, On, Options, PROFILES, SimDisk, Snapshot, What};
use untorn_journal::directories::store_dir::StoreDir;
use untorn_tree::*;

/// A step, the log at that time, and the writes that the kernel had yet to send.
type Moment = (usize, Vec<u8>, Dirty);

/// The moments of a program.
#[derive(Default)]
struct Moments {
    step: usize,
    dirty: Arc<Mutex<Dirty>>,
    of: Vec<Moment>,
}

impl Moments {
    fn add(&mut self, log: Vec<u8>) {
        let dirty = self.dirty.lock().clone();
        self.of.push((self.step, log, dirty));
    }
}

/// A log in memory that marks each of its states as a moment of the disk.
struct Memory {
    disk: Arc<SimDisk>,
    log: Mutex<(Vec<u8>, Option<Vec<u8>>)>,
    moments: Arc<Mutex<Moments>>,
}

impl Memory {
    fn new(disk: &Arc<SimDisk>, log: Vec<u8>, moments: Arc<Mutex<Moments>>) -> Arc<Memory> {
        Arc::new(Memory { disk: Arc::clone(disk), log: Mutex::new((log, None)), moments })
    }

    fn mark(&self, log: &[u8]) {
        let mut moments = self.moments.lock();
        moments.add(log.to_vec());
        self.disk.set_mark(moments.of.len() as u64 - 1);
    }
}

impl HandoverLog for Memory {
    fn len(&self) -> io::Result<u64> {
        Ok(self.log.lock().0.len() as u64)
    }

    fn read_at(&self, bytes: &mut [u8], at: u64) -> io::Result<()> {
        bytes.copy_from_slice(&self.log.lock().0[at as usize..at as usize + bytes.len()]);
        Ok(())
    }

    fn append(&self, parts: &[&[u8]]) -> io::Result<()> {
        let mut log = self.log.lock();
        let (current, next) = &mut *log;
        let to = next.as_mut().unwrap_or(current);
        parts.iter().for_each(|part| to.extend_from_slice(part));
        self.mark(&log.0);
        Ok(())
    }

    fn cut(&self, len: u64) -> io::Result<()> {
        self.log.lock().0.truncate(len as usize);
        Ok(())
    }

    fn begin(&self, _: u64) -> io::Result<()> {
        self.log.lock().1 = Some(Vec::new());
        Ok(())
    }

    fn finish(&self) -> io::Result<()> {
        let mut log = self.log.lock();
        log.0 = log.1.take().unwrap();
        self.mark(&log.0);
        Ok(())
    }

    fn give_up(&self) {
        panic!("the log is given up");
    }
}

fn shown(tree: &StoreTree) -> Shown {
    let mut state = Shown::new();
    let mut below = vec![(ROOT, String::new())];
    while let Some((dir, path)) = below.pop() {
        for entry in tree.read_dir(dir, 0, usize::MAX).unwrap() {
            let path = format!("{path}/{}", entry.name.to_str().unwrap());
            let is_dir = entry.kind == Kind::Directory;
            if is_dir {
                below.push((entry.ino, path.clone()));
            }
            state.insert(path, (!is_dir).then(|| contents(tree, entry.ino)));
        }
    }
    state
}

fn open_kept(
    disk: &SimDisk,
    clock: &Arc<TestClock>,
    mode: CommitMode,
    kept: Arc<dyn HandoverLog>,
) -> untorn::Result<StoreTree> {
    let store = store_options(disk).open_on(disk.process(), StoreDir::of_directory(), PathBuf::new())?;
    let small_max = small_max(disk);
    StoreTree::open(store, TreeOptions { kept: Some(kept), small_max, ..tree_options(clock, mode) })
}

/// A step, with the model and the time before it.
struct Step {
    model: Model,
    op: Op,
    acknowledged: usize,
    now: u64,
}

struct Program {
    mode: CommitMode,
    steps: Vec<Step>,
    /// The live state, and the state that a commit of all names shows, before each step.
    lives: Vec<Shown>,
    states: Vec<Shown>,
}

/// Does a step; returns an error if the result is wrong.
fn act(
    n: usize,
    cache: &Cache<'_>,
    clock: &TestClock,
    model: &mut Model,
    op: &Op,
) -> std::result::Result<bool, String> {
    let expected = model.apply(op);
    answering(n as u64 + 1);
    let result = cache.act(op, clock, model);
    if result.is_ok() != expected {
        return Err(format!("step {n}, {op:?}, gives {result:?}; the rules: {expected}"));
    }
    Ok(expected)
}

/// Resumes after a kill at a moment; the next process may be killed, too.
fn resume(program: &Program, disk: SimDisk, moment: Moment, rng: &mut Rng, deep: u32) -> Outcome {
    let (n, log, dirty) = moment;
    let (step, disk) = (&program.steps[n], Arc::new(disk));
    let clock = Arc::new(TestClock::default());
    clock.pass(step.now);
    let mut moments = Moments { step: n, dirty: Arc::new(Mutex::new(dirty)), of: Vec::new() };
    moments.add(log.clone());
    let (dirty, moments) = (Arc::clone(&moments.dirty), Arc::new(Mutex::new(moments)));
    let kept = Memory::new(&disk, log, Arc::clone(&moments));
    disk.set_mark(0);
    disk.record();
    answering(0);
    let tree = open_kept(&disk, &clock, program.mode, kept).map_err(|e| format!("it cannot go on: {e}"))?;
    if !tree.pack_is_as_rows_say().unwrap() {
        return Err("the room in the pack is not what the rows have".into());
    }
    let found = shown(&tree);
    if !step.op.sends() && found != program.lives[n] && found != program.lives[n + 1] {
        return Err(format!("programs see {found:?}, and saw {:?}", program.lives[n]));
    }
    // The request is repeated, followed by the program's further requests.
    let mut model = step.model.clone();
    let cache = Cache::with(&tree, dirty);
    let until = (n + rng.usize(1..6)).min(program.steps.len());
    let mut acknowledged = step.acknowledged;
    for (n, step) in program.steps.iter().enumerate().take(until).skip(n) {
        begin_step(&moments, &disk, n);
        if act(n, &cache, &clock, &mut model, &step.op)? && step.op.is_sync() {
            acknowledged = n + 1;
        }
        tree.answered(n as u64 + 1);
        if !tree.pack_is_as_rows_say().unwrap() {
            return Err(format!("after step {n}, {:?}, the room in the pack is not what the rows have", step.op));
        }
        let live = shown(&tree);
        if live != program.lives[n + 1] {
            return Err(format!(
                "after step {n}, {:?}, programs see {live:?}, not {:?}",
                step.op,
                program.lives[n + 1]
            ));
        }
    }
    let snapshots = disk.recorded();
    disk.kill();
    drop(tree);
    let after = disk.power_cut(Cut::Seed(rng.u64(..))).disk;
    let tree = open_with(&after, &clock, program.mode).map_err(|e| format!("after a power cut: {e}"))?;
    let found = shown(&tree);
    if !program.states[acknowledged..=until].contains(&found) {
        let acknowledged = &program.states[acknowledged];
        return Err(format!("after step {until} and a power cut there is {found:?}, acknowledged: {acknowledged:?}"));
    }
    if deep > 0 {
        let of = &moments.lock().of;
        let at = rng.usize(..snapshots.len());
        let again = moment_of(&snapshots, at, of, rng);
        let n = again.0;
        resume(program, snapshots[at].killed(), again, rng, deep - 1)
            .map_err(|e| format!("killed again at call {at} of {}, in step {n}: {e}", snapshots.len()))?;
    }
    Ok(())
}

type Outcome = std::result::Result<(), String>;

fn begin_step(moments: &Mutex<Moments>, disk: &SimDisk, n: usize) {
    let mut moments = moments.lock();
    moments.step = n;
    let log = moments.of.last().unwrap().1.clone();
    moments.add(log);
    disk.set_mark(moments.of.len() as u64 - 1);
}

/// Picks a moment between one call of the disk and the next, because the log may have grown in between.
fn moment_of(snapshots: &[Snapshot], at: usize, of: &[Moment], rng: &mut Rng) -> Moment {
    let first = snapshots[at].mark() as usize;
    let last = snapshots.get(at + 1).map_or(first, |next| next.mark() as usize).max(first);
    of[rng.usize(first..=last)].clone()
}

fn run(seed: u64, steps: usize) -> std::result::Result<usize, String> {
    let mut rng = Rng::with_seed(seed);
    answering(0);
    let profile = PROFILES[rng.usize(..PROFILES.len())];
    let disk = Arc::new(SimDisk::new(Options { seed, profile, ..Options::default() }));
    let clock = Arc::new(TestClock::default());
    let mode = if seed.is_multiple_of(3) { CommitMode::Store } else { CommitMode::Sync };
    let moments = Arc::<Mutex<Moments>>::default();
    let kept = Memory::new(&disk, Vec::new(), Arc::clone(&moments));
    let tree = open_kept(&disk, &clock, mode, kept).unwrap();
    let d = dir(&tree, ROOT, "d");
    tree.sync_names(&Clean).unwrap();
    let mut model = Model::new(d, mode);
    model.apart = rng.bool();
    let mut program = Program { mode, steps: Vec::new(), lives: vec![model.live()], states: vec![model.state()] };
    let (mut acknowledged, mut now) = (0, 0);
    let cache = Cache::with(&tree, Arc::clone(&moments.lock().dirty));
    disk.record();
    for n in 0..steps {
        let op = model.draw(&mut rng);
        let before = Step { model: model.clone(), op: op.clone(), acknowledged, now };
        program.steps.push(before);
        begin_step(&moments, &disk, n);
        if act(n, &cache, &clock, &mut model, &op)? && op.is_sync() {
            acknowledged = n + 1;
        }
        if let Op::Tick(seconds) = op {
            now += seconds;
        }
        if rng.bool() {
            tree.answered(n as u64 + 1);
        }
        program.lives.push(model.live());
        program.states.push(model.state());
    }
    let snapshots = disk.recorded();
    let moments = std::mem::take(&mut moments.lock().of);
    // Inodes are known as soon as they are made.
    program.steps.iter_mut().for_each(|step| step.model.learn(&model));
    let mut kills = 0;
    for at in 0..snapshots.len() {
        if rng.bool() {
            continue;
        }
        let moment = moment_of(&snapshots, at, &moments, &mut rng);
        let (n, deep) = (moment.0, rng.u32(..3));
        resume(&program, snapshots[at].killed(), moment, &mut rng, deep)
            .map_err(|e| format!("killed at call {at} of {}, in step {n}: {e}", snapshots.len()))?;
        kills += 1;
    }
    Ok(kills)
}

#[test]
fn a_process_that_is_killed_is_replaced_unnoticed() {
    let seeds = std::env::var("UNTORN_TREE_SEEDS").ok().and_then(|text| text.parse().ok()).unwrap_or(200);
    let first: u64 = std::env::var("UNTORN_TEST_SEED").ok().and_then(|text| text.parse().ok()).unwrap_or(1);
    let mut kills = 0;
    for seed in first..first + seeds {
        kills += run(seed, 6 + seed as usize % 24).unwrap_or_else(|what| panic!("UNTORN_TEST_SEED={seed}: {what}"));
    }
    println!("{kills} kills of {seeds} programs from seed {first}");
    assert!(kills as u64 > seeds * 3, "hardly anything was killed");
}

/// A commit of another owner is not overwritten.
#[test]
fn a_store_that_somebody_else_used_meanwhile_is_not_resumed() {
    let (disk, clock, tree) = new_tree();
    let disk = Arc::new(disk);
    drop(tree);
    let kept = Memory::new(&disk, Vec::new(), Arc::default());
    let tree = open_kept(&disk, &clock, CommitMode::Sync, Arc::clone(&kept) as Arc<dyn HandoverLog>).unwrap();
    file(&tree, "a");
    tree.sync_names(&Clean).unwrap();
    disk.kill();
    drop(tree);
    let other = open(&disk, &clock);
    file(&other, "b");
    other.sync_names(&Clean).unwrap();
    disk.kill();
    drop(other);
    let refused = open_kept(&disk, &clock, CommitMode::Sync, kept).err().expect("it is refused").to_string();
    assert!(refused.contains("another program has used the store"), "{refused}");
}

/// A tree with a log, whose process can be killed.
struct Killed {
    disk: Arc<SimDisk>,
    clock: Arc<TestClock>,
    kept: Arc<Memory>,
    tree: Option<StoreTree>,
}

impl Killed {
    fn new() -> Killed {
        Killed::on(Options::default())
    }

    fn on(options: Options) -> Killed {
        let disk = Arc::new(SimDisk::new(options));
        let clock = Arc::new(TestClock::default());
        let kept = Memory::new(&disk, Vec::new(), Arc::default());
        answering(0);
        let tree = open_kept(&disk, &clock, CommitMode::Sync, Arc::clone(&kept) as Arc<dyn HandoverLog>).unwrap();
        Killed { disk, clock, kept, tree: Some(tree) }
    }

    fn tree(&self) -> &StoreTree {
        self.tree.as_ref().unwrap()
    }

    /// Kills the process, and starts another one, with `free` free blocks below it.
    fn kill(&mut self, free: u64) {
        self.disk.kill();
        self.tree = None;
        answering(0);
        let store =
            store_options(&self.disk).open_on(self.disk.process(), StoreDir::of_directory(), PathBuf::new()).unwrap();
        let kept = Some(Arc::clone(&self.kept) as Arc<dyn HandoverLog>);
        let (small_max, below) = (small_max(&self.disk), Some(room(free)));
        let options = TreeOptions { kept, below, small_max, ..tree_options(&self.clock, CommitMode::Sync) };
        self.tree = Some(StoreTree::open(store, options).unwrap());
    }

    /// The tree after a power cut that loses everything that was not flushed.
    fn cut(&self) -> StoreTree {
        let copy = self.disk.fork();
        copy.kill();
        answering(0);
        open(&copy.power_cut(Cut::Nothing).disk, &self.clock)
    }

    fn objects(&self) -> usize {
        let copy = self.disk.fork();
        copy.kill();
        let store = store_options(&copy).open_on(copy.process(), StoreDir::of_directory(), PathBuf::new()).unwrap();
        store.list("obj/0").unwrap().len()
    }
}

const MUCH: u64 = 1 << 20;

/// A process is killed in the middle of a frame, and on a full disk the next one cannot begin a new log. It must not
/// append its frames after the incomplete frame, where the process after it would not find them.
#[test]
fn what_is_logged_after_a_part_of_a_frame_is_followed() {
    for len in [100_u64, 10_000, 1 << 20] {
        let mut at = Killed::new();
        let (a, b) = (synced(at.tree(), "a", b"old"), synced(at.tree(), "b", b"old"));
        at.disk.set_capacity(Some(0));
        let refused = (0..10_000_u64).find_map(|n| {
            at.tree().write(a, 0, &n.to_le_bytes().repeat(100)).unwrap();
            at.tree().sync(a, &Clean).err()
        });
        assert_eq!(refused, Some(Errno(libc::ENOSPC)));
        let part = [&len.to_le_bytes()[..], &[b'D'; 60]].concat();
        at.kept.log.lock().0.extend_from_slice(&part);
        let before = at.kept.log.lock().0.len() - part.len();
        at.kill(MUCH);
        assert_eq!(at.kept.log.lock().0.len(), before, "the log goes on as it is, without the part");
        at.tree().rename((ROOT, name("b")), (ROOT, name("c")), RenameFlags::Replace, &Clean).unwrap();
        at.tree().write(b, 0, b"new").unwrap();
        for _ in 0..2 {
            at.kill(MUCH);
            assert_eq!(contents_of(at.tree(), "c"), b"new", "a frame of {len} bytes");
            assert!(at.tree().lookup(ROOT, name("b")).is_err());
        }
        at.disk.set_capacity(None);
        at.tree().sync(b, &Clean).unwrap();
        assert_eq!(contents_of(&at.cut(), "c"), b"new");
    }
}

/// The program has ended, and its transaction is being aborted.
#[test]
fn a_transaction_that_was_to_be_given_up_is_given_up_by_the_next_process() {
    let mut at = Killed::new();
    let [a, b] = ["a", "b"].map(|called| synced(at.tree(), called, b"old"));
    let txn = at.tree().begin(7, false).unwrap();
    for ino in [a, b] {
        at.tree().add(txn, ino).unwrap();
        at.tree().write(ino, 0, b"half").unwrap();
    }
    let other = at.tree().begin(9, false).unwrap();
    assert_eq!(at.tree().end_opening(7), [txn]);
    at.tree().release(a, true);
    at.kill(MUCH);
    assert_eq!(at.tree().left(), [txn], "the other one goes on");
    assert_eq!(at.tree().end_opening(7), [], "it is left once");
    // Killed once more, after a new log was begun.
    at.kill(MUCH);
    for left in at.tree().left() {
        at.tree().leave(left, &Clean);
    }
    at.tree().commit(other, false, &Clean).unwrap();
    for (ino, called) in [(a, "a"), (b, "b")] {
        at.tree().sync(ino, &Clean).unwrap();
        assert_eq!(contents_of(at.tree(), called), b"old");
        assert_eq!(contents_of(&at.cut(), called), b"old");
    }
}

/// Two files exchange their names on a full disk: the names are right, and so is the commit with the contents, which is
/// large, goes to a spill file, and was refused at first.
#[test]
fn a_seal_that_is_owed_outlives_the_process() {
    let mut failures = 0;
    for (on, kills) in [On::Write, On::Size, On::Name, On::Attribute].into_iter().flat_map(|on| [(on, 1), (on, 2)]) {
        for after in 0..4 {
            let mut at = Killed::new();
            let [a, b] = ["a", "b"].map(|called| synced(at.tree(), called, b"old"));
            at.tree().write(a, 0, &[7; 10_000]).unwrap();
            at.tree().write(b, 0, &[8; 10_000]).unwrap();
            at.disk.fail(Fault { on, after, times: 1, what: What::Errno(libc::ENOSPC) });
            at.tree().rename((ROOT, name("a")), (ROOT, name("b")), RenameFlags::Exchange, &Clean).unwrap();
            failures += usize::from(!at.disk.faults_left());
            at.disk.clear_faults();
            // The second time a new log was begun.
            (0..kills).for_each(|_| at.kill(MUCH));
            at.tree().sync_names(&Clean).unwrap();
            let found = at.cut();
            assert_eq!(contents_of(&found, "a"), [8; 10_000], "{on:?} after {after}, {kills} kills");
            assert_eq!(contents_of(&found, "b"), [7; 10_000], "{on:?} after {after}, {kills} kills");
        }
    }
    println!("{failures} failures");
    assert!(failures > 0, "nothing failed");
}

/// A request was done but not answered to the kernel: repeated, it needs no room.
#[test]
fn what_was_made_before_the_disk_was_full_is_made() {
    let mut at = Killed::new();
    answering(5);
    let made = file(at.tree(), "made");
    at.kill(0);
    answering(5);
    assert_eq!(file(at.tree(), "made"), made);
    answering(6);
    let other = at.tree().make(ME, ROOT, name("other"), Kind::File, 0o644, 0);
    assert_eq!(other.map(drop), Err(Errno(libc::ENOSPC)));
}

/// Files were removed, and no commit has the removal: their room is freed once, and not allocated twice.
#[test]
fn room_of_removed_files_is_free_once() {
    let mut at = Killed::new();
    for called in ["a", "b", "c"] {
        let ino = synced(at.tree(), called, called.repeat(5000).as_bytes());
        at.tree().release(ino, true);
    }
    for called in ["a", "b"] {
        let ino = at.tree().lookup(ROOT, name(called)).unwrap().ino;
        at.tree().unlink(ROOT, name(called)).unwrap();
        at.tree().forget(ino, 2);
    }
    for _ in 0..2 {
        at.kill(MUCH);
        assert!(at.tree().pack_is_as_rows_say().unwrap());
    }
    let new = ["d", "e", "f"].map(|called| (called, synced(at.tree(), called, called.repeat(5000).as_bytes())));
    for (called, ino) in new {
        assert_eq!(contents(at.tree(), ino), called.repeat(5000).as_bytes());
    }
    at.kill(MUCH);
    assert!(at.tree().pack_is_as_rows_say().unwrap());
    let found = at.cut();
    ["c", "d", "e", "f"]
        .iter()
        .for_each(|called| assert_eq!(contents_of(&found, called), called.repeat(5000).as_bytes()));
}

/// The opening removes an object that no commit includes; the log must not remove it a second time.
#[test]
fn an_object_that_goes_before_any_commit_goes_once() {
    for kills in 1..4 {
        let mut at = Killed::on(Options { seed: 8, ..Options::default() });
        let a = file(at.tree(), "a");
        at.tree().write(a, 0, &[7; 100_000]).unwrap();
        at.tree().unlink(ROOT, name("a")).unwrap();
        at.tree().forget(a, 1);
        (0..kills).for_each(|_| at.kill(MUCH));
        synced(at.tree(), "b", b"b");
        at.tree().sync_names(&Clean).unwrap();
        assert_eq!(at.objects(), 1, "{kills} kills");
    }
}

/// The kernel knows an inode as often as it got an answer with it.
#[test]
fn what_was_given_in_no_answer_is_not_counted() {
    // Each file has an object, whose removal shows the end of the inode.
    let mut at = Killed::on(Options { seed: 8, ..Options::default() });
    let (a, b) = (synced(at.tree(), "a", b"a"), synced(at.tree(), "b", b"b"));
    assert_eq!(at.objects(), 2);
    for (ino, called) in [(a, "a"), (b, "b")] {
        at.tree().release(ino, true);
        // The kernel knows the inode since it was made. The process is killed twice before the answer, and once after
        // it.
        let (asked, next) = (2 * ino, 2 * ino + 1);
        answering(asked);
        at.tree().lookup(ROOT, name(called)).unwrap();
        for _ in 0..2 {
            at.kill(MUCH);
            answering(asked);
            at.tree().lookup(ROOT, name(called)).unwrap();
        }
        at.tree().answered(asked);
        at.kill(MUCH);
        answering(next);
        at.tree().unlink(ROOT, name(called)).unwrap();
        at.tree().answered(next);
        at.tree().sync_names(&Clean).unwrap();
        for _ in 0..2 {
            assert_eq!(at.tree().attributes(ino).unwrap().nlink, 0, "the kernel knows it twice");
            at.tree().forget(ino, 1);
        }
        assert_eq!(at.tree().attributes(ino).map(drop), Err(Errno(libc::ESTALE)));
        answering(0);
        at.tree().sync_names(&Clean).unwrap();
    }
    assert_eq!(at.objects(), 0);
}

/// A kernel whose tree's process is killed before the kernel drops its cache of a file.
struct Killing;

impl KernelCache for Killing {
    fn write_back(&self, _: Ino) -> Result<()> {
        Ok(())
    }

    fn rolled_back(&self, _: Ino, _: u64) {
        panic!("killed");
    }
}

/// A kernel that drops its cache.
#[derive(Default)]
struct Dropping(Mutex<Vec<(Ino, u64)>>);

impl KernelCache for Dropping {
    fn write_back(&self, _: Ino) -> Result<()> {
        Ok(())
    }

    fn rolled_back(&self, ino: Ino, size: u64) {
        self.0.lock().push((ino, size));
    }
}

/// The tree has no uncommitted changes of the file any more, while the kernel's cache still has them.
#[test]
fn the_kernel_drops_what_a_killed_process_rolled_back() {
    for (chains, kills) in [(true, 1), (false, 1), (true, 2)] {
        let mut at = Killed::new();
        let a = synced(at.tree(), "a", b"old");
        let txn = at.tree().begin(7, false).unwrap();
        at.tree().add(txn, a).unwrap();
        at.tree().write(a, 0, b"longer").unwrap();
        answering(5);
        let killed = std::panic::AssertUnwindSafe(|| at.tree().abort(txn, chains, &Killing));
        assert!(std::panic::catch_unwind(killed).is_err());
        (0..kills).for_each(|_| at.kill(MUCH));
        answering(5);
        let kernel = Dropping::default();
        at.tree().abort(txn, chains, &kernel).unwrap();
        assert_eq!(*kernel.0.lock(), [(a, 3)], "{chains} {kills}");
        assert_eq!(contents_of(at.tree(), "a"), b"old");
        answering(0);
    }
}

/// The killed process had logged a commit of several transactions, and perhaps submitted it: the next one makes it with
/// the files of all of them, and it happens once.
#[test]
fn transactions_that_are_committed_together_are_all_in_the_commit_that_is_made_again() {
    let mut made_again = 0;
    for after in 0..20 {
        let mut at = Killed::new();
        let inos = ["a", "b", "c"].map(|called| synced(at.tree(), called, b"old"));
        let txns = inos.map(|ino| {
            let txn = at.tree().begin(7, false).unwrap();
            at.tree().add(txn, ino).unwrap();
            at.tree().write(ino, 0, &[7; 10_000]).unwrap();
            txn
        });
        at.disk.fail(Fault { on: On::Change, after, times: 10_000, what: What::Errno(libc::EIO) });
        answering(5);
        let done = at.tree().commit_together(&txns, &Clean);
        at.disk.clear_faults();
        at.kill(MUCH);
        // The commit is made without the program, whose request is repeated later.
        at.tree().sync_names(&Clean).unwrap();
        let found = at.cut();
        let all = ["a", "b", "c"].map(|called| contents_of(&found, called));
        let is_new = all[0].len() == 10_000;
        assert!(
            all.iter().all(|one| *one == if is_new { vec![7; 10_000] } else { b"old".to_vec() }),
            "{after}: {all:?}"
        );
        made_again += usize::from(is_new && done.is_err());
        answering(5);
        at.tree().commit_together(&txns, &Clean).unwrap();
        answering(0);
        for (ino, called) in inos.iter().zip(["a", "b", "c"]) {
            assert_eq!(contents_of(&at.cut(), called), [7; 10_000], "{after}");
            at.tree().write(*ino, 0, b"half").unwrap();
        }
        for left in at.tree().end_opening(7) {
            at.tree().leave(left, &Clean);
        }
        inos.iter().for_each(|ino| assert_eq!(contents(at.tree(), *ino), [7; 10_000], "{after}: it goes on"));
    }
    println!("{made_again} commits were made again");
    assert!(made_again > 0);
}

/// If a file had changes before its transaction's first commit, the end of the opening discards only changes after that
/// commit, also if another process continues.
#[test]
fn one_that_keeps_gives_up_only_what_comes_behind_its_first_commit() {
    for commits in [false, true] {
        let mut at = Killed::new();
        let a = file(at.tree(), "a");
        at.tree().write(a, 0, b"before").unwrap();
        let txn = at.tree().begin(7, true).unwrap();
        at.tree().add(txn, a).unwrap();
        if commits {
            at.tree().commit(txn, true, &Clean).unwrap();
            at.tree().write(a, 0, b"behind").unwrap();
        }
        at.kill(MUCH);
        for left in at.tree().end_opening(7) {
            at.tree().leave(left, &Clean);
        }
        assert_eq!(contents_of(at.tree(), "a"), b"before", "{commits}");
        at.tree().sync(a, &Clean).unwrap();
        assert_eq!(contents_of(&at.cut(), "a"), b"before");
    }
}

/// Of two commits that the killed process had submitted, one finds no room at first: the other one must not include its
/// names without its contents.
#[test]
fn what_finds_no_room_when_it_is_followed_comes_with_the_next_commit() {
    let mut deferred = 0;
    for after in 0..40 {
        let mut at = Killed::new();
        let [a, b, c] = ["a", "b", "c"].map(|called| synced(at.tree(), called, b"old"));
        synced(at.tree(), "d", b"old");
        for (ino, byte) in [(a, 7), (b, 8), (c, 9)] {
            at.tree().write(ino, 0, &[byte; 10_000]).unwrap();
        }
        at.tree().rename((ROOT, name("a")), (ROOT, name("b")), RenameFlags::Exchange, &Clean).unwrap();
        at.tree().rename((ROOT, name("c")), (ROOT, name("d")), RenameFlags::Replace, &Clean).unwrap();
        at.disk.kill();
        at.tree = None;
        at.disk.fail(Fault { on: On::Change, after, times: 1, what: What::Errno(libc::ENOSPC) });
        // An opening that finds no room at all is tried again.
        let going_on = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| at.kill(MUCH))).is_ok();
        let has_failed = !at.disk.faults_left();
        at.disk.clear_faults();
        if !going_on {
            at.kill(MUCH);
        }
        deferred += usize::from(going_on && has_failed);
        if at.tree().sync_names(&Clean).is_err() {
            // The log itself failed: that is final until another process continues.
            at.kill(MUCH);
            at.tree().sync_names(&Clean).unwrap();
        }
        let found = at.cut();
        let all = ["a", "b", "d"].map(|called| contents_of(&found, called));
        assert_eq!(all, [[8; 10_000], [7; 10_000], [9; 10_000]], "after {after}");
    }
    println!("{deferred} commits found no room");
    assert!(deferred > 0, "nothing failed");
}

/// The data of a failed write is missing in the next process, too, until it is written anew.
#[test]
fn what_is_lost_is_missed_by_the_next_process() {
    const EIO: std::result::Result<(), Errno> = Err(Errno(libc::EIO));
    let mut at = Killed::new();
    let a = synced(at.tree(), "a", &[1; 100_000]);
    let lost = vec![3; 4 << 20];
    at.disk.fail(Fault { on: On::Change, after: 0, times: 10_000, what: What::Errno(libc::ENOSPC) });
    assert!(at.tree().write(a, 100_000, &lost).is_err());
    at.disk.clear_faults();
    // The second time a new log was begun.
    for _ in 0..2 {
        at.kill(MUCH);
        assert_eq!(at.tree().sync(a, &Clean), EIO);
        assert_eq!(at.tree().sync_all(&Clean), EIO);
        assert_eq!(at.tree().read(a, 100_000, &mut [0]).map(drop), EIO);
    }
    at.tree().write(a, 100_000, &lost).unwrap();
    at.kill(MUCH);
    at.tree().sync(a, &Clean).unwrap();
    assert_eq!(contents_of(&at.cut(), "a").len(), 100_000 + lost.len());
}
