//! A journal on byte-addressable memory: the simulated memory can lose and tear lines as real memory can, and a store on
//! it survives that. `untorn_crashlab::programs::program` has the setups.
//!
//! A usual run tries a part of the programs. With `UNTORN_MEMORY_SECONDS` it tries them all, for that time.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use untorn::__private::{OpenStoreOn, StoreSteps, sync_point};
use untorn::StoreOptions;
use untorn_crashlab::enumeration::enumerate::{Bounds, Effort, Enumeration, within};
use untorn_crashlab::mutation::sync_point_index;
use untorn_crashlab::programs::program::{Op, STARTS, Setup, alphabet};
use untorn_crashlab::{Cut, Failed, Fault, On, Options, SimDisk, What};
use untorn_journal::directories::store_dir::StoreDir;
use untorn_os::{File, LINE_BYTES, Lines, Open, Storage, SyncPoint};
use untorn_testkit::{drawn_seed, is_full, slice, variable};

const STEP: SyncPoint = sync_point::COMMIT;
const BEFORE: u8 = b'a';
const AFTER: u8 = b'b';

/// Memory with a durable file `f` of this many lines.
fn memory(lines: usize) -> (SimDisk, Arc<dyn File>) {
    let disk = SimDisk::new(Options { lines: true, ..Options::default() });
    disk.put("f", &vec![BEFORE; lines * LINE_BYTES]).unwrap();
    disk.settle();
    let file = disk.process().open(Path::new("f"), Open::WRITE).unwrap();
    (disk, file)
}

fn lines_of(file: &dyn File) -> Box<dyn Lines> {
    file.lines(file.meta().unwrap().size).unwrap()
}

/// The contents of the file after each outcome of a power cut now.
fn outcomes(disk: &SimDisk) -> BTreeSet<Vec<u8>> {
    let snapshot = disk.snapshot();
    let cuts = (0..4000).map(Cut::Seed).chain([Cut::Nothing, Cut::Everything]);
    cuts.map(|cut| snapshot.power_cut(cut).disk.get("f").unwrap()).collect()
}

fn is_word_new(word: &[u8]) -> bool {
    assert!(word.iter().all(|byte| *byte == word[0]), "a word is torn: {word:?}");
    word[0] == AFTER
}

#[test]
fn unfenced_lines_land_in_any_subset_and_are_torn_between_words() {
    let (disk, file) = memory(3);
    lines_of(&*file).store(&[AFTER; 3 * LINE_BYTES], 0).unwrap();
    assert_eq!(disk.get("f").unwrap(), [AFTER; 3 * LINE_BYTES], "others see it at once");
    let (mut of_lines, mut torn) = (BTreeSet::new(), 0);
    for contents in outcomes(&disk) {
        let words: Vec<bool> = contents.chunks(8).map(is_word_new).collect();
        let lines: Vec<&[bool]> = words.chunks(LINE_BYTES / 8).collect();
        let is_whole = |line: &&[bool]| line.iter().all(|new| *new == line[0]);
        match lines.iter().all(is_whole) {
            true => _ = of_lines.insert(lines.iter().map(|line| line[0]).collect::<Vec<_>>()),
            false => torn += 1,
        }
        assert!(lines.iter().filter(|line| !is_whole(line)).count() <= 1, "{words:?}");
    }
    assert_eq!(of_lines.len(), 8, "every subset: {of_lines:?}");
    assert!(torn > 100, "{torn} outcomes with a torn line");
}

/// Memory has no page cache: a flush that fails forgets no write, and no new length.
#[test]
fn a_flush_that_failed_has_forgotten_nothing() {
    for how in [Failed::Lost, Failed::Half, Failed::Landed] {
        let (disk, file) = memory(1);
        file.write_at(&[AFTER; 2 * LINE_BYTES], 0).unwrap();
        disk.fail(Fault { on: On::Sync, after: 0, times: 1, what: What::Writeback(how) });
        assert!(file.sync_data(STEP).is_err());
        file.sync_data(STEP).unwrap();
        assert_eq!(disk.power_cut(Cut::Nothing).disk.get("f").unwrap(), [AFTER; 2 * LINE_BYTES], "{how:?}");
    }
}

