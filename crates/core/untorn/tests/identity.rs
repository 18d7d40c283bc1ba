//! The identity of files: files that are moved, copied, replaced or restored, either while nothing is pending, or while
//! their last commits are in a journal whose owner was killed. A pending file is recovered or refused. It is never read
//! torn, and another program's file is never overwritten.

mod common;

use common::child_process::{ChildProcess, close_clean_with, crash_in, crashed_store, path_text};
use common::*;
use std::fs;
use std::io::ErrorKind;
use std::path::Path;
use std::time::Duration;
use tempfile::TempDir;
use untorn::offline::{RecoverOptions, recover};
use untorn::{Error, File, Store, StoreOptions};

const SALVAGE: RecoverOptions = RecoverOptions { salvage: true, accept_unknown: false, wait: false };

/// The kinds of refusal of a pending file that is gone, or that belongs to somebody else now.
const LOST: &[&str] = &["needs-its-journal", "conflict", "foreign"];

/// Opens the store: the named file must be refused and quarantined, and the other one recovered.
#[track_caller]
fn only_this_one_is_refused(dir: &Path, refused_name: &str, other: &str) {
    let store = Store::open_or_create(dir).expect("one file's trouble does not close the store to the others");
    refused(store.open_file(refused_name), LOST);
    let aside = store.status().quarantined;
    assert_eq!(aside.len(), 1, "{aside:?}");
    assert_eq!(aside[0].path, Path::new(refused_name));
    assert!(!aside[0].reason.is_empty());
    assert_same(&stored(&store, other), &text("new", other), "the other file");
    // The other file can be used.
    let file = store.open_file(other).unwrap();
    file.append(b"").unwrap();
    file.write_all_at(&text("new", other)[..5], 0).unwrap();
    file.commit().unwrap();
    drop(file);
    store.close().unwrap();
}

#[track_caller]
fn recovered(dir: &Path, names: &[&str]) {
    let store = Store::open_or_create(dir).expect("open");
    assert!(store.status().quarantined.is_empty(), "{:?}", store.status().quarantined);
    for name in names {
        assert_same(&stored(&store, name), &text("new", name), "recovered");
    }
    store.close().expect("close");
    for name in names {
        assert_same(&plain(dir.join(name)), &text("new", name), "recovered, for other programs");
    }
}

// Files with nothing pending.

#[test]
fn moved_clean_is_a_plain_file_with_a_new_identity() {
    let dir = directory();
    close_clean_with(dir.path(), &["a"], "old");
    let before = attribute(dir.path().join("a"));
    fs::rename(dir.path().join("a"), dir.path().join("b")).unwrap();
    let store = Store::open_or_create(dir.path()).unwrap();
    assert_same(&stored(&store, "b"), &text("old", "a"), "moved");
    let file = store.open_file("b").unwrap();
    file.append(b"more").unwrap();
    file.commit().unwrap();
    drop(file);
    refused_with_errno(store.open_file("a"), libc::ENOENT);
    store.close().unwrap();
    assert_ne!(attribute(dir.path().join("b")), before, "a new id");
    assert_eq!(plain(dir.path().join("b")).len(), TEXT_BYTES + 4);
}

#[test]
fn copied_clean_is_a_plain_file_with_a_new_identity() {
    let dir = directory();
    close_clean_with(dir.path(), &["a"], "old");
    run("cp", ["-a".as_ref(), dir.path().join("a").as_os_str(), dir.path().join("b").as_os_str()]);
    assert_eq!(attribute(dir.path().join("a")), attribute(dir.path().join("b")), "cp -a copies the attribute");
    let store = Store::open_or_create(dir.path()).unwrap();
    for name in ["a", "b"] {
        let file = store.open_file(name).unwrap();
        assert_same(&contents(&file), &text("old", "a"), "before");
        file.write_all_at(name.as_bytes(), 0).unwrap();
        file.commit().unwrap();
    }
    store.close().unwrap();
    assert_ne!(attribute(dir.path().join("a")), attribute(dir.path().join("b")), "each is itself");
    for name in ["a", "b"] {
        assert_eq!(&plain(dir.path().join(name))[..1], name.as_bytes());
    }
}

