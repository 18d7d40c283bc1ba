//! A planted journal never writes with the opener's rights, nothing leads out of the store's directory, and no
//! permissions are ever widened. Some tests need two users, and so need root.

mod common;

use common::child_process::{ChildProcess, close_clean_with, crashed_store, path_text};
use common::*;
use std::fs;
use std::os::unix::fs::{MetadataExt, chown, symlink};
use std::path::{Path, PathBuf};
use tempfile::TempDir;
use untorn::{File, Store, offline};
use untorn_testkit::NOBODY;

const OTHER: u32 = 65533;

/// The errors for a store that another user could have written.
const UNTRUSTED: &[&str] = &["untrusted"];
/// The errors for a name that leads out of the store.
const ASTRAY: &[&str] = &["untrusted", "invalid", "unsupported", "io"];

/// Whether the test can act as two users; reports if it cannot.
fn two_users() -> bool {
    if !is_root() {
        skipped("needs root (to act as two users)");
    }
    is_root()
}

/// A process of an ordinary user.
fn process_of(uid: u32) -> ChildProcess {
    let mut process = ChildProcess::start();
    process.ok(&["become", &uid.to_string()]);
    process
}

/// A directory that belongs to a user.
fn directory_of(uid: u32, mode: u32) -> TempDir {
    let dir = directory();
    set_mode(dir.path(), mode);
    chown(dir.path(), Some(uid), Some(uid)).unwrap();
    dir
}

/// Changes the owner of a tree.
fn give(path: &Path, uid: u32) {
    run("chown", ["-R".as_ref(), format!("{uid}:{uid}").as_ref(), path.as_os_str()]);
}

/// Everything beneath a directory.
fn tree(root: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(root).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            found.extend(tree(&path));
        }
        found.push(path);
    }
    assert!(!found.is_empty());
    found
}

#[test]
fn a_planted_store_is_refused_by_its_victim() {
    if !two_users() {
        return;
    }
    // The user `NOBODY` prepares a store with a commit pending for "victim", and plants its journal in a directory of
    // another user that everybody may write to.
    let prepared = crashed_store(&["victim"]);
    give(prepared.path(), NOBODY);
    let shared = directory_of(OTHER, 0o1777);
    fs::rename(prepared.path().join(".untorn"), shared.path().join(".untorn")).unwrap();
    fs::write(shared.path().join("victim"), "precious").unwrap();
    chown(shared.path().join("victim"), Some(OTHER), Some(OTHER)).unwrap();

    let mut victim = process_of(OTHER);
    victim.refused(&["open", path_text(shared.path())], UNTRUSTED);
    // Root is protected, too.
    refused(Store::open_or_create(shared.path()), UNTRUSTED);
    assert_same(&plain(shared.path().join("victim")), b"precious", "not written to");
}

#[test]
fn a_planted_journal_of_a_lone_file_is_refused() {
    if !two_users() {
        return;
    }
    let prepared = directory();
    let path = prepared.path().join("foo.db");
    let mut process = ChildProcess::start();
    process.ok(&["lone", path_text(&path)]);
    process.commit("lone", "new");
    process.kill();
    let shared = directory_of(0, 0o1777);
    give(prepared.path(), NOBODY);
    fs::rename(prepared.path().join("foo.db.untorn"), shared.path().join("foo.db.untorn")).unwrap();
    fs::write(shared.path().join("foo.db"), "precious").unwrap();
    refused(File::open(shared.path().join("foo.db")), UNTRUSTED);
    assert_same(&plain(shared.path().join("foo.db")), b"precious", "not written to");
}

#[test]
fn only_the_owner_creates_a_store() {
    if !two_users() {
        return;
    }
    let shared = directory_of(0, 0o1777);
    fs::write(shared.path().join("of-root"), "plain").unwrap();
    let mut nobody = process_of(NOBODY);
    nobody.refused(&["open", path_text(shared.path())], UNTRUSTED);
    nobody.refused(&["lone", path_text(&shared.path().join("of-root"))], &["untrusted", "io"]);
    assert_eq!(picture(shared.path()).len(), 1, "nothing was made");
    // A user can have a store for a file of its own in a shared directory.
    let mut own = process_of(NOBODY);
    own.ok(&["lone", path_text(&shared.path().join("of-nobody"))]);
    own.commit("lone", "new");
    own.kill();
    let mut own = process_of(NOBODY);
    own.ok(&["lone", path_text(&shared.path().join("of-nobody"))]);
    assert_eq!(own.ok(&["read", "lone"]).as_bytes(), &text("new", "lone")[..20]);
}

