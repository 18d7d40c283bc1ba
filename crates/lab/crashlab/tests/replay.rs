//! Crash states of real file systems: Untorn's own programs must survive all of them, and controls with a known mistake
//! must be found.
//!
//! `UNTORN_REPLAY_STATES` is the number of states for all file systems together, `UNTORN_REPLAY_SECONDS` limits the
//! time, `UNTORN_REPLAY_WORKERS` is the number of parallel workers per file system, `UNTORN_TEST_SEED` chooses programs
//! and states, `UNTORN_REPLAY_ONLY` a kind of program (`heap`), `UNTORN_REPLAY_CASE` repeats a violation.
//!
//! Workers make all calls that could hang, and are ended if they take too long.

use anyhow::{Context, Result, bail};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::OnceLock;
use std::time::{Duration, Instant};
use untorn_crashlab::device::watch::{self, Limits, say};
use untorn_crashlab::device::{Again, FileSystem, SOUND, serve_if_asked};
use untorn_crashlab::replay::{
    Bench, Check, Exploration, Program, Recorded, Recording, State, Totals, Verdict, Violation, explain, minimise,
    record, seed_of,
};
use untorn_crashlab::workloads::{Killed, Reopening, by_name, controls_of, in_turn, run_if_asked};
use untorn_testkit::{extent, seed, test_path, variable_or};

/// The time without a state after which a hung worker is ended.
const SILENCE: Duration = Duration::from_secs(60);
/// The time beyond a worker's own limit.
const GRACE: Duration = Duration::from_secs(60);
/// The states of a recording before the next one is made, unless `UNTORN_REPLAY_PER_RECORDING` sets another number.
const STATES_PER_RECORDING: u64 = 30;
const CONTROL_STATES: u64 = 40;
/// The number of workers per file system: a state takes long to mount, flush and unmount, but little processor time.
const WORKERS: u64 = 3;
/// The number of states that are checked to minimise a violation.
const TRIES: usize = 200;
/// Marks a violation among the lines of a worker.
const VIOLATION: &str = "VIOLATION ";

fn again() -> Result<Again> {
    Ok(Again::test(&test_path!("part"))?)
}

/// The entry of the other processes of these tests: devices and workers. Does nothing by itself.
#[test]
fn part() {
    serve_if_asked();
    run_if_asked();
    watch::work_if_asked(|job| {
        let words: Vec<_> = job.split(' ').collect();
        match words[..] {
            [watch::PROBE] => watch::try_mount(&again()?),
            ["hang"] => hang(),
            ["controls", fs, seed] => controls(parse(fs)?, seed.parse()?),
            ["managed", fs, seed, states, seconds] => {
                let deadline = Instant::now() + Duration::from_secs(seconds.parse()?);
                managed(parse(fs)?, seed.parse()?, states.parse()?, deadline)
            }
            ["case", ..] => case(job.strip_prefix("case ").expect("just matched")),
            _ => bail!("no such job: {job}"),
        }
    });
}

fn parse(fs: &str) -> Result<FileSystem> {
    fs.parse().map_err(anyhow::Error::msg)
}

/// Whether this is possible here; prints the reason if not.
fn possible(fs: &[FileSystem]) -> bool {
    static PROBED: OnceLock<Option<String>> = OnceLock::new();
    let programs: Vec<_> = fs.iter().map(|fs| fs.mkfs()).chain([FileSystem::Ext4.mkfs()]).collect();
    let why = watch::missing(&programs)
        .or_else(|| PROBED.get_or_init(|| watch::probe(&again().expect("this program"))).clone());
    if let Some(why) = &why {
        println!("skipped: {why}");
    }
    why.is_none()
}

