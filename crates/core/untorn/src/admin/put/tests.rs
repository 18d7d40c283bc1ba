//! Tests with plain files: kept metadata, refusals, and the state after a failure.

use super::file_attributes::grown;
use super::*;
use rustix::fs::XattrFlags;
use std::fs::{self as std_fs, Permissions};
use std::io::{self, Cursor};
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::process::Command;
use untorn_journal::format::VERSION;

/// A temporary directory, with a file of known contents in it.
struct Scene {
    dir: tempfile::TempDir,
}

impl Scene {
    fn new() -> Scene {
        let scene = Scene { dir: tempfile::tempdir().unwrap() };
        std_fs::write(scene.file(), "old").unwrap();
        scene
    }

    fn file(&self) -> PathBuf {
        self.dir.path().join("file")
    }

    fn put(&self, new: &str) -> Result<u64> {
        put(&self.file(), &mut Cursor::new(new))
    }

    fn read(&self) -> String {
        std_fs::read_to_string(self.file()).unwrap()
    }

    /// Names in the directory. In every case, nothing of ours may remain.
    fn names(&self) -> Vec<OsString> {
        let mut names: Vec<_> = std_fs::read_dir(self.dir.path()).unwrap().map(|e| e.unwrap().file_name()).collect();
        names.sort();
        names
    }
}

fn mode(path: &Path) -> u32 {
    std_fs::metadata(path).unwrap().mode() & 0o7777
}

fn set_mode(path: &Path, mode: u32) {
    std_fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
}

fn get(path: &Path, name: &str) -> Option<Vec<u8>> {
    grown(|buf| fs::getxattr(path, name, buf)).ok()
}

/// Yields some bytes, then fails.
struct Breaks<'b>(&'b [u8]);

impl Read for Breaks<'_> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        if self.0.is_empty() { Err(io::Error::other("the pipe broke")) } else { self.0.read(buf) }
    }
}

#[test]
fn replaces_contents_and_nothing_else() {
    let scene = Scene::new();
    for bits in [0o600, 0o640, 0o777, 0o4755, 0o400 | 0o200] {
        set_mode(&scene.file(), bits);
        assert_eq!(scene.put("new contents").unwrap(), 12);
        assert_eq!(scene.read(), "new contents");
        assert_eq!(mode(&scene.file()), bits, "mode {bits:o}");
        assert_eq!(scene.names(), ["file"]);
    }
}

#[test]
fn large_contents_arrive_whole() {
    let scene = Scene::new();
    let large: Vec<u8> = (0..3 * BUFFER_BYTES + 17).map(|i| (i * 7 % 251) as u8).collect();
    assert_eq!(put(&scene.file(), &mut Cursor::new(&large)).unwrap(), large.len() as u64);
    assert_eq!(std_fs::read(scene.file()).unwrap(), large);
}

#[test]
fn a_new_file_follows_the_umask_and_an_empty_one_is_a_file() {
    let scene = Scene::new();
    let new = scene.dir.path().join("new");
    assert_eq!(put(&new, &mut io::empty()).unwrap(), 0);
    assert_eq!(mode(&new), 0o666 & !untorn_os::umask());
    assert_eq!(std_fs::read(&new).unwrap(), b"");
}

#[test]
fn attributes_stay_and_the_managed_mark_goes() {
    let scene = Scene::new();
    let value = vec![7; 3000];
    for (name, value) in [("user.colour", &b"red"[..]), ("user.large", &value), ("user.empty", b"")] {
        if let Err(e) = fs::setxattr(scene.file(), name, value, XattrFlags::empty()) {
            assert_eq!(e, Errno::NOTSUP, "{name}");
            return eprintln!("skipped: no user attributes on this file system");
        }
    }
    let old = attributes(&std_fs::File::open(scene.file()).unwrap().into()).unwrap();
    let to = std_fs::File::create(scene.dir.path().join("to")).unwrap().into();
    let mut wanted = old.clone();
    wanted.insert(MANAGED.to_owned(), b"some store's".to_vec());
    copy_attributes(&wanted, &to).unwrap();
    assert_eq!(attributes(&to).unwrap(), old, "all but the mark are copied");

    scene.put("new").unwrap();
    assert_eq!(get(&scene.file(), "user.colour").as_deref(), Some(&b"red"[..]));
    assert_eq!(get(&scene.file(), "user.large"), Some(value));
    assert_eq!(get(&scene.file(), "user.empty").as_deref(), Some(&b""[..]));
}

