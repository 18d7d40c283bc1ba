//! Commits of a store that is shipped, answers that wait for the bucket, and restores.

use super::gated::Clients;
use super::slow_place::SlowPlace;
use crate::measuring::bench_run::Run;
use crate::measuring::fs::Place;
use crate::measuring::harness::{Contender, Plan, interleave, timed};
use crate::report::section::{Chart, Extras, Row, Section, Target, Unit, Waited};
use crate::report::statistics::{Measured, Ratio};
use anyhow::{Result, ensure};
use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, Instant};
use untorn::Store;

/// The time of an object of a cloud's store.
const PUT: Duration = Duration::from_millis(30);

/// The sections of one place.
pub fn run(run: &Run, place: &Place) -> Result<Vec<Section>> {
    let dir = place.directory("ship")?;
    let sections = vec![beside(run, place, &dir)?, gated(run, place, &dir)?, restored(run, place, &dir)?];
    std::fs::remove_dir_all(&dir)?;
    Ok(sections)
}

fn section(place: &Place, title: &str, unit: Unit, ratio_means: &'static str, rows: Vec<Row>, note: &str) -> Section {
    Section {
        title: title.to_owned(),
        chart: Chart::Bars,
        place: place.name.clone(),
        place_details: place.details.clone(),
        unit,
        ratio_means,
        rows,
        notes: vec![note.to_owned()],
    }
}

/// Commits of a store beside a shipper that looks each second, and without one.
fn beside(run: &Run, place: &Place, dir: &Path) -> Result<Section> {
    run.progress.cell(format!("{}: ship, commits", place.name));
    let begin = |name: &str| -> Result<_> {
        let path = dir.join(name);
        let store = Store::open_or_create(&path)?;
        let file = store.open_or_create_file("a")?;
        file.write_at(&vec![1; 1 << 20], 0)?;
        file.commit()?;
        Ok((path, store, file))
    };
    let (path, _store, shipped) = begin("shipped")?;
    let (_, _other, alone) = begin("alone")?;
    let place_of_objects = SlowPlace::new(dir, PUT)?;
    let _shipping = place_of_objects.ship(&path, "bench", "1s")?;
    let commits = 200;
    let batch = |file: &untorn::File| {
        timed(|| {
            for _ in 0..commits {
                let mut bytes = [0; 4096];
                fastrand::fill(&mut bytes);
                file.write_at(&bytes, fastrand::u64(..256) * 4096)?;
                file.commit()?;
            }
            Ok::<(), anyhow::Error>(())
        })
    };
    let plan = Plan::spread(if run.quick { 2 } else { 40 }, 1, run.quick, Duration::ZERO);
    let mut contenders =
        [Contender::new("shipped", 1, || batch(&shipped)), Contender::new("without", 1, || batch(&alone))];
    let measured = interleave(&mut contenders, &plan, &run.progress, || true)?;
    drop(contenders);
    let row = Row {
        cell: "200 commits of 4 KiB, shipped each second".to_owned(),
        load: "saturated".to_owned(),
        contenders: measured.iter().map(Measured::summary).collect(),
        ratio: Some(Ratio::speedup(&measured[1], &[&measured[0]])),
        ..Row::default()
    };
    let row = row.against_target(Some(Target::AtMost(1.03)), Waited::Allowed, run.quick);
    let note = "The shipper is a process of its own; its objects take 30 ms.";
    Ok(section(place, "ship: commits", Unit::Milliseconds, "shipped ÷ without", vec![row], note))
}

