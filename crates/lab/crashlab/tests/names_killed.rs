//! Processes that make random changes of names and bytes on real file systems, as root and as an ordinary user, are
//! killed by SIGKILL at random moments, over and over. The changes of each commit depend only on the seed and its
//! number, which is the size of a file that every commit changes. So the store must have, name by name and byte by
//! byte, the last acknowledged commit, or a later one, completely.
//!
//! `UNTORN_TEST_SEED` chooses the commits, `UNTORN_NAMES_KILLS` sets the number of kills at each place.

use fastrand::Rng;
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;
use untorn::{FailureClass, Store, StoreOptions, Ticket};
use untorn_crashlab::device::{Again, FileSystem};
use untorn_crashlab::names_fuzz::{Alphabet, NameChange, NamePlayer, NameTree, Rights, draw_transaction};
use untorn_testkit::{NOBODY, is_root, run_and_kill, test_path, variable};

const TEST: &str = "names_survive_sigkill_whole";
const CHILD: &str = "UNTORN_TEST_NAMES";
const KILLS: u64 = 4;
/// A file whose size is the number of the last commit.
const NUMBER: &str = "number";

/// The changes of an ordinary user keep the user's right to recover them.
fn alphabet(uid: u32) -> Alphabet {
    Alphabet { rights: if uid == 0 { Rights::Any } else { Rights::Recoverable }, ..Alphabet::CHANGES }
}

/// The changes of commit number `n`.
fn changes(seed: u64, n: u64, tree: &NameTree, alphabet: Alphabet) -> Vec<NameChange> {
    let rng = &mut Rng::with_seed(seed ^ n.wrapping_mul(0x9e37_79b9_7f4a_7c15));
    let mut changes = draw_transaction(rng, &mut tree.clone(), alphabet);
    if n == 1 {
        changes.push(NameChange::Create(NUMBER.into(), 0o600));
    }
    changes.push(NameChange::Truncate(NUMBER.into(), n));
    changes
}

fn tree_after(seed: u64, n: u64, alphabet: Alphabet) -> NameTree {
    let mut tree = NameTree::default();
    for n in 1..=n {
        changes(seed, n, &tree, alphabet).iter().for_each(|change| tree.apply(change));
    }
    tree
}

/// Opens in either failure class: a kill loses nothing in the cache.
fn open(path: &Path, n: u64) -> Store {
    let class = if n.is_multiple_of(3) { FailureClass::Process } else { FailureClass::Power };
    let store = StoreOptions::new().create(true).journal_bytes(64 << 10).class(class).open(path).expect("recovery");
    assert_eq!(store.status().quarantined, []);
    store
}

fn last_commit(store: &Store) -> u64 {
    match store.open_file(NUMBER) {
        Ok(file) => file.len().expect("a size"),
        Err(e) if e.os_error() == Some(libc::ENOENT) => 0,
        Err(e) => panic!("{e}"),
    }
}

/// Commits as fast as possible, and prints each commit that is acknowledged.
fn commit_until_killed(path: &Path, seed: u64, start: u64, alphabet: Alphabet) {
    let store = open(path, seed + start);
    let mut n = last_commit(&store);
    let mut tree = tree_after(seed, n, alphabet);
    let mut player = NamePlayer::new(store);
    let mut waiting: Vec<(u64, Ticket)> = Vec::new();
    let mut out = std::io::stdout();
    loop {
        n += 1;
        let changes = changes(seed, n, &tree, alphabet);
        let ticket = player.commit_async(&mut tree, &changes, alphabet).expect("a commit").expect("changes");
        waiting.push((n, ticket));
        if !n.is_multiple_of(4) {
            for (n, ticket) in waiting.drain(..) {
                ticket.wait().unwrap_or_else(|e| panic!("seed {seed}, commit {n}: {e}"));
                writeln!(out, "ack {n}").expect("the parent is gone");
            }
        }
        player.forget(&tree, n.is_multiple_of(7));
        if n.is_multiple_of(23) {
            player.store.checkpoint().expect("a checkpoint");
        }
    }
}

/// Recovers, and compares everything with the state after the commits so far.
fn verify(path: &Path, seed: u64, acknowledged: u64, alphabet: Alphabet) {
    let store = open(path, seed + acknowledged);
    let n = last_commit(&store);
    assert!(n >= acknowledged, "seed {seed}: commit {acknowledged} was acknowledged, and {n} is there");
    let tree = tree_after(seed, n, alphabet);
    // The opening has made the names, and has served the contents from the journal so far.
    store.checkpoint().expect("a checkpoint");
    let compare = |when: &str| {
        if let Some(how) = tree.difference_from(path, alphabet).expect("the store's directory") {
            panic!("seed {seed}, commit {n}, {when}: {how}");
        }
    };
    compare("after the recovery");
    if n.is_multiple_of(2) {
        store.close().expect("a clean close");
        compare("after a close");
    }
    println!("\nat {n}");
}

fn become_user(uid: u32) {
    // SAFETY: no pointers but an empty list of groups.
    let done = unsafe {
        libc::setgroups(0, std::ptr::null()) == 0
            && libc::setresgid(uid, uid, uid) == 0
            && libc::setresuid(uid, uid, uid) == 0
    };
    assert!(done, "cannot become user {uid}");
}

