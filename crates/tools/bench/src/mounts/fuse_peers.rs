//! Files on a mounted store, beside the same on other file systems behind FUSE, all on the same file system below.

use crate::measuring::bench_run::Run;
use crate::measuring::fs::Place;
use crate::measuring::harness::{COMMITS_MIN, ROUNDS_MIN};
use crate::mounts::mounted::{Mounted, Operation, fill_directory, in_turns, make, overwrite, remove, rename, replace};
use crate::mounts::mounted_programs::{MAILS, TRANSACTIONS};
use crate::report::section::{Chart, Other, Row, Section, Unit};
use crate::report::statistics::{Measured, Ratio};
use crate::xsync::postmark;
use anyhow::Result;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The file systems: those that pass everything on to a directory.
const PEERS: [&str; 3] = ["mergerfs", "bindfs", "fuse-overlayfs"];

const OURS: &str = "Untorn";
const NATIVELY: &str = "natively";

/// The section of one place. None, with a message, if no peer is here.
pub fn run(run: &Run, place: &Place) -> Result<Option<Section>> {
    let is_here = |name: &str| Command::new(name).arg("--version").output().is_ok();
    let (here, missing): (Vec<_>, Vec<_>) = PEERS.into_iter().partition(|name| is_here(name));
    if here.is_empty() {
        run.progress.print(&format!("No peer of mount is measured: install one of {}.", PEERS.join(", ")));
        return Ok(None);
    }
    let dir = place.directory("mount-peers")?;
    let native = dir.join("native");
    fs::create_dir(&native)?;
    let mounted = Mounted::new(&dir)?;
    let others = here.iter().map(|name| mount(name, &dir)).collect::<Result<Vec<_>>>()?;
    let mut at = vec![(OURS, &*mounted.at), (NATIVELY, &*native)];
    at.extend(here.iter().copied().zip(others.iter().map(|other| &*other.at)));
    at.iter().try_for_each(|(_, at)| fill_directory(at))?;
    let cells: [(&str, usize, Operation<'_>); 6] = [
        ("overwrite 4 KiB, fsync", COMMITS_MIN, &|at, _| overwrite(at, 1)),
        ("replace by rename, synced", COMMITS_MIN, &|at, _| replace(at)),
        ("make 100 files", COMMITS_MIN / 4, &make),
        ("rename 100 files", COMMITS_MIN / 4, &rename),
        ("remove 100 files", COMMITS_MIN / 4, &remove),
        ("PostMark, asynchronous", ROUNDS_MIN, &|at, _| {
            postmark::run(&at.join("mail"), MAILS, TRANSACTIONS).map(|()| None)
        }),
    ];
    let mut rows = Vec::new();
    for (name, operations, operation) in cells {
        run.progress.cell(format!("{}: mount beside other file systems, {name}", place.name));
        let measured = in_turns(run, &at, operations, operation)?;
        let speedup = |one: &Measured| Ratio::speedup(one, &[&measured[1]]);
        let others = measured[2..].iter().map(|peer| Other::new(&peer.name, speedup(peer), None, run.quick));
        rows.push(Row {
            cell: name.to_owned(),
            load: "saturated".to_owned(),
            contenders: measured.iter().map(Measured::summary).collect(),
            ratio: Some(speedup(&measured[0])),
            others: others.collect(),
            ..Row::default()
        });
    }
    drop(at);
    drop((mounted, others));
    fs::remove_dir_all(&dir)?;
    let mut notes = vec![
        "Each peer is mounted over a directory of the same file system, with the options that it has by default \
         (mergerfs: minfreespace=0); on them nothing is atomic. Files and PostMark are those of the other sections of mount."
            .to_owned(),
    ];
    notes.extend(missing.iter().map(|name| format!("Left out: {name}; its package has the same name.")));
    Ok(Some(Section {
        title: "mount: beside other file systems behind FUSE".to_owned(),
        chart: Chart::Bars,
        place: place.name.clone(),
        place_details: place.details.clone(),
        unit: Unit::Microseconds,
        ratio_means: "median natively ÷ median on the mount: times faster",
        rows,
        notes,
    }))
}

/// Mounts one of the peers over a new directory.
fn mount(name: &str, dir: &Path) -> Result<Mounted> {
    let [below, lower, work, at] = ["below", "lower", "work", "at"].map(|part| dir.join(format!("{name}-{part}")));
    fs::create_dir(&below)?;
    let how: Vec<PathBuf> = match name {
        // By default it makes no files where less than 4 GiB are free.
        "mergerfs" => vec!["-o".into(), "minfreespace=0".into(), below],
        "fuse-overlayfs" => {
            [&lower, &work].into_iter().try_for_each(fs::create_dir)?;
            let [lower, upper, work] = [lower, below, work].map(|path| path.display().to_string());
            vec!["-o".into(), format!("lowerdir={lower},upperdir={upper},workdir={work}").into()]
        }
        _ => vec![below],
    };
    Mounted::by(name.into(), [vec!["-f".into()], how].concat(), at)
}