/// Clients in a closed loop whose answers wait for the bucket.
fn gated(run: &Run, place: &Place, dir: &Path) -> Result<Section> {
    let mut rows = Vec::new();
    for (clients, put) in [(50, PUT), (1000, PUT), (1, Duration::ZERO)] {
        let is_local = put.is_zero();
        run.progress.cell(format!("{}: ship, {clients} clients", place.name));
        let name = format!("clients-{clients}");
        let mut all = Clients::new(&dir.join(&name), clients, put)?;
        let batch = if is_local { 20 } else { clients * 10 };
        all.answers(batch)?;
        all.latencies.clear();
        let plan = Plan::spread(if run.quick { 1 } else { 10 }, 1, run.quick, Duration::ZERO);
        let mut contenders = [Contender::new("gated", 1, || all.answers(batch))];
        let measured = interleave(&mut contenders, &plan, &run.progress, || true)?;
        drop(contenders);
        let mut latencies = std::mem::take(&mut all.latencies);
        all.close()?;
        latencies.sort_unstable();
        let median = latencies[latencies.len() / 2];
        let mut extras = Extras::default();
        extras.add("median, ms", median.as_secs_f64() * 1e3, 2);
        let seconds = measured[0].summary().median_us / 1e6;
        extras.add("answers/s", batch as f64 / seconds, 0);
        let (means, limit_ns) = match is_local {
            // Of one answer.
            true => ("3 ms", 3e6 * batch as f64),
            // One answer of each client for each object's time.
            false => ("clients ÷ PUT", put.as_nanos() as f64 * (batch / clients) as f64),
        };
        let ratio = Ratio::of_rounds(means, measured[0].round_medians_ns().iter().map(|ns| limit_ns / ns).collect());
        let cell = match is_local {
            true => "1 client, no delay (ssh)".to_owned(),
            false => format!("{clients} clients, objects of 30 ms"),
        };
        let row = Row {
            cell,
            load: "saturated".to_owned(),
            contenders: measured.iter().map(Measured::summary).collect(),
            ratio: Some(ratio),
            extras,
            ..Row::default()
        };
        let target = Target::AtLeast(if is_local { 1.0 } else { 0.7 });
        rows.push(row.against_target(Some(target), Waited::Allowed, run.quick));
    }
    let means = "answers ÷ (clients ÷ time of an object); without delay: 3 ms ÷ time of an answer";
    let note =
        "Each client asks again when it has its answer, which waits until the bucket has the commit (class remote).";
    Ok(section(place, "ship: answers that wait for the bucket", Unit::Milliseconds, means, rows, note))
}

/// A restore of a gibibyte and a log.
fn restored(run: &Run, place: &Place, dir: &Path) -> Result<Section> {
    run.progress.cell(format!("{}: ship, restore", place.name));
    let dir = dir.join("restore");
    std::fs::create_dir_all(&dir)?;
    let (path, megabytes, commits) =
        (dir.join("store"), if run.quick { 16 } else { 1024 }, if run.quick { 100 } else { 3600 });
    let store = Store::open_or_create(&path)?;
    let file = store.open_or_create_file("a")?;
    let mut bytes = vec![0; 1 << 20];
    for n in 0..megabytes {
        fastrand::fill(&mut bytes);
        file.write_at(&bytes, n << 20)?;
        file.commit()?;
    }
    store.checkpoint()?;
    let objects = SlowPlace::new(&dir, Duration::ZERO)?;
    let shipping = objects.ship(&path, "bench", "100ms")?;
    // An hour with a commit each second.
    for n in 0..commits {
        file.write_at(&bytes[..16 << 10], (n * 7919 % megabytes) << 20)?;
        file.commit()?;
    }
    drop(file);
    store.close()?;
    drop(shipping);
    let mut all = objects.command("ship", &[&path])?;
    let status = all.args(["--slot", "bench", "--once"]).stdout(Stdio::null()).stderr(Stdio::null()).status()?;
    ensure!(status.success(), "untorn-ship failed: {status}");
    let mut number = 0;
    let mut restore = || {
        number += 1;
        let to = dir.join(format!("restored-{number}"));
        let mut command = objects.command("restore", &[])?;
        let start = Instant::now();
        let status = command.arg(&to).stdout(Stdio::null()).stderr(Stdio::null()).status()?;
        ensure!(status.success(), "untorn-ship restore failed: {status}");
        let time = start.elapsed();
        std::fs::remove_dir_all(&to)?;
        Ok(time)
    };
    let plan = Plan::spread(if run.quick { 1 } else { 3 }, 1, run.quick, Duration::ZERO);
    let measured = interleave(&mut [Contender::new("restore", 1, &mut restore)], &plan, &run.progress, || true)?;
    let ratio = Ratio::of_rounds("20 s", measured[0].round_medians_ns().iter().map(|ns| 20e9 / ns).collect());
    let row = Row {
        cell: format!("{megabytes} MiB and {commits} commits of 16 KiB"),
        load: "saturated".to_owned(),
        contenders: measured.iter().map(Measured::summary).collect(),
        ratio: Some(ratio),
        ..Row::default()
    };
    let row = row.against_target(Some(Target::AtLeast(1.0)), Waited::Allowed, run.quick);
    let note = "From a directory of this machine, served as by ssh.";
    Ok(section(place, "ship: restore", Unit::Milliseconds, "20 s ÷ time of a restore", vec![row], note))
}
