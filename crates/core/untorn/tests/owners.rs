//! One owner at a time. If the owner is killed, stopped, forked or raced, nobody hangs, and nobody gets a store that is
//! in use.

mod common;

use common::child_process::{ChildProcess, block, block_offset, kills, path_text, signal_process};
use common::stepping::{killed_at_call, stop, traced};
use common::*;
use rustix::process::Signal;
use std::process::Stdio;
use std::time::Duration;
use untorn::{Error, File, Store, StoreOptions};

const CREATED: &str = "UNTORN_TEST_CREATED";
const LIMIT: Duration = Duration::from_secs(60);

/// The process id in the error "busy".
#[track_caller]
fn busy<T>(result: untorn::Result<T>) -> Option<u32> {
    match refused(result, &["busy"]) {
        Error::Busy { pid, .. } => pid,
        _ => None,
    }
}

#[test]
fn a_second_owner_is_told_who_the_first_is() {
    let dir = directory();
    let process = ChildProcess::owning(dir.path());
    assert_eq!(busy(Store::open_or_create(dir.path())), Some(process.pid()));
    drop(process);
    let store = Store::open_or_create(dir.path()).unwrap();
    assert_eq!(busy(Store::open_or_create(dir.path())), Some(std::process::id()), "even in the same process");
    store.close().unwrap();
}

#[test]
fn a_killed_owner_frees_the_store() {
    let dir = directory();
    for version in ["one", "two", "three"] {
        let mut process = ChildProcess::owning(dir.path());
        process.ok(&["create", "a"]);
        process.commit("a", version);
        process.ok(&["fill", "a", "uncommitted"]);
        process.kill();
        let store = Store::open_or_create(dir.path()).unwrap();
        assert!(store.status().recovered.commits >= 1);
        assert_same(&stored(&store, "a"), &text(version, "a"), "the last commit");
    }
}

/// So many blocks that two threads compute their checksums. Each block has its own checksum, which reading and applying
/// check.
#[test]
fn thousands_of_blocks_of_a_killed_owner_are_read_from_the_log() {
    const BLOCKS: usize = 3000;
    let dir = directory();
    let mut process = ChildProcess::start();
    process.ok(&["open", path_text(&dir), &format!("journal={}", 128 << 20)]);
    process.ok(&["create", "a"]);
    process.ok(&["blocks", "a", &BLOCKS.to_string()]);
    process.kill();
    let store = Store::open_or_create(dir.path()).unwrap();
    let file = store.open_file("a").unwrap();
    let check = |found: &[u8]| {
        for n in 0..BLOCKS {
            assert_same(&found[block_offset(n) as usize..][..8192], &block(n), &format!("block {n}"));
        }
    };
    check(&contents(&file));
    store.checkpoint().unwrap();
    check(&contents(&file));
    store.close().unwrap();
    check(&plain(dir.path().join("a")));
}

#[test]
fn a_stopped_owner_stays_the_owner() {
    let dir = directory();
    let mut process = ChildProcess::owning(dir.path());
    process.ok(&["create", "a"]);
    process.commit("a", "one");
    process.signal(Signal::STOP);
    let path = dir.path().to_owned();
    let pid = within(LIMIT, "opening a stopped owner's store", move || busy(Store::open_or_create(path)));
    assert_eq!(pid, Some(process.pid()));
    process.signal(Signal::CONT);
    process.commit("a", "two");
    process.ok(&["close"]);
    assert_same(&stored(&Store::open_or_create(dir.path()).unwrap(), "a"), &text("two", "a"), "the last commit");
}

#[test]
fn a_stopped_owner_may_be_killed() {
    let dir = directory();
    let mut process = ChildProcess::owning(dir.path());
    process.ok(&["create", "a"]);
    process.commit("a", "one");
    process.signal(Signal::STOP);
    process.kill();
    assert_same(&stored(&Store::open_or_create(dir.path()).unwrap(), "a"), &text("one", "a"), "the last commit");
}

#[test]
fn a_forked_child_that_outlives_the_owner_keeps_nothing() {
    let dir = directory();
    let mut process = ChildProcess::owning(dir.path());
    process.ok(&["create", "a"]);
    process.commit("a", "one");
    let child: u32 = process.ok(&["fork"]).parse().unwrap();
    // While the owner lives it stays the owner, with or without the child.
    assert_eq!(busy(Store::open_or_create(dir.path())), Some(process.pid()));
    process.commit("a", "two");
    process.kill();
    let store = Store::open_or_create(dir.path()).expect("the child must not hold the store");
    assert_same(&stored(&store, "a"), &text("two", "a"), "the last commit");
    let file = store.open_file("a").expect("the child must not hold the file");
    file.append(b"x").unwrap();
    file.commit().unwrap();
    signal_process(child, Signal::KILL);
}

