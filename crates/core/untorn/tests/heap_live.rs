//! Live heaps: everything that was stored outlives the process, however the process ends, and no half-done change is
//! ever visible. Children are killed for real; the example `live_queue` and the allocator at any moment.

mod common;

use common::bank::{Bank, THREADS, bank_in, run_bank, transfer};
use common::child_process::{killed_after_pause, kills, output_after};
use common::stepping::{killed_after, stop, traced};
use common::*;
use fastrand::Rng;
use std::alloc::Layout;
use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::ptr::{NonNull, with_exposed_provenance_mut};
use std::sync::Once;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::time::Duration;
use untorn::heap::{Heap, HeapOptions, LiveStart, NextStart, Storable};
use untorn::{Error, Reader, offline};
use untorn_testkit::NOBODY;

const MODE: &str = "UNTORN_TEST_LIVE";
const PLACE: &str = "UNTORN_TEST_PLACE";
/// The bytes before the heap in its memory.
const HEAD: u64 = 68 << 20;
const LIMIT: Duration = Duration::from_secs(60);

fn live() -> HeapOptions {
    HeapOptions::new().create(true).live(true).address_space(256 << 20)
}

fn start_of(heap: &Heap) -> LiveStart {
    heap.live().expect("a live heap").start
}

#[track_caller]
fn last_cut(heap: &Heap) -> String {
    match start_of(heap) {
        LiveStart::LastCut(why) => why,
        other => panic!("at the last cut, not {other:?}"),
    }
}

/// A number, as a root of the heap.
fn number(heap: &Heap) -> &AtomicU64 {
    let root = heap.root_or("number", |_| AtomicU64::new(0)).unwrap();
    // SAFETY: a root of this type, which is only used as an atomic.
    unsafe { root.as_ref() }
}

/// The directory in which each user has a directory for memory.
fn memory_top() -> PathBuf {
    std::env::var_os("UNTORN_LIVE_DIR").unwrap_or("/dev/shm".into()).into()
}

/// The path of the memory of a heap whose process was killed.
fn memory_of(path: &Path) -> PathBuf {
    let meta = fs::metadata(path).unwrap();
    memory_top().join(format!("untorn-{}", meta.uid())).join(format!("heap-{:x}-{:x}", meta.dev(), meta.ino()))
}

/// A heap with 1 at its last cut and 2 in memory, whose process is gone, as after a kill.
fn abandoned(path: &Path) -> PathBuf {
    let heap = live().open(path).unwrap();
    number(&heap).store(1, Relaxed);
    heap.commit().unwrap();
    number(&heap).store(2, Relaxed);
    let memory = heap.live().unwrap().memory;
    drop(heap);
    assert_eq!(memory, memory_of(path));
    memory
}

fn child(mode: &str, place: &Path) -> Command {
    let mut command = untorn_testkit::again!("live_child");
    command.env(MODE, mode).env(PLACE, place).stdin(Stdio::piped()).stdout(Stdio::piped());
    command
}

/// Reads a child's output up to this line.
fn wait_for(child: &mut Child, line: &str) {
    let out = BufReader::new(child.stdout.as_mut().expect("a pipe"));
    assert!(out.lines().map_while(Result::ok).any(|found| found.ends_with(line)), "the child ended before {line:?}");
}

fn kill(mut child: Child) {
    child.kill().expect("a child to kill");
    child.wait().expect("its end");
}

/// In a second process: runs the mode in the environment, and waits to be killed.
#[test]
fn live_child() {
    let Some(mode) = std::env::var_os(MODE) else { return };
    let place = PathBuf::from(std::env::var_os(PLACE).expect("a place"));
    match mode.to_str().expect("a mode") {
        "guard" => {
            let heap = live().open(&place).unwrap();
            number(&heap).store(7, Relaxed);
            heap.commit().unwrap();
            let _changing = heap.mutate();
            number(&heap).store(8, Relaxed);
            println!("\nready");
            std::thread::sleep(LIMIT);
        }
        "hold" => {
            let heap = live().open(&place).unwrap();
            number(&heap).store(7, Relaxed);
            heap.commit().unwrap();
            let _held = heap.hold_cuts();
            number(&heap).store(8, Relaxed);
            println!("\nready");
            std::thread::sleep(LIMIT);
        }
        "goes on" => {
            let heap = live().open(&place).unwrap();
            assert_eq!((start_of(&heap), number(&heap).load(Relaxed)), (LiveStart::WentOn, 8));
            heap.close().unwrap();
        }
        "no place" => {
            let e = refused(live().open(&place), &["io"]).to_string();
            assert!(e.contains("is not a private directory of this user") && e.contains("UNTORN_LIVE_DIR"), "{e}");
        }
        "eject" => _ = offline::eject(&place, &|_, _| {}).unwrap(),
        "churn" => churn(&place),
        "bank" => run_bank(&live().cut_every(Duration::from_millis(4)).open(place).unwrap()),
        "steps" => steps(&place),
        "section steps" => section_steps(&place),
        "full" => full(&place),
        "reboot" => {
            let heap = live().open(&place).unwrap();
            let why = last_cut(&heap);
            assert!(why.contains("another boot"), "{why}");
            assert_eq!(number(&heap).load(Relaxed), 1);
            heap.close().unwrap();
        }
        other => panic!("{other}"),
    }
}

