//! Real disks that fail and recover, and real file systems that are full.
//!
//! A program of Untorn's runs on a disk that fails from some write or flush on. After a failed flush nothing is
//! acknowledged any more, even when the disk works again and a second flush succeeds. Nothing acknowledged is lost. The
//! commit that the store shows when it is opened again stays after the file system's cache is dropped.
//!
//! `UNTORN_FAULT_SECONDS` limits the time for each file system, `UNTORN_TEST_SEED` chooses programs and places.

use anyhow::{Context, Result, bail};
use rustix::fs::{FallocateFlags, fallocate};
use std::fs::File;
use std::path::Path;
use std::sync::OnceLock;
use std::time::{Duration, Instant};
use untorn::Store;
use untorn_crashlab::device::watch::{self, Limits, say};
use untorn_crashlab::device::{Again, Event, FileSystem, Image, Recorder, Trouble, serve_if_asked, unmount_now};
use untorn_crashlab::replay::{Check, Program, seed_of};
use untorn_crashlab::workloads::{Ended, FLAVOURS, Managed, settled};
use untorn_testkit::{seed, test_path, variable_or};

/// The number of commits of a program; that gives enough places where a disk can fail.
const COMMITS: usize = 12;
const TROUBLES: [Trouble; 3] = [Trouble::Writes, Trouble::Flushes, Trouble::Cache];
/// The number of rounds after which the test ends, even on the slowest machine.
const ROUNDS_MAX: u64 = 30;
/// The most room that is left on a full disk.
const ROOM_BYTES_MAX: u64 = 1 << 20;
const VIOLATION: &str = "VIOLATION ";

fn again() -> Result<Again> {
    Ok(Again::test(&test_path!("part"))?)
}

/// The entry of the other processes of these tests: devices and workers. Does nothing by itself.
#[test]
fn part() {
    serve_if_asked();
    watch::work_if_asked(|job| {
        let words: Vec<_> = job.split(' ').collect();
        match words[..] {
            [watch::PROBE] => watch::try_mount(&again()?),
            [what, fs, seed, seconds] => {
                let fs = fs.parse().map_err(anyhow::Error::msg)?;
                let deadline = Instant::now() + Duration::from_secs(seconds.parse()?);
                match what {
                    "faults" => faults(fs, seed.parse()?, deadline),
                    "full" => full(fs, seed.parse()?, deadline),
                    "again" => again_after_failure(fs),
                    _ => bail!("no such job: {job}"),
                }
            }
            _ => bail!("no such job: {job}"),
        }
    });
}

/// Runs a job in a worker, if that is possible here.
fn watched(what: &str, fs: FileSystem) {
    static PROBED: OnceLock<Option<String>> = OnceLock::new();
    let programs = [fs.mkfs(), FileSystem::Ext4.mkfs()];
    let missing = watch::missing(&programs)
        .or_else(|| PROBED.get_or_init(|| watch::probe(&again().expect("this program"))).clone());
    if let Some(why) = missing {
        println!("skipped: {why}");
        return;
    }
    let (seed, seconds): (_, u64) = (seed(), variable_or("UNTORN_FAULT_SECONDS", 8));
    let limits = Limits { whole: Duration::from_secs(seconds + 60), silence: Duration::from_secs(45) };
    let mut violations = 0;
    let job = format!("{what} {fs} {seed} {seconds}");
    let done = watch::supervise(&again().expect("this program"), &job, limits, |line| {
        violations += u64::from(line.starts_with(VIOLATION));
        if line != "." {
            println!("{}", line.replace('\u{2028}', "\n"));
        }
    });
    done.unwrap_or_else(|e| panic!("{job}: {e}"));
    assert_eq!(violations, 0);
}

#[test]
fn a_failing_disk_under_ext4() {
    watched("faults", FileSystem::Ext4);
}

#[test]
fn a_failing_disk_under_xfs() {
    watched("faults", FileSystem::Xfs);
}

#[test]
fn a_failing_disk_under_btrfs() {
    watched("faults", FileSystem::Btrfs);
}

#[test]
fn a_full_disk_under_ext4() {
    watched("full", FileSystem::Ext4);
}

#[test]
fn a_full_disk_under_xfs() {
    watched("full", FileSystem::Xfs);
}

#[test]
fn a_full_disk_under_btrfs() {
    watched("full", FileSystem::Btrfs);
}

/// A data file's new blocks could not be written; then the disk works again, and the second checkpoint succeeds. ext4
/// takes such blocks for written, even if they are overwritten from its cache.
#[test]
fn a_checkpoint_that_failed_is_done_again_under_ext4() {
    watched("again", FileSystem::Ext4);
}

#[test]
fn a_checkpoint_that_failed_is_done_again_under_xfs() {
    watched("again", FileSystem::Xfs);
}

#[test]
fn a_checkpoint_that_failed_is_done_again_under_btrfs() {
    watched("again", FileSystem::Btrfs);
}

// The functions below run in workers.

