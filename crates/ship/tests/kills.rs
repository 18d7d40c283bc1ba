//! The owner of a store, its shipper, the machine with the bucket and a following replica are killed again and again. Each
//! restore shows one whole commit, and never an older one than a restore before; in the end the bucket has everything
//! that the owner committed. A replica is promoted by processes that are killed, too.
//!
//! `UNTORN_SHIP_URL` names another bucket than a local directory, in which each run uses a prefix of its own. With
//! `UNTORN_SHIP_DISTURBED`, its answers are lost now and then, so that a program may give up, and is run again.

mod common;

use common::{Killed, Machine, text};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::Duration;
use untorn::{Reader, Store, StoreOptions};
use untorn_testkit::{again, extent, kill_after_acks, seed};

/// Where the owner works.
const DIR: &str = "UNTORN_TEST_SHIPPED";

/// The contents of both files in commit `number`.
fn contents(number: u64) -> Vec<u8> {
    format!("{number:020}\n").repeat(1 + (number * 37 % 1500) as usize).into_bytes()
}

/// The number of the commit that a directory shows.
fn number_in(dir: &Path) -> u64 {
    let (a, b) = (fs::read(dir.join("a")).unwrap_or_default(), fs::read(dir.join("b")).unwrap_or_default());
    assert!(a == b, "two files of one commit differ in {}", dir.display());
    let Some(digits) = a.get(..20) else { return 0 };
    let number = std::str::from_utf8(digits).expect("digits").parse().expect("a number");
    assert!(a == contents(number), "commit {number} is torn in {}", dir.display());
    let names = fs::read_dir(dir).expect("the directory").map(|e| e.expect("an entry").file_name());
    let moved: Vec<_> = names.filter(|name| name.to_string_lossy().starts_with("at-")).collect();
    assert_eq!(moved, [format!("at-{number}").as_str()], "the name that each commit moves");
    number
}

fn commit(store: &Store, number: u64) -> untorn::Result<()> {
    let mut txn = store.begin();
    for name in ["a", "b"] {
        let file = store.open_or_create_file(name)?;
        txn.add(&file)?;
        file.write_at(&contents(number), 0)?;
        file.set_len(contents(number).len() as u64)?;
    }
    match number {
        1 => drop(txn.create("at-1", 0o644)?),
        _ => txn.rename(format!("at-{}", number - 1), format!("at-{number}"))?,
    }
    txn.commit()
}

#[test]
#[ignore = "the owner, which the test below starts and kills"]
fn owner() {
    let Some(dir) = std::env::var_os(DIR).map(PathBuf::from) else { return };
    let store = StoreOptions::new().create(true).wait(true).open(&dir).expect("the store");
    store.checkpoint().expect("a checkpoint");
    let mut number = number_in(&dir);
    loop {
        number += 1;
        commit(&store, number).expect("a commit");
        println!("ack {number}");
        if number.is_multiple_of(50) {
            store.checkpoint().expect("a checkpoint");
        }
    }
}

/// After so many kills a new store begins, as a restore reads all of the history.
const KILLS_OF_A_STORE: u64 = 60;

struct Setting {
    store: PathBuf,
    url: String,
    machine: Machine,
    /// The number in the last restore.
    shown: u64,
    /// Each store's number of owners so far, and the last number that one of them acknowledged.
    owned: Mutex<BTreeMap<PathBuf, (u64, u64)>>,
    tmp: tempfile::TempDir,
}

impl Setting {
    /// The bucket is a directory, or served by a process that stands for another machine.
    fn new(is_served: bool) -> Setting {
        let tmp = tempfile::tempdir().expect("a directory");
        let (store, bucket) = (tmp.path().join("store"), tmp.path().join("bucket"));
        fs::create_dir(&store).expect("a directory");
        let machine = Machine::new(tmp.path(), "");
        let url = match std::env::var("UNTORN_SHIP_URL") {
            _ if is_served => machine.url(&bucket),
            Ok(url) => format!("{url}/{}", tmp.path().file_name().expect("a name").to_string_lossy().trim_matches('.')),
            Err(_) => common::url(&bucket),
        };
        Setting { store, url, machine, shown: 0, owned: Mutex::default(), tmp }
    }

    fn program(&self, arguments: &[&str]) -> Command {
        self.machine.program(arguments)
    }

    /// A shipper that runs until it is killed.
    fn begin_ship(&self) -> Killed {
        self.begin(&["ship", text(&self.store), &self.url, "--interval", "5ms"])
    }

