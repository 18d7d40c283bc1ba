//! Large uncommitted changes with their bytes in spill files.

mod common;

use common::*;
use std::fs;
use untorn::StoreOptions;

#[test]
fn a_large_change_that_is_changed_again_takes_no_more_room() {
    const MIB: usize = 1 << 20;
    let dir = directory();
    // Half a MiB may stay in memory, or go into a record.
    let store =
        StoreOptions::new().create(true).background(false).journal_bytes(4 * MIB as u64).open(dir.path()).unwrap();
    let journal = dir.path().join(".untorn/journal");
    let spilled = || -> u64 {
        let files = fs::read_dir(&journal).unwrap().map(Result::unwrap);
        let spills = files.filter(|entry| entry.file_name().to_string_lossy().starts_with("spill."));
        spills.map(|entry| entry.metadata().unwrap().len()).sum()
    };
    let file = store.open_or_create_file("a").unwrap();
    let mut wanted = vec![0; 64 * MIB];
    let rng = &mut fastrand::Rng::with_seed(7);
    for round in 0..20 {
        // Whole pieces first, then pieces that begin elsewhere: the rest of the old pieces stays.
        let mut at = 0;
        while at < wanted.len() {
            let len = [MIB, 300_000, rng.usize(4096..2 * MIB)][round % 3].min(wanted.len() - at);
            wanted[at..at + len].fill(rng.u8(..));
            file.write_all_at(&wanted[at..at + len], at as u64).unwrap();
            at += len;
        }
        assert!(spilled() <= 160 * MIB as u64, "{} bytes for 64 MiB in round {round}", spilled());
    }
    assert_same(&contents(&file), &wanted, "uncommitted");
    file.commit().unwrap();
    assert_same(&contents(&file), &wanted, "committed");
    drop(file);
    // The bytes of a committed record are not changed.
    let file = store.open_file("a").unwrap();
    let before = wanted.clone();
    for _ in 0..3 {
        wanted.fill(rng.u8(..));
        file.write_all_at(&wanted, 0).unwrap();
    }
    drop(file);
    drop(store);
    assert_same(&plain(dir.path().join("a")), &before, "after closing");
}
