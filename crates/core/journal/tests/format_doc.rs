//! `docs/FORMAT.md` against the code: every table of the document is compared, field by field and without gaps, with
//! bytes that the code has written.

use bytes::Bytes;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use untorn_journal::commits::overlay::{NO_END, Source};
use untorn_journal::commits::record::{FILE_BYTES_MAX, FileRef, IndexedSink, Op, PATH_BYTES_MAX, Record};
use untorn_journal::commits::spill::{Spill, spill_name};
use untorn_journal::directories::quarantine::PendingFiles;
use untorn_journal::directories::store_dir::{StoreDir, log_index_name, segment_name};
use untorn_journal::format::*;
use untorn_journal::slots::epochs::{EpochStart, Epochs, Point};
use untorn_journal::slots::kept_files::{kept_log_name, kept_spill_name};
use untorn_journal::slots::slot_dir::{Acknowledged, CAP_MAGIC, LOST_MAGIC, SlotDir, encode_number};
use untorn_journal::statistics::figures::{FIGURES_BYTES, Figure, Figures, Stage};
use untorn_journal::undo::index::{Entry, NAMES_DIR, Old, Was, index_name, link_name, old_bytes_name};
use untorn_journal::undo::page::{Cell, PAGE_VERSION, PageHead, Published, encode_cell};
use untorn_os::{AlignedBuf, Linux, Open, Storage, read_full_at};

/// The directories in the sample of a quarantined journal's list.
const SAMPLE_DIRS: &[u8] = b"d\0d/e\0";

/// The reasons in that list.
const SAMPLE_REASONS: &[u8] = b"full\0\0denied\0\0";

const DOCUMENT: &str = include_str!("../../../../docs/FORMAT.md");

/// The cells of a table's rows, without its heading.
fn table(name: &str) -> Vec<Vec<&'static str>> {
    let marker = format!("<!-- table: {name} -->");
    let at = DOCUMENT.find(&marker).unwrap_or_else(|| panic!("the document has no table {name}"));
    let lines = DOCUMENT[at + marker.len()..].trim_start().lines();
    let rows: Vec<Vec<&str>> = lines
        .take_while(|line| line.starts_with('|'))
        .skip(2)
        .map(|line| line.trim_matches('|').split('|').map(str::trim).collect())
        .collect();
    assert!(!rows.is_empty(), "table {name} is empty");
    rows
}

/// The value of an expression such as `48+8n`.
fn number(text: &str, n: usize) -> usize {
    // `d` and `r` are the lengths of the sample's list of directories and of its reasons.
    let term = |text: &str| match text.strip_suffix('n') {
        _ if text == "d" => SAMPLE_DIRS.len(),
        _ if text == "r" => SAMPLE_REASONS.len(),
        Some("") => n,
        Some(factor) => factor.parse::<usize>().unwrap_or_else(|_| panic!("no number: {text}")) * n,
        None => text.parse().unwrap_or_else(|_| panic!("no number: {text}")),
    };
    text.split('+').map(term).sum()
}

/// The value of a constant field: a text, or a number as wide as the field.
fn constant(meaning: &str, width: usize) -> Option<Vec<u8>> {
    let value = meaning.strip_prefix("always `")?.split('`').next()?;
    Some(match value.parse::<u64>() {
        Ok(number) => number.to_le_bytes()[..width].to_vec(),
        Err(_) => value.as_bytes().to_vec(),
    })
}

/// Checks that the table describes exactly these bytes, and that these fields vary.
fn describes(name: &str, written: &[u8], n: usize, fields: &[(&str, &[u8])]) {
    let fields: BTreeMap<&str, &[u8]> = fields.iter().copied().collect();
    let mut seen = BTreeSet::new();
    let mut end = 0;
    for row in table(name) {
        let (offset, width, field, meaning) = (number(row[0], n), number(row[1], n), row[2], row[3]);
        assert_eq!(offset, end, "{name}: {field} does not follow the field before it");
        end = offset + width;
        let found = written.get(offset..end).unwrap_or_else(|| panic!("{name}: {field} is beyond what is written"));
        let expected = match (constant(meaning, width), field) {
            (Some(value), _) => value,
            (None, "zero") => vec![0; width],
            (None, _) => {
                assert!(seen.insert(field), "{name}: {field} is described twice");
                fields.get(field).unwrap_or_else(|| panic!("{name}: the code knows no field {field}")).to_vec()
            }
        };
        assert_eq!(found, expected, "{name}: {field} at {offset}");
    }
    assert_eq!(end, written.len(), "{name}: bytes behind the last field");
    assert_eq!(seen, fields.keys().copied().collect(), "{name}: fields");
}

