//! Private mappings on the simulated disk: the results of loads and stores, and the operations that remove pages.

use std::io;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;
use untorn_crashlab::{Fault, On, Options, SimDisk, What};
use untorn_os::{File, Linux, MapRequest, Mapping, Open, Piece, Storage, TrackerKind};
use untorn_testkit::variable_or;

const PAGE: u64 = 4096;
const TRACKERS: [TrackerKind; 3] = [TrackerKind::Scan, TrackerKind::PageMap, TrackerKind::Explicit];

/// A file of this many bytes, none of them zero.
fn disk(len: usize) -> SimDisk {
    let disk = SimDisk::new(Options::default());
    disk.put("f", &vec![b'f'; len]).unwrap();
    disk
}

fn map_with(file: &Arc<dyn File>, tracker: TrackerKind) -> Box<dyn Mapping> {
    file.map(&MapRequest { address_space: 16 * PAGE, tracker: Some(tracker), ..MapRequest::default() }).unwrap()
}

fn mapped(disk: &SimDisk, tracker: TrackerKind) -> (Arc<dyn File>, Box<dyn Mapping>) {
    let file = disk.process().open(Path::new("f"), Open::WRITE).unwrap();
    let mapping = map_with(&file, tracker);
    mapping.show(0..disk.meta("f").unwrap().size.next_multiple_of(PAGE)).unwrap();
    (file, mapping)
}

fn load(mapping: &dyn Mapping, offset: u64, len: usize) -> io::Result<Vec<u8>> {
    let mut bytes = vec![0xee; len];
    mapping.copy_out(&mut [Piece { offset, into: &mut bytes }])?;
    Ok(bytes)
}

fn changed(mapping: &dyn Mapping, pages: Range<u64>) -> Vec<u64> {
    let mut found = Vec::new();
    mapping.changed(pages.start * PAGE..pages.end * PAGE, &mut found).unwrap();
    found.into_iter().flat_map(|r| r.start / PAGE..r.end / PAGE).collect()
}

fn private(mapping: &dyn Mapping, pages: Range<u64>) -> Vec<u64> {
    let mut found = Vec::new();
    mapping.private(pages.start * PAGE..pages.end * PAGE, &mut found).unwrap();
    found.into_iter().flat_map(|r| r.start / PAGE..r.end / PAGE).collect()
}

fn is_gone<T: std::fmt::Debug>(result: io::Result<T>) -> bool {
    result.unwrap_err().raw_os_error() == Some(libc::EFAULT)
}

#[test]
fn stores_stay_private_and_clean_pages_follow_the_file() {
    let disk = disk(3 * PAGE as usize);
    let (file, mapping) = mapped(&disk, TrackerKind::Scan);
    mapping.copy_in(PAGE - 2, b"over").unwrap();
    assert_eq!(load(&*mapping, PAGE - 3, 6).unwrap(), b"foverf");
    assert_eq!(disk.get("f").unwrap(), vec![b'f'; 3 * PAGE as usize]);
    file.write_at(&[b'n'; 3 * PAGE as usize], 0).unwrap();
    // Pages that were stored to keep their copy; the third page follows the cache.
    assert_eq!(load(&*mapping, PAGE - 3, 6).unwrap(), b"foverf");
    assert_eq!(load(&*mapping, 2 * PAGE - 1, 2).unwrap(), b"fn");
    file.zero(0, 3 * PAGE).unwrap();
    assert_eq!(load(&*mapping, PAGE - 3, 6).unwrap(), b"foverf");
    mapping.show(0..PAGE).unwrap();
    assert_eq!(load(&*mapping, PAGE - 3, 6).unwrap(), b"\0\0\0erf");
}

#[test]
fn several_pieces_are_copied_out_at_once() {
    let disk = disk(2 * PAGE as usize);
    let (_file, mapping) = mapped(&disk, TrackerKind::Scan);
    mapping.copy_in(10, b"ten").unwrap();
    let (mut one, mut two) = ([0; 4], [0; 3]);
    mapping.copy_out(&mut [Piece { offset: PAGE, into: &mut one }, Piece { offset: 10, into: &mut two }]).unwrap();
    assert_eq!((&one, &two), (b"ffff", b"ten"));
}

