//! The table of open files: it keeps files that are in use, and files whose commits are not in the data file yet. A
//! checkpoint forgets all others, with their memory and their descriptor, so that the cost of a commit does not depend
//! on the number of files.

mod common;

use common::child_process::ChildProcess;
use common::*;
use std::fs;
use std::path::Path;
use untorn::__private::StoreSteps;
use untorn::{FailureClass, FileOptions, MapOptions, Store, StoreOptions};

/// A store that makes no checkpoint by itself, and does not flush.
fn quiet(dir: &Path) -> Store {
    StoreOptions::new().create(true).background(false).class(FailureClass::Process).open(dir).expect("open")
}

/// The number of this process's descriptors below a directory, without those of the journal.
fn descriptors(dir: &Path) -> usize {
    let links = fs::read_dir("/proc/self/fd").unwrap().filter_map(|entry| fs::read_link(entry.ok()?.path()).ok());
    let own = dir.join(".untorn");
    links.filter(|to| to.starts_with(dir) && to != dir && !to.starts_with(&own)).count()
}

fn create(store: &Store, name: &str) {
    let file = store.open_or_create_file(name).unwrap();
    file.write_all_at(&text("new", name), 0).unwrap();
    file.commit().unwrap();
}

#[test]
fn what_nobody_uses_is_forgotten_by_a_checkpoint() {
    for class in [FailureClass::Power, FailureClass::Process] {
        let dir = directory();
        let store = StoreOptions::new().create(true).background(false).class(class).open(dir.path()).unwrap();
        // A few files are flushed one by one, many with one call.
        for (round, files) in [3, 40].into_iter().enumerate() {
            let names: Vec<String> = (0..files).map(|n| format!("{round} {n}")).collect();
            names.iter().for_each(|name| create(&store, name));
            assert_eq!(store.status().open_files, files, "what is not applied is remembered");
            store.checkpoint().unwrap();
            assert_eq!((store.status().open_files, descriptors(dir.path())), (0, 0), "{class:?}");
            for name in &names {
                assert_same(&stored(&store, name), &text("new", name), "opened anew");
                let file = store.open_file(name).unwrap();
                file.write_all_at(b"NEW", 0).unwrap();
                file.commit().unwrap();
            }
            store.checkpoint().unwrap();
            assert_eq!(store.status().open_files, 0);
        }
        store.close().unwrap();
        for n in 0..40 {
            assert_eq!(&plain(dir.path().join(format!("1 {n}")))[..5], b"NEW 1", "after closing");
        }
    }
}

#[test]
fn what_is_in_use_is_not_forgotten() {
    let dir = directory();
    let store = quiet(dir.path());
    let names = ["open", "mapped", "changed", "in a transaction", "removed", "left alone"];
    names.iter().for_each(|name| create(&store, name));
    let open = store.open_file("open").unwrap();
    let map = store.open_file("mapped").unwrap().map_with(&MapOptions::new()).unwrap();
    let changed = store.open_file("changed").unwrap();
    changed.write_all_at(b"uncommitted", 0).unwrap();
    let mut txn = store.begin();
    {
        let file = store.open_file("in a transaction").unwrap();
        txn.add(&file).unwrap();
        file.write_all_at(b"also uncommitted", 0).unwrap();
    }
    txn.unlink("removed").unwrap();
    store.checkpoint().unwrap();
    assert_eq!(store.status().open_files, 5, "all but the one that is left alone");
    changed.commit().unwrap();
    txn.commit().unwrap();
    store.checkpoint().unwrap();
    assert_eq!(store.status().open_files, 3, "those with a handle or a map");
    assert_eq!(&stored(&store, "in a transaction")[..16], b"also uncommitted");
    drop((open, map, changed));
    store.checkpoint().unwrap();
    assert_eq!((store.status().open_files, descriptors(dir.path())), (0, 0), "closed since the last checkpoint");
    assert!(!dir.path().join("removed").exists());
}

#[test]
fn a_quarantined_file_is_not_forgotten() {
    let dir = directory();
    let store = quiet(dir.path());
    create(&store, "a");
    fs::rename(dir.path().join("a"), dir.path().join("hidden")).unwrap();
    store.checkpoint().unwrap_err();
    assert_eq!(store.status().quarantined.len(), 1);
    fs::rename(dir.path().join("hidden"), dir.path().join("a")).unwrap();
    store.checkpoint().unwrap();
    assert_eq!((store.status().open_files, store.status().quarantined.len()), (0, 0));
    assert_same(&plain(dir.path().join("a")), &text("new", "a"), "applied when it was back");
}

