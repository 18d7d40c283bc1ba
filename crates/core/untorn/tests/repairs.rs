//! Salvage of a damaged journal, and acceptance of an unknown state: every file can be used again, and nothing else is
//! changed.

mod common;

use common::child_process::{ChildProcess, crash_in, path_text};
use common::*;
use std::fs;
use std::path::Path;
use tempfile::TempDir;
use untorn::offline::{RecoverOptions, recover};
use untorn::{File, Store};
use untorn_journal::format::{BLOCK_BYTES, Header};

const SALVAGE: RecoverOptions = RecoverOptions { salvage: true, accept_unknown: false, wait: false };
const ACCEPT: RecoverOptions = RecoverOptions { salvage: false, accept_unknown: true, wait: false };

/// Damages every copy of a journal's header.
fn damage_header(home: &Path) {
    let path = home.join("journal/header");
    let mut bytes = fs::read(&path).unwrap();
    bytes.chunks_mut(BLOCK_BYTES).for_each(|slot| slot[20] ^= 1);
    fs::write(&path, bytes).unwrap();
}

/// Makes it look as if the machine had rebooted since the owner was killed.
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

/// The state after a killed owner: "a" was checkpointed, "b" has a commit pending.
fn killed_after_a_checkpoint(options: &[&str]) -> TempDir {
    let dir = directory();
    let mut process = ChildProcess::start();
    process.ok(&[&["open", path_text(dir.path())], options].concat());
    process.ok(&["create", "a"]);
    process.commit("a", "new");
    process.ok(&["checkpoint"]);
    process.ok(&["create", "b"]);
    process.commit("b", "new");
    process.kill();
    dir
}

/// Asserts that the store takes commits to all of its files again.
fn goes_on(dir: &Path, names: &[&str]) {
    let store = Store::open_or_create(dir).unwrap();
    assert!(store.status().quarantined.is_empty(), "{:?}", store.status().quarantined);
    for name in names {
        let file = store.open_file(name).unwrap_or_else(|e| panic!("{name} is locked out: {e}"));
        file.write_all_at(&text("newer", name), 0).unwrap();
        file.commit().unwrap();
    }
    store.close().unwrap();
    names.iter().for_each(|name| assert_same(&plain(dir.join(name)), &text("newer", name), name));
}

#[test]
fn salvage_of_a_damaged_header_locks_no_file_out() {
    let dir = killed_after_a_checkpoint(&[]);
    damage_header(&dir.path().join(".untorn"));
    refused(Store::open_or_create(dir.path()), &["corrupt"]);
    let report = recover(dir.path(), &SALVAGE, &|_, _| {}).unwrap();
    assert_eq!(report.recovered.salvaged.len(), 1, "{report:?}");
    assert_same(&stored(&Store::open_or_create(dir.path()).unwrap(), "a"), &text("new", "a"), "checkpointed before");
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
        let file = File::open_or_create(path).unwrap();
        file.write_all_at(b"old", 0).unwrap();
        file.commit().unwrap();
        file.close().unwrap();
        let mut process = ChildProcess::start();
        process.ok(&["lone", path_text(path)]);
        process.commit("lone", "new");
        process.kill();
    }
    damage_header(&dir.path().join(".untorn"));
    damage_header(&dir.path().join("one.db.untorn"));
    recover(dir.path(), &SALVAGE, &|_, _| {}).unwrap();
    recover(&lone[0], &SALVAGE, &|_, _| {}).unwrap();

    goes_on(dir.path(), &["a", "b"]);
    assert_same(&stored(&Store::open_or_create(&inner).unwrap(), "c"), &text("new", "c"), "a store below");
    assert_same(&contents(&File::open(&lone[1]).unwrap()), &text("new", "lone"), "a standalone file beside");
    let one = File::open(&lone[0]).unwrap();
    one.write_all_at(b"goes on", 0).unwrap();
    one.commit().unwrap();
}

#[test]
fn accepting_an_unknown_state_locks_no_file_out() {
    let dir = killed_after_a_checkpoint(&["class=process"]);
    reboot(&dir.path().join(".untorn"));
    refused(Store::open_or_create(dir.path()), &["unknown-state"]);
    recover(dir.path(), &ACCEPT, &|_, _| {}).unwrap();
    goes_on(dir.path(), &["a", "b"]);
}
