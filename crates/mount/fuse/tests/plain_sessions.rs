//! Sessions on a plain directory, as root and as an ordinary user.
//!
//! Afterwards the directory is plain again, with the program's changes. After a kill of any process nothing is torn,
//! and changes of others are not overwritten.

mod common;

use common::place::{Place, listing, said};
use common::{can_mount, device_for_everybody};
use rustix::process::{Pid, Signal, kill_process};
use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt, symlink};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output};
use std::time::{Duration, Instant};
use untorn_testkit::seed;

/// Root, and an ordinary user, who gets a user namespace.
fn places() -> Vec<Place> {
    if !can_mount() {
        return Vec::new();
    }
    device_for_everybody();
    Place::all()
}

/// A tree for the scripts.
fn make_tree(place: &Place, name: &str) -> PathBuf {
    let root = place.at(name);
    let at = |name: &str| root.join(name);
    fs::create_dir_all(at("old/below")).unwrap();
    fs::create_dir_all(at("stays/below")).unwrap();
    for name in ["one", "two", "stays/three", "old/four", "old/below/five"] {
        fs::write(at(name), format!("the old {name}\n").repeat(1000)).unwrap();
    }
    fs::hard_link(at("one"), at("stays/one too")).unwrap();
    symlink("../one", at("stays/link")).unwrap();
    place.give(name);
    root
}

/// Every kind of change.
const SCRIPT: &str = "set -e
    echo more >> one; rm two; chmod 604 stays/three; mv old/below stays/moved; rm old/four; rmdir old
    mkdir -p new/deep; echo text > new/deep/file; ln new/deep/file new/linked; ln -s nowhere new/symbolic; mkfifo -m 640 new/fifo
    rm -r stays/below; echo a file now > stays/below; rm stays/link; mkdir stays/link; echo x > stays/link/within
    echo replaced > temporary; mv temporary replaced; cp -p one copy; truncate -s 1M sparse; chmod 500 new/deep";

/// A listing without times, which differ between two runs.
fn without_times(root: &Path) -> BTreeMap<PathBuf, String> {
    let plain = |line: String| {
        line.split(' ').enumerate().filter(|(at, _)| *at != 6).map(|(_, w)| w).collect::<Vec<_>>().join(" ")
    };
    listing(root).into_iter().map(|(path, line)| (path, plain(line))).collect()
}

#[track_caller]
fn same(expected: &BTreeMap<PathBuf, String>, found: &BTreeMap<PathBuf, String>, about: &str) {
    assert_eq!(expected.keys().collect::<Vec<_>>(), found.keys().collect::<Vec<_>>(), "{about}");
    for (name, line) in expected {
        assert_eq!(line, &found[name], "{about}: {}", name.display());
    }
}

fn sh(place: &Place, on: &str, script: &str) -> Output {
    place.run(&["run", "--on", on, "--", "sh", "-c", &format!("cd {on}; {script}")])
}

fn done(place: &Place, on: &str, script: &str) {
    let output = sh(place, on, script);
    assert!(output.status.success() && said(&output).is_empty(), "as {}: {}", place.uid, said(&output));
}

#[test]
fn what_a_script_does_is_there_and_the_rest_is_as_it_was() {
    for place in places() {
        make_tree(&place, "model");
        let tree = make_tree(&place, "tree");
        let untouched = fs::metadata(tree.join("stays")).unwrap().ino();
        let mut plain = place.command(&[]);
        if rustix::process::geteuid().is_root() {
            plain = Command::new("setpriv");
            plain.args(["--reuid", &place.uid.to_string(), "--regid", &place.uid.to_string(), "--clear-groups", "sh"]);
        }
        let plain = plain.args(["-c", SCRIPT]).current_dir(place.at("model")).output().unwrap();
        assert!(plain.status.success(), "{}", said(&plain));
        done(&place, "tree", SCRIPT);
        same(&without_times(&place.at("model")), &without_times(&tree), &format!("as {}", place.uid));
        assert_eq!(fs::metadata(tree.join("stays")).unwrap().ino(), untouched);
        assert_eq!(place.left(&["model", "tree"]), [""; 0]);
        // Files that no session changed keep even their times.
        let before = listing(&tree);
        done(&place, "tree", "cat one > /dev/null; find . > /dev/null");
        same(&before, &listing(&tree), "nothing changed");
    }
}

