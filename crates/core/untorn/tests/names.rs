//! Changes of names that the kernel does not allow are refused before they are committed. Also, the fate of committed
//! changes that the kernel does not allow any more.

mod common;

use common::child_process::{ChildProcess, path_text};
use common::*;
use std::fs::{self, Permissions};
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::Path;
use tempfile::TempDir;

const USER: u32 = 65534;

/// A process of an ordinary user that owns the store.
fn owner(dir: &Path) -> ChildProcess {
    let mut process = ChildProcess::start();
    if is_root() {
        process.ok(&["become", &USER.to_string()]);
    }
    process.ok(&["open", path_text(dir)]);
    process
}

/// A directory of an ordinary user.
fn users_directory() -> TempDir {
    let dir = directory();
    if is_root() {
        give(dir.path(), USER);
    }
    dir
}

fn give(path: &Path, user: u32) {
    chown(path, Some(user), Some(user)).expect("chown");
}

fn set_mode(path: &Path, mode: u32) {
    fs::set_permissions(path, Permissions::from_mode(mode)).expect("chmod");
}

/// Asserts that the store has nothing left to do.
#[track_caller]
fn is_sound(dir: &Path) {
    let mut process = owner(dir);
    assert_eq!(process.ok(&["quarantined"]), "");
    process.ok(&["create", "sound"]);
    process.commit("sound", "new");
    process.ok(&["checkpoint"]);
    process.ok(&["close"]);
}

#[test]
fn what_the_kernel_forbids_is_refused_before_it_is_committed() {
    if !is_root() {
        return skipped("needs root (to give files to others)");
    }
    let dir = users_directory();
    let path = |name: &str| dir.path().join(name);
    for (name, mode, user) in [("foreign", 0o755, 0), ("sticky", 0o1777, 0), ("closed", 0o700, USER)] {
        fs::create_dir(path(name)).unwrap();
        fs::create_dir(path(name).join("inner")).unwrap();
        fs::write(path(name).join("f"), "old").unwrap();
        set_mode(&path(name).join("f"), 0o666);
        give(&path(name), user);
        set_mode(&path(name), mode);
    }
    set_mode(&path("closed"), 0o500);
    fs::write(path("theirs"), "old").unwrap();
    set_mode(&path("theirs"), 0o666);
    let mut process = owner(dir.path());
    process.ok(&["create", "a"]);
    process.commit("a", "old");
    let long = format!("create:d/{}:600", "n".repeat(256));
    let forbidden: &[&[&str]] = &[
        &["mkdir:foreign/x:700"],
        &["create:foreign/x:600"],
        &["rename:a:foreign/a"],
        &["rename:foreign/f:f"],
        &["unlink:foreign/f"],
        &["rmdir:foreign/inner"],
        &["chmod:foreign:777"],
        &["chmod:theirs:600"],
        &["unlink:sticky/f"],
        &["rename:a:sticky/f"],
        &["rename:sticky/f:sticky/g"],
        &["rmdir:sticky/inner"],
        &["create:closed/x:600"],
        &["unlink:closed/f"],
        &["rename:a:closed/f"],
        &["mkdir:d:700", &long],
        &["mkdir:d:300"],
        &["mkdir:d:700", "chmod:d:0"],
        &["chmod:a:0"],
    ];
    for steps in forbidden {
        process.refused(&[&["txn"], *steps].concat(), &["io", "invalid"]);
        process.commit("a", "new");
        process.ok(&["checkpoint"]);
    }
    process.ok(&["txn", "rename:a:sticky/a", "chmod:closed:700", "create:closed/x:600", "unlink:closed/f"]);
    process.ok(&["close"]);
    assert_same(&plain(path("sticky/a")), &text("new", "a"), "allowed");
    is_sound(dir.path());
}

