//! Wrong arguments get an error that says so: never a panic, never a hang, never a changed file.

mod common;

use common::*;
use rustix::fs::{CWD, FileType, Mode};
use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::time::Duration;
use untorn::{Error, File, JOURNAL_BYTES_MAX, Store, StoreOptions};

const LIMIT: Duration = Duration::from_secs(60);
/// The errors for offsets and sizes that no file can have.
const TOO_FAR: &[&str] = &["invalid", "no-space", "io"];

#[test]
fn offsets_at_the_limits() {
    let dir = directory();
    let store = Store::open_or_create(dir.path()).unwrap();
    let file = store.open_or_create_file("a").unwrap();
    file.write_all_at(&text("old", "a"), 0).unwrap();
    file.commit().unwrap();

    let largest = i64::MAX as u64;
    for offset in [u64::MAX, u64::MAX - 1, u64::MAX - 5, largest + 1, largest] {
        refused(file.write_all_at(b"beyond", offset), TOO_FAR);
        refused(file.zero(offset, 6), TOO_FAR);
        assert_eq!(file.read_at(&mut [0; 6], offset).unwrap_or(0), 0, "nothing to read there");
    }
    refused(file.write_all_at(b"beyond", largest - 5), TOO_FAR);
    refused(file.zero(0, u64::MAX), TOO_FAR);
    refused(file.zero(10, u64::MAX - 5), TOO_FAR);
    refused(file.set_len(u64::MAX), TOO_FAR);
    refused(file.set_len(largest + 1), TOO_FAR);
    assert_eq!(file.len().unwrap(), TEXT_BYTES as u64, "what was refused left nothing behind");
    file.append(b"x").unwrap();
    file.commit().unwrap();
    assert_eq!(file.len().unwrap(), TEXT_BYTES as u64 + 1);
}

#[test]
fn sizes_that_only_some_file_systems_can_do() {
    let dir = directory();
    let store = Store::open_or_create(dir.path()).unwrap();
    let file = store.open_or_create_file("a").unwrap();
    let other = store.open_or_create_file("b").unwrap();
    file.write_all_at(&text("old", "a"), 0).unwrap();
    file.commit().unwrap();

    // ext4 ends at 16 TiB, XFS at 8 EiB. Any of these answers is fine, at any time, but it must be true.
    for size in [i64::MAX as u64, 1 << 62, 1 << 45] {
        let done = file.set_len(size).and_then(|()| file.commit());
        if let Err(e) = &done {
            assert!(TOO_FAR.contains(&e.kind()), "{}: {e}", e.kind());
            let _ = file.rollback();
            assert_same(&contents(&file), &text("old", "a"), "a refused size changed nothing");
        } else {
            assert_eq!(file.len().unwrap(), size);
            file.set_len(TEXT_BYTES as u64).unwrap();
            file.commit().unwrap();
        }
        other.append(b"x").unwrap();
        other.commit().expect("the store stays usable");
    }
    drop((file, other));
    store.close().unwrap();
    assert_same(&plain(dir.path().join("a")), &text("old", "a"), "after closing");
    let store = Store::open_or_create(dir.path()).unwrap();
    assert!(store.status().quarantined.is_empty(), "{:?}", store.status().quarantined);
}

#[test]
fn empty_changes_change_nothing() {
    let dir = directory();
    let store = Store::open_or_create(dir.path()).unwrap();
    let file = store.open_or_create_file("a").unwrap();
    file.append(b"contents").unwrap();
    file.commit().unwrap();
    file.write_all_at(b"", 4).unwrap();
    file.write_all_at(b"", 1000).unwrap();
    file.zero(0, 0).unwrap();
    file.zero(1000, 0).unwrap();
    file.append(b"").unwrap();
    file.commit().unwrap();
    assert_same(&contents(&file), b"contents", "after empty changes");
}

/// A name that is not a regular file is refused under its name, at once, and left alone.
#[track_caller]
fn not_a_file(dir: &Path, name: &str) {
    let before = picture(dir);
    let store = StoreOptions::new().create(true).open(dir).unwrap();
    let path = dir.join(name);
    let name_owned = name.to_owned();
    within(LIMIT, name, move || {
        let kinds = &["invalid", "unsupported", "io"];
        refused(store.open_file(&name_owned), kinds);
        refused(store.open_or_create_file(&name_owned), kinds);
        refused(File::open(&path), kinds);
        refused(File::open_or_create(&path), kinds);
        store.close().unwrap();
    });
    let after: Vec<String> = picture(dir).into_iter().filter(|line| !line.contains(".untorn")).collect();
    assert_eq!(after, before, "{name} was left alone");
}

#[test]
fn a_directory_is_not_a_file() {
    let dir = directory();
    fs::create_dir(dir.path().join("sub")).unwrap();
    not_a_file(dir.path(), "sub");
}

