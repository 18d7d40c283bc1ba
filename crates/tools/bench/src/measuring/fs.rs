//! The places of benchmarks: file systems that a benchmark makes in image files, or the current directory.

use crate::measuring::bench_run::Run;
use crate::measuring::disk_model::DiskTimes;
use crate::measuring::scratch::Scratch;
use crate::measuring::slow_disk::SlowDisk;
use crate::report::section::bytes_text;
use crate::report::status_line::StatusLine;
use anyhow::{Context, Result, bail};
use std::fs::{self, File, OpenOptions};
use std::io::{ErrorKind, Write};
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;
use untorn_os::{AlignedBuf, LoopDevice};
use untorn_terminal::tell;

/// Size of an image; large enough for two files of 1 GiB, a journal, and the floors.
pub const IMAGE_BYTES: u64 = 4 << 30;

/// This variable is set in the process that runs in its own mount namespace.
const NAMESPACE_VARIABLE: &str = "UNTORN_BENCH_NAMESPACE";

/// A kind of place.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum FileSystem {
    /// ext4 with its journal, in an image file (root only)
    Ext4,
    /// XFS with reflink, in an image file (root only)
    Xfs,
    /// btrfs, in an image file (root only)
    Btrfs,
    /// ext4 whose journal also holds file contents, in an image file (root only)
    Ext4DataJournal,
    /// The file system of the directory
    Here,
}

impl FileSystem {
    pub fn name(self) -> &'static str {
        match self {
            FileSystem::Ext4 => "ext4",
            FileSystem::Xfs => "xfs",
            FileSystem::Btrfs => "btrfs",
            FileSystem::Ext4DataJournal => "ext4-data-journal",
            FileSystem::Here => "here",
        }
    }

    /// Type and options for `mount`.
    fn mount_words(self) -> &'static [&'static str] {
        match self {
            FileSystem::Ext4 => &["-t", "ext4"],
            FileSystem::Xfs => &["-t", "xfs"],
            FileSystem::Btrfs => &["-t", "btrfs", "-o", "nodiscard"],
            FileSystem::Ext4DataJournal => &["-t", "ext4", "-o", "data=journal"],
            FileSystem::Here => unreachable!("nothing is mounted here"),
        }
    }

    /// The command that makes the file system, without discards.
    ///
    /// Discards would make holes in the image, and the file system below would have to allocate again during the
    /// measurement.
    fn make_command(self) -> Command {
        let line = match self {
            FileSystem::Ext4 | FileSystem::Ext4DataJournal => {
                "mkfs.ext4 -q -F -E nodiscard,lazy_itable_init=0,lazy_journal_init=0"
            }
            FileSystem::Xfs => "mkfs.xfs -q -f -K -m reflink=1",
            FileSystem::Btrfs => "mkfs.btrfs -q -f -K",
            FileSystem::Here => unreachable!("nothing is made here"),
        };
        let mut words = line.split(' ');
        let mut command = Command::new(words.next().expect("a program"));
        command.args(words);
        command
    }
}

/// Starts this program again in a private mount namespace, if that is possible.
///
/// Then no other process sees the mounts, and they end with the process, even if it is killed.
pub fn enter_private_namespace() {
    let allowed = || Command::new("unshare").args(["--mount", "true"]).output().is_ok_and(|out| out.status.success());
    if !rustix::process::geteuid().is_root() || std::env::var_os(NAMESPACE_VARIABLE).is_some() || !allowed() {
        return;
    }
    if let Ok(executable) = std::env::current_exe() {
        let mut command = Command::new("unshare");
        command.args(["--mount", "--propagation", "private", "--"]).arg(executable);
        // Returns only after a failure. Then all processes see the mounts.
        let _ = command.args(std::env::args_os().skip(1)).env(NAMESPACE_VARIABLE, "1").exec();
    }
}

/// How a place was made.
#[derive(Clone, Copy)]
enum Made {
    /// It was there.
    Found,
    /// In an image; whether the image is sparse.
    InAnImage(bool),
    OnADisk(u64, DiskTimes),
}

