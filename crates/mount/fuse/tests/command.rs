//! The command on a tree in memory: mounting in the background, errors, and unmounting; as root and as an ordinary
//! user.

mod common;

use common::{can_mount, device_for_everybody, example};
use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};
use tempfile::TempDir;
use untorn_testkit::NOBODY;

/// A directory with a mount point, and the user who works in it.
struct Place {
    dir: TempDir,
    uid: u32,
    program: PathBuf,
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

impl Place {
    fn of(uid: u32) -> Place {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir(dir.path().join("mnt")).unwrap();
        let built = example("memory");
        // The user may not have access to the build directory.
        let program = dir.path().join("untorn-mount");
        assert!(Command::new("install").args(["-m", "755"]).arg(built).arg(&program).status().unwrap().success());
        for path in [dir.path().to_owned(), dir.path().join("mnt")] {
            fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
            chown(&path, Some(uid), Some(uid)).unwrap();
        }
        Place { dir, uid, program }
    }

    /// Root, and an ordinary user where that is possible.
    fn all() -> Vec<Place> {
        if !can_mount() {
            return Vec::new();
        }
        if Command::new("fusermount3").arg("--version").output().is_err() {
            eprintln!("skipped: as an ordinary user (needs fusermount3)");
            return vec![Place::of(0)];
        }
        device_for_everybody();
        vec![Place::of(0), Place::of(NOBODY)]
    }

    fn at(&self) -> PathBuf {
        self.dir.path().canonicalize().unwrap().join("mnt")
    }

    /// Runs a program as the place's user.
    fn command(&self, program: impl AsRef<std::ffi::OsStr>) -> Command {
        let mut command = Command::new("setpriv");
        let uid = self.uid.to_string();
        command.args(["--reuid", &uid, "--regid", &uid, "--clear-groups"]).arg(program).current_dir("/");
        command.stdin(Stdio::null());
        command
    }

    fn run(&self, arguments: &[&str]) -> Output {
        self.command(&self.program).args(arguments).output().unwrap()
    }

    fn sh(&self, script: &str) -> String {
        let output =
            self.command("sh").args(["-ec", &format!("cd {}; {script}", self.at().display())]).output().unwrap();
        assert!(output.status.success(), "as {}: {script}: {}", self.uid, text(&output.stderr));
        text(&output.stdout)
    }

