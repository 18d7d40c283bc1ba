//! Files on a mounted store, against the same system calls on the file system below.

use crate::measuring::bench_run::Run;
use crate::measuring::child::{Job, job_command};
use crate::measuring::fs::Place;
use crate::measuring::harness::{COMMITS_MIN, Contender, Plan, interleave};
use crate::measuring::peers::{fill, replace_file};
use crate::measuring::unavailable::{need_root, program_beside};
use crate::report::section::{Chart, Row, Section, Target, Unit, Waited};
use crate::report::statistics::{Measured, Ratio};
use anyhow::{Context, Result, ensure};
use memmap2::MmapMut;
use std::fs::{File, OpenOptions};
use std::io::Read;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

const PAGE: usize = 4096;
const FILE_BYTES: u64 = 64 << 20;
/// The size of a small file. Each process has one, too.
const SMALL_BYTES: u64 = 1 << 20;
/// Reads or writes of a page that are timed together.
const PAGES: usize = 1024;
/// Files that one operation makes, renames and removes.
const NAMES: usize = 100;
/// Processes that sync their own files.
const PROCESSES: usize = 4;
/// The time limit for a daemon's answer.
const START_MAX: Duration = Duration::from_secs(20);

/// A mounted store, or another file system behind FUSE.
pub struct Mounted {
    pub at: PathBuf,
    daemon: Child,
}

impl Mounted {
    /// Mounts a new store in a directory.
    pub fn new(dir: &Path) -> Result<Mounted> {
        let [store, at] = ["store", "mnt"].map(|name| dir.join(name));
        Mounted::by(program_beside("untorn-mount")?, vec!["--foreground".into(), store], at)
    }

    /// Waits until a program, which stays in the foreground, has mounted something at a new directory, its last argument.
    pub fn by(program: PathBuf, mut arguments: Vec<PathBuf>, at: PathBuf) -> Result<Mounted> {
        std::fs::create_dir(&at)?;
        let below = rustix::fs::stat(&at)?.st_dev;
        let shown = program.display().to_string();
        arguments.push(at.clone());
        let mut command = job_command(&Job::Server { program, arguments })?;
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let mut mounted = Mounted { daemon: command.spawn().with_context(|| shown.clone())?, at };
        let started = Instant::now();
        while rustix::fs::stat(&mounted.at)?.st_dev == below {
            let ended = mounted.daemon.try_wait()?;
            ensure!(
                ended.is_none() && started.elapsed() < START_MAX,
                "{shown} does not mount at {}",
                mounted.at.display()
            );
            std::thread::sleep(Duration::from_millis(5));
        }
        Ok(mounted)
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        let _ = rustix::process::kill_process(
            rustix::process::Pid::from_child(&self.daemon),
            rustix::process::Signal::TERM,
        );
        let _ = self.daemon.wait();
    }
}

