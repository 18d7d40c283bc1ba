//! A disk with flushes and writes of given durations: an image behind FUSE, for file systems on a loop device.
//!
//! Writes go on while a flush waits, and several go on at once, unless the disk takes one request at a time. A request has
//! up to 1 MiB, so that pages in order cost less than pages at random places, as on real disks.

use crate::measuring::child::{JOB_VARIABLE, Job};
use crate::measuring::disk_model::{DiskModel, DiskTimes};
use crate::measuring::scratch::Scratch;
use crate::measuring::unavailable::{need_root, unavailable};
use anyhow::{Context, Result};
use fuser::{
    Config, Errno, FileAttr, FileHandle, FileType, Filesystem, FopenFlags, Generation, INodeNo, InitFlags,
    KernelConfig, LockOwner, MountOption, OpenFlags, ReplyAttr, ReplyData, ReplyEmpty, ReplyEntry, ReplyOpen,
    ReplyWrite, Request, Session, WriteFlags,
};
use parking_lot::Mutex;
use std::ffi::OsStr;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant, UNIX_EPOCH};

const DISK: &str = "disk";
const ROOT_NODE: u64 = 1;
const DISK_NODE: u64 = 2;
const FOREVER: Duration = Duration::from_secs(3600);
/// The time limit for the start of the disk.
const START_TIME_MAX: Duration = Duration::from_secs(10);
/// The number of threads: a flush must not hold up other requests.
const THREADS: usize = 4;

/// The disk and the process that serves it. Both end when this value is dropped.
pub struct SlowDisk {
    child: Child,
    mount: Scratch,
}

impl SlowDisk {
    /// Serves an image as a disk with these times.
    pub fn start(image: &Path, times: DiskTimes) -> Result<SlowDisk> {
        need_root("a disk with flushes of a given time")?;
        let mount = Scratch::new_in(&std::env::temp_dir())?;
        let at = mount.path().to_owned();
        let job = Job::SlowDisk { image: image.to_owned(), at, times };
        let mut command = Command::new(std::env::current_exe()?);
        command.env(JOB_VARIABLE, serde_json::to_string(&job)?).stdin(Stdio::null());
        let mut disk = SlowDisk { child: command.spawn()?, mount };
        let start = Instant::now();
        while !disk.path().exists() {
            if disk.child.try_wait()?.is_some() || start.elapsed() > START_TIME_MAX {
                return Err(unavailable("a disk behind FUSE cannot be had: is there /dev/fuse?"));
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        Ok(disk)
    }

    /// The disk as a file.
    pub fn path(&self) -> PathBuf {
        self.mount.path().join(DISK)
    }
}

impl Drop for SlowDisk {
    fn drop(&mut self) {
        let _ = rustix::mount::unmount(self.mount.path(), rustix::mount::UnmountFlags::DETACH);
        // The process ends by itself when the disk is not used any more.
        let _ = self.child.wait();
    }
}

/// Serves the disk, in the child.
pub fn serve(image: &Path, at: &Path, times: DiskTimes) -> Result<()> {
    let image = OpenOptions::new().read(true).write(true).open(image)?;
    let bytes = image.metadata()?.len();
    let mut config = Config::default();
    config.mount_options = vec![MountOption::FSName("untorn-bench".into())];
    config.n_threads = Some(THREADS);
    let server = Server { image, bytes, times, model: Mutex::new(DiskModel::new(times)), start: Instant::now() };
    Session::new(server, at, &config).and_then(|session| session.run()).context("FUSE")
}

struct Server {
    image: File,
    bytes: u64,
    times: DiskTimes,
    model: Mutex<DiskModel>,
    start: Instant,
}

impl Server {
    /// Takes the time of a request: alone, if the disk takes one request at a time.
    fn take_time(&self, of: impl FnOnce(&mut DiskModel, Duration) -> Duration) {
        let mut model = self.model.lock();
        let time = of(&mut model, self.start.elapsed());
        let _alone = self.times.in_turn.then_some(model);
        if !time.is_zero() {
            std::thread::sleep(time);
        }
    }

    fn attributes(&self, node: u64) -> Option<FileAttr> {
        let (kind, perm, size) = match node {
            ROOT_NODE => (FileType::Directory, 0o700, 0),
            DISK_NODE => (FileType::RegularFile, 0o600, self.bytes),
            _ => return None,
        };
        let (ino, blocks, never) = (INodeNo(node), size / 512, UNIX_EPOCH);
        let [atime, mtime, ctime, crtime] = [never; 4];
        let (nlink, uid, gid, rdev, blksize, flags) = (1, 0, 0, 0, 4096, 0);
        Some(FileAttr {
            ino,
            size,
            blocks,
            atime,
            mtime,
            ctime,
            crtime,
            kind,
            perm,
            nlink,
            uid,
            gid,
            rdev,
            blksize,
            flags,
        })
    }
}

impl Filesystem for Server {
    fn init(&mut self, _: &Request, config: &mut KernelConfig) -> io::Result<()> {
        if self.times.has_writes() {
            // Without this, the kernel waits for each write before it sends the next one.
            let _ = config.add_capabilities(InitFlags::FUSE_ASYNC_DIO);
        }
        config.set_max_write(1 << 20).map(|_| ()).map_err(|_| io::Error::other("max_write"))
    }

    fn lookup(&self, _: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        match self.attributes(DISK_NODE) {
            Some(attributes) if parent.0 == ROOT_NODE && name == DISK => {
                reply.entry(&FOREVER, &attributes, Generation(0))
            }
            _ => reply.error(Errno::ENOENT),
        }
    }

    fn getattr(&self, _: &Request, node: INodeNo, _: Option<FileHandle>, reply: ReplyAttr) {
        match self.attributes(node.0) {
            Some(attributes) => reply.attr(&FOREVER, &attributes),
            None => reply.error(Errno::ENOENT),
        }
    }

    fn open(&self, _: &Request, _: INodeNo, _: OpenFlags, reply: ReplyOpen) {
        reply.opened(FileHandle(0), FopenFlags::FOPEN_KEEP_CACHE);
    }

    fn read(
        &self,
        _: &Request,
        _: INodeNo,
        _: FileHandle,
        offset: u64,
        size: u32,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyData,
    ) {
        let mut bytes = vec![0; u64::from(size).min(self.bytes.saturating_sub(offset)) as usize];
        match self.image.read_exact_at(&mut bytes, offset) {
            Ok(()) => reply.data(&bytes),
            Err(e) => reply.error(Errno::from(e)),
        }
    }

    fn write(
        &self,
        _: &Request,
        _: INodeNo,
        _: FileHandle,
        offset: u64,
        data: &[u8],
        _: WriteFlags,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        if self.times.has_writes() {
            self.take_time(|disk, now| disk.write(now, offset, data.len() as u64));
        }
        match self.image.write_all_at(data, offset) {
            Ok(()) => reply.written(data.len() as u32),
            Err(e) => reply.error(Errno::from(e)),
        }
    }

    /// Does not flush the image: only the duration matters.
    fn fsync(&self, _: &Request, _: INodeNo, _: FileHandle, _: bool, reply: ReplyEmpty) {
        self.take_time(|disk, now| disk.flush(now));
        reply.ok();
    }
}
