//! `untorn find-unclean`: finds every store below some directories, with its condition.

mod common;

use common::{json, root, run, untorn};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use untorn::{Store, StoreOptions};
use untorn_testkit::NOBODY;

fn commit(store: &Store, contents: &[u8]) {
    let file = store.open_or_create_file("a").unwrap();
    file.write_all_at(contents, 0).and_then(|()| file.commit()).unwrap();
}

fn open(dir: &Path) -> Store {
    StoreOptions::new().create(true).background(false).open(dir).unwrap()
}

/// A store whose owner was killed: a copy of an open store.
fn crashed(dir: &Path) -> PathBuf {
    let alive = tempfile::tempdir_in(dir).unwrap();
    let store = open(alive.path());
    commit(&store, b"old");
    store.checkpoint().unwrap();
    commit(&store, b"committed");
    let crashed = dir.join("x/crashed");
    std::fs::create_dir_all(dir.join("x")).unwrap();
    assert!(Command::new("cp").arg("-a").arg(alive.path()).arg(&crashed).status().unwrap().success());
    store.close().unwrap();
    crashed
}

fn find(arguments: &[&str], dir: &Path) -> common::Run {
    let mut all = vec!["find-unclean"];
    all.extend(arguments);
    run(&all, dir)
}

#[test]
fn unclean_stores_are_found_and_recovered() {
    let dir = tempfile::tempdir().unwrap();
    assert_eq!(find(&[], dir.path()).ok(), "0 stores\n");
    let crashed = crashed(dir.path());
    open(&dir.path().join("clean")).close().unwrap();
    let in_use = open(&dir.path().join("in use"));
    commit(&in_use, b"waits in the journal");
    untorn::File::open_or_create(dir.path().join("settings")).unwrap().store().close().unwrap();
    let metrics = dir.path().join("untorn.prom");
    let found = find(&["--metrics", metrics.to_str().unwrap()], dir.path());
    assert_eq!(found.code, Some(1), "{}{}", found.out, found.err);
    assert!(found.out.contains("x/crashed  1 file pending\n"), "{}", found.out);
    assert!(found.out.ends_with("4 stores: 2 clean, 1 in-use, 1 unclean\n"), "{}", found.out);
    let figures = std::fs::read_to_string(&metrics).unwrap();
    assert!(figures.contains("untorn_stores{condition=\"unclean\"} 1\n"), "{figures}");
    assert!(figures.contains("/x/crashed\",condition=\"unclean\"} 1\n"), "{figures}");
    assert_eq!(std::fs::read(crashed.join("a")).unwrap(), b"old", "nothing was changed");
    let found = json(&find(&["--json"], dir.path()).out);
    assert_eq!(found["stores"].as_array().unwrap().len(), 4);
    let said = find(&["--recover", "--metrics", metrics.to_str().unwrap()], dir.path()).ok();
    assert!(said.contains("recovered  ") && said.ends_with("2 clean, 1 in-use, 1 recovered\n"), "{said}");
    assert_eq!(std::fs::read(crashed.join("a")).unwrap(), b"committed");
    let figures = std::fs::read_to_string(&metrics).unwrap();
    assert!(figures.contains("untorn_stores{condition=\"unclean\"} 0\n"), "{figures}");
    assert!(find(&[], dir.path()).ok().ends_with("4 stores: 3 clean, 1 in-use\n"));
    in_use.close().unwrap();
}

#[test]
fn root_recovers_the_stores_of_others_as_these() {
    if !common::root() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let crashed = crashed(dir.path());
    let done = Command::new("chown").args(["-R", "65534:65534"]).arg(&crashed).status().unwrap();
    assert!(done.success());
    assert!(Command::new("chmod").args(["-R", "a+X"]).arg(dir.path()).status().unwrap().success());
    // `chmod` has opened Untorn's directories to others, so they are not trusted.
    let problem = find(&["--recover"], dir.path());
    assert_eq!(problem.code, Some(1), "{}{}", problem.out, problem.err);
    assert!(problem.out.contains("problem") && problem.out.contains("chmod 700"), "{}", problem.out);
    assert!(Command::new("chmod").arg("700").arg(crashed.join(".untorn")).status().unwrap().success());
    find(&["--recover"], dir.path()).ok();
    assert_eq!(std::fs::read(crashed.join("a")).unwrap(), b"committed");
    use std::os::unix::fs::MetadataExt;
    assert_eq!(crashed.join("a").metadata().unwrap().uid(), untorn_testkit::NOBODY);
}