/// A directory to measure in.
pub struct Place {
    pub name: String,
    /// Its type: `ext4`, `xfs`, …
    pub file_system: String,
    /// File system, mount options, device.
    pub details: String,
    root: PathBuf,
    made: Made,
    device_stat: Option<PathBuf>,
    // The order of drops: the directory before the mount that it is in, the mount before the disk.
    _directory: Scratch,
    _mount: Option<Scratch>,
    _disk: Option<SlowDisk>,
    _images: Option<Scratch>,
}

impl Place {
    /// The places that the user asked for. By default, the three file systems if this process may mount, else the
    /// current directory.
    pub fn choose(wish: &[FileSystem], dir: &Path, quick: bool) -> Vec<(FileSystem, bool)> {
        if !wish.is_empty() {
            return wish.iter().map(|&fs| (fs, true)).collect();
        }
        if quick {
            return vec![(FileSystem::Here, true)];
        }
        if rustix::process::geteuid().is_root() && Path::new("/dev/loop-control").exists() {
            return [FileSystem::Ext4, FileSystem::Xfs, FileSystem::Btrfs].map(|fs| (fs, false)).to_vec();
        }
        tell!(
            "No root or no loop devices: measuring where it stands, in {}, not on ext4, XFS and btrfs.",
            dir.display()
        );
        vec![(FileSystem::Here, true)]
    }

    /// Prepares a place.
    pub fn prepare(fs: FileSystem, dir: &Path, quick: bool, progress: &StatusLine) -> Result<Place> {
        if fs == FileSystem::Here {
            return Place::open("here", Scratch::new_in(dir)?, Made::Found, None, "");
        }
        progress.cell(format!("{}: making the file system", fs.name()));
        let images = Scratch::new_in(dir)?;
        let image = images.path().join(fs.name());
        write_image(&image, IMAGE_BYTES, quick)
            .with_context(|| format!("cannot write the image {}", image.display()))?;
        let device = attach(&image)?;
        let mount = Scratch::new_in(&std::env::temp_dir())?;
        make_and_mount(fs, &device, mount.path())?;
        let how = if quick { "sparse" } else { "written through" };
        let name = device.path.file_name().unwrap_or_default().display();
        let direct = fs::read_to_string(format!("/sys/block/{name}/loop/dio"));
        let direct = if direct.is_ok_and(|flag| flag.trim() == "1") { "direct I/O" } else { "the page cache below" };
        let details = format!("; image of {}, {how}, loop device with {direct}", bytes_text(IMAGE_BYTES));
        let below = untorn_os::file_system_info(dir)?;
        let details = format!("{details}, on {} {}", below.kind, below.source);
        Place::open(fs.name(), Scratch::new_in(mount.path())?, Made::InAnImage(quick), Some(mount), &details)
    }

    /// Prepares an ext4 file system on a disk with flushes of this duration, and writes as fast as those of the image.
    pub fn on_slow_disk(dir: &Path, bytes: u64, flush: Duration) -> Result<Place> {
        Place::on_disk(FileSystem::Ext4, dir, bytes, DiskTimes::of(flush, Duration::ZERO))
    }

    /// Prepares a file system on a disk with these times.
    pub fn on_disk(fs: FileSystem, dir: &Path, bytes: u64, times: DiskTimes) -> Result<Place> {
        let images = Scratch::new_in(dir)?;
        let image = images.path().join("slow");
        fallocated(&image, bytes)?;
        let disk = SlowDisk::start(&image, times)?;
        let device = attach(&disk.path())?;
        let mount = Scratch::new_in(&std::env::temp_dir())?;
        make_and_mount(fs, &device, mount.path())?;
        let details = format!("; {}", times.describe());
        let directory = Scratch::new_in(mount.path())?;
        let place = Place::open(fs.name(), directory, Made::OnADisk(bytes, times), Some(mount), &details)?;
        Ok(Place { _disk: Some(disk), _images: Some(images), ..place })
    }

