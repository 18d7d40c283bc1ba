//! The commands on stores with slots.

mod common;

use common::{json, run, untorn};
use std::fs;
use std::path::Path;
use std::process::Command;
use tempfile::TempDir;
use untorn::reader::Acknowledged;
use untorn::{JOURNAL_BYTES_MIN, Point, Reader, Slot, Store, StoreOptions};

/// Commits that the slot lacks.
const COMMITS: u64 = 60;

fn open(dir: &Path) -> Store {
    StoreOptions::new().create(true).journal_bytes(JOURNAL_BYTES_MIN).background(false).open(dir).unwrap()
}

fn commit(store: &Store, n: u64) {
    let file = store.open_or_create_file("a").unwrap();
    for at in 0..n {
        file.write_all_at(&vec![at as u8 + 1; 50_000], 0).unwrap();
        file.commit().unwrap();
    }
}

/// An open store with a slot that lacks commits.
fn with_slot(cap: u64) -> (TempDir, Store, Slot, Point) {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    commit(&store, 1);
    let slot = Slot::open_or_create(dir.path(), "backup", Some(cap)).unwrap();
    let point = slot.acknowledged().unwrap().unwrap().point;
    for _ in 0..3 {
        commit(&store, COMMITS / 3);
        store.checkpoint().unwrap();
    }
    (dir, store, slot, point)
}

