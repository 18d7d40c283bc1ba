//! Stores of earlier versions of the format, from `tests/data`: closed, killed with commits in the journal, and killed
//! between a file's attribute and its first commit. Each was written by the last release of its version on ext4, where
//! the header of a closed journal is an attribute. The present version opens them, and finds all their commits. From
//! then on they have the present version, which an older release refuses.
//!
//! A store is kept as text: its directories and files, the attribute `user.untorn` of each file, and the bytes that are
//! not zeros.

mod common;

use common::*;
use std::fs;
use std::os::unix::fs::{DirBuilderExt, FileExt, OpenOptionsExt};
use std::path::Path;
use untorn::Store;
use untorn::offline::{RecoverOptions, inspect, recover};
use untorn_journal::format::{Attribute, AttributeFound, BLOCK_BYTES, VERSION};

const CLOSED: &str = include_str!("data/version_2_closed.txt");
const KILLED: &str = include_str!("data/version_2_killed.txt");
const MARKED: &str = include_str!("data/version_2_marked.txt");
const CLOSED_3: &str = include_str!("data/version_3_closed.txt");
const KILLED_3: &str = include_str!("data/version_3_killed.txt");
const MARKED_3: &str = include_str!("data/version_3_marked.txt");
const CLOSED_4: &str = include_str!("data/version_4_closed.txt");
const KILLED_4: &str = include_str!("data/version_4_killed.txt");
const MARKED_4: &str = include_str!("data/version_4_marked.txt");

fn bytes(digits: &str) -> Vec<u8> {
    (0..digits.len()).step_by(2).map(|at| u8::from_str_radix(&digits[at..at + 2], 16).unwrap()).collect()
}

/// Makes a store from its text.
fn lay_out(store: &str, dir: &Path) {
    let mut file = None;
    for line in store.lines() {
        match line.split(' ').collect::<Vec<_>>()[..] {
            ["dir", name] => fs::DirBuilder::new().mode(0o700).create(dir.join(name)).unwrap(),
            ["file", name, len] => {
                let made = fs::File::options().write(true).create_new(true).mode(0o600).open(dir.join(name)).unwrap();
                made.set_len(len.parse().unwrap()).unwrap();
                file = Some(made);
            }
            ["attribute", value] => {
                let flags = rustix::fs::XattrFlags::empty();
                rustix::fs::fsetxattr(file.as_ref().unwrap(), "user.untorn", &bytes(value), flags).unwrap();
            }
            [at, digits] => file.as_ref().unwrap().write_all_at(&bytes(digits), at.parse().unwrap()).unwrap(),
            _ => panic!("{line}"),
        }
    }
}

fn is_pending(path: &Path) -> bool {
    matches!(Attribute::decode(attribute(path).as_deref()), AttributeFound::Valid(a) if a.pending)
}

/// Asserts that every header has the present version: an older release reads the slots first, and refuses them with
/// `newer-version`.
fn is_refused_by_older_releases(dir: &Path) {
    let slots = fs::read(dir.join(".untorn/journal/header")).unwrap();
    let versions: Vec<u32> = slots
        .chunks(BLOCK_BYTES)
        .filter(|slot| slot.starts_with(b"UNTORN-H"))
        .map(|slot| u32::from_le_bytes(slot[8..12].try_into().unwrap()))
        .collect();
    assert!(versions.contains(&VERSION), "{versions:?}");
}

fn shows(store: &Store, files: &[(&str, &str)]) {
    for (name, wanted) in files {
        assert_same(&stored(store, name), wanted.as_bytes(), name);
    }
}

fn opens(kept: &str, is_clean: bool, files: &[(&str, &str)]) {
    for redo in [false, true] {
        let dir = directory();
        lay_out(kept, dir.path());
        let found = inspect(dir.path()).unwrap();
        assert_eq!((found.clean, &found.problems), (is_clean, &Vec::new()));
        if redo {
            recover(dir.path(), &RecoverOptions::default(), &|_, _| ()).unwrap();
        }
        let store = Store::open_or_create(dir.path()).unwrap();
        assert!(store.status().quarantined.is_empty());
        shows(&store, files);
        let file = store.open_file("a").unwrap();
        file.write_all_at(b"FIRST", 0).unwrap();
        file.commit().unwrap();
        drop(file);
        is_refused_by_older_releases(dir.path());
        store.close().unwrap();
        is_refused_by_older_releases(dir.path());
        assert!(inspect(dir.path()).unwrap().clean);
        for name in ["a", "b", "c"] {
            assert!(!is_pending(&dir.path().join(name)), "{name}");
        }
        // They are plain files, and stay so wherever they are moved.
        fs::remove_dir_all(dir.path().join(".untorn")).unwrap();
        shows(&Store::open_or_create(dir.path()).unwrap(), &files[1..]);
    }
}

