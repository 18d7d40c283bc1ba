//! Sessions on a plain directory at the limits of the file system below, as root and as an ordinary user: a full disk,
//! files that the directory refuses, trees deeper than the longest path.

mod common;

use common::place::{Place, said};
use common::{can_mount, device_for_everybody};
use rustix::fs::{Mode, OFlags, mkdirat, openat};
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;
use std::process::{Child, Command};
use std::time::{Duration, Instant};
use untorn_testkit::{Mount, skipped};

/// Root, and an ordinary user, who gets a user namespace.
fn places() -> Vec<Place> {
    if !can_mount() {
        return Vec::new();
    }
    device_for_everybody();
    Place::all()
}

fn tmpfs(place: &Place, name: &str, size: &str) -> Mount {
    fs::create_dir(place.at(name)).unwrap();
    let options = format!("size={size}");
    let mount = Mount::new(&["-t", "tmpfs", "-o", &options, "untorn-test"], &place.at(name)).expect("a mount");
    place.give(name);
    mount
}

/// A file system on a loop device; `None` if it cannot be had here.
fn disk(place: &Place, kind: &str, size: u64) -> Option<Mount> {
    let make = format!("mkfs.{kind}");
    if !rustix::process::geteuid().is_root() || Command::new(&make).arg("-V").output().is_err() {
        skipped(&format!("needs root and {make}"));
        return None;
    }
    let mount = Mount::made(&format!("{make} -q"), size, "", &place.at("disk"))?;
    place.give("disk");
    Some(mount)
}

/// Everything that the program had synced is kept, even if something fails after its end.
#[test]
fn a_disk_that_is_full_at_the_last_commit_loses_nothing_that_was_synced() {
    for place in places() {
        let _disk = tmpfs(&place, "disk", "64m");
        fs::create_dir(place.at("disk/tree")).unwrap();
        fs::write(place.at("disk/tree/old"), "old\n").unwrap();
        place.give("disk/tree");
        let fills =
            "dd if=/dev/zero of=../filler bs=64k 2> /dev/null; dd if=/dev/zero of=../filler2 bs=4k 2> /dev/null";
        // The commit at the end finds no room.
        let script = format!(
            "cd disk/tree; echo synced > new; sync new; echo more >> old; sync old
            head -c 3000000 /dev/urandom > unsynced; {fills}; echo unsynced >> old; exit 3"
        );
        let output = place.run(&["run", "--on", "disk/tree", "--", "sh", "-c", &script]);
        let text = said(&output);
        assert_eq!(output.status.code(), Some(125), "as {}: {text}", place.uid);
        assert!(text.contains("No space left"), "{text}");
        assert!(text.contains("the program ended with exit code 3") && text.contains("untorn recover"), "{text}");
        assert!(text.contains(".tree.untorn-run/store"), "{text}");
        assert_eq!(fs::read_to_string(place.at("disk/tree/old")).unwrap(), "old\n");
        assert_eq!(place.run(&["status", "disk/tree"]).status.code(), Some(1), "it is told that a session was left");
        for name in ["disk/filler", "disk/filler2"] {
            fs::remove_file(place.at(name)).unwrap();
        }
        place.done(&["recover", "disk/tree"]);
        assert_eq!(fs::read_to_string(place.at("disk/tree/old")).unwrap(), "old\nmore\n");
        assert_eq!(fs::read_to_string(place.at("disk/tree/new")).unwrap(), "synced\n");
        assert!(!place.at("disk/.tree.untorn-run").exists());
    }
}

/// Starts a program that shows by a file outside the directory that it has begun, and ends when another such file is
/// made.
fn begun(place: &Place, script: &str) -> Child {
    let script = format!("cd tree; {script}; > ../begun; while ! [ -e ../go ]; do sleep 0.01; done");
    let child = place.command(&["run", "--on", "tree", "--", "sh", "-c", &script]).spawn().unwrap();
    let started = Instant::now();
    while !place.at("begun").exists() {
        assert!(started.elapsed() < Duration::from_secs(60), "it never began");
        std::thread::sleep(Duration::from_millis(1));
    }
    child
}

