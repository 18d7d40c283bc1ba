//! The test of the paper for sessions of ordinary users with `--place`, on a recorded disk.
//!
//! Everything that was shown must be in the changes that `--resume` would apply. For sessions without an invariant, the
//! tests must fail (`invariants.rs`).

mod common;

use anyhow::{Context, Result, bail};
use common::example;
use common::told::{CHANGES, Told, explore};
use rustix::mount::{UnmountFlags, unmount};
use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;
use untorn_crashlab::device::watch::{self, say};
use untorn_crashlab::device::{Acks, Again, FileSystem, Loop, Recorder, Trouble, serve_if_asked};
use untorn_crashlab::replay::{Bench, Check, Recording};
use untorn_os::holds;
use untorn_testkit::{seed, test_path, variable_or};
use untorn_xsync::invariant::DATA_IN_THE_JOURNAL;
use untorn_xsync::view::on_directory::disk_of;

const BYTES: u64 = 64 << 20;
const USER: u32 = 12345;

/// Runs devices and workers, which are other processes of these tests. It does nothing in a normal run.
#[test]
fn part() {
    serve_if_asked();
    watch::work_if_asked(|job| {
        let words: Vec<_> = job.split(' ').collect();
        match words[..] {
            [watch::PROBE] => watch::try_mount(&Again::test(&test_path!("part"))?),
            ["told", seed, states] => told(seed.parse()?, states.parse()?),
            ["failing"] => failing(),
            _ => bail!("no such job: {job}"),
        }
    });
}

/// The number of violations that a worker finds. None, with a message, if the test cannot run here.
fn violations(states: u64) -> Option<usize> {
    if !possible() {
        return None;
    }
    let seed = seed();
    let said = watched(&format!("told {seed} {states}"));
    Some(said.iter().filter(|line| line.starts_with("VIOLATION")).count())
}

/// Runs a job in a worker. Returns the lines that it prints.
fn watched(job: &str) -> Vec<String> {
    let (again, mut said) = (Again::test(&test_path!("part")).expect("this program"), Vec::new());
    let done = watch::supervise(&again, job, common::LIMITS, |line| {
        if line != "." {
            println!("{line}");
            said.push(line.to_owned());
        }
    });
    done.unwrap_or_else(|e| panic!("{job}: {e}"));
    said
}

/// Whether the tests can run here. Prints a message if they cannot.
fn possible() -> bool {
    let again = Again::test(&test_path!("part")).expect("this program");
    let why = watch::missing(&[FileSystem::Ext4.mkfs()]).or_else(|| watch::probe(&again));
    if let Some(why) = &why {
        println!("skipped: {why}");
    }
    why.is_none() && common::Place::new().is_some() && example("probe").exists()
}

#[test]
fn nothing_that_was_shown_is_lost() {
    let states = variable_or("UNTORN_XSYNC_STATES", 150);
    assert!(violations(states).is_none_or(|found| found == 0));
}

/// Nothing more is shown, and the contents of the kernel's memory are saved.
#[test]
fn a_failing_disk_ends_the_session() {
    if possible() {
        let said = watched("failing");
        assert!(said.iter().any(|line| line == "as it should be"), "{said:?}");
    }
}

// The following functions run in workers.

/// A recorded disk with a place for a user, and a directory of the user's with the program `probe`.
struct Stage {
    recorder: Recorder,
    device: Loop,
    at: PathBuf,
    work: PathBuf,
}

impl Stage {
    fn begin() -> Result<Stage> {
        let mut recorder = Recorder::start(&Again::test(&test_path!("part"))?, FileSystem::Ext4Journal.make(BYTES)?)?;
        let (device, at, work) = (recorder.attach()?, watch::directory("on")?, watch::directory("work")?);
        let mounted = if holds(DATA_IN_THE_JOURNAL) { FileSystem::Ext4Journal } else { FileSystem::Ext4 };
        mounted.mount(device.path(), &at)?;
        let place = at.join("place");
        fs::create_dir(&place)?;
        fs::copy(example("probe"), work.join("probe"))?;
        for dir in [&place, &work] {
            std::os::unix::fs::chown(dir, Some(USER), Some(USER))?;
        }
        recorder.flush_time(Duration::from_micros(300))?;
        recorder.mark("begin")?;
        Ok(Stage { recorder, device, at, work })
    }

    /// A session as the user, in the user's directory.
    fn session(&self) -> Command {
        let mut command = common::xsync();
        command.arg("--place").arg(self.at.join("place"));
        command.uid(USER).gid(USER).env_remove("XDG_RUNTIME_DIR").current_dir(&self.work);
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        command
    }

