//! Programs that close descriptors: the standard streams, as daemons do, and descriptors that they did not open.

mod common;

use common::*;
use std::fs::{self, File};
use std::io::Read;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use untorn::heap::HeapOptions;
use untorn::{FailureClass, Gate, Reader, Store, StoreOptions};

const DIR: &str = "UNTORN_TEST_DESCRIPTORS";

/// Closes the standard streams; restores them when dropped.
struct WithoutStreams([OwnedFd; 3]);

impl WithoutStreams {
    fn begin() -> WithoutStreams {
        let kept = [0, 1, 2].map(|number| {
            // SAFETY: copies and closes numbers of this process, which runs one test.
            unsafe {
                let copy = libc::fcntl(number, libc::F_DUPFD_CLOEXEC, 100);
                assert!(copy >= 0 && libc::close(number) == 0);
                std::os::fd::FromRawFd::from_raw_fd(copy)
            }
        });
        WithoutStreams(kept)
    }

    /// The files that have the numbers of the standard streams.
    fn found() -> Vec<(RawFd, PathBuf)> {
        let named = |number: RawFd| Some((number, fs::read_link(format!("/proc/self/fd/{number}")).ok()?));
        (0..3).filter_map(named).collect()
    }

    /// Output that a program, or a library that it uses, writes at any time.
    fn chatter() {
        for number in 0..3 {
            // SAFETY: writes to a descriptor number, which may be of any file.
            unsafe { libc::write(number, b"warning".as_ptr().cast(), 7) };
        }
    }
}

impl Drop for WithoutStreams {
    fn drop(&mut self) {
        for (number, kept) in self.0.iter().enumerate() {
            // SAFETY: restores a descriptor number of this process.
            unsafe { libc::dup2(kept.as_raw_fd(), number as RawFd) };
        }
    }
}

/// Runs a test in a process of its own, as it closes descriptors.
fn in_child(test: &str, dir: &Path) {
    let output = untorn_testkit::again!(test).env(DIR, dir).output().unwrap();
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{}\n{out}\n{err}", output.status);
}

fn child_dir() -> Option<PathBuf> {
    std::env::var_os(DIR).map(PathBuf::from)
}

#[test]
fn nothing_that_is_kept_has_the_number_of_a_standard_stream() {
    let Some(dir) = child_dir() else {
        let dir = directory();
        in_child("nothing_that_is_kept_has_the_number_of_a_standard_stream", dir.path());
        let store = Store::open_or_create(dir.path().join("store")).unwrap();
        for name in ["early", "a", "b", "c", "mapped", "large"] {
            assert!(stored(&store, name).ends_with(b"last"), "{name}");
        }
        store.close().unwrap();
        return assert_eq!(plain(dir.path().join("put")), b"put last");
    };
    let path = dir.join("store");
    let store = StoreOptions::new().create(true).journal_bytes(4 << 20).open(&path).unwrap();
    let early = store.open_or_create_file("early").unwrap();
    early.append(b"first ").unwrap();
    early.commit().unwrap();
    // Not even when the numbers of the standard streams are free: the program's own files may get them.
    let (mut reader, writer) = std::io::pipe().unwrap();
    let other = directory();
    let without = WithoutStreams::begin();
    let mut found = Vec::new();
    let mut look = || {
        WithoutStreams::chatter();
        let mut now = WithoutStreams::found();
        // The background thread takes the numbers for a moment while it opens a file, with `/` as a placeholder.
        for _ in 0..1000 {
            if now.iter().all(|(_, path)| path != Path::new("/")) {
                break;
            }
            std::thread::sleep(std::time::Duration::from_millis(1));
            now = WithoutStreams::found();
        }
        found.extend(now);
    };
    let files = ["a", "b", "c"].map(|name| store.open_or_create_file(name).unwrap());
    look();
    files.iter().for_each(|file| _ = file.append(&[b'd'; 300_000]).unwrap());
    store.syncv(&files.each_ref()).unwrap();
    look();
    // A spill file, and data files that are opened again.
    let large = store.open_or_create_file("large").unwrap();
    large.write_all_at(&vec![1; 8 << 20], 0).unwrap();
    large.commit().unwrap();
    store.checkpoint().unwrap();
    look();
    let mapped = store.open_or_create_file("mapped").unwrap();
    mapped.append(&[0; 8192]).unwrap();
    mapped.commit().unwrap();
    let map = mapped.map().unwrap();
    map.store(b"last", 8188).unwrap();
    look();
    map.msync().unwrap();
    let heap = HeapOptions::new().create(true).open_in(&store, "heap");
    look();
    drop(heap);
    let gate = Gate::new().unwrap();
    let output = gate.output(writer.into());
    early.append(b"last").unwrap();
    output.write(b"said", Some(&early.commit_async().unwrap())).unwrap();
    gate.drain().unwrap();
    look();
    drop((output, gate));
    let mut said = String::new();
    let reading = Reader::open(&path).map(|reader| reader.snapshot());
    look();
    drop(reading);
    untorn::offline::put(&dir.join("put"), &mut b"put last".as_slice()).unwrap();
    for file in files.iter().chain([&large]) {
        file.append(b"last").unwrap();
    }
    let all: Vec<_> = files.iter().chain([&large]).collect();
    store.syncv(&all).unwrap();
    look();
    drop((map, mapped));
    // A second store, and the first again.
    let second = Store::open_or_create(other.path()).unwrap();
    second.open_or_create_file("x").unwrap().commit().unwrap();
    look();
    second.close().unwrap();
    drop(without);
    reader.read_to_string(&mut said).unwrap();
    assert_eq!((found, said.as_str()), (Vec::new(), "said"));
    // The store is not closed: the recovery must find everything.
    std::process::exit(0);
}