/// Makes a directory refuse to add or remove names, or allows it again; false if that cannot be done here.
fn close(place: &Place, directory: &str, is_closed: bool) -> bool {
    let flag = if is_closed { "+i" } else { "-i" };
    Command::new("chattr").arg(flag).arg(place.at(directory)).status().is_ok_and(|done| done.success())
}

/// A name that the directory refuses in the end keeps no other back; it is reported, and can be tried again or left
/// out.
#[test]
fn one_name_that_is_refused_keeps_no_other_back() {
    for place in places() {
        let tree = |name: &str| place.at("tree").join(name);
        let text = |name: &str| fs::read_to_string(place.at("tree").join(name)).unwrap_or_default();
        for ends in ["skip", "discard", "again"] {
            fs::create_dir_all(tree("closed")).unwrap();
            for name in ["one", "two", "closed/three", "gone"] {
                fs::write(tree(name), format!("old {name}\n")).unwrap();
            }
            fs::create_dir(tree("was")).unwrap();
            fs::write(tree("was/four"), "four\n").unwrap();
            place.give("tree");
            let script =
                "echo inside > closed/three; mv one closed/moved; echo fine > fine; mkdir closed/new closed/new/er
                mv was closed/is; echo x > closed/new/er/file; rm gone; echo inside >> two";
            let mut child = begun(&place, script);
            if !close(&place, "tree/closed", true) {
                eprintln!("skipped: needs chattr, and the right to close a directory by it");
                fs::write(place.at("go"), "").unwrap();
                child.wait().unwrap();
                return;
            }
            fs::write(place.at("go"), "").unwrap();
            let output = child.wait_with_output().unwrap();
            let told = said(&output);
            assert_eq!(output.status.code(), Some(124), "as {}: {told}", place.uid);
            let check = |told: &str| {
                for name in ["closed/three", "closed/moved", "closed/new", "closed/is"] {
                    assert!(told.contains(&format!("{name}: ")), "as {}: {name}: {told}", place.uid);
                }
                assert!(!told.contains("closed/new/er") && !told.contains("closed/is/four"), "{told}");
                assert!(told.contains("4 names cannot be put back"), "{told}");
                assert_eq!((text("fine"), text("two")), ("fine\n".into(), "old two\ninside\n".into()));
                assert!(!tree("gone").exists());
                // A file without its new name still has the old one.
                assert_eq!((text("one"), text("was/four")), ("old one\n".into(), "four\n".into()));
                assert_eq!(text("closed/three"), "old closed/three\n");
            };
            check(&told);
            let output = place.run(&["recover", "tree"]);
            assert_eq!(output.status.code(), Some(124), "as {}: {}", place.uid, said(&output));
            check(&said(&output));
            place.refused(&["recover", "--skip", "none", "tree"], "there is no none to skip");
            match ends {
                "skip" => {
                    let names = ["closed/three", "./closed/new/", "closed/is", "closed/moved"];
                    let skips = names.iter().flat_map(|name| ["--skip", name]);
                    place.done(&["recover"].into_iter().chain(skips).chain(["tree"]).collect::<Vec<_>>());
                    assert_eq!((text("one"), text("was/four")), ("old one\n".into(), "four\n".into()));
                }
                "discard" => {
                    place.done(&["recover", "--discard", "tree"]);
                    assert_eq!((text("one"), text("was/four")), ("old one\n".into(), "four\n".into()));
                }
                _ => {
                    assert!(close(&place, "tree/closed", false));
                    place.done(&["recover", "--skip", "closed/three", "tree"]);
                    assert_eq!((text("closed/moved"), text("closed/is/four")), ("old one\n".into(), "four\n".into()));
                    assert_eq!(text("closed/new/er/file"), "x\n");
                    assert!(!tree("one").exists() && !tree("was").exists());
                }
            }
            assert_eq!(text("closed/three"), "old closed/three\n");
            assert!(close(&place, "tree/closed", false));
            assert_eq!(place.left(&["tree", "begun", "go"]), [""; 0]);
            for name in ["tree", "begun", "go"] {
                let path = place.at(name);
                if path.is_dir() { fs::remove_dir_all(path).unwrap() } else { fs::remove_file(path).unwrap() }
            }
        }
    }
}

