//! Rules about the checks before a commit: an operation that `check_access` allows must be possible, and one that it
//! refuses must be impossible, for the reason that it returns.

use crate::fixture::{Fixture, holds, refused, same};
use std::path::Path;
use untorn_os::{Access, Kind, Open, Storage};

crate::fixture::rules! {
    what_is_proven_can_be_done,
    what_is_missing_is_told,
    a_file_is_no_directory,
    nothing_beyond_the_root_is_proven,
    a_symbolic_link_is_an_entry_and_no_directory,
    a_closed_directory_refuses_its_owner,
    a_name_that_is_taken_is_told_before_rights,
    a_proof_changes_nothing,
    a_file_system_that_is_mounted_read_only_refuses,
    a_mount_point_refuses,
    what_is_immutable_refuses,
    what_is_append_only_keeps_its_entries,
    a_sticky_directory_keeps_the_entries_of_others,
}

fn p(path: &str) -> &Path {
    Path::new(path)
}

const NEW: Access = Access::Add;
const GONE: Access = Access::Remove;
const MODE: Access = Access::Mode(0o640);

/// Performs the operation in question, and undoes it.
fn act(storage: &dyn Storage, path: &str, access: Access) -> std::io::Result<()> {
    match access {
        Access::Add | Access::NewMode(_) => {
            let new = p(path).join("made");
            storage.mkdir(&new, 0o700)?;
            storage.rmdir(&new)
        }
        Access::Remove => {
            let moved = p(path).with_file_name("moved");
            storage.rename(p(path), &moved, false)?;
            storage.rename(&moved, p(path), false)
        }
        Access::Mode(mode) => match storage.stat(p(path))?.kind {
            Kind::Directory => storage.set_dir_mode(p(path), mode | 0o100),
            _ => storage.open(p(path), Open::READ)?.set_mode(mode),
        },
    }
}

#[track_caller]
fn allowed(storage: &dyn Storage, path: &str, accesses: &[Access]) {
    for access in accesses {
        let (proven, done) = (storage.check_access(p(path), *access), act(storage, path, *access));
        let line = std::panic::Location::caller().line();
        assert!(proven.is_ok() && done.is_ok(), "line {line}: {path}, {access:?}: proven {proven:?}, done {done:?}");
    }
}

/// Asserts that the check refuses with one of these errors, and that the operation is impossible.
#[track_caller]
fn forbidden(storage: &dyn Storage, path: &str, accesses: &[Access], errors: &[i32]) {
    for access in accesses {
        refused(storage.check_access(p(path), *access), errors);
        holds(act(storage, path, *access).is_err());
    }
}

fn tree(fixture: &Fixture) {
    fixture.directory("d");
    fixture.file("d/f", b"contents");
    fixture.directory("d/inner");
}

fn what_is_proven_can_be_done(fixture: &Fixture) {
    tree(fixture);
    for dir in ["", "d", "d/inner"] {
        allowed(&*fixture.storage, dir, &[NEW]);
    }
    for entry in ["d", "d/f", "d/inner"] {
        allowed(&*fixture.storage, entry, &[GONE, MODE]);
    }
}

fn what_is_missing_is_told(fixture: &Fixture) {
    tree(fixture);
    forbidden(&*fixture.storage, "d/nothing", &[NEW, GONE, MODE], &[libc::ENOENT]);
    forbidden(&*fixture.storage, "nowhere/f", &[NEW, GONE, MODE], &[libc::ENOENT]);
}

fn a_file_is_no_directory(fixture: &Fixture) {
    tree(fixture);
    forbidden(&*fixture.storage, "d/f", &[NEW], &[libc::ENOTDIR]);
    forbidden(&*fixture.storage, "d/f/x", &[NEW, GONE, MODE], &[libc::ENOTDIR]);
}

fn nothing_beyond_the_root_is_proven(fixture: &Fixture) {
    for path in ["../x", "/tmp/x"] {
        forbidden(&*fixture.storage, path, &[NEW, GONE, MODE], &[libc::EXDEV]);
    }
}

fn a_symbolic_link_is_an_entry_and_no_directory(fixture: &Fixture) {
    fixture.directory("target");
    fixture.file("target/f", b"");
    fixture.symbolic_link("l");
    allowed(&*fixture.storage, "l", &[GONE]);
    forbidden(&*fixture.storage, "l", &[NEW], &[libc::ENOTDIR, libc::ELOOP]);
    forbidden(&*fixture.storage, "l/f", &[GONE], &[libc::ENOTDIR, libc::ELOOP]);
}

