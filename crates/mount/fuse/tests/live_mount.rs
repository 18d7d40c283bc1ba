//! `status` and `check` of a mount that programs use, of a dead mount, and of a damaged store.

mod common;

use common::can_mount;
use common::place::{Place, said};
use rustix::process::{Pid, Signal, kill_process};
use std::fs::{self, File, OpenOptions};
use std::io::{BufRead, BufReader, Read};
use std::os::unix::fs::FileExt;
use std::process::Stdio;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::time::{Duration, Instant};
use untorn::on_mount::Transaction;
use untorn_mount::fuse::kernel;

struct Mount(Place);

impl Mount {
    fn new(options: &[&str]) -> Option<Mount> {
        if !can_mount() {
            return None;
        }
        let place = Place::of(0);
        fs::create_dir(place.at("mnt")).unwrap();
        place.done(&[options, &["store", "mnt"]].concat());
        Some(Mount(place))
    }

    /// Output and exit code of a command.
    fn says(&self, arguments: &[&str]) -> (i32, String) {
        let output = self.0.run(arguments);
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        (output.status.code().unwrap(), if text.is_empty() { said(&output) } else { text })
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        let _ = self.0.run(&["umount", "mnt"]);
        while untorn_mount::mounts::mount_point::mounted_at(&self.0.at("mnt")).unwrap().is_some() {
            let _ = untorn_mount::mounts::mount_point::detach(&self.0.at("mnt"));
        }
    }
}

fn has(text: &str, words: &[&str]) {
    words.iter().for_each(|word| assert!(text.contains(word), "{word} is not in:\n{text}"));
}

#[test]
fn a_live_mount_says_how_it_is_and_is_checked_while_programs_go_on() {
    let Some(mount) = Mount::new(&["--commit=close"]) else { return };
    let place = &mount.0;
    fs::create_dir(place.at("mnt/d")).unwrap();
    let file = File::create(place.at("mnt/d/f")).unwrap();
    file.write_all_at(b"some", 0).unwrap();
    file.sync_all().unwrap();
    let txn = Transaction::begin(&file).unwrap();
    file.write_all_at(b"more", 0).unwrap();
    for path in ["mnt", "mnt/d"] {
        let (code, text) = mount.says(&["status", path]);
        assert_eq!(code, 0, "{text}");
        has(&text, &["/mnt\n", "/store\n", "supervisor: process", "--commit=close", "1 file is open", "1 transaction"]);
        has(&text, &["user 0", "in order"]);
        let (code, text) = mount.says(&["status", path, "--json"]);
        assert_eq!(code, 0, "{text}");
        has(&text, &["\"serving\": true", "\"mode\": \"close\"", "\"transactions\": 1", "\"poisoned\": 0"]);
    }
    // Checks log and names as of the last commit, on a mount that commits all the time.
    let other = File::create(place.at("mnt/other")).unwrap();
    other.sync_all().unwrap();
    let stop = AtomicBool::new(false);
    let checks = std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut n = 0;
            while !stop.load(SeqCst) {
                n += 1;
                other.write_all_at(&[n as u8; 5000], n % 50 * 4096).unwrap();
                other.sync_all().unwrap();
            }
        });
        let checks = ["mnt", "mnt/d", "store"].map(|path| mount.says(&["check", path]));
        stop.store(true, SeqCst);
        checks
    });
    for (code, text) in checks {
        assert_eq!(code, 0, "{text}");
        has(&text, &["2 files", "2 directories", "sound"]);
    }
    txn.abort().unwrap();
    // For another directory, `status` looks for sessions.
    let (code, text) = mount.says(&["status", "store"]);
    assert_eq!(code, 0, "{text}");
    has(&text, &["no session"]);
}

#[test]
fn a_dead_mount_says_so_and_its_store_is_checked() {
    let Some(mount) = Mount::new(&["--no-supervisor"]) else { return };
    fs::write(mount.0.at("mnt/f"), "x").unwrap();
    File::open(mount.0.at("mnt/f")).unwrap().sync_all().unwrap();
    let (_, text) = mount.says(&["status", "mnt", "--json"]);
    let daemon = text.lines().find_map(|line| line.trim().strip_prefix("\"daemon\": ")).unwrap();
    let daemon = daemon.trim_end_matches(',').parse().unwrap();
    kill_process(Pid::from_raw(daemon).unwrap(), Signal::KILL).unwrap();
    let started = Instant::now();
    while !untorn_mount::mounts::mount_point::is_dead(&mount.0.at("mnt")) {
        assert!(started.elapsed() < Duration::from_secs(120));
        std::thread::sleep(Duration::from_millis(5));
    }
    let (code, text) = mount.says(&["status", "mnt"]);
    assert_eq!(code, 1, "{text}");
    has(&text, &["dead", "untorn mount "]);
    for path in ["mnt", "store"] {
        // No process has the store open, and none has closed it.
        let (code, text) = mount.says(&["check", path]);
        assert_eq!(code, 1, "{text}");
        has(&text, &["1 file", "sound, but not closed"]);
    }
}

