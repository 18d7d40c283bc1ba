//! The test of the paper for sessions on a directory (`--on`).
//!
//! After a power cut, everything must be there that an outside observer was told, or has read from a file in the
//! directory. For sessions without an invariant, the tests must fail (`invariants.rs`).

mod common;

use anyhow::{Result, bail};
use common::example;
use common::told::{CHANGES, Told, explore};
use std::fs::{self, OpenOptions};
use std::io::Read as _;
use std::net::UdpSocket;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;
use untorn_crashlab::device::watch::{self, say};
use untorn_crashlab::device::{Acks, Again, FileSystem, Recorder, serve_if_asked};
use untorn_crashlab::replay::{Check, Recording};
use untorn_os::holds;
use untorn_testkit::{NOBODY, seed, test_path, variable_or};
use untorn_xsync::invariant::DATA_IN_THE_JOURNAL;

const BYTES: u64 = 64 << 20;
/// The number of lines that the program appends to its log.
const LINES: u64 = 20_000;

/// Runs devices and workers, which are other processes of these tests. It does nothing in a normal run.
#[test]
fn part() {
    serve_if_asked();
    watch::work_if_asked(|job| {
        let words: Vec<_> = job.split(' ').collect();
        match words[..] {
            [watch::PROBE] => watch::try_mount(&Again::test(&test_path!("part"))?),
            ["told", user, seed, states] => told(user.parse()?, seed.parse()?, states.parse()?),
            ["sent", user, seed, states] => sent(user.parse()?, seed.parse()?, states.parse()?),
            ["read", user, seed, states] => read(user.parse()?, seed.parse()?, states.parse()?),
            _ => bail!("no such job: {job}"),
        }
    });
}

/// The number of violations that a worker finds. None, with a message, if the test cannot run here.
fn violations(job: &str, states: u64) -> Option<usize> {
    let again = Again::test(&test_path!("part")).expect("this program");
    if !common::cuts_are_possible(&again) {
        return None;
    }
    let seed = seed();
    let mut found = 0;
    let done = watch::supervise(&again, &format!("{job} {seed} {states}"), common::LIMITS, |line| {
        if line != "." {
            println!("{line}");
        }
        found += usize::from(line.starts_with("VIOLATION"));
    });
    done.unwrap_or_else(|e| panic!("{job}: {e}"));
    Some(found)
}

fn states() -> u64 {
    variable_or("UNTORN_XSYNC_STATES", 150)
}

#[test]
fn nothing_that_was_shown_is_lost() {
    for user in [0, NOBODY] {
        assert!(violations(&format!("told {user}"), states() / 2).is_none_or(|found| found == 0), "user {user}");
    }
}

#[test]
fn nothing_that_an_outsider_has_read_is_lost() {
    for user in [0, NOBODY] {
        assert!(violations(&format!("read {user}"), states() / 3).is_none_or(|found| found == 0), "user {user}");
    }
}

/// Datagrams from sessions of root and of an ordinary user.
#[test]
fn nothing_that_was_sent_is_lost() {
    for user in [0, NOBODY] {
        assert!(violations(&format!("sent {user}"), states() / 3).is_none_or(|found| found == 0), "user {user}");
    }
}

// The following functions run in workers.

/// A recorded disk with a directory for a user, on which a session runs.
struct Stage {
    recorder: Recorder,
    at: PathBuf,
    watcher: Option<common::Session>,
}

impl Stage {
    fn begin(user: u32) -> Result<(Stage, untorn_crashlab::device::Loop)> {
        let mut recorder = Recorder::start(&Again::test(&test_path!("part"))?, FileSystem::Ext4Journal.make(BYTES)?)?;
        let (device, at) = (recorder.attach()?, watch::directory("on")?);
        let mounted = if holds(DATA_IN_THE_JOURNAL) { FileSystem::Ext4Journal } else { FileSystem::Ext4 };
        mounted.mount(device.path(), &at)?;
        let data = at.join("data");
        fs::create_dir(&data)?;
        std::os::unix::fs::chown(&data, Some(user), Some(user))?;
        let watcher = match user {
            0 => None,
            _ => {
                let mut command = common::xsync();
                let mut watcher = common::Session::start(command.arg("--watch").arg(&at).stderr(Stdio::piped()));
                std::io::Read::read_exact(watcher.stderr.as_mut().expect("piped"), &mut [0; 13])?;
                Some(watcher)
            }
        };
        recorder.flush_time(Duration::from_micros(300))?;
        recorder.mark("begin")?;
        Ok((Stage { recorder, at, watcher }, device))
    }