    fn begin(&self, arguments: &[&str]) -> Killed {
        let mut command = self.program(arguments);
        let said = fs::OpenOptions::new().create(true).append(true).open(self.tmp.path().join("said"));
        Killed(command.stdout(Stdio::null()).stderr(said.expect("a file")).spawn().expect("untorn-ship"))
    }

    /// Messages of the programs that ran in the background.
    fn said(&self) -> String {
        fs::read_to_string(self.tmp.path().join("said")).unwrap_or_default()
    }

    /// An owner that is killed this time after its first commit. Every fourth one is killed so soon after its start, and
    /// perhaps in its recovery.
    fn own(&self, dir: &Path, after: Duration) {
        let (owners, before) = self.owned.lock().get(dir).copied().unwrap_or_default();
        let commits = usize::from(owners % 4 != 3);
        let wait = || std::thread::sleep(after);
        let last = kill_after_acks(again!("owner").arg("--ignored").env(DIR, dir), commits, wait);
        assert!(commits == 0 || last > before, "{last} was acknowledged, and {before} before");
        self.owned.lock().insert(dir.to_owned(), (owners + 1, last.max(before)));
    }

    /// The number that a restore shows; `None` if the bucket has nothing yet.
    fn restore(&mut self) -> Option<u64> {
        let to = self.tmp.path().join("restored");
        let _ = fs::remove_dir_all(&to);
        let done = self.output(&["restore", &self.url, text(&to)]);
        if !done.status.success() {
            assert_eq!(self.shown, 0, "{}", String::from_utf8_lossy(&done.stderr));
            return None;
        }
        let number = number_in(&to);
        assert!(number >= self.shown, "a restore shows {number}, and {} was shown before", self.shown);
        self.shown = number;
        Some(number)
    }

    fn output(&self, arguments: &[&str]) -> Output {
        let mut attempts_left = if std::env::var_os("UNTORN_SHIP_DISTURBED").is_some() { 50 } else { 0 };
        loop {
            let done = self.program(arguments).output().expect("untorn-ship");
            if done.status.success() || attempts_left == 0 {
                return done;
            }
            attempts_left -= 1;
        }
    }

    #[track_caller]
    fn call(&self, arguments: &[&str]) {
        let done = self.output(arguments);
        assert!(done.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&done.stderr));
    }

    /// Recovers the store, ships everything, and compares it with a restore. Returns the number of commits.
    fn check_all(&mut self, store: &Path) -> u64 {
        // Recovery may find a commit that nobody was told of.
        let in_store = committed(store);
        let acknowledged = self.owned.lock().get(store).map_or(0, |(_, last)| *last);
        assert!(in_store >= acknowledged, "{in_store} is in the store, and {acknowledged} was acknowledged");
        self.call(&["ship", text(store), &self.url, "--once"]);
        assert_eq!(self.restore(), Some(in_store), "after everything was shipped");
        in_store
    }
}

/// The number that the store itself has.
fn committed(store: &Path) -> u64 {
    StoreOptions::new().wait(true).open(store).expect("the store").close().expect("closing");
    number_in(store)
}

fn pause(random: &mut fastrand::Rng, most: u64) -> Duration {
    Duration::from_millis(random.u64(5..most))
}

#[test]
fn kills_of_owner_and_shipper_lose_nothing() {
    let mut random = fastrand::Rng::with_seed(seed());
    let (mut kills, mut commits, most) = (0, 0, extent(30, 1000));
    while kills < most {
        let mut setting = Setting::new(false);
        let store = setting.store.clone();
        let end = most.min(kills + KILLS_OF_A_STORE);
        while kills < end {
            let shipper = setting.begin_ship();
            setting.own(&store, pause(&mut random, 250));
            if random.u8(..3) == 0 {
                setting.restore();
            }
            // Or it goes on beside the next owner for a while.
            if random.bool() {
                setting.own(&store, pause(&mut random, 100));
                kills += 1;
            }
            drop(shipper);
            kills += 2;
            if random.u8(..8) == 0 {
                setting.check_all(&store);
            }
        }
        commits += setting.check_all(&store);
    }
    println!("{kills} kills, {commits} commits");
}

