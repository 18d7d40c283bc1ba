//! Commands that read a store while another process, this one, has it open.

mod common;

use common::{json, run, untorn};
use std::io::{BufRead, BufReader, Read};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use untorn::{FailureClass, Reader, Store, StoreOptions};

fn commit(store: &Store, name: &str, contents: &[u8]) {
    let file = store.open_or_create_file(name).unwrap();
    file.set_len(0).and_then(|()| file.write_all_at(contents, 0)).and_then(|()| file.commit()).unwrap();
}

fn unlink(store: &Store, name: &str) {
    let mut txn = store.begin();
    txn.unlink(name).unwrap();
    txn.commit().unwrap();
}

fn open(dir: &Path) -> Store {
    StoreOptions::new().create(true).background(false).open(dir).unwrap()
}

#[test]
fn cat_and_ls_show_the_last_commit_of_a_store_that_is_open() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    let mut txn = store.begin();
    txn.mkdir("d", 0o700).unwrap();
    txn.commit().unwrap();
    commit(&store, "a", b"one\n");
    commit(&store, "d/b", b"two\n");
    store.checkpoint().unwrap();
    commit(&store, "a", b"committed\n");
    store.open_file("a").unwrap().write_all_at(b"not\n", 0).unwrap();
    assert_eq!(std::fs::read(dir.path().join("a")).unwrap(), b"one\n", "`cat` of the system");
    assert_eq!(run(&["cat"], &dir.path().join("a")).ok(), "committed\n");
    assert_eq!(run(&["cat"], &dir.path().join("d/b")).ok(), "two\n");
    assert_eq!(run(&["ls"], dir.path()).ok(), "a\nd\n");
    assert_eq!(run(&["ls"], &dir.path().join("d")).ok(), "b\n");
    assert_eq!(run(&["ls", "-R"], dir.path()).ok(), "a\nd\nd/b\n");
    let long = run(&["ls", "--long"], &dir.path().join("a")).ok();
    assert!(long.ends_with("          10  a\n"), "{long}");
    let listed = json(&run(&["ls", "--json"], dir.path()).ok());
    assert_eq!(listed["entries"][1]["kind"], "directory");
    assert!(listed["lsn"].as_u64().unwrap() > 3);
    store.close().unwrap();
    assert_eq!(run(&["cat"], &dir.path().join("a")).ok(), "committed\n", "closed");
}

#[test]
fn what_cannot_be_read_is_told() {
    let dir = tempfile::tempdir().unwrap();
    let why = run(&["cat"], &dir.path().join("a")).fails(1);
    assert!(why.contains("cannot find a store above") && why.contains("check the path"), "{why}");
    let store = StoreOptions::new().create(true).class(FailureClass::Process).open(dir.path()).unwrap();
    commit(&store, "a", b"one");
    let why = run(&["cat"], &dir.path().join("a")).fails(1);
    assert!(why.contains("class `process`") && why.contains("class `power`"), "{why}");
    store.close().unwrap();
    assert_eq!(run(&["cat"], &dir.path().join("a")).ok(), "one");
    assert!(run(&["cat"], &dir.path().join("b")).fails(1).contains("No such file"));
    assert!(run(&["cat"], dir.path()).code == Some(1));
}

