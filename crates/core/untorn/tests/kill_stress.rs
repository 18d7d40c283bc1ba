//! Several processes, each with its own store, are killed by SIGKILL at random moments, over and over. A journal of 64
//! KiB makes checkpoints and wraps frequent. Every commit changes many places of several files and their names, and its
//! changes depend only on the seed and its number. So the parent knows, byte for byte, the contents of each store after
//! its last commit, and finds any hole or mixture of two commits.

mod common;

use common::child_process::path_text;
use common::*;
use fastrand::Rng;
use std::collections::BTreeMap;
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use untorn::__private::OpenStoreOn;
use untorn::{FailureClass, File, Store, StoreOptions, Ticket, Txn};
use untorn_journal::directories::store_dir::StoreDir;
use untorn_os::Linux;

const TEST: &str = "commits_survive_sigkill_whole";
const CHILD: &str = "UNTORN_TEST_STRESS";
const STORES: u64 = 3;
const DURATION: Duration = Duration::from_secs(9);
const FILES: u64 = 4;
const FILE_BYTES_MAX: u64 = 60_000;
/// The file that has only the number of the last commit.
const STAMP: &str = "stamp";

/// One change that a commit makes.
enum Change {
    Write { file: String, offset: u64, bytes: Vec<u8> },
    Append { file: String, bytes: Vec<u8> },
    Zero { file: String, offset: u64, len: u64 },
    Truncate { file: String, size: u64 },
    Create { file: String },
    Rename { from: String, to: String },
    Unlink { file: String },
}

/// The contents of a store, by name.
type Model = BTreeMap<String, Vec<u8>>;

/// The changes of commit number `n`.
fn changes(seed: u64, n: u64) -> Vec<Change> {
    let rng = &mut Rng::with_seed(seed ^ n.wrapping_mul(0x9e37_79b9_7f4a_7c15));
    let mut changes = Vec::new();
    for file in (0..FILES).map(|i| format!("data {i}")) {
        if n == 1 {
            changes.push(Change::Create { file: file.clone() });
        }
        for _ in 0..rng.u64(1..12) {
            changes.push(random_change(rng, &file, n));
        }
    }
    // Names: a file that is created, renamed and unlinked in turns.
    changes.push(match n % 3 {
        1 => Change::Create { file: format!("odd {n}") },
        2 => Change::Rename { from: format!("odd {}", n - 1), to: "moved".to_owned() },
        _ => Change::Unlink { file: "moved".to_owned() },
    });
    if n % 3 == 1 {
        changes.push(Change::Append { file: format!("odd {n}"), bytes: filler(rng, n, 3000) });
    }
    if n == 1 {
        changes.push(Change::Create { file: STAMP.to_owned() });
    }
    changes.push(Change::Write { file: STAMP.to_owned(), offset: 0, bytes: n.to_le_bytes().to_vec() });
    changes
}

fn random_change(rng: &mut Rng, file: &str, n: u64) -> Change {
    let file = file.to_owned();
    let offset = rng.u64(..FILE_BYTES_MAX);
    let len = if rng.u8(..40) == 0 { 30_000 } else { rng.u64(1..600) };
    match rng.u8(..10) {
        0 => Change::Zero { file, offset, len },
        1 if rng.bool() => Change::Truncate { file, size: offset },
        2 if n.is_multiple_of(8) => Change::Append { file, bytes: filler(rng, n, len) },
        _ => Change::Write { file, offset, bytes: filler(rng, n, len) },
    }
}

/// Bytes that depend on the commit that wrote them.
fn filler(rng: &mut Rng, n: u64, len: u64) -> Vec<u8> {
    let salt = rng.u64(..);
    (0..len).map(|i| (n.wrapping_mul(31).wrapping_add(salt).wrapping_add(i / 8) % 255) as u8 + 1).collect()
}

/// Applies a change to the oracle, which is plain vectors.
fn apply(model: &mut Model, change: &Change) {
    match change {
        Change::Write { file, offset, bytes } => {
            let contents = model.get_mut(file).expect("written before it was made");
            let end = *offset as usize + bytes.len();
            contents.resize(contents.len().max(end), 0);
            contents[*offset as usize..end].copy_from_slice(bytes);
        }
        Change::Append { file, bytes } => model.get_mut(file).expect("made before").extend_from_slice(bytes),
        Change::Zero { file, offset, len } => {
            let contents = model.get_mut(file).expect("made before");
            let end = (*offset + *len) as usize;
            contents.resize(contents.len().max(end), 0);
            contents[*offset as usize..end].fill(0);
        }
        Change::Truncate { file, size } => model.get_mut(file).expect("made before").resize(*size as usize, 0),
        Change::Create { file } => assert!(model.insert(file.clone(), Vec::new()).is_none()),
        Change::Rename { from, to } => {
            let contents = model.remove(from).expect("made before");
            model.insert(to.clone(), contents);
        }
        Change::Unlink { file } => assert!(model.remove(file).is_some()),
    }
}

fn options(seed: u64) -> StoreOptions {
    let class = if seed.is_multiple_of(3) { FailureClass::Process } else { FailureClass::Power };
    StoreOptions::new().create(true).journal_bytes(64 << 10).class(class)
}

/// The number of the store's last commit.
fn last_commit(store: &Store) -> u64 {
    let Ok(stamp) = store.open_file(STAMP) else { return 0 };
    let mut bytes = [0; 8];
    assert_eq!(stamp.read_at(&mut bytes, 0).expect("read"), 8);
    u64::from_le_bytes(bytes)
}