#[test]
fn a_shipper_goes_on_when_the_bucket_was_killed() {
    let mut random = fastrand::Rng::with_seed(seed());
    let (mut kills, mut bucket_kills, mut commits, most) = (0, 0, 0, extent(20, 1000));
    while kills < most {
        let mut setting = Setting::new(true);
        let store = setting.store.clone();
        Store::open_or_create(&store).expect("a store").close().expect("closing");
        let mut shipper = setting.begin_ship();
        // It must have begun: a start without an answer is refused.
        setting.own(&store, Duration::from_millis(50));
        common::wait_until("the first commit", || {
            setting.restore().is_some() || shipper.0.try_wait().expect("a child").is_some()
        });
        let (end, mut of_this) = (most.min(kills + KILLS_OF_A_STORE), 0);
        while kills < end || of_this == 0 {
            let (lives, serves) = (pause(&mut random, 150), pause(&mut random, 150));
            let killed = std::thread::scope(|scope| {
                let killed = scope.spawn(|| {
                    std::thread::sleep(serves);
                    u64::from(setting.machine.kill())
                });
                setting.own(&store, lives);
                killed.join().expect("a thread")
            });
            (kills, of_this) = (kills + 1 + killed, of_this + killed);
            assert!(shipper.0.try_wait().expect("a child").is_none(), "the shipper ended: {}", setting.said());
        }
        // The same process ships the rest.
        let last = committed(&store);
        common::wait_until("the last commit", || setting.restore() == Some(last));
        drop(shipper);
        bucket_kills += of_this;
        commits += setting.check_all(&store);
    }
    println!("{kills} kills, {bucket_kills} of them of the bucket, {commits} commits");
}

/// The number that a reader of a replica sees; `None` while it is not there, or is just being replaced.
fn number_seen(replica: &Path) -> Option<u64> {
    let reader = Reader::open(replica).ok()?;
    let snapshot = reader.snapshot().ok()?;
    let read = |name: &str| {
        let mut bytes = vec![0; snapshot.metadata(name).ok()?.len as usize];
        snapshot.open(name).ok()?.read_at(&mut bytes, 0).ok().map(|_| bytes)
    };
    let (a, b) = (read("a")?, read("b")?);
    assert!(a == b, "two files of one commit differ in a replica");
    let number = std::str::from_utf8(&a[..20]).expect("digits").parse().expect("a number");
    assert!(a == contents(number), "commit {number} is torn in a replica");
    assert!(snapshot.metadata(format!("at-{number}")).is_ok(), "commit {number} without its name");
    Some(number)
}

#[test]
fn a_killed_replica_shows_one_commit_and_a_killed_promotion_is_finished() {
    let mut random = fastrand::Rng::with_seed(seed());
    let (mut kills, mut promotions, most) = (0, 0, extent(30, 1000));
    while kills < most {
        let mut setting = Setting::new(false);
        let (store, replica) = (setting.store.clone(), setting.tmp.path().join("replica"));
        setting.own(&store, Duration::from_millis(300));
        setting.check_all(&store);
        let mut shipper = setting.begin_ship();
        let (end, mut seen) = (most.min(kills + KILLS_OF_A_STORE / 2), 0);
        while kills < end || seen == 0 {
            let follower = setting.begin(&["follow", &setting.url, text(&replica), "--interval", "5ms"]);
            setting.own(&store, pause(&mut random, 200));
            drop(follower);
            kills += 2;
            let number = number_seen(&replica).unwrap_or(seen);
            assert!(number >= seen, "a replica shows {number}, and {seen} was shown before");
            seen = number;
        }
        // The old machine is alive meanwhile. Each promotion has more time.
        for time in 1.. {
            let mut promotion = setting.begin(&["follow", &setting.url, text(&replica), "--promote"]);
            std::thread::sleep(Duration::from_millis(random.u64(..10 * time)));
            match promotion.0.try_wait().expect("a child") {
                None => kills += 1,
                Some(status) => {
                    assert!(status.success(), "the promotion failed: {}", setting.said());
                    break;
                }
            }
        }
        promotions += 1;
        let shut_out = setting.restore().expect("a history");
        let promoted = committed(&replica);
        assert!(promoted >= seen.max(shut_out), "{promoted} is left, and {seen} and {shut_out} were shown");
        setting.own(&store, Duration::from_millis(100));
        common::wait_until("the end of the old shipper", || shipper.0.try_wait().expect("a child").is_some());
        setting.own(&replica, Duration::from_millis(100));
        setting.check_all(&replica);
    }
    println!("{kills} kills, {promotions} promotions");
}