#[test]
fn what_cannot_be_looked_at_is_told() {
    let dir = tempfile::tempdir().unwrap();
    assert!(find(&[], &dir.path().join("nothing")).fails(2).contains("cannot look at"));
    let crashed = crashed(dir.path());
    std::fs::write(crashed.join(".untorn/journal/header"), vec![1; 8192]).unwrap();
    let found = find(&["--recover"], dir.path());
    assert_eq!(found.code, Some(1), "{}{}", found.out, found.err);
    assert!(found.out.starts_with("problem "), "{}", found.out);
    let none = untorn().arg("find-unclean").stdin(Stdio::null()).output().unwrap();
    assert_eq!(none.status.code(), Some(2), "no directory was named");
}

/// The daemon of this mount never answers. The search goes on around it.
#[test]
fn a_mount_that_does_not_answer_is_passed_over() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::create_dir(dir.path().join("mount")).unwrap();
    let script = "cd \"$2\"; exec 3<> /dev/fuse
        mount -i -t fuse -o fd=3,rootmode=40000,user_id=0,group_id=0 none mount || exit 99
        timeout 100 \"$1\" find-unclean .; echo $?; timeout 100 \"$1\" find-unclean -x .; echo $?
        timeout 100 \"$1\" find-unclean mount; echo $?; umount -l mount";
    let output = Command::new("sh").args(["-c", script, "sh", env!("CARGO_BIN_EXE_untorn")]).arg(dir.path()).output();
    let output = output.unwrap();
    if output.status.code() == Some(99) {
        eprintln!("skipped: needs root with CAP_SYS_ADMIN, and /dev/fuse");
        return;
    }
    let told = String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    assert!(told.contains("./mount") && told.contains("does not answer"), "{told}");
    let codes: Vec<&str> = told.lines().filter(|line| line.parse::<u8>().is_ok()).collect();
    assert_eq!(codes, ["2", "0", "2"], "{told}");
}

/// Recovering the store of a killed session would not put its changes back.
#[test]
fn a_session_that_was_left_is_a_problem() {
    let dir = tempfile::tempdir().unwrap();
    let session = dir.path().join(".tree.untorn-run");
    let store = session.join("store");
    std::fs::create_dir_all(&store).unwrap();
    crashed(&store);
    for (file, code) in [("nothing", 0), ("manifest", 1), ("done", 0)] {
        std::fs::write(session.join(file), "").unwrap();
        let found = find(&["--recover"], dir.path());
        assert_eq!(found.code, Some(code), "{}", found.out);
        assert_eq!(found.out.contains("tree") && found.out.contains("a session of `untorn run`"), code == 1);
    }
    let lock = std::fs::File::open(&session).unwrap();
    lock.lock().unwrap();
    std::fs::remove_file(session.join("done")).unwrap();
    assert_eq!(find(&[], dir.path()).code, Some(0), "the session is running");
}

/// A session's directory that this user may not look into may hold changes.
#[test]
fn a_session_of_somebody_else_is_not_called_clean() {
    if !root() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let session = dir.path().join(".tree.untorn-run");
    std::fs::create_dir(&session).unwrap();
    std::fs::write(session.join("manifest"), "").unwrap();
    for (path, mode) in [(dir.path(), 0o755), (&session, 0o700)] {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
    }
    let mut search = untorn();
    let found = search.arg("find-unclean").arg(dir.path()).uid(NOBODY).gid(NOBODY).output().unwrap();
    let told = String::from_utf8_lossy(&found.stdout).into_owned();
    assert!(found.status.code() == Some(2) && told.contains("Permission denied"), "{told}");
}
