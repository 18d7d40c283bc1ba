//! A store is shipped to a directory by the program, and every commit of it is restored.

mod common;

use common::{Contents, committed, contents, program, refused, run, text, url};
use std::path::{Path, PathBuf};
use untorn::Store;

/// A store, a bucket beside it, and the contents after each commit.
struct Shipped {
    dir: tempfile::TempDir,
    store: Store,
    after: Vec<(u64, Contents)>,
}

impl Shipped {
    fn new() -> Shipped {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::open_or_create(dir.path().join("store")).unwrap();
        Shipped { dir, store, after: Vec::new() }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn bucket(&self) -> String {
        url(&self.path("bucket"))
    }

    /// Remembers the contents as of the last commit.
    fn remember(&mut self) {
        self.after.push(committed(&self.path("store")));
    }

    fn write(&mut self, name: &str, bytes: &[u8], offset: u64) {
        let file = self.store.open_or_create_file(name).unwrap();
        file.write_all_at(bytes, offset).unwrap();
        file.commit().unwrap();
        self.remember();
    }

    fn ship(&self, more: &[&str]) -> String {
        let (store, bucket) = (self.path("store"), self.bucket());
        run(&[&["ship", text(&store), &bucket, "--once"], more].concat())
    }

    #[track_caller]
    fn check_restored(&self, at: &str, wanted: &Contents) {
        let dir = self.path("restored");
        run(&["restore", &self.bucket(), text(&dir), "--at", at]);
        assert_eq!(&contents(&dir), wanted, "at {at}");
        std::fs::remove_dir_all(&dir).unwrap();
    }
}

#[test]
fn every_commit_is_restored() {
    let mut shipped = Shipped::new();
    // Before the store was made: in the first snapshot, and in no commit.
    std::fs::write(shipped.path("store").join("plain"), vec![5; 9 << 20]).unwrap();
    shipped.write("a", b"one", 0);
    shipped.ship(&[]);
    let first = shipped.after.len() - 1;
    shipped.write("a", b"two, longer", 100);
    let mut txn = shipped.store.begin();
    txn.mkdir("d", 0o750).unwrap();
    let made = txn.create("d/new", 0o640).unwrap();
    made.write_all_at(&[7; 100_000], 1 << 20).unwrap();
    txn.commit().unwrap();
    shipped.remember();
    shipped.ship(&[]);
    check_replica(&shipped);
    let mut txn = shipped.store.begin();
    txn.rename("a", "d/a").unwrap();
    let again = txn.create("a", 0o600).unwrap();
    again.write_all_at(b"another file of this name", 0).unwrap();
    txn.chmod("plain", 0o604).unwrap();
    txn.commit().unwrap();
    shipped.remember();
    made.set_len(1 << 20).unwrap();
    made.zero(1000, 5000).unwrap();
    made.commit().unwrap();
    shipped.remember();
    let mut txn = shipped.store.begin();
    txn.unlink("d/a").unwrap();
    txn.commit().unwrap();
    shipped.remember();
    shipped.write("plain", b"changed in the middle", 4 << 20);
    shipped.ship(&[]);
    for (lsn, wanted) in &shipped.after[first..] {
        shipped.check_restored(&lsn.to_string(), wanted);
    }
    check_replica(&shipped);
    let told = run(&["verify", &shipped.bucket(), "--full", "--against", text(&shipped.path("store"))]);
    assert!(told.starts_with("good: "), "{told}");
}

/// A directory that follows arrives at the newest commit.
#[track_caller]
fn check_replica(shipped: &Shipped) {
    let dir = shipped.path("replica");
    run(&["follow", &shipped.bucket(), text(&dir), "--once"]);
    let mut found = contents(&dir);
    assert!(found.remove(Path::new(".untorn-replica")).is_some());
    let (lsn, wanted) = shipped.after.last().unwrap();
    assert_eq!(&found, wanted, "#{lsn}");
}

#[test]
fn checkpoints_and_openings_leave_the_log_that_was_not_shipped() {
    let mut shipped = Shipped::new();
    shipped.write("a", b"one", 0);
    shipped.ship(&[]);
    for round in 0..4u8 {
        shipped.write("a", &[round; 10_000], u64::from(round) * 1000);
        shipped.store.checkpoint().unwrap();
        shipped.write("b", &[round; 10], 0);
        let other = Store::open_or_create(shipped.path("other")).unwrap();
        let store = std::mem::replace(&mut shipped.store, other);
        store.close().unwrap();
        shipped.store = Store::open(shipped.path("store")).unwrap();
        shipped.write("c", &[round; 10], 0);
    }
    shipped.ship(&[]);
    for (lsn, wanted) in &shipped.after {
        shipped.check_restored(&lsn.to_string(), wanted);
    }
    check_replica(&shipped);
    let listed = run(&["log", &shipped.bucket(), "--json"]);
    let snapshots = listed.lines().filter(|line| line.contains("\"snapshot\":true")).count();
    assert_eq!(snapshots, 1, "only the first generation begins with a snapshot: {listed}");
}

#[test]
fn compacting_and_pruning_leave_the_newest_commits() {
    let mut shipped = Shipped::new();
    for round in 0..5u8 {
        shipped.write("a", &[round; 5000], u64::from(round) * 1000);
        shipped.ship(&[]);
        if round == 1 {
            // Falls behind the floor: everything is replaced.
            check_replica(&shipped);
        }
    }
    let told = run(&["compact", &shipped.bucket()]);
    assert!(told.contains("snapshot of #"), "{told}");
    shipped.write("b", b"later", 0);
    shipped.ship(&[]);
    run(&["verify", &shipped.bucket(), "--full"]);
    let told = run(&["prune", &shipped.bucket(), "--keep", "0s"]);
    assert!(told.contains("oldest commit"), "{told}");
    let (oldest, _) = shipped.after[0];
    let refusal = refused(&["restore", &shipped.bucket(), text(&shipped.path("no")), "--at", &oldest.to_string()]);
    assert!(refusal.contains("pruned"), "{refusal}");
    assert!(!shipped.path("no").exists());
    check_replica(&shipped);
    let (newest, wanted) = shipped.after.last().unwrap();
    shipped.check_restored(&newest.to_string(), wanted);
    run(&["verify", &shipped.bucket(), "--full"]);
}

#[test]
fn a_copy_and_a_store_put_back_are_refused_with_advice() {
    let mut shipped = Shipped::new();
    shipped.write("a", b"one", 0);
    shipped.ship(&[]);
    let copy = |from: &Path, to: &Path| {
        let done = std::process::Command::new("cp").arg("-a").args([from, to]).status().unwrap();
        assert!(done.success());
    };
    copy(&shipped.path("store"), &shipped.path("copy"));
    let refusal = refused(&["ship", text(&shipped.path("copy")), &shipped.bucket(), "--once"]);
    assert!(refusal.contains("another machine") && refusal.contains("--take-over"), "{refusal}");
    shipped.write("a", b"two", 0);
    shipped.ship(&[]);
    let refusal = refused(&["ship", text(&shipped.path("copy")), &shipped.bucket(), "--once", "--take-over"]);
    assert!(refusal.contains("older than the bucket") && refusal.contains("--fork="), "{refusal}");
    let (tip, wanted) = shipped.after.last().unwrap();
    let fork = format!("--fork={tip}");
    run(&["ship", text(&shipped.path("copy")), &shipped.bucket(), "--once", &fork]);
    // The original is shut out, and the abandoned commit can be named.
    let refusal = refused(&["ship", text(&shipped.path("store")), &shipped.bucket(), "--once"]);
    assert!(refusal.contains("another machine"), "{refusal}");
    let listed = run(&["restore", &shipped.bucket(), "--list", "--json"]);
    let of_tip = listed.lines().map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap());
    let of_tip = of_tip.filter(|line| line["last"].as_u64() == Some(*tip)).map(|line| line["generation"].clone());
    let generation = of_tip.collect::<Vec<_>>().pop().expect("the abandoned generation is listed");
    shipped.check_restored(&format!("{generation}/{tip}"), wanted);
}