#[test]
fn what_was_stored_is_there_after_the_process() {
    let dir = directory();
    let path = dir.path().join("heap");
    let memory = abandoned(&path);
    assert_eq!(fs::metadata(&memory).unwrap().mode() & 0o777, 0o600);
    let heap = live().open(&path).unwrap();
    assert_eq!(start_of(&heap), LiveStart::WentOn);
    assert_eq!(number(&heap).load(Relaxed), 2);
    // The heap is longer than at its last cut.
    let block = heap.allocate(Layout::from_size_align(9 << 20, 8).unwrap()).unwrap();
    // SAFETY: this many bytes were allocated just now.
    unsafe { block.as_ptr().write_bytes(0x5a, 9 << 20) };
    heap.set_root("block", Some(block)).unwrap();
    drop(heap);
    let heap = live().open(&path).unwrap();
    assert_eq!(start_of(&heap), LiveStart::WentOn);
    let found = heap.root::<u8>("block").unwrap().unwrap();
    assert_eq!(found, block);
    // SAFETY: a root of this many bytes.
    assert!(unsafe { std::slice::from_raw_parts(found.as_ptr(), 9 << 20) }.iter().all(|byte| *byte == 0x5a));
    assert!(heap.check(&|_, _| {}).unwrap().problems.is_empty());
    heap.close().unwrap();
    assert!(!memory.exists());
    let heap = Heap::open(&path).unwrap();
    assert!(heap.live().is_none());
    assert_eq!(number(&heap).load(Relaxed), 2);
    assert!(heap.root::<u8>("block").unwrap().is_some());
}

/// After a cut the file has everything that the memory had, even if the memory is lost.
#[test]
fn a_cut_after_going_on_has_everything() {
    let dir = directory();
    let path = dir.path().join("heap");
    let memory = abandoned(&path);
    let heap = live().open(&path).unwrap();
    heap.commit().unwrap();
    drop(heap);
    fs::remove_file(memory).unwrap();
    let heap = live().open(&path).unwrap();
    let why = last_cut(&heap);
    assert!(why.contains("restarted"), "{why}");
    assert_eq!(number(&heap).load(Relaxed), 2);
    heap.close().unwrap();
}

/// A rollback goes to the last cut; a heap that shrinks and grows again has no old bytes.
#[test]
fn a_rollback_is_to_the_last_cut() {
    let dir = directory();
    let path = dir.path().join("heap");
    let heap = live().open(&path).unwrap();
    number(&heap).store(1, Relaxed);
    heap.commit().unwrap();
    let large = Layout::from_size_align(20 << 20, 8).unwrap();
    for round in 0..3 {
        number(&heap).store(2, Relaxed);
        let block = heap.allocate(large).unwrap();
        // SAFETY: this many bytes were allocated just now.
        unsafe { block.as_ptr().write_bytes(0xa5, 20 << 20) };
        match round {
            1 => {
                heap.commit().unwrap();
                // SAFETY: nobody uses it.
                unsafe { heap.free(block) }.unwrap();
                heap.commit().unwrap();
            }
            // SAFETY: nothing that was allocated since the commit is used.
            _ => unsafe { heap.rollback() }.unwrap(),
        }
        assert_eq!(number(&heap).load(Relaxed), if round == 0 { 1 } else { 2 });
        assert!(heap.check(&|_, _| {}).unwrap().problems.is_empty());
    }
    drop(heap);
    let heap = live().open(&path).unwrap();
    assert_eq!(start_of(&heap), LiveStart::WentOn);
    assert_eq!(number(&heap).load(Relaxed), 2);
    heap.close().unwrap();
}

#[test]
fn a_kill_within_a_change_goes_back_to_the_last_cut() {
    let dir = directory();
    for (mode, wanted) in [("guard", 7), ("hold", 8)] {
        let path = dir.path().join(mode);
        let mut child = child(mode, &path).spawn().unwrap();
        wait_for(&mut child, "ready");
        kill(child);
        let heap = live().open(&path).unwrap();
        match mode {
            "guard" => assert!(last_cut(&heap).contains("guard")),
            _ => assert_eq!(start_of(&heap), LiveStart::WentOn),
        }
        assert_eq!(number(&heap).load(Relaxed), wanted);
        heap.close().unwrap();
    }
}

/// The state of the next opening, as a check of the heap foretells it.
fn foretold(path: &Path) -> NextStart {
    let memory = fs::read(memory_of(path)).unwrap();
    let found = offline::check_heap(path, &|_, _| {}).unwrap().live.expect("live memory");
    assert!(fs::read(memory_of(path)).unwrap() == memory, "nothing was changed");
    found.next
}

