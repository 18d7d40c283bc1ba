//! Buckets that lie, and contents that somebody else wrote.

use bytes::Bytes;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::os::unix::fs::symlink;
use std::path::Path;
use untorn_ship::bucket::probe::probe;
use untorn_ship::bucket::remote::ObjectBucket;
use untorn_ship::bucket::{Bucket, Created, Failed};
use untorn_ship::error::Result;
use untorn_ship::interface::{Commit, Piece, Pieces, Point, State, Target};
use untorn_ship::store::entry::About;
use untorn_ship::store::plain::PlainTarget;

#[test]
fn buckets_in_memory_and_in_a_directory_keep_their_word() {
    probe(&ObjectBucket::in_memory(), "x").unwrap();
    let dir = tempfile::tempdir().unwrap();
    let bucket = ObjectBucket::in_directory(dir.path().to_owned()).unwrap();
    probe(&bucket, "x").unwrap();
    assert_eq!(bucket.list("", None).unwrap(), Vec::<String>::new());
}

#[test]
fn names_are_listed_in_order_behind_a_name_and_below_a_prefix() {
    for bucket in [ObjectBucket::in_memory(), directory_bucket().1] {
        for name in ["log/1/2", "log/1/10", "log/2/1", "meta/1"] {
            assert!(matches!(bucket.create(name, Bytes::from_static(b"x")), Ok(Created::New)));
        }
        assert_eq!(bucket.list("log/", None).unwrap(), ["log/1/10", "log/1/2", "log/2/1"]);
        assert_eq!(bucket.list("log/", Some("log/1/10")).unwrap(), ["log/1/2", "log/2/1"]);
        assert_eq!(bucket.list("log/1/1", None).unwrap(), ["log/1/10"]);
        assert_eq!(bucket.list("none/", None).unwrap(), Vec::<String>::new());
        bucket.delete("log/1/2").unwrap();
        bucket.delete("log/1/2").unwrap();
        assert_eq!(bucket.get("log/1/2", 10).unwrap(), None);
        assert!(bucket.get("log/1/10", 0).unwrap_err().reason.contains("never writes"));
        assert_eq!(bucket.get("log/1/10", 1).unwrap().unwrap(), "x");
    }
}

fn directory_bucket() -> (tempfile::TempDir, ObjectBucket) {
    let dir = tempfile::tempdir().unwrap();
    let bucket = ObjectBucket::in_directory(dir.path().to_owned()).unwrap();
    (dir, bucket)
}

#[test]
fn files_of_uploads_that_were_killed_long_ago_are_removed() {
    let (dir, bucket) = directory_bucket();
    let log = dir.path().join("log/0000000001");
    std::fs::create_dir_all(&log).unwrap();
    let long_ago = std::time::SystemTime::now() - std::time::Duration::from_secs(2 * 86_400);
    for (name, is_old) in [
        ("00000000000000000001", true),
        ("00000000000000000001#1", true),
        ("00000000000000000001#2", false),
        ("notes#1", true),
    ] {
        let file = std::fs::File::create(log.join(name)).unwrap();
        if is_old {
            file.set_modified(long_ago).unwrap();
        }
    }
    let names = || {
        let mut names: Vec<_> = std::fs::read_dir(&log).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        names.sort();
        names
    };
    assert_eq!(bucket.list("log/", None).unwrap(), ["log/0000000001/00000000000000000001"]);
    assert_eq!(names().len(), 4);
    assert!(matches!(bucket.create("meta/0000000001", Bytes::from_static(b"x")), Ok(Created::New)));
    assert_eq!(names(), ["00000000000000000001", "00000000000000000001#2", "notes#1"]);
}

/// The lie of a bucket.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Lie {
    Overwrites,
    ListsLate,
    ReadsDeleted,
    KeepsNames,
    LosesObjects,
}

struct Liar {
    lie: Lie,
    objects: Mutex<BTreeMap<String, Bytes>>,
    deleted: Mutex<BTreeMap<String, Bytes>>,
}