#[test]
fn replaced_clean_is_a_plain_file() {
    let dir = directory();
    close_clean_with(dir.path(), &["a"], "old");
    replace(&dir.path().join("a"), b"replaced");
    let store = Store::open_or_create(dir.path()).unwrap();
    let file = store.open_file("a").unwrap();
    assert_same(&contents(&file), b"replaced", "the replacement");
    file.append(b" and changed").unwrap();
    file.commit().unwrap();
    drop(file);
    store.close().unwrap();
    assert_same(&plain(dir.path().join("a")), b"replaced and changed", "after closing");
}

#[test]
fn edited_clean_is_taken_as_it_is() {
    let dir = directory();
    close_clean_with(dir.path(), &["a"], "old");
    fs::write(dir.path().join("a"), "edited in place").unwrap();
    let store = Store::open_or_create(dir.path()).unwrap();
    assert_same(&stored(&store, "a"), b"edited in place", "between two openings a file is everybody's");
}

#[test]
fn a_clean_store_may_be_copied_without_attributes() {
    let dir = directory();
    close_clean_with(&dir.path().join_made("from"), &["a"], "old");
    run("cp", ["-r".as_ref(), dir.path().join("from").as_os_str(), dir.path().join("to").as_os_str()]);
    let store = Store::open_or_create(dir.path().join("to")).unwrap();
    assert_same(&stored(&store, "a"), &text("old", "a"), "in the copy");
}

#[test]
fn a_clean_file_moves_to_another_store() {
    let dir = directory();
    let (from, to) = (dir.path().join_made("from"), dir.path().join_made("to"));
    close_clean_with(&from, &["a"], "old");
    fs::rename(from.join("a"), to.join("a")).unwrap();
    let store = Store::open_or_create(&to).unwrap();
    assert_same(&stored(&store, "a"), &text("old", "a"), "in the other store");
    let file = store.open_file("a").unwrap();
    file.append(b"more").unwrap();
    file.commit().unwrap();
    drop(file);
    store.close().unwrap();
    assert_eq!(plain(to.join("a")).len(), TEXT_BYTES + 4);
    let alone = File::open(to.join("a")).unwrap();
    assert_eq!(alone.len().unwrap(), TEXT_BYTES as u64 + 4, "and on its own");
}

// Pending files.

#[test]
fn pending_and_left_alone_recovers() {
    let dir = crashed_store(&["a", "b", "c"]);
    recovered(dir.path(), &["a", "b", "c"]);
}

#[test]
fn pending_and_moved_is_refused_until_moved_back() {
    let dir = crashed_store(&["a", "b"]);
    fs::rename(dir.path().join("a"), dir.path().join("moved")).unwrap();
    let before = plain(dir.path().join("moved"));
    only_this_one_is_refused(dir.path(), "a", "b");

    let store = Store::open_or_create(dir.path()).unwrap();
    refused(store.open_file("moved"), LOST);
    refused(store.open_or_create_file("a"), LOST);
    store.close().unwrap();
    assert_same(&plain(dir.path().join("moved")), &before, "nothing was written to the moved file");
    assert!(!dir.path().join("a").exists(), "and nothing made in its place");

    fs::rename(dir.path().join("moved"), dir.path().join("a")).unwrap();
    recovered(dir.path(), &["a", "b"]);
}

#[test]
fn pending_and_removed_is_refused() {
    let dir = crashed_store(&["a", "b"]);
    fs::remove_file(dir.path().join("a")).unwrap();
    only_this_one_is_refused(dir.path(), "a", "b");
}