#[test]
fn a_store_of_another_user_is_refused() {
    if !two_users() {
        return;
    }
    let dir = directory();
    close_clean_with(dir.path(), &["a"], "old");
    chown(dir.path().join(".untorn"), Some(NOBODY), Some(NOBODY)).unwrap();
    let before = picture(dir.path());
    refused(Store::open_or_create(dir.path()), UNTRUSTED);
    assert_eq!(picture(dir.path()), before, "nothing was touched");
    chown(dir.path().join(".untorn"), Some(0), Some(0)).unwrap();
    Store::open_or_create(dir.path()).unwrap();
}

#[test]
fn a_store_that_others_can_write_to_is_refused() {
    let dir = crashed_store(&["a"]);
    let journal = dir.path().join(".untorn");
    for wrong in [0o777, 0o770, 0o707, 0o720, 0o702, 0o1777] {
        set_mode(&journal, wrong);
        let before = plain(dir.path().join("a"));
        let e = refused(Store::open_or_create(dir.path()), UNTRUSTED);
        assert!(e.to_string().contains(".untorn"), "the message says what to look at: {e}");
        assert_eq!(mode(&journal), wrong, "not quietly put right");
        assert_same(&plain(dir.path().join("a")), &before, "not written to");
    }
    set_mode(&journal, 0o700);
    assert_same(&stored(&Store::open_or_create(dir.path()).unwrap(), "a"), &text("new", "a"), "recovered");
}

#[test]
fn untorns_own_files_are_private_whatever_the_umask() {
    let dir = directory();
    let mut process = ChildProcess::start();
    process.ok(&["umask", "000"]);
    process.ok(&["open", path_text(dir.path()), "journal=65536"]);
    process.ok(&["lone", path_text(&dir.path().join("foo.db"))]);
    for version in 0..30 {
        process.ok(&["create", "a"]);
        process.commit("a", &version.to_string());
    }
    for name in [".untorn", "foo.db.untorn"] {
        let home = dir.path().join(name);
        assert_eq!(mode(&home), 0o700, "{name}");
        for path in tree(&home) {
            // A checkpoint in the background removes files that it has applied.
            let Ok(found) = fs::symlink_metadata(&path) else { continue };
            let wanted = if found.is_dir() { 0o700 } else { 0o600 };
            assert_eq!(found.mode() & 0o7777, wanted, "{}", path.display());
        }
    }
}

#[test]
fn a_file_named_untorn_is_not_a_store() {
    let dir = directory();
    fs::write(dir.path().join(".untorn"), "somebody's notes").unwrap();
    refused(Store::open_or_create(dir.path()), &["foreign", "untrusted", "invalid", "unsupported", "corrupt", "io"]);
    assert_same(&plain(dir.path().join(".untorn")), b"somebody's notes", "left alone");
}

#[test]
fn a_directory_named_untorn_with_strange_contents_loses_nothing() {
    let dir = directory();
    fs::create_dir(dir.path().join(".untorn")).unwrap();
    set_mode(dir.path().join(".untorn"), 0o700);
    fs::write(dir.path().join(".untorn/notes"), "somebody's").unwrap();
    match Store::open_or_create(dir.path()) {
        // An opener that was killed before it had made its journal leaves such a directory, too.
        Ok(store) => store.close().unwrap(),
        Err(e) => assert!(["foreign", "untrusted", "corrupt"].contains(&e.kind()), "{e}"),
    }
    assert_same(&plain(dir.path().join(".untorn/notes")), b"somebody's", "left alone");
}