#[test]
fn a_pipe_is_not_a_file() {
    let dir = directory();
    rustix::fs::mknodat(CWD, dir.path().join("pipe"), FileType::Fifo, Mode::from_raw_mode(0o600), 0).unwrap();
    not_a_file(dir.path(), "pipe");
}

#[test]
fn a_socket_is_not_a_file() {
    let dir = directory();
    let _listener = std::os::unix::net::UnixListener::bind(dir.path().join("socket")).unwrap();
    not_a_file(dir.path(), "socket");
}

#[test]
fn a_device_is_not_a_file() {
    refused(File::open("/dev/null"), &["invalid", "unsupported", "io"]);
    assert!(!Path::new("/dev/null.untorn").exists());
    if !is_root() {
        return skipped("needs root (to make a device)");
    }
    let dir = directory();
    let null = rustix::fs::makedev(1, 3);
    let mode = Mode::from_raw_mode(0o600);
    rustix::fs::mknodat(CWD, dir.path().join("device"), FileType::CharacterDevice, mode, null).unwrap();
    not_a_file(dir.path(), "device");
}

#[test]
fn a_file_is_not_a_store() {
    let dir = directory();
    let path = dir.path().join("a");
    fs::write(&path, "plain").unwrap();
    refused(Store::open_or_create(&path), &["invalid", "unsupported", "io"]);
    refused(Store::open_or_create("/dev/null"), &["invalid", "unsupported", "io"]);
    refused(Store::open_or_create("/proc/self"), &["invalid", "unsupported", "io", "untrusted"]);
    assert_same(&plain(&path), b"plain", "left alone");
    assert_eq!(picture(dir.path()).len(), 1, "nothing was made beside it");
}

#[test]
fn names_that_leave_the_store_are_refused() {
    let outer = directory();
    let dir = outer.path().join("store");
    fs::create_dir(&dir).unwrap();
    fs::create_dir(dir.join("sub")).unwrap();
    fs::write(outer.path().join("outside"), "plain").unwrap();
    let store = Store::open_or_create(&dir).unwrap();
    let absolute = outer.path().join("outside");
    for name in ["..", "../outside", "sub/../../outside", "../store/a", "sub/../a", absolute.to_str().unwrap(), "/"] {
        let e = refused(store.open_file(name), &["invalid", "untrusted", "io"]);
        assert_ne!(e.os_error(), Some(libc::ENOENT), "{name}: the name is wrong, the file not missing");
        refused(store.open_or_create_file(name), &["invalid", "untrusted", "io"]);
    }
    assert_same(&plain(outer.path().join("outside")), b"plain", "left alone");
    assert!(attribute(outer.path().join("outside")).is_none());
    assert!(!dir.join("a").exists());
}

#[test]
fn names_that_are_no_names_are_refused() {
    let dir = directory();
    let store = Store::open_or_create(dir.path()).unwrap();
    for name in ["", ".", "./", "a\0b"] {
        refused(store.open_file(name), &["invalid", "io"]);
        refused(store.open_or_create_file(name), &["invalid", "io"]);
    }
    refused(store.begin().create("a\0b", 0o644), &["invalid", "io"]);
    refused(Store::open_or_create("a\0b"), &["invalid", "io"]);
    refused(File::open_or_create("a\0b"), &["invalid", "io"]);
    refused(File::open_or_create(""), &["invalid", "io"]);
}

#[test]
fn untorns_own_names_are_refused() {
    let dir = directory();
    fs::create_dir(dir.path().join("sub")).unwrap();
    Store::open_or_create(dir.path().join("sub")).unwrap().close().unwrap();
    let store = Store::open_or_create(dir.path()).unwrap();
    let within_it = fs::read_dir(dir.path().join(".untorn")).unwrap().next().expect("a file").unwrap().file_name();
    let within_it = format!(".untorn/{}", within_it.to_str().unwrap());
    for name in [".untorn", ".untorn/x", "sub/.untorn", "sub/.untorn/x", "./.untorn/x", &within_it] {
        refused(store.open_file(name), &["invalid", "untrusted"]);
        refused(store.open_or_create_file(name), &["invalid", "untrusted"]);
    }
    for name in [".untorn", "sub/.untorn"] {
        refused(File::open_or_create(dir.path().join(name).join("x")), &["invalid", "untrusted"]);
        assert!(!dir.path().join(name).join("x").exists());
    }
}

#[test]
fn unusual_names_are_names() {
    let dir = directory();
    let store = Store::open_or_create(dir.path()).unwrap();
    let longest = "n".repeat(255);
    let names: [&OsStr; 7] = [
        OsStr::from_bytes(b"not \xff\xfe UTF-8 \x80"),
        OsStr::new(" "),
        OsStr::new("two\nlines\t"),
        OsStr::new("..."),
        OsStr::new(".hidden"),
        OsStr::new("ünï¢ödé"),
        OsStr::new(&longest),
    ];
    let mut txn = store.begin();
    for name in names {
        txn.create(name, 0o644).unwrap().append(name.as_bytes()).unwrap();
    }
    txn.commit().unwrap();
    for name in names {
        let file = store.open_file(name).unwrap();
        file.append(b" more").unwrap();
        file.commit().unwrap();
    }
    store.close().unwrap();
    let store = Store::open_or_create(dir.path()).unwrap();
    for name in names {
        let wanted = [name.as_bytes(), b" more"].concat();
        assert_same(&contents(&store.open_file(name).unwrap()), &wanted, "through the store");
        assert_same(&plain(dir.path().join(name)), &wanted, "for other programs");
    }
}