#[test]
fn the_trackers_find_what_was_stored() {
    for tracker in TRACKERS {
        let disk = disk(6 * PAGE as usize);
        let (_file, mapping) = mapped(&disk, tracker);
        assert_eq!(mapping.tracker(), tracker);
        load(&*mapping, 0, 6 * PAGE as usize).unwrap();
        assert_eq!(changed(&*mapping, 0..6), []);
        mapping.copy_in(PAGE, b"1").unwrap();
        mapping.copy_in(3 * PAGE - 1, b"23").unwrap();
        let first = if tracker == TrackerKind::Explicit { vec![] } else { vec![2, 3] };
        assert_eq!(changed(&*mapping, 2..6), first);
        // A scan returns new stores, the page map all private pages. The tracker `explicit` looks for nothing.
        let again = match tracker {
            TrackerKind::Scan => vec![1],
            TrackerKind::PageMap => vec![1, 2, 3],
            TrackerKind::Explicit => vec![],
        };
        assert_eq!(changed(&*mapping, 0..6), again);
        mapping.copy_in(2 * PAGE, b"4").unwrap();
        let again = match tracker {
            TrackerKind::Scan => vec![2],
            TrackerKind::PageMap => vec![1, 2, 3],
            TrackerKind::Explicit => vec![],
        };
        assert_eq!(changed(&*mapping, 0..6), again);
        assert_eq!(private(&*mapping, 0..6), [1, 2, 3]);
        mapping.show(2 * PAGE..3 * PAGE).unwrap();
        assert_eq!(private(&*mapping, 0..6), [1, 3]);
    }
}

#[test]
fn pages_behind_the_end_are_gone() {
    let disk = disk(PAGE as usize + 100);
    let (_file, mapping) = mapped(&disk, TrackerKind::Scan);
    mapping.show(0..4 * PAGE).unwrap();
    // The rest of the last page is zeros, and can be stored to.
    assert_eq!(load(&*mapping, PAGE + 99, 2).unwrap(), b"f\0");
    mapping.copy_in(2 * PAGE - 1, b"x").unwrap();
    assert!(is_gone(load(&*mapping, 2 * PAGE, 1)));
    assert!(is_gone(mapping.copy_in(2 * PAGE - 1, b"yz")));
    assert!(is_gone(mapping.populate(PAGE..3 * PAGE)));
    mapping.populate(0..2 * PAGE).unwrap();
    // The bytes before the missing page were stored.
    assert_eq!(load(&*mapping, 2 * PAGE - 1, 1).unwrap(), b"y");
}

#[test]
fn a_truncation_takes_private_pages_and_zeroes_nothing_in_others() {
    let disk = disk(4 * PAGE as usize);
    let (file, mapping) = mapped(&disk, TrackerKind::Scan);
    mapping.copy_in(0, &vec![b's'; 4 * PAGE as usize]).unwrap();
    file.set_len(PAGE + 10).unwrap();
    assert!(is_gone(load(&*mapping, 2 * PAGE, 1)));
    assert_eq!(load(&*mapping, PAGE, PAGE as usize).unwrap(), vec![b's'; PAGE as usize]);
    file.set_len(4 * PAGE).unwrap();
    assert_eq!(load(&*mapping, 2 * PAGE - 1, 2).unwrap(), b"s\0");
    assert_eq!(private(&*mapping, 0..4), [0, 1]);
    // A truncation by another program does the same.
    disk.put("f", b"").unwrap();
    assert!(is_gone(load(&*mapping, 0, 1)));
}

#[test]
fn blank_pages_are_zeros_whatever_the_file_does_and_hidden_ones_are_gone() {
    let disk = disk(2 * PAGE as usize);
    let (file, mapping) = mapped(&disk, TrackerKind::Scan);
    mapping.blank(PAGE..4 * PAGE).unwrap();
    assert_eq!(load(&*mapping, PAGE - 1, 3).unwrap(), b"f\0\0");
    mapping.copy_in(3 * PAGE, b"grown").unwrap();
    file.set_len(0).unwrap();
    assert_eq!(load(&*mapping, 3 * PAGE - 1, 6).unwrap(), b"\0grown");
    assert_eq!(changed(&*mapping, 0..4), [3]);
    mapping.hide(3 * PAGE..4 * PAGE).unwrap();
    assert!(is_gone(load(&*mapping, 3 * PAGE, 1)));
    assert!(is_gone(mapping.copy_in(3 * PAGE, b"x")));
    mapping.blank(3 * PAGE..4 * PAGE).unwrap();
    assert_eq!(load(&*mapping, 3 * PAGE, 5).unwrap(), b"\0\0\0\0\0");
    // Hidden pages are not watched.
    let beyond = mapping.changed(0..5 * PAGE, &mut Vec::new());
    assert_eq!(beyond.unwrap_err().raw_os_error(), Some(libc::EPERM));
}

