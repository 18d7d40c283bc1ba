//! Arbitrary bytes into every parser of what Untorn keeps on the disk, and what must hold for all of them: no panic,
//! no hang, no memory beyond the input's size, and what is accepted reads the same after being written again. For
//! whole journals: torn data is never accepted.
//!
//! The fuzz targets call these with what libFuzzer finds; `crates/lab/crashlab/tests/parsers.rs` calls them with random
//! and damaged bytes under any compiler.
//!
//! The first byte of an input says whether checksums are made right before parsing: without that hardly any change
//! would get past them, and with it a hostile author is played.

use bytes::Bytes;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};
use untorn_crashlab::{Options as DiskOptions, SimDisk};
use untorn_journal::commits::overlay::Source;
use untorn_journal::commits::record::{Decoder, FileRef, Op, Record, SpillCache, check_path};
use untorn_journal::directories::quarantine::PendingFiles;
use untorn_journal::directories::store_dir::StoreDir;
use untorn_journal::format::{
    ATTRIBUTE_BYTES, Attribute, AttributeFound, BLOCK_BYTES, HEADER_CRC_AT, Header, Key, RECORD_ALIGN_BYTES,
    RECORD_CRC_AT, RECORD_HEAD_BYTES, RECORD_HEAD_CRC_AT, RecordHead, VERSION, crc64,
};
use untorn_journal::journal::{Committed, Options};
use untorn_journal::recovery::{OpenOptions, Opened, open};
use untorn_os::Storage;

/// Splits off the byte that says whether to put checksums right.
fn split(input: &[u8]) -> (bool, Vec<u8>) {
    match input.split_first() {
        Some((first, rest)) => (first & 1 != 0, rest.to_vec()),
        None => (false, Vec::new()),
    }
}

/// Writes the checksum of everything before `at` there, if the input is long enough.
fn mend(bytes: &mut [u8], at: usize) {
    if bytes.len() >= at + 8 {
        let crc = crc64(&bytes[..at]);
        bytes[at..at + 8].copy_from_slice(&crc.to_le_bytes());
    }
}

/// A header slot.
pub fn header(input: &[u8]) {
    let (honest, mut bytes) = split(input);
    bytes.resize(BLOCK_BYTES, 0);
    if honest {
        mend(&mut bytes, HEADER_CRC_AT);
    }
    if let Ok(Some(header)) = Header::decode(&bytes, Path::new("header")) {
        let again = header.encode();
        let ours = Header { version: VERSION, ..header };
        assert_eq!(Header::decode(&again, Path::new("header")).expect("our own version"), Some(ours));
    }
}

/// The attribute `user.untorn`.
pub fn attribute(input: &[u8]) {
    let (honest, mut bytes) = split(input);
    if honest {
        mend(&mut bytes, ATTRIBUTE_BYTES - 8);
    }
    if let AttributeFound::Valid(attribute) = Attribute::decode(Some(&bytes)) {
        assert_eq!(Attribute::decode(Some(&attribute.encode())), AttributeFound::Valid(attribute));
    }
}

/// The list of files that a journal was set aside for.
pub fn quarantine(input: &[u8]) {
    let (honest, mut bytes) = split(input);
    if honest && bytes.len() >= 8 {
        let at = bytes.len() - 8;
        mend(&mut bytes, at);
    }
    if let Ok(pending) = PendingFiles::decode(&bytes, Path::new("pending-files")) {
        assert!(pending.files.len() * 8 <= bytes.len());
    }
}

/// The key of records that no journal holds.
const KEY: Key = Key(7);

/// The checksums of a record's bytes, put right.
fn mend_record(record: &mut [u8], key: Key) {
    let head = key.crc64(&[&record[..RECORD_HEAD_CRC_AT]]) as u32;
    record[RECORD_HEAD_CRC_AT..RECORD_CRC_AT].copy_from_slice(&head.to_le_bytes());
    record[RECORD_CRC_AT..RECORD_CRC_AT + 8].fill(0);
    let crc = key.crc64(&[record]);
    record[RECORD_CRC_AT..RECORD_CRC_AT + 8].copy_from_slice(&crc.to_le_bytes());
}

/// The record that claims to start here, if it fits.
fn claimed(segment: &mut [u8], at: usize) -> Option<&mut [u8]> {
    let len = u64::from_le_bytes(segment.get(at + 8..at + 16)?.try_into().expect("eight bytes"));
    let end = at.checked_add(usize::try_from(len).ok()?)?;
    (len >= RECORD_HEAD_BYTES as u64).then(|| segment.get_mut(at..end)).flatten()
}

