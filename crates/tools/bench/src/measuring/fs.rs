//! Where a benchmark runs: on file systems that it makes for itself in image files, or here.

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
use untorn_os::AlignedBuf;
use untorn_terminal::tell;

/// Size of an image; large enough for two files of 1 GiB, a journal, and the floors.
pub const IMAGE_BYTES: u64 = 4 << 30;

/// Set in the process that runs in a mount namespace of its own.
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
    /// ext4 with its journal taking contents, too, in an image file (root only)
    Ext4DataJournal,
    /// Whatever holds the directory
    Here,
}

impl FileSystem {
    fn name(self) -> &'static str {
        match self {
            FileSystem::Ext4 => "ext4",
            FileSystem::Xfs => "xfs",
            FileSystem::Btrfs => "btrfs",
            FileSystem::Ext4DataJournal => "ext4-data-journal",
            FileSystem::Here => "here",
        }
    }

    /// Type and options, as `mount` wants them.
    fn mount_words(self) -> &'static [&'static str] {
        match self {
            FileSystem::Ext4 => &["-t", "ext4"],
            FileSystem::Xfs => &["-t", "xfs"],
            FileSystem::Btrfs => &["-t", "btrfs", "-o", "nodiscard"],
            FileSystem::Ext4DataJournal => &["-t", "ext4", "-o", "data=journal"],
            FileSystem::Here => unreachable!("nothing is mounted here"),
        }
    }

    /// Nothing may be discarded: that would make holes in the image, and the file system below would
    /// have to allocate again while we measure.
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

/// Goes on in a private mount namespace, if that is possible: then no other process sees the mounts, and
/// they end with the process, even if it is killed.
pub fn enter_private_namespace() {
    let allowed = || Command::new("unshare").args(["--mount", "true"]).output().is_ok_and(|out| out.status.success());
    if !rustix::process::geteuid().is_root() || std::env::var_os(NAMESPACE_VARIABLE).is_some() || !allowed() {
        return;
    }
    if let Ok(executable) = std::env::current_exe() {
        let mut command = Command::new("unshare");
        command.args(["--mount", "--propagation", "private", "--"]).arg(executable);
        // Returns only if it failed; then the mounts are seen by all processes.
        let _ = command.args(std::env::args_os().skip(1)).env(NAMESPACE_VARIABLE, "1").exec();
    }
}

/// A directory to measure in.
pub struct Place {
    pub name: String,
    /// Its type: `ext4`, `xfs`, …
    pub file_system: String,
    /// File system, mount options, device.
    pub details: String,
    root: PathBuf,
    device_stat: Option<PathBuf>,
    // Dropped in this order: the directory in the file system before the mount, the mount before the disk.
    _directory: Scratch,
    _mount: Option<Scratch>,
    _disk: Option<SlowDisk>,
    _images: Option<Scratch>,
}

impl Place {
    /// The places asked for; without a wish, the three file systems if we may mount, else here.
    pub fn choose(wish: &[FileSystem], dir: &Path, quick: bool) -> Vec<(FileSystem, bool)> {
        if !wish.is_empty() {
            return wish.iter().map(|&fs| (fs, true)).collect();
        }
        if quick {
            return vec![(FileSystem::Here, true)];
        }
        if rustix::process::geteuid().is_root() {
            return [FileSystem::Ext4, FileSystem::Xfs, FileSystem::Btrfs].map(|fs| (fs, false)).to_vec();
        }
        tell!("Not root: measuring where it stands, in {}. As root, ext4, XFS and btrfs are made.", dir.display());
        vec![(FileSystem::Here, true)]
    }

