//! Sessions on a directory that an administrator provides: of root, and of ordinary users.

mod common;

use common::directory::Directory;
use common::{OUTSIDE4, Place, Run, Session, example, network_of_its_own};
use rustix::fs::{CWD, Mode, OFlags, openat};
use rustix::mount::{OpenTreeFlags, open_tree};
use std::fs;
use std::io::{self, BufRead, BufReader, ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixListener;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};
use untorn_testkit::NOBODY;
use untorn_xsync::host::outside_readers::OutsideReaders;

/// None, with a message, if sessions do not work on this machine.
fn directory(options: &str) -> Option<Directory> {
    Place::new().map(|_| Directory::mounted(options))
}

fn run(command: &mut Command) -> Run {
    command.output().unwrap().into()
}

/// Waits until the session has done something. Checks of names from outside do not wait for a commit.
#[track_caller]
fn until(mut is_so: impl FnMut() -> bool) {
    let started = Instant::now();
    while !is_so() {
        assert!(started.elapsed() < Duration::from_secs(60), "it never happened");
        std::thread::sleep(Duration::from_millis(2));
    }
}

fn has_bytes(path: &Path) -> bool {
    fs::metadata(path).is_ok_and(|meta| meta.len() > 0)
}

#[test]
fn all_of_the_directory_can_be_written_and_nothing_else() {
    let Some(directory) = directory("data=journal") else { return };
    let _watcher = directory.watcher();
    for user in [0, NOBODY] {
        directory.give_to(user);
        let script = "echo kept > file; mkdir d; mv file d/; cat d/file; ls -a; \
                      for at in /etc /usr /root /var /opt /proc/sys/kernel/hostname; do \
                      (echo x > $at/untorn-xsync-test) 2>/dev/null && echo $at; \
                      (echo x > $at) 2>/dev/null && echo $at; done; echo own > /tmp/own; cat /tmp/own; id -u; exit 7";
        let session = run(&mut directory.session(user, &["sh", "-c", script]));
        let expected = format!("kept\n.\n..\n.untorn-xsync\nd\nown\n{user}\n");
        assert_eq!((session.code, session.out, session.err), (Some(7), expected, String::new()), "user {user}");
        assert_eq!(fs::read_to_string(directory.at().join("d/file")).unwrap(), "kept\n");
        assert!(!directory.at().join(".untorn-xsync").exists());
        fs::remove_dir_all(directory.at().join("d")).unwrap();
    }
}

/// A session has /tmp and other directories of its own, and still shows the host's working directory in them.
#[test]
fn a_session_begins_in_directories_that_it_has_of_its_own() {
    let Some(directory) = directory("data=journal") else { return };
    let _watcher = directory.watcher();
    directory.give_to(NOBODY);
    let inner = tempfile::tempdir_in("/tmp").unwrap();
    fs::set_permissions(inner.path(), fs::Permissions::from_mode(0o755)).unwrap();
    for at in [Path::new("/tmp"), Path::new("/var/tmp"), Path::new("/run"), inner.path()] {
        let mut command = directory.session(NOBODY, &["sh", "-c", "pwd; ls -d /tmp/untorn-xsync-empty 2>/dev/null"]);
        let session = run(command.current_dir(at));
        let expected = format!("{}\n", fs::canonicalize(at).unwrap().display());
        assert_eq!(session.out, expected, "{}: {}", at.display(), session.err);
    }
}

#[test]
fn an_ordinary_user_needs_a_watcher() {
    let Some(directory) = directory("data=journal") else { return };
    directory.give_to(NOBODY);
    let refused = run(&mut directory.session(NOBODY, &["true"]));
    assert!(refused.code == Some(125) && refused.err.contains("untorn xsync --watch"), "{refused:?}");
    let watcher = directory.watcher();
    assert_eq!(run(&mut directory.session(NOBODY, &["true"])).code, Some(0));
    drop(watcher);
    assert_eq!(run(&mut directory.session(NOBODY, &["true"])).code, Some(125));
    let not_root = run(directory.xsync(NOBODY, &["--watch"]).arg(directory.at()));
    assert!(not_root.code == Some(125) && not_root.err.contains("needs root"), "{not_root:?}");
}