#[test]
fn constants() {
    let known: BTreeMap<&str, u64> = [
        ("VERSION", VERSION.into()),
        ("BLOCK_BYTES", BLOCK_BYTES as u64),
        ("HEADER_SLOTS", HEADER_SLOTS),
        ("HEADER_CRC_AT", HEADER_CRC_AT as u64),
        ("EPOCHS_AT", EPOCHS_AT as u64),
        ("EPOCH_BYTES", EPOCH_BYTES as u64),
        ("EPOCHS_MAX", EPOCHS_MAX as u64),
        ("CLOSED_BYTES", CLOSED_BYTES as u64),
        ("CLOSED_CRC_AT", CLOSED_CRC_AT as u64),
        ("RECORD_HEAD_BYTES", RECORD_HEAD_BYTES as u64),
        ("RECORD_HEAD_CRC_AT", RECORD_HEAD_CRC_AT as u64),
        ("RECORD_CRC_AT", RECORD_CRC_AT as u64),
        ("RECORD_ALIGN_BYTES", RECORD_ALIGN_BYTES as u64),
        ("INDEX_HEAD_BYTES", INDEX_HEAD_BYTES as u64),
        ("INDEX_HEAD_CRC_AT", INDEX_HEAD_CRC_AT as u64),
        ("UNCLOSED_AT", UNCLOSED_AT as u64),
        ("UNCLOSED_MAX", UNCLOSED_MAX as u64),
        ("LENGTHS_AT", LENGTHS_AT as u64),
        ("LENGTHS_MAX", LENGTHS_MAX as u64),
        ("LENGTH_BYTES", LENGTH_BYTES as u64),
        ("ATTRIBUTE_BYTES", ATTRIBUTE_BYTES as u64),
        ("PATH_BYTES_MAX", PATH_BYTES_MAX as u64),
        ("FILE_BYTES_MAX", FILE_BYTES_MAX),
        ("NO_END", NO_END),
        ("NO_BOUND", NO_BOUND),
    ]
    .into();
    let written: BTreeMap<&str, u64> =
        table("constants").iter().map(|row| (row[0].trim_matches('`'), row[1].parse().expect("a number"))).collect();
    assert_eq!(written, known);
    assert!(DOCUMENT.contains(&format!("**format version {VERSION}**")));
}

#[test]
fn names() {
    let store_dir = StoreDir::of_directory();
    let journal = store_dir.journal();
    let known: BTreeSet<PathBuf> = [
        store_dir.owner_file(),
        store_dir.lock_file(),
        store_dir.readers_page(),
        store_dir.undo().join(index_name(0xab)),
        store_dir.undo().join(old_bytes_name(&(0xab..0xcd))),
        store_dir.undo().join(NAMES_DIR).join(link_name(0xab)),
        journal.join("header"),
        journal.join(segment_name(0)),
        journal.join(log_index_name(0)),
        journal.join(spill_name(0xab)),
        journal.join("rename.00000000000000ab"),
        journal.join("pending-files"),
        store_dir.journal_new(),
        store_dir.journal_spare(),
        store_dir.quarantined_journal(0xab),
        store_dir.epochs(),
        SlotDir::of(&store_dir, "backup").unwrap().dir,
        store_dir.kept().join(kept_log_name(0xab)),
        store_dir.kept().join(kept_spill_name(0xab, 0xcd)),
    ]
    .into();
    let written: BTreeSet<PathBuf> = table("names").iter().map(|row| PathBuf::from(row[0].trim_matches('`'))).collect();
    assert_eq!(written, known);
    assert_eq!(StoreDir::of_file(Path::new("foo.db")).dir, Path::new("foo.db.untorn"));
    // The rename temporary has no public function.
    assert!(
        include_str!("../src/data_files/locate.rs").contains("self.rename_dir.join(format!(\"rename.{id:016x}\"))")
    );
}

