//! The log of the command: its levels and forms, and options that it hands on to the other programs.

mod common;

use common::{Run, json, untorn};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use untorn::{Store, StoreOptions};

/// A store whose owner was killed: a copy of an open store.
fn crashed(dir: &Path) -> PathBuf {
    let (alive, crashed) = (dir.join("alive"), dir.join("crashed"));
    let store: Store = StoreOptions::new().create(true).background(false).open(&alive).unwrap();
    let file = store.open_or_create_file("a").unwrap();
    file.write_all_at(b"committed", 0).and_then(|()| file.commit()).unwrap();
    assert!(Command::new("cp").arg("-a").arg(&alive).arg(&crashed).status().unwrap().success());
    store.close().unwrap();
    crashed
}

/// Standard error of a recovery with these options, and with this value of `UNTORN_LOG`.
fn logged(before: &[&str], after: &[&str], variable: Option<&str>) -> String {
    let dir = tempfile::tempdir().unwrap();
    let store = crashed(dir.path());
    let mut command = untorn();
    command.args(before).arg("checkpoint").args(after).arg(store).env_remove("UNTORN_LOG").env_remove("JOURNAL_STREAM");
    if let Some(value) = variable {
        command.env("UNTORN_LOG", value);
    }
    let run: Run = command.stdin(Stdio::null()).output().unwrap().into();
    assert_eq!(run.code, Some(0), "{}{}", run.out, run.err);
    run.err
}

const RECOVERED: &str = "untorn: info: recovered a store that was not closed; store: ";

#[test]
fn a_command_logs_what_is_asked_for() {
    assert_eq!(logged(&[], &[], None), "");
    assert_eq!(logged(&["-v"], &[], None), "", "a recovery is no warning");
    for (before, after) in [(&["-vv"][..], &[][..]), (&[], &["--verbose", "-v"]), (&["-v"], &["-vvq"])] {
        let said = logged(before, after, None);
        let is_line = said.starts_with(RECOVERED) && said.ends_with("; commits: 2; files: 1 [untorn.recovery.done]\n");
        assert!(is_line, "{before:?} {after:?}: {said}");
    }
    for value in ["info", "untorn=info", "off,untorn=debug"] {
        assert!(logged(&[], &[], Some(value)).contains(RECOVERED), "{value}");
    }
    for value in ["off", "0", "", "warn", "untorn_journal=debug"] {
        assert_eq!(logged(&[], &[], Some(value)), "", "{value}");
    }
    assert_eq!(logged(&[], &["--quiet"], Some("info")), "", "options come before the variable");
    let said = logged(&[], &[], Some("loud"));
    assert!(said.starts_with("untorn: UNTORN_LOG=loud is no level") && said.lines().count() == 1, "{said}");
}

#[test]
fn json_is_a_line_for_each_event() {
    let said = logged(&["--log-format", "json"], &[], Some("info"));
    assert_eq!(said.lines().count(), 1, "{said}");
    let event = json(&said);
    assert_eq!((&event["id"], &event["level"]), (&"untorn.recovery.done".into(), &"info".into()));
    assert_eq!((&event["program"], &event["fields"]["commits"]), (&"untorn".into(), &2.into()));
    assert!(event["time"].as_str().is_some_and(|time| time.ends_with('Z')), "{event}");
}

/// Without a journal, its entries become lines.
#[test]
fn an_event_is_not_lost_without_a_journal() {
    if ["/run/systemd/journal/socket", "/dev/log"].iter().any(|socket| Path::new(socket).exists()) {
        return eprintln!("skipped: this machine has a log of its own");
    }
    assert!(logged(&["-vv", "--log-format=journal"], &[], None).starts_with(RECOVERED));
}

#[test]
fn other_programs_get_the_options_that_stand_before_the_subcommand() {
    let dir = tempfile::tempdir().unwrap();
    let (command, other) = (dir.path().join("untorn"), dir.path().join("untorn-mount"));
    untorn_testkit::install(Path::new(env!("CARGO_BIN_EXE_untorn")), &command);
    untorn_testkit::install_script("#!/bin/sh\necho \"$@\"\n", &other);
    let gets = |arguments: &[&str]| -> String {
        let run: Run = Command::new(&command).args(arguments).output().unwrap().into();
        run.ok().trim_end().to_owned()
    };
    assert_eq!(gets(&["-v", "--log-format", "json", "umount", "at", "-q"]), "umount -v --log-format json at -q");
    assert_eq!(gets(&["mount", "-v", "--", "store", "at"]), "-v -- store at");
}