    /// Makes the place ready.
    pub fn prepare(fs: FileSystem, dir: &Path, quick: bool, progress: &StatusLine) -> Result<Place> {
        if fs == FileSystem::Here {
            return Place::open("here", Scratch::new_in(dir)?, None, "");
        }
        progress.cell(format!("{}: making the file system", fs.name()));
        let images = Scratch::new_in(dir)?;
        let image = images.path().join(fs.name());
        write_image(&image, quick).with_context(|| format!("cannot write the image {}", image.display()))?;
        let device = attach(&image)?;
        let mount = Scratch::new_in(&std::env::temp_dir())?;
        let mounted = run(fs.make_command().arg(&device)).and_then(|_| mount_device(fs, &device, mount.path()));
        // From now on the loop device goes away with the mount, and the image with the loop device.
        run(Command::new("losetup").arg("--detach").arg(&device))?;
        mounted?;
        let how = if quick { "sparse" } else { "written through" };
        let direct = fs::read_to_string(format!("/sys/block/{}/loop/dio", device.trim_start_matches("/dev/")));
        let direct = if direct.is_ok_and(|flag| flag.trim() == "1") { "direct I/O" } else { "the page cache below" };
        let details = format!("; image of {}, {how}, loop device with {direct}", bytes_text(IMAGE_BYTES));
        let below = untorn_os::file_system_info(dir)?;
        let details = format!("{details}, on {} {}", below.kind, below.source);
        Place::open(fs.name(), Scratch::new_in(mount.path())?, Some(mount), &details)
    }

    /// An ext4 file system on a disk whose flushes take so long.
    pub fn on_slow_disk(dir: &Path, bytes: u64, flush: Duration) -> Result<Place> {
        let images = Scratch::new_in(dir)?;
        let image = images.path().join("slow");
        rustix::fs::fallocate(&File::create(&image)?, rustix::fs::FallocateFlags::empty(), 0, bytes)?;
        let disk = SlowDisk::start(&image, flush)?;
        let device = attach(&disk.path())?;
        let mount = Scratch::new_in(&std::env::temp_dir())?;
        let fs = FileSystem::Ext4;
        let mounted = run(fs.make_command().arg(&device)).and_then(|_| mount_device(fs, &device, mount.path()));
        run(Command::new("losetup").arg("--detach").arg(&device))?;
        mounted?;
        let details = format!("; a disk whose flushes take {} ms", flush.as_secs_f64() * 1e3);
        let directory = Scratch::new_in(mount.path())?;
        let place = Place::open(fs.name(), directory, Some(mount), &details)?;
        Ok(Place { _disk: Some(disk), _images: Some(images), ..place })
    }

    fn open(name: &str, directory: Scratch, mount: Option<Scratch>, more: &str) -> Result<Place> {
        let root = directory.path().to_owned();
        let info = untorn_os::file_system_info(&root)?;
        Ok(Place {
            name: if name == info.kind { name.to_owned() } else { format!("{name} ({})", info.kind) },
            details: format!("{} ({}) on {}{more}", info.kind, info.options, info.source),
            device_stat: device_stat(&info),
            file_system: info.kind,
            root,
            _directory: directory,
            _mount: mount,
            _disk: None,
            _images: None,
        })
    }

    /// An empty directory in this place, for one cell; the cell removes it.
    pub fn directory(&self, name: &str) -> Result<PathBuf> {
        let path = self.root.join(name);
        fs::create_dir(&path).with_context(|| format!("cannot make {}", path.display()))?;
        Ok(path)
    }

    /// Bytes that can still be stored here.
    pub fn available_bytes(&self) -> Result<u64> {
        let stat = rustix::fs::statvfs(&self.root)?;
        Ok(stat.f_bavail * stat.f_frsize)
    }

    /// It was made for the benchmark, in an image file.
    pub fn is_image(&self) -> bool {
        self._mount.is_some()
    }

    /// Bytes written to the device so far, everything cached included.
    pub fn device_bytes_written(&self) -> Result<Option<u64>> {
        rustix::fs::syncfs(File::open(&self.root)?)?;
        self.device_bytes_written_by_now()
    }

