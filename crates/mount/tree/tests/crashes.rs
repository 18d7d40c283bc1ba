//! Programs over a tree on the simulated disk, with every possible crash: the tree found afterwards is in a state that
//! the rules allow.
//!
//! The model below knows the rules, and nothing of tables and objects. A state is the result of a commit of all names
//! after some operation: the names, and for each file the contents that were committed by then. After a crash the tree
//! shows one of these states, no older than the last that was acknowledged. A third of the programs commit in rounds,
//! where each state has all changes that programs had made when a sync was called.

mod common;
mod crashes {
    pub mod model;
}

use common::*;
use crashes::model::{Cache, Model, Op, Shown as State};
use fastrand::Rng;
use std::collections::BTreeSet;
use std::sync::Arc;
use untorn::__private::{OpenStoreOn, open_reader_on};
use untorn_crashlab::{Cut, Options, PROFILES, SimDisk};
use untorn_journal::directories::store_dir::StoreDir;
use untorn_tree::*;

fn shown(tree: &StoreTree) -> State {
    let mut state = State::new();
    let mut below = vec![(ROOT, String::new())];
    while let Some((dir, path)) = below.pop() {
        for entry in tree.read_dir(dir, 0, usize::MAX).unwrap() {
            let path = format!("{path}/{}", entry.name.to_str().unwrap());
            if entry.kind == Kind::Directory {
                below.push((entry.ino, path.clone()));
                state.insert(path, None);
            } else {
                state.insert(path, Some(contents(tree, entry.ino)));
            }
        }
    }
    state
}

fn pack(first: usize, last: usize) -> u64 {
    (first as u64) << 32 | last as u64
}

/// Checks that the tree shows one of the states that the mark allows.
fn check(tree: &StoreTree, mark: u64, states: &[State]) -> std::result::Result<State, String> {
    let found = shown(tree);
    let (first, last) = ((mark >> 32) as usize, (mark & 0xffff_ffff) as usize);
    if states[first..=last].contains(&found) {
        return Ok(found);
    }
    let brief = |state: &State| {
        let contents = |bytes: &Vec<u8>| format!("{} bytes, {:?}", bytes.len(), &bytes[..bytes.len().min(4)]);
        state
            .iter()
            .map(|(path, c)| format!("{path}: {}", c.as_ref().map_or("dir".into(), contents)))
            .collect::<Vec<_>>()
    };
    let allowed: Vec<_> = (first..=last).map(|n| format!("{n}: {:?}", brief(&states[n]))).collect();
    Err(format!("found {:?}\nallowed\n{}", brief(&found), allowed.join("\n")))
}

/// Checks that the tree is sound as readers see it at the last commit.
fn is_sound(disk: &SimDisk, is_closed: bool) -> std::result::Result<(), String> {
    // The owner on this disk shows nothing to readers, so they open the store after a kill.
    let disk = disk.fork();
    disk.kill();
    let reader = open_reader_on(disk.process(), StoreDir::of_directory(), "".into()).map_err(|e| e.to_string())?;
    let found = reader.with_snapshot(verify).map_err(|e| format!("a reader: {e}"))?;
    if found.problem_count > 0 || is_closed && found.unknown_objects + found.removed > 0 {
        return Err(format!("a reader finds {found:?}"));
    }
    Ok(())
}

/// Opens the tree, crashes the opening up to `deep` times, and checks the result.
fn recover(disk: SimDisk, mark: u64, states: &[State], rng: &mut Rng, deep: u32) -> std::result::Result<(), String> {
    let clock = Arc::new(TestClock::default());
    disk.record();
    let tree = open_with(&disk, &clock, CommitMode::Sync).map_err(|e| format!("the tree cannot be opened: {e}"))?;
    let found = check(&tree, mark, states)?;
    let snapshots = disk.recorded();
    is_sound(&disk, false)?;
    if deep > 0 {
        let snapshot = &snapshots[rng.usize(..snapshots.len())];
        let again = snapshot.power_cut(Cut::Seed(rng.u64(..))).disk;
        recover(again, mark, states, rng, deep - 1)?;
        return Ok(());
    }
    // The tree continues: no number is used twice, and nothing is left over.
    let fresh = file(&tree, "fresh");
    tree.write(fresh, 0, b"fresh").unwrap();
    tree.sync(fresh, &Clean).unwrap();
    if !tree.pack_is_as_rows_say().unwrap() {
        return Err("the room in the pack is not what the rows have".into());
    }
    let tree = reopen(&disk, &clock, tree);
    let mut expected = found;
    expected.insert("/fresh".into(), Some(b"fresh".to_vec()));
    if shown(&tree) != expected {
        return Err("what was found is not there any more after another kill".into());
    }
    let mut inos = BTreeSet::new();
    let mut dirs = vec![ROOT];
    while let Some(dir) = dirs.pop() {
        for entry in tree.read_dir(dir, 0, usize::MAX).unwrap() {
            inos.insert(entry.ino);
            dirs.extend((entry.kind == Kind::Directory).then_some(entry.ino));
        }
    }
    tree.close(&Clean).map_err(|e| format!("closing: {e:?}"))?;
    drop(tree);
    is_sound(&disk, true)?;
    let store =
        store_options(&disk).open_on(disk.process(), StoreDir::of_directory(), "".into()).map_err(|e| e.to_string())?;
    for dir in store.list("obj").map_err(|e| e.to_string())? {
        for object in store.list(std::path::Path::new("obj").join(dir)).map_err(|e| e.to_string())? {
            let ino: Ino = object.to_str().unwrap().parse().unwrap();
            if !inos.contains(&ino) {
                return Err(format!("object {ino} is left over"));
            }
        }
    }
    Ok(())
}

