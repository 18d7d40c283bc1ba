//! Many files: the cost of an operation does not grow with their number. Also measures a tree of many files on a real
//! file system: `UNTORN_TREE_FILES=1000000 cargo test --profile test -p untorn-tree --test scale -- --nocapture`.

mod common;
use common::*;
use std::ffi::OsString;
use std::time::Instant;
use untorn_tree::*;

fn numbered(n: usize) -> OsString {
    OsString::from(format!("file-number-{n:07}"))
}

#[test]
fn writes_to_many_open_files_do_not_look_at_all_of_them_each_time() {
    const FILES: usize = 3000;
    let (_disk, _clock, tree) = new_tree();
    let mut inos = Vec::new();
    for n in 0..FILES {
        let ino = tree.make(ME, ROOT, &numbered(n), Kind::File, 0o644, 0).unwrap().ino;
        tree.open(ino, true).unwrap();
        tree.write(ino, 0, b"held open").unwrap();
        inos.push(ino);
    }
    for ino in &inos {
        tree.write(*ino, 0, b"again").unwrap();
    }
    let looked_at = tree.files_looked_at().unwrap();
    assert!(looked_at < 2 * FILES as u64, "{looked_at} looks at files for {} writes", 2 * FILES);
    // Closed files are still committed early.
    assert!(inos.iter().all(|ino| tree.release(*ino, true)));
    for n in FILES..2 * FILES {
        let ino = tree.make(ME, ROOT, &numbered(n), Kind::File, 0o644, 0).unwrap().ino;
        tree.write(ino, 0, b"closed").unwrap();
    }
    let uncommitted = tree.status().unwrap().uncommitted;
    assert!(uncommitted < 2 * FILES / 3, "{uncommitted} of {} files wait for the timer", 2 * FILES);
}

#[test]
fn many_removals_are_committed_in_portions() {
    const FILES: usize = 1300;
    let (disk, clock, tree) = new_tree_of_objects();
    let mut inos = Vec::new();
    for n in 0..FILES {
        let ino = tree.make(ME, ROOT, &numbered(n), Kind::File, 0o644, 0).unwrap().ino;
        tree.write(ino, 0, b"contents").unwrap();
        inos.push(ino);
    }
    tree.sync_all(&Clean).unwrap();
    assert_eq!(tree.status().unwrap().on_their_way, 0);
    for (n, ino) in inos.into_iter().enumerate() {
        tree.unlink(ROOT, &numbered(n)).unwrap();
        tree.forget(ino, 1);
    }
    let left = || disk.process().list("obj/0".as_ref()).unwrap().len();
    // Asking for the status has pending commits written, and commits nothing.
    tree.status().unwrap();
    assert_eq!(left(), FILES - 2 * 512, "two commits of 512 removals each, before anybody asks for one");
    tree.sync_names(&Clean).unwrap();
    assert_eq!(left(), 0, "objects are left");
    let tree = reopen(&disk, &clock, tree);
    assert!(tree.read_dir(ROOT, 0, 10).unwrap().is_empty());
}

fn resident() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    line.and_then(|line| line.trim().trim_end_matches(" kB").parse::<u64>().ok()).unwrap_or(0) >> 10
}

/// Processor time of this process in seconds: on a busy machine it says more than the clock.
fn worked() -> f64 {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let fields: Vec<u64> =
        stat.rsplit(')').next().unwrap().split(' ').map(|field| field.parse().unwrap_or(0)).collect();
    fields.get(12..14).map_or(0, |times| times.iter().sum()) as f64 / 100.0
}

struct Told {
    files: usize,
    since: Instant,
    worked: f64,
}

impl Told {
    fn step(&mut self, what: &str) {
        let took = std::mem::replace(&mut self.since, Instant::now()).elapsed();
        let before = std::mem::replace(&mut self.worked, worked());
        let (took, at_work) = (took.as_secs_f64(), self.worked - before);
        let each = at_work * 1e6 / self.files as f64;
        println!("{what:22} {took:7.2} s, {at_work:7.2} s at work, {each:6.2} µs a file; {:5} MiB", resident());
        self.since = Instant::now();
    }
}

#[test]
fn a_directory_of_many_files_works_and_is_opened_again() {
    let files = std::env::var("UNTORN_TREE_FILES").ok().and_then(|n| n.parse().ok()).unwrap_or(2000);
    let place = tempfile::tempdir().unwrap();
    let open = || {
        let store = StoreTree::store_options().open(place.path()).unwrap();
        StoreTree::open(store, TreeOptions { below: Some(room(1 << 30)), ..TreeOptions::default() }).unwrap()
    };
    let list = |tree: &StoreTree| {
        let (mut count, mut next) = (0, 0);
        loop {
            let entries = tree.read_dir(ROOT, next, 128).unwrap();
            let Some(last) = entries.last() else { return count };
            (count, next) = (count + entries.len(), last.next);
        }
    };
    let tree = open();
    let mut told = Told { files, since: Instant::now(), worked: worked() };
    println!("{files} files in one directory");
    let mut inos = Vec::new();
    for n in 0..files {
        inos.push(tree.make(ME, ROOT, &numbered(n), Kind::File, 0o644, 0).unwrap().ino);
    }
    told.step("made");
    tree.sync_names(&Clean).unwrap();
    told.step("committed");
    assert_eq!(list(&tree), files);
    told.step("listed");
    for (n, ino) in inos.iter().enumerate() {
        assert_eq!(tree.lookup(ROOT, &numbered(n)).unwrap().ino, *ino);
    }
    told.step("looked up");
    for n in 0..files {
        let (from, to) = (numbered(n), numbered(n + files));
        tree.rename((ROOT, &from), (ROOT, &to), RenameFlags::Replace, &Clean).unwrap();
    }
    told.step("renamed");
    tree.close(&Clean).unwrap();
    told.step("committed and closed");
    drop(tree);
    let tree = open();
    told.step("opened");
    assert_eq!(list(&tree), files);
    assert!(tree.lookup(ROOT, &numbered(0)).is_err());
    told.since = Instant::now();
    for (n, ino) in inos.into_iter().enumerate() {
        assert_eq!(tree.lookup(ROOT, &numbered(n + files)).unwrap().ino, ino);
        tree.unlink(ROOT, &numbered(n + files)).unwrap();
        tree.forget(ino, 1);
    }
    told.step("looked up and removed");
    tree.close(&Clean).unwrap();
    told.step("committed and closed");
    let tree = open();
    told.step("opened, empty");
    assert_eq!((list(&tree), tree.status().unwrap().inodes), (0, 1));
}
