//! `untorn doctor` on real places.

mod common;

use common::{Tmpfs, json, root, run, untorn};
use serde_json::Value;
use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;
use untorn_os::mount_kernels;
use untorn_testkit::NOBODY;

fn report(path: &Path) -> Value {
    json(&run(&["doctor", "--json"], path).out)
}

fn finding<'r>(report: &'r Value, topic: &str) -> &'r Value {
    let all = report["findings"].as_array().unwrap();
    all.iter().find(|f| f["topic"] == topic).unwrap_or_else(|| panic!("no {topic} in {report}"))
}

/// The promise of class `power` (or `process`) for one failure.
fn promise<'r>(report: &'r Value, failure: &str, class: &str) -> &'r str {
    let all = report["promises"].as_array().unwrap();
    all.iter().find(|p| p["failure"] == failure).unwrap()[class].as_str().unwrap()
}

#[test]
fn an_ordinary_directory_is_usable_and_left_as_it_was() {
    let dir = tempfile::tempdir().unwrap();
    let text = run(&["doctor"], dir.path()).ok();
    for part in
        ["the power is cut", "why not more", "free space", "attributes", "openat2", "flush", "mappings", "memory"]
    {
        assert!(text.contains(part), "{part} in {text}");
    }
    let report = report(dir.path());
    assert_eq!(report["usable"], true);
    assert_eq!(promise(&report, "process_killed", "class_power"), "kept");
    assert_eq!(promise(&report, "power_cut", "class_process"), "not_kept");
    assert_eq!(promise(&report, "disk_damage", "class_power"), "not_kept");
    assert_eq!(report["store"], Value::Null);
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0, "the trial file is gone");
}

/// Each command that is told works, in the order of the list. (Those of cargo are examples, which have tests of their own.)
#[test]
fn the_commands_for_each_face_work() {
    for package in ["untorn-mount", "untorn-ship"] {
        untorn_testkit::program(package);
    }
    untorn_testkit::preload_library();
    let dir = tempfile::tempdir_in("/var/tmp").unwrap();
    let place = dir.path().join("a place");
    fs::create_dir(&place).unwrap();
    let report = report(&place);
    let faces = report["faces"].as_array().unwrap();
    assert!(faces.len() > 10 && report["usable"] == true, "{report}");
    let beside = Path::new(env!("CARGO_BIN_EXE_untorn")).parent().unwrap();
    let path = format!("{}:{}", beside.display(), std::env::var("PATH").unwrap());
    let here = place.join("untorn-try");
    assert_eq!(report["try_directory"], format!("'{}'", here.display()));
    fs::create_dir(&here).unwrap();
    let mut tried = 0;
    for face in faces.iter().filter(|face| face["why_not"] == Value::Null) {
        let command = face["try_it"].as_str().unwrap();
        if command.contains("cargo") || command.contains("plain") && !root() || command.contains("mount") && !root() {
            continue;
        }
        let done = Command::new("sh").args(["-c", command]).current_dir(&here).env("PATH", &path).output().unwrap();
        assert!(done.status.success(), "{command}: {}", String::from_utf8_lossy(&done.stderr));
        tried += 1;
    }
    assert!(tried >= 5, "{report}");
    for name in ["now", "store/a", "store/b", "copy.txt"] {
        assert!(here.join(name).exists(), "{name}");
    }
    let text = run(&["doctor"], &place).ok();
    assert!(text.contains("how to try each face") && text.contains("untorn put"), "{text}");
}

#[test]
fn parts_of_a_mount_that_the_kernel_lacks_are_named() {
    let dir = tempfile::tempdir().unwrap();
    for (version, named, not_named) in
        [("6.1", "a supervisor (6.9)", "5.15"), ("6.12", "--commit=store (6.16)", "(6.9)")]
    {
        let told = untorn().args(["doctor", "--json"]).arg(dir.path()).env(mount_kernels::AS_KERNEL, version).output();
        let report: Value = serde_json::from_slice(&told.unwrap().stdout).unwrap();
        let why = finding(&report, "untorn mount")["why"].as_str().unwrap().to_owned();
        assert!(why.contains(named) && !why.contains(not_named), "{version}: {why}");
    }
}

