//! Commands on stores that are busy, of other users, or incomplete: their output, and their exit codes.

mod common;

use common::{Run, json, root, run, untorn};
use std::fs::{self, Permissions};
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use tempfile::TempDir;
use untorn::__private::OpenStoreOn;
use untorn::{Store, StoreOptions};
use untorn_testkit::NOBODY;

fn open(dir: &Path) -> Store {
    StoreOptions::new().create(true).background(false).open(dir).unwrap()
}

fn copy(how: &str, from: &Path, to: &Path) {
    assert!(Command::new("cp").arg(how).arg(from).arg(to).status().unwrap().success());
}

/// A directory with the store `store`, in the state after a kill that followed two commits.
///
/// `file` holds `first commit` on the disk, and the second commit is in the journal.
fn killed() -> (TempDir, PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    let store = open(&dir.path().join("live"));
    let file = store.open_or_create_file("file").unwrap();
    file.write_all_at(b"first commit", 0).unwrap();
    file.commit().unwrap();
    store.checkpoint().unwrap();
    file.write_all_at(b"second commit", 0).unwrap();
    file.commit().unwrap();
    let at = dir.path().join("store");
    copy("-a", &dir.path().join("live"), &at);
    file.close().unwrap();
    store.close().unwrap();
    fs::remove_dir_all(dir.path().join("live")).unwrap();
    (dir, at)
}

fn read(path: impl AsRef<Path>) -> String {
    fs::read_to_string(path).unwrap()
}

/// Runs a command as an ordinary user.
fn as_nobody(arguments: &[&str], path: &Path) -> Run {
    let mut command = untorn();
    command.args(arguments).arg(path).stdin(Stdio::null()).uid(NOBODY).gid(NOBODY);
    command.output().unwrap().into()
}

#[test]
fn a_healthy_busy_store_is_never_damaged() {
    let dir = tempfile::tempdir().unwrap();
    let store = StoreOptions::new().create(true).sizes(256 << 10, 32 << 10, 4 << 10).open(dir.path()).unwrap();
    let file = store.open_or_create_file("file").unwrap();
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for n in 0u64.. {
                if done.load(Relaxed) {
                    break;
                }
                file.write_all_at(&[n as u8; 1000], n % 10 * 1000).unwrap();
                file.commit().unwrap();
                if n.is_multiple_of(5) {
                    store.checkpoint().unwrap();
                }
            }
        });
        let looks = || -> Result<(), String> {
            for look in 0..20_000 {
                match untorn::offline::inspect(dir.path()) {
                    Ok(found) if found.problems.is_empty() => {}
                    Err(untorn::Error::Busy { .. }) => {}
                    other => return Err(format!("look {look}: {other:?}")),
                }
            }
            Ok(())
        };
        let result = looks();
        done.store(true, Relaxed);
        result.unwrap();
    });
    assert!(run(&["check"], dir.path()).ok().contains("a moment ago"));
}

/// All files of a directory with modes, owners, sizes and times.
fn everything(dir: &Path) -> Vec<String> {
    let out = Command::new("find").arg(dir).args(["-printf", "%p %m %U %s %T@ %C@\n"]).output().unwrap();
    let mut lines: Vec<String> = String::from_utf8(out.stdout).unwrap().lines().map(str::to_owned).collect();
    lines.sort();
    lines
}

#[test]
fn root_looks_at_anybodys_store_and_changes_nothing() {
    if !root() {
        return;
    }
    let (_dir, store) = killed();
    for path in [store.clone(), store.join("file")] {
        chown(path, Some(NOBODY), Some(NOBODY)).unwrap();
    }
    let inside = Command::new("chown").args(["-R", &NOBODY.to_string()]).arg(store.join(".untorn")).status().unwrap();
    assert!(inside.success());
    let before = everything(&store);
    for command in ["status", "check", "dump"] {
        run(&[command], &store).unclean();
    }
    run(&["recover", "--dry-run"], &store).unclean();
    assert_eq!(everything(&store), before);
    // Changes are refused.
    let e = run(&["recover"], &store).fails(1);
    assert!(e.contains("run as user 65534"), "{e}");
    fs::set_permissions(store.join(".untorn"), Permissions::from_mode(0o775)).unwrap();
    let check = run(&["check"], &store);
    assert!(check.code == Some(1) && check.out.contains("chmod 700"), "{}{}", check.out, check.err);
}