    /// A session with the program `probe`, as a user.
    fn session(&self, user: u32, words: &[&str]) -> Result<Command> {
        // The working directory is outside of the disk, and the session sees it.
        let dir = watch::directory("work")?;
        fs::copy(example("probe"), dir.join("probe"))?;
        let mut command = common::xsync();
        command.arg("--on").arg(self.at.join("data")).arg("--").arg(dir.join("probe"));
        command.args(words).uid(user).gid(user).env_remove("XDG_RUNTIME_DIR").current_dir(&dir);
        command.stdin(Stdio::null()).stderr(Stdio::piped());
        Ok(command)
    }

    fn end(self, device: untorn_crashlab::device::Loop) -> Result<Recording> {
        drop(self.watcher);
        rustix::mount::unmount(&self.at, rustix::mount::UnmountFlags::empty())?;
        drop(device);
        let (base, events) = self.recorder.stop()?;
        Ok(Recording { fs: FileSystem::Ext4Journal, base, events, said_before: Vec::new() })
    }
}

fn told(user: u32, seed: u64, states: u64) -> Result<()> {
    let (stage, device) = Stage::begin(user)?;
    let data = stage.at.join("data").display().to_string();
    let words = ["mixed", &data, &CHANGES.to_string(), &seed.to_string()];
    let acks = OpenOptions::new().append(true).open(stage.recorder.acks())?;
    let output = stage.session(user, &words)?.stdout(acks).output()?;
    if !output.status.success() {
        bail!("the session: {} {}", output.status, String::from_utf8_lossy(&output.stderr));
    }
    let recording = stage.end(device)?;
    let lines = recording.said(recording.events.len()).len() as u64;
    if lines <= CHANGES {
        bail!("{lines} lines were shown, of {CHANGES} changes and the end");
    }
    explore(&recording, &Told { seed, image: None }, seed, states)
}

/// The session prints nothing. An outside process reads its log again and again.
fn read(user: u32, seed: u64, states: u64) -> Result<()> {
    let (stage, device) = Stage::begin(user)?;
    let log = stage.at.join("data/log");
    let words = ["append", &log.display().to_string(), &LINES.to_string()];
    let mut session = stage.session(user, &words)?.stdout(Stdio::null()).spawn()?;
    let (mut acks, mut looks) = (Acks::open(&stage.recorder.acks())?, 0);
    while session.try_wait()?.is_none() {
        if !log.exists() {
            continue;
        }
        let lines = fs::read_to_string(&log).map_or(0, |text| text.matches('\n').count());
        acks.say(&format!("read {lines}"))?;
        looks += 1;
    }
    let status = session.wait_with_output()?;
    if !status.status.success() {
        bail!("the session: {} {}", status.status, String::from_utf8_lossy(&status.stderr));
    }
    say(&format!("{looks} looks at the log"));
    explore(&stage.end(device)?, &Read, seed, states)
}

/// The session sends each line of its log to an outside process, which answers.
fn sent(user: u32, seed: u64, states: u64) -> Result<()> {
    anyhow::ensure!(common::network_of_its_own(), "no network of its own");
    let (stage, device) = Stage::begin(user)?;
    let socket = UdpSocket::bind((common::OUTSIDE4, 0))?;
    let (address, log) = (socket.local_addr()?.to_string(), stage.at.join("data/log").display().to_string());
    let words = ["tell", "udp", &address, &log, &CHANGES.to_string()];
    let mut session = common::Session::start(stage.session(user, &words)?.stdout(Stdio::null()));
    let (mut acks, mut line) = (Acks::open(&stage.recorder.acks())?, [0; 9]);
    socket.set_read_timeout(Some(Duration::from_secs(50)))?;
    for n in 1..=CHANGES {
        let (_, from) = socket.recv_from(&mut line)?;
        acks.say(&format!("read {n}"))?;
        socket.send_to(b"!", from)?;
    }
    let (mut told, status) = (String::new(), session.wait()?);
    session.stderr.take().expect("piped").read_to_string(&mut told)?;
    anyhow::ensure!(status.success(), "the session: {status} {told}");
    explore(&stage.end(device)?, &Read, seed, states)
}

/// A check: the log has at least the lines that were read.
struct Read;

impl Check for Read {
    fn check(&self, dir: &Path, said: &[String]) -> Result<(), String> {
        let read = said.iter().filter_map(|line| line.strip_prefix("read ")?.parse::<usize>().ok()).max().unwrap_or(0);
        let log = fs::read_to_string(dir.join("data/log")).unwrap_or_default();
        let kept = log.lines().enumerate().take_while(|(n, line)| *line == format!("{n:08}")).count();
        if kept >= read { Ok(()) } else { Err(format!("{read} lines were read, and {kept} are there")) }
    }
}
