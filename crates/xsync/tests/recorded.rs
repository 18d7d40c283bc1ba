//! The test of the paper: power cuts at many moments while a program writes and tells an outside observer.
//!
//! Everything that the observer has seen must be there afterwards, in a state that the program was in.
//!
//! For sessions without an invariant, the tests must fail (`invariants.rs`). `UNTORN_XSYNC_STATES` is the number of crash
//! states, and `UNTORN_TEST_SEED` chooses programs and states.

mod common;

use anyhow::{Context, Result, bail};
use common::example;
use common::told::{CHANGES, Told, explore};
use std::fs::{self, File, OpenOptions};
use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream, UdpSocket};
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;
use std::time::Duration;
use untorn_crashlab::device::watch::{self, say};
use untorn_crashlab::device::{Acks, Again, FileSystem, Image, Recorder, Trouble, serve_if_asked};
use untorn_crashlab::replay::{Bench, Check, Program, Recorded, Recording, record};
use untorn_testkit::{seed, test_path, variable_or};
use untorn_xsync::volumes::volume::Use;

/// The size of a volume in these tests.
const BYTES: u64 = 40 << 20;

fn again() -> Result<Again> {
    Ok(Again::test(&test_path!("part"))?)
}

/// Runs devices and workers, which are other processes of these tests. It does nothing in a normal run.
#[test]
fn part() {
    serve_if_asked();
    watch::work_if_asked(|job| {
        let words: Vec<_> = job.split(' ').collect();
        match words[..] {
            [watch::PROBE] => watch::try_mount(&again()?),
            ["device", seed, states] => on_the_device(seed.parse()?, states.parse()?),
            ["stores", seed, states] => stores(seed.parse()?, states.parse()?),
            ["image", fs, seed, states] => in_an_image(fs, seed.parse()?, states.parse()?),
            ["server", seed, states] => a_server(seed.parse()?, states.parse()?),
            ["told", kind, seed, states] => told_outside(kind, seed.parse()?, states.parse()?),
            ["requests"] => requests_during_a_commit(),
            ["in-place"] => in_place(),
            ["failing", what, n] => failing(what, n.parse()?),
            _ => bail!("no such job: {job}"),
        }
    });
}

/// Whether the tests can run here. Prints a message if they cannot.
fn possible(fs: FileSystem) -> bool {
    static PROBED: OnceLock<Option<String>> = OnceLock::new();
    let programs = [fs.mkfs(), FileSystem::Ext4.mkfs()];
    let why = watch::missing(&programs)
        .or_else(|| PROBED.get_or_init(|| watch::probe(&again().expect("this program"))).clone());
    if let Some(why) = &why {
        println!("skipped: {why}");
    }
    // Builds the example before the workers need it.
    why.is_none() && common::Place::new().is_some() && example("probe").exists()
}

/// Runs a job in a worker. Returns the lines that it prints.
fn watched(job: &str) -> Vec<String> {
    let mut said = Vec::new();
    let done = watch::supervise(&again().expect("this program"), job, common::LIMITS, |line| {
        let line = line.replace('\u{2028}', "\n");
        if line != "." {
            println!("{line}");
            said.push(line);
        }
    });
    done.unwrap_or_else(|e| panic!("{job}: {e}; {said:?}"));
    said
}

fn violations(said: &[String]) -> usize {
    said.iter().filter(|line| line.starts_with("VIOLATION")).count()
}

#[test]
fn nothing_that_was_shown_is_lost() {
    if !possible(FileSystem::Ext4) {
        return;
    }
    let said = watched(&format!("device {} {}", seed(), variable_or("UNTORN_XSYNC_STATES", 150)));
    assert_eq!(violations(&said), 0);
}

#[test]
fn nothing_is_lost_on_an_image_on_xfs() {
    if possible(FileSystem::Xfs) {
        let said = watched(&format!("image xfs {} {}", seed(), variable_or("UNTORN_XSYNC_STATES", 150) / 5));
        assert_eq!(violations(&said), 0);
    }
}

#[test]
fn nothing_is_lost_on_an_image_on_ext4() {
    if possible(FileSystem::Ext4) {
        let said = watched(&format!("image ext4 {} {}", seed(), variable_or("UNTORN_XSYNC_STATES", 150) / 5));
        assert_eq!(violations(&said), 0);
    }
}

