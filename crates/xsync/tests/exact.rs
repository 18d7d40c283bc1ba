//! With `--exact`, flushes return the same results as without a session, are fast, and keep the promise of the gate.
//!
//! `UNTORN_XSYNC_STATES` is the number of crash states, `UNTORN_TEST_SEED` chooses programs and states.

mod common;

use anyhow::{Context, Result, bail};
use common::directory::Directory;
use common::told::{CHANGES, Told, explore};
use common::{Place, Run, Session, example};
use std::fs::{self, File, OpenOptions};
use std::io::{Read, Write};
use std::os::fd::AsRawFd;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;
use untorn_crashlab::device::watch::{self, say};
use untorn_crashlab::device::{Again, FileSystem, Image, Recorder, Trouble, serve_if_asked};
use untorn_crashlab::replay::Recording;
use untorn_testkit::{seed, test_path, variable_or};
use untorn_xsync::volumes::volume::Use;

/// The size of a volume in these tests.
const BYTES: u64 = 40 << 20;

/// A place with the program `exact`.
fn place() -> Option<Place> {
    let place = Place::new()?;
    untorn_testkit::install(&example("exact"), &place.work().join("exact"));
    Some(place)
}

const OK: &str = "[0, 0, 0, 0]";

/// The results are those on the host: over the working directory, on a volume, and with strict maps.
#[test]
fn each_descriptor_has_its_own_result() {
    let Some(place) = place() else { return };
    let host = tempfile::tempdir_in("/var/tmp").unwrap();
    let expected: Run = Command::new(example("exact")).arg("results").arg(host.path()).output().unwrap().into();
    let expected = expected.ok();
    assert!(expected.contains("pipe [22, 22, 0, 29]\npath [9, 9, 9, 9]\nclosed [9, 9, 9, 9]\n"), "{expected}");
    let volume = format!("{}:40M", place.dir.path().join("exact.img").display());
    for maps in ["--maps=allow", "--maps=strict"] {
        let script = "mkdir -p results; exec ./exact results results";
        assert_eq!(place.run(&["--exact", maps, "--", "sh", "-c", script]).ok(), expected, "{maps}");
        let run = place.run(&["--exact", maps, "--volume", &volume, "--", "./exact", "results", "/data"]);
        assert_eq!(run.ok(), expected, "{maps}");
    }
    // Without `--exact`, the filter answers as well as it can.
    let filtered = place.run(&["--volume", &volume, "--", "./exact", "results", "/data"]).ok();
    assert!(filtered.contains(&format!("pipe {OK}\n")), "{filtered}");
}

/// The number of transactions in the volume's journal that writes of a kind cause.
fn transactions_of(place: &Place, exact: bool, kind: &str, count: u64) -> u64 {
    let volume = place.dir.path().join("counted.img");
    let named = format!("{}:40M", volume.display());
    let mut words = vec!["--volume", &named];
    words.extend(exact.then_some("--exact"));
    let count = count.to_string();
    words.extend(["--", "./exact", "write", kind, "/data/file", &count]);
    let mut session = Session::start(place.xsync(&words).stdin(Stdio::piped()).stdout(Stdio::piped()));
    session.stdout.as_mut().unwrap().read_exact(&mut [0; 6]).unwrap();
    let before = transactions(&volume);
    session.stdin.as_mut().unwrap().write_all(b"\n").unwrap();
    let mut said = String::new();
    session.stdout.as_mut().unwrap().read_line_into(&mut said);
    let after = transactions(&volume);
    assert_eq!(said, "done\n", "{kind}");
    assert!(session.wait().unwrap().success());
    after - before
}

trait ReadLine {
    fn read_line_into(&mut self, text: &mut String);
}

impl<T: Read> ReadLine for T {
    fn read_line_into(&mut self, text: &mut String) {
        let mut byte = [0];
        while !text.ends_with('\n') && self.read(&mut byte).unwrap() == 1 {
            text.push(byte[0] as char);
        }
    }
}

/// The number of transactions in the journal of a volume on a loop device.
fn transactions(volume: &Path) -> u64 {
    let mut disks = fs::read_dir("/sys/block").unwrap().flatten();
    let is_it = |text: String| Path::new(text.trim()) == volume;
    let disk = disks.find(|disk| fs::read_to_string(disk.path().join("loop/backing_file")).is_ok_and(is_it)).unwrap();
    let start = format!("{}-", disk.file_name().to_string_lossy());
    let mut journals = fs::read_dir("/proc/fs/jbd2").unwrap().flatten();
    let journal = journals.find(|journal| journal.file_name().to_string_lossy().starts_with(&start)).unwrap();
    let info = fs::read_to_string(journal.path().join("info")).unwrap();
    info.split_whitespace().next().unwrap().parse().unwrap()
}

