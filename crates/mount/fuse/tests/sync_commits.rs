//! `sync` and `syncfs` of any program commit if root has chosen that (`-o sync_commits`), and else do not.

mod common;

use common::place::{NOBODY, Place, said};
use common::{can_mount, one_at_a_time};
use parking_lot::MutexGuard;
use rustix::process::{Pid, Signal, kill_process};
use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::thread;
use std::time::{Duration, Instant};

/// Everything that must end ends within this time. A `sync` writes the dirty pages of the whole machine.
const PATIENCE: Duration = Duration::from_secs(120);
/// A process that still waits after this time counts as waiting.
const MOMENT: Duration = Duration::from_millis(300);

/// A store and a mount point of root's.
struct Mounted {
    place: Place,
    _turn: MutexGuard<'static, ()>,
}

impl Mounted {
    fn new() -> Option<Mounted> {
        if !can_mount() || !PathBuf::from("/dev/loop-control").exists() {
            eprintln!("skipped: needs root and loop devices");
            return None;
        }
        let _turn = one_at_a_time();
        let place = Place::of(0);
        fs::create_dir(place.at("mnt")).unwrap();
        Some(Mounted { place, _turn })
    }

    fn mount(&self, options: &[&str]) {
        self.place.done(&[options, &["store", "mnt"]].concat());
    }

    fn at(&self, name: &str) -> PathBuf {
        self.place.at("mnt").join(name)
    }

    fn umount(&self) -> Output {
        self.place.done(&["umount", "mnt"])
    }

    fn processes(&self, supervised: Option<bool>) -> Vec<Pid> {
        let store = self.place.at("store");
        let of = |entry: fs::DirEntry| {
            let pid = Pid::from_raw(entry.file_name().to_str()?.parse().ok()?)?;
            let words = fs::read(entry.path().join("cmdline")).ok()?;
            let words: Vec<&[u8]> = words.split(|byte| *byte == 0).collect();
            let is_meant = supervised.is_none_or(|of| of == words.contains(&&b"--supervised"[..]));
            (is_meant && words.contains(&store.as_os_str().as_encoded_bytes())).then_some(pid)
        };
        fs::read_dir("/proc").unwrap().filter_map(|entry| of(entry.ok()?)).collect()
    }

    fn signal(&self, signal: Signal) {
        for pid in self.processes(None) {
            // The process may have ended just now.
            let _ = kill_process(pid, signal);
        }
    }

    /// Kills the daemon and its supervisor, and waits for their end.
    fn kill(&self) {
        while !self.processes(None).is_empty() {
            self.signal(Signal::KILL);
            thread::yield_now();
        }
    }

    /// Number of loop devices for the store.
    fn devices(&self) -> usize {
        let store = self.place.at("store");
        let names = fs::read_dir("/sys/block").unwrap().map(|entry| entry.unwrap().path().join("loop/backing_file"));
        names.filter_map(|of| fs::read_to_string(of).ok()).filter(|of| of.contains(store.to_str().unwrap())).count()
    }

    fn wait_until_no_device(&self) {
        let end = Instant::now() + PATIENCE;
        while self.devices() > 0 {
            assert!(Instant::now() < end, "the loop device stays");
            thread::sleep(Duration::from_millis(10));
        }
    }

    /// A file whose first contents are committed and whose second contents are not. It is open for writing, so that the
    /// timer does not commit it.
    fn changed_file(&self) -> File {
        let file = OpenOptions::new().create(true).truncate(false).write(true).open(self.at("f")).unwrap();
        file.write_all_at(b"first ", 0).unwrap();
        self.place.done(&["sync", "mnt"]);
        file.write_all_at(b"second", 0).unwrap();
        file
    }

    /// The file's contents after a kill of all processes of the mount.
    fn after_a_kill(&self, file: File) -> String {
        self.kill();
        drop(file);
        self.umount();
        self.wait_until_no_device();
        self.mount(&[]);
        let found = fs::read_to_string(self.at("f")).unwrap();
        self.umount();
        found
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        self.kill();
        while untorn_mount::mounts::mount_point::mounted_at(&self.place.at("mnt")).unwrap().is_some() {
            let _ = untorn_mount::mounts::mount_point::detach(&self.place.at("mnt"));
        }
    }
}

