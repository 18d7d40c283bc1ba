//! What programs and systems do to mappings: other memory calls, forks, small memory, strange file systems, other
//! programs that change the file. Each with every tracker that works here.

mod common;

use common::*;
use std::ffi::c_void;
use std::fs;
use std::io::{Read, Write};
use std::os::unix::fs::FileExt;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::Command;
use untorn::{Error, File, Map, MapOptions, Store, StoreOptions, Tracker};

const PAGE: usize = 4096;
const CHILD: &str = "UNTORN_TEST_MAP_CHILD";

fn with_trackers(test: impl Fn(Tracker)) {
    for tracker in [Tracker::Scan, Tracker::PageMap] {
        let dir = directory();
        let file = File::create(dir.path().join("probe")).expect("create");
        match file.map_with(&MapOptions::new().tracker(tracker)) {
            Ok(_) => test(tracker),
            Err(Error::Unsupported { detail, .. }) => skipped(&format!("tracker {tracker}: {detail}")),
            Err(e) => panic!("{e}"),
        }
    }
}

/// A store with one mapped file of so many pages, each filled with its number.
fn mapped(dir: &Path, pages: usize, options: &MapOptions) -> (Store, File, Map) {
    let contents: Vec<u8> = (0..pages * PAGE).map(|i| (i / PAGE) as u8).collect();
    fs::write(dir.join("f"), &contents).expect("write");
    let store = StoreOptions::default().background(false).open(dir).expect("open");
    let file = store.file("f").expect("file");
    let map = file.map_with(options).expect("map");
    (store, file, map)
}

/// Stores as a program does.
fn poke(map: &Map, offset: usize, bytes: &[u8]) {
    assert!(offset + bytes.len() <= map.len() as usize);
    // SAFETY: inside the map, and no other thread is here.
    unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), map.as_mut_ptr().add(offset), bytes.len()) }
}

fn peek(map: &Map, offset: usize, len: usize) -> Vec<u8> {
    assert!(offset + len <= map.len() as usize);
    // SAFETY: as above.
    unsafe { std::slice::from_raw_parts(map.as_ptr().add(offset), len).to_vec() }
}

fn at(map: &Map, offset: usize) -> *mut c_void {
    map.as_mut_ptr().wrapping_add(offset).cast()
}

/// Commits, checkpoints, and compares some bytes with the plain file.
fn assert_committed(dir: &Path, store: &Store, map: &Map, offset: usize, bytes: &[u8]) {
    map.msync().expect("msync");
    store.checkpoint().expect("checkpoint");
    assert_eq!(&plain(dir.join("f"))[offset..offset + bytes.len()], bytes);
    assert_eq!(peek(map, offset, bytes.len()), bytes);
}

fn last_os_error() -> std::io::Error {
    std::io::Error::last_os_error()
}

#[test]
fn protection_locks_and_advice_of_the_program() {
    with_trackers(|tracker| {
        let dir = directory();
        let (store, _file, map) = mapped(dir.path(), 16, &MapOptions::new().tracker(tracker).populate(true));
        // SAFETY: calls on whole pages of the map, which stays mapped.
        unsafe {
            poke(&map, PAGE, b"before it was made read-only");
            assert_eq!(libc::mprotect(at(&map, PAGE), PAGE, libc::PROT_READ), 0, "{}", last_os_error());
            assert_committed(dir.path(), &store, &map, PAGE, b"before it was made read-only");
            assert_eq!(libc::mprotect(at(&map, PAGE), PAGE, libc::PROT_READ | libc::PROT_WRITE), 0);
            poke(&map, PAGE, b"after");
            assert_committed(dir.path(), &store, &map, PAGE, b"after");

            if libc::mlock(at(&map, 2 * PAGE), 2 * PAGE) == 0 {
                poke(&map, 2 * PAGE, b"locked");
                assert_committed(dir.path(), &store, &map, 2 * PAGE, b"locked");
                map.quiesce().expect("quiesce");
                assert_eq!(peek(&map, 2 * PAGE, 6), b"locked");
                poke(&map, 2 * PAGE, b"again!");
                assert_committed(dir.path(), &store, &map, 2 * PAGE, b"again!");
            } else {
                skipped(&format!("mlock: {}", last_os_error()));
            }

            // Reclaim: pages leave memory and come back, if there is swap; file pages come back anyway.
            poke(&map, 5 * PAGE, b"cold");
            libc::madvise(at(&map, 0), 16 * PAGE, libc::MADV_COLD);
            libc::madvise(at(&map, 0), 16 * PAGE, libc::MADV_PAGEOUT);
            assert_committed(dir.path(), &store, &map, 5 * PAGE, b"cold");

            // Once the data file has everything, dropped pages show it. Before that it is forbidden: see GUARANTEES.
            map.quiesce().expect("quiesce");
            assert_eq!(libc::madvise(at(&map, 0), 16 * PAGE, libc::MADV_DONTNEED), 0);
            assert_eq!(peek(&map, 5 * PAGE, 4), b"cold");
            poke(&map, 5 * PAGE + 4, b"er");
            assert_committed(dir.path(), &store, &map, 5 * PAGE, b"colder");

            // A page that cannot be read: an error, and nothing lost.
            poke(&map, 6 * PAGE, b"hidden");
            assert_eq!(libc::mprotect(at(&map, 6 * PAGE), PAGE, libc::PROT_NONE), 0);
            refused(map.msync(), &["conflict"]);
            assert_eq!(libc::mprotect(at(&map, 6 * PAGE), PAGE, libc::PROT_READ | libc::PROT_WRITE), 0);
            assert_committed(dir.path(), &store, &map, 6 * PAGE, b"hidden");
        }
    });
}

