//! What a reading of the documents against the code found, on real files: repairs that locked files out or
//! reached too far, files that their owner may not write, edits from outside that were written over.

mod common;

use common::puppet::{Puppet, crash_in, crashed_store, path_text};
use common::*;
use std::fs;
use std::os::unix::fs::chown;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::time::Duration;
use tempfile::TempDir;
use untorn::offline::{RecoverOptions, inspect, recover};
use untorn::{File, JOURNAL_BYTES_MAX, Store, StoreOptions};
use untorn_journal::format::{BLOCK_BYTES, Header};

const SALVAGE: RecoverOptions = RecoverOptions { salvage: true, accept_unknown: false, wait: false };
const ACCEPT: RecoverOptions = RecoverOptions { salvage: false, accept_unknown: true, wait: false };

// Repairs.

/// Damages every copy of a journal's header.
fn damage_header(home: &Path) {
    let path = home.join("journal/header");
    let mut bytes = fs::read(&path).unwrap();
    bytes.chunks_mut(BLOCK_BYTES).for_each(|slot| slot[20] ^= 1);
    fs::write(&path, bytes).unwrap();
}

/// Makes it look as if the machine had been started again since the owner was killed.
fn reboot(home: &Path) {
    let path = home.join("journal/header");
    let mut bytes = fs::read(&path).unwrap();
    for slot in bytes.chunks_mut(BLOCK_BYTES) {
        if let Ok(Some(mut header)) = Header::decode(slot, &path) {
            header.boot = header.boot.map(|_| [9; 16]);
            slot.copy_from_slice(&header.encode());
        }
    }
    fs::write(&path, bytes).unwrap();
}

/// An owner was killed: "a" was checkpointed, "b" has a commit pending.
fn killed_after_a_checkpoint(options: &[&str]) -> TempDir {
    let dir = directory();
    let mut puppet = Puppet::start();
    puppet.ok(&[&["open", path_text(dir.path())], options].concat());
    puppet.ok(&["create", "a"]);
    puppet.commit("a", "new");
    puppet.ok(&["checkpoint"]);
    puppet.ok(&["create", "b"]);
    puppet.commit("b", "new");
    puppet.kill();
    dir
}

/// The store takes commits again, to all of its files.
fn goes_on(dir: &Path, names: &[&str]) {
    let store = Store::open(dir).unwrap();
    assert!(store.status().quarantined.is_empty(), "{:?}", store.status().quarantined);
    for name in names {
        let file = store.file(name).unwrap_or_else(|e| panic!("{name} is locked out: {e}"));
        file.write_at(&text("newer", name), 0).unwrap();
        file.commit().unwrap();
    }
    store.close().unwrap();
    names.iter().for_each(|name| assert_same(&plain(dir.join(name)), &text("newer", name), name));
}

#[test]
fn salvage_of_a_damaged_header_locks_no_file_out() {
    let dir = killed_after_a_checkpoint(&[]);
    damage_header(&dir.path().join(".untorn"));
    refused(Store::open(dir.path()), &["corrupt"]);
    let report = recover(dir.path(), &SALVAGE, &|_, _| {}).unwrap();
    assert_eq!(report.recovered.salvaged.len(), 1, "{report:?}");
    assert_same(&stored(&Store::open(dir.path()).unwrap(), "a"), &text("new", "a"), "checkpointed before");
    goes_on(dir.path(), &["a", "b"]);
}

#[test]
fn salvage_of_a_damaged_header_leaves_other_stores_alone() {
    let dir = killed_after_a_checkpoint(&[]);
    let inner = dir.path().join("inner");
    fs::create_dir(&inner).unwrap();
    crash_in(&inner, &["c"]);
    let lone = [dir.path().join("one.db"), dir.path().join("two.db")];
    for path in &lone {
        let file = File::create(path).unwrap();
        file.write_at(b"old", 0).unwrap();
        file.commit().unwrap();
        file.close().unwrap();
        let mut puppet = Puppet::start();
        puppet.ok(&["lone", path_text(path)]);
        puppet.commit("lone", "new");
        puppet.kill();
    }
    damage_header(&dir.path().join(".untorn"));
    damage_header(&dir.path().join("one.db.untorn"));
    recover(dir.path(), &SALVAGE, &|_, _| {}).unwrap();
    recover(&lone[0], &SALVAGE, &|_, _| {}).unwrap();

    goes_on(dir.path(), &["a", "b"]);
    assert_same(&stored(&Store::open(&inner).unwrap(), "c"), &text("new", "c"), "a store below");
    assert_same(&contents(&File::open(&lone[1]).unwrap()), &text("new", "lone"), "a lone file beside");
    let one = File::open(&lone[0]).unwrap();
    one.write_at(b"goes on", 0).unwrap();
    one.commit().unwrap();
}

