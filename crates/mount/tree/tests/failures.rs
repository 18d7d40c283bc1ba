//! Calls below a tree that fail, for lack of room (ENOSPC, EDQUOT) or otherwise (EIO): each call in turn, once or until
//! the fault is cleared.
//!
//! Changes that could not be committed are committed later, in order; nothing comes apart meanwhile, and only after a
//! failed flush does the tree refuse all work until it is opened again.

mod common;
use common::*;
use std::sync::Arc;
use untorn_crashlab::{Fault, On, PROFILES, SimDisk, What};
use untorn_tree::*;

const CONFIG: [&str; 2] = ["config", "config.new"];

/// The tree on a copy of the disk after a kill.
fn after_crash(disk: &SimDisk, clock: &Arc<TestClock>) -> std::result::Result<StoreTree, String> {
    let copy = disk.fork();
    copy.clear_faults();
    copy.kill();
    open_with(&copy, clock, CommitMode::Sync).map_err(|e| e.to_string())
}

struct Program {
    disk: SimDisk,
    clock: Arc<TestClock>,
    tree: StoreTree,
    /// The last versions of the configuration, and of the pair of files, that a sync acknowledged.
    acknowledged: [u8; 2],
    /// The newest versions that were begun.
    newest: [u8; 2],
}

fn config(version: u8) -> Vec<u8> {
    vec![version; 900 + 977 * version as usize]
}

impl Program {
    fn ino(&self, called: &str) -> Option<Ino> {
        self.tree.lookup(ROOT, name(called)).ok().map(|found| found.ino)
    }

    fn there(&self, called: &str) -> Result<Ino> {
        match self.ino(called) {
            Some(ino) => Ok(ino),
            None => Ok(self.tree.make(ME, ROOT, name(called), Kind::File, 0o644, 0)?.ino),
        }
    }

    /// Writes all of a file anew, as a program does after an error.
    fn fill(&self, called: &str, bytes: &[u8]) -> Result<Ino> {
        let ino = self.there(called)?;
        self.tree.set_attributes(ino, &Change { size: Some(0), ..Change::default() })?;
        self.tree.write(ino, 0, bytes)?;
        Ok(ino)
    }

    /// Renames a new configuration over the old one without a sync of it.
    fn replace(&mut self, version: u8) -> Result<()> {
        if self.newest[0] < version {
            self.fill(CONFIG[1], &config(version))?;
            self.newest[0] = version;
            self.tree.rename((ROOT, name(CONFIG[1])), (ROOT, name(CONFIG[0])), RenameFlags::Replace, &Clean)?;
        }
        if self.ino(CONFIG[1]).is_some() {
            self.tree.rename((ROOT, name(CONFIG[1])), (ROOT, name(CONFIG[0])), RenameFlags::Replace, &Clean)?;
        }
        Ok(())
    }

    fn sync_names(&mut self) -> Result<()> {
        self.tree.sync_names(&Clean)?;
        self.acknowledged[0] = self.newest[0];
        Ok(())
    }

    /// Commits two files in one commit.
    fn pair(&mut self, version: u8) -> Result<()> {
        self.newest[1] = version;
        let one = self.fill("one", &[version; 700])?;
        let two = self.fill("two", &vec![version; 20_000])?;
        self.tree.sync_files(&[one, two], &Clean)?;
        self.acknowledged = self.newest;
        Ok(())
    }

    fn remove(&mut self, called: &str) -> Result<()> {
        if self.ino(called).is_some() {
            self.tree.unlink(ROOT, name(called))?;
        }
        self.tree.sync_names(&Clean)?;
        self.acknowledged[0] = self.newest[0];
        Ok(())
    }

    fn step(&mut self, n: usize) -> Option<Result<()>> {
        Some(match n {
            0 => self.replace(1),
            1 => self.sync_names(),
            2 => self.pair(1),
            3 => self.replace(2),
            4 => self.replace(3),
            5 => self.fill("other", &vec![7; 30_000]).map(drop),
            6 => self.sync_names(),
            7 => self.pair(2),
            8 => {
                self.clock.pass(6);
                self.tree.tick(&Clean);
                Ok(())
            }
            9 => self.remove("other"),
            10 => self.replace(4),
            11 => self.pair(3),
            12 => {
                for k in 0..3 {
                    if self.there(&format!("many{k}")).is_err() {
                        return Some(Err(Errno(libc::EIO)));
                    }
                }
                self.sync_names()
            }
            _ => return None,
        })
    }

    fn reopen(&mut self) {
        self.disk.kill();
        self.tree = open(&self.disk, &self.clock);
        // Changes that no sync acknowledged may be gone.
        let found = self.ino(CONFIG[0]).map(|ino| contents(&self.tree, ino));
        self.newest[0] = found.and_then(|bytes| bytes.first().copied()).unwrap_or(0);
    }

    /// Checks the state that a crash now leaves.
    fn check_crash(&self) -> std::result::Result<(), String> {
        let tree = after_crash(&self.disk, &self.clock)?;
        let of = |called| tree.lookup(ROOT, name(called)).ok().map(|found| contents(&tree, found.ino));
        let version = |bytes: &Option<Vec<u8>>| bytes.as_ref().and_then(|b| b.first().copied()).unwrap_or(0);
        let found = of(CONFIG[0]);
        let v = version(&found);
        if found.as_ref().is_some_and(|found| *found != config(v)) || v < self.acknowledged[0] || v > self.newest[0] {
            let len = found.map(|found| found.len());
            return Err(format!("the configuration is of version {v}, {len:?} bytes; {:?}", self.acknowledged));
        }
        let (one, two) = (of("one"), of("two"));
        let (v, w) = (version(&one), version(&two));
        let whole = |bytes: &Option<Vec<u8>>, len| bytes.as_ref().is_none_or(|b| b.is_empty() || *b == vec![b[0]; len]);
        if v != w || !whole(&one, 700) || !whole(&two, 20_000) || v < self.acknowledged[1] {
            let len = |b: &Option<Vec<u8>>| b.as_ref().map(Vec::len);
            return Err(format!(
                "a pair of versions {v}, {w}: {:?}, {:?}; {:?}",
                len(&one),
                len(&two),
                self.acknowledged
            ));
        }
        Ok(())
    }
}

