//! Rules about private mappings: their contents, the detection of stores, and the operations that remove pages.

use crate::fixture::{Difference, Fixture, contents, holds, refused, rules, same};
use libc::{EEXIST, EFAULT, EINVAL, EOPNOTSUPP};
use std::io;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;
use untorn_os::{File, MapRequest, Mapping, Open, Piece, TrackerKind, write_all_at};

rules! {
    addresses_are_reserved,
    nothing_is_accessible_at_first,
    a_mapping_shows_the_file,
    stores_are_private,
    stores_are_found,
    what_is_told_is_not_looked_for,
    stores_are_dropped,
    pages_behind_the_end_are_gone,
    a_truncation_takes_pages,
    blank_pages_are_zeros,
    pieces_are_copied_at_once,
    a_mapping_outlives_its_file,
    two_mappings_are_apart,
    mapping_for_reading,
}

fn request(pages: u64) -> MapRequest {
    MapRequest { address_space: pages * page_bytes(), ..MapRequest::default() }
}

fn page_bytes() -> u64 {
    rustix::param::page_size() as u64
}

/// Runs `act` with each tracker that works here, with a file of this many pages full of `f`, all of them shown.
fn with_each_tracker(fixture: &Fixture, pages: u64, act: impl Fn(Arc<dyn File>, Box<dyn Mapping>)) {
    for tracker in [TrackerKind::Scan, TrackerKind::PageMap] {
        let file = fixture.file("f", &vec![b'f'; (pages * page_bytes()) as usize]);
        match file.map(&MapRequest { tracker: Some(tracker), ..request(16) }) {
            Err(e) => {
                same((tracker, e.raw_os_error()), (TrackerKind::Scan, Some(EOPNOTSUPP)));
                println!("skipped: the tracker {tracker} does not work here");
            }
            Ok(mapping) => {
                same(mapping.tracker(), tracker);
                mapping.show(0..pages * page_bytes()).unwrap();
                act(file, mapping);
            }
        }
        fixture.storage.unlink(Path::new("f")).unwrap();
    }
}

fn load(mapping: &dyn Mapping, offset: u64, len: usize) -> io::Result<Vec<u8>> {
    let mut bytes = vec![0xee; len];
    mapping.copy_out(&mut [Piece { offset, into: &mut bytes }])?;
    Ok(bytes)
}

fn in_pages(found: Vec<Range<u64>>) -> Vec<u64> {
    found.into_iter().flat_map(|range| range.start / page_bytes()..range.end / page_bytes()).collect()
}

fn changed(mapping: &dyn Mapping, pages: Range<u64>) -> Vec<u64> {
    let mut found = Vec::new();
    mapping.changed(pages.start * page_bytes()..pages.end * page_bytes(), &mut found).unwrap();
    in_pages(found)
}

fn private(mapping: &dyn Mapping, pages: Range<u64>) -> Vec<u64> {
    let mut found = Vec::new();
    mapping.private(pages.start * page_bytes()..pages.end * page_bytes(), &mut found).unwrap();
    in_pages(found)
}

fn addresses_are_reserved(fixture: &Fixture) {
    let file = fixture.file("f", b"contents");
    let page = page_bytes();
    for (asked, got) in [(0, page), (1, page), (page, page), (page + 1, 2 * page), (1 << 30, 1 << 30)] {
        let mapping = file.map(&MapRequest { address_space: asked, ..MapRequest::default() }).unwrap();
        same((mapping.address_space(), mapping.page_bytes()), (got, page));
        holds((mapping.address() as u64).is_multiple_of(page) && !mapping.address().is_null());
    }
    let first = file.map(&request(4)).unwrap();
    let second = file.map(&request(4)).unwrap();
    let (a, b) = (first.address() as u64, second.address() as u64);
    holds(a + 4 * page <= b || b + 4 * page <= a);
    let at = |address: u64| file.map(&MapRequest { address: Some(address as usize), ..request(2) });
    refused(at(a), &[EEXIST]);
    refused(at(a + 3 * page), &[EEXIST]);
    refused(at(a - page), &[EEXIST]);
    refused(at(a + 1), &[EINVAL]);
    drop(first);
    // A free address is given as requested, and again after it was released.
    for _ in 0..2 {
        let mapping = at(a).unwrap();
        same(mapping.address() as u64, a);
    }
    holds(file.map(&MapRequest { address_space: u64::MAX, ..MapRequest::default() }).is_err());
}