/// A heap does not continue from memory of another heap or another boot, or from memory that is incomplete or damaged.
#[test]
fn other_memory_is_not_gone_on_from() {
    // The offsets are those of `crates/core/untorn/src/heap/log/live_head.rs`.
    let damage: [(&str, u64, u64); 11] = [
        ("logs of its sections", 65536, 8),
        ("not live memory of this version", 0, 8),
        ("not live memory of this version", 8, 8),
        ("another boot", 16, 16),
        ("committed without this memory", 32, 16),
        ("another file", 48, 8),
        ("another file", 56, 8),
        ("while it made this memory", 64, 8),
        ("of another time", 80, 8),
        ("it contains no heap", HEAD, 4),
        // The descriptor of a chunk.
        ("segment 0, chunk 5", HEAD + 4096 + 5 * 64, 8),
    ];
    let dir = directory();
    for (n, (why, at, len)) in damage.into_iter().enumerate() {
        let path = dir.path().join(format!("heap{n}"));
        let memory = fs::File::options().write(true).open(abandoned(&path)).unwrap();
        memory.write_all_at(&vec![0xee; len as usize], at).unwrap();
        let foretold = foretold(&path);
        let heap = live().open(&path).unwrap();
        let found = last_cut(&heap);
        assert!(found.contains(why), "{found}: not {why}");
        assert!(matches!(&foretold, NextStart::LastCut(why) if found.ends_with(why)), "{found}, and not {foretold:?}");
        assert_eq!(number(&heap).load(Relaxed), 1, "{why}");
        assert!(heap.check(&|_, _| {}).unwrap().problems.is_empty());
        heap.close().unwrap();
        assert!(!memory_of(&path).exists());
    }
    for (n, len) in [0, 100, HEAD, HEAD + 5000, HEAD + (4 << 20) - 1].into_iter().enumerate() {
        let path = dir.path().join(format!("short{n}"));
        fs::File::options().write(true).open(abandoned(&path)).unwrap().set_len(len).unwrap();
        let foretold = foretold(&path);
        let heap = live().open(&path).unwrap();
        let found = last_cut(&heap);
        assert!(matches!(&foretold, NextStart::LastCut(why) if found.ends_with(why)), "{found}, and not {foretold:?}");
        assert_eq!(number(&heap).load(Relaxed), 1, "{len} bytes");
        heap.close().unwrap();
    }
    // A record of the allocator, for bytes that lie out of the heap.
    for (n, record) in [[4u64 << 20, 8], [1 << 40, 8], [u64::MAX, 8], [u64::MAX - 7, 64]].into_iter().enumerate() {
        let path = dir.path().join(format!("record{n}"));
        let memory = fs::File::options().write(true).open(abandoned(&path)).unwrap();
        let words = [1, record[0], record[1]].map(u64::to_ne_bytes).concat();
        memory.write_all_at(&words, 104).unwrap();
        let foretold = foretold(&path);
        let heap = live().open(&path).unwrap();
        let found = last_cut(&heap);
        assert!(found.contains("the allocator's records of its unfinished change are invalid"), "{record:?}: {found}");
        assert!(matches!(&foretold, NextStart::LastCut(why) if found.ends_with(why)), "{found}, and not {foretold:?}");
        assert_eq!(number(&heap).load(Relaxed), 1, "{record:?}");
        heap.close().unwrap();
    }
    let path = dir.path().join("link");
    let memory = abandoned(&path);
    fs::rename(&memory, dir.path().join("elsewhere")).or_else(|_| fs::remove_file(&memory)).unwrap();
    std::os::unix::fs::symlink(dir.path().join("elsewhere"), &memory).unwrap();
    let heap = live().open(&path).unwrap();
    last_cut(&heap);
    heap.close().unwrap();
}

/// A heap that was copied, or restored from a copy, has the state of the copy.
#[test]
fn a_copy_has_no_part_in_the_memory() {
    let dir = directory();
    let path = dir.path().join("heap");
    let heap = live().open(&path).unwrap();
    number(&heap).store(1, Relaxed);
    heap.commit().unwrap();
    drop(heap);
    Heap::open(&path).unwrap().close().unwrap();
    // A plain copy, of a closed store.
    let old = fs::read(&path).unwrap();
    let memory = abandoned(&path);
    offline::recover(&path, &offline::RecoverOptions::default(), &|_, _| {}).unwrap();
    let copy = dir.path().join("copy");
    fs::copy(&path, &copy).unwrap();
    let heap = live().open(&copy).unwrap();
    // The reason varies: a memory that another heap left may have this name, since inode numbers are used again.
    last_cut(&heap);
    assert_eq!(number(&heap).load(Relaxed), 1);
    heap.close().unwrap();
    assert!(memory.exists(), "it is not the copy's");
    // The old contents over the file: the memory does not fit them.
    fs::write(&path, old).unwrap();
    let heap = live().open(&path).unwrap();
    assert_ne!(start_of(&heap), LiveStart::WentOn);
    assert_eq!(number(&heap).load(Relaxed), 1);
    heap.close().unwrap();
}

#[test]
fn any_opening_has_what_the_memory_had() {
    let dir = directory();
    let path = dir.path().join("heap");
    let memory = abandoned(&path);
    let heap = Heap::open(&path).unwrap();
    assert_eq!(number(&heap).load(Relaxed), 2);
    assert!(!memory.exists());
    number(&heap).store(3, Relaxed);
    heap.commit().unwrap();
    heap.close().unwrap();
    let heap = live().open(&path).unwrap();
    assert_eq!(start_of(&heap), LiveStart::New);
    assert_eq!(number(&heap).load(Relaxed), 3);
    heap.close().unwrap();
    // After an opening that is not live, the file names no memory.
    let memory = abandoned(&path);
    let kept = dir.path().join("kept");
    fs::copy(&memory, &kept).unwrap();
    Heap::open(&path).unwrap().close().unwrap();
    // Removing the last memory of a user removes the directory, too.
    fs::create_dir_all(memory.parent().unwrap()).unwrap();
    fs::copy(&kept, &memory).unwrap();
    let heap = live().open(&path).unwrap();
    assert_eq!(start_of(&heap), LiveStart::New);
    heap.close().unwrap();
}

