//! Commits of a mapped file against ordinary `msync`.
//!
//! It shows latency against the number of pages that were stored to, as in Figures 2 and 3 of "Failure-atomic msync()"
//! (Park, Kelly, Shen 2013).

use crate::measuring::bench_run::Run;
use crate::measuring::fs::{FileSystem, Place};
use crate::measuring::harness::{Contender, Plan, THINK, interleave_parts};
use crate::measuring::memory_use::{
    Folios, Layout, Managed, Memory, Stores, account, cycle, plain_mapping, tracked_by, warm_up,
};
use crate::measuring::peers::{Floor, fill};
use crate::report::section::{Chart, Extras, Other, Row, Section, Target, Unit, Waited, bytes_text};
use crate::report::statistics::{Measured, Ratio};
use crate::stores::commits::load_text;
use anyhow::Result;
use memmap2::MmapMut;
use std::path::Path;
use std::time::Duration;
use untorn::TrackerKind;

const MAPPING_BYTES: u64 = 16 << 20;
const SIZES: [usize; 3] = [64, 1 << 10, 4 << 10];
const PAGES: [usize; 11] = [1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024];

pub const OURS: &str = "Untorn";
const PAGEMAP: &str = "Untorn, pagemap";
const EXPLICIT: &str = "Untorn, explicit";
pub const EAGER: &str = "Untorn, eager";
pub const SMALL: &str = "msync, 4 KiB folios";
const LARGE: &str = "msync, large folios";
pub const DATA_JOURNAL: &str = "msync, data=journal";

/// The `msync` sections of one place: for each size and load, stores and commit, and the commit alone.
pub fn run(run: &Run, place: &Place) -> Result<Vec<Section>> {
    with_setting(run, place, |setting| {
        let (sizes, pages) = if run.quick { (&SIZES[..1], &PAGES[..3]) } else { (&SIZES[..], &PAGES[..]) };
        let mut sections = Vec::new();
        for size in sizes {
            sections.extend(setting.sections(*size, pages, Duration::ZERO)?);
        }
        sections.extend(setting.sections(SIZES[0], pages, THINK)?);
        Ok(sections)
    })
}

/// Makes the files and the mappings of the peers, lets `then` measure, and removes them.
pub fn with_setting<T>(run: &Run, place: &Place, then: impl FnOnce(&mut Setting<'_>) -> Result<T>) -> Result<T> {
    let dir = place.directory("msync")?;
    for name in ["scan", "pagemap", "explicit", "eager"] {
        std::fs::create_dir(dir.join(name))?;
        fill(&dir.join(name).join("data"), MAPPING_BYTES)?;
    }
    let journaling = match place.file_system.as_str() {
        "ext4" => place.beside(FileSystem::Ext4DataJournal, run)?,
        _ => None,
    };
    let mut peers = vec![(SMALL, place, plain_mapping(&dir.join("small"), MAPPING_BYTES, Folios::Small)?)];
    peers.push((LARGE, place, plain_mapping(&dir.join("large"), MAPPING_BYTES, Folios::Large)?));
    if let Some(other) = &journaling {
        let path = other.directory("msync")?.join("file");
        peers.push((DATA_JOURNAL, other, plain_mapping(&path, MAPPING_BYTES, Folios::Large)?));
    }
    peers.iter_mut().try_for_each(|(_, _, map)| warm_up(map))?;
    let mut setting = Setting { run, place, dir: &dir, peers };
    let measured = then(&mut setting)?;
    drop(setting);
    std::fs::remove_dir_all(&dir)?;
    Ok(measured)
}

/// The setting of one place. The ordinary mappings live as long as the file system, because their page cache matters.
pub struct Setting<'a> {
    run: &'a Run,
    place: &'a Place,
    dir: &'a Path,
    peers: Vec<(&'static str, &'a Place, MmapMut)>,
}

/// The amount of one cell: cycles of each contender, and how many run in a row.
fn amount(pages: usize, think: Duration, quick: bool) -> (usize, usize) {
    match (pages, think.is_zero()) {
        _ if quick => (4, 2),
        (..=16, true) => (100, 10),
        (..=128, true) => (50, 5),
        (_, true) => (25, 5),
        (..=128, false) => (30, 1),
        (_, false) => (15, 1),
    }
}

/// The size of the journal. It turns over every 64 commits, so that there are checkpoints.
fn journal_bytes(changed_bytes: usize) -> u64 {
    (64 * changed_bytes.next_multiple_of(4096) as u64).clamp(1 << 20, 64 << 20)
}

