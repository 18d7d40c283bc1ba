//! Arbitrary bytes into every parser of a bucket's objects: no panic, no hang, no memory beyond what the object may have,
//! and what is accepted reads the same after being written again.
//!
//! The fuzz targets `ship_*` call these, and so does `crates/ship/tests/parsers.rs`, under any compiler. As in
//! `entries.rs`, the first byte of an input says whether checksums are made right before parsing.

use bytes::Bytes;
use std::path::{Component, Path};
use untorn_journal::format::crc64;
use untorn_ship::interface::{Commit, EpochStart, Piece, Point};
use untorn_ship::object::hash;
use untorn_ship::object::log::{Body, End, LogObject, Reason, epochs_of};
use untorn_ship::object::manifest::{Announced, Manifest, OfEnd, Position, Registered};
use untorn_ship::object::names;
use untorn_ship::object::snapshot::{Entry, Head, decode_extent, encode_extent};
use untorn_ship::store::body::{Kind, decode};
use untorn_ship::store::entry::About;

/// A commit that writes three bytes.
const SAMPLE_BODY: &[u8] = b"\x01\x01\0\0\0\x01\x01\0\0\0\x03\0a/b\0\0\0\0\0\0\0\0\x03\0\0\0xyz";

/// The body of a commit: each path in it is one beneath the directory.
pub fn body(input: &[u8]) {
    let is_beneath = |path: &Path| path.components().all(|part| matches!(part, Component::Normal(_)));
    for edit in decode(&Bytes::copy_from_slice(input)).unwrap_or_default() {
        assert!(is_beneath(&edit.path), "{edit:?}");
        if let Kind::Renamed(to) = &edit.kind {
            assert!(is_beneath(to), "{edit:?}");
        }
    }
}

/// The metadata of a snapshot's piece.
pub fn about(input: &[u8]) {
    for data in [Bytes::new(), Bytes::from_static(b"x")] {
        let piece = Piece { about: Bytes::copy_from_slice(input), data };
        if let Ok(about) = About::of(&piece) {
            assert_eq!(about.piece(piece.data.clone()), piece);
        }
    }
}

/// The store of all samples.
const STORE: [u8; 16] = [3; 16];

/// Splits off the byte that says whether to put checksums right.
fn split(input: &[u8]) -> (bool, Vec<u8>) {
    match input.split_first() {
        Some((first, rest)) => (first & 1 != 0, rest.to_vec()),
        None => (false, Vec::new()),
    }
}

/// Writes the checksum of everything before into the last eight bytes.
fn mend(bytes: &mut [u8]) {
    if let Some(at) = bytes.len().checked_sub(8) {
        let crc = crc64(&bytes[..at]);
        bytes[at..].copy_from_slice(&crc.to_le_bytes());
    }
}

fn number(bytes: &[u8], at: usize) -> u64 {
    bytes.get(at..at + 8).map_or(0, |word| u64::from_le_bytes(word.try_into().expect("eight bytes")))
}

/// An object of the log.
pub fn log(input: &[u8]) {
    let (honest, mut bytes) = split(input);
    let length = bytes.get(..4).map_or(0, |word| u32::from_le_bytes(word.try_into().expect("four bytes"))) as usize;
    if honest && length >= 240 && length <= bytes.len() - 4 {
        let stored = hash::of(&bytes[4 + length..]);
        let stored_bytes = (bytes.len() - 4 - length) as u64;
        bytes[180..188].copy_from_slice(&stored_bytes.to_le_bytes());
        bytes[196..228].copy_from_slice(&stored);
        mend(&mut bytes[4..4 + length]);
    }
    let name = names::log(number(&bytes, 36), number(&bytes, 44));
    if let Ok(object) = LogObject::decode(&name, None, &bytes) {
        let again = object.encode();
        assert_eq!(LogObject::decode(&name, Some(&object.store), &again).expect("our own"), object);
    }
}

/// A manifest.
pub fn manifest(input: &[u8]) {
    let (honest, mut bytes) = split(input);
    if honest {
        mend(&mut bytes);
    }
    let name = names::meta(number(&bytes, 28));
    if let Ok(manifest) = Manifest::decode(&name, None, &bytes) {
        assert_eq!(manifest.encode(), bytes, "what is accepted is what we would have written");
    }
}

