//! Figure 3 of *Rethink the Sync*: which ways to write keep a line, through a power cut, that an observer outside was
//! told of.
//!
//! The disk loses writes that were not flushed, in any combination. The test prints the matrix.

mod common;

use anyhow::{Result, bail};
use common::example;
use common::told::explore;
use std::fs::{self, OpenOptions};
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;
use untorn_crashlab::device::watch::{self, say};
use untorn_crashlab::device::{Acks, Again, FileSystem, Recorder, serve_if_asked};
use untorn_crashlab::replay::{Check, Program, Recorded, Recording, record};
use untorn_testkit::{seed, test_path, variable_or};
use untorn_xsync::volumes::volume::{Image, Use};

const LINES: u64 = 40;
const VOLUME_BYTES: u64 = 40 << 20;
/// The row of a session.
const SESSION: &str = "write in a session";

/// The ways to append a line before the observer is told.
const NATIVELY: [&str; 3] = ["write", "write with O_SYNC", "write and fsync"];

/// The file systems, and whether each of these ways keeps lines on it.
const EXPECTED: [(FileSystem, [bool; 3]); 3] = [
    (FileSystem::Ext4, [false, true, true]),
    (FileSystem::Ext4Journal, [false, true, true]),
    (FileSystem::Ext4NoBarrier, [false, false, false]),
];

/// Runs devices and workers, which are other processes of these tests. It does nothing in a normal run.
#[test]
fn part() {
    serve_if_asked();
    watch::work_if_asked(|job| {
        let words: Vec<_> = job.split('/').collect();
        match words[..] {
            [watch::PROBE] => watch::try_mount(&again()?),
            [SESSION, states] => in_a_session(states.parse()?),
            [fs, how, states] => {
                let fs: FileSystem = fs.parse().map_err(anyhow::Error::msg)?;
                let how = NATIVELY.iter().position(|name| *name == how).expect("a way");
                let plain = Recorded { flush_time: Duration::from_micros(300), others_flush: None };
                let recording = record(&again()?, fs, fs.make(0)?, Vec::new(), &Appends(how), plain)?;
                explore(&recording, &Kept, seed(), states.parse()?)
            }
            _ => bail!("no such job: {job}"),
        }
    });
}

fn again() -> Result<Again> {
    Ok(Again::test(&test_path!("part"))?)
}

/// Whether no crash state lacks a line that was told.
fn keeps(job: &str) -> bool {
    let states = variable_or("UNTORN_XSYNC_STATES", 150) / 3;
    let mut found = 0;
    let done = watch::supervise(&again().expect("this program"), &format!("{job}/{states}"), common::LIMITS, |line| {
        let is_violation = line.starts_with("VIOLATION");
        found += usize::from(is_violation);
        if !is_violation && line != "." {
            println!("{line}");
        }
    });
    done.unwrap_or_else(|e| panic!("{job}: {e}"));
    found == 0
}

#[test]
fn a_session_keeps_lines_like_durable_writes() {
    if !common::cuts_are_possible(&again().expect("this program")) {
        return;
    }
    let mut wrong = Vec::new();
    let mut told = |name: String, expected: bool, job: &str| {
        let keeps = keeps(job);
        println!("{name:<40} {}", if keeps { "yes" } else { "no" });
        if keeps != expected {
            wrong.push(name);
        }
    };
    for (fs, expected) in EXPECTED {
        for (how, expected) in NATIVELY.into_iter().zip(expected) {
            told(format!("{how}, {}", fs.name()), expected, &format!("{}/{how}", fs.name()));
        }
    }
    told(SESSION.to_owned(), true, SESSION);
    assert!(wrong.is_empty(), "{wrong:?}");
}

/// Appends numbers as lines, and tells each.
struct Appends(usize);

impl Program for Appends {
    fn prepare(&self, dir: &Path) -> Result<()> {
        Ok(fs::create_dir(dir.join("data"))?)
    }

    fn run(&self, dir: &Path, acks: &Path) -> Result<()> {
        let mut acks = Acks::open(acks)?;
        let flags = if self.0 == 1 { libc::O_SYNC } else { 0 };
        let mut log = OpenOptions::new().append(true).create(true).custom_flags(flags).open(dir.join("data/log"))?;
        if self.0 == 2 {
            fs::File::open(dir.join("data"))?.sync_all()?;
        }
        for n in 0..LINES {
            log.write_all(format!("{n:08}\n").as_bytes())?;
            if self.0 == 2 {
                log.sync_all()?;
            }
            acks.say(&format!("{n:08}"))?;
        }
        Ok(())
    }
}

fn in_a_session(states: u64) -> Result<()> {
    let volume = watch::directory("fresh")?.join("volume.img");
    drop(Image::create(&volume, VOLUME_BYTES, Use::Servers)?);
    let base = untorn_crashlab::device::Image::load(&fs::File::open(&volume)?)?;
    let mut recorder = Recorder::start(&again()?, base)?;
    let device = recorder.attach()?;
    recorder.flush_time(Duration::from_micros(300))?;
    recorder.mark("begin")?;
    let dir = watch::directory("work")?;
    fs::copy(example("probe"), dir.join("probe"))?;
    let mut command = common::xsync();
    command.arg("--volume").arg(device.path()).arg("--").arg(dir.join("probe"));
    command.args(["append", "/data/log", &LINES.to_string()]).current_dir(&dir).stdin(Stdio::null());
    let acks = OpenOptions::new().append(true).open(recorder.acks())?;
    let output = command.stdout(acks).stderr(Stdio::piped()).output()?;
    drop(device);
    let (base, events) = recorder.stop()?;
    anyhow::ensure!(output.status.success(), "the session: {}", String::from_utf8_lossy(&output.stderr));
    say("recorded");
    let recording = Recording { fs: FileSystem::Ext4Journal, base, events, said_before: Vec::new() };
    explore(&recording, &Kept, seed(), states)
}

/// A check: the log has every line that was told.
struct Kept;

impl Check for Kept {
    fn check(&self, dir: &Path, said: &[String]) -> Result<(), String> {
        let log = fs::read_to_string(dir.join("data/log")).unwrap_or_default();
        // Lines of a number each; the last one in a session tells the program's end.
        let told = said.iter().filter(|line| line.parse::<u64>().is_ok()).count();
        let kept = log.lines().enumerate().take_while(|(n, line)| *line == format!("{n:08}")).count();
        match kept >= told {
            true => Ok(()),
            false => Err(format!("{told} lines were told, {kept} are kept")),
        }
    }
}