#[test]
fn an_ordinary_user_reads_its_own_and_nobody_elses() {
    if !common::root() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    commit(&store, "a", b"one");
    std::fs::set_permissions(dir.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
    let as_nobody = |path: &Path| {
        use std::os::unix::process::CommandExt;
        let mut command = untorn();
        command.arg("cat").arg(path).stdin(Stdio::null()).uid(untorn_testkit::NOBODY).gid(untorn_testkit::NOBODY);
        common::Run::from(command.output().unwrap())
    };
    let why = as_nobody(&dir.path().join("a")).fails(1);
    assert!(why.contains("run this as the owner of the data"), "{why}");
    store.close().unwrap();
    let done = Command::new("chown").args(["-R", "65534:65534"]).arg(dir.path()).status().unwrap();
    assert!(done.success());
    assert_eq!(as_nobody(&dir.path().join("a")).ok(), "one");
}

const MIB: usize = 1 << 20;

/// Bytes that a pipe holds, and that a command prints before its consumer reads them.
const PIPE_BYTES: usize = 64 << 10;

/// Starts `untorn cat`, and waits until its first bytes can be read.
fn slow_cat(paths: &[&Path]) -> (Child, Vec<u8>) {
    let mut command = untorn();
    command.arg("cat").args(paths).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let mut first = vec![0; PIPE_BYTES];
    child.stdout.as_mut().unwrap().read_exact(&mut first).unwrap();
    (child, first)
}

/// The whole output of a command that was started, and its errors.
fn rest_of((mut child, mut out): (Child, Vec<u8>)) -> (Vec<u8>, String, Option<i32>) {
    child.stdout.take().unwrap().read_to_end(&mut out).unwrap();
    let ended = child.wait_with_output().unwrap();
    (out, String::from_utf8(ended.stderr).unwrap(), ended.status.code())
}

#[test]
fn cat_of_several_files_is_of_one_commit() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    let paths = ["a", "b", "c"].map(|name| dir.path().join(name));
    let set = |n: u8| {
        let mut txn = store.begin();
        for (name, bytes) in [("a", MIB), ("b", 10), ("c", 10)] {
            let file = store.open_or_create_file(name).unwrap();
            txn.add(&file).and_then(|()| file.write_all_at(&vec![n; bytes], 0)).unwrap();
        }
        txn.commit().unwrap();
    };
    set(1);
    let cat = slow_cat(&[&paths[0], &paths[1], &paths[2]]);
    set(2);
    store.checkpoint().unwrap();
    // A name, too, is of the commit.
    unlink(&store, "c");
    let (out, err, code) = rest_of(cat);
    assert_eq!((code, err.as_str()), (Some(0), ""));
    assert!(out.len() == MIB + 20 && out.iter().all(|byte| *byte == 1), "{} bytes", out.len());
    assert_eq!(run(&["cat"], &paths[1]).ok().as_bytes(), [2; 10]);
    store.close().unwrap();
}

#[test]
fn cat_shows_a_slow_consumer_all_of_a_large_file_of_one_commit() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    let every: Vec<u8> = (0..6 * MIB as u32).map(|n| (n / 1000) as u8).collect();
    commit(&store, "a", &every);
    let cat = slow_cat(&[&dir.path().join("a")]);
    let file = store.open_file("a").unwrap();
    for n in 0..3 {
        file.write_all_at(&vec![n; 6 * MIB], 0).and_then(|()| file.commit()).unwrap();
        store.checkpoint().unwrap();
    }
    file.set_len(0).and_then(|()| file.commit()).unwrap();
    drop(file);
    store.close().unwrap();
    let (out, err, code) = rest_of(cat);
    assert_eq!((code, err.as_str(), out == every), (Some(0), "", true), "{} bytes", out.len());
    assert_eq!(run(&["cat"], &dir.path().join("a")).ok(), "");
}

/// An owner that keeps nothing for readers.
#[test]
fn cat_and_cp_say_what_an_owner_gave_up() {
    let dir = tempfile::tempdir().unwrap();
    let store = StoreOptions::new().create(true).background(false).readers_space(0).open(dir.path()).unwrap();
    commit(&store, "a", &[1; 3 * MIB]);
    store.checkpoint().unwrap();
    let (lsn, path) = (store.status().lsn, dir.path().join("a"));
    let cat = slow_cat(&[&path]);
    commit(&store, "a", &[2; 3 * MIB]);
    store.checkpoint().unwrap();
    let (out, err, code) = rest_of(cat);
    assert_eq!((code, out == [1; MIB]), (Some(1), true), "{} bytes: {err}", out.len());
    assert_eq!(
        err,
        format!(
            "untorn: {}: commit {lsn} was given up, because the program that has the store open keeps no more for \
             readers; 1048576 bytes were printed, all of that commit. Run the command again with a faster consumer, or \
             copy the store with `untorn cp`; that program can keep more (`StoreOptions::readers_space`)\n",
            path.display()
        )
    );
    assert_eq!(run(&["cat"], &path).ok().len(), 3 * MIB, "the next one has the next commit");
    store.close().unwrap();
}

