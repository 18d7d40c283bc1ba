//! Transactions of programs on a mount, by the library: committed, aborted, and left by programs that die.

mod common;

use common::can_mount;
use rustix::process::{Pid, Signal, kill_process};
use std::fs::{self, File, OpenOptions};
use std::io::{Read, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};
use tempfile::TempDir;
use untorn::on_mount::{Transaction, syncv};
use untorn_mount::fuse::kernel;

struct Mount {
    dir: TempDir,
    store: &'static str,
}

impl Mount {
    fn new() -> Option<Mount> {
        if !can_mount() {
            return None;
        }
        Some(Mount::in_store(tempfile::tempdir().unwrap(), "store"))
    }

    fn in_store(dir: TempDir, store: &'static str) -> Mount {
        let mount = Mount { dir, store };
        fs::create_dir(mount.at("")).unwrap();
        mount.untorn(&[&mount.dir.path().join(mount.store), &mount.at("")]);
        mount
    }

    fn at(&self, name: &str) -> PathBuf {
        self.dir.path().canonicalize().unwrap().join("mnt").join(name)
    }

    fn untorn(&self, arguments: &[&Path]) {
        let done = Command::new(env!("CARGO_BIN_EXE_untorn-mount")).args(arguments).status().unwrap();
        assert!(done.success(), "{arguments:?}");
    }

    /// A file that programs have synced.
    fn synced(&self, name: &str, contents: &[u8]) -> File {
        fs::write(self.at(name), contents).unwrap();
        let file = self.open(name);
        file.sync_all().unwrap();
        file
    }

    fn open(&self, name: &str) -> File {
        OpenOptions::new().read(true).write(true).open(self.at(name)).unwrap()
    }

    /// The supervisor's process, or the daemon's if there is no supervisor; `None` if neither lives.
    fn process(&self) -> Option<Pid> {
        let store = self.dir.path().join(self.store);
        let of = |entry: fs::DirEntry| {
            let pid = Pid::from_raw(entry.file_name().to_str()?.parse().ok()?)?;
            let words = fs::read(entry.path().join("cmdline")).ok()?;
            let words: Vec<&[u8]> = words.split(|byte| *byte == 0).collect();
            let is = words.contains(&store.as_os_str().as_encoded_bytes()) && !words.contains(&&b"--supervised"[..]);
            is.then_some(pid)
        };
        fs::read_dir("/proc").unwrap().find_map(|entry| of(entry.ok()?))
    }

    /// The state of a file after an unmount, which leaves the last commits.
    fn after_umount(&self, name: &str) -> Vec<u8> {
        self.untorn(&["umount".as_ref(), &self.at("")]);
        self.untorn(&[&self.dir.path().join(self.store), &self.at("")]);
        fs::read(self.at(name)).unwrap()
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        let at = self.at("");
        let _ = Command::new(env!("CARGO_BIN_EXE_untorn-mount")).arg("umount").arg(&at).stderr(Stdio::null()).status();
        while untorn_mount::mounts::mount_point::mounted_at(&at).unwrap().is_some() {
            let _ = untorn_mount::mounts::mount_point::detach(&at);
        }
    }
}

fn errno(error: &untorn::Error) -> Option<i32> {
    match error {
        untorn::Error::Io { source, .. } => source.raw_os_error(),
        _ => None,
    }
}

