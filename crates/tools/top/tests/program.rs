//! `untorn-top` beside an owner that commits: tables, JSON, figures for Prometheus, the screen.

use serde_json::Value;
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use tempfile::TempDir;
use untorn::{FailureClass, Store, StoreOptions};

/// Longer than any test takes: only a broken program waits this long.
const LONG: Duration = Duration::from_secs(120);

fn top() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_untorn-top"));
    command.stdin(Stdio::null());
    command
}

fn ok(command: &mut Command) -> String {
    let output: Output = command.output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{command:?}: {said}{}", String::from_utf8_lossy(&output.stderr));
    said
}

/// A store that commits to `counter` all the time.
struct Busy {
    dir: TempDir,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Busy {
    fn new() -> Busy {
        let dir = tempfile::tempdir_in("/var/tmp").unwrap();
        let (path, stop) = (dir.path().to_owned(), Arc::new(AtomicBool::new(false)));
        let stopped = stop.clone();
        let thread = std::thread::spawn(move || {
            let store = Store::open_or_create(path).unwrap();
            let counter = store.open_or_create_file("counter").unwrap();
            let mut n = 0u64;
            while !stopped.load(Relaxed) {
                n += 1;
                counter.write_all_at(&n.to_le_bytes(), 0).unwrap();
                counter.commit().unwrap();
            }
        });
        let busy = Busy { dir, stop, thread: Some(thread) };
        let start = Instant::now();
        while !busy.path().join(".untorn/readers").exists() {
            assert!(start.elapsed() < LONG, "the store is never open");
            std::thread::yield_now();
        }
        busy
    }

    fn path(&self) -> &Path {
        self.dir.path()
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        self.stop.store(true, Relaxed);
        let ended = self.thread.take().expect("a thread").join();
        assert!(ended.is_ok() || std::thread::panicking());
    }
}

/// The first line of JSON in which the owner has published twice.
fn shown(busy: &Busy) -> Value {
    let mut child =
        Killed(top().args(["top", "--json", "-i", "0.3"]).arg(busy.path()).stdout(Stdio::piped()).spawn().unwrap());
    let lines = BufReader::new(child.0.stdout.take().unwrap()).lines();
    let mut values = lines.map(|line| serde_json::from_str::<Value>(&line.unwrap()).unwrap());
    values.find(|value| !value["interval"].is_null()).expect("a line with an interval")
}

struct Killed(Child);

impl Drop for Killed {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn json_has_the_figures_of_the_owner() {
    let busy = Busy::new();
    let value = shown(&busy);
    assert_eq!(value["store"], busy.path().to_str().unwrap());
    assert_eq!(value["owner"], std::process::id());
    let interval = &value["interval"];
    assert!(interval["commits_per_second"].as_f64().unwrap() > 0.0, "{value}");
    assert!(interval["commits_per_flush"].as_f64().unwrap() >= 1.0, "{value}");
    for stage in ["commit", "queue", "write", "flush"] {
        let stage = &interval["stages"][stage];
        let us = |name: &str| stage[name].as_f64().unwrap();
        assert!(stage["count"].as_u64().unwrap() > 0, "{value}");
        assert!(0.0 < us("p50_us") && us("p50_us") <= us("p99_us") && us("p99_us") <= us("max_us"), "{value}");
    }
    let figures = &value["figures"];
    assert!(figures["commits"].as_u64().unwrap() > 0 && figures["failed"] == false, "{value}");
    assert!(figures["open_seconds"].as_f64().unwrap() > 0.0, "{value}");
}

#[test]
fn a_table_says_why_a_store_has_no_figures() {
    let closed = tempfile::tempdir_in("/var/tmp").unwrap();
    drop(Store::open_or_create(closed.path()).unwrap());
    let in_memory = tempfile::tempdir_in("/var/tmp").unwrap();
    let process = StoreOptions::new().create(true).class(FailureClass::Process).open(in_memory.path()).unwrap();
    let said = ok(top().args(["top", "--once", "-i", "0.25"]).args([closed.path(), in_memory.path()]));
    let line = |path: &Path, why: &str| {
        let path = path.to_str().unwrap();
        assert!(said.lines().any(|line| line.starts_with(path) && line.contains(why)), "{path}: {why}: {said}");
    };
    line(closed.path(), "no process has it open");
    line(in_memory.path(), "class `process`");
    process.close().unwrap();
}

#[test]
fn what_is_no_store_is_refused() {
    let dir = tempfile::tempdir_in("/var/tmp").unwrap();
    for command in ["top", "metrics"] {
        let output = top().arg(command).arg(dir.path()).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.code() == Some(1) && said.contains("cannot find a store"), "{said}");
    }
}

/// Stores that cannot be watched are lines beside the others, and are taken up when they are there.
#[test]
fn a_store_may_come_into_being_and_go() {
    let busy = Busy::new();
    let parent = tempfile::tempdir_in("/var/tmp").unwrap();
    let (late, no_store) = (parent.path().join("late"), parent.path().join("none"));
    fs::create_dir(&no_store).unwrap();
    let mut command = top();
    command.args(["top", "--json", "-i", "0.25"]).args([&late, &no_store]).arg(busy.path());
    let mut child = Killed(command.stdout(Stdio::piped()).spawn().unwrap());
    let mut lines = BufReader::new(child.0.stdout.take().unwrap()).lines();
    let mut wait_for = |store: &Path, is_it: &dyn Fn(&Value) -> bool| {
        let start = Instant::now();
        loop {
            let value = serde_json::from_str::<Value>(&lines.next().expect("it goes on").unwrap()).unwrap();
            if value["store"] == store.to_str().unwrap() && is_it(&value) {
                break;
            }
            assert!(start.elapsed() < LONG, "{}: {value}", store.display());
        }
    };
    let error = |value: &Value, text: &str| value["error"].as_str().is_some_and(|error| error.contains(text));
    wait_for(&late, &|value| error(value, "No such file"));
    wait_for(&no_store, &|value| error(value, "cannot find a store"));
    wait_for(busy.path(), &|value| !value["interval"].is_null());
    for _ in 0..2 {
        let store = Store::open_or_create({
            fs::create_dir(&late).unwrap();
            &late
        })
        .unwrap();
        wait_for(&late, &|value| value["owner"] == std::process::id());
        store.close().unwrap();
        wait_for(&late, &|value| value["owner"].is_null() && value.get("error").is_none());
        fs::remove_dir_all(&late).unwrap();
        wait_for(&late, &|value| error(value, "the store is gone"));
    }
}

/// Each store needs several descriptors; the usual limit of a process can be raised by itself.
#[test]
fn more_stores_than_descriptors_are_shown() {
    let parent = tempfile::tempdir_in("/var/tmp").unwrap();
    let stores: Vec<_> = (0..40).map(|n| parent.path().join(n.to_string())).collect();
    for store in &stores {
        fs::create_dir(store).unwrap();
        drop(Store::open_or_create(store).unwrap());
    }
    let program = env!("CARGO_BIN_EXE_untorn-top");
    let mut command = Command::new("sh");
    command.args(["-c", "ulimit -Sn 32; exec \"$@\"", "sh", program, "top", "--once", "-i", "0.25"]).args(&stores);
    let said = ok(&mut command);
    assert_eq!(said.matches("no process has it open").count(), stores.len(), "{said}");
}

/// The value of a metric of a store, if it is there.
fn metric(text: &str, name: &str, store: &Path) -> Option<f64> {
    let label = format!("store=\"{}\"", store.display());
    let line = text.lines().find(|line| line.starts_with(&format!("{name}{{")) && line.contains(&label))?;
    line.rsplit(' ').next()?.parse().ok()
}

#[test]
fn prometheus_gets_figures_on_a_port() {
    let busy = Busy::new();
    let closed = tempfile::tempdir_in("/var/tmp").unwrap();
    drop(Store::open_or_create(closed.path()).unwrap());
    let none = closed.path().join("none");
    let mut command = top();
    command.args(["metrics", "--listen", "127.0.0.1:0"]).args([busy.path(), closed.path(), &none]);
    let mut child = Killed(command.stderr(Stdio::piped()).spawn().unwrap());
    let mut said = BufReader::new(child.0.stderr.take().unwrap());
    let (mut why, mut line) = (String::new(), String::new());
    said.read_line(&mut why).unwrap();
    assert!(why.contains("none is not watched yet: cannot look at"), "{why}");
    said.read_line(&mut line).unwrap();
    let address = line.split("http://").nth(1).and_then(|rest| rest.split('/').next()).expect("an address").to_owned();
    let start = Instant::now();
    let text = loop {
        let mut stream = TcpStream::connect(&address).unwrap();
        stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n").unwrap();
        let mut text = String::new();
        stream.read_to_string(&mut text).unwrap();
        if metric(&text, "untorn_stage_seconds_count", busy.path()).is_some_and(|count| count > 0.0) {
            break text;
        }
        assert!(start.elapsed() < LONG, "{text}");
        std::thread::sleep(Duration::from_millis(50));
    };
    let (head, text) = text.split_once("\r\n\r\n").unwrap();
    assert!(head.starts_with("HTTP/1.1 200 OK\r\n") && head.contains(&format!("Content-Length: {}", text.len())));
    assert!(text.ends_with("# EOF\n"));
    assert_eq!(
        (metric(text, "untorn_open", busy.path()), metric(text, "untorn_open", closed.path())),
        (Some(1.0), Some(0.0))
    );
    let watched = [busy.path(), closed.path(), &none].map(|store| metric(text, "untorn_watched", store));
    assert_eq!(watched, [Some(1.0), Some(1.0), Some(0.0)]);
    assert!(metric(text, "untorn_commits_total", busy.path()).unwrap() > 0.0, "{text}");
    assert_eq!(metric(text, "untorn_commits_total", closed.path()), None);
    // Buckets grow, and the last one has everything.
    let stage = "untorn_stage_seconds_bucket{";
    let buckets: Vec<f64> = text
        .lines()
        .filter(|line| line.starts_with(stage) && line.contains("stage=\"commit\""))
        .map(|line| line.rsplit(' ').next().unwrap().parse().unwrap())
        .collect();
    assert!(buckets.len() > 10 && buckets.is_sorted(), "{text}");
    assert!(text.contains("le=\"+Inf\",") || text.contains("le=\"+Inf\"}"), "{text}");
    assert_eq!(buckets.last().copied(), metric(text, "untorn_stage_seconds_count", busy.path()));
}

#[test]
fn a_file_is_replaced_as_a_whole() {
    let busy = Busy::new();
    let dir = tempfile::tempdir_in("/var/tmp").unwrap();
    let file = dir.path().join("untorn.prom");
    let mut command = top();
    command.args(["metrics", "-i", "0.25", "--file"]).arg(&file).arg(busy.path());
    let _child = Killed(command.spawn().unwrap());
    let start = Instant::now();
    loop {
        let text = fs::read_to_string(&file).unwrap_or_default();
        assert!(text.is_empty() || text.ends_with("# EOF\n"), "torn: {text}");
        if metric(&text, "untorn_commits_total", busy.path()).is_some_and(|commits| commits > 0.0) {
            break;
        }
        assert!(start.elapsed() < LONG, "{text}");
    }
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1, "nothing else is left there");
}