/// A copy by another program has the data kept for readers of the original, who cannot read the copy.
#[test]
fn a_store_is_copied_while_readers_hold_a_commit() {
    let (dir, copies) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let store = open(dir.path());
    for name in ["a", "moved", "removed"] {
        commit(&store, name, name.as_bytes());
    }
    store.checkpoint().unwrap();
    let snapshot = Reader::open(dir.path()).unwrap().snapshot().unwrap();
    commit(&store, "a", b"new");
    store.rename("moved", "name").unwrap();
    unlink(&store, "removed");
    store.close().unwrap();
    let files = |dir: &Path| std::fs::read_dir(dir).map_or(0, Iterator::count);
    let kept = |dir: &Path| files(&dir.join(".untorn/undo")) + files(&dir.join(".untorn/undo/names"));
    assert!(kept(dir.path()) >= 5, "an index, old bytes, and two files in a directory");
    let copy = copies.path().join("copy");
    let done = Command::new("cp").arg("-a").arg(dir.path()).arg(&copy).status().unwrap();
    assert!(done.success() && kept(&copy) == kept(dir.path()));
    for command in ["status", "check", "find-unclean"] {
        let said = run(&[command], &copy).ok();
        assert!(!said.contains("PROBLEM") && !said.contains("by readers"), "{command}: {said}");
    }
    assert_eq!(run(&["cat"], &copy.join("name")).ok(), "moved");
    open(&copy).close().unwrap();
    assert_eq!(kept(&copy), 0, "nobody reads it");
    assert_eq!(run(&["ls"], &copy).ok(), "a\nname\n");
    assert_eq!(run(&["cat"], &copy.join("a")).ok(), "new");
    // The original goes on, too.
    for name in ["a", "moved", "removed"] {
        let mut bytes = [0; 20];
        let n = snapshot.open(name).unwrap().read_at(&mut bytes, 0).unwrap();
        assert_eq!(&bytes[..n], name.as_bytes());
    }
}

#[test]
fn eject_ends_what_readers_hold() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    commit(&store, "a", b"one");
    store.checkpoint().unwrap();
    let reader = Reader::open(dir.path()).unwrap();
    let snapshot = reader.snapshot().unwrap();
    let file = snapshot.open("a").unwrap();
    commit(&store, "a", b"two");
    store.close().unwrap();
    assert_eq!(file.read_at(&mut [0; 3], 0).unwrap(), 3);
    run(&["eject", "--yes"], dir.path()).ok();
    assert_eq!(file.read_at(&mut [0; 3], 0).unwrap_err().kind(), "snapshot-ended");
    assert_eq!(snapshot.check().unwrap_err().kind(), "snapshot-ended");
    assert_eq!(tree(dir.path()).len(), 1, "a plain file is left");
}

#[test]
fn tail_goes_on_after_a_commit() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    for contents in [&b"1"[..], b"22", b"333", b"4444"] {
        commit(&store, "a", contents);
    }
    let last = store.status().lsn;
    let tail = |arguments: &[&str]| run(&[&["tail", "-n", "2"], arguments].concat(), dir.path());
    let lines = tail(&["--from", &(last - 2).to_string()]).ok();
    let expected = [(last - 1, 3), (last, 4)]
        .map(|(lsn, n)| format!("#{lsn}  a  wrote {n} bytes at 0\n#{lsn}  a  has {n} bytes\n"));
    assert_eq!(lines, expected.concat());
    let why = tail(&["--from", &(last + 7).to_string()]).fails(1);
    assert!(why.contains(&format!("has no commit {} yet; its last one is {last}\n", last + 7)), "{why}");
    store.close().unwrap();
    // Commits that the journal no longer has.
    let store = StoreOptions::new().background(false).journal_bytes(64 << 10).open(dir.path()).unwrap();
    for n in 0..40 {
        commit(&store, "a", &[n; 4096]);
        store.checkpoint().unwrap();
    }
    let (from, end) = (last.to_string(), store.status().lsn);
    let from = ["-n", "1", "--json", "--from", &from];
    let lines = lines_of_tail(&from, dir.path(), || commit(&store, "b", b"5"));
    let missed = json(&lines[0])["missed"].clone();
    assert_eq!((missed["first_lsn"].as_u64(), missed["last_lsn"].as_u64()), (Some(last + 1), Some(end)), "{lines:?}");
    store.close().unwrap();
}