#[test]
fn a_file_that_left_its_journal_behind_is_refused_while_commits_are_pending_there() {
    let scene = Scene::new();
    let mark = |pending| {
        Attribute { version: VERSION, store: [0xab; 16], file: 1, epoch: 2, checkpoint_lsn: 3, path_crc: 4, pending }
            .encode()
    };
    let set = |value: &[u8]| fs::setxattr(scene.file(), MANAGED, value, XattrFlags::empty());
    if set(&mark(true)).is_err() {
        return eprintln!("skipped: no user attributes on this file system");
    }
    let e = scene.put("new").unwrap_err();
    assert!(matches!(e, Error::NeedsJournal { .. }) && e.to_string().contains("abab"), "{e:?}");
    set(b"garbage").unwrap();
    assert!(matches!(scene.put("new"), Err(Error::Foreign { .. })));
    assert_eq!(scene.read(), "old");
    set(&mark(false)).unwrap();
    scene.put("new").unwrap();
    assert_eq!((scene.read().as_str(), get(&scene.file(), "user.untorn")), ("new", None));
}

/// Runs setfacl. Returns false, with a message, if that is not possible.
fn setfacl(arguments: &[&str], path: &Path) -> bool {
    let done = Command::new("setfacl").args(arguments).arg(path).output();
    let ok = done.is_ok_and(|out| out.status.success());
    if !ok {
        eprintln!("skipped: no setfacl, or no ACLs on this file system");
    }
    ok
}

const ACL: &str = "system.posix_acl_access";

#[test]
fn acls_stay() {
    let scene = Scene::new();
    if !setfacl(&["-m", "u:1234:rw,g:4321:r"], &scene.file()) {
        return;
    }
    let acl = get(&scene.file(), ACL).unwrap();
    let bits = mode(&scene.file());
    scene.put("new").unwrap();
    assert_eq!(get(&scene.file(), ACL), Some(acl));
    assert_eq!(mode(&scene.file()), bits);
}

#[test]
fn a_directorys_default_acl_widens_no_existing_file_and_rules_new_ones() {
    let scene = Scene::new();
    set_mode(&scene.file(), 0o600);
    if !setfacl(&["-d", "-m", "u:1234:rwx"], scene.dir.path()) {
        return;
    }
    scene.put("new").unwrap();
    assert_eq!(get(&scene.file(), ACL), None);
    assert_eq!(mode(&scene.file()), 0o600);

    let (by_put, by_open) = (scene.dir.path().join("put"), scene.dir.path().join("open"));
    put(&by_put, &mut io::empty()).unwrap();
    std_fs::write(&by_open, "").unwrap();
    assert!(get(&by_open, ACL).is_some());
    assert_eq!(get(&by_put, ACL), get(&by_open, ACL));
    assert_eq!(mode(&by_put), mode(&by_open));
}

#[test]
fn the_owner_stays() {
    if !rustix::process::geteuid().is_root() {
        return eprintln!("skipped: needs root");
    }
    let scene = Scene::new();
    std::os::unix::fs::chown(scene.file(), Some(1234), Some(4321)).unwrap();
    set_mode(&scene.file(), 0o6750);
    scene.put("new").unwrap();
    let meta = std_fs::metadata(scene.file()).unwrap();
    assert_eq!((meta.uid(), meta.gid(), meta.mode() & 0o7777), (1234, 4321, 0o6750));
    assert_eq!(scene.read(), "new");
}

#[test]
fn links_are_followed_and_stay() {
    let scene = Scene::new();
    let at = |name| scene.dir.path().join(name);
    std_fs::create_dir(at("deep")).unwrap();
    symlink("deep/middle", at("link")).unwrap();
    symlink("../file", at("deep/middle")).unwrap();
    put(&at("link"), &mut Cursor::new("through two links")).unwrap();
    assert_eq!(scene.read(), "through two links");
    assert!(at("link").is_symlink() && at("deep/middle").is_symlink());

    symlink("deep/absent", at("dangling")).unwrap();
    put(&at("dangling"), &mut Cursor::new("made")).unwrap();
    assert_eq!(std_fs::read_to_string(at("deep/absent")).unwrap(), "made");

    symlink("loop", at("loop")).unwrap();
    assert!(matches!(put(&at("loop"), &mut io::empty()), Err(Error::Io { .. })));
}