#[test]
fn a_mapping_keeps_its_file_and_ends_with_its_process() {
    let disk = disk(PAGE as usize);
    let process = disk.spawn();
    let file = process.open(Path::new("f"), Open::WRITE).unwrap();
    assert!(file.try_claim().unwrap());
    let mapping = map_with(&file, TrackerKind::PageMap);
    mapping.show(0..PAGE).unwrap();
    drop(file);
    // The claim belonged to the file, not to the mapping.
    assert!(disk.process().open(Path::new("f"), Open::WRITE).unwrap().try_claim().unwrap());
    disk.remove("f").unwrap();
    mapping.copy_in(0, b"still").unwrap();
    assert_eq!(load(&*mapping, 0, 6).unwrap(), b"stillf");
    process.kill();
    assert_eq!(load(&*mapping, 0, 1).unwrap_err().raw_os_error(), Some(libc::EBADF));
    assert!(mapping.copy_in(0, b"x").is_err());
}

#[test]
fn addresses_are_apart_and_taken_ones_refused() {
    let disk = disk(PAGE as usize);
    let (file, first) = mapped(&disk, TrackerKind::Scan);
    let second = map_with(&file, TrackerKind::Scan);
    let (a, b) = (first.address() as u64, second.address() as u64);
    assert!(b >= a + first.address_space() || a >= b + second.address_space());
    let at =
        |address: u64| MapRequest { address_space: PAGE, address: Some(address as usize), ..MapRequest::default() };
    let taken = file.map(&at(b + PAGE)).err().unwrap();
    assert_eq!(taken.raw_os_error(), Some(libc::EEXIST));
    drop(second);
    let third = file.map(&at(b + PAGE)).unwrap();
    assert_eq!(third.address() as u64, b + PAGE);
}

#[test]
fn planned_faults_reach_mappings() {
    let disk = disk(PAGE as usize);
    let (_file, mapping) = mapped(&disk, TrackerKind::Scan);
    mapping.copy_in(0, b"kept").unwrap();
    disk.fail(Fault { on: On::Any, after: 0, times: 1, what: What::Errno(libc::ENOMEM) });
    let refused = mapping.changed(0..PAGE, &mut Vec::new());
    assert_eq!(refused.unwrap_err().raw_os_error(), Some(libc::ENOMEM));
    // The failed scan has kept its findings.
    assert_eq!(changed(&*mapping, 0..1), [0]);
}

/// The result of one operation on a mapping and its file: bytes, ranges, or an error.
#[derive(Debug, PartialEq)]
enum Shown {
    Bytes(Vec<u8>),
    Ranges(Vec<Range<u64>>),
    Done,
    Errno(Option<i32>),
}

fn shown<T>(result: io::Result<T>, show: impl FnOnce(T) -> Shown) -> Shown {
    result.map_or_else(|e| Shown::Errno(e.raw_os_error()), show)
}

/// Copies between a buffer and memory as the kernel does it for a debugger: a page that is gone is an error.
fn by_hand(address: *mut u8, bytes: &mut [u8], store: bool) -> io::Result<()> {
    let n = bytes.len();
    let here = libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: n };
    let there = libc::iovec { iov_base: address.cast(), iov_len: n };
    let pid = std::process::id() as libc::pid_t;
    // SAFETY: the buffer is this function's; the kernel checks the other addresses, which are those of a mapping.
    let done = unsafe {
        match store {
            true => libc::process_vm_writev(pid, &raw const here, 1, &raw const there, 1, 0),
            false => libc::process_vm_readv(pid, &raw const here, 1, &raw const there, 1, 0),
        }
    };
    if done == n as isize { Ok(()) } else { Err(io::Error::from_raw_os_error(libc::EFAULT)) }
}