/// The filter, shared maps and the end of a session work without root, too.
#[test]
fn a_session_of_an_ordinary_user_is_confined() {
    let Some(directory) = directory("data=journal") else { return };
    let (_watcher, probe) = (directory.watcher(), directory.at().join("probe"));
    untorn_testkit::install(&example("probe"), &probe);
    directory.give_to(NOBODY);
    let probe = probe.to_str().unwrap();
    for what in ["remount", "mount", "loop", "io_uring", "keyctl", "by-handle"] {
        let session = run(&mut directory.session(NOBODY, &[probe, what]));
        assert_eq!(session.code, Some(1), "{what}: {session:?}");
    }
    assert_eq!(run(&mut directory.session(NOBODY, &[probe, "map", "file"])).ok(), "done\n");
    for (maps, code) in [("refuse", 1), ("strict", 0)] {
        let mut command = directory.xsync(NOBODY, &["--maps", maps, "--on"]);
        command.arg(directory.at()).args(["--", probe, "map", "file"]).current_dir(directory.at());
        let session = run(&mut command);
        assert_eq!(session.code, Some(code), "{session:?}");
    }
    // A user namespace within the session does not lead out of it either.
    let script =
        "unshare -r sh -c 'mount -o remount,rw / 2>/dev/null; echo x > /etc/untorn-xsync-test' 2>/dev/null || echo no";
    assert_eq!(run(&mut directory.session(NOBODY, &["sh", "-c", script])).ok(), "no\n");
    let networks = run(&mut directory.session(NOBODY, &["ls", "/sys/class/net"])).ok();
    assert_eq!(networks, "lo\n");
}

#[test]
fn directories_that_do_not_order_are_refused() {
    let Some(ordered) = directory("data=ordered") else { return };
    let refused = run(&mut ordered.session(0, &["true"]));
    assert!(refused.code == Some(125) && refused.err.contains("not mounted with data=journal"), "{refused:?}");
    assert!(refused.err.contains("--print-fstab"), "{refused:?}");
    let without_barriers = Directory::mounted("data=journal,barrier=0");
    let refused = run(&mut without_barriers.session(0, &["true"]));
    assert!(refused.code == Some(125) && refused.err.contains("nobarrier"), "{refused:?}");
    let memory = run(ordered.xsync(0, &["--on", "/dev/shm", "--", "true"]).current_dir("/"));
    assert!(memory.code == Some(125) && memory.err.contains("not lie on an ext4"), "{memory:?}");
    assert!(!ordered.at().join(".untorn-xsync").exists());
}

#[test]
fn directories_that_lead_out_or_are_not_the_users_are_refused() {
    let Some(directory) = directory("data=journal") else { return };
    let _watcher = directory.watcher();
    let not_theirs = run(&mut directory.session(NOBODY, &["true"]));
    assert!(not_theirs.code == Some(125) && not_theirs.err.contains("cannot be written"), "{not_theirs:?}");
    // Every user may write there. But a session of an ordinary user may not hold the readers of root's directory.
    use std::os::unix::fs::PermissionsExt;
    fs::set_permissions(directory.at(), fs::Permissions::from_mode(0o777)).unwrap();
    let not_owned = run(&mut directory.session(NOBODY, &["true"]));
    assert!(not_owned.code == Some(125) && not_owned.err.contains("belongs to user 0"), "{not_owned:?}");
    let socket = directory.at().join("socket");
    drop(UnixListener::bind(&socket).unwrap());
    let leads_out = run(&mut directory.session(0, &["true"]));
    assert!(leads_out.code == Some(125) && leads_out.err.contains("is a socket or a FIFO"), "{leads_out:?}");
    fs::remove_file(&socket).unwrap();
    fs::create_dir(directory.at().join("inner")).unwrap();
    let inner = directory.at().join("inner");
    assert!(Command::new("mount").args(["-t", "tmpfs", "x"]).arg(&inner).status().unwrap().success());
    let two = run(&mut directory.session(0, &["true"]));
    assert!(Command::new("umount").arg(&inner).status().unwrap().success());
    assert!(two.code == Some(125) && two.err.contains("another file system in it"), "{two:?}");
    assert_eq!(run(&mut directory.session(0, &["true"])).code, Some(0));
}

