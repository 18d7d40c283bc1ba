//! A session over the working directory leaves the same files as the program alone, even if all is killed midway.

mod common;

use common::{Place, Session};
use std::collections::BTreeMap;
use std::fs;
use std::io::{Read, Write};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use untorn_testkit::{seed, variable_or};

/// Prepares the directory for the program.
const BEFORE: &str = "mkdir -p d/sub e keep; echo a > a; echo b > b; echo in > d/in; echo sub > d/sub/x; echo e > e/e; \
    echo old > keep/old; ln a a-too; mkdir p q; echo p > p/f; echo q > q/f; mkdir -p outer/inner/in; echo o > outer/o; \
    echo in > outer/inner/in/f; mkdir goes empty; echo g > goes/g; echo l > l1; ln l1 l2; ln l1 outer/l3; \
    echo n > n1; ln n1 n2; ln n1 n3; echo s > s1; ln s1 s2; chmod 640 b; echo gone > gone; mkdir gone.d; echo x > gone.d/x; ln -s a link; \
    mkdir becomes-file; echo x > becomes-file/x; echo x > becomes-dir; touch -d @1000000000 a b keep/old";
/// The program. Its result does not depend on time.
const PROGRAM: &str = "echo more >> b; rm gone; rm -r gone.d; mkdir -p new/deep; echo deep > new/deep/file; \
    ln new/deep/file new/second; rm -r d; mkdir d; echo fresh > d/fresh; mkdir d/sub; echo other > d/sub/y; \
    mv keep/old keep/renamed; ln -sf b link; mkfifo pipe; chmod 4711 keep/renamed; chown 1234:4321 keep/renamed; \
    rm -r becomes-file; echo file > becomes-file; rm becomes-dir; mkdir becomes-dir; echo in > becomes-dir/in; \
    mv e e2; mv p t; mv q p; mv t q; echo more >> q/f; mv outer/inner lifted; mv outer wrapped; mv lifted/in new/in; \
    echo x > new/in/x; rm -r goes; mkdir goes; mv -T e2 empty; mv -T empty e2; echo more >> l1; rm n2; echo more >> n1; \
    rm n1; echo more >> s1; mv s1 s3; ln l2 l4; truncate -s 3M sparse; printf x | dd of=sparse bs=1 seek=2000000 conv=notrunc 2>/dev/null; \
    setfattr -n user.test -v value b; touch -d @1100000000 b keep d new; chmod 700 e2; \
    echo 'a strange name' > \"$(printf 'x\\ny')\"";

/// Everything about a tree that a program can see, except inode numbers and times after the preparation.
fn tree(root: &Path) -> BTreeMap<String, String> {
    let (mut found, mut left, mut links) = (BTreeMap::new(), vec![root.to_owned()], BTreeMap::new());
    while let Some(dir) = left.pop() {
        for entry in fs::read_dir(&dir).unwrap().flatten() {
            let (path, meta) = (entry.path(), entry.path().symlink_metadata().unwrap());
            let kind = meta.file_type();
            let name = path.strip_prefix(root).unwrap().display().to_string();
            let content = if kind.is_file() {
                let bytes = fs::read(&path).unwrap();
                let sum: u64 = bytes.iter().enumerate().map(|(n, byte)| (n as u64 + 1) * u64::from(*byte)).sum();
                format!("file of {} bytes, sum {sum}, {} names", bytes.len(), meta.nlink())
            } else if kind.is_symlink() {
                format!("link to {}", fs::read_link(&path).unwrap().display())
            } else if kind.is_dir() {
                left.push(path.clone());
                "directory".to_owned()
            } else {
                format!("fifo: {}", kind.is_fifo())
            };
            let old = if meta.mtime() < 1_500_000_000 { meta.mtime() } else { 0 };
            let mut value = [0; 64];
            let attribute = rustix::fs::lgetxattr(&path, "user.test", &mut value[..]).unwrap_or(0);
            let owner = (meta.mode(), meta.uid(), meta.gid());
            found.insert(name.clone(), format!("{content} {owner:?} {old} {attribute}"));
            if kind.is_file() && meta.nlink() > 1 {
                links.entry(meta.ino()).or_insert_with(Vec::new).push(name);
            }
        }
    }
    let mut together: Vec<Vec<String>> = links.into_values().collect();
    together.iter_mut().for_each(|names| names.sort());
    together.sort();
    found.insert("names of one file".into(), format!("{together:?}"));
    found
}