#[test]
fn a_transaction_is_committed_or_given_up_for_every_program() {
    let Some(mount) = Mount::new() else { return };
    let (a, b) = (mount.synced("a", b"old"), mount.synced("b", b"long contents"));
    // SAFETY: nobody truncates the file while it is mapped.
    let mapped = unsafe { memmap2::MmapMut::map_mut(&b).unwrap() };
    let mut txn = Transaction::begin(&a).unwrap();
    txn.add(&b).unwrap();
    a.write_all_at(b"newer and longer", 0).unwrap();
    b.set_len(4).unwrap();
    drop(mapped);
    let seen = || (fs::read(mount.at("a")).unwrap(), fs::read(mount.at("b")).unwrap());
    assert_eq!(seen(), (b"newer and longer".to_vec(), b"long".to_vec()), "others see it");
    assert_eq!(a.sync_all().unwrap_err().raw_os_error(), Some(libc::EBUSY));
    assert!(matches!(Transaction::begin(&b), Err(untorn::Error::InTransaction { .. })));
    txn.abort().unwrap();
    assert_eq!(seen(), (b"old".to_vec(), b"long contents".to_vec()));
    assert_eq!((a.metadata().unwrap().len(), b.metadata().unwrap().len()), (3, 13));

    // Appending continues where the file ends now.
    let mut txn = Transaction::begin(&a).unwrap();
    txn.add(&b).unwrap();
    a.write_all_at(b"new", 0).unwrap();
    // SAFETY: nobody truncates the file while it is mapped.
    let mut mapped = unsafe { memmap2::MmapMut::map_mut(&b).unwrap() };
    mapped[..4].copy_from_slice(b"LONG");
    txn.commit().unwrap();
    // A drop aborts the transaction.
    let dropped = Transaction::begin(&a).unwrap();
    a.write_all_at(b"half", 0).unwrap();
    drop(dropped);
    drop((mapped, a, b));
    assert_eq!(mount.after_umount("a"), b"new");
    assert_eq!(fs::read(mount.at("b")).unwrap(), b"LONG contents");
}

#[test]
fn several_files_are_committed_as_one_and_others_are_refused() {
    let Some(mount) = Mount::new() else { return };
    let (a, b) = (mount.synced("a", b"old"), mount.synced("b", b"old"));
    a.write_all_at(b"new", 0).unwrap();
    b.write_all_at(b"new", 0).unwrap();
    syncv(&[&a, &b]).unwrap();
    let reader = File::open(mount.at("a")).unwrap();
    assert_eq!(errno(&syncv(&[&reader]).unwrap_err()), Some(libc::EBADF));
    let elsewhere = tempfile::tempfile().unwrap();
    assert!(matches!(Transaction::begin(&elsewhere), Err(untorn::Error::Invalid { .. })));
    b.write_all_at(b"more", 0).unwrap();
    assert!(syncv(&[&b, &elsewhere]).is_err());
    b.sync_all().unwrap();
    drop((a, b, reader));
    assert_eq!(mount.after_umount("a"), b"new");
    assert_eq!(fs::read(mount.at("b")).unwrap(), b"more");
}

/// A small file system for the store of a mount, which is full in the end.
struct Small(PathBuf);

impl Small {
    fn fill(&self) {
        for size in [1 << 20, 1 << 12] {
            let mut file = OpenOptions::new().append(true).create(true).open(self.0.join("filler")).unwrap();
            while file.write_all(&vec![1; size]).is_ok() {}
        }
    }
}

impl Drop for Small {
    fn drop(&mut self) {
        let _ = rustix::mount::unmount(&self.0, rustix::mount::UnmountFlags::DETACH);
    }
}

/// Overwrites two files on a full disk by transactions until one finds no room; false if none does, because the log got
/// its room before the disk was full.
fn is_refused_on_a_full_disk(len: usize) -> bool {
    let dir = tempfile::tempdir().unwrap();
    let (small, flags) = (Small(dir.path().join("store")), rustix::mount::MountFlags::empty());
    fs::create_dir(&small.0).unwrap();
    rustix::mount::mount("none", &small.0, "tmpfs", flags, c"size=100m").unwrap();
    let mount = Mount::in_store(dir, "store/store");
    let files = ["a", "b"].map(|name| mount.synced(name, &vec![b'0'; len]));
    let is_refused = (1..=200_u8).any(|version| {
        let mut txn = Transaction::begin(&files[0]).unwrap();
        txn.add(&files[1]).unwrap();
        files.iter().for_each(|file| file.write_all_at(&vec![version; len], 0).unwrap());
        small.fill();
        let done = txn.commit();
        if done.is_err() {
            assert!(matches!(done, Err(untorn::Error::NoSpace { .. })), "{done:?}");
            assert!(matches!(txn.commit(), Err(untorn::Error::NoSpace { .. })), "still");
            fs::remove_file(small.0.join("filler")).unwrap();
            // The error of a try that began before there was room may be reported first.
            let started = Instant::now();
            while let Err(e) = txn.commit() {
                assert!(matches!(e, untorn::Error::NoSpace { .. }), "{e}");
                assert!(started.elapsed() < Duration::from_secs(120), "there is room: {e}");
            }
            assert!(txn.abort().unwrap_err().to_string().contains("has ended"));
            files.iter().for_each(|file| file.sync_all().unwrap());
        }
        for file in &files {
            let mut found = vec![0; len];
            file.read_exact_at(&mut found, 0).unwrap();
            assert!(found == vec![version; len], "{len} bytes, version {version}: it was given up");
        }
        done.is_err()
    });
    drop(files);
    mount.untorn(&["umount".as_ref(), &mount.at("")]);
    is_refused
}