fn kept(dir: &Path) -> Vec<String> {
    let names = fs::read_dir(dir.join(".untorn/kept")).unwrap();
    let mut names: Vec<String> = names.map(|name| name.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

fn drop_backup(dir: &Path) -> common::Run {
    run(&["slots", "--drop", "backup"], dir)
}

#[test]
fn slots_are_shown_and_dropped_while_the_store_is_open() {
    let (dir, store, slot, point) = with_slot(1 << 30);
    let text = run(&["slots"], dir.path()).ok();
    assert!(text.contains("backup") && text.contains("60 commits") && text.contains("never"), "{text}");
    let shown = json(&run(&["slots", "--json"], dir.path()).ok());
    let one = &shown["slots"][0];
    assert_eq!((one["acknowledged"]["lsn"].as_u64(), one["behind"].as_u64()), (Some(point.lsn), Some(COMMITS)));
    let doctor = run(&["doctor"], dir.path()).ok();
    assert!(doctor.contains("backup has acknowledged nothing; 60 commits since it was made"), "{doctor}");
    assert_eq!((one["cap_bytes"].as_u64(), one["lost_lsn"].as_u64()), (Some(1 << 30), None));
    assert!(one["kept_bytes"].as_u64().unwrap() >= COMMITS * 50_000, "{shown}");
    let text = run(&["status"], dir.path()).ok();
    assert!(text.contains("slots") && text.contains("backup (60 commits behind)"), "{text}");
    run(&["check"], dir.path()).ok();

    let lock = slot.lock().unwrap();
    let why = drop_backup(dir.path()).fails(1);
    assert!(why.contains("works with slot backup") && why.contains("Nothing was changed"), "{why}");
    assert_eq!(Slot::list(dir.path()).unwrap().len(), 1);
    drop(lock);
    assert!(drop_backup(dir.path()).ok().contains("slot backup is dropped"));
    assert!(drop_backup(dir.path()).fails(1).contains("No such file"));
    assert!(!kept(dir.path()).is_empty());
    commit(&store, 1);
    store.checkpoint().unwrap();
    assert_eq!(kept(dir.path()), Vec::<String>::new());
    assert!(run(&["slots"], dir.path()).ok().contains("no slots"));
    store.close().unwrap();
}

#[test]
fn a_lost_slot_is_told_in_a_sentence() {
    let (dir, store, ..) = with_slot(1 << 20);
    store.close().unwrap();
    let shown = run(&["slots"], dir.path());
    assert_eq!(shown.code, Some(1), "{}{}", shown.out, shown.err);
    assert!(shown.out.contains("slot backup has lost the log to commit"), "{}", shown.out);
    let checked = run(&["check"], dir.path()).ok();
    assert!(checked.contains("has lost the log to commit") && checked.ends_with("sound\n"), "{checked}");
}

#[test]
fn check_reads_the_kept_log() {
    let (dir, store, ..) = with_slot(1 << 30);
    store.close().unwrap();
    assert!(run(&["check"], dir.path()).ok().ends_with("sound\n"));
    let names: Vec<String> = kept(dir.path()).into_iter().filter(|name| name.starts_with("log.")).collect();
    assert!(names.len() > 2, "{names:?}");
    let (path, aside) = (dir.path().join(".untorn/kept").join(&names[1]), dir.path().join("aside"));
    fs::rename(&path, &aside).unwrap();
    let checked = run(&["check"], dir.path());
    assert_eq!(checked.code, Some(1), "{}", checked.out);
    assert!(checked.out.contains("it lacks the commits"), "{}", checked.out);

    // A damaged record is one that is not there.
    let mut bytes = fs::read(&aside).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    fs::write(&path, bytes).unwrap();
    assert!(run(&["check"], dir.path()).out.contains("it lacks the commits"));
    fs::rename(&aside, &path).unwrap();
    fs::write(dir.path().join(".untorn/kept/notes"), "x").unwrap();
    assert!(run(&["check"], dir.path()).out.contains("notes: it is no part of the kept log"));
    fs::remove_file(dir.path().join(".untorn/kept/notes")).unwrap();
    assert!(run(&["check"], dir.path()).ok().ends_with("sound\n"));
}

#[test]
fn commands_of_repair_know_stores_with_slots() {
    let (dir, store, slot, point) = with_slot(1 << 30);
    let found = untorn().arg("find-unclean").arg(dir.path()).output().unwrap();
    let found = common::Run::from(found);
    assert!(!found.out.contains("kept") && !found.out.contains("slots/"), "{}", found.out);
    store.close().unwrap();
    run(&["find-unclean"], dir.path()).ok();
    run(&["recover"], dir.path()).ok();
    assert!(Reader::open(dir.path()).unwrap().contains(point).unwrap());
    assert_eq!(slot.acknowledged().unwrap().unwrap().point, point);
    let ejected = run(&["eject", "--yes"], dir.path()).ok();
    assert!(ejected.contains("slot backup is dropped") && ejected.contains("nothing of Untorn's is left"), "{ejected}");
    assert!(!dir.path().join(".untorn").exists());
}

/// Copies a directory, file by file: names of one file become files.
fn copy(from: &Path, to: &Path, options: &str) {
    let copied = Command::new("cp").arg(options).arg(from.join(".")).arg(to).status().unwrap();
    assert!(copied.success());
}

/// The LSNs of the commits behind this one.
fn behind(dir: &Path, point: Point) -> Vec<u64> {
    let reader = Reader::open(dir).unwrap();
    let last = reader.last_commit().unwrap().lsn;
    let mut follow = reader.follow_from_point(point).unwrap();
    let mut found = Vec::new();
    while follow.lsn() < last {
        match follow.next_within(std::time::Duration::ZERO).unwrap() {
            Some(untorn::reader::Followed::Commit(commit)) => found.push(commit.lsn),
            Some(missed) => panic!("{missed:?}"),
            None => assert!(follow.lsn() >= last, "at {} of {last}", follow.lsn()),
        }
    }
    found
}

#[test]
fn a_copy_of_a_store_with_a_slot_keeps_its_log() {
    let (dir, store, _slot, point) = with_slot(1 << 30);
    let open_copy = tempfile::tempdir().unwrap();
    copy(dir.path(), open_copy.path(), "-rT");
    store.close().unwrap();
    let closed_copy = tempfile::tempdir().unwrap();
    copy(dir.path(), closed_copy.path(), "-aT");
    for copy in [open_copy.path(), closed_copy.path()] {
        let store = open(copy);
        commit(&store, 1);
        store.close().unwrap();
        assert!(Reader::open(copy).unwrap().contains(point).unwrap());
        assert!(behind(copy, point).len() as u64 > COMMITS);
        run(&["check"], copy).ok();
    }
    // Each goes on by itself, and the copy takes no acknowledgement for its own that it does not hold.
    let of_copy = Reader::open(closed_copy.path()).unwrap().last_commit().unwrap();
    let slot = Slot::open(dir.path(), "backup").unwrap();
    slot.acknowledge(&Acknowledged { point: of_copy, ..Acknowledged::default() }).unwrap();
    let text = run(&["slots"], dir.path()).ok();
    assert!(text.contains("a commit that this store does not hold"), "{text}");
    let store = open(dir.path());
    commit(&store, 1);
    store.close().unwrap();
    assert!(behind(dir.path(), point).len() as u64 > COMMITS);
}