#[test]
fn eject_and_status_know_of_it() {
    let dir = directory();
    let path = dir.path().join("heap");
    let memory = abandoned(&path);
    let found = offline::inspect(&path).unwrap().live_memory;
    assert_eq!(found.iter().map(|one| &one.memory).collect::<Vec<_>>(), [&memory]);
    let heap = live().open(&path).unwrap();
    refused(offline::eject(&path, &|_, _| {}), &["busy"]);
    refused(live().open(&path), &["busy", "invalid"]);
    drop(heap);
    offline::eject(&path, &|_, _| {}).unwrap();
    assert!(!memory.exists());
    assert_eq!(attribute(&path), None);
    let heap = Heap::open(&path).unwrap();
    assert_eq!(number(&heap).load(Relaxed), 2);
    drop(heap);
    // In a store with other files.
    let store = untorn::Store::open_or_create(dir.path().join("store")).unwrap();
    fs::create_dir(dir.path().join("store/sub")).unwrap();
    let heap = live().open_in(&store, "sub/heap").unwrap();
    number(&heap).store(5, Relaxed);
    drop(heap);
    store.close().unwrap();
    let path = dir.path().join("store/sub/heap");
    assert!(memory_of(&path).exists());
    let found = offline::inspect(&dir.path().join("store")).unwrap().live_memory;
    assert_eq!(found[0].path, Path::new("sub/heap"));
    offline::eject(&dir.path().join("store"), &|_, _| {}).unwrap();
    assert!(!memory_of(&path).exists());
    let heap = Heap::open(&path).unwrap();
    assert_eq!(number(&heap).load(Relaxed), 5);
}

#[test]
fn options_that_do_not_fit_are_refused() {
    let dir = directory();
    let path = dir.path().join("heap");
    refused(live().tracker(untorn::TrackerKind::Explicit).open(&path), &["invalid"]);
    refused(HeapOptions::new().create(true).cut_every(Duration::from_millis(5)).open(&path), &["invalid"]);
    refused(live().cut_every(Duration::ZERO).open(&path), &["invalid"]);
    refused(live().cut_within(Duration::from_secs(1)).open(&path), &["invalid"]);
    refused(live().cut_every(Duration::from_secs(1)).cut_within(Duration::ZERO).open(&path), &["invalid"]);
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0, "nothing was created");
}

/// Cuts in the background are visible without the memory.
#[test]
fn cuts_are_made_in_the_background() {
    let dir = directory();
    let path = dir.path().join("heap");
    let heap = live().cut_every(Duration::from_millis(5)).open(&path).unwrap();
    let before = heap.file().store().status().commits;
    {
        let _held = heap.hold_cuts();
        number(&heap).store(9, Relaxed);
    }
    eventually(LIMIT, "a cut", || heap.file().store().status().commits > before);
    let clone = heap.clone();
    number(&heap).store(10, Relaxed);
    let at = std::ptr::from_ref(number(&heap)).addr() - heap.memory().0.addr().get();
    let reader = Reader::open(&path).unwrap();
    eventually(LIMIT, "a cut with the last store", || {
        reader.read("heap").is_ok_and(|bytes| bytes[at..].starts_with(&10u64.to_ne_bytes()))
    });
    let idle = heap.file().store().status().commits;
    std::thread::sleep(Duration::from_millis(50));
    let now = heap.file().store().status().commits;
    assert!(now <= idle + 1, "without stores there are no cuts: {idle}, {now}");
    let memory = heap.live().unwrap().memory;
    drop((heap, clone));
    fs::remove_file(memory).unwrap();
    let heap = live().open(&path).unwrap();
    last_cut(&heap);
    assert_eq!(number(&heap).load(Relaxed), 10);
    heap.close().unwrap();
}

/// Changes are committed long before the interval ends, because a later cut would take too long.
#[test]
fn cuts_are_made_in_time() {
    const MANY: usize = 64 << 20;
    let dir = directory();
    let path = dir.path().join("heap");
    let heap = live().cut_every(Duration::MAX).cut_within(Duration::from_millis(100)).open(&path).unwrap();
    let commits = || heap.file().store().status().commits;
    let block = heap.allocate(Layout::from_size_align(MANY, 4096).unwrap()).unwrap();
    for byte in 1..4 {
        let before = commits();
        // SAFETY: an allocation of this many bytes.
        unsafe { block.as_ptr().write_bytes(byte, MANY) };
        eventually(LIMIT, "a cut", || commits() > before);
    }
    heap.close().unwrap();
}

/// Runs a child in a namespace. `unshare` needs user namespaces, which some machines forbid.
fn in_a_namespace(script: &str, mode: &str, place: &Path) -> bool {
    let inner = child(mode, place);
    let mut command = Command::new("unshare");
    command.args(["--map-root-user", "--mount", "sh", "-c", script, "sh"]);
    command.arg(inner.get_program()).args(inner.get_args()).env(MODE, mode).env(PLACE, place);
    let output = command.stdin(Stdio::null()).output().expect("unshare");
    let err = String::from_utf8_lossy(&output.stderr).into_owned();
    if output.status.code() == Some(99) || err.starts_with("unshare: ") {
        skipped("needs the right to make a mount namespace");
        return false;
    }
    assert!(output.status.success(), "{}{err}", String::from_utf8_lossy(&output.stdout));
    true
}

