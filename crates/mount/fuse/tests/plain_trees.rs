//! Import and export, as root and as an ordinary user: the exported tree equals the imported one, and the target name
//! does not exist before everything is there.

mod common;

use common::can_mount;
use common::place::{NOBODY, Place, listing, said};
use fastrand::Rng;
use rustix::fs::{
    AtFlags, CWD, FileType, Mode, Timespec, Timestamps, XattrFlags, lgetxattr, lsetxattr, mknodat, utimensat,
};
use rustix::io::Errno;
use rustix::process::{Pid, Signal, WaitOptions, kill_process, waitpid};
use std::collections::BTreeMap;
use std::fs::{self, File, Permissions};
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, chown, symlink};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::time::{Duration, Instant};
use untorn_testkit::seed;

/// Files of all kinds that the user can make.
fn make_tree(place: &Place, name: &str) -> PathBuf {
    let root = place.at(name);
    let at = |name: &str| root.join(name);
    fs::create_dir_all(at("a/deep/er")).unwrap();
    fs::write(at("a/text"), "some text").unwrap();
    fs::hard_link(at("a/text"), at("a/deep/again")).unwrap();
    fs::write(at("empty"), "").unwrap();
    fs::hard_link(at("empty"), at("empty too")).unwrap();
    let large: Vec<u8> = (0..3_000_000u32).map(|n| (n / 7) as u8).collect();
    fs::write(at("large"), large).unwrap();
    let sparse = File::create(at("sparse")).unwrap();
    sparse.write_all_at(b"in the middle", 20 << 20).unwrap();
    sparse.set_len(50 << 20).unwrap();
    symlink("../nowhere/\u{fc}", at("a/link")).unwrap();
    UnixListener::bind(at("socket")).unwrap();
    mknodat(CWD, at("fifo"), FileType::Fifo, Mode::from_raw_mode(0o640), 0).unwrap();
    fs::write(at("two\nlines \u{1F600}"), "x").unwrap();
    if place.uid == 0 {
        mknodat(CWD, at("char"), FileType::CharacterDevice, Mode::from_raw_mode(0o604), libc::makedev(300, 70000))
            .unwrap();
        mknodat(CWD, at("block"), FileType::BlockDevice, Mode::from_raw_mode(0o600), libc::makedev(7, 1)).unwrap();
        lsetxattr(at("a/link"), "trusted.of_link", b"l", XattrFlags::empty()).unwrap();
    }
    for n in 0..1500 {
        symlink(n.to_string(), at("a/deep/er").join(format!("{n}"))).unwrap();
    }
    place.give(name);
    if place.uid == 0 {
        chown(at("a/text"), Some(1234), Some(5678)).unwrap();
        std::os::unix::fs::lchown(at("a/link"), Some(77), Some(78)).unwrap();
    }
    lsetxattr(at("a/text"), "user.a", b"one", XattrFlags::empty()).unwrap();
    lsetxattr(at("a"), "user.of_directory", b"", XattrFlags::empty()).unwrap();
    fs::set_permissions(at("large"), Permissions::from_mode(0o6751)).unwrap();
    fs::set_permissions(at("a/deep"), Permissions::from_mode(0o3755)).unwrap();
    fs::set_permissions(at("a/deep/er"), Permissions::from_mode(0o500)).unwrap();
    for (n, name) in ["a/deep/er", "a/deep", "a/link", "a", "large", "fifo", ""].iter().enumerate() {
        let time = |seconds| Timespec { tv_sec: seconds, tv_nsec: 123_456_789 };
        let times = Timestamps { last_access: time(n as i64 - 3), last_modification: time(1_000_000_000 + n as i64) };
        utimensat(CWD, at(name), &times, AtFlags::SYMLINK_NOFOLLOW).unwrap();
    }
    root
}

fn same(expected: &BTreeMap<PathBuf, String>, found: &BTreeMap<PathBuf, String>) {
    assert_eq!(expected.keys().collect::<Vec<_>>(), found.keys().collect::<Vec<_>>());
    for (name, line) in expected {
        assert_eq!(line, &found[name], "{}", name.display());
    }
}

