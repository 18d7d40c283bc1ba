//! Environments that lack or forbid something: every operation that is possible works, and every other one is refused
//! with advice.

mod common;

use common::child_process::{ChildProcess, path_text};
use common::*;
use std::fs;
use std::path::PathBuf;
use std::process::Command;
use untorn::{FailureClass, Store, StoreOptions};

const PLACE: &str = "UNTORN_TEST_PLACE";

fn place() -> Option<PathBuf> {
    std::env::var_os(PLACE).map(PathBuf::from)
}

/// Runs a commit, a close, an opening, and another commit.
fn works(dir: &std::path::Path) {
    for n in 0..2 {
        let store = Store::open_or_create(dir).unwrap();
        let file = store.open_or_create_file("f").unwrap();
        file.append(&[n]).unwrap();
        file.commit().unwrap();
        drop(file);
        store.close().unwrap();
    }
    assert_eq!(plain(dir.join("f")), [0, 1]);
}

#[test]
fn without_proc_class_power_works() {
    with_another_proc("without_proc_class_power_works", "-t tmpfs none");
}

/// A `/proc` as some containers have it: with processes, but nothing about the machine.
#[test]
fn with_a_part_of_proc_class_power_works() {
    with_another_proc("with_a_part_of_proc_class_power_works", "-t proc -o subset=pid proc");
}

fn with_another_proc(name: &str, mount: &str) {
    let Some(dir) = place() else {
        let dir = directory();
        let killed = dir.path().join("killed");
        fs::create_dir(&killed).unwrap();
        let mut process = ChildProcess::start();
        process.ok(&["open", path_text(&killed), "class=process"]);
        process.ok(&["create", "a"]);
        process.commit("a", "new");
        process.kill();
        let inner = untorn_testkit::again!(name);
        let mut command = Command::new("unshare");
        command.args([
            "--map-root-user",
            "--mount",
            "--pid",
            "--fork",
            "sh",
            "-c",
            &format!("mount {mount} /proc || exit 99; exec \"$@\""),
            "sh",
        ]);
        // The path by which a process finds its own program goes with `/proc`.
        command.arg(inner.get_program()).args(inner.get_args()).env(PLACE, dir.path());
        let output = command.output().unwrap();
        let err = String::from_utf8_lossy(&output.stderr).into_owned();
        if output.status.code() == Some(99) || err.starts_with("unshare: ") {
            return skipped("needs the right to make a mount namespace");
        }
        assert!(output.status.success(), "{}{err}", String::from_utf8_lossy(&output.stdout));
        return;
    };
    assert!(!fs::exists("/proc/sys").unwrap());
    let power = dir.join("power");
    fs::create_dir(&power).unwrap();
    works(&power);
    let process = StoreOptions::new().create(true).class(FailureClass::Process);
    for dir in [&power, &dir.join("killed")] {
        let why = refused(process.open(dir), &["unsupported"]).to_string();
        assert!(why.contains("/proc/sys/kernel/random/boot_id") && why.contains("class `power`"), "{why}");
    }
    let killed = dir.join("killed");
    refused(Store::open_or_create(&killed), &["unsupported"]);
    StoreOptions::new().create(true).accept_unknown(true).open(&killed).unwrap().close().unwrap();
}

#[test]
fn without_attributes_no_store_is_made() {
    let dir = directory();
    let Some(mount) = Mount::new(&["-t", "ramfs", "none"], dir.path()) else { return };
    fs::write(mount.path().join("f"), "plain").unwrap();
    let why = refused(Store::open_or_create(mount.path()), &["unsupported"]).to_string();
    assert!(why.contains("no extended attributes") && why.contains("untorn put"), "{why}");
    assert!(!mount.path().join(".untorn/journal").exists());
    assert_eq!(plain(mount.path().join("f")), b"plain");
}