#[test]
fn a_strangers_link_in_a_shared_directory_is_not_followed() {
    if !rustix::process::geteuid().is_root() {
        return eprintln!("skipped: needs root");
    }
    let scene = Scene::new();
    let shared = tempfile::tempdir().unwrap();
    set_mode(shared.path(), 0o1777);
    let link = shared.path().join("link");
    for target in [scene.file(), scene.dir.path().join("absent")] {
        symlink(&target, &link).unwrap();
        std::os::unix::fs::lchown(&link, Some(1234), Some(1234)).unwrap();
        let e = put(&link, &mut Cursor::new("planted")).unwrap_err();
        assert!(matches!(e, Error::Untrusted { .. }), "{e:?}");
        std_fs::remove_file(&link).unwrap();
    }
    assert_eq!((scene.read().as_str(), scene.names().len()), ("old", 1));
    symlink(scene.file(), &link).unwrap();
    put(&link, &mut Cursor::new("our own link")).unwrap();
    assert_eq!(scene.read(), "our own link");
}

#[test]
fn what_is_no_single_plain_file_is_refused() {
    let scene = Scene::new();
    let at = |name| scene.dir.path().join(name);
    std_fs::hard_link(scene.file(), at("second")).unwrap();
    let e = scene.put("new").unwrap_err().to_string();
    assert!(e.contains("2 hard links"), "{e}");
    assert_eq!(scene.read(), "old");

    fs::mknodat(fs::CWD, at("pipe"), fs::FileType::Fifo, Mode::from_raw_mode(0o600), 0).unwrap();
    for (path, word) in [
        (scene.dir.path().to_owned(), "directory"),
        (at("file/"), "directory"),
        (at("new/"), "directory"),
        (PathBuf::from("/dev/null"), "device"),
        (at("pipe"), "pipe"),
        (PathBuf::from(""), "names no file"),
        (PathBuf::from("/"), "directory"),
    ] {
        let e = put(&path, &mut Cursor::new("x")).unwrap_err();
        assert!(matches!(e, Error::Invalid { .. }), "{}: {e:?}", path.display());
        assert!(e.to_string().contains(word), "{}: {e}", path.display());
    }
    let e = put(&at("absent/file"), &mut io::empty()).unwrap_err();
    assert!(matches!(e, Error::Io { .. }), "{e:?}");
    std_fs::create_dir(at(".untorn")).unwrap();
    let e = put(&at(".untorn/header"), &mut io::empty()).unwrap_err();
    assert!(e.to_string().contains("journal"), "{e}");
    assert_eq!(scene.names(), [".untorn", "file", "pipe", "second"]);
}

#[test]
fn a_failing_source_changes_nothing() {
    let scene = Scene::new();
    let e = put(&scene.file(), &mut Breaks(b"half of it")).unwrap_err();
    assert!(e.to_string().contains("the pipe broke"), "{e}");
    assert_eq!(scene.read(), "old");
    assert_eq!(scene.names(), ["file"]);
}

/// Runs an action in the middle of the new contents.
struct Meanwhile<F: FnMut()>(Option<F>);

impl<F: FnMut()> Read for Meanwhile<F> {
    fn read(&mut self, _: &mut [u8]) -> io::Result<usize> {
        if let Some(mut act) = self.0.take() {
            act();
        }
        Ok(0)
    }
}

#[test]
fn until_the_end_others_see_the_old_file_and_cannot_read_the_new_one() {
    let scene = Scene::new();
    set_mode(&scene.file(), 0o644);
    let look = || {
        assert_eq!(scene.read(), "old");
        let names = scene.names();
        let aside = names.iter().find(|n| n.to_string_lossy().starts_with(".untorn-put-")).unwrap();
        assert_eq!(mode(&scene.dir.path().join(aside)), 0o600);
    };
    put(&scene.file(), &mut Meanwhile(Some(look))).unwrap();
    assert_eq!(scene.read(), "");
}

#[test]
fn a_file_that_changed_hands_meanwhile_is_left_alone() {
    let scene = Scene::new();
    let new = scene.dir.path().join("new");
    let replace = || {
        std_fs::write(&new, "somebody else's").unwrap();
        std_fs::rename(&new, scene.file()).unwrap();
    };
    let link = || std_fs::hard_link(scene.file(), &new).unwrap();
    let e = put(&scene.file(), &mut Meanwhile(Some(replace))).unwrap_err();
    assert!(matches!(e, Error::Conflict { .. }), "{e:?}");
    let e = put(&scene.file(), &mut Meanwhile(Some(link))).unwrap_err();
    assert!(matches!(e, Error::Conflict { .. }), "{e:?}");
    assert_eq!(scene.read(), "somebody else's");

    let third = scene.dir.path().join("third");
    let create = || std_fs::write(&third, "first").unwrap();
    let e = put(&third, &mut Meanwhile(Some(create))).unwrap_err();
    assert!(matches!(e, Error::Conflict { .. }), "{e:?}");
    assert_eq!(std_fs::read_to_string(&third).unwrap(), "first");
}