#[test]
fn header_slot() {
    let header = Header {
        version: VERSION,
        store: [0x11; 16],
        generation: 2,
        checkpoint_lsn: 3,
        listed: vec![ListedEpoch { epoch: 9, first_lsn: 10, last_lsn: 11, last_crc: 12 }],
        open_lsn: 13,
        link: 4,
        clean: false,
        start_segment: 5,
        start_crc: 6,
        start_blocks: 14,
        boot: Some([0x22; 16]),
        epoch: 7,
        lengths: vec![17, 18],
        unclosed: vec![15, 16],
        marks_left: false,
        key: Key(8),
        by_attribute: false,
    };
    let written = header.encode();
    let crc = crc64(&written[..HEADER_CRC_AT]).to_le_bytes();
    let mut fields: Vec<(&str, &[u8])> = vec![
        ("generation", &[2, 0, 0, 0, 0, 0, 0, 0]),
        ("store", &[0x11; 16]),
        ("checkpoint_lsn", &[3, 0, 0, 0, 0, 0, 0, 0]),
        ("link", &[4, 0, 0, 0, 0, 0, 0, 0]),
        ("epoch", &[7, 0, 0, 0, 0, 0, 0, 0]),
        ("boot", &[0x22; 16]),
        ("start_crc", &[6, 0, 0, 0, 0, 0, 0, 0]),
        ("start_segment", &[5, 0, 0, 0]),
        ("key", &[8, 0, 0, 0, 0, 0, 0, 0]),
        ("listed", &[1, 0, 0, 0]),
        ("open_lsn", &[13, 0, 0, 0, 0, 0, 0, 0]),
        ("epochs", &written[EPOCHS_AT..EPOCHS_AT + EPOCHS_MAX * EPOCH_BYTES]),
        ("start_blocks", &[14, 0, 0, 0]),
        ("unclosed", &[2, 0, 0, 0]),
        ("unclosed_epochs", &written[UNCLOSED_AT + 4..LENGTHS_AT]),
        ("segments", &[2, 0, 0, 0]),
        ("lengths", &written[LENGTHS_AT + 4..LENGTHS_AT + 4 + 4 * LENGTHS_MAX]),
        ("crc", &crc),
    ];
    assert_eq!(written[UNCLOSED_AT + 4..][..16], [15, 0, 0, 0, 0, 0, 0, 0, 16, 0, 0, 0, 0, 0, 0, 0]);
    assert_eq!(written[LENGTHS_AT + 4..][..8], [17, 0, 0, 0, 18, 0, 0, 0]);
    fields.push(("flags", &[2, 0, 0, 0]));
    describes("header-slot", &written, 0, &fields);

    describes(
        "listed-epoch",
        &written[EPOCHS_AT..EPOCHS_AT + EPOCH_BYTES],
        0,
        &[
            ("epoch", &[9, 0, 0, 0, 0, 0, 0, 0]),
            ("first_lsn", &[10, 0, 0, 0, 0, 0, 0, 0]),
            ("last_lsn", &[11, 0, 0, 0, 0, 0, 0, 0]),
            ("last_crc", &[12, 0, 0, 0, 0, 0, 0, 0]),
        ],
    );

    let clean = Header { clean: true, boot: None, marks_left: true, ..header }.encode();
    assert_eq!(clean[12..16], [5, 0, 0, 0]);
    assert_eq!(clean[64..80], [0; 16]);
}

/// The header of an open store without unapplied epochs.
fn header() -> Header {
    Header {
        version: VERSION,
        store: [0x11; 16],
        generation: 2,
        checkpoint_lsn: 3,
        listed: Vec::new(),
        open_lsn: 4,
        link: 5,
        clean: false,
        start_segment: 6,
        start_crc: 7,
        start_blocks: 9,
        boot: None,
        epoch: 8,
        lengths: Vec::new(),
        unclosed: Vec::new(),
        marks_left: false,
        key: Key(10),
        by_attribute: false,
    }
}

#[test]
fn closed_header() {
    let header = Header {
        clean: true,
        unclosed: vec![8],
        marks_left: true,
        key: Key(0x0807_0605_0403_0201),
        by_attribute: true,
        ..header()
    };
    let slot_crc = [9, 10, 11, 12, 13, 14, 15, 16];
    // The checksum ends the slot of an odd generation.
    let mut slots = vec![0; 2 * BLOCK_BYTES];
    slots[2 * BLOCK_BYTES - 8..].copy_from_slice(&slot_crc);
    let written = header.encode_closed(&slots);
    let crc = crc64(&[&[1, 2, 3, 4, 5, 6, 7, 8], &slot_crc[..], &written[..CLOSED_CRC_AT]].concat()).to_le_bytes();
    describes(
        "closed-header",
        &written,
        0,
        &[
            ("flags", &[7, 0]),
            ("generation", &[2, 0, 0, 0, 0, 0, 0, 0]),
            ("checkpoint_lsn", &[3, 0, 0, 0, 0, 0, 0, 0]),
            ("link", &[5, 0, 0, 0, 0, 0, 0, 0]),
            ("epoch", &[8, 0, 0, 0, 0, 0, 0, 0]),
            ("start_crc", &[7, 0, 0, 0, 0, 0, 0, 0]),
            ("start_segment", &[6, 0, 0, 0]),
            ("start_blocks", &[9, 0, 0, 0]),
            ("crc", &crc),
        ],
    );
}