fn shell(script: &str, at: &Path) {
    assert!(Command::new("sh").args(["-c", script]).current_dir(at).status().unwrap().success());
}

/// The files that the program leaves without a session.
fn expected(before: &str, program: &str) -> BTreeMap<String, String> {
    let dir = tempfile::tempdir().unwrap();
    shell(before, dir.path());
    shell(program, dir.path());
    tree(dir.path())
}

#[track_caller]
fn same(found: &BTreeMap<String, String>, expected: &BTreeMap<String, String>) {
    for (name, what) in expected {
        assert_eq!(found.get(name), Some(what), "{name}");
    }
    let more: Vec<_> = found.keys().filter(|name| !expected.contains_key(*name)).collect();
    assert!(more.is_empty(), "{more:?}");
}

#[test]
fn what_the_program_changed_is_applied() {
    let Some(place) = Place::new() else { return };
    shell(BEFORE, &place.work());
    place.script(PROGRAM).ok();
    same(&tree(&place.work()), &expected(BEFORE, PROGRAM));
    assert!(place.left().is_empty(), "{:?}", place.left());
}

/// In the session and after it, names of one file stay together, and directories are renamed, not copied.
#[test]
fn hard_links_and_directories_of_the_host_stay_what_they_are() {
    let Some(place) = Place::new() else { return };
    let work = place.work();
    shell("mkdir -p old/sub; echo x > old/sub/x; echo a > a; ln a b; ln a ../outside; echo t > t; ln t u", &work);
    let numbers =
        |names: &[&str]| names.iter().map(|name| fs::metadata(work.join(name)).unwrap().ino()).collect::<Vec<_>>();
    let before = numbers(&["old", "old/sub", "old/sub/x", "t"]);
    let script = "perl -e 'rename(\"old\", \"new\") or die $!'; echo more >> a; cat b; stat -c %h b; touch u";
    let run = place.script(script);
    let says = "b has other names outside of";
    assert!(run.err.contains(says) || run.err.contains("a has other names outside of"), "{run:?}");
    assert_eq!(run.ok(), "a\nmore\n3\n");
    assert_eq!(numbers(&["new", "new/sub", "new/sub/x", "t"]), before);
    assert_eq!((numbers(&["a"]), numbers(&["t"])), (numbers(&["b"]), numbers(&["u"])));
    assert_eq!(fs::read_to_string(work.join("b")).unwrap(), "a\nmore\n");
    assert_eq!(fs::read_to_string(place.dir.path().join("outside")).unwrap(), "a\n");
    let names = fs::read_dir(&work).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    assert!(names.into_iter().all(|name| !name.starts_with(".untorn")), "nothing is left of the apply");
}

#[test]
fn other_directories_are_named_by_overlay() {
    let Some(place) = Place::new() else { return };
    let more = place.dir.path().join("more");
    fs::create_dir(&more).unwrap();
    let script = format!("echo one > here; echo two > {}/there", more.display());
    place.run(&["--overlay", more.to_str().unwrap(), "--", "sh", "-c", &script]).ok();
    assert_eq!(fs::read_to_string(place.work().join("here")).unwrap(), "one\n");
    assert_eq!(fs::read_to_string(more.join("there")).unwrap(), "two\n");
    let inner = place.work().join("inner");
    fs::create_dir(&inner).unwrap();
    let run = place.run(&["--overlay", inner.to_str().unwrap(), "--", "true"]);
    assert!(run.code == Some(125) && run.err.contains("one overlay is enough"), "{run:?}");
}