/// Runs a job in a worker, and prints its lines.
fn watched(job: &str, seconds: u64) -> Vec<String> {
    let limits = Limits { whole: Duration::from_secs(seconds) + GRACE, silence: SILENCE };
    let mut violations = Vec::new();
    let done = watch::supervise(&again().expect("this program"), job, limits, |line| {
        let line = line.replace('\u{2028}', "\n");
        match line.strip_prefix(VIOLATION) {
            Some(text) => violations.push(text.to_owned()),
            None if line == "." => {}
            None => println!("{line}"),
        }
    });
    done.unwrap_or_else(|e| panic!("{job}: {e}"));
    violations
}

fn survives(fs: FileSystem) {
    let (states, seconds) =
        (variable_or("UNTORN_REPLAY_STATES", extent(800, 4000)), variable_or("UNTORN_REPLAY_SECONDS", 90));
    if !possible(&[fs]) {
        return;
    }
    let (seed, workers) = (seed(), variable_or("UNTORN_REPLAY_WORKERS", WORKERS));
    let share = u64::div_ceil(states, SOUND.len() as u64 * workers);
    let job = |nth: u64| {
        let seed = if nth == 0 { seed } else { seed_of(seed, nth << 32) };
        watched(&format!("managed {fs} {seed} {share} {seconds}"), seconds)
    };
    let violations: Vec<String> = std::thread::scope(|scope| {
        let running: Vec<_> = (0..workers).map(|nth| scope.spawn(move || job(nth))).collect();
        running.into_iter().flat_map(|worker| worker.join().expect("a worker's watchdog")).collect()
    });
    violations.iter().for_each(|text| println!("VIOLATION {text}\n"));
    assert!(violations.is_empty(), "{} violations", violations.len());
}

#[test]
fn untorn_survives_on_ext4() {
    survives(FileSystem::Ext4);
}

#[test]
fn untorn_survives_on_ext4_with_data_in_its_journal() {
    survives(FileSystem::Ext4Journal);
}

#[test]
fn untorn_survives_on_xfs() {
    survives(FileSystem::Xfs);
}

#[test]
fn untorn_survives_on_btrfs() {
    survives(FileSystem::Btrfs);
}

#[test]
fn programs_with_a_known_mistake_are_found() {
    let seed = seed();
    for fs in [FileSystem::Ext4, FileSystem::Ext4NoBarrier, FileSystem::Xfs, FileSystem::Btrfs] {
        if possible(&[fs]) {
            let missed = watched(&format!("controls {fs} {seed}"), 60);
            assert!(missed.is_empty(), "the laboratory is blind: {missed:?}");
        }
    }
}

/// A server that never answers, and the worker that waits for it, are ended.
#[test]
fn what_hangs_is_ended() {
    if !possible(&[FileSystem::Ext4]) {
        return;
    }
    // Long enough for a busy machine to reach the hang.
    let limits = Limits { whole: Duration::from_secs(120), silence: Duration::from_secs(10) };
    let mut said = Vec::new();
    let done = watch::supervise(&again().expect("this program"), "hang", limits, |line| said.push(line.to_owned()));
    assert_eq!(said, ["hanging"]);
    let stuck = done.expect_err("it hangs").to_string();
    assert!(stuck.ends_with("was ended"), "{stuck}");
}

/// Repeats a violation from its saved files: `UNTORN_REPLAY_CASE='recording workload state'`.
#[test]
fn again_one_case() {
    let Ok(case) = std::env::var("UNTORN_REPLAY_CASE") else { return };
    if possible(&SOUND) {
        let violations = watched(&format!("case {case}"), 600);
        violations.iter().for_each(|text| println!("{text}\n"));
        assert!(violations.is_empty(), "it is still there");
    }
}

// The functions below run in workers.