/// The session refuses a change that the directory below would refuse.
#[test]
fn a_session_refuses_what_the_directory_cannot_hold() {
    if Command::new("python3").arg("--version").output().is_err() {
        eprintln!("skipped: needs python3");
        return;
    }
    for place in places() {
        for (kind, size) in [("ext4", 256 << 20), ("xfs", 512 << 20)] {
            let Some(disk) = disk(&place, kind, size) else { continue };
            fs::create_dir(place.at("disk/tree")).unwrap();
            for name in ["fixed", "log", "plain"] {
                fs::write(place.at("disk/tree").join(name), "old\n").unwrap();
            }
            fs::create_dir(place.at("disk/tree/closed")).unwrap();
            fs::write(place.at("disk/tree/closed/within"), "old\n").unwrap();
            place.give("disk/tree");
            let flagged = [("+i", "fixed"), ("+a", "log"), ("+i", "closed")];
            for (flag, name) in flagged {
                let done = Command::new("chattr").arg(flag).arg(place.at("disk/tree").join(name)).status();
                assert!(done.unwrap().success());
            }
            // Each change is made natively and in a session; the results must be equal.
            let script = "
import os, errno
def tried(name, what):
    try:
        what()
        print(name, 'done')
    except OSError as e:
        print(name, errno.errorcode[e.errno])
def made(name, bytes):
    with open(name, 'wb') as f:
        os.ftruncate(f.fileno(), bytes)
    os.unlink(name)
def appended(name):
    with open(name, 'ab') as f:
        f.write(b'x')
open('new', 'w').close()
tried('attribute', lambda: os.setxattr('new', 'user.small', b'x' * 100))
tried('large attribute', lambda: os.setxattr('new', 'user.large', b'x' * 8000))
tried('many attributes', lambda: [os.setxattr('new', 'user.%d' % n, b'x' * 1000) for n in range(8)])
[os.removexattr('new', name) for name in os.listxattr('new')]
tried('20 TB', lambda: made('size', 20 << 40))
tried('1 TB', lambda: made('size', 1 << 40))
tried('link', lambda: os.symlink('x' * 900, 'link'))
tried('long link', lambda: os.symlink('x' * 2000, 'link2'))
if os.path.islink('link2'):
    os.unlink('link2')
tried('fixed', lambda: open('fixed', 'w'))
tried('fixed mode', lambda: os.chmod('fixed', 0o600))
tried('fixed name', lambda: os.rename('fixed', 'other'))
tried('fixed link', lambda: os.link('fixed', 'other'))
tried('fixed gone', lambda: os.unlink('fixed'))
tried('log', lambda: open('log', 'w'))
tried('log gone', lambda: os.unlink('log'))
tried('closed', lambda: open('closed/new', 'w'))
tried('closed gone', lambda: os.unlink('closed/within'))
tried('over', lambda: os.rename('new', 'closed/within'))
tried('append', lambda: appended('plain'))
os.unlink('link')
os.unlink('new')
";
            fs::write(place.at("script"), script).unwrap();
            let mut native = Command::new("setpriv");
            native.args(["--reuid", &place.uid.to_string(), "--regid", &place.uid.to_string(), "--clear-groups"]);
            native.arg("python3").arg(place.at("script")).current_dir(place.at("disk/tree"));
            native.env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin");
            let native = native.output().unwrap();
            assert!(native.status.success(), "{}", said(&native));
            let script = "cd disk/tree && python3 ../../script";
            let output = place.run(&["run", "--on", "disk/tree", "--", "sh", "-c", script]);
            assert!(output.status.success(), "as {}, on {kind}: {}", place.uid, said(&output));
            let [native, session] = [native, output].map(|output| String::from_utf8(output.stdout).unwrap());
            assert_eq!(native, session, "as {}, on {kind}", place.uid);
            assert!(session.contains("fixed EPERM") && session.contains("append done"), "{session}");
            assert_eq!(fs::read_to_string(place.at("disk/tree/plain")).unwrap(), "old\nxx");
            for (flag, name) in flagged {
                let flag = flag.replace('+', "-");
                let done = Command::new("chattr").arg(flag).arg(place.at("disk/tree").join(name)).status();
                assert!(done.unwrap().success());
            }
            drop(disk);
            fs::remove_dir(place.at("disk")).unwrap();
        }
    }
}