#[test]
fn huge_pages_are_the_same() {
    with_trackers(|tracker| {
        let dir = directory();
        let pages = 4 << 9;
        let options = MapOptions::new().tracker(tracker).huge_pages(true).populate(true);
        let (store, _file, map) = mapped(dir.path(), pages, &options);
        for page in [0, 511, 512, 1300, pages - 1] {
            poke(&map, page * PAGE + 77, b"huge");
            assert_committed(dir.path(), &store, &map, page * PAGE + 77, b"huge");
        }
        assert_eq!(peek(&map, 600 * PAGE, 3), [88; 3]);
    });
}

#[test]
fn a_fork_leaves_the_parent_whole_and_the_child_out() {
    with_trackers(|tracker| {
        let dir = directory();
        let (store, _file, map) = mapped(dir.path(), 4, &MapOptions::new().tracker(tracker));
        poke(&map, 0, b"before");
        // SAFETY: the child only reads memory, makes calls that allocate little, and ends without unwinding.
        let child = unsafe { libc::fork() };
        if child == 0 {
            let same = peek(&map, 0, 6) == b"before";
            poke(&map, 0, b"child!");
            let refused = matches!(map.msync(), Err(Error::Forked));
            // SAFETY: ends the child at once.
            unsafe { libc::_exit(if same && refused { 0 } else { 1 }) };
        }
        poke(&map, 2 * PAGE, b"after the fork");
        let mut status = 0;
        // SAFETY: the child made above.
        assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
        assert_eq!(status, 0, "the child saw what it should");
        assert_committed(dir.path(), &store, &map, 0, b"before");
        assert_committed(dir.path(), &store, &map, 2 * PAGE, b"after the fork");
    });
}

#[test]
fn system_calls_that_write_into_a_map_are_stores() {
    with_trackers(|tracker| {
        let dir = directory();
        let (store, _file, map) = mapped(dir.path(), 8, &MapOptions::new().tracker(tracker));
        map.msync().expect("msync");
        let source = dir.path().join("source");
        fs::write(&source, [0x5a; 2 * PAGE]).expect("write");
        let source = fs::File::open(source).expect("open");
        // SAFETY: inside the map, and nobody else is here.
        let into =
            |offset: usize, len: usize| unsafe { std::slice::from_raw_parts_mut(map.as_mut_ptr().add(offset), len) };
        source.read_exact_at(into(PAGE + 100, PAGE), 0).expect("read");
        assert_committed(dir.path(), &store, &map, PAGE + 100, &[0x5a; PAGE]);
        let (mut from, mut to) = std::os::unix::net::UnixStream::pair().expect("sockets");
        from.write_all(&[0x77; 5000]).expect("write");
        to.read_exact(into(4 * PAGE - 10, 5000)).expect("read");
        assert_committed(dir.path(), &store, &map, 4 * PAGE - 10, &[0x77; 5000]);
        // Whatever a tracker does not see is said.
        map.mark_dirty(0, map.len()).expect("mark");
        map.msync().expect("msync");
        refused(map.mark_dirty(1, map.len()), &["invalid"]);
    });
}

#[test]
fn a_file_that_can_only_be_read() {
    let dir = directory();
    let path = dir.path().join("f");
    fs::write(&path, [9; 5000]).expect("write");
    set_mode(&path, 0o444);
    let work = |path: &Path| {
        let file = untorn::StoreOptions::default()
            .open_file_with(path, &untorn::FileOptions { read_only: true, ..Default::default() })
            .expect("open");
        let map = file.map().expect("map");
        assert_eq!(peek(&map, 4990, 10), [9; 10]);
        refused(map.store(b"x", 0), &["invalid"]);
        refused(map.msync(), &["invalid"]);
    };
    work(&path);
}

