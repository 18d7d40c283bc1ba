//! Sessions of ordinary users over the working directory, with their changes in `--place DIR`.
//!
//! They leave the same files as the program alone, even if everything is killed on the way. An administrator provides
//! DIR.

mod common;

use common::directory::Directory;
use common::{Place, Run, Session, example};
use std::ffi::OsStr;
use std::fs;
use std::io::{ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;
use untorn_testkit::{seed, variable_or};

/// A user, and a second group of that user.
const USER: u32 = 12345;
const GROUP: u32 = 777;

/// Prepares the directory for the program.
const BEFORE: &str = "mkdir -p d/sub e keep gone.d becomes-file; echo a > a; echo b > b; echo in > d/in; echo sub > d/sub/x; \
    echo e > e/e; echo old > keep/old; ln a a-too; chmod 640 b; echo gone > gone; echo x > gone.d/x; ln -s a link; \
    echo x > becomes-file/x; echo x > becomes-dir; touch -d @1000000000 a b keep/old; mkdir shared; echo ours > shared/file; chgrp 777 shared shared/file; chmod 2775 shared; echo l > list; setfacl -m u:4321:r list 2>/dev/null || true; echo s > secret; chmod 0 secret";
/// The program. Its result does not depend on time.
const PROGRAM: &str = "echo more >> b; rm gone; rm -r gone.d; mkdir -p new/deep; echo deep > new/deep/file; \
    ln new/deep/file new/second; rm -r d; mkdir d; echo fresh > d/fresh; mkdir d/sub; echo other > d/sub/y; \
    mv keep/old keep/renamed; ln -sf b link; mkfifo pipe; chmod 4711 keep/renamed; rm -r becomes-file; \
    echo file > becomes-file; rm becomes-dir; mkdir becomes-dir; echo in > becomes-dir/in; mv e e2; \
    echo more >> list; \
    truncate -s 3M sparse; printf x | dd of=sparse bs=1 seek=2000000 conv=notrunc 2>/dev/null; chmod 200 new/second; \
    chmod 600 secret; echo t > secret; chmod 0 secret; mkdir sealed; echo in > sealed/in; chmod 0 sealed; \
    setfattr -n user.test -v value b; touch -d @1100000000 b keep d new; chmod 700 e2";

/// A place, and a user's directory outside of it.
struct Work {
    place: Directory,
    dir: tempfile::TempDir,
}

impl Work {
    fn new() -> Option<Work> {
        Place::new()?;
        // Not below /tmp, so that the session shows the host's directories.
        let work = Work { place: Directory::mounted("data=journal"), dir: tempfile::tempdir_in("/opt").unwrap() };
        work.place.give_to(USER);
        std::os::unix::fs::chown(work.dir.path(), Some(USER), Some(USER)).unwrap();
        Some(work)
    }

    /// A command as the user, in the user's directory.
    fn command<S: AsRef<OsStr>>(&self, program: &Path, words: &[S]) -> Command {
        let mut command = Command::new("setpriv");
        command.args([format!("--reuid={USER}"), format!("--regid={USER}"), format!("--groups={GROUP}")]);
        command.arg(program).args(words).current_dir(self.dir.path());
        command.env_remove("XDG_RUNTIME_DIR").stdin(Stdio::null());
        command
    }

    fn shell(&self, script: &str) {
        let run: Run = self.command("sh".as_ref(), &["-c", script]).output().unwrap().into();
        run.ok();
    }

    fn xsync(&self, words: &[&str]) -> Command {
        let program = self.place.program(env!("CARGO_BIN_EXE_untorn-xsync").as_ref());
        let (at, mut all) = (self.place.at(), vec!["--place".as_ref()]);
        all.push(at.as_os_str());
        all.extend(words.iter().map(OsStr::new));
        self.command(&program, &all)
    }

    fn run(&self, words: &[&str]) -> Run {
        self.xsync(words).output().unwrap().into()
    }

    /// Directories that sessions have left in the place.
    fn left(&self) -> Vec<PathBuf> {
        fs::read_dir(self.place.at()).unwrap().map(|entry| entry.unwrap().path()).collect()
    }

    /// Everything about the directory that a program can see, except inode numbers and times after the preparation.
    fn tree(&self) -> String {
        let script = "find . -printf '%P %y %m %U %G %n %l\\n' | sort; find . -type f -exec md5sum {} + | sort -k 2; \
            find . -newermt 2015-01-01 -printf '%P is new\\n' | sort; find . ! -name 't1*' | sort | while read f; do \
            echo \"$f: $(getfattr -hdm - \"$f\" 2>/dev/null | grep = | sort | tr '\\n' ' ')\"; done";
        let run: Run = Command::new("sh").args(["-c", script]).current_dir(self.dir.path()).output().unwrap().into();
        run.ok()
    }

    /// Runs a session that prints a line, and kills it then.
    fn killed(&self) {
        let script = format!("{PROGRAM}; echo shown; read nothing");
        let mut command = self.xsync(&["--", "sh", "-c", &script]);
        let mut session = Session::start(command.stdin(Stdio::piped()).stdout(Stdio::piped()));
        session.stdout.as_mut().unwrap().read_exact(&mut [0; 6]).unwrap();
    }
}

/// The files that the program leaves without a session.
fn expected(before: &str, program: &str) -> Option<String> {
    let work = Work::new()?;
    work.shell(before);
    work.shell(program);
    Some(work.tree())
}

#[track_caller]
fn same(found: &str, expected: &str) {
    let without = |lines: &str, others: &str| -> Vec<String> {
        lines.lines().filter(|line| !others.lines().any(|other| other == *line)).map(str::to_owned).collect()
    };
    let (more, missing) = (without(found, expected), without(expected, found));
    assert!(more.is_empty() && missing.is_empty(), "too much: {more:#?}, missing: {missing:#?}");
}

#[test]
fn what_the_program_changed_is_applied() {
    let Some(work) = Work::new() else { return };
    work.shell(BEFORE);
    let run = work.run(&["--explain", "--", "sh", "-c", &format!("{PROGRAM}; id -u")]);
    assert!(run.err.contains("changes are kept apart, and applied at the end"), "{run:?}");
    assert_eq!(run.ok(), format!("{USER}\n"));
    same(&work.tree(), &expected(BEFORE, PROGRAM).unwrap());
    assert!(work.left().is_empty(), "{:?}", work.left());
    // A session below /tmp, and over two directories.
    let (here, more) = (tempfile::tempdir().unwrap(), tempfile::tempdir_in("/opt").unwrap());
    for dir in [&here, &more] {
        std::os::unix::fs::chown(dir.path(), Some(USER), Some(USER)).unwrap();
    }
    let script = format!("echo one > here; echo two > {}/there; exit 3", more.path().display());
    let mut command = work.xsync(&["--overlay", more.path().to_str().unwrap(), "--", "sh", "-c", &script]);
    let run: Run = command.current_dir(here.path()).output().unwrap().into();
    assert_eq!(run.code, Some(3), "{run:?}");
    assert_eq!(fs::read_to_string(here.path().join("here")).unwrap(), "one\n");
    assert_eq!(fs::read_to_string(more.path().join("there")).unwrap(), "two\n");
}

/// A user namespace has only one group. Files of other groups can be read and removed, but not changed.
#[test]
fn files_of_other_groups_are_not_changed() {
    let Some(work) = Work::new() else { return };
    work.shell("umask 002; echo ours > file; echo ours > gone; chgrp 777 file gone");
    let run = work.run(&["--", "sh", "-c", "cat file; rm gone; echo more >> file"]);
    assert!(run.out == "ours\n" && run.code == Some(2) && run.err.contains("Value too large"), "{run:?}");
    assert_eq!(fs::read_to_string(work.dir.path().join("file")).unwrap(), "ours\n");
    assert!(!work.dir.path().join("gone").exists());
    work.shell("chgrp 777 .");
    let refused = work.run(&["--", "true"]);
    assert!(refused.code == Some(125) && refused.err.contains("belongs to group 777"), "{refused:?}");
    let program = work.place.program(env!("CARGO_BIN_EXE_untorn-xsync").as_ref());
    let line = format!("exec {} --place {} -- sh -c 'echo more >> file'", program.display(), work.place.at().display());
    let mut command = Command::new("setpriv");
    command.args([format!("--reuid={USER}"), format!("--regid={GROUP}"), "--clear-groups".to_owned()]);
    let run: Run = command.args(["sh", "-c", &line]).current_dir(work.dir.path()).output().unwrap().into();
    run.ok();
    assert_eq!(fs::read_to_string(work.dir.path().join("file")).unwrap(), "ours\nmore\n");
}

/// The changes of a running session can be seen only by a user who changes permissions on purpose.
#[test]
fn nobody_looks_at_changes_by_mistake() {
    let Some(work) = Work::new() else { return };
    work.shell(BEFORE);
    let mut command = work.xsync(&["--", "sh", "-c", "echo secret >> b; echo ready; read x"]);
    let mut session = Session::start(command.stdin(Stdio::piped()).stdout(Stdio::piped()));
    session.stdout.as_mut().unwrap().read_exact(&mut [0; 6]).unwrap();
    assert_eq!(fs::read_to_string(work.dir.path().join("b")).unwrap(), "b\n");
    let look = format!(
        "cd {}; find . -mindepth 2 2>/dev/null; cat */session.json 2>/dev/null; ls -d *.layers",
        work.place.at().display()
    );
    let seen: Run = work.command("sh".as_ref(), &["-c", &look]).output().unwrap().into();
    assert_eq!(seen.ok().lines().count(), 1);
    // Only one session at a time may be over a directory.
    let second = work.run(&["--", "true"]);
    assert!(second.code == Some(125) && second.err.contains("another session works on"), "{second:?}");
    let resumed = work.run(&["--resume", work.left()[0].to_str().unwrap()]);
    assert!(resumed.code == Some(125) && resumed.err.contains("belongs to another session"), "{resumed:?}");
    session.stdin.as_mut().unwrap().write_all(b"go\n").unwrap();
    assert!(session.wait().unwrap().success());
    assert_eq!(fs::read_to_string(work.dir.path().join("b")).unwrap(), "b\nsecret\n");
}

#[test]
fn what_a_killed_session_left_is_applied_or_thrown_away() {
    let Some(work) = Work::new() else { return };
    work.shell(BEFORE);
    let before = work.tree();
    work.killed();
    same(&work.tree(), &before);
    let left = work.left()[0].clone();
    let refused = work.run(&["--", "true"]);
    assert!(refused.code == Some(125) && refused.err.contains("--resume"), "{refused:?}");
    let root: Run = work.place.xsync(0, &["--resume".as_ref(), left.as_os_str()]).output().unwrap().into();
    assert!(root.code == Some(125) && root.err.contains("ordinary user"), "{root:?}");
    work.run(&["--discard", left.to_str().unwrap()]).ok();
    same(&work.tree(), &before);
    assert!(work.left().is_empty(), "{:?}", work.left());
    work.killed();
    let resumed = work.run(&["--resume", work.left()[0].to_str().unwrap()]);
    assert!(resumed.err.contains("had not ended"), "{resumed:?}");
    resumed.ok();
    same(&work.tree(), &expected(BEFORE, PROGRAM).unwrap());
    assert!(work.left().is_empty(), "{:?}", work.left());
    work.run(&["--", "true"]).ok();
}

/// Clients outside connect to a server in such a session.
#[test]
fn a_server_answers_its_clients() {
    let Some(work) = Work::new() else { return };
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    untorn_testkit::install(&example("probe"), &work.dir.path().join("probe"));
    let mut command =
        work.xsync(&["--listen", &format!("127.0.0.1:{port}"), "--", "./probe", "serve", &port.to_string(), "log"]);
    let mut session = Session::start(command.stdout(Stdio::piped()));
    session.stdout.as_mut().unwrap().read_exact(&mut [0; 10]).unwrap();
    let mut client = loop {
        match TcpStream::connect(("127.0.0.1", port)) {
            Err(e) if e.kind() == ErrorKind::ConnectionRefused => std::thread::sleep(Duration::from_millis(1)),
            done => break done.unwrap(),
        }
    };
    client.write_all(b"one\n").unwrap();
    let mut answer = [0; 7];
    client.read_exact(&mut answer).unwrap();
    assert_eq!(&answer, b"ok one\n");
    client.write_all(b"stop\n").unwrap();
    assert!(session.wait().unwrap().success());
    assert_eq!(fs::read_to_string(work.dir.path().join("log")).unwrap(), "one\n");
}

/// A crash during the removal of layers leaves them incomplete. They do not hinder later sessions.
#[test]
fn half_removed_changes_are_removed() {
    let Some(work) = Work::new() else { return };
    work.shell(BEFORE);
    let before = work.tree();
    for command in ["--resume", "--discard"] {
        work.killed();
        let left = work.left()[0].clone();
        fs::remove_file(left.join("session.json")).unwrap();
        work.run(&[command, left.to_str().unwrap()]).ok();
        assert!(work.left().is_empty(), "{:?}", work.left());
    }
    work.killed();
    let left = work.left()[0].clone();
    fs::rename(&left, left.with_extension("layers-new")).unwrap();
    work.run(&["--", "true"]).ok();
    assert!(work.left().is_empty(), "{:?}", work.left());
    same(&work.tree(), &before);
}

/// While another overlay of the layers is mounted, as by processes of a killed session, `--resume` does not apply them.
#[test]
fn changes_that_somebody_still_writes_are_not_applied() {
    let Some(work) = Work::new() else { return };
    work.killed();
    let left = work.left()[0].clone();
    fs::set_permissions(&left, fs::Permissions::from_mode(0o700)).unwrap();
    let layers = left.join("overlays/0");
    let options = format!(
        "lowerdir={},upperdir={1}/upper,workdir={1}/more,userxattr,volatile,index=on",
        work.dir.path().display(),
        layers.display()
    );
    // While processes of the killed session exist, the kernel refuses this mount.
    let mount = format!("until mount -t overlay x -o {options} m; do sleep 0.01; done");
    let script = format!("mkdir {}/more; mkdir m; {mount}; echo ready; read x", layers.display());
    let mut command = work.command("unshare".as_ref(), &["-Urm", "sh", "-c", &script]);
    let mut holder = Session::start(command.stdin(Stdio::piped()).stdout(Stdio::piped()));
    holder.stdout.as_mut().unwrap().read_exact(&mut [0; 6]).unwrap();
    let refused = work.run(&["--resume", left.to_str().unwrap()]);
    assert!(refused.code == Some(125) && refused.err.contains("wait for its end"), "{refused:?}");
    drop(holder.stdin.take());
    holder.wait().unwrap();
    work.run(&["--resume", left.to_str().unwrap()]).ok();
    assert!(work.left().is_empty());
}

/// Sessions are killed at many moments, mostly during the apply, and then resumed. The result is always the same.
#[test]
fn a_session_killed_while_it_applies_is_resumed() {
    const FILES: u64 = 300;
    if Place::new().is_none() {
        return;
    }
    // Names are applied in order, so the files show the progress.
    let before = format!("{BEFORE}; for i in $(seq 1000 {}); do echo old > t$i; done", 1000 + FILES);
    let change = format!("for i in $(seq 1000 {}); do echo new > t$i; done; rm t1201; {PROGRAM}", 1000 + FILES);
    let expected = expected(&before, &change).unwrap();
    let seed = seed();
    let (mut random, mut applying) = (seed | 1, 0);
    let rounds: u64 = variable_or("UNTORN_XSYNC_KILLS", 4);
    for round in 0..10 * rounds {
        // On a busy machine a kill may come too late.
        if round >= rounds && applying > 0 {
            break;
        }
        let Some(work) = Work::new() else { return };
        work.shell(&before);
        let mut killed = |mut session: Child| {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let file = work.dir.path().join(format!("t{}", 1000 + (random >> 33) % FILES));
            while fs::read(&file).is_ok_and(|text| text == b"old\n") && session.try_wait().unwrap().is_none() {}
            let _ = session.kill();
            session.wait().unwrap();
        };
        killed(work.xsync(&["--", "sh", "-c", &change]).stderr(Stdio::null()).spawn().unwrap());
        let mut tries = 0;
        while let Some(left) = work.left().iter().find(|path| path.extension().is_some_and(|end| end == "layers")) {
            applying += u32::from(work.tree() != expected);
            let mut again = work.xsync(&["--resume", left.to_str().unwrap()]);
            if tries < 2 && round % 2 == 1 {
                // Kills the resumed session, too.
                killed(again.stderr(Stdio::null()).spawn().unwrap());
            } else {
                let run: Run = again.output().unwrap().into();
                run.ok();
            }
            tries += 1;
            assert!(tries < 10);
        }
        same(&work.tree(), &expected);
        // The next session removes the rest.
        work.run(&["--", "true"]).ok();
        assert!(work.left().is_empty(), "{:?}", work.left());
    }
    println!("{applying} of the kills came while changes were being applied");
    assert!(applying > 0, "no kill came while changes were being applied");
}

/// With `--exact`, flushes return the same results as on the host, and rings work.
#[test]
fn flushes_are_exact_on_request() {
    let Some(work) = Work::new() else { return };
    let exact = work.place.program(&example("exact"));
    let exact = exact.to_str().unwrap();
    // A copy in a place that the session sees.
    untorn_testkit::install(exact.as_ref(), &work.dir.path().join("exact"));
    let host: Run =
        work.command("sh".as_ref(), &["-c", "mkdir r; ./exact results r; rm -r r"]).output().unwrap().into();
    assert_eq!(work.run(&["--exact", "--", "sh", "-c", "mkdir r; exec ./exact results r"]).ok(), host.ok());
    let ring = work.run(&["--exact", "--", "./exact", "ring", "by-ring"]).ok();
    assert!(ring.starts_with("written: by a ring\nflush of a pipe: -22\nsocket of family 40: -13\n"), "{ring}");
    assert_eq!(fs::metadata(work.dir.path().join("by-ring")).unwrap().uid(), USER);
}

#[test]
fn what_cannot_be_is_refused() {
    let Some(work) = Work::new() else { return };
    let refused = |command: &mut Command, why: &str| {
        let run: Run = command.output().unwrap().into();
        assert!(run.code == Some(125) && run.err.contains(why), "{why}: {run:?}");
    };
    let ordered = Directory::mounted("data=ordered");
    ordered.give_to(USER);
    let at = ordered.at();
    let words = ["--place".as_ref(), at.as_os_str(), "--".as_ref(), "true".as_ref()];
    let program = work.place.program(env!("CARGO_BIN_EXE_untorn-xsync").as_ref());
    refused(&mut work.command(&program, &words), "not mounted with data=journal");
    refused(&mut work.command(&program, &["--", "true"]), "--print-fstab");
    refused(&mut work.xsync(&["--volume", "x.img", "--", "true"]), "needs root");
    refused(&mut work.xsync(&["--keep", "--", "true"]), "--keep keeps a volume");
    refused(work.xsync(&["--", "true"]).current_dir("/usr"), "belongs to user 0");
    refused(work.xsync(&["--", "true"]).current_dir(work.place.at()), "whose changes it is to hold");
    let inner = work.dir.path().join("inner");
    fs::create_dir(&inner).unwrap();
    assert!(Command::new("mount").args(["-t", "tmpfs", "x"]).arg(&inner).status().unwrap().success());
    let mounted: Run = work.run(&["--", "true"]);
    assert!(Command::new("umount").arg(&inner).status().unwrap().success());
    assert!(mounted.code == Some(125) && mounted.err.contains("another file system in it"), "{mounted:?}");
    assert!(work.left().is_empty(), "{:?}", work.left());
    let nothing = work.run(&["--resume", work.dir.path().to_str().unwrap()]);
    assert!(nothing.code == Some(125) && nothing.err.contains("holds no changes of a session"), "{nothing:?}");
}

/// Sessions of root and of the user are over one directory, one after the other. A change to a file that root has
/// sealed waits for the user.
#[test]
fn a_session_of_root_waits_and_a_refused_change_is_the_users() {
    let Some(work) = Work::new() else { return };
    work.shell("echo old > sealed; echo old > free; mkdir d d/in; echo old > d/in/f");
    let chattr = |change: &str| {
        let done =
            Command::new("chattr").arg(change).arg(work.dir.path().join("sealed")).stderr(Stdio::null()).status();
        done.is_ok_and(|status| status.success())
    };
    let script = "echo new > sealed; echo new > free; rm -r d/in; echo new > d/f; echo shown; read nothing; true";
    let mut command = work.xsync(&["--", "sh", "-c", script]);
    let mut session = Session::start(command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()));
    session.stdout.as_mut().unwrap().read_exact(&mut [0; 6]).unwrap();
    let place = tempfile::tempdir().unwrap();
    let roots = || -> Run {
        let mut command = Command::new(env!("CARGO_BIN_EXE_untorn-xsync"));
        command.arg("--place").arg(place.path()).args(["--size", "32M", "--", "true"]).current_dir(work.dir.path());
        command.stdin(Stdio::null()).output().unwrap().into()
    };
    let refused = roots();
    assert!(refused.code == Some(125) && refused.err.contains("another session works on"), "{refused:?}");
    if !chattr("+i") {
        return println!("skipped: chattr +i is not possible on this file system");
    }
    drop(session.stdin.take());
    let mut said = String::new();
    session.stderr.take().unwrap().read_to_string(&mut said).unwrap();
    assert_eq!(session.wait().unwrap().code(), Some(125), "{said}");
    assert!(said.contains("changes that were refused: 1") && said.contains("sealed: "), "{said}");
    let read = |name: &str| fs::read_to_string(work.dir.path().join(name)).unwrap();
    assert_eq!(["sealed", "free", "d/f"].map(read), ["old\n", "new\n", "new\n"]);
    assert!(!work.dir.path().join("d/in").exists());
    work.shell("echo theirs > free");
    roots().ok();
    assert!(chattr("-i"));
    work.run(&["--resume", work.left()[0].to_str().unwrap()]).ok();
    assert_eq!(["sealed", "free", "d/f"].map(read), ["new\n", "theirs\n", "new\n"]);
    assert!(work.left().is_empty(), "{:?}", work.left());
}