/// Files of the program have the numbers of the closed descriptors by then.
#[test]
fn a_program_that_closes_all_descriptors_is_told_and_keeps_its_files() {
    let Some(dir) = child_dir() else {
        for class in ["power", "process"] {
            let dir = directory();
            fs::write(dir.path().join("class"), class).unwrap();
            in_child("a_program_that_closes_all_descriptors_is_told_and_keeps_its_files", dir.path());
            let store = Store::open_or_create(dir.path().join("store")).unwrap();
            assert_eq!(stored(&store, "a"), b"committed", "{class}");
            assert_eq!(stored(&store, "large").len(), 1 << 20);
            store.close().unwrap();
        }
        return;
    };
    let class = match plain(dir.join("class")).as_slice() {
        b"power" => FailureClass::Power,
        _ => FailureClass::Process,
    };
    let store = StoreOptions::new().create(true).class(class).create(true).open(dir.join("store")).unwrap();
    let (a, large) = (store.open_or_create_file("a").unwrap(), store.open_or_create_file("large").unwrap());
    a.append(b"committed").unwrap();
    large.append(&[7; 1 << 20]).unwrap();
    store.syncv(&[&a, &large]).unwrap();
    let gate = Gate::new().unwrap();

    // SAFETY: closes descriptors of this process; the program does not use the closed files.
    assert_eq!(unsafe { libc::close_range(3, u32::MAX, 0) }, 0);
    let theirs = dir.join("theirs");
    fs::create_dir(&theirs).unwrap();
    let text = |n: usize| format!("contents of the program's file {n}").into_bytes();
    let open: Vec<(PathBuf, File)> = (0..64)
        .map(|n| {
            let path = theirs.join(n.to_string());
            fs::write(&path, text(n)).unwrap();
            let file = fs::OpenOptions::new().read(true).write(true).open(&path).unwrap();
            (path, file)
        })
        .collect();
    let untouched = |when: &str| {
        for (n, (path, file)) in open.iter().enumerate() {
            assert_eq!(plain(path), text(n), "{when}");
            let mut bytes = vec![0; text(n).len()];
            file.read_exact_at(&mut bytes, 0).unwrap_or_else(|e| panic!("{when}: {e}"));
            assert_eq!(attribute(path), None, "{when}");
        }
    };

    a.append(b" and more").unwrap();
    let e = refused(a.commit(), &["failed-sync-not-committed", "io"]);
    assert!(e.to_string().contains("close_range"), "{e}");
    untouched("a commit");
    refused(large.write_all_at(&[8; 9 << 20], 0).and_then(|()| large.commit()), &["failed-sync-not-committed", "io"]);
    refused(store.checkpoint(), &["failed-sync-not-committed", "io", "conflict"]);
    untouched("a checkpoint");
    assert!(store.open_or_create_file("new").is_err());
    assert_eq!(fs::read_dir(&theirs).unwrap().count(), 64);
    let (_reader, writer) = std::io::pipe().unwrap();
    let output = gate.output(writer.into());
    assert!(output.write(b"said", None).is_err());
    drop((output, gate));
    untouched("a gate");
    // SAFETY: the child only looks at its descriptors, and ends.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let open = open.iter().all(|(_, file)| file.metadata().is_ok());
        // SAFETY: ends the child.
        unsafe { libc::_exit(i32::from(!open)) };
    }
    let mut status = 0;
    // SAFETY: waits for the child.
    unsafe { libc::waitpid(child, &raw mut status, 0) };
    assert_eq!(status, 0, "a forked child has the program's files");
    assert!(store.close().is_err());
    drop((a, large));
    untouched("closing");
}