    /// Another file system on a device of the same kind and speed. None if this place was found here.
    pub fn beside(&self, fs: FileSystem, run: &Run) -> Result<Option<Place>> {
        match self.made {
            Made::Found => Ok(None),
            Made::InAnImage(sparse) => Place::prepare(fs, &run.dir, sparse, &run.progress).map(Some),
            Made::OnADisk(bytes, times) => Place::on_disk(fs, &run.dir, bytes, times).map(Some),
        }
    }

    /// A loop device of a size on a device of the same kind and speed as the place's. None if this place was found here.
    pub fn device_beside(&self, bytes: u64, run: &Run) -> Result<Option<Device>> {
        let sparse = match self.made {
            Made::Found => return Ok(None),
            Made::InAnImage(sparse) => sparse,
            Made::OnADisk(_, times) => return Device::on_disk(&run.dir, bytes, times).map(Some),
        };
        let images = Scratch::new_in(&run.dir)?;
        let image = images.path().join("device");
        write_image(&image, bytes, sparse)?;
        let device = attach(&image)?;
        Ok(Some(Device { path: device.path.clone(), _device: device, _disk: None, _images: images }))
    }

    fn open(name: &str, directory: Scratch, made: Made, mount: Option<Scratch>, more: &str) -> Result<Place> {
        let root = directory.path().to_owned();
        let info = untorn_os::file_system_info(&root)?;
        Ok(Place {
            name: if name == info.kind { name.to_owned() } else { format!("{name} ({})", info.kind) },
            details: format!("{} ({}) on {}{more}", info.kind, info.options, info.source),
            device_stat: device_stat(&info),
            file_system: info.kind,
            root,
            made,
            _directory: directory,
            _mount: mount,
            _disk: None,
            _images: None,
        })
    }

    /// Makes an empty directory in this place, for one cell, which removes it.
    pub fn directory(&self, name: &str) -> Result<PathBuf> {
        let path = self.root.join(name);
        fs::create_dir(&path).with_context(|| format!("cannot make {}", path.display()))?;
        Ok(path)
    }

    /// The free bytes in this place.
    pub fn available_bytes(&self) -> Result<u64> {
        let stat = rustix::fs::statvfs(&self.root)?;
        Ok(stat.f_bavail * stat.f_frsize)
    }

    /// Removes everything that a benchmark has left.
    pub fn clear(&self) -> Result<()> {
        for entry in fs::read_dir(&self.root)? {
            fs::remove_dir_all(entry?.path())?;
        }
        Ok(())
    }

    /// The bytes written to the device so far, after a flush of everything cached.
    pub fn device_bytes_written(&self) -> Result<Option<u64>> {
        rustix::fs::syncfs(File::open(&self.root)?)?;
        self.device_bytes_written_by_now()
    }

    /// The bytes that have reached the device, without those that are still cached.
    pub fn device_bytes_written_by_now(&self) -> Result<Option<u64>> {
        let Some(stat) = &self.device_stat else { return Ok(None) };
        let text = fs::read_to_string(stat).with_context(|| format!("cannot read {}", stat.display()))?;
        // Documentation/block/stat.rst: the seventh field counts 512-byte sectors written.
        let sectors: Option<u64> = text.split_whitespace().nth(6).and_then(|field| field.parse().ok());
        Ok(Some(512 * sectors.with_context(|| format!("cannot understand {}", stat.display()))?))
    }
}

/// A block device. It is detached when this value is dropped.
pub struct Device {
    pub path: PathBuf,
    // Fields are dropped in this order: the loop device before the image that it is on.
    _device: LoopDevice,
    _disk: Option<SlowDisk>,
    _images: Scratch,
}

impl Device {
    /// A loop device of a size on a disk with these times.
    pub fn on_disk(dir: &Path, bytes: u64, times: DiskTimes) -> Result<Device> {
        let images = Scratch::new_in(dir)?;
        let image = images.path().join("device");
        fallocated(&image, bytes)?;
        let disk = SlowDisk::start(&image, times)?;
        let device = attach(&disk.path())?;
        Ok(Device { path: device.path.clone(), _device: device, _disk: Some(disk), _images: images })
    }
}

