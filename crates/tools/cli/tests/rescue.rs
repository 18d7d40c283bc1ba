//! `untorn rescue`: commits the memory of live heaps to their files before the machine goes down.

mod common;

use common::{json, root, untorn};
use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;
use untorn::Store;
use untorn::heap::{Heap, HeapOptions};

const MODE: &str = "UNTORN_TEST_RESCUE";
const PLACE: &str = "UNTORN_TEST_PLACE";

fn number(heap: &Heap) -> &AtomicU64 {
    let root = heap.root_or("number", |_| AtomicU64::new(0)).unwrap();
    // SAFETY: a root of this type, which is only used as an atomic.
    unsafe { root.as_ref() }
}

/// Runs in a second process, until it is killed: a heap with 1 at its last cut and 2 in memory.
#[test]
fn rescue_child() {
    let Ok(mode) = std::env::var(MODE) else { return };
    let place = PathBuf::from(std::env::var_os(PLACE).expect("a place"));
    if mode == "show" {
        let heap = HeapOptions::new().create(false).open(&place).unwrap();
        println!("\nnumber {}\nready", number(&heap).load(Relaxed));
        return;
    }
    let mut options = HeapOptions::new().create(true).live(true).address_space(64 << 20);
    if mode == "cuts" {
        options = options.cut_every(Duration::from_secs(3600));
    }
    let store = (mode == "store").then(|| Store::open_or_create(place.parent().unwrap()).unwrap());
    let heap = match &store {
        Some(store) => options.open_in(store, place.file_name().unwrap()),
        None => options.open(&place),
    };
    let heap = heap.unwrap();
    number(&heap).store(1, Relaxed);
    heap.commit().unwrap();
    number(&heap).store(2, Relaxed);
    println!("\nready");
    std::thread::sleep(Duration::from_secs(60));
}

/// The directories of heaps and of their memory.
struct Machine {
    dir: tempfile::TempDir,
}

impl Machine {
    fn new() -> Machine {
        let dir = tempfile::tempdir_in("/var/tmp").unwrap();
        let machine = Machine { dir };
        ["", "memory", "heaps"].iter().for_each(|name| machine.make(name));
        machine
    }

    /// A directory that every user may write.
    fn make(&self, name: &str) {
        let path = self.dir.path().join(name);
        let _ = fs::create_dir(&path);
        fs::set_permissions(path, fs::Permissions::from_mode(0o777)).unwrap();
    }

    /// All live memory that is left.
    fn memories(&self) -> Vec<PathBuf> {
        let users = fs::read_dir(self.memory()).unwrap().flatten();
        users.flat_map(|user| fs::read_dir(user.path()).unwrap().flatten()).map(|one| one.path()).collect()
    }

    fn memory(&self) -> PathBuf {
        self.dir.path().join("memory")
    }

    fn heap(&self, name: &str) -> PathBuf {
        self.dir.path().join("heaps").join(name)
    }

    fn start(&self, mode: &str, heap: &Path, user: Option<u32>) -> Child {
        let mut command = untorn_testkit::again!("rescue_child");
        command.env("UNTORN_LIVE_DIR", self.memory());
        command.env(MODE, mode).env(PLACE, heap).stdin(Stdio::null()).stdout(Stdio::piped());
        if let Some(user) = user {
            command.uid(user).gid(user);
        }
        let mut child = command.spawn().unwrap();
        let out = BufReader::new(child.stdout.as_mut().unwrap());
        assert!(out.lines().map_while(Result::ok).any(|line| line == "ready"), "the child ended before it was ready");
        child
    }

    fn rescue(&self, arguments: &[&str]) -> common::Run {
        let mut command = untorn();
        command.arg("rescue").args(arguments).env("UNTORN_LIVE_DIR", self.memory()).stdin(Stdio::null());
        command.output().unwrap().into()
    }