/// A control: a store to a shared map can pass an earlier write, as the documents say of `--maps=allow`, with either
/// call that commits (in a build with the feature `mutants`, `UNTORN_DISABLED=COMMIT_OF_THE_JOURNAL` takes the other
/// one). Written and shown data are not lost.
#[test]
#[ignore = "what the kernel writes when is chance: it takes up to a minute"]
fn stores_to_maps_under_load_are_found() {
    if !possible(FileSystem::Ext4) {
        return;
    }
    let found = (0..60).map(|n| seed() + n).any(|seed| {
        let said = watched(&format!("stores {seed} 40"));
        assert!(!said.iter().any(|line| line.contains("LOST")), "shown output was lost");
        violations(&said) > 0
    });
    assert!(found, "stores that pass writes were not found: the documents are wrong, or the laboratory is");
}

/// Lines that a server in a session has acknowledged to a client outside are there.
#[test]
fn nothing_that_a_client_was_told_is_lost() {
    if !possible(FileSystem::Ext4) {
        return;
    }
    let states = variable_or("UNTORN_XSYNC_STATES", 150) / 3;
    assert_eq!(violations(&watched(&format!("server {} {states}", seed()))), 0);
}

/// Lines that a program in a session has sent to a server outside are there.
fn nothing_that_was_told_is_lost(kind: &str) {
    if possible(FileSystem::Ext4) {
        let states = variable_or("UNTORN_XSYNC_STATES", 150) / 3;
        assert_eq!(violations(&watched(&format!("told {kind} {} {states}", seed()))), 0);
    }
}

#[test]
fn nothing_that_was_told_in_a_connection_is_lost() {
    nothing_that_was_told_is_lost("tcp");
}

#[test]
fn nothing_that_was_told_by_connecting_is_lost() {
    nothing_that_was_told_is_lost("connect");
}

#[test]
fn nothing_that_was_told_by_datagrams_is_lost() {
    nothing_that_was_told_is_lost("udp");
}

/// A disk that fails from its n-th write or flush after some moment on.
#[test]
fn a_failing_disk_ends_the_session_and_shows_nothing_more() {
    if !possible(FileSystem::Ext4) {
        return;
    }
    for what in ["writes", "flushes", "cache"] {
        for n in [0, 3, 20] {
            let said = watched(&format!("failing {what} {n}"));
            assert!(said.iter().any(|line| line.starts_with("ended as it should")), "{what} {n}: {said:?}");
        }
    }
}

/// The journal can be written, but writes from the journal to their places fail. No commit reports that.
#[test]
fn writes_that_fail_later_end_the_session_too() {
    if !possible(FileSystem::Ext4) {
        return;
    }
    for _ in 0..5 {
        let said = watched("in-place");
        // A `sync` of another program may have written the files before the disk failed.
        if said.iter().any(|line| line.contains("the flush: [") && line.contains("-1")) {
            let ended = |line: &String| line.starts_with("ended by code 125") && !line.contains("second");
            assert!(said.iter().any(ended), "{said:?}");
            return;
        }
    }
    panic!("no write failed in five sessions");
}

/// While a commit waits for the disk, requests of clients reach the server.
#[test]
fn a_commit_does_not_hold_up_requests() {
    if !possible(FileSystem::Ext4) {
        return;
    }
    let said = watched("requests");
    assert!(said.iter().any(|line| line == "asked before the answer"), "{said:?}");
}

// The following functions run in workers.

/// A directory that the session sees, with the program `probe` in it.
fn work() -> Result<PathBuf> {
    let dir = watch::directory("work")?;
    fs::copy(example("probe"), dir.join("probe")).context("the program probe, built with the tests")?;
    Ok(dir)
}

/// A session that makes changes, and appends a line to `acks` for each.
fn session(volume: &Path, seed: u64, acks: &Path) -> Result<Command> {
    let dir = work()?;
    let mut command = common::xsync();
    command.arg("--volume").arg(volume).arg("--").arg(dir.join("probe")).args(["mixed", "/data"]);
    command.args([CHANGES.to_string(), seed.to_string()]).current_dir(&dir).stdin(Stdio::null());
    command.stdout(OpenOptions::new().append(true).open(acks)?).stderr(Stdio::piped());
    Ok(command)
}

fn fresh() -> Result<Image> {
    let path = watch::directory("fresh")?.join("volume.img");
    drop(untorn_xsync::volumes::volume::Image::create(&path, BYTES, Use::Servers)?);
    Ok(Image::load(&File::open(path)?)?)
}