#[test]
fn pending_and_replaced_is_a_conflict() {
    let dir = crashed_store(&["a", "b"]);
    replace(&dir.path().join("a"), b"the replacement");
    only_this_one_is_refused(dir.path(), "a", "b");
    assert_same(&plain(dir.path().join("a")), b"the replacement", "nothing was overwritten");
    // A replacement, as by `sed -i`.
    let dir = crashed_store(&["a", "b"]);
    run("sed", ["-i".as_ref(), "s/ line / LINE /".as_ref(), dir.path().join("a").as_os_str()]);
    let edited = plain(dir.path().join("a"));
    only_this_one_is_refused(dir.path(), "a", "b");
    assert_same(&plain(dir.path().join("a")), &edited, "nothing was overwritten");
}

#[test]
fn pending_and_swapped_are_both_refused() {
    let dir = crashed_store(&["a", "b"]);
    fs::rename(dir.path().join("a"), dir.path().join("aside")).unwrap();
    fs::rename(dir.path().join("b"), dir.path().join("a")).unwrap();
    fs::rename(dir.path().join("aside"), dir.path().join("b")).unwrap();
    let before = [plain(dir.path().join("a")), plain(dir.path().join("b"))];
    let store = Store::open_or_create(dir.path()).unwrap();
    refused(store.open_file("a"), LOST);
    refused(store.open_file("b"), LOST);
    store.close().unwrap();
    assert_same(&plain(dir.path().join("a")), &before[0], "not written to");
    assert_same(&plain(dir.path().join("b")), &before[1], "not written to");
}

#[test]
fn pending_and_restored_from_a_backup_is_a_conflict() {
    // The backup is older than the last checkpoint, so the journal does not have all commits since.
    let dir = directory();
    let (path, backup) = (dir.path().join("a"), dir.path().join("backup"));
    close_clean_with(dir.path(), &["a", "b"], "oldest");
    run("cp", ["-a".as_ref(), path.as_os_str(), backup.as_os_str()]);
    crash_in(dir.path(), &["a", "b"]);
    // In place: the same inode, with the old contents and the old attribute.
    run("cp", ["-a".as_ref(), backup.as_os_str(), path.as_os_str()]);
    only_this_one_is_refused(dir.path(), "a", "b");
    assert_same(&plain(&path), &text("oldest", "a"), "nothing was overwritten");
    // Then as a new file.
    fs::rename(&backup, &path).unwrap();
    only_this_one_is_refused(dir.path(), "a", "b");
    assert_same(&plain(&path), &text("oldest", "a"), "nothing was overwritten");
}

#[test]
fn pending_and_restored_without_attributes_is_a_conflict() {
    let dir = directory();
    close_clean_with(dir.path(), &["a", "b"], "oldest");
    let backup = plain(dir.path().join("a"));
    crash_in(dir.path(), &["a", "b"]);
    fs::remove_file(dir.path().join("a")).unwrap();
    fs::write(dir.path().join("a"), &backup).unwrap();
    only_this_one_is_refused(dir.path(), "a", "b");
    assert_same(&plain(dir.path().join("a")), &backup, "nothing was overwritten");
}

#[test]
fn several_hard_links_are_refused() {
    let dir = directory();
    fs::write(dir.path().join("a"), "plain").unwrap();
    fs::hard_link(dir.path().join("a"), dir.path().join("link")).unwrap();
    let store = Store::open_or_create(dir.path()).unwrap();
    for name in ["a", "link"] {
        let e = refused(store.open_file(name), &["unsupported", "conflict", "foreign", "invalid", "untrusted"]);
        assert!(e.to_string().contains("link"), "{e}");
    }
    assert!(attribute(dir.path().join("a")).is_none());
    fs::remove_file(dir.path().join("link")).unwrap();
    assert_same(&stored(&store, "a"), b"plain", "with one name left");
}