#[test]
fn what_comes_out_is_what_went_in() {
    for place in Place::all() {
        let tree = make_tree(&place, "tree");
        let output = place.done(&["import", "tree", "store"]);
        assert!(said(&output).is_empty(), "{}", said(&output));
        let expected = listing(&tree);
        place.done(&["export", "store", "copy"]);
        same(&expected, &listing(&place.at("copy")));
        let fifo = |tree: &str| place.at(tree).join("fifo").metadata().unwrap();
        assert_eq!((fifo("copy").atime(), fifo("copy").atime_nsec()), (fifo("tree").atime(), 123_456_789));
        let blocks = place.at("copy/sparse").metadata().unwrap().blocks();
        assert!(blocks < 2048, "holes stay: {blocks}");
        // A copy of a copy, into an existing empty directory.
        fs::create_dir(place.at("second")).unwrap();
        place.give("second");
        place.done(&["import", "copy", "second"]);
        place.done(&["export", "second", "third"]);
        same(&expected, &listing(&place.at("third")));
        assert_eq!(place.left(&["tree", "store", "copy", "second", "third"]), [""; 0], "nothing is left over");
    }
}

#[test]
fn an_import_is_mounted_and_a_mount_is_exported() {
    if !can_mount() {
        return;
    }
    let place = Place::of(0);
    let tree = make_tree(&place, "tree");
    place.done(&["import", "tree", "store"]);
    let expected = listing(&tree);
    fs::create_dir(place.at("mnt")).unwrap();
    place.done(&["store", "mnt"]);
    let mounted = listing(&place.at("mnt"));
    place.refused(&["export", "store", "copy"], "is mounted; unmount it first");
    fs::write(place.at("mnt/new"), "new").unwrap();
    fs::remove_file(place.at("mnt/large")).unwrap();
    fs::rename(place.at("mnt/a/text"), place.at("mnt/text")).unwrap();
    fs::write(place.at("mnt/sparse"), "short").unwrap();
    let changed = listing(&place.at("mnt"));
    place.done(&["umount", "mnt"]);
    same(&expected, &mounted);
    place.done(&["export", "store", "copy"]);
    same(&changed, &listing(&place.at("copy")));
}

#[test]
fn what_will_not_do_is_refused_and_nothing_is_made() {
    for place in Place::all() {
        fs::create_dir_all(place.at("tree/below")).unwrap();
        fs::write(place.at("tree/file"), "x").unwrap();
        place.give("tree");
        place.done(&["import", "tree", "store"]);
        place.refused(&["import", "tree", "store"], "is not empty; give a new or an empty directory");
        place.refused(&["export", "store", "tree"], "is not empty; give a new or an empty directory");
        place.refused(&["import", "tree", "tree/below"], "one contains the other");
        place.refused(&["import", "tree", "tree/file"], "is not a directory");
        place.refused(&["import", "store", "new"], "is a store");
        place.refused(&["import", "none", "new"], "No such file or directory");
        place.refused(&["import", "tree/file", "new"], "Not a directory");
        place.refused(&["import", "tree", "none/new"], "No such file or directory");
        place.refused(&["export", "none", "new"], "No such file or directory");
        place.refused(&["export", "tree", "new"], "there is no store");
        place.refused(&["export", "tree/below", "new"], "there is no store");
        symlink("tree", place.at("link")).unwrap();
        place.refused(&["import", "tree", "link"], "is not a directory");
        fs::remove_file(place.at("link")).unwrap();
        if place.uid != 0 {
            fs::set_permissions(place.at("tree/file"), Permissions::from_mode(0o0)).unwrap();
            place.refused(&["import", "tree", "new"], "cannot import tree/file: Permission denied");
            let one_thread = ["prlimit", "--nproc=1", "--"];
            let refused = place.command_by(&one_thread, &["import", "tree", "new"]).output().unwrap();
            assert!(refused.status.code() == Some(1) && said(&refused).contains("(ulimit -u)"), "{}", said(&refused));
        }
        assert_eq!(place.left(&["tree", "store"]), [""; 0], "as {}", place.uid);
        assert!(fs::read_dir(place.at("tree/below")).unwrap().next().is_none());
    }
}

