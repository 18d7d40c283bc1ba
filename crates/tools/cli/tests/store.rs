//! Commands that examine and repair stores: clean, owned, killed and damaged ones.

mod common;

use common::{Run, json, run, untorn};
use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;
use tempfile::TempDir;
use untorn::{FailureClass, StoreOptions};

const COMMITS: u64 = 3;
const OWNER_DIR: &str = "UNTORN_TEST_OWNER_DIR";
const OWNER_CLASS: &str = "UNTORN_TEST_OWNER_CLASS";

/// The owner of a store, in a process of its own that can be killed.
struct Owner {
    child: Child,
}

impl Owner {
    fn start(dir: &Path) -> Owner {
        Owner::start_in_class(dir, "power")
    }

    fn start_in_class(dir: &Path, class: &str) -> Owner {
        Owner::started_by(Command::new(std::env::current_exe().unwrap()), dir, class)
    }

    fn started_by(mut command: Command, dir: &Path, class: &str) -> Owner {
        command
            .args(["--exact", &untorn_testkit::test_path!("owner"), "--ignored", "--nocapture"])
            .env(OWNER_DIR, dir)
            .env(OWNER_CLASS, class);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let ready = lines.map_while(Result::ok).any(|line| line.ends_with("committed"));
        assert!(ready, "the owner ended early");
        Owner { child }
    }

    fn pid(&self) -> u32 {
        self.child.id()
    }

    fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

/// Opens a store, commits, and waits to be killed.
#[test]
#[ignore = "run by other tests, as a process of its own"]
fn owner() {
    let dir = PathBuf::from(std::env::var_os(OWNER_DIR).expect("set by the other tests"));
    let class = match std::env::var(OWNER_CLASS).expect("set by the other tests").as_str() {
        "process" => FailureClass::Process,
        _ => FailureClass::Power,
    };
    let store = StoreOptions::new().create(true).class(class).open(&dir).unwrap();
    let file = store.open_or_create_file("file").unwrap();
    for n in 1..=COMMITS {
        file.write_all_at(format!("commit {n}").as_bytes(), 0).unwrap();
        file.commit().unwrap();
    }
    file.write_all_at(b"NOT COMMITTED", 0).unwrap();
    println!("committed");
    std::io::stdin().read_line(&mut String::new()).unwrap();
}

/// A store whose owner was killed after its last commit.
fn killed() -> TempDir {
    let dir = tempfile::tempdir().unwrap();
    Owner::start(dir.path()).kill();
    dir
}

fn last_commit() -> String {
    format!("commit {COMMITS}")
}

fn read(dir: &TempDir) -> String {
    fs::read_to_string(dir.path().join("file")).unwrap()
}

#[test]
fn a_killed_owners_store_is_sound_pending_and_recovers() {
    let dir = killed();
    let checked = run(&["check"], dir.path()).unclean();
    assert!(checked.contains("\nsound, but not closed: the next opening, or `untorn recover`"), "{checked}");
    assert_eq!(json(&run(&["check", "--json"], dir.path()).unclean())["sound"], true);
    let status = json(&run(&["status", "--json"], dir.path()).unclean());
    assert_eq!((&status["clean"], &status["owner"]), (&false.into(), &serde_json::Value::Null));
    assert_eq!(status["files_pending"][0]["path"], "file");

    let dump = json(&run(&["dump", "--json"], dir.path()).unclean());
    assert!(dump["records"].as_array().unwrap().len() as u64 >= COMMITS, "{dump}");
    let text = run(&["dump"], dir.path()).unclean();
    assert!(text.contains("crc") && text.contains("write"), "{text}");

    let before = read(&dir);
    assert!(run(&["recover", "--dry-run"], dir.path()).unclean().contains("nothing was changed"));
    assert_eq!(read(&dir), before);
    let done = run(&["recover"], dir.path()).ok();
    assert!(done.starts_with("recovered") && done.contains("1 file"), "{done}");
    assert_eq!(read(&dir), last_commit());

    assert!(run(&["recover"], dir.path()).ok().starts_with("nothing to recover"));
    let status = json(&run(&["status", "--json"], dir.path()).ok());
    assert_eq!(status["clean"], true);
}

#[test]
fn an_owner_in_another_pid_namespace_is_called_one() {
    let unshare = || {
        let mut command = Command::new("unshare");
        command.args(["--pid", "--fork", "--kill-child"]);
        command
    };
    if !unshare().arg("true").stderr(Stdio::null()).status().is_ok_and(|status| status.success()) {
        return eprintln!("skipped: cannot make a pid namespace");
    }
    let dir = tempfile::tempdir().unwrap();
    let mut command = unshare();
    command.arg(std::env::current_exe().unwrap());
    let owner = Owner::started_by(command, dir.path(), "power");
    let said = "process 1 of another pid namespace";
    let e = run(&["checkpoint"], dir.path()).fails(1);
    assert!(e.contains(said) && e.contains("read beside it"), "{e}");
    let status = run(&["status"], dir.path()).ok();
    assert!(status.contains(said), "{status}");
    let status = json(&run(&["status", "--json"], dir.path()).ok());
    assert_eq!((&status["owner"], &status["owner_elsewhere"]), (&1.into(), &true.into()));
    owner.kill();
    // The kernel kills the process in the namespace because its parent was killed, but that takes a moment.
    while !json(&run(&["status", "--json"], dir.path()).out)["owner"].is_null() {}
    // An owner in the namespace of this process.
    let owner = Owner::start(dir.path());
    assert!(!run(&["checkpoint"], dir.path()).fails(1).contains("namespace"));
    let status = run(&["status"], dir.path()).ok();
    assert!(status.contains(&format!("process {}\n", owner.pid())), "{status}");
    owner.kill();
}

#[test]
fn an_owned_store_is_looked_at_and_otherwise_busy() {
    let dir = tempfile::tempdir().unwrap();
    let owner = Owner::start(dir.path());
    let status = json(&run(&["status", "--json"], dir.path()).ok());
    assert_eq!(status["owner"], owner.pid());
    assert!(run(&["status"], dir.path()).ok().contains(&format!("process {}", owner.pid())));
    for command in [&["checkpoint"][..], &["recover"], &["eject", "--yes"]] {
        let e = run(command, dir.path()).fails(1);
        assert!(e.contains("in use") && e.contains(&owner.pid().to_string()), "{command:?}: {e}");
    }
    owner.kill();
    let done = run(&["checkpoint"], dir.path()).ok();
    assert!(done.contains("after recovering"), "{done}");
    assert_eq!(read(&dir), last_commit());
}

#[test]
fn recover_waits_for_the_owner_if_asked() {
    let dir = tempfile::tempdir().unwrap();
    let owner = Owner::start(dir.path());
    let mut recover = untorn();
    recover.args(["recover", "--wait"]).arg(dir.path()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut recover = recover.spawn().unwrap();
    std::thread::sleep(Duration::from_millis(300));
    assert!(recover.try_wait().unwrap().is_none(), "it waits");
    owner.kill();
    let done = Run::from(recover.wait_with_output().unwrap()).ok();
    assert!(done.starts_with("recovered"), "{done}");
    assert_eq!(read(&dir), last_commit());
}

/// Runs `untorn` as after a restart of the machine: with another boot id, in a mount namespace of its own.
fn after_reboot(arguments: &[&str], dir: &Path) -> Option<Run> {
    let boot_id = tempfile::NamedTempFile::new().unwrap();
    fs::write(boot_id.path(), "01234567-89ab-4cde-8f01-23456789abcd\n").unwrap();
    let script = "mount --bind \"$0\" /proc/sys/kernel/random/boot_id || exit 99; exec \"$@\"";
    let mut command = Command::new("unshare");
    command.args(["--map-root-user", "--mount", "sh", "-c", script]).arg(boot_id.path());
    command.arg(env!("CARGO_BIN_EXE_untorn")).args(arguments).arg(dir).stdin(Stdio::null());
    let run = command.output().ok().map(Run::from)?;
    // Exit code 1 with a message of unshare: this process may not make namespaces.
    (run.code != Some(99) && !run.err.starts_with("unshare: ")).then_some(run)
}

#[test]
fn a_store_of_class_process_is_unknown_after_a_reboot_until_accepted() {
    let dir = tempfile::tempdir().unwrap();
    Owner::start_in_class(dir.path(), "process").kill();
    let Some(check) = after_reboot(&["check"], dir.path()) else {
        return eprintln!("skipped: cannot put another boot id in place");
    };
    assert_eq!(check.code, Some(1), "{}{}", check.out, check.err);
    assert!(check.out.contains("--accept-unknown") && check.out.ends_with("its state is unknown\n"), "{}", check.out);
    let e = after_reboot(&["recover"], dir.path()).unwrap().fails(1);
    assert!(e.contains("--accept-unknown"), "{e}");
    let done = after_reboot(&["recover", "--accept-unknown"], dir.path()).unwrap().ok();
    assert!(done.contains("plain and whole"), "{done}");
    // From now on the store is sound for every command, also after the next restart.
    assert!(after_reboot(&["check"], dir.path()).unwrap().ok().ends_with("sound\n"));
    assert!(run(&["check"], dir.path()).ok().ends_with("sound\n"));
}

#[test]
fn on_the_same_boot_a_killed_owner_of_class_process_lost_nothing() {
    let dir = tempfile::tempdir().unwrap();
    Owner::start_in_class(dir.path(), "process").kill();
    assert!(run(&["recover"], dir.path()).ok().starts_with("recovered"));
    assert_eq!(read(&dir), last_commit());
}

#[test]
fn eject_leaves_plain_files() {
    let dir = killed();
    run(&["eject", "--yes"], dir.path()).ok();
    assert_eq!(read(&dir), last_commit());
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
    let mut value = [0; 256];
    let mark = rustix::fs::getxattr(dir.path().join("file"), "user.untorn", &mut value[..]);
    assert_eq!(mark, Err(rustix::io::Errno::NODATA));
    let status = run(&["status"], dir.path());
    assert!(status.code == Some(2) && status.out.contains("is no store"));
}

#[test]
fn a_standalone_file_is_named_by_its_path() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("standalone.db");
    let file = untorn::File::open_or_create(&path).unwrap();
    file.append(b"contents").unwrap();
    file.commit().unwrap();
    file.close().unwrap();
    for command in ["status", "check", "dump", "recover", "checkpoint"] {
        run(&[command], &path).ok();
    }
    run(&["eject", "--yes"], &path).ok();
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
    assert_eq!(fs::read(&path).unwrap(), b"contents");
}

/// Finds a file of this name below a directory.
fn find(dir: &Path, name: &str) -> Option<PathBuf> {
    fs::read_dir(dir).unwrap().map(|e| e.unwrap().path()).find_map(|path| match path.is_dir() {
        true => find(&path, name),
        false => path.ends_with(name).then_some(path),
    })
}

#[test]
fn damage_in_the_middle_is_a_problem_and_salvage_keeps_what_comes_before() {
    let dir = killed();
    let dump = json(&run(&["dump", "--json"], dir.path()).unclean());
    // The second record is damaged. A valid record after it shows that the second one was durable.
    let record = &dump["records"][1];
    let segment = record["segment"].as_str().unwrap();
    let segment = find(&dir.path().join(".untorn"), segment).expect("the dump names files");
    let mut bytes = fs::read(&segment).unwrap();
    let at = record["offset"].as_u64().unwrap() as usize + record["bytes"].as_u64().unwrap() as usize / 2;
    bytes[at] ^= 0xff;
    fs::write(&segment, &bytes).unwrap();

    let check = run(&["check"], dir.path());
    assert_eq!(check.code, Some(1), "{}{}", check.out, check.err);
    let e = run(&["recover"], dir.path()).fails(1);
    assert!(e.contains("damaged") && e.contains("--salvage"), "{e}");
    assert_eq!(fs::read(&segment).unwrap(), bytes, "nothing is deleted");
    let done = run(&["recover", "--salvage"], dir.path()).ok();
    assert!(done.contains("untorn-salvage."), "{done}");
    assert_ne!(read(&dir), last_commit());
    run(&["check"], dir.path()).ok();
}

#[test]
fn eject_asks_on_a_terminal() {
    let script = Command::new("script").arg("--version").output();
    if !script.is_ok_and(|out| out.status.success()) {
        return eprintln!("skipped: no `script` to make a terminal");
    }
    let dir = killed();
    let reply = |word: &str| -> Run {
        let command = format!("{} eject {}", env!("CARGO_BIN_EXE_untorn"), dir.path().display());
        let mut child = Command::new("script");
        let mut child = child
            .args(["-qec", &command, "/dev/null"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        std::io::Write::write_all(child.stdin.as_mut().unwrap(), format!("{word}\n").as_bytes()).unwrap();
        child.wait_with_output().unwrap().into()
    };
    let no = reply("n");
    assert_eq!(no.code, Some(1));
    assert!(no.out.contains("[y/N]") && no.out.contains("nothing was changed"), "{}", no.out);
    assert!(dir.path().join(".untorn").exists());
    assert_eq!(reply("y").code, Some(0));
    assert!(!dir.path().join(".untorn").exists());
}

#[test]
fn check_of_garbage_says_so() {
    let dir = tempfile::tempdir().unwrap();
    fs::create_dir(dir.path().join(".untorn")).unwrap();
    fs::set_permissions(dir.path().join(".untorn"), std::os::unix::fs::PermissionsExt::from_mode(0o775)).unwrap();
    std::os::unix::fs::symlink("/etc", dir.path().join("file.untorn")).unwrap();
    fs::write(dir.path().join("file"), "plain").unwrap();
    for path in [dir.path().to_owned(), dir.path().join("file")] {
        let out: Run = untorn().arg("check").arg(&path).output().unwrap().into();
        assert!(matches!(out.code, Some(1 | 2)), "{}: {}{}", path.display(), out.out, out.err);
        assert!(out.out.contains("PROBLEM") || out.err.starts_with("untorn: "), "{}{}", out.out, out.err);
    }
}

/// A file of Untorn's own may get the inode number of an earlier live heap.
#[test]
fn live_memory_that_nobody_removed_is_not_untorns_own() {
    use std::os::unix::fs::MetadataExt;
    let (dir, live) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    StoreOptions::new().create(true).open(dir.path()).unwrap().close().unwrap();
    let lock = dir.path().join(".untorn/lock").metadata().unwrap();
    let users = live.path().join(format!("untorn-{}", lock.uid()));
    fs::create_dir(&users).unwrap();
    fs::write(users.join(format!("heap-{:x}-{:x}", lock.dev(), lock.ino())), [0; 100]).unwrap();
    let mut command = untorn();
    command.args(["eject", "--yes"]).arg(dir.path()).env("UNTORN_LIVE_DIR", live.path());
    Run::from(command.stdin(Stdio::null()).output().unwrap()).ok();
    assert!(!dir.path().join(".untorn").exists());
}