#[test]
fn what_is_immutable_or_may_only_grow_is_left_alone() {
    let dir = directory();
    let path = |name: &str| dir.path().join(name);
    fs::create_dir(path("fixed")).unwrap();
    fs::create_dir(path("growing")).unwrap();
    fs::write(path("growing/f"), "old").unwrap();
    let chattr = |flag: &str, name: &str| {
        let done = std::process::Command::new("chattr").arg(flag).arg(path(name)).output();
        done.is_ok_and(|output| output.status.success())
    };
    if !chattr("+i", "fixed") || !chattr("+a", "growing") {
        return skipped("needs a file system with chattr, and root");
    }
    let store = untorn::Store::open_or_create(dir.path()).unwrap();
    let refusals = [("fixed/x", true), ("growing/f", false)].map(|(name, make)| {
        let mut txn = store.begin();
        let changed = if make { txn.mkdir(name, 0o700) } else { txn.unlink(name) };
        changed.and_then(|()| txn.commit())
    });
    let mut txn = store.begin();
    let mode = txn.chmod("fixed", 0o700).and_then(|()| txn.commit());
    let sound = store.checkpoint();
    assert!(chattr("-i", "fixed") && chattr("-a", "growing"));
    refusals.into_iter().chain([mode]).for_each(|refusal| _ = refused(refusal, &["io"]));
    sound.unwrap();
    store.close().unwrap();
}

#[test]
fn a_directory_that_is_closed_by_the_transaction_that_fills_it() {
    for killed in [false, true] {
        let dir = users_directory();
        let path = |name: &str| dir.path().join(name);
        let mut process = owner(dir.path());
        process.ok(&["txn", "mkdir:d:700", "create:d/f:600", "chmod:d:500"]);
        process.ok(&["txn", "mkdir:e:500", "create:e/f:600", "mkdir:e/e:500", "create:e/e/f:600"]);
        if killed {
            process.kill();
            // The state after a power cut: the modes reached the disk, and the names did not.
            for (name, of) in [("e/e/f", "e/e"), ("d/f", "d"), ("e/f", "e")] {
                set_mode(&path(of), 0o700);
                fs::remove_file(path(name)).unwrap();
                set_mode(&path(of), 0o500);
            }
            is_sound(dir.path());
        } else {
            process.ok(&["checkpoint"]);
            process.ok(&["close"]);
        }
        for name in ["d/f", "e/f", "e/e/f"] {
            assert_same(&plain(path(name)), &text("new", name), "in a closed directory");
        }
        assert_eq!(["d", "e", "e/e"].map(|name| mode(path(name))), [0o500; 3]);
        is_sound(dir.path());
        // Lets the ordinary user remove them.
        ["d", "e", "e/e"].iter().for_each(|name| set_mode(&path(name), 0o700));
    }
}

/// A committed directory cannot be made any more: only that directory waits.
#[test]
fn a_directory_that_cannot_be_made_keeps_nothing_else() {
    if !is_root() {
        return skipped("needs root (to give files to others)");
    }
    let dir = users_directory();
    let path = |name: &str| dir.path().join(name);
    fs::create_dir(path("p")).unwrap();
    give(&path("p"), USER);
    let mut process = owner(dir.path());
    process.ok(&["create", "a"]);
    process.ok(&["txn", "mkdir:p/d:750", "create:p/d/f:600"]);
    process.commit("a", "new");
    process.kill();
    fs::remove_dir_all(path("p/d")).unwrap();
    give(&path("p"), 0);
    for _ in 0..2 {
        let mut process = owner(dir.path());
        let quarantined = process.ok(&["quarantined"]);
        assert!(quarantined.split(' ').any(|name| name == "p/d"), "{quarantined}");
        process.ok(&["file", "a"]);
        process.commit("a", "newer");
        process.refused(&["txn", "mkdir:p/d:700"], &["io"]);
        process.ok(&["checkpoint"]);
        process.ok(&["close"]);
        assert_same(&plain(path("a")), &text("newer", "a"), "all others go on");
    }
    give(&path("p"), USER);
    is_sound(dir.path());
    assert_same(&plain(path("p/d/f")), &text("new", "p/d/f"), "the cause is gone");
    assert_eq!(mode(path("p/d")), 0o750);
}