/// One random operation; all sides get the same generator, and the same byte to write, which is nowhere yet. `memory`:
/// the program accesses memory itself.
fn step(rng: &mut fastrand::Rng, byte: u8, file: &dyn File, mapping: &dyn Mapping, memory: bool) -> Shown {
    const PAGES: u64 = 8;
    let a = rng.u64(0..PAGES);
    let pages = a * PAGE..(a + rng.u64(1..=PAGES - a)) * PAGE;
    let (offset, len) = (rng.u64(0..PAGES * PAGE - 9000), rng.usize(1..9000));
    let done = |result| shown(result, |()| Shown::Done);
    match rng.u32(0..14) {
        0 => done(mapping.show(pages)),
        1 => done(mapping.blank(pages)),
        2 => done(file.set_len(rng.u64(0..PAGES * PAGE))),
        3 => done(file.zero(0, offset)),
        4 => shown(file.write_at(&vec![byte; len], offset), |_| Shown::Done),
        5 => {
            let mut found = Vec::new();
            shown(mapping.private(0..PAGES * PAGE, &mut found), |()| Shown::Ranges(found))
        }
        6..10 if memory => done(by_hand(mapping.address().wrapping_add(offset as usize), &mut vec![byte; len], true)),
        6..10 => done(mapping.copy_in(offset, &vec![byte; len])),
        10..12 if memory => {
            let mut bytes = vec![0; len];
            let loaded = by_hand(mapping.address().wrapping_add(offset as usize), &mut bytes, false);
            shown(loaded, |()| Shown::Bytes(bytes))
        }
        _ => shown(load(mapping, offset, len), Shown::Bytes),
    }
}

/// Random operations have the same results on the simulated disk, on one with real memory, and on Linux, on the file
/// system of the temporary directory.
#[test]
fn linux_does_the_same() {
    let seed = variable_or("UNTORN_TEST_SEED", 1);
    println!("UNTORN_TEST_SEED={seed}");
    for round in 0..200 {
        let dir = tempfile::tempdir().unwrap();
        let contents = vec![b'f'; 3 * PAGE as usize + 100];
        std::fs::write(dir.path().join("f"), &contents).unwrap();
        let (disk, other) = (disk(contents.len()), disk(contents.len()));
        other.set_options(|options| options.memory = true);
        let storages: [Arc<dyn Storage>; 3] = [disk.process(), other.process(), Linux::open(dir.path()).unwrap()];
        let files = storages.map(|storage| storage.open(Path::new("f"), Open::WRITE).unwrap());
        let maps = files.each_ref().map(|file| map_with(file, TrackerKind::PageMap));
        if maps[2].page_bytes() != PAGE {
            return println!("skipped: pages of {} bytes", maps[2].page_bytes());
        }
        maps.iter().for_each(|mapping| mapping.show(0..16 * PAGE).unwrap());
        let mut rngs = [0; 3].map(|_| fastrand::Rng::with_seed(seed * 1000 + round));
        for n in 1..=60 {
            let [ours, memory, linux] = [0, 1, 2].map(|i| step(&mut rngs[i], n, &*files[i], &*maps[i], i == 1));
            assert_eq!(ours, linux, "seed {seed}, round {round}, operation {n}");
            assert_eq!(memory, linux, "with memory, seed {seed}, round {round}, operation {n}");
        }
    }
}

#[test]
fn a_program_loads_and_stores_by_address() {
    let disk = disk(PAGE as usize);
    let (_file, mapping) = mapped(&disk, TrackerKind::Scan);
    let at = |offset: usize| mapping.address().wrapping_add(offset).cast_const();
    disk.store(at(4), b"poke").unwrap();
    let mut bytes = [0; 6];
    disk.load(at(3), &mut bytes).unwrap();
    assert_eq!(&bytes, b"fpokef");
    assert_eq!(load(&*mapping, 3, 6).unwrap(), b"fpokef");
    assert_eq!(changed(&*mapping, 0..1), [0]);
    assert!(is_gone(disk.store(at(PAGE as usize), b"x")));
    assert!(is_gone(disk.load(at(1 << 30), &mut bytes)));
}
