//! Limits of overlays: a message names the cause and a way out, or the call is refused.

mod common;

use common::directory::Directory;
use common::{Place, Run, Session};
use std::fs;
use std::io::Read;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};
use untorn_testkit::NOBODY;

/// SQLite sees the writes of another process, even with memory-mapped reads enabled.
#[test]
fn a_reader_that_locks_does_not_see_an_old_map() {
    let Some(place) = Place::new() else { return };
    let make = "sqlite3 db 'create table t(x); insert into t values(1)'";
    let mut made = Command::new("sh");
    if !made.args(["-c", make]).current_dir(place.work()).status().is_ok_and(|made| made.success()) {
        println!("skipped: needs the program sqlite3");
        return;
    }
    let reads = |x: u32| {
        format!(
            "sqlite3 'file:db?mode=ro' 'pragma mmap_size=1000000' 'select x from t' \
             \".shell sqlite3 db 'update t set x = {x}'\" 'select x from t'"
        )
    };
    let run = place.script(&reads(2));
    assert!(run.err.contains("db: a shared map was refused (ENODEV)"), "{run:?}");
    assert_eq!(run.ok(), "1000000\n1\n2\n");
    // A file that the session has written can be mapped.
    let written = place.script(&format!("touch db; {}", reads(3)));
    assert_eq!((written.out.as_str(), written.err.as_str()), ("1000000\n2\n3\n", ""));
}

#[test]
fn maps_of_files_that_are_written_later_are_told_of() {
    let Some(place) = Place::new() else { return };
    let probe = place.probe();
    let probe = probe.to_str().unwrap();
    fs::write(place.work().join("file"), "old").unwrap();
    let locked = place.run(&["--", probe, "map-locked", "file"]);
    assert!(
        locked.code == Some(1) && locked.out.contains("19") && locked.err.contains("refused (ENODEV)"),
        "{locked:?}"
    );
    assert_eq!(place.script(&format!("touch file; {probe} map-locked file")).ok(), "done\n");
    // Other maps work, and are reported if they may have shown old contents.
    assert_eq!(place.run(&["--", probe, "map-read-only", "file"]).err, "");
    let script = format!(
        "mkfifo /tmp/in /tmp/out; {probe} map-and-wait file < /tmp/in > /tmp/out & exec 4> /tmp/in 3< /tmp/out; \
         read before <&3; echo new > file; echo >&4; read after <&3; echo >&4; wait; echo $before $after"
    );
    let stale = place.script(&script);
    assert!(stale.err.contains("file was mapped by a program before the session wrote to it"), "{stale:?}");
    assert_eq!(stale.ok(), "o o\n", "the kernel mends it: so nothing needs to be told");
    fs::write(place.work().join("file"), "old").unwrap();
    let first = place.script(&format!("touch file; {script}"));
    assert_eq!((first.out.as_str(), first.err.as_str()), ("o n\n", ""));
}

#[test]
fn a_file_that_is_larger_than_the_volume_is_named() {
    let Some(place) = Place::new() else { return };
    let large = place.work().join("large");
    fs::write(&large, vec![b'x'; 70 << 20]).unwrap();
    let run = place.script("echo more >> large");
    assert!(run.code != Some(0) && run.err.contains("is larger than the session's room"), "{run:?}");
    assert!(run.err.contains(&large.display().to_string()) && run.err.contains("--size"), "{run:?}");
    let full = place.script("head -c 80000000 /dev/zero > new || true");
    assert!(full.err.contains("are full") && full.err.contains("--size"), "{full:?}");
    full.ok();
    assert_eq!(place.script("false").code, Some(1));
}

/// Overlays of ordinary users do not rename directories of the host, and split files with several names.
#[test]
fn what_an_overlay_of_an_ordinary_user_cannot_do_is_named() {
    const USER: u32 = 12345;
    if Place::new().is_none() {
        return;
    }
    let (place, work) = (Directory::mounted("data=journal"), tempfile::tempdir_in("/opt").unwrap());
    place.give_to(USER);
    let script = "mkdir old; echo x > old/x; echo a > b; ln b c; chown -R 12345:12345 .";
    assert!(Command::new("sh").args(["-c", script]).current_dir(work.path()).status().unwrap().success());
    let session = |script: &str| -> Run {
        let mut command = place.xsync(USER, &["--place"]);
        command.arg(place.at()).args(["--", "sh", "-c", script]).current_dir(work.path());
        command.output().unwrap().into()
    };
    let own = session("mkdir new; mv new newer; perl -e 'rename(\"newer\", \"newest\") or die $!'");
    assert_eq!((own.code, own.err.as_str()), (Some(0), ""));
    let refused = session("perl -e 'rename(\"old\", \"renamed\") or exit 5'");
    assert_eq!(refused.code, Some(5));
    assert!(
        refused.err.contains(&format!("{}/old: a directory that came from the host", work.path().display())),
        "{refused:?}"
    );
    let split = session("echo more >> c");
    assert!(
        split.code == Some(0) && split.err.contains("/c had other names, which keep the old contents"),
        "{split:?}"
    );
    assert_eq!(fs::read_to_string(work.path().join("b")).unwrap(), "a\n");
}

