//! The costs of a session: commits, keys at a terminal, start and end.

use super::runs;
use super::session::{Host, Setting, command, guest, wait};
use crate::measuring::bench_run::Run;
use crate::measuring::child::Job;
use crate::measuring::harness::timed;
use crate::report::section::{Row, Target, Waited};
use crate::report::statistics::{Measured, Ratio};
use anyhow::{Context, Result, ensure};
use rustix::pty::{OpenptFlags, openpt, ptsname, unlockpt};
use std::fs::{File, OpenOptions};
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

pub const NOTES: &[&str] = &[
    "A commit is fsync of the volume's directory, made here from outside, by the way that is open to root.",
    "A key goes through a terminal of the host to the session's, to the program, and back.",
    "Keys with a change have a limit of the commit's median and 1 ms.",
];

pub fn rows(run: &Run, setting: &Setting) -> Result<Vec<Row>> {
    let host = &setting.host;
    run.progress.cell("xsync: a session");
    let rounds = if run.quick { 1 } else { 5 };
    let count = if run.quick { 20 } else { 200 };
    let (clean, dirty) = commits("a session's volume", host, rounds, count)?;
    let commit_us = dirty.summary().median_us;
    let on_device = setting.on_device.as_ref().map(|host| commits("a session on a block device", host, rounds, count));
    let on_device = on_device.transpose()?.map(|(_, dirty)| dirty);
    let mut rows = vec![
        limited(run, "commit, nothing changed", &[&clean], Some(1.0)),
        limited(
            run,
            "commit, 32 B appended",
            &[Some(&dirty), on_device.as_ref()].into_iter().flatten().collect::<Vec<_>>(),
            None,
        ),
    ];
    for (cell, log, limit_us) in
        [("key, nothing changed", None, 300.0), ("key, one byte appended", Some("keys"), commit_us + 1000.0)]
    {
        let count = if run.quick { 10 } else { 100 };
        let inside = Job::EchoKeys { log: log.map(|name| Path::new("/data").join(name)) };
        let outside = Job::EchoKeys { log: log.map(|_| PathBuf::from("/dev/null")) };
        let session = host.on_volume(None, guest(&inside)?);
        let ours = keys("in a session", rounds, count, || command(&session))?;
        let peer = keys("without one, never flushed", rounds, count, || runs::outside(&outside))?;
        rows.push(limited(run, cell, &[&ours, &peer], Some(limit_us)));
    }
    let mut whole = Measured::new("in a session");
    for _ in 0..rounds {
        whole.begin_round();
        for _ in 0..if run.quick { 1 } else { 10 } {
            let session = host.on_volume(None, vec!["true".to_owned()]);
            whole.push(timed(|| wait(command(&session)?.spawn()?))?);
        }
    }
    rows.push(limited(run, "start and end", &[&whole], Some(50_000.0)));
    Ok(rows)
}

/// A row for a measurement with a limit.
fn limited(run: &Run, cell: &str, contenders: &[&Measured], limit_us: Option<f64>) -> Row {
    let ratio = limit_us.map(|limit_us| {
        let shares = contenders[0].round_medians_ns().into_iter().map(|ns| ns / 1e3 / limit_us);
        Ratio::of_rounds(&format!("limit of {limit_us} µs"), shares.collect())
    });
    let contenders = contenders.iter().map(|measured| measured.summary()).collect();
    let row = Row { cell: cell.to_owned(), load: "alone".to_owned(), contenders, ratio, ..Row::default() };
    row.against_target(limit_us.map(|_| Target::AtMost(1.0)), Waited::Allowed, run.quick)
}

/// Commits of a session's volume: without changes, and after a small change.
fn commits(name: &str, host: &Host, rounds: usize, count: usize) -> Result<(Measured, Measured)> {
    let session = host.on_volume(None, guest(&Job::EchoKeys { log: None })?);
    let mut child = command(&session)?.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
    let mut ready = [0];
    child.stdout.as_mut().expect("piped").read_exact(&mut ready)?;
    let volume = PathBuf::from(format!("/proc/{}/root/data", first_process(&child)?));
    let root = File::open(&volume).context("the session's volume")?;
    let mut log = OpenOptions::new().append(true).create(true).open(volume.join("log"))?;
    let (mut clean, mut dirty) = (Measured::new(name), Measured::new(name));
    for _ in 0..rounds {
        clean.begin_round();
        dirty.begin_round();
        for _ in 0..count {
            log.write_all(&[b'x'; 32])?;
            dirty.push(timed(|| root.sync_all())?);
            // A single clean commit is shorter than the clock can measure.
            const AT_ONCE: u32 = 100;
            let start = Instant::now();
            for _ in 0..AT_ONCE {
                root.sync_all()?;
            }
            clean.push(start.elapsed() / AT_ONCE);
        }
    }
    drop((root, log));
    child.stdin.take().expect("piped").write_all(b"q")?;
    wait(child)?;
    Ok((clean, dirty))
}

/// The process id, outside of the session, of its first process.
fn first_process(supervisor: &Child) -> Result<u32> {
    let tasks = std::fs::read_dir(format!("/proc/{}/task", supervisor.id()))?;
    for task in tasks.flatten() {
        let children = std::fs::read_to_string(task.path().join("children")).unwrap_or_default();
        if let Some(pid) = children.split_whitespace().next() {
            return Ok(pid.parse()?);
        }
    }
    anyhow::bail!("the session has no process")
}

/// Times from a key to its echo at a terminal.
fn keys(name: &str, rounds: usize, count: usize, start: impl Fn() -> Result<Command>) -> Result<Measured> {
    let mut measured = Measured::new(name);
    for _ in 0..rounds {
        measured.begin_round();
        let master = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC)?;
        unlockpt(&master)?;
        let slave = ptsname(&master, Vec::new())?;
        let slave = OpenOptions::new().read(true).write(true).open(slave.to_str()?)?;
        let child = start()?.stdin(slave.try_clone()?).stdout(slave).stderr(Stdio::inherit()).spawn()?;
        let mut master = File::from(master);
        let mut key = [0];
        while key[0] != b'!' {
            ensure!(master.read(&mut key)? == 1, "the terminal is closed");
        }
        for n in 0..count {
            let sent = [b'a' + (n % 16) as u8];
            let start = Instant::now();
            master.write_all(&sent)?;
            master.read_exact(&mut key)?;
            measured.push(start.elapsed());
            ensure!(key == sent, "another key came back");
            // A user types one key after another.
            std::thread::sleep(Duration::from_millis(2));
        }
        master.write_all(b"q")?;
        wait(child)?;
    }
    Ok(measured)
}