/// A segment full of records, walked as recovery does.
pub fn record(input: &[u8]) {
    let (honest, mut bytes) = split(input);
    let mut at = 0;
    while at < bytes.len() {
        if honest && let Some(record) = claimed(&mut bytes, at) {
            mend_record(record, KEY);
        }
        let Some((head, crc)) = RecordHead::decode(&bytes, at, KEY) else {
            at += RECORD_ALIGN_BYTES;
            continue;
        };
        let end = at + head.len as usize;
        assert!(end <= bytes.len() && head.position == at as u64);
        let mut again = bytes[at..end].to_vec();
        let sealed = head.seal(&mut again, KEY);
        let mut segment = vec![0; at];
        segment.extend_from_slice(&again);
        assert_eq!(RecordHead::decode(&segment, at, KEY), Some((head, sealed)));
        assert!(sealed == crc || again != bytes[at..end], "one content, one checksum");
        operations_of(&bytes[at + RECORD_HEAD_BYTES..end]);
        at = end;
    }
}

/// The body of a commit.
pub fn operations(input: &[u8]) {
    operations_of(split(input).1.as_slice());
}

fn operations_of(body: &[u8]) {
    let Ok(record) = Decoder::decode(&Bytes::copy_from_slice(body), &mut SpillCache::none()) else { return };
    for file in &record.files {
        check_path(&file.path).expect("an accepted path is safe");
    }
    for op in &record.ops {
        if let Op::Rename { to: path, .. } | Op::Mkdir { path, .. } | Op::Rmdir { path } | Op::DirMode { path, .. } = op
        {
            check_path(path).expect("an accepted path is safe");
        }
        let _ = op.to_string();
    }
    let again = encoded(&record);
    assert_eq!(again, body, "what is accepted is what we would have written");
}

fn encoded(record: &Record) -> Vec<u8> {
    let mut out = Vec::new();
    record.encode(&mut out).expect("nothing of it is in a spill file");
    out
}

// Whole journals.

const HOME: &str = ".untorn/journal";
/// A file that is not the store's, though it lies in its directory.
const VICTIM: &str = "victim";
const COMMITS: u64 = 8;

/// The store's files after one of its commits.
type Files = BTreeMap<PathBuf, Vec<u8>>;

/// A store whose owner was killed, and what its files were after each of its commits.
struct Crashed {
    disk: SimDisk,
    states: Vec<Files>,
    /// The journal's files.
    names: Vec<PathBuf>,
    /// Every record: in which file, and where.
    records: Vec<(PathBuf, usize)>,
    /// The secret of their checksums.
    key: Key,
}

fn opened(storage: &Arc<dyn Storage>) -> untorn_journal::Result<Opened> {
    let journal = Options {
        durable: true,
        journal_bytes: 64 << 10,
        segment_bytes_first: 8 << 10,
        inline_bytes_max: 4 << 10,
        shared_bytes_least: u64::MAX,
        clone_bytes_least: 4 << 10,
        in_memory_max: 0,
        window_bytes: 4096,
        index_bytes_least: 0,
        memory: true,
        spare: false,
        readers: false,
        readers_space: None,
        dir_mode: 0o700,
    };
    let progress = |_, _| {};
    let options = OpenOptions {
        journal,
        create: true,
        wait: false,
        accept_unknown: false,
        salvage: false,
        redo: true,
        progress: &progress,
    };
    open(storage, &StoreDir::of_directory(), &options)
}

/// Commit number `n`: two files are made, then both change in the same places.
fn commit(n: u64) -> Record {
    let files = [(1, "a"), (2, "b")].map(|(id, path)| FileRef { id, previous_lsn: n - 1, path: path.into() });
    let mut record = Record { files: files.into(), ops: Vec::new() };
    for file in 0..2 {
        if n == 1 {
            record.ops.push(Op::Create { file, mode: 0o644 });
        }
        for at in [0, 700 * n, 5000] {
            let source = Source::Bytes { bytes: vec![n as u8; 600].into(), origin: at };
            record.ops.push(Op::Write { file, range: at..at + 600, source });
        }
        record.ops.push(Op::Truncate { file, size: 6500 + 10 * n });
    }
    record
}

/// The file after commit number `n`.
fn state(before: &Files, n: u64) -> Files {
    let mut after = before.clone();
    for name in ["a", "b"] {
        let contents = after.entry(name.into()).or_default();
        contents.resize(6500 + 10 * n as usize, 0);
        for at in [0, 700 * n as usize, 5000] {
            contents[at..at + 600].fill(n as u8);
        }
    }
    after
}