#[test]
fn other_stores_and_credentials_in_urls_are_refused() {
    let mut one = Shipped::new();
    one.write("a", b"one", 0);
    one.ship(&[]);
    let mut other = Shipped::new();
    other.write("a", b"one", 0);
    let refusal = refused(&["ship", text(&other.path("store")), &one.bucket(), "--once"]);
    assert!(refusal.contains("another store"), "{refusal}");
    let refusal = refused(&["ship", text(&one.path("store")), "s3://key:hunter2@bucket/a"]);
    assert!(refusal.contains("environment") && !refusal.contains("hunter2"), "{refusal}");
    let refusal = refused(&["restore", &one.bucket(), text(&one.path("store"))]);
    assert!(refusal.contains("not empty"), "{refusal}");
}

#[test]
fn settings_that_no_request_can_carry_are_refused_and_not_repeated() {
    for (name, value, said) in [
        ("AWS_ENDPOINT_URL", "http://usr:hunter2@127.0.0.1:1", "contains credentials"),
        ("AWS_ENDPOINT_URL", "127.0.0.1:1", "no URL"),
        ("AWS_ENDPOINT_URL", "http://hunter2 x", "no URL"),
        ("AWS_ENDPOINT_URL_S3", "", "AWS_ENDPOINT_URL_S3 is set, and empty"),
        ("AWS_ACCESS_KEY_ID", "hunter2\r", "AWS_ACCESS_KEY_ID contains a control character"),
        ("AWS_SECRET_ACCESS_KEY", "hunter2\n", "AWS_SECRET_ACCESS_KEY contains a control character"),
        ("AWS_SESSION_TOKEN", "hunter2\u{7f}", "AWS_SESSION_TOKEN contains a control character"),
    ] {
        let mut command = program(&["restore", "s3://bucket/a", "--list"]);
        command.env_remove("AWS_ENDPOINT_URL_S3");
        command.env("AWS_ACCESS_KEY_ID", "key").env("AWS_SECRET_ACCESS_KEY", "secret").env(name, value);
        let output = command.output().unwrap();
        let refusal = String::from_utf8(output.stderr).unwrap();
        assert!(!output.status.success() && refusal.contains(said), "{name}: {refusal}");
        assert!(!refusal.contains("hunter2") && !refusal.contains("panicked"), "{name}: {refusal}");
    }
    let dir = tempfile::tempdir().unwrap();
    let refusal = refused(&["restore", &url(&dir.path().join("none")), "--list"]);
    assert!(refusal.contains("is not there"), "{refusal}");
}