/// Denies `fsetxattr` to this process for good, like the filter of a container.
fn forbid_attributes(errno: i32) {
    forbid_call(libc::SYS_fsetxattr, libc::SECCOMP_RET_ERRNO | errno as u32);
}

#[test]
fn where_attributes_are_forbidden_the_message_says_so() {
    let Some(dir) = place() else {
        for errno in [libc::EPERM, libc::ENOSYS] {
            let dir = directory();
            let made = dir.path().join("made");
            fs::create_dir(&made).unwrap();
            let store = Store::open_or_create(&made).unwrap();
            store.open_or_create_file("f").unwrap().append(b"before").unwrap();
            store.close().unwrap();
            let mut child = untorn_testkit::again!("where_attributes_are_forbidden_the_message_says_so");
            let status = child.env(PLACE, dir.path()).env("UNTORN_TEST_ERRNO", errno.to_string()).status().unwrap();
            assert!(status.success(), "{status}");
        }
        return;
    };
    forbid_attributes(std::env::var("UNTORN_TEST_ERRNO").unwrap().parse().unwrap());
    let is_clear = |why: String| assert!(why.contains("seccomp") && why.contains("fsetxattr"), "{why}");
    let new = dir.join("new");
    fs::create_dir(&new).unwrap();
    is_clear(refused(Store::open_or_create(&new), &["unsupported"]).to_string());
    // A store that was made elsewhere: its files can be read, and a commit is refused as a whole.
    let store = Store::open_or_create(dir.join("made")).unwrap();
    let file = store.open_file("f").unwrap();
    file.append(b"x").unwrap();
    is_clear(refused(file.commit(), &["unsupported"]).to_string());
    file.rollback().unwrap();
    drop(file);
    store.close().unwrap();
}

/// The opening reads the journal in parts that reuse one buffer, and leaves the contents of files in it.
#[test]
fn an_opening_does_not_take_as_much_memory_as_there_is_in_the_journal() {
    const COMMITS: u64 = 1500;
    const COMMIT_BYTES: usize = 64 << 10;
    let options = StoreOptions::new().create(true).journal_bytes(512 << 20).background(false);
    let Some(dir) = place() else {
        let dir = directory();
        let phase = || {
            let inner = untorn_testkit::again!("an_opening_does_not_take_as_much_memory_as_there_is_in_the_journal");
            let mut command = Command::new(inner.get_program());
            let output = command.args(inner.get_args()).env(PLACE, dir.path()).output().unwrap();
            assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
            print!("{}", String::from_utf8_lossy(&output.stdout));
        };
        phase();
        phase();
        return;
    };
    let kib_most = || {
        let status = fs::read_to_string("/proc/self/status").unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
        line.trim().trim_end_matches(" kB").parse::<u64>().unwrap()
    };
    let contents = |n: u64| (n as u32).to_le_bytes().repeat(COMMIT_BYTES / 4);
    if !dir.join("f").exists() {
        let store = options.open(&dir).unwrap();
        let file = store.open_or_create_file("f").unwrap();
        for n in 0..COMMITS {
            file.write_all_at(&contents(n), n * COMMIT_BYTES as u64).unwrap();
            file.commit().unwrap();
        }
        // Exits without closing, like a killed process.
        std::process::exit(0);
    }
    let before = kib_most();
    let store = options.open(&dir).unwrap();
    let taken = kib_most() - before;
    println!("{taken} KiB for {} MiB in the journal", (COMMITS * COMMIT_BYTES as u64) >> 20);
    assert_eq!(store.status().recovered.commits, COMMITS + 1, "all of it is in the journal, and the creation");
    assert!(taken < 40 << 10, "{taken} KiB");
    let file = store.open_file("f").unwrap();
    for n in (0..COMMITS).step_by(100) {
        let mut found = vec![0; COMMIT_BYTES];
        file.read_exact_at(&mut found, n * COMMIT_BYTES as u64).unwrap();
        assert!(found == contents(n), "commit {n}");
    }
}