#[test]
fn pending_and_hard_linked_is_refused_until_the_link_is_gone() {
    let dir = crashed_store(&["a", "b"]);
    fs::hard_link(dir.path().join("a"), dir.path().join("link")).unwrap();
    let store = Store::open_or_create(dir.path()).unwrap();
    let kinds = &["unsupported", "conflict", "foreign", "invalid", "untrusted", "needs-its-journal"];
    refused(store.open_file("a"), kinds);
    refused(store.open_file("link"), kinds);
    assert_same(&stored(&store, "b"), &text("new", "b"), "the other file");
    store.close().unwrap();
    fs::remove_file(dir.path().join("link")).unwrap();
    recovered(dir.path(), &["a", "b"]);
}

#[test]
fn a_copy_beside_the_pending_original_is_refused_as_a_copy() {
    let dir = crashed_store(&["a", "b"]);
    run("cp", ["-a".as_ref(), dir.path().join("a").as_os_str(), dir.path().join("copy").as_os_str()]);
    let before = plain(dir.path().join("copy"));
    let store = Store::open_or_create(dir.path()).unwrap();
    refused(store.open_file("copy"), LOST);
    assert_same(&stored(&store, "a"), &text("new", "a"), "the original recovers");
    store.close().unwrap();
    assert_same(&plain(dir.path().join("copy")), &before, "the copy is left alone");
}

#[test]
fn pending_and_opened_on_its_own_is_refused() {
    let dir = crashed_store(&["a", "b"]);
    let before = plain(dir.path().join("a"));
    refused(File::open(dir.path().join("a")), LOST);
    assert_same(&plain(dir.path().join("a")), &before, "left alone");
    recovered(dir.path(), &["a", "b"]);
}

#[test]
fn pending_and_moved_into_another_store_is_refused() {
    let dir = crashed_store(&["a", "b"]);
    let other = directory();
    fs::rename(dir.path().join("a"), other.path().join("a")).unwrap();
    let before = plain(other.path().join("a"));
    let store = Store::open_or_create(other.path()).unwrap();
    refused(store.open_file("a"), LOST);
    refused(store.open_or_create_file("a"), LOST);
    store.close().unwrap();
    assert_same(&plain(other.path().join("a")), &before, "left alone");
    fs::rename(other.path().join("a"), dir.path().join("a")).unwrap();
    recovered(dir.path(), &["a", "b"]);
}

#[test]
fn a_lone_file_without_its_journal_is_refused() {
    let dir = directory();
    let (path, journal) = (dir.path().join("foo.db"), dir.path().join("foo.db.untorn"));
    let mut process = ChildProcess::start();
    process.ok(&["lone", path_text(&path)]);
    process.commit("lone", "new");
    process.kill();
    // First the file is elsewhere, then the journal, then both are back in place.
    fs::rename(&path, dir.path().join("bar.db")).unwrap();
    refused(File::open(dir.path().join("bar.db")), LOST);
    fs::rename(dir.path().join("bar.db"), &path).unwrap();
    fs::rename(&journal, dir.path().join("aside")).unwrap();
    refused(File::open(&path), LOST);
    assert!(!journal.exists() || fs::remove_dir_all(&journal).is_ok());
    fs::rename(dir.path().join("aside"), &journal).unwrap();
    let file = File::open(&path).unwrap();
    assert_same(&contents(&file), &text("new", "lone"), "recovered");
}

/// The state of a file after a power cut before its directory was flushed.
#[test]
fn a_lone_file_whose_name_was_lost_is_created_anew_by_its_journal() {
    let dir = directory();
    let path = dir.path().join("lone.db");
    let mut process = ChildProcess::start();
    process.ok(&["lone", path_text(&path)]);
    process.commit("lone", "new");
    process.kill();
    fs::remove_file(&path).unwrap();
    let file = File::open(&path).unwrap();
    assert_same(&contents(&file), &text("new", "lone"), "created anew");
    file.close().unwrap();

    // If it was closed and then removed, it is simply missing.
    fs::remove_file(&path).unwrap();
    assert!(matches!(File::open(&path), Err(Error::Io { source, .. }) if source.kind() == ErrorKind::NotFound));
}

// Copies of whole stores with pending files.