#[test]
fn times_that_no_calendar_has_are_refused() {
    for at in ["2026-11-29T08:00+9223372036854775807", "2026-02-31"] {
        let refusal = refused(&["restore", "file:///none", "none", "--at", at]);
        assert!(refusal.contains("a point is"), "{refusal}");
    }
}

#[test]
fn the_status_names_the_slot_and_how_far_it_is() {
    let mut shipped = Shipped::new();
    shipped.write("a", b"one", 0);
    let store = shipped.path("store");
    assert!(run(&["ship", "--status", text(&store)]).contains("no slot"));
    shipped.ship(&["--slot", "backup"]);
    shipped.write("a", b"two", 0);
    let status: serde_json::Value = serde_json::from_str(&run(&["ship", "--status", text(&store), "--json"])).unwrap();
    let slot = &status["slots"][0];
    let behind = status["store_lsn"].as_u64().unwrap() - slot["lsn"].as_u64().unwrap();
    assert!(behind >= 1, "{status}");
    assert_eq!((&slot["slot"], slot["behind"].as_u64()), (&"backup".into(), Some(behind)), "{status}");
}

#[test]
fn a_time_names_the_last_commit_that_was_shipped_by_then() {
    let mut shipped = Shipped::new();
    shipped.write("a", b"one", 0);
    shipped.ship(&[]);
    shipped.write("a", b"two", 0);
    shipped.ship(&[]);
    let date = std::process::Command::new("date").args(["-u", "+%Y-%m-%dT%H:%M:%S.%NZ"]).output().unwrap();
    let then = String::from_utf8(date.stdout).unwrap().trim().to_owned();
    shipped.write("a", b"three", 0);
    shipped.ship(&[]);
    shipped.check_restored(&then, &shipped.after[1].1);
    let refusal = refused(&["restore", &shipped.bucket(), text(&shipped.path("no")), "--at", "1999-12-31T23:59:59Z"]);
    assert!(refusal.contains("that old") && !shipped.path("no").exists(), "{refusal}");
}

#[test]
fn a_heap_is_restored() {
    let mut shipped = Shipped::new();
    let options = untorn::heap::HeapOptions::new().create(true).address_space(64 << 20);
    let heap = options.open_in(&shipped.store, "heap").unwrap();
    let layout = std::alloc::Layout::from_size_align(100_000, 16).unwrap();
    let fill = |byte: u8| {
        let place = heap.allocate(layout).unwrap();
        // SAFETY: the allocation has this size, and nobody else has it.
        unsafe { std::ptr::write_bytes(place.as_ptr(), byte, layout.size()) };
        heap.mark_dirty(place.as_ptr(), layout.size()).unwrap();
        heap.commit().unwrap();
    };
    fill(1);
    shipped.remember();
    shipped.ship(&[]);
    fill(2);
    shipped.remember();
    shipped.ship(&[]);
    for (lsn, wanted) in &shipped.after {
        shipped.check_restored(&lsn.to_string(), wanted);
    }
    let dir = shipped.path("elsewhere");
    run(&["restore", &shipped.bucket(), text(&dir)]);
    let report = untorn::offline::check_heap(&dir.join("heap"), &|_, _| {}).unwrap();
    assert!(report.problems.is_empty(), "{report:?}");
}

#[test]
fn a_commit_that_is_too_large_for_an_object_becomes_a_snapshot() {
    let mut shipped = Shipped::new();
    shipped.write("a", b"one", 0);
    shipped.ship(&[]);
    shipped.write("a", &vec![7; 70 << 20], 1);
    shipped.write("b", b"behind it", 0);
    shipped.ship(&[]);
    check_replica(&shipped);
    let (lsn, wanted) = shipped.after.last().unwrap();
    shipped.check_restored(&lsn.to_string(), wanted);
    shipped.check_restored(&shipped.after[0].0.to_string(), &shipped.after[0].1);
    run(&["verify", &shipped.bucket(), "--full", "--against", text(&shipped.path("store"))]);
}
