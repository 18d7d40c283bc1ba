//! The worker: records the program, explores crash states, and makes the first violation small.

use crate::job::{Done, FirstViolation, Job, News};
use crate::tested_program::{ShellCheck, Theirs};
use anyhow::{Context, Result, bail};
use std::path::{Path, PathBuf};
use std::time::Duration;
use untorn_crashlab::device::watch::{self, say};
use untorn_crashlab::device::{Again, Event, FileSystem};
use untorn_crashlab::replay::{
    Bench, Exploration, Recorded, Recording, State, Verdict, Violation, explain, minimise, record,
};

/// The most states that are tried to make a violation small.
const TRIES: usize = 120;

/// Does a job; see [`watch::work_if_asked`].
pub fn work(job: &str) -> Result<()> {
    let again = Again::with(&[])?;
    if job == watch::PROBE {
        return watch::try_mount(&again);
    }
    let job: Job = serde_json::from_str(job).context("a job")?;
    let fs: FileSystem = job.fs.parse().map_err(anyhow::Error::msg)?;
    let acked = watch::directory("acked")?.join("acknowledged");
    let check = ShellCheck { command: &job.check, acked: &acked };
    let done = match job.replay {
        Some(seed) => again_one(&job, fs, &check, seed)?,
        None => first_time(&job, &again, fs, &check)?,
    };
    tell(&News::Done(Box::new(done)));
    Ok(())
}

fn tell(news: &News) {
    say(&serde_json::to_string(news).expect("news are plain data"));
}

fn first_time(job: &Job, again: &Again, fs: FileSystem, check: &ShellCheck) -> Result<Done> {
    let program = Theirs {
        program: &job.program,
        setup: job.setup.as_deref(),
        run_time_max: Duration::from_secs(job.run_seconds),
    };
    let how = Recorded { flush_time: Duration::from_micros(job.flush_us), ..Recorded::default() };
    let recording = record(again, fs, fs.make(job.size_bytes)?, Vec::new(), &program, how)?;
    let mut bench = Bench::new()?;
    without_a_crash(&mut bench, &recording, check)?;
    let violations_max = if job.all { usize::MAX } else { 1 };
    let all = Exploration {
        recording: &recording,
        check,
        seed: job.seed,
        states: job.states,
        violations_max,
        deadline: None,
    };
    let (totals, violations) = all.run(&mut bench, |totals| {
        tell(&News::Progress { states: totals.states, broken: totals.broken + totals.unmountable });
    })?;
    let violation = match violations.first() {
        Some(violation) => Some(found(job, &mut bench, &recording, check, violation)?),
        None => None,
    };
    if violation.is_some() || job.keep_all {
        recording.save(&kept(&job.keep, fs))?;
    }
    let is_write = |e: &&Event| matches!(e, Event::Write { .. });
    Ok(Done {
        states: totals.states,
        images: totals.images,
        reordered: totals.reordered,
        torn: totals.torn,
        broken: totals.broken,
        unmountable: totals.unmountable,
        acknowledged: recording.said(recording.events.len()).len() as u64,
        writes: recording.events.iter().filter(is_write).count() as u64,
        flushes: recording.flushes() as u64,
        violation,
    })
}

/// Runs the check without a crash. A check that fails then says nothing about crashes.
fn without_a_crash(bench: &mut Bench, recording: &Recording, check: &ShellCheck) -> Result<()> {
    let end = recording.events.len();
    let said = recording.said(end);
    if said.is_empty() {
        tell(&News::Says("the program acknowledged nothing: the test can only check that the files are whole".into()));
    }
    match bench.with(recording.fs, &recording.image(end), |dir| check.run(dir, &said))??? {
        Ok(()) => Ok(()),
        Err(why) => bail!("the check fails even without a crash: {why}"),
    }
}

fn found(
    job: &Job,
    bench: &mut Bench,
    recording: &Recording,
    check: &ShellCheck,
    v: &Violation,
) -> Result<FirstViolation> {
    tell(&News::Says(format!("a violation after state {}; reducing it to a small one", v.state.seed)));
    let (small, verdict) = minimise(bench, recording, &v.state, check, TRIES)?;
    let (state, verdict) = match verdict {
        // The check does not always give the same verdict.
        Verdict::Sound => (&v.state, &v.verdict),
        _ => (&small, &verdict),
    };
    let image = job.keep.join(format!("{}-{}.image", recording.fs, v.state.seed));
    let disk = state.image(recording, &recording.image(recording.flushed(state.cut)));
    disk.store(&std::fs::File::create(&image).with_context(|| format!("create {}", image.display()))?)?;
    let mut text = explain(bench, recording, state, verdict)?;
    if state != &small {
        text += "\n(seen only once: the check does not always give the same result)";
    }
    Ok(FirstViolation { seed: v.state.seed, text, image })
}

fn kept(keep: &Path, fs: FileSystem) -> PathBuf {
    keep.join(format!("{fs}.recording"))
}

/// Replays one state of a kept recording.
fn again_one(job: &Job, fs: FileSystem, check: &ShellCheck, seed: u64) -> Result<Done> {
    let path = kept(&job.keep, fs);
    if !path.exists() {
        tell(&News::Says(format!("no recording {}", path.display())));
        return Ok(Done::default());
    }
    let recording = Recording::load(&path)?;
    let state = State::draw(&recording, seed).context("nothing is lost in this state")?;
    let mut bench = Bench::new()?;
    let disk = state.image(&recording, &recording.image(recording.flushed(state.cut)));
    let verdict = bench.judge(&recording, state.cut, &disk, check)?;
    let violation = match verdict {
        Verdict::Sound => None,
        verdict => Some(found(job, &mut bench, &recording, check, &Violation { state, verdict })?),
    };
    Ok(Done { states: 1, images: 1, broken: u64::from(violation.is_some()), violation, ..Done::default() })
}