fn hang() -> Result<()> {
    struct Stop;
    impl Program for Stop {
        fn run(&self, dir: &Path, _: &Path) -> Result<()> {
            // A stopped device answers nobody any more.
            let me = std::process::id().to_string();
            let pids = Command::new("ps").args(["-o", "pid=", "--ppid", &me]).output()?;
            let pids = String::from_utf8(pids.stdout)?;
            for pid in pids.split_whitespace() {
                let _ = Command::new("kill").args(["-STOP", pid]).stderr(Stdio::null()).status();
            }
            say("hanging");
            std::fs::write(dir.join("file"), "text")?;
            Ok(std::fs::File::open(dir.join("file"))?.sync_all()?)
        }
    }
    let fs = FileSystem::Ext4;
    record(&again()?, fs, fs.make(0)?, Vec::new(), &Stop, Recorded::default()).map(drop)
}

fn how(seed: u64) -> Recorded {
    let flush_us = [50, 500, 200, 50, 5000, 100, 50, 10_000][(seed % 8) as usize];
    Recorded { flush_time: Duration::from_micros(flush_us), ..Recorded::default() }
}

fn controls(fs: FileSystem, seed: u64) -> Result<()> {
    let (base, mut bench) = (fs.make(0)?, Bench::new()?);
    for control in controls_of(fs) {
        let control = control.seeded(seed % 1000);
        let recording = record(&again()?, fs, base.clone(), Vec::new(), &control, Recorded::default())?;
        let states = CONTROL_STATES;
        let all = Exploration {
            recording: &recording,
            check: &control,
            seed,
            states,
            violations_max: usize::MAX,
            deadline: None,
        };
        let (totals, _) = all.run(&mut bench, |_| say("."))?;
        let (bad, name) = (totals.broken + totals.unmountable, control.name());
        say(&format!(
            "control {name} on {fs}: found in {bad} of {} states ({} of them could not be mounted)",
            totals.states, totals.unmountable
        ));
        if bad == 0 {
            say(&format!("{VIOLATION}{name} on {fs} was not found"));
        }
    }
    Ok(())
}

fn managed(fs: FileSystem, seed: u64, states: u64, deadline: Instant) -> Result<()> {
    let started = Instant::now();
    let per_recording = variable_or("UNTORN_REPLAY_PER_RECORDING", STATES_PER_RECORDING);
    let mut recorded = Duration::ZERO;
    let (base, mut bench) = (fs.make(0)?, Bench::new()?);
    let (mut totals, mut recordings, mut flushes) = (Totals::default(), 0, 0);
    let only = variable_or("UNTORN_REPLAY_ONLY", String::new());
    while totals.states < states && Instant::now() < deadline {
        let program_seed = seed_of(seed, recordings) % 1_000_000;
        let (name, program) = (recordings..recordings + 10)
            .map(|turn| in_turn(turn, program_seed))
            .find(|(name, _)| name.contains(&only))
            .with_context(|| format!("no program is of the kind {only}"))?;
        let begun = Instant::now();
        let recording = record(&again()?, fs, base.clone(), Vec::new(), &*program, how(recordings))
            .with_context(|| name.clone())?;
        recorded += begun.elapsed();
        let wanted = per_recording.min(states - totals.states);
        let mut look = |bench: &mut Bench, recording: &Recording, check: &dyn Check, states| -> Result<()> {
            let (more, flushed) = look_at(bench, recording, check, &name, program_seed, states, deadline)?;
            totals += more;
            flushes += flushed;
            Ok(())
        };
        look(&mut bench, &recording, &*program, wanted - 2 * (wanted / 3))?;
        // A killed process leaves its writes in the cache; the power is cut during the recovery.
        let lines = 1 + (program_seed % 60) as usize;
        let killed = Killed { of: &*program, name: &name, again: &again()?, lines };
        let begun = Instant::now();
        let second = record(&again()?, fs, base.clone(), Vec::new(), &killed, how(recordings))
            .with_context(|| format!("{name}, killed after {lines} lines"))?;
        recorded += begun.elapsed();
        look(&mut bench, &second, &*program, wanted / 3)?;
        // The recovery itself is interrupted: the state after one crash is recovered on the recording device.
        if let Some(state) = (0..100).find_map(|n| State::draw(&recording, seed_of(!program_seed, n))) {
            let disk = state.image(&recording, &recording.image(recording.flushed(state.cut)));
            let said = recording.said(state.cut);
            let verdict = bench.judge(&recording, state.cut, &disk, &*program)?;
            if verdict != Verdict::Sound {
                report(&mut bench, &recording, &*program, &name, &Violation { state, verdict })?;
                break;
            }
            let recovery = Reopening { of: &*program, said: &said };
            let begun = Instant::now();
            let third = record(&again()?, fs, disk, said.clone(), &recovery, how(recordings))
                .with_context(|| format!("{name}, recovering"))?;
            recorded += begun.elapsed();
            look(&mut bench, &third, &recovery, wanted / 3)?;
        }
        recordings += 1;
    }
    let seconds = started.elapsed().as_secs_f64();
    say(&format!(
        "{fs}: {} crash states ({} different disks, {} reordered, {} torn) of {recordings} programs, some killed, and their recoveries, with {flushes} flushes; {} broken, {} could not be mounted; {:.0} states/s",
        totals.states,
        totals.images,
        totals.reordered,
        totals.torn,
        totals.broken,
        totals.unmountable,
        totals.states as f64 / seconds,
    ));
    say(&format!(
        "{fs}: {:.0} of {seconds:.0} s went into recording; of each state {}",
        recorded.as_secs_f64(),
        bench.spent()
    ));
    if totals.states < states {
        say(&format!("{fs}: the time was over after {} of {states} states", totals.states));
    }
    if totals.states == 0 {
        bail!("no crash state was looked at");
    }
    Ok(())
}