#[test]
fn a_session_ends_as_its_program_does() {
    for place in places() {
        make_tree(&place, "tree");
        let code = |arguments: &[&str]| {
            let output = place.run(&[&["run", "--on", "tree", "--"], arguments].concat());
            (output.status.code().unwrap(), String::from_utf8(output.stdout.clone()).unwrap() + &said(&output))
        };
        assert_eq!(code(&["sh", "-c", "exit 7"]), (7, String::new()));
        assert_eq!(code(&["sh", "-c", "kill -9 $$"]).0, 128 + 9);
        assert_eq!(code(&["nothing-like-it"]).0, 127);
        assert_eq!(code(&["./tree/one"]).0, 126);
        // The working directory is the mount, if it lies there.
        let mut within =
            place.command(&["run", "--on", "../..", "--", "sh", "-c", "pwd; echo x > here; stat -f -c %T ."]);
        let output = within.current_dir(place.at("tree/stays/below")).output().unwrap();
        let at = place.at("tree/stays/below");
        assert_eq!(
            String::from_utf8_lossy(&output.stdout),
            format!("{}\nfuseblk\n", at.display()),
            "{}",
            said(&output)
        );
        assert_eq!(fs::read_to_string(at.join("here")).unwrap(), "x\n");
        // No process is left that could still write, not even in another namespace.
        let flags = if place.uid == 0 { "-m" } else { "-Um" };
        let output = sh(&place, "tree", &format!("unshare {flags} sleep 600 > /dev/null 2>&1 & sleep 0.2; exit 4"));
        assert_eq!(output.status.code(), Some(4), "{}", said(&output));
        let started = Instant::now();
        let output = sh(
            &place,
            "tree",
            "(trap '' TERM; while :; do echo x >> loop; sleep 0.01; done) & until [ -e loop ]; do sleep 0.01; done; exit 3",
        );
        assert_eq!(output.status.code(), Some(3), "{}", said(&output));
        assert!(started.elapsed() < Duration::from_secs(60));
        let len = fs::metadata(place.at("tree/loop")).unwrap().len();
        std::thread::sleep(Duration::from_millis(50));
        assert_eq!(fs::metadata(place.at("tree/loop")).unwrap().len(), len);
        assert_eq!(place.left(&["tree"]), [""; 0]);
    }
}

/// Starts a program, and waits until it shows by a file outside the directory that it has begun.
fn begun(place: &Place, script: &str) -> Child {
    let _ = fs::remove_file(place.at("begun"));
    let script = format!("cd tree; {script}");
    let child = place.command(&["run", "--on", "tree", "--", "sh", "-c", &script]).spawn().unwrap();
    until(|| place.at("begun").exists());
    child
}