impl Setting<'_> {
    fn sections(&mut self, size: usize, pages: &[usize], think: Duration) -> Result<[Section; 2]> {
        let (mut cycles, mut commits) = (Vec::new(), Vec::new());
        for count in pages {
            self.run.progress.cell(format!(
                "{}: msync, {} in each of {count} pages, {}",
                self.place.name,
                bytes_text(size as u64),
                load_text(think)
            ));
            let [cycle, commit] = self.cell(*count, size, think)?;
            cycles.push(cycle);
            commits.push(commit);
        }
        let what = format!("{} in each page, {}", bytes_text(size as u64), load_text(think));
        let section = |title: String, ratio_means, rows, notes| Section {
            title,
            place: self.place.name.clone(),
            place_details: self.place.details.clone(),
            unit: Unit::Microseconds,
            chart: Chart::Curves,
            ratio_means,
            rows,
            notes,
        };
        Ok([
            section(
                format!("msync: stores and commit, {what}"),
                "median of Untorn's stores and commit ÷ the peer's, in the line of Untorn for the faster peer (*), else \
                 in the peer's own",
                cycles,
                vec![
                    format!(
                        "A mapping of {}, all of it resident and stored to before. Random distinct pages, the same for \
                         everyone.",
                        bytes_text(MAPPING_BYTES)
                    ),
                    "Untorn: tracker scan, checkpoints in the background. Pagemap: the other tracker, told that commits \
                     are quiet. Explicit: the program marks its changes, which is a part of the stores. Eager: a whole \
                     checkpoint in each commit."
                        .to_owned(),
                    "msync: MS_SYNC over an ordinary shared mapping, not atomic. 4 KiB folios: the file was written page \
                     by page. Large folios: in one go. data=journal: on an ext4 of its own, on a device of the same kind."
                        .to_owned(),
                    "The third table is of further cycles without company, each figure for one cycle. In all: with \
                     checkpoints and whatever was cached."
                        .to_owned(),
                ],
            ),
            section(
                format!("msync: the commit alone, {what}"),
                "median commit ÷ median floor, against the faster of the two floors (*)",
                commits,
                vec![
                    "Floor: one pwrite of the changed bytes, padded to 4 KiB, at the next place of a preallocated, \
                     already written file, plus fdatasync."
                        .to_owned(),
                ],
            ),
        ])
    }

    fn cell(&mut self, count: usize, size: usize, think: Duration) -> Result<[Row; 2]> {
        let (run, place) = (self.run, self.place);
        let mut ours = self.open_ours(count * size)?;
        let (operations, batch) = amount(count, think, run.quick);
        let plan = Plan::spread(operations, batch, run.quick, think);
        let measured = self.race(&mut ours, (count, size), batch, &plan, &[])?;
        let mut details = Vec::new();
        let mut waited = Extras::default();
        for (name, memory) in &mut ours {
            if think.is_zero() {
                details.push(((*name).to_owned(), account(memory, &mut stores(count, size), place, 6)?));
            }
            let status = memory.status().expect("a store has one");
            if *name != EAGER {
                waited.add(
                    match *name {
                        PAGEMAP => "waited, pagemap",
                        EXPLICIT => "waited, explicit",
                        _ => "waited",
                    },
                    status.commits_waited as f64,
                    0,
                );
            }
        }
        for (name, place, memory) in self.peers.iter_mut().filter(|_| think.is_zero()) {
            details.push(((*name).to_owned(), account(memory, &mut stores(count, size), place, 6)?));
        }
        for (_, memory) in ours {
            memory.close()?;
        }
        let [cycles, commits] = [0, 1].map(|part| measured.iter().map(|m| &m[part]).collect::<Vec<_>>());
        let names = (count, load_text(think));
        Ok([cycle_row(&names, &cycles, waited, details, run.quick), commit_row(&names, &commits, run.quick)])
    }

    /// Measures the commits alone, of the contenders with these names, `batch` in a row.
    pub fn commits(
        &mut self,
        (count, size): (usize, usize),
        batch: usize,
        plan: &Plan,
        names: &[&str],
    ) -> Result<Vec<Measured>> {
        let mut ours = self.open_ours(count * size)?;
        let measured = self.race(&mut ours, (count, size), batch, plan, names)?;
        ours.into_iter().try_for_each(|(_, memory)| memory.close())?;
        Ok(measured.into_iter().map(|[_, commit]| commit).collect())
    }

    /// Opens Untorn's maps for commits of so many bytes.
    fn open_ours(&self, changed_bytes: usize) -> Result<Vec<(&'static str, Managed)>> {
        let journal_bytes = journal_bytes(changed_bytes);
        let open = |name: &str, tracker, eager| -> Result<Managed> {
            let mut memory = Managed::open(&self.dir.join(name), journal_bytes, &tracked_by(tracker), eager)?;
            warm_up(&mut memory)?;
            Ok(memory)
        };
        let mut ours = Vec::new();
        match open("scan", TrackerKind::Scan, false) {
            Ok(memory) => {
                ours.push((OURS, memory));
                ours.push((EAGER, open("eager", TrackerKind::Scan, true)?));
            }
            // The kernel is older than Linux 6.7, or `userfaultfd` is forbidden.
            Err(_) => ours.push((EAGER, open("eager", TrackerKind::PageMap, true)?)),
        }
        ours.insert(ours.len() - 1, (PAGEMAP, open("pagemap", TrackerKind::PageMap, false)?));
        ours.insert(ours.len() - 1, (EXPLICIT, open("explicit", TrackerKind::Explicit, false)?));
        Ok(ours)
    }

    /// Measures stores and commit, and the commit alone, of the contenders with these names; of all if there are none.
    fn race(
        &mut self,
        ours: &mut [(&'static str, Managed)],
        (count, size): (usize, usize),
        batch: usize,
        plan: &Plan,
        names: &[&str],
    ) -> Result<Vec<[Measured; 2]>> {
        let changed_bytes = count * size;
        let journal_bytes = journal_bytes(changed_bytes);
        let is_wanted = |name: &str| names.is_empty() || names.contains(&name);
        let mut floors = [
            (Floor::BUFFERED, Some(Floor::buffered(self.dir, changed_bytes, journal_bytes)?)),
            (Floor::DIRECT, Floor::direct(self.dir, changed_bytes, journal_bytes)?),
        ];
        let mut contenders: Vec<Contender<'_, 2>> = Vec::new();
        for (name, memory) in ours.iter_mut().filter(|(name, _)| is_wanted(name)) {
            let mut stores = stores(count, size);
            contenders.push(Contender::in_parts(*name, batch, move || cycle(memory, &mut stores)));
        }
        for (name, _, memory) in self.peers.iter_mut().filter(|(name, ..)| is_wanted(name)) {
            let mut stores = stores(count, size);
            // This peer is many times slower than the others, so fewer commits are enough.
            let batch = if *name == LARGE && count > 1 { batch.div_ceil(5) } else { batch };
            contenders.push(Contender::in_parts(*name, batch, move || cycle(memory, &mut stores)));
        }
        for (name, floor) in floors.iter_mut().filter(|(name, _)| is_wanted(name)) {
            if let Some(floor) = floor {
                contenders.push(Contender::in_parts(*name, batch, || floor.write_all().map(|time| [time; 2])));
            }
        }
        interleave_parts(&mut contenders, plan, &self.run.progress, || true)
    }
}

/// Stores of `size` bytes in each of `count` pages.
fn stores(count: usize, size: usize) -> Stores {
    Stores::new(Layout::dense(MAPPING_BYTES), count, size)
}

fn named<'a>(measured: &[&'a Measured], name: &str) -> Option<&'a Measured> {
    measured.iter().find(|m| m.name == name).copied()
}