/// Every session has searched for others, or waits for its turn, before the first one has its volume. Every session has
/// written, or was refused, before the first one applies its changes.
#[test]
fn of_sessions_that_begin_together_in_one_directory_one_works() {
    let Some(place) = Place::new() else { return };
    let (dir, making) = (place.dir.path(), |pid: u32| place.dir.path().join(format!("making-{pid}")));
    let (bin, go) = (dir.join("bin"), dir.join("go"));
    // Another process writes the script: a file that a test has open for writing cannot be executed, not even after
    // another test has just forked with it.
    let mkfs = ": > making-$PPID\nwhile [ ! -e go ]; do sleep 0.01; done\nPATH=${PATH#*:}\nexec mkfs.ext4 \"$@\"";
    let mkfs = format!("#!/bin/sh\ncd {}\n{mkfs}", dir.display());
    shell(&format!("mkdir bin && cat > bin/mkfs.ext4 <<'END'\n{mkfs}\nEND\nchmod 755 bin/mkfs.ext4"), dir);
    let path = format!("{}:{}", bin.display(), std::env::var("PATH").unwrap());
    let begin = |number: u32| {
        let script = format!("echo {number} >> f; echo ready; read nothing");
        let mut command = place.xsync(&["--", "sh", "-c", &script]);
        command.env("PATH", &path).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        Session::start(&mut command)
    };
    let mut sessions: Vec<Session> = (1..=3).map(begin).collect();
    for session in &mut sessions {
        while !making(session.id()).exists() && !waits_for_a_lock(session.id()) {
            assert_eq!(session.try_wait().unwrap(), None, "it ended before the first had a volume");
            std::thread::sleep(Duration::from_millis(5));
        }
    }
    fs::write(&go, "").unwrap();
    // A refused session prints nothing.
    let mut works: Vec<bool> = Vec::new();
    for session in &mut sessions {
        works.push(session.stdout.as_mut().unwrap().read_exact(&mut [0; 6]).is_ok());
    }
    let mut shown = String::new();
    for ((number, session), works) in (1..).zip(&mut sessions).zip(&works) {
        drop(session.stdin.take());
        let mut said = String::new();
        session.stderr.take().unwrap().read_to_string(&mut said).unwrap();
        let code = session.wait().unwrap().code();
        if *works {
            shown += &format!("{number}\n");
            // The exit code of `read` at the end of the input.
            assert_eq!(code, Some(1), "{said}");
        } else {
            assert!(code == Some(125) && said.contains("another session works on"), "{said}");
        }
    }
    assert_eq!(fs::read_to_string(place.work().join("f")).unwrap(), shown);
    assert_eq!(works.iter().filter(|works| **works).count(), 1, "{works:?}");
    assert!(place.left().is_empty(), "{:?}", place.left());
}

fn waits_for_a_lock(pid: u32) -> bool {
    let locks = fs::read_to_string("/proc/locks").unwrap();
    let pid = pid.to_string();
    locks.lines().any(|line| line.contains("-> FLOCK") && line.split_whitespace().any(|word| word == pid))
}

/// The kernel takes no path of that many bytes.
#[test]
fn changes_deeper_than_a_path_are_applied() {
    let Some(place) = Place::new() else { return };
    let down = "for (1..25) { mkdir \"d\" x 200; chdir \"d\" x 200 or die $! }";
    let make = "open F, \">f\" or die $!; print F \"deep\"; close F; link \"f\", \"g\" or die $!; mkdir \"gone\"";
    place.script(&format!("echo x > new; perl -e '{down} {make}'")).ok();
    place
        .script(&format!(
            "perl -e '{down} rmdir \"gone\" or die $!; symlink \"f\", \"l\" or die $!; chmod 0600, \"f\"'"
        ))
        .ok();
    let look = "open F, \"l\" or die $!; print <F>, (stat \"f\")[3], -e \"gone\" ? \"there\" : \"\"; printf \"%o\", (stat \"g\")[2]";
    let found =
        Command::new("perl").args(["-e", &format!("{down} {look}")]).current_dir(place.work()).output().unwrap();
    assert_eq!(String::from_utf8_lossy(&found.stdout), "deep2100600");
    assert_eq!(fs::read_to_string(place.work().join("new")).unwrap(), "x\n");
    assert!(place.left().is_empty(), "{:?}", place.left());
    place.script("rm -r d* new").ok();
    assert!(fs::read_dir(place.work()).unwrap().next().is_none());
}

/// Runs `chattr`. False, with a message, if that is not possible.
fn chattr(change: &str, path: &Path) -> bool {
    let done = Command::new("chattr").arg(change).arg(path).stderr(Stdio::null()).status();
    let ok = done.is_ok_and(|status| status.success());
    if !ok {
        eprintln!("skipped: chattr {change} is not possible on this file system");
    }
    ok
}

