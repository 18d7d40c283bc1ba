//! Standard streams that are full, non-blocking, or lead to one target.
//!
//! Nothing is lost silently, and the program's changes are applied.

mod common;

use common::{Place, Run, Session};
use rustix::fs::{Mode, OFlags, fcntl_getfl, fcntl_setfl, open};
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use std::fs::{self, File};
use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::process::{Command, Stdio};

/// A stream to which nothing can be written.
fn full() -> File {
    File::options().write(true).open("/dev/full").unwrap()
}

fn run(command: &mut Command) -> Run {
    command.output().unwrap().into()
}

#[test]
fn a_full_standard_error_does_not_keep_changes_from_being_applied() {
    let Some(place) = Place::new() else { return };
    // The session's own messages first, then the program's. Without a session, too, the program would go on.
    let own = run(place.xsync(&["--summary", "--explain", "--", "touch", "own"]).stderr(full()));
    assert_eq!((own.code, place.work().join("own").exists()), (Some(0), true), "{own:?}");
    let script = "for i in 1 2 3; do echo error >&2; sleep 0.05; done; echo end; touch program; exit $0";
    for (code, expected) in [("0", 125), ("3", 3)] {
        let lost = run(place.xsync(&["--", "sh", "-c", script, code]).stderr(full()));
        assert_eq!((lost.code, lost.out.as_str()), (Some(expected), "end\n"), "what was lost is not said");
        assert!(place.work().join("program").exists());
        fs::remove_file(place.work().join("program")).unwrap();
    }
    assert!(place.left().is_empty(), "{:?}", place.left());
    // Messages about kept volumes, refusals and status reports cannot be written either.
    let kept = run(place.xsync(&["--keep", "--", "touch", "kept"]).stderr(full()));
    assert_eq!((kept.code, place.work().join("kept").exists()), (Some(0), true), "{kept:?}");
}

#[test]
fn a_full_standard_output_is_an_error_and_the_changes_are_applied() {
    let Some(place) = Place::new() else { return };
    for (code, expected) in [("0", 125), ("3", 3)] {
        let script = "touch file; echo out; exit $0";
        let lost = run(place.xsync(&["--", "sh", "-c", script, code]).stdout(full()));
        assert_eq!(lost.code, Some(expected), "{lost:?}");
        let says = "cannot write to standard output: No space left on device (os error 28); 4 bytes of it are lost";
        assert!(lost.err.contains(says), "{lost:?}");
        fs::remove_file(place.work().join("file")).unwrap();
    }
    // A program that keeps writing gets SIGPIPE.
    let endless = run(place.xsync(&["--", "yes"]).stdout(full()));
    assert_eq!(endless.code, Some(128 + libc::SIGPIPE), "{endless:?}");
    assert!(endless.err.contains("cannot write to standard output"), "{endless:?}");
    assert!(place.left().is_empty(), "{:?}", place.left());
}

#[test]
fn input_that_does_not_want_to_wait_comes_whole() {
    let Some(place) = Place::new() else { return };
    let (from, to) = pipe_with(PipeFlags::CLOEXEC).unwrap();
    fcntl_setfl(&from, fcntl_getfl(&from).unwrap() | OFlags::NONBLOCK).unwrap();
    let script = "echo ready; while read line; do echo $line; done";
    let mut session = Session::start(
        place.xsync(&["--", "sh", "-c", script]).stdin(from).stdout(Stdio::piped()).stderr(Stdio::piped()),
    );
    let mut out = session.stdout.take().unwrap();
    out.read_exact(&mut [0; 6]).unwrap();
    let mut to = File::from(to);
    for line in ["one\n", "two\n"] {
        to.write_all(line.as_bytes()).unwrap();
        let mut seen = vec![0; line.len()];
        out.read_exact(&mut seen).unwrap();
        assert_eq!(String::from_utf8(seen).unwrap(), line);
    }
    drop(to);
    let mut said = String::new();
    session.stderr.take().unwrap().read_to_string(&mut said).unwrap();
    assert_eq!((session.wait().unwrap().code(), said.as_str()), (Some(0), ""));
}

/// Opens a new terminal: the master, and the terminal itself, non-blocking.
fn terminal() -> (File, OwnedFd) {
    let master = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC).unwrap();
    grantpt(&master).unwrap();
    unlockpt(&master).unwrap();
    let flags = OFlags::RDWR | OFlags::NOCTTY | OFlags::CLOEXEC | OFlags::NONBLOCK;
    let terminal = open(&*ptsname(&master, Vec::new()).unwrap(), flags, Mode::empty()).unwrap();
    (File::from(master), terminal)
}

#[test]
fn a_terminal_that_does_not_want_to_wait_works() {
    let Some(place) = Place::new() else { return };
    let (mut master, terminal) = terminal();
    let mut command = place.xsync(&["--", "sh", "-c", "echo ready; read line; echo \"got <$line>\"; seq 20000"]);
    command.stdin(terminal.try_clone().unwrap()).stdout(terminal.try_clone().unwrap()).stderr(terminal);
    let mut session = Session::start(&mut command);
    drop(command);
    let mut seen = String::new();
    let mut until = |text: &str, keys: &str| {
        while !seen.contains(text) {
            let mut bytes = [0; 256];
            let count = master.read(&mut bytes).unwrap();
            seen.push_str(&String::from_utf8_lossy(&bytes[..count]));
            assert!(!seen.contains("cannot read"), "{seen}");
        }
        master.write_all(keys.as_bytes()).unwrap();
    };
    until("ready", "words\n");
    until("got <words>", "");
    until("\n20000\r", "");
    assert_eq!(session.wait().unwrap().code(), Some(0));
}

/// A program that takes the error for the end of its input may exit with 0.
#[test]
fn input_that_cannot_be_read_to_its_end_is_an_error() {
    let Some(place) = Place::new() else { return };
    let cut = run(place.xsync(&["--", "sh", "-c", "cat > copy"]).stdin(File::open("/").unwrap()));
    assert!(cut.code == Some(125) && cut.err.contains("cannot read the standard input to its end"), "{cut:?}");
    assert!(place.work().join("copy").exists() && place.left().is_empty());
}

#[test]
fn output_and_errors_that_go_to_one_target_keep_their_order() {
    let Some(place) = Place::new() else { return };
    let script = "i=0; while [ $i -lt 300 ]; do echo out $i; echo error $i >&2; i=$((i+1)); done";
    let expected: String = (0..300).map(|i| format!("out {i}\nerror {i}\n")).collect();
    let command = || place.xsync(&["--", "sh", "-c", script]);
    let path = place.dir.path().join("log");
    // The shell's `> log 2>&1`, then `>> log 2>> log`.
    let shared = File::create(&path).unwrap();
    assert!(command().stdout(shared.try_clone().unwrap()).stderr(shared).status().unwrap().success());
    assert_eq!(fs::read_to_string(&path).unwrap(), expected);
    let appended = || File::options().append(true).open(&path).unwrap();
    assert!(command().stdout(appended()).stderr(appended()).status().unwrap().success());
    assert_eq!(fs::read_to_string(&path).unwrap(), format!("{expected}{expected}"));
    // The shell's `2>&1 |`.
    let (from, to) = pipe_with(PipeFlags::CLOEXEC).unwrap();
    let mut session = command();
    let mut session = Session::start(session.stdout(to.try_clone().unwrap()).stderr(to));
    let mut piped = vec![0; expected.len()];
    File::from(from).read_exact(&mut piped).unwrap();
    assert_eq!(String::from_utf8(piped).unwrap(), expected);
    assert!(session.wait().unwrap().success());
}
