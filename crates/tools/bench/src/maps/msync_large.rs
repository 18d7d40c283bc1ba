//! A large mapped file: the costs of a commit of few pages, and of reads and stores in between.

use crate::measuring::bench_run::Run;
use crate::measuring::fs::Place;
use crate::measuring::harness::{Contender, Plan, interleave, interleave_parts, timed};
use crate::measuring::memory_use::{
    Folios, Layout, Managed, Memory, PAGE_BYTES, Stores, cycle, map_shared, minor_faults, processor_time,
};
use crate::measuring::peers::Floor;
use crate::report::section::{Chart, Extras, Other, Row, Section, Target, Unit, Waited, bytes_text};
use crate::report::statistics::{Measured, Ratio};
use crate::stores::commits::load_text;
use anyhow::{Context, Result};
use fastrand::Rng;
use std::cell::{Cell, RefCell};
use std::fs::{File, OpenOptions};
use std::hint::black_box;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::Duration;
use untorn::MapOptions;

const PAGES: [usize; 4] = [1, 4, 16, 64];
const CHANGED_BYTES: usize = 64;
const JOURNAL_BYTES: u64 = 16 << 20;
const LARGE: &str = "mmap, large folios";
const SMALL: &str = "mmap, 4 KiB folios";

/// The accesses of one turn.
const STORES: usize = 1024;
const READS: usize = 64 << 10;

/// The `msync-large` sections of one place.
pub fn run(run: &Run, place: &Place) -> Result<Vec<Section>> {
    let resident_bytes = if run.quick { 8 << 20 } else { 1 << 30 };
    let (mut commits, mut accesses) = (Vec::new(), Vec::new());
    for one_in in [1, 64] {
        let dir = place.directory("msync-large")?;
        let layout = Layout { resident_bytes, one_in };
        let large = Large { run, place, dir: &dir, layout };
        commits.extend(large.commits()?);
        accesses.extend(large.accesses()?);
        std::fs::remove_dir_all(&dir)?;
    }
    let section = |title: &str, ratio_means, rows, notes| Section {
        title: title.to_owned(),
        place: place.name.clone(),
        place_details: place.details.clone(),
        unit: Unit::Microseconds,
        chart: Chart::Bars,
        ratio_means,
        rows,
        notes,
    };
    Ok(vec![
        section(
            "msync-large: commits of few pages",
            "median commit ÷ median of a floor and a commit of nothing",
            commits,
            vec![
                format!(
                    "{} in use, in a file of that size or in every 64th chunk of 2 MiB; {CHANGED_BYTES} B in each of \
                     so many random pages.",
                    bytes_text(resident_bytes)
                ),
                "A commit of nothing looks through the mapping for pages stored to, finds none, and writes nothing."
                    .to_owned(),
            ],
        ),
        section(
            "msync-large: reads and stores between commits",
            "median Untorn ÷ median of an ordinary shared mapping, same accesses; in Untorn's line against large folios \
             (*)",
            accesses,
            vec![
                format!(
                    "First reads: mapping the file and reading each page once, in order. First stores: 8 B to each of \
                     {STORES} random pages after a commit, or after msync. Again: to the same pages. Reads: {READS} of \
                     8 B at random. Times are processor time of the thread, for all of them: nothing waits here."
                ),
                "Faults are for each access. Huge: what the mapping has in huge pages by then.".to_owned(),
            ],
        ),
    ])
}

struct Large<'a> {
    run: &'a Run,
    place: &'a Place,
    dir: &'a Path,
    layout: Layout,
}

/// The limit of dirty bytes, which is far above the few pages that are stored to.
fn options() -> MapOptions {
    MapOptions::new().dirty_max(2 << 30)
}

/// The work between two commits, and the number of page faults in each part of it over all turns.
struct Between {
    stores: Stores,
    reads: Rng,
    layout: Layout,
    turns: u64,
    faults: [u64; 3],
}