/// The counters of the device of a file system. btrfs reports an anonymous device number, so the mount's source is
/// tried first.
fn device_stat(info: &untorn_os::FileSystemInfo) -> Option<PathBuf> {
    let block = fs::metadata(&info.source).ok().filter(|meta| meta.file_type().is_block_device());
    let device = block.map_or(info.device.clone(), |meta| {
        format!("{}:{}", rustix::fs::major(meta.rdev()), rustix::fs::minor(meta.rdev()))
    });
    Some(PathBuf::from(format!("/sys/dev/block/{device}/stat"))).filter(|path| path.exists())
}

/// Makes a file of this size, whose blocks are allocated.
fn fallocated(path: &Path, bytes: u64) -> Result<()> {
    Ok(rustix::fs::fallocate(&File::create(path)?, rustix::fs::FallocateFlags::empty(), 0, bytes)?)
}

/// Fills the image with zeros, so that the file system below allocates nothing during the measurement.
fn write_image(path: &Path, bytes: u64, sparse: bool) -> Result<()> {
    let direct = OpenOptions::new().write(true).create_new(true).custom_flags(libc_o_direct()).open(path);
    let mut image = match direct {
        // A failed open may have created the file.
        Err(e) if e.kind() == ErrorKind::InvalidInput => File::create(path)?,
        opened => opened?,
    };
    image.set_len(bytes)?;
    if sparse {
        return Ok(());
    }
    let zeros = AlignedBuf::zeroed(8 << 20);
    for _ in 0..bytes / zeros.len() as u64 {
        image.write_all(&zeros)?;
    }
    Ok(image.sync_all()?)
}

/// `O_DIRECT` in the type that the standard library takes.
pub fn libc_o_direct() -> i32 {
    rustix::fs::OFlags::DIRECT.bits() as i32
}

/// Attaches a loop device to the image. It is detached with the mount, and the image can be removed after it.
///
/// It bypasses the page cache if the file system below has direct I/O. Then a flush of the device is a flush of the
/// disk, and nothing is cached twice.
fn attach(image: &Path) -> Result<LoopDevice> {
    let file = OpenOptions::new().read(true).write(true).open(image);
    let file = file.with_context(|| format!("cannot open {}", image.display()))?;
    LoopDevice::attach(&file, true, 0).or_else(|_| LoopDevice::attach(&file, false, 0)).context("no loop device")
}

fn make_and_mount(fs: FileSystem, device: &LoopDevice, on: &Path) -> Result<String> {
    run(fs.make_command().arg(&device.path))?;
    run(Command::new("mount").args(fs.mount_words()).arg(&device.path).arg(on))
}

/// Makes an ext4 file system with a journal in an image in this directory, and mounts it with these options,
/// `sync` among them.
///
/// Every call then waits for the disk. The file system is unmounted when the returned value is dropped.
pub fn mounted_sync(dir: &Path, bytes: u64, options: &str) -> Result<Scratch> {
    let image = dir.join(format!("{options}.img"));
    fallocated(&image, bytes)?;
    run(Command::new("mkfs.ext4").args(["-q", "-E", "nodiscard,lazy_itable_init=0,lazy_journal_init=0"]).arg(&image))?;
    let device = attach(&image)?;
    let mount = Scratch::new_in(&std::env::temp_dir())?;
    run(Command::new("mount").args(["-t", "ext4", "-o", options]).arg(&device.path).arg(mount.path()))?;
    Ok(mount)
}

/// Runs a command, and returns its standard output. An error has its standard error.
fn run(command: &mut Command) -> Result<String> {
    let shown = format!("{command:?}").replace('"', "");
    let output = command.output().with_context(|| format!("cannot run `{shown}`"))?;
    if !output.status.success() {
        bail!("`{shown}` failed: {}", String::from_utf8_lossy(&output.stderr).trim());
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Empties the page cache. Without root, only that of the given files, after a flush.
pub fn drop_caches(files: &[PathBuf]) -> Result<()> {
    rustix::fs::sync();
    if fs::write("/proc/sys/vm/drop_caches", "3").is_ok() {
        return Ok(());
    }
    for path in files {
        let file = File::open(path)?;
        rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed)?;
    }
    Ok(())
}
