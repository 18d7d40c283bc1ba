//! The program on a store: after a kill of the daemon committed changes are there, and after an unmount all changes.

mod common;

use common::can_mount;
use std::fs::{self, OpenOptions};
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::thread;
use std::time::Duration;
use tempfile::TempDir;
use untorn_testkit::seed;

struct Place {
    dir: TempDir,
}

impl Place {
    fn new() -> Option<Place> {
        if !can_mount() {
            return None;
        }
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir(dir.path().join("mnt")).unwrap();
        Some(Place { dir })
    }

    fn store(&self) -> PathBuf {
        self.dir.path().canonicalize().unwrap().join("store")
    }

    fn at(&self, name: &str) -> PathBuf {
        self.dir.path().canonicalize().unwrap().join("mnt").join(name)
    }

    fn program() -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_untorn-mount"));
        command.stdin(Stdio::null());
        command
    }

    fn try_mount(&self, options: &[&str]) -> Output {
        Place::program().args(options).arg(self.store()).arg(self.dir.path().join("mnt")).output().unwrap()
    }

    fn mount(&self) -> String {
        self.mount_with(&[])
    }

    fn mount_with(&self, options: &[&str]) -> String {
        let output = self.try_mount(options);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success(), "{said}");
        said
    }

    fn umount(&self) {
        let output = Place::program().arg("umount").arg(self.dir.path().join("mnt")).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    }

    /// Kills the daemon and its supervisor, and waits for their end; the mount is dead then.
    fn kill(&self) {
        while let Some(daemon) = self.daemon() {
            let daemon = rustix::process::Pid::from_raw(daemon).unwrap();
            // The process may have ended just now.
            let _ = rustix::process::kill_process(daemon, rustix::process::Signal::KILL);
            std::thread::yield_now();
        }
    }

    fn daemon(&self) -> Option<i32> {
        let store = self.store();
        let of = |entry: fs::DirEntry| -> Option<i32> {
            let pid = entry.file_name().to_str()?.parse().ok()?;
            let words = fs::read(entry.path().join("cmdline")).ok()?;
            words.split(|byte| *byte == 0).any(|word| word == store.as_os_str().as_encoded_bytes()).then_some(pid)
        };
        fs::read_dir("/proc").unwrap().filter_map(|entry| of(entry.ok()?)).next()
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        if self.daemon().is_some() {
            self.kill();
        }
        let at = self.at("").components().as_path().to_owned();
        while untorn_mount::mounts::mount_point::mounted_at(&at).unwrap().is_some() {
            let _ = untorn_mount::mounts::mount_point::detach(&at);
        }
    }
}

/// Unmounts. A child that another test is just spawning may hold a copy of a file that was open here.
fn unmount(at: &Path) {
    let is_done = || Command::new("umount").arg(at).status().unwrap().success();
    let tries = (0..2400).take_while(|_| !is_done()).inspect(|_| thread::sleep(Duration::from_millis(50)));
    assert!(tries.count() < 2400, "{} stays busy", at.display());
}

/// `umount` does not wait for the daemon: the next mount of the store waits until it is closed.
#[test]
fn a_store_is_mounted_again_right_after_umount() {
    let Some(place) = Place::new() else { return };
    place.mount();
    for round in 0..5 {
        for n in 0..100 {
            fs::write(place.at(&format!("{n}")), format!("{round}")).unwrap();
        }
        unmount(&place.dir.path().join("mnt"));
        place.mount();
        assert_eq!(fs::read_to_string(place.at("99")).unwrap(), round.to_string());
    }
    place.umount();
}

/// Descriptors that were open at the start of the mount, such as the lock of a script, are not kept.
#[test]
fn a_daemon_keeps_no_lock_of_its_starter() {
    let Some(place) = Place::new() else { return };
    let script = "exec 9> lock; flock 9; \"$1\" store mnt; exec 9>&-; flock -n lock true";
    let mut shell = Command::new("sh");
    shell.args(["-ec", script, "sh", env!("CARGO_BIN_EXE_untorn-mount")]).current_dir(place.dir.path());
    let output = shell.stdin(Stdio::null()).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    place.umount();
}