/// A user may remove files of others in his own directory, and write to them if their modes allow it, but no more than
/// that.
#[test]
fn files_of_others_are_as_their_modes_say() {
    for place in places().iter().filter(|place| place.uid != 0) {
        if !rustix::process::geteuid().is_root() {
            eprintln!("skipped: needs root");
            return;
        }
        fs::create_dir_all(place.at("tree/dir")).unwrap();
        place.give("tree");
        for (name, mode) in [("gone", 0o644), ("moved", 0o644), ("open", 0o666), ("read", 0o644)] {
            let path = place.at("tree").join(name);
            fs::write(&path, format!("{name}\n")).unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
        }
        fs::write(place.at("tree/group"), "group\n").unwrap();
        std::os::unix::fs::chown(place.at("tree/group"), Some(place.uid), Some(0)).unwrap();
        fs::create_dir(place.at("tree/sticky")).unwrap();
        fs::write(place.at("tree/sticky/stays"), "").unwrap();
        fs::set_permissions(place.at("tree/sticky"), fs::Permissions::from_mode(0o1777)).unwrap();
        let script = "cd tree; rm -f gone || exit 1; mv moved dir/moved || exit 2; echo more >> open || exit 3
            cat read > /dev/null || exit 4; ! echo x 2> /dev/null >> read || exit 6
            ! chmod 600 open 2> /dev/null || exit 7; echo more >> group || exit 8; ! rm -f sticky/stays 2> /dev/null || exit 9
            ! touch -d 2000-01-01 open 2> /dev/null || exit 10; touch open || exit 11; ! touch read 2> /dev/null || exit 12
            echo x > sticky/own && rm sticky/own || exit 13
            mv read renamed && cat renamed > /dev/null && mv renamed read && ln read linked && cat linked > /dev/null \
            && rm linked && cat read > /dev/null || exit 14; ! touch -m read 2> /dev/null || exit 15
            ../program sync . || exit 16";
        let output = place.run(&["run", "--on", "tree", "--", "sh", "-c", script]);
        assert_eq!(output.status.code(), Some(0), "{}", said(&output));
        let text = |name: &str| fs::read_to_string(place.at("tree").join(name)).unwrap();
        assert!(!place.at("tree/gone").exists() && !place.at("tree/moved").exists());
        assert_eq!(
            (text("open"), text("group"), text("dir/moved")),
            ("open\nmore\n".into(), "group\nmore\n".into(), "moved\n".into())
        );
        assert_eq!(
            fs::metadata(place.at("tree/read")).unwrap().mode() & 0o777,
            0o644,
            "it is shown otherwise, and not changed"
        );
    }
}

