//! Checkpoints of one file, and files that are closed plain while their store stays open.

use crate::fixture::{contents, roomy};
use untorn_crashlab::enumeration::enumerate::{Bounds, Effort, Enumeration};
use untorn_crashlab::programs::program::{Op, STARTS, Setup};
use untorn_crashlab::{Fault, On, PROFILES, SimDisk, What};
use untorn_testkit::{drawn_seed, extent};

/// The operations before and behind a checkpoint of one file.
const AROUND: [Op; 20] = {
    use Op::*;
    [
        One, Across, Large, Empty, Shrink, Grow, Zero, Both, Async, Dirty, Rollback, Replace, Move, Unlink, Mkdir,
        Swap, Mode, Retire, Close, Kill,
    ]
};

/// Programs with checkpoints of one file survive every crash and every failed flush.
#[test]
fn programs_with_a_checkpoint_of_one_file_survive_every_crash() {
    let seed = drawn_seed();
    let enumeration = Enumeration::new(Bounds { seed, ..Bounds::default() });
    let effort = Effort { cuts_max: 4, second_max: 1, after_failed_sync_max: 2, failed_sync_ways: 1 };
    let rng = &mut fastrand::Rng::with_seed(seed);
    let programs = extent(150, 400);
    for nth in 0..programs as usize {
        let around: Vec<Op> = (0..3).map(|_| AROUND[rng.usize(..AROUND.len())]).collect();
        let ops = [around[0], Op::Only, around[1], Op::Only, around[2]];
        let setups: Vec<Setup> = Setup::all(STARTS[nth % STARTS.len()], nth).collect();
        enumeration.program(&setups[rng.usize(..setups.len())], &ops[..rng.usize(2..=5)], &effort);
        if let Some(violation) = enumeration.violations().first() {
            panic!("{violation}");
        }
    }
    assert!(enumeration.totals().states > 1000, "{} crash states", enumeration.totals().states);
}

/// A disk on which `a` has four commits, and `b` one.
fn committed(disk: &SimDisk) -> untorn::Store {
    let store = roomy::open(disk);
    for (name, nth) in [("a", 1), ("a", 2), ("b", 3), ("a", 4), ("a", 5)] {
        let file = store.open_or_create_file(name).unwrap();
        file.write_all_at(&[nth; 5000], u64::from(nth) * 3000).unwrap();
        file.commit().unwrap();
    }
    store
}

/// Without recovery, other programs see the last commit of the file, also after a power cut. Recovery sees all files.
#[test]
fn the_data_file_has_its_commits_after_a_power_cut() {
    for profile in PROFILES {
        let disk = roomy::disk(profile);
        let store = committed(&disk);
        let [a, b] = ["a", "b"].map(|name| contents(&store.open_file(name).unwrap()));
        let (syncs, checkpoints) = (store.status().syncs, store.status().checkpoints);
        store.open_file("a").unwrap().checkpoint().unwrap();
        assert!(store.status().syncs > syncs && store.status().checkpoints == checkpoints, "{profile:?}");
        assert!(store.status().journal_bytes_pending > 0, "{profile:?}: the log was truncated");
        assert!(disk.get("b").is_ok_and(|bytes| bytes.is_empty()), "{profile:?}: `b` was written, too");
        let snapshot = disk.snapshot();
        for cut in snapshot.cuts(256, 1) {
            let after = snapshot.power_cut(cut).disk;
            assert!(after.get("a").is_ok_and(|bytes| bytes == a), "{profile:?} {cut}");
            let recovered = roomy::recovered(&after);
            assert!(recovered.get("a").unwrap() == a && recovered.get("b").unwrap() == b, "{profile:?} {cut}");
        }
        // Nothing is left to do.
        let syncs = store.status().syncs;
        store.checkpoint().unwrap();
        store.open_file("a").unwrap().checkpoint().unwrap();
        let after = store.status().syncs;
        store.open_file("a").unwrap().checkpoint().unwrap();
        assert!(after > syncs && store.status().syncs == after, "{profile:?}");
    }
}

/// A checkpoint of one file that fails keeps the commits, and the next one of the store makes up for it.
#[test]
fn a_failed_checkpoint_of_one_file_is_made_up_for() {
    for profile in PROFILES {
        for after in 0..40 {
            let disk = roomy::disk(profile);
            let store = committed(&disk);
            let a = store.open_file("a").unwrap();
            let bytes = contents(&a);
            disk.fail(Fault { on: On::Any, after, times: 1, what: What::Errno(libc::EIO) });
            let failed = a.checkpoint().is_err();
            disk.clear_faults();
            assert!(contents(&a) == bytes, "{profile:?}, call {after}");
            if store.status().failed.is_none() {
                store.checkpoint().unwrap_or_else(|e| panic!("{profile:?}, call {after}: {e}"));
                assert!(disk.get("a").unwrap() == bytes, "{profile:?}, call {after}");
            }
            disk.kill();
            drop((a, store));
            assert!(roomy::recovered(&disk).get("a").unwrap() == bytes, "{profile:?}, call {after}");
            if !failed && after > 20 {
                break;
            }
        }
    }
}

/// The file belongs to everybody: recovery must not write it again, and it may be removed or moved.
#[test]
fn a_file_that_was_closed_plain_is_left_alone_by_recovery() {
    for profile in PROFILES {
        for what in ["edited", "removed", "moved"] {
            let when = format!("{profile:?}, {what}");
            let disk = roomy::disk(profile);
            let store = committed(&disk);
            let a = store.open_file("a").unwrap();
            let bytes = contents(&a);
            let other = a.try_clone().unwrap();
            assert_eq!(a.close_plain().map_err(|e| e.kind()), Err("busy"), "{when}");
            other.close_plain().unwrap();
            assert!(disk.get("a").unwrap() == bytes, "{when}");
            match what {
                "edited" => disk.put("a", b"edited by another program").unwrap(),
                "removed" => disk.remove("a").unwrap(),
                _ => disk.rename("a", "moved").unwrap(),
            }
            disk.settle();
            let b = store.open_file("b").unwrap();
            b.append(b"more").unwrap();
            b.commit().unwrap();
            let (kept, snapshot) = (contents(&b), disk.snapshot());
            for cut in snapshot.cuts(64, 1) {
                let after = roomy::recovered(&snapshot.power_cut(cut).disk);
                assert!(after.get("b").unwrap() == kept, "{when}, {cut}");
                match what {
                    "edited" => assert_eq!(after.get("a").unwrap(), b"edited by another program", "{when}, {cut}"),
                    "removed" => assert!(after.get("a").is_err(), "{when}, {cut}"),
                    _ => assert!(after.get("moved").unwrap() == bytes, "{when}, {cut}"),
                }
            }
            // The name is free for another file, and the moved one opens again.
            store.open_or_create_file("a").unwrap().checkpoint().unwrap();
            if what == "moved" {
                assert!(contents(&store.open_file("moved").unwrap()) == bytes, "{when}");
            }
        }
    }
}