/// The output lines of `untorn tail` with these arguments, for the commits that are made while it follows.
fn lines_of_tail(arguments: &[&str], dir: &Path, commits: impl FnOnce()) -> Vec<String> {
    let mut child = untorn()
        .arg("tail")
        .args(arguments)
        .arg(dir)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut ready = String::new();
    BufReader::new(child.stderr.take().unwrap()).read_line(&mut ready).unwrap();
    assert!(ready.starts_with("following "), "{ready}");
    commits();
    let lines = BufReader::new(child.stdout.take().unwrap()).lines().map(Result::unwrap).collect();
    assert!(child.wait().unwrap().success());
    lines
}

/// The lines without the number of the commit.
fn said(lines: &[String]) -> Vec<&str> {
    lines.iter().map(|line| line.split_once("  ").unwrap().1).collect()
}

#[test]
fn tail_follows_commits() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    commit(&store, "a", b"one");
    let lines = lines_of_tail(&["-n", "3"], dir.path(), || {
        let file = store.open_file("a").unwrap();
        file.write_all_at(b"two", 3).and_then(|()| file.commit()).unwrap();
        store.rename("a", "b").unwrap();
        commit(&store, "c", b"");
    });
    assert_eq!(said(&lines), ["a  wrote 3 bytes at 3", "a  has 6 bytes", "a  renamed to b", "c  created"], "{lines:?}");
    store.close().unwrap();
}

#[test]
fn tail_prints_the_bytes_of_each_commit() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    commit(&store, "a", &[b'.'; 200_000]);
    let file = store.open_file("a").unwrap();
    let every: Vec<u8> = (0..100_000u32).map(|n| (n % 256) as u8).collect();
    let commits = || {
        for bytes in [&b"one"[..], b"#9  a  \"removed\"\n\\\x1b[2J\xff", &every] {
            file.write_all_at(bytes, 4).and_then(|()| file.commit()).unwrap();
        }
        file.zero(4, 3).and_then(|()| file.commit()).unwrap();
    };
    let lines = lines_of_tail(&["-n", "4", "--bytes"], dir.path(), commits);
    let lines = said(&lines);
    assert_eq!(lines[0], "a  wrote 3 bytes at 4: one");
    assert_eq!(lines[1], r##"a  wrote 23 bytes at 4: #9  a  \"removed\"\n\\\x1b[2J\xff"##);
    assert_eq!(lines[2], format!("a  wrote 100000 bytes at 4: {}", every.escape_ascii()));
    assert_eq!(lines[3..], ["a  zeroed 3 bytes at 4"]);
    let lines = lines_of_tail(&["-n", "4", "--bytes", "--json"], dir.path(), commits);
    let [first, second, third, fourth] = &lines[..] else { panic!("{} lines", lines.len()) };
    assert_eq!(
        json(first)["changes"][0],
        serde_json::json!({
            "path": "a", "kind": "written", "offset": 4, "bytes": 3, "hex": "6f6e65"
        })
    );
    assert!(json(first)["lsn"].as_u64() < json(second)["lsn"].as_u64());
    assert_eq!(json(second)["changes"][0]["hex"], "233920206120202272656d6f766564220a5c1b5b324aff");
    let hex: String = every.iter().map(|byte| format!("{byte:02x}")).collect();
    assert_eq!(json(third)["changes"][0]["hex"], *hex);
    assert_eq!(
        json(fourth)["changes"][0],
        serde_json::json!({ "path": "a", "kind": "zeroed", "offset": 4, "bytes": 3 })
    );
    // Without `--bytes`, the bytes are not printed. Several changes of a commit are one line of JSON.
    let lines = lines_of_tail(&["-n", "2", "--json"], dir.path(), || commit(&store, "b", b"made"));
    let changes = json(&lines[1])["changes"].clone();
    let kinds: Vec<&str> = changes.as_array().unwrap().iter().map(|change| change["kind"].as_str().unwrap()).collect();
    assert_eq!(kinds, ["written", "resized"]);
    assert_eq!(changes[0].get("hex"), None);
    store.close().unwrap();
}

/// The names, modes and contents below a directory.
fn tree(dir: &Path) -> Vec<(String, u32, Vec<u8>)> {
    let mut found = Vec::new();
    let mut left = vec![dir.to_owned()];
    while let Some(below) = left.pop() {
        for entry in std::fs::read_dir(&below).unwrap() {
            let path = entry.unwrap().path();
            let meta = path.symlink_metadata().unwrap();
            let name = path.strip_prefix(dir).unwrap().to_str().unwrap().to_owned();
            let contents = if meta.is_file() { std::fs::read(&path).unwrap() } else { Vec::new() };
            found.push((name, meta.permissions().mode() & 0o7777, contents));
            if meta.is_dir() {
                left.push(path);
            }
        }
    }
    found.sort();
    found
}