/// Changes below a directory that its user has closed to himself are put back, and the directory is closed again
/// afterwards.
#[test]
fn below_a_closed_directory_all_is_put_back() {
    for place in places() {
        let tree = |name: &str| place.at("tree").join(name);
        let close = |name: &str, mode| fs::set_permissions(tree(name), fs::Permissions::from_mode(mode)).unwrap();
        let mode = |name: &str| fs::metadata(tree(name)).unwrap().mode() & 0o7777;
        let text = |name: &str| fs::read_to_string(tree(name)).unwrap();
        for directory in ["gone/deep/er", "was/deep", "stays/deep", "changed", "new"] {
            fs::create_dir_all(tree(directory)).unwrap();
            fs::write(tree(directory).join("file"), "old\n").unwrap();
        }
        place.give("tree");
        for name in
            ["gone/deep/er", "gone/deep", "gone", "was/deep", "was", "stays/deep", "stays", "changed", "new", ""]
        {
            close(name, 0o555);
        }
        let script = "cd tree && chmod u+w . && chmod -R u+w gone && rm -rf gone && chmod u+w was && mv was is && chmod u-w is
            echo inside > stays/deep/file && echo inside > changed/file && chmod u+w changed && rm changed/file
            chmod 500 changed; chmod u+w new && mkdir new/er && echo inside > new/er/file && chmod 100 new/er && chmod 0 new
            chmod u-w .";
        place.done(&["run", "--on", "tree", "--", "sh", "-ec", script]);
        let modes = ["", "is", "is/deep", "stays", "stays/deep", "changed", "new"].map(mode);
        assert_eq!(modes, [0o555, 0o555, 0o555, 0o555, 0o555, 0o500, 0], "as {}", place.uid);
        assert!(!tree("gone").exists() && !tree("was").exists() && !tree("changed/file").exists());
        assert_eq!((text("is/deep/file"), text("stays/deep/file")), ("old\n".into(), "inside\n".into()));
        assert_eq!(place.left(&["tree"]), [""; 0]);
        close("new", 0o755);
        assert_eq!((mode("new/er"), text("new/file")), (0o100, "old\n".into()));
        close("new/er", 0o755);
        assert_eq!(text("new/er/file"), "inside\n");
        assert!(Command::new("chmod").args(["-R", "u+rwx"]).arg(tree("")).status().unwrap().success());
    }
}

/// Attributes of a directory that is closed again at the end are not left out.
#[test]
fn attributes_of_a_closed_directory_are_put_back() {
    if Command::new("python3").arg("--version").output().is_err() {
        eprintln!("skipped: needs python3");
        return;
    }
    for place in places() {
        let path = place.at("tree/closed");
        fs::create_dir_all(&path).unwrap();
        place.give("tree");
        if rustix::fs::setxattr(&path, "user.gone", b"old", rustix::fs::XattrFlags::empty()).is_err() {
            eprintln!("skipped: no attributes here");
            return;
        }
        fs::set_permissions(&path, fs::Permissions::from_mode(0o555)).unwrap();
        let script = "
import os
os.chmod('tree/closed', 0o755)
os.setxattr('tree/closed', 'user.new', b'new')
os.removexattr('tree/closed', 'user.gone')
os.chmod('tree/closed', 0o555)
";
        fs::write(place.at("script"), script).unwrap();
        let output = place.done(&["run", "--on", "tree", "--", "python3", "script"]);
        assert_eq!(said(&output), "", "as {}: nothing is left out", place.uid);
        let mut value = [0; 16];
        let len = rustix::fs::getxattr(&path, "user.new", &mut value[..]).unwrap();
        assert_eq!(&value[..len], b"new");
        assert!(rustix::fs::getxattr(&path, "user.gone", &mut value[..]).is_err());
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o7777, 0o555);
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    }
}

const LEVELS: usize = 2000;

/// Makes a tree that is deeper than any path, with a file in each hundredth directory.
fn make_deep(at: &Path) {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let mut directory = rustix::fs::open(at, flags, Mode::empty()).unwrap();
    for level in 0..LEVELS {
        if level % 100 == 0 {
            let file = openat(&directory, "file", OFlags::CREATE | OFlags::WRONLY | OFlags::CLOEXEC, Mode::from(0o644));
            rustix::io::write(file.unwrap(), level.to_string().as_bytes()).unwrap();
        }
        mkdirat(&directory, "deep", Mode::from(0o755)).unwrap();
        directory = openat(&directory, "deep", flags, Mode::empty()).unwrap();
    }
}