/// Refused changes wait for a decision. Applied changes are not applied again over later changes by others.
#[test]
fn a_change_that_is_refused_keeps_no_other() {
    for is_discarded in [false, true] {
        let Some(place) = Place::new() else { return };
        let (work, read) = (place.work(), |name: &str| fs::read_to_string(place.work().join(name)).unwrap());
        shell(
            "echo old > log; echo old > sealed; mkdir -p old/in sub; echo x > old/kept; echo x > old/in/x; echo g > gone",
            &work,
        );
        if !chattr("+a", &work.join("log")) {
            return;
        }
        let script = "echo more >> log; echo more >> sealed; rm -r old gone; mkdir old; echo new > old/new; echo z > sub/z; \
            echo a > a; echo zz > zz; echo shown; read nothing; true";
        let mut session = Session::start(
            place
                .xsync(&["--", "sh", "-c", script])
                .stdin(Stdio::piped())
                .stdout(Stdio::piped())
                .stderr(Stdio::piped()),
        );
        session.stdout.as_mut().unwrap().read_exact(&mut [0; 6]).unwrap();
        let held = ["sealed", "old/kept"].map(|name| work.join(name));
        held.iter().for_each(|path| assert!(chattr("+i", path)));
        drop(session.stdin.take());
        let mut said = String::new();
        session.stderr.take().unwrap().read_to_string(&mut said).unwrap();
        assert_eq!(session.wait().unwrap().code(), Some(125), "{said}");
        for says in [
            "changes that were refused: 3",
            "work/log: ",
            "work/sealed: ",
            "old/kept: ",
            "chattr -i -a",
            "--resume",
            "--discard",
        ] {
            assert!(said.contains(says), "{says}: {said}");
        }
        assert_eq!(["log", "sealed", "old/kept"].map(read), ["old\n", "old\n", "x\n"]);
        assert_eq!(["old/new", "sub/z", "a", "zz"].map(read), ["new\n", "z\n", "a\n", "zz\n"]);
        assert!(!work.join("gone").exists() && !work.join("old/in").exists());
        // Another process changes applied files, and `--resume` is tried too early.
        shell("echo theirs > a; echo theirs > old/theirs; rm zz", &work);
        let volume = place.left().remove(0);
        let volume = volume.to_str().unwrap();
        let refused = place.run(&["--resume", volume]);
        assert!(refused.code == Some(125) && refused.err.contains("changes that were refused: 3"), "{refused:?}");
        held.iter().for_each(|path| assert!(chattr("-i", path)));
        let refused = place.run(&["--resume", volume]);
        assert!(refused.code == Some(125) && refused.err.contains("changes that were refused: 1"), "{refused:?}");
        assert_eq!((read("sealed").as_str(), work.join("old/kept").exists()), ("old\nmore\n", false));
        assert!(chattr("-a", &work.join("log")));
        place.run(&[if is_discarded { "--discard" } else { "--resume" }, volume]).ok();
        assert_eq!(read("log"), if is_discarded { "old\n" } else { "old\nmore\n" });
        assert_eq!(["a", "old/new", "old/theirs"].map(read), ["theirs\n", "new\n", "theirs\n"]);
        assert!(!work.join("zz").exists() && place.left().is_empty(), "{:?}", place.left());
        place.script("true").ok();
    }
}

/// Runs a session that is refused changes because `chattr +i` seals directories before its end. Returns its messages.
fn refused_session(place: &Place, script: &str, sealed: &Path) -> String {
    let script = format!("{script}; echo shown; read nothing; true");
    let mut session = Session::start(
        place.xsync(&["--", "sh", "-c", &script]).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()),
    );
    session.stdout.as_mut().unwrap().read_exact(&mut [0; 6]).unwrap();
    assert!(chattr("+i", sealed));
    drop(session.stdin.take());
    let mut said = String::new();
    session.stderr.take().unwrap().read_to_string(&mut said).unwrap();
    assert_eq!(session.wait().unwrap().code(), Some(125), "{said}");
    assert!(chattr("-i", sealed));
    said
}