#[test]
fn segment_length() {
    let written = encode_length(2, 3 * BLOCK_BYTES as u64);
    let crc = crc64(&written[..LENGTH_BYTES - 8]).to_le_bytes();
    describes("segment-length", &written, 0, &[("index", &[2, 0, 0, 0]), ("blocks", &[3, 0, 0, 0]), ("crc", &crc)]);
    assert_eq!(decode_length(2, Some(&written)), 3 * BLOCK_BYTES as u64);
    assert_eq!((decode_length(3, Some(&written)), decode_length(2, None)), (0, 0));
    for at in 0..LENGTH_BYTES {
        let mut bad = written;
        bad[at] ^= 1;
        assert_eq!(decode_length(2, Some(&bad)), 0, "byte {at}");
    }
}

#[test]
fn record_head() {
    let mut head = RecordHead {
        kind: RecordKind::DurableMark,
        body_by_reference: false,
        len: RECORD_HEAD_BYTES as u64,
        lsn: 2,
        epoch: 3,
        generation: 4,
        position: 8192,
        previous_crc: 5,
        durable_lsn: 6,
        time: Some(TIME_ORIGIN + 1),
    };
    let mut written = vec![0xff; RECORD_HEAD_BYTES];
    let key = Key(0x0807_0605_0403_0201);
    let sealed = head.seal(&mut written, key);
    let mut unsealed = written.clone();
    unsealed[RECORD_CRC_AT..].fill(0);
    assert_eq!(sealed, crc64(&[&[1, 2, 3, 4, 5, 6, 7, 8], &unsealed[..]].concat()));
    let head_crc = crc64(&[&[1, 2, 3, 4, 5, 6, 7, 8], &unsealed[..68]].concat()) as u32;
    let crc = sealed.to_le_bytes();
    describes(
        "record-head",
        &written,
        0,
        &[
            ("kind", &[2, 0]),
            ("len", &[80, 0, 0, 0, 0, 0, 0, 0]),
            ("lsn", &[2, 0, 0, 0, 0, 0, 0, 0]),
            ("epoch", &[3, 0, 0, 0, 0, 0, 0, 0]),
            ("generation", &[4, 0, 0, 0, 0, 0, 0, 0]),
            ("position", &[0, 32, 0, 0, 0, 0, 0, 0]),
            ("previous_crc", &[5, 0, 0, 0, 0, 0, 0, 0]),
            ("durable_lsn", &[6, 0, 0, 0, 0, 0, 0, 0]),
            ("flags", &[2, 0, 0, 0]),
            ("head_crc", &head_crc.to_le_bytes()),
            ("crc", &crc),
        ],
    );
    head.kind = RecordKind::Commit;
    head.body_by_reference = true;
    head.seal(&mut written, key);
    assert_eq!((&written[6..8], &written[64..68]), (&[1, 0][..], &[3, 0, 0, 0][..]));
    for (time, bits) in [
        (None, 1),
        (Some(TIME_ORIGIN - 1), 1),
        (Some(TIME_ORIGIN + (1 << 31)), 1),
        (Some(TIME_ORIGIN + (1 << 31) - 1), u32::MAX),
    ] {
        (head.time, head.body_by_reference) = (time, true);
        head.seal(&mut written, key);
        assert_eq!(written[64..68], u32::to_le_bytes(bits), "{time:?}");
    }
}

/// A separate directory for one test, with a storage in it.
fn directory(name: &str) -> Arc<dyn Storage> {
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    let _ = std::fs::remove_dir_all(&path);
    std::fs::create_dir_all(&path).expect("a directory");
    Linux::open(&path).expect("a storage")
}

fn spill(name: &str, contents: &[u8]) -> Arc<Spill> {
    let spill = Spill::create(&directory(name), Path::new("")).expect("a spill file");
    assert_eq!(spill.append(contents, None).expect("room"), 0);
    spill
}

