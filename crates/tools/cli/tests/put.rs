//! `untorn put` for users: rights, full disks, sudden ends, managed files.

mod common;

use common::{Run, Tmpfs, put, root, run, untorn};
use std::fs::{self, Permissions};
use std::io::Write;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;
use untorn_testkit::NOBODY;

fn file_in(dir: &Path, contents: &str, mode: u32) -> PathBuf {
    let path = dir.join("file");
    fs::write(&path, contents).unwrap();
    fs::set_permissions(&path, Permissions::from_mode(mode)).unwrap();
    path
}

fn names(dir: &Path) -> Vec<String> {
    let mut names: Vec<_> = fs::read_dir(dir).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

fn mode(path: &Path) -> u32 {
    fs::metadata(path).unwrap().mode() & 0o7777
}

#[test]
fn the_umask_rules_new_files_and_no_old_ones() {
    let dir = tempfile::tempdir().unwrap();
    for (umask, expected) in [("000", 0o666), ("022", 0o644), ("077", 0o600)] {
        let new = dir.path().join(umask);
        assert_eq!(put(&new, b"new", umask, None).ok(), "");
        assert_eq!(mode(&new), expected, "umask {umask}");
        let old = file_in(dir.path(), "old", 0o640);
        put(&old, b"new", umask, None).ok();
        assert_eq!(mode(&old), 0o640, "umask {umask}");
    }
}

#[test]
fn an_owner_that_cannot_be_kept_is_a_refusal() {
    if !root() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    fs::set_permissions(dir.path(), Permissions::from_mode(0o777)).unwrap();
    let file = file_in(dir.path(), "root's", 0o666);
    let e = put(&file, b"somebody's", "022", Some(NOBODY)).fails(1);
    assert!(e.contains("user 0") && e.contains("run this as the owner"), "{e}");
    let file = file_in(dir.path(), "root's", 0o644);
    let e = put(&file, b"somebody's", "022", Some(NOBODY)).fails(1);
    assert!(e.contains("denied") && e.contains("run this as the owner"), "{e}");
    assert_eq!(fs::read_to_string(&file).unwrap(), "root's");

    chown(&file, Some(NOBODY), Some(NOBODY)).unwrap();
    put(&file, b"by root", "022", None).ok();
    let meta = fs::metadata(&file).unwrap();
    assert_eq!((meta.uid(), meta.gid(), fs::read_to_string(&file).unwrap().as_str()), (NOBODY, NOBODY, "by root"));
    assert_eq!(names(dir.path()), ["file"]);
}

#[test]
fn a_full_disk_changes_nothing() {
    let Some(disk) = root().then(|| Tmpfs::mount("size=1m")).flatten() else { return };
    let file = file_in(disk.dir.path(), "old", 0o600);
    let e = put(&file, &vec![b'x'; 4 << 20], "022", None).fails(1);
    assert!(e.contains("no space") && e.contains("try again"), "{e}");
    assert_eq!(fs::read_to_string(&file).unwrap(), "old");
    assert_eq!(names(disk.dir.path()), ["file"]);
    put(&file, &vec![b'y'; 500 << 10], "022", None).ok();
    assert_eq!(fs::metadata(&file).unwrap().len(), 500 << 10);
}

/// Waits until the new file beside the old one has so many bytes.
fn wait_for_aside(dir: &Path, bytes: u64) -> PathBuf {
    for _ in 0..20_000 {
        let aside = names(dir).into_iter().find(|n| n.starts_with(".untorn-put-")).map(|n| dir.join(n));
        if let Some(aside) = aside.filter(|a| a.metadata().is_ok_and(|m| m.len() >= bytes)) {
            return aside;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    panic!("nothing was written beside {}", dir.display());
}

#[test]
fn killed_in_the_middle_leaves_the_old_file() {
    let dir = tempfile::tempdir().unwrap();
    let file = file_in(dir.path(), "old", 0o644);
    let mut child = untorn().arg("put").arg(&file).stdin(Stdio::piped()).spawn().unwrap();
    child.stdin.as_mut().unwrap().write_all(&vec![b'x'; 1 << 20]).unwrap();
    let aside = wait_for_aside(dir.path(), 1 << 20);
    assert_eq!(mode(&aside), 0o600, "half-written contents are nobody else's to read");
    child.kill().unwrap();
    child.wait().unwrap();
    assert_eq!(fs::read_to_string(&file).unwrap(), "old");
    put(&file, b"new", "022", None).ok();
    assert_eq!((fs::read_to_string(&file).unwrap().as_str(), mode(&file)), ("new", 0o644));
    assert_eq!(names(dir.path()), ["file"], "what the killed one left is gone");
}

#[test]
fn directories_devices_and_missing_places_are_refused_with_advice() {
    let dir = tempfile::tempdir().unwrap();
    assert!(run(&["put"], dir.path()).fails(1).contains("name a file"));
    assert!(run(&["put"], Path::new("/dev/null")).fails(1).contains("device"));
    assert!(run(&["put"], &dir.path().join("no/file")).fails(1).contains("check the path"));
}

#[test]
fn a_managed_file_is_replaced_by_a_commit_and_keeps_its_inode() {
    let dir = tempfile::tempdir().unwrap();
    let file = file_in(dir.path(), "", 0o640);
    let store = untorn::Store::open_or_create(dir.path()).unwrap();
    let managed = store.open_file("file").unwrap();
    managed.write_all_at(b"first, and longer than what comes", 0).unwrap();
    managed.commit().unwrap();

    let e = put(&file, b"second", "022", None).fails(1);
    assert!(e.contains("in use") && e.contains(&std::process::id().to_string()), "{e}");

    managed.close().unwrap();
    store.close().unwrap();
    let inode = fs::metadata(&file).unwrap().ino();
    put(&file, b"second", "022", None).ok();
    assert_eq!(fs::read_to_string(&file).unwrap(), "second");
    assert_eq!((fs::metadata(&file).unwrap().ino(), mode(&file)), (inode, 0o640));

    // A new file in a subdirectory of a store's directory.
    fs::create_dir(dir.path().join("sub")).unwrap();
    put(&dir.path().join("sub/new"), b"third", "027", None).ok();
    assert_eq!(fs::read_to_string(dir.path().join("sub/new")).unwrap(), "third");
    assert_eq!(mode(&dir.path().join("sub/new")), 0o640);
    let found = untorn::offline::inspect(dir.path()).unwrap();
    assert!(found.clean && found.problems.is_empty(), "{found:?}");
}

#[test]
fn a_standalone_file_is_replaced_by_a_commit() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("standalone.db");
    let standalone = untorn::File::open_or_create(&path).unwrap();
    standalone.append(b"before").unwrap();
    standalone.commit().unwrap();
    standalone.close().unwrap();
    let inode = fs::metadata(&path).unwrap().ino();
    put(&path, b"after", "022", None).ok();
    assert_eq!((fs::read_to_string(&path).unwrap().as_str(), fs::metadata(&path).unwrap().ino()), ("after", inode));
}

#[test]
fn a_strangers_journal_does_not_keep_an_owner_from_a_plain_file() {
    if !root() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    fs::set_permissions(dir.path(), Permissions::from_mode(0o1777)).unwrap();
    let file = file_in(dir.path(), "old", 0o644);
    chown(&file, Some(NOBODY), Some(NOBODY)).unwrap();
    for planted in [".untorn", "file.untorn"] {
        fs::create_dir(dir.path().join(planted)).unwrap();
        chown(dir.path().join(planted), Some(1234), Some(1234)).unwrap();
    }
    put(&file, b"new", "022", Some(NOBODY)).ok();
    assert_eq!(fs::read_to_string(&file).unwrap(), "new");
}

/// Runs a shell command in which `$0` is `untorn` and `$1` is a path, perhaps as another user.
fn shell(line: &str, path: &Path, user: Option<u32>) -> Run {
    let mut command = Command::new("sh");
    command.args(["-c", line, env!("CARGO_BIN_EXE_untorn")]).arg(path).stdin(Stdio::null());
    if let Some(user) = user {
        command.uid(user).gid(user);
    }
    command.output().unwrap().into()
}

#[test]
fn a_closed_standard_input_is_no_empty_file() {
    let dir = tempfile::tempdir().unwrap();
    let file = file_in(dir.path(), "old", 0o644);
    let e = shell("exec \"$0\" put \"$1\" <&-", &file, None).fails(1);
    assert!(e.contains("standard input was closed") && e.contains("nothing was changed"), "{e}");
    assert!(e.contains("< /dev/null") && e.contains("--allow-empty"), "{e}");
    let e = shell("exec \"$0\" put \"$1\" 0>/dev/null", &file, None).fails(1);
    assert!(e.contains("open for writing only"), "{e}");
    let e = shell("exec \"$0\" put \"$1\" < /", &file, None).fails(1);
    assert!(e.contains("directory"), "{e}");
    assert_eq!(fs::read_to_string(&file).unwrap(), "old");

    shell("exec \"$0\" put \"$1\" < /dev/null", &file, None).ok();
    assert_eq!(fs::read_to_string(&file).unwrap(), "");
    fs::write(&file, "old").unwrap();
    shell("exec \"$0\" put --allow-empty \"$1\" <&-", &file, None).ok();
    assert_eq!(fs::read_to_string(&file).unwrap(), "");
    assert_eq!(names(dir.path()), ["file"]);
}

/// A plain file, a standalone file and a file of a store, each with the contents `old`.
fn three_kinds(dir: &Path) -> [PathBuf; 3] {
    let plain = file_in(dir, "old", 0o644);
    let alone = dir.join("alone");
    let standalone = untorn::File::open_or_create(&alone).unwrap();
    standalone.append(b"old").unwrap();
    standalone.commit().unwrap();
    standalone.close().unwrap();
    let store = untorn::Store::open_or_create(dir.join("store")).unwrap();
    let managed = store.open_or_create_file("managed").unwrap();
    managed.append(b"old").unwrap();
    managed.commit().unwrap();
    managed.close().unwrap();
    store.close().unwrap();
    [plain, alone, dir.join("store/managed")]
}

#[test]
fn a_command_that_fails_changes_nothing() {
    let dir = tempfile::tempdir().unwrap();
    for file in three_kinds(dir.path()) {
        let e = shell("exec \"$0\" put \"$1\" -- sh -c 'echo half; exit 3'", &file, None).fails(1);
        assert!(e.contains("the command sh failed (exit status: 3). Nothing was changed"), "{e}");
        let e = shell("exec \"$0\" put \"$1\" -- sh -c 'echo half; kill -9 $$'", &file, None).fails(1);
        assert!(e.contains("signal: 9"), "{e}");
        let e = shell("exec \"$0\" put \"$1\" -- /no/such/command", &file, None).fails(1);
        assert!(e.contains("cannot execute /no/such/command") && e.contains("nothing was changed"), "{e}");
        assert_eq!(fs::read_to_string(&file).unwrap(), "old", "{}", file.display());
        shell("exec \"$0\" put \"$1\" -- echo whole", &file, None).ok();
        assert_eq!(fs::read_to_string(&file).unwrap(), "whole\n", "{}", file.display());
        // Contents that are larger than a store's journal and any pipe, without standard input.
        shell("exec \"$0\" put \"$1\" -- head -c 50000000 /dev/zero <&-", &file, None).ok();
        assert_eq!(fs::metadata(&file).unwrap().len(), 50_000_000, "{}", file.display());
    }
    let names = names(dir.path());
    assert!(names.iter().all(|name| !name.starts_with(".untorn-put-")), "{names:?}");
}

#[test]
fn several_files_of_a_store_are_replaced_together() {
    let user = rustix::process::geteuid().is_root().then_some(NOBODY);
    let dir = tempfile::tempdir().unwrap();
    fs::set_permissions(dir.path(), Permissions::from_mode(0o777)).unwrap();
    for (name, contents) in [("a.new", "new a"), ("b.new", "new b")] {
        fs::write(dir.path().join(name), contents).unwrap();
    }
    let set = |sources: &str| {
        let line = format!("cd \"$1\" && exec \"$0\" put --store store {sources}");
        shell(&line, dir.path(), user)
    };
    let read = |name: &str| fs::read_to_string(dir.path().join("store").join(name)).ok();
    let e = set("--set a a.new --set b missing").fails(1);
    assert!(e.contains("cannot open missing"), "{e}");
    assert!(!dir.path().join("store").exists(), "not even the store is there");
    // A wrong name, a wrong directory and a wrong source are refused. The call leaves no store behind, neither a new
    // directory nor a store in an existing directory.
    for sources in
        ["--set ../c a.new", "--set a a.new --set q/a a.new", "--set a a.new --set b .", "--set a.untorn a.new"]
    {
        set(sources).fails(1);
        assert!(!dir.path().join("store").exists(), "{sources}: not even the store is there");
        fs::create_dir(dir.path().join("store")).unwrap();
        fs::set_permissions(dir.path().join("store"), Permissions::from_mode(0o777)).unwrap();
        fs::write(dir.path().join("store/a"), "plain").unwrap();
        fs::set_permissions(dir.path().join("store/a"), Permissions::from_mode(0o666)).unwrap();
        set(sources).fails(1);
        assert_eq!(names(&dir.path().join("store")), ["a"], "{sources}: the directory is plain");
        assert_eq!(fs::read_to_string(dir.path().join("store/a")).unwrap(), "plain");
        fs::remove_dir_all(dir.path().join("store")).unwrap();
    }
    set("--set a a.new --set b b.new").ok();
    assert_eq!((read("a").as_deref(), read("b").as_deref()), (Some("new a"), Some("new b")));
    // The second source cannot be read to its end.
    let e = set("--set a b.new --set b .").fails(1);
    assert!(e.contains("read the new contents of b"), "{e}");
    let e = set("--set a b.new --set ../c b.new").fails(1);
    assert!(e.contains("`..`"), "{e}");
    let e = set("--set a b.new --set a a.new").fails(1);
    assert!(e.contains("given twice"), "{e}");
    assert_eq!((read("a").as_deref(), read("b").as_deref()), (Some("new a"), Some("new b")));
    set("--set b a.new --set c b.new").ok();
    assert_eq!((read("b").as_deref(), read("c").as_deref()), (Some("new a"), Some("new b")));
}

#[test]
fn concurrent_replacements_wait_for_each_other() {
    let dir = tempfile::tempdir().unwrap();
    for file in three_kinds(dir.path()) {
        let start = |n: u32| {
            let mut command = untorn();
            command.arg("put").arg(&file).args(["--", "sh", "-c", "sleep 0.2; echo $0"]).arg(n.to_string());
            command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
        };
        let children: Vec<_> = (0..5).map(start).collect();
        for child in children {
            Run::from(child.wait_with_output().unwrap()).ok();
        }
        let last = fs::read_to_string(&file).unwrap();
        assert!(["0\n", "1\n", "2\n", "3\n", "4\n"].contains(&last.as_str()), "{last:?}");
    }
    // The same with a new file.
    let new = dir.path().join("new");
    let children: Vec<_> =
        (0..5).map(|_| untorn().arg("put").arg(&new).args(["--", "echo", "new"]).spawn().unwrap()).collect();
    for mut child in children {
        assert!(child.wait().unwrap().success());
    }
    assert_eq!(fs::read_to_string(&new).unwrap(), "new\n");
    assert_eq!(names(dir.path()), ["alone", "alone.untorn", "file", "new", "store"]);
}

#[test]
fn interrupted_in_a_store_leaves_the_old_file() {
    let dir = tempfile::tempdir().unwrap();
    let [plain, alone, managed] = three_kinds(dir.path());
    for signal in [rustix::process::Signal::INT, rustix::process::Signal::TERM, rustix::process::Signal::KILL] {
        for file in [&plain, &alone, &managed] {
            let mut child = untorn()
                .arg("put")
                .arg(file)
                .args(["--", "sh", "-c", "head -c 3000000 /dev/zero; echo ready >&2; exec sleep 60"])
                .stdin(Stdio::null())
                .stderr(Stdio::piped())
                .spawn()
                .unwrap();
            let mut ready = [0; 5];
            std::io::Read::read_exact(child.stderr.as_mut().unwrap(), &mut ready).unwrap();
            let pid = rustix::process::Pid::from_child(&child);
            rustix::process::kill_process(pid, signal).unwrap();
            child.wait().unwrap();
            assert_eq!(fs::read_to_string(file).unwrap(), "old", "{}", file.display());
            let done = shell("exec \"$0\" put \"$1\" -- printf old", file, None);
            done.ok();
        }
    }
    assert_eq!(names(dir.path()), ["alone", "alone.untorn", "file", "store"]);
    for store in [&alone, &dir.path().join("store")] {
        assert!(untorn::offline::inspect(store).unwrap().clean);
    }
    let journal = names(&dir.path().join("store/.untorn/journal"));
    assert_eq!(journal, ["header", "index.0", "pending-files.spare", "segment.0"]);
}

#[test]
fn an_empty_pipe_is_no_empty_file() {
    let dir = tempfile::tempdir().unwrap();
    for file in three_kinds(dir.path()) {
        let e = shell("false | \"$0\" put \"$1\"", &file, None).fails(1);
        assert!(e.contains("ended without a byte") && e.contains("--allow-empty"), "{e}");
        assert_eq!(fs::read_to_string(&file).unwrap(), "old", "{}", file.display());
        shell("false | \"$0\" put --allow-empty \"$1\"", &file, None).ok();
        assert_eq!(fs::read_to_string(&file).unwrap(), "", "{}", file.display());
        // An empty file, or a command that succeeds without output, is meant to be empty.
        for line in ["\"$0\" put \"$1\" < \"$1.empty\"", "\"$0\" put \"$1\" -- true"] {
            fs::write(format!("{}.empty", file.display()), "").unwrap();
            shell("printf old | \"$0\" put \"$1\"", &file, None).ok();
            shell(line, &file, None).ok();
            assert_eq!(fs::read_to_string(&file).unwrap(), "", "{line}");
        }
    }
    // Sources of several files may be pipes, too.
    let store = dir.path().join("store");
    shell("printf old | \"$0\" put \"$1\"", &store.join("managed"), None).ok();
    let e = shell("false | \"$0\" put --store \"$1\" --set managed /dev/stdin", &store, None).fails(1);
    assert!(e.contains("/dev/stdin is a pipe that ended without a byte"), "{e}");
    assert_eq!(fs::read_to_string(store.join("managed")).unwrap(), "old");
    shell("false | \"$0\" put --store \"$1\" --allow-empty --set managed /dev/stdin", &store, None).ok();
    assert_eq!(fs::read_to_string(store.join("managed")).unwrap(), "");
}

#[test]
fn an_open_file_without_a_name_is_no_target() {
    let dir = tempfile::tempdir().unwrap();
    let file = file_in(dir.path(), "old", 0o644);
    let e = shell("exec 3<\"$1\"; rm \"$1\"; printf new | \"$0\" put /dev/fd/3", &file, None).fails(1);
    assert!(e.contains("/3 is an open file without a name") && e.contains("Nothing was changed"), "{e}");
    assert_eq!(names(dir.path()), Vec::<String>::new(), "nothing of the name `file (deleted)`");
    // A file that has the name `file (deleted)`, a pipe, and a file that was moved meanwhile.
    let file = file_in(dir.path(), "old", 0o644);
    let e = shell("exec 3<\"$1\"; rm \"$1\"; touch \"$1 (deleted)\"; printf new | \"$0\" put /dev/fd/3", &file, None);
    assert!(e.fails(1).contains("without a name"));
    assert_eq!(fs::read_to_string(dir.path().join("file (deleted)")).unwrap(), "");
    let e = shell("printf new | \"$0\" put /dev/stdin", &file, None).fails(1);
    assert!(e.contains("without a name"), "{e}");
    let file = file_in(dir.path(), "old", 0o644);
    shell("exec 3<\"$1\"; mv \"$1\" \"$1.moved\"; printf new | \"$0\" put /dev/fd/3", &file, None).ok();
    assert_eq!(fs::read_to_string(dir.path().join("file.moved")).unwrap(), "new");
}

/// The flags of a file, from `lsattr`.
fn flags(path: &Path) -> Option<String> {
    let listed = Command::new("lsattr").arg(path).output().ok().filter(|out| out.status.success());
    let text = listed.map(|out| String::from_utf8(out.stdout).unwrap());
    let flags = text.and_then(|text| Some(text.split_whitespace().next()?.to_owned()));
    if flags.is_none() {
        eprintln!("skipped: no lsattr, or no flags on this file system");
    }
    flags
}

/// Runs `chattr`. False, with a message, if that is not possible.
fn chattr(change: &str, path: &Path) -> bool {
    let done = Command::new("chattr").arg(change).arg(path).stderr(Stdio::null()).status();
    let ok = done.is_ok_and(|status| status.success());
    if !ok {
        eprintln!("skipped: chattr {change} is not possible on this file system");
    }
    ok
}

#[test]
fn flags_of_a_file_stay() {
    let dir = tempfile::tempdir().unwrap();
    let file = file_in(dir.path(), "old", 0o644);
    for change in ["+d", "+A", "+S"] {
        if !chattr(change, &file) {
            continue;
        }
        let Some(before) = flags(&file) else { return };
        put(&file, b"new", "022", None).ok();
        assert_eq!(flags(&file).as_deref(), Some(before.as_str()), "{change}");
    }
    assert_eq!(fs::read_to_string(&file).unwrap(), "new");
}

#[test]
fn a_refused_target_is_told_before_anything_is_read_or_run() {
    if !root() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let (ran, source) = (dir.path().join("ran"), tempfile::tempfile().unwrap());
    let refused = |file: &Path, says: &str| {
        let run = |input: Stdio, command: &[&str]| -> Run {
            untorn().arg("put").arg(file).args(command).stdin(input).output().unwrap().into()
        };
        let e = run(Stdio::null(), &["--", "touch", ran.to_str().unwrap()]).fails(1);
        assert!(e.contains(says), "{e}");
        assert!(!ran.exists(), "the command ran: {e}");
        // If the command had read from the source, the source's position would have changed.
        (&source).write_all(b"new").unwrap();
        std::io::Seek::rewind(&mut &source).unwrap();
        run(source.try_clone().unwrap().into(), &[]).fails(1);
        assert_eq!(std::io::Seek::stream_position(&mut &source).unwrap(), 0, "it was read: {e}");
    };
    let file = file_in(dir.path(), "old", 0o644);
    fs::hard_link(&file, dir.path().join("second")).unwrap();
    refused(&file, "2 hard links");
    fs::remove_file(dir.path().join("second")).unwrap();
    refused(dir.path(), "name a file");
    for change in ["i", "a"] {
        if chattr(&format!("+{change}"), &file) {
            refused(&file, "chattr");
            assert!(chattr(&format!("-{change}"), &file));
        }
    }
    let sub = dir.path().join("sub");
    fs::create_dir(&sub).unwrap();
    let inner = file_in(&sub, "old", 0o644);
    for change in ["i", "a"] {
        if chattr(&format!("+{change}"), &sub) {
            refused(&inner, "chattr -i -a");
            refused(&sub.join("new"), "chattr -i -a");
            assert_eq!(names(&sub), ["file"], "what could not be removed again is not made");
            assert!(chattr(&format!("-{change}"), &sub));
        }
    }
    for name in ["file.untorn", "no-file.untorn", ".untorn", "x.untorn/file"] {
        fs::create_dir_all(sub.join(name).parent().unwrap()).unwrap();
        refused(&sub.join(name), if name.starts_with(['f', 'n']) { "Choose another name" } else { "leave it alone" });
        assert!(!sub.join(name).exists());
    }
    let other = dir.path().join("other");
    fs::write(&other, "mounted").unwrap();
    let (mount, umount) = (Command::new("mount").arg("--bind").args([&other, &inner]).status(), "umount");
    if mount.is_ok_and(|status| status.success()) {
        refused(&inner, "is mounted on it");
        assert!(Command::new(umount).arg(&inner).status().unwrap().success());
    } else {
        eprintln!("skipped: cannot bind a file");
    }
    assert_eq!(fs::read_to_string(&file).unwrap(), "old");
    // With several files, each is checked before the first source is read.
    fs::create_dir(dir.path().join("store")).unwrap();
    fs::create_dir(dir.path().join("store/is-a-directory")).unwrap();
    let (mut from, mut to) = std::io::pipe().unwrap();
    to.write_all(b"new").unwrap();
    drop(to);
    let mut several = untorn();
    several.arg("put").arg("--store").arg(dir.path().join("store"));
    several.args(["--set", "a", "/dev/stdin", "--set", "is-a-directory", "/dev/null"]);
    Run::from(several.stdin(from.try_clone().unwrap()).output().unwrap()).fails(1);
    let mut unread = String::new();
    std::io::Read::read_to_string(&mut from, &mut unread).unwrap();
    assert_eq!((unread.as_str(), dir.path().join("store/a").exists()), ("new", false));
}

/// Runs `untorn put FILE` with a failure of the nth flush.
fn with_failing_flush(file: &Path, nth: u32) -> Option<Run> {
    let mut command = Command::new("strace");
    command.args(["-f", "-qq", "-o", "/dev/null", "-e", "trace=fsync", "-e"]);
    command.arg(format!("inject=fsync:error=EIO:when={nth}")).arg(env!("CARGO_BIN_EXE_untorn")).arg("put").arg(file);
    match command.args(["--", "echo", "new"]).stdin(Stdio::null()).output() {
        Ok(out) => Some(out.into()),
        Err(_) => {
            eprintln!("skipped: needs strace");
            None
        }
    }
}

#[test]
fn what_is_in_place_is_told_when_only_its_directory_could_not_be_flushed() {
    let dir = tempfile::tempdir().unwrap();
    let file = file_in(dir.path(), "old", 0o644);
    let Some(run) = with_failing_flush(&file, 1) else { return };
    let e = run.fails(1);
    assert!(e.contains("flush the new contents") && !e.contains("in place"), "{e}");
    assert_eq!(fs::read_to_string(&file).unwrap(), "old");
    let e = with_failing_flush(&file, 2).unwrap().fails(1);
    assert!(e.contains("the new contents are in place") && e.contains("put them again"), "{e}");
    assert_eq!(fs::read_to_string(&file).unwrap(), "new\n");
    assert_eq!(names(dir.path()), ["file"]);
}

/// The store of a removed file is still there. A put that fails must not make an empty file.
#[test]
fn a_put_that_fails_makes_no_file_beside_a_store_that_is_left() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("gone.db");
    let file = untorn::File::open_or_create(&path).unwrap();
    file.append(b"old").unwrap();
    file.commit().unwrap();
    file.close().unwrap();
    std::fs::remove_file(&path).unwrap();
    assert!(dir.path().join("gone.db.untorn").exists());
    let put = |command: &str| {
        let mut put = untorn();
        put.arg("put").arg(&path).args(["--", command, "contents"]).stdin(std::process::Stdio::null());
        put.output().unwrap()
    };
    assert!(!put("false").status.success() && !path.exists());
    assert!(put("echo").status.success());
    assert_eq!(std::fs::read(&path).unwrap(), b"contents\n");
}
