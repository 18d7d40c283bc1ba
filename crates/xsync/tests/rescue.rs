//! When the disk of a volume fails, `--rescue` saves the contents of the kernel's memory.

mod common;

use anyhow::{Result, bail};
use std::fs::{self, File};
use std::io::Read;
use std::process::{Command, Stdio};
use untorn_crashlab::device::watch::{self, say};
use untorn_crashlab::device::{Again, FileSystem, Image, Recorder, Trouble, serve_if_asked};
use untorn_crashlab::replay::Bench;
use untorn_testkit::test_path;
use untorn_xsync::volumes::volume::Use;

/// Runs devices and workers, which are other processes of this test. It does nothing in a normal run.
#[test]
fn part() {
    serve_if_asked();
    watch::work_if_asked(|job| match job {
        watch::PROBE => watch::try_mount(&Again::test(&test_path!("part"))?),
        "rescued" => rescued(true),
        "not-rescued" => rescued(false),
        _ => bail!("no such job: {job}"),
    });
}

#[test]
fn files_of_a_failing_disk_are_saved_from_memory() {
    let again = Again::test(&test_path!("part")).expect("this program");
    if !common::cuts_are_possible(&again) {
        return;
    }
    for job in ["rescued", "not-rescued"] {
        let mut said = Vec::new();
        let done = watch::supervise(&again, job, common::LIMITS, |line| said.push(line.to_owned()));
        done.unwrap_or_else(|e| panic!("{job}: {e}; {said:?}"));
        assert!(said.iter().any(|line| line == "as it should be"), "{job}: {said:?}");
    }
}

/// A session writes to the volume and to a directory until no write reaches the disk any more.
fn rescued(wanted: bool) -> Result<()> {
    let path = watch::directory("fresh")?.join("volume.img");
    drop(untorn_xsync::volumes::volume::Image::create(&path, 40 << 20, Use::Servers)?);
    let mut recorder = Recorder::start(&Again::test(&test_path!("part"))?, Image::load(&File::open(path)?)?)?;
    let device = recorder.attach()?;
    let (work, saved) = (watch::directory("work")?, watch::directory("saved")?.join("here"));
    fs::write(work.join("before"), "old")?;
    let mut command = Command::new(env!("CARGO_BIN_EXE_untorn-xsync"));
    command.arg("--volume").arg(device.path()).arg("--overlay").arg(&work);
    if wanted {
        command.arg("--rescue").arg(&saved);
    }
    let script = "echo new > before; echo ready; read go; i=0; while :; do echo line $i >> /data/log; echo line $i; \
                  i=$((i+1)); done";
    command.args(["--", "sh", "-c", script]).current_dir(&work);
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?;
    let mut shown = vec![0; 6];
    child.stdout.as_mut().expect("piped").read_exact(&mut shown)?;
    recorder.fail(Trouble::Writes, 40)?;
    drop(child.stdin.take());
    let output = child.wait_with_output()?;
    let (shown, told) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    recorder.heal()?;
    drop(device);
    let kept = Bench::new()?.with(FileSystem::Ext4Journal, &recorder.image()?, |dir| {
        fs::read_to_string(dir.join("data/log")).unwrap_or_default()
    })?;
    let log = fs::read_to_string(saved.join("data/log")).unwrap_or_default();
    let changed = saved.join(format!("changed-0-{}", work.file_name().unwrap_or_default().display())).join("before");
    let right = match wanted {
        true => {
            log.len() > shown.len()
                && log.starts_with(&*kept?)
                && log.starts_with(&*shown)
                && told.contains("The disk never had these contents")
                && fs::read_to_string(&changed).unwrap_or_default() == "new\n"
        }
        false => told.contains("--rescue DIR") && !saved.exists(),
    };
    if right && output.status.code() == Some(125) && fs::read_to_string(work.join("before"))? == "old" {
        say("as it should be");
    } else {
        say(&format!("{}: {} bytes shown, {} saved; {told}", output.status, shown.len(), log.len()));
    }
    Ok(())
}