/// Loads from pages some of which are hidden.
#[track_caller]
fn load_hidden_pages(fixture: &Fixture, mapping: &dyn Mapping, offset: u64, len: usize) {
    match load(mapping, offset, len) {
        Ok(_) => holds(fixture.has(Difference::HiddenPagesMayBeLoaded)),
        refusal => refused(refusal, &[EFAULT]),
    }
}

fn store_into_hidden_pages(fixture: &Fixture, mapping: &dyn Mapping, offset: u64) {
    match mapping.copy_in(offset, b"x") {
        Ok(()) => holds(fixture.has(Difference::HiddenPagesMayTakeStores)),
        refusal => refused(refusal, &[EFAULT]),
    }
}

fn nothing_is_accessible_at_first(fixture: &Fixture) {
    let file = fixture.file("f", b"contents");
    let mapping = file.map(&request(4)).unwrap();
    same(load(&*mapping, 0, 0).unwrap(), vec![]);
    mapping.copy_in(0, b"").unwrap();
    same(private(&*mapping, 0..4), vec![]);
    load_hidden_pages(fixture, &*mapping, 0, 1);
    store_into_hidden_pages(fixture, &*mapping, 0);
    load_hidden_pages(fixture, &*mapping, 0, 1);
    mapping.show(0..page_bytes()).unwrap();
    same(load(&*mapping, 0, 8).unwrap(), b"contents".to_vec());
}

fn a_mapping_shows_the_file(fixture: &Fixture) {
    let page = page_bytes();
    let bytes: Vec<u8> = (0..3 * page + 10).map(|n| (n % 251) as u8).collect();
    let file = fixture.file("f", &bytes);
    let mapping = file.map(&request(8)).unwrap();
    mapping.show(page..4 * page).unwrap();
    holds(load(&*mapping, page, 2 * page as usize + 10).unwrap() == bytes[page as usize..]);
    load_hidden_pages(fixture, &*mapping, page - 1, 2);
    // The rest of the last page is zeros.
    same(
        load(&*mapping, 3 * page + 8, 4).unwrap(),
        vec![bytes[3 * page as usize + 8], bytes[3 * page as usize + 9], 0, 0],
    );
    mapping.populate(page..4 * page).unwrap();
    // Pages that were not stored to follow the file.
    write_all_at(&*file, b"written", page + 1).unwrap();
    same(load(&*mapping, page + 1, 7).unwrap(), b"written".to_vec());
    file.zero(page, 4).unwrap();
    same(load(&*mapping, page, 6).unwrap(), b"\0\0\0\0tt".to_vec());
    for range in [0..0, page..page] {
        mapping.show(range.clone()).unwrap();
        mapping.blank(range.clone()).unwrap();
        mapping.hide(range.clone()).unwrap();
        mapping.populate(range).unwrap();
    }
    same(load(&*mapping, page, 6).unwrap(), b"\0\0\0\0tt".to_vec());
}

fn stores_are_private(fixture: &Fixture) {
    let page = page_bytes();
    with_each_tracker(fixture, 3, |file, mapping| {
        mapping.copy_in(page - 2, b"over").unwrap();
        same(load(&*mapping, page - 3, 6).unwrap(), b"foverf".to_vec());
        holds(contents(&*file).iter().all(|&b| b == b'f'));
        write_all_at(&*file, &vec![b'n'; 3 * page as usize], 0).unwrap();
        same(load(&*mapping, page - 3, 6).unwrap(), b"foverf".to_vec());
        same(load(&*mapping, 2 * page - 1, 2).unwrap(), b"fn".to_vec());
        // Another mapping sees the file.
        let other = file.map(&request(3)).unwrap();
        other.show(0..3 * page).unwrap();
        same(load(&*other, page - 3, 6).unwrap(), b"nnnnnn".to_vec());
    });
}

fn stores_are_found(fixture: &Fixture) {
    let page = page_bytes();
    with_each_tracker(fixture, 6, |_, mapping| {
        let once = mapping.tracker() == TrackerKind::Scan;
        same(changed(&*mapping, 0..6), vec![]);
        load(&*mapping, 0, 6 * page as usize).unwrap();
        let loaded = changed(&*mapping, 0..6);
        holds(loaded.is_empty() || once && fixture.has(Difference::LoadedPagesMayCountAsStoredTo));
        same(changed(&*mapping, 0..6), vec![]);
        mapping.copy_in(2 * page - 1, b"12").unwrap();
        mapping.copy_in(5 * page, b"5").unwrap();
        same(changed(&*mapping, 2..6), vec![2, 5]);
        same(changed(&*mapping, 0..6), if once { vec![1] } else { vec![1, 2, 5] });
        same(changed(&*mapping, 0..6), if once { vec![] } else { vec![1, 2, 5] });
        mapping.copy_in(2 * page, b"x").unwrap();
        same(changed(&*mapping, 0..6), if once { vec![2] } else { vec![1, 2, 5] });
        same(private(&*mapping, 0..6), vec![1, 2, 5]);
        same(private(&*mapping, 3..6), vec![5]);
        // Found ranges are appended.
        let first = 0..1;
        let mut found = Vec::from([first.clone()]);
        mapping.private(0..6 * page, &mut found).unwrap();
        same(found, vec![first, page..3 * page, 5 * page..6 * page]);
    });
}

