//! The contract of `untorn_os::Storage`, `File` and `Mapping`, tested on real file systems and on the simulated disk.
//!
//! One list of rules, written against the traits, runs on ext4, XFS and btrfs (in images, on loop devices), on tmpfs,
//! on overlayfs, in the temporary directory (also as an ordinary user, and as on an old kernel), and on the simulated
//! disk in every profile. The findings of the crash laboratory are only as good as this agreement. Where file systems
//! differ, the difference has a name (`Difference`); nothing else may differ.

mod access_rules;
mod content_rules;
mod fixture;
mod lock_rules;
mod mapping_rules;
mod metadata_rules;
mod name_rules;
mod old_kernel;

use anyhow::{Context, Result};
use fixture::{Backend, Difference, Rule};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Output;
use std::time::Duration;
use untorn_crashlab::device::watch::{self, Limits, say};
use untorn_crashlab::device::{Again, FileSystem, unmount_now};
use untorn_crashlab::replay::Bench;
use untorn_crashlab::{Options, PROFILES};
use untorn_testkit::test_path;

const VIOLATION: &str = "VIOLATION ";
/// A user other than root: `nobody`.
const ORDINARY_USER: u32 = 65534;
/// The minimum size of disks for the rules.
const DISK_BYTES_MIN: u64 = 128 << 20;

fn rules() -> impl Iterator<Item = &'static Rule> {
    let by_subject = [
        name_rules::RULES,
        access_rules::RULES,
        content_rules::RULES,
        metadata_rules::RULES,
        lock_rules::RULES,
        mapping_rules::RULES,
    ];
    by_subject.into_iter().flatten()
}

/// Tries every rule; returns the violations.
fn broken(backend: &Backend) -> Vec<String> {
    // Modes must be exactly as requested, for any umask.
    rustix::process::umask(rustix::fs::Mode::from_raw_mode(0o077));
    rules()
        .filter_map(|rule| backend.try_rule(rule).err().map(|what| format!("{}: {}: {what}", backend.name, rule.0)))
        .collect()
}

fn all_hold(backends: &[Backend]) {
    let broken: Vec<String> = backends.iter().flat_map(broken).collect();
    let (rules, backends) =
        (rules().count(), backends.iter().map(|backend| &*backend.name).collect::<Vec<_>>().join(", "));
    println!("{rules} rules on {backends}");
    assert!(broken.is_empty(), "{} broken rules:\n{}", broken.len(), broken.join("\n"));
}

#[test]
fn the_simulated_disk_keeps_the_contract() {
    let profiles = PROFILES.map(|profile| Options { profile, ..Options::default() });
    let memory = Options { memory: true, ..Options::default() };
    let lines = Options { lines: true, ..Options::default() };
    let buffered = Options { direct: false, ..Options::default() };
    let permissions = Options { permissions: true, ..Options::default() };
    let backends: Vec<Backend> =
        profiles.into_iter().chain([memory, lines, buffered, permissions]).map(Backend::simulated).collect();
    all_hold(&backends);
}

#[test]
fn the_temporary_directory_keeps_the_contract() {
    let dir = std::env::temp_dir();
    let name = format!("{} (user {})", dir.display(), rustix::process::geteuid().as_raw());
    let as_memory = Backend::linux_as_memory(format!("{name} as memory"), &dir);
    all_hold(&[Backend::linux(name, &dir, &[]), as_memory]);
}

#[test]
fn the_temporary_directory_keeps_the_contract_for_an_ordinary_user() {
    if !rustix::process::geteuid().is_root() {
        return println!("skipped: the tests run as an ordinary user anyway");
    }
    let again = Again::test(&test_path!("the_temporary_directory_keeps_the_contract")).expect("this program");
    let mut command = again.command();
    command.uid(ORDINARY_USER).gid(ORDINARY_USER).current_dir("/");
    match command.output() {
        Err(e) => println!("skipped: user {ORDINARY_USER} cannot run this program: {e}"),
        Ok(output) => must_pass(output),
    }
}

/// Asserts that a test of this program passed in another process.
fn must_pass(output: Output) {
    let text = [output.stdout, output.stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).concat();
    println!("{text}");
    assert!(output.status.success() && text.contains("1 passed"), "{text}");
}