/// Runs the program of a seed, and crashes it.
fn run(seed: u64, steps: usize) -> std::result::Result<usize, String> {
    let mut rng = Rng::with_seed(seed);
    let disk = SimDisk::new(Options { seed, profile: PROFILES[rng.usize(..PROFILES.len())], ..Options::default() });
    let clock = Arc::new(TestClock::default());
    let mode = if seed.is_multiple_of(3) { CommitMode::Store } else { CommitMode::Sync };
    let tree = open_with(&disk, &clock, mode).unwrap();
    let d = dir(&tree, ROOT, "d");
    tree.sync_names(&Clean).unwrap();
    let mut model = Model::new(d, mode);
    model.apart = rng.bool();
    let mut states = vec![model.state()];
    let mut acknowledged = 0;
    disk.set_mark(pack(0, 0));
    disk.record();
    let cache = Cache::new(&tree);
    let mut done: Vec<Op> = Vec::new();
    for _ in 0..steps {
        let op = model.draw(&mut rng);
        done.push(op.clone());
        // The expected result of the operation, by the rules.
        let expected = model.apply(&op);
        states.push(model.state());
        let n = states.len() - 1;
        disk.set_mark(pack(acknowledged, n));
        let result = cache.act(&op, &clock, &mut model);
        if result.is_ok() != expected {
            return Err(format!("{op:?} gives {result:?}; the rules: {expected}\n{done:?}"));
        }
        if expected && op.is_sync() {
            acknowledged = n;
        }
        disk.set_mark(pack(acknowledged, n));
        if !tree.pack_is_as_rows_say().unwrap() {
            return Err(format!("the room in the pack is not what the rows have, after {done:?}"));
        }
        let live = shown(&tree);
        if live != model.live() {
            return Err(format!("programs see other contents after {done:?}: {live:?}, {:?}", model.live()));
        }
    }
    let snapshots = disk.recorded();
    let mut crashes = 0;
    for (n, snapshot) in snapshots.iter().enumerate() {
        for cut in [Cut::Nothing, Cut::Everything, Cut::Seed(rng.u64(..)), Cut::Seed(rng.u64(..))] {
            let deep = rng.u32(..3);
            let disk = if rng.u8(..8) == 0 { snapshot.killed() } else { snapshot.power_cut(cut).disk };
            recover(disk, snapshot.mark(), &states, &mut rng, deep)
                .map_err(|e| format!("crash {n} of {}, {cut}, {deep} deep: {e}\n{done:#?}", snapshots.len()))?;
            crashes += 1;
        }
    }
    Ok(crashes)
}

#[test]
fn programs_survive_every_crash() {
    let seeds = std::env::var("UNTORN_TREE_SEEDS").ok().and_then(|text| text.parse().ok()).unwrap_or(300);
    let first: u64 = std::env::var("UNTORN_TEST_SEED").ok().and_then(|text| text.parse().ok()).unwrap_or(1);
    let mut crashes = 0;
    for seed in first..first + seeds {
        crashes += run(seed, 6 + seed as usize % 24).unwrap_or_else(|what| panic!("UNTORN_TEST_SEED={seed}: {what}"));
    }
    println!("{crashes} crashes of {seeds} programs from seed {first}");
    assert!(crashes as u64 > seeds * 10, "hardly anything was crashed");
}