/// Either another file of the program has the number of the data file's descriptor by then, or no file has it.
#[test]
fn a_closed_descriptor_of_a_data_file_is_not_taken_for_another_program() {
    const TEST: &str = "a_closed_descriptor_of_a_data_file_is_not_taken_for_another_program";
    let Some(dir) = child_dir() else {
        let dir = directory();
        in_child(TEST, dir.path());
        let store = Store::open_or_create(dir.path().join("store")).unwrap();
        assert_eq!(stored(&store, "a"), b"committed and more");
        assert_eq!(stored(&store, "b"), b"committed and more");
        return store.close().unwrap();
    };
    let store = StoreOptions::new().create(true).background(false).open(dir.join("store")).unwrap();
    let files = ["a", "b"].map(|name| store.open_or_create_file(name).unwrap());
    let append = |text: &[u8]| {
        files.iter().for_each(|file| _ = file.append(text).unwrap());
        store.syncv(&[&files[0], &files[1]]).unwrap();
    };
    append(b"committed");
    store.checkpoint().unwrap();
    append(b" and more");
    let theirs = File::create(dir.join("theirs")).unwrap();
    for (name, is_reused) in [("a", true), ("b", false)] {
        let path = fs::canonicalize(dir.join("store").join(name)).unwrap();
        let numbers = fs::read_dir("/proc/self/fd").unwrap().flatten();
        let of_file = |number: &RawFd| fs::read_link(format!("/proc/self/fd/{number}")).is_ok_and(|to| to == path);
        let numbers: Vec<RawFd> = numbers.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect();
        let number = *numbers.iter().find(|number| of_file(number)).expect("a descriptor of the data file");
        // SAFETY: closes a descriptor of this process, or gives its number to another file of it.
        let done = unsafe { if is_reused { libc::dup2(theirs.as_raw_fd(), number) } else { libc::close(number) } };
        assert!(done >= 0);
    }
    for done in [store.checkpoint(), store.close()] {
        let e = refused(done, &["io"]).to_string();
        assert!(e.contains("close_range") && !e.contains("another program"), "{e}");
    }
    assert_eq!(plain(dir.join("theirs")), b"");
}

/// The descriptor of the process that is open at this name, of a file of a store.
fn descriptor_of(name: &str) -> RawFd {
    let open = fs::read_dir("/proc/self/fd").unwrap().map(|entry| entry.unwrap().path());
    let is_named = |path: &PathBuf| {
        let file = fs::read_link(path).unwrap_or_default();
        file.file_name().is_some_and(|of| of.to_string_lossy().starts_with(name))
    };
    let found = open.into_iter().find(is_named).expect("the store has it open");
    found.file_name().unwrap().to_str().unwrap().parse().unwrap()
}

/// The number gets a file of the program with these bytes, as if the program had closed it and opened that file.
fn replace(dir: &Path, number: RawFd, bytes: &[u8]) {
    fs::write(dir.join("theirs"), bytes).unwrap();
    let theirs = fs::OpenOptions::new().read(true).write(true).open(dir.join("theirs")).unwrap();
    // SAFETY: replaces a descriptor of this process, which ends without another use of it but by the store.
    assert_eq!(unsafe { libc::dup2(theirs.as_raw_fd(), number) }, number);
}

/// A commit of many bytes is in a file of its own, from which a checkpoint takes them.
#[test]
fn bytes_of_a_replaced_spill_file_are_not_applied() {
    const BYTES: usize = 9 << 20;
    let Some(dir) = child_dir() else {
        let dir = directory();
        in_child("bytes_of_a_replaced_spill_file_are_not_applied", dir.path());
        let store = Store::open_or_create(dir.path().join("store")).unwrap();
        assert!(stored(&store, "large") == vec![b'A'; BYTES]);
        return store.close().unwrap();
    };
    let store = StoreOptions::new().create(true).background(false).open(dir.join("store")).unwrap();
    let large = store.open_or_create_file("large").unwrap();
    large.append(&vec![b'A'; BYTES]).unwrap();
    large.commit().unwrap();
    replace(&dir, descriptor_of("spill."), &vec![b'S'; BYTES]);
    let e = refused(store.checkpoint(), &["io"]);
    assert!(e.to_string().contains("closed"), "{e}");
    refused(store.clone().close(), &["io"]);
    assert!(plain(dir.join("theirs")) == vec![b'S'; BYTES]);
    std::process::exit(0);
}