    /// The number in a heap after a power cut.
    fn number_after_a_power_cut(&self, heap: &Path) -> u64 {
        let _ = fs::remove_dir_all(self.memory());
        let heap = HeapOptions::new().create(false).open(heap).unwrap();
        number(&heap).load(Relaxed)
    }
}

fn kill(mut child: Child) {
    child.kill().unwrap();
    child.wait().unwrap();
}

#[test]
fn heaps_of_programs_that_are_gone_are_committed() {
    let machine = Machine::new();
    assert_eq!(machine.rescue(&[]).ok(), "no live heap has anything in memory\n");
    let (alone, in_store, moved) = (machine.heap("alone"), machine.heap("store/heap"), machine.heap("moved"));
    kill(machine.start("alone", &alone, None));
    fs::create_dir(machine.heap("store")).unwrap();
    kill(machine.start("store", &in_store, None));
    kill(machine.start("alone", &moved, None));
    fs::rename(&moved, machine.heap("elsewhere")).unwrap();
    let run = machine.rescue(&[]);
    for heap in [&alone, &in_store] {
        assert!(run.out.contains(&format!("{}: committed (", heap.display())), "{}", run.out);
    }
    // The heap needs its journal, which was not moved with it.
    assert!(run.out.contains("NOT committed: ") && run.code == Some(1), "{}", run.out);
    fs::rename(machine.heap("elsewhere"), &moved).unwrap();
    assert!(machine.rescue(&[]).ok().contains(&format!("{}: committed (", moved.display())));
    // The memory stays, and a second rescue loses nothing.
    assert!(machine.memory().read_dir().unwrap().count() > 0);
    let again = json(&machine.rescue(&["--json"]).out);
    assert_eq!(again.as_array().unwrap().len(), 3, "{again}");
    assert_eq!(machine.number_after_a_power_cut(&alone), 2);
    let store = Store::open_or_create(machine.heap("store")).unwrap();
    assert_eq!(number(&HeapOptions::new().create(true).open_in(&store, "heap").unwrap()).load(Relaxed), 2);
}

/// The memory of heaps whose files are not found is removed on request, but not if the kernel still has the file.
#[test]
fn memory_of_removed_heaps_is_removed() {
    const USER: u32 = 65534;
    let machine = Machine::new();
    let users: &[Option<u32>] = if root() { &[None, Some(USER)] } else { &[None] };
    for user in users {
        machine.make("heaps/theirs");
        let dir = machine.heap("theirs");
        let (moved, removed, away) = (dir.join("moved"), dir.join("removed"), machine.heap("away"));
        kill(machine.start("alone", &moved, *user));
        kill(machine.start("alone", &removed, *user));
        fs::rename(&dir, &away).unwrap();
        fs::remove_file(away.join("removed")).unwrap();
        let rescue = |arguments: &[&str]| {
            let mut command = untorn();
            command.arg("rescue").args(arguments).env("UNTORN_LIVE_DIR", machine.memory()).stdin(Stdio::null());
            user.map(|user| command.uid(user).gid(user));
            let run = common::Run::from(command.output().unwrap());
            println!("as {user:?} {arguments:?}: {}", run.out);
            run
        };
        let told = rescue(&[]);
        assert_eq!(told.code, Some(1), "{}{}", told.out, told.err);
        assert!(told.out.contains("/theirs/moved: NOT committed: the heap's file "), "{}", told.out);
        assert!(told.out.contains("/theirs/removed: NOT committed: the heap's file no longer exists"), "{}", told.out);
        assert_eq!(machine.memories().len(), 2, "nothing is removed that nobody asked for");
        if told.out.contains("/theirs/moved: NOT committed: the heap's file was moved. ") {
            let said = rescue(&["--remove-lost"]);
            assert_eq!(said.code, Some(1), "{}", said.out);
            assert_eq!(machine.memories().len(), 1, "that of the heap that is somewhere else");
        }
        // After the heap was moved back, it is found.
        fs::rename(&away, &dir).unwrap();
        let said = rescue(&["--remove-lost"]);
        assert!(
            said.code == Some(0) && said.out.contains(&format!("{}: committed (", moved.display())),
            "{}",
            said.out
        );
        assert_eq!(machine.memories().len(), 1, "that of the heap that is there");
        fs::remove_dir_all(machine.memory()).unwrap();
        machine.make("memory");
        fs::remove_dir_all(&dir).unwrap();
    }
}