fn body(files: Vec<FileRef>, ops: Vec<Op>) -> Vec<u8> {
    let mut out = Vec::new();
    Record { files, ops }.encode(&mut out).expect("a body");
    out
}

/// The bytes that one operation adds to an empty body.
fn operation(op: Op) -> Vec<u8> {
    body(vec![], vec![op]).split_off(8)
}

#[test]
fn bodies() {
    let files = vec![FileRef { id: 2, previous_lsn: 3, path: "name".into() }];
    let written = body(files, vec![Op::Unlink { file: 0 }]);
    describes("body", &written[..8], 0, &[("files", &[1, 0, 0, 0]), ("operations", &[1, 0, 0, 0])]);
    let file: &[(&str, &[u8])] = &[
        ("id", &[2, 0, 0, 0, 0, 0, 0, 0]),
        ("previous_lsn", &[3, 0, 0, 0, 0, 0, 0, 0]),
        ("path_len", &[4, 0]),
        ("path", b"name"),
    ];
    describes("file", &written[8..written.len() - 5], 4, file);
}

#[test]
fn operations_on_contents() {
    let (file, at, len): (&[u8], &[u8], &[u8]) = (&[9, 0, 0, 0], &[7, 0, 0, 0, 0, 0, 0, 0], &[3, 0, 0, 0, 0, 0, 0, 0]);
    let put = |source| operation(Op::Write { file: 9, range: 7..10, source });

    let written = put(Source::Bytes { bytes: Bytes::from_static(b"abc"), origin: 7 });
    describes("write", &written, 3, &[("file", file), ("offset", at), ("len", len), ("bytes", b"abc")]);

    let written = put(Source::Zero);
    describes("zero", &written, 0, &[("file", file), ("offset", at), ("len", len)]);

    let spill = spill("operations", b"..abc");
    let crc = crc64(b"abc");
    let written = put(Source::Spill { spill: spill.clone(), at: 2, origin: 7, len: 3, crc });
    let (id, crc) = (spill.id.to_le_bytes(), crc.to_le_bytes());
    describes(
        "write-spilled",
        &written,
        0,
        &[
            ("file", file),
            ("offset", at),
            ("len", len),
            ("spill", &id),
            ("at", &[2, 0, 0, 0, 0, 0, 0, 0]),
            ("crc", &crc),
        ],
    );

    let written = operation(Op::Truncate { file: 9, size: 3 });
    describes("truncate", &written, 0, &[("file", file), ("size", len)]);
}

#[test]
fn index_head() {
    let head = IndexHead { epoch: 1, first_lsn: 2, bound: 3, bytes: 4, place: (5, 6) };
    let written = head.encode(Key(7));
    let numbers = [1u64, 2, 3, 4, 5, 6, Key(7).crc64(&[&written[..INDEX_HEAD_CRC_AT]])].map(u64::to_le_bytes);
    let names = ["epoch", "first_lsn", "bound", "bytes", "device", "inode", "crc"];
    let fields: Vec<(&str, &[u8])> = names.into_iter().zip(numbers.iter().map(|number| &number[..])).collect();
    describes("index-head", &written, 0, &fields);
}

/// The index of the log has the places of contents, and checksums of their pieces.
#[test]
fn index_of_the_log() {
    let contents = Bytes::from(vec![5; 20 << 10]);
    let source = Source::Bytes { bytes: contents.clone(), origin: 7 };
    let record = Record { files: vec![], ops: vec![Op::Write { file: 9, range: 7..7 + (20 << 10), source }] };
    let (mut buf, mut index) = (AlignedBuf::default(), Vec::new());
    record.encode(&mut IndexedSink { buf: &mut buf, start: 4096, index: &mut index }).expect("a body");
    let crcs = [crc64(&contents[..16 << 10]), crc64(&contents[16 << 10..])].map(u64::to_le_bytes).concat();
    let fields: [(&str, &[u8]); 5] = [
        ("file", &[9, 0, 0, 0]),
        ("offset", &7u64.to_le_bytes()),
        ("len", &(20u64 << 10).to_le_bytes()),
        // The counts of the body, and the operation before its bytes, lie before them.
        ("at", &(4096u64 + 8 + 21).to_le_bytes()),
        ("crcs", &crcs[..]),
    ];
    describes("write-indexed", &index[8..], 2, &fields);
}

