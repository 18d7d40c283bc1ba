//! Examines the disk under a file system: whether it has a volatile write cache.

use super::finding::{Failure, Finding, Verdict};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use untorn_os::FileSystemInfo;

/// The write cache of a disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cache {
    /// Writes may stay in the disk's cache until a flush.
    WriteBack,
    /// Writes are durable at once.
    WriteThrough,
    /// There is no disk, or its cache is unknown.
    Unknown,
}

/// A disk as the kernel describes it.
pub struct Disk {
    pub cache: Cache,
    pub findings: Vec<Finding>,
}

/// Examines the disk of a file system.
pub fn look(info: &FileSystemInfo) -> Disk {
    let none = Disk { cache: Cache::Unknown, findings: Vec::new() };
    match sysfs(info) {
        Some(sysfs) => describe(&sysfs),
        None if info.source.starts_with("/dev/") => {
            let unknown = Finding::new("disk", &info.source).note("the kernel tells nothing of its write cache");
            Disk { findings: vec![unknown], ..none }
        }
        None => none,
    }
}

/// The disk's directory in sysfs.
///
/// A file system with its own device numbers, such as btrfs, is found by the device of its mount.
fn sysfs(info: &FileSystemInfo) -> Option<PathBuf> {
    let by_number = |number: &str| std::fs::canonicalize(format!("/sys/dev/block/{number}")).ok();
    let by_source = || {
        let meta = std::fs::metadata(&info.source).ok().filter(|m| m.file_type().is_block_device())?;
        let (major, minor) = (rustix::fs::major(meta.rdev()), rustix::fs::minor(meta.rdev()));
        by_number(&format!("{major}:{minor}"))
    };
    let found = by_number(&info.device).or_else(by_source)?;
    // A partition has no queue of its own.
    if found.join("partition").exists() { found.parent().map(Path::to_owned) } else { Some(found) }
}

fn describe(sysfs: &Path) -> Disk {
    let read = |file: &str| std::fs::read_to_string(sysfs.join(file)).ok().map(|text| text.trim().to_owned());
    let name = sysfs.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let cache = match read("queue/write_cache").as_deref() {
        Some("write back") => Cache::WriteBack,
        Some("write through") => Cache::WriteThrough,
        _ => Cache::Unknown,
    };
    let fua = read("queue/fua").as_deref() == Some("1");
    let found = match cache {
        Cache::WriteBack if fua => format!("{name}, volatile write cache, single writes can bypass it (FUA)"),
        Cache::WriteBack => format!("{name}, volatile write cache"),
        Cache::WriteThrough => format!("{name}, no volatile write cache, says the kernel"),
        Cache::Unknown => format!("{name}, write cache unknown"),
    };
    let mut finding = Finding::new("disk", found);
    if let Some(file) = read("loop/backing_file") {
        let crashes = [Failure::KernelCrash, Failure::PowerCut];
        finding = finding.lowers(&crashes, Verdict::Depends, format!("it is the file {file}: ask there too"));
    } else if ["vd", "xvd", "nbd", "rbd"].iter().any(|prefix| name.starts_with(prefix)) {
        finding = finding.note("a virtual disk: its host decides how much a flush is worth");
    }
    Disk { cache, findings: vec![finding] }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernels_words_are_understood() {
        let dir = tempfile::tempdir().unwrap();
        let disk = dir.path().join("sdq");
        std::fs::create_dir_all(disk.join("queue")).unwrap();
        let with = |cache: &str, fua: &str| {
            std::fs::write(disk.join("queue/write_cache"), cache).unwrap();
            std::fs::write(disk.join("queue/fua"), fua).unwrap();
            let found = describe(&disk);
            (found.cache, found.findings[0].found.clone())
        };
        assert_eq!(with("write through\n", "0\n").0, Cache::WriteThrough);
        assert_eq!(with("something new\n", "0\n").0, Cache::Unknown);
        let (cache, text) = with("write back\n", "1\n");
        assert_eq!(cache, Cache::WriteBack);
        assert!(text.starts_with("sdq,") && text.contains("FUA"), "{text}");
        assert!(!with("write back\n", "0\n").1.contains("FUA"));

        std::fs::create_dir(disk.join("loop")).unwrap();
        std::fs::write(disk.join("loop/backing_file"), "/images/disk\n").unwrap();
        assert_eq!(describe(&disk).findings[0].verdict(Failure::PowerCut), Verdict::Depends);
    }
}