fn on_the_device(seed: u64, states: u64) -> Result<()> {
    let base = fresh()?;
    let mut recorder = Recorder::start(&again()?, base)?;
    let device = recorder.attach()?;
    recorder.flush_time(Duration::from_micros(300))?;
    recorder.mark("begin")?;
    let output = session(device.path(), seed, &recorder.acks())?.output()?;
    drop(device);
    let (base, events) = recorder.stop()?;
    if !output.status.success() {
        bail!("the session: {} {}", output.status, String::from_utf8_lossy(&output.stderr));
    }
    let recording = Recording { fs: FileSystem::Ext4Journal, base, events, said_before: Vec::new() };
    explore(&recording, &Told { seed, image: None }, seed, states)
}

/// A check: `log` has the numbers that were shown, and no page of `map` has a number that `log` lacks.
struct InOrder;

impl Check for InOrder {
    fn check(&self, dir: &Path, said: &[String]) -> Result<(), String> {
        let shown = said.iter().filter_map(|line| line.strip_prefix("log ")?.parse::<u64>().ok()).max().unwrap_or(0);
        let number = |bytes: &[u8]| u64::from_le_bytes(bytes.try_into().expect("eight bytes"));
        let log = fs::read(dir.join("data/log")).unwrap_or_default();
        let log = log.get(..8).map_or(0, number);
        let map = fs::read(dir.join("data/map")).unwrap_or_default();
        let stored = map.chunks_exact(4096).map(|page| number(&page[..8])).max().unwrap_or(0);
        match log {
            _ if log < shown => Err(format!("LOST {shown} was shown, and the log has {log}")),
            _ if stored > log => Err(format!("{stored} was stored after it was written, and the log has {log}")),
            _ => Ok(()),
        }
    }
}

fn stores(seed: u64, states: u64) -> Result<()> {
    let mut recorder = Recorder::start(&again()?, fresh()?)?;
    let device = recorder.attach()?;
    recorder.flush_time(Duration::from_micros(300))?;
    recorder.mark("begin")?;
    let dir = work()?;
    let mut command = common::xsync();
    command.arg("--volume").arg(device.path()).arg("--").arg(dir.join("probe")).args(["stores", "/data", "20000"]);
    command.current_dir(&dir).stdin(Stdio::null()).stderr(Stdio::piped());
    let output = command.stdout(OpenOptions::new().append(true).open(recorder.acks())?).output()?;
    drop(device);
    let (base, events) = recorder.stop()?;
    if !output.status.success() {
        bail!("the session: {} {}", output.status, String::from_utf8_lossy(&output.stderr));
    }
    let recording = Recording { fs: FileSystem::Ext4Journal, base, events, said_before: Vec::new() };
    explore(&recording, &InOrder, seed, states)
}

/// Starts a session with a server whose log is on the volume. Returns the server's port, too.
fn start_server(volume: &Path) -> Result<(Child, u16)> {
    let dir = work()?;
    let port = TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
    let mut command = common::xsync();
    command.args(["--listen", &format!("127.0.0.1:{port}"), "--volume"]).arg(volume).arg("--").arg(dir.join("probe"));
    command.args(["serve", &port.to_string(), "/data/log"]);
    Ok((command.current_dir(&dir).stdin(Stdio::null()).stdout(Stdio::null()).spawn()?, port))
}

fn connect(port: u16) -> std::io::Result<TcpStream> {
    loop {
        match TcpStream::connect(("127.0.0.1", port)) {
            Err(e) if e.kind() == std::io::ErrorKind::ConnectionRefused => std::thread::sleep(Duration::from_millis(1)),
            done => return done,
        }
    }
}

/// The first process of a session. Root can see the session's files through its /proc/PID/root.
fn first_process(supervisor: &Child) -> Result<String> {
    let pid = supervisor.id();
    Ok(fs::read_to_string(format!("/proc/{pid}/task/{pid}/children"))?.trim().to_owned())
}

/// One client waits for its answer, whose commit takes seconds. Meanwhile the server handles another client's request.
fn requests_during_a_commit() -> Result<()> {
    let mut recorder = Recorder::start(&again()?, fresh()?)?;
    let device = recorder.attach()?;
    let (mut child, port) = start_server(device.path())?;
    let (mut waiting, mut asking) = (connect(port)?, connect(port)?);
    let root = PathBuf::from(format!("/proc/{}/root", first_process(&child)?));
    recorder.flush_time(Duration::from_secs(40))?;
    waiting.write_all(b"first\n")?;
    while fs::read_to_string(root.join("data/log")).unwrap_or_default() != "first\n" {
        std::thread::sleep(Duration::from_millis(1));
    }
    // Waits until the relay has read the answer and commits.
    std::thread::sleep(Duration::from_millis(100));
    asking.write_all(b"touch /dev/shm/asked\n")?;
    while !root.join("dev/shm/asked").exists() {
        std::thread::sleep(Duration::from_millis(1));
    }
    waiting.set_nonblocking(true)?;
    let answered = std::io::Read::read(&mut waiting, &mut [0; 100]).is_ok();
    say(if answered { "asked after the answer" } else { "asked before the answer" });
    recorder.flush_time(Duration::ZERO)?;
    asking.write_all(b"stop\n")?;
    anyhow::ensure!(child.wait()?.success(), "the session failed");
    Ok(())
}

