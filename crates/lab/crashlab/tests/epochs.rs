//! Opening without replay: stores that crash again and again, with epochs in their journals that are not applied.

use std::path::PathBuf;
use std::time::{Duration, Instant};
use untorn::__private::{OpenStoreOn, StoreSteps, sync_point};
use untorn::{Store, StoreOptions};
use untorn_crashlab::enumeration::crash_loops::{LoopTotals, crash_loop};
use untorn_crashlab::mutation::{sync_point_index, sync_points};
use untorn_crashlab::scenarios::{PortionTotals, begin_in_a_bounded_segment, crash_in_portions, crash_indexed};
use untorn_crashlab::{Fault, On, PROFILES, Profile, SimDisk, What};
use untorn_journal::directories::store_dir::StoreDir;
use untorn_journal::format::EPOCHS_MAX;
use untorn_testkit::variable_or;

/// If the header that lists epochs is not flushed, some store loses a commit, or is reported as damaged.
#[test]
fn the_list_of_epochs_is_flushed() {
    let skipped = 1 << sync_point_index(sync_point::HEADER_LISTED);
    assert!((1..400).any(|seed| crash_loop(seed, skipped, &|_| {}).is_err()), "nothing is lost without that flush");
}

/// Repeats the seed in `UNTORN_LOOP_SEED`.
#[test]
fn again() {
    if let Some(seed) = std::env::var("UNTORN_LOOP_SEED").ok().and_then(|text| text.parse().ok()) {
        println!("{:?}", crash_loop(seed, 0, &|line| println!("{line}")));
    }
}

#[test]
fn epochs_upon_epochs_survive_every_crash() {
    let most = std::env::var("UNTORN_LOOPS").ok().and_then(|text| text.parse().ok()).unwrap_or(1000);
    let first: u64 = variable_or("UNTORN_TEST_SEED", 1);
    let (mut all, mut wrong) = (LoopTotals::default(), Vec::new());
    let begun = Instant::now();
    for seed in first..first + most {
        match crash_loop(seed, 0, &|_| {}) {
            Ok(totals) => {
                all.openings += totals.openings;
                all.unapplied += totals.unapplied;
                all.in_openings += totals.in_openings;
                all.quarantined += totals.quarantined;
                all.listed_max = all.listed_max.max(totals.listed_max);
            }
            Err(what) => wrong.push(format!("{what}\n  again: UNTORN_LOOP_SEED={seed}")),
        }
    }
    println!("{all:?} in {:?}", Duration::from_millis(begun.elapsed().as_millis() as u64));
    assert!(wrong.is_empty(), "{} of {most}:\n{}", wrong.len(), wrong[..wrong.len().min(3)].join("\n"));
    assert_eq!(all.listed_max, EPOCHS_MAX, "no list was full");
    assert!(all.unapplied > most && all.in_openings > most && all.quarantined > 0, "{all:?}");
}

/// Repeats the seed in `UNTORN_TEST_SEED` on every disk.
#[test]
fn portions_survive_crashes_upon_crashes() {
    let first: u64 = variable_or("UNTORN_TEST_SEED", 2);
    let mut totals = PortionTotals::default();
    for profile in PROFILES {
        crash_in_portions(profile, first, first.is_multiple_of(2), &mut totals).unwrap_or_else(|what| panic!("{what}"));
    }
    println!("{totals:?}, seed {first}");
    assert!(totals.portions > totals.openings && totals.within_listed > 100, "{totals:?}");
}

/// Repeats the seed in `UNTORN_TEST_SEED` on every disk.
#[test]
fn indexed_logs_survive_crashes_upon_crashes() {
    let seed: u64 = variable_or("UNTORN_TEST_SEED", 2);
    println!("seed {seed}");
    PROFILES
        .into_iter()
        .try_for_each(|profile| crash_indexed(profile, seed, None))
        .unwrap_or_else(|what| panic!("{what}"));
}

/// Without the flush of a bound, or of the removal of an index, some crash loses commits.
#[test]
fn bounds_are_on_the_disk_before_records_beyond_them() {
    let profile = Profile::AnyPosix;
    for point in [sync_point::INDEX_BOUND, sync_point::INDEX_FOUND, sync_point::INDEX_REMOVED] {
        let shown = match point {
            sync_point::INDEX_FOUND => begin_in_a_bounded_segment(profile, Some(point)).err(),
            _ => (0..8).find_map(|seed| crash_indexed(profile, seed, Some(point)).err()),
        };
        println!("{point:?}: {}", shown.as_deref().unwrap_or("nothing is lost"));
        assert!(shown.is_some(), "{point:?}");
    }
}

fn options() -> StoreOptions {
    StoreOptions::new().create(true).background(false).sizes(64 << 10, 16 << 10, 8 << 10)
}

