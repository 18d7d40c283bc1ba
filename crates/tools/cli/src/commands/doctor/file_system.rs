//! The meaning of a file system's type and mount options for the promises.

use super::device::Cache;
use super::finding::{Failure, Finding, Verdict};
use std::path::Path;
use untorn_os::{FileSystemInfo, mount_calls};

const CRASHES: [Failure; 2] = [Failure::KernelCrash, Failure::PowerCut];
/// The limit of Linux for overlays on overlays, and one more for safety.
const OVERLAYS_MAX: u32 = 3;

const PROVEN: [&str; 5] = ["ext2", "ext3", "ext4", "xfs", "btrfs"];
const IN_MEMORY: [&str; 2] = ["tmpfs", "ramfs"];
const REMOTE: [&str; 13] =
    ["nfs", "nfs4", "cifs", "smb3", "9p", "ceph", "afs", "virtiofs", "lustre", "gfs2", "ocfs2", "glusterfs", "beegfs"];

/// The findings of the type and the options. `journal` says whether an ext4 has a journal, if that is known.
pub fn assess(info: &FileSystemInfo, cache: Cache, journal: Option<bool>) -> Vec<Finding> {
    assess_nested(info, cache, journal, OVERLAYS_MAX)
}

fn assess_nested(info: &FileSystemInfo, cache: Cache, journal: Option<bool>, left: u32) -> Vec<Finding> {
    let kind = Finding::new("file system", &info.kind);
    let mut findings = match info.kind.as_str() {
        "overlay" => overlay(info, kind, left),
        name if PROVEN.contains(&name) => vec![kind],
        name if IN_MEMORY.contains(&name) => {
            vec![kind.lowers(&CRASHES, Verdict::NotKept, "its files are in memory only")]
        }
        name if REMOTE.contains(&name) => vec![kind.lowers(
            &CRASHES,
            Verdict::Depends,
            "the server decides the meaning of a flush; use a store from one machine at a time",
        )],
        name if name.starts_with("fuse") => {
            vec![kind.lowers(&CRASHES, Verdict::Depends, "its program decides the meaning of a flush")]
        }
        _ => vec![kind.lowers(&CRASHES, Verdict::Depends, "Untorn was not tested on it")],
    };
    if matches!(info.kind.as_str(), "ext2" | "ext3" | "ext4") && journal == Some(false) {
        findings.push(Finding::new("ext4 journal", "none").lowers(
            &CRASHES,
            Verdict::Depends,
            "after a crash the file system must be repaired by fsck, which may take flushed names and files away",
        ));
    }
    if info.kind == mount_calls::TYPE {
        let note = "programs that rely on them commit nothing; `untorn sync` commits everything, and so do sync and \
                    syncfs on a mount that root has made with `-o sync_commits`";
        findings.push(Finding::new("sync and syncfs", "commit nothing here").note(note));
    }
    findings.extend(options(info, cache));
    findings
}

/// The findings of an overlay, which keeps as much as the file system of its upper directory.
fn overlay(info: &FileSystemInfo, kind: Finding, left: u32) -> Vec<Finding> {
    let option = |name: &str| info.options.split(',').find_map(|o| o.strip_prefix(name)).map(str::to_owned);
    if option("volatile").is_some() {
        return vec![kind.lowers(&CRASHES, Verdict::NotKept, "mounted `volatile`: flushes are left out")];
    }
    let upper = option("upperdir=").and_then(|dir| untorn_os::file_system_info(Path::new(&dir)).ok());
    match upper {
        Some(upper) if left > 0 => {
            let disk = super::device::look(&upper);
            let mut findings = vec![kind.note("writes go to its upper directory's file system")];
            findings.extend(assess_nested(&upper, disk.cache, ext4_has_journal(&upper), left - 1));
            findings.extend(disk.findings);
            findings
        }
        _ => vec![kind.lowers(
            &CRASHES,
            Verdict::Depends,
            "writes go to an upper directory that cannot be looked at from here; run this on the host",
        )],
    }
}

