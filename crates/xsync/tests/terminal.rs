//! Sessions at a terminal, with the program `script` in place of a user.

mod common;

use common::{Place, Run};
use std::fs;
use std::io::{Read, Write};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

/// Runs a shell command at a terminal. None if the program `script` is missing.
fn at_a_terminal(place: &Place, command: &str) -> Option<Child> {
    let mut script = Command::new("script");
    script.args(["-q", "-e", "-E", "never", "-c", command, "/dev/null"]).current_dir(place.work()).env("TERM", "xterm");
    match script.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn() {
        Ok(child) => Some(child),
        Err(_) => {
            println!("skipped: needs the program script");
            None
        }
    }
}

fn xsync(place: &Place, program: &str) -> String {
    format!("{} --place {} --size 64M -- {program}", env!("CARGO_BIN_EXE_untorn-xsync"), place.volumes().display())
}

#[track_caller]
fn until(from: &mut impl Read, text: &str) -> String {
    let mut seen = Vec::new();
    let mut byte = [0];
    while !String::from_utf8_lossy(&seen).contains(text) {
        assert!(from.read(&mut byte).unwrap() == 1, "ended after: {}", String::from_utf8_lossy(&seen));
        seen.push(byte[0]);
    }
    String::from_utf8_lossy(&seen).into_owned()
}

#[test]
fn the_program_has_a_terminal_of_the_session() {
    let Some(place) = Place::new() else { return };
    let command = format!("stty rows 33 cols 77; {}", xsync(&place, "sh -c 'tty; stty size; test -t 0 && echo input'"));
    let Some(child) = at_a_terminal(&place, &command) else { return };
    let run: Run = child.wait_with_output().unwrap().into();
    let lines: Vec<&str> = run.out.lines().map(str::trim_end).collect();
    assert_eq!(lines, ["/dev/pts/0", "33 77", "input"], "{run:?}");
}

#[test]
fn control_c_ends_the_program_and_control_z_stops_it() {
    let Some(place) = Place::new() else { return };
    let program = xsync(&place, "sh -c 'echo ready; sleep 1000'");
    let Some(mut child) = at_a_terminal(&place, &program) else { return };
    until(child.stdout.as_mut().unwrap(), "ready");
    // On a busy machine, early input may be lost, so the key is typed again.
    let mut typed = 0;
    let ended = loop {
        if typed % 20 == 0 {
            let _ = child.stdin.as_mut().unwrap().write_all(b"\x03");
        }
        typed += 1;
        match child.try_wait().unwrap() {
            Some(ended) => break ended,
            None => std::thread::sleep(std::time::Duration::from_millis(100)),
        }
    };
    assert_eq!(ended.code(), Some(130));

    // An interactive shell, with job control.
    let mut child = at_a_terminal(&place, "PS1='$ ' sh -i").unwrap();
    let (mut to, mut from) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
    let program = xsync(&place, "sh -c 'echo rea\"\"dy; read line; echo \"got $line\"'");
    to.write_all(format!("{program}\n").as_bytes()).unwrap();
    until(&mut from, "ready");
    let stopped = AtomicBool::new(false);
    std::thread::scope(|scope| {
        // The key is typed again and again, as above. The shell ignores it.
        scope.spawn(|| {
            for typed in 0.. {
                if stopped.load(SeqCst) {
                    break;
                }
                if typed % 20 == 0 {
                    let _ = to.write_all(b"\x1a");
                }
                std::thread::sleep(std::time::Duration::from_millis(100));
            }
        });
        until(&mut from, "Stopped");
        stopped.store(true, SeqCst);
    });
    to.write_all(b"echo at the sh\"\"ell\n").unwrap();
    until(&mut from, "at the shell");
    to.write_all(b"fg\n").unwrap();
    until(&mut from, "xsync");
    to.write_all(b"words\n").unwrap();
    until(&mut from, "got words");
    // Input that is typed before the session has ended goes to the session.
    until(&mut from, "$ ");
    to.write_all(b"exit\n").unwrap();
    drop(to);
    child.wait().unwrap();
}

#[test]
fn an_editor_works() {
    let Some(place) = Place::new() else { return };
    if Command::new("vim").arg("--version").output().is_err() {
        println!("skipped: needs the program vim");
        return;
    }
    let program = xsync(&place, "vim -u NONE -N text");
    let Some(mut child) = at_a_terminal(&place, &program) else { return };
    let mut from = child.stdout.take().unwrap();
    // It shows the name of the file, and reads keys.
    until(&mut from, "[New");
    let drain = std::thread::spawn(move || from.read_to_end(&mut Vec::new()));
    child.stdin.as_mut().unwrap().write_all(b"ihello from vim\x1b:wq\r").unwrap();
    assert!(child.wait().unwrap().success());
    drain.join().unwrap().unwrap();
    assert_eq!(fs::read_to_string(place.work().join("text")).unwrap(), "hello from vim\n");
}
