//! The worker's side of the device: starts it, sends it orders, reads its log.

use super::again::Again;
use super::disk_image::Image;
use super::event::Event;
use super::loopback::Loop;
use super::memory_file::memory_file;
use super::server::{ACKS, ASKED, DISK};
use super::watch::watchdog;
use anyhow::{Context, Result, bail};
use rustix::mount::{UnmountFlags, unmount};
use std::fs::{File, OpenOptions};
use std::io::{self, BufRead, BufReader, Write};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

/// The time after which a device that does not answer counts as broken.
const ANSWER_TIME_MAX: Duration = Duration::from_secs(10);

/// The path by which other processes can open an open file of this one.
pub fn path_of(file: &File) -> PathBuf {
    format!("/proc/{}/fd/{}", std::process::id(), file.as_raw_fd()).into()
}

/// A kind of failure that a device can be told to produce.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trouble {
    /// Writes fail.
    Writes,
    /// Flushes fail; the written data stays.
    Flushes,
    /// Flushes fail, and unflushed data is lost, as if the disk had lost its cache.
    Cache,
}

/// The number of requests to a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Counts {
    /// Writes, including failed ones.
    pub writes: u64,
    /// Flushes, including failed ones.
    pub flushes: u64,
    /// Writes and flushes that failed.
    pub failed: u64,
}

/// A recording device. It ends when this value is dropped.
pub struct Recorder {
    child: Child,
    control: BufReader<UnixStream>,
    disk: File,
    log: File,
    place: PathBuf,
    base: Image,
}

impl Recorder {
    /// Starts a device with the image as its contents. Only in a worker: see [`super::watch`].
    pub fn start(again: &Again, base: Image) -> Result<Recorder> {
        let place = watchdog::directory("served")?;
        let (disk, log) = (memory_file("disk")?, memory_file("log")?);
        base.store(&disk)?;
        let (ours, theirs) = UnixStream::pair()?;
        ours.set_read_timeout(Some(ANSWER_TIME_MAX))?;
        let order = format!("{}\t{}\t{}", path_of(&disk).display(), path_of(&log).display(), place.display());
        let child = again
            .command()
            .env(ASKED, order)
            .stdin(Stdio::from(OwnedFd::from(theirs)))
            .stdout(Stdio::null())
            .spawn()
            .context("cannot start the device")?;
        let mut recorder = Recorder { child, control: BufReader::new(ours), disk, log, place, base };
        recorder.order("ready?").context("the device does not come up")?;
        watchdog::name_connection(rustix::fs::minor(rustix::fs::stat(&recorder.place)?.st_dev));
        Ok(recorder)
    }

    /// Attaches the disk as a block device.
    pub fn attach(&self) -> Result<Loop> {
        let disk = OpenOptions::new().read(true).write(true).open(self.place.join(DISK))?;
        Loop::attach(&disk, true).context("no loop device")
    }

    /// The path of the file that takes acknowledgements, one per line.
    pub fn acks(&self) -> PathBuf {
        self.place.join(ACKS)
    }

    /// Sends an order; the server has the list of orders.
    pub fn order(&mut self, order: &str) -> Result<String> {
        self.control.get_mut().write_all(format!("{order}\n").as_bytes())?;
        let mut answer = String::new();
        self.control.read_line(&mut answer).with_context(|| format!("no answer to `{order}`"))?;
        match answer.trim_end() {
            "" => bail!("the device ended instead of answering `{order}`"),
            error if error.starts_with("error: ") => bail!("{order}: {error}"),
            answer => Ok(answer.to_owned()),
        }
    }

    /// Sets the time that a flush takes.
    pub fn flush_time(&mut self, time: Duration) -> Result<()> {
        self.order(&format!("flush_us {}", time.as_micros())).map(drop)
    }

    /// Marks a place in the log.
    pub fn mark(&mut self, text: &str) -> Result<()> {
        self.order(&format!("mark {text}")).map(drop)
    }

    /// From now on, keeps the bytes that unflushed writes overwrite, for [`Trouble::Cache`].
    pub fn remember(&mut self) -> Result<()> {
        self.order("remember").map(drop)
    }

    /// Fails from the n-th write or flush on, counted from now.
    pub fn fail(&mut self, what: Trouble, n: u64) -> Result<()> {
        let counts = self.counts()?;
        let (order, before) = match what {
            Trouble::Writes => ("fail writes from", counts.writes),
            Trouble::Flushes => ("fail flushes from", counts.flushes),
            Trouble::Cache => ("lose cache from", counts.flushes),
        };
        self.order(&format!("{order} {}", before + n)).map(drop)
    }

    /// Ends all failures.
    pub fn heal(&mut self) -> Result<()> {
        self.order("heal").map(drop)
    }

    /// The numbers of requests so far.
    pub fn counts(&mut self) -> Result<Counts> {
        let answer = self.order("counts?")?;
        let n: Vec<u64> = answer.split(' ').map(str::parse).collect::<Result<_, _>>()?;
        let [writes, failed_writes, flushes, failed_flushes] = n[..] else { bail!("counts: {answer}") };
        Ok(Counts { writes, flushes, failed: failed_writes + failed_flushes })
    }

    /// The present contents of the disk.
    pub fn image(&self) -> Result<Image> {
        Ok(Image::load(&self.disk)?)
    }

    /// All events so far.
    pub fn events(&self) -> Result<Vec<Event>> {
        Ok(Event::read_all(File::open(path_of(&self.log))?)?)
    }

    /// Ends the device. Returns the initial contents of the disk, and all events.
    pub fn stop(mut self) -> Result<(Image, Vec<Event>)> {
        self.end();
        let events = self.events()?;
        Ok((std::mem::replace(&mut self.base, Image::empty(0)), events))
    }

    fn end(&mut self) {
        let _ = self.control.get_ref().shutdown(std::net::Shutdown::Both);
        if !ended(&mut self.child) {
            let _ = self.child.kill().and_then(|()| self.child.wait());
        }
        let _ = unmount(&self.place, UnmountFlags::DETACH);
    }
}

impl Drop for Recorder {
    fn drop(&mut self) {
        self.end();
    }
}

fn ended(child: &mut Child) -> bool {
    let start = Instant::now();
    while start.elapsed() < Duration::from_secs(2) {
        if matches!(child.try_wait(), Ok(Some(_)) | Err(_)) {
            return true;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    false
}

/// The acknowledgements of a program that runs in this process.
pub struct Acks(File);

impl Acks {
    /// Opens the file of acknowledgements.
    pub fn open(path: &Path) -> io::Result<Acks> {
        Ok(Acks(std::fs::OpenOptions::new().append(true).open(path)?))
    }

    /// Writes a line: when this returns, the line is in the log behind everything that the disk got before.
    pub fn say(&mut self, line: &str) -> io::Result<()> {
        self.0.write_all(format!("{line}\n").as_bytes())
    }
}