/// The `mount` section of one place.
pub fn run(run: &Run, place: &Place) -> Result<Section> {
    need_root("mount")?;
    let dir = place.directory("mount")?;
    let native = dir.join("native");
    std::fs::create_dir(&native)?;
    let mounted = Mounted::new(&dir)?;
    [&native, &mounted.at].into_iter().try_for_each(|at| fill_directory(at))?;
    let is_ext4 = place.file_system == "ext4";
    let cells: [(&str, usize, Target, Operation); 15] = [
        ("overwrite 4 KiB, fsync", COMMITS_MIN, Target::AtLeast(0.9), &|at, _| overwrite(at, 1)),
        ("64 overwrites of 4 KiB, fsync", COMMITS_MIN / 2, Target::AtLeast(3.0), &|at, _| overwrite(at, 64)),
        ("append 4 KiB, fsync", COMMITS_MIN, Target::AtLeast(1.5), &|at, _| append(at)),
        ("store to 1 page, msync", COMMITS_MIN, Target::AtLeast(3.0), &|at, _| stores(at, 1)),
        ("store to 16 pages, msync", COMMITS_MIN / 2, Target::AtLeast(12.0), &|at, _| stores(at, 16)),
        ("store to 1,024 pages, msync", COMMITS_MIN / 8, Target::AtLeast(4.5), &|at, _| stores(at, 1024)),
        ("replace by rename, synced", COMMITS_MIN, Target::AtLeast(1.8), &|at, _| replace(at)),
        ("4 threads that fsync their own files", COMMITS_MIN / 2, Target::AtLeast(1.5), &|at, _| crowd(at)),
        ("make 100 files", COMMITS_MIN / 4, Target::AtLeast(0.5), &make),
        ("rename 100 files", COMMITS_MIN / 4, Target::AtLeast(0.25), &rename),
        ("remove 100 files", COMMITS_MIN / 4, Target::AtLeast(0.33), &remove),
        (
            "1,024 cached writes of 4 KiB",
            COMMITS_MIN / 4,
            Target::AtLeast(if is_ext4 { 1.5 } else { 0.7 }),
            &|at, _| cached_writes(at),
        ),
        ("1,024 cached reads of 4 KiB, file of 1 MiB", COMMITS_MIN / 4, Target::AtLeast(0.85), &|at, _| {
            cached_reads(&at.join("own0"), SMALL_BYTES)
        }),
        ("1,024 cached reads of 4 KiB, file of 64 MiB", COMMITS_MIN / 4, Target::AtLeast(0.55), &|at, _| {
            cached_reads(&at.join("file"), FILE_BYTES)
        }),
        ("64 MiB read in order, not cached", COMMITS_MIN / 20, Target::AtLeast(0.6), &|at, _| uncached_read(at)),
    ];
    let mut rows = Vec::new();
    for (name, operations, target, operation) in cells {
        run.progress.cell(format!("{}: mount, {name}", place.name));
        let at = [("on the mount", &*mounted.at), ("natively", &*native)];
        let measured = in_turns(run, &at, operations, operation)?;
        let row = Row {
            cell: name.to_owned(),
            load: "saturated".to_owned(),
            contenders: measured.iter().map(|m| m.summary()).collect(),
            ratio: Some(Ratio::speedup(&measured[0], &[&measured[1]])),
            ..Row::default()
        };
        rows.push(row.against_target(Some(target), Waited::Allowed, run.quick));
    }
    drop(mounted);
    std::fs::remove_dir_all(&dir)?;
    Ok(Section {
        title: "mount: files on a mounted store, class power".to_owned(),
        chart: Chart::Bars,
        place: place.name.clone(),
        place_details: place.details.clone(),
        unit: Unit::Microseconds,
        ratio_means: "median natively ÷ median on the mount: times faster",
        rows,
        notes: vec![
            "Natively, nothing is atomic: a crash leaves some of the pages. The file has 64 MiB, of which all is cached; \
             pages are random. Of a directory of 100 files the time is that of all."
                .to_owned(),
        ],
    })
}

/// An operation in a directory, and its number there. It returns its own time if not all of its work counts.
pub(super) type Operation<'a> = &'a dyn Fn(&Path, usize) -> Result<Option<Duration>>;

/// Measures an operation in several directories in turns.
pub(super) fn in_turns(
    run: &Run,
    at: &[(&str, &Path)],
    operations: usize,
    operation: Operation<'_>,
) -> Result<Vec<Measured>> {
    let plan = Plan::spread(if run.quick { 2 } else { operations }, 1, run.quick, Duration::ZERO);
    let contender = |&(name, at): &(&str, &Path)| {
        let (at, mut number) = (at.to_owned(), 0);
        Contender::new(name, 1, move || {
            number += 1;
            let start = Instant::now();
            Ok(operation(&at, number)?.unwrap_or_else(|| start.elapsed()))
        })
    };
    let mut contenders: Vec<_> = at.iter().map(contender).collect();
    interleave(&mut contenders, &plan, &run.progress, || true)
}

fn open(path: &Path) -> std::io::Result<File> {
    OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path)
}

fn page_offset(bytes: u64) -> u64 {
    fastrand::u64(..bytes / PAGE as u64) * PAGE as u64
}

/// Makes the files of the operations in a directory.
pub(super) fn fill_directory(at: &Path) -> Result<()> {
    fill(&at.join("file"), FILE_BYTES)?;
    (0..PROCESSES).try_for_each(|n| fill(&at.join(format!("own{n}")), SMALL_BYTES))?;
    // From here on the contents are committed for every open file.
    Ok(rustix::fs::syncfs(File::open(at)?)?)
}