#[test]
fn one_session_at_a_time() {
    let Some(directory) = directory("data=journal") else { return };
    let mut command = directory.session(0, &["sh", "-c", "echo ready; read x"]);
    let mut first = Session::start(command.stdin(Stdio::piped()).stdout(Stdio::piped()));
    first.stdout.as_mut().unwrap().read_exact(&mut [0; 6]).unwrap();
    let second = run(&mut directory.session(0, &["true"]));
    assert!(second.code == Some(125) && second.err.contains("another session works on"), "{second:?}");
    drop(first.stdin.take());
    first.wait().unwrap();
    assert_eq!(run(&mut directory.session(0, &["true"])).code, Some(0));
}

/// A session of another user was killed and left its directory behind.
#[test]
fn what_another_user_left_is_named() {
    let Some(directory) = directory("data=journal") else { return };
    directory.give_to(NOBODY);
    let _watcher = directory.watcher();
    let left = directory.at().join(".untorn-xsync");
    fs::create_dir(&left).unwrap();
    fs::set_permissions(&left, fs::Permissions::from_mode(0o700)).unwrap();
    let refused = run(&mut directory.session(NOBODY, &["touch", "begun"]));
    let says = "a session of another user left it: let that user, or root, remove it";
    assert!(refused.code == Some(125) && refused.err.contains(says), "{refused:?}");
    // A session of root uses the leftover directory and removes it, so the next session of the user works, too.
    assert_eq!(run(&mut directory.session(0, &["touch", "by-root"])).code, Some(0));
    assert_eq!(run(&mut directory.session(NOBODY, &["touch", "begun"])).code, Some(0));
}

/// A session cannot make sockets and FIFOs in the directory, because they would lead past the gate.
#[test]
fn no_sockets_and_fifos_are_made_in_the_directory() {
    let Some(directory) = directory("data=journal") else { return };
    let script =
        "mkfifo fifo 2>/dev/null && echo made; mkfifo /run/fifo && mkdir a && echo x > a/b && mv a/b . && cat b";
    assert_eq!(run(&mut directory.session(0, &["sh", "-c", script])).ok(), "x\n");
}

/// An outside reader of a file or directory sees durable contents.
#[test]
fn outside_readers_wait_for_a_commit_and_the_session_does_not() {
    let Some(directory) = directory("data=journal") else { return };
    let _watcher = directory.watcher();
    let script = "echo text > file; while ! [ -d go ]; do sleep 0.01; done; \
                  for i in 1 2 3 4 5; do cat file > copy; ls > /dev/null; done; echo end > ready; read x";
    for user in [0, NOBODY] {
        directory.give_to(user);
        let mut session = Session::start(directory.session(user, &["sh", "-c", script]).stdin(Stdio::piped()));
        until(|| has_bytes(&directory.at().join("file")));
        let before = directory.transactions();
        // This call and checks of names open nothing.
        fs::create_dir(directory.at().join("go")).unwrap();
        until(|| has_bytes(&directory.at().join("ready")));
        assert_eq!(directory.transactions(), before, "user {user}: what the session itself reads commits nothing");
        assert_eq!(fs::read_to_string(directory.at().join("file")).unwrap(), "text\n");
        let after = directory.transactions();
        assert_eq!(after, before + 1, "user {user}: the reader has waited for one commit");
        fs::read_dir(directory.at()).unwrap().for_each(drop);
        assert_eq!(directory.transactions(), after, "nothing has changed since then");
        fs::remove_dir(directory.at().join("go")).unwrap();
        fs::read_dir(directory.at()).unwrap().for_each(drop);
        assert!(directory.transactions() > after, "user {user}: who looks into a directory has not waited");
        drop(session.stdin.take());
        session.wait().unwrap();
        ["file", "copy", "ready"].iter().for_each(|name| fs::remove_file(directory.at().join(name)).unwrap());
    }
}