fn row((count, load): &(usize, String), contenders: &[&Measured], ratio: Ratio) -> Row {
    Row {
        cell: format!("{count} page{}", if *count == 1 { "" } else { "s" }),
        load: load.clone(),
        contenders: contenders.iter().map(|m| m.summary()).collect(),
        ratio: Some(ratio),
        ..Row::default()
    }
}

/// A row with all contenders but the floors. Untorn's own ratio is against `msync` in its fastest setting.
fn cycle_row(
    names: &(usize, String),
    measured: &[&Measured],
    extras: Extras,
    details: Vec<(String, Extras)>,
    quick: bool,
) -> Row {
    let is_floor = |m: &Measured| [Floor::BUFFERED, Floor::DIRECT].contains(&m.name.as_str());
    let shown: Vec<&Measured> = measured.iter().filter(|m| !is_floor(m)).copied().collect();
    let (count, ours) = (names.0, shown[0]);
    let target = match count {
        1 => Some(Target::AtMost(1.3)),
        64.. => Some(Target::AtMost(0.67)),
        _ => None,
    };
    let small = named(&shown, SMALL).expect("always measured");
    let mut row = row(names, &shown, Ratio::cost(ours, &[small])).against_target(target, Waited::Allowed, quick);
    for (peer, target) in [(LARGE, (count >= 16).then_some(Target::AtMost(0.1))), (DATA_JOURNAL, None)] {
        if let Some(peer) = named(&shown, peer) {
            row.others.push(Other::new(&peer.name, Ratio::cost(ours, &[peer]), target, quick));
        }
    }
    for own in [PAGEMAP, EXPLICIT, EAGER].into_iter().filter_map(|name| named(&shown[1..], name)) {
        row.others.push(Other::new(&own.name, Ratio::cost(own, &[small]), None, quick));
    }
    Row { extras, details, ..row }
}

/// A row with Untorn and the floors.
fn commit_row(names: &(usize, String), measured: &[&Measured], quick: bool) -> Row {
    let wanted = |m: &Measured| ![SMALL, LARGE, DATA_JOURNAL].contains(&m.name.as_str());
    let shown: Vec<&Measured> = measured.iter().filter(|m| wanted(m)).copied().collect();
    let floors: Vec<&Measured> = [Floor::BUFFERED, Floor::DIRECT].iter().filter_map(|f| named(&shown, f)).collect();
    let target = Target::AtMost(if names.0 <= 64 { 1.25 } else { 2.0 });
    let mut row =
        row(names, &shown, Ratio::cost(shown[0], &floors)).against_target(Some(target), Waited::Allowed, quick);
    for own in [PAGEMAP, EXPLICIT, EAGER].into_iter().filter_map(|name| named(&shown[1..], name)) {
        let target = (own.name == EXPLICIT).then_some(Target::AtMost(1.15));
        row.others.push(Other::new(&own.name, Ratio::cost(own, &floors), target, quick));
    }
    row
}