fn options(info: &FileSystemInfo, cache: Cache) -> Vec<Finding> {
    let has = |names: &[&str]| info.options.split(',').find(|o| names.contains(o)).map(str::to_owned);
    let mut findings = Vec::new();
    if let Some(option) = has(&["nobarrier", "barrier=0"]) {
        let found = Finding::new("mount option", option);
        let power = [Failure::PowerCut];
        findings.push(match cache {
            Cache::WriteBack => found.lowers(&power, Verdict::NotKept, "the disk's write cache is never flushed"),
            Cache::WriteThrough => found.note("no harm: the disk has no volatile write cache"),
            Cache::Unknown => found.lowers(&power, Verdict::Depends, "a disk with a write cache loses flushed data"),
        });
    }
    if let Some(option) = has(&["data=writeback"]) {
        let note = "no harm to commits, which flush what they rely on; other files may show stale blocks after a crash";
        findings.push(Finding::new("mount option", option).note(note));
    }
    if let Some(option) = has(&["nodatacow"]) {
        findings.push(Finding::new("mount option", option).note("no harm: Untorn brings its own checksums"));
    }
    findings
}

/// Whether an ext4 has a journal. A mount without one shows no data mode among its options.
pub fn ext4_has_journal(info: &FileSystemInfo) -> Option<bool> {
    let device = std::fs::canonicalize(format!("/sys/dev/block/{}", info.device)).ok()?;
    let name = device.file_name()?;
    let options = std::fs::read_to_string(Path::new("/proc/fs/ext4").join(name).join("options")).ok()?;
    Some(options.lines().any(|line| line.starts_with("data=")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn info(kind: &str, options: &str) -> FileSystemInfo {
        FileSystemInfo {
            kind: kind.to_owned(),
            mount_point: "/".to_owned(),
            source: "none".to_owned(),
            options: options.to_owned(),
            device: "0:0".to_owned(),
        }
    }

    #[test]
    fn a_mount_of_untorns_on_which_sync_commits_nothing_is_told_of() {
        let names_it = |kind| {
            assess(&info(kind, "rw"), Cache::Unknown, None)
                .iter()
                .any(|f| f.why.as_deref().is_some_and(|why| why.contains("sync_commits")))
        };
        assert!(names_it(mount_calls::TYPE) && !names_it(mount_calls::TYPE_OF_DEVICE));
    }

    fn worst(kind: &str, options: &str, cache: Cache, journal: Option<bool>) -> [Verdict; 3] {
        let findings = assess(&info(kind, options), cache, journal);
        [Failure::ProcessKilled, Failure::KernelCrash, Failure::PowerCut]
            .map(|failure| findings.iter().map(|f| f.verdict(failure)).min().unwrap())
    }

    #[test]
    fn every_kind_and_option_has_its_verdict() {
        use Cache::{Unknown, WriteBack, WriteThrough};
        use Verdict::{Depends, Kept, NotKept};
        for (kind, options, cache, journal, expected) in [
            ("ext4", "rw,relatime", WriteBack, Some(true), [Kept, Kept, Kept]),
            ("ext4", "rw,data=writeback", WriteBack, Some(true), [Kept, Kept, Kept]),
            ("ext4", "rw", WriteBack, Some(false), [Kept, Depends, Depends]),
            ("ext4", "rw,nobarrier", WriteBack, Some(true), [Kept, Kept, NotKept]),
            ("ext4", "rw,barrier=0", WriteThrough, None, [Kept, Kept, Kept]),
            ("xfs", "rw,nobarrier", Unknown, None, [Kept, Kept, Depends]),
            ("xfs", "rw", WriteBack, None, [Kept, Kept, Kept]),
            ("btrfs", "rw,nodatacow", WriteThrough, None, [Kept, Kept, Kept]),
            ("tmpfs", "rw", Unknown, None, [Kept, NotKept, NotKept]),
            ("nfs4", "rw", Unknown, None, [Kept, Depends, Depends]),
            ("fuse.sshfs", "rw", Unknown, None, [Kept, Depends, Depends]),
            ("overlay", "rw,volatile,upperdir=/u", Unknown, None, [Kept, NotKept, NotKept]),
            ("overlay", "rw,upperdir=/no/such/directory", Unknown, None, [Kept, Depends, Depends]),
            ("overlay", "rw,upperdir=/proc", Unknown, None, [Kept, Depends, Depends]),
            ("zonkfs", "rw", Unknown, None, [Kept, Depends, Depends]),
        ] {
            assert_eq!(worst(kind, options, cache, journal), expected, "{kind} {options} {cache:?} {journal:?}");
        }
    }
}