impl Bucket for Liar {
    fn create(&self, name: &str, bytes: Bytes) -> std::result::Result<Created, Failed> {
        let mut objects = self.objects.lock();
        let was_deleted = self.lie == Lie::KeepsNames && self.deleted.lock().contains_key(name);
        if was_deleted || (objects.contains_key(name) && self.lie != Lie::Overwrites) {
            return Ok(Created::Exists);
        }
        if self.lie != Lie::LosesObjects {
            objects.insert(name.into(), bytes);
        }
        Ok(Created::New)
    }

    fn get(&self, name: &str, _: u64) -> std::result::Result<Option<Bytes>, Failed> {
        let found = self.objects.lock().get(name).cloned();
        let deleted = self.deleted.lock().get(name).cloned();
        Ok(found.or(deleted.filter(|_| self.lie == Lie::ReadsDeleted)))
    }

    fn list(&self, prefix: &str, _: Option<&str>) -> std::result::Result<Vec<String>, Failed> {
        let objects = self.objects.lock();
        let names = objects.keys().filter(|name| name.starts_with(prefix) && self.lie != Lie::ListsLate);
        Ok(names.cloned().collect())
    }

    fn delete(&self, name: &str) -> std::result::Result<(), Failed> {
        if let Some(bytes) = self.objects.lock().remove(name) {
            self.deleted.lock().insert(name.into(), bytes);
        }
        Ok(())
    }
}

#[test]
fn a_bucket_that_breaks_its_word_is_found_out() {
    for lie in [Lie::Overwrites, Lie::ListsLate, Lie::ReadsDeleted, Lie::KeepsNames, Lie::LosesObjects] {
        let bucket = Liar { lie, objects: Mutex::default(), deleted: Mutex::default() };
        let failed = probe(&bucket, "x").unwrap_err();
        assert!(failed.reason.contains("does not keep its word") && !failed.is_transient, "{lie:?}: {failed}");
    }
}

fn state() -> State {
    let point = Point { epoch: 1, lsn: 1 };
    State { store: [0; 16], generation: 1, point, hash: [0; 32], time: 0, epochs: Vec::new() }
}

struct List(Vec<Piece>);

impl Pieces for List {
    fn next_piece(&mut self) -> Result<Option<Piece>> {
        Ok(if self.0.is_empty() { None } else { Some(self.0.remove(0)) })
    }
}

fn target(dir: &Path) -> PlainTarget {
    PlainTarget::new(dir, Box::new(|_| {})).unwrap()
}

/// The body of a commit with one change, as the head of `store::body` has it.
fn body(kind: u8, file: u32, path: &str, rest: &[u8]) -> Bytes {
    let mut body = vec![1, 1, 0, 0, 0, kind];
    body.extend(file.to_le_bytes());
    body.extend((path.len() as u16).to_le_bytes());
    body.extend(path.as_bytes());
    body.extend(rest);
    body.into()
}

fn written(bytes: &[u8]) -> Vec<u8> {
    [&0u64.to_le_bytes()[..], &(bytes.len() as u32).to_le_bytes(), bytes].concat()
}

fn commit(body: Bytes) -> Commit {
    Commit { lsn: 2, epoch: 1, time: 0, body }
}