#[test]
fn a_removed_store_directory_is_told_and_there_is_a_way_out() {
    for standalone in [false, true] {
        let (dir, store) = killed();
        let file = store.join("file");
        let path = match standalone {
            false => store.clone(),
            true => file.clone(),
        };
        fs::remove_dir_all(store.join(".untorn")).unwrap();
        // There is no store to examine, so the message says that the file waits for a journal.
        for command in ["status", "check", "dump", "recover"] {
            let e = run(&[command], &path).fails(1);
            assert!(e.contains("file waits for commits in the journal of store "), "{command}: {e}");
            assert!(e.contains("`untorn recover --accept-lost`"), "{command}: {e}");
        }
        // A program makes a new store.
        let e = match standalone {
            false => {
                let store = open(&store);
                let e = store.open_file("file").unwrap_err();
                store.close().unwrap();
                e
            }
            true => untorn::File::open(&file).unwrap_err(),
        };
        assert_eq!(e.kind(), "needs-its-journal");
        assert!(e.to_string().contains("`untorn recover --accept-lost`"), "{e}");
        for command in [&["status"][..], &["check"], &["recover", "--dry-run"]] {
            let look = run(command, &path);
            // There may be no store for a standalone file that could not be opened.
            let said = format!("{}{}", look.out, look.err);
            assert!(look.code == Some(1) && said.contains("waits for commits in the journal of store "), "{said}");
        }
        let e = run(&["recover"], &path).fails(1);
        assert!(e.contains("--accept-lost"), "{e}");
        let e = run(&["eject", "--yes"], &path).fails(1);
        assert!(e.contains("--accept-lost"), "{e}");
        let e = run(&["recover", "--accept-lost", "--dry-run"], &path).ok();
        assert!(e.contains("would be taken as it is: file") && e.contains("nothing was changed"), "{e}");
        let done = run(&["recover", "--accept-lost"], &path).ok();
        assert!(done.contains("taken as it is: file"), "{done}");
        assert_eq!(read(&file), "first commit");
        let again = run(&["recover", "--accept-lost"], &path).ok();
        assert!(again.contains("no file here waits"), "{again}");
        let store = open(&store);
        store.open_file("file").unwrap();
        store.close().unwrap();
        run(&["status"], dir.path().join("store").as_path()).ok();
    }
}

#[test]
fn files_of_a_store_that_is_here_are_never_taken_as_they_are() {
    let (dir, store) = killed();
    for path in [&store, &store.join("file")] {
        let said = run(&["recover", "--accept-lost"], path).ok();
        assert!(said.contains("no file here waits"), "{said}");
    }
    run(&["recover"], &store).ok();
    assert_eq!(read(store.join("file")), "second commit");
    drop(dir);
}

#[test]
fn salvage_is_not_the_advice_for_what_can_be_put_right() {
    let (_dir, store) = killed();
    let second = store.join("second name");
    fs::hard_link(store.join("file"), &second).unwrap();
    let check = run(&["check"], &store);
    assert_eq!(check.code, Some(1), "{}", check.out);
    assert!(check.out.contains("Remove the causes, then run `untorn recover`"), "{}", check.out);
    assert!(!check.out.contains("--salvage` keeps it"), "{}", check.out);
    fs::remove_file(second).unwrap();
    run(&["recover"], &store).ok();
    assert_eq!(read(store.join("file")), "second commit");
}