/// Memory has no data if its program was killed while making it. It is removed on request, unless a program is still
/// making it.
#[test]
fn memory_that_was_not_finished_is_removed() {
    let machine = Machine::new();
    let heap = machine.heap("heap");
    kill(machine.start("alone", &heap, None));
    let memory = machine.memories().pop().unwrap();
    let file = fs::File::options().read(true).write(true).open(&memory).unwrap();
    let (version_at, mut version) = (8, [0; 8]);
    file.read_exact_at(&mut version, version_at).unwrap();
    file.write_all_at(&(u64::from_ne_bytes(version) - 1).to_ne_bytes(), version_at).unwrap();
    for arguments in [&[][..], &["--remove-lost"]] {
        let said = machine.rescue(arguments).ok();
        assert!(said.contains("another version of Untorn"), "{said}");
    }
    file.write_all_at(&version, version_at).unwrap();
    let before = machine.rescue(&[]).ok();
    assert!(before.contains("committed ("), "{before}");
    let not_ready = || file.write_all_at(&[0; 8], 64).unwrap();
    let no_head = || file.write_all_at(&[0; 4096], 0).unwrap();
    let empty = || file.set_len(0).unwrap();
    let steps: [&dyn Fn(); 3] = [&not_ready, &no_head, &empty];
    for (n, step) in steps.into_iter().enumerate() {
        step();
        if n == 1 {
            fs::remove_file(&heap).unwrap();
        }
        let said = machine.rescue(&[]).ok();
        assert!(said.contains("no data: a program was killed while it made this memory"), "{n}: {said}");
        file.lock_shared().unwrap();
        let said = machine.rescue(&["--remove-lost"]).ok();
        assert!(said.contains("a program is making this memory now"), "{n}: {said}");
        file.unlock().unwrap();
        assert_eq!(machine.memories(), [memory.as_path()], "{n}: nothing is removed that nobody asked for");
    }
    let said = machine.rescue(&["--remove-lost"]).ok();
    assert!(said.contains("had no data, and was removed"), "{said}");
    assert_eq!(fs::read_dir(machine.memory()).unwrap().count(), 0, "nothing is left, not even a directory");
}

/// A new file with the inode number of a removed heap is not taken for the heap.
#[test]
fn a_file_with_the_number_of_a_removed_one_is_another() {
    let machine = Machine::new();
    let heap = machine.heap("heap");
    kill(machine.start("alone", &heap, None));
    let number_of = |path: &Path| fs::metadata(path).unwrap().ino();
    let inode = number_of(&heap);
    fs::remove_file(&heap).unwrap();
    let same = (0..200).map(|n| machine.heap(&format!("file{n}"))).find(|path| {
        fs::write(path, "plain").unwrap();
        number_of(path) == inode
    });
    let Some(same) = same else { return println!("skipped: this file system gives no number again so soon") };
    fs::rename(same, &heap).unwrap();
    for arguments in [&[][..], &["--remove-lost"]] {
        let said = machine.rescue(arguments).out;
        assert!(said.contains("/heap: ") && said.contains("the heap's file no longer exists"), "{said}");
    }
    assert_eq!(fs::read_dir(machine.memory()).unwrap().count(), 0, "nothing is left, not even a directory");
    assert_eq!(fs::read(&heap).unwrap(), b"plain");
}