/// Removing a store leaves the files of others in its directory.
#[test]
fn a_store_that_is_removed_leaves_foreign_files() {
    let dir = directory();
    let store = Store::open_or_create(dir.path()).unwrap();
    let a = store.open_or_create_file("a").unwrap();
    a.write_all_at(b"bytes", 0).and_then(|()| a.commit()).unwrap();
    store.close().unwrap();
    let notes = |dir: &Path| {
        fs::create_dir_all(dir.join("deep")).unwrap();
        set_mode(dir, 0o700);
        fs::write(dir.join("notes"), "somebody's").unwrap();
        fs::write(dir.join("deep/notes"), "somebody's").unwrap();
    };
    let left = |dir: &Path| {
        assert_same(&plain(dir.join("notes")), b"somebody's", "left alone");
        assert_same(&plain(dir.join("deep/notes")), b"somebody's", "left alone");
        assert_eq!(fs::read_dir(dir).unwrap().count(), 2, "nothing of Untorn's is left: {}", dir.display());
    };
    notes(&dir.path().join(".untorn"));
    offline::eject(dir.path(), &|_, _| ()).unwrap();
    left(&dir.path().join(".untorn"));
    // Of a file that is missing, or goes.
    let beside = dir.path().join("lone.untorn");
    notes(&beside);
    untorn::__private::remove_unneeded(&dir.path().join("lone")).unwrap();
    left(&beside);
    let lone = File::open_or_create(dir.path().join("lone")).unwrap();
    lone.write_all_at(b"bytes", 0).and_then(|()| lone.commit()).unwrap();
    lone.close().unwrap();
    untorn::__private::unlink(&dir.path().join("lone"), || fs::remove_file(dir.path().join("lone"))).unwrap();
    left(&beside);
}

#[test]
fn a_link_named_untorn_is_not_followed() {
    let real = crashed_store(&["a"]);
    let dir = directory();
    symlink(real.path().join(".untorn"), dir.path().join(".untorn")).unwrap();
    fs::write(dir.path().join("a"), "precious").unwrap();
    let before = picture(real.path());
    refused(Store::open_or_create(dir.path()), ASTRAY);
    assert_eq!(picture(real.path()), before, "the store behind the link was not touched");
    assert_same(&plain(dir.path().join("a")), b"precious", "not written to");
}

#[test]
fn links_inside_untorn_are_not_followed() {
    // Each file and directory of Untorn's in turn becomes a link to its contents outside.
    let template = crashed_store(&["a"]);
    for path in tree(&template.path().join(".untorn")) {
        let name = path.strip_prefix(template.path()).unwrap();
        let outer = directory();
        let dir = outer.path().join("store");
        run("cp", ["-a".as_ref(), template.path().as_os_str(), dir.as_os_str()]);
        let (inside, outside) = (dir.join(name), outer.path().join("outside"));
        fs::rename(&inside, &outside).unwrap();
        symlink(&outside, &inside).unwrap();
        let before = picture(outer.path());
        // Reserved room and the index of the log are not needed to open the store.
        let is_needed = !(name.starts_with(".untorn/journal.spare")
            || name.starts_with(".untorn/journal/index.0")
            || name.ends_with("pending-files.spare"));
        assert!(Store::open_or_create(&dir).is_err() || !is_needed, "{} as a link must be refused", name.display());
        let about_outside = |lines: Vec<String>| -> Vec<String> {
            lines.into_iter().filter(|line| line.contains("/outside")).collect()
        };
        assert_eq!(about_outside(picture(outer.path())), about_outside(before), "nothing was written through the link");
    }
}

#[test]
fn links_do_not_lead_out_of_the_store() {
    let outer = directory();
    let (dir, elsewhere) = (outer.path().join("store"), outer.path().join("elsewhere"));
    fs::create_dir(&dir).unwrap();
    fs::create_dir(&elsewhere).unwrap();
    fs::write(elsewhere.join("victim"), "precious").unwrap();
    symlink(&elsewhere, dir.join("link")).unwrap();
    symlink("../elsewhere/victim", dir.join("file link")).unwrap();
    symlink(".", dir.join("here")).unwrap();
    symlink("nowhere", dir.join("dangling")).unwrap();
    let store = Store::open_or_create(&dir).unwrap();
    for name in ["link/victim", "link/new", "file link", "here/new", "dangling", "link"] {
        refused(store.open_file(name), ASTRAY);
        refused(store.open_or_create_file(name), ASTRAY);
        let mut txn = store.begin();
        let created = txn.create(name, 0o644).map(drop).and_then(|()| txn.commit());
        refused(created, &["untrusted", "invalid", "unsupported", "io", "conflict"]);
    }
    store.open_or_create_file("plain").unwrap();
    let mut txn = store.begin();
    assert!(txn.rename("plain", "link/plain").and_then(|()| txn.commit()).is_err(), "renamed out through a link");
    store.close().unwrap();
    assert_same(&plain(elsewhere.join("victim")), b"precious", "not written to");
    assert_eq!(picture(&elsewhere).len(), 1, "nothing was made outside");
    assert!(!dir.join("nowhere").exists());
}