#[test]
fn exit_codes_tell_order_problems_and_no_look() {
    let (dir, store) = killed();
    for command in ["status", "check", "dump"] {
        run(&[command], &store).unclean();
        let e = run(&[command], &dir.path().join("nothing")).fails(2);
        assert!(e.contains("No such file") && e.contains("check the path"), "{command}: {e}");
    }
    for command in ["check", "dump"] {
        let e = run(&[command], dir.path()).fails(2);
        assert!(e.contains("cannot find a store"), "{command}: {e}");
    }
    let status = run(&["status"], dir.path());
    assert!(status.code == Some(2) && status.out.contains("is no store"));
    // Another file has the name of the one with pending commits.
    fs::remove_file(store.join("file")).unwrap();
    fs::write(store.join("file"), "foreign").unwrap();
    for command in ["status", "check", "dump"] {
        let look = run(&[command], &store);
        assert_eq!(look.code, Some(1), "{command}: {}{}", look.out, look.err);
        assert_eq!(look.out.matches("PROBLEM").count(), 1, "{}", look.out);
        assert_eq!(look.out.matches("another file is in the place").count(), 1, "{}", look.out);
    }
    let status = run(&["status", "--json"], &store);
    assert_eq!((status.code, json(&status.out)["clean"].as_bool()), (Some(1), Some(false)));
    let e = run(&["recover"], &store).fails(1);
    assert_eq!(e.matches("file: another file is in the place").count(), 1, "{e}");
    assert!(!e.contains("file: file:"), "{e}");
    let e = run(&["eject", "--yes"], &store).fails(1);
    assert_eq!(e.matches("Nothing was overwritten").count(), 1, "{e}");
    assert!(!e.contains("(file:"), "{e}");
    assert_eq!(read(store.join("file")), "foreign");
}

#[test]
fn a_journal_that_is_not_made_yet_is_no_missing_store() {
    let (_dir, store) = killed();
    fs::rename(store.join("file"), store.join("aside")).unwrap();
    run(&["recover"], &store).fails(1);
    // The state after a full disk: the old journal is quarantined, and there was no room for a new one.
    fs::remove_dir_all(store.join(".untorn/journal")).unwrap();
    let status = run(&["status"], &store);
    assert_eq!(status.code, Some(1), "{}{}", status.out, status.err);
    assert!(status.out.contains("PROBLEM  file has committed changes"), "{}", status.out);
    fs::rename(store.join("aside"), store.join("file")).unwrap();
    for command in ["status", "check"] {
        let look = run(&[command], &store);
        assert_eq!(look.code, Some(1), "{}{}", look.out, look.err);
        assert!(
            look.out.contains("the journal is not made yet") && look.out.contains("Free some space"),
            "{}",
            look.out
        );
        assert!(look.out.contains("quarantine  1 file or directory in 1 journal"), "{}", look.out);
    }
    run(&["recover"], &store).ok();
    assert_eq!(read(store.join("file")), "second commit");
    // The state before the first journal was made.
    fs::remove_dir_all(store.join(".untorn/journal")).unwrap();
    assert!(run(&["status"], &store).unclean().contains("not made yet; the next opening makes its journal"));
}

#[test]
fn a_missing_header_is_damage_that_salvage_mends() {
    let (_dir, store) = killed();
    fs::remove_file(store.join(".untorn/journal/header")).unwrap();
    for command in ["status", "check"] {
        let e = run(&[command], &store).fails(1);
        assert!(e.contains("header is damaged: the header file is missing") && e.contains("--salvage"), "{e}");
    }
    let e = run(&["recover"], &store).fails(1);
    assert!(e.contains("the header file is missing"), "{e}");
    let done = run(&["recover", "--salvage"], &store).ok();
    assert!(done.contains("untorn-salvage."), "{done}");
    run(&["check"], &store).ok();
    assert_eq!(read(store.join("file")), "first commit");
}

#[test]
fn a_taken_name_is_a_problem_before_recovery_meets_it() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(&dir.path().join("live"));
    let file = store.open_or_create_file("new").unwrap();
    file.write_all_at(b"contents", 0).unwrap();
    file.commit().unwrap();
    let at = dir.path().join("store");
    copy("-a", &dir.path().join("live"), &at);
    fs::remove_file(at.join("new")).unwrap();
    assert!(run(&["check"], &at).unclean().contains("create"));
    fs::write(at.join("new"), "foreign").unwrap();
    let check = run(&["check"], &at);
    assert_eq!(check.code, Some(1), "{}", check.out);
    assert!(
        check.out.contains("new: the name is taken by another file, which the journal does not know"),
        "{}",
        check.out
    );
    assert!(check.out.contains("move that file away"), "{}", check.out);
    let e = run(&["recover"], &at).fails(1);
    assert!(e.contains("the name is taken"), "{e}");
    assert_eq!(read(at.join("new")), "foreign");
}

