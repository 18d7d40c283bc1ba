//! The command itself: help, errors, exit codes, completions, man pages.

mod common;

use common::{Run, run, untorn};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

const COMMANDS: [&str; 9] =
    ["status", "check", "dump", "recover", "checkpoint", "eject", "doctor", "put", "completions"];
/// Subcommands that are programs of their own.
const OTHERS: [&str; 15] = [
    "crashtest",
    "xsync",
    "mount",
    "umount",
    "sync",
    "import",
    "export",
    "run",
    "ship",
    "restore",
    "follow",
    "top",
    "metrics",
    "bench",
    "demo",
];
const HIDDEN: [&str; 1] = ["man"];

#[test]
fn help_names_every_command_and_hides_the_others() {
    let help = run(&["--help"], Path::new("")).out;
    let listed: Vec<&str> = help.lines().filter_map(|line| line.strip_prefix("  ")?.split(' ').next()).collect();
    for command in COMMANDS {
        assert!(listed.contains(&command), "{command} in {help}");
        assert!(untorn().args([command, "--help"]).output().unwrap().status.success());
    }
    for command in OTHERS {
        assert!(listed.contains(&command), "{command} in {help}");
    }
    for command in HIDDEN {
        assert!(!listed.contains(&command), "{command} in {help}");
    }
}

#[test]
fn wrong_usage_is_2_and_failure_is_1() {
    assert_eq!(untorn().output().unwrap().status.code(), Some(2));
    assert_eq!(untorn().arg("frobnicate").output().unwrap().status.code(), Some(2));
    let dry_salvage = untorn().args(["recover", "--adopt", "--salvage", "x"]).output().unwrap();
    assert_eq!(dry_salvage.status.code(), Some(2));
    let e = run(&["doctor"], Path::new("/no/such/place")).fails(1);
    assert!(e.contains("/no/such"), "{e}");
}

#[test]
fn what_is_no_store_is_said_to_be_none_and_nothing_is_made() {
    let dir = tempfile::tempdir().unwrap();
    for (command, code) in [("checkpoint", 1), ("eject", 1), ("check", 2), ("dump", 2)] {
        let e = run(&[command], dir.path()).fails(code);
        assert!(e.contains("cannot find a store"), "{command}: {e}");
    }
    let said = run(&["status"], dir.path());
    assert_eq!(said.code, Some(2));
    let said = said.out;
    assert!(said.contains("is no store") && said.contains("no session works on it, and none was left"), "{said}");
    let said = common::json(&run(&["status", "--json"], dir.path()).out);
    assert!(said["store"].is_null() && said["session"] == "none", "{said}");
    for arguments in [&["recover"][..], &["recover", "--dry-run"]] {
        let e = run(arguments, dir.path()).fails(1);
        assert!(e.contains("is no store, and no session on it was left"), "{e}");
    }
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
}

#[test]
fn completions_know_the_commands() {
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let script = run(&["completions"], Path::new(shell)).ok();
        for command in COMMANDS.into_iter().chain(OTHERS) {
            assert!(script.contains(command), "{command} for {shell}");
        }
    }
    let mut bash = Command::new("bash").arg("-n").stdin(Stdio::piped()).spawn().unwrap();
    let script = run(&["completions"], Path::new("bash")).ok();
    std::io::Write::write_all(&mut bash.stdin.take().unwrap(), script.as_bytes()).unwrap();
    assert!(bash.wait().unwrap().success(), "bash parses its script");
}

/// Installs `untorn` in a directory of its own, beside a script with this name and text.
fn installed(name: &str, text: &str) -> (tempfile::TempDir, PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    let command = dir.path().join("untorn");
    install(Path::new(env!("CARGO_BIN_EXE_untorn")), &command);
    executable(&dir.path().join(name), text);
    (dir, command)
}

fn executable(path: &Path, text: &str) {
    let source = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(source.path(), text).unwrap();
    install(source.path(), path);
}

