//! Transactions: several files and names change together or not at all, and only the final state counts, not the steps
//! to it.

mod common;

use common::*;
use std::fs;
use std::path::Path;
use untorn::{File, Store, StoreOptions};

/// A store with these files, each with its [`text`] of version "old", and the store's directory.
fn store_with(names: &[&str]) -> (tempfile::TempDir, Store) {
    let dir = directory();
    child_process::close_clean_with(dir.path(), names, "old");
    let store = Store::open_or_create(dir.path()).unwrap();
    (dir, store)
}

/// The names in the directory, Untorn's own left out.
fn names(dir: &Path) -> Vec<String> {
    let mut names: Vec<String> =
        fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.retain(|name| name != ".untorn");
    names.sort();
    names
}

#[test]
fn files_change_together() {
    let (dir, store) = store_with(&["a", "b"]);
    let (a, b) = (store.open_file("a").unwrap(), store.open_file("b").unwrap());
    let mut txn = store.begin();
    // Changes made before `add` belong to the transaction like those after it.
    a.write_all_at(b"before", 0).unwrap();
    txn.add(&a).unwrap();
    txn.add(&b).unwrap();
    txn.add(&b).unwrap();
    b.write_all_at(b"after", 0).unwrap();
    let before = store.status().commits;
    txn.commit().unwrap();
    assert_eq!(store.status().commits, before + 1);
    drop((a, b));
    store.close().unwrap();
    assert_eq!(&plain(dir.path().join("a"))[..6], b"before");
    assert_eq!(&plain(dir.path().join("b"))[..5], b"after");
}

#[test]
fn abort_and_drop_undo_everything() {
    for by_drop in [false, true] {
        let (dir, store) = store_with(&["a", "b"]);
        let a = store.open_file("a").unwrap();
        let mut txn = store.begin();
        txn.add(&a).unwrap();
        a.set_len(3).unwrap();
        let new = txn.create("new", 0o644).unwrap();
        new.append(b"new").unwrap();
        txn.unlink("b").unwrap();
        txn.mkdir("sub", 0o755).unwrap();
        if by_drop {
            drop(txn)
        } else {
            txn.abort().unwrap()
        }
        drop(new);
        assert_same(&contents(&a), &text("old", "a"), "after the abort");
        assert_same(&stored(&store, "b"), &text("old", "b"), "after the abort");
        assert_eq!(names(dir.path()), ["a", "b"]);
        // The file is free again.
        a.append(b"x").unwrap();
        a.commit().unwrap();
        drop(a);
        store.close().unwrap();
        assert_eq!(names(dir.path()), ["a", "b"]);
    }
}

#[test]
fn a_file_in_a_transaction_is_committed_by_it_alone() {
    let (_dir, store) = store_with(&["a"]);
    let a = store.open_file("a").unwrap();
    let handle = a.try_clone().unwrap();
    let mut txn = store.begin();
    txn.add(&a).unwrap();
    handle.append(b"x").unwrap();
    refused(a.commit(), &["in-transaction"]);
    refused(handle.commit_async(), &["in-transaction"]);
    refused(handle.rollback(), &["in-transaction"]);
    refused(store.syncv(&[&handle]), &["in-transaction"]);
    let mut other = store.begin();
    refused(other.add(&handle), &["in-transaction"]);
    txn.commit().unwrap();
    assert_eq!(a.len().unwrap(), TEXT_BYTES as u64 + 1);
    a.append(b"y").unwrap();
    a.commit().unwrap();
}

