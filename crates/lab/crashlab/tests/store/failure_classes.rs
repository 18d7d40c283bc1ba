//! Class `process`, whose commits are in the cache until a checkpoint, and its way to class `power`.

use crate::fixture::{small, survives};
use std::path::PathBuf;
use untorn::{Error, FailureClass, Store};
use untorn_crashlab::{Cut, Failed, Fault, On, Options, Profile, SimDisk, What};

fn quarantined(store: &Store) -> Vec<PathBuf> {
    store.status().quarantined.into_iter().map(|q| q.path).collect()
}

/// The header's shortcut past the segments was used for a journal of class `process`, whose records are in the cache.
#[test]
fn a_killed_owner_of_class_process_is_recovered_from_the_cache() {
    survives("closed,posix,sector,tight,direct/0/other,both/");
}

/// In class `process` two headers in a row were written without a flush, the second over the older slot. A power cut
/// that tore the second brought back a header without a boot, and the store opened as if nothing were lost.
#[test]
fn an_unflushed_header_never_goes_over_the_newest_durable_one() {
    survives("closed,posix,sector,tight,buffered/0/other,one,retire/");
    survives("closed,posix,sector,tight,buffered/0/other,swap,retire,retire,close/");
}

#[test]
fn accepting_an_unknown_state_may_be_interrupted_anywhere() {
    let accept = || small::options().class(FailureClass::Process).accept_unknown(true);
    let disk = small::disk();
    let store = small::open_with(&disk, accept()).unwrap();
    let (a, b) = (store.open_or_create_file("a").unwrap(), store.open_or_create_file("b").unwrap());
    a.write_at(b"checkpointed", 0).unwrap();
    a.commit().unwrap();
    store.checkpoint().unwrap();
    b.write_at(b"pending", 0).unwrap();
    b.commit().unwrap();
    disk.settle();
    let crashed = disk.snapshot().power_cut(Cut::Nothing).disk;
    crashed.record();
    drop(small::open_with(&crashed, accept()).unwrap());
    let moments = crashed.recorded();
    assert!(moments.len() > 20, "only {} calls", moments.len());
    for moment in moments {
        for cut in moment.cuts(64, 1) {
            let store = small::open_with(&moment.power_cut(cut).disk, accept()).unwrap();
            assert_eq!(quarantined(&store), [] as [PathBuf; 0]);
            for name in ["a", "b"] {
                store
                    .open_file(name)
                    .unwrap_or_else(|e| panic!("call {} {cut}: {name} is locked out: {e}", moment.call()));
            }
        }
    }
}

/// The note of a failed flush replaced the newest durable header: a power cut that tore the note brought back a header
/// without a boot, and the store opened as if nothing were lost.
#[test]
fn a_power_cut_while_a_lost_flush_is_noted_leaves_the_state_unknown() {
    let mut unknown = 0;
    for checkpoints in 0..3 {
        let disk = small::disk();
        let store = small::open_with(&disk, small::options().class(FailureClass::Process)).unwrap();
        let a = store.open_or_create_file("a").unwrap();
        for n in 0..=checkpoints {
            a.write_at(&[b'a' + n; 9000], 0).unwrap();
            a.commit().unwrap();
            if n < checkpoints {
                store.checkpoint().unwrap();
            }
        }
        drop(a);
        disk.settle();
        disk.fail(Fault { on: On::Sync, after: 0, times: 1, what: What::Writeback(Failed::Lost) });
        disk.record();
        store.close().unwrap_err();
        for moment in disk.recorded() {
            for cut in moment.cuts(64, 1) {
                match small::open_with(&moment.power_cut(cut).disk, small::options()) {
                    Err(Error::UnknownState { .. }) => unknown += 1,
                    opened => panic!("{checkpoints} checkpoints, call {}, {cut}: {:?}", moment.call(), opened.err()),
                }
            }
        }
    }
    assert!(unknown > 100, "only {unknown} crash states");
}