/// A reader of changes that can never be durable gets an error.
#[test]
fn outside_readers_fail_if_the_commit_does() {
    let Some(directory) = directory("data=journal") else { return };
    let file = directory.at().join("file");
    fs::write(&file, "text").unwrap();
    // A mount other than the one through which the file is read.
    let tree = open_tree(CWD, directory.at(), OpenTreeFlags::OPEN_TREE_CLONE).unwrap();
    let own = openat(tree, ".", OFlags::RDONLY, Mode::empty()).unwrap();
    let readers = OutsideReaders::hold(own.as_fd()).unwrap();
    for (works, expected) in [(false, Err(ErrorKind::PermissionDenied)), (true, Ok("text".to_owned()))] {
        let path = file.clone();
        let reader = std::thread::spawn(move || fs::read_to_string(path));
        let commit = || if works { Ok(()) } else { anyhow::bail!("no") };
        let mut asked = 0;
        while !reader.is_finished() {
            asked += readers.answer(commit).unwrap();
        }
        let read = reader.join().unwrap().map_err(|e| match e.raw_os_error() {
            // Kernels before 6.13 can only return EPERM.
            Some(libc::EIO | libc::EPERM) => ErrorKind::PermissionDenied,
            _ => e.kind(),
        });
        assert_eq!(read, expected);
        assert!(asked > 0);
    }
}

/// Changes that a killed supervisor leaves are durable before anybody reads them, and the next session works.
#[test]
fn a_killed_supervisor_leaves_nothing_that_a_crash_could_take() {
    let Some(directory) = directory("data=journal") else { return };
    let _watcher = directory.watcher();
    for user in [0, NOBODY] {
        directory.give_to(user);
        let mut session = Session::start(
            directory.session(user, &["sh", "-c", "echo text > file; sleep 1000"]).stdin(Stdio::piped()),
        );
        until(|| has_bytes(&directory.at().join("file")));
        let before = directory.transactions();
        session.kill().unwrap();
        session.wait().unwrap();
        until(|| directory.transactions() > before);
        assert_eq!(fs::read_to_string(directory.at().join("file")).unwrap(), "text\n");
        fs::remove_file(directory.at().join("file")).unwrap();
        let next = run(&mut directory.session(user, &["sh", "-c", "echo next"]));
        assert_eq!(next.ok(), "next\n");
    }
}

/// Without a watcher outside readers would not wait. So the session is ended, and the readers go on.
#[test]
fn a_killed_watcher_ends_the_session() {
    let Some(directory) = directory("data=journal") else { return };
    let mut watcher = directory.watcher();
    directory.give_to(NOBODY);
    let mut command = directory.session(NOBODY, &["sh", "-c", "echo ready; sleep 20"]);
    let mut session = Session::start(command.stdout(Stdio::piped()).stderr(Stdio::piped()));
    session.stdout.as_mut().unwrap().read_exact(&mut [0; 6]).unwrap();
    watcher.kill().unwrap();
    let mut said = String::new();
    session.stderr.take().unwrap().read_to_string(&mut said).unwrap();
    assert_eq!(session.wait().unwrap().code(), Some(137), "{said}");
    assert!(said.contains("the watcher has ended"), "{said}");
    fs::read_dir(directory.at()).unwrap().for_each(drop);
    let _again = directory.watcher();
    assert_eq!(run(&mut directory.session(NOBODY, &["true"])).code, Some(0));
}

/// If a machine forbids user namespaces, the message names the setting.
#[test]
fn forbidden_user_namespaces_are_explained() {
    let Some(directory) = directory("data=journal") else { return };
    let mut command = directory.xsync(0, &["--on"]);
    let runtime = directory.at().join("runtime");
    fs::create_dir(&runtime).unwrap();
    command.arg(directory.at()).args(["--", "true"]).env("XDG_RUNTIME_DIR", runtime);
    let forbid = || -> io::Result<()> {
        // SAFETY: this process has one thread, as it was forked just now.
        if unsafe { libc::unshare(libc::CLONE_NEWUSER) } != 0 {
            return Err(io::Error::last_os_error());
        }
        // The setting belongs to the new user namespace.
        fs::write("/proc/self/uid_map", format!("{NOBODY} 0 1"))?;
        fs::write("/proc/sys/user/max_user_namespaces", "0")
    };
    // SAFETY: the closure makes system calls, in a process that is a copy of this one and has one thread.
    unsafe { command.uid(0).pre_exec(forbid) };
    let refused = run(&mut command);
    assert!(refused.code == Some(125) && refused.err.contains("user.max_user_namespaces` is 0"), "{refused:?}");
}