    /// A program in the mount that has a file open, opened by a shell's redirection, until it is killed.
    fn has_open(&self, opens: &str) -> Child {
        let script = format!("cd {}; {opens}; cd /; echo open; exec sleep 60", self.at().display());
        let mut user = self.command("sh").args(["-ec", &script]).stdout(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(user.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
        assert_eq!(line, "open\n");
        user
    }

    /// Mounts; the given path of a store has no meaning for a tree in memory.
    fn mount(&self) {
        self.mount_with(&[]);
    }

    fn mount_with(&self, options: &[&str]) {
        let output = self.run(&[options, &["/tmp/untorn-memory", self.at().to_str().unwrap()]].concat());
        assert!(output.status.success() && output.stderr.is_empty(), "as {}: {}", self.uid, text(&output.stderr));
    }

    fn umount(&self) -> Output {
        self.run(&["umount", self.at().to_str().unwrap()])
    }

    fn daemon(&self) -> Option<i32> {
        let at = self.at();
        let of = |entry: fs::DirEntry| -> Option<i32> {
            let pid = entry.file_name().to_str()?.parse().ok()?;
            let words = fs::read(entry.path().join("cmdline")).ok()?;
            let mut words = words.split(|byte| *byte == 0);
            (words.any(|word| word == b"--announce") && words.any(|word| word == at.as_os_str().as_encoded_bytes()))
                .then_some(pid)
        };
        fs::read_dir("/proc").unwrap().filter_map(|entry| of(entry.ok()?)).next()
    }

    fn signal(&self, signal: rustix::process::Signal) {
        let pid = rustix::process::Pid::from_raw(self.daemon().unwrap()).unwrap();
        rustix::process::kill_process(pid, signal).unwrap();
    }

    fn mounted(&self) -> bool {
        untorn_mount::mounts::mount_point::mounted_at(&self.at()).unwrap().is_some()
    }

    fn wait(&self, what: &str, is: impl Fn(&Place) -> bool) {
        let end = Instant::now() + Duration::from_secs(120);
        while !is(self) {
            assert!(Instant::now() < end, "as {}: {what}", self.uid);
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        while let Some(pid) = self.daemon() {
            let _ = rustix::process::kill_process(
                rustix::process::Pid::from_raw(pid).unwrap(),
                rustix::process::Signal::KILL,
            );
        }
        while self.mounted() {
            let _ = untorn_mount::mounts::mount_point::detach(&self.at());
        }
    }
}

#[test]
fn a_mount_answers_when_the_command_returns_and_umount_waits_for_the_daemon() {
    for place in Place::all() {
        place.mount();
        assert_eq!(place.sh("echo hello > f; mkdir d; ln f d/g; cat d/g; ls -a"), "hello\n.\n..\nd\nf\n");
        place.run(&["sync", place.at().join("f").to_str().unwrap()]);
        let output = place.umount();
        assert!(output.status.success(), "{}", text(&output.stderr));
        assert!(!place.mounted() && place.daemon().is_none());
        assert!(!place.at().join("f").exists());
    }
}

#[test]
fn a_busy_mount_stays_and_a_signal_detaches_it() {
    for place in Place::all() {
        for signals in [1, 2] {
            place.mount();
            let mut user = place.has_open("exec 3> f; echo first >&3");
            let output = place.umount();
            assert!(
                !output.status.success() && text(&output.stderr).contains("a program may work in it"),
                "{}",
                text(&output.stderr)
            );
            assert!(place.mounted());
            place.signal(rustix::process::Signal::TERM);
            place.wait("detached", |place| !place.mounted());
            assert!(place.daemon().is_some(), "the daemon serves who has files open");
            match signals {
                1 => user.kill().unwrap(),
                _ => place.signal(rustix::process::Signal::TERM),
            }
            place.wait("ended", |place| place.daemon().is_none());
            let _ = user.kill();
            user.wait().unwrap();
        }
    }
}

/// A process that has a descriptor only for a short time, such as a copy in a process that is being started, does not
/// prevent the unmount.
#[test]
fn a_mount_that_is_busy_is_tried_again() {
    for place in Place::all() {
        place.mount();
        place.sh("echo x > f");
        // Repeated until `umount` was seen in the pause between two tries.
        let done = (0..50).any(|_| {
            let at = place.at();
            let mut user = place.has_open("exec 3< f");
            let umount = place.command(&place.program).arg("umount").arg(&at).stderr(Stdio::piped()).spawn().unwrap();
            let call = || fs::read_to_string(format!("/proc/{}/syscall", umount.id())).unwrap_or_default();
            let sleeps = |call: &str| call.starts_with(&format!("{} ", libc::SYS_clock_nanosleep));
            // A process that has ended shows no system call.
            while !sleeps(&call()) && !call().starts_with("0 0x0 0x0 0x0 0x0") && !call().is_empty() {
                std::thread::yield_now();
            }
            user.kill().unwrap();
            user.wait().unwrap();
            umount.wait_with_output().unwrap().status.success()
        });
        assert!(done, "as {}", place.uid);
    }
}

/// A process of a mount that has a mount namespace of its own, as an ordinary user's needs, has no other mount in it.
#[test]
fn a_mount_does_not_keep_another_one_in_use() {
    for place in Place::all() {
        place.mount();
        let second = place.dir.path().canonicalize().unwrap().join("second");
        fs::create_dir(&second).unwrap();
        chown(&second, Some(place.uid), Some(place.uid)).unwrap();
        let second = second.to_str().unwrap();
        let output = place.run(&["/tmp/untorn-memory-2", second]);
        assert!(output.status.success(), "as {}: {}", place.uid, text(&output.stderr));
        place.sh("echo x > f; truncate -s 1 f; cat f");
        let mut umount = place.command(&place.program).arg("umount").arg(place.at()).spawn().unwrap();
        let end = Instant::now() + Duration::from_secs(60);
        while umount.try_wait().unwrap().is_none() && Instant::now() < end {
            std::thread::sleep(Duration::from_millis(10));
        }
        let is_done = umount.try_wait().unwrap().is_some_and(|status| status.success());
        assert!(place.run(&["umount", second]).status.success());
        umount.wait().unwrap();
        assert!(is_done, "as {}: it waits for the end of the other mount", place.uid);
    }
}

/// The kernel does not let root send requests to an ordinary user's mount.
#[test]
fn root_unmounts_what_an_ordinary_user_has_mounted() {
    let Some(place) = Place::all().into_iter().find(|place| place.uid == NOBODY) else { return };
    place.mount();
    place.sh("echo x > f");
    let output = Command::new(&place.program).arg("umount").arg(place.at()).stdin(Stdio::null()).output().unwrap();
    assert!(output.status.success(), "{}", text(&output.stderr));
    assert!(text(&output.stdout).contains("the mount of another user, is unmounted"));
    place.wait("ended", |place| !place.mounted() && place.daemon().is_none());
}

/// Root can unmount like any other file system.
#[test]
fn an_unmount_by_root_ends_the_daemon() {
    if !can_mount() {
        return;
    }
    let place = Place::of(0);
    place.mount();
    place.sh("echo x > f");
    rustix::mount::unmount(place.at(), rustix::mount::UnmountFlags::empty()).unwrap();
    place.wait("ended", |place| place.daemon().is_none());
}

#[test]
fn what_a_killed_daemon_left_is_unmounted_by_name_or_by_the_next() {
    for place in Place::all() {
        for by_name in [true, false] {
            place.mount_with(&["--no-supervisor"]);
            place.sh("echo lost > f");
            place.signal(rustix::process::Signal::KILL);
            place.wait("killed", |place| place.daemon().is_none());
            if by_name {
                let output = place.umount();
                assert!(output.status.success(), "{}", text(&output.stderr));
                assert!(text(&output.stdout).contains("had ended before"), "{output:?}");
                assert!(!place.mounted());
            } else {
                place.mount_with(&["--no-supervisor"]);
                assert_eq!(place.sh("ls"), "");
                assert!(place.umount().status.success());
            }
        }
    }
}

#[test]
fn mount_points_that_will_not_do() {
    for place in Place::all() {
        let at = place.at();
        let says = |arguments: &[&str], words: &str| {
            let output = place.run(arguments);
            let said = text(&output.stderr);
            assert_eq!(output.status.code(), Some(1), "{said}");
            assert!(said.starts_with("untorn-mount: ") && said.contains(words) && said.lines().count() == 1, "{said}");
        };
        let path = |path: &Path| path.to_str().unwrap().to_owned();
        let store = "/tmp/untorn-memory";
        says(&[store, &path(&at.join("none"))], "does not exist; make it: mkdir");
        fs::write(at.join("file"), "").unwrap();
        says(&[store, &path(&at.join("file"))], "is no directory");
        says(&[store, &path(&at)], "is not empty");
        fs::remove_file(at.join("file")).unwrap();
        says(&[&path(&at.join("below")), &path(&at)], "one contains the other");
        says(&["umount", &path(&at)], "nothing is mounted at");
        says(&[store, &path(&at), "-o", "ro"], "the option `ro` is not known");
        place.mount();
        says(&[store, &path(&at)], "is a mount point already");
        assert!(place.umount().status.success());
        says(&["umount", "/proc"], "is a mount of type proc");
        if place.uid != 0 {
            let output = place
                .command("env")
                .arg("PATH=/nowhere")
                .arg(&place.program)
                .args([store, &path(&at)])
                .output()
                .unwrap();
            assert!(text(&output.stderr).contains("install the package fuse3"), "{output:?}");
        }
    }
}

#[test]
fn what_is_on_no_mount_cannot_be_synced() {
    for place in Place::all() {
        fs::write(place.dir.path().join("file"), "").unwrap();
        let paths = [place.dir.path().to_owned(), place.dir.path().join("file")];
        place.mount();
        place.sh("echo x > f; mkdir d");
        for path in [place.at(), place.at().join("d"), place.at().join("f")] {
            assert!(place.run(&["sync", path.to_str().unwrap()]).status.success());
        }
        let file = paths[1].to_str().unwrap();
        for words in [&["sync", paths[0].to_str().unwrap()][..], &["sync", file], &["sync", file, file]] {
            let output = place.run(words);
            assert_eq!(output.status.code(), Some(1));
            assert!(text(&output.stderr).contains("is on no mount of Untorn's"), "{output:?}");
        }
        assert!(place.umount().status.success());
    }
}

#[test]
fn another_user_does_not_unmount() {
    if !can_mount() {
        return;
    }
    let place = Place::of(0);
    place.mount();
    let other = Command::new("setpriv")
        .args(["--reuid", "65534", "--regid", "65534", "--clear-groups"])
        .arg(&place.program)
        .arg("umount")
        .arg(place.at())
        .output()
        .unwrap();
    assert_eq!(other.status.code(), Some(1));
    assert!(text(&other.stderr).contains("is a mount of another user"), "{other:?}");
    assert!(place.mounted() && place.umount().status.success());
}

#[test]
fn the_foreground_ends_by_a_signal() {
    for place in Place::all() {
        let mut command = place.command(&place.program);
        let mut daemon = command
            .args(["--foreground", "/tmp/untorn-memory"])
            .arg(place.at())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        place.wait("mounted", Place::mounted);
        let pid = rustix::process::Pid::from_child(&daemon);
        place.wait("answers", |place| place.command("test").arg("-d").arg(place.at()).status().unwrap().success());
        place.sh("echo x > f");
        rustix::process::kill_process(pid, rustix::process::Signal::INT).unwrap();
        assert!(daemon.wait().unwrap().success());
        assert!(!place.mounted());
    }
}