fn cp(from: &Path, to: &Path) -> common::Run {
    untorn().arg("cp").arg(from).arg(to).stdin(Stdio::null()).output().unwrap().into()
}

#[test]
fn cp_makes_plain_files_of_one_commit() {
    let (dir, copies) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let store = open(dir.path());
    let mut txn = store.begin();
    txn.mkdir("d", 0o750).unwrap();
    txn.commit().unwrap();
    commit(&store, "a", b"old");
    commit(&store, "d/b", &[7; 5000]);
    store.checkpoint().unwrap();
    commit(&store, "a", b"committed");
    let mut txn = store.begin();
    txn.create("sparse", 0o640).unwrap().set_len(3 << 20).unwrap();
    txn.chmod("a", 0o600).unwrap();
    txn.commit().unwrap();
    store.open_file("a").unwrap().write_all_at(b"not", 0).unwrap();
    std::os::unix::fs::symlink("a", dir.path().join("link")).unwrap();
    let copy = copies.path().join("copy");
    let said = cp(dir.path(), &copy).ok();
    assert!(said.starts_with("copied 3 files, ") && said.contains("left out: 1 link"), "{said}");
    let copied = tree(&copy);
    let names: Vec<&str> = copied.iter().map(|(name, ..)| name.as_str()).collect();
    assert_eq!(names, ["a", "d", "d/b", "sparse"], "no journal, no link");
    assert_eq!((copied[0].1, &copied[0].2[..]), (0o600, &b"committed"[..]));
    assert_eq!((copied[1].1, copied[2].2.len(), copied[3].2.len()), (0o750, 5000, 3 << 20));
    let mut attribute = [0; 256];
    let none = rustix::fs::getxattr(copy.join("a"), "user.untorn", &mut attribute);
    assert_eq!(none, Err(rustix::io::Errno::NODATA), "no attribute");
    assert_eq!(std::fs::read_dir(copies.path()).unwrap().count(), 1, "nothing unfinished is left");
    // The copy is a store of its own, and the original goes on.
    let other = open(&copy);
    commit(&other, "a", b"other");
    other.close().unwrap();
    commit(&store, "a", b"more");
    store.close().unwrap();
    assert_eq!(std::fs::read(dir.path().join("a")).unwrap(), b"more");
    assert!(cp(dir.path(), &copy).fails(1).contains("exists already"));
    assert!(cp(dir.path(), &dir.path().join("d/copy")).fails(1).contains("inside of the store"));
}

#[test]
fn cp_copies_a_standalone_file() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("settings");
    let file = untorn::File::open_or_create(&path).unwrap();
    file.write_all_at(b"dark", 0).and_then(|()| file.commit()).unwrap();
    let copy = dir.path().join("copy");
    cp(&path, &copy).ok();
    assert_eq!(std::fs::read(&copy).unwrap(), b"dark");
    assert!(!dir.path().join("copy.untorn").exists());
}

#[test]
fn cp_copies_attributes_when_asked() {
    let (dir, copies) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let store = open(dir.path());
    commit(&store, "a", b"committed");
    store.checkpoint().unwrap();
    let a = dir.path().join("a");
    let old = std::time::SystemTime::UNIX_EPOCH + std::time::Duration::from_secs(1_000_000);
    std::fs::File::options().write(true).open(&a).unwrap().set_modified(old).unwrap();
    rustix::fs::setxattr(&a, "user.colour", b"green", rustix::fs::XattrFlags::empty()).unwrap();
    let (plain, with) = (copies.path().join("plain"), copies.path().join("with"));
    cp(dir.path(), &plain).ok();
    run(&["cp", "--attributes", dir.path().to_str().unwrap()], &with).ok();
    let attribute = |path: &Path, name: &str| {
        let mut value = [0; 64];
        rustix::fs::getxattr(path, name, &mut value[..]).map(|n| value[..n].to_vec()).ok()
    };
    assert_eq!(std::fs::read(with.join("a")).unwrap(), b"committed");
    assert_eq!(with.join("a").metadata().unwrap().modified().unwrap(), old);
    assert_eq!(attribute(&with.join("a"), "user.colour").as_deref(), Some(&b"green"[..]));
    assert_eq!(attribute(&with.join("a"), "user.untorn"), None, "the copy is in no store");
    assert!(plain.join("a").metadata().unwrap().modified().unwrap() > old);
    assert_eq!(attribute(&plain.join("a"), "user.colour"), None);
    store.close().unwrap();
}