impl Crashed {
    fn new() -> Crashed {
        let disk = SimDisk::new(DiskOptions { seed: 5, ..DiskOptions::default() });
        disk.put(VICTIM, b"precious").expect("a file of somebody else's");
        let mut owner = opened(&disk.process()).expect("a new store");
        let mut states = vec![Files::new()];
        for n in 1..=COMMITS {
            let done = owner.journal.commit(&[commit(n)]).expect("a commit");
            assert_eq!(done, Committed::Records { first_lsn: n, n: 1 });
            states.push(state(states.last().expect("one at least"), n));
        }
        disk.kill();
        drop(owner);
        let slots = disk.get(Path::new(HOME).join("header")).expect("there");
        let header = slots.chunks(BLOCK_BYTES).find_map(|slot| Header::decode(slot, Path::new("header")).ok()?);
        let key = header.expect("a header").key;
        let tree = disk.tree();
        let in_journal = tree.into_iter().filter(|(path, _)| path.starts_with(HOME) && path != Path::new(HOME));
        let (names, records) = in_journal.fold((Vec::new(), Vec::new()), |(mut names, mut records), (path, entry)| {
            let mut at = 0;
            while at < entry.contents.len() {
                let found = RecordHead::decode(&entry.contents, at, key);
                records.extend(found.map(|_| (path.clone(), at)));
                at = found.map_or(at + 1, |(head, _)| at + head.len as usize).next_multiple_of(RECORD_ALIGN_BYTES);
            }
            names.push(path);
            (names, records)
        });
        assert_eq!(records.len() as u64, COMMITS, "all commits are in the journal");
        Crashed { disk, states, names, records, key }
    }

    /// The store, built once.
    fn get() -> &'static Crashed {
        static CRASHED: OnceLock<Crashed> = OnceLock::new();
        CRASHED.get_or_init(Crashed::new)
    }

    /// Puts every checksum right that a hostile author could.
    fn mend(&self, disk: &SimDisk) {
        for (path, at) in &self.records {
            let mut segment = disk.get(path).expect("there");
            if let Some(record) = claimed(&mut segment, *at) {
                mend_record(record, self.key);
                disk.put(path, &segment).expect("there");
            }
        }
        let path = Path::new(HOME).join("header");
        let mut slots = disk.get(&path).expect("there");
        for slot in slots.chunks_mut(BLOCK_BYTES) {
            mend(slot, HEADER_CRC_AT);
        }
        disk.put(&path, &slots).expect("there");
    }
}

/// A crashed store's journal, changed in places and recovered. An input is the byte of [`split`] and then four bytes
/// for each change: which file, where in it (two bytes), and what to put there.
pub fn journal(input: &[u8]) {
    let (honest, changes) = split(input);
    let crashed = Crashed::get();
    let disk = crashed.disk.fork();
    for change in changes.chunks_exact(4).take(64) {
        let path = &crashed.names[change[0] as usize % crashed.names.len()];
        let bytes = disk.meta(path).expect("there").size.max(1);
        let at = u64::from(u16::from_le_bytes([change[1], change[2]])) % bytes;
        disk.overwrite(path, at, &change[3..]).expect("there");
    }
    if honest {
        crashed.mend(&disk);
    }
    let before = files(&disk);
    let result = opened(&disk.process());
    disk.kill();
    assert_eq!(disk.get(VICTIM).expect("there"), b"precious", "somebody else's file was written to");
    assert!(disk.entry(VICTIM).expect("there").attribute.is_none(), "somebody else's file was taken");
    match result {
        // Whoever makes valid checksums writes valid commits, of what he likes.
        Ok(_) if honest => {}
        Ok(opened) => {
            assert!(opened.quarantined.is_empty(), "{:?}", opened.quarantined);
            let found = files(&disk);
            let Some(kept) = crashed.states.iter().position(|state| *state == found) else {
                panic!("torn: {:?}", found.iter().map(|(path, bytes)| (path, crc64(bytes))).collect::<Vec<_>>());
            };
            // Each record calls its predecessor durable: only a damaged tail may pass for torn, and every record in
            // it must have been hit.
            assert!(kept + changes.len() / 4 >= COMMITS as usize, "commits after {kept} were dropped as if torn");
        }
        Err(_) if !honest => assert_eq!(files(&disk), before, "an error changes nothing"),
        Err(_) => {}
    }
    // And once more: a recovery leaves something that can be opened, or refused, again.
    let _ = opened(&disk.fork().process());
}

/// A heap's metadata, changed in places, looked at and allocated in: see `untorn::__private::fuzz_heap`.
pub fn heap(input: &[u8]) {
    untorn::__private::fuzz_heap(input);
}