fn a_server(seed: u64, states: u64) -> Result<()> {
    let mut recorder = Recorder::start(&again()?, fresh()?)?;
    let device = recorder.attach()?;
    recorder.flush_time(Duration::from_micros(300))?;
    recorder.mark("begin")?;
    let mut acks = Acks::open(&recorder.acks())?;
    let (mut child, port) = start_server(device.path())?;
    let stream = connect(port)?;
    let mut answers = BufReader::new(stream.try_clone()?);
    for n in 0..CHANGES {
        (&stream).write_all(format!("{n:08}\n").as_bytes())?;
        let mut answer = String::new();
        answers.read_line(&mut answer)?;
        acks.say(answer.trim())?;
    }
    (&stream).write_all(b"stop\n")?;
    let status = child.wait()?;
    drop(device);
    let (base, events) = recorder.stop()?;
    anyhow::ensure!(status.success(), "the session: {status}");
    let recording = Recording { fs: FileSystem::Ext4Journal, base, events, said_before: Vec::new() };
    explore(&recording, &Answered, seed, states)
}

/// A program in a session sends each line of its log to the outside.
fn told_outside(kind: &str, seed: u64, states: u64) -> Result<()> {
    anyhow::ensure!(common::network_of_its_own(), "no network of its own");
    let mut recorder = Recorder::start(&again()?, fresh()?)?;
    let device = recorder.attach()?;
    recorder.flush_time(Duration::from_micros(300))?;
    recorder.mark("begin")?;
    let mut acks = Acks::open(&recorder.acks())?;
    let listener = TcpListener::bind((common::OUTSIDE4, 0))?;
    let address = listener.local_addr()?;
    let socket = UdpSocket::bind(address)?;
    let dir = work()?;
    let mut command = common::xsync();
    command.arg("--volume").arg(device.path()).arg("--").arg(dir.join("probe"));
    command.args(["tell", kind, &address.to_string(), "/data/log", &CHANGES.to_string()]);
    let mut child = command.current_dir(&dir).stdin(Stdio::null()).stdout(Stdio::null()).spawn()?;
    match kind {
        "tcp" => {
            let (stream, _) = listener.accept()?;
            for line in BufReader::new(stream.try_clone()?).lines() {
                acks.say(&line?)?;
                (&stream).write_all(b"!")?;
            }
        }
        "connect" => {
            for n in 0..CHANGES {
                let (mut stream, _) = listener.accept()?;
                acks.say(&format!("{n:08}"))?;
                stream.write_all(b"!")?;
            }
        }
        _ => {
            let mut line = [0; 9];
            for _ in 0..CHANGES {
                let (_, from) = socket.recv_from(&mut line)?;
                acks.say(std::str::from_utf8(&line)?.trim())?;
                socket.send_to(b"!", from)?;
            }
        }
    }
    let status = child.wait()?;
    drop(device);
    let (base, events) = recorder.stop()?;
    anyhow::ensure!(status.success(), "the session: {status}");
    let recording = Recording { fs: FileSystem::Ext4Journal, base, events, said_before: Vec::new() };
    explore(&recording, &Answered, seed, states)
}

/// A check: the server's log has every acknowledged line, and no other text.
struct Answered;

impl Check for Answered {
    fn check(&self, dir: &Path, said: &[String]) -> Result<(), String> {
        let log = match fs::read_to_string(dir.join("data/log")) {
            Err(_) if said.is_empty() => return Ok(()),
            read => read.map_err(|e| format!("{} lines were answered: {e}", said.len()))?,
        };
        let right = log.lines().enumerate().all(|(n, line)| line == format!("{n:08}"));
        match right && log.lines().count() >= said.len() {
            true => Ok(()),
            false => Err(format!("{} lines were answered, and the log is {log:?}", said.len())),
        }
    }
}