fn again_after_failure(fs: FileSystem) -> Result<()> {
    let base = fs.make(0)?;
    let whole = vec![7; 50_000];
    // A few files are flushed one by one, many at once.
    for (files, by_recovery) in [(1, false), (1, true), (20, false), (20, true)] {
        let at = watch::directory("again")?;
        let mut recorder = Recorder::start(&again()?, base.clone())?;
        let device = recorder.attach()?;
        fs.mount(device.path(), &at)?;
        let store = Store::open_or_create(at.join("store"))?;
        let handles =
            (0..files).map(|n| store.open_or_create_file(format!("file-{n}"))).collect::<Result<Vec<_>, _>>()?;
        store.checkpoint()?;
        rustix::fs::syncfs(File::open(&at)?)?;
        handles.iter().try_for_each(|file| file.write_all_at(&whole, 0))?;
        store.syncv(&handles.iter().collect::<Vec<_>>())?;
        recorder.fail(Trouble::Writes, 1)?;
        let first = store.checkpoint();
        let name = format!("{fs}, {files} files, by {}", if by_recovery { "recovery" } else { "the same owner" });
        if first.is_ok() {
            bail!("{name}: the checkpoint noticed nothing");
        }
        if by_recovery {
            // Closing tries the checkpoint, too.
            let _ = store.clone().close();
        }
        recorder.heal()?;
        drop(handles);
        let second = if by_recovery {
            drop(store);
            Store::open_or_create(at.join("store")).and_then(Store::close)
        } else {
            store.checkpoint().and_then(|()| store.close())
        };
        unmount_now(&at)?;
        fs.mount(device.path(), &at)?;
        if second.is_err() {
            // The file system has shut itself down, so this is left to the next opening.
            Store::open_or_create(at.join("store"))?.close()?;
        }
        for n in 0..files {
            let found = std::fs::read(at.join("store").join(format!("file-{n}")))?;
            if found != whole {
                let wrong = found.iter().filter(|b| **b != 7).count() + whole.len() - found.len().min(whole.len());
                say(&format!("{VIOLATION}{name}: {second:?}, and {wrong} bytes of file-{n} are lost"));
                break;
            }
        }
        unmount_now(&at)?;
        drop(device);
        recorder.stop()?;
        say(&format!("{name}: first `{}`, then {}", first.expect_err("seen above"), text_of(&second)));
    }
    Ok(())
}

fn text_of(done: &untorn::Result<()>) -> String {
    done.as_ref().map_or_else(|e| format!("`{e}`, and well when mounted again"), |()| "well".to_owned())
}

/// The totals of all rounds.
#[derive(Default)]
struct Totals {
    runs: u64,
    /// Runs in which the program got an error for the failure.
    told: u64,
    /// Runs in which the journal failed, and nothing was acknowledged from then on.
    refusing: u64,
    /// Runs in which the file system had to be mounted again before the store could be opened.
    remounted: u64,
    /// Runs after which the file system could not be mounted any more.
    lost: u64,
}

fn faults(fs: FileSystem, seed: u64, deadline: Instant) -> Result<()> {
    let base = fs.make(0)?;
    let mut totals = Totals::default();
    for round in 0.. {
        // Every kind of trouble at least once, and at least one error, however slow the machine.
        let enough = round >= 3 && totals.told > 0 || round >= ROUNDS_MAX;
        if enough && Instant::now() >= deadline {
            break;
        }
        let seed = seed_of(seed, round);
        let flavour = FLAVOURS[(round / 3) as usize % FLAVOURS.len()];
        let trouble = TROUBLES[(round % 3) as usize];
        let program = Managed::short(flavour, seed % 1_000_000, COMMITS);
        let name = format!("{fs}, program untorn/{}/{}, {trouble:?}", flavour.name(), seed % 1_000_000);
        let place = fail_once(fs, &base, &program, trouble, seed, &mut totals).with_context(|| name.clone())?;
        if let Err((place, why)) = place {
            say(&format!("{VIOLATION}{name} failing from number {place} on: {why}"));
        }
        say(".");
    }
    let Totals { runs, told, refusing, remounted, lost } = totals;
    say(&format!(
        "{fs}: {runs} runs on a failing disk; the program was told in {told}, the journal had failed in {refusing}, \
         the file system was mounted again first in {remounted}, and was lost itself in {lost}"
    ));
    if told == 0 || lost == runs {
        bail!("too little happened to prove anything");
    }
    Ok(())
}

type Found = Result<(), (u64, String)>;

