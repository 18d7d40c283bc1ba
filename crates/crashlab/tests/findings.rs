//! What a reading of the documents against the code found, on a disk where the failure can be had: each
//! once lost an acknowledged commit, or believed what no flush had proved.

use std::path::{Path, PathBuf};
use untorn::{Error, FailureClass, File, Outcome, Store, StoreOptions};
use untorn_crashlab::{Cut, Fault, On, Options, Profile, SimDisk, What};
use untorn_journal::home::Home;
use untorn_os::Step;

fn disk() -> SimDisk {
    SimDisk::new(Options { profile: Profile::AnyPosix, ..Options::default() })
}

/// A small journal, where much goes by reference.
fn options() -> StoreOptions {
    StoreOptions::default().background(false).sizes(64 << 10, 16 << 10, 4 << 10)
}

fn open_with(disk: &SimDisk, options: StoreOptions) -> untorn::Result<Store> {
    options.open_on(disk.process(), Home::of_directory(), PathBuf::new())
}

fn open(disk: &SimDisk) -> Store {
    open_with(disk, options()).expect("a healthy disk")
}

fn contents(file: &File) -> Vec<u8> {
    let mut bytes = vec![0; file.size().unwrap() as usize];
    file.read_at(&mut bytes, 0).unwrap();
    bytes
}

fn quarantined(store: &Store) -> Vec<PathBuf> {
    store.status().quarantined.into_iter().map(|q| q.path).collect()
}

/// The next flushes of extents fail, as on a disk or a quota that turns out to be full when delayed
/// allocation is made good.
fn no_room_for_extents(disk: &SimDisk, times: u64, errno: i32) {
    disk.fail(Fault { on: On::Step(Step::ExtentContents), after: 0, times, what: What::Errno(errno) });
}

#[track_caller]
fn not_committed(result: untorn::Result<()>) {
    match result {
        Err(Error::SyncFailed { outcome: Outcome::NotCommitted, .. }) => {}
        other => panic!("the flush failed, and the answer was {other:?}"),
    }
}

#[test]
fn an_operation_list_whose_flush_found_no_room_is_not_committed() {
    for errno in [libc::ENOSPC, libc::EDQUOT] {
        let disk = disk();
        let store = open(&disk);
        let file = store.create("a").unwrap();
        file.write_at(b"old", 0).unwrap();
        file.commit().unwrap();
        // So many ranges that their list fits into no segment.
        for i in 0..4000 {
            file.write_at(&[7], i * 10).unwrap();
        }
        no_room_for_extents(&disk, 1, errno);
        not_committed(file.commit());
        for cut in disk.snapshot().cuts(64, 1) {
            let after = disk.snapshot().power_cut(cut).disk;
            assert_eq!(contents(&open(&after).file("a").unwrap()), b"old", "{cut}");
        }
    }
}

#[test]
fn a_failed_flush_of_an_extent_is_not_believed_to_have_mended() {
    for errno in [libc::ENOSPC, libc::EDQUOT] {
        let disk = disk();
        let store = open(&disk);
        let file = store.create("a").unwrap();
        file.write_at(b"old", 0).unwrap();
        file.commit().unwrap();
        file.write_at(&[7; 20_000], 0).unwrap();
        no_room_for_extents(&disk, 1, errno);
        not_committed(file.commit());
        // Now the disk would say OK. That tells nothing of what it had dropped before.
        not_committed(file.commit());
        let other = store.file("a").unwrap();
        other.write_at(b"new", 0).unwrap();
        not_committed(other.commit());
        let after = disk.snapshot().power_cut(Cut::Nothing).disk;
        assert_eq!(contents(&open(&after).file("a").unwrap()), b"old");
    }
}

#[test]
fn setting_a_journal_aside_flushes_what_class_process_had_not() {
    let process = || options().class(FailureClass::Process);
    let disk = disk();
    let store = open_with(&disk, process()).unwrap();
    let (a, b) = (store.create("a").unwrap(), store.create("b").unwrap());
    store.checkpoint().unwrap();
    a.write_at(b"aaaa", 0).unwrap();
    a.commit().unwrap();
    b.write_at(&[b'b'; 9000], 0).unwrap();
    b.commit().unwrap();
    disk.kill();
    drop((a, b, store));
    disk.rename("a", "elsewhere").unwrap();

    // The file that is gone takes the journal aside, and the new one knows nothing of an unflushed past.
    let store = open_with(&disk, process()).unwrap();
    assert_eq!(quarantined(&store), [Path::new("a")]);
    let moment = disk.snapshot();
    for cut in moment.cuts(256, 1) {
        match open_with(&moment.power_cut(cut).disk, process()) {
            Err(Error::UnknownState { .. }) => {}
            Err(e) => panic!("{cut}: {e}"),
            Ok(store) => assert_eq!(contents(&store.file("b").unwrap()), [b'b'; 9000], "{cut}"),
        }
    }
}