#[test]
fn after_a_reboot_it_is_at_its_last_cut() {
    let dir = directory();
    let path = dir.path().join("heap");
    abandoned(&path);
    fs::write(dir.path().join("boot"), "01234567-89ab-4cde-8f01-23456789abcd\n").unwrap();
    let script =
        format!("mount --bind {}/boot /proc/sys/kernel/random/boot_id || exit 99; exec \"$@\"", dir.path().display());
    if !in_a_namespace(&script, "reboot", &path) {
        drop(live().open(&path).unwrap().close());
    }
    assert!(!memory_of(&path).exists());
}

#[test]
fn a_full_tmpfs_loses_nothing() {
    let dir = directory();
    fs::create_dir(dir.path().join("shm")).unwrap();
    let script = format!("mount -t tmpfs -o size=14m none {}/shm || exit 99; exec \"$@\"", dir.path().display());
    in_a_namespace(&script, "full", dir.path());
}

/// In a namespace with a small tmpfs.
fn full(dir: &Path) {
    // SAFETY: this process has one thread that reads the environment.
    unsafe { std::env::set_var("UNTORN_LIVE_DIR", dir.join("shm")) };
    let path = dir.join("heap");
    let heap = live().open(&path).unwrap();
    number(&heap).store(1, Relaxed);
    let block = Layout::from_size_align(1 << 20, 8).unwrap();
    let mut blocks = 0;
    let e = loop {
        match heap.allocate(block) {
            // SAFETY: this many bytes were allocated just now.
            Ok(block) => unsafe { block.as_ptr().write_bytes(1, 1 << 20) },
            Err(e) => break e,
        }
        blocks += 1;
        assert!(blocks < 20);
    };
    let what = e.to_string();
    assert!(matches!(e, Error::NoSpace { .. }) && what.contains("shm") && what.contains("UNTORN_LIVE_DIR"), "{what}");
    assert!(blocks > 5, "{blocks}");
    number(&heap).store(2, Relaxed);
    heap.commit().unwrap();
    assert!(heap.check(&|_, _| {}).unwrap().problems.is_empty());
    drop(heap);
    // There is no room at all for a second heap.
    let e = refused(live().open(dir.join("other")), &["no-space"]).to_string();
    assert!(e.contains("shm"), "{e}");
    let heap = live().open(&path).unwrap();
    assert_eq!(start_of(&heap), LiveStart::WentOn);
    assert_eq!(number(&heap).load(Relaxed), 2);
    heap.close().unwrap();
    assert_eq!(fs::read_dir(dir.join("shm")).unwrap().count(), 0);
    drop(live().open(dir.join("other")).unwrap().close());
}

fn as_nobody(mode: &str, place: &Path) -> Command {
    let mut command = child(mode, place);
    command.uid(NOBODY).gid(NOBODY);
    command
}

/// A heap and its memory belong to their user; another user gets an error, and removes nothing.
#[test]
fn the_memory_is_its_users() {
    if !rustix::process::geteuid().is_root() {
        return skipped("needs root, to act as another user");
    }
    let dir = directory();
    fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o777)).unwrap();
    let path = dir.path().join("heap");
    let mut child = as_nobody("hold", &path).spawn().unwrap();
    wait_for(&mut child, "ready");
    kill(child);
    let memory = memory_of(&path);
    assert!(memory.starts_with(memory_top().join(format!("untorn-{NOBODY}"))) && memory.exists());
    refused(live().open(&path), &["untrusted"]);
    refused(Heap::open(&path), &["untrusted"]);
    refused(offline::eject(&path, &|_, _| {}), &["untrusted"]);
    assert!(memory.exists());
    assert!(as_nobody("goes on", &path).status().unwrap().success());
    assert!(!memory.exists());
    // Another user has made the directory first.
    let shm = dir.path().join("shm");
    fs::create_dir_all(shm.join(format!("untorn-{NOBODY}"))).unwrap();
    let path = dir.path().join("other");
    assert!(as_nobody("no place", &path).env("UNTORN_LIVE_DIR", &shm).status().unwrap().success());
}

/// The example, killed repeatedly, as an ordinary user: everything that was put in is in it, in order.
#[test]
fn a_lock_free_queue_loses_nothing() {
    let seed = seed();
    let rng = &mut Rng::with_seed(seed);
    let dir = directory();
    fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o777)).unwrap();
    // A place from which an ordinary user can run it.
    let program = dir.path().join("live_queue");
    // Copied by another process: a child of another test could inherit a descriptor that is open for writing, and then
    // the program could not be executed.
    let installed = Command::new("install")
        .args(["-m", "755"])
        .arg(untorn_testkit::example("untorn", "live_queue"))
        .arg(&program)
        .status();
    assert!(installed.unwrap().success());
    let path = dir.path().join("heap");
    let mut acknowledged = [0u64; 8];
    let rounds = kills(60);
    for round in 0..rounds {
        let mut command = Command::new(&program);
        command.arg(&path).arg(rng.usize(2..=4).to_string()).stdin(Stdio::piped()).stdout(Stdio::piped());
        if rng.bool() {
            command.arg("3");
        }
        if rustix::process::geteuid().is_root() {
            command.uid(NOBODY).gid(NOBODY);
        }
        let mut child = command.spawn().expect("the example");
        let mut out = BufReader::new(child.stdout.take().expect("a pipe"));
        let mut line = String::new();
        loop {
            line.clear();
            assert_ne!(out.read_line(&mut line).unwrap(), 0, "seed {seed}, round {round}: it ended by itself");
            let words: Vec<&str> = line.split_whitespace().collect();
            match words[..] {
                ["begun", "new"] => assert_eq!(round, 0, "seed {seed}"),
                ["begun", "went-on"] => assert_ne!(round, 0, "seed {seed}"),
                ["has", thread, last] => {
                    let (thread, last): (usize, u64) = (thread.parse().unwrap(), last.parse().unwrap());
                    assert!(last >= acknowledged[thread], "seed {seed}, round {round}: {line}{acknowledged:?}");
                }
                ["ready"] => break,
                _ => panic!("seed {seed}, round {round}: {line}"),
            }
        }
        let pause = Duration::from_micros(rng.u64(..20_000));
        for (thread, done) in killed_after_pause(child, out, pause) {
            acknowledged[thread] = done;
        }
    }
    println!("seed {seed}: {rounds} kills, put {acknowledged:?}");
    assert!(acknowledged.iter().sum::<u64>() >= rounds.max(101));
    let inspected = offline::inspect(&path).unwrap();
    assert_eq!(inspected.live_memory.len(), 1);
    let mut eject = match rustix::process::geteuid().is_root() {
        true => as_nobody("eject", &path),
        false => self::child("eject", &path),
    };
    assert!(eject.status().unwrap().success());
    assert!(!memory_of(&path).exists());
}