/// Metadata of a heap of two segments: blocks in use, a large allocation, a huge one; before it, some operations.
fn heap_sample() -> Vec<u8> {
    let descriptor = |kind: u32, count: u32, bytes: u64| {
        let mut line = [0; 64];
        line[..4].copy_from_slice(&kind.to_le_bytes());
        line[4..8].copy_from_slice(&count.to_le_bytes());
        line[8..16].copy_from_slice(&bytes.to_le_bytes());
        line
    };
    let operations: Vec<u8> = (0..32).map(|n: u8| n.wrapping_mul(37)).collect();
    let mut first = vec![0; 60 << 10];
    let lines = [(1, 3, 0), (1, 28, 0), (2, 3, 150_000), (3, 0, 0), (3, 0, 0), (0, 0, 0), (1, 40, 0)];
    for (n, (kind, count, bytes)) in lines.into_iter().enumerate() {
        first[64 * (n + 1)..64 * (n + 2)].copy_from_slice(&descriptor(kind, count, bytes));
    }
    for (chunk, bits) in [(1, 0xff), (2, 1), (7, 2)] {
        first[4096 + 512 * chunk] = bits;
    }
    let mut second = vec![0; 60 << 10];
    second[64..128].copy_from_slice(&descriptor(4, 1, 4_000_000));
    // Two segments, so many operations.
    [vec![32 * 4 + 2], operations, first, second].concat()
}

/// The store's files, the victim and Untorn's own left out.
fn files(disk: &SimDisk) -> Files {
    let ours = |path: &Path| path != Path::new(VICTIM) && !path.starts_with(".untorn");
    disk.tree().into_iter().filter(|(path, _)| ours(path)).map(|(path, entry)| (path, entry.contents)).collect()
}

/// A valid input of an entry, to start from: name, entry, input.
pub type Sample = (&'static str, fn(&[u8]), Vec<u8>);

/// One for each entry at least.
pub fn samples() -> Vec<Sample> {
    let header_sample = Header {
        version: VERSION,
        lengths: vec![4],
        unclosed: vec![3],
        marks_left: true,
        start_blocks: 4,
        by_attribute: false,
        store: [7; 16],
        generation: 9,
        checkpoint_lsn: 41,
        listed: Vec::new(),
        open_lsn: 42,
        link: 1,
        clean: false,
        start_segment: 0,
        start_crc: 77,
        boot: Some([5; 16]),
        epoch: 11,
        key: KEY,
    };
    let attribute_sample = Attribute {
        version: VERSION,
        store: [7; 16],
        file: 1,
        epoch: 2,
        checkpoint_lsn: 3,
        path_crc: 4,
        pending: true,
    };
    let crashed = Crashed::get();
    let segment = crashed.disk.get(&crashed.records[0].0).expect("there");
    let names = Record {
        files: vec![FileRef { id: 1, previous_lsn: 0, path: "a/b".into() }],
        ops: vec![
            Op::Mkdir { path: "d".into(), mode: 0o755 },
            Op::Create { file: 0, mode: 0o640 },
            Op::Write { file: 0, range: 5..9, source: Source::Zero },
            Op::Rename { file: 0, to: "c".into() },
            Op::Mode { file: 0, mode: 0o600 },
            Op::DirMode { path: "d".into(), mode: 0o700 },
            Op::Unlink { file: 0 },
            Op::Rmdir { path: "d".into() },
        ],
    };
    let with_byte = |bytes: &[u8]| [&[0], bytes].concat();
    vec![
        ("header", header, with_byte(&header_sample.encode())),
        ("attribute", attribute, with_byte(&attribute_sample.encode())),
        ("quarantine", quarantine, with_byte(&quarantine_sample())),
        ("record", record, with_byte(&segment)),
        ("operations", operations, with_byte(&encoded(&names))),
        ("operations", operations, with_byte(&encoded(&commit(1)))),
        ("journal", journal, with_byte(&[])),
        ("heap", heap, heap_sample()),
    ]
}

/// A list of two files, as `docs/FORMAT.md` describes it.
fn quarantine_sample() -> Vec<u8> {
    let mut bytes = b"UNTORN-Q".to_vec();
    bytes.extend(1u32.to_le_bytes());
    bytes.extend([0; 4]);
    for number in [5u64, 6, 7, 2, 1, 9] {
        bytes.extend(number.to_le_bytes());
    }
    bytes.extend([0; 8]);
    let at = bytes.len() - 8;
    mend(&mut bytes, at);
    PendingFiles::decode(&bytes, Path::new("pending-files")).expect("a valid sample");
    bytes
}
