//! Other programs that open a name right after a commit: they see all of the commit, before any checkpoint. Also, the
//! attributes that a new file inherits from its directory.

mod common;

use common::child_process::{ChildProcess, path_text};
use common::*;
use std::fs;
use std::os::unix::fs::{MetadataExt, chown};
use std::path::Path;
use untorn::{Store, StoreOptions};

const USER: u32 = 65534;
/// A group that the ordinary user is not in.
const FOREIGN_GROUP: u32 = 1;
/// More than the journal itself takes.
const LARGE: usize = 24 << 20;

/// A store with only the checkpoints that a test makes.
fn open(dir: &Path) -> Store {
    StoreOptions::new().create(true).background(false).open(dir).unwrap()
}

#[test]
fn a_new_file_is_whole_as_soon_as_it_is_committed() {
    let dir = directory();
    let store = open(dir.path());
    let mut txn = store.begin();
    txn.create("a", 0o640).unwrap().write_all_at(&text("new", "a"), 0).unwrap();
    assert!(!dir.path().join("a").exists(), "not committed");
    txn.commit().unwrap();
    assert_same(&plain(dir.path().join("a")), &text("new", "a"), "by its name");
    assert_eq!(store.status().checkpoints, 0);
    assert_eq!(mode(dir.path().join("a")) & !0o040, 0o600);
}

#[test]
fn a_file_that_replaces_another_is_whole_as_soon_as_it_is_committed() {
    let dir = directory();
    let store = open(dir.path());
    for version in ["first", "second", "third"] {
        let mut txn = store.begin();
        txn.create("a.new", 0o600).unwrap().write_all_at(&text(version, "a"), 0).unwrap();
        txn.rename("a.new", "a").unwrap();
        txn.commit().unwrap();
        assert_same(&plain(dir.path().join("a")), &text(version, "a"), "by its name");
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 2, "the file and the store directory");
    }
    assert_eq!(store.status().checkpoints, 0);
    store.close().unwrap();
    assert_same(&plain(dir.path().join("a")), &text("third", "a"), "closed");
}

#[test]
fn an_existing_file_brings_its_commits_to_its_new_name() {
    let dir = directory();
    fs::write(dir.path().join("a"), "older, and longer than what comes over it").unwrap();
    let store = open(dir.path());
    let moving = store.open_or_create_file("b").unwrap();
    moving.write_all_at(&text("old", "b"), 0).unwrap();
    moving.commit().unwrap();
    store.checkpoint().unwrap();
    // Made shorter, longer, and changed in the middle; nothing is applied yet.
    moving.set_len(500).unwrap();
    moving.commit().unwrap();
    moving.zero(300, 5000).unwrap();
    moving.write_all_at(b"newest", 7000).unwrap();
    moving.commit().unwrap();
    let expected = contents(&moving);
    let map = moving.map().unwrap();
    // Not committed, and so not visible.
    map.store(b"dirty", 100).unwrap();
    let mut txn = store.begin();
    txn.rename("b", "a").unwrap();
    txn.commit().unwrap();
    assert_same(&plain(dir.path().join("a")), &expected, "by its name");
    let mut seen = expected.clone();
    seen[100..105].copy_from_slice(b"dirty");
    assert_same(&contents(&moving), &seen, "through the handle");
    map.msync().unwrap();
    drop((map, moving));
    store.close().unwrap();
    assert_same(&plain(dir.path().join("a")), &seen, "closed");
}

#[test]
fn a_large_file_is_whole_as_soon_as_it_is_committed() {
    let dir = directory();
    let store = open(dir.path());
    let large: Vec<u8> = text("large", "a").into_iter().cycle().take(LARGE).collect();
    for name in ["a", "b"] {
        let mut txn = store.begin();
        txn.create("new", 0o600).unwrap().write_all_at(&large, 0).unwrap();
        txn.rename("new", name).unwrap();
        txn.commit().unwrap();
        assert!(fs::read(dir.path().join(name)).unwrap() == large, "{name}");
    }
    store.close().unwrap();
    assert!(fs::read(dir.path().join("b")).unwrap() == large, "closed");
}