fn what_is_told_is_not_looked_for(fixture: &Fixture) {
    let (page, file) = (page_bytes(), fixture.file("f", &vec![b'f'; 3 * page_bytes() as usize]));
    let mapping = file.map(&MapRequest { tracker: Some(TrackerKind::Explicit), ..request(16) }).unwrap();
    same(mapping.tracker(), TrackerKind::Explicit);
    mapping.show(0..3 * page).unwrap();
    mapping.copy_in(page + 7, b"stored").unwrap();
    same(changed(&*mapping, 0..3), vec![]);
    same(private(&*mapping, 0..3), vec![1]);
    same(load(&*mapping, page + 7, 6).unwrap(), b"stored".to_vec());
    mapping.show(page..2 * page).unwrap();
    same(private(&*mapping, 0..3), vec![]);
    same(load(&*mapping, page + 7, 6).unwrap(), vec![b'f'; 6]);
}

fn stores_are_dropped(fixture: &Fixture) {
    let page = page_bytes();
    with_each_tracker(fixture, 4, |_, mapping| {
        mapping.copy_in(0, &vec![b's'; 4 * page as usize]).unwrap();
        mapping.show(page..2 * page).unwrap();
        same(load(&*mapping, page - 1, 2).unwrap(), b"sf".to_vec());
        same(private(&*mapping, 0..4), vec![0, 2, 3]);
        mapping.hide(2 * page..3 * page).unwrap();
        same(private(&*mapping, 0..4), vec![0, 3]);
        load_hidden_pages(fixture, &*mapping, 2 * page, 1);
        store_into_hidden_pages(fixture, &*mapping, 2 * page);
        load_hidden_pages(fixture, &*mapping, 2 * page, 1);
        mapping.show(2 * page..3 * page).unwrap();
        same(load(&*mapping, 2 * page, 1).unwrap(), b"f".to_vec());
        // Stores that were dropped are not reported.
        let told = changed(&*mapping, 1..3);
        holds(told.is_empty() || fixture.has(Difference::LoadedPagesMayCountAsStoredTo));
        mapping.copy_in(page, b"again").unwrap();
        same(changed(&*mapping, 1..3), vec![1]);
    });
}

fn pages_behind_the_end_are_gone(fixture: &Fixture) {
    let page = page_bytes();
    let file = fixture.file("f", &vec![b'f'; page as usize + 100]);
    let mapping = file.map(&request(8)).unwrap();
    mapping.show(0..4 * page).unwrap();
    same(load(&*mapping, page + 99, 2).unwrap(), b"f\0".to_vec());
    refused(load(&*mapping, 2 * page, 1), &[EFAULT]);
    refused(load(&*mapping, 2 * page - 1, 2), &[EFAULT]);
    refused(mapping.populate(page..3 * page), &[EFAULT]);
    // The bytes before the missing page are stored.
    refused(mapping.copy_in(2 * page - 1, b"yz"), &[EFAULT]);
    same(load(&*mapping, 2 * page - 1, 1).unwrap(), b"y".to_vec());
    // The pages come back when the file grows.
    file.set_len(3 * page).unwrap();
    same(load(&*mapping, 2 * page, 1).unwrap(), b"\0".to_vec());
    write_all_at(&*file, b"new", 2 * page).unwrap();
    same(load(&*mapping, 2 * page, 3).unwrap(), b"new".to_vec());
}

fn a_truncation_takes_pages(fixture: &Fixture) {
    let page = page_bytes();
    with_each_tracker(fixture, 4, |file, mapping| {
        mapping.copy_in(0, &vec![b's'; 4 * page as usize]).unwrap();
        file.set_len(page + 10).unwrap();
        refused(load(&*mapping, 2 * page, 1), &[EFAULT]);
        // A page that is still a part of the file keeps all stores to it.
        same(load(&*mapping, page, page as usize).unwrap(), vec![b's'; page as usize]);
        same(private(&*mapping, 0..4), vec![0, 1]);
        file.set_len(4 * page).unwrap();
        same(load(&*mapping, 2 * page - 1, 2).unwrap(), b"s\0".to_vec());
    });
}