#[test]
fn accepting_an_unknown_state_locks_no_file_out() {
    let dir = killed_after_a_checkpoint(&["class=process"]);
    reboot(&dir.path().join(".untorn"));
    refused(Store::open(dir.path()), &["unknown-state"]);
    recover(dir.path(), &ACCEPT, &|_, _| {}).unwrap();
    goes_on(dir.path(), &["a", "b"]);
}

// Files that their owner may not write. Root may, so an ordinary user is asked.

/// A process of an ordinary user, and a directory of its own.
fn ordinary_user() -> (Puppet, TempDir) {
    let dir = directory();
    let mut puppet = Puppet::start();
    if is_root() {
        chown(dir.path(), Some(65534), Some(65534)).unwrap();
        puppet.ok(&["become", "65534"]);
    }
    puppet.ok(&["open", path_text(dir.path())]);
    (puppet, dir)
}

/// Ends the first process by a kill and by a close in turn; a second one of the same user recovers. Always the file
/// holds the last commit and keeps its mode.
fn keeps_its_mode(prepare: impl Fn(&mut Puppet)) {
    for killed in [true, false] {
        let (mut puppet, dir) = ordinary_user();
        let path = dir.path().join("a");
        prepare(&mut puppet);
        assert_eq!(mode(&path), 0o444);
        puppet.commit("a", "newer");
        if killed {
            puppet.kill();
        } else {
            puppet.ok(&["close"]);
            assert_same(&plain(&path), &text("newer", "a"), "closed");
        }
        let mut next = Puppet::start();
        if is_root() {
            next.ok(&["become", "65534"]);
        }
        next.ok(&["open", path_text(dir.path())]);
        assert_eq!(next.ok(&["quarantined"]), "");
        assert_same(&plain(&path), &text("newer", "a"), "opened again");
        assert_eq!(mode(&path), 0o444, "killed: {killed}");
        next.refused(&["file", "a"], &["io"]);
        next.ok(&["chmod", "a", "644"]);
        assert_eq!(mode(&path), 0o644);
        next.ok(&["file", "a"]);
        next.commit("a", "newest");
        next.ok(&["close"]);
        assert_same(&plain(&path), &text("newest", "a"), "the right is back");
    }
}

#[test]
fn a_file_created_without_the_right_to_write_it() {
    keeps_its_mode(|puppet| _ = puppet.ok(&["txn-create", "a", "444", "new"]));
}

#[test]
fn a_file_created_without_the_right_to_write_it_and_mapped() {
    keeps_its_mode(|puppet| {
        puppet.ok(&["txn-create", "a", "444", "new"]);
        if is_root() {
            // Who was root is kept from its own /proc.
            let refusal = puppet.refused(&["store-mapped", "a"], &["unsupported"]);
            assert!(refusal.message.contains("PR_SET_DUMPABLE"), "{}", refusal.message);
        }
        puppet.ok(&["dumpable"]);
        puppet.ok(&["store-mapped", "a"]);
        assert_eq!(&puppet.ok(&["read", "a"])[..6], "mapped");
    });
}

#[test]
fn a_file_whose_mode_takes_the_right_to_write_it() {
    keeps_its_mode(|puppet| {
        puppet.ok(&["create", "a"]);
        puppet.commit("a", "new");
        puppet.ok(&["chmod", "a", "444"]);
    });
}

#[test]
fn an_umask_that_takes_the_right_to_write() {
    keeps_its_mode(|puppet| {
        puppet.ok(&["umask", "222"]);
        puppet.ok(&["create", "a", "666"]);
        puppet.commit("a", "new");
    });
}

// Changes from outside.

/// A store whose owner lives, with a commit of "a" that is not in the data file yet.
fn pending() -> (TempDir, Store, File) {
    let dir = directory();
    let store = StoreOptions::default().background(false).open(dir.path()).unwrap();
    let a = store.create("a").unwrap();
    a.write_at(&text("old", "a"), 0).unwrap();
    a.commit().unwrap();
    store.checkpoint().unwrap();
    a.write_at(&text("new", "a"), 0).unwrap();
    a.commit().unwrap();
    (dir, store, a)
}