fn in_an_image(fs: &str, seed: u64, states: u64) -> Result<()> {
    struct Session(u64);
    impl Program for Session {
        fn prepare(&self, dir: &Path) -> Result<()> {
            untorn_xsync::volumes::volume::Image::create(&dir.join("volume.img"), BYTES, Use::Servers).map(drop)
        }
        fn run(&self, dir: &Path, acks: &Path) -> Result<()> {
            let output = session(&dir.join("volume.img"), self.0, acks)?.output()?;
            if !output.status.success() {
                bail!("the session: {} {}", output.status, String::from_utf8_lossy(&output.stderr));
            }
            Ok(())
        }
    }
    let fs: FileSystem = fs.parse().map_err(anyhow::Error::msg)?;
    let recording = record(&again()?, fs, fs.make(0)?, Vec::new(), &Session(seed), Recorded::default())?;
    explore(&recording, &Told { seed, image: Some(watch::directory("image")?) }, seed, states)
}

/// The session must end, and the disk must have all data that were shown.
fn failing(what: &str, n: u64) -> Result<()> {
    let trouble = match what {
        "writes" => Trouble::Writes,
        "flushes" => Trouble::Flushes,
        _ => Trouble::Cache,
    };
    let mut recorder = Recorder::start(&again()?, fresh()?)?;
    let device = recorder.attach()?;
    let dir = work()?;
    let mut command = common::xsync();
    command.arg("--volume").arg(device.path()).arg("--").arg(dir.join("probe"));
    command.args(["append", "/data/log", "1000000"]).current_dir(&dir).stdin(Stdio::null());
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?;
    let (mut from, mut shown) = (child.stdout.take().expect("piped"), Vec::new());
    // The disk fails after some lines have been shown.
    let mut piece = [0; 4096];
    while shown.len() < 2000 {
        let read = std::io::Read::read(&mut from, &mut piece)?;
        shown.extend_from_slice(&piece[..read]);
    }
    if trouble == Trouble::Cache {
        recorder.remember()?;
    }
    recorder.fail(trouble, n)?;
    std::io::Read::read_to_end(&mut from, &mut shown)?;
    let output = child.wait_with_output()?;
    let error = String::from_utf8_lossy(&output.stderr).into_owned();
    recorder.heal()?;
    drop(device);
    let image = recorder.image()?;
    let lines = String::from_utf8_lossy(&shown).lines().count();
    let log =
        Bench::new()?.with(FileSystem::Ext4Journal, &image, |dir| fs::read_to_string(dir.join("data/log")))???;
    let kept = log.lines().enumerate().take_while(|(n, line)| *line == format!("{n:08}")).count();
    if output.status.code() == Some(125) && error.contains("its volume failed") && kept >= lines && lines < 1_000_000 {
        say(&format!("ended as it should: {lines} lines shown, {kept} kept"));
    } else {
        say(&format!("{}: {lines} lines shown, {kept} kept: {error}", output.status));
    }
    Ok(())
}

/// Makes writes fail only while the kernel writes data from the journal to their places.
fn in_place() -> Result<()> {
    let mut recorder = Recorder::start(&again()?, fresh()?)?;
    let device = recorder.attach()?;
    let script = "for i in 1 2 3 4 5 6 7 8 9; do echo $i > /data/f$i; done; echo first; read go; \
                  echo more > /data/other; echo second";
    let mut command = common::xsync();
    command.arg("--volume").arg(device.path()).args(["--", "sh", "-c", script]).current_dir(work()?);
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?;
    let mut from = BufReader::new(child.stdout.take().expect("piped"));
    let mut shown = String::new();
    from.read_line(&mut shown)?;
    let first = first_process(&child)?;
    recorder.fail(Trouble::Writes, 0)?;
    let mut flushed = Vec::new();
    for n in 1..=9 {
        let file = File::open(format!("/proc/{first}/root/data/f{n}"))?;
        let flags = libc::SYNC_FILE_RANGE_WAIT_BEFORE | libc::SYNC_FILE_RANGE_WRITE | libc::SYNC_FILE_RANGE_WAIT_AFTER;
        // SAFETY: writes the pages of a file that is open, and not the journal.
        flushed.push(unsafe { libc::sync_file_range(file.as_raw_fd(), 0, 0, flags) });
    }
    recorder.heal()?;
    let _ = child.stdin.take().expect("piped").write_all(b"go\n");
    std::io::Read::read_to_string(&mut from, &mut shown)?;
    let output = child.wait_with_output()?;
    let error = String::from_utf8_lossy(&output.stderr).into_owned();
    let code = output.status.code().unwrap_or(-1);
    say(&format!("ended by code {code}, shown {shown:?}; the flush: {flushed:?}; {error}"));
    Ok(())
}
