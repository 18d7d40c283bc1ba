//! Plain SQLite writes between the kills of a process that has the VFS, and while it works: nothing of either is lost.

use crate::driver::{Driver, extension, plain, program, succeed, uri};
use std::fs::{self, File};
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};
use untorn_testkit::{extent, seed};

/// A process that counts in a row of its own, as often as it can.
struct Counting {
    child: Child,
    counted: Arc<AtomicU64>,
    counter: JoinHandle<()>,
}

impl Counting {
    fn start(command: &mut Command, dir: &Path, uri: &str, row: u32, settings: &str) -> Counting {
        let count = format!("0 {}\n", count(row));
        let script = dir.join(format!("script{row}"));
        fs::write(&script, format!("open 0 {uri}\n0 {settings}\n{}", count.repeat(20_000))).unwrap();
        let mut child = command.stdin(File::open(&script).unwrap()).stdout(Stdio::piped()).spawn().unwrap();
        let output = BufReader::new(child.stdout.take().unwrap());
        // The first two lines are of the opening and of the settings.
        let counted = Arc::new(AtomicU64::new(0));
        let so_far = counted.clone();
        let counter = thread::spawn(move || {
            let lines = output.lines().map_while(Result::ok).filter(|line| line.starts_with("done ")).skip(2);
            lines.filter(|line| line.starts_with("done 0 ")).for_each(|_| {
                so_far.fetch_add(1, Ordering::Relaxed);
            });
        });
        Counting { child, counted, counter }
    }

    /// Waits for a number of commits, at most for this time.
    fn has_counted(&self, commits: u64, most: Duration) -> bool {
        let end = Instant::now() + most;
        while self.counted.load(Ordering::Relaxed) < commits && Instant::now() < end {
            thread::sleep(Duration::from_millis(1));
        }
        self.counted.load(Ordering::Relaxed) >= commits
    }

    fn kill(mut self) -> u64 {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
        self.counter.join().unwrap();
        self.counted.load(Ordering::Relaxed)
    }
}

const SCHEMA: &str = "CREATE TABLE t(id INTEGER PRIMARY KEY, counter INT, filler);
    INSERT INTO t VALUES (1, 0, randomblob(900)), (2, 0, randomblob(900)); INSERT INTO t(filler) SELECT randomblob(900) FROM t, t a, t b";

/// Counts. Rows of changing sizes move cells and pages, so that pages of two states do not fit together.
fn count(row: u32) -> String {
    format!("UPDATE t SET counter = counter + 1, filler = randomblob(abs(random() % 3000)) WHERE id = {row}")
}

/// The step of a round after the kill.
#[derive(Clone, Copy, Debug)]
enum Between {
    PlainTries,
    Recover,
    PlainAllTheTime,
}

/// Kills the process again and again. Returns the violations. A right build commits whenever no other process keeps it
/// away.
fn rounds(build: &Path, is_right: bool, rounds: usize) -> Vec<String> {
    let mut random = fastrand::Rng::with_seed(seed());
    let mut found = Vec::new();
    let (mut ours, mut theirs, mut refused, mut wrote, mut counted) = (0, 0, 0, 0, 0);
    let mut dir = None;
    for round in 0..rounds {
        let at = dir.get_or_insert_with(|| {
            (ours, theirs) = (0, 0);
            let dir = tempfile::tempdir().unwrap();
            plain(dir.path(), "a.db", &SCHEMA.replace('\n', " ")).ok();
            dir
        });
        let path = at.path().join("a.db");
        let between = [Between::PlainTries, Between::Recover, Between::PlainAllTheTime][round % 3];
        let settings = format!("PRAGMA cache_size={}", random.u32(1..20));
        let mut other = None;
        if matches!(between, Between::PlainAllTheTime) {
            let mut command = Command::new(program());
            other = Some(Counting::start(&mut command, at.path(), path.to_str().unwrap(), 2, &settings));
        }
        let mut command = Command::new(program());
        command.arg(build);
        let running = Counting::start(&mut command, at.path(), &uri(at.path(), "a.db"), 1, &settings);
        let commits = random.u64(u64::from(matches!(between, Between::PlainTries))..8);
        // The other process can keep the commits away for ever.
        let is_sure = is_right && other.is_none();
        let has_counted = running.has_counted(commits, Duration::from_secs(if is_sure { 120 } else { 2 }));
        assert!(has_counted || !is_sure, "round {round}, {between:?}: it does not commit");
        thread::sleep(Duration::from_micros(random.u64(0..5_000)));
        let now = running.kill();
        counted += now;
        let acknowledged = ours + now;
        let mut may_be_more = 0;
        if let Some(other) = other {
            thread::sleep(Duration::from_micros(random.u64(0..5_000)));
            theirs += other.kill();
            may_be_more = 1;
        }
        if matches!(between, Between::Recover) {
            succeed(Command::new(env!("CARGO_BIN_EXE_untorn")).arg("recover").arg(&path));
        }
        for _ in 0..2 {
            let answer = plain(at.path(), "a.db", &count(2));
            match answer.code & 255 {
                0 => (theirs, wrote) = (theirs + 1, wrote + 1),
                5 | 10 | 14 if !matches!(between, Between::Recover) => refused += 1,
                _ => found.push(format!("round {round}, {between:?}: {answer:?}")),
            }
        }
        match check(at.path(), acknowledged, theirs, may_be_more) {
            Ok(counters) => (ours, theirs) = counters,
            Err(wrong) => {
                found.push(format!("round {round}, {between:?}: {wrong}"));
                dir = None;
            }
        }
    }
    println!("{rounds} kills in {counted} commits; plain SQLite wrote {wrote} times, and was refused {refused} times");
    assert!(!is_right || wrote > 0 && refused > 0, "plain SQLite was always refused, or never");
    found
}

/// The counters, if they are those of the last commits, or of one more that was not acknowledged.
fn check(dir: &Path, acknowledged: u64, theirs: u64, more: u64) -> Result<(u64, u64), String> {
    let mut driver = Driver::start();
    driver.open(0, dir, "a.db");
    let found = driver.tell("0 SELECT counter FROM t WHERE id < 3 ORDER BY id; PRAGMA integrity_check");
    driver.end();
    let counters: Vec<u64> = found.rows.iter().filter_map(|row| row.parse().ok()).collect();
    let [ours, their] = counters[..] else { return Err(format!("{found:?}")) };
    let is_right = (acknowledged..=acknowledged + 1).contains(&ours)
        && (theirs..=theirs + more).contains(&their)
        && found.rows.last().is_some_and(|last| last == "ok");
    if is_right { Ok((ours, their)) } else { Err(format!("{acknowledged} and {theirs} were acknowledged: {found:?}")) }
}

#[test]
fn a_plain_writer_between_kills_loses_nothing() {
    let found = rounds(&extension(&[]), true, extent(20, 500));
    assert!(found.is_empty(), "{found:#?}");
}

/// The rounds must be able to find lost commits: without the marker they do.
#[test]
fn rounds_without_the_marker_find_lost_commits() {
    let build = extension(&["-DUNTORN_SQLITE_NO_MARKER"]);
    let found = (0..20).map(|_| rounds(&build, false, 10)).find(|found| !found.is_empty());
    println!("{found:?}");
    assert!(found.is_some(), "without the marker, the rounds have found nothing");
}