#[test]
fn a_created_file_appears_at_commit() {
    let (dir, store) = store_with(&["a"]);
    let mut txn = store.begin();
    let new = txn.create("new", 0o600).unwrap();
    assert_eq!(new.len().unwrap(), 0);
    new.write_all_at(&text("first", "new"), 0).unwrap();
    assert_same(&contents(&new), &text("first", "new"), "before the commit");
    assert!(!dir.path().join("new").exists(), "a name appears at commit, not before");
    refused_with_errno(store.open_file("new"), libc::ENOENT);
    txn.commit().unwrap();
    assert!(dir.path().join("new").exists(), "names are there when commit returns");
    assert_eq!(mode(dir.path().join("new")), 0o600);
    assert_same(&stored(&store, "new"), &text("first", "new"), "after the commit");
    new.append(b"more").unwrap();
    new.commit().unwrap();
    drop(new);
    store.close().unwrap();
    assert_eq!(plain(dir.path().join("new")).len(), TEXT_BYTES + 4);
}

#[test]
fn names_change_at_commit() {
    let (dir, store) = store_with(&["a", "b", "c"]);
    let a = store.open_file("a").unwrap();
    let mut txn = store.begin();
    txn.mkdir("sub", 0o750).unwrap();
    txn.mkdir("sub/deeper", 0o700).unwrap();
    txn.rename("a", "sub/deeper/moved").unwrap();
    txn.unlink("b").unwrap();
    txn.rename("c", "d").unwrap();
    txn.chmod("d", 0o444).unwrap();
    txn.chmod("sub", 0o700).unwrap();
    assert_eq!(names(dir.path()), ["a", "b", "c"], "nothing before the commit");
    txn.commit().unwrap();
    assert_eq!(names(dir.path()), ["d", "sub"], "all of it when commit returns");
    assert_eq!((mode(dir.path().join("d")), mode(dir.path().join("sub"))), (0o444, 0o700));
    // The handle follows its file.
    assert_eq!(a.path(), Path::new("sub/deeper/moved"));
    a.append(b"x").unwrap();
    a.commit().unwrap();
    refused_with_errno(store.open_file("a"), libc::ENOENT);
    refused_with_errno(store.open_file("b"), libc::ENOENT);
    assert_same(&stored(&store, "d"), &text("old", "c"), "renamed");
    drop(a);
    store.close().unwrap();
    assert_eq!(plain(dir.path().join("sub/deeper/moved")).len(), TEXT_BYTES + 1);

    let store = Store::open_or_create(dir.path()).unwrap();
    let mut txn = store.begin();
    txn.unlink("sub/deeper/moved").unwrap();
    txn.rmdir("sub/deeper").unwrap();
    txn.rmdir("sub").unwrap();
    txn.commit().unwrap();
    store.close().unwrap();
    assert_eq!(names(dir.path()), ["d"]);
}

#[test]
fn a_rename_replaces() {
    let (dir, store) = store_with(&["a", "b"]);
    let mut txn = store.begin();
    txn.rename("a", "b").unwrap();
    txn.commit().unwrap();
    assert_same(&stored(&store, "b"), &text("old", "a"), "replaced");
    store.close().unwrap();
    assert_eq!(names(dir.path()), ["b"]);
    assert_same(&plain(dir.path().join("b")), &text("old", "a"), "replaced");
}

#[test]
fn a_vacated_name_is_taken_again_in_one_transaction() {
    // This sequence tears if operations are replayed one by one: rename a → b, create a.
    let (dir, store) = store_with(&["a"]);
    let mut txn = store.begin();
    txn.rename("a", "b").unwrap();
    let new = txn.create("a", 0o644).unwrap();
    new.write_all_at(&text("new", "a"), 0).unwrap();
    txn.commit().unwrap();
    drop(new);
    assert_same(&stored(&store, "b"), &text("old", "a"), "the renamed one");
    assert_same(&stored(&store, "a"), &text("new", "a"), "the new one");

    // Unlinked and created again; and created and unlinked.
    let mut txn = store.begin();
    txn.unlink("b").unwrap();
    txn.create("b", 0o644).unwrap().append(b"fresh").unwrap();
    txn.create("brief", 0o644).unwrap().append(b"gone").unwrap();
    txn.unlink("brief").unwrap();
    txn.mkdir("brief dir", 0o755).unwrap();
    txn.rmdir("brief dir").unwrap();
    txn.commit().unwrap();
    store.close().unwrap();
    assert_eq!(names(dir.path()), ["a", "b"]);
    assert_same(&plain(dir.path().join("b")), b"fresh", "unlinked and made anew");
}

