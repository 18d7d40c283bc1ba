//! Sessions that have no room for more changes: what they did is applied like that of others.

mod common;

use common::directory::Directory;
use common::{Place, Run, Session};
use std::fs;
use std::io::Read;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};

/// A large file as far as it goes, and small ones until there is no room for any, and no inode.
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

/// A session that was killed before it was applied, too.
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
    // Killed when it has shown that it is full.
    let mut command = xsync(&["--", "sh", "-c", &format!("{FILL}; read nothing")]);
    let mut session = Session::start(command.stdin(Stdio::piped()).stdout(Stdio::piped()));
    session.stdout.as_mut().unwrap().read_exact(&mut [0; 7]).unwrap();
    drop(session);
    let left = fs::read_dir(place.at()).unwrap().next().unwrap().unwrap().path();
    let resumed: Run = xsync(&["--resume", left.to_str().unwrap()]).output().unwrap().into();
    assert_eq!((resumed.code, fs::read_dir(place.at()).unwrap().count()), (Some(0), 0), "{resumed:?}");
    assert!(work.path().join("large").exists());
}