/// The last line of output needs one transaction.
#[test]
fn flushes_write_nothing_by_themselves() {
    const COUNT: u64 = 20;
    let Some(place) = place() else { return };
    for kind in ["fsync", "rwf-dsync", "rwf-sync", "ring"] {
        // The kernel commits now and then by itself, but not in each of some runs.
        let are_few = (0..5).any(|_| transactions_of(&place, true, kind, COUNT) <= 3);
        assert!(are_few, "{kind}: more than 3 transactions in each run");
    }
    // Files opened with O_SYNC, and msync, are not answered by the overlay.
    for kind in ["o-sync", "msync"] {
        let made = transactions_of(&place, true, kind, COUNT);
        assert!(made >= COUNT, "{kind}: {made} transactions");
    }
    let filtered = transactions_of(&place, false, "rwf-dsync", COUNT);
    assert!(filtered >= COUNT, "{filtered} transactions without --exact");
}

/// A ring does only operations that the filter allows.
#[test]
fn rings_work_and_lead_nowhere() {
    let Some(place) = place() else { return };
    let expected = "written: by a ring\nflush of a pipe: -22\nsocket of family 40: -13\nsocket of family 2: -13\n\
                    no ring with 0x2: 1\na ring with 0x1000\nno ring with 0x4000: 22\nwithout parameters: 14\n";
    assert_eq!(place.run(&["--exact", "--maps=refuse", "--", "./exact", "ring", "file"]).ok(), expected);
    // The supervisor makes the ring of another user's program, too, but files are made by the program's user.
    let script = "chmod 777 .; exec setpriv --reuid=1234 --clear-groups ./exact ring theirs";
    assert_eq!(place.run(&["--exact", "--", "sh", "-c", script]).ok(), expected);
    assert_eq!(std::os::unix::fs::MetadataExt::uid(&fs::metadata(place.work().join("theirs")).unwrap()), 1234);
    // With strict maps there are no rings, because flushes in a ring cannot wait for a commit.
    let strict = place.run(&["--exact", "--maps=strict", "--", "./exact", "ring", "file"]);
    assert!(strict.err.contains("os error 38") || strict.err.contains("code: 38"), "{strict:?}");
}

/// A volume can be used with and without `--exact`.
#[test]
fn a_volume_stays_as_it_is() {
    let Some(place) = place() else { return };
    let volume = format!("{}:40M", place.dir.path().join("both.img").display());
    let mut before = String::new();
    for (n, exact) in [false, true, false, true].into_iter().enumerate() {
        let script = format!("cd /data; ls; mkdir d{n}; echo {n} > d{n}/file; mv d{n} e{n}; rm -rf e0; cat e*/file");
        let mut words = vec!["--volume", &volume, "--explain"];
        words.extend(exact.then_some("--exact"));
        words.extend(["--", "sh", "-c", &script]);
        let run = place.run(&words);
        assert_eq!(run.err.contains("so that flushes have exact results"), exact, "{run:?}");
        let now: String = (1..=n).map(|n| format!("e{n}\n")).collect();
        let texts: String = (1..=n).map(|n| format!("{n}\n")).collect();
        if n > 0 {
            assert_eq!(run.ok(), before.clone() + &texts);
        }
        before = now;
    }
    // The rest of a killed session does not hinder the next one.
    let words = ["--exact", "--volume", &volume, "--", "sh", "-c", "echo ready; read x"];
    let mut session = Session::start(place.xsync(&words).stdin(Stdio::piped()).stdout(Stdio::piped()));
    session.stdout.as_mut().unwrap().read_exact(&mut [0; 6]).unwrap();
    drop(session);
    assert_eq!(place.run(&["--exact", "--volume", &volume, "--", "ls", "/data"]).ok(), before);
}

#[test]
fn directories_that_others_see_are_refused() {
    if Place::new().is_none() {
        return;
    }
    let directory = Directory::mounted("data=journal");
    let mut command = directory.xsync(0, &["--exact", "--on"]);
    let run: Run = command.arg(directory.at()).args(["--", "true"]).output().unwrap().into();
    assert!(run.code == Some(125) && run.err.contains("leave out --exact"), "{run:?}");
}

/// Runs devices and workers, which are other processes of these tests. It does nothing in a normal run.
#[test]
fn part() {
    serve_if_asked();
    watch::work_if_asked(|job| {
        let words: Vec<_> = job.split(' ').collect();
        match words[..] {
            [watch::PROBE] => watch::try_mount(&Again::test(&test_path!("part"))?),
            ["told", seed, states] => told(seed.parse()?, states.parse()?),
            ["failing"] => failing(),
            _ => bail!("no such job: {job}"),
        }
    });
}

