//! The log of the program and of its daemon.

mod common;

use common::can_mount;
use std::fs::{self, File};
use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};

fn program(arguments: &[&str], paths: &[&Path], variable: Option<&str>) -> String {
    let mut command = Command::new(env!("CARGO_BIN_EXE_untorn-mount"));
    command.args(arguments).args(paths).env_remove("UNTORN_LOG").env_remove("JOURNAL_STREAM").stdin(Stdio::null());
    if let Some(value) = variable {
        command.env("UNTORN_LOG", value);
    }
    let output = command.output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{arguments:?}: {said}");
    said
}

/// Mounts a copy of a store whose daemon goes on, so that the copy is recovered, with these options.
fn logged(arguments: &[&str], variable: Option<&str>) -> String {
    let dir = tempfile::tempdir().unwrap();
    let [alive, left, at] = ["alive", "left", "at"].map(|name| dir.path().join(name));
    fs::create_dir(&at).unwrap();
    program(&[], &[&alive, &at], None);
    let mut file = File::create(at.join("file")).unwrap();
    file.write_all(b"contents").and_then(|()| file.sync_all()).unwrap();
    drop(file);
    assert!(Command::new("cp").arg("-a").arg(&alive).arg(&left).status().unwrap().success());
    program(&["umount"], &[&at], None);
    let said = program(arguments, &[&left, &at], variable);
    assert_eq!(fs::read(at.join("file")).unwrap(), b"contents");
    program(&["umount"], &[&at], None);
    said
}

/// The options reach the daemon, two processes further.
#[test]
fn a_daemon_logs_to_the_terminal_until_it_is_ready() {
    if !can_mount() {
        return;
    }
    let recovered = |said: &str| said.contains("untorn-mount: info: recovered a store that was not closed; store: ");
    assert!(!recovered(&logged(&[], None)), "a recovery is no warning");
    assert!(recovered(&logged(&["-v"], None)));
    assert!(recovered(&logged(&["--no-supervisor", "--verbose"], None)));
    assert!(recovered(&logged(&[], Some("info"))));
    assert!(!recovered(&logged(&["-q"], Some("info"))), "options come before the variable");
    let said = logged(&["-v", "--log-format", "json"], None);
    let events = said.lines().filter(|line| line.starts_with('{'));
    let events: Vec<serde_json::Value> = events.map(|line| serde_json::from_str(line).unwrap()).collect();
    let is_recovery =
        |event: &serde_json::Value| event["id"] == "untorn.recovery.done" && event["program"] == "untorn-mount";
    assert!(events.iter().any(is_recovery), "{said}");
}

/// Otherwise the name of the subcommand would be taken for a store.
#[test]
fn options_may_stand_before_a_subcommand() {
    let dir = tempfile::tempdir().unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_untorn-mount"));
    let output = command.args(["-v", "--log-format=human", "status", "--json"]).arg(dir.path()).output().unwrap();
    let said: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(said["session"], "none", "{said}");
}