/// Copies a crashed store; both it and its copy must recover if the attributes were copied.
#[track_caller]
fn copied_with_attributes(copy: impl FnOnce(&Path, &Path)) {
    let dir = directory();
    let (from, to) = (dir.path().join_made("from"), dir.path().join("to"));
    crash_in(&from, &["a", "b"]);
    copy(&from, &to);
    recovered(&to, &["a", "b"]);
    recovered(&from, &["a", "b"]);
}

/// Copies a crashed store without attributes: its files are refused, and nothing is written to them.
#[track_caller]
fn copied_without_attributes(copy: impl FnOnce(&Path, &Path)) {
    let dir = directory();
    let (from, to) = (dir.path().join_made("from"), dir.path().join("to"));
    crash_in(&from, &["a", "b"]);
    copy(&from, &to);
    let before = [plain(to.join("a")), plain(to.join("b"))];
    match Store::open_or_create(&to) {
        Ok(store) => {
            for name in ["a", "b"] {
                refused(store.open_file(name), LOST);
            }
            assert_eq!(store.status().quarantined.len(), 2);
        }
        Err(e) => assert!(LOST.contains(&e.kind()), "{e}"),
    }
    assert_same(&plain(to.join("a")), &before[0], "nothing was overwritten");
    assert_same(&plain(to.join("b")), &before[1], "nothing was overwritten");
    recovered(&from, &["a", "b"]);
}

#[test]
fn copied_by_cp_a() {
    copied_with_attributes(|from, to| run("cp", ["-a".as_ref(), from.as_os_str(), to.as_os_str()]));
}

#[test]
fn copied_by_tar_with_attributes() {
    copied_with_attributes(|from, to| tar(from, to, &["--xattrs", "--xattrs-include=*"]));
}

#[test]
fn copied_by_rsync_with_attributes() {
    copied_with_attributes(|from, to| rsync(from, to, "-aX"));
}

#[test]
fn copied_by_cp_r() {
    copied_without_attributes(|from, to| run("cp", ["-r".as_ref(), from.as_os_str(), to.as_os_str()]));
}

#[test]
fn copied_by_tar_without_attributes() {
    copied_without_attributes(|from, to| tar(from, to, &[]));
}

#[test]
fn copied_by_rsync_without_attributes() {
    copied_without_attributes(|from, to| rsync(from, to, "-a"));
}

#[test]
fn a_moved_store_recovers() {
    let outer = directory();
    let (from, to) = (outer.path().join_made("from"), outer.path().join("to"));
    crash_in(&from, &["a", "b"]);
    fs::rename(&from, &to).unwrap();
    recovered(&to, &["a", "b"]);
}

#[test]
fn a_created_file_is_adopted_only_if_it_is_ours() {
    // Its creation and first contents are in the journal; after the crash the name belongs to another file.
    let dir: TempDir = directory();
    close_clean_with(dir.path(), &["b"], "new");
    let mut process = ChildProcess::owning(dir.path());
    process.ok(&["txn-create", "a", "644", "new"]);
    process.kill();
    replace(&dir.path().join("a"), b"a stranger's");
    only_this_one_is_refused(dir.path(), "a", "b");
    assert_same(&plain(dir.path().join("a")), b"a stranger's", "nothing was overwritten");
}

#[test]
fn an_attribute_that_is_not_ours_is_refused() {
    let dir = directory();
    fs::write(dir.path().join("a"), "plain").unwrap();
    let flags = rustix::fs::XattrFlags::empty();
    for value in [&b"x"[..], &[0xff; 64], &[b'y'; 1000]] {
        rustix::fs::setxattr(dir.path().join("a"), "user.untorn", value, flags).unwrap();
        let store = Store::open_or_create(dir.path()).unwrap();
        refused(store.open_file("a"), &["foreign", "corrupt", "conflict", "newer-version"]);
        store.close().unwrap();
        assert_eq!(attribute(dir.path().join("a")).as_deref(), Some(value), "left as it was");
        assert_same(&plain(dir.path().join("a")), b"plain", "left as it was");
    }
}