#[test]
fn operations_on_names() {
    let (file, mode): (&[u8], &[u8]) = (&[9, 0, 0, 0], &[0o340, 1, 0, 0]);
    let of_file: &[(&str, &[u8])] = &[("file", file), ("mode", mode)];
    describes("create", &operation(Op::Create { file: 9, mode: 0o740 }), 0, of_file);
    describes("mode", &operation(Op::Mode { file: 9, mode: 0o740 }), 0, of_file);
    describes("unlink", &operation(Op::Unlink { file: 9 }), 0, &[("file", file)]);

    let path: PathBuf = "a/name".into();
    let named: &[(&str, &[u8])] = &[("path_len", &[6, 0]), ("path", b"a/name")];
    let rename = operation(Op::Rename { file: 9, to: path.clone() });
    describes("rename", &rename, 6, &[named, &[("file", file)]].concat());
    describes("restate", &operation(Op::Restate), 0, &[]);
    describes("rmdir", &operation(Op::Rmdir { path: path.clone() }), 6, named);
    let with_mode = [named, &[("mode", mode)]].concat();
    describes("mkdir", &operation(Op::Mkdir { path: path.clone(), mode: 0o740 }), 6, &with_mode);
    describes("dir-mode", &operation(Op::DirMode { path, mode: 0o740 }), 6, &with_mode);
}

/// A body by reference is read from the place that the table describes.
#[test]
fn reference() {
    use untorn_journal::commits::record::{SpillCache, body_by_reference};
    let storage = directory("reference");
    let spill = Spill::create(&storage, Path::new("")).expect("a spill file");
    spill.append(b"the body, and more", None).expect("room");
    let (id, len, crc) = (spill.id.to_le_bytes(), 8u64.to_le_bytes(), crc64(b"the body").to_le_bytes());
    let reference = [id, len, crc].concat();
    describes("reference", &reference, 0, &[("spill", &id), ("len", &len), ("crc", &crc)]);
    let mut spills = SpillCache::new(storage, PathBuf::new());
    assert_eq!(&body_by_reference(&reference, &mut spills).expect("the body")[..], b"the body");
}

#[test]
fn attribute() {
    let attribute = Attribute {
        version: VERSION,
        store: [0x11; 16],
        file: 2,
        epoch: 3,
        checkpoint_lsn: 4,
        path_crc: 5,
        pending: true,
    };
    let written = attribute.encode();
    let crc = crc64(&written[..56]).to_le_bytes();
    describes(
        "attribute",
        &written,
        0,
        &[
            ("flags", &[1, 0]),
            ("store", &[0x11; 16]),
            ("file", &[2, 0, 0, 0, 0, 0, 0, 0]),
            ("epoch", &[3, 0, 0, 0, 0, 0, 0, 0]),
            ("checkpoint_lsn", &[4, 0, 0, 0, 0, 0, 0, 0]),
            ("path_crc", &[5, 0, 0, 0, 0, 0, 0, 0]),
            ("crc", &crc),
        ],
    );
    assert_eq!(Attribute { pending: false, ..attribute }.encode()[6..8], [0, 0]);
    assert_eq!(Attribute::path_crc_of(Path::new("a/b")), crc64(b"a/b"));
}

#[test]
fn list_of_a_quarantined_journal() {
    let storage = directory("pending-files");
    let pending = PendingFiles {
        last_lsn: 2,
        last_crc: 3,
        epoch: 4,
        files: [(6, String::new()), (5, "full".to_owned())].into(),
        dirs: [("d/e".into(), String::new()), ("d".into(), "denied".to_owned())].into(),
    };
    pending.write(&*storage, Path::new("")).expect("the list");
    let file = storage.open(Path::new("pending-files"), Open::READ).expect("the list");
    let mut written = vec![0; 200];
    let len = read_full_at(&*file, &mut written, 0).expect("the list");
    written.truncate(len);
    let crc = crc64(&written[..len - 8]).to_le_bytes();
    describes(
        "pending-files",
        &written,
        2,
        &[
            ("dir_bytes", &[6, 0, 0, 0]),
            ("last_lsn", &[2, 0, 0, 0, 0, 0, 0, 0]),
            ("last_crc", &[3, 0, 0, 0, 0, 0, 0, 0]),
            ("epoch", &[4, 0, 0, 0, 0, 0, 0, 0]),
            ("count", &[2, 0, 0, 0]),
            ("reason_bytes", &[SAMPLE_REASONS.len() as u8, 0, 0, 0]),
            ("files", &[5, 0, 0, 0, 0, 0, 0, 0, 6, 0, 0, 0, 0, 0, 0, 0]),
            ("dirs", SAMPLE_DIRS),
            ("reasons", SAMPLE_REASONS),
            ("crc", &crc),
        ],
    );
}