    /// Bytes that have reached the device; what is still cached does not count.
    pub fn device_bytes_written_by_now(&self) -> Result<Option<u64>> {
        let Some(stat) = &self.device_stat else { return Ok(None) };
        let text = fs::read_to_string(stat).with_context(|| format!("cannot read {}", stat.display()))?;
        // Documentation/block/stat.rst: the seventh field counts 512-byte sectors written.
        let sectors: Option<u64> = text.split_whitespace().nth(6).and_then(|field| field.parse().ok());
        Ok(Some(512 * sectors.with_context(|| format!("cannot understand {}", stat.display()))?))
    }
}

/// The counters of the device behind a file system. btrfs reports an anonymous device number, so the
/// mount's source is asked first.
fn device_stat(info: &untorn_os::FileSystemInfo) -> Option<PathBuf> {
    let block = fs::metadata(&info.source).ok().filter(|meta| meta.file_type().is_block_device());
    let device = block.map_or(info.device.clone(), |meta| {
        format!("{}:{}", rustix::fs::major(meta.rdev()), rustix::fs::minor(meta.rdev()))
    });
    Some(PathBuf::from(format!("/sys/dev/block/{device}/stat"))).filter(|path| path.exists())
}

/// Fills the image with zeros, so that the file system below allocates nothing while we measure.
fn write_image(path: &Path, sparse: bool) -> Result<()> {
    let direct = OpenOptions::new().write(true).create_new(true).custom_flags(libc_o_direct()).open(path);
    let mut image = match direct {
        // Opening may fail after creating.
        Err(e) if e.kind() == ErrorKind::InvalidInput => File::create(path)?,
        opened => opened?,
    };
    image.set_len(IMAGE_BYTES)?;
    if sparse {
        return Ok(());
    }
    let zeros = AlignedBuf::zeroed(8 << 20);
    for _ in 0..IMAGE_BYTES / zeros.len() as u64 {
        image.write_all(&zeros)?;
    }
    Ok(image.sync_all()?)
}

/// `O_DIRECT` as the standard library wants it.
pub fn libc_o_direct() -> i32 {
    rustix::fs::OFlags::DIRECT.bits() as i32
}

/// A loop device over the image; past the page cache if the file system below can do that, so that
/// a flush of the device is a flush of the disk and nothing is cached twice.
fn attach(image: &Path) -> Result<String> {
    let attach = |options: &[&str]| run(Command::new("losetup").args(["--find", "--show"]).args(options).arg(image));
    Ok(attach(&["--direct-io=on"]).or_else(|_| attach(&[]))?.trim().to_owned())
}

fn mount_device(fs: FileSystem, device: &str, on: &Path) -> Result<String> {
    run(Command::new("mount").args(fs.mount_words()).arg(device).arg(on))
}

/// An ext4 file system in an image in this directory, mounted so that every call waits for the disk; with a journal of
/// its own, and gone with what is returned.
pub fn mounted_sync(dir: &Path, bytes: u64) -> Result<Scratch> {
    let image = dir.join("sync.img");
    let file = File::create(&image)?;
    rustix::fs::fallocate(&file, rustix::fs::FallocateFlags::empty(), 0, bytes)?;
    run(Command::new("mkfs.ext4").args(["-q", "-E", "nodiscard,lazy_itable_init=0,lazy_journal_init=0"]).arg(&image))?;
    let device = attach(&image)?;
    let mount = Scratch::new_in(&std::env::temp_dir())?;
    let mounted = run(Command::new("mount").args(["-t", "ext4", "-o", "sync"]).arg(&device).arg(mount.path()));
    run(Command::new("losetup").arg("--detach").arg(&device))?;
    mounted.map(|_| mount)
}

/// Runs a command; its standard output, or what it complained about.
fn run(command: &mut Command) -> Result<String> {
    let shown = format!("{command:?}").replace('"', "");
    let output = command.output().with_context(|| format!("cannot run `{shown}`"))?;
    if !output.status.success() {
        bail!("`{shown}` failed: {}", String::from_utf8_lossy(&output.stderr).trim());
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Empties the page cache; without root only of the given files, flushed before.
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