/// A directory that is refused its new name has its old one again. No session takes the temporary name of a directory
/// for one of its own.
#[test]
fn a_renamed_directory_that_is_refused_is_not_lost() {
    for is_taken in [false, true] {
        let Some(place) = Place::new() else { return };
        let (work, read) = (place.work(), |name: &str| fs::read_to_string(place.work().join(name)).unwrap());
        shell("mkdir -p a b/other c; echo A > a/of_a; echo C > c/of_c; echo O > b/other/of_b", &work);
        if !chattr("-i", &work.join("b")) {
            return;
        }
        let script = if is_taken { "mv a b/a; mkdir a; echo new > a/new" } else { "rm -r b/other; mv a b/other" };
        let said = refused_session(&place, script, &work.join("b"));
        let asides =
            || fs::read_dir(place.work()).unwrap().map(|e| e.unwrap().path()).find(|at| at.join("of_a").exists());
        assert_eq!(read("b/other/of_b"), "O\n");
        let aside = asides().expect("the directory");
        match is_taken {
            false => assert_eq!(aside, work.join("a")),
            // Its old name has another directory now, so it is named in the message.
            true => assert!(said.contains(aside.to_str().unwrap()) && read("a/new") == "new\n", "{said}"),
        }
        let volume = place.left().remove(0);
        let volume = volume.to_str().unwrap();
        if is_taken {
            place.run(&["--resume", volume]).ok();
            assert_eq!((read("b/a/of_a").as_str(), asides()), ("A\n", None));
        } else {
            place.run(&["--discard", volume]).ok();
        }
        // Directories with temporary names that are not this session's.
        let foreign: Vec<PathBuf> = (0..60).map(|n| work.join(format!(".untorn-xsync.aside.{n}"))).collect();
        for path in &foreign {
            fs::create_dir(path).unwrap();
            fs::write(path.join("theirs"), "theirs").unwrap();
        }
        place.script("echo x > c/new; mkdir d; echo y > d/y; mv c e").ok();
        assert_eq!(["e/of_c", "e/new", "d/y"].map(read), ["C\n", "x\n", "y\n"]);
        assert!(foreign.iter().all(|path| path.join("theirs").exists()) && place.left().is_empty());
    }
}

/// ext4 says of an attribute that is larger than a block that the disk is full.
#[test]
fn an_attribute_that_does_not_fit_keeps_no_other_change() {
    let Some(place) = Place::new() else { return };
    let (work, image) = (place.work(), place.work().with_file_name("small.img"));
    shell(&format!("truncate -s 64M {0} && mkfs.ext4 -q -F -b 1024 {0}", image.display()), &work);
    let set = "setfattr -n user.large -v $(head -c 3000 /dev/zero | tr '\\0' x) a";
    if Command::new("mount").args(["-o", "loop"]).arg(&image).arg(&work).status().is_ok_and(|done| !done.success()) {
        eprintln!("skipped: needs loop devices");
        return;
    }
    let script = format!("echo a > a; echo z > z; {set}");
    let done = place.run(&["--size", "600M", "--", "sh", "-c", &script]);
    let there = ["a", "z"].map(|name| work.join(name).exists());
    shell(&format!("umount {}", work.display()), Path::new("/"));
    assert!(
        done.code == Some(125) && done.err.contains("user.large is larger than this file system takes"),
        "{done:?}"
    );
    assert_eq!(there, [false, true]);
}

#[test]
fn flags_of_files_are_applied() {
    let Some(place) = Place::new() else { return };
    shell("echo a > a; mkdir d", &place.work());
    if !chattr("+A", &place.work().join("a")) {
        return;
    }
    place.script("echo more >> a; echo n > n; chattr +d n d; chattr +S n").ok();
    let flags = |name: &str| {
        let out = Command::new("lsattr").arg("-d").arg(place.work().join(name)).output().unwrap().stdout;
        String::from_utf8_lossy(&out).split_whitespace().next().unwrap_or_default().to_owned()
    };
    assert!(flags("a").contains('A') && flags("d").contains('d'), "{} {}", flags("a"), flags("d"));
    assert!(flags("n").contains('d') && flags("n").contains('S'), "{}", flags("n"));
}