#[track_caller]
fn until(is: impl Fn() -> bool) {
    let started = Instant::now();
    while !is() {
        assert!(started.elapsed() < Duration::from_secs(60), "it never happened");
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn signals_are_passed_on_and_a_second_session_is_refused() {
    for place in places() {
        make_tree(&place, "tree");
        let mut child =
            begun(&place, "trap 'echo heard > heard; exit 5' TERM; > ../begun; while :; do sleep 0.01; done");
        place.refused_with(125, &["run", "--on", "tree", "--", "true"], "another session works on");
        place.refused_with(1, &["recover", "tree"], "another session works on");
        assert!(String::from_utf8_lossy(&place.done(&["status", "tree"]).stdout).contains("a session works on"));
        assert!(String::from_utf8_lossy(&place.done(&["status", "--json", "tree"]).stdout).contains("\"running\""));
        assert!(!place.at("tree/heard").exists(), "outside nothing is seen yet");
        kill_process(Pid::from_child(&child), Signal::TERM).unwrap();
        assert_eq!(child.wait().unwrap().code(), Some(5));
        assert_eq!(fs::read_to_string(place.at("tree/heard")).unwrap(), "heard\n");
        assert!(String::from_utf8_lossy(&place.done(&["status", "tree"]).stdout).contains("no session works on it"));
    }
}

/// Resets signals that the tests' caller may ignore (`nohup`).
fn ignoring_nothing(mut command: Command) -> Command {
    let prepare = || {
        for signal in [libc::SIGHUP, libc::SIGINT, libc::SIGQUIT, libc::SIGTERM] {
            // SAFETY: a system call that may be made after fork.
            unsafe { libc::signal(signal, libc::SIG_DFL) };
        }
        Ok(())
    };
    // SAFETY: the closure makes system calls only.
    unsafe { command.pre_exec(prepare) };
    command
}

/// Signals of job control stay with the receiving process: the program must not be stopped without the signal that
/// continues it.
#[test]
fn what_programs_are_told_is_passed_on() {
    for place in places() {
        make_tree(&place, "tree");
        let names = "HUP INT QUIT USR1 USR2 ALRM VTALRM PROF WINCH IO PWR RTMIN RTMAX";
        // Not `sh`, which may know no real-time signals.
        let script = format!(
            "cd tree; for name in {names}; do trap \"echo $name >> ../heard\" $name; done; trap 'exit 6' TERM; > ../begun
            while :; do sleep 0.01; done"
        );
        let command = place.command(&["run", "--on", "tree", "--", "bash", "-c", &script]);
        let child = ignoring_nothing(command).spawn().unwrap();
        until(|| place.at("begun").exists());
        let send = |name: &str| {
            let kill = format!("kill -{name} {}", child.id());
            assert!(Command::new("bash").args(["-c", &kill]).status().unwrap().success());
        };
        for (at, name) in names.split(' ').enumerate() {
            send(name);
            let heard = || fs::read_to_string(place.at("heard")).unwrap_or_default();
            until(|| heard().lines().count() > at);
            assert_eq!(heard().lines().last(), Some(name), "as {}", place.uid);
        }
        for name in ["STOP", "CONT", "TERM"] {
            send(name);
        }
        let output = child.wait_with_output().unwrap();
        assert_eq!(output.status.code(), Some(6), "{}", said(&output));
        assert_eq!(place.left(&["tree", "begun", "heard"]), [""; 0]);
    }
}

/// A signal at any moment ends the command itself, before it has done anything, the import, or the program.
#[test]
fn a_signal_at_the_start_is_not_lost() {
    let mut random = fastrand::Rng::with_seed(seed());
    for place in places() {
        let tree = make_tree(&place, "tree");
        let before = listing(&tree);
        for round in 0..10 {
            let signal = if round % 2 == 0 { Signal::TERM } else { Signal::HUP };
            let child = ignoring_nothing(place.command(&["run", "--on", "tree", "--", "sleep", "60"])).spawn().unwrap();
            // The first child is the import. The random pause may end in any step.
            let children = format!("/proc/{0}/task/{0}/children", child.id());
            until(|| !fs::read_to_string(&children).unwrap().is_empty());
            std::thread::sleep(Duration::from_micros(random.u64(0..80_000)));
            kill_process(Pid::from_child(&child), signal).unwrap();
            let output = child.wait_with_output().unwrap();
            let code = Some(128 + signal.as_raw());
            assert_eq!(output.status.code(), code, "as {}, round {round}: {}", place.uid, said(&output));
            same(&before, &listing(&tree), "nothing was done");
            assert_eq!(place.left(&["tree"]), [""; 0]);
        }
    }
}

/// The process that serves the mount.
fn daemon(of: &Child) -> Pid {
    let path = format!("/proc/{0}/task/{0}/children", of.id());
    Pid::from_raw(fs::read_to_string(path).unwrap().split_whitespace().next().unwrap().parse().unwrap()).unwrap()
}

/// A program counts in two files, one of which it syncs, and one it replaces. After any kill, recovery has everything
/// that was synced.
#[test]
fn a_killed_session_is_recovered_to_its_last_commits() {
    let mut random = fastrand::Rng::with_seed(seed());
    for place in places() {
        let tree = make_tree(&place, "tree");
        for round in 0..6 {
            let script = "n=0; > ../begun; while :; do n=$((n + 1)); { echo $n; seq $n $((n + 500)); } > synced &&
                sync synced && echo $n > new && sync new && mv new replaced && sync . && echo $n >> ../acknowledged ||
                while :; do sleep 0.1; done; done";
            let mut child = begun(&place, script);
            let acknowledged = || fs::read_to_string(place.at("acknowledged")).unwrap_or_default().lines().count();
            let enough = random.usize(1..15);
            until(|| acknowledged() >= enough);
            let whom = if round % 2 == 0 { daemon(&child) } else { Pid::from_child(&child) };
            kill_process(whom, Signal::KILL).unwrap();
            let output = child.wait().unwrap();
            assert!(round % 2 == 1 || output.code() == Some(125), "{output:?}");
            let status = place.run(&["status", "tree"]);
            // If the process that began the session was killed, the session's own process may take a while to end.
            assert!(status.status.code() == Some(1), "{}", String::from_utf8_lossy(&status.stdout));
            let status = place.run(&["status", "--json", "tree"]);
            assert!(String::from_utf8_lossy(&status.stdout).contains("\"left\"") && status.status.code() == Some(1));
            assert!(!tree.join("synced").exists(), "nothing is put back by itself");
            place.refused_with(125, &["run", "--on", "tree", "--", "true"], "was killed");
            place.done(&["recover", "tree"]);
            let last = acknowledged();
            let text = fs::read_to_string(tree.join("synced")).unwrap();
            let n: usize = text.lines().next().unwrap().parse().unwrap();
            assert!(n == last || n == last + 1, "as {}, round {round}: {n} is there, {last} was synced", place.uid);
            assert_eq!(text.lines().count(), 502, "whole");
            let replaced: usize = fs::read_to_string(tree.join("replaced")).unwrap().trim().parse().unwrap();
            assert!(replaced == last || replaced == last + 1, "round {round}: {replaced}, {last}");
            assert_eq!(place.left(&["tree", "begun", "acknowledged"]), [""; 0]);
            for name in ["tree/synced", "tree/replaced", "acknowledged"] {
                fs::remove_file(place.at(name)).unwrap();
            }
            let _ = fs::remove_file(tree.join("new"));
        }
    }
}

/// Recovery is killed again and again, a little later each time. In the end everything is as the program left it.
#[test]
fn putting_back_goes_on_where_it_was_killed() {
    let mut random = fastrand::Rng::with_seed(seed());
    let (mut kills, mut half) = (0, 0);
    for place in places() {
        let before = half;
        for round in 0..30 {
            if round >= 2 && half > before {
                break;
            }
            make_tree(&place, "model");
            make_tree(&place, "tree");
            // Some of the directories have closed modes, before and after.
            for directory in ["model/closed", "model/still", "tree/closed", "tree/still"] {
                fs::create_dir(place.at(directory)).unwrap();
                fs::write(place.at(directory).join("file"), "old\n").unwrap();
                place.give(directory);
                fs::set_permissions(place.at(directory), fs::Permissions::from_mode(0o555)).unwrap();
            }
            let many = "for n in $(seq 300); do echo $n > stays/many$n; done; echo new > still/file; chmod u+w closed
                for n in $(seq 50); do echo $n > closed/many$n; done; rm closed/file; chmod u-w closed";
            done(&place, "model", &format!("{SCRIPT}\n{many}"));
            let script = format!("{SCRIPT}\n{many}\nsync .; > ../begun; sleep 60");
            // The sync of the mount commits everything.
            let program = script.replace("sync .;", "../program sync . || exit 9;");
            let mut child = begun(&place, &program);
            kill_process(daemon(&child), Signal::KILL).unwrap();
            child.wait().unwrap();
            let session = |name: &str| place.at(".tree.untorn-run").join(name);
            // Files that have got their place are no longer in this directory.
            let waiting = || fs::read_dir(session("new")).map_or(0, Iterator::count);
            let (mut patience, mut enough) = (Duration::from_millis(3), 290);
            loop {
                let mut recover = place.command(&["recover", "tree"]).spawn().unwrap();
                if kills % 2 == 0 {
                    std::thread::sleep(patience.mul_f64(0.5 + random.f64()));
                    patience = patience.mul_f64(1.6);
                } else {
                    enough = enough * random.usize(50..95) / 100;
                    while !(session("staged").exists() && waiting() < enough) && recover.try_wait().unwrap().is_none() {
                        std::hint::spin_loop();
                    }
                }
                let _ = recover.kill();
                let status = recover.wait().unwrap();
                if status.success() {
                    break;
                }
                kills += 1;
                half += usize::from(session("staged").exists() && !session("done").exists());
                assert_eq!(status.code(), None, "it was killed, and refused nothing");
                // If the kill came after everything was put back, the rest is removed, and there is nothing to recover.
                if String::from_utf8_lossy(&place.run(&["status", "tree"]).stdout).contains("none was left") {
                    let is_there = session("").exists();
                    assert_eq!(place.run(&["recover", "tree"]).status.success(), is_there);
                    break;
                }
            }
            same(
                &without_times(&place.at("model")),
                &without_times(&place.at("tree")),
                &format!("as {}, round {round}", place.uid),
            );
            done(&place, "tree", "true");
            assert_eq!(place.left(&["tree", "model", "begun"]), [""; 0]);
            for name in ["model", "tree"] {
                fs::remove_dir_all(place.at(name)).unwrap();
            }
        }
        assert!(half > before, "as {}: no kill came in the middle", place.uid);
    }
    println!("{kills} kills, {half} of them in the middle");
}

#[test]
fn what_somebody_else_changed_is_not_overwritten() {
    for place in places() {
        type Edit = fn(&Path);
        let edits: [(&str, Edit, &str); 6] = [
            ("one", |tree| fs::write(tree.join("one"), "outside").unwrap(), "echo inside > one"),
            ("one", |tree| fs::remove_file(tree.join("one")).unwrap(), "echo inside > one"),
            ("one", |tree| fs::write(tree.join("one"), "outside").unwrap(), "rm one"),
            ("new", |tree| fs::write(tree.join("new"), "outside").unwrap(), "echo inside > new"),
            ("old/outside", |tree| fs::write(tree.join("old/outside"), "x").unwrap(), "rm -r old"),
            ("old/four", |tree| fs::remove_dir_all(tree.join("old")).unwrap(), "echo inside > old/four"),
        ];
        for (at, (name, edit, script)) in edits.into_iter().enumerate() {
            for what in ["--overwrite", "--discard"] {
                let tree = make_tree(&place, "tree");
                let session = |script: &str| {
                    let child = begun(
                        &place,
                        &format!("{script}; echo too > also; > ../begun; while ! [ -e ../go ]; do sleep 0.01; done"),
                    );
                    edit(&tree);
                    fs::write(place.at("go"), "").unwrap();
                    let output = child.wait_with_output().unwrap();
                    fs::remove_file(place.at("go")).unwrap();
                    output
                };
                let output = session(script);
                let told = said(&output);
                assert_eq!(output.status.code(), Some(124), "as {}: {name}, edit {at}: {told}", place.uid);
                let outside = listing(&tree);
                let output = place.run(&["recover", "tree"]);
                assert_eq!(output.status.code(), Some(124));
                assert!(said(&output).contains(&format!("\n  {name}\n")), "edit {at}: {}", said(&output));
                same(&outside, &listing(&tree), "nothing is put back");
                place.done(&["recover", what, "tree"]);
                if what == "--discard" {
                    same(&outside, &listing(&tree), "thrown away");
                } else {
                    assert_eq!(fs::read_to_string(tree.join("also")).unwrap(), "too\n");
                    let is = fs::read_to_string(tree.join(name)).unwrap_or_default();
                    assert_eq!(is, ["inside\n", "inside\n", "", "inside\n", "x", "inside\n"][at], "edit {at}");
                    assert!(at != 4 || !tree.join("old/four").exists());
                }
                for name in fs::read_dir(place.at("")).unwrap().map(|entry| entry.unwrap().file_name()) {
                    if name != "program" {
                        let path = place.at(name.to_str().unwrap());
                        if path.is_dir() { fs::remove_dir_all(path).unwrap() } else { fs::remove_file(path).unwrap() }
                    }
                }
            }
        }
        // Changes to names that nobody else touched are put back, even if others make changes beside them.
        let tree = make_tree(&place, "tree");
        let mut child = begun(&place, "echo inside > one; > ../begun; while ! [ -e ../go ]; do sleep 0.01; done");
        fs::write(tree.join("two"), "outside").unwrap();
        fs::write(tree.join("stays/new"), "outside").unwrap();
        fs::write(place.at("go"), "").unwrap();
        assert!(child.wait().unwrap().success());
        let [one, two, new] = ["one", "two", "stays/new"].map(|name| fs::read_to_string(tree.join(name)).unwrap());
        assert_eq!((one.as_str(), two.as_str(), new.as_str()), ("inside\n", "outside", "outside"));
    }
}

/// Whether all threads of a process are stopped, or it has ended.
fn has_stopped(process: &mut std::process::Child) -> bool {
    if process.try_wait().unwrap().is_some() {
        return true;
    }
    let Ok(threads) = fs::read_dir(format!("/proc/{}/task", process.id())) else { return false };
    threads.map(|thread| fs::read_to_string(thread.unwrap().path().join("stat"))).all(|stat| {
        // The state follows the name, which is in parentheses.
        stat.is_ok_and(|stat| stat.rsplit_once(") ").is_some_and(|(_, rest)| rest.starts_with(['T', 't', 'X', 'Z'])))
    })
}

/// Somebody makes a file during the last step, which is stopped meanwhile.
#[test]
fn what_comes_up_late_is_left_and_the_rest_is_put_back() {
    for place in places() {
        for try_again in 0.. {
            assert!(try_again < 20, "putting back was never stopped in the middle");
            let tree = make_tree(&place, "tree");
            let script = "for n in $(seq 200); do echo inside > many$n; done; echo inside > zlast; ../program sync .
                > ../begun; sleep 60";
            let mut child = begun(&place, script);
            kill_process(daemon(&child), Signal::KILL).unwrap();
            child.wait().unwrap();
            let mut recover = place.command(&["recover", "tree"]).spawn().unwrap();
            let staged = place.at(".tree.untorn-run/staged");
            while !staged.exists() && recover.try_wait().unwrap().is_none() {
                std::hint::spin_loop();
            }
            let _ = kill_process(Pid::from_child(&recover), Signal::STOP);
            while !has_stopped(&mut recover) {
                std::thread::yield_now();
            }
            let in_the_middle = !tree.join("zlast").exists();
            if in_the_middle {
                fs::write(tree.join("zlast"), "outside").unwrap();
            }
            // The process may have ended before.
            let _ = kill_process(Pid::from_child(&recover), Signal::CONT);
            let code = recover.wait().unwrap().code();
            if in_the_middle {
                assert_eq!(code, Some(124));
                let output = place.run(&["recover", "tree"]);
                assert!(
                    output.status.code() == Some(124) && said(&output).contains("\n  zlast\n"),
                    "{}",
                    said(&output)
                );
                place.done(&["recover", "--discard", "tree"]);
                assert_eq!(fs::read_to_string(tree.join("zlast")).unwrap(), "outside");
            }
            assert_eq!(fs::read_to_string(tree.join("many200")).unwrap(), "inside\n");
            assert_eq!(place.left(&["tree", "begun"]), [""; 0]);
            fs::remove_dir_all(tree).unwrap();
            if in_the_middle {
                break;
            }
        }
    }
}

#[test]
fn what_will_not_do_is_refused() {
    for place in places() {
        make_tree(&place, "tree");
        let refused = |on: &str, words: &str| place.refused_with(125, &["run", "--on", on, "--", "true"], words);
        refused("none", "No such file or directory");
        refused("tree/one", "is no directory");
        refused("/", "cannot work on the root directory");
        refused("/proc", "is a mount point");
        place.refused_with(1, &["recover", "tree"], "there is nothing to recover");
        // A recovery that was killed when everything was put back, and a session whose store somebody removed.
        let rest = place.at(".tree.untorn-run");
        for (files, command) in
            [(&["done"][..], &["recover", "tree"][..]), (&["manifest", "staged"], &["recover", "--discard", "tree"])]
        {
            fs::DirBuilder::new().mode(0o700).create(&rest).unwrap();
            files.iter().for_each(|name| fs::write(rest.join(name), "").unwrap());
            std::os::unix::fs::chown(&rest, Some(place.uid), Some(place.uid)).unwrap();
            place.done(command);
            assert!(!rest.exists());
        }
        place.done(&["import", "tree", "store"]);
        refused("store", "is a store");
        if place.uid != 0 {
            refused("/etc", "cannot make /.etc.untorn-run");
        }
        assert_eq!(place.left(&["tree", "store"]), [""; 0]);
    }
}

#[test]
fn sqlite_without_a_journal_survives_the_kill_of_the_daemon() {
    if Command::new("sqlite3").arg("--version").output().is_err() {
        eprintln!("skipped: needs sqlite3");
        return;
    }
    for place in places() {
        fs::create_dir(place.at("tree")).unwrap();
        place.give("tree");
        done(&place, "tree", "sqlite3 db 'create table t (n, b)'");
        let mut transactions = 0;
        for round in 1..4 {
            // Tells of each transaction by a page of spaces, which SQLite's shell writes at once.
            let script = "> ../begun; (echo 'pragma journal_mode=off; pragma synchronous=full;'; while :; do \
                echo 'begin; insert into t values (1, randomblob(9000)); update t set b = randomblob(5000); commit;'; \
                echo \"select printf('%8191s', '');\"; done) | sqlite3 -bail db > ../told";
            let told = || fs::metadata(place.at("told")).map_or(0, |file| file.len() / 8192);
            let mut child = begun(&place, script);
            let enough = told() + 2;
            until(|| told() > enough);
            std::thread::sleep(Duration::from_millis(30 * round));
            kill_process(daemon(&child), Signal::KILL).unwrap();
            child.wait().unwrap();
            place.done(&["recover", "tree"]);
            let told = told();
            transactions += told;
            let questions = "pragma integrity_check; select count(*) from t";
            let check = Command::new("sqlite3").arg(place.at("tree/db")).arg(questions).output().unwrap();
            let said = String::from_utf8_lossy(&check.stdout);
            let rows = said.strip_prefix("ok\n").and_then(|rows| rows.trim().parse::<u64>().ok());
            let enough = transactions..=transactions + 2;
            assert!(rows.is_some_and(|rows| enough.contains(&rows)), "as {}, {round}: {enough:?}: {said}", place.uid);
            transactions = rows.unwrap();
        }
    }
}

/// Somebody puts a link, or another directory, in the place of a directory in which the session has made files.
#[test]
fn nothing_is_put_where_a_link_leads_that_somebody_else_made() {
    for place in places() {
        for another in ["ln -s ../victim app/d", "mkdir -p app/d/e"] {
            for name in ["app/d/e", "victim/e"] {
                fs::create_dir_all(place.at(name)).unwrap();
            }
            fs::write(place.at("app/d/e/old"), "old").unwrap();
            place.give("app");
            place.give("victim");
            let before = listing(&place.at("victim"));
            let script = "echo x > d/e/x; chmod 701 d/e; sync d/e/x; sync d/e; touch ../ready; while test ! -e ../go; do sleep 0.05; done";
            let outside = format!("while test ! -e ready; do sleep 0.05; done; mv app/d app.was; {another}; touch go");
            let mut meanwhile = Command::new("sh").args(["-c", &outside]).current_dir(place.at("")).spawn().unwrap();
            let output = sh(&place, "app", script);
            assert!(meanwhile.wait().unwrap().success());
            assert_eq!(output.status.code(), Some(124), "as {}, {another}: {}", place.uid, said(&output));
            same(&before, &listing(&place.at("victim")), another);
            assert!(!place.at("app/d/e/x").exists());
            let discarded = place.run(&["recover", "--discard", "app"]);
            assert!(discarded.status.success(), "{}", said(&discarded));
            for name in ["app", "app.was", "victim"] {
                fs::remove_dir_all(place.at(name)).unwrap();
            }
            for name in ["ready", "go"] {
                fs::remove_file(place.at(name)).unwrap();
            }
        }
    }
}

/// A directory of the session's name that another user has made, or to which others may write, is not used for a
/// session's files.
#[test]
fn a_directory_of_somebody_else_is_not_worked_in() {
    for place in places() {
        make_tree(&place, "app");
        let hidden = place.at(".app.untorn-run");
        fs::create_dir(&hidden).unwrap();
        place.give(".app.untorn-run");
        fs::set_permissions(&hidden, fs::Permissions::from_mode(0o777)).unwrap();
        let refused = sh(&place, "app", "echo more >> one");
        assert_eq!(refused.status.code(), Some(125), "{}", said(&refused));
        assert!(said(&refused).contains("others have access"), "{}", said(&refused));
        if rustix::process::geteuid().is_root() {
            fs::set_permissions(&hidden, fs::Permissions::from_mode(0o700)).unwrap();
            std::os::unix::fs::chown(&hidden, Some(12345), Some(12345)).unwrap();
            assert_eq!(sh(&place, "app", "echo more >> one").status.code(), Some(125));
        }
        fs::remove_dir(&hidden).unwrap();
        done(&place, "app", "echo more >> one");
    }
}