#[test]
fn sparse_and_huge() {
    with_trackers(|tracker| {
        let dir = directory();
        let (store, file, map) = mapped(dir.path(), 1, &MapOptions::new().tracker(tracker));
        drop(map);
        let size = 64u64 << 30;
        file.truncate(size).expect("truncate");
        file.commit().expect("commit");
        store.checkpoint().expect("checkpoint");
        let map = file.map_with(&MapOptions::new().tracker(tracker).dirty_max(64 << 20)).expect("map");
        for offset in [0, 40 << 30, size - 5] {
            poke(&map, offset as usize, b"far");
        }
        map.msync().expect("msync");
        map.quiesce().expect("quiesce");
        let status = store.status().maps[0].clone();
        assert_eq!(status.private_bytes, 0);
        assert_eq!(peek(&map, (size - 5) as usize, 3), b"far");
        assert_eq!(peek(&map, 50 << 30, 3), [0; 3]);
        poke(&map, (size - 1) as usize, b"!");
        map.msync().expect("msync");
        drop(map);
        drop(file);
        store.close().expect("close");
        let plain = fs::File::open(dir.path().join("f")).expect("open");
        let mut end = [0; 5];
        plain.read_exact_at(&mut end, size - 5).expect("read");
        assert_eq!(&end, b"far\0!");
        let blocks = std::os::unix::fs::MetadataExt::blocks(&plain.metadata().expect("stat"));
        assert!(blocks * 512 < 1 << 20, "{blocks} blocks: the file stays sparse");
    });
}

#[test]
fn absurd_requests_are_refused() {
    let dir = directory();
    let (_store, file, map) = mapped(dir.path(), 2, &MapOptions::new());
    let size = 2 * PAGE as u64;
    let of = MapOptions::new;
    refused(file.map_with(&of().offset(size + 1)), &["invalid"]);
    refused(file.map_with(&of().offset(1).len(size)), &["invalid"]);
    refused(file.map_with(&of().offset(u64::MAX).len(2)), &["invalid"]);
    refused(file.map_with(&of().address(0x10_0000_0000)), &["invalid"]);
    refused(file.map_with(&of().address_space(1 << 46)), &["invalid"]);
    refused(map.store(b"x", u64::MAX), &["invalid"]);
    refused(map.load(&mut [0; 2], size - 1), &["invalid"]);
    drop(map);
    refused(file.map_with(&of().address_space(1 << 60)), &["no-memory"]);
    refused(file.map_with(&of().dirty_max(1 << 60)), &["no-memory"]);
    let taken = &raw const dir as usize / PAGE * PAGE;
    let e = refused(file.map_with(&of().address(taken)), &["invalid"]);
    assert!(e.to_string().contains("something else is mapped"), "{e}");
    let map = file.map_with(&of().address_space(1 << 20)).expect("map");
    let e = refused(map.resize((1 << 20) + 1), &["no-memory"]);
    assert!(e.to_string().contains("address_space"), "{e}");
    assert_eq!(map.len(), size, "and nothing has changed");
    map.resize(1 << 20).expect("resize");
    poke(&map, (1 << 20) - 1, b"z");
    map.msync().expect("msync");
}

#[test]
fn other_programs_that_change_the_file() {
    with_trackers(|tracker| {
        // Changed in place, truncated, replaced: a clear error at the next commit, nothing overwritten.
        for how in ["change", "truncate", "replace"] {
            let dir = directory();
            let (store, _file, map) = mapped(dir.path(), 4, &MapOptions::new().tracker(tracker));
            poke(&map, 0, b"mine");
            map.msync().expect("msync");
            store.checkpoint().expect("checkpoint");
            let path = dir.path().join("f");
            let theirs = match how {
                "change" => {
                    let file = fs::OpenOptions::new().write(true).open(&path).expect("open");
                    std::thread::sleep(std::time::Duration::from_millis(10));
                    file.write_all_at(b"theirs", 2 * PAGE as u64).expect("write");
                    plain(&path)
                }
                "truncate" => {
                    fs::OpenOptions::new().write(true).open(&path).expect("open").set_len(100).expect("truncate");
                    plain(&path)
                }
                _ => {
                    fs::write(dir.path().join("new"), b"another file").expect("write");
                    fs::rename(dir.path().join("new"), &path).expect("rename");
                    b"another file".to_vec()
                }
            };
            // The first page is private: it can be stored to whatever happened to the file.
            if how != "truncate" {
                poke(&map, 1, b"X");
            } else {
                map.mark_dirty(0, 1).expect("mark");
            }
            let e = match map.msync() {
                // A replaced file is found when it is about to be written.
                Ok(()) if how == "replace" => refused(store.checkpoint(), &["conflict"]),
                done => refused(done, &["conflict"]),
            };
            println!("{tracker}, {how}: {e}");
            assert_same(&plain(&path), &theirs, how);
        }
    });
}