impl Between {
    fn new(layout: Layout) -> Between {
        let stores = Stores::new(layout, STORES, 8);
        Between { stores, reads: Rng::with_seed(2), layout, turns: 0, faults: [0; 3] }
    }

    /// The faults of a part in one turn, on average since [`Between::start_over`].
    fn faults(&self, part: usize) -> f64 {
        self.faults[part] as f64 / self.turns as f64
    }

    fn start_over(&mut self) {
        (self.turns, self.faults) = (0, [0; 3]);
    }

    fn part(&mut self, part: usize, work: impl FnOnce(&Stores)) -> Result<Duration> {
        let before = minor_faults()?;
        let start = processor_time();
        work(&self.stores);
        let time = processor_time() - start;
        self.faults[part] += minor_faults()? - before;
        Ok(time)
    }

    /// Times random reads, then makes an empty commit.
    fn read(&mut self, memory: &mut impl Memory) -> Result<Duration> {
        let layout = self.layout;
        let places: Vec<usize> = (0..READS)
            .map(|_| layout.offset(self.reads.usize(..layout.pages())) + self.reads.usize(..PAGE_BYTES))
            .collect();
        let bytes = memory.bytes();
        let time = self.part(2, |_| {
            for at in &places {
                black_box(bytes[*at]);
            }
        })?;
        memory.commit()?;
        self.turns += 1;
        Ok(time)
    }

    /// Times first stores after a commit, stores to the same pages again, and reads.
    fn turn(&mut self, memory: &mut impl Memory) -> Result<[Duration; 3]> {
        self.stores.draw();
        let first = self.part(0, |stores| stores.store(memory.bytes()))?;
        let again = self.part(1, |stores| stores.store(memory.bytes()))?;
        Ok([first, again, self.read(memory)?])
    }
}

/// The part of some memory that is mapped in huge pages, in KiB.
fn huge_kib(memory: &[u8]) -> Result<u64> {
    let addresses = memory.as_ptr_range();
    let (from, to) = (addresses.start as u64, addresses.end as u64);
    let mut inside = false;
    let mut huge = 0;
    // proc_pid_smaps(5): a line of addresses for each mapping, then its figures.
    for line in std::fs::read_to_string("/proc/self/smaps")?.lines() {
        let (head, rest) = line.split_once([' ', ':']).unwrap_or((line, ""));
        if let Some((start, _)) = head.split_once('-') {
            inside = u64::from_str_radix(start, 16).is_ok_and(|start| (from..to).contains(&start));
        } else if inside && ["AnonHugePages", "FilePmdMapped", "ShmemPmdMapped"].contains(&head) {
            huge += rest.trim().trim_end_matches(" kB").parse::<u64>().unwrap_or(0);
        }
    }
    Ok(huge)
}