#[test]
fn a_damaged_tree_is_not_sound() {
    let place = Place::of(rustix::process::geteuid().as_raw());
    fs::create_dir_all(place.at("tree/d")).unwrap();
    // Two small files, and one that has an object.
    for (called, len) in [("f", 4), ("g", 70_000), ("h", 100)] {
        fs::write(place.at("tree/d").join(called), vec![b'x'; len]).unwrap();
    }
    place.give("tree");
    let anew = || {
        let _ = fs::remove_dir_all(place.at("store"));
        place.done(&["import", "tree", "store"]);
        place.done(&["check", "store"]);
    };
    let table = || OpenOptions::new().read(true).write(true).open(place.at("store/table")).unwrap();
    let found = |words: &str| {
        let output = place.run(&["check", "store"]);
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        assert_eq!(output.status.code(), Some(1), "{text}{}", said(&output));
        has(&text, &[words, "not sound"]);
    };
    anew();
    let objects = fs::read_dir(place.at("store/obj/0")).unwrap();
    objects.for_each(|object| fs::remove_file(object.unwrap().path()).unwrap());
    found("the contents of d/g (inode 4) are missing: obj/0/4");
    anew();
    fs::write(place.at("store/obj/0/4"), vec![b'x'; 70_001]).unwrap();
    found("d/g (inode 4) has 70000 bytes, but its contents have 70001");
    anew();
    OpenOptions::new().write(true).open(place.at("store/pack")).unwrap().set_len(3).unwrap();
    found("the contents of d/f (inode 3) are missing: pack, byte 0");
    // Replaces inode numbers in rows by others.
    let rows = || {
        let (mut bytes, mut at, mut rows) = (fs::read(place.at("store/table")).unwrap(), 64, Vec::new());
        while at < bytes.len() {
            rows.push((at as u64, bytes[at + 1], u64::from_le_bytes(bytes[at + 8..at + 16].try_into().unwrap())));
            at += 64 << bytes[at];
        }
        bytes.clear();
        rows
    };
    for (sort, of, offset, value, words) in [
        (1, 2, 8, 99, "names no inode"),
        (1, 2, 8 + 14, 9, "has a link count of"),
        (2, 2, 8, 99, "which is no directory"),
        (2, 1, 8 + 16, 99, "cannot be reached from the root"),
        (1, 3, 8 + 30, 3, "d/f (inode 3) has 3 bytes, but its contents have 4"),
        (1, 5, 8 + 74, 0, "the contents of d/f (inode 3) and of d/h (inode 5) overlap"),
        (1, 5, 8 + 74, 64, "no row of a tree at byte"),
    ] {
        anew();
        let (at, ..) = rows().into_iter().find(|row| row.1 == sort && row.2 == of).unwrap();
        table().write_all_at(&[value], at + offset).unwrap();
        found(words);
    }
    anew();
    table().write_all_at(b"x", 0).unwrap();
    found("no row of a tree at byte 0");
    let output = place.run(&["check", "store"]);
    assert!(!String::from_utf8_lossy(&output.stdout).contains("0 files"), "nothing is said of what was not looked at");
    table().set_len(0).unwrap();
    found("no row of a tree at byte 0");
    fs::remove_file(place.at("store/table")).unwrap();
    found("the file is missing");
    place.refused(&["export", "store", "copy"], "table is damaged: the file is missing");
    anew();
    table().write_all_at(b"untorn tree   9\n", 0).unwrap();
    place.refused_with(2, &["check", "store"], "format version 9; this Untorn reads up to 2");
    place.refused(&["export", "store", "copy"], "format version 9; this Untorn reads up to 2");
}

/// The process that serves a mount.
fn daemon(mount: &Mount) -> Pid {
    let (_, text) = mount.says(&["status", "--json", "mnt"]);
    let number = text.split_once("\"daemon\":").and_then(|(_, rest)| rest.split([',', '\n']).next());
    number.and_then(|number| Pid::from_raw(number.trim().parse().ok()?)).expect(&text)
}

#[test]
fn a_daemon_that_is_stopped_is_told_of_as_such() {
    let Some(mount) = Mount::new(&[]) else { return };
    fs::create_dir(mount.0.at("mnt/d")).unwrap();
    let daemon = daemon(&mount);
    kill_process(daemon, Signal::STOP).unwrap();
    let (code, text) = mount.says(&["status", "mnt"]);
    let (json_code, json) = mount.says(&["status", "--json", "mnt/d"]);
    fs::create_dir(mount.0.at("other")).unwrap();
    let refused = [
        (&["sync", "mnt"][..], "nothing of mnt is committed now: its daemon does not answer"),
        (&["sync", "mnt/d/f", "mnt/d"], "nothing of mnt/d/f is committed now: its daemon does not answer"),
        (&["umount", "mnt"], "/mnt stays mounted: its daemon does not answer"),
        (&["store", "mnt"], "/store, and its daemon does not answer"),
        (&["store", "other"], "/mnt; use it there, or unmount it first"),
        (&["export", "store", "copy"], "is mounted"),
        (&["check", "mnt"], "sound"),
    ]
    .map(|(arguments, words)| (mount.says(arguments), words));
    kill_process(daemon, Signal::CONT).unwrap();
    for ((code, text), words) in refused {
        assert_eq!(code, i32::from(words != "sound"), "{text}");
        has(&text, &[words]);
    }
    has(&text, &["does not answer", "SIGCONT"]);
    has(&json, &["\"hangs\": true", "\"serving\": false"]);
    assert_eq!((code, json_code), (1, 1));
    let (code, text) = mount.says(&["status", "mnt"]);
    assert_eq!(code, 0, "{text}");
}