#[test]
fn a_truncation_behind_our_back_is_an_error_not_a_signal() {
    with_trackers(|tracker| {
        let dir = directory();
        let (_store, _file, map) = mapped(dir.path(), 4, &MapOptions::new().tracker(tracker));
        let path = dir.path().join("f");
        fs::OpenOptions::new().write(true).open(&path).expect("open").set_len(0).expect("truncate");
        refused(map.load(&mut [0; 10], 0), &["conflict"]);
        refused(map.store(b"x", 0), &["conflict"]);
        map.mark_dirty(0, 10).expect("mark");
        refused(map.msync(), &["conflict"]);
    });
}

#[test]
fn overlayfs() {
    with_trackers(|tracker| {
        let dir = directory();
        let sub = |name: &str| {
            let path = dir.path().join(name);
            fs::create_dir(&path).expect("mkdir");
            path
        };
        let (lower, upper, work, merged) = (sub("lower"), sub("upper"), sub("work"), sub("merged"));
        fs::write(lower.join("f"), [3; 3 * PAGE]).expect("write");
        let options =
            format!("lowerdir={},upperdir={},workdir={},userxattr", lower.display(), upper.display(), work.display());
        let Some(mount) = Mount::new(&["-t", "overlay", "overlay", "-o", &options], &merged) else { return };
        let store = match StoreOptions::default().background(false).open(mount.path()) {
            Ok(store) => store,
            Err(e) => return skipped(&format!("overlayfs here: {e}")),
        };
        let file = store.file("f").expect("file");
        let map = file.map_with(&MapOptions::new().tracker(tracker)).expect("map");
        poke(&map, 10, b"copied up");
        map.msync().expect("msync");
        map.quiesce().expect("quiesce");
        assert_eq!(peek(&map, 10, 9), b"copied up", "the file shows through, not its lower self");
        drop((map, file));
        store.close().expect("close");
        assert_eq!(&plain(merged.join("f"))[10..19], b"copied up");
        assert_eq!(plain(lower.join("f")), [3; 3 * PAGE]);
    });
}

/// Runs one of these tests again in a child process, which finds its order in the environment.
fn child(test: &str, order: &str) -> Command {
    let mut command = Command::new(std::env::current_exe().expect("this program"));
    command.args(["--exact", test, "--nocapture", "--test-threads=1"]).env(CHILD, order);
    command
}