/// This holds wherever the sessions keep their changes.
#[test]
fn one_session_at_a_time_is_over_a_directory_and_those_above_and_below() {
    let Some(place) = Place::new() else { return };
    let (inner, elsewhere) = (place.work().join("inner"), place.dir.path().join("elsewhere"));
    fs::create_dir(&inner).unwrap();
    fs::create_dir(&elsewhere).unwrap();
    let run = |dir: &Path| -> common::Run {
        let mut command = Command::new(env!("CARGO_BIN_EXE_untorn-xsync"));
        command.arg("--place").arg(&elsewhere).args(["--size", "32M", "--", "true"]).current_dir(dir);
        command.stdin(Stdio::null()).output().unwrap().into()
    };
    let mut session = Session::start(
        place.xsync(&["--", "sh", "-c", "echo shown; read nothing"]).stdin(Stdio::piped()).stdout(Stdio::piped()),
    );
    session.stdout.as_mut().unwrap().read_exact(&mut [0; 6]).unwrap();
    let work = place.work();
    for dir in [&work, &inner, place.dir.path()] {
        let refused = run(dir);
        assert!(refused.code == Some(125) && refused.err.contains("another session works on"), "{refused:?}");
    }
    assert!(fs::read_dir(&elsewhere).unwrap().next().is_none());
    run(&elsewhere).ok();
    drop(session.stdin.take());
    session.wait().unwrap();
    [&work, &inner].into_iter().for_each(|dir| drop(run(dir).ok()));
}

/// Runs a session that prints a line and waits, and kills it there.
fn killed(place: &Place) {
    let script = format!("{PROGRAM}; echo shown; read nothing; sleep 1000");
    let mut child =
        place.xsync(&["--", "sh", "-c", &script]).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    child.stdout.as_mut().unwrap().read_exact(&mut [0; 6]).unwrap();
    child.kill().unwrap();
    child.wait().unwrap();
}

#[test]
fn a_killed_session_leaves_what_it_showed() {
    let Some(place) = Place::new() else { return };
    shell(BEFORE, &place.work());
    killed(&place);
    let left = place.left();
    assert_eq!(left.len(), 1, "{left:?}");
    let volume = left[0].to_str().unwrap();
    // Nothing was applied. A new session in this directory would hide that, so it is refused.
    assert!(place.work().join("gone").exists());
    let refused = place.script("true");
    assert!(refused.code == Some(125) && refused.err.contains("--resume"), "{refused:?}");
    let resumed = place.run(&["--resume", volume]);
    assert!(resumed.err.contains("had not ended"), "{resumed:?}");
    resumed.ok();
    same(&tree(&place.work()), &expected(BEFORE, PROGRAM));
    assert!(place.left().is_empty(), "{:?}", place.left());
}

#[test]
fn what_a_killed_session_left_can_be_thrown_away() {
    let Some(place) = Place::new() else { return };
    shell(BEFORE, &place.work());
    let before = tree(&place.work());
    killed(&place);
    let volume = place.left().remove(0);
    place.run(&["--discard", volume.to_str().unwrap()]).ok();
    same(&tree(&place.work()), &before);
    assert!(place.left().is_empty(), "{:?}", place.left());
    let again = place.run(&["--discard", volume.to_str().unwrap()]);
    assert!(again.code == Some(125) && again.err.contains("is applied or thrown away already"), "{again:?}");
    place.script("true").ok();
}

/// After the apply, the list in the volume is removed first, then the volume.
#[test]
fn a_session_killed_before_its_applied_volume_was_gone_holds_up_nobody() {
    for command in ["--resume", "--discard"] {
        let Some(place) = Place::new() else { return };
        killed(&place);
        let volume = place.left().remove(0);
        let at = tempfile::tempdir().unwrap();
        shell(
            &format!(
                "mount -o loop {} {1} && rm {1}/session.json && umount {1}",
                volume.display(),
                at.path().display()
            ),
            at.path(),
        );
        let run = place.run(&[command, volume.to_str().unwrap()]);
        assert!(command == "--discard" || run.err.contains("applied already"), "{run:?}");
        run.ok();
        assert!(place.left().is_empty(), "{:?}", place.left());
        place.script("true").ok();
    }
}