/// The store refuses large commits, and small ones wait in the log.
#[test]
fn one_that_finds_no_room_goes_on() {
    // Before Linux 6.6 tmpfs has no extended attributes.
    if !rustix::process::geteuid().is_root() || !can_mount() || kernel::version() < (6, 6) {
        return eprintln!("skipped: a file system that is full needs root and Linux 6.6");
    }
    for len in [6_000_000, 50_000, 4000] {
        assert!((0..50).any(|_| is_refused_on_a_full_disk(len)), "no commit of {len} bytes found the disk full");
    }
}

/// Takes away the room that the log has reserved.
fn punch_the_log(store: &Path) {
    for entry in fs::read_dir(store.join(".untorn/journal")).unwrap() {
        let path = entry.unwrap().path();
        let bytes = fs::read(&path).unwrap();
        let used = bytes.iter().rposition(|byte| *byte != 0).map_or(0, |last| (last / 4096 + 1) * 4096);
        if path.file_name().unwrap().as_encoded_bytes().starts_with(b"segment") && used < bytes.len() {
            let flags = rustix::fs::FallocateFlags::PUNCH_HOLE | rustix::fs::FallocateFlags::KEEP_SIZE;
            let file = OpenOptions::new().write(true).open(path).unwrap();
            rustix::fs::fallocate(&file, flags, used as u64, (bytes.len() - used) as u64).unwrap();
        }
    }
}

/// If nothing can be committed any more, an unmount succeeds all the same.
#[test]
fn a_mount_whose_log_failed_ends_and_says_so() {
    // Before Linux 6.6 tmpfs has no extended attributes.
    if !rustix::process::geteuid().is_root() || !can_mount() || kernel::version() < (6, 6) {
        return eprintln!("skipped: a file system that is full needs root and Linux 6.6");
    }
    let dir = tempfile::tempdir().unwrap();
    let (small, flags) = (Small(dir.path().join("store")), rustix::mount::MountFlags::empty());
    fs::create_dir(&small.0).unwrap();
    rustix::mount::mount("none", &small.0, "tmpfs", flags, c"size=100m").unwrap();
    let mount = Mount::in_store(dir, "store/store");
    let a = mount.synced("a", &[0; 100]);
    let more = mount.synced("more", b"");
    for n in 0..100 {
        more.write_all_at(&[1; 50_000], n * 50_000).unwrap();
        more.sync_all().unwrap();
    }
    let mut acknowledged = 0;
    let failed = (1..=200_u8).find(|version| {
        punch_the_log(&small.0.join("store"));
        small.fill();
        a.write_all_at(&[*version; 100], 0).unwrap();
        match a.sync_all() {
            Ok(()) => acknowledged = *version,
            Err(e) => assert!(matches!(e.raw_os_error(), Some(libc::EIO | libc::ENOSPC)), "{e}"),
        }
        untorn_mount::mounts::mount_status::has_failed(&mount.at(""))
    });
    let failed = failed.expect("the log finds no room");
    let said = |command: &str| Command::new(env!("CARGO_BIN_EXE_untorn-mount")).arg(command).arg(mount.at("")).output();
    let status = String::from_utf8(said("status").unwrap().stdout).unwrap();
    assert!(status.contains("a write or flush of the log failed"), "{status}");
    drop((a, more));
    let umount = said("umount").unwrap();
    let told = String::from_utf8(umount.stderr).unwrap();
    assert!(told.contains("is unmounted, but a write or flush of its log had failed") && !umount.status.success());
    fs::remove_file(small.0.join("filler")).unwrap();
    mount.untorn(&[&mount.dir.path().join(mount.store), &mount.at("")]);
    let found = fs::read(mount.at("a")).unwrap();
    assert!((acknowledged..=failed).any(|version| found == [version; 100]), "{acknowledged} to {failed}");
    mount.untorn(&["umount".as_ref(), &mount.at("")]);
}