#[test]
fn readers_page() {
    let head = PageHead { pid: 77, store: [7; 16], boot: [5; 16], place: (3, 4), chain: 9 };
    let written = head.encode();
    let fields: [(&str, &[u8]); 7] = [
        ("pid", &77u32.to_le_bytes()),
        ("store", &[7; 16]),
        ("boot", &[5; 16]),
        ("device", &3u64.to_le_bytes()),
        ("inode", &4u64.to_le_bytes()),
        ("chain", &9u64.to_le_bytes()),
        ("crc", &crc64(&written[..88]).to_le_bytes()),
    ];
    describes("page-head", &written, 0, &fields);
    assert_eq!(PageHead::decode(&written), Some((head, PAGE_VERSION)));
    for (c, cell) in [Cell::Durable, Cell::Named, Cell::Kept, Cell::GivenUp].into_iter().enumerate() {
        let number = 0x0102_0304_0506_0708_u64.to_le_bytes();
        let crc = crc64(&[&[c as u8][..], &number].concat()).to_le_bytes();
        let fields: [(&str, &[u8]); 2] = [("number", &number), ("crc", &crc)];
        describes("page-cell", &encode_cell(cell, u64::from_le_bytes(number)), 0, &fields);
    }
    assert_eq!(Published { generation: 3, bytes: 5 }.number(), 3 * (1 << 40) + 5);
}

#[test]
fn figures() {
    let names = [
        "publication",
        "pid",
        "epoch",
        "open_ns",
        "commits",
        "groups",
        "waited",
        "checkpoints",
        "syncs",
        "bytes_written",
        "journal_bytes_written",
        "lsn",
        "journal_bytes_max",
        "journal_bytes_allocated",
        "journal_bytes_pending",
        "open_files",
        "memory_bytes",
        "quarantined",
        "held",
        "kept_bytes",
        "failed",
    ];
    let mut figures = Figures::default();
    Figure::ALL.into_iter().for_each(|figure| figures.set(figure, 100 + figure as u64));
    let durations = [1, 1025, 1_000_000, 3 << 20, u64::MAX >> 1].map(std::time::Duration::from_nanos);
    let mut stages = vec![0; 1736 * Stage::ALL.len()];
    for (n, stage) in Stage::ALL.into_iter().enumerate() {
        durations[..n % 5 + 1].iter().for_each(|took| figures.stage_mut(stage).note(*took));
        let histogram = &mut stages[1736 * n..];
        let sum: u64 = durations[..n % 5 + 1].iter().map(|took| took.as_nanos() as u64).sum();
        histogram[..8].copy_from_slice(&sum.to_le_bytes());
        // 1,000,000 is 2^19 (1 + 7.2/8), and 3 · 2^20 is 2^21 (1 + 4/8).
        for bucket in [0, 0, 8 * (19 - 10) + 7, 8 * (21 - 10) + 4, 215].into_iter().take(n % 5 + 1) {
            histogram[8 + 8 * bucket] += 1;
        }
    }
    let written = figures.encode(9);
    let numbers: Vec<[u8; 8]> = (100..).take(names.len()).map(u64::to_le_bytes).collect();
    let (bytes, crc) = ((FIGURES_BYTES as u32).to_le_bytes(), crc64(&written[..written.len() - 8]).to_le_bytes());
    let chain = 9u64.to_le_bytes();
    let mut fields: Vec<(&str, &[u8])> = vec![("bytes", &bytes), ("chain", &chain), ("stages", &stages), ("crc", &crc)];
    fields.extend(names.into_iter().zip(numbers.iter().map(|number| &number[..])));
    describes("figures", &written, 0, &fields);
}

/// The part of an entry behind its head, which is checked here.
fn entry_of(old: Old, kind: u8) -> Vec<u8> {
    let mut written = Vec::new();
    Entry { commits: 2..3, old }.encode(&mut written);
    let fields: [(&str, &[u8]); 5] = [
        ("crc", &crc64(&written[8..]).to_le_bytes()),
        ("len", &(written.len() as u32 - 16).to_le_bytes()),
        ("kind", &[kind, 0, 0, 0]),
        ("from", &2u64.to_le_bytes()),
        ("to", &3u64.to_le_bytes()),
    ];
    describes("undo-entry", &written[..32], 0, &fields);
    written.split_off(32)
}

