//! Runs a program on a recording device.

use super::recording::{BEGIN, Recording};
use crate::device::{Again, FileSystem, Image, Recorder, unmount_now, watch};
use anyhow::{Context, Result};
use std::path::Path;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::Duration;

/// A program that runs while the disk is recorded.
pub trait Program {
    /// Works in a directory on the disk, and writes a line to `acks` for each change that is durable.
    fn run(&self, dir: &Path, acks: &Path) -> Result<()>;

    /// Prepares the files that are there, durable, before the recording begins.
    fn prepare(&self, dir: &Path) -> Result<()> {
        let _ = dir;
        Ok(())
    }
}

/// Options of a recording.
#[derive(Clone, Copy, Debug)]
pub struct Recorded {
    /// The time that the device takes to flush.
    pub flush_time: Duration,
    /// The interval at which another program flushes the file system. Otherwise a program that does not flush enough
    /// would keep its writes in the cache for seconds.
    pub others_flush: Option<Duration>,
}

impl Default for Recorded {
    fn default() -> Recorded {
        Recorded { flush_time: Duration::from_micros(50), others_flush: Some(Duration::from_millis(10)) }
    }
}

/// Mounts the disk on a recording device, runs the program, unmounts. Only in a worker: see [`watch`].
pub fn record(
    again: &Again,
    fs: FileSystem,
    base: Image,
    said_before: Vec<String>,
    program: &dyn Program,
    how: Recorded,
) -> Result<Recording> {
    let at = watch::directory("recorded")?;
    let mut recorder = Recorder::start(again, base)?;
    let device = recorder.attach()?;
    fs.mount(device.path(), &at)?;
    let prepared = program.prepare(&at).and_then(|()| sync(&at)).context("before the recording");
    let done = prepared.and_then(|()| {
        recorder.flush_time(how.flush_time)?;
        recorder.mark(BEGIN)?;
        std::thread::scope(|scope| {
            // Dropping the sender ends the other thread.
            let (_working, others) = mpsc::channel::<()>();
            if let Some(pause) = how.others_flush {
                let at = &at;
                scope.spawn(move || {
                    while others.recv_timeout(pause) == Err(RecvTimeoutError::Timeout) {
                        let _ = sync(at);
                    }
                });
            }
            program.run(&at, &recorder.acks())
        })
    });
    let unmounted = unmount_now(&at);
    drop(device);
    let (base, events) = recorder.stop()?;
    done.and(unmounted)?;
    Ok(Recording { fs, base, events, said_before })
}

fn sync(dir: &Path) -> Result<()> {
    Ok(rustix::fs::syncfs(std::fs::File::open(dir)?)?)
}