pub(super) fn overwrite(at: &Path, pages: usize) -> Result<Option<Duration>> {
    let (file, page) = (open(&at.join("file"))?, [fastrand::u8(..); PAGE]);
    (0..pages).try_for_each(|_| file.write_all_at(&page, page_offset(FILE_BYTES)))?;
    file.sync_all()?;
    Ok(None)
}

fn append(at: &Path) -> Result<Option<Duration>> {
    let file = open(&at.join("log"))?;
    file.write_all_at(&[7; PAGE], file.metadata()?.len())?;
    file.sync_all()?;
    Ok(None)
}

pub(super) fn replace(at: &Path) -> Result<Option<Duration>> {
    replace_file(at, "replaced", &[7; PAGE])?;
    Ok(None)
}

fn stores(at: &Path, pages: usize) -> Result<Option<Duration>> {
    let file = open(&at.join("file"))?;
    // SAFETY: no other process uses the file.
    let mut map = unsafe { MmapMut::map_mut(&file)? };
    for _ in 0..pages {
        map[page_offset(FILE_BYTES) as usize] = fastrand::u8(..);
    }
    map.flush()?;
    Ok(None)
}

fn crowd(at: &Path) -> Result<Option<Duration>> {
    let work = |n: usize| {
        let (file, page) = (open(&at.join(format!("own{n}")))?, [fastrand::u8(..); PAGE]);
        for _ in 0..8 {
            file.write_all_at(&page, page_offset(SMALL_BYTES))?;
            file.sync_all()?;
        }
        Ok(())
    };
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..PROCESSES).map(|n| scope.spawn(move || work(n))).collect();
        threads.into_iter().try_for_each(|thread| thread.join().expect("a thread panicked")).map(|()| None)
    })
}

pub(super) fn make(at: &Path, number: usize) -> Result<Option<Duration>> {
    each(at, number, |path| File::create(path).map(drop))
}

pub(super) fn rename(at: &Path, number: usize) -> Result<Option<Duration>> {
    each(at, number, |path| std::fs::rename(path, path.with_extension("new")))
}

pub(super) fn remove(at: &Path, number: usize) -> Result<Option<Duration>> {
    each(at, number, |path| std::fs::remove_file(path.with_extension("new")))
}

/// Works on a hundred files in the directory of this number.
fn each(at: &Path, number: usize, work: impl Fn(&Path) -> std::io::Result<()>) -> Result<Option<Duration>> {
    let dir = at.join(format!("dir{number}"));
    std::fs::create_dir_all(&dir)?;
    (0..NAMES).try_for_each(|n| work(&dir.join(n.to_string())))?;
    Ok(None)
}

/// Times writes that stay in the kernel's cache. Earlier writes in it are synced first.
fn cached_writes(at: &Path) -> Result<Option<Duration>> {
    let (file, page) = (open(&at.join("file"))?, [fastrand::u8(..); PAGE]);
    file.sync_all()?;
    let start = Instant::now();
    (0..PAGES).try_for_each(|_| file.write_all_at(&page, page_offset(FILE_BYTES)))?;
    Ok(Some(start.elapsed()))
}

fn cached_reads(path: &Path, bytes: u64) -> Result<Option<Duration>> {
    let (file, mut page) = (File::open(path)?, [0; PAGE]);
    // From here on the whole file is cached.
    std::io::copy(&mut &file, &mut std::io::sink())?;
    let start = Instant::now();
    (0..PAGES).try_for_each(|_| file.read_exact_at(&mut page, page_offset(bytes)))?;
    Ok(Some(start.elapsed()))
}

/// Times reading a file of which nothing is cached, on the mount and below it.
fn uncached_read(at: &Path) -> Result<Option<Duration>> {
    let mut file = File::open(at.join("file"))?;
    let mut piece = vec![0; 1 << 20];
    rustix::fs::sync();
    std::fs::write("/proc/sys/vm/drop_caches", "1").context("only root can drop what is cached")?;
    let start = Instant::now();
    while file.read(&mut piece)? > 0 {}
    Ok(Some(start.elapsed()))
}