/// With whole pages in the log, a commit has bytes of the data file.
#[test]
fn bytes_of_a_replaced_data_file_are_not_committed() {
    let Some(dir) = child_dir() else {
        let dir = directory();
        in_child("bytes_of_a_replaced_data_file_are_not_committed", dir.path());
        let store = Store::open_or_create(dir.path().join("store")).unwrap();
        assert!(stored(&store, "a") == vec![b'A'; 8192]);
        return store.close().unwrap();
    };
    let options = || StoreOptions::new().create(true).background(false).full_page(true);
    let store = options().open(dir.join("store")).unwrap();
    let a = store.open_or_create_file("a").unwrap();
    a.append(&[b'A'; 8192]).unwrap();
    a.commit().unwrap();
    drop(a);
    store.close().unwrap();
    let store = options().open(dir.join("store")).unwrap();
    let a = store.open_file("a").unwrap();
    replace(&dir, descriptor_of("a"), &[b'S'; 8192]);
    a.write_all_at(b"new", 100).unwrap();
    let e = refused(a.commit(), &["io", "failed-sync-not-committed", "conflict"]);
    assert!(e.to_string().contains("closed"), "{e}");
    assert!(plain(dir.join("theirs")) == vec![b'S'; 8192]);
    std::process::exit(0);
}

/// The owner lists the locks of its readers in the page. Another file has none.
#[test]
fn a_replaced_page_hides_no_reader() {
    let Some(dir) = child_dir() else {
        let dir = directory();
        in_child("a_replaced_page_hides_no_reader", dir.path());
        let store = Store::open_or_create(dir.path().join("store")).unwrap();
        assert_eq!(stored(&store, "b"), b"new");
        return store.close().unwrap();
    };
    let store = StoreOptions::new().create(true).background(false).open(dir.join("store")).unwrap();
    let a = store.open_or_create_file("a").unwrap();
    a.append(b"old").and_then(|_| a.commit()).unwrap();
    store.checkpoint().unwrap();
    let page = descriptor_of("readers");
    let snapshot = Reader::open(dir.join("store")).unwrap().snapshot().unwrap();
    a.write_all_at(b"new", 0).and_then(|()| a.commit()).unwrap();
    replace(&dir, page, &[0; 4096]);
    let e = refused(store.checkpoint(), &["io"]);
    assert!(e.to_string().contains("closed"), "{e}");
    let mut bytes = [0; 3];
    snapshot.open("a").unwrap().read_at(&mut bytes, 0).unwrap();
    assert_eq!(&bytes, b"old");
    // Names of a durable commit change all the same, so that the snapshot ends.
    store.rename("a", "b").unwrap();
    refused(snapshot.open("a").map(drop), &["snapshot-ended"]);
    assert!(plain(dir.join("theirs")) == [0; 4096]);
    std::process::exit(0);
}

/// Old bytes for readers are copied from the data file.
#[test]
fn bytes_of_a_replaced_data_file_are_not_kept() {
    let Some(dir) = child_dir() else {
        let dir = directory();
        in_child("bytes_of_a_replaced_data_file_are_not_kept", dir.path());
        let store = Store::open_or_create(dir.path().join("store")).unwrap();
        assert_eq!(stored(&store, "a"), b"new");
        return store.close().unwrap();
    };
    let store = StoreOptions::new().create(true).background(false).open(dir.join("store")).unwrap();
    let a = store.open_or_create_file("a").unwrap();
    a.append(b"old").and_then(|_| a.commit()).unwrap();
    store.checkpoint().unwrap();
    let data = descriptor_of("a");
    let snapshot = Reader::open(dir.join("store")).unwrap().snapshot().unwrap();
    a.write_all_at(b"new", 0).and_then(|()| a.commit()).unwrap();
    replace(&dir, data, b"SSS");
    let e = refused(store.checkpoint(), &["io"]);
    assert!(e.to_string().contains("closed"), "{e}");
    let mut bytes = [0; 3];
    snapshot.open("a").unwrap().read_at(&mut bytes, 0).unwrap();
    assert_eq!(&bytes, b"old");
    std::process::exit(0);
}