#[test]
fn names_that_are_too_long_are_refused() {
    let dir = directory();
    let store = Store::open_or_create(dir.path()).unwrap();
    let long_name = "n".repeat(256);
    let long_path = "d/".repeat(2100) + "a";
    for name in [&long_name, &long_path] {
        refused(store.open_or_create_file(name), &["invalid", "io"]);
        let mut txn = store.begin();
        let done = txn.create(name, 0o644).map(drop).and_then(|()| txn.commit());
        refused(done, &["invalid", "io"]);
        // The private store's name is longer than the file's.
        refused(File::open_or_create(dir.path().join(name)), &["invalid", "io"]);
    }
    let almost = "n".repeat(252);
    refused(File::open_or_create(dir.path().join(&almost)), &["invalid", "io", "unsupported"]);
    assert!(!dir.path().join(&almost).exists(), "no room for its store's name: nothing is made");
    store.open_or_create_file("a").unwrap().append(b"x").unwrap();
}

#[test]
fn a_deep_path_works() {
    let dir = directory();
    let store = Store::open_or_create(dir.path()).unwrap();
    let mut txn = store.begin();
    let mut path = String::new();
    for level in 0..40 {
        path.push_str(&format!("level {level}"));
        txn.mkdir(&path, 0o755).unwrap();
        path.push('/');
    }
    path.push('a');
    txn.create(&path, 0o644).unwrap().append(b"deep").unwrap();
    txn.commit().unwrap();
    store.close().unwrap();
    assert_same(&plain(dir.path().join(&path)), b"deep", "at the bottom");
}

#[test]
fn a_journal_that_is_too_small_is_refused_or_made_large_enough() {
    let dir = directory();
    for bytes in [0, 1, 4096, (64 << 10) - 1] {
        match StoreOptions::new().create(true).journal_bytes(bytes).open(dir.path()) {
            Ok(store) => assert!(store.status().journal_bytes_max >= 64 << 10),
            Err(e) => assert!(matches!(e, Error::Invalid { .. }), "{e}"),
        }
    }
    refused_or_works(StoreOptions::new().create(true).journal_bytes(u64::MAX).open(dir.path()));
}

/// A size beyond every disk: it is either refused, or it works as a limit that is never reached.
#[track_caller]
fn refused_or_works(store: untorn::Result<Store>) {
    match store {
        Ok(store) => {
            let file = store.open_or_create_file("a").unwrap();
            file.append(b"x").unwrap();
            file.commit().unwrap();
        }
        Err(e) => assert!(matches!(e, Error::Invalid { .. } | Error::NoSpace { .. }), "{e}"),
    }
}

#[test]
fn modes_with_strange_bits() {
    let dir = directory();
    let store = Store::open_or_create(dir.path()).unwrap();
    let mut txn = store.begin();
    for mode in [0o100_644, 0o10_644, u32::MAX] {
        refused(txn.create(format!("{mode:o}"), mode), &["invalid"]);
        refused(txn.mkdir(format!("{mode:o}"), mode), &["invalid"]);
    }
    txn.abort().unwrap();
}

#[test]
fn no_permission_is_told_as_such() {
    if is_root() {
        let dir = directory();
        fs::write(dir.path().join("secret"), "x").unwrap();
        set_mode(dir.path(), 0o755);
        set_mode(dir.path().join("secret"), 0o600);
        let mut process = child_process::ChildProcess::start();
        process.ok(&["become", "65534"]);
        let path = dir.path().join("secret");
        process.refused(&["lone", path.to_str().unwrap()], &["io", "untrusted"]);
        process.refused(&["open", dir.path().to_str().unwrap()], &["io", "untrusted"]);
        assert_eq!(picture(dir.path()).len(), 1, "nothing was made");
    } else {
        refused(Store::open_or_create("/"), &["io", "untrusted"]);
        refused(File::open("/etc/passwd"), &["io", "untrusted"]);
    }
}

#[test]
fn a_journal_is_no_larger_than_recovery_can_read() {
    let dir = directory();
    for asked in [JOURNAL_BYTES_MAX + 1, 5 << 40, u64::MAX] {
        let store = StoreOptions::new().create(true).journal_bytes(asked).open(dir.path()).unwrap();
        assert_eq!(store.status().journal_bytes_max, 4 << 30, "{asked} bytes were asked for");
        store.close().unwrap();
    }
}