/// A former bug: the file opened as a plain file under its old name, with old contents, and its commits were lost.
#[test]
fn a_file_that_could_not_be_renamed_is_refused_under_its_old_name() {
    if !is_root() {
        return skipped("needs root (to give files to others)");
    }
    let dir = users_directory();
    let path = |name: &str| dir.path().join(name);
    fs::create_dir(path("p")).unwrap();
    give(&path("p"), USER);
    let mut process = owner(dir.path());
    process.ok(&["create", "a"]);
    process.commit("a", "old");
    process.ok(&["checkpoint"]);
    process.ok(&["txn", "rename:a:p/b"]);
    process.commit("a", "new");
    process.kill();
    fs::rename(path("p/b"), path("a")).unwrap();
    give(&path("p"), 0);
    for _ in 0..2 {
        let mut process = owner(dir.path());
        assert_eq!(process.ok(&["quarantined"]), "p/b");
        process.refused(&["file", "a"], &["io"]);
        process.refused(&["txn", "unlink:a"], &["io"]);
        process.ok(&["close"]);
    }
    give(&path("p"), USER);
    is_sound(dir.path());
    assert_same(&plain(path("p/b")), &text("new", "a"), "the cause is gone");
    assert!(!path("a").exists());
}

/// On btrfs, a power cut behind a rename can leave both names.
#[test]
fn a_renamed_file_that_has_both_names_loses_the_old_one() {
    for foreign in [false, true] {
        let dir = directory();
        let path = |name: &str| dir.path().join(name);
        let mut process = ChildProcess::owning(dir.path());
        process.ok(&["create", "a"]);
        process.commit("a", "old");
        process.ok(&["checkpoint"]);
        process.ok(&["txn", "mkdir:d:700", "rename:a:d/b"]);
        process.ok(&["txn", "create:a:600"]);
        process.kill();
        // A file of its own has the old name now: as before the commits, that name is a link to the renamed file.
        fs::remove_file(path("a")).unwrap();
        fs::hard_link(path("d/b"), path("a")).unwrap();
        if foreign {
            fs::hard_link(path("d/b"), path("unknown")).unwrap();
        }
        let store = untorn::Store::open_or_create(dir.path()).unwrap();
        assert_eq!(store.status().quarantined.is_empty(), !foreign, "{:?}", store.status().quarantined);
        store.close().unwrap();
        if foreign {
            fs::remove_file(path("unknown")).unwrap();
        }
        let store = untorn::Store::open_or_create(dir.path()).unwrap();
        assert!(store.status().quarantined.is_empty());
        store.close().unwrap();
        assert_same(&plain(path("d/b")), &text("old", "a"), "the renamed file");
        assert_same(&plain(path("a")), &text("new", "a"), "the new file");
    }
}

#[test]
fn a_directory_becomes_a_file_and_a_file_a_directory() {
    for killed in [false, true] {
        let dir = directory();
        let path = |name: &str| dir.path().join(name);
        let mut process = ChildProcess::owning(dir.path());
        process.ok(&["create", "x"]);
        process.commit("x", "old");
        process.ok(&["txn", "mkdir:d:700", "create:d/f:600"]);
        process.ok(&["txn", "rename:d/f:f", "rmdir:d", "create:d:600"]);
        process.ok(&["txn", "rename:x:t", "mkdir:x:700", "rename:t:x/x"]);
        if killed {
            process.kill();
            untorn::Store::open_or_create(dir.path()).unwrap().close().unwrap();
        } else {
            process.ok(&["checkpoint"]);
            process.ok(&["close"]);
        }
        assert_same(&plain(path("d")), &text("new", "d"), "a file now");
        assert_same(&plain(path("x/x")), &text("old", "x"), "in a directory now");
        assert_same(&plain(path("f")), &text("new", "d/f"), "out of the directory");
    }
}

/// A write by an ordinary user clears these bits.
#[test]
fn setuid_stays_after_the_contents_are_written() {
    for killed in [false, true] {
        let dir = users_directory();
        let path = dir.path().join("a");
        let mut process = owner(dir.path());
        process.ok(&["txn", "create:a:755"]);
        process.commit("a", "new");
        process.ok(&["chmod", "a", "6755"]);
        if killed {
            process.kill();
            is_sound(dir.path());
        } else {
            process.ok(&["checkpoint"]);
            assert_eq!(mode(&path), 0o6755, "after a checkpoint");
            process.ok(&["close"]);
        }
        assert_eq!(mode(&path), 0o6755);
        assert_same(&plain(&path), &text("new", "a"), "written");
    }
}