/// Head of a snapshot.
pub fn snapshot(input: &[u8]) {
    let (honest, mut bytes) = split(input);
    if honest {
        mend(&mut bytes);
    }
    let name = names::head(number(&bytes, 28));
    if let Ok(head) = Head::decode(&name, None, &bytes) {
        let again = head.encode();
        assert_eq!(Head::decode(&name, Some(&head.store), &again).expect("our own"), head);
    }
}

/// An extent.
pub fn extent(input: &[u8]) {
    let bytes = split(input).1;
    let data = b"the data of an extent".repeat(9);
    if let Ok(found) = decode_extent("snap/0000000001/x/…", &bytes, data.len() as u32, &hash::of(&data)) {
        assert_eq!(found, data);
    }
}

/// A valid input of an entry, to start from: name, entry, input.
pub type Sample = (&'static str, fn(&[u8]), Vec<u8>);

/// One for each entry at least.
pub fn samples() -> Vec<Sample> {
    let with_byte = |bytes: &[u8]| [&[0], bytes].concat();
    vec![
        ("ship_log", log, with_byte(&commits().encode())),
        ("ship_log", log, with_byte(&end().encode())),
        ("ship_manifest", manifest, with_byte(&full_manifest().encode())),
        ("ship_snapshot", snapshot, with_byte(&head().encode())),
        ("ship_extent", extent, with_byte(&encode_extent(&b"the data of an extent".repeat(9)))),
        ("ship_body", body, SAMPLE_BODY.to_vec()),
        ("ship_about", about, About::File("a/b".into(), 0o640, 1 << 40).piece(Bytes::new()).about.to_vec()),
    ]
}

fn commits() -> LogObject {
    let commit = |lsn: u64| Commit { lsn, epoch: 40 + lsn / 9, time: lsn, body: vec![lsn as u8; 300].into() };
    let commits: Vec<Commit> = (7..11).map(commit).collect();
    let hash_before = hash::root(&STORE);
    LogObject {
        store: STORE,
        generation: 2,
        first_lsn: 7,
        epochs: epochs_of(&commits),
        hash_before,
        hash: commits.iter().fold(hash_before, |before, commit| hash::after(&before, commit)),
        nonce: [1; 16],
        owner: [2; 16],
        time_first: 7,
        time: 10,
        body: Body::Commits(commits),
    }
}

fn end() -> LogObject {
    let base = Point { epoch: 41, lsn: 20 };
    let body = End { base, base_hash: [6; 32], reason: Reason::Fork, snapshot: 4, who: "host, process 7".into() };
    let epochs = vec![EpochStart { epoch: 41, first_lsn: 9 }];
    LogObject { first_lsn: 11, epochs, hash: [6; 32], body: Body::End(body), ..commits() }
}

fn position(lsn: u64) -> Position {
    let point = Point { epoch: 41, lsn };
    Position { generation: 2, point, hash: [lsn as u8; 32], time: lsn, owner: [2; 16], who: "host".into() }
}

fn full_manifest() -> Manifest {
    Manifest {
        number: 9,
        nonce: [8; 16],
        previous: [7; 16],
        floor: position(5),
        floor_snapshot: 3,
        registered: vec![
            Registered { number: 3, position: position(5) },
            Registered { number: 6, position: position(8) },
        ],
        announced: vec![Announced { number: 8, time: 77, position: position(9) }],
        of_ends: vec![OfEnd { number: 4, generation: 2, lsn: 11, nonce: [1; 16] }],
        ..Manifest::first(&STORE)
    }
}

fn head() -> Head {
    let entry = |n: u8| Entry {
        about: vec![n; 12].into(),
        length: u32::from(n) * 100,
        data: [n; 32],
        owner: if n == 0 { 0 } else { 5 + u64::from(n % 2) },
    };
    Head {
        store: STORE,
        number: 6,
        generation: 2,
        point: Point { epoch: 41, lsn: 8 },
        hash: [8; 32],
        time: 8,
        epochs: vec![EpochStart { epoch: 41, first_lsn: 1 }],
        entries: (0..4).map(entry).collect(),
    }
}