/// `sync` of everything, or `syncfs` of one file system.
fn sync(of: Option<&PathBuf>) -> Command {
    let mut command = Command::new("sync");
    command.stdin(Stdio::null()).stderr(Stdio::piped());
    if let Some(of) = of {
        command.arg("--file-system").arg(of);
    }
    command
}

fn end(mut child: Child, what: &str) -> Output {
    let end = Instant::now() + PATIENCE;
    while child.try_wait().unwrap().is_none() {
        assert!(Instant::now() < end, "{what} does not end");
        thread::sleep(Duration::from_millis(10));
    }
    child.wait_with_output().unwrap()
}

#[test]
fn sync_and_syncfs_commit_everything() {
    let Some(mounted) = Mounted::new() else { return };
    for (options, whole, expected) in [
        (&["-o", "sync_commits"][..], false, "second"),
        (&["-o", "sync_commits"], true, "second"),
        (&["-o", "sync_commits", "--commit=store", "--no-supervisor"], false, "second"),
        (&[], false, "first "),
        (&[], true, "first "),
    ] {
        mounted.mount(options);
        let file = mounted.changed_file();
        let at = mounted.at("f");
        let done = end(sync((!whole).then_some(&at)).spawn().unwrap(), "sync");
        assert!(done.status.success(), "{options:?}: {}", said(&done));
        assert_eq!(mounted.after_a_kill(file), expected, "{options:?}, whole: {whole}");
    }
}

#[test]
fn the_mount_is_told_of_like_another() {
    let Some(mounted) = Mounted::new() else { return };
    mounted.mount(&["-o", "nosuid,sync_commits"]);
    assert_eq!(mounted.devices(), 1);
    fs::write(mounted.at("f"), "x").unwrap();
    assert_eq!(fs::metadata(mounted.at("f")).unwrap().blksize(), 4096);
    let status =
        |json: &[&str]| String::from_utf8(mounted.place.done(&[&["status", "mnt"], json].concat()).stdout).unwrap();
    let (text, json) = (status(&[]), status(&["--json"]));
    let store = mounted.place.at("store");
    assert!(text.contains(store.to_str().unwrap()) && text.contains("`sync` and `syncfs` commit everything"), "{text}");
    assert!(json.contains("\"sync_commits\": true") && json.contains(store.to_str().unwrap()), "{json}");
    mounted.place.refused(&["store", "mnt"], "is a mount point already");
    mounted.place.done(&["check", "mnt"]);
    assert!(mounted.umount().stdout.is_empty());
    mounted.wait_until_no_device();
    mounted.mount(&["-o", "sync_commits"]);
    assert_eq!(fs::read_to_string(mounted.at("f")).unwrap(), "x");
    mounted.kill();
    assert!(mounted.place.run(&["status", "mnt"]).stdout.starts_with(b"mount"), "a dead mount is found");
    // The next mount removes the dead one, with its device.
    mounted.mount(&["-o", "sync_commits"]);
    let end = Instant::now() + PATIENCE;
    while mounted.devices() > 1 {
        assert!(Instant::now() < end, "the loop device stays");
    }
    // Ended by a signal, as a service is.
    mounted.signal(Signal::TERM);
    mounted.wait_until_no_device();
    while !mounted.processes(None).is_empty() {
        assert!(Instant::now() < end, "the daemon does not end");
    }
}

