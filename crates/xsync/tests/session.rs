//! The view of a program in a session, its output outside, and its end.

mod common;

use common::{Place, Run, Session};
use std::fs;
use std::io::{Read, Write};
use std::os::unix::net::UnixListener;
use std::process::{Command, Stdio};

#[test]
fn exit_codes_are_those_of_the_program() {
    let Some(place) = Place::new() else { return };
    for (script, code) in [("exit 0", 0), ("exit 7", 7), ("kill -KILL $$", 137), ("kill -TERM $$", 143)] {
        assert_eq!(place.script(script).code, Some(code), "{script}");
    }
    let missing = place.run(&["--", "/no/such/program"]);
    assert_eq!(missing.code, Some(127), "{missing:?}");
    assert!(missing.err.contains("/no/such/program"), "{missing:?}");
    fs::write(place.work().join("text"), "text").unwrap();
    assert_eq!(place.run(&["--", "./text"]).code, Some(126));
    assert!(place.left().is_empty(), "{:?}", place.left());
}

#[test]
fn a_session_in_a_session_is_refused_and_told_why() {
    let Some(place) = Place::new() else { return };
    // A copy in the working directory: the session has its own /tmp, where the program may have been built.
    untorn_testkit::install(env!("CARGO_BIN_EXE_untorn-xsync").as_ref(), &place.work().join("untorn-xsync"));
    let run = place.run(&["--", "./untorn-xsync", "--", "touch", "begun"]);
    assert!(run.code == Some(125) && run.err.contains("a session cannot run in a session"), "{run:?}");
    assert!(!place.work().join("begun").exists());
}