#[test]
fn an_edit_in_place_that_was_noticed_is_never_written_over() {
    let (dir, store, a) = pending();
    let path = dir.path().join("a");
    std::thread::sleep(Duration::from_millis(20));
    fs::write(&path, "somebody else's").unwrap();
    refused(store.close(), &["conflict"]);
    drop(a);
    for _ in 0..2 {
        assert_same(&plain(&path), b"somebody else's", "not written over");
        let store = Store::open(dir.path()).unwrap();
        assert_eq!(store.status().quarantined.len(), 1);
        refused(store.file("a"), &["conflict"]);
        let other = store.create("b").unwrap();
        other.append(b"the rest goes on").unwrap();
        other.commit().unwrap();
        drop(other);
        store.close().unwrap();
    }
    assert_same(&plain(&path), b"somebody else's", "not written over");
    // Whoever wants that text keeps it.
    recover(dir.path(), &SALVAGE, &|_, _| {}).unwrap();
    assert_same(&stored(&Store::open(dir.path()).unwrap(), "a"), b"somebody else's", "taken as it is");
}

#[test]
fn a_file_that_only_moved_under_a_living_owner_recovers_when_it_is_back() {
    let (dir, store, a) = pending();
    let path = dir.path().join("a");
    let aside = dir.path().join("aside");
    fs::rename(&path, &aside).unwrap();
    refused(store.close(), &["conflict"]);
    drop(a);
    fs::rename(&aside, &path).unwrap();
    assert_same(&stored(&Store::open(dir.path()).unwrap(), "a"), &text("new", "a"), "moved back");
}

#[test]
fn a_second_name_given_under_a_living_owner_may_go_again() {
    let (dir, store, a) = pending();
    let second = dir.path().join("second");
    fs::hard_link(dir.path().join("a"), &second).unwrap();
    refused(store.close(), &["conflict"]);
    drop(a);
    fs::remove_file(&second).unwrap();
    assert_same(&stored(&Store::open(dir.path()).unwrap(), "a"), &text("new", "a"), "one name again");
}

#[test]
fn the_name_of_a_file_that_waits_is_taken() {
    let dir = crashed_store(&["a", "b"]);
    let aside = directory();
    fs::rename(dir.path().join("a"), aside.path().join("a")).unwrap();
    let waits = &["needs-its-journal"];
    let store = Store::open(dir.path()).unwrap();
    assert_eq!(store.status().quarantined.len(), 1);
    refused(store.create("a"), waits);
    let mut txn = store.begin();
    refused(txn.create("a", 0o644), waits);
    refused(txn.mkdir("a", 0o755), waits);
    refused(txn.rename("b", "a"), waits);
    txn.abort().unwrap();
    store.close().unwrap();
    assert!(!dir.path().join("a").exists(), "its name is free for it");
    fs::rename(aside.path().join("a"), dir.path().join("a")).unwrap();
    let store = Store::open(dir.path()).unwrap();
    assert_same(&stored(&store, "a"), &text("new", "a"), "moved back");
    assert_same(&stored(&store, "b"), &text("new", "b"), "untouched");
}

// Looking on, and limits.

#[test]
fn looking_at_a_store_never_keeps_it_from_an_opener() {
    const OPENINGS: usize = 100;
    let dir = directory();
    let mut puppet = Puppet::start();
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for _ in 0..3 {
            // What is found in the middle of an opening does not matter here, only that somebody looks.
            scope.spawn(|| {
                while !done.load(SeqCst) {
                    drop(inspect(dir.path()));
                }
            });
        }
        let mut refusals = Vec::new();
        for _ in 0..OPENINGS {
            if let Err(e) = puppet.ask(&["open", path_text(dir.path())]) {
                refusals.push(e);
                continue;
            }
            puppet.ok(&["close"]);
            // As a killed owner leaves it: whoever finds this lock taken does not wait for it.
            fs::write(dir.path().join(".untorn/lock"), "4194304\n").unwrap();
        }
        done.store(true, SeqCst);
        assert!(refusals.is_empty(), "{} of {OPENINGS} openings were refused: {:?}", refusals.len(), refusals[0]);
    });
}

#[test]
fn two_who_look_do_not_take_each_other_for_the_owner() {
    let dir = directory();
    Store::open(dir.path()).unwrap().close().unwrap();
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| (0..500).for_each(|_| assert_eq!(inspect(dir.path()).unwrap().owner, None)));
        }
    });
}

#[test]
fn a_journal_is_no_larger_than_recovery_can_read() {
    let dir = directory();
    for asked in [JOURNAL_BYTES_MAX + 1, 5 << 40, u64::MAX] {
        let store = StoreOptions::default().journal_bytes(asked).open(dir.path()).unwrap();
        assert_eq!(store.status().journal_bytes_max, 4 << 30, "{asked} bytes were asked for");
        store.close().unwrap();
    }
}