#[test]
fn names_are_swapped() {
    let (dir, store) = store_with(&["a", "b"]);
    for round in 0..2 {
        let mut txn = store.begin();
        txn.rename("a", "aside").unwrap();
        txn.rename("b", "a").unwrap();
        txn.rename("aside", "b").unwrap();
        txn.commit().unwrap();
        let (a, b) = if round == 0 { ("b", "a") } else { ("a", "b") };
        assert_same(&stored(&store, "a"), &text("old", a), "swapped");
        assert_same(&stored(&store, "b"), &text("old", b), "swapped");
    }
    store.close().unwrap();
    assert_eq!(names(dir.path()), ["a", "b"]);
    assert_same(&plain(dir.path().join("a")), &text("old", "a"), "swapped twice");
}

#[test]
fn uncommitted_changes_follow_a_rename_but_are_not_committed_by_it() {
    let (_dir, store) = store_with(&["a", "b"]);
    let a = store.open_file("a").unwrap();
    a.append(b"uncommitted").unwrap();
    let mut txn = store.begin();
    txn.rename("a", "moved").unwrap();
    txn.commit().unwrap();
    assert_eq!(a.len().unwrap(), TEXT_BYTES as u64 + 11);
    a.rollback().unwrap();
    assert_same(&contents(&a), &text("old", "a"), "after rollback");
}

#[test]
fn a_handle_of_a_file_that_is_gone_is_harmless() {
    let (dir, store) = store_with(&["a", "b"]);
    let a = store.open_file("a").unwrap();
    let mut txn = store.begin();
    txn.unlink("a").unwrap();
    txn.commit().unwrap();
    // The handle may or may not still read. But its file must not come back, or damage other files.
    let _ = a.read_at(&mut [0; 10], 0);
    let _ = a.write_all_at(b"ghost", 0).and_then(|()| a.commit());
    drop(a);
    store.checkpoint().unwrap();
    assert_eq!(names(dir.path()), ["b"]);
    store.open_or_create_file("a").unwrap().close().unwrap();
    assert_eq!(stored(&store, "a").len(), 0, "a new file of the old name is empty");
}

#[test]
fn an_empty_transaction_is_no_commit() {
    let (_dir, store) = store_with(&["a"]);
    let before = store.status();
    store.begin().commit().unwrap();
    store.begin().commit_async().unwrap().wait().unwrap();
    let after = store.status();
    assert_eq!((after.commits, after.lsn), (before.commits, before.lsn));
}

#[test]
fn a_transaction_commits_asynchronously() {
    let (dir, store) = store_with(&["a", "b"]);
    let a = store.open_file("a").unwrap();
    let mut txn = store.begin();
    txn.add(&a).unwrap();
    a.write_all_at(b"later", 0).unwrap();
    txn.unlink("b").unwrap();
    let ticket = txn.commit_async().unwrap();
    // The batch is closed: this write is not in it, and can be committed by itself.
    a.write_all_at(b"again", 0).unwrap();
    ticket.wait().unwrap();
    a.rollback().unwrap();
    drop(a);
    store.close().unwrap();
    assert_eq!(names(dir.path()), ["a"]);
    assert_eq!(&plain(dir.path().join("a"))[..5], b"later");
}