/// A terminal of 160 columns and 40 lines: its own side, and the program's.
fn terminal() -> (OwnedFd, OwnedFd) {
    use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
    let own = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
    grantpt(&own).unwrap();
    unlockpt(&own).unwrap();
    let name = ptsname(&own, Vec::new()).unwrap();
    let flags = rustix::fs::OFlags::RDWR | rustix::fs::OFlags::NOCTTY;
    let programs = rustix::fs::open(name.as_c_str(), flags, rustix::fs::Mode::empty()).unwrap();
    let size = rustix::termios::Winsize { ws_row: 40, ws_col: 160, ws_xpixel: 0, ws_ypixel: 0 };
    rustix::termios::tcsetwinsize(&programs, size).unwrap();
    (own, programs)
}

#[test]
fn the_screen_shows_stores_stages_commits_and_files_and_ends() {
    let busy = Busy::new();
    let (own, programs) = terminal();
    let mut command = Command::new(env!("CARGO_BIN_EXE_untorn-top"));
    command.args(["top", "-i", "0.3"]).arg(busy.path()).env("TERM", "xterm");
    command.stdin(programs.try_clone().unwrap()).stdout(programs.try_clone().unwrap()).stderr(programs);
    let mut child = Killed(command.spawn().unwrap());
    drop(command);
    let mut own = fs::File::from(own);
    let mut output = own.try_clone().unwrap();
    let seen = Arc::new(parking_lot::Mutex::new(String::new()));
    let all = seen.clone();
    std::thread::spawn(move || {
        let mut buf = [0; 4096];
        while let Ok(n @ 1..) = output.read(&mut buf) {
            all.lock().push_str(&String::from_utf8_lossy(&buf[..n]));
        }
    });
    let mut expect = |keys: &str, text: &str| {
        own.write_all(keys.as_bytes()).unwrap();
        let start = Instant::now();
        while !seen.lock().contains(text) {
            assert!(start.elapsed() < LONG, "no {text:?} in {:?}", seen.lock());
            std::thread::sleep(Duration::from_millis(20));
        }
        seen.lock().clear();
    };
    expect("", "commits/s");
    // Words only: the terminal gets differences from the screen before. So each view is closed again.
    expect("s", "checkpoint");
    expect("sc", "looked");
    expect("cf", "counter");
    own.write_all(b"q").unwrap();
    assert!(child.0.wait().unwrap().success());
}