/// The kernel reports once that it could not write back unflushed commits of class `process`. The flush of the next
/// opening returns OK, and must not be believed: the store says that the state is unknown.
#[test]
fn a_failed_flush_on_the_way_to_class_power_is_not_forgotten() {
    let (mut noticed, mut whole) = (0, 0);
    for close in [false, true] {
        for nth in 0.. {
            let disk = small::disk();
            let process = || small::options().class(FailureClass::Process);
            let store = small::open_with(&disk, process()).unwrap();
            let (a, b) = (store.open_or_create_file("a").unwrap(), store.open_or_create_file("b").unwrap());
            a.write_at(&[b'a'; 9000], 0).unwrap();
            a.commit().unwrap();
            store.checkpoint().unwrap();
            a.write_at(b"more", 0).unwrap();
            a.commit().unwrap();
            b.write_at(b"pending", 0).unwrap();
            b.commit().unwrap();
            drop((a, b));
            let plan = Fault { on: On::Sync, after: nth, times: 1, what: What::Writeback(Failed::Lost) };
            let failed = if close {
                disk.fail(plan);
                store.close().is_err()
            } else {
                disk.kill();
                drop(store);
                disk.fail(plan);
                small::open_with(&disk, small::options()).is_err()
            };
            let left = disk.faults_left();
            disk.clear_faults();
            disk.kill();
            match small::open_with(&disk, small::options()) {
                Err(Error::UnknownState { .. }) => noticed += 1,
                Err(e) => panic!("close {close}, flush {nth}: {e}"),
                Ok(store) => {
                    store.close().unwrap();
                    let after = disk.snapshot().power_cut(Cut::Nothing).disk;
                    let when = format!("close {close}, flush {nth}, failed {failed}");
                    assert_eq!(after.get("b").unwrap(), b"pending", "{when}");
                    let a = after.get("a").unwrap();
                    assert_eq!((a.len(), &a[..6]), (9000, &b"moreaa"[..]), "{when}");
                    assert!(a[4..].iter().all(|byte| *byte == b'a'), "{when}");
                    whole += 1;
                }
            }
            if left {
                break;
            }
        }
    }
    assert!(noticed > 2 && whole > 2, "{noticed} noticed, {whole} whole");
}

/// A power cut may leave creation temporaries whose commits it lost. Accepting the state removes those that are known
/// to be this store's.
#[test]
fn what_a_power_cut_left_of_new_files_goes_when_the_state_is_accepted() {
    let accept = || small::options().class(FailureClass::Process).accept_unknown(true);
    let disk = SimDisk::new(Options { profile: Profile::Ext4, unnamed: false, ..Options::default() });
    let store = small::open_with(&disk, accept()).unwrap();
    for name in ["victim", "other"] {
        let file = store.open_or_create_file(name).unwrap();
        file.write_at(b"before", 0).unwrap();
        file.commit().unwrap();
    }
    store.checkpoint().unwrap();
    disk.settle();
    disk.record();
    let mut txn = store.begin();
    txn.mkdir("d", 0o700).unwrap();
    txn.create("d/new", 0o600).unwrap().write_all_at(b"new", 0).unwrap();
    txn.unlink("victim").unwrap();
    txn.create("victim", 0o600).unwrap().write_all_at(b"newest", 0).unwrap();
    txn.commit().unwrap();
    let temporaries = |disk: &SimDisk| -> Vec<PathBuf> {
        let names = disk.tree().into_iter().map(|(path, _)| path).filter(|path| !path.starts_with(".untorn"));
        let ours = names.filter(|path| path.extension().is_some_and(|extension| extension == "untorn"));
        ours.filter(|path| disk.entry(path).unwrap().attribute.is_some()).collect()
    };
    let mut seen = 0;
    for moment in disk.recorded() {
        for cut in moment.cuts(16, moment.call()) {
            let after = moment.power_cut(cut).disk;
            seen += temporaries(&after).len();
            small::open_with(&after, accept()).unwrap().close().unwrap();
            assert_eq!(temporaries(&after), [] as [PathBuf; 0], "before call {}, {cut}", moment.call());
        }
    }
    assert!(seen > 0, "no power cut left anything");
}
