//! The memory that maps take and give back, and their errors if it is refused.

use crate::common::mapping::*;
use crate::common::*;
use std::fs;
use std::os::unix::fs::FileExt;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::Command;
use untorn::{File, MapOptions, Store};

#[test]
fn quiesce_gives_memory_back() {
    with_trackers(|tracker| {
        let (_dir, store, file) = new_store_of(64);
        let map = file.map_with(&options(tracker)).unwrap();
        for page in 0..64 {
            poke(&map, page * PAGE + 9, b"dirty");
        }
        map.msync().unwrap();
        let of = |store: &Store| store.status().maps[0].clone();
        assert_eq!(of(&store).private_bytes, 64 * PAGE as u64);
        poke(&map, 0, b"uncommitted");
        map.reclaim().unwrap();
        assert_eq!(of(&store).private_bytes, PAGE as u64, "only the page with an uncommitted change");
        assert_eq!(bytes(&map, 63 * PAGE as u64 + 9, 5), b"dirty");
        assert_eq!(bytes(&map, 0, 11), b"uncommitted");
        map.rollback().unwrap();
        assert_eq!(bytes(&map, 0, 14), [&[0; 9][..], b"dirty"].concat());
    });
}

#[test]
fn a_refused_read_ahead_leaves_no_mapping() {
    let dir = directory();
    let (store, file) = store_of(dir.path(), 8);
    fs::OpenOptions::new().write(true).open(dir.path().join("f")).expect("open").set_len(0).expect("truncate");
    assert!(file.map_with(&MapOptions::new().populate(true)).is_err());
    assert!(store.status().maps.is_empty());
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

const CHILD: &str = "UNTORN_TEST_MAP_CHILD";

/// A command that runs one of these tests in a child process, with its order in the environment.
fn child(test: &str, order: &str) -> Command {
    let mut command = untorn_testkit::again!(test);
    command.env(CHILD, order);
    command
}

/// The output of a child. A child that hangs is killed, and has failed.
fn output_of(mut command: Command) -> (String, std::process::ExitStatus) {
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

/// A memory cgroup with this limit and without swap, removed when dropped.
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
        eventually(std::time::Duration::from_secs(60), "the cgroup is empty", || fs::remove_dir(&self.0).is_ok());
    }
}

/// 1 GiB of stores in a cgroup of 256 MiB without swap. Without a cap they are refused, and the error names the limit;
/// with `dirty_max` they succeed. The process is never killed.
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
    let (text, status) = output_of(child("more_dirty_pages_than_memory", &order));
    assert_eq!(status.signal(), None, "killed: {text}");
    assert!(status.success() && text.contains("done"), "{text}");
    let file = fs::File::open(&path).expect("open");
    for page in [0, 4095, 4096, SIZE / PAGE as u64 - 1] {
        let mut bytes = [0; 8];
        file.read_exact_at(&mut bytes, page * PAGE as u64).expect("read");
        assert_eq!(u64::from_le_bytes(bytes), page);
    }
}

/// Little address space, as under `ulimit -v` or strict overcommit: an error that says so.
#[test]
fn little_address_space() {
    if let Ok(path) = std::env::var(CHILD) {
        let limit = libc::rlimit { rlim_cur: 2 << 30, rlim_max: 2 << 30 };
        // SAFETY: a valid limit.
        assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_AS, &raw const limit) }, 0);
        let file = File::open(&path).expect("open");
        // If the full reservation is not possible, the map reserves less.
        let map = file.map().expect("map");
        poke(&map, 0, b"small");
        map.msync().expect("msync");
        refused(file.set_len(1 << 40), &["no-memory"]);
        drop(map);
        file.set_len(4 << 30).expect("truncate");
        refused(file.map(), &["no-memory"]);
        file.rollback().expect("rollback");
        println!("done");
        return;
    }
    let dir = directory();
    let path = dir.path().join("f");
    fs::write(&path, [1; 3 * PAGE]).expect("write");
    let (text, status) = output_of(child("little_address_space", path.to_str().expect("UTF-8")));
    assert!(status.success() && text.contains("done"), "{text}");
    assert_eq!(&plain(&path)[..5], b"small");
}