/// Addresses and sizes of allocations, by thread and place.
#[derive(Storable)]
#[repr(C)]
struct Places {
    address: [[AtomicU64; PLACES]; CHURNERS],
    bytes: [[AtomicU64; PLACES]; CHURNERS],
}

const CHURNERS: usize = 3;
const PLACES: usize = 40;

/// A size for each of the ways in which the allocator allocates.
fn size(rng: &mut Rng) -> usize {
    match rng.u32(..100) {
        0 => rng.usize(4 << 20..9 << 20),
        1..40 => rng.usize(33 << 10..3 << 20),
        _ => rng.usize(1..33 << 10),
    }
}

/// Like [`live`], with room for all allocations.
fn churned() -> HeapOptions {
    live().address_space(2 << 30)
}

/// Allocates and frees until it is killed.
fn churn(place: &Path) {
    let heap = churned().open(place).unwrap();
    println!("\n{}", if start_of(&heap) == LiveStart::WentOn { "went on" } else { "began" });
    let zeros = || [const { [const { AtomicU64::new(0) }; PLACES] }; CHURNERS];
    let places = heap.root_or("places", |_| Places { address: zeros(), bytes: zeros() }).unwrap();
    // SAFETY: a root of this type, of atomics.
    let places = unsafe { places.as_ref() };
    let is_first = &Once::new();
    std::thread::scope(|scope| {
        for thread in 0..CHURNERS {
            let heap = &heap;
            scope.spawn(move || {
                let rng = &mut Rng::new();
                loop {
                    let n = rng.usize(..PLACES);
                    let (address, bytes) = (&places.address[thread][n], &places.bytes[thread][n]);
                    match NonNull::new(with_exposed_provenance_mut::<u8>(address.swap(0, Release) as usize)) {
                        // SAFETY: nobody else uses the block.
                        Some(old) => unsafe { heap.free(old) }.unwrap(),
                        None => {
                            let size = size(rng);
                            let block = heap.allocate(Layout::from_size_align(size, 16).unwrap()).unwrap();
                            // SAFETY: this many bytes were allocated just now.
                            unsafe { block.as_ptr().write(n as u8 + 1) };
                            bytes.store(size as u64, Release);
                            address.store(block.as_ptr().expose_provenance() as u64, Release);
                            is_first.call_once(|| println!("ready"));
                        }
                    }
                }
            });
        }
    });
}

/// The allocator, killed at any moment: no blocks overlap, and none is lost except for unfinished calls.
#[test]
fn an_allocator_that_is_killed_anywhere_is_whole() {
    let seed = seed();
    let rng = &mut Rng::with_seed(seed);
    let dir = directory();
    let path = dir.path().join("heap");
    let (rounds, mut blocks) = (kills(30), 0);
    for round in 0..rounds {
        let mut child = child("churn", &path).spawn().unwrap();
        wait_for(&mut child, "ready");
        std::thread::sleep(Duration::from_micros(rng.u64(..8000)));
        kill(child);
        let heap = churned().open(&path).unwrap();
        assert_eq!(start_of(&heap), LiveStart::WentOn, "seed {seed}, round {round}");
        let report = heap.check(&|_, _| {}).unwrap();
        assert!(report.problems.is_empty(), "seed {seed}, round {round}: {:?}", report.problems);
        let leaked = report.leaks.as_ref().unwrap().count;
        assert!(leaked <= CHURNERS as u64 + 1, "seed {seed}, round {round}: {leaked} leaks");
        // SAFETY: nobody has a pointer to the leaked blocks.
        unsafe { heap.collect(&|_, _| {}) }.unwrap();
        // SAFETY: a root of this type, of atomics.
        let places = unsafe { heap.root::<Places>("places").unwrap().expect("a root").as_ref() };
        for (addresses, sizes) in places.address.iter().zip(&places.bytes) {
            for (n, (address, bytes)) in addresses.iter().zip(sizes).enumerate() {
                let address = with_exposed_provenance_mut::<u8>(address.load(Acquire) as usize);
                let Some(block) = NonNull::new(address) else { continue };
                assert!(heap.size_of(block).unwrap() >= bytes.load(Relaxed) as usize, "seed {seed}");
                // SAFETY: an allocation of the heap.
                assert_eq!(unsafe { block.read() }, n as u8 + 1, "seed {seed}, round {round}");
                blocks += 1;
            }
        }
        match rng.u32(..8) {
            0 => heap.close().unwrap(),
            1 => heap.commit().unwrap(),
            _ => drop(heap),
        }
        if !memory_of(&path).exists() {
            drop(churned().open(&path).unwrap());
        }
    }
    println!("seed {seed}: {rounds} kills, {blocks} blocks found");
    assert!(blocks > 0);
    Heap::open(&path).unwrap().close().unwrap();
    assert!(!memory_of(&path).exists());
}