#[test]
fn who_may_read_is_shown_and_changed_and_so_is_who_holds() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    commit(&store, "a", b"one");
    let mode = |name: &str| dir.path().join(name).metadata().unwrap().permissions().mode() & 0o777;
    let who = |word: &str| {
        let path = dir.path().to_str().unwrap();
        let words = if word.is_empty() { vec!["readers", path] } else { vec!["readers", path, word] };
        common::Run::from(untorn().args(words).output().unwrap())
    };
    assert!(who("").ok().starts_with("owner: "));
    assert!(who("group").ok().starts_with("group: "));
    assert_eq!((mode(".untorn"), mode(".untorn/journal"), mode(".untorn/journal/header")), (0o750, 0o750, 0o640));
    assert!(who("all").ok().starts_with("all: "));
    assert_eq!((mode(".untorn"), mode(".untorn/lock")), (0o755, 0o644));
    if common::root() {
        std::fs::set_permissions(dir.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
        use std::os::unix::process::CommandExt;
        let as_nobody = |words: &[&str]| {
            let mut command = untorn();
            command.args(words).stdin(Stdio::null()).uid(untorn_testkit::NOBODY).gid(untorn_testkit::NOBODY);
            common::Run::from(command.output().unwrap())
        };
        let (path, file) = (dir.path().to_str().unwrap(), dir.path().join("a"));
        assert_eq!(as_nobody(&["cat", file.to_str().unwrap()]).ok(), "one");
        assert_eq!(as_nobody(&["ls", path]).ok(), "a\n");
        as_nobody(&["status", path]).ok();
        as_nobody(&["readers", path, "owner"]).fails(1);
        as_nobody(&["recover", path]).fails(1);
    }
    assert!(who("owner").ok().starts_with("owner: "));
    assert_eq!((mode(".untorn"), mode(".untorn/journal/header")), (0o700, 0o600));
    assert!(who("friends").code == Some(2));
    let reader = Reader::open(dir.path()).unwrap();
    let snapshot = reader.snapshot().unwrap();
    let status = run(&["status"], dir.path()).ok();
    assert!(status.contains(&format!("by readers: commit {}\n", snapshot.lsn())), "{status}");
    // An owner keeps held data before it overwrites it.
    commit(&store, "big", &[1; MIB]);
    let later = reader.snapshot().unwrap();
    store.checkpoint().unwrap();
    commit(&store, "big", &[2; MIB]);
    store.checkpoint().unwrap();
    commit(&store, "big", &[3; MIB]);
    store.checkpoint().unwrap();
    let status = run(&["status"], dir.path()).ok();
    let held = format!("by readers: commit {}, {}; ", snapshot.lsn(), later.lsn());
    let is_held = |line: &str| line.contains(&held) && line.ends_with(" of old data kept for them");
    assert!(status.lines().any(is_held), "{status}");
    let status = json(&run(&["status", "--json"], dir.path()).ok());
    assert_eq!(status["held"], serde_json::json!([snapshot.lsn(), later.lsn()]));
    assert!(status["kept_bytes"].as_u64().unwrap() > MIB as u64, "{status}");
    // Held data stays when the owner has closed the store.
    store.close().unwrap();
    assert!(run(&["status"], dir.path()).ok().lines().any(is_held));
    assert_eq!(run(&["check"], dir.path()).code, Some(0));
    drop((snapshot, later));
    let status = run(&["status"], dir.path()).ok();
    assert!(!status.contains("by readers") && status.contains("the next opening removes it"), "{status}");
    open(dir.path()).close().unwrap();
    let status = run(&["status"], dir.path()).ok();
    assert!(!status.contains("by readers") && !status.contains("kept"), "{status}");
}

