//! Live heaps on byte-addressable memory: another boot goes on from the memory. Ordinary files stand for such memory, and
//! a number in the head of the memory for the boot; the offsets are those of
//! `crates/core/untorn/src/heap/log/live_head.rs`.

mod common;

use common::bank::{Bank, THREADS, run_bank};
use common::child_process::{killed_after_pause, kills, output_after};
use common::*;
use fastrand::Rng;
use std::fs;
use std::os::unix::fs::{FileExt, PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;
use untorn::__private::OpenStoreOn;
use untorn::heap::{Heap, HeapOptions, LiveReport, LiveStart};
use untorn::{FailureClass, Store, StoreOptions, offline};
use untorn_journal::directories::store_dir::StoreDir;
use untorn_os::Linux;
use untorn_testkit::NOBODY;

const MODE: &str = "UNTORN_TEST_POWER";
const PLACE: &str = "UNTORN_TEST_PLACE";
const BOOT_AT: u64 = 16;
const DEVICE_AT: u64 = 48;
const INODE_AT: u64 = 56;

fn live() -> HeapOptions {
    HeapOptions::new().create(true).live(true).address_space(64 << 20)
}

/// A store whose file system is taken for one on byte-addressable memory.
fn store(dir: &Path, class: FailureClass) -> Store {
    let storage = Linux::open_as_memory(dir).expect("a directory");
    StoreOptions::new().create(true).class(class).open_on(storage, StoreDir::of_directory(), dir.to_owned()).unwrap()
}

fn open(dir: &Path, options: &HeapOptions) -> untorn::Result<Heap> {
    options.open_in(&store(dir, FailureClass::Power), "heap")
}

fn report(heap: &Heap) -> LiveReport {
    heap.live().expect("a live heap")
}

/// A number, as a root of the heap.
fn number(heap: &Heap) -> &AtomicU64 {
    let root = heap.root_or("number", |_| AtomicU64::new(0)).unwrap();
    // SAFETY: a root of this type, which is only used as an atomic.
    unsafe { root.as_ref() }
}

/// A heap with 1 at its last cut and 2 in memory, whose process is gone, as after a kill.
fn abandoned(dir: &Path) -> PathBuf {
    let heap = open(dir, &live()).unwrap();
    number(&heap).store(1, Relaxed);
    heap.commit().unwrap();
    number(&heap).store(2, Relaxed);
    report(&heap).memory
}

/// Changes the memory as another boot would find it: with these numbers of its owner.
fn boots(memory: &Path, numbers: &[(u64, u64)]) {
    let file = fs::File::options().write(true).open(memory).unwrap();
    for (at, number) in [(BOOT_AT, 0xb007)].iter().chain(numbers) {
        file.write_all_at(&number.to_ne_bytes(), *at).unwrap();
    }
}

/// Whether this processor can flush lines; otherwise no memory is of class `memory`.
fn can_flush(dir: &Path) -> bool {
    let heap = open(dir, &live()).unwrap();
    let can = report(&heap).class == FailureClass::Memory;
    heap.close().unwrap();
    if !can {
        skipped("needs a processor that flushes lines");
    }
    can
}

/// In a second process: runs the mode in the environment.
#[test]
fn power_child() {
    let Some(mode) = std::env::var_os(MODE) else { return };
    let place = PathBuf::from(std::env::var_os(PLACE).expect("a place"));
    match mode.to_str().expect("a mode") {
        "hardware" => {
            let heap = open(&place, &live().live_class(FailureClass::Memory)).unwrap();
            let LiveReport { class, flushes, start, .. } = report(&heap);
            assert_eq!((class, flushes), (FailureClass::Memory, !cfg!(target_arch = "x86_64")));
            match number(&heap).load(Relaxed) {
                0 => assert_eq!(start, LiveStart::New),
                found => assert_eq!((found, start), (2, LiveStart::WentOn)),
            }
            number(&heap).store(2, Relaxed);
            // As a kill.
            std::process::exit(0);
        }
        "nonsense" => {
            let e = refused(open(&place, &live()), &["invalid"]).to_string();
            assert!(e.contains("UNTORN_LIVE_CACHES"), "{e}");
        }
        "bank" => {
            let options = live().live_class(FailureClass::Memory).cut_every(Duration::from_millis(4));
            run_bank(&open(&place, &options).unwrap());
        }
        other => panic!("{other}"),
    }
}

fn child(mode: &str, place: &Path, caches: &str) -> Command {
    let mut command = untorn_testkit::again!("power_child");
    command.env(MODE, mode).env(PLACE, place).env("UNTORN_LIVE_CACHES", caches);
    command
}

#[test]
fn memory_of_another_boot_is_gone_on_from() {
    let dir = directory();
    if !can_flush(dir.path()) {
        return;
    }
    // The device may have another number in another boot.
    for device in [None, Some((DEVICE_AT, 0xd0d0))] {
        let memory = abandoned(dir.path());
        boots(&memory, device.as_slice());
        let outlook = offline::check_heap(&dir.path().join("heap"), &|_, _| {}).unwrap().live.expect("live memory");
        assert_eq!((outlook.class, outlook.flushes), (FailureClass::Memory, true));
        assert_eq!(outlook.next, untorn::heap::NextStart::GoesOn);
        let found = offline::inspect(dir.path()).unwrap().live_memory;
        assert_eq!((&found[0].memory, found[0].class), (&memory, Some(FailureClass::Memory)));
        for round in 0..2 {
            let heap = open(dir.path(), &live().live_class(FailureClass::Memory)).unwrap();
            assert_eq!(report(&heap).start, LiveStart::WentOn, "{round}");
            assert_eq!(number(&heap).load(Relaxed), 2);
            assert!(heap.check(&|_, _| {}).unwrap().problems.is_empty());
            assert_eq!(report(&heap).memory, memory);
        }
        open(dir.path(), &live()).unwrap().close().unwrap();
        assert!(!memory.exists());
        let heap = open(dir.path(), &live()).unwrap();
        assert_eq!(number(&heap).load(Relaxed), 2);
        heap.close().unwrap();
    }
}

/// A program that requires the class loses nothing if the file system of the memory is not mounted.
#[test]
fn memory_that_is_not_mounted_is_found_later() {
    let dir = directory();
    if !can_flush(dir.path()) {
        return;
    }
    let memory = abandoned(dir.path());
    let aside = memory.with_file_name(format!("aside-{}", std::process::id()));
    fs::rename(&memory, &aside).unwrap();
    let plain = Store::open(dir.path()).unwrap();
    refused(live().live_class(FailureClass::Memory).open_in(&plain, "heap"), &["unsupported"]);
    drop(plain);
    fs::rename(&aside, &memory).unwrap();
    let heap = open(dir.path(), &live().live_class(FailureClass::Memory)).unwrap();
    assert_eq!((report(&heap).start, number(&heap).load(Relaxed)), (LiveStart::WentOn, 2));
    heap.close().unwrap();
}

/// Memory of another file, and memory that a file's commit does not name, is refused in another boot, too.
#[test]
fn other_memory_of_another_boot_is_refused() {
    let dir = directory();
    if !can_flush(dir.path()) {
        return;
    }
    let cases = [
        (INODE_AT, "another file"),
        (32, "committed without this memory"),
        (64, "while it made"),
        (80, "another time"),
    ];
    for (at, why) in cases {
        let memory = abandoned(dir.path());
        boots(&memory, &[(at, 0xeeee)]);
        let heap = open(dir.path(), &live()).unwrap();
        match report(&heap).start {
            LiveStart::LastCut(found) => assert!(found.contains(why), "{found}: not {why}"),
            other => panic!("{other:?}: {why}"),
        }
        assert_eq!(number(&heap).load(Relaxed), 1, "{why}");
        heap.close().unwrap();
    }
    // A device with another number in this boot is that of a copy, whose memory stays.
    let memory = abandoned(dir.path());
    let file = fs::File::options().write(true).open(&memory).unwrap();
    file.write_all_at(&0xd0d0u64.to_ne_bytes(), DEVICE_AT).unwrap();
    refused(open(dir.path(), &live().live_class(FailureClass::Memory)), &["unsupported"]);
    let heap = open(dir.path(), &live()).unwrap();
    assert!(matches!(report(&heap).start, LiveStart::LastCut(why) if why.contains("another file")));
    assert_eq!(report(&heap).class, FailureClass::Process);
    heap.close().unwrap();
    assert!(memory.exists());
    fs::remove_file(memory).unwrap();
}

#[test]
fn the_class_is_chosen() {
    let dir = directory();
    if !can_flush(dir.path()) {
        return;
    }
    let ordinary = dir.path().join("ordinary");
    let e = refused(live().live_class(FailureClass::Memory).open(&ordinary), &["unsupported"]).to_string();
    assert!(e.contains("dax") && e.contains("UNTORN_LIVE_DIR"), "{e}");
    refused(live().live_class(FailureClass::Power).open(&ordinary), &["invalid"]);
    refused(HeapOptions::new().create(true).live_class(FailureClass::Memory).open(&ordinary), &["invalid"]);
    refused(StoreOptions::new().create(true).class(FailureClass::Memory).open(dir.path().join("other")), &["invalid"]);
    let heap = live().open(&ordinary).unwrap();
    assert_eq!((report(&heap).class, report(&heap).flushes), (FailureClass::Process, false));
    heap.close().unwrap();
    // Switched off, the memory is of this boot alone; switched on again, it has to be made anew.
    let heap = open(dir.path(), &live().live_class(FailureClass::Process)).unwrap();
    assert_eq!(report(&heap).class, FailureClass::Process);
    number(&heap).store(3, Relaxed);
    drop(heap);
    let e = refused(open(dir.path(), &live().live_class(FailureClass::Memory)), &["unsupported"]).to_string();
    assert!(e.contains("Close the heap"), "{e}");
    let heap = open(dir.path(), &live()).unwrap();
    assert_eq!((report(&heap).class, number(&heap).load(Relaxed)), (FailureClass::Process, 3));
    heap.close().unwrap();
    // Memory that is used as ordinary memory from now on.
    abandoned(dir.path());
    let heap = open(dir.path(), &live().live_class(FailureClass::Process)).unwrap();
    assert_eq!((report(&heap).class, report(&heap).start), (FailureClass::Process, LiveStart::WentOn));
    let memory = report(&heap).memory;
    drop(heap);
    boots(&memory, &[]);
    let heap = open(dir.path(), &live()).unwrap();
    assert!(matches!(report(&heap).start, LiveStart::LastCut(why) if why.contains("another boot")));
    heap.close().unwrap();
}

/// The cuts of a store of class `process` survive no power cut, and the file has to name the memory durably.
#[test]
fn a_store_of_class_process_has_no_such_memory() {
    let dir = directory();
    let store = store(dir.path(), FailureClass::Process);
    let e = refused(live().live_class(FailureClass::Memory).open_in(&store, "heap"), &["unsupported"]).to_string();
    assert!(e.contains("class `process`"), "{e}");
    let heap = live().open_in(&store, "heap").unwrap();
    assert_eq!(report(&heap).class, FailureClass::Process);
    heap.close().unwrap();
}

/// The machine goes down at any moment, and the memory has all stores so far: those of a killed process.
#[test]
fn sections_are_all_or_nothing_in_another_boot() {
    let seed = seed();
    let rng = &mut Rng::with_seed(seed);
    let dir = directory();
    if !can_flush(dir.path()) {
        return;
    }
    let mut acknowledged = [0; THREADS];
    for round in 0..kills(20) {
        let mut child = child("bank", dir.path(), ["hardware", "flush"][rng.usize(..2)]);
        let mut child = child.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let out = output_after(&mut child, "ready", &format!("seed {seed}, round {round}"));
        for (thread, done) in killed_after_pause(child, out, Duration::from_micros(rng.u64(..6000))) {
            acknowledged[thread] = done;
        }
        let what = format!("seed {seed}, round {round}");
        boots(&offline::inspect(dir.path()).unwrap().live_memory[0].memory, &[]);
        let heap = open(dir.path(), &live()).unwrap();
        assert_eq!(report(&heap).start, LiveStart::WentOn, "{what}");
        let bank = heap.root::<Bank<'_>>("bank").unwrap().expect("a bank");
        // SAFETY: nobody else uses it.
        let bank = unsafe { bank.as_ref() };
        assert_eq!(bank.problem(), None, "{what}");
        assert!(bank.done.iter().zip(&acknowledged).all(|(done, told)| done >= told), "{what}: {acknowledged:?}");
        let report = heap.check(&|_, _| {}).unwrap();
        assert!(report.problems.is_empty(), "{what}: {:?}", report.problems);
        // SAFETY: nobody has a pointer to the leaked blocks.
        unsafe { heap.collect(&|_, _| {}) }.unwrap();
    }
}

/// The user says that the hardware writes the caches back.
#[test]
fn the_hardware_may_write_the_caches_back() {
    let dir = directory();
    if !can_flush(dir.path()) {
        return;
    }
    for _ in 0..2 {
        assert!(child("hardware", dir.path(), "hardware").status().unwrap().success());
        let found = offline::inspect(dir.path()).unwrap().live_memory;
        boots(&found[0].memory, &[]);
    }
    // The next opening may flush.
    let heap = open(dir.path(), &live()).unwrap();
    assert_eq!((report(&heap).start, report(&heap).flushes), (LiveStart::WentOn, true));
    assert_eq!(number(&heap).load(Relaxed), 2);
    heap.close().unwrap();
    assert!(child("nonsense", dir.path(), "perhaps").status().unwrap().success());
}

/// The directory of the memory's users may be one in which they can neither list nor make anything.
#[test]
fn a_directory_that_cannot_be_listed_has_memory() {
    if !rustix::process::geteuid().is_root() {
        return skipped("needs root, to act as another user");
    }
    let dir = directory();
    if !can_flush(dir.path()) {
        return;
    }
    let [place, memory] = ["place", "memory"].map(|name| dir.path().join(name));
    let own = memory.join(format!("untorn-{NOBODY}"));
    for (dir, mode) in [(dir.path(), 0o711), (&place, 0o700), (&memory, 0o711), (&own, 0o711)] {
        fs::create_dir_all(dir).unwrap();
        fs::set_permissions(dir, fs::Permissions::from_mode(mode)).unwrap();
    }
    [&place, &own].into_iter().for_each(|dir| chown(dir, Some(NOBODY), Some(NOBODY)).unwrap());
    for _ in 0..2 {
        let mut command = child("hardware", &place, "hardware");
        assert!(command.env("UNTORN_LIVE_DIR", &memory).uid(NOBODY).gid(NOBODY).status().unwrap().success());
        assert_eq!(fs::read_dir(&own).unwrap().count(), 1);
    }
}