fn fail_once(
    fs: FileSystem,
    base: &Image,
    program: &Managed,
    trouble: Trouble,
    seed: u64,
    totals: &mut Totals,
) -> Result<Found> {
    let at = watch::directory("failing")?;
    let mut recorder = Recorder::start(&again()?, base.clone())?;
    recorder.remember()?;
    let device = recorder.attach()?;
    fs.mount(device.path(), &at)?;
    program.prepare(&at)?;
    rustix::fs::syncfs(File::open(&at)?)?;
    // A program makes about this many requests; the later places are rarer.
    let most = if trouble == Trouble::Writes { 120 } else { 60 };
    let place = 1 + fastrand::Rng::with_seed(seed).u64(..most);
    recorder.fail(trouble, place)?;
    let acks = recorder.acks();
    let ended = program.run_on_failing_disk(&at, &acks, || recorder.heal())?;
    let failed = recorder.counts()?.failed;
    totals.runs += 1;
    if let Ended::Refused { refuses_on, .. } = &ended {
        if failed == 0 {
            return Ok(Err((place, format!("nothing failed, and yet: {}", text(&ended)))));
        }
        totals.told += 1;
        totals.refusing += u64::from(*refuses_on);
    }
    // The state that the store shows after reopening must still be there when nothing is cached any more.
    let said = |events: &[Event]| -> Vec<String> {
        events.iter().filter_map(|e| if let Event::Line(line) = e { Some(line.clone()) } else { None }).collect()
    };
    let mut lines = said(&recorder.events()?);
    match program.held(&at, &lines) {
        Ok(held) => lines.push(settled(held)),
        // The file system may have shut itself down.
        Err(why) if why.contains("cannot be") => totals.remounted += 1,
        Err(why) => return Ok(Err((place, format!("{}; then: {why}", text(&ended))))),
    }
    unmount_now(&at)?;
    if fs.mount(device.path(), &at).is_err() {
        totals.lost += 1;
        return Ok(Ok(()));
    }
    let found = program.check(&at, &lines);
    unmount_now(&at)?;
    drop(device);
    recorder.stop()?;
    Ok(found.map_err(|why| (place, format!("{}; after mounting again: {why}; said: {lines:?}", text(&ended)))))
}

fn text(ended: &Ended) -> String {
    match ended {
        Ended::Well => "the program noticed nothing".to_owned(),
        Ended::Refused { error, .. } => format!("the program was told `{error:#}`"),
    }
}

fn full(fs: FileSystem, seed: u64, deadline: Instant) -> Result<()> {
    let base = fs.make(0)?;
    let (mut runs, mut refused) = (0, 0);
    for round in 0.. {
        let enough = round >= 4 && refused > 0 || round >= ROUNDS_MAX;
        if enough && Instant::now() >= deadline {
            break;
        }
        let seed = seed_of(seed, round);
        let flavour = FLAVOURS[round as usize % FLAVOURS.len()];
        let program = Managed::short(flavour, seed % 1_000_000, COMMITS * 2);
        let room = fastrand::Rng::with_seed(seed).u64(..ROOM_BYTES_MAX);
        let name = format!("{fs}, program untorn/{}/{}, {room} bytes left", flavour.name(), seed % 1_000_000);
        match fill_once(fs, &base, &program, room).with_context(|| name.clone())? {
            Ok(told) => refused += u64::from(told),
            Err(why) => say(&format!("{VIOLATION}{name}: {why}")),
        }
        runs += 1;
        say(".");
    }
    say(&format!("{fs}: {runs} runs on a full file system; in {refused} the program was told that there is no room"));
    if refused == 0 {
        bail!("no disk was full");
    }
    Ok(())
}

/// Whether the program got an error; or a violation.
fn fill_once(fs: FileSystem, base: &Image, program: &Managed, room: u64) -> Result<Result<bool, String>> {
    let at = watch::directory("full")?;
    let recorder = Recorder::start(&again()?, base.clone())?;
    let device = recorder.attach()?;
    fs.mount(device.path(), &at)?;
    program.prepare(&at)?;
    let ballast = at.join("ballast");
    fill(&ballast, room)?;
    let ended = program.run_on_failing_disk(&at, &recorder.acks(), || Ok(std::fs::remove_file(&ballast)?))?;
    let lines: Vec<String> = recorder
        .events()?
        .into_iter()
        .filter_map(|e| if let Event::Line(line) = e { Some(line) } else { None })
        .collect();
    unmount_now(&at)?;
    fs.mount(device.path(), &at)?;
    let found = program.check(&at, &lines);
    unmount_now(&at)?;
    drop(device);
    recorder.stop()?;
    let told = matches!(ended, Ended::Refused { .. });
    Ok(found.map(|()| told).map_err(|why| format!("{}; then: {why}; said: {lines:?}", text(&ended))))
}

/// Fills the disk, and leaves about this much room.
fn fill(path: &Path, room: u64) -> Result<()> {
    let file = File::create(path)?;
    let (mut at, mut part) = (0, 64 << 20);
    while part >= 4096 {
        match fallocate(&file, FallocateFlags::empty(), at, part) {
            Ok(()) => at += part,
            Err(rustix::io::Errno::NOSPC) => part /= 2,
            Err(e) => return Err(e.into()),
        }
    }
    file.set_len(at.saturating_sub(room))?;
    Ok(file.sync_all()?)
}