/// The library's fallbacks for missing system calls keep the contract, too.
#[test]
fn an_old_kernel_keeps_the_contract() {
    // In a process of its own, because the available system calls are detected once for all threads.
    const WITHOUT: &str = "UNTORN_TEST_OLD_KERNEL";
    if std::env::var_os(WITHOUT).is_none() {
        let again = Again::test(&test_path!("an_old_kernel_keeps_the_contract")).expect("this program");
        return must_pass(again.command().env(WITHOUT, "").output().expect("this program"));
    }
    if let Err(e) = old_kernel::imitate() {
        return println!("skipped: no filter for system calls: {e}");
    }
    let dir = std::env::temp_dir();
    let differences = [Difference::HiddenPagesMayBeLoaded];
    all_hold(&[Backend::linux(format!("{} on an old kernel", dir.display()), &dir, &differences)]);
}

#[test]
fn ext4_keeps_the_contract() {
    watched("ext4", &[FileSystem::Ext4.mkfs()]);
}

#[test]
fn xfs_keeps_the_contract() {
    watched("xfs", &[FileSystem::Xfs.mkfs()]);
}

#[test]
fn btrfs_keeps_the_contract() {
    watched("btrfs", &[FileSystem::Btrfs.mkfs()]);
}

#[test]
fn tmpfs_keeps_the_contract() {
    watched("tmpfs", &[]);
}

#[test]
fn overlayfs_keeps_the_contract() {
    watched("overlayfs", &[FileSystem::Ext4.mkfs()]);
}

/// The entry of the workers of these tests, which mount file systems. Does nothing by itself.
#[test]
fn part() {
    watch::work_if_asked(work);
}

fn work(job: &str) -> Result<()> {
    let tell = |backend: Backend| {
        let broken = broken(&backend);
        broken.iter().for_each(|what| say(&format!("{VIOLATION}{what}")));
        say(&format!("{} rules on {}", rules().count(), backend.name));
    };
    match job {
        "tmpfs" => {
            let at = watch::directory("tmpfs")?;
            mounted("tmpfs", "size=64m", &at, || tell(Backend::linux("tmpfs".into(), &at, &[])))
        }
        "overlayfs" => on_disk(FileSystem::Ext4, |dir| {
            let at = watch::directory("overlay")?;
            let [lower, upper, work] = ["lower", "upper", "work"].map(|name| dir.join(name));
            for layer in [&lower, &upper, &work] {
                std::fs::create_dir(layer)?;
            }
            let layers =
                format!("lowerdir={},upperdir={},workdir={}", lower.display(), upper.display(), work.display());
            mounted("overlay", &layers, &at, || {
                tell(Backend::linux("overlayfs".into(), &at, &[Difference::FailedAllocationMayExtend]))
            })
        })?,
        name => {
            let fs: FileSystem = name.parse().map_err(anyhow::Error::msg)?;
            let differences: &[Difference] = match fs {
                FileSystem::Xfs => &[Difference::FullDirectoryExists],
                FileSystem::Ext4 => &[Difference::FailedAllocationMayExtend],
                _ => &[],
            };
            on_disk(fs, |dir| tell(Backend::linux(name.to_owned(), dir, differences)))
        }
    }
}

/// Makes a file system in memory and mounts it while `act` runs.
fn on_disk<T>(fs: FileSystem, act: impl FnOnce(&Path) -> T) -> Result<T> {
    Bench::new()?.with(fs, &fs.make(DISK_BYTES_MIN)?, act)?
}

fn mounted(kind: &str, options: &str, at: &Path, act: impl FnOnce()) -> Result<()> {
    let options = std::ffi::CString::new(options)?;
    rustix::mount::mount(kind, at, kind, rustix::mount::MountFlags::empty(), &*options)
        .with_context(|| format!("{kind} cannot be mounted"))?;
    act();
    unmount_now(at)
}

/// Lets a worker test the rules on a file system that it mounts, if that is possible here.
fn watched(job: &str, programs: &[String]) {
    if let Some(why) = watch::missing(programs) {
        return println!("skipped: {why}");
    }
    let limits = Limits { whole: Duration::from_secs(120), silence: Duration::from_secs(120) };
    let (mut violations, mut finished, mut failed) = (Vec::new(), false, None);
    let done = watch::supervise(&Again::test(&test_path!("part")).expect("this program"), job, limits, |line| {
        let line = line.replace('\u{2028}', "\n");
        finished |= line.contains(" rules on ");
        failed = line.strip_prefix("FAILED ").map(str::to_owned).or(failed.take());
        match line.strip_prefix(VIOLATION) {
            Some(what) => violations.push(what.to_owned()),
            None => println!("{line}"),
        }
    });
    match (done, failed) {
        (Err(_), Some(why)) if !finished => return println!("skipped: {why}"),
        (done, _) => done.unwrap_or_else(|e| panic!("{job}: {e}")),
    }
    assert!(finished, "{job}: no rule was tried");
    assert!(violations.is_empty(), "{} broken rules:\n{}", violations.len(), violations.join("\n"));
}
