//! Large pieces that are stored to a mapping in order, against `write` and `fsync`, and against `msync`.

use crate::measuring::bench_run::Run;
use crate::measuring::fs::Place;
use crate::measuring::harness::{COMMITS_MIN, Contender, Plan, interleave, timed};
use crate::measuring::peers::fill;
use crate::report::section::{Chart, Extras, Row, Section, Target, Unit, Waited, bytes_text};
use crate::report::statistics::Ratio;
use crate::stores::commits::{journal_bytes, load_text};
use anyhow::Result;
use rustix::mm::{MapFlags, MsyncFlags, ProtFlags, mmap, msync, munmap};
use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::time::Duration;
use untorn::{Map, MapOptions, StoreOptions};

const SIZES: [usize; 4] = [64 << 10, 256 << 10, 512 << 10, 4 << 20];

/// Size of the files, which are gone through again and again.
const FILE_BYTES: usize = 64 << 20;

/// The section of one place.
pub fn run(run: &Run, place: &Place) -> Result<Section> {
    let rows = SIZES.iter().map(|size| row(run, place, *size)).collect::<Result<_>>()?;
    Ok(Section {
        title: "store pieces in order and msync, class power".to_owned(),
        chart: Chart::Bars,
        place: place.name.clone(),
        place_details: place.details.clone(),
        unit: Unit::Microseconds,
        ratio_means: "median stores and msync of Untorn ÷ median write and fsync",
        rows,
        notes: vec![
            format!("Mappings and files of {}, each piece behind the one before.", bytes_text(FILE_BYTES as u64)),
            "Device bytes: Untorn by itself, saturated, its last checkpoint included.".to_owned(),
        ],
    })
}

fn row(run: &Run, place: &Place, size: usize) -> Result<Row> {
    run.progress.cell(format!("{}: store {} and msync", place.name, bytes_text(size as u64)));
    let dir = place.directory("in-order")?;
    for name in ["store/mapped", "plain", "native"] {
        std::fs::create_dir_all(dir.join("store"))?;
        fill(&dir.join(name), FILE_BYTES as u64)?;
    }
    let store = StoreOptions::new().create(true).journal_bytes(journal_bytes(run, size)).open(dir.join("store"))?;
    let mut plain_pieces = Pieces { at: 0, bytes: vec![0; size], round: 0 };
    let map = store.open_file("mapped")?.map_with(&MapOptions::new())?;
    let plain = OpenOptions::new().write(true).open(dir.join("plain"))?;
    let native = Native::new(&dir.join("native"))?;
    let mut ours = Pieces { at: 0, bytes: vec![0; size], round: 1 };
    let mut native_pieces = Pieces { at: 0, bytes: vec![0; size], round: 2 };
    let mut contenders = [
        Contender::new("Untorn", 1, || ours.store(&map)),
        Contender::new("write + fsync", 1, || plain_pieces.write(&plain)),
        Contender::new("msync", 1, || native_pieces.copy(&native)),
    ];
    let commits = if run.quick { 4 } else { COMMITS_MIN };
    let plan = Plan::spread(commits, 1, run.quick, Duration::ZERO);
    let measured = interleave(&mut contenders, &plan, &run.progress, || true)?;
    drop(contenders);
    let mut extras = Extras::default();
    store.checkpoint()?;
    let before = place.device_bytes_written()?;
    let alone = FILE_BYTES / size;
    for _ in 0..alone {
        ours.store(&map)?;
    }
    store.checkpoint()?;
    if let (Some(from), Some(to)) = (before, place.device_bytes_written()?) {
        extras.add("device B ÷ changed B", (to - from) as f64 / (alone * size) as f64, 2);
    }
    map.unmap()?;
    store.close()?;
    std::fs::remove_dir_all(&dir)?;
    let row = Row {
        cell: bytes_text(size as u64),
        load: load_text(Duration::ZERO),
        contenders: measured.iter().map(|m| m.summary()).collect(),
        ratio: Some(Ratio::cost(&measured[0], &[&measured[1]])),
        extras,
        ..Row::default()
    };
    Ok(row.against_target(Some(Target::AtMost(1.0)), Waited::Allowed, run.quick))
}

/// Pieces of new bytes, one behind the other.
struct Pieces {
    at: usize,
    bytes: Vec<u8>,
    round: u64,
}

impl Pieces {
    /// The place of the next piece, whose bytes are new.
    fn next(&mut self) -> usize {
        self.round += 3;
        fastrand::Rng::with_seed(self.round).fill(&mut self.bytes);
        let at = self.at;
        self.at = (at + self.bytes.len()) % FILE_BYTES;
        at
    }

    fn store(&mut self, map: &Map) -> Result<Duration> {
        let at = self.next();
        timed(|| {
            map.store(&self.bytes, at as u64)?;
            map.msync()
        })
    }

    fn write(&mut self, file: &File) -> Result<Duration> {
        let at = self.next();
        timed(|| {
            file.write_all_at(&self.bytes, at as u64)?;
            file.sync_all()
        })
    }

    fn copy(&mut self, native: &Native) -> Result<Duration> {
        let at = self.next();
        // SAFETY: the mapping has `FILE_BYTES` bytes, which pieces divide, and nobody else accesses it.
        timed(|| unsafe {
            let to = native.0.cast::<u8>().add(at);
            std::ptr::copy_nonoverlapping(self.bytes.as_ptr(), to, self.bytes.len());
            msync(to.cast(), self.bytes.len(), MsyncFlags::SYNC)
        })
    }
}

/// An ordinary mapping of a whole file.
struct Native(*mut std::ffi::c_void);

impl Native {
    fn new(path: &std::path::Path) -> Result<Native> {
        let file = OpenOptions::new().read(true).write(true).open(path)?;
        let rights = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping of the whole file, at a place that the kernel chooses.
        Ok(Native(unsafe { mmap(std::ptr::null_mut(), FILE_BYTES, rights, MapFlags::SHARED, file, 0)? }))
    }
}

impl Drop for Native {
    fn drop(&mut self) {
        // SAFETY: the mapping of `new`, which nobody uses any more.
        let _ = unsafe { munmap(self.0, FILE_BYTES) };
    }
}