/// Number of levels, and number of files with the expected contents.
fn depth(at: &Path, name: &str) -> (usize, usize) {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let mut directory = rustix::fs::open(at, flags, Mode::empty()).unwrap();
    let (mut levels, mut files) = (0, 0);
    loop {
        let mut text = [0; 16];
        if let Ok(file) = openat(&directory, "file", OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()) {
            let len = rustix::io::read(file, &mut text).unwrap();
            files += usize::from(text[..len] == *levels.to_string().as_bytes());
        }
        let Ok(next) = openat(&directory, name, flags, Mode::empty()) else { return (levels, files) };
        directory = next;
        levels += 1;
    }
}

/// Runs a command with less stack and fewer descriptors than there are levels.
fn done_with_little(place: &Place, arguments: &[&str]) {
    let limits = ["prlimit", "--stack=1048576:", "--nofile=256:", "--"];
    let output = place.command_by(&limits, arguments).output().unwrap();
    assert!(output.status.success(), "as {}: {arguments:?}: {}", place.uid, said(&output));
}

fn remove(path: &Path) {
    assert!(Command::new("rm").arg("-rf").arg(path).status().unwrap().success());
}

#[test]
fn a_tree_may_be_deeper_than_a_path() {
    for place in Place::all() {
        fs::create_dir(place.at("tree")).unwrap();
        make_deep(&place.at("tree"));
        place.give("tree");
        let whole = (LEVELS, LEVELS / 100);
        done_with_little(&place, &["import", "tree", "store"]);
        done_with_little(&place, &["export", "store", "copy"]);
        assert_eq!(depth(&place.at("copy"), "deep"), whole);
        done_with_little(&place, &["eject", "--yes", "store"]);
        assert_eq!(depth(&place.at("store"), "deep"), whole);
        // The rest that a killed command left is removed, however deep.
        fs::rename(place.at("copy"), place.at(".other.untorn-unfinished")).unwrap();
        fs::create_dir(place.at("small")).unwrap();
        place.give("small");
        done_with_little(&place, &["import", "small", "other"]);
        assert_eq!(place.left(&["tree", "store", "small", "other"]), [""; 0]);
        for name in ["tree", "store"] {
            remove(&place.at(name));
        }
    }
}

#[test]
fn a_session_may_go_deeper_than_a_path() {
    if Command::new("python3").arg("--version").output().is_err() {
        eprintln!("skipped: needs python3");
        return;
    }
    for place in places() {
        fs::create_dir(place.at("tree")).unwrap();
        make_deep(&place.at("tree"));
        place.give("tree");
        let script = "
import os
top = os.open('.', os.O_RDONLY)
def down(name):
    n = 0
    while True:
        try:
            os.chdir(name)
        except FileNotFoundError:
            return n
        n += 1
assert down('deep') == 2000
open('last', 'w').write('last')
os.chdir(top)
for n in range(2000):
    os.mkdir('new')
    os.chdir('new')
open('last', 'w').write('new')
";
        fs::write(place.at("script"), script).unwrap();
        let session = |script: &str| done_with_little(&place, &["run", "--on", "tree", "--", "sh", "-c", script]);
        session("cd tree && python3 ../script");
        assert_eq!(depth(&place.at("tree"), "deep"), (LEVELS, LEVELS / 100));
        assert_eq!(depth(&place.at("tree"), "new").0, LEVELS);
        session("rm -rf tree/new tree/deep/deep/deep && echo end > tree/deep/end");
        assert_eq!((depth(&place.at("tree"), "deep").0, depth(&place.at("tree"), "new").0), (2, 0));
        assert_eq!(place.left(&["tree", "script"]), [""; 0]);
    }
}
