//! Access lists (ACL) on a mount: they look and work as on a plain file system.

mod common;

use common::can_mount;
use rustix::fs::{XattrFlags, lgetxattr, lremovexattr, lsetxattr};
use std::fs::{self, Permissions};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;
use std::process::Command;
use untorn_testkit::NOBODY;

const NONE: u32 = u32::MAX;
const ACCESS: &str = "system.posix_acl_access";
const DEFAULT: &str = "system.posix_acl_default";

/// Encodes a list; each entry has tag, rights, user or group number.
fn list(entries: &[(u16, u16, u32)]) -> Vec<u8> {
    let entry = |e: &(u16, u16, u32)| [&e.0.to_le_bytes()[..], &e.1.to_le_bytes(), &e.2.to_le_bytes()].concat();
    2u32.to_le_bytes().into_iter().chain(entries.iter().flat_map(entry)).collect()
}

fn sh(at: &Path, script: &str) {
    let done = Command::new("sh").args(["-ec", script]).current_dir(at).status().unwrap();
    assert!(done.success(), "{script}");
}

/// Name, mode, access list, and default list.
type Shown = (String, u32, Option<Vec<u8>>, Option<Vec<u8>>);

/// Mode and lists of all files in a directory.
fn shown(at: &Path) -> Vec<Shown> {
    let of = |path: &Path, name: &str| {
        let mut value = [0; 256];
        lgetxattr(path, name, &mut value).ok().map(|len| value[..len].to_vec())
    };
    let mut all: Vec<_> = fs::read_dir(at).unwrap().map(|entry| entry.unwrap().path()).collect();
    all.sort();
    all.push(at.to_owned());
    let name = |path: &Path| path.strip_prefix(at).unwrap().display().to_string();
    all.iter().map(|p| (name(p), p.symlink_metadata().unwrap().mode(), of(p, ACCESS), of(p, DEFAULT))).collect()
}

/// Makes files of all kinds with lists, in a new directory.
fn play(at: &Path, set: &dyn Fn(&Path, &str, &[u8])) {
    fs::create_dir(at).unwrap();
    fs::set_permissions(at, Permissions::from_mode(0o2755)).unwrap();
    sh(at, "umask 027; echo x > before; mkdir before.d");
    set(at, DEFAULT, &list(&[(1, 7, NONE), (2, 6, NOBODY), (4, 5, NONE), (8, 3, 7), (16, 7, NONE), (32, 1, NONE)]));
    // Where a default list is passed on, the umask has no effect.
    sh(at, "umask 077; echo x > file; mkdir dir; mkfifo fifo; ln -s file link; echo x > dir/deep; mkdir dir/dir");
    sh(at, "echo x > changed; chmod 0617 changed; echo x > narrow; chmod 0700 narrow");
    set(&at.join("before"), ACCESS, &list(&[(1, 6, NONE), (2, 4, NOBODY), (4, 0, NONE), (16, 4, NONE), (32, 0, NONE)]));
    // A list that the mode can express is not stored.
    set(&at.join("changed"), ACCESS, &list(&[(1, 7, NONE), (4, 4, NONE), (32, 2, NONE)]));
    lremovexattr(at.join("narrow"), ACCESS).unwrap();
    lremovexattr(at.join("narrow"), ACCESS).unwrap();
    sh(at, "echo x > gone; mkdir plain.d");
    lremovexattr(at.join("plain.d"), DEFAULT).unwrap();
    sh(at, "umask 022; echo x > plain.d/file; mkdir plain.d/dir");
}

/// A process that serves a store.
fn serving(store: &Path) -> Option<rustix::process::Pid> {
    let of = |entry: fs::DirEntry| {
        let words = fs::read(entry.path().join("cmdline")).ok()?;
        let is_it = words.split(|byte| *byte == 0).any(|word| word == store.as_os_str().as_encoded_bytes());
        rustix::process::Pid::from_raw(entry.file_name().to_str()?.parse().ok().filter(|_| is_it)?)
    };
    fs::read_dir("/proc").unwrap().filter_map(|entry| of(entry.ok()?)).next()
}

#[test]
fn lists_are_as_on_a_plain_file_system() {
    if !can_mount() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let set = |path: &Path, name: &str, value: &[u8]| lsetxattr(path, name, value, XattrFlags::empty()).unwrap();
    fs::write(dir.path().join("probe"), "").unwrap();
    if lgetxattr(dir.path().join("probe"), ACCESS, &mut [0u8; 4]) == Err(rustix::io::Errno::OPNOTSUPP) {
        eprintln!("skipped: there are no access lists in {}", dir.path().display());
        return;
    }
    let (store, at) = (dir.path().join("store"), dir.path().join("mnt"));
    fs::create_dir(&at).unwrap();
    let untorn = |arguments: &[&Path]| {
        let done = Command::new(env!("CARGO_BIN_EXE_untorn-mount")).args(arguments).status().unwrap();
        assert!(done.success());
    };
    untorn(&[&store, &at]);
    let (plain, mounted) = (dir.path().join("plain"), at.join("tree"));
    play(&plain, &set);
    play(&mounted, &set);
    for below in ["", "dir", "plain.d"] {
        assert_eq!(shown(&mounted.join(below)), shown(&plain.join(below)), "{below}");
    }
    // The kernel enforces the lists.
    fs::set_permissions(dir.path(), Permissions::from_mode(0o755)).unwrap();
    fs::set_permissions(&at, Permissions::from_mode(0o755)).unwrap();
    let as_nobody = |script: &str| {
        let ids = ["--reuid", "65534", "--regid", "65534", "--clear-groups", "sh", "-c", script];
        Command::new("setpriv").args(ids).current_dir(&mounted).stderr(std::process::Stdio::null()).status().unwrap()
    };
    assert!(as_nobody("cat before").success());
    assert!(!as_nobody("echo more >> before").success());
    assert!(as_nobody("echo more >> file").success());
    assert!(!as_nobody("cat narrow").success());
    // The lists are there after a kill of the daemon, and after an unmount.
    let before = shown(&mounted);
    for kill in [true, false] {
        match kill {
            true => {
                fs::File::open(mounted.join("file")).unwrap().sync_all().unwrap();
                // Kills the daemon and its supervisor, until neither is left.
                while let Some(process) = serving(&store) {
                    let _ = rustix::process::kill_process(process, rustix::process::Signal::KILL);
                    std::thread::yield_now();
                }
            }
            false => untorn(&["umount".as_ref(), &at]),
        }
        untorn(&[&store, &at]);
        assert_eq!(shown(&mounted), before);
    }
    untorn(&["umount".as_ref(), &at]);
}