/// If the command is killed, or ended by a signal, while it waits for the store, nothing is mounted later.
#[test]
fn a_mount_that_still_waits_ends_with_its_command() {
    if !can_mount() {
        return;
    }
    for (options, signal) in [
        (&[][..], Signal::KILL),
        (&["--no-supervisor"], Signal::KILL),
        (&[], Signal::TERM),
        (&["--foreground"], Signal::TERM),
    ] {
        let place = Place::of(0);
        fs::create_dir(place.at("mnt")).unwrap();
        let mount = Mount(place);
        let place = &mount.0;
        place.done(&["store", "mnt"]);
        place.done(&["umount", "mnt"]);
        // Nothing is mounted, so the command takes the owner of the store for a daemon that is closing it.
        let store = untorn_tree::StoreTree::store_options().open(place.at("store")).unwrap();
        let mut command = place.command(&[options, &["store", "mnt"]].concat());
        let mut child = command.stdout(Stdio::null()).spawn().unwrap();
        let mut errors = BufReader::new(child.stderr.take().unwrap());
        let mut line = String::new();
        errors.read_line(&mut line).unwrap();
        has(&line, &["waiting until the last daemon of"]);
        kill_process(Pid::from_child(&child), signal).unwrap();
        let status = child.wait().unwrap();
        // All processes of the mount have ended.
        let mut text = String::new();
        errors.read_to_string(&mut text).unwrap();
        assert!(!text.contains("in use"), "{options:?}: it has waited to the end: {text}");
        if options == ["--foreground"] {
            assert_eq!(status.code(), Some(128 + libc::SIGTERM), "{text}");
            has(&text, &["ended before anything was mounted"]);
        }
        store.close().unwrap();
        assert_eq!(untorn_mount::mounts::mount_point::mounted_at(&place.at("mnt")).unwrap(), None);
    }
}

#[test]
fn it_is_said_where_sync_commits_nothing() {
    for (options, commits) in [(&[][..], false), (&["--commit=write"], true), (&["-o", "sync_commits"], true)] {
        let can_sync = kernel::passes_on_sync() && std::path::Path::new("/dev/loop-control").exists();
        if !can_mount() || options.contains(&"sync_commits") && !can_sync {
            eprintln!("skipped: needs root, and loop devices and Linux 6.18");
            continue;
        }
        let place = Place::of(0);
        fs::create_dir(place.at("mnt")).unwrap();
        let output = place.done(&[options, &["store", "mnt"]].concat());
        let mount = Mount(place);
        let at_mount = String::from_utf8_lossy(&output.stdout).into_owned();
        let (_, status) = mount.says(&["status", "mnt"]);
        let tells = |text: &str| text.contains("`untorn sync ");
        assert_eq!((tells(&at_mount), tells(&status)), (!commits, !commits), "{options:?}: {at_mount}{status}");
        assert_eq!(at_mount.contains("sync_commits"), !commits && kernel::passes_on_sync());
    }
}

/// Stores to a mapping that nobody syncs are handed to the daemon in time, and committed by nothing.
#[test]
fn what_is_written_back_in_time_is_not_committed() {
    let Some(mount) = Mount::new(&["--writeback-after=1", "--commit=fsync"]) else { return };
    let place = &mount.0;
    let file = OpenOptions::new().read(true).write(true).create_new(true).open(place.at("mnt/f")).unwrap();
    file.write_all_at(b"first", 0).unwrap();
    file.sync_all().unwrap();
    file.write_all_at(b"later", 0).unwrap();
    let end = Instant::now() + Duration::from_secs(300);
    let status = loop {
        let (_, text) = mount.says(&["status", "--json", "mnt"]);
        if text.contains("\"uncommitted\": 1") {
            break text;
        }
        assert!(Instant::now() < end, "nothing is written back: {text}");
    };
    has(&status, &["\"uncommitted_seconds\": "]);
    let supervisor = status.split_once("\"supervisor\":").and_then(|(_, rest)| rest.split([',', '\n']).next());
    let supervisor = supervisor.and_then(|number| Pid::from_raw(number.trim().parse().ok()?)).expect(&status);
    kill_process(supervisor, Signal::KILL).unwrap();
    kill_process(daemon(&mount), Signal::KILL).unwrap();
    drop(file);
    place.done(&["store", "mnt"]);
    assert_eq!(fs::read(place.at("mnt/f")).unwrap(), b"first");
}

#[test]
fn the_same_with_the_steps_for_an_older_kernel() {
    common::again_as_on_an_older_kernel("6.12");
}