/// The block of which an entry has these runs.
fn block_of(mut runs: &[u8]) -> [u8; BLOCK_BYTES] {
    let (mut block, mut end) = ([0; BLOCK_BYTES], 0);
    while !runs.is_empty() {
        let [at, len] = [0, 2].map(|field| u16::from_le_bytes([runs[field], runs[field + 1]]) as usize);
        assert!(end == 0 || at >= end + 16, "few zeros before {at}");
        end = at + len;
        let (run, rest) = runs.split_at(4 + len);
        let fields: [(&str, &[u8]); 3] = [("offset", &run[..2]), ("length", &run[2..4]), ("bytes", &run[4..])];
        describes("undo-header-run", run, len, &fields);
        block[at..end].copy_from_slice(&run[4..]);
        runs = rest;
    }
    block
}

#[test]
fn index_of_old_data() {
    let [device, inode, start, end, at] = [4u64, 5, 6, 7, 8].map(u64::to_le_bytes);
    let of_file: [(&str, &[u8]); 2] = [("device", &device), ("inode", &inode)];
    let of_bytes: [(&str, &[u8]); 3] = [("start", &start), ("end", &end), ("at", &at)];
    let written = entry_of(Old::Bytes { file: (4, 5), range: 6..7, at: 8 }, 1);
    describes("undo-bytes", &written, 0, &[&of_file[..], &of_bytes[..]].concat());
    let written = entry_of(Old::Length { file: (4, 5), len: 6 }, 2);
    let of_length: [(&str, &[u8]); 1] = [("length", &start)];
    describes("undo-length", &written, 0, &[&of_file[..], &of_length[..]].concat());

    let header = header();
    assert_eq!(block_of(&entry_of(Old::Header(Box::new(header.clone())), 3)), header.encode());

    let names: [(Was, [u64; 3]); 4] = [
        (Was::Nothing, [0; 3]),
        (Was::Directory(0o740), [1, 0o740, 0]),
        (Was::File { mode: 0o640, link: 9 }, [2, 0o640, 9]),
        (Was::Lost, [3, 0, 0]),
    ];
    for (was, numbers) in names {
        let written = entry_of(Old::Name { path: "name".into(), was }, 4);
        let [was, mode, link] = numbers.map(u64::to_le_bytes);
        let fields: [(&str, &[u8]); 4] = [("was", &was), ("mode", &mode), ("link", &link), ("path", b"name")];
        describes("undo-name", &written, 4, &fields);
    }
}

#[test]
fn slots() {
    let starts = [EpochStart { epoch: 5, first_lsn: 6 }, EpochStart { epoch: 7, first_lsn: 8 }];
    let written = Epochs::new(&starts).unwrap().encode(&[9; 16]);
    let end = written.len() - 8;
    let entries: Vec<u8> = [5u64, 6, 7, 8].into_iter().flat_map(u64::to_le_bytes).collect();
    let fields: [(&str, &[u8]); 4] = [
        ("count", &2u32.to_le_bytes()),
        ("store", &[9; 16]),
        ("entries", &entries),
        ("crc", &crc64(&written[..end]).to_le_bytes()),
    ];
    describes("epochs", &written, 2, &fields);

    for magic in [CAP_MAGIC, LOST_MAGIC] {
        let written = encode_number(magic, 5);
        let fields: [(&str, &[u8]); 3] =
            [("magic", magic), ("number", &5u64.to_le_bytes()), ("crc", &crc64(&written[..24]).to_le_bytes())];
        describes("slot-number", &written, 0, &fields);
    }

    let (point, hash) = (Point { epoch: 5, lsn: 6 }, [7; 32]);
    let written = Acknowledged { point, hash, time_ns: 8, generation: 9 }.encode();
    let [epoch, lsn, time, generation] = [5u64, 6, 8, 9].map(u64::to_le_bytes);
    let fields: [(&str, &[u8]); 6] = [
        ("epoch", &epoch),
        ("lsn", &lsn),
        ("hash", &hash),
        ("time", &time),
        ("generation", &generation),
        ("crc", &crc64(&written[..88]).to_le_bytes()),
    ];
    describes("acknowledged", &written, 0, &fields);
}