#[test]
fn a_file_to_be_is_judged_by_its_directory() {
    let dir = tempfile::tempdir().unwrap();
    let report = report(&dir.path().join("new.db"));
    assert_eq!((&report["usable"], fs::read_dir(dir.path()).unwrap().count()), (&Value::Bool(true), 0));
}

#[test]
fn memory_keeps_nothing_and_a_read_only_mount_takes_nothing() {
    let Some(disk) = root().then(|| Tmpfs::mount("size=2m")).flatten() else { return };
    let in_memory = report(disk.dir.path());
    assert_eq!(promise(&in_memory, "process_killed", "class_power"), "kept");
    assert_eq!(promise(&in_memory, "kernel_crash", "class_power"), "not_kept");
    assert_eq!(promise(&in_memory, "power_cut", "class_power"), "not_kept");

    let remount = Command::new("mount").args(["-o", "remount,ro"]).arg(disk.dir.path()).status().unwrap();
    assert!(remount.success());
    let run = run(&["doctor"], disk.dir.path());
    assert_eq!(run.code, Some(1));
    assert!(
        run.out.contains("No store can be used here: a store must be written; remount it (read-only)")
            && run.out.contains("read-only"),
        "{}",
        run.out
    );
}

#[test]
fn a_directory_of_somebody_else_is_refused() {
    if !root() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    fs::set_permissions(dir.path(), Permissions::from_mode(0o755)).unwrap();
    let out = untorn().args(["doctor", "--json"]).arg(dir.path()).uid(NOBODY).gid(NOBODY).output().unwrap();
    let report = json(&String::from_utf8(out.stdout).unwrap());
    assert_eq!((out.status.code(), &report["usable"]), (Some(1), &Value::Bool(false)));
    assert_eq!(finding(&report, "owner")["rules_out"], true);
    assert_eq!(finding(&report, "trial file")["rules_out"], true);
}

#[test]
fn a_journal_that_others_can_write_is_not_believed() {
    let dir = tempfile::tempdir().unwrap();
    fs::create_dir(dir.path().join(".untorn")).unwrap();
    fs::set_permissions(dir.path().join(".untorn"), Permissions::from_mode(0o777)).unwrap();
    let report = report(dir.path());
    assert_eq!(report["usable"], false);
    assert!(finding(&report, "journal directory")["why"].as_str().unwrap().contains("0700"), "{report}");
}

#[test]
fn a_store_that_is_here_is_told_of() {
    let dir = tempfile::tempdir().unwrap();
    let store = untorn::Store::open_or_create(dir.path()).unwrap();
    let file = store.open_or_create_file("file").unwrap();
    file.append(b"contents").unwrap();
    file.commit().unwrap();
    file.close().unwrap();
    store.close().unwrap();
    let report = report(dir.path());
    assert_eq!((&report["usable"], &report["store"]["clean"]), (&Value::Bool(true), &Value::Bool(true)));
}

/// The daemon of this mount never answers. `doctor` must not hang.
#[test]
fn a_place_that_does_not_answer_is_told_of() {
    let dir = tempfile::tempdir().unwrap();
    let script =
        "exec 3<> /dev/fuse && mount -i -t fuse -o fd=3,rootmode=40000,user_id=0,group_id=0 none \"$2\" || exit 99
        timeout 100 \"$1\" doctor \"$2\"; code=$?; umount -l \"$2\"; exit $code";
    let output = Command::new("sh").args(["-c", script, "sh", env!("CARGO_BIN_EXE_untorn")]).arg(dir.path()).output();
    let output = output.unwrap();
    if output.status.code() == Some(99) {
        eprintln!("skipped: needs root with CAP_SYS_ADMIN, and /dev/fuse");
        return;
    }
    let told = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(1), "{told}");
    assert!(told.contains("does not answer"), "{told}");
}