    /// Waits until no process of the session is left, and ends the recording.
    fn end(self) -> Result<Recorder> {
        let mounted = Path::new("/proc/fs/ext4").join(disk_of(&self.at)?);
        unmount(&self.at, UnmountFlags::DETACH)?;
        // Processes of a killed session hold mounts of their own.
        while mounted.exists() {
            std::thread::sleep(Duration::from_millis(2));
        }
        drop(self.device);
        Ok(self.recorder)
    }
}

fn told(seed: u64, states: u64) -> Result<()> {
    let stage = Stage::begin()?;
    let mut acks = Acks::open(&stage.recorder.acks())?;
    let script = format!("./probe mixed . {CHANGES} {seed}; read nothing");
    let mut command = stage.session();
    command.args(["--", "sh", "-c", &script]);
    let mut session = common::Session::start(&mut command);
    let shown = BufReader::new(session.stdout.take().context("piped")?);
    let mut lines = 0;
    for line in shown.lines() {
        let line = line?;
        acks.say(&line)?;
        lines += 1;
        if line == "done" {
            break;
        }
    }
    if lines <= CHANGES {
        bail!("{lines} lines were shown, of {CHANGES} changes and the end");
    }
    // Nothing is applied, so the changes stay in the layers.
    drop(session);
    let (base, events) = stage.end()?.stop()?;
    let recording = Recording { fs: FileSystem::Ext4Journal, base, events, said_before: Vec::new() };
    explore(&recording, &Changes(Told { seed, image: None }), seed, states)
}

/// From some moment on, no write reaches the disk.
fn failing() -> Result<()> {
    let mut stage = Stage::begin()?;
    let saved = watch::directory("saved")?;
    std::os::unix::fs::chown(&saved, Some(USER), Some(USER))?;
    fs::write(stage.work.join("before"), "old")?;
    std::os::unix::fs::chown(stage.work.join("before"), Some(USER), Some(USER))?;
    let script = "echo new > before; echo ready; read go; i=0; while :; do echo line $i >> log; echo line $i; \
                  i=$((i+1)); done";
    let mut command = stage.session();
    command.arg("--rescue").arg(saved.join("here"));
    let mut session = common::Session::start(command.args(["--", "sh", "-c", script]).stderr(Stdio::piped()));
    session.stdout.as_mut().context("piped")?.read_exact(&mut [0; 6])?;
    stage.recorder.fail(Trouble::Writes, 40)?;
    drop(session.stdin.take());
    let (mut shown, mut told) = (String::new(), String::new());
    session.stdout.take().context("piped")?.read_to_string(&mut shown)?;
    session.stderr.take().context("piped")?.read_to_string(&mut told)?;
    let status = session.wait()?;
    stage.recorder.heal()?;
    let old = fs::read_to_string(stage.work.join("before"))?;
    let changed = format!("changed-0-{}", stage.work.file_name().unwrap_or_default().display());
    let recorder = stage.end()?;
    let kept = Bench::new()?.with(FileSystem::Ext4Journal, &recorder.image()?, |dir| {
        fs::read_to_string(upper(dir).join("log")).unwrap_or_default()
    })??;
    let log = fs::read_to_string(saved.join("here").join(&changed).join("log")).unwrap_or_default();
    let whole = kept.starts_with(&shown) && log.starts_with(&kept) && log.len() > shown.len() && !shown.is_empty();
    let said = told.contains("--resume") && told.contains("The disk never had these contents");
    if whole && said && status.code() == Some(125) && old == "old" {
        say("as it should be");
    } else {
        let (shown, kept, log) = (shown.len(), kept.len(), log.len());
        say(&format!("{}: {shown} bytes shown, {kept} kept, {log} saved, {old}; {told}", status));
    }
    Ok(())
}

/// A check of the files in a session's layers.
struct Changes(Told);

impl Check for Changes {
    fn check(&self, dir: &Path, said: &[String]) -> Result<(), String> {
        self.0.judge(&upper(dir), said)
    }
}

/// The upper layer of the only session on the disk.
fn upper(disk: &Path) -> PathBuf {
    let entries = fs::read_dir(disk.join("place")).into_iter().flatten().flatten();
    let mut homes = entries.map(|entry| entry.path()).filter(|path| path.extension().is_some_and(|e| e == "layers"));
    homes.next().unwrap_or_else(|| disk.join("none")).join("overlays/0/upper")
}