/// Replaces a file by a new one, as editors do.
fn replace(path: &Path, contents: &[u8]) {
    let fresh = path.with_extension("fresh");
    fs::write(&fresh, contents).unwrap();
    fs::rename(&fresh, path).unwrap();
}

fn tar(from: &Path, to: &Path, options: &[&str]) {
    fs::create_dir(to).unwrap();
    let archive = to.with_extension("tar");
    let packed = [options, &["-cf", path_text(&archive), "-C", path_text(from), "."]].concat();
    run("tar", packed);
    run("tar", [options, &["-xf", path_text(&archive), "-C", path_text(to)]].concat());
}

fn rsync(from: &Path, to: &Path, options: &str) {
    run("rsync", [options, &format!("{}/", path_text(from)), path_text(to)]);
}

trait JoinMade {
    /// A new directory in this one.
    fn join_made(&self, name: &str) -> std::path::PathBuf;
}

impl JoinMade for Path {
    fn join_made(&self, name: &str) -> std::path::PathBuf {
        let path = self.join(name);
        fs::create_dir(&path).expect("mkdir");
        path
    }
}

/// A store with a living owner, and a commit of "a" that is not in the data file yet.
fn pending() -> (TempDir, Store, File) {
    let dir = directory();
    let store = StoreOptions::new().create(true).background(false).open(dir.path()).unwrap();
    let a = store.open_or_create_file("a").unwrap();
    a.write_all_at(&text("old", "a"), 0).unwrap();
    a.commit().unwrap();
    store.checkpoint().unwrap();
    a.write_all_at(&text("new", "a"), 0).unwrap();
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
        let store = Store::open_or_create(dir.path()).unwrap();
        assert_eq!(store.status().quarantined.len(), 1);
        refused(store.open_file("a"), &["conflict"]);
        let other = store.open_or_create_file("b").unwrap();
        other.append(b"the rest goes on").unwrap();
        other.commit().unwrap();
        drop(other);
        store.close().unwrap();
    }
    assert_same(&plain(&path), b"somebody else's", "not written over");
    // A salvage keeps that text, if the user wants it.
    recover(dir.path(), &SALVAGE, &|_, _| {}).unwrap();
    assert_same(&stored(&Store::open_or_create(dir.path()).unwrap(), "a"), b"somebody else's", "taken as it is");
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
    assert_same(&stored(&Store::open_or_create(dir.path()).unwrap(), "a"), &text("new", "a"), "moved back");
}

#[test]
fn a_second_name_given_under_a_living_owner_may_go_again() {
    let (dir, store, a) = pending();
    let second = dir.path().join("second");
    fs::hard_link(dir.path().join("a"), &second).unwrap();
    refused(store.close(), &["conflict"]);
    drop(a);
    fs::remove_file(&second).unwrap();
    assert_same(&stored(&Store::open_or_create(dir.path()).unwrap(), "a"), &text("new", "a"), "one name again");
}

#[test]
fn the_name_of_a_file_that_waits_is_taken() {
    let dir = crashed_store(&["a", "b"]);
    let aside = directory();
    fs::rename(dir.path().join("a"), aside.path().join("a")).unwrap();
    let waits = &["needs-its-journal"];
    let store = Store::open_or_create(dir.path()).unwrap();
    assert_eq!(store.status().quarantined.len(), 1);
    refused(store.open_or_create_file("a"), waits);
    let mut txn = store.begin();
    refused(txn.create("a", 0o644), waits);
    refused(txn.mkdir("a", 0o755), waits);
    refused(txn.rename("b", "a"), waits);
    txn.abort().unwrap();
    store.close().unwrap();
    assert!(!dir.path().join("a").exists(), "its name is free for it");
    fs::rename(aside.path().join("a"), dir.path().join("a")).unwrap();
    let store = Store::open_or_create(dir.path()).unwrap();
    assert_same(&stored(&store, "a"), &text("new", "a"), "moved back");
    assert_same(&stored(&store, "b"), &text("new", "b"), "untouched");
}
