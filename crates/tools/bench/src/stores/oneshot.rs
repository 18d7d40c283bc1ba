//! One small change in a new process, against write, fsync, rename and fsync in a new process.

use crate::measuring::bench_run::Run;
use crate::measuring::child::{Job, measure};
use crate::measuring::fs::Place;
use crate::measuring::harness::{COMMITS_MIN, Contender, Plan, interleave};
use crate::measuring::peers::fill;
use crate::report::section::{Chart, Extras, Row, Section, Target, Unit, Waited};
use crate::report::statistics::{Measured, Ratio, Summary};
use anyhow::Result;
use std::cell::{Cell, RefCell};
use std::path::Path;
use std::time::Duration;

const BYTES: usize = 1 << 10;

/// The `oneshot` section of one place.
pub fn run(run: &Run, place: &Place) -> Result<Section> {
    run.progress.cell(format!("{}: oneshot", place.name));
    let dir = place.directory("oneshot")?;
    for name in ["standalone", "put", "plain"] {
        fill(&dir.join(name), BYTES as u64)?;
    }
    let standalone = Job::Update { path: dir.join("standalone"), bytes: BYTES };
    measure(&standalone)?;
    let put = Job::Put { path: dir.join("put"), bytes: BYTES };
    let replace = Job::Replace { dir: dir.clone(), name: "plain".to_owned(), bytes: BYTES };

    let names = ["open, change, commit, close", "put", "write, fsync, rename, fsync", "the very first time"];
    let whole = RefCell::new(names.map(Measured::new));
    let job = |n: usize, job: &Job| -> Result<Duration> {
        let times = measure(job)?;
        whole.borrow_mut()[n].push(times.whole);
        Ok(times.inside)
    };
    let number = Cell::new(0);
    let mut contenders = [
        Contender::new(names[0], 1, || job(0, &standalone)),
        Contender::new(names[1], 1, || job(1, &put)),
        Contender::new(names[2], 1, || job(2, &replace)),
        Contender::new(names[3], 1, || {
            number.set(number.get() + 1);
            first_time(&dir, number.get(), |first| job(3, first))
        }),
    ];
    let commits = if run.quick { 4 } else { COMMITS_MIN };
    let plan = Plan::spread(commits, 1, run.quick, Duration::ZERO);
    let measured = interleave(&mut contenders, &plan, &run.progress, || true)?;
    drop(contenders);
    std::fs::remove_dir_all(&dir)?;

    let whole = whole.into_inner();
    let row = |n: usize, cell: &str, target: Option<f64>| {
        let (ours, peer) = (&measured[n], &measured[2]);
        let mut extras = Extras::default();
        let [whole_us, peer_us] = [n, 2].map(|n| whole[n].summary().median_us);
        extras.add("whole process µs", whole_us, 1);
        extras.add("peer's whole process µs", peer_us, 1);
        extras.add("whole process ratio ×", whole_us / peer_us, 2);
        let row = Row {
            cell: cell.to_owned(),
            load: "new process".to_owned(),
            contenders: vec![named(ours.summary(), "Untorn"), peer.summary()],
            ratio: Some(Ratio::cost(ours, &[peer])),
            extras,
            ..Row::default()
        };
        row.against_target(target.map(Target::AtMost), Waited::Allowed, run.quick)
    };
    let open_limit = if place.file_system == "btrfs" { 2.2 } else { 1.5 };
    Ok(Section {
        title: "oneshot: change 1 KiB in a new process, class power".to_owned(),
        chart: Chart::Bars,
        place: place.name.clone(),
        place_details: place.details.clone(),
        unit: Unit::Microseconds,
        ratio_means: "median of Untorn ÷ median of write, fsync, rename, fsync, both inside their process",
        rows: vec![row(0, names[0], Some(open_limit)), row(1, names[1], Some(1.1)), row(3, names[3], None)],
        notes: vec![
            "A standalone file of 1 KiB with its private store beside it. Each time is a new process, and counts from its \
             first call to its last; the whole process, its start and end included, is in the second table."
                .to_owned(),
            "The very first time: neither the file nor its store is there.".to_owned(),
        ],
    })
}

fn named(mut summary: Summary, name: &str) -> Summary {
    name.clone_into(&mut summary.name);
    summary
}

/// Creates a file and its store, and removes both without timing the removal.
fn first_time(dir: &Path, number: u32, job: impl FnOnce(&Job) -> Result<Duration>) -> Result<Duration> {
    let home = dir.join(format!("first-{number}"));
    std::fs::create_dir(&home)?;
    let time = job(&Job::Update { path: home.join("file"), bytes: BYTES })?;
    std::fs::remove_dir_all(&home)?;
    Ok(time)
}