/// Checks this many states of a recording; a violation is reported at once.
fn look_at(
    bench: &mut Bench,
    recording: &Recording,
    check: &dyn Check,
    name: &str,
    seed: u64,
    states: u64,
    deadline: Instant,
) -> Result<(Totals, usize)> {
    let all = Exploration { recording, check, seed, states, violations_max: 1, deadline: Some(deadline) };
    let (totals, violations) = all.run(bench, |_| say("."))?;
    violations.iter().try_for_each(|v| report(bench, recording, check, name, v))?;
    Ok((totals, recording.flushes()))
}

fn report(bench: &mut Bench, recording: &Recording, check: &dyn Check, name: &str, v: &Violation) -> Result<()> {
    let dir = tempfile::Builder::new().prefix("untorn-replay-").tempdir_in(std::env::temp_dir())?.keep();
    let path = dir.join("recording");
    recording.save(&path)?;
    let (small, verdict) = minimise(bench, recording, &v.state, check, TRIES)?;
    let text = match verdict {
        Verdict::Sound => format!("seen once and not again: {:?}", v.verdict),
        _ => explain(bench, recording, &small, &verdict)?,
    };
    say(&format!(
        "{VIOLATION}of {name}\n{text}\nUNTORN_REPLAY_CASE='{} {name} {}' cargo test -p untorn-crashlab --test replay again -- --nocapture",
        path.display(),
        v.state.seed,
    ));
    Ok(())
}

fn case(words: &str) -> Result<()> {
    let words: Vec<_> = words.split(' ').collect();
    let [path, name, seed] = words[..] else { bail!("recording, workload and state are wanted") };
    let recording = Recording::load(Path::new(path))?;
    let state = State::draw(&recording, seed.parse()?).context("the state has nothing to lose")?;
    let (program, mut bench) = (by_name(name)?, Bench::new()?);
    let flushed = recording.image(recording.flushed(state.cut));
    let verdict = bench.judge(&recording, state.cut, &state.image(&recording, &flushed), &*program)?;
    if verdict != Verdict::Sound {
        say(&format!("{VIOLATION}{}", explain(&mut bench, &recording, &state, &verdict)?));
    }
    Ok(())
}