fn blank_pages_are_zeros(fixture: &Fixture) {
    let page = page_bytes();
    with_each_tracker(fixture, 2, |file, mapping| {
        mapping.copy_in(page, b"dropped").unwrap();
        mapping.blank(page..4 * page).unwrap();
        same(load(&*mapping, page - 1, 3).unwrap(), b"f\0\0".to_vec());
        mapping.copy_in(3 * page, b"stored").unwrap();
        holds(changed(&*mapping, 0..4).contains(&3));
        // The file does not affect these pages.
        file.set_len(0).unwrap();
        same(load(&*mapping, 3 * page - 1, 7).unwrap(), b"\0stored".to_vec());
        mapping.blank(3 * page..4 * page).unwrap();
        same(load(&*mapping, 3 * page, 6).unwrap(), vec![0; 6]);
    });
}

fn piece(offset: u64, into: &mut [u8]) -> Piece<'_> {
    Piece { offset, into }
}

fn pieces_are_copied_at_once(fixture: &Fixture) {
    let page = page_bytes();
    with_each_tracker(fixture, 2, |_, mapping| {
        mapping.copy_in(10, b"ten").unwrap();
        let (mut one, mut two, mut none) = ([0; 4], [0; 3], []);
        mapping.copy_out(&mut [piece(page, &mut one), piece(10, &mut two), piece(3, &mut none)]).unwrap();
        same((&one, &two), (b"ffff", b"ten"));
        match mapping.copy_out(&mut [piece(10, &mut one), piece(2 * page, &mut two)]) {
            Ok(()) => holds(fixture.has(Difference::HiddenPagesMayBeLoaded)),
            refusal => refused(refusal, &[EFAULT]),
        }
        mapping.copy_out(&mut []).unwrap();
        // More pieces than one call of the kernel takes.
        let mut bytes = vec![0; 3000];
        let mut many: Vec<Piece> =
            bytes.iter_mut().enumerate().map(|(n, byte)| piece(n as u64, std::slice::from_mut(byte))).collect();
        mapping.copy_out(&mut many).unwrap();
        holds(bytes[10..13] == *b"ten" && bytes[13..].iter().all(|&b| b == b'f'));
    });
}

fn a_mapping_outlives_its_file(fixture: &Fixture) {
    let page = page_bytes();
    with_each_tracker(fixture, 2, |file, mapping| {
        drop(file);
        fixture.storage.unlink(Path::new("f")).unwrap();
        mapping.copy_in(0, b"still").unwrap();
        same(load(&*mapping, 0, 6).unwrap(), b"stillf".to_vec());
        mapping.show(0..2 * page).unwrap();
        same(load(&*mapping, 0, 6).unwrap(), b"ffffff".to_vec());
        mapping.populate(0..2 * page).unwrap();
        drop(fixture.file("f", b"another"));
        same(load(&*mapping, 0, 6).unwrap(), b"ffffff".to_vec());
    });
}

fn two_mappings_are_apart(fixture: &Fixture) {
    with_each_tracker(fixture, 2, |file, mapping| {
        let other = file.map(&request(2)).unwrap();
        other.show(0..2 * page_bytes()).unwrap();
        mapping.copy_in(0, b"mine").unwrap();
        other.copy_in(2, b"theirs").unwrap();
        same(load(&*mapping, 0, 8).unwrap(), b"minefff".iter().copied().chain([b'f']).collect());
        same(load(&*other, 0, 8).unwrap(), b"fftheirs".to_vec());
        same((private(&*mapping, 0..2), private(&*other, 0..2)), (vec![0], vec![0]));
        drop(other);
        same(load(&*mapping, 0, 4).unwrap(), b"mine".to_vec());
    });
}

fn mapping_for_reading(fixture: &Fixture) {
    let page = page_bytes();
    drop(fixture.file("f", b"contents"));
    for (how, read_only) in [(Open::READ, true), (Open::READ, false), (Open::WRITE, true)] {
        let file = fixture.open("f", how);
        let mapping = file.map(&MapRequest { read_only, huge_pages: true, ..request(1) }).unwrap();
        mapping.show(0..page).unwrap();
        same(load(&*mapping, 0, 8).unwrap(), b"contents".to_vec());
        // The library may store where the program may not.
        mapping.copy_in(0, b"C").unwrap();
        same(load(&*mapping, 0, 8).unwrap(), b"Contents".to_vec());
        same(contents(&*file), b"contents".to_vec());
    }
}