#[test]
fn a_forked_child_keeps_no_lone_file() {
    let dir = directory();
    let path = dir.path().join("foo.db");
    let mut process = ChildProcess::start();
    process.ok(&["lone", path_text(&path)]);
    process.commit("lone", "one");
    let child: u32 = process.ok(&["fork"]).parse().unwrap();
    process.kill();
    assert_same(&contents(&File::open(&path).unwrap()), &text("one", "lone"), "the last commit");
    signal_process(child, Signal::KILL);
}

#[test]
fn a_program_started_meanwhile_keeps_nothing_locked() {
    let dir = directory();
    let store = Store::open_or_create(dir.path()).unwrap();
    let file = store.open_or_create_file("a").unwrap();
    file.write_all_at(b"one", 0).unwrap();
    file.commit().unwrap();
    // A child as of `posix_spawn`: it has a copy of all descriptors until its `exec`, and no handler of `fork` has run
    // in it.
    // SAFETY: the child calls nothing but `pause`.
    let child = unsafe { libc::syscall(libc::SYS_clone, libc::SIGCHLD, 0, 0, 0, 0) } as i32;
    if child == 0 {
        loop {
            // SAFETY: it only waits.
            unsafe { libc::pause() };
        }
    }
    assert!(child > 0, "{}", std::io::Error::last_os_error());
    drop(file);
    let closed = store.close();
    let again = Store::open_or_create(dir.path()).map(|store| store.open_file("a").map(|file| contents(&file)));
    signal_process(child as u32, Signal::KILL);
    // SAFETY: a child of this test, waited for once.
    unsafe { libc::waitpid(child, std::ptr::null_mut(), 0) };
    closed.unwrap();
    assert_same(&again.expect("the store").expect("the file"), b"one", "what was committed");
}

#[test]
fn a_handle_in_a_forked_child_says_so() {
    let dir = directory();
    let mut process = ChildProcess::owning(dir.path());
    process.ok(&["create", "a"]);
    process.commit("a", "one");
    for _ in 0..5 {
        process.ok(&["fill", "a", "uncommitted"]);
        assert_eq!(process.ok(&["fork-use", "a"]), "refused");
    }
    // The parent is not affected.
    process.commit("a", "two");
    process.ok(&["close"]);
    assert_same(&plain(dir.path().join("a")), &text("two", "a"), "after closing");
}

#[test]
fn openers_that_race_at_creation_take_turns() {
    for _ in 0..3 {
        let dir = directory();
        let mut racers: Vec<ChildProcess> = (0..6).map(|_| ChildProcess::start()).collect();
        for racer in &mut racers {
            racer.tell(&["race", path_text(dir.path()), "5"]);
        }
        for racer in &mut racers {
            racer.reply().unwrap_or_else(|e| panic!("a racer failed: {}: {}", e.kind, e.message));
        }
        let store = Store::open_or_create(dir.path()).unwrap();
        assert_same(&stored(&store, "counter"), &30u64.to_le_bytes(), "each turn was counted once");
    }
}

/// In a second process: creates a store, between two stops.
#[test]
fn creating_child() {
    let Some(place) = std::env::var_os(CREATED) else { return };
    traced();
    let store = Store::open_or_create(place).unwrap();
    stop();
    drop(store);
}

/// Kills an opening that creates the store before or after a system call; some calls are chosen.
#[test]
fn openers_killed_while_creating_leave_no_wreck() {
    let seed = seed();
    let rng = &mut fastrand::Rng::with_seed(seed);
    let killed = |stops: u64| {
        let dir = directory();
        let mut child = untorn_testkit::again!("creating_child");
        let all = killed_at_call(child.env(CREATED, dir.path()).stdout(Stdio::piped()), stops)?;
        let is_begun = dir.path().join(".untorn").exists();
        let store = Store::open_or_create(dir.path()).unwrap_or_else(|e| panic!("seed {seed}, stop {stops}: {e}"));
        let file = store.open_or_create_file("a").unwrap();
        file.append(b"x").unwrap();
        file.commit().unwrap();
        Some((all, is_begun))
    };
    let Some((all, _)) = killed(u64::MAX) else { return skipped("cannot trace a child here") };
    assert!(all > 20, "{all} stops");
    let rounds = kills(15).min(all);
    // One call in each part of the opening.
    let begun = (0..rounds).map(|round| killed(all * round / rounds + rng.u64(..all / rounds)));
    let begun = begun.filter(|killed| killed.expect("a child that was traced").1).count();
    println!("seed {seed}: {rounds} kills in {all} stops, {begun} of them after the creation had begun");
    assert!(begun > 0);
}

