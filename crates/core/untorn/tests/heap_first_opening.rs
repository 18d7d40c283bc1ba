//! Live heaps whose first opening was killed at any point: the next opening works, and nothing is left behind.

mod common;

use common::child_process::kills;
use common::stepping::{killed_at_call, stop, traced};
use common::*;
use fastrand::Rng;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use untorn::heap::{Heap, HeapOptions, LiveStart};
use untorn::{Result, Store};

const MODE: &str = "UNTORN_TEST_FIRST";
const PLACE: &str = "UNTORN_TEST_PLACE";

fn live() -> HeapOptions {
    HeapOptions::new().create(true).live(true).address_space(64 << 20)
}

fn child(mode: &str, place: &Path) -> Command {
    let mut command = untorn_testkit::again!("first_child");
    command.env(MODE, mode).env(PLACE, place).stdout(Stdio::piped());
    command
}

/// In a second process: opens a heap for the first time.
#[test]
fn first_child() {
    let Some(mode) = std::env::var_os(MODE) else { return };
    let place = PathBuf::from(std::env::var_os(PLACE).expect("a place"));
    let store = (mode != "alone").then(|| Store::open_or_create(&place).unwrap());
    traced();
    let heap = match &store {
        Some(store) => live().open_in(store, "heap"),
        None => live().open(&place),
    };
    let heap = heap.unwrap();
    stop();
    heap.close().unwrap();
}

/// Continues after a killed first opening: the heap is created once, and can be used.
#[track_caller]
fn goes_on(opened: Result<Heap>, what: &str) {
    let heap = opened.unwrap_or_else(|e| panic!("{what}: {e}"));
    let report = heap.live().expect("a live heap");
    assert!(report.start != LiveStart::WentOn || heap.roots().is_empty(), "{what}: {report:?}");
    let number = heap.root_or("number", |_| 7u64).unwrap();
    // SAFETY: a root of this type.
    assert_eq!(unsafe { number.read() }, 7, "{what}");
    heap.commit().unwrap();
    assert!(heap.check(&|_, _| {}).unwrap().is_sound(), "{what}");
    heap.close().unwrap();
    assert!(!report.memory.exists(), "{what}: {} is left", report.memory.display());
}

/// Kills the opening before or after a system call; some calls are chosen.
#[test]
fn a_first_opening_may_be_killed_at_any_call() {
    let seed = seed();
    let rng = &mut Rng::with_seed(seed);
    for mode in ["alone", "store"] {
        let place = |dir: &Path| if mode == "alone" { dir.join("heap") } else { dir.to_owned() };
        let dir = directory();
        let Some(all) = killed_at_call(&mut child(mode, &place(dir.path())), u64::MAX) else {
            return skipped("cannot trace a child here");
        };
        // The memory that is left belongs to an existing heap.
        match mode {
            "alone" => goes_on(live().open(place(dir.path())), mode),
            _ => goes_on(live().open_in(&Store::open_or_create(dir.path()).unwrap(), "heap"), mode),
        }
        assert!(all > 100, "{all} stops");
        let rounds = kills(16).min(all);
        for round in 0..rounds {
            // One call in each part of the opening.
            let at = all * round / rounds + rng.u64(..all / rounds);
            let what = format!("seed {seed}, {mode}, killed at stop {at} of {all}");
            let dir = directory();
            killed_at_call(&mut child(mode, &place(dir.path())), at);
            match mode {
                "alone" => goes_on(live().open(place(dir.path())), &what),
                _ => {
                    let store = Store::open_or_create(dir.path()).unwrap();
                    goes_on(live().open_in(&store, "heap"), &what);
                    store.close().unwrap();
                }
            }
        }
        println!("seed {seed}: {rounds} kills in {all} stops, {mode}");
        assert!(fs::exists(dir.path()).unwrap());
    }
}