/// What a child answered. One that hangs is killed, and has failed.
fn answer(mut command: Command) -> (String, std::process::ExitStatus) {
    let limit = std::time::Duration::from_secs(180);
    let mut child =
        command.stdout(std::process::Stdio::piped()).stderr(std::process::Stdio::piped()).spawn().expect("a child");
    let start = std::time::Instant::now();
    while child.try_wait().expect("wait").is_none() {
        if start.elapsed() > limit {
            child.kill().expect("kill");
            panic!("the child hangs: not done after {limit:?}");
        }
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    let output = child.wait_with_output().expect("wait");
    let text = String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    (text, output.status)
}

/// A memory cgroup of so many bytes without swap, gone when dropped.
struct Group(std::path::PathBuf);

impl Group {
    fn new(bytes: u64) -> Option<Group> {
        let own = fs::read_to_string("/proc/self/cgroup").ok()?;
        let path = own.lines().find_map(|l| Some(l.split_once(":memory:")?.1.to_owned()));
        let (base, v2) = match path {
            Some(path) => (Path::new("/sys/fs/cgroup/memory").join(path.trim_start_matches('/')), false),
            None => (Path::new("/sys/fs/cgroup").to_owned(), true),
        };
        let group = Group(base.join(format!("untorn-test-{}", std::process::id())));
        fs::create_dir(&group.0).ok()?;
        let set = |name: &str, value: &str| fs::write(group.0.join(name), value);
        let done = match v2 {
            true => set("memory.max", &bytes.to_string()).and_then(|()| set("memory.swap.max", "0")),
            false => set("memory.limit_in_bytes", &bytes.to_string()),
        };
        done.ok().map(|()| group)
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        eventually(std::time::Duration::from_secs(5), "the cgroup is empty", || fs::remove_dir(&self.0).is_ok());
    }
}

/// 1 GiB of stores in a cgroup of 256 MiB without swap: refused with the limit named, or, with a cap that is kept,
/// done. Never killed.
#[test]
fn more_dirty_pages_than_memory() {
    const SIZE: u64 = 1 << 30;
    if let Ok(order) = std::env::var(CHILD) {
        let (group, path) = order.split_once(' ').expect("group and path");
        fs::write(Path::new(group).join("cgroup.procs"), "0").expect("enter the group");
        let file = File::open(path).expect("open");
        let e = refused(file.map(), &["no-memory"]);
        assert!(e.to_string().contains("memory cgroup"), "{e}");
        println!("refused: {e}");
        let map = file.map_with(&MapOptions::new().dirty_max(32 << 20).quiet(true)).expect("map");
        for page in 0..SIZE / PAGE as u64 {
            poke(&map, page as usize * PAGE, &page.to_le_bytes());
            if page % 4096 == 4095 {
                map.msync().expect("msync");
            }
        }
        map.msync().expect("msync");
        drop(map);
        file.close().expect("close");
        println!("done");
        return;
    }
    if !is_root() {
        return skipped("needs root (to make a memory cgroup)");
    }
    let Some(group) = Group::new(256 << 20) else { return skipped("cannot make a memory cgroup here") };
    let dir = directory();
    let path = dir.path().join("f");
    fs::File::create(&path).expect("create").set_len(SIZE).expect("size");
    let order = format!("{} {}", group.0.display(), path.display());
    let (text, status) = answer(child("more_dirty_pages_than_memory", &order));
    assert_eq!(status.signal(), None, "killed: {text}");
    assert!(status.success() && text.contains("done"), "{text}");
    let file = fs::File::open(&path).expect("open");
    for page in [0, 4095, 4096, SIZE / PAGE as u64 - 1] {
        let mut bytes = [0; 8];
        file.read_exact_at(&mut bytes, page * PAGE as u64).expect("read");
        assert_eq!(u64::from_le_bytes(bytes), page);
    }
}

/// Little address space, as `ulimit -v` or strict overcommit leave it: an error that says so.
#[test]
fn little_address_space() {
    if let Ok(path) = std::env::var(CHILD) {
        let limit = libc::rlimit { rlim_cur: 2 << 30, rlim_max: 2 << 30 };
        // SAFETY: a valid limit.
        assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_AS, &raw const limit) }, 0);
        let file = File::open(&path).expect("open");
        // Less is reserved where so much is not to be had.
        let map = file.map().expect("map");
        poke(&map, 0, b"small");
        map.msync().expect("msync");
        refused(file.truncate(1 << 40), &["no-memory"]);
        drop(map);
        file.truncate(4 << 30).expect("truncate");
        refused(file.map(), &["no-memory"]);
        file.rollback().expect("rollback");
        println!("done");
        return;
    }
    let dir = directory();
    let path = dir.path().join("f");
    fs::write(&path, [1; 3 * PAGE]).expect("write");
    let (text, status) = answer(child("little_address_space", path.to_str().expect("UTF-8")));
    assert!(status.success() && text.contains("done"), "{text}");
    assert_eq!(&plain(&path)[..5], b"small");
}

/// Another thread stores all the time: what is committed is what was copied once, in the journal and in the file.
#[test]
fn a_racing_store_is_never_torn() {
    with_trackers(|tracker| {
        let dir = directory();
        let (store, _file, map) = mapped(dir.path(), 2, &MapOptions::new().tracker(tracker));
        let (address, stop) = (map.as_mut_ptr() as usize, std::sync::atomic::AtomicBool::new(false));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let mut n = 0u64;
                while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                    n += 1;
                    // SAFETY: aligned, inside the map, which outlives the thread.
                    unsafe { (address as *mut u64).add(8).write_volatile(n) };
                }
            });
            let mut last = 0;
            for _ in 0..200 {
                map.msync().expect("msync");
                store.checkpoint().expect("checkpoint");
                let disk = plain(dir.path().join("f"));
                let n = u64::from_le_bytes(disk[64..72].try_into().expect("8 bytes"));
                assert!(n >= last, "{n} after {last}");
                last = n;
            }
            stop.store(true, std::sync::atomic::Ordering::Relaxed);
        });
        let n = u64::from_le_bytes(peek(&map, 64, 8).try_into().expect("8 bytes"));
        assert_committed(dir.path(), &store, &map, 64, &n.to_le_bytes());
    });
}