#[test]
fn a_replaced_daemon_answers_a_sync_that_waits() {
    let Some(mounted) = Mounted::new() else { return };
    mounted.mount(&["-o", "sync_commits"]);
    let (stop, rounds) = (AtomicBool::new(false), AtomicUsize::new(0));
    thread::scope(|scope| {
        let syncing = scope.spawn(|| {
            let mut file = mounted.changed_file();
            for round in 0.. {
                file.write_all_at(format!("{round:06}").as_bytes(), 0).unwrap();
                let done = end(sync(Some(&mounted.at("f"))).spawn().unwrap(), "syncfs");
                assert!(done.status.success(), "{}", said(&done));
                rounds.store(round + 1, SeqCst);
                if stop.load(SeqCst) {
                    return (round, file);
                }
                file = OpenOptions::new().write(true).open(mounted.at("f")).unwrap();
            }
            unreachable!()
        });
        for kill in 0..10 {
            // Avoids short lives in a row, after which the supervisor gives up.
            rustix::fs::statfs(mounted.place.at("mnt")).unwrap();
            let (before, end) = (rounds.load(SeqCst), Instant::now() + PATIENCE);
            while rounds.load(SeqCst) == before && !syncing.is_finished() {
                assert!(Instant::now() < end, "the syncs wait");
                thread::sleep(Duration::from_millis(1));
            }
            thread::sleep(if kill % 5 == 4 { Duration::from_secs(3) } else { MOMENT });
            let daemons = mounted.processes(Some(true));
            assert!(!daemons.is_empty(), "there is no daemon");
            daemons.into_iter().for_each(|pid| kill_process(pid, Signal::KILL).unwrap_or(()));
        }
        stop.store(true, SeqCst);
        let (round, file) = syncing.join().unwrap();
        assert_eq!(mounted.after_a_kill(file), format!("{round:06}"));
    });
}

/// A process that waits for a hanging daemon waits until the daemon is killed, or the connection is cut.
#[test]
fn a_hanging_daemon_holds_sync_up_until_it_is_killed() {
    if Command::new("python3").arg("-V").output().is_err() {
        eprintln!("skipped: needs python3");
        return;
    }
    let Some(mounted) = Mounted::new() else { return };
    for cut in [false, true] {
        mounted.mount(&["-o", "sync_commits"]);
        let file = mounted.changed_file();
        let at = mounted.at("f");
        let same = File::open(mounted.at("")).unwrap();
        mounted.signal(Signal::STOP);
        let mut waiting = [sync(None).spawn().unwrap(), sync_of(&same)];
        thread::sleep(MOMENT);
        assert!(waiting[1].try_wait().unwrap().is_none(), "it waits for {}", at.display());
        match cut {
            true => {
                // It returns that the mount is busy.
                let _ = rustix::mount::unmount(mounted.place.at("mnt"), rustix::mount::UnmountFlags::FORCE);
            }
            false => mounted.kill(),
        }
        let [whole, one] = waiting.map(|waiting| end(waiting, "sync"));
        assert!(whole.status.success(), "sync tells of no errors: {}", said(&whole));
        assert!(!one.status.success(), "and syncfs does");
        drop(same);
        assert_eq!(mounted.after_a_kill(file), "first ");
    }
}

/// `syncfs` on an open descriptor: the command would first ask the mount for a file.
fn sync_of(open: &File) -> Child {
    let mut command = Command::new("python3");
    command.args(["-c", "import ctypes, sys; sys.exit(-ctypes.CDLL(None).syncfs(0))"]);
    command.stdin(open.try_clone().unwrap()).stderr(Stdio::piped()).spawn().unwrap()
}

#[test]
fn it_is_refused_where_it_cannot_be() {
    let Some(mounted) = Mounted::new() else { return };
    let user = Place::of(NOBODY);
    fs::create_dir(user.at("mnt")).unwrap();
    user.give("mnt");
    user.refused(&["-o", "sync_commits", "store", "mnt"], "is for root");
    user.refused(&["-o", "sync_commits", "store", "mnt"], "untorn sync");
    assert!(!user.at("store").exists());
    // As in a container with /dev/fuse, but without a loop device.
    let devices = mounted.place.at("dev");
    fs::create_dir(&devices).unwrap();
    let script = "cp -a /dev/null /dev/fuse dev && mount --bind dev /dev && exec ./program -o sync_commits store mnt";
    let output =
        Command::new("unshare").args(["--mount", "sh", "-ec", script]).current_dir(mounted.place.at("")).output();
    let output = output.unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(
        said(&output).contains("needs a loop device") && said(&output).contains("untorn sync"),
        "{}",
        said(&output)
    );
    let long = "x".repeat(200);
    fs::create_dir(mounted.place.at(&long)).unwrap();
    mounted.place.refused(&["-o", "sync_commits", &format!("{long}/{long}"), "mnt"], "249 bytes");
}
