//! The command itself: help, errors, exit codes, completions, man pages.

mod common;

use common::{run, untorn};
use std::path::Path;
use std::process::{Command, Stdio};

const COMMANDS: [&str; 10] =
    ["status", "check", "dump", "recover", "checkpoint", "eject", "doctor", "put", "bench", "completions"];
const HIDDEN: [&str; 3] = ["man", "demo", "demo-child"];

#[test]
fn help_names_every_command_and_hides_the_others() {
    let help = run(&["--help"], Path::new("")).out;
    let listed: Vec<&str> = help.lines().filter_map(|line| line.strip_prefix("  ")?.split(' ').next()).collect();
    for command in COMMANDS {
        assert!(listed.contains(&command), "{command} in {help}");
        assert!(untorn().args([command, "--help"]).output().unwrap().status.success());
    }
    for command in HIDDEN {
        assert!(!listed.contains(&command), "{command} in {help}");
    }
}

#[test]
fn wrong_usage_is_2_and_failure_is_1() {
    assert_eq!(untorn().output().unwrap().status.code(), Some(2));
    assert_eq!(untorn().arg("frobnicate").output().unwrap().status.code(), Some(2));
    let dry_salvage = untorn().args(["recover", "--dry-run", "--salvage", "x"]).output().unwrap();
    assert_eq!(dry_salvage.status.code(), Some(2));
    let e = run(&["doctor"], Path::new("/no/such/place")).fails(1);
    assert!(e.contains("/no/such"), "{e}");
}

#[test]
fn what_is_no_store_is_said_to_be_none_and_nothing_is_made() {
    let dir = tempfile::tempdir().unwrap();
    for command in ["status", "dump", "recover", "checkpoint", "eject"] {
        let e = run(&[command], dir.path()).fails(1);
        assert!(e.contains("cannot find a store"), "{command}: {e}");
    }
    assert!(run(&["check"], dir.path()).fails(2).contains("cannot find a store"));
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
}

#[test]
fn completions_know_the_commands() {
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let script = run(&["completions"], Path::new(shell)).ok();
        for command in COMMANDS {
            assert!(script.contains(command), "{command} for {shell}");
        }
    }
    let mut bash = Command::new("bash").arg("-n").stdin(Stdio::piped()).spawn().unwrap();
    let script = run(&["completions"], Path::new("bash")).ok();
    std::io::Write::write_all(&mut bash.stdin.take().unwrap(), script.as_bytes()).unwrap();
    assert!(bash.wait().unwrap().success(), "bash parses its script");
}

/// The benchmark starts its own program again, which here is `untorn`.
#[test]
fn bench_measures_from_within_the_command() {
    let dir = tempfile::tempdir().unwrap();
    let out = run(&["bench", "recovery", "--quick", "--fs", "here", "--dir"], dir.path()).ok();
    assert!(out.contains("recovery of a full journal") && out.contains("copy + fdatasync"), "{out}");
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
}

#[test]
fn every_public_command_has_a_man_page() {
    let dir = tempfile::tempdir().unwrap();
    run(&["man"], dir.path()).ok();
    let main = std::fs::read_to_string(dir.path().join("untorn.1")).unwrap();
    assert!(main.contains("All\\-or\\-nothing"), "{main}");
    for command in COMMANDS {
        let page = std::fs::read_to_string(dir.path().join(format!("untorn-{command}.1"))).unwrap();
        assert!(page.starts_with(".ie") && page.contains(".SH SYNOPSIS"), "{page}");
    }
    for command in HIDDEN {
        assert!(!dir.path().join(format!("untorn-{command}.1")).exists(), "{command}");
    }
    let e = run(&["man"], &dir.path().join("absent")).fails(1);
    assert!(e.contains("absent"), "{e}");
}

#[test]
fn a_reader_that_has_seen_enough_is_no_failure() {
    let mut child =
        untorn().args(["completions", "bash"]).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    drop(child.stdout.take());
    let out = child.wait_with_output().unwrap();
    assert!(out.status.success() && out.stderr.is_empty(), "{out:?}");
}