#[test]
fn nothing_is_written_outside_of_the_directory() {
    let outer = tempfile::tempdir().unwrap();
    let dir = outer.path().join("in");
    std::fs::create_dir(&dir).unwrap();
    std::fs::write(outer.path().join("secret"), "untouched").unwrap();
    let absolute = outer.path().join("made");
    let mut target = target(&dir);
    for path in ["../secret", absolute.to_str().unwrap(), "a/../../secret", ".untorn/journal", "x.untorn", ""] {
        let piece = About::File(path.into(), 0o644, 3).piece(Bytes::new());
        assert!(target.replace(Some(&mut List(vec![piece])), &state()).is_err(), "{path}");
        target.replace(None, &state()).unwrap();
        for (kind, rest) in [(1, written(b"bad")), (4, 0o644u32.to_le_bytes().to_vec()), (6, Vec::new())] {
            assert!(target.apply(&[commit(body(kind, 1, path, &rest))], &state()).is_err(), "{kind} {path}");
        }
        let to = [&(path.len() as u16).to_le_bytes()[..], path.as_bytes()].concat();
        assert!(target.apply(&[commit(body(5, 1, "a", &to))], &state()).is_err(), "rename to {path}");
    }
    assert_eq!(std::fs::read_to_string(outer.path().join("secret")).unwrap(), "untouched");
    assert!(!absolute.exists());
}

#[test]
fn links_are_not_followed() {
    let outer = tempfile::tempdir().unwrap();
    let (dir, other) = (outer.path().join("in"), outer.path().join("other"));
    std::fs::create_dir(&dir).unwrap();
    std::fs::create_dir(&other).unwrap();
    std::fs::write(other.join("file"), "untouched").unwrap();
    let mut target = target(&dir);
    target.replace(None, &state()).unwrap();
    symlink(&other, dir.join("link")).unwrap();
    symlink(other.join("file"), dir.join("file")).unwrap();
    for (kind, path, rest) in [
        (1, "link/file", written(b"bad")),
        (1, "file", written(b"bad")),
        (4, "link/new", 0o644u32.to_le_bytes().to_vec()),
        (6, "link/file", Vec::new()),
        (8, "link/new", 0o755u32.to_le_bytes().to_vec()),
    ] {
        let done = target.apply(&[commit(body(kind, u32::from(kind != 8), path, &rest))], &state());
        assert!(done.is_err(), "{kind} {path}");
    }
    // The link itself goes, and not the file behind it.
    target.replace(None, &state()).unwrap();
    assert_eq!(std::fs::read_to_string(other.join("file")).unwrap(), "untouched");
    assert_eq!(std::fs::read_dir(&other).unwrap().count(), 1);
}

#[test]
fn impossible_changes_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let mut target = target(dir.path());
    target.replace(None, &state()).unwrap();
    let many = [&[1u8][..], &u32::MAX.to_le_bytes()].concat();
    let bodies: [Bytes; 9] = [
        many.into(),
        Bytes::new(),
        Bytes::from_static(&[9, 0, 0, 0, 0]),
        Bytes::from_static(&[1, 0, 0, 0, 0, 7]),
        body(3, 1, "a", &u64::MAX.to_le_bytes()),
        body(2, 1, "a", &[u64::MAX.to_le_bytes(), 0u64.to_le_bytes()].concat()),
        body(1, 1, "a", &[&(i64::MAX as u64).to_le_bytes()[..], &1u32.to_le_bytes(), b"x"].concat()),
        body(1, 1, "a", &[&0u64.to_le_bytes()[..], &u32::MAX.to_le_bytes(), b"x"].concat()),
        body(77, 1, "a", &[]),
    ];
    for body in bodies {
        assert!(target.apply(&[commit(body.clone())], &state()).is_err(), "{body:?}");
    }
}

#[test]
fn nobody_gets_a_program_with_the_rights_of_its_restorer() {
    use std::os::unix::fs::PermissionsExt;
    let dir = tempfile::tempdir().unwrap();
    let mut target = target(dir.path());
    let pieces = vec![
        About::Directory("d".into(), 0o3775).piece(Bytes::new()),
        About::File("d/f".into(), 0o6755, 0).piece(Bytes::new()),
    ];
    target.replace(Some(&mut List(pieces)), &state()).unwrap();
    target.finish().unwrap();
    let mode = |name: &str| std::fs::metadata(dir.path().join(name)).unwrap().permissions().mode() & 0o7777;
    assert_eq!((mode("d"), mode("d/f")), (0o1775, 0o755));
}