/// Copies a program, in another process.
///
/// If this process wrote it, a child of another test could hold the file open for writing, and the file could not be
/// executed.
fn install(from: &Path, to: &Path) {
    assert!(Command::new("install").args(["-m", "755"]).args([from, to]).status().unwrap().success());
}

#[test]
fn other_programs_get_all_arguments_and_their_exit_code_is_passed_on() {
    for (subcommand, program, first) in [
        ("crashtest", "untorn-crashtest", ""),
        ("xsync", "untorn-xsync", ""),
        ("mount", "untorn-mount", ""),
        ("umount", "untorn-mount", "umount "),
        ("sync", "untorn-mount", "sync "),
        ("import", "untorn-mount", "import "),
        ("export", "untorn-mount", "export "),
        ("run", "untorn-mount", "run "),
        ("ship", "untorn-ship", "ship "),
        ("restore", "untorn-ship", "restore "),
        ("follow", "untorn-ship", "follow "),
        ("top", "untorn-top", "top "),
        ("metrics", "untorn-top", "metrics "),
        ("bench", "untorn-bench", ""),
        ("demo", "untorn-bench", "demo "),
    ] {
        let (_dir, command) = installed(program, "#!/bin/sh\necho \"$@\"\nexit 7\n");
        for arguments in [
            &["--check", "true", "--help", "--version", "--", "-x", "a b"][..],
            &["--", "make", "--", "-x"],
            &["--", "--", "-x"],
            &["help", "--"],
            &[],
        ] {
            let run: Run = Command::new(&command).arg(subcommand).args(arguments).output().unwrap().into();
            assert_eq!(run.code, Some(7), "{}{}", run.out, run.err);
            assert_eq!(run.out.trim_end(), format!("{first}{}", arguments.join(" ")).trim_end());
        }
    }
}

/// Streams that were closed are closed for the other program, too, which then fails if it needs them.
#[test]
fn other_programs_know_of_streams_that_were_closed() {
    let script =
        "#!/bin/sh\nfor n in 0 1 2; do [ -e /proc/$$/fd/$n ] || set -- \"$@\" no$n; done\necho \"$@\" > said\n";
    let (dir, command) = installed("untorn-mount", script);
    for (closed, said) in
        [("", ""), ("<&-", " no0"), (">&-", " no1"), ("2>&-", " no2"), ("<&- >&- 2>&-", " no0 no1 no2")]
    {
        let line = format!("exec \"$0\" mount a {closed}");
        let status = Command::new("sh").args(["-c", &line]).arg(&command).current_dir(dir.path()).status().unwrap();
        assert!(status.success(), "{closed}");
        assert_eq!(std::fs::read_to_string(dir.path().join("said")).unwrap(), format!("a{said}\n"), "{closed}");
    }
}

#[test]
fn a_session_beside_a_directory_is_asked_about() {
    let (dir, command) = installed("untorn-mount", "#!/bin/sh\necho \"$@\"\nexit 7\n");
    let tree = dir.path().join("tree");
    std::fs::create_dir(&tree).unwrap();
    let run = |subcommand: &str| -> Run {
        Command::new(&command).arg(subcommand).arg("tree/").current_dir(dir.path()).output().unwrap().into()
    };
    assert_ne!(run("status").code, Some(7));
    std::fs::create_dir(dir.path().join(".tree.untorn-run")).unwrap();
    for subcommand in ["status", "recover"] {
        let run = run(subcommand);
        assert_eq!((run.code, run.out), (Some(7), format!("{subcommand} tree/\n")));
    }
    // Options for sessions are never applied to a store.
    for (option, on) in [("--overwrite", "tree"), ("--discard", "tree"), ("--discard", ".")] {
        let run: Run =
            Command::new(&command).args(["recover", option, on]).current_dir(dir.path()).output().unwrap().into();
        assert_eq!((run.code, run.out), (Some(7), format!("recover {option} {on}\n")));
    }
}