#[test]
fn a_mount_over_a_file_is_called_one() {
    if !root() {
        return;
    }
    let (dir, store) = killed();
    let (other, file) = (dir.path().join("other"), store.join("file"));
    fs::write(&other, "other").unwrap();
    let mount = Command::new("mount").arg("--bind").arg(&other).arg(&file).output().unwrap();
    if !mount.status.success() {
        return eprintln!("skipped: cannot mount");
    }
    let check = run(&["check"], &store);
    let put = run(&["put"], &file);
    let gone = Command::new("umount").arg(&file).status().unwrap();
    assert!(gone.success());
    assert_eq!(check.code, Some(1), "{}{}", check.out, check.err);
    assert!(check.out.contains("something is mounted there") && check.out.contains("unmount it"), "{}", check.out);
    assert_eq!(put.code, Some(1), "{}", put.err);
    run(&["recover"], &store).ok();
    assert_eq!(read(&file), "second commit");
}

#[test]
fn no_right_to_look_is_not_a_missing_store() {
    if !root() {
        return;
    }
    let (dir, store) = killed();
    fs::set_permissions(dir.path(), Permissions::from_mode(0o755)).unwrap();
    for command in ["status", "check", "dump"] {
        let e = as_nobody(&[command], &store).fails(2);
        assert!(e.contains("Permission denied") && e.contains("as root"), "{command}: {e}");
        assert!(!e.contains("No such file"), "{command}: {e}");
        fs::set_permissions(&store, Permissions::from_mode(0o700)).unwrap();
        let e = as_nobody(&[command], &store.join("file")).fails(2);
        assert!(e.contains("Permission denied"), "{command}: {e}");
        fs::set_permissions(&store, Permissions::from_mode(0o755)).unwrap();
    }
    assert_eq!(fs::metadata(store.join(".untorn")).unwrap().mode() & 0o777, 0o700);
}

/// A killed store, copied without attributes.
///
/// The pending commits change one file, create another, and leave a third one alone.
fn copied() -> (TempDir, PathBuf) {
    let (dir, killed) = killed();
    let at = dir.path().join("copy");
    copy("-r", &killed, &at);
    (dir, at)
}

#[test]
fn a_store_copied_without_attributes_is_adopted() {
    let user = rustix::process::geteuid().is_root().then_some(NOBODY);
    let (dir, store) = copied();
    let run = |arguments: &[&str], path: &Path| match user {
        Some(_) => as_nobody(arguments, path),
        None => run(arguments, path),
    };
    if let Some(user) = user {
        fs::set_permissions(dir.path(), Permissions::from_mode(0o755)).unwrap();
        assert!(Command::new("chown").args(["-R", &user.to_string()]).arg(&store).status().unwrap().success());
    }
    let before = everything(&store);
    let said = run(&["recover", "--adopt", "--dry-run"], &store).ok();
    assert!(
        said.contains("file  12 B  would be adopted: assumed to contain its commits up to 2; commit 3 is its last"),
        "{said}"
    );
    assert!(said.contains("nothing was changed"), "{said}");
    assert_eq!(everything(&store), before);
    let check = run(&["check"], &store);
    assert!(check.code == Some(1) && check.out.contains("not sound. If this store was copied"), "{}", check.out);
    // The usual order: recovery first, which quarantines the journal and gives the right advice.
    let e = run(&["recover"], &store).fails(1);
    assert!(e.contains("another file is in the place") && e.contains("`untorn recover --adopt`"), "{e}");
    assert_eq!(read(store.join("file")), "first commit");
    let done = run(&["recover", "--adopt"], &store).ok();
    assert!(done.contains("file  12 B  adopted") && done.contains("plain and whole"), "{done}");
    assert_eq!(read(store.join("file")), "second commit");
    run(&["check"], &store).ok();
    assert!(run(&["recover", "--adopt"], &store).ok().contains("no file of this store lacks its attribute"));
}

