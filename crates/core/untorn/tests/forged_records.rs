//! File contents that look like records of the journal, and headers with wrong numbers and right checksums. They must
//! neither mislead recovery nor slow it down.

mod common;

use common::*;
use std::fs;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::Duration;
use tempfile::TempDir;
use untorn::{Store, StoreOptions};
use untorn_journal::format::{BLOCK_BYTES, Header, Key, RECORD_HEAD_BYTES, RecordHead, RecordKind};
use untorn_journal::scanning::scan::read_header;
use untorn_os::Linux;

/// The offset of the bytes of the first commit of `f` in their segment.
const BEFORE_BYTES: usize = RECORD_HEAD_BYTES + 8 + 18 + 1 + 21;

/// The head of a forged record that declares everything durable, made with this key.
fn forged(position: usize, len: usize, key: Key) -> Vec<u8> {
    let head = RecordHead {
        kind: RecordKind::DurableMark,
        body_by_reference: false,
        len: len as u64,
        lsn: 1 << 40,
        epoch: 1,
        generation: 1 << 40,
        position: position as u64,
        previous_crc: 0,
        durable_lsn: 1 << 40,
        time: None,
    };
    let mut record = vec![0; len];
    head.seal(&mut record, key);
    record
}

/// The key that the store's header has.
fn key_of(store: &Path) -> Key {
    let path = store.join(".untorn/journal/header");
    let slots = fs::read(&path).unwrap();
    let header = slots.chunks(BLOCK_BYTES).find_map(|slot| Header::decode(slot, &path).unwrap());
    header.expect("a header").key
}

/// The state after a crash of a store in which somebody wrote forged records to a file before the log was truncated and
/// the segment reused.
fn crashed_after(key: impl Fn(&Path) -> Key) -> TempDir {
    let dir = directory();
    let of_store = dir.path().join("store");
    let options = StoreOptions::new().create(true).background(false);
    options.open(&of_store).unwrap().open_or_create_file("f").unwrap();
    let key = key(&of_store);
    let store = options.open(&of_store).unwrap();
    let file = store.open_file("f").unwrap();
    let mut bytes = vec![0; 64 << 10];
    for position in (BLOCK_BYTES..bytes.len()).step_by(BLOCK_BYTES) {
        let record = forged(position, RECORD_HEAD_BYTES, key);
        bytes[position - BEFORE_BYTES..][..record.len()].copy_from_slice(&record);
    }
    file.write_all_at(&bytes, 0).unwrap();
    file.commit().unwrap();
    drop(file);
    store.close().unwrap();
    // The next epoch starts at the beginning of the segment.
    let store = options.open(&of_store).unwrap();
    let file = store.open_file("f").unwrap();
    file.write_all_at(b"small", 0).unwrap();
    file.commit().unwrap();
    run("cp", ["-a".as_ref(), of_store.as_os_str(), dir.path().join("crashed").as_os_str()]);
    dir
}

#[test]
fn contents_of_a_file_are_never_evidence_of_damage() {
    // Anyone who can read the store may know the key: the forged records are at valid positions.
    for key in [|_: &Path| Key(0), key_of] {
        let dir = crashed_after(key);
        let store = Store::open_or_create(dir.path().join("crashed")).unwrap();
        assert_eq!(&stored(&store, "f")[..5], b"small");
        store.close().unwrap();
    }
}

#[test]
fn contents_that_look_like_records_are_kept_as_any_others() {
    let dir = directory();
    let store = StoreOptions::new().create(true).background(false).open(dir.path()).unwrap();
    let file = store.open_or_create_file("f").unwrap();
    let bytes = b"UTRC".repeat(40_000);
    file.write_all_at(&bytes, 0).unwrap();
    file.commit().unwrap();
    drop((file, store));
    let store = Store::open_or_create(dir.path()).unwrap();
    assert_eq!(stored(&store, "f"), bytes);
    store.close().unwrap();
}

#[test]
fn every_journal_has_a_key_of_its_own_that_stays() {
    let (one, other) = (directory(), directory());
    for dir in [&one, &other] {
        Store::open_or_create(dir.path()).unwrap().close().unwrap();
    }
    let key = key_of(one.path());
    assert!(key != key_of(other.path()) && key != Key(0));
    let store = Store::open_or_create(one.path()).unwrap();
    store.open_or_create_file("f").unwrap().append(b"x").unwrap();
    store.checkpoint().unwrap();
    store.close().unwrap();
    let path = one.path().join(".untorn/journal/header");
    let slots = fs::read(&path).unwrap();
    let keys: Vec<Key> =
        slots.chunks(BLOCK_BYTES).filter_map(|slot| Header::decode(slot, &path).unwrap()).map(|h| h.key).collect();
    assert_eq!(keys, [key, key], "in both slots");
    assert_eq!(mode(&path), 0o600);
}

/// A head at each block, each with a length that reaches the end of the segment.
#[test]
fn made_up_lengths_are_not_summed_up() {
    const BYTES: usize = 128 << 20;
    let dir = crashed_after(|_| Key(0));
    let crashed = dir.path().join("crashed");
    let path = crashed.join(".untorn/journal/segment.0");
    let mut segment = fs::read(&path).unwrap();
    let used = segment.len();
    segment.resize(BYTES, 0);
    for position in (used..BYTES).step_by(BLOCK_BYTES) {
        let mut head = forged(position, RECORD_HEAD_BYTES, Key(0));
        head[8..16].copy_from_slice(&((BYTES - position) as u64).to_le_bytes());
        segment[position..position + head.len()].copy_from_slice(&head);
    }
    fs::write(&path, segment).unwrap();
    within(Duration::from_secs(60), "recovery", move || {
        let store = Store::open_or_create(crashed).unwrap();
        assert_eq!(&stored(&store, "f")[..5], b"small");
    });
}

#[test]
fn a_clean_header_whose_numbers_contradict_each_other_is_damage() {
    for (checkpoint_lsn, open_lsn) in [(7, 3), (7, 0), (0, 9), (u64::MAX, 0), (u64::MAX, u64::MAX)] {
        let dir = directory();
        Store::open_or_create(dir.path()).unwrap().close().unwrap();
        let closed = read_header(&*Linux::open(dir.path()).unwrap(), Path::new(".untorn/journal")).unwrap();
        assert!(closed.clean);
        let forged = Header { generation: closed.generation + 2, checkpoint_lsn, open_lsn, ..closed };
        let header = fs::File::options().write(true).open(dir.path().join(".untorn/journal/header")).unwrap();
        header.write_all_at(&forged.encode(), Header::slot_of(forged.generation)).unwrap();
        refused(Store::open(dir.path()), &["corrupt"]);
    }
}