impl Large<'_> {
    fn name(&self) -> String {
        match self.layout.one_in {
            1 => bytes_text(self.layout.file_bytes()),
            _ => format!("{}, sparse", bytes_text(self.layout.file_bytes())),
        }
    }

    fn say(&self, what: &str) {
        self.run.progress.cell(format!("{}: msync-large, {}, {what}", self.place.name, self.name()));
    }

    /// Makes a file with random bytes in the parts that are in use.
    fn file(&self, path: &Path, folios: Folios) -> Result<File> {
        let step = if folios == Folios::Small { PAGE_BYTES } else { Layout::CHUNK_BYTES as usize };
        let mut chunk = vec![0; step];
        fastrand::fill(&mut chunk);
        let file = OpenOptions::new().read(true).write(true).create_new(true).open(path)?;
        file.set_len(self.layout.file_bytes())?;
        for page in (0..self.layout.pages()).step_by(chunk.len() / PAGE_BYTES) {
            file.write_all_at(&chunk, self.layout.offset(page) as u64)
                .with_context(|| format!("cannot fill {}", path.display()))?;
        }
        file.sync_all()?;
        Ok(file)
    }

    fn store(&self) -> Result<PathBuf> {
        let root = self.dir.join("store");
        if !root.exists() {
            std::fs::create_dir(&root)?;
            self.say("writing the file");
            self.file(&root.join("data"), Folios::Large)?;
        }
        Ok(root)
    }

    /// Reads one byte of every page in use, so that the page is mapped.
    fn touch(&self, memory: &[u8]) {
        for page in 0..self.layout.pages() {
            black_box(memory[self.layout.offset(page)]);
        }
    }

    fn commits(&self) -> Result<Vec<Row>> {
        let memory = RefCell::new(Managed::open(&self.store()?, JOURNAL_BYTES, &options(), false)?);
        self.touch(memory.borrow_mut().bytes());
        let mut rows = Vec::new();
        for count in PAGES {
            self.say(&format!("{count} pages"));
            let changed_bytes = count * CHANGED_BYTES;
            let mut floor = Floor::buffered(self.dir, changed_bytes, JOURNAL_BYTES)?;
            let mut scanned = Floor::buffered(self.dir, changed_bytes, JOURNAL_BYTES)?;
            let mut stores = Stores::new(self.layout, count, CHANGED_BYTES);
            let mut contenders = [
                Contender::new("Untorn", 10, || {
                    cycle(&mut *memory.borrow_mut(), &mut stores).map(|[_, commit]| commit)
                }),
                Contender::new("floor + commit of nothing", 10, || {
                    Ok(scanned.write_all()? + timed(|| memory.borrow_mut().commit())?)
                }),
                Contender::new(Floor::BUFFERED, 10, || floor.write_all()),
            ];
            let operations = if self.run.quick { 4 } else { 200 };
            let plan = Plan::spread(operations, 10, self.run.quick, Duration::ZERO);
            let measured = interleave(&mut contenders, &plan, &self.run.progress, || true)?;
            let row = Row {
                cell: format!("{}, {count} page{}", self.name(), if count == 1 { "" } else { "s" }),
                load: load_text(Duration::ZERO),
                contenders: measured.iter().map(|m| m.summary()).collect(),
                ratio: Some(Ratio::cost(&measured[0], &[&measured[1]])),
                ..Row::default()
            };
            rows.push(row.against_target(Some(Target::AtMost(1.0)), Waited::Allowed, self.run.quick));
        }
        memory.into_inner().close()?;
        Ok(rows)
    }

    fn accesses(&self) -> Result<Vec<Row>> {
        let root = self.store()?;
        let (large, small) = (self.dir.join("large"), self.dir.join("small"));
        let plain = [self.file(&large, Folios::Large)?, self.file(&small, Folios::Small)?];
        self.say("first reads");
        let faults = [(); 3].map(|()| Cell::new(0));
        let first = |memory: &[u8], faults: &Cell<u64>| -> Result<Duration> {
            let before = minor_faults()?;
            let start = processor_time();
            self.touch(memory);
            let time = processor_time() - start;
            faults.set(minor_faults()? - before);
            Ok(time)
        };
        let mut contenders = [
            Contender::new("Untorn", 1, || {
                let mut memory = Managed::open(&root, JOURNAL_BYTES, &options(), false)?;
                let time = first(memory.bytes(), &faults[0])?;
                memory.close()?;
                Ok(time)
            }),
            Contender::new(LARGE, 1, || first(&map_shared(&plain[0])?, &faults[1])),
            Contender::new(SMALL, 1, || first(&map_shared(&plain[1])?, &faults[2])),
        ];
        let plan = Plan::spread(5, 1, self.run.quick, Duration::ZERO);
        let measured = interleave(&mut contenders, &plan, &self.run.progress, || true)?;
        drop(contenders);
        let mut rows = vec![self.access_row(
            "first reads",
            &measured,
            faults.map(|faults| faults.get() as f64),
            self.layout.pages(),
        )];

        self.say("reads and stores");
        let mut ours = Managed::open(&root, JOURNAL_BYTES, &options(), false)?;
        let [mut one, mut other] = [map_shared(&plain[0])?, map_shared(&plain[1])?];
        [ours.bytes(), one.bytes(), other.bytes()].into_iter().for_each(|memory| self.touch(memory));
        let mut between = [(); 3].map(|()| Between::new(self.layout));
        let [a, b, c] = &mut between;
        let mut contenders = [
            Contender::new("Untorn", 1, || a.read(&mut ours)),
            Contender::new(LARGE, 1, || b.read(&mut one)),
            Contender::new(SMALL, 1, || c.read(&mut other)),
        ];
        let plan = Plan::spread(20, 1, self.run.quick, Duration::ZERO);
        let measured = interleave(&mut contenders, &plan, &self.run.progress, || true)?;
        drop(contenders);
        let faults = between.each_ref().map(|b| b.faults(2));
        let mut row = self.access_row("reads, none stored", &measured, faults, READS);
        add_huge(&mut row, [ours.bytes(), &one, &other])?;
        rows.push(row);

        // The first store to a huge page splits it into small pages, which are mapped again only when they are read.
        for (settled, last) in [(false, "reads, some stored"), (true, "reads, all read again")] {
            if settled {
                for memory in [&*ours.bytes(), &one, &other] {
                    self.touch(memory);
                }
            }
            between.iter_mut().for_each(Between::start_over);
            let [a, b, c] = &mut between;
            let mut contenders = [
                Contender::in_parts("Untorn", 1, || a.turn(&mut ours)),
                Contender::in_parts(LARGE, 1, || b.turn(&mut one)),
                Contender::in_parts(SMALL, 1, || c.turn(&mut other)),
            ];
            let measured = interleave_parts(&mut contenders, &plan, &self.run.progress, || true)?;
            drop(contenders);
            let parts = [(0, "first stores", STORES), (1, "stores again", STORES), (2, last, READS)];
            for (part, what, count) in parts.into_iter().filter(|(part, ..)| settled || *part == 2) {
                let measured: Vec<Measured> = measured.iter().map(|m| m[part].clone()).collect();
                rows.push(self.access_row(what, &measured, between.each_ref().map(|b| b.faults(part)), count));
            }
            add_huge(rows.last_mut().expect("pushed above"), [ours.bytes(), &one, &other])?;
        }
        ours.close()?;
        Ok(rows)
    }

    fn access_row(&self, what: &str, measured: &[Measured], faults: [f64; 3], accesses: usize) -> Row {
        let details = measured.iter().zip(faults).map(|(m, faults)| {
            let mut extras = Extras::default();
            extras.add("faults", faults / accesses as f64, 3);
            (m.name.clone(), extras)
        });
        let (ours, large, small) = (&measured[0], &measured[1], &measured[2]);
        // The target is 0.95 of the speed of an ordinary mapping. First accesses have no target, because they fault in
        // all contenders.
        let target = (!what.starts_with("first")).then_some(Target::AtMost(1.05));
        let row = Row {
            cell: format!("{}, {what}", self.name()),
            load: load_text(Duration::ZERO),
            contenders: measured.iter().map(Measured::summary).collect(),
            ratio: Some(Ratio::cost(ours, &[large])),
            others: vec![Other::new(SMALL, Ratio::cost(ours, &[small]), target, self.run.quick)],
            details: details.collect(),
            ..Row::default()
        };
        row.against_target(target, Waited::Allowed, self.run.quick)
    }
}

fn add_huge(row: &mut Row, memory: [&[u8]; 3]) -> Result<()> {
    for ((_, extras), memory) in row.details.iter_mut().zip(memory) {
        extras.add("huge MiB", huge_kib(memory)? as f64 / 1024.0, 0);
    }
    Ok(())
}
