//! Class `process`, whose commits are in the cache until a checkpoint, and its way to class `power`.

use crate::fixture::{small, survives};
use std::path::PathBuf;
use untorn::{FailureClass, Store};
use untorn_crashlab::Cut;

fn quarantined(store: &Store) -> Vec<PathBuf> {
    store.status().quarantined.into_iter().map(|q| q.path).collect()
}

/// The header's shortcut past the segments was taken for a journal of class `process`, whose records are
/// in the cache.
#[test]
fn a_killed_owner_of_class_process_is_recovered_from_the_cache() {
    survives("closed,posix,sector,tight,direct/0/other,both/");
}

/// In class `process` two headers in a row were written without a flush, one over the other's slot; a
/// power cut that tore the second brought back a header that named no boot, and the store pretended.
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
    let (a, b) = (store.open_or_create("a").unwrap(), store.open_or_create("b").unwrap());
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