#[test]
fn who_waits_gets_it_when_the_owner_closes() {
    let dir = directory();
    let store = Store::open_or_create(dir.path()).unwrap();
    let file = store.open_or_create_file("a").unwrap();
    let mut process = ChildProcess::start();
    process.tell(&["open", path_text(dir.path()), "wait"]);
    std::thread::sleep(Duration::from_millis(100));
    file.write_all_at(&text("one", "a"), 0).unwrap();
    file.commit().expect("the waiting one does not disturb the owner");
    drop(file);
    store.close().unwrap();
    process.reply().expect("waiting ends when the owner closes");
    process.ok(&["file", "a"]);
    assert_eq!(process.ok(&["read", "a"]).as_bytes(), &text("one", "a")[..20]);
    assert_eq!(busy(Store::open_or_create(dir.path())), Some(process.pid()));
}

#[test]
fn who_waits_gets_it_when_the_owner_is_killed() {
    let dir = directory();
    let mut process = ChildProcess::owning(dir.path());
    process.ok(&["create", "a"]);
    process.commit("a", "one");
    let path = dir.path().to_owned();
    let waiting = std::thread::spawn(move || StoreOptions::new().create(true).wait(true).open(path));
    std::thread::sleep(Duration::from_millis(100));
    assert!(!waiting.is_finished(), "the owner lives");
    process.kill();
    let store = within(LIMIT, "waiting for a dead owner", move || waiting.join().unwrap()).unwrap();
    assert_same(&stored(&store, "a"), &text("one", "a"), "recovered");
}

#[test]
fn a_lone_file_has_one_owner_too() {
    let dir = directory();
    let path = dir.path().join("foo.db");
    let mut process = ChildProcess::start();
    process.ok(&["lone", path_text(&path)]);
    assert_eq!(busy(File::open(&path)), Some(process.pid()));
    // Another file beside it is free.
    let other = File::open_or_create(dir.path().join("bar.db")).unwrap();
    other.append(b"x").unwrap();
    other.commit().unwrap();
    process.kill();
    File::open(&path).unwrap();
}

#[test]
fn a_file_has_one_owner_under_whatever_face() {
    let dir = directory();
    let store = Store::open_or_create(dir.path()).unwrap();
    let file = store.open_or_create_file("a").unwrap();
    file.append(b"x").unwrap();
    file.commit().unwrap();
    // The store has claimed the file, so it cannot be opened as a standalone file.
    refused(File::open(dir.path().join("a")), &["busy", "foreign", "needs-its-journal"]);
    drop(file);
    store.close().unwrap();
    // It is open as a standalone file, so no store gets it.
    let alone = File::open(dir.path().join("a")).unwrap();
    alone.append(b"y").unwrap();
    alone.commit().unwrap();
    let store = Store::open_or_create(dir.path()).unwrap();
    refused(store.open_file("a"), &["busy", "foreign", "needs-its-journal"]);
    alone.close().unwrap();
    assert_same(&stored(&store, "a"), b"xy", "free again");
}

#[test]
fn a_file_that_another_program_has_locked_is_busy() {
    let dir = directory();
    std::fs::write(dir.path().join("a"), "x").unwrap();
    let locked = std::fs::File::open(dir.path().join("a")).unwrap();
    rustix::fs::flock(&locked, rustix::fs::FlockOperation::NonBlockingLockExclusive).unwrap();
    let store = Store::open_or_create(dir.path()).unwrap();
    busy(store.open_file("a"));
    // A child that another test starts has a copy of the descriptor for a moment.
    rustix::fs::flock(&locked, rustix::fs::FlockOperation::Unlock).unwrap();
    assert_same(&stored(&store, "a"), b"x", "free again");
}

#[test]
fn descriptors_do_not_leak_into_other_programs() {
    let dir = directory();
    let store = Store::open_or_create(dir.path()).unwrap();
    let _file = store.open_or_create_file("a").unwrap();
    let _lone = File::open_or_create(dir.path().join("foo.db")).unwrap();
    let output = std::process::Command::new("ls").args(["-l", "/proc/self/fd"]).output().unwrap();
    let list = String::from_utf8_lossy(&output.stdout);
    assert!(!list.contains(path_text(dir.path())), "{list}");
}

/// A store that was plain is no longer plain while a process has it open, and after a kill; a clean close ends both.
#[test]
fn a_plain_store_is_known_by_its_note() {
    let dir = directory();
    let is_plain = || [false, true].map(|was_plain| untorn::__private::is_store_plain(dir.path(), was_plain).unwrap());
    Store::open_or_create(dir.path()).unwrap().close().unwrap();
    assert_eq!(is_plain(), [true; 2], "closed");
    let mut process = ChildProcess::owning(dir.path());
    assert_eq!(is_plain(), [false; 2], "open");
    process.ok(&["create", "a"]);
    process.commit("a", "one");
    drop(process);
    assert_eq!(is_plain(), [false; 2], "killed");
    Store::open_or_create(dir.path()).unwrap().close().unwrap();
    assert_eq!(is_plain(), [true; 2], "recovered");
}