/// The lines that a worker prints. None, with a message, if the test cannot run here.
fn watched(job: &str) -> Option<Vec<String>> {
    let again = Again::test(&test_path!("part")).expect("this program");
    let why = watch::missing(&[FileSystem::Ext4.mkfs()]).or_else(|| watch::probe(&again));
    if let Some(why) = why {
        println!("skipped: {why}");
        return None;
    }
    Place::new()?;
    example("exact");
    let mut said = Vec::new();
    let done = watch::supervise(&again, job, common::LIMITS, |line| {
        if line != "." {
            println!("{line}");
            said.push(line.to_owned());
        }
    });
    done.unwrap_or_else(|e| panic!("{job}: {e}; {said:?}"));
    Some(said)
}

/// Writes that flush by themselves, and writes in a ring, keep the promise of the gate.
#[test]
fn nothing_that_was_shown_is_lost() {
    let seed = seed();
    let states = variable_or("UNTORN_XSYNC_STATES", 150);
    let said = watched(&format!("told {seed} {states}"));
    assert!(said.is_none_or(|said| !said.iter().any(|line| line.starts_with("VIOLATION"))));
}

/// The program gets an error when the disk has failed.
#[test]
fn a_write_error_is_the_programs_too() {
    for _ in 0..5 {
        let Some(said) = watched("failing") else { return };
        // A `sync` of another program may have written the files before the disk failed.
        if !said.iter().any(|line| line == "no write failed") {
            assert!(said.iter().any(|line| line == "the program was told"), "{said:?}");
            return;
        }
    }
    panic!("no write failed in five sessions");
}

// The following functions run in workers.

fn fresh() -> Result<Image> {
    let path = watch::directory("fresh")?.join("volume.img");
    drop(untorn_xsync::volumes::volume::Image::create(&path, BYTES, Use::Servers)?);
    Ok(Image::load(&File::open(path)?)?)
}

fn session(volume: &Path, words: &[&str]) -> Result<Command> {
    let dir = watch::directory("work")?;
    fs::copy(example("exact"), dir.join("exact")).context("the program exact, built with the tests")?;
    let mut command = common::xsync();
    command.args(["--exact", "--volume"]).arg(volume).arg("--").arg(dir.join("exact")).args(words);
    command.current_dir(&dir).stdin(Stdio::null()).stderr(Stdio::piped());
    Ok(command)
}

fn told(seed: u64, states: u64) -> Result<()> {
    let base = fresh()?;
    let mut recorder = Recorder::start(&Again::test(&test_path!("part"))?, base)?;
    let device = recorder.attach()?;
    recorder.flush_time(Duration::from_micros(300))?;
    recorder.mark("begin")?;
    let words = ["mixed", "/data", &CHANGES.to_string(), &seed.to_string()];
    let acks = OpenOptions::new().append(true).open(recorder.acks())?;
    let output = session(device.path(), &words)?.stdout(acks).output()?;
    drop(device);
    let (base, events) = recorder.stop()?;
    if !output.status.success() {
        bail!("the session: {} {}", output.status, String::from_utf8_lossy(&output.stderr));
    }
    let recording = Recording { fs: FileSystem::Ext4Journal, base, events, said_before: Vec::new() };
    explore(&recording, &Told { seed, image: None }, seed, states)
}

/// Makes writes fail only while the kernel writes data from the journal to their places.
fn failing() -> Result<()> {
    let mut recorder = Recorder::start(&Again::test(&test_path!("part"))?, fresh()?)?;
    let device = recorder.attach()?;
    let mut command = session(device.path(), &["told", "/data/f", "/dev/shm/note"])?;
    let mut child = Session::start(command.stdin(Stdio::piped()).stdout(Stdio::piped()));
    child.stdout.as_mut().expect("piped").read_exact(&mut [0; 6])?;
    let (pid, home) = (child.id(), "run/untorn-xsync/scratch/volume/data");
    let first = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children"))?;
    recorder.fail(Trouble::Writes, 0)?;
    let mut failed = 0;
    for n in 0..9 {
        let file = File::open(format!("/proc/{pid}/root/{home}/f{n}"))?;
        let flags = libc::SYNC_FILE_RANGE_WAIT_BEFORE | libc::SYNC_FILE_RANGE_WRITE | libc::SYNC_FILE_RANGE_WAIT_AFTER;
        // SAFETY: writes the pages of a file that is open, and not the journal.
        failed += i32::from(unsafe { libc::sync_file_range(file.as_raw_fd(), 0, 0, flags) } != 0);
    }
    recorder.heal()?;
    if failed == 0 {
        say("no write failed");
        return Ok(());
    }
    child.stdin.as_mut().expect("piped").write_all(b"go\n")?;
    let note = format!("/proc/{}/root/dev/shm/note", first.trim());
    let said = loop {
        match fs::read_to_string(&note) {
            Ok(text) => break text,
            Err(_) => std::thread::sleep(Duration::from_millis(2)),
        }
    };
    say(if said == libc::EIO.to_string() { "the program was told" } else { &said });
    drop(child.stdin.take());
    anyhow::ensure!(child.wait()?.code() == Some(125), "the session did not fail");
    Ok(())
}