/// Runs the program with a fault. A failed flush is final; all other failures are not.
fn with_failure(seed: u64, on: On, after: u64, times: u64, error: i32) -> std::result::Result<bool, String> {
    let options =
        untorn_crashlab::Options { seed, profile: PROFILES[seed as usize % PROFILES.len()], ..Default::default() };
    let disk = SimDisk::new(options);
    let clock = Arc::new(TestClock::default());
    let tree = open(&disk, &clock);
    let mut program = Program { disk, clock, tree, acknowledged: [0; 2], newest: [0; 2] };
    program.replace(0).map_err(|e| format!("{e:?}"))?;
    program.disk.fail(Fault { on, after, times, what: What::Errno(error) });
    let (mut n, mut failed) = (0, false);
    while let Some(first) = program.step(n) {
        let mut done = first;
        for tries in 0.. {
            program.check_crash().map_err(|e| format!("step {n}: {e}"))?;
            let Err(e) = done else { break };
            failed = true;
            if tries == 2 {
                program.disk.clear_faults();
            }
            if tries == 4 && on == On::Write {
                // A failed write of the log itself counts as a failed flush.
                program.reopen();
            }
            if tries == 6 {
                return Err(format!("step {n} does not go on when all is well again: {e:?}"));
            }
            done = program.step(n).expect("the same step");
        }
        n += 1;
    }
    failed |= !program.disk.faults_left();
    program.disk.clear_faults();
    program.tree.sync_all(&Clean).map_err(|e| format!("the last sync: {e:?}"))?;
    program.acknowledged = program.newest;
    program.check_crash()?;
    program.tree.close(&Clean).map_err(|e| format!("closing: {e:?}"))?;
    let tree = open(&program.disk, &program.clock);
    let found = contents_of(&tree, CONFIG[0]);
    if found != config(program.newest[0])
        || contents_of(&tree, "two") != vec![3; 20_000]
        || tree.lookup(ROOT, name("other")).is_ok()
    {
        return Err("not everything is there".into());
    }
    Ok(failed)
}

#[test]
fn a_tree_goes_on_after_every_failure_but_of_a_flush() {
    let mut failures = 0;
    for (seed, on) in [On::Write, On::Size, On::Name, On::Attribute].into_iter().cycle().take(20).enumerate() {
        for (times, error) in [(1, libc::EIO), (1, libc::ENOSPC), (1000, libc::ENOSPC), (3, libc::EDQUOT)] {
            let mut after = 0;
            while with_failure(seed as u64 / 4, on, after, times, error)
                .unwrap_or_else(|what| panic!("seed {}, {times} {on:?} {error} after {after}: {what}", seed / 4))
            {
                failures += 1;
                after += 1;
            }
        }
    }
    println!("{failures} failures");
    assert!(failures > 200, "hardly anything failed");
}

/// A tree whose checkpoint found no room for the table, and which still finds none, with a file `kept`, and a file `gone`
/// that was removed since.
fn removed_behind_a_full_table(error: i32) -> (SimDisk, Arc<TestClock>, StoreTree, Ino) {
    let (disk, clock, tree) = new_tree();
    let (kept, gone) = (synced(&tree, "kept", b"kept"), file(&tree, "gone"));
    tree.write(gone, 0, b"much").unwrap();
    tree.sync_all(&Clean).unwrap();
    disk.fail(Fault { on: On::Write, after: 0, times: 1000, what: What::Errno(error) });
    assert_eq!(tree.write_back(), Err(Errno(error)), "the error of the system");
    tree.unlink(ROOT, name("gone")).unwrap();
    tree.forget(gone, 1);
    (disk, clock, tree, kept)
}

/// A checkpoint finds no room for the table, and the journal cannot be written either. The tree ends; opened again, it
/// has its last commit.
#[test]
fn a_removal_that_cannot_be_logged_ends_the_tree() {
    for error in [libc::ENOSPC, libc::EDQUOT] {
        let (disk, clock, tree, kept) = removed_behind_a_full_table(error);
        assert_eq!(tree.sync(kept, &Clean), Err(Errno(libc::EIO)), "the journal failed");
        disk.clear_faults();
        assert_eq!(tree.sync(kept, &Clean), Err(Errno(libc::EIO)), "until the tree is opened again");
        let tree = open(&disk.fork(), &clock);
        assert_eq!(contents_of(&tree, "kept"), b"kept");
        let gone = tree.lookup(ROOT, name("gone")).map(|_| contents_of(&tree, "gone"));
        assert!(gone.is_err() || gone.is_ok_and(|gone| gone == b"much"));
    }
}

/// A checkpoint finds no room for the table. When there is room again, a commit that removes objects continues, too.
#[test]
fn removals_go_on_when_the_table_could_not_be_written_for_a_while() {
    for error in [libc::ENOSPC, libc::EDQUOT] {
        let (disk, clock, tree, kept) = removed_behind_a_full_table(error);
        disk.clear_faults();
        tree.sync(kept, &Clean).unwrap();
        let tree = reopen(&disk, &clock, tree);
        assert_eq!(contents_of(&tree, "kept"), b"kept");
        assert!(tree.lookup(ROOT, name("gone")).is_err());
    }
}