/// Rights that only root can give are left out, and the output says so.
#[test]
fn a_user_exports_what_is_of_others_as_his_own() {
    let places = Place::all();
    let Some(place) = places.iter().find(|place| place.uid == NOBODY) else { return };
    fs::create_dir(place.at("tree")).unwrap();
    fs::write(place.at("tree/program"), "#!").unwrap();
    fs::set_permissions(place.at("tree/program"), Permissions::from_mode(0o6755)).unwrap();
    lsetxattr(place.at("tree/program"), "trusted.t", b"1", XattrFlags::empty()).unwrap();
    let import = Command::new(place.at("program")).args(["import", "tree", "store"]).current_dir(place.at("")).output();
    assert!(import.unwrap().status.success());
    place.give("store");
    let output = place.done(&["export", "store", "copy"]);
    assert!(
        said(&output).contains("owners and groups are left out") && said(&output).contains("attributes of the system")
    );
    let about = place.at("copy/program").metadata().unwrap();
    assert_eq!((about.uid(), about.mode() & 0o7777), (NOBODY, 0o755));
    mknodat(CWD, place.at("tree/null"), FileType::CharacterDevice, Mode::RUSR, libc::makedev(1, 3)).unwrap();
    let import = Command::new(place.at("program")).args(["import", "tree", "other"]).current_dir(place.at("")).output();
    assert!(import.unwrap().status.success());
    place.give("other");
    place.refused(&["export", "other", "new"], "do this as root");
    assert_eq!(place.left(&["tree", "store", "copy", "other"]), [""; 0]);
}