#[test]
fn files_that_names_were_asked_of_are_not_kept() {
    let dir = directory();
    for name in ["a", "b", "c"] {
        fs::write(dir.path().join(name), name).unwrap();
    }
    let store = quiet(dir.path());
    let mut txn = store.begin();
    txn.unlink("a").unwrap();
    txn.rename("b", "c").unwrap();
    txn.chmod("b", 0o600).unwrap_err();
    txn.create("a/b", 0o600).unwrap_err();
    assert_eq!(store.status().open_files, 3);
    txn.abort().unwrap();
    FileOptions::new().create_new(true).open_in(&store, "a").unwrap_err();
    assert_eq!((store.status().open_files, descriptors(dir.path())), (0, 0), "nothing came of it");
    let mut txn = store.begin();
    txn.unlink("a").unwrap();
    fs::remove_file(dir.path().join("b")).unwrap();
    fs::create_dir(dir.path().join("b")).unwrap();
    txn.rename("c", "b/c").unwrap();
    fs::remove_dir(dir.path().join("b")).unwrap();
    txn.commit().unwrap_err();
    assert_eq!((store.status().open_files, descriptors(dir.path())), (0, 0), "nor of what was refused");
}

#[test]
fn a_forgotten_file_is_anybodys() {
    let dir = directory();
    let path = |name: &str| dir.path().join(name);
    let store = quiet(dir.path());
    for name in ["edited", "moved", "replaced", "removed", "copied"] {
        create(&store, name);
    }
    store.checkpoint().unwrap();
    fs::write(path("edited"), "by an editor").unwrap();
    fs::rename(path("moved"), path("elsewhere")).unwrap();
    fs::write(path("new"), "another one").unwrap();
    fs::rename(path("new"), path("replaced")).unwrap();
    fs::remove_file(path("removed")).unwrap();
    let copied = std::process::Command::new("cp").args(["-a", "copied", "copy"]).current_dir(dir.path()).status();
    assert!(copied.unwrap().success());
    for (name, wanted) in [
        ("edited", b"by an editor".to_vec()),
        ("elsewhere", text("new", "moved")),
        ("replaced", b"another one".to_vec()),
        ("copied", text("new", "copied")),
        ("copy", text("new", "copied")),
    ] {
        assert_same(&stored(&store, name), &wanted, name);
        let file = store.open_file(name).unwrap();
        file.append(b"more").unwrap();
        file.commit().unwrap();
    }
    assert!(store.open_file("removed").is_err());
    create(&store, "removed");
    store.close().unwrap();
    assert_eq!(plain(path("edited")), b"by an editormore");
    assert_same(&plain(path("removed")), &text("new", "removed"), "made anew");
    // A store of another process may use the file now.
    let outer = directory();
    let store = quiet(outer.path());
    create(&store, "a");
    store.checkpoint().unwrap();
    let mut process = ChildProcess::start();
    fs::create_dir(outer.path().join("inner")).unwrap();
    fs::rename(outer.path().join("a"), outer.path().join("inner/a")).unwrap();
    process.ok(&["open", outer.path().join("inner").to_str().unwrap()]);
    process.ok(&["file", "a"]);
    process.commit("a", "newer");
    drop(store);
}

#[test]
fn thousands_of_files_take_few_descriptors_and_a_commit_looks_at_its_own() {
    let dir = directory();
    let store = quiet(dir.path());
    const FILES: u64 = 5000;
    for part in 0..10 {
        let mut txn = store.begin();
        for n in part * FILES / 10..(part + 1) * FILES / 10 {
            txn.create(format!("file {n}"), 0o600).unwrap().append(b"text").unwrap();
        }
        txn.commit().unwrap();
    }
    assert_eq!(store.status().open_files, FILES);
    let open = descriptors(dir.path());
    assert!(open <= 1024, "{open} descriptors");

    let walked = store.files_walked();
    let file = store.open_file("file 0").unwrap();
    file.append(b", more of it").unwrap();
    file.commit().unwrap();
    drop(file);
    store.rename("file 1", "file 1 b").unwrap();
    let mut txn = store.begin();
    txn.unlink("file 2").unwrap();
    txn.mkdir("dir", 0o700).unwrap();
    txn.rename("file 3", "dir/file 3").unwrap();
    txn.create("file 2", 0o600).unwrap();
    txn.commit().unwrap();
    drop(store.open_file("file 4000").unwrap());
    store.checkpoint().unwrap();
    store.rename("dir/file 3", "file 3").unwrap();
    let mut txn = store.begin();
    txn.rmdir("dir").unwrap();
    txn.commit().unwrap();
    store.checkpoint().unwrap();
    assert_eq!(store.files_walked() - walked, 0, "nothing of this looks at files that it is not about");
    assert_eq!((store.status().open_files, descriptors(dir.path())), (0, 0));
    store.close().unwrap();
    assert_eq!(plain(dir.path().join("file 0")), b"text, more of it");
    assert_eq!(plain(dir.path().join("file 4999")), b"text");
}