#[test]
fn a_directory_swapped_for_a_link_before_recovery_is_not_followed() {
    let outer = directory();
    let (dir, elsewhere) = (outer.path().join("store"), outer.path().join("elsewhere"));
    fs::create_dir_all(dir.join("sub")).unwrap();
    fs::create_dir(&elsewhere).unwrap();
    common::child_process::crash_in(&dir, &["sub/a", "b"]);
    fs::rename(dir.join("sub"), outer.path().join("aside")).unwrap();
    fs::write(elsewhere.join("a"), "precious").unwrap();
    symlink(&elsewhere, dir.join("sub")).unwrap();
    let store = Store::open_or_create(&dir).unwrap();
    assert!(store.open_file("sub/a").is_err());
    assert_same(&stored(&store, "b"), &text("new", "b"), "the other file");
    store.close().unwrap();
    assert_same(&plain(elsewhere.join("a")), b"precious", "not written to");
    fs::remove_file(dir.join("sub")).unwrap();
    fs::rename(outer.path().join("aside"), dir.join("sub")).unwrap();
    assert_same(
        &stored(&Store::open_or_create(&dir).unwrap(), "sub/a"),
        &text("new", "sub/a"),
        "recovered, back in place",
    );
}

#[test]
fn the_way_to_the_store_may_go_through_links() {
    let outer = directory();
    fs::create_dir(outer.path().join("store")).unwrap();
    symlink("store", outer.path().join("link")).unwrap();
    let store = Store::open_or_create(outer.path().join("link")).unwrap();
    store.open_or_create_file("a").unwrap();
    refused(Store::open_or_create(outer.path().join("store")), &["busy"]);
    drop(store);
    Store::open_or_create(outer.path().join("store")).unwrap();
}

/// A bind mount or another file system under the store, with the store's path.
fn with_mount_at(name: &str, arguments: &[&str]) -> Option<(TempDir, PathBuf, Mount)> {
    let outer = directory();
    let dir = outer.path().join("store");
    fs::create_dir_all(dir.join(name)).unwrap();
    let mount = Mount::new(arguments, &dir.join(name))?;
    Some((outer, dir, mount))
}

#[test]
fn mounts_under_the_store_are_not_crossed() {
    let elsewhere = directory();
    fs::write(elsewhere.path().join("victim"), "precious").unwrap();
    let bind = ["--bind", path_text(elsewhere.path())];
    for arguments in [&bind[..], &["-t", "tmpfs", "none"]] {
        let Some((_outer, dir, _mount)) = with_mount_at("sub", arguments) else { return };
        let store = Store::open_or_create(&dir).unwrap();
        for name in ["sub/victim", "sub/new"] {
            refused(store.open_or_create_file(name), ASTRAY);
            let mut txn = store.begin();
            assert!(txn.create(name, 0o644).map(drop).and_then(|()| txn.commit()).is_err());
        }
        store.open_or_create_file("plain").unwrap();
        let mut txn = store.begin();
        assert!(txn.rename("plain", "sub/plain").and_then(|()| txn.commit()).is_err());
        store.close().unwrap();
        assert_eq!(picture(&dir.join("sub")).len(), usize::from(arguments == bind), "nothing was made there");
    }
    assert_same(&plain(elsewhere.path().join("victim")), b"precious", "not written to");
    assert!(attribute(elsewhere.path().join("victim")).is_none());
}