/// All names that a directory refuses are reported together, and each can be left out; on an ejection it is lost.
#[test]
fn what_is_not_taken_is_told_and_may_be_left_out() {
    let places = Place::all();
    let Some(place) = places.iter().find(|place| place.uid == NOBODY) else { return };
    fs::create_dir_all(place.at("tree/dir")).unwrap();
    fs::write(place.at("tree/dir/file"), "text").unwrap();
    place.give("tree");
    for name in ["tree/null", "tree/dir/zero"] {
        mknodat(CWD, place.at(name), FileType::CharacterDevice, Mode::RUSR, libc::makedev(1, 3)).unwrap();
        chown(place.at(name), Some(NOBODY), Some(NOBODY)).unwrap();
    }
    place.done(&["import", "tree", "store"]);
    for command in [&["export", "store", "copy"][..], &["eject", "--yes", "store"]] {
        let output = place.run(command);
        let told = said(&output);
        assert!(!output.status.success() && told.contains("2 names cannot be copied"), "{told}");
        assert!(told.contains("cannot export null: it is a device") && told.contains("dir/zero: it is"), "{told}");
        let with = |skips: &[&'static str]| [&command[..1], skips, &command[1..]].concat();
        place.refused(&with(&["--skip", "null"]), "dir/zero");
        place.refused(&with(&["--skip", "dir", "--skip", "null", "--skip", "zero"]), "there is no zero to skip");
        assert_eq!(place.left(&["tree", "store", "copy"]), [""; 0]);
        place.done(&with(&["--skip", "null", "--skip", "dir/zero"]));
        let made = place.at(command[command.len() - 1]);
        assert_eq!(fs::read_to_string(made.join("dir/file")).unwrap(), "text");
        assert!(!made.join("null").exists() && !made.join("dir/zero").exists());
    }
    assert_eq!(place.left(&["tree", "store", "copy"]), [""; 0]);
}

#[test]
fn access_lists_come_and_go() {
    for place in Place::all() {
        fs::create_dir(place.at("tree")).unwrap();
        fs::write(place.at("tree/file"), "x").unwrap();
        place.give("tree");
        let entry = |tag: u16, rights: u16, id: u32| {
            [&tag.to_le_bytes()[..], &rights.to_le_bytes(), &id.to_le_bytes()].concat()
        };
        let all = [(1, 6, u32::MAX), (2, 7, 1000), (4, 4, u32::MAX), (16, 7, u32::MAX), (32, 0, u32::MAX)];
        let list: Vec<u8> =
            2u32.to_le_bytes().into_iter().chain(all.into_iter().flat_map(|(t, r, i)| entry(t, r, i))).collect();
        if lsetxattr(place.at("tree/file"), "system.posix_acl_access", &list, XattrFlags::empty()).is_err() {
            eprintln!("skipped: no access lists here");
            return;
        }
        assert_eq!(place.at("tree/file").metadata().unwrap().mode() & 0o777, 0o670, "the mask");
        lsetxattr(place.at("tree"), "system.posix_acl_default", &list, XattrFlags::empty()).unwrap();
        place.done(&["import", "tree", "store"]);
        place.done(&["export", "store", "copy"]);
        assert_eq!(place.at("copy/file").metadata().unwrap().mode() & 0o777, 0o670);
        for (name, of) in [("access", "copy/file"), ("default", "copy")] {
            let mut value = [0; 64];
            let len = lgetxattr(place.at(of), format!("system.posix_acl_{name}"), &mut value).unwrap();
            assert_eq!(value[..len], list, "{of}");
        }
        assert_eq!(
            lgetxattr(place.at("copy/file"), "system.posix_acl_default", &mut [0u8; 64]).unwrap_err(),
            Errno::NODATA
        );
    }
}

fn child_pid(child: &Child) -> Pid {
    Pid::from_child(child)
}

/// Starts a command, and stops it as soon as it has begun; `None` if it was done by then.
fn stopped(place: &Place, arguments: &[&str], unfinished: &str, then: usize) -> Option<Child> {
    let mut child = place.command(arguments).spawn().unwrap();
    let begun = |path: &Path| fs::read_dir(path).is_ok_and(|entries| entries.count() >= then);
    while !begun(&place.at(unfinished)) {
        if child.try_wait().unwrap().is_some() {
            return None;
        }
    }
    kill_process(child_pid(&child), Signal::STOP).unwrap();
    let status = waitpid(Some(child_pid(&child)), WaitOptions::UNTRACED).unwrap().unwrap().1;
    status.stopped().then_some(child)
}

/// Stops an import and an export when a part was made, and then kills or interrupts them.
#[test]
fn killed_or_interrupted_there_is_nothing_under_the_name() {
    for place in Place::all() {
        let tree = place.at("tree");
        fs::create_dir(&tree).unwrap();
        let mut files = 0;
        let mut more = || {
            (files..files + 1000).for_each(|n| fs::write(tree.join(n.to_string()), vec![7; 5000]).unwrap());
            files += 1000;
            place.give("tree");
        };
        more();
        for (command, from) in [("import", "tree"), ("export", "whole")] {
            let words = [command, from, "new"];
            if command == "export" {
                place.done(&["import", "tree", "whole"]);
            }
            for signal in [Signal::INT, Signal::KILL] {
                let mut child = loop {
                    match stopped(&place, &words, ".new.untorn-unfinished", 1) {
                        Some(child) if !place.at("new").exists() => break child,
                        done => {
                            // The command was faster than this test.
                            if let Some(child) = done {
                                kill_process(child_pid(&child), Signal::CONT).unwrap();
                                child.wait_with_output().unwrap();
                            }
                            fs::remove_dir_all(place.at("new")).unwrap();
                            more();
                            if command == "export" {
                                fs::remove_dir_all(place.at("whole")).unwrap();
                                place.done(&["import", "tree", "whole"]);
                            }
                        }
                    }
                };
                place.refused(&words, "another process is making");
                kill_process(child_pid(&child), signal).unwrap();
                kill_process(child_pid(&child), Signal::CONT).unwrap();
                let status = child.wait().unwrap();
                let known: &[&str] = match signal {
                    Signal::KILL => &["tree", "whole", ".new.untorn-unfinished"],
                    _ => &["tree", "whole"],
                };
                if signal != Signal::KILL {
                    assert_eq!(status.code(), Some(130), "as {}: {command} {signal:?}", place.uid);
                }
                assert_eq!(place.left(known), [""; 0], "as {}: {command} {signal:?}", place.uid);
            }
            // The rest that the killed command left is removed.
            place.done(&words);
            assert_eq!(place.left(&["tree", "whole", "new"]), [""; 0]);
            if command == "export" {
                let names = |path: &str| fs::read_dir(place.at(path)).unwrap().count();
                assert_eq!(names("new"), names("tree"));
            }
            fs::remove_dir_all(place.at("new")).unwrap();
        }
    }
}

#[test]
fn a_full_disk_is_told_and_nothing_is_left() {
    if !rustix::process::geteuid().is_root() {
        eprintln!("skipped: needs root");
        return;
    }
    let place = Place::of(0);
    fs::create_dir_all(place.at("disk")).unwrap();
    let mounted =
        Command::new("mount").args(["-t", "tmpfs", "-o", "size=24m", "untorn-test"]).arg(place.at("disk")).status();
    if !mounted.unwrap().success() {
        eprintln!("skipped: cannot mount a tmpfs");
        return;
    }
    fs::create_dir(place.at("tree")).unwrap();
    for n in 0..12 {
        fs::write(place.at("tree").join(n.to_string()), vec![n; 4 << 20]).unwrap();
    }
    let left = || fs::read_dir(place.at("disk")).unwrap().count();
    place.refused(&["import", "tree", "disk/store"], "No space left on device");
    let after_import = left();
    place.done(&["import", "tree", "store"]);
    place.refused(&["export", "store", "disk/copy"], "No space left on device");
    let after_export = left();
    for n in 0..9 {
        fs::remove_file(place.at("tree").join(n.to_string())).unwrap();
    }
    place.done(&["import", "tree", "disk/store"]);
    // Another file takes the room.
    fs::write(place.at("disk/other"), vec![1; 6 << 20]).unwrap();
    place.refused(&["eject", "-y", "disk/store"], "No space left on device");
    let after_eject = left();
    place.sound("disk/store");
    assert!(Command::new("umount").arg(place.at("disk")).status().unwrap().success());
    assert_eq!((after_import, after_export, after_eject), (0, 0, 2));
}

#[test]
fn an_ejected_store_is_a_plain_tree_in_its_place() {
    for place in Place::all() {
        let tree = make_tree(&place, "tree");
        place.done(&["import", "tree", "store"]);
        let expected = listing(&tree);
        let output = place.done(&["eject", "--yes", "store"]);
        assert!(String::from_utf8_lossy(&output.stdout).contains("nothing of Untorn's is left"));
        same(&expected, &listing(&place.at("store")));
        assert_eq!(place.left(&["tree", "store"]), [""; 0], "nothing is left over");
        place.refused(&["eject", "--yes", "store"], "there is no store in");
        place.refused(&["eject", "--yes", "nowhere"], "there is no store in");
    }
}

/// Files that somebody has put into a store's directory, perhaps another store, are not removed with the store.
#[test]
fn a_store_with_something_else_in_it_is_not_ejected() {
    for place in Place::all() {
        fs::create_dir(place.at("tree")).unwrap();
        fs::write(place.at("tree/large"), vec![1; 100_000]).unwrap();
        place.give("tree");
        place.done(&["import", "tree", "store"]);
        for to in ["store/in", "store/obj/in", "store/.untorn/in"] {
            place.refused(&["import", "tree", to], "lies in the store");
        }
        place.done(&["import", "tree", "in"]);
        fs::write(place.at("file"), "precious").unwrap();
        for (from, to) in
            [("in", "store/in"), ("in", "store/obj/0/in"), ("file", "store/README"), ("file", "store/.untorn/f")]
        {
            fs::rename(place.at(from), place.at(to)).unwrap();
            let name = to.strip_prefix("store/").unwrap();
            let words = format!("has files that do not belong to a store: {name}; move them out");
            place.refused(&["eject", "--yes", "store"], &words);
            assert_eq!(place.left(&["tree", "store", "in", "file"]), [""; 0]);
            place.done(&["check", "store"]);
            fs::rename(place.at(to), place.at(from)).unwrap();
        }
        // A killed `eject` has left the store beside the tree, and somebody has put a file into it.
        fs::rename(place.at("store"), place.at(".plain.untorn-unfinished")).unwrap();
        fs::create_dir(place.at("plain")).unwrap();
        fs::rename(place.at("in"), place.at(".plain.untorn-unfinished/in")).unwrap();
        place.refused(&["eject", "--yes", "plain"], "has files that do not belong to a store: in");
        fs::rename(place.at(".plain.untorn-unfinished/in"), place.at("in")).unwrap();
        place.done(&["check", ".plain.untorn-unfinished"]);
        place.done(&["eject", "--yes", "plain"]);
        assert_eq!(place.left(&["tree", "plain", "in", "file"]), [""; 0]);
        place.done(&["eject", "--yes", "in"]);
        assert_eq!(fs::read(place.at("in/large")).unwrap().len(), 100_000);
    }
}

#[test]
fn a_store_that_cannot_be_written_to_is_told() {
    if !rustix::process::geteuid().is_root() {
        eprintln!("skipped: needs root");
        return;
    }
    let place = Place::of(0);
    fs::create_dir_all(place.at("disk")).unwrap();
    let mount =
        |arguments: &[&str]| Command::new("mount").args(arguments).arg(place.at("disk")).status().unwrap().success();
    if !mount(&["-t", "tmpfs", "untorn-test"]) {
        eprintln!("skipped: cannot mount a tmpfs");
        return;
    }
    fs::create_dir(place.at("tree")).unwrap();
    place.done(&["import", "tree", "disk/store"]);
    assert!(mount(&["-o", "remount,ro"]));
    let outputs = [&["export", "disk/store", "copy"][..], &["eject", "-y", "disk/store"]].map(|words| place.run(words));
    assert!(Command::new("umount").arg(place.at("disk")).status().unwrap().success());
    outputs.iter().for_each(|output| assert!(said(output).contains("copy the store elsewhere"), "{}", said(output)));
}

/// Files that a user's copy would leave out are not removed with the store.
#[test]
fn a_user_cannot_eject_what_is_of_others() {
    if !rustix::process::geteuid().is_root() {
        eprintln!("skipped: needs root");
        return;
    }
    let place = Place::of(0);
    make_tree(&place, "tree");
    fs::remove_file(place.at("tree/char")).unwrap();
    fs::remove_file(place.at("tree/block")).unwrap();
    place.done(&["import", "tree", "store"]);
    let user = Place { uid: NOBODY, ..place };
    user.give("store");
    user.give("");
    user.refused(&["eject", "--yes", "store"], "would be lost");
    assert_eq!(user.left(&["tree", "store"]), [""; 0]);
    user.done(&["check", "store"]);
}

/// After a kill at any moment there is the store or the complete tree, and running the command again completes the
/// work.
#[test]
fn a_killed_ejection_leaves_the_store_or_the_tree() {
    let mut random = Rng::with_seed(seed());
    for place in Place::all() {
        let tree = place.at("tree");
        fs::create_dir(&tree).unwrap();
        (0..200).for_each(|n| fs::write(tree.join(n.to_string()), vec![7; 100 * n]).unwrap());
        place.give("tree");
        let expected = listing(&tree);
        place.done(&["import", "tree", "kept"]);
        let (mut kills, mut stores, mut middle, mut longest) = (0, 0, 0, 0);
        for n in 0..60 {
            // In the middle, the tree has no place yet, or the store is not removed.
            if n >= 12 && middle > 0 {
                break;
            }
            let copied = Command::new("cp").arg("-a").args([place.at("kept"), place.at("store")]).status().unwrap();
            assert!(copied.success());
            let started = Instant::now();
            let mut child = place.command(&["eject", "--yes", "store"]).spawn().unwrap();
            if n > 0 {
                std::thread::sleep(Duration::from_micros(random.u64(..longest)));
                kill_process(child_pid(&child), Signal::KILL).unwrap();
            }
            kills += usize::from(!child.wait().unwrap().success());
            middle += usize::from(place.at(".store.untorn-unfinished").exists());
            if n == 0 {
                longest = started.elapsed().as_micros() as u64;
            }
            if place.at("store/.untorn").exists() {
                stores += 1;
                place.sound("store");
            } else {
                same(&expected, &listing(&place.at("store")));
            }
            let again = place.run(&["eject", "--yes", "store"]);
            assert!(again.status.success() || said(&again).contains("there is no store"), "{}", said(&again));
            same(&expected, &listing(&place.at("store")));
            assert_eq!(place.left(&["tree", "store", "kept"]), [""; 0]);
            fs::remove_dir_all(place.at("store")).unwrap();
        }
        println!("as {}: {kills} kills, {middle} in the middle; {stores} were stores still", place.uid);
        assert!(middle > 0, "no kill came in the middle");
    }
}