#[test]
fn a_copy_is_adopted_at_once_and_files_that_cannot_be_are_refused() {
    let (_dir, store) = copied();
    run(&["recover", "--adopt"], &store).ok();
    assert_eq!(read(store.join("file")), "second commit");

    let (_dir, store) = copied();
    fs::hard_link(store.join("file"), store.join("link")).unwrap();
    let e = run(&["recover", "--adopt"], &store).fails(1);
    assert!(e.contains("nothing was adopted") && e.contains("several hard links"), "{e}");
    fs::remove_file(store.join("link")).unwrap();
    fs::rename(store.join("file"), store.join("aside")).unwrap();
    let e = run(&["recover", "--adopt"], &store).fails(1);
    assert!(e.contains("file  missing  cannot be adopted: no file is there"), "{e}");
    fs::rename(store.join("aside"), store.join("file")).unwrap();
    run(&["recover", "--adopt"], &store).ok();
    assert_eq!(read(store.join("file")), "second commit");
}

#[test]
fn salvage_leaves_the_contents_of_acknowledged_commits_beside() {
    let (_dir, store) = copied();
    let before = everything(&store);
    let said = run(&["recover", "--salvage", "--dry-run"], &store).ok();
    assert!(said.contains("file would be left as it is") && said.contains("untorn-salvage.*/salvaged"), "{said}");
    assert_eq!(everything(&store), before);
    // The first salvage does it.
    let done = run(&["recover", "--salvage"], &store).ok();
    let note = done.lines().find(|line| line.contains("file was left as it is")).unwrap_or_else(|| panic!("{done}"));
    let contents = store.join(note.rsplit(' ').next().unwrap());
    assert_eq!(read(&contents), "second commit", "{note}");
    assert_eq!(read(store.join("file")), "first commit");
    run(&["check"], &store).ok();
}

/// Files and directories are quarantined on a full disk. `recover`, `status` and `check` report the same about them.
#[test]
fn what_is_quarantined_is_told_with_its_reason_and_what_to_do() {
    if !root() {
        return;
    }
    let Some(disk) = common::Tmpfs::mount("size=4m,nr_inodes=100") else { return };
    let (live, store) = (disk.dir.path().join("live"), disk.dir.path().join("store"));
    let opened = open(&live);
    let a = opened.open_or_create_file("a").unwrap();
    a.write_all_at(b"old", 0).unwrap();
    a.commit().unwrap();
    opened.checkpoint().unwrap();
    a.write_all_at(&[b'n'; 100_000], 0).unwrap();
    a.commit().unwrap();
    let mut txn = opened.begin();
    txn.mkdir("d", 0o700).unwrap();
    txn.create("d/x", 0o600).unwrap().write_all_at(b"contents", 0).unwrap();
    txn.commit().unwrap();
    // The copy must have the reserved room, too.
    let copied = Command::new("cp").args(["-a", "--sparse=never"]).arg(&live).arg(&store).status().unwrap();
    assert!(copied.success());
    a.close().unwrap();
    opened.close().unwrap();
    fs::remove_dir_all(&live).unwrap();
    fs::remove_dir_all(store.join("d")).unwrap();
    let ballast = disk.dir.path().join("ballast");
    fs::create_dir(&ballast).unwrap();
    let _ = fs::write(ballast.join("large"), vec![1; 8 << 20]);
    while fs::File::create(ballast.join(fs::read_dir(&ballast).unwrap().count().to_string())).is_ok() {}

    let recover = run(&["recover"], &store).fails(1);
    let status = run(&["status"], &store);
    let check = run(&["check"], &store);
    let again = run(&["recover"], &store).fails(1);
    assert_eq!(again, recover, "nothing has changed");
    assert!(recover.contains("3 files and directories are quarantined; all others are whole"), "{recover}");
    assert!(!recover.contains("Nothing was committed"), "{recover}");
    for look in [&status, &check] {
        assert_eq!(look.code, Some(1), "{}{}", look.out, look.err);
        assert!(look.out.contains("quarantine  3 files and directories in 1 journal"), "{}", look.out);
        assert!(look.out.contains("state       3 problems"), "{}", look.out);
        assert!(look.out.contains("PROBLEM  when the store was opened last: no space: cannot write a"), "{}", look.out);
    }
    let eject = run(&["eject", "--yes"], &store).fails(1);
    assert!(eject.contains("nothing was removed; once the cause is gone, eject again"), "{eject}");
    assert!(check.out.contains("not sound: commits are quarantined. Remove the causes, then run `untorn recover`"));
    for said in [&recover, &status.out, &check.out] {
        for wanted in [
            "no space: cannot write a: No space left on device (os error 28). Free some space and try again. Its commits \
             are kept; once the cause is gone, `untorn recover` or the next opening redoes them\n",
            "no space: cannot make the directory d: No space left on device (os error 28). Free some space and try again. \
             Its commits are kept",
            "d/x: its directory is not there",
        ] {
            assert_eq!(said.matches(wanted).count(), 1, "{wanted} in {said}");
        }
        let twice = said.lines().find(|line| line.to_lowercase().matches("free some space").count() > 1);
        assert_eq!(twice, None);
    }
    for command in ["status", "check"] {
        let told = json(&run(&[command, "--json"], &store).out);
        assert_eq!(told["quarantined"].as_array().map(Vec::len), Some(3), "{told}");
        assert_eq!(told["clean"].as_bool(), Some(false));
    }

    fs::remove_dir_all(&ballast).unwrap();
    run(&["recover"], &store).ok();
    assert!(run(&["status"], &store).ok().contains("clean"));
    run(&["check"], &store).ok();
    assert_eq!(read(store.join("d/x")), "contents");
    assert_eq!(fs::metadata(store.join("a")).unwrap().len(), 100_000);
}