#[test]
fn a_fence_makes_the_lines_of_its_thread_durable() {
    let (disk, file) = memory(2);
    let lines = lines_of(&*file);
    lines.store(&[AFTER; LINE_BYTES], 0).unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            lines.store(&[AFTER; LINE_BYTES], LINE_BYTES as u64).unwrap();
            lines.fence(STEP).unwrap();
        });
    });
    let halves: BTreeSet<Vec<u8>> =
        outcomes(&disk).iter().map(|contents| vec![contents[0], contents[LINE_BYTES]]).collect();
    assert_eq!(halves, BTreeSet::from([vec![BEFORE, AFTER], vec![AFTER, AFTER]]));
    lines.fence(STEP).unwrap();
    assert_eq!(outcomes(&disk).len(), 1);
}

/// Memory has no sectors: a write within a file is torn like a store, and the file's flush ends that.
#[test]
fn a_write_is_torn_between_words_too() {
    let (disk, file) = memory(64);
    file.write_at(&[AFTER; 500], 100).unwrap();
    let torn = |contents: &[u8]| {
        let new = contents.iter().filter(|byte| **byte == AFTER).count();
        new > 0 && new < 500
    };
    assert!(outcomes(&disk).iter().any(|contents| torn(contents)));
    file.sync_data(STEP).unwrap();
    assert_eq!(outcomes(&disk).len(), 1);
}

#[test]
fn a_killed_process_leaves_its_stores() {
    let (disk, _) = memory(1);
    let process = disk.spawn();
    let file = process.open(Path::new("f"), Open::WRITE).unwrap();
    let lines = lines_of(&*file);
    lines.store(&[AFTER; LINE_BYTES], 0).unwrap();
    process.kill();
    assert!(lines.store(&[BEFORE; LINE_BYTES], 0).is_err() && lines.fence(STEP).is_err());
    assert_eq!(disk.get("f").unwrap(), [AFTER; LINE_BYTES]);
    // The next process flushes the file, as recovery does.
    disk.process().open(Path::new("f"), Open::WRITE).unwrap().sync_data(STEP).unwrap();
    assert_eq!(outcomes(&disk), BTreeSet::from([vec![AFTER; LINE_BYTES]]));
}

#[test]
fn memory_is_used_where_it_is_unless_an_option_forbids_it() {
    for (lines, allowed) in [(true, true), (true, false), (false, true)] {
        let disk = SimDisk::new(Options { lines, ..Options::default() });
        let options = StoreOptions::new().create(true).background(false).sizes(32 << 20, 8 << 20, 64 << 10);
        let options = options.memory(allowed);
        let store = options.open_on(disk.process(), StoreDir::of_directory(), PathBuf::new()).unwrap();
        let file = store.open_or_create_file("a").unwrap();
        let commit = |text: &[u8]| {
            file.write_at(text, 0).unwrap();
            file.commit().unwrap();
        };
        // The first ones make the segment and the file.
        [b"first", b"other", b"third"].into_iter().for_each(|text| commit(text));
        assert_eq!(store.status().journal_in_memory, lines && allowed, "lines {lines}, allowed {allowed}");
    }
}

/// A durable mark that another thread has stored is fenced by that thread: the next commit lies behind it in the log, and
/// the fence of its own thread is for nobody else's lines.
#[test]
fn a_mark_of_another_thread_takes_no_commit_with_it() {
    let disk = SimDisk::new(Options { lines: true, ..Options::default() });
    let options = StoreOptions::new().create(true).background(false).sizes(1 << 20, 16 << 10, 32 << 10);
    let open = |disk: &SimDisk| options.open_on(disk.process(), StoreDir::of_directory(), PathBuf::new()).unwrap();
    let store = open(&disk);
    let file = store.open_or_create_file("a").unwrap();
    let commit = |text: &[u8]| {
        file.write_at(text, 0).unwrap();
        file.commit().unwrap();
    };
    commit(b"first");
    commit(b"other");
    std::thread::scope(|scope| scope.spawn(|| assert!(store.write_durable_mark().unwrap())).join().unwrap());
    commit(b"third");
    let snapshot = disk.snapshot();
    for cut in (0..200).map(Cut::Seed).chain([Cut::Nothing]) {
        let after = snapshot.power_cut(cut).disk;
        let store = open(&after);
        let mut found = [0; 5];
        store.open_file("a").unwrap().read_at(&mut found, 0).unwrap();
        assert_eq!(&found, b"third", "{cut}");
    }
}

