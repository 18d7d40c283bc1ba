//! Names of Untorn's own, files that their owner may not write, buckets that lost something, and places that are full.

mod common;

use common::{committed, contents, program, refused, run, text, url};
use std::fs::{self, Permissions};
use std::os::unix::fs::{PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use untorn::Store;
use untorn_testkit::{Mount, NOBODY, is_root, skipped};

/// A store with a few commits, each of which is an object of its own.
fn shipped(dir: &Path, commits: u8) -> (PathBuf, String) {
    let (path, bucket) = (dir.join("store"), url(&dir.join("bucket")));
    for n in 0..commits {
        commit(&path, "a", &[n; 100]);
        run(&["ship", text(&path), &bucket, "--once"]);
    }
    (path, bucket)
}

fn commit(dir: &Path, name: &str, bytes: &[u8]) {
    let store = Store::open_or_create(dir).unwrap();
    let file = store.open_or_create_file(name).unwrap();
    file.write_all_at(bytes, 0).unwrap();
    file.commit().unwrap();
    store.close().unwrap();
}

/// The log objects of a bucket with commits, in order.
fn objects_of(dir: &Path) -> Vec<PathBuf> {
    let generations = fs::read_dir(dir.join("bucket/log")).unwrap().map(|entry| entry.unwrap().path());
    let mut all: Vec<_> =
        generations.flat_map(|g| fs::read_dir(g).unwrap().map(|entry| entry.unwrap().path())).collect();
    all.sort();
    all
}

#[test]
fn a_directory_that_follows_is_shipped_without_its_state() {
    let dir = tempfile::tempdir().unwrap();
    let (path, bucket) = shipped(dir.path(), 2);
    let (replica, second) = (dir.path().join("replica"), url(&dir.path().join("second")));
    for n in 10..13u8 {
        run(&["follow", &bucket, text(&replica), "--once"]);
        run(&["ship", text(&replica), &second, "--once"]);
        commit(&path, &format!("b{n}"), &[n; 100]);
        run(&["ship", text(&path), &bucket, "--once"]);
    }
    run(&["follow", &bucket, text(&replica), "--once"]);
    run(&["ship", text(&replica), &second, "--once"]);
    run(&["verify", &second, "--full"]);
    let restored = dir.path().join("restored");
    run(&["restore", &second, text(&restored), "--plain"]);
    assert_eq!(contents(&restored), committed(&path).1);
}

/// Runs the program as an ordinary user.
fn as_nobody(arguments: &[&str]) -> Output {
    let mut command = program(arguments);
    if is_root() {
        command.uid(NOBODY).gid(NOBODY);
    }
    command.output().unwrap()
}

#[track_caller]
fn succeeds(output: Output) {
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn a_replica_changes_files_that_their_owner_may_not_write() {
    let dir = tempfile::tempdir().unwrap();
    let (path, bucket, replica) =
        (dir.path().join("store"), url(&dir.path().join("bucket")), dir.path().join("replica"));
    if is_root() {
        chown(dir.path(), Some(NOBODY), Some(NOBODY)).unwrap();
    }
    let give = |user: u32| {
        let owner = format!("{user}:{user}");
        assert!(!is_root() || Command::new("chown").arg("-R").arg(owner).arg(&path).status().unwrap().success());
    };
    fs::create_dir(&path).unwrap();
    let round = |bytes: &[u8], mode| {
        // A store is its owner's alone.
        give(0);
        commit(&path, "a", bytes);
        let store = Store::open(&path).unwrap();
        let mut txn = store.begin();
        txn.chmod("a", mode).unwrap();
        txn.commit().unwrap();
        store.close().unwrap();
        give(NOBODY);
        succeeds(as_nobody(&["ship", text(&path), &bucket, "--once"]));
        succeeds(as_nobody(&["follow", &bucket, text(&replica), "--once"]));
    };
    round(b"one", 0o400);
    fs::set_permissions(path.join("a"), Permissions::from_mode(0o600)).unwrap();
    round(b"two", 0o440);
    let found = fs::metadata(replica.join("a")).unwrap();
    assert_eq!(found.permissions().mode() & 0o777, 0o440);
    assert_eq!(fs::read(replica.join("a")).unwrap(), b"two");
    succeeds(as_nobody(&["follow", &bucket, text(&replica), "--promote"]));
}

#[test]
fn objects_that_a_bucket_lost_are_missed() {
    let dir = tempfile::tempdir().unwrap();
    let (path, bucket) = shipped(dir.path(), 5);
    let objects = objects_of(dir.path());
    let lost = &objects[objects.len() - 2];
    let aside = dir.path().join("aside");
    fs::rename(lost, &aside).unwrap();
    for arguments in [vec!["verify", &bucket], vec!["verify", &bucket, "--full", "--against", text(&path)]] {
        let said = refused(&arguments);
        assert!(said.contains("is missing, and log/"), "{said}");
    }
    let restored = program(&["restore", &bucket, text(&dir.path().join("restored"))]).output().unwrap();
    let said = String::from_utf8_lossy(&restored.stderr);
    assert!(restored.status.success() && said.contains("is not the newest commit"), "{said}");
    fs::rename(&aside, lost).unwrap();
    run(&["verify", &bucket]);
    fs::remove_dir_all(dir.path().join("bucket/log")).unwrap();
    let said = refused(&["verify", &bucket]);
    assert!(said.contains("the log was deleted"), "{said}");
}

#[test]
fn a_part_of_a_snapshot_that_a_bucket_lost_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let (_, bucket) = shipped(dir.path(), 2);
    fs::remove_file(dir.path().join("bucket/snap/0000000001/head")).unwrap();
    let to = dir.path().join("new");
    for arguments in [vec!["restore", &bucket, text(&to)], vec!["follow", &bucket, text(&to), "--once"]] {
        let said = refused(&arguments);
        assert!(said.contains("snap/0000000001/head") && said.contains("it is missing"), "{said}");
    }
}

#[test]
fn a_full_place_ends_a_single_run() {
    let dir = tempfile::tempdir().unwrap();
    let place = tempfile::tempdir().unwrap();
    let Some(disk) = Mount::ext4(8 << 20, place.path()) else {
        return skipped("no file system can be mounted here");
    };
    let (path, bucket) = (dir.path().join("store"), url(&disk.path().join("bucket")));
    commit(&path, "a", b"small");
    run(&["ship", text(&path), &bucket, "--once"]);
    let large: Vec<u8> = std::iter::repeat_with(|| fastrand::u8(..)).take(20 << 20).collect();
    commit(&path, "b", &large);
    let said = refused(&["ship", text(&path), &bucket, "--once"]);
    assert!(said.contains("not everything is shipped"), "{said}");
}