/// Links that other users make beside the users' directories are not followed, and locks on memory by others do not
/// hold up a rescue.
#[test]
fn others_do_not_disturb_a_rescue() {
    let machine = Machine::new();
    let heap = machine.heap("heap");
    kill(machine.start("alone", &heap, None));
    let memory = machine.memories().pop().unwrap();
    std::os::unix::fs::symlink(memory.parent().unwrap(), machine.memory().join("untorn-evil")).unwrap();
    let file = fs::File::open(&memory).unwrap();
    file.lock().unwrap();
    let said = machine.rescue(&[]).ok();
    assert_eq!(said.lines().count(), 1, "{said}");
    assert!(said.contains(&format!("{}: committed (", heap.display())), "{said}");
}

/// A heap that was renamed within its store is found.
#[test]
fn a_heap_that_was_renamed_is_found_in_its_store() {
    let machine = Machine::new();
    fs::create_dir(machine.heap("store")).unwrap();
    let (before, after) = (machine.heap("store/before"), machine.heap("store/after"));
    kill(machine.start("store", &before, None));
    let store = Store::open_or_create(machine.heap("store")).unwrap();
    store.rename("before", "after").unwrap();
    store.close().unwrap();
    let said = machine.rescue(&[]).ok();
    assert!(said.contains(&format!("{}: committed (", after.display())), "{said}");
    let _ = fs::remove_dir_all(machine.memory());
    let store = Store::open_or_create(machine.heap("store")).unwrap();
    assert_eq!(number(&HeapOptions::new().create(true).open_in(&store, "after").unwrap()).load(Relaxed), 2);
}

/// The memory of a running program stays, even if its heap's file was removed.
#[test]
fn memory_that_a_program_has_is_left_to_it() {
    let machine = Machine::new();
    let heap = machine.heap("heap");
    let running = machine.start("alone", &heap, None);
    fs::remove_file(&heap).unwrap();
    let said = machine.rescue(&["--remove-lost"]);
    assert!(!said.out.contains("its memory was removed"), "{}", said.out);
    assert_eq!(machine.memories().len(), 1);
    kill(running);
    assert!(machine.rescue(&["--remove-lost"]).ok().contains("its memory was removed"));
    assert_eq!(machine.memories().len(), 0);
}

#[test]
fn programs_that_run_are_asked() {
    let machine = Machine::new();
    let (cuts, silent) = (machine.heap("cuts"), machine.heap("silent"));
    let running = machine.start("cuts", &cuts, None);
    let said = machine.rescue(&[]).ok();
    assert!(said.contains("/cuts: its program has made a cut ("), "{said}");
    let other = machine.start("alone", &silent, None);
    let run = machine.rescue(&["--wait", "1"]);
    assert_eq!(run.code, Some(1), "{}{}", run.out, run.err);
    assert!(run.out.contains("/silent: NOT committed: the program that has it open did not answer"), "{}", run.out);
    kill(running);
    kill(other);
    assert_eq!(machine.number_after_a_power_cut(&cuts), 2);
    assert_eq!(machine.number_after_a_power_cut(&silent), 1);
}

#[test]
fn root_rescues_the_heaps_of_all_users_as_each_of_them() {
    const USER: u32 = 65534;
    if !root() {
        return;
    }
    let machine = Machine::new();
    let (theirs, own) = (machine.heap("theirs"), machine.heap("own"));
    kill(machine.start("alone", &theirs, Some(USER)));
    kill(machine.start("alone", &own, None));
    let said = machine.rescue(&[]).ok();
    assert!(said.contains(&format!("user {USER}: {}: ", theirs.display())), "{said}");
    assert!(said.contains(&format!("{}: committed (", own.display())), "{said}");
    assert_eq!(machine.number_after_a_power_cut(&own), 2);
    // For root, the store belongs to another user.
    let mut show = untorn_testkit::again!("rescue_child");
    show.env(MODE, "show").env(PLACE, &theirs).uid(USER).gid(USER);
    let shown = show.output().unwrap();
    let shown = String::from_utf8_lossy(&shown.stdout).into_owned();
    assert!(shown.contains("\nnumber 2\n"), "{shown}");
}