/// The readers' page and the index of the log are stored to without a flush: after a power cut they may lack anything, and
/// mislead nobody.
#[test]
fn a_page_and_an_index_in_memory_survive_power_cuts() {
    let disk = SimDisk::new(Options { lines: true, ..Options::default() });
    let options = StoreOptions::new().create(true).background(false).sizes(1 << 20, 64 << 10, 32 << 10);
    let options = options.page(true).index_bytes_least(0);
    let open = |disk: &SimDisk| options.open_on(disk.process(), StoreDir::of_directory(), PathBuf::new()).unwrap();
    let store = open(&disk);
    let file = store.open_or_create_file("a").unwrap();
    disk.record();
    for n in 1..60 {
        file.write_at(&[n; 200], 0).unwrap();
        file.commit().unwrap();
        disk.set_mark(u64::from(n));
    }
    let mut checked = 0;
    for (n, moment) in disk.recorded().iter().enumerate().filter(|(_, moment)| moment.mark() > 0) {
        for cut in [Cut::Nothing, Cut::Seed(n as u64), Cut::Everything] {
            let after = moment.power_cut(cut).disk;
            let store = open(&after);
            let mut found = [0; 200];
            store.open_file("a").unwrap().read_at(&mut found, 0).unwrap();
            assert!(found.iter().all(|byte| *byte == found[0]), "{cut}, moment {n}");
            let range = moment.mark()..=moment.mark() + 1;
            assert!(range.contains(&u64::from(found[0])), "{cut}, moment {n}: {} of {range:?}", found[0]);
            checked += 1;
        }
    }
    assert!(checked > 500, "{checked} recoveries");
}

fn on_memory(start: untorn_crashlab::programs::program::Start, turn: usize) -> Vec<Setup> {
    Setup::of_memory(start, turn).collect()
}

/// The programs of one operation that a usual run continues.
const CONTINUED: usize = 2;

/// Programs of up to two operations, on memory only: `enumerate` mixes it with the other disks.
#[test]
fn every_program_on_memory_survives_every_crash() {
    let seconds = variable("UNTORN_MEMORY_SECONDS");
    let (is_slice, seed) = (!is_full() && seconds.is_none(), drawn_seed());
    // A slice is tried to its end, however long that takes.
    let deadline = within(Duration::from_secs(seconds.unwrap_or(120))).filter(|_| !is_slice);
    let enumeration = Enumeration::new(Bounds { seed, deadline, ..Bounds::default() });
    let ops: Vec<Op> = alphabet().collect();
    let effort = Effort { cuts_max: 16, second_max: 2, after_failed_sync_max: 2, failed_sync_ways: 1 };
    // If the time is over early, it is not always the same programs that are left out.
    let mut starts = STARTS;
    starts.rotate_left(seed as usize % STARTS.len());
    for start in starts {
        // In a slice, one setup for each program.
        let setups = |at: usize| {
            let all = on_memory(start, at + seed as usize % 3);
            if is_slice { vec![all[(at + seed as usize) % all.len()]] } else { all }
        };
        let opened = enumeration.level(&[], &ops, &setups, &effort);
        let one = enumeration.level(&opened, &ops, &setups, &effort);
        let one = if is_slice { slice(&one, CONTINUED, seed) } else { one };
        let two = enumeration.level(&one, &ops, &setups, &effort);
        println!("{start:?}: {} programs of two operations that do something", two.len());
        assert!(!two.is_empty() || enumeration.is_over(), "{start:?}: no program of two operations does anything");
    }
    let totals = enumeration.totals();
    println!(
        "{} runs, {} crash states with something lost, {} distinct disk images, {} recoveries checked, {} failed syncs",
        totals.programs, totals.states, totals.images, totals.checked, totals.failed_syncs
    );
    assert!(totals.checked > if is_slice { 5000 } else { 1000 }, "{} recoveries", totals.checked);
    let violations = enumeration.violations();
    violations.iter().for_each(|violation| println!("VIOLATION {violation}\n"));
    assert!(violations.is_empty(), "{} violations", violations.len());
}

/// The enumeration notices a commit without its fence, on each kind of memory.
#[test]
fn a_commit_without_its_fence_is_lost() {
    let skipped = 1 << sync_point_index(STEP);
    let effort = Effort { cuts_max: 24, second_max: 2, after_failed_sync_max: 0, failed_sync_ways: 1 };
    for setup in STARTS.into_iter().flat_map(|start| (0..3).flat_map(move |turn| on_memory(start, turn))) {
        let enumeration = Enumeration::new(Bounds { skipped, ..Bounds::default() });
        enumeration.program(&setup, &[Op::One], &effort);
        assert!(!enumeration.violations().is_empty(), "{setup}");
    }
}