/// A thread that closes a heap while it holds the heap's guard gets an error, and does not wait.
/// A guard, and a section, that a forked child drops are the parent's.
#[test]
fn a_forked_child_drops_guards_of_its_parent() {
    let dir = directory();
    let heap = live().open(dir.path().join("heap")).unwrap();
    let guard = heap.mutate();
    number(&heap).store(7, Relaxed);
    let section = heap.section().unwrap();
    // SAFETY: the child drops what the test is about, then leaves by `_exit`.
    let pid = unsafe { libc::fork() };
    assert!(pid >= 0, "fork");
    if pid == 0 {
        // SAFETY: async-signal-safe; ends a child that hangs on an inherited lock.
        unsafe { libc::alarm(20) };
        drop((section, guard));
        drop(heap.mutate());
        let is_refused = matches!(heap.section(), Err(untorn::Error::Forked));
        // SAFETY: ends this process at once.
        unsafe { libc::_exit(i32::from(!is_refused)) };
    }
    let mut status = 0;
    // SAFETY: waits for the child that was just made; `status` is ours.
    assert_eq!(unsafe { libc::waitpid(pid, &raw mut status, 0) }, pid);
    assert_eq!(status, 0, "the child's status");
    drop((section, guard));
    heap.commit().unwrap();
    heap.close().unwrap();
}

#[test]
fn a_heap_is_not_closed_under_a_guard() {
    let dir = directory();
    let path = dir.path().join("heap");
    let heap = live().cut_every(Duration::from_millis(1)).open(&path).unwrap();
    number(&heap).store(1, Relaxed);
    within(LIMIT, "closing", move || {
        std::mem::forget(heap.hold_cuts());
        number(&heap).store(2, Relaxed);
        // A cut waits for this thread now.
        std::thread::sleep(Duration::from_millis(20));
        refused(heap.close(), &["invalid"]);
    });
    eventually(LIMIT, "the heap is free", || live().open(&path).is_ok());
    let heap = live().open(&path).unwrap();
    assert_eq!(number(&heap).load(Relaxed), 2);
    heap.close().unwrap();
}

/// Makes every kind of change of the allocator and the table of roots, between two stops.
fn steps(place: &Path) {
    let heap = live().open(place).unwrap();
    let large = Layout::from_size_align(2 << 20, 8).unwrap();
    let first = heap.allocate(Layout::from_size_align(100, 8).unwrap()).unwrap();
    heap.set_root("block", Some(first)).unwrap();
    traced();
    let block = heap.allocate(large).unwrap();
    // A size that no other block has, so that a chunk gets a new use.
    let small = heap.allocate(Layout::from_size_align(8000, 8).unwrap()).unwrap();
    heap.set_root("block", Some(block)).unwrap();
    heap.set_root("block", Some(first)).unwrap();
    // SAFETY: nobody uses them.
    unsafe {
        heap.free(block).unwrap();
        heap.free(small).unwrap();
        libc::raise(libc::SIGSTOP);
    }
}

/// Runs transfers of a bank, some of which reallocate its history, between two stops.
fn section_steps(place: &Path) {
    let heap = live().open(place).unwrap();
    let (bank, rng) = (bank_in(&heap), &mut Rng::with_seed(1));
    (0..3).for_each(|_| _ = transfer(&heap, bank, 0, rng));
    traced();
    (0..3).for_each(|_| _ = transfer(&heap, bank, 1, rng));
    stop();
}

/// The allocator, killed after a number of instructions; some numbers are chosen. The allocator and the roots are
/// consistent.
#[test]
fn a_kill_at_any_instruction_leaves_the_allocator_whole() {
    let seed = seed();
    let rng = &mut Rng::with_seed(seed);
    let dir = directory();
    let path = dir.path().join("heap");
    let Some(all) = killed_after(&mut child("steps", &path), u64::MAX) else {
        return skipped("cannot trace a child here");
    };
    live().open(&path).unwrap().close().unwrap();
    let rounds = kills(20);
    for round in 0..rounds {
        // One instruction in each part of the run.
        let at = (all * round + rng.u64(..all)) / rounds;
        let what = format!("seed {seed}, killed after {at} of {all} instructions");
        killed_after(&mut child("steps", &path), at);
        let heap = live().open(&path).unwrap();
        assert_eq!(start_of(&heap), LiveStart::WentOn, "{what}");
        let report = heap.check(&|_, _| {}).unwrap();
        assert!(report.problems.is_empty(), "{what}: {:?}", report.problems);
        let root = heap.root::<u8>("block").unwrap().expect("a root");
        assert!([112, 2 << 20].contains(&heap.size_of(root).unwrap()), "{what}");
        heap.set_root::<u8>("block", None).unwrap();
        // SAFETY: nobody has a pointer to anything in it.
        unsafe { heap.collect(&|_, _| {}) }.unwrap();
        assert_eq!(heap.stats().unwrap().allocations, 0, "{what}");
        heap.close().unwrap();
    }
    println!("seed {seed}: {rounds} kills within {all} instructions");
}