#[test]
fn a_directory_that_recovery_cannot_make_is_not_forgotten() {
    let disk = disk();
    let store = open(&disk);
    let mut txn = store.begin();
    txn.mkdir("d", 0o700).unwrap();
    txn.commit().unwrap();
    let crashed = disk.snapshot().power_cut(Cut::Nothing).disk;
    assert!(crashed.entry("d").is_err(), "its name was not flushed");
    let mut refused = 0;
    for after in 0..4 {
        let disk = crashed.fork();
        disk.fail(Fault { on: On::Name, after, times: 1, what: What::Errno(libc::ENOSPC) });
        refused += usize::from(open_with(&disk, options()).is_err());
        disk.clear_faults();
        disk.kill();
        let store = open(&disk);
        assert!(disk.entry("d").is_ok(), "name change {after} failed once, and the directory is lost");
        store.close().unwrap();
    }
    assert!(refused > 0, "no fault met the recovery");
}

#[test]
fn a_journal_set_aside_that_lost_its_end_is_damaged() {
    let disk = disk();
    let store = open(&disk);
    let a = store.create("a").unwrap();
    store.checkpoint().unwrap();
    for version in [b"one", b"two"] {
        a.write_at(version, 0).unwrap();
        a.commit().unwrap();
    }
    disk.kill();
    drop((a, store));
    disk.rename("a", "elsewhere").unwrap();
    let store = open(&disk);
    assert_eq!(quarantined(&store), [Path::new("a")]);
    store.close().unwrap();

    // The disk damages the last group; nothing in the journal itself calls that one durable.
    let is_held = |path: &Path| path.to_string_lossy().starts_with(".untorn/held.");
    let held = || disk.tree().into_iter().map(|(path, _)| path).filter(|path| is_held(path));
    let segment = held().find(|path| path.ends_with("segment.0")).expect("a segment of the journal set aside");
    let bytes = disk.get(&segment).unwrap();
    let last = bytes.windows(4).rposition(|magic| magic == b"UTRC").expect("records");
    disk.overwrite(&segment, last as u64, &[0; 80]).unwrap();
    disk.rename("elsewhere", "a").unwrap();
    let kept = held().count();

    match open_with(&disk, options()) {
        Err(Error::Corrupt { path, .. }) => assert!(is_held(&path), "{}", path.display()),
        Err(e) => panic!("{e}"),
        Ok(store) => panic!("the file fell back to {:?}", contents(&store.file("a").unwrap())),
    }
    assert_eq!(held().count(), kept, "nothing of it was removed");
}

#[test]
fn accepting_an_unknown_state_may_be_interrupted_anywhere() {
    let accept = || options().class(FailureClass::Process).accept_unknown(true);
    let disk = disk();
    let store = open_with(&disk, accept()).unwrap();
    let (a, b) = (store.create("a").unwrap(), store.create("b").unwrap());
    a.write_at(b"checkpointed", 0).unwrap();
    a.commit().unwrap();
    store.checkpoint().unwrap();
    b.write_at(b"pending", 0).unwrap();
    b.commit().unwrap();
    disk.settle();
    let crashed = disk.snapshot().power_cut(Cut::Nothing).disk;
    crashed.record();
    drop(open_with(&crashed, accept()).unwrap());
    let moments = crashed.recorded();
    assert!(moments.len() > 20, "only {} calls", moments.len());
    for moment in moments {
        for cut in moment.cuts(64, 1) {
            let store = open_with(&moment.power_cut(cut).disk, accept()).unwrap();
            assert_eq!(quarantined(&store), [] as [PathBuf; 0]);
            for name in ["a", "b"] {
                store.file(name).unwrap_or_else(|e| panic!("call {} {cut}: {name} is locked out: {e}", moment.call()));
            }
        }
    }
}
