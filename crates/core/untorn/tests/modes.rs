//! Files that their owner may not write: created so, or made so by a transaction or by the umask. Root may write
//! anything, so the tests use an ordinary user.

mod common;

use common::child_process::{ChildProcess, path_text};
use common::*;
use std::os::unix::fs::chown;
use tempfile::TempDir;

/// A process of an ordinary user, and a directory that belongs to the user.
fn ordinary_user() -> (ChildProcess, TempDir) {
    let dir = directory();
    let mut process = ChildProcess::start();
    if is_root() {
        chown(dir.path(), Some(65534), Some(65534)).unwrap();
        process.ok(&["become", "65534"]);
    }
    process.ok(&["open", path_text(dir.path())]);
    (process, dir)
}

/// Ends the first process by a kill and by a close in turn; a second one of the same user recovers. The file always has
/// the last commit, and keeps its mode.
fn keeps_its_mode(prepare: impl Fn(&mut ChildProcess)) {
    for killed in [true, false] {
        let (mut process, dir) = ordinary_user();
        let path = dir.path().join("a");
        prepare(&mut process);
        assert_eq!(mode(&path), 0o444);
        process.commit("a", "newer");
        if killed {
            process.kill();
        } else {
            process.ok(&["close"]);
            assert_same(&plain(&path), &text("newer", "a"), "closed");
        }
        let mut next = ChildProcess::start();
        if is_root() {
            next.ok(&["become", "65534"]);
        }
        next.ok(&["open", path_text(dir.path())]);
        assert_eq!(next.ok(&["quarantined"]), "");
        // The opening serves the commit; a checkpoint writes it to the file, although the file's mode forbids that.
        next.ok(&["checkpoint"]);
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
    keeps_its_mode(|process| _ = process.ok(&["txn-create", "a", "444", "new"]));
}

#[test]
fn a_file_created_without_the_right_to_write_it_and_mapped() {
    keeps_its_mode(|process| {
        process.ok(&["txn-create", "a", "444", "new"]);
        if is_root() {
            // A process that was root cannot read its own `/proc`.
            let refusal = process.refused(&["store-mapped", "a"], &["unsupported"]);
            assert!(refusal.message.contains("PR_SET_DUMPABLE"), "{}", refusal.message);
        }
        process.ok(&["dumpable"]);
        process.ok(&["store-mapped", "a"]);
        assert_eq!(&process.ok(&["read", "a"])[..6], "mapped");
    });
}

#[test]
fn a_file_whose_mode_takes_the_right_to_write_it() {
    keeps_its_mode(|process| {
        process.ok(&["create", "a"]);
        process.commit("a", "new");
        process.ok(&["chmod", "a", "444"]);
    });
}

#[test]
fn an_umask_that_takes_the_right_to_write() {
    keeps_its_mode(|process| {
        process.ok(&["umask", "222"]);
        process.ok(&["create", "a", "666"]);
        process.commit("a", "new");
    });
}