/// The numbers of closed standard streams are not reused for lasting descriptors, neither of the store nor of the
/// device.
#[test]
fn a_daemon_that_begins_without_standard_streams_keeps_nothing_in_their_place() {
    let Some(place) = Place::new() else { return };
    let mut shell = Command::new("sh");
    shell.args(["-ec", "exec \"$1\" store mnt <&- >&- 2>&-", "sh", env!("CARGO_BIN_EXE_untorn-mount")]);
    assert!(shell.current_dir(place.dir.path()).status().unwrap().success());
    fs::write(place.at("f"), "contents").unwrap();
    fs::File::open(place.at("f")).unwrap().sync_all().unwrap();
    let owner = fs::read_to_string(place.store().join(".untorn/lock")).unwrap();
    for number in 0..3 {
        let link = fs::read_link(format!("/proc/{}/fd/{number}", owner.trim())).unwrap();
        assert!(!link.starts_with(place.store()) && link != Path::new("/dev/fuse"), "{number} is {}", link.display());
    }
    place.umount();
    place.mount();
    assert_eq!(fs::read_to_string(place.at("f")).unwrap(), "contents");
    place.umount();
}

/// The mount succeeds even if its note on `sync` cannot be written.
#[test]
fn a_mount_that_cannot_say_its_note_is_a_mount() {
    let Some(place) = Place::new() else { return };
    let full = || fs::File::options().write(true).open("/dev/full").unwrap();
    let mount = |errors: Stdio| {
        let mut command = Place::program();
        command.arg(place.store()).arg(place.dir.path().join("mnt")).stdout(full()).stderr(errors);
        let output = command.spawn().unwrap().wait_with_output().unwrap();
        assert!(output.status.success());
        place.umount();
        String::from_utf8_lossy(&output.stderr).into_owned()
    };
    assert!(mount(Stdio::piped()).contains("`sync` and `syncfs` commit nothing on "));
    mount(full().into());
}

#[test]
fn a_store_is_moved_while_it_is_mounted() {
    let Some(place) = Place::new() else { return };
    place.mount();
    let elsewhere = place.dir.path().join("elsewhere");
    fs::rename(place.store(), &elsewhere).unwrap();
    fs::create_dir(place.at("d")).unwrap();
    fs::write(place.at("d/f"), [1; 100_000]).unwrap();
    fs::File::open(place.at("d/f")).unwrap().sync_all().unwrap();
    assert!(rustix::fs::statvfs(place.at("")).unwrap().f_blocks > 0);
    place.umount();
    fs::rename(&elsewhere, place.store()).unwrap();
    place.mount();
    assert_eq!(fs::read(place.at("d/f")).unwrap(), [1; 100_000]);
    place.umount();
}

#[test]
fn everything_is_there_after_an_unmount() {
    let Some(place) = Place::new() else { return };
    assert!(place.mount().contains("a new store is made in"), "a new store is told of");
    fs::create_dir(place.at("d")).unwrap();
    let content: Vec<u8> = (0..500_000u32).map(|n| (n / 3) as u8).collect();
    fs::write(place.at("d/f"), &content).unwrap();
    fs::hard_link(place.at("d/f"), place.at("g")).unwrap();
    place.umount();
    assert!(!place.at("g").exists());
    assert_eq!(place.mount(), "", "and one that is there is not");
    assert_eq!(fs::read(place.at("g")).unwrap(), content);
    assert_eq!(fs::read(place.at("d/f")).unwrap(), content);
    let second = Place::program().arg(place.store()).arg(tempfile::tempdir().unwrap().path()).output().unwrap();
    let said = String::from_utf8_lossy(&second.stderr).into_owned();
    assert!(!second.status.success() && said.contains("in use"), "{said}");
    assert!(said.contains("it is mounted at"), "{said}");
    place.umount();
}