#[test]
fn a_closed_store_of_version_2_opens() {
    opens(CLOSED, true, &[("a", "first a\nmore of it\n"), ("b", "first b\n"), ("c", "plain c\n")]);
}

#[test]
fn a_killed_store_of_version_2_recovers() {
    let files = [("a", "second a\nore of it\n"), ("b", "first b\n"), ("c", "plain c\n"), ("d", "created d\n")];
    opens(KILLED, false, &files);
}

#[test]
fn a_mark_that_version_2_left_is_cleared() {
    let dir = directory();
    lay_out(MARKED, dir.path());
    assert!(is_pending(&dir.path().join("c")));
    opens(MARKED, true, &[("a", "first a\nmore of it\n"), ("b", "first b\n"), ("c", "plain c\n")]);
}

#[test]
fn a_closed_store_of_version_3_opens() {
    opens(CLOSED_3, true, &[("a", "first a\nmore of it\n"), ("b", "first b\n"), ("c", "plain c\n")]);
}

#[test]
fn a_killed_store_of_version_3_recovers() {
    let files = [("a", "second amore of it\n"), ("b", "first b\n"), ("c", "plain c\n"), ("d", "created d\n")];
    opens(KILLED_3, false, &files);
}

#[test]
fn a_mark_that_version_3_left_is_cleared() {
    let dir = directory();
    lay_out(MARKED_3, dir.path());
    assert!(is_pending(&dir.path().join("c")));
    opens(MARKED_3, false, &[("a", "first a\nmore of it\n"), ("b", "first b\n"), ("c", "plain c\n")]);
}

#[test]
fn a_closed_store_of_version_4_opens() {
    opens(CLOSED_4, true, &[("a", "first a\nmore of it\n"), ("b", "first b\n"), ("c", "plain c\n")]);
}

#[test]
fn a_killed_store_of_version_4_recovers() {
    let files = [("a", "second amore of it\n"), ("b", "first b\n"), ("c", "plain c\n"), ("d", "created d\n")];
    opens(KILLED_4, false, &files);
}

#[test]
fn a_mark_that_version_4_left_is_cleared() {
    let dir = directory();
    lay_out(MARKED_4, dir.path());
    assert!(is_pending(&dir.path().join("c")));
    opens(MARKED_4, false, &[("a", "first a\nmore of it\n"), ("b", "first b\n"), ("c", "plain c\n")]);
}

/// Kills the owner of the present version before and after its first commit.
#[test]
fn a_store_of_an_earlier_version_survives_kills_of_the_present_version() {
    for (kept, a) in [
        (CLOSED, "first a\nmore of it\n"),
        (KILLED, "second a\nore of it\n"),
        (CLOSED_3, "first a\nmore of it\n"),
        (KILLED_3, "second amore of it\n"),
        (CLOSED_4, "first a\nmore of it\n"),
        (KILLED_4, "second amore of it\n"),
    ] {
        for commits in [false, true] {
            let dir = directory();
            lay_out(kept, dir.path());
            let path = common::child_process::path_text(&dir);
            let mut process = common::child_process::ChildProcess::owning(dir.path());
            process.ok(&["file", "c"]);
            if commits {
                process.commit("c", "new");
            }
            process.kill();
            recover(Path::new(path), &RecoverOptions::default(), &|_, _| ()).unwrap();
            let store = Store::open_or_create(dir.path()).unwrap();
            shows(&store, &[("a", a), ("b", "first b\n")]);
            if commits {
                assert_same(&stored(&store, "c"), &text("new", "c"), "the new commit");
            }
        }
    }
}