/// A place for stores: a directory, on a file system of its own if one is requested.
struct Place {
    name: &'static str,
    mount: Option<PathBuf>,
    dir: tempfile::TempDir,
}

impl Place {
    fn new(file_system: Option<FileSystem>) -> Result<Place, String> {
        let dir = tempfile::tempdir_in("/var/tmp").map_err(|e| e.to_string())?;
        let everybody = std::fs::Permissions::from_mode(0o755);
        std::fs::set_permissions(dir.path(), everybody).map_err(|e| e.to_string())?;
        let Some(file_system) = file_system else { return Ok(Place { name: "a directory", mount: None, dir }) };
        let (image, at) = (dir.path().join("image"), dir.path().join("mount"));
        let made = std::fs::File::create(&image).and_then(|file| file.set_len(file_system.bytes_min()));
        made.and_then(|()| std::fs::create_dir(&at)).map_err(|e| e.to_string())?;
        run(&file_system.mkfs(), &["-q".as_ref(), image.as_os_str()])?;
        run("mount", &["-o".as_ref(), "loop".as_ref(), image.as_os_str(), at.as_os_str()])?;
        Ok(Place { name: file_system.name(), mount: Some(at), dir })
    }

    fn path(&self) -> &Path {
        self.mount.as_deref().unwrap_or(self.dir.path())
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        if let Some(at) = &self.mount {
            let _ = Command::new("umount").arg("-l").arg(at).status();
        }
    }
}

fn run(program: &str, arguments: &[&std::ffi::OsStr]) -> Result<(), String> {
    let path = format!("{}:/usr/sbin:/sbin", std::env::var("PATH").unwrap_or_default());
    let output = Command::new(program).args(arguments).env("PATH", path).output();
    let output = output.map_err(|e| format!("{program}: {e}"))?;
    let why = || format!("{program}: {}", String::from_utf8_lossy(&output.stderr).trim());
    if output.status.success() { Ok(()) } else { Err(why()) }
}

fn kill_at(place: &Path, name: &str, uid: u32, seed: u64, kills: u64) {
    let store = place.join(format!("store-{uid}"));
    std::fs::create_dir(&store).expect("a directory");
    if is_root() {
        for path in [place, &store] {
            std::os::unix::fs::chown(path, Some(uid), Some(uid)).expect("chown");
        }
    }
    let rng = &mut Rng::with_seed(seed);
    let again = Again::test(&test_path!(TEST)).expect("this program");
    let order = |what: &str, n: u64| format!("{what} {uid} {seed} {n} {}", store.display());
    let mut verified = 0;
    for kill in 0.. {
        // More than these, and later ones, only until there are commits: on a busy machine.
        if kill >= kills && verified > 0 {
            break;
        }
        assert!(kill < kills + 200, "{name}, user {uid}, seed {seed}: no commit in {kill} lives");
        let after = Duration::from_micros(rng.u64(20_000..250_000) * (1 + kill / kills.max(1)));
        let acknowledged = run_and_kill(again.command().env(CHILD, order("commit", verified)), after);
        let output = again.command().env(CHILD, order("verify", acknowledged.max(verified))).output().expect("output");
        let text = String::from_utf8_lossy(&output.stdout);
        let found = text.lines().find_map(|line| line.strip_prefix("at ")?.parse::<u64>().ok());
        let (Some(n), true) = (found, output.status.success()) else {
            panic!("{name}, user {uid}, seed {seed}: {text}\n{}", String::from_utf8_lossy(&output.stderr));
        };
        verified = n;
    }
    println!("{name}, user {uid}, seed {seed}: {kills} kills, {verified} commits");
}

#[test]
fn names_survive_sigkill_whole() {
    if let Ok(order) = std::env::var(CHILD) {
        let words: Vec<&str> = order.splitn(5, ' ').collect();
        let number = |nth: usize| words[nth].parse::<u64>().expect("a number");
        let (uid, seed, path) = (number(1) as u32, number(2), Path::new(words[4]));
        if is_root() && uid != 0 {
            become_user(uid);
        }
        return match words[0] {
            "commit" => commit_until_killed(path, seed, number(3), alphabet(uid)),
            _ => verify(path, seed, number(3), alphabet(uid)),
        };
    }
    let (seed, kills) = (variable("UNTORN_TEST_SEED").unwrap_or(1), variable("UNTORN_NAMES_KILLS").unwrap_or(KILLS));
    println!("UNTORN_TEST_SEED={seed}");
    let own = rustix::process::geteuid().as_raw();
    let users = if is_root() { vec![0, NOBODY] } else { vec![own] };
    let places = [None, Some(FileSystem::Ext4), Some(FileSystem::Xfs), Some(FileSystem::Btrfs)];
    for (nth, file_system) in places.into_iter().enumerate() {
        let place = match Place::new(file_system) {
            Ok(place) => place,
            Err(why) => {
                println!("skipped: {why}");
                continue;
            }
        };
        for (other, uid) in users.iter().enumerate() {
            kill_at(place.path(), place.name, *uid, seed * 8 + nth as u64 * 2 + other as u64, kills);
        }
    }
}