/// Each round updates two pages of a file that is mapped or written, and syncs; then begins an update that is not
/// synced.
#[test]
fn a_killed_daemon_leaves_the_last_commit() {
    let Some(place) = Place::new() else { return };
    place.mount();
    let file = OpenOptions::new().read(true).write(true).create_new(true).open(place.at("f")).unwrap();
    file.write_all_at(&[0; 16384], 0).unwrap();
    file.sync_all().unwrap();
    drop(file);
    for round in 1..=5u8 {
        let file = OpenOptions::new().read(true).write(true).open(place.at("f")).unwrap();
        file.write_all_at(&[round; 4096], 0).unwrap();
        file.write_all_at(&[round; 4096], 12288).unwrap();
        file.sync_data().unwrap();
        let mut replaced = fs::File::create(place.at("new")).unwrap();
        replaced.write_all(&[round; 5000]).unwrap();
        drop(replaced);
        fs::rename(place.at("new"), place.at("replaced")).unwrap();
        fs::File::open(place.at("")).unwrap().sync_all().unwrap();
        // Sent to the daemon, and not committed.
        file.write_all_at(&[99; 4096], 0).unwrap();
        let range = libc::SYNC_FILE_RANGE_WRITE | libc::SYNC_FILE_RANGE_WAIT_AFTER;
        // SAFETY: a system call on an open descriptor.
        assert_eq!(unsafe { libc::sync_file_range(std::os::fd::AsRawFd::as_raw_fd(&file), 0, 0, range) }, 0);
        place.kill();
        drop(file);
        place.mount();
        let content = fs::read(place.at("f")).unwrap();
        assert_eq!((content.len(), content[0], content[4095]), (16384, round, round), "round {round}");
        assert!(content[12288..].iter().all(|byte| *byte == round), "round {round}");
        assert_eq!(fs::read(place.at("replaced")).unwrap(), [round; 5000]);
        assert!(!place.at("new").exists());
    }
    place.umount();
}

/// Nobody waits for the end of a killed daemon: the store is mounted again at once, at the mount point of the dead
/// mount or at another one.
#[test]
fn a_store_is_mounted_again_right_after_a_kill() {
    let Some(place) = Place::new() else { return };
    let other = place.dir.path().canonicalize().unwrap().join("other");
    fs::create_dir(&other).unwrap();
    place.mount_with(&["--no-supervisor"]);
    for round in 0..40u64 {
        let file = fs::File::create(place.at("f")).unwrap();
        file.write_all_at(round.to_string().as_bytes(), 0).unwrap();
        file.sync_all().unwrap();
        // Much memory for the kernel to free when the daemon is killed.
        file.write_all_at(&vec![7; 8 << 20], 4096).unwrap();
        let daemon = rustix::process::Pid::from_raw(place.daemon().unwrap()).unwrap();
        rustix::process::kill_process(daemon, rustix::process::Signal::KILL).unwrap();
        if round % 2 == 0 {
            place.mount_with(&["--no-supervisor"]);
        } else {
            let output = Place::program().arg("--no-supervisor").arg(place.store()).arg(&other).output().unwrap();
            assert!(output.status.success(), "round {round}: {}", String::from_utf8_lossy(&output.stderr));
            assert_eq!(fs::read_to_string(other.join("f")).unwrap(), round.to_string());
            unmount(&other);
            place.mount_with(&["--no-supervisor"]);
        }
        drop(file);
        assert_eq!(fs::read_to_string(place.at("f")).unwrap(), round.to_string());
    }
    place.umount();
}