#[track_caller]
fn until(mut is_so: impl FnMut() -> bool) {
    let started = Instant::now();
    while !is_so() {
        assert!(started.elapsed() < Duration::from_secs(60), "it never happened");
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// Makes a file system in an image, and mounts it.
fn mounted(image: &Path, at: &Path) {
    fs::File::create(image).unwrap().set_len(4 << 20).unwrap();
    fs::create_dir_all(at).unwrap();
    let run = |command: &mut Command| assert!(command.status().unwrap().success());
    run(Command::new("mkfs.ext4").args(["-q", "-F"]).arg(image));
    run(Command::new("mount").args(["-o", "loop"]).arg(image).arg(at));
}

fn is_attached(image: &Path) -> bool {
    let meta = fs::metadata(image).unwrap();
    untorn_os::loop_device_of(meta.dev(), meta.ino()).is_some()
}

/// After an unmount on the host, the device is free, whether the session shows the mount or not.
#[test]
fn what_the_host_unmounts_is_let_go_of() {
    let Some(place) = Place::new() else { return };
    let shown = tempfile::tempdir_in("/opt").unwrap();
    for dir in [shown.path(), place.dir.path()] {
        let (image, at) = (dir.join("image"), dir.join("mounted"));
        mounted(&image, &at);
        fs::write(at.join("file"), "text").unwrap();
        let script = format!("cat {}/file; echo ready; read line; ls {0} 2>&1; echo end > kept", at.display());
        let mut command = place.xsync(&["--", "sh", "-c", &script]);
        let mut session = Session::start(command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null()));
        let mut out = session.stdout.take().unwrap();
        let mut seen = Vec::new();
        while !seen.ends_with(b"ready\n") {
            let mut byte = [0];
            out.read_exact(&mut byte).unwrap();
            seen.push(byte[0]);
        }
        assert_eq!(seen.starts_with(b"text"), dir == shown.path());
        assert!(Command::new("umount").arg(&at).status().unwrap().success());
        until(|| !is_attached(&image));
        drop(session.stdin.take());
        assert!(session.wait().unwrap().success());
        assert_eq!(fs::read_to_string(place.work().join("kept")).unwrap(), "end\n");
    }
}

/// Mounts that the session works in stay, even if the host unmounts them.
#[test]
fn what_the_session_works_in_is_not_let_go_of() {
    let Some(place) = Place::new() else { return };
    let (image, at) = (place.dir.path().join("image"), place.dir.path().join("mounted"));
    mounted(&image, &at);
    let mut command = place.xsync(&["--", "sh", "-c", "echo ready; read line; echo kept > file"]);
    let mut session = Session::start(command.current_dir(&at).stdin(Stdio::piped()).stdout(Stdio::piped()));
    session.stdout.as_mut().unwrap().read_exact(&mut [0; 6]).unwrap();
    assert!(Command::new("umount").arg("-l").arg(&at).status().unwrap().success());
    drop(session.stdin.take());
    assert!(session.wait().unwrap().success());
    until(|| !is_attached(&image));
    assert!(Command::new("mount").args(["-o", "loop"]).arg(&image).arg(&at).status().unwrap().success());
    assert_eq!(fs::read_to_string(at.join("file")).unwrap(), "kept\n");
    assert!(Command::new("umount").arg(&at).status().unwrap().success());
}

/// The directory is on a mount that the session does not show, below a directory that it shows.
#[test]
fn a_directory_on_a_mount_below_the_working_directory_is_found() {
    if Place::new().is_none() {
        return;
    }
    let directory = Directory::mounted("data=journal");
    let (on, above) = (directory.at().join("a/deep"), directory.at());
    let above = above.parent().unwrap();
    fs::create_dir_all(&on).unwrap();
    let _watcher = directory.watcher();
    for user in [0, NOBODY] {
        std::os::unix::fs::chown(&on, Some(user), Some(user)).unwrap();
        let mut command = directory.xsync(user, &["--on"]);
        let script = format!("pwd; echo text > {}/file; cat mounted/a/deep/file", on.display());
        let run: Run = command.arg(&on).args(["--", "sh", "-c", &script]).current_dir(above).output().unwrap().into();
        assert_eq!(run.ok(), format!("{}\ntext\n", above.display()), "user {user}");
        assert_eq!(fs::read_to_string(on.join("file")).unwrap(), "text\n");
        fs::remove_file(on.join("file")).unwrap();
    }
}

/// An overlay and a volume whose places in the session are on a mount of the host.
#[test]
fn places_on_other_mounts_are_found() {
    let Some(place) = Place::new() else { return };
    let (other, home) = (Directory::mounted("data=ordered"), tempfile::tempdir_in("/opt").unwrap());
    let (over, volume) = (other.at().join("a/over"), format!("{}:64M", place.dir.path().join("volume").display()));
    fs::create_dir_all(&over).unwrap();
    let mounted = |what: &str, words: &[&str]| {
        assert!(Command::new(what).args(words).arg(home.path()).status().unwrap().success());
    };
    mounted("mount", &["-t", "tmpfs", "x"]);
    let at = home.path().join("not/there");
    let words =
        ["--volume", &volume, "--at", at.to_str().unwrap(), "--overlay", over.to_str().unwrap(), "--", "sh", "-c"];
    let script = format!("echo data > {}/file; cat {0}/file; echo over > {}/file", at.display(), over.display());
    let mut command = place.xsync(&[&words[..], &[&script]].concat());
    let run: Run = command.current_dir(other.at().parent().unwrap()).output().unwrap().into();
    mounted("umount", &[]);
    assert_eq!(run.ok(), "data\n");
    assert_eq!(fs::read_to_string(over.join("file")).unwrap(), "over\n");
}