#[test]
fn a_mount_in_the_place_of_untorn_is_not_a_store() {
    let real = crashed_store(&["a"]);
    let source = real.path().join(".untorn");
    let Some((_outer, dir, _mount)) = with_mount_at(".untorn", &["--bind", path_text(&source)]) else { return };
    let before = picture(real.path());
    refused(Store::open_or_create(&dir), ASTRAY);
    assert_eq!(picture(real.path()), before, "the store behind the mount was not touched");
}

#[test]
fn a_mount_over_a_pending_file_is_not_written_to() {
    let real = crashed_store(&["a", "b"]);
    let victim = directory();
    fs::write(victim.path().join("victim"), "precious").unwrap();
    let (source, place) = (victim.path().join("victim"), real.path().join("a"));
    let Some(mount) = Mount::new(&["--bind", path_text(&source)], &place) else { return };
    let store = Store::open_or_create(real.path()).unwrap();
    assert!(store.open_file("a").is_err());
    assert_same(&stored(&store, "b"), &text("new", "b"), "the other file");
    drop(store);
    drop(mount);
    assert_same(&plain(&source), b"precious", "not written to");
    assert_same(
        &stored(&Store::open_or_create(real.path()).unwrap(), "a"),
        &text("new", "a"),
        "recovered, uncovered again",
    );
}

#[test]
fn permissions_are_never_widened() {
    if !two_users() {
        return;
    }
    let dir = directory_of(NOBODY, 0o755);
    let path = path_text(dir.path());
    fs::write(dir.path().join("existing"), text("plain", "existing")).unwrap();
    set_mode(dir.path().join("existing"), 0o640);
    chown(dir.path().join("existing"), Some(NOBODY), Some(NOBODY)).unwrap();

    // A user with a strict umask creates files, and is killed before their contents are applied …
    let mut careful = process_of(NOBODY);
    careful.ok(&["umask", "077"]);
    careful.ok(&["open", path]);
    careful.ok(&["create", "by create", "666"]);
    careful.commit("by create", "new");
    careful.ok(&["txn-create", "by txn", "600", "new"]);
    careful.ok(&["file", "existing"]);
    careful.commit("existing", "new");
    careful.kill();

    // … and the recovery runs under a lax umask.
    let mut generous = process_of(NOBODY);
    generous.ok(&["umask", "000"]);
    generous.ok(&["open", path]);
    for name in ["by create", "by txn", "existing"] {
        generous.ok(&["file", name]);
        assert_eq!(generous.ok(&["read", name]).as_bytes(), &text("new", name)[..20]);
        generous.commit(name, "newer");
    }
    generous.ok(&["close"]);
    assert_eq!(mode(dir.path().join("by create")), 0o600);
    assert_eq!(mode(dir.path().join("by txn")), 0o600);
    assert_eq!(mode(dir.path().join("existing")), 0o640);
    assert_eq!(mode(dir.path().join(".untorn")), 0o700);
    for name in ["by create", "by txn", "existing"] {
        assert_same(&plain(dir.path().join(name)), &text("newer", name), "after closing");
    }
}

#[test]
fn the_umask_narrows_what_is_created() {
    let dir = directory();
    let mut process = ChildProcess::start();
    process.ok(&["umask", "027"]);
    process.ok(&["open", path_text(dir.path())]);
    process.ok(&["create", "a"]);
    process.ok(&["create", "b", "777"]);
    process.ok(&["close"]);
    assert_eq!(mode(dir.path().join("a")), 0o640);
    assert_eq!(mode(dir.path().join("b")), 0o750);
}

#[test]
fn a_file_without_write_permission_is_refused() {
    if !two_users() {
        return;
    }
    let dir = directory_of(NOBODY, 0o755);
    fs::write(dir.path().join("of-root"), text("plain", "of-root")).unwrap();
    set_mode(dir.path().join("of-root"), 0o644);
    let mut nobody = process_of(NOBODY);
    nobody.ok(&["open", path_text(dir.path())]);
    let refusal = nobody.refused(&["file", "of-root"], &["io", "untrusted"]);
    assert!(refusal.message.contains("of-root"), "{refusal:?}");
    assert!(attribute(dir.path().join("of-root")).is_none());
    nobody.ok(&["create", "own"]);
    nobody.commit("own", "new");
}
