//! The changes of a session whose volume is full are applied like those of others.

mod common;

use common::directory::Directory;
use common::{Place, Run, Session};
use std::fs;
use std::io::Read;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};

/// Writes one large file until the volume is full, then small ones until there is no room and no inode left.
const FILL: &str = "head -c 60000000 /dev/zero > large; i=0; while echo x > small$i; do i=$((i+1)); done; mkdir more; \
    echo filled";

#[track_caller]
fn check(run: Run, dir: &Path) {
    assert!(run.err.contains("No space left on device"), "{run:?}");
    assert_eq!(run.ok(), "filled\n");
    assert!(fs::metadata(dir.join("large")).unwrap().len() > 1 << 20);
}

#[test]
fn a_full_volume_is_applied() {
    let Some(place) = Place::new() else { return };
    let mut command = Command::new(env!("CARGO_BIN_EXE_untorn-xsync"));
    command.arg("--place").arg(place.volumes()).args(["--size", "32M", "--", "sh", "-c", FILL]);
    check(command.current_dir(place.work()).stdin(Stdio::null()).output().unwrap().into(), &place.work());
    assert!(place.left().is_empty(), "{:?}", place.left());
}

/// This also holds for a session that was killed before its changes were applied.
#[test]
fn what_is_left_of_a_full_session_is_applied() {
    const USER: u32 = 12345;
    if Place::new().is_none() {
        return;
    }
    let (place, work) = (Directory::mounted("data=journal"), tempfile::tempdir_in("/opt").unwrap());
    place.give_to(USER);
    std::os::unix::fs::chown(work.path(), Some(USER), Some(USER)).unwrap();
    let program = place.program(env!("CARGO_BIN_EXE_untorn-xsync").as_ref());
    let xsync = |words: &[&str]| {
        let mut command = Command::new(&program);
        command.arg("--place").arg(place.at()).args(words).current_dir(work.path()).stdin(Stdio::null());
        command.uid(USER).gid(USER).env_remove("XDG_RUNTIME_DIR");
        command
    };
    check(xsync(&["--", "sh", "-c", FILL]).output().unwrap().into(), work.path());
    assert_eq!(fs::read_dir(place.at()).unwrap().count(), 0);
    fs::remove_file(work.path().join("large")).unwrap();
    // Killed after it has printed that it is full.
    let mut command = xsync(&["--", "sh", "-c", &format!("{FILL}; read nothing")]);
    let mut session = Session::start(command.stdin(Stdio::piped()).stdout(Stdio::piped()));
    session.stdout.as_mut().unwrap().read_exact(&mut [0; 7]).unwrap();
    drop(session);
    let left = fs::read_dir(place.at()).unwrap().next().unwrap().unwrap().path();
    let resumed: Run = xsync(&["--resume", left.to_str().unwrap()]).output().unwrap().into();
    assert_eq!((resumed.code, fs::read_dir(place.at()).unwrap().count()), (Some(0), 0), "{resumed:?}");
    assert!(work.path().join("large").exists());
}

/// A partial file would keep the disk full.
#[test]
fn an_apply_to_a_full_disk_leaves_no_part_of_a_file() {
    let Some(place) = Place::new() else { return };
    let (small, ballast) = (Directory::mounted("data=ordered"), vec![b'x'; 16 << 20]);
    let (at, names) = (small.at(), |dir: &Path| {
        let mut names: Vec<_> = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        names.sort();
        names
    });
    fs::write(at.join("ballast"), &ballast).unwrap();
    fs::create_dir(at.join("inner")).unwrap();
    let room = || rustix::fs::statvfs(&at).unwrap().f_bfree;
    let before = room();
    let script = "head -c 20000000 /dev/zero > inner/large; ln inner/large link; echo end";
    let full: Run = place.xsync(&["--", "sh", "-c", script]).current_dir(&at).output().unwrap().into();
    assert!(full.code == Some(125) && full.err.contains("No space left") && full.err.contains("--resume"), "{full:?}");
    assert_eq!((names(&at), names(&at.join("inner")).len()), (vec!["ballast".into(), "inner".into()], 0));
    assert!(room() + 16 >= before, "{} of {before} blocks are left", room());
    fs::remove_file(at.join("ballast")).unwrap();
    place.run(&["--resume", place.left()[0].to_str().unwrap()]).ok();
    assert_eq!(fs::metadata(at.join("inner/large")).unwrap().len(), 20_000_000);
    assert!(place.left().is_empty(), "{:?}", place.left());
}

#[test]
fn an_export_to_a_full_disk_leaves_nothing_and_can_be_repeated() {
    let Some(place) = Place::new() else { return };
    let small = Directory::mounted("data=ordered");
    let (to, ballast, volume) = (small.at().join("exported"), small.at().join("ballast"), place.dir.path().join("v"));
    fs::write(&ballast, vec![b'x'; 16 << 20]).unwrap();
    let (sized, to_text, inner) = (format!("{}:64M", volume.display()), to.to_str().unwrap(), place.work());
    let export = |volume: &str, script: &str| {
        let words = ["--volume", volume, "--export", to_text, "--overlay", inner.to_str().unwrap(), "--", "sh", "-c"];
        place.run(&[&words[..], &[script]].concat())
    };
    let full = export(&sized, "echo first > /data/a; head -c 20000000 /dev/zero > /data/b; echo changed > changed");
    assert!(full.code == Some(125) && full.err.contains("nothing was exported"), "{full:?}");
    assert!(!to.exists());
    // The session's other changes were applied.
    assert_eq!(fs::read_to_string(place.work().join("changed")).unwrap(), "changed\n");
    fs::remove_file(&ballast).unwrap();
    export(volume.to_str().unwrap(), "true").ok();
    assert_eq!(fs::metadata(to.join("b")).unwrap().len(), 20_000_000);
}