#[test]
fn a_volume_that_somebody_removed_is_applied_all_the_same() {
    let Some(place) = Place::new() else { return };
    let mut child = place
        .xsync(&["--", "sh", "-c", "echo x > new; echo ready; read nothing; echo y >> new"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdout.as_mut().unwrap().read_exact(&mut [0; 6]).unwrap();
    fs::remove_file(&place.left()[0]).unwrap();
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success() && output.stderr.is_empty(), "{output:?}");
    assert_eq!(fs::read_to_string(place.work().join("new")).unwrap(), "x\ny\n");
}

#[test]
fn where_nothing_could_be_applied_no_session_begins() {
    let Some(place) = Place::new() else { return };
    let dir = place.dir.path().join("read-only");
    let script = "mkdir read-only && mount -t tmpfs -o ro none read-only";
    assert!(Command::new("sh").args(["-c", script]).current_dir(place.dir.path()).status().unwrap().success());
    let run = place.xsync(&["--", "true"]).current_dir(&dir).output().unwrap();
    assert!(Command::new("umount").arg(&dir).status().unwrap().success());
    let err = String::from_utf8_lossy(&run.stderr);
    assert!(run.status.code() == Some(125) && err.contains("read-only file system"), "{err}");
    assert!(place.left().is_empty(), "{:?}", place.left());
}

#[test]
fn a_kept_volume_is_a_record_that_holds_up_nobody() {
    let Some(place) = Place::new() else { return };
    let run = place.run(&["--keep", "--", "sh", "-c", "echo x > new"]);
    assert!(run.err.contains("is kept") && run.err.contains("--discard"), "{run:?}");
    run.ok();
    let kept = place.left().remove(0);
    let path = kept.to_str().unwrap();
    place.script("echo y >> new").ok();
    assert_eq!(place.left(), std::slice::from_ref(&kept));
    let refused = place.run(&["--resume", path]);
    assert!(refused.code == Some(125) && refused.err.contains("applied already"), "{refused:?}");
    assert_eq!(fs::read_to_string(place.work().join("new")).unwrap(), "x\ny\n");
    let at = tempfile::tempdir().unwrap();
    let look = "mount -o loop,ro \"$1\" \"$2\" && cat \"$2\"/overlays/*/upper/new; umount \"$2\"";
    let seen = Command::new("sh").args(["-c", look, "sh", path]).arg(at.path()).output().unwrap();
    assert_eq!(String::from_utf8_lossy(&seen.stdout), "x\n", "{seen:?}");
    place.run(&["--discard", path]).ok();
    assert!(place.left().is_empty(), "{:?}", place.left());
}

/// A killed session leaves no process, no mount and no loop device.
#[test]
fn a_killed_supervisor_takes_the_session_with_it() {
    let Some(place) = Place::new() else { return };
    let mut child = place.xsync(&["--", "sh", "-c", "echo ready; sleep 98765"]).stdout(Stdio::piped()).spawn().unwrap();
    child.stdout.as_mut().unwrap().read_exact(&mut [0; 6]).unwrap();
    child.kill().unwrap();
    child.wait().unwrap();
    let started = Instant::now();
    let volume = place.left()[0].file_name().unwrap().to_string_lossy().into_owned();
    while sleeps() || attached(&volume) {
        assert!(started.elapsed() < Duration::from_secs(120), "the session goes on");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// The first signal is for the program, which has ended. Three signals end the apply.
#[test]
fn an_impatient_person_is_told_where_the_changes_are() {
    let Some(place) = Place::new() else { return };
    // Nobody reads the output, so the session cannot end.
    let mut child = place
        .xsync(&["--", "sh", "-c", "echo changed > file; head -c 3000000 /dev/zero; echo end >&2"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdout.as_mut().unwrap().read_exact(&mut [0; 1]).unwrap();
    while child.try_wait().unwrap().is_none() {
        let _ = rustix::process::kill_process(rustix::process::Pid::from_child(&child), rustix::process::Signal::TERM);
        std::thread::sleep(Duration::from_millis(50));
    }
    let mut said = String::new();
    child.stderr.take().unwrap().read_to_string(&mut said).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(130), "{said}");
    let volume = place.left()[0].display().to_string();
    assert!(said.contains(&format!("--resume {volume}")), "{said}");
    place.run(&["--resume", &volume]).ok();
    assert_eq!(fs::read_to_string(place.work().join("file")).unwrap(), "changed\n");
}

fn sleeps() -> bool {
    let processes = fs::read_dir("/proc").unwrap().flatten();
    processes
        .into_iter()
        .any(|entry| fs::read(entry.path().join("cmdline")).is_ok_and(|line| line.starts_with(b"sleep\098765")))
}

fn attached(volume: &str) -> bool {
    let loops = fs::read_dir("/sys/block").unwrap().flatten();
    loops
        .into_iter()
        .any(|entry| fs::read_to_string(entry.path().join("loop/backing_file")).is_ok_and(|file| file.contains(volume)))
}

/// Sessions are killed at many moments, mostly during the apply, and then resumed. The result is always the same.
#[test]
fn a_session_killed_while_it_applies_is_resumed() {
    const FILES: u64 = 400;
    if Place::new().is_none() {
        return;
    }
    // Names are applied in order, so the files show the progress.
    let files = format!("for i in $(seq 1000 {}); do echo old > t$i; done", 1000 + FILES);
    let change = format!(
        "for i in $(seq 1000 {}); do echo new > t$i; done; mkdir sub; ln t1200 sub/link; rm t1301; mv t1302 moved; \
         {PROGRAM}",
        1000 + FILES
    );
    let before = format!("{BEFORE}; {files}");
    let expected = expected(&before, &change);
    let seed = seed();
    let mut random = seed | 1;
    let mut applying = 0;
    let rounds: u64 = variable_or("UNTORN_XSYNC_KILLS", 5);
    for round in 0..10 * rounds {
        // On a busy machine a kill may come too late.
        if round >= rounds && applying > 0 {
            break;
        }
        let place = Place::anywhere();
        shell(&before, &place.work());
        let mut killed = |mut session: Child| {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let file = place.work().join(format!("t{}", 1000 + (random >> 33) % FILES));
            while fs::read(&file).is_ok_and(|text| text == b"old\n") && session.try_wait().unwrap().is_none() {}
            let _ = session.kill();
            session.wait().unwrap();
        };
        killed(place.xsync(&["--", "sh", "-c", &change]).stderr(Stdio::null()).spawn().unwrap());
        let mut tries = 0;
        while let Some(volume) = place.left().first() {
            applying += u32::from(tree(&place.work()) != expected);
            let mut again = place.xsync(&["--resume", volume.to_str().unwrap()]);
            if tries < 2 && round % 2 == 1 {
                // Kills the resumed session, too.
                killed(again.stderr(Stdio::null()).spawn().unwrap());
            } else {
                let run: common::Run = again.output().unwrap().into();
                run.ok();
            }
            tries += 1;
            assert!(tries < 10);
        }
        same(&tree(&place.work()), &expected);
    }
    println!("{applying} of the kills came while changes were being applied");
    assert!(applying > 0, "no kill came while changes were being applied");
}

/// The program's writes were committed to the volume's journal and applied. The volume is removed, so they need not be
/// written to their places in it.
#[test]
fn a_volume_that_is_thrown_away_is_not_written_first() {
    // The block size of the file system in a small volume.
    const BLOCK_BYTES: usize = 1024;
    const BLOCKS: usize = 2048;
    let Some(place) = Place::new() else { return };
    let block = b"a block that is looked for".iter().copied().cycle().take(BLOCK_BYTES).collect::<Vec<u8>>();
    fs::write(place.work().join("blocks"), block.repeat(BLOCKS)).unwrap();
    let script = "cat blocks > copied; echo ready; read go";
    let mut session =
        place.xsync(&["--", "sh", "-c", script]).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    session.stdout.as_mut().unwrap().read_exact(&mut [0; 6]).unwrap();
    let mut image = fs::File::open(&place.left()[0]).unwrap();
    session.stdin.take().unwrap().write_all(b"go\n").unwrap();
    assert_eq!(session.wait().unwrap().code(), Some(0));
    assert_eq!(fs::metadata(place.work().join("copied")).unwrap().len(), (BLOCKS * BLOCK_BYTES) as u64);
    assert!(place.left().is_empty());
    let (mut written, mut bytes) = (0, vec![0; BLOCK_BYTES]);
    while image.read_exact(&mut bytes).is_ok() {
        written += usize::from(bytes == block);
    }
    assert_eq!(written, BLOCKS, "each block is in the journal, and nowhere else");
}
