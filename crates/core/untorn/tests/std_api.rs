//! Files compared with the standard library's: positional reads and writes, cursors, errors, names.

mod common;

use common::*;
use std::io::{self, ErrorKind, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::FileExt;
use untorn::{FileOptions, Store};

fn store() -> (tempfile::TempDir, Store) {
    let dir = directory();
    let store = Store::open_or_create(dir.path()).unwrap();
    (dir, store)
}

#[test]
fn a_cursor_reads_writes_and_seeks() {
    let (_dir, store) = store();
    let file = store.open_or_create_file("f").unwrap();
    let mut cursor = file.cursor();
    cursor.write_all(b"one two three").unwrap();
    cursor.flush().unwrap();
    assert_eq!(cursor.position(), 13);
    assert_eq!(cursor.seek(SeekFrom::Start(4)).unwrap(), 4);
    let mut word = [0; 3];
    cursor.read_exact(&mut word).unwrap();
    assert_eq!(&word, b"two");
    assert_eq!(cursor.seek(SeekFrom::Current(-3)).unwrap(), 4);
    cursor.write_all(b"TWO").unwrap();
    assert_eq!(cursor.seek(SeekFrom::End(2)).unwrap(), 15);
    cursor.write_all(b"!").unwrap();
    assert_eq!(cursor.seek(SeekFrom::Current(-100)).unwrap_err().kind(), ErrorKind::InvalidInput);
    let mut all = Vec::new();
    file.cursor().read_to_end(&mut all).unwrap();
    assert_eq!(all, b"one TWO three\0\0!");
}

/// Code that is written for the standard library's trait works on these files.
#[test]
fn positional_reads_and_writes_are_those_of_the_standard_library() {
    fn double(file: &impl FileExt) -> io::Result<()> {
        let mut bytes = [0; 4];
        file.read_exact_at(&mut bytes, 0)?;
        file.write_all_at(&bytes, 4)
    }
    let (_dir, store) = store();
    let file = store.open_or_create_file("f").unwrap();
    assert_eq!(file.write_at(b"abcd", 0).unwrap(), 4);
    double(&file).unwrap();
    assert_eq!(contents(&file), b"abcdabcd");
    let beyond = file.read_exact_at(&mut [0; 9], 0).unwrap_err();
    assert_eq!(io::Error::from(beyond).kind(), ErrorKind::UnexpectedEof);
}

#[test]
fn an_error_becomes_an_io_error_that_keeps_its_kind_and_its_text() {
    let (_dir, store) = store();
    let missing = store.open_file("missing").unwrap_err();
    let text = missing.to_string();
    let missing = io::Error::from(missing);
    assert_eq!((missing.kind(), missing.to_string()), (ErrorKind::NotFound, text));
    let existing = store.open_or_create_file("f").unwrap();
    let again = FileOptions::new().create_new(true).open_in(&store, "f").unwrap_err();
    assert_eq!(io::Error::from(again).kind(), ErrorKind::AlreadyExists);
    assert_eq!(io::Error::from(existing.write_all_at(b"x", u64::MAX).unwrap_err()).kind(), ErrorKind::InvalidInput);
}

#[test]
fn a_directory_lists_what_is_committed_and_nothing_of_untorns() {
    let (dir, store) = store();
    for name in ["b", "a", "c"] {
        store.open_or_create_file(name).unwrap();
    }
    store.rename("c", "d").unwrap();
    let mut txn = store.begin();
    txn.mkdir("sub", 0o755).unwrap();
    let inside = txn.create("sub/inside", 0o644).unwrap();
    assert_eq!(store.list("").unwrap(), ["a", "b", "d"]);
    txn.commit().unwrap();
    assert_eq!(store.list("").unwrap(), ["a", "b", "d", "sub"]);
    assert_eq!(store.list("sub").unwrap(), ["inside"]);
    refused_with_errno(store.list("nowhere"), libc::ENOENT);
    refused_with_errno(store.rename("nowhere", "there"), libc::ENOENT);
    drop(inside);
    store.close().unwrap();
    assert!(dir.path().join("d").exists() && !dir.path().join("c").exists());
}

#[test]
fn every_handle_can_be_shown() {
    let (_dir, store) = store();
    let file = store.open_or_create_file("f").unwrap();
    file.set_len(1).unwrap();
    let ticket = file.commit_async().unwrap();
    let (map, txn) = (file.map().unwrap(), store.begin());
    let shown = format!("{store:?} {file:?} {:?} {ticket:?} {map:?} {txn:?}", file.cursor());
    for name in ["Store", "File", "Cursor", "Ticket", "Map", "Txn"] {
        assert!(shown.contains(name), "{shown}");
    }
    ticket.wait().unwrap();
}