/// Makes a step that must be refused, at once or at the latest by the commit. Then nothing of the transaction may have
/// happened.
#[track_caller]
fn impossible(what: &str, step: impl FnOnce(&mut untorn::Txn) -> untorn::Result<()>) {
    let (dir, store) = store_with(&["a", "b"]);
    let mut setup = store.begin();
    setup.mkdir("full", 0o755).unwrap();
    setup.create("full/x", 0o644).unwrap();
    setup.commit().unwrap();
    let a = store.open_file("a").unwrap();
    let mut txn = store.begin();
    txn.add(&a).unwrap();
    a.write_all_at(b"half", 0).unwrap();
    if step(&mut txn).is_ok() {
        assert!(txn.commit().is_err(), "{what} must be refused");
    } else {
        txn.abort().unwrap();
    }
    assert_eq!(names(dir.path()), ["a", "b", "full"], "{what}");
    let _ = a.rollback();
    drop(a);
    store.close().unwrap();
    assert_same(&plain(dir.path().join("a")), &text("old", "a"), what);
    assert_eq!(names(dir.path()), ["a", "b", "full"], "{what}");
    assert_eq!(names(&dir.path().join("full")), ["x"], "{what}");
}

/// A pending commit creates a file; a later transaction with that file is aborted, or cannot be committed.
#[test]
fn an_aborted_transaction_leaves_what_an_earlier_one_makes() {
    for in_order in [false, true] {
        let dir = directory();
        // Commits are written only when somebody waits.
        let store = StoreOptions::new().create(true).background(false).in_order(in_order).open(dir.path()).unwrap();
        let mut first = store.begin();
        let made = first.create("made", 0o644).unwrap();
        made.write_all_at(b"first", 0).unwrap();
        let ticket = first.commit_async().unwrap();
        let mut second = store.begin();
        second.add(&made).unwrap();
        made.write_all_at(b"SECOND", 0).unwrap();
        let own = second.create("own", 0o644).unwrap();
        drop(second);
        refused(own.append(b"x"), &["io"]);
        ticket.wait().unwrap();
        let left: &[u8] = if in_order { b"SECOND" } else { b"first" };
        assert_same(&contents(&made), left, "what is left of the second");
        made.commit().unwrap();
        store.close().unwrap();
        assert_same(&plain(dir.path().join("made")), left, "committed");
        assert_eq!(names(dir.path()), ["made"]);
    }
}

#[test]
fn impossible_steps_are_refused() {
    impossible("creating what is there", |txn| txn.create("b", 0o644).map(drop));
    impossible("creating a directory that is there", |txn| txn.mkdir("full", 0o755));
    impossible("creating in a directory that is not there", |txn| txn.create("none/x", 0o644).map(drop));
    impossible("creating a directory in a file", |txn| txn.mkdir("b/x", 0o755));
    impossible("renaming what is not there", |txn| txn.rename("none", "c"));
    impossible("renaming into a directory that is not there", |txn| txn.rename("b", "none/b"));
    impossible("renaming a file over a directory", |txn| txn.rename("b", "full"));
    impossible("unlinking what is not there", |txn| txn.unlink("none"));
    impossible("unlinking a directory", |txn| txn.unlink("full"));
    impossible("removing a directory that is not empty", |txn| txn.rmdir("full"));
    impossible("removing a directory that is a file", |txn| txn.rmdir("b"));
    impossible("permissions of what is not there", |txn| txn.chmod("none", 0o644));
    impossible("leaving the store", |txn| txn.rename("b", "../b"));
    impossible("an absolute name", |txn| txn.create("/var/tmp/untorn-absolute", 0o644).map(drop));
    impossible("Untorn's own directory", |txn| txn.rename("b", ".untorn/b"));
    impossible("removing Untorn's own directory", |txn| txn.rmdir(".untorn"));
}

#[test]
fn a_file_of_another_store_is_refused() {
    let (_dir, store) = store_with(&["a"]);
    let (_elsewhere, other) = store_with(&["a"]);
    let foreign: File = other.open_file("a").unwrap();
    let mut txn = store.begin();
    refused(txn.add(&foreign), &["foreign", "invalid"]);
    refused(store.syncv(&[&foreign]), &["foreign", "invalid"]);
}