/// The names of figures in a text.
fn names(text: &str) -> Vec<&str> {
    let is_part = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let words = text.split(|c| !is_part(c)).filter(|word| word.starts_with("untorn_"));
    let ends = ["_total", "_bucket", "_sum", "_count"];
    words.map(|word| ends.iter().find_map(|end| word.strip_suffix(end)).unwrap_or(word)).collect()
}

#[test]
fn the_dashboard_and_the_alerts_name_figures_that_there_are() {
    let busy = Busy::new();
    let text = ok(top().arg("metrics").arg(busy.path()));
    let given: Vec<&str> = text.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.split(' ').next()).collect();
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../..");
    let read = |path: &str| fs::read_to_string(root.join(path)).unwrap();
    let shipped = read("crates/ship/src/program/metrics.rs");
    let (dashboard, alerts) = (read("examples/monitoring/dashboard.json"), read("examples/monitoring/alerts.yml"));
    for name in names(&dashboard).into_iter().chain(names(&alerts)) {
        assert!(given.contains(&name) || shipped.contains(&format!("\"{name}\"")), "{name} is in {given:?}");
    }
    // Each figure is somewhere on the dashboard, or of no use over time.
    let unused =
        ["untorn_store_lsn", "untorn_checkpoints", "untorn_syncs", "untorn_journal_bytes", "untorn_open_files"];
    for name in given.iter().filter(|name| !unused.contains(*name)) {
        assert!(names(&dashboard).contains(name), "{name} is not on the dashboard");
    }
    let printed = Command::new("python3").arg(root.join("examples/monitoring/dashboard.py")).output().unwrap();
    assert_eq!(String::from_utf8_lossy(&printed.stdout), dashboard);
}