/// A reader that opens the name repeatedly finds one whole version each time.
#[test]
fn a_reader_sees_whole_versions_only() {
    let dir = directory();
    let path = dir.path().join("a");
    fs::write(&path, text("version 0", "a")).unwrap();
    let store = open(dir.path());
    let done = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        let reader = scope.spawn(|| {
            let mut newest = 0;
            while !done.load(std::sync::atomic::Ordering::SeqCst) {
                let found = fs::read(&path).expect("the name is always there");
                let line = String::from_utf8_lossy(&found).lines().next().unwrap_or_default().to_owned();
                let version = line.split(' ').nth(1).and_then(|number| number.parse::<u32>().ok()).expect("a version");
                assert_same(&found, &text(&format!("version {version}"), "a"), "a whole version");
                assert!(version >= newest, "{version} after {newest}");
                newest = version;
            }
        });
        for version in 1..60 {
            let mut txn = store.begin();
            let contents = text(&format!("version {version}"), "a");
            if version % 2 == 0 {
                txn.create("b", 0o644).unwrap().write_all_at(&contents, 0).unwrap();
            } else {
                let file = store.open_or_create_file("b").unwrap();
                file.write_all_at(&contents, 0).unwrap();
                file.commit().unwrap();
            }
            txn.rename("b", "a").unwrap();
            txn.commit().unwrap();
        }
        done.store(true, std::sync::atomic::Ordering::SeqCst);
        reader.join().expect("the reader");
    });
}

/// An ordinary user's store in a directory with a default access control list and the setgid bit, on this file system.
fn inherits(dir: &Path) {
    let path = |name: &str| dir.join(name);
    for name in ["plain", "store"] {
        fs::create_dir(path(name)).unwrap();
        if is_root() {
            chown(path(name), Some(USER), Some(FOREIGN_GROUP)).unwrap();
        }
        set_mode(path(name), 0o2770);
        run("setfacl", ["-d", "-m", "u:2:rwx,g:3:r-x,o::r-x", path_text(&path(name))]);
    }
    let mut process = ChildProcess::start();
    if is_root() {
        process.ok(&["become", &USER.to_string()]);
    }
    process.ok(&["umask", "0"]);
    process.ok(&["open", path_text(&path("store"))]);
    let acl = |at: &Path| {
        let output = std::process::Command::new("getfacl").args(["-cn", path_text(at)]).output().expect("getfacl");
        String::from_utf8(output.stdout).unwrap()
    };
    // With contents; over another file; without contents.
    process.ok(&["txn", "create:a:660"]);
    process.ok(&["txn", "create:b:660", "rename:b:over"]);
    process.ok(&["txn", "create:b:660", "rename:b:over"]);
    process.ok(&["create", "empty", "660"]);
    fs::write(path("plain/a"), "").unwrap();
    set_mode(path("plain/a"), 0o660);
    for name in ["a", "over", "empty"] {
        let made = path("store").join(name);
        let (found, expected) = (fs::metadata(&made).unwrap(), fs::metadata(path("store")).unwrap());
        assert_eq!(found.gid(), expected.gid(), "{name}");
        assert_eq!(mode(&made), 0o660, "{name}");
        assert_eq!(acl(&made), acl(&path("plain/a")), "{name}");
        assert!(acl(&made).contains("user:2:rwx"), "{}", acl(&made));
    }
    process.ok(&["checkpoint"]);
    process.ok(&["close"]);
    assert_eq!(acl(&path("store/over")), acl(&path("plain/a")), "closed");
}

fn has_acl_tools() -> bool {
    let works = |program| std::process::Command::new(program).arg("--version").output().is_ok();
    works("setfacl") && works("getfacl")
}

#[test]
fn a_new_file_inherits_from_its_directory() {
    if !has_acl_tools() {
        return skipped("needs setfacl and getfacl");
    }
    let dir = directory();
    set_mode(dir.path(), 0o755);
    inherits(dir.path());
}