#[test]
fn input_output_and_errors_are_relayed_in_order() {
    let Some(place) = Place::new() else { return };
    let mut child = place
        .xsync(&["--", "sh", "-c", "while read line; do echo got $line; done; echo error >&2; echo end"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(b"one\ntwo\n").unwrap();
    let run: Run = child.wait_with_output().unwrap().into();
    assert_eq!((run.out.as_str(), run.err.as_str()), ("got one\ngot two\nend\n", "error\n"));
}

/// A dialogue: each answer must arrive before the next question is sent.
#[test]
fn a_dialogue_over_pipes_goes_on() {
    let Some(place) = Place::new() else { return };
    let mut child = place
        .xsync(&["--", "sh", "-c", "while read line; do echo $line >> log; echo got $line; done"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let (mut to, mut from) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
    for n in 0..50 {
        to.write_all(format!("{n}\n").as_bytes()).unwrap();
        let mut answer = vec![0; format!("got {n}\n").len()];
        from.read_exact(&mut answer).unwrap();
        assert_eq!(String::from_utf8(answer).unwrap(), format!("got {n}\n"));
    }
    drop(to);
    assert!(child.wait().unwrap().success());
    assert_eq!(fs::read_to_string(place.work().join("log")).unwrap().lines().count(), 50);
}

#[test]
fn processes_of_all_kinds_are_heard() {
    let Some(place) = Place::new() else { return };
    let probe = place.probe();
    let run = place.run(&["--", probe.to_str().unwrap(), "daemon", "from-a-daemon"]);
    assert_eq!(run.ok(), "from-a-daemon\ndone\n");
    let tree = place.script("for i in 1 2 3; do (for j in 1 2; do (echo $i$j) & done; wait) & done; wait");
    assert_eq!(tree.ok().lines().count(), 6);
    // Processes that still run when the program has ended are ended with the session.
    let left = place.script("sleep 1000 & echo $!");
    assert!(left.ok().trim().parse::<u32>().is_ok());
}

#[test]
fn nothing_but_the_directory_can_be_written() {
    let Some(place) = Place::new() else { return };
    let script = "for at in /etc /usr /root /var /proc/sys/kernel/hostname /sys/kernel/mm; do \
                  (echo x > $at/untorn-xsync-test) 2>/dev/null && echo $at; (echo x > $at) 2>/dev/null && echo $at; done; \
                  echo own > /tmp/own; echo own > /run/own; cat /tmp/own; echo here > here";
    assert_eq!(place.script(script).ok(), "own\n");
    assert!(!fs::exists("/run/own").unwrap());
    assert_eq!(fs::read_to_string(place.work().join("here")).unwrap(), "here\n");
}

/// A read-only bind mount would lead to the host's sockets and FIFOs.
#[test]
fn sockets_and_fifos_of_the_host_are_out_of_reach() {
    let Some(place) = Place::new() else { return };
    let probe = place.probe();
    let probe = probe.to_str().unwrap();
    // Not below /tmp, where the session has a directory of its own.
    let home = tempfile::tempdir_in("/opt").unwrap();
    let (socket, fifo) = (home.path().join("socket"), home.path().join("fifo"));
    let _listener = UnixListener::bind(&socket).unwrap();
    assert!(Command::new("mkfifo").arg(&fifo).status().unwrap().success());
    let _reader = fs::OpenOptions::new().read(true).write(true).open(&fifo).unwrap();
    for (what, at) in [("connect", &socket), ("fifo", &fifo)] {
        let at = at.to_str().unwrap();
        let run = place.run(&["--", probe, what, at]);
        assert_eq!(run.code, Some(1), "{what}: {run:?}");
    }
}

#[test]
fn root_in_the_session_cannot_leave_it() {
    let Some(place) = Place::new() else { return };
    let probe = place.probe();
    let probe = probe.to_str().unwrap();
    for what in ["remount", "mount", "loop", "io_uring", "keyctl", "by-handle"] {
        let run = place.run(&["--", probe, what]);
        assert_eq!(run.code, Some(1), "{what}: {run:?}");
    }
    // vsock (40) leads to the host of a virtual machine, packet sockets (17) past the relay.
    for family in ["40", "17", "38"] {
        let run = place.run(&["--", probe, "socket", family]);
        assert!(run.out.contains("97"), "{family}: {run:?}");
    }
    assert_eq!(place.run(&["--", probe, "socket", "2"]).ok(), "done\n");
}

#[test]
fn the_network_is_a_loopback_and_nothing_else() {
    let Some(place) = Place::new() else { return };
    let script = "cat /proc/net/dev | tail -n +3 | cut -d: -f1; cat /sys/class/net/lo/flags; ls /sys/class/net";
    let seen = place.script(script).ok();
    assert_eq!(seen.split_whitespace().collect::<Vec<_>>(), ["lo", "0x9", "lo"]);
}

#[test]
fn flushes_answer_at_once_and_know_bad_descriptors() {
    let Some(place) = Place::new() else { return };
    let probe = place.probe();
    let bad = place.run(&["--", probe.to_str().unwrap(), "fsync"]);
    assert!(bad.code == Some(1) && bad.out.contains('9'), "{bad:?}");
    // A filter cannot see which descriptors are open.
    assert_eq!(place.run(&["--", probe.to_str().unwrap(), "fsync-closed"]).ok(), "done\n");
    let strict = place.run(&["--maps", "strict", "--", probe.to_str().unwrap(), "fsync-closed"]);
    assert!(strict.code == Some(1) && strict.out.contains('9'), "{strict:?}");
}

#[test]
fn shared_maps_are_refused_on_request_whatever_their_protection() {
    let Some(place) = Place::new() else { return };
    let probe = place.probe();
    let probe = probe.to_str().unwrap();
    for (what, file) in [("map", "file"), ("map-and-mprotect", "file")] {
        assert_eq!(place.run(&["--", probe, what, file]).ok(), "done\n");
        let refused = place.run(&["--maps", "refuse", "--", probe, what, file]);
        assert_eq!(refused.code, Some(1), "{what}: {refused:?}");
    }
    assert_eq!(place.run(&["--maps", "refuse", "--", probe, "map-read-only", "file"]).ok(), "done\n");
    assert_eq!(place.run(&["--maps", "refuse", "--", probe, "map", "/dev/shm/memory"]).ok(), "done\n");
    assert_eq!(place.run(&["--maps", "strict", "--summary", "--", probe, "map", "file"]).ok(), "done\n");
}

#[test]
fn a_full_volume_is_an_error_of_the_program_alone() {
    let Some(place) = Place::new() else { return };
    let (probe, volume) = (place.probe(), place.dir.path().join("small.img"));
    let volume = format!("{}:32M", volume.display());
    let run = place.run(&["--volume", &volume, "--", probe.to_str().unwrap(), "fill", "/data/file"]);
    assert!(run.code == Some(1) && run.out.contains("28"), "{run:?}");
    let again =
        place.run(&["--volume", &volume, "--", "sh", "-c", "rm /data/file && echo room > /data/b && cat /data/b"]);
    assert_eq!(again.ok(), "room\n");
}

/// The supervisor holds little. The rest waits in the kernel, which holds up the program.
#[test]
fn output_larger_than_what_is_held_waits_for_its_reader() {
    let Some(place) = Place::new() else { return };
    let probe = place.probe();
    let mut child =
        place.xsync(&["--", probe.to_str().unwrap(), "shout", "400"]).stdout(Stdio::piped()).spawn().unwrap();
    let mut from = child.stdout.take().unwrap();
    let (mut buffer, mut bytes, mut most) = (vec![0; 1 << 20], 0, 0);
    loop {
        let read = from.read(&mut buffer).unwrap();
        if read == 0 {
            break;
        }
        bytes += read;
        if bytes % 97 < 8 {
            most = most.max(resident_kib(child.id()));
        }
    }
    assert!(child.wait().unwrap().success());
    assert_eq!(bytes, (400 << 20) + "\ndone\n".len());
    assert!(most < 100 << 10, "the supervisor held {most} KiB");
}

fn resident_kib(pid: u32) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap_or("0");
    line.split_whitespace().next().and_then(|kib| kib.parse().ok()).unwrap_or(0)
}

#[test]
fn a_reader_that_leaves_ends_the_program() {
    let Some(place) = Place::new() else { return };
    let mut child = place.xsync(&["--", "yes"]).stdout(Stdio::piped()).spawn().unwrap();
    child.stdout.take().unwrap().read_exact(&mut [0; 100]).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(128 + libc::SIGPIPE));
}

#[test]
fn signals_reach_the_program() {
    let Some(place) = Place::new() else { return };
    let script = "trap 'echo got it; exit 9' TERM; echo ready; while :; do sleep 0.05; done";
    let mut child = Session::start(place.xsync(&["--", "sh", "-c", script]).stdout(Stdio::piped()));
    let mut from = child.stdout.take().unwrap();
    from.read_exact(&mut [0; 6]).unwrap();
    rustix::process::kill_process(rustix::process::Pid::from_child(&child), rustix::process::Signal::TERM).unwrap();
    let mut rest = String::new();
    from.read_to_string(&mut rest).unwrap();
    assert_eq!((child.wait().unwrap().code(), rest.as_str()), (Some(9), "got it\n"));
}

/// Waiting for the program's end does not poll.
#[test]
fn a_session_that_waits_sleeps() {
    let Some(place) = Place::new() else { return };
    let mut command = place.xsync(&["--", "sh", "-c", "echo ready; read line"]);
    let mut child = Session::start(command.stdin(Stdio::piped()).stdout(Stdio::piped()));
    child.stdout.as_mut().unwrap().read_exact(&mut [0; 6]).unwrap();
    let first = fs::read_to_string(format!("/proc/{0}/task/{0}/children", child.id())).unwrap();
    let pids = [child.id().to_string(), first.trim().to_owned()];
    let before = wakeups(&pids);
    let quiet = (0..15).any(|_| {
        let before = wakeups(&pids);
        std::thread::sleep(std::time::Duration::from_millis(100));
        wakeups(&pids) == before
    });
    assert!(quiet, "{} wakeups", wakeups(&pids) - before);
    drop(child.stdin.take());
    assert!(child.wait().unwrap().code().is_some());
}

/// The number of times that the threads of these processes have slept.
fn wakeups(pids: &[String]) -> u64 {
    let tasks = pids.iter().flat_map(|pid| fs::read_dir(format!("/proc/{pid}/task")).unwrap().flatten());
    let status = tasks.map(|task| fs::read_to_string(task.path().join("status")).unwrap_or_default());
    let count = |text: String| {
        let line = text.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:").map(str::to_owned));
        line.and_then(|number| number.trim().parse::<u64>().ok()).unwrap_or(0)
    };
    status.map(count).sum()
}

#[test]
fn somebody_who_asks_is_told() {
    let Some(place) = Place::new() else { return };
    let mut child = place
        .xsync(&["--", "sh", "-c", "echo ready; read line"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdout.as_mut().unwrap().read_exact(&mut [0; 6]).unwrap();
    let status = place.run(&["--status"]).ok();
    assert!(status.contains(&format!("session {} (sh -c", child.id())), "{status}");
    assert!(place.run(&["--status", "--json"]).ok().contains(&format!("\"pid\": {}", child.id())));
    rustix::process::kill_process(rustix::process::Pid::from_child(&child), rustix::process::Signal::USR1).unwrap();
    let mut said = [0; 13];
    child.stderr.as_mut().unwrap().read_exact(&mut said).unwrap();
    assert_eq!(&said, b"untorn-xsync:");
    drop(child.stdin.take());
    child.wait().unwrap();
    assert!(!place.run(&["--status"]).ok().contains(&format!("session {} ", child.id())));
}

#[test]
fn data_stay_in_a_volume_that_is_kept() {
    let Some(place) = Place::new() else { return };
    let (volume, export) = (place.dir.path().join("kept.img"), place.dir.path().join("exported"));
    let small = format!("{}:48M", volume.display());
    assert_eq!(place.run(&["--volume", &small, "--", "sh", "-c", "echo kept > /data/file"]).ok(), "");
    let volume = volume.to_str().unwrap();
    let larger = format!("{volume}:64M");
    let run = place.run(&[
        "--volume",
        &larger,
        "--at",
        "/srv/x",
        "--export",
        export.to_str().unwrap(),
        "--",
        "cat",
        "/srv/x/file",
    ]);
    assert_eq!(run.ok(), "kept\n");
    assert_eq!(fs::read_to_string(export.join("file")).unwrap(), "kept\n");
    assert_eq!(fs::metadata(volume).unwrap().len(), 64 << 20);
    // With a volume, the working directory is read-only.
    assert_ne!(place.run(&["--volume", volume, "--", "touch", "here"]).code, Some(0));
    // Only one session at a time may use a volume.
    let mut first = place
        .xsync(&["--volume", volume, "--", "sh", "-c", "echo ready; read x; true"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    first.stdout.as_mut().unwrap().read_exact(&mut [0; 6]).unwrap();
    let second = place.run(&["--volume", volume, "--", "true"]);
    assert!(second.code == Some(125) && second.err.contains("another session"), "{second:?}");
    drop(first.stdin.take());
    assert!(first.wait().unwrap().success());
}

/// ext4 writes its superblock in place, so a power cut may tear it.
#[test]
fn a_torn_superblock_is_repaired() {
    let Some(place) = Place::new() else { return };
    let volume = place.dir.path().join("torn.img");
    let sized = format!("{}:48M", volume.display());
    place.run(&["--volume", &sized, "--", "sh", "-c", "echo kept > /data/file"]).ok();
    let file = fs::OpenOptions::new().write(true).open(&volume).unwrap();
    std::os::unix::fs::FileExt::write_all_at(&file, &[0xA5; 100], 1024 + 700).unwrap();
    drop(file);
    let run = place.run(&["--volume", volume.to_str().unwrap(), "--", "cat", "/data/file"]);
    assert!(run.err.contains("is torn"), "{run:?}");
    assert_eq!(run.ok(), "kept\n");
}

#[test]
fn what_is_no_volume_is_refused() {
    let Some(place) = Place::new() else { return };
    let file = place.dir.path().join("letters");
    fs::write(&file, vec![b'x'; 1 << 20]).unwrap();
    let run = place.run(&["--volume", file.to_str().unwrap(), "--", "true"]);
    assert!(run.code == Some(125) && run.err.contains("is no volume of xsync"), "{run:?}");
    let empty = place.dir.path().join("empty");
    fs::write(&empty, "").unwrap();
    for command in ["--resume", "--discard"] {
        let run = place.run(&[command, empty.to_str().unwrap()]);
        assert!(run.code == Some(125) && run.err.contains("is no volume of xsync"), "{run:?}");
        let run = place.run(&[command, "/"]);
        assert!(run.code == Some(125) && run.err.contains("holds no changes of a session"), "{run:?}");
    }
    assert!(empty.exists());
    let tiny = format!("{}:1M", place.dir.path().join("tiny").display());
    let run = place.run(&["--volume", &tiny, "--", "true"]);
    assert!(run.code == Some(125) && run.err.contains("too small"), "{run:?}");
    let run = place.run(&["--volume", "/dev/shm/untorn-xsync-test.img:64M", "--", "true"]);
    assert!(run.code == Some(125) && run.err.contains("in memory"), "{run:?}");
    assert!(!fs::exists("/dev/shm/untorn-xsync-test.img").unwrap());
}

#[test]
fn without_root_it_says_so() {
    let place = Place::anywhere();
    if !rustix::process::geteuid().is_root() {
        println!("skipped: needs root to become somebody else");
        return;
    }
    let mut command = place.xsync(&["--", "true"]);
    // The program is copied because users cannot execute it where it was built.
    let program = place.dir.path().join("untorn-xsync");
    // Another process makes the copy. Otherwise, a child of another test could inherit a descriptor open for writing,
    // and the copy could not be executed.
    let installed = Command::new("install").args(["-m", "755"]).arg(command.get_program()).arg(&program).status();
    assert!(installed.unwrap().success());
    use std::os::unix::fs::PermissionsExt;
    fs::set_permissions(place.dir.path(), fs::Permissions::from_mode(0o755)).unwrap();
    command = Command::new(program);
    std::os::unix::process::CommandExt::uid(&mut command, 65534);
    let run: Run = command.args(["--", "true"]).current_dir("/").output().unwrap().into();
    assert!(run.code == Some(125) && run.err.contains("needs root"), "{run:?}");
}