#[test]
fn directories_that_are_no_store_are_left_alone() {
    let Some(place) = Place::new() else { return };
    fs::create_dir(place.store()).unwrap();
    fs::write(place.store().join("mine"), "text").unwrap();
    let output = place.try_mount(&[]);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success() && said.contains("is not empty, and is not a store"), "{said}");
    assert_eq!(fs::read_dir(place.store()).unwrap().count(), 1);
}

#[test]
fn a_store_is_not_made_in_another_one() {
    let Some(place) = Place::new() else { return };
    place.mount();
    place.umount();
    let inside = place.store().join("in");
    let refused = || {
        let output = Place::program().arg(&inside).arg(place.dir.path().join("mnt")).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!output.status.success() && said.contains("lies in the store"), "{said}");
    };
    refused();
    assert!(!inside.exists());
    fs::create_dir(&inside).unwrap();
    refused();
    assert!(fs::read_dir(&inside).unwrap().next().is_none());
}

#[test]
fn git_and_sqlite_work_on_a_store_and_after_a_kill() {
    let Some(place) = Place::new() else { return };
    let tools = ["git", "sqlite3"].map(|tool| Command::new(tool).arg("--version").output().is_ok());
    if tools != [true, true] {
        eprintln!("skipped: needs git and sqlite3");
        return;
    }
    place.mount();
    let sh = |script: &str| {
        let mut command = Command::new("sh");
        let output = command.args(["-ec", script]).current_dir(place.at("")).env("HOME", "/nowhere").output().unwrap();
        assert!(output.status.success(), "{script}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    };
    sh("git init -q r; cd r; git config user.email a@b; git config user.name a; git config core.fsync all
        seq 10000 > f; git add .; git commit -qm one");
    sh(
        "sqlite3 d 'create table t (n); insert into t values (1)'; sqlite3 w 'pragma journal_mode=wal; create table t (n)'",
    );
    for round in 2..5 {
        sh(&format!("sqlite3 d 'insert into t values ({round})'; sqlite3 w 'insert into t values ({round})'"));
        place.kill();
        place.mount();
        assert_eq!(sh("sqlite3 d 'pragma integrity_check; select max(n) from t'"), format!("ok\n{round}\n"));
        assert_eq!(sh("sqlite3 w 'pragma integrity_check; select max(n) from t'"), format!("ok\n{round}\n"));
        sh("cd r; git fsck --strict");
        assert_eq!(sh("cd r; git log --format=%s"), "one\n");
    }
    place.umount();
}

/// Bytes around each write, so that no write begins or ends at a page.
const MARGIN: usize = 777;

/// A program writes, makes, renames and removes without ever syncing, until the daemon is killed. The effect of every
/// call that returned is there, and a call that was under way has its whole effect or none.
#[test]
fn with_commit_write_nothing_that_returned_is_lost() {
    let Some(place) = Place::new() else { return };
    let mut random = fastrand::Rng::with_seed(seed());
    let (written, named) = (AtomicU64::new(0), AtomicU64::new(0));
    place.mount_with(&["--commit=write"]);
    fs::write(place.at("f"), vec![0; (1 << 20) + 2 * MARGIN]).unwrap();
    fs::write(place.at("name 0"), "0").unwrap();
    for round in 0..12 {
        let len = [8, 40_000, 1020 << 10][round % 3];
        let update = |n: u64| -> std::io::Result<()> {
            let file = OpenOptions::new().write(true).open(place.at("f"))?;
            let bytes: Vec<u8> = n.to_le_bytes().into_iter().cycle().take(len).collect();
            // One call of write; `write_all_at` would repeat it after a short write.
            assert_eq!(file.write_at(&bytes, MARGIN as u64)?, len);
            written.store(n, SeqCst);
            let (before, new) = (place.at(&format!("name {}", n - 1)), place.at(&format!("name {n}")));
            let mut file = fs::File::create(place.at("new"))?;
            file.write_all(n.to_string().as_bytes())?;
            fs::rename(place.at("new"), new)?;
            named.store(n, SeqCst);
            fs::remove_file(before)
        };
        let kill_at = written.load(SeqCst) + random.u64(1..8);
        thread::scope(|scope| {
            let first = written.load(SeqCst) + 1;
            let program = scope.spawn(move || (first..).find_map(|n| update(n).err()));
            while written.load(SeqCst) < kill_at && !program.is_finished() {
                thread::yield_now();
            }
            place.kill();
            let error = program.join().unwrap().unwrap();
            let expected = [libc::ENOTCONN, libc::ECONNABORTED, libc::EIO].map(Some);
            assert!(expected.contains(&error.raw_os_error()), "{error}");
        });
        place.mount_with(&["--commit=write"]);
        let content = fs::read(place.at("f")).unwrap();
        let number = |at: usize| u64::from_le_bytes(content[at..at + 8].try_into().unwrap());
        let (found, returned) = (number(MARGIN), written.load(SeqCst));
        assert!((returned..=returned + 1).contains(&found), "round {round}: {found} is there, {returned} returned");
        assert!((MARGIN..MARGIN + len).step_by(8).all(|at| number(at) == found), "round {round}: torn");
        assert!(content[..MARGIN].iter().all(|byte| *byte == 0), "round {round}");
        let returned = named.load(SeqCst);
        let there = [returned, returned + 1].map(|n| fs::read_to_string(place.at(&format!("name {n}"))).ok());
        assert!(
            there.iter().any(Option::is_some) && there.iter().flatten().all(|text| !text.is_empty()),
            "round {round}: {returned} returned, {there:?} are there"
        );
        // Names and writes continue from the state that was found.
        let last = if there[1].is_some() { returned + 1 } else { returned };
        for entry in fs::read_dir(place.at("")).unwrap() {
            let path = entry.unwrap().path();
            if path != place.at("f") && path != place.at(&format!("name {last}")) {
                fs::remove_file(path).unwrap();
            }
        }
        let next = found.max(last);
        fs::rename(place.at(&format!("name {last}")), place.at(&format!("name {next}"))).unwrap();
        fs::write(place.at("f"), vec![0; (1 << 20) + 2 * MARGIN]).unwrap();
        written.store(next, SeqCst);
        named.store(next, SeqCst);
    }
    place.umount();
}

/// Two files, a mapping and a new name change together; one of them is synced.
#[test]
fn with_commit_store_one_sync_commits_all_files_and_nothing_else_does() {
    let Some(place) = Place::new() else { return };
    let options = ["--commit=store"];
    place.mount_with(&options);
    let open = |name: &str| OpenOptions::new().read(true).write(true).open(place.at(name)).unwrap();
    for name in ["written", "mapped"] {
        fs::write(place.at(name), [0; 8192]).unwrap();
    }
    fs::write(place.at("replaced"), [0]).unwrap();
    fs::File::open(place.at("")).unwrap().sync_all().unwrap();
    let change = |round: u8| {
        let (written, mapped) = (open("written"), open("mapped"));
        written.write_all_at(&[round; 8192], 0).unwrap();
        // SAFETY: nobody else has the file.
        let mut map = unsafe { memmap2::MmapMut::map_mut(&mapped).unwrap() };
        map.fill(round);
        fs::write(place.at("new"), [round]).unwrap();
        fs::rename(place.at("new"), place.at("replaced")).unwrap();
        (written, map)
    };
    for round in 1..=3u8 {
        let (written, map) = change(round);
        written.sync_data().unwrap();
        drop((written, map));
        drop(change(99));
        // Closed files and elapsed time are no reason for a commit.
        thread::sleep(std::time::Duration::from_millis(1200));
        place.kill();
        place.mount_with(&options);
        let found = ["written", "mapped", "replaced"].map(|name| fs::read(place.at(name)).unwrap());
        assert!(found.iter().flatten().all(|byte| *byte == round), "round {round}: {:?}", found.map(|bytes| bytes[0]));
        assert!(!place.at("new").exists());
    }
    drop(change(4));
    place.umount();
    place.mount();
    assert_eq!((fs::read(place.at("written")).unwrap()[0], fs::read(place.at("mapped")).unwrap()[9]), (4, 4));
    place.umount();
}

/// A process in a copy of the mount namespace keeps the mount there: `umount` says so, and waits for it.
#[test]
fn umount_says_who_has_the_mount_elsewhere() {
    let Some(place) = Place::new() else { return };
    place.mount();
    fs::write(place.at("f"), "committed").unwrap();
    let mut elsewhere = Command::new("unshare")
        .args(["--mount", "--propagation", "private", "sh", "-c", "echo there; read end"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut line = String::new();
    BufReader::new(elsewhere.stdout.take().unwrap()).read_line(&mut line).unwrap();
    assert_eq!(line, "there\n");
    let at = place.dir.path().join("mnt");
    let mut umount = Place::program().arg("umount").arg(&at).stderr(Stdio::piped()).spawn().unwrap();
    let mut told = BufReader::new(umount.stderr.take().unwrap());
    let mut line = String::new();
    told.read_line(&mut line).unwrap();
    // Other tests that run at the same time may have copies, too.
    assert!(line.contains("everything is committed") && line.contains("another mount namespace"), "{line}");
    assert!(!place.at("f").exists(), "unmounted here");
    drop(elsewhere.stdin.take());
    elsewhere.wait().unwrap();
    assert!(umount.wait().unwrap().success());
    place.mount();
    assert_eq!(fs::read_to_string(place.at("f")).unwrap(), "committed");
    place.umount();
}

/// A mount that fails leaves no new store, and an existing directory stays as it was.
#[test]
fn a_mount_that_fails_leaves_no_new_store() {
    use std::os::unix::fs::PermissionsExt;
    let Some(place) = Place::new() else { return };
    for how in [&[][..], &["--no-supervisor"], &["--foreground"], &["--foreground", "--no-supervisor"]] {
        for has_directory in [false, true] {
            if has_directory {
                fs::create_dir(place.store()).unwrap();
                fs::set_permissions(place.store(), fs::Permissions::from_mode(0o751)).unwrap();
            }
            // A device that is not FUSE's cannot be mounted.
            let mut command = Command::new("unshare");
            command.args(["-m", "sh", "-c", "mount --bind /dev/null /dev/fuse && exec \"$0\" \"$@\""]);
            command.arg(env!("CARGO_BIN_EXE_untorn-mount")).args(how).arg(place.store()).arg(place.at(""));
            let output = command.stdin(Stdio::null()).output().unwrap();
            let said = String::from_utf8_lossy(&output.stderr);
            assert!(!output.status.success() && said.contains("cannot mount at"), "{how:?}: {said}");
            // The new store is announced, and nothing but the error follows.
            assert_eq!(said.lines().count(), 2, "{how:?}: {said}");
            assert_eq!(place.store().exists(), has_directory, "{how:?}: {said}");
            if has_directory {
                assert!(fs::read_dir(place.store()).unwrap().next().is_none(), "{how:?}: {said}");
                assert_eq!(place.store().metadata().unwrap().permissions().mode() & 0o777, 0o751);
                fs::remove_dir(place.store()).unwrap();
            }
        }
    }
    // A store that was there before stays.
    place.mount();
    fs::write(place.at("file"), "text").unwrap();
    place.umount();
    let mut command = Command::new("unshare");
    command.args(["-m", "sh", "-c", "mount --bind /dev/null /dev/fuse && exec \"$0\" \"$@\""]);
    command.arg(env!("CARGO_BIN_EXE_untorn-mount")).arg(place.store()).arg(place.at(""));
    assert!(!command.stdin(Stdio::null()).output().unwrap().status.success());
    place.mount();
    assert_eq!(fs::read_to_string(place.at("file")).unwrap(), "text");
    place.umount();
}