/// Special characters in a name cannot forge a line, and do not hide other names.
#[test]
fn strange_names_and_links_are_listed_and_left_out() {
    use std::os::unix::ffi::OsStrExt;
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    commit(&store, "a", b"one");
    commit(&store, "x\n#9  y\u{1b}[2K", b"two");
    let bytes = Path::new(std::ffi::OsStr::from_bytes(b"\xff\\"));
    store.open_or_create_file(bytes).unwrap().commit().unwrap();
    std::os::unix::fs::symlink("/etc", dir.path().join("link")).unwrap();
    std::os::unix::fs::symlink("nothing", dir.path().join("broken")).unwrap();
    let listed = run(&["ls", "-R"], dir.path()).ok();
    assert_eq!(listed.lines().collect::<Vec<_>>(), ["a", r"x\n#9  y\u{1b}[2K", r"\xff\\"]);
    let listed = json(&run(&["ls", "--json"], dir.path()).ok());
    assert_eq!(listed["entries"][2]["path"], "\u{fffd}\\");
    // Reading a store in use may be disturbed, so it is repeated.
    let mut said = String::new();
    let mut is_json = || {
        let status = run(&["status", "--json"], dir.path());
        said = status.err;
        status.out.starts_with('{')
    };
    assert!((0..20).any(|_| is_json()), "{said}");
    let copied = cp(dir.path(), &dir.path().with_extension("copy")).ok();
    assert!(copied.contains("3 files") && copied.contains("2 links"), "{copied}");
    std::fs::remove_dir_all(dir.path().with_extension("copy")).unwrap();
    store.close().unwrap();
    assert!(run(&["ls"], dir.path()).ok().starts_with("a\n"), "closed");
    // A store whose own name is not UTF-8.
    let blind = dir.path().join(bytes);
    std::fs::remove_file(&blind).unwrap();
    std::fs::create_dir(&blind).unwrap();
    std::mem::forget(open(&blind));
    let found = untorn().args(["find-unclean", "--json"]).arg(dir.path()).output().unwrap();
    assert_eq!(json(std::str::from_utf8(&found.stdout).unwrap())["stores"].as_array().unwrap().len(), 2);
}

#[test]
fn nothing_to_follow_and_nowhere_to_print() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    commit(&store, "a", b"one");
    assert_eq!(run(&["tail", "-n", "0"], dir.path()).ok(), "");
    let why = run(&["cat"], dir.path()).fails(1);
    assert!(why.contains("is a store") && why.contains("untorn ls"), "{why}");
    for (command, path) in
        [("cat", dir.path().join("a")), ("ls", dir.path().to_owned()), ("status", dir.path().to_owned())]
    {
        let shell = |to: &str| {
            let line = format!("exec \"$0\" {command} \"$1\" {to}");
            let output = Command::new("sh").args(["-c", &line, env!("CARGO_BIN_EXE_untorn")]).arg(&path).output();
            common::Run::from(output.unwrap())
        };
        let why = shell(">&-").fails(1);
        assert!(why.contains("standard output is closed"), "{why}");
        // Output opened for reading and writing, as some programs do for their children.
        assert_eq!(shell("<>/dev/null >&0").ok(), "");
        shell("> /dev/null").ok();
        assert!(shell("> /dev/full").fails(1).contains("No space left"), "{command}");
    }
    store.close().unwrap();
}

/// A copy gets its owner's rights only if the original has the same owner, because another user may have written the
/// contents.
#[test]
fn cp_makes_no_program_that_runs_with_the_rights_of_who_copies() {
    if !common::root() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    for name in ["own", "others"] {
        commit(&store, name, b"#!/bin/sh\n");
        let mut txn = store.begin();
        txn.chmod(name, 0o6755).unwrap();
        txn.commit().unwrap();
    }
    store.close().unwrap();
    std::os::unix::fs::chown(dir.path().join("others"), Some(65534), Some(65534)).unwrap();
    std::fs::set_permissions(dir.path().join("others"), std::fs::Permissions::from_mode(0o6755)).unwrap();
    for (options, wanted) in [(&["cp"][..], [0o6755, 0o755]), (&["cp", "--attributes"], [0o6755, 0o6755])] {
        let copy = dir.path().with_extension("copy");
        let done: common::Run = untorn().args(options).arg(dir.path()).arg(&copy).output().unwrap().into();
        done.ok();
        let modes =
            ["own", "others"].map(|name| std::fs::metadata(copy.join(name)).unwrap().permissions().mode() & 0o7777);
        assert_eq!(modes, wanted, "{options:?}");
        std::fs::remove_dir_all(&copy).unwrap();
    }
}