/// The printed commands work: they are run by root's shell, in a mount namespace with its own files of /etc.
#[test]
fn what_is_printed_for_an_administrator_works() {
    let Some(directory) = directory("data=ordered") else { return };
    let (at, image) = (directory.at().join("provided here"), directory.at().join("images/image"));
    let mut command = directory.xsync(0, &["--print-fstab"]);
    command.arg(&at).arg(format!("{}:24M", image.display())).env("SUDO_UID", NOBODY.to_string());
    let commands = run(&mut command).ok();
    let etc = directory.at().join("etc");
    fs::create_dir(&etc).unwrap();
    fs::write(etc.join("fstab"), "").unwrap();
    let program = directory.program(Path::new(env!("CARGO_BIN_EXE_untorn-xsync")));
    let script = format!(
        "set -e\nmount --bind {etc} /etc\n( {commands} )\n\
         run=$(sed -n 's/^ExecStart=//p' /etc/systemd/system/untorn-xsync-watch*.service)\n\
         eval \"exec $run\" >/dev/null 2>&1 & trap \"kill $!\" EXIT\n\
         while ! [ -S /run/untorn-xsync/watch-$(basename $(findmnt -n -o SOURCE '{at}')) ]; do sleep 0.02; done\n\
         setpriv --reuid {NOBODY} --regid {NOBODY} --clear-groups env -u XDG_RUNTIME_DIR \
         {program} --on '{at}' -- sh -c 'echo it works; id -u > \"{at}/file\"'\ncat '{at}/file'",
        etc = etc.display(),
        at = at.display(),
        program = program.display(),
    );
    let done = run(Command::new("unshare").args(["-m", "sh", "-c", &script]).current_dir("/").stdin(Stdio::null()));
    assert!(done.code == Some(0) && done.out.contains("it works\n65534\n"), "{done:?}");
    // An existing image is not made anew.
    let script = format!("set -e\nmount --bind {} /etc\n{commands}", etc.display());
    let again = run(Command::new("unshare").args(["-m", "sh", "-c", &script]).current_dir("/"));
    assert_eq!((again.code, fs::read_to_string(etc.join("fstab")).unwrap().lines().count()), (Some(1), 1), "{again:?}");
}

/// Connections in both directions, of root and of an ordinary user.
#[test]
fn connections_cross_the_border() {
    let Some(directory) = directory("data=journal") else { return };
    if !network_of_its_own() {
        return;
    }
    let _watcher = directory.watcher();
    let probe = "./probe";
    untorn_testkit::install(&example("probe"), &directory.at().join(probe));
    for user in [0, NOBODY] {
        directory.give_to(user);
        let listener = TcpListener::bind((OUTSIDE4, 0)).unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let server = std::thread::spawn(move || {
            let mut stream = listener.accept().unwrap().0;
            let mut lines = Vec::new();
            for line in BufReader::new(stream.try_clone().unwrap()).lines() {
                lines.push(line.unwrap());
                stream.write_all(b"!").unwrap();
            }
            lines
        });
        run(&mut directory.session(user, &[probe, "tell", "tcp", &address, "log", "2"])).ok();
        assert_eq!(server.join().unwrap(), ["00000000", "00000001"], "user {user}");

        let port = TcpListener::bind((OUTSIDE4, 0)).unwrap().local_addr().unwrap();
        let mut command = directory.xsync(user, &["--listen", &port.to_string(), "--on"]);
        command.arg(directory.at()).args(["--", probe, "serve", &port.port().to_string(), "served"]);
        let mut session = Session::start(command.current_dir(directory.at()));
        let mut client = None;
        until(|| {
            client = TcpStream::connect(port).ok();
            client.is_some()
        });
        let mut client = BufReader::new(client.unwrap());
        client.get_mut().write_all(b"who\n").unwrap();
        let mut seen = String::new();
        client.read_line(&mut seen).unwrap();
        assert_eq!(seen, format!("{}\n", client.get_ref().local_addr().unwrap()), "user {user}");
        client.get_mut().write_all(b"stop\n").unwrap();
        assert!(session.wait().unwrap().success());
        for log in ["log", "served"] {
            fs::remove_file(directory.at().join(log)).unwrap();
        }
    }
}