fn a_closed_directory_refuses_its_owner(fixture: &Fixture) {
    if !fixture.counts_permissions() {
        return;
    }
    tree(fixture);
    let storage = &*fixture.storage;
    let close = |mode| storage.set_dir_mode(p("d"), mode).unwrap();
    close(0o500);
    forbidden(storage, "d", &[NEW], &[libc::EACCES]);
    forbidden(storage, "d/f", &[GONE], &[libc::EACCES]);
    allowed(storage, "d/f", &[MODE]);
    close(0o600);
    forbidden(storage, "d", &[NEW], &[libc::EACCES]);
    forbidden(storage, "d/f", &[GONE, MODE], &[libc::EACCES]);
    close(0o755);
}

fn a_name_that_is_taken_is_told_before_rights(fixture: &Fixture) {
    if !fixture.counts_permissions() {
        return;
    }
    tree(fixture);
    let storage = &*fixture.storage;
    storage.set_dir_mode(p("d"), 0o500).unwrap();
    refused(storage.rename(p("d/f"), p("d/inner"), false), &[libc::EEXIST]);
    refused(storage.rename(p("d/f"), p("d/new"), false), &[libc::EACCES]);
    storage.set_dir_mode(p("d"), 0o755).unwrap();
}

fn a_proof_changes_nothing(fixture: &Fixture) {
    tree(fixture);
    let look = || ["", "d", "d/f"].map(|path| fixture.storage.stat(p(path)).unwrap());
    let before = look();
    for access in [NEW, GONE, MODE, Access::NewMode(0o640)] {
        for path in ["d", "d/f", "d/nothing"] {
            let _ = fixture.storage.check_access(p(path), access);
        }
    }
    same(look(), before);
    same(fixture.names("d"), vec!["f".to_owned(), "inner".to_owned()]);
}

fn a_file_system_that_is_mounted_read_only_refuses(fixture: &Fixture) {
    tree(fixture);
    fixture.while_read_only(|storage| {
        forbidden(storage, "d", &[NEW, GONE, MODE], &[libc::EROFS]);
        forbidden(storage, "d/f", &[GONE, MODE], &[libc::EROFS]);
    });
}

fn a_mount_point_refuses(fixture: &Fixture) {
    tree(fixture);
    fixture.with_mount_on("d/inner", || {
        forbidden(&*fixture.storage, "d/inner", &[NEW, GONE, MODE], &[libc::EXDEV]);
        allowed(&*fixture.storage, "d/f", &[GONE, MODE]);
    });
}

fn what_is_immutable_refuses(fixture: &Fixture) {
    tree(fixture);
    fixture.with_flag("d/f", 'i', || {
        forbidden(&*fixture.storage, "d/f", &[GONE, MODE], &[libc::EPERM]);
        allowed(&*fixture.storage, "d/inner", &[GONE, NEW]);
    });
    fixture.with_flag("d", 'i', || {
        forbidden(&*fixture.storage, "d", &[NEW, GONE, MODE], &[libc::EPERM]);
        forbidden(&*fixture.storage, "d/f", &[GONE], &[libc::EPERM]);
        allowed(&*fixture.storage, "d/f", &[MODE]);
    });
}

fn what_is_append_only_keeps_its_entries(fixture: &Fixture) {
    tree(fixture);
    fixture.with_flag("d", 'a', || {
        fixture.storage.check_access(p("d"), NEW).unwrap();
        fixture.file("d/new", b"");
        forbidden(&*fixture.storage, "d/f", &[GONE], &[libc::EPERM]);
    });
}

fn a_sticky_directory_keeps_the_entries_of_others(fixture: &Fixture) {
    fixture.directory("d");
    for name in ["d/own", "d/other"] {
        fixture.file(name, b"");
    }
    fixture.storage.set_dir_mode(p("d"), 0o1777).unwrap();
    fixture.as_another_user(&["d/own"], |storage| {
        allowed(storage, "d", &[NEW]);
        allowed(storage, "d/own", &[GONE, MODE]);
        forbidden(storage, "d/other", &[GONE, MODE], &[libc::EPERM]);
        // The directory belongs to another user.
        forbidden(storage, "d", &[MODE], &[libc::EPERM]);
    });
}