const DIES: &str = "UNTORN_TRANSACTION_DIES";

/// The program that dies, if the variable is set.
#[test]
fn program_that_dies() {
    let Ok(at) = std::env::var(DIES) else { return };
    let open = |name: &str| OpenOptions::new().read(true).write(true).open(Path::new(&at).join(name)).unwrap();
    let (a, b) = (open("a"), open("b"));
    let mut txn = Transaction::begin(&a).unwrap();
    txn.add(&b).unwrap();
    // SAFETY: nobody truncates the file while it is mapped.
    let mut mapped = unsafe { memmap2::MmapMut::map_mut(&b).unwrap() };
    a.write_all_at(b"half of it, and longer", 0).unwrap();
    mapped[..3].copy_from_slice(b"two");
    println!("ready");
    std::thread::sleep(Duration::from_secs(600));
}

#[test]
fn what_a_program_leaves_that_dies_is_given_up() {
    let Some(mount) = Mount::new() else { return };
    drop((mount.synced("a", b"old"), mount.synced("b", b"old")));
    let mut command = untorn_testkit::again!("program_that_dies");
    command.env(DIES, mount.at("")).stdout(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let (mut said, mut byte) = (Vec::new(), [0]);
    while !said.ends_with(b"ready\n") {
        assert_eq!(child.stdout.as_mut().unwrap().read(&mut byte).unwrap(), 1, "it ended");
        said.push(byte[0]);
    }
    child.kill().unwrap();
    child.wait().unwrap();
    // Nobody waits for the abort, so it happens a little later.
    let started = Instant::now();
    let seen = || (fs::read(mount.at("a")).unwrap(), fs::read(mount.at("b")).unwrap());
    while seen() != (b"old".to_vec(), b"old".to_vec()) {
        assert!(started.elapsed() < Duration::from_secs(120), "{:?}", seen());
        std::thread::sleep(Duration::from_millis(20));
    }
    for name in ["a", "b"] {
        mount.open(name).sync_all().unwrap();
    }
    assert_eq!(mount.after_umount("a"), b"old");
    assert_eq!(fs::read(mount.at("b")).unwrap(), b"old");
}

/// Programs continue after a refused unmount, and after a signal, which detaches the mount.
#[test]
fn what_is_given_up_has_its_old_size_also_when_the_mount_is_about_to_end() {
    let Some(mount) = Mount::new() else { return };
    let a = mount.synced("a", b"old");
    let give_up = |when: &str| {
        let txn = Transaction::begin(&a).unwrap();
        a.write_all_at(b"newer and longer", 0).unwrap();
        txn.abort().unwrap();
        assert_eq!(a.metadata().unwrap().len(), 3, "{when}");
        let mut found = [0; 16];
        assert_eq!((a.read_at(&mut found, 0).unwrap(), &found[..3]), (3, &b"old"[..]), "{when}");
    };
    let umount = || Command::new(env!("CARGO_BIN_EXE_untorn-mount")).arg("umount").arg(mount.at("")).output().unwrap();
    let refused = umount();
    assert!(!refused.status.success() && String::from_utf8_lossy(&refused.stderr).contains("a program may"));
    give_up("after a refused unmount");
    kill_process(mount.process().unwrap(), Signal::TERM).unwrap();
    let started = Instant::now();
    let wait = |what: &str, is: &dyn Fn() -> bool| {
        while !is() {
            assert!(started.elapsed() < Duration::from_secs(120), "{what}");
            std::thread::sleep(Duration::from_millis(10));
        }
    };
    wait("it is detached", &|| !mount.at("a").exists());
    // The steps after the detaching may not be done yet.
    std::thread::sleep(Duration::from_millis(100));
    give_up("after a signal");
    a.write_all_at(b"new", 0).unwrap();
    a.sync_all().unwrap();
    drop(a);
    wait("it ends with its last file", &|| mount.process().is_none());
    mount.untorn(&[&mount.dir.path().join(mount.store), &mount.at("")]);
    assert_eq!(fs::read(mount.at("a")).unwrap(), b"new");
}

#[test]
fn the_same_with_the_steps_for_an_older_kernel() {
    common::again_as_on_an_older_kernel("6.12");
}