/// In the second process: commits as fast as possible, and prints each commit that is acknowledged.
fn commit_until_killed(path: &Path, seed: u64) {
    let store = match seed % 3 {
        // Its journal is written as on byte-addressable memory, and read by the parent as on a disk.
        1 => {
            let storage = Linux::open_as_memory(path).expect("a directory");
            options(seed).open_on(storage, StoreDir::of_directory(), PathBuf::new()).expect("open")
        }
        _ => options(seed).open(path).expect("open"),
    };
    let mut n = last_commit(&store);
    let mut pending: Vec<(u64, Ticket)> = Vec::new();
    let mut open: BTreeMap<String, File> = BTreeMap::new();
    let mut out = std::io::stdout();
    loop {
        n += 1;
        let mut txn = store.begin();
        for change in changes(seed, n) {
            perform(&store, &mut txn, &mut open, &change);
        }
        // Some commits are waited for at once, others only after later ones.
        pending.push((n, txn.commit_async().expect("commit")));
        if !n.is_multiple_of(5) {
            for (n, ticket) in pending.drain(..) {
                ticket.wait().expect("durable");
                writeln!(out, "ack {n}").expect("the parent is gone");
            }
        }
        if n.is_multiple_of(97) {
            store.checkpoint().expect("checkpoint");
        }
    }
}

fn perform(store: &Store, txn: &mut Txn, open: &mut BTreeMap<String, File>, change: &Change) {
    let done = match change {
        Change::Write { file, offset, bytes } => handle(store, txn, open, file).write_all_at(bytes, *offset),
        Change::Append { file, bytes } => handle(store, txn, open, file).append(bytes).map(drop),
        Change::Zero { file, offset, len } => handle(store, txn, open, file).zero(*offset, *len),
        Change::Truncate { file, size } => handle(store, txn, open, file).set_len(*size),
        Change::Create { file } => txn.create(file, 0o644).map(|new| _ = open.insert(file.clone(), new)),
        Change::Rename { from, to } => {
            open.remove(from);
            txn.rename(from, to)
        }
        Change::Unlink { file } => txn.unlink(file),
    };
    done.expect("a change");
}

fn handle<'a>(store: &Store, txn: &mut Txn, open: &'a mut BTreeMap<String, File>, name: &str) -> &'a File {
    let file = open.entry(name.to_owned()).or_insert_with(|| store.open_file(name).expect("open"));
    txn.add(file).expect("add");
    file
}

/// In the parent: the history of one store.
struct Victim {
    seed: u64,
    dir: tempfile::TempDir,
    /// The contents of the store at the last check.
    model: Model,
    verified: u64,
    kills: u64,
    torn_tails: u64,
}

impl Victim {
    fn new(seed: u64) -> Victim {
        Victim { seed, dir: directory(), model: Model::new(), verified: 0, kills: 0, torn_tails: 0 }
    }

    /// Lets a child commit for a random time, kills it, and returns the last acknowledged commit.
    fn run_and_kill(&mut self, after: Duration) -> u64 {
        self.kills += 1;
        untorn_testkit::run_and_kill(
            untorn_testkit::again!(TEST).env(CHILD, format!("{} {}", self.seed, path_text(self.dir.path()))),
            after,
        )
    }

    /// Recovers, and compares every file with the contents after the commits so far.
    fn verify(&mut self, acknowledged: u64) {
        let store = options(self.seed).open(self.dir.path()).expect("recovery");
        let status = store.status();
        assert!(status.quarantined.is_empty(), "seed {}: {:?}", self.seed, status.quarantined);
        self.torn_tails += u64::from(status.recovered.torn_tail);
        let n = last_commit(&store);
        let what = |name: &str| format!("seed {}, kill {}, commit {n}, {name}", self.seed, self.kills);
        assert!(n >= acknowledged, "{}: commit {acknowledged} was acknowledged, and is lost", what("the stamp"));
        assert!(n >= self.verified, "{}: commit {} was here before", what("the stamp"), self.verified);
        for commit in self.verified + 1..=n {
            for change in changes(self.seed, commit) {
                apply(&mut self.model, &change);
            }
        }
        self.verified = n;
        for (name, wanted) in &self.model {
            assert_same(&stored(&store, name), wanted, &what(name));
        }
        // In turns: closed clean and compared as a plain file, or dropped without closing.
        if self.kills.is_multiple_of(2) {
            store.close().expect("close");
            for (name, wanted) in &self.model {
                assert_same(&plain(self.dir.path().join(name)), wanted, &what(name));
            }
        }
        let names = fs::read_dir(self.dir.path()).expect("list").count() - 1;
        assert_eq!(names, self.model.len(), "{}", what("names"));
    }
}

#[test]
fn commits_survive_sigkill_whole() {
    if let Ok(order) = std::env::var(CHILD) {
        let (seed, path) = order.split_once(' ').expect("seed and path");
        return commit_until_killed(Path::new(path), seed.parse().expect("a seed"));
    }
    let seed = seed();
    let start = Instant::now();
    std::thread::scope(|scope| {
        for store in 0..STORES {
            scope.spawn(move || {
                let mut victim = Victim::new(seed * STORES + store);
                let rng = &mut Rng::with_seed(victim.seed);
                // At least this long, and until enough has happened to prove something.
                while start.elapsed() < DURATION || victim.kills < 10 || victim.verified < 100 {
                    // Longer on machines where starting takes longer.
                    let slow = if victim.verified < 100 { 1 + victim.kills / 30 } else { 1 };
                    let after = Duration::from_micros(rng.u64(5_000..120_000) * slow);
                    let acknowledged = victim.run_and_kill(after);
                    victim.verify(acknowledged);
                }
                println!(
                    "store {store}: {} kills, {} commits, {} torn tails dropped",
                    victim.kills, victim.verified, victim.torn_tails
                );
            });
        }
    });
}