/// For the store of a mount, another program carries out the subcommand.
///
/// The names of files on a mount are only in its table (docs/MOUNT.md has the bytes).
#[test]
fn the_store_of_a_mount_is_asked_about() {
    let (dir, command) = installed("untorn-mount", "#!/bin/sh\necho \"$@\"\nexit 7\n");
    let path = dir.path().join("store");
    std::fs::create_dir(&path).unwrap();
    let run = |arguments: &[&str]| -> Run {
        Command::new(&command).args(arguments).arg("store").current_dir(dir.path()).output().unwrap().into()
    };
    let store = untorn::Store::open_or_create(&path).unwrap();
    let table = store.open_or_create_file("table").unwrap();
    table.append(b"a table").unwrap();
    table.commit().unwrap();
    run(&["check"]).ok();
    table.write_all_at(b"untorn tree   1\n", 0).unwrap();
    table.commit().unwrap();
    drop(table);
    store.close().unwrap();
    for arguments in [&["check", "--json"][..], &["eject", "--yes"]] {
        let run = run(arguments);
        assert_eq!((run.code, run.out), (Some(7), format!("{} store\n", arguments.join(" "))));
    }
    run(&["status"]).ok();
    // Paths in the store continue with names of the mount's files.
    let of_names = |arguments: &[&str], at: &Path| -> Run {
        Command::new(&command).args(arguments).current_dir(at).output().unwrap().into()
    };
    for arguments in [
        &["ls", "store"][..],
        &["ls", "-l", "store/d"],
        &["cat", "store/table"],
        &["cat", "store/notes.txt", "store/d/notes.txt"],
        &["cat", "store/d/../notes.txt"],
    ] {
        let run = of_names(arguments, dir.path());
        assert_eq!((run.code, run.out), (Some(7), format!("{}\n", arguments.join(" "))));
    }
    std::fs::write(dir.path().join("plain"), "").unwrap();
    let e = of_names(&["cat", "store/notes.txt", "plain"], dir.path()).fails(1);
    assert!(e.contains("are in the store of a mount, and others are not"), "{e}");
    let outside = of_names(&["cat", "../plain"], &path);
    assert_eq!(outside.code, Some(1), "the file is not in the store: {}", outside.out);
    // If the table is damaged or lost, the other names tell.
    std::fs::create_dir(path.join("obj")).unwrap();
    std::fs::write(path.join("pack"), "").unwrap();
    std::fs::write(path.join("table"), "").unwrap();
    assert_eq!(run(&["check"]).code, Some(7));
    std::fs::remove_file(path.join("table")).unwrap();
    assert_eq!(run(&["check"]).code, Some(7));
    std::fs::write(path.join("other"), "").unwrap();
    assert_ne!(run(&["check"]).code, Some(7), "a store of the library, perhaps");
    // A killed `eject` has left files to be removed.
    let _ = (std::fs::remove_dir_all(&path), std::fs::create_dir(&path));
    assert_ne!(run(&["eject", "--yes"]).code, Some(7));
    std::fs::create_dir(dir.path().join(".store.untorn-unfinished")).unwrap();
    assert_eq!(run(&["eject", "--yes"]).code, Some(7));
}

#[test]
fn other_programs_are_looked_for_beside_the_command_then_in_path_then_named() {
    let (dir, command) = installed("untorn-crashtest", "#!/bin/sh\necho beside\n");
    let elsewhere = tempfile::tempdir().unwrap();
    executable(&elsewhere.path().join("untorn-crashtest"), "#!/bin/sh\necho in PATH\n");
    let path = std::env::join_paths([elsewhere.path(), Path::new("/usr/bin"), Path::new("/bin")]).unwrap();
    let run = || -> Run { Command::new(&command).arg("crashtest").env("PATH", &path).output().unwrap().into() };
    assert_eq!(run().ok(), "beside\n");
    // A file that cannot be executed does not count.
    let beside = dir.path().join("untorn-crashtest");
    std::fs::set_permissions(&beside, std::fs::Permissions::from_mode(0o644)).unwrap();
    assert_eq!(run().ok(), "in PATH\n");
    std::fs::remove_file(elsewhere.path().join("untorn-crashtest")).unwrap();
    let e = run().fails(127);
    assert!(e.contains("untorn-crashtest") && e.contains("make install"), "{e}");
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
