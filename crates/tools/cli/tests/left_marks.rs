//! A program died after it had marked a file and before it committed to it, and the mark cannot be cleared yet.
//!
//! The commands report that, and clear the mark as soon as they can. Without its store, the file would be refused.

mod common;

use common::{Run, untorn};
use rustix::fs::{IFlags, ioctl_getflags, ioctl_setflags};
use std::fs::{self, File, Permissions};
use std::io::{BufRead, BufReader};
use std::os::unix::fs::{PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use tempfile::TempDir;
use untorn::StoreOptions;
use untorn_testkit::NOBODY;
use untorn_testkit::is_root;

const OWNER_DIR: &str = "UNTORN_TEST_MARK_DIR";

/// Leaves a mark on `d/g`, whose commit is in the file, and a commit of `f` in the journal. Then waits to be killed.
#[test]
#[ignore = "run by other tests, as a process of its own"]
fn owner() {
    let dir = PathBuf::from(std::env::var_os(OWNER_DIR).expect("set by the other tests"));
    let store = StoreOptions::new().create(true).background(false).open(&dir).unwrap();
    let files = ["f", "d/g"].map(|name| store.open_file(name).unwrap());
    for file in &files {
        file.write_all_at(b"commit", 0).unwrap();
        file.commit().unwrap();
    }
    store.checkpoint().unwrap();
    files[0].write_all_at(b"behind", 0).unwrap();
    files[0].commit().unwrap();
    println!("committed");
    std::io::stdin().read_line(&mut String::new()).unwrap();
}

/// The command as an ordinary user, if this process is root.
fn ordinary(mut command: Command) -> Command {
    if is_root() {
        command.uid(NOBODY).gid(NOBODY);
    }
    command
}

struct Place {
    dir: TempDir,
}

impl Place {
    fn new() -> Place {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir(dir.path().join("d")).unwrap();
        for name in ["f", "d/g"] {
            fs::write(dir.path().join(name), "plain.").unwrap();
        }
        if is_root() {
            for name in ["", "d", "f", "d/g"] {
                chown(dir.path().join(name), Some(NOBODY), Some(NOBODY)).unwrap();
            }
        }
        let mut command = ordinary(Command::new("/proc/self/exe"));
        command
            .args(["--exact", &untorn_testkit::test_path!("owner"), "--ignored", "--nocapture"])
            .env(OWNER_DIR, dir.path());
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines().map_while(Result::ok);
        assert!(lines.any(|line| line.ends_with("committed")), "the owner ended early");
        child.kill().unwrap();
        child.wait().unwrap();
        Place { dir }
    }

    fn at(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn run(&self, arguments: &[&str]) -> Run {
        let mut command = untorn();
        command.args(arguments).arg(self.dir.path()).stdin(Stdio::null());
        ordinary(command).output().unwrap().into()
    }

    /// The file belongs to no store, and is complete.
    fn is_free(&self) {
        let mut command = untorn();
        command.arg("put").arg(self.at("d/g")).stdin(File::open("/proc/self/comm").unwrap());
        assert_eq!(fs::read(self.at("d/g")).unwrap(), b"commit");
        Run::from(ordinary(command).output().unwrap()).ok();
    }
}

/// An obstacle that keeps a mark from being cleared, as long as this value lives.
enum Hindrance {
    Locked(#[allow(dead_code, reason = "its lock counts")] File),
    Mode(PathBuf, u32),
    Immutable(File),
    Away(PathBuf, PathBuf),
}

impl Hindrance {
    fn closed(path: PathBuf) -> Option<Hindrance> {
        let before = fs::metadata(&path).unwrap().permissions().mode();
        fs::set_permissions(&path, Permissions::from_mode(0o000)).unwrap();
        Some(Hindrance::Mode(path, before))
    }

    fn immutable(path: PathBuf) -> Option<Hindrance> {
        let file = File::open(path).unwrap();
        let flags = ioctl_getflags(&file).ok()?;
        ioctl_setflags(&file, flags | IFlags::IMMUTABLE).ok()?;
        Some(Hindrance::Immutable(file))
    }
}

impl Drop for Hindrance {
    fn drop(&mut self) {
        match self {
            Hindrance::Locked(_) => {}
            Hindrance::Mode(path, before) => fs::set_permissions(path, Permissions::from_mode(*before)).unwrap(),
            Hindrance::Immutable(file) => {
                let flags = ioctl_getflags(&*file).unwrap();
                ioctl_setflags(&*file, flags - IFlags::IMMUTABLE).unwrap();
            }
            Hindrance::Away(from, to) => fs::rename(to, from).unwrap(),
        }
    }
}

type Hinder = fn(&Place) -> Option<Hindrance>;

/// Each with whether the mark can be seen meanwhile, and the path in the message.
const HINDRANCES: &[(&str, Hinder, Option<bool>, &str)] = &[
    (
        "locked",
        |place| {
            let file = File::open(place.at("d/g")).unwrap();
            file.lock().unwrap();
            Some(Hindrance::Locked(file))
        },
        Some(true),
        "d/g",
    ),
    ("immutable", |place| Hindrance::immutable(place.at("d/g")), Some(true), "d/g"),
    ("closed file", |place| Hindrance::closed(place.at("d/g")), Some(false), "d/g"),
    ("closed directory", |place| Hindrance::closed(place.at("d")), Some(false), "d"),
    (
        "away",
        |place| {
            let (from, to) = (place.at("d/g"), place.dir.path().with_extension("away"));
            fs::rename(&from, &to).unwrap();
            Some(Hindrance::Away(from, to))
        },
        None,
        "",
    ),
];

fn each(try_one: fn(&Place, Hindrance, Option<bool>, &str)) {
    for (how, hinder, seen, named) in HINDRANCES {
        let place = Place::new();
        match hinder(&place) {
            Some(hindrance) => {
                println!("{how}");
                try_one(&place, hindrance, *seen, named);
            }
            None => println!("skipped: {how}: needs root and a file system with such flags"),
        }
    }
}

#[test]
fn a_mark_that_cannot_be_cleared_is_named_and_cleared_later() {
    each(|place, hindrance, seen, named| {
        let recovered = place.run(&["recover"]);
        let (checked, status) = (place.run(&["check"]), place.run(&["status"]));
        let code = Some(i32::from(seen == Some(true)));
        for run in [&recovered, &checked, &status] {
            assert_eq!(run.code, code, "{}{}", run.out, run.err);
            assert!(seen.is_none() || run.out.contains(&format!("{named} ")), "{}{}", run.out, run.err);
        }
        assert_eq!(fs::read(place.at("f")).unwrap(), b"behind");
        drop(hindrance);
        // This also holds for a file that was away and is back now.
        assert_eq!(place.run(&["status"]).code, Some(1));
        let again = place.run(&["recover"]).ok();
        assert!(!again.contains("mark"), "{again}");
        place.run(&["check"]).ok();
        fs::remove_dir_all(place.at(".untorn")).unwrap();
        place.is_free();
    });
}

#[test]
fn a_store_with_such_a_mark_is_not_ejected() {
    each(|place, hindrance, seen, named| {
        if seen.is_none() {
            return;
        }
        let refused = place.run(&["eject", "--yes"]).fails(1);
        assert!(refused.contains(&format!("{named}: ")) && refused.contains("eject again"), "{refused}");
        assert!(place.at(".untorn/journal").exists());
        drop(hindrance);
        place.run(&["eject", "--yes"]).ok();
        assert!(!place.at(".untorn").exists());
        place.is_free();
    });
}

/// The copy has the file's mark, and the file was marked under another name, so it may be older than its commit.
#[test]
fn a_marked_file_that_got_another_name_is_lost_until_it_is_accepted() {
    let place = Place::new();
    fs::rename(place.at("d/g"), place.at("d/h")).unwrap();
    let said = place.run(&["recover"]).fails(1);
    assert!(said.contains("d/h") && said.contains("--accept-lost"), "{said}");
    assert_eq!(place.run(&["check"]).code, Some(1));
    let refused = place.run(&["eject", "--yes"]).fails(1);
    assert!(refused.contains("d/h"), "{refused}");
    place.run(&["recover", "--accept-lost"]).ok();
    place.run(&["check"]).ok();
    fs::rename(place.at("d/h"), place.at("d/g")).unwrap();
    fs::remove_dir_all(place.at(".untorn")).unwrap();
    place.is_free();
}