fn check_bank(heap: &Heap, what: &str) -> [u64; THREADS] {
    let Some(bank) = heap.root::<Bank<'_>>("bank").unwrap() else { return [0; THREADS] };
    // SAFETY: nobody else uses it.
    let bank = unsafe { bank.as_ref() };
    assert_eq!(bank.problem(), None, "{what}");
    if bank.history.capacity() > 0 {
        assert!(heap.size_of(NonNull::from(&bank.history[..]).cast()).unwrap() >= bank.history.len() * 16, "{what}");
    }
    bank.done
}

/// Sections, killed at any moment: each has happened or not, and acknowledged ones have.
#[test]
fn sections_are_all_or_nothing() {
    let seed = seed();
    let rng = &mut Rng::with_seed(seed);
    let dir = directory();
    let path = dir.path().join("heap");
    let mut acknowledged = [0; THREADS];
    let rounds = kills(40);
    for round in 0..rounds {
        let mut child = child("bank", &path).spawn().unwrap();
        let out = output_after(&mut child, "ready", &format!("seed {seed}, round {round}"));
        let pause = Duration::from_micros(rng.u64(..6000));
        for (thread, done) in killed_after_pause(child, out, pause) {
            acknowledged[thread] = done;
        }
        let what = format!("seed {seed}, round {round}");
        let heap = live().open(&path).unwrap();
        assert_eq!(start_of(&heap), LiveStart::WentOn, "{what}");
        let done = check_bank(&heap, &what);
        assert!(done.iter().zip(&acknowledged).all(|(done, told)| done >= told), "{what}: {done:?}, {acknowledged:?}");
        let report = heap.check(&|_, _| {}).unwrap();
        assert!(report.problems.is_empty(), "{what}: {:?}", report.problems);
        let leaked = report.leaks.as_ref().unwrap().count;
        assert!(leaked <= 3, "{what}: {leaked} leaks");
        // SAFETY: nobody has a pointer to the leaked blocks.
        unsafe { heap.collect(&|_, _| {}) }.unwrap();
        drop(heap);
    }
    println!("seed {seed}: {rounds} kills, {acknowledged:?} transfers");
    let heap = Heap::open(&path).unwrap();
    check_bank(&heap, "at the end");
    refused(heap.section().map(drop), &["invalid"]);
}

/// Calls that a section refuses, and the blocks that it frees.
#[test]
fn a_section_says_what_it_cannot_do() {
    let dir = directory();
    let heap = live().open(dir.path().join("heap")).unwrap();
    let large = heap.allocate(Layout::from_size_align(2 << 20, 8).unwrap()).unwrap();
    // SAFETY: an allocation of this many bytes, which is written just now.
    let bytes = unsafe {
        large.as_ptr().write_bytes(1, 2 << 20);
        std::slice::from_raw_parts_mut(large.as_ptr(), 2 << 20)
    };
    {
        let section = heap.section().unwrap();
        refused(section.modify(&mut 7).map(drop), &["invalid"]);
        refused(section.modify(&mut bytes[..]).map(drop), &["no-space"]);
        section.modify(&mut bytes[..500_000]).unwrap().fill(2);
        refused(heap.commit(), &["invalid"]);
        // SAFETY: nobody uses it.
        unsafe { heap.free(large) }.unwrap();
        // SAFETY: this call is refused.
        refused(unsafe { heap.free(large) }, &["invalid"]);
        assert!(heap.size_of(large).is_ok());
    }
    refused(heap.size_of(large), &["invalid"]);
    heap.close().unwrap();
}

/// Sections, killed after a number of instructions; some numbers are chosen.
#[test]
fn a_kill_at_any_instruction_leaves_sections_whole() {
    let seed = seed();
    let rng = &mut Rng::with_seed(seed);
    let dir = directory();
    let path = dir.path().join("heap");
    let Some(all) = killed_after(&mut child("section steps", &path), u64::MAX) else {
        return skipped("cannot trace a child here");
    };
    fs::remove_file(memory_of(&path)).unwrap();
    fs::remove_file(&path).unwrap();
    let rounds = kills(20);
    let mut ended = 0;
    for round in 0..rounds {
        // A new heap each time, so that every child runs the same instructions.
        let path = dir.path().join(format!("heap{round}"));
        let at = (all * round + rng.u64(..all)) / rounds;
        let what = format!("seed {seed}, killed after {at} of {all} instructions");
        killed_after(&mut child("section steps", &path), at);
        let heap = live().open(&path).unwrap();
        assert_eq!(start_of(&heap), LiveStart::WentOn, "{what}");
        let done = check_bank(&heap, &what);
        assert!(done[0] == 3 && (ended..=3).contains(&done[1]), "{what}: {done:?} after {ended}");
        ended = done[1];
        assert!(heap.check(&|_, _| {}).unwrap().problems.is_empty(), "{what}");
        heap.close().unwrap();
        fs::remove_file(&path).unwrap();
    }
    println!("seed {seed}: {rounds} kills within {all} instructions");
    assert!(ended > 0);
}