fn open(disk: &SimDisk) -> Store {
    options().open_on(disk.process(), StoreDir::of_directory(), PathBuf::new()).unwrap()
}

fn shown(store: &Store, name: &str) -> Vec<u8> {
    let file = store.open_file(name).unwrap();
    let mut bytes = vec![0; file.len().unwrap() as usize];
    file.read_exact_at(&mut bytes, 0).unwrap();
    bytes
}

/// Two files whose owner was killed: this many commits of 2,000 bytes to `a` wait.
fn killed_after(commits: u8) -> SimDisk {
    let disk = SimDisk::new(untorn_crashlab::Options::default());
    let store = open(&disk);
    for name in ["a", "b"] {
        let file = store.open_or_create_file(name).unwrap();
        file.write_all_at(&[1; 2000], 0).unwrap();
        file.commit().unwrap();
    }
    store.checkpoint().unwrap();
    let file = store.open_file("a").unwrap();
    for n in 0..commits {
        file.write_all_at(&[10 + n; 2000], 0).unwrap();
        file.commit().unwrap();
    }
    disk.kill();
    disk
}

#[test]
fn opening_applies_nothing_and_flushes_the_journal_alone() {
    let disk = killed_after(3);
    let syncs = |disk: &SimDisk| sync_points().iter().map(|point| disk.syncs(*point)).collect::<Vec<u64>>();
    let (before, segments) = (syncs(&disk), 1);
    let store = open(&disk);
    assert_eq!(shown(&store, "a"), [12; 2000]);
    assert_eq!(disk.get("a").unwrap(), [1; 2000], "the data file is as the last checkpoint left it");
    let made: Vec<_> = syncs(&disk).iter().zip(&before).map(|(now, before)| now - before).collect();
    let of = |point| made[sync_point_index(point)];
    // The header and three directories, after the killed owner, and each segment.
    assert_eq!(of(sync_point::RECOVER_JOURNAL), 4 + segments);
    assert_eq!(of(sync_point::HEADER_LISTED), 1);
    assert_eq!(made.iter().sum::<u64>(), 4 + segments + 1, "and no other flush");
    store.checkpoint().unwrap();
    assert_eq!(disk.get("a").unwrap(), [12; 2000]);
    assert_eq!(disk.get("b").unwrap(), [1; 2000]);
}

#[test]
fn an_opening_with_a_full_journal_serves_and_commits_wait_for_a_checkpoint() {
    // Each record takes a block: the journal of 16 blocks is full, and no segment is free.
    let disk = killed_after(12);
    let (before, store) = (disk.syncs(sync_point::HEADER), open(&disk));
    assert_eq!(shown(&store, "a"), [21; 2000]);
    let file = store.open_file("b").unwrap();
    for n in 0..16 {
        file.write_all_at(&[100 + n; 2000], 0).unwrap();
        file.commit().unwrap();
    }
    assert!(disk.syncs(sync_point::HEADER) > before, "a checkpoint made room");
    assert_eq!(disk.get("a").unwrap(), [21; 2000]);
    disk.kill();
    let store = open(&disk);
    assert_eq!(shown(&store, "b"), [115; 2000]);
}

#[test]
fn a_commit_waits_for_one_portion_of_a_full_journal() {
    let disk = killed_after(14);
    let (headers, store) = (disk.syncs(sync_point::HEADER), open(&disk));
    let pending = store.status().journal_bytes_pending;
    let file = store.open_file("b").unwrap();
    file.write_all_at(&[100; 2000], 0).unwrap();
    file.commit().unwrap();
    assert_eq!(disk.syncs(sync_point::HEADER), headers + 1, "one portion");
    assert_eq!(disk.get("a").unwrap(), [1; 2000], "of which later segments have all bytes anew");
    assert!(store.status().journal_bytes_pending < pending, "and one segment came free");
    assert_eq!((shown(&store, "a"), shown(&store, "b")), (vec![23; 2000], vec![100; 2000]));
    disk.kill();
    let store = open(&disk);
    assert_eq!((shown(&store, "a"), shown(&store, "b")), (vec![23; 2000], vec![100; 2000]));
    store.checkpoint().unwrap();
    assert_eq!((disk.get("a").unwrap(), disk.get("b").unwrap()), (vec![23; 2000], vec![100; 2000]));
}