/// With many files, none is kept open for a later flush.
#[test]
fn more_files_than_descriptors_are_forgotten() {
    let dir = directory();
    let mut process = ChildProcess::start();
    process.ok(&["descriptors", "64"]);
    process.ok(&["open", dir.path().to_str().unwrap()]);
    process.ok(&["many", "500"]);
    process.ok(&["checkpoint"]);
    for i in 0..500 {
        fs::rename(dir.path().join(format!("file {i}")), dir.path().join(format!("moved {i}"))).unwrap();
    }
    for i in 0..500 {
        let name = format!("moved {i}");
        process.ok(&["file", &name]);
        assert_eq!(process.ok(&["read", &name]).as_bytes(), &text("later", &i.to_string())[..20]);
    }
}

#[test]
fn many_files_with_unapplied_commits_make_a_checkpoint_due() {
    let dir = directory();
    let options = StoreOptions::new().create(true).class(FailureClass::Process).journal_bytes(1 << 30);
    let store = options.open(dir.path()).unwrap();
    for part in 0..5 {
        let mut txn = store.begin();
        for n in 0..1000 {
            drop(txn.create(format!("{part} {n}"), 0o600).unwrap());
        }
        txn.commit().unwrap();
    }
    eventually(std::time::Duration::from_secs(60), "a checkpoint", || store.status().open_files < 4096);
}

/// Measures a commit and a change of names beside many files that are in use: `cargo test --release -p untorn --test
/// forget -- --ignored --nocapture`.
#[test]
#[ignore = "figures for docs/PERFORMANCE.md"]
fn what_many_files_cost() {
    let median = |mut times: Vec<f64>| {
        times.sort_by(f64::total_cmp);
        times[times.len() / 2]
    };
    let micros = |work: &mut dyn FnMut(usize)| {
        let timed = (0..400).map(|n| {
            let start = std::time::Instant::now();
            work(n);
            start.elapsed().as_secs_f64() * 1e6
        });
        median(timed.collect())
    };
    let kib_used = || {
        let status = fs::read_to_string("/proc/self/status").unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
        line.trim().trim_end_matches(" kB").parse::<i64>().unwrap()
    };
    println!(
        "files  commit µs  rename µs  open µs  KiB  descriptors | closed, after a checkpoint: files  KiB  descriptors"
    );
    for files in [100, 3000, 30_000] {
        let dir = directory();
        let store = quiet(dir.path());
        let before = kib_used();
        let used = || {
            // SAFETY: gives free memory back to the system, so that the memory in use shows.
            unsafe { libc::malloc_trim(0) };
            format!("{} {}", kib_used() - before, descriptors(dir.path()))
        };
        let mut open = Vec::new();
        for part in 0..files / 100 {
            let mut txn = store.begin();
            for n in part * 100..(part + 1) * 100 {
                open.push(txn.create(format!("file {n}"), 0o600).unwrap());
            }
            txn.commit().unwrap();
        }
        let file = store.open_file("file 0").unwrap();
        let commit = micros(&mut |n| {
            file.write_all_at(&[n as u8; 100], 0).unwrap();
            file.commit().unwrap();
        });
        let rename = micros(&mut |n| {
            let names = ["file 1", "renamed"];
            store.rename(names[n % 2], names[(n + 1) % 2]).unwrap();
        });
        let opened = micros(&mut |n| drop(store.open_file(format!("file {}", n % 50 + 40)).unwrap()));
        let in_use = used();
        drop((file, open));
        store.checkpoint().unwrap();
        let (kept, after) = (store.status().open_files, used());
        println!("{files:5}  {commit:9.1}  {rename:9.1}  {opened:7.1}  {in_use} | {kept} {after}");
        std::mem::forget(store);
    }
}