#[test]
fn a_new_file_inherits_from_its_directory_on_other_file_systems() {
    if !has_acl_tools() {
        return skipped("needs setfacl and getfacl");
    }
    let dir = directory();
    set_mode(dir.path(), 0o755);
    let at = |name: &str| {
        let at = dir.path().join(name);
        fs::create_dir(&at).unwrap();
        at
    };
    if let Some(mount) = Mount::ext4(64 << 20, &at("ext4")) {
        inherits(mount.path());
    }
    if let Some(mount) = Mount::new(&["-t", "tmpfs", "tmpfs"], &at("tmpfs")) {
        inherits(mount.path());
    }
    if std::process::Command::new("mkfs.xfs").arg("-V").output().is_err() {
        return skipped("needs mkfs.xfs");
    }
    if let Some(mount) = Mount::made("mkfs.xfs -q", 320 << 20, "", &at("xfs")) {
        inherits(mount.path());
    }
}

/// A directory's setgid bit passes on to new directories in it, and stays where a commit set it. If the kernel would
/// silently drop it, the commit is refused.
#[test]
fn the_setgid_bit_is_neither_lost_nor_made_up() {
    if !is_root() {
        return skipped("needs root (to give directories to groups)");
    }
    for killed in [false, true] {
        let dir = directory();
        let path = |name: &str| dir.path().join(name);
        chown(dir.path(), Some(USER), Some(USER)).unwrap();
        for (name, group) in [("ours", USER), ("theirs", FOREIGN_GROUP)] {
            fs::create_dir(path(name)).unwrap();
            chown(path(name), Some(USER), Some(group)).unwrap();
            set_mode(path(name), 0o2775);
        }
        fs::write(path("theirs/old"), "old").unwrap();
        chown(path("theirs/old"), Some(USER), Some(FOREIGN_GROUP)).unwrap();
        let mut process = ChildProcess::start();
        process.ok(&["become", &USER.to_string()]);
        process.ok(&["umask", "22"]);
        process.ok(&["open", path_text(dir.path())]);
        for steps in [
            &["create:theirs/f:2755"][..],
            &["mkdir:theirs/d:2755"],
            &["create:theirs/f:755", "chmod:theirs/f:2755"],
            &["mkdir:theirs/d:755", "chmod:theirs/d:2755"],
            &["chmod:theirs/old:2755"],
            &["chmod:theirs:2700"],
        ] {
            process.refused(&[&["txn"], steps].concat(), &["io"]);
        }
        process.ok(&["txn", "create:ours/f:2755", "mkdir:ours/d:755", "create:ours/d/f:644", "mkdir:ours/d/e:700"]);
        process.ok(&["txn", "create:theirs/f:755", "mkdir:theirs/d:755", "create:theirs/d/f:644"]);
        process.ok(&[
            "txn",
            "mkdir:ours/without:755",
            "chmod:ours/without:755",
            "create:ours/g:755",
            "chmod:ours/g:2755",
        ]);
        if killed {
            process.kill();
            let mut next = ChildProcess::start();
            next.ok(&["become", &USER.to_string()]);
            next.ok(&["open", path_text(dir.path())]);
            next.ok(&["close"]);
        } else {
            process.ok(&["checkpoint"]);
            process.ok(&["close"]);
        }
        for (name, expected) in [
            ("ours", 0o2775),
            ("ours/f", 0o2755),
            ("ours/g", 0o2755),
            ("ours/d", 0o2755),
            ("ours/d/f", 0o644),
            ("ours/d/e", 0o2700),
            ("ours/without", 0o755),
            ("theirs", 0o2775),
            ("theirs/f", 0o755),
            ("theirs/d", 0o755),
            ("theirs/d/f", 0o644),
            ("theirs/old", 0o644),
        ] {
            assert_eq!(mode(path(name)), expected, "{name}, killed: {killed}");
        }
        assert_same(&plain(path("ours/f")), &text("new", "ours/f"), "written");
        assert_eq!(fs::metadata(path("theirs/f")).unwrap().gid(), FOREIGN_GROUP);
    }
}