/// A commit renames a file with unapplied portions, and so writes all of its contents first.
#[test]
fn a_portion_does_not_write_older_contents_over_newer() {
    let disk = SimDisk::new(untorn_crashlab::Options::default());
    let store = open(&disk);
    let write = |store: &Store, at: u64, byte: u8| {
        let file = store.open_file("a").unwrap();
        file.write_all_at(&[byte; 2000], at).unwrap();
        file.commit().unwrap();
    };
    store.open_or_create_file("a").unwrap();
    (0..12).for_each(|n| write(&store, 2000 * n, 10 + n as u8));
    disk.kill();
    let store = open(&disk);
    (0..2).for_each(|n| write(&store, 22_000 * n, 100));
    store.rename("a", "c").unwrap();
    let newest = shown(&store, "c");
    assert_eq!(disk.get("c").unwrap(), newest, "a name shows what is committed");
    let mut portions = 0;
    while let Some(begun) = store.begin_checkpoint().unwrap() {
        let applied = begun.apply().unwrap();
        assert_eq!(disk.get("c").unwrap(), newest, "after portion {portions}");
        applied.truncate_log().unwrap();
        portions += 1;
    }
    assert!(portions > 2, "{portions}");
}

/// The disk refuses the writes of a portion, or fails to flush them: the next checkpoint applies everything at once.
#[test]
fn a_portion_that_fails_is_applied_with_all_the_rest() {
    for code in [libc::EIO, libc::ENOSPC] {
        for nth in 0..40 {
            let disk = killed_after(14);
            let store = open(&disk);
            disk.fail(Fault { on: On::Any, after: nth, times: 1, what: What::Errno(code) });
            let first = store.checkpoint();
            let done = if first.is_err() { store.checkpoint() } else { first };
            disk.clear_faults();
            if done.is_ok() {
                assert_eq!(disk.get("a").unwrap(), [23; 2000], "{code} at call {nth}");
            }
            assert_eq!(shown(&store, "a"), [23; 2000], "{code} at call {nth}");
            disk.kill();
            assert_eq!(shown(&open(&disk), "a"), [23; 2000], "{code} at call {nth}");
        }
    }
}

#[test]
fn an_edit_from_outside_after_the_opening_is_noticed() {
    let disk = killed_after(1);
    let store = open(&disk);
    disk.overwrite("a", 5, b"edited by somebody else").unwrap();
    assert_eq!(store.checkpoint().unwrap_err().kind(), "conflict");
    assert_eq!(&disk.get("a").unwrap()[5..28], b"edited by somebody else");
    disk.kill();
    let store = open(&disk);
    assert_eq!(store.status().quarantined.len(), 1, "and no later opening writes over it");
    assert_eq!(&disk.get("a").unwrap()[5..28], b"edited by somebody else");
}

#[test]
fn a_file_that_was_carried_over_keeps_its_name_from_copies() {
    let disk = killed_after(1);
    let store = open(&disk);
    store.rename("a", "c").unwrap();
    disk.copy("c", "a", true).unwrap();
    assert_eq!(store.open_file("a").unwrap_err().kind(), "needs-its-journal");
    assert_eq!(shown(&store, "c"), [10; 2000]);
}

#[test]
fn a_store_on_a_full_copy_on_write_disk_is_read_and_commits_wait() {
    let disk = killed_after(3);
    disk.set_options(|options| (options.copy_on_write, options.capacity_bytes) = (true, Some(0)));
    let store = open(&disk);
    assert!(store.status().recovered.notes[0].contains("make room"), "{:?}", store.status().recovered);
    assert_eq!(shown(&store, "a"), [12; 2000]);
    let file = store.open_file("b").unwrap();
    file.write_all_at(&[77; 2000], 0).unwrap();
    for _ in 0..2 {
        assert_eq!(file.commit().unwrap_err().kind(), "no-space");
    }
    assert_eq!(store.checkpoint().unwrap_err().kind(), "no-space");
    assert_eq!(disk.get("a").unwrap(), [1; 2000]);
    disk.set_capacity(None);
    file.commit().unwrap();
    assert_eq!(disk.get("a").unwrap(), [12; 2000], "by the checkpoint that wrote the header");
    disk.kill();
    let store = open(&disk);
    assert_eq!((shown(&store, "a"), shown(&store, "b")), (vec![12; 2000], vec![77; 2000]));
    assert_eq!(store.status().quarantined.len(), 0);
}

/// On a disk without any room another program moves a file away; with room again, the others go on.
#[test]
fn what_waits_is_restated_behind_the_list_that_was_due() {
    let disk = killed_after(3);
    disk.set_options(|options| (options.copy_on_write, options.capacity_bytes) = (true, Some(0)));
    let store = open(&disk);
    disk.rename("a", "elsewhere").unwrap();
    disk.set_capacity(None);
    let file = store.open_file("b").unwrap();
    for n in 0..20 {
        file.write_all_at(&[77 + n; 2000], 0).unwrap();
        file.commit().unwrap();
    }
    disk.kill();
    disk.rename("elsewhere", "a").unwrap();
    let store = open(&disk);
    assert_eq!((shown(&store, "a"), shown(&store, "b")), (vec![12; 2000], vec![96; 2000]));
}