#[test]
fn eject_names_the_directories_that_it_could_not_look_into() {
    if !root() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    fs::set_permissions(dir.path(), Permissions::from_mode(0o755)).unwrap();
    let path = dir.path().join("store");
    let store = open(&path);
    let mut txn = store.begin();
    txn.mkdir("d", 0o700).unwrap();
    txn.create("d/z", 0o600).unwrap().write_all_at(b"z", 0).unwrap();
    txn.commit().unwrap();
    store.close().unwrap();
    assert!(Command::new("chown").args(["-R", &NOBODY.to_string()]).arg(&path).status().unwrap().success());
    fs::set_permissions(path.join("d"), Permissions::from_mode(0o000)).unwrap();
    let out = as_nobody(&["eject", "--yes"], &path).ok();
    assert!(out.contains("could not be examined or changed") && out.trim_end().ends_with(": d"), "{out}");
    assert!(!out.contains("nothing of Untorn's is left"), "{out}");
}

#[test]
fn eject_in_a_closed_directory_fails_before_it_changes_anything() {
    if !root() {
        return;
    }
    let (dir, store) = killed();
    fs::set_permissions(dir.path(), Permissions::from_mode(0o755)).unwrap();
    assert!(Command::new("chown").args(["-R", &NOBODY.to_string()]).arg(&store).status().unwrap().success());
    fs::set_permissions(&store, Permissions::from_mode(0o500)).unwrap();
    let before = everything(&store);
    let e = as_nobody(&["eject", "--yes"], &store).fails(1);
    let wanted = format!(
        "{}: .untorn in it cannot be removed: Permission denied (os error 13). Nothing was changed; `chmod u+w {}`, and \
         eject again",
        store.display(),
        store.display()
    );
    assert!(e.contains(&wanted) && !e.contains("as the owner"), "{e}");
    assert_eq!(everything(&store), before);
    fs::set_permissions(&store, Permissions::from_mode(0o700)).unwrap();
    let done = as_nobody(&["eject", "--yes"], &store).ok();
    assert!(done.contains("nothing of Untorn's is left"), "{done}");
    assert_eq!(read(store.join("file")), "second commit");
    assert!(!store.join(".untorn").exists());
}
