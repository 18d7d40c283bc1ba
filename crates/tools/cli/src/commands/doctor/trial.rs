//! Facts that only a trial can show: attributes, locks, direct writes, flushes, room.

use super::finding::Finding;
use rustix::fs::{Mode, OFlags, ResolveFlags};
use rustix::io::Errno;
use rustix::rand::GetRandomFlags;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};
use untorn::__private::sync_point;
use untorn_os::{
    AlignedBuf, BLOCK_BYTES, File, FileSystemInfo, Linux, LiveMedium, MapRequest, Open, Storage, TrackerKind,
    memory_limit, mount_kernels,
};
use untorn_terminal::Failure;
use untorn_terminal::table::bytes;

/// With less room than this, a commit may not fit into the journal.
const ROOM_BYTES: u64 = 1 << 20;
const FLUSHES: u32 = 9;

/// Examines free space, quotas and limits.
pub fn room(dir: &Path, info: &FileSystemInfo) -> Result<Vec<Finding>, Failure> {
    let failed = |e| Failure::io("look at the room of", dir, e);
    let space = Linux::open(dir).and_then(|storage| storage.space()).map_err(failed)?;
    let free = Finding::new("free space", bytes(space.available_bytes));
    let mut findings = vec![if space.available_bytes < ROOM_BYTES {
        free.note("commits are refused cleanly when there is no room for them")
    } else {
        free
    }];
    if space.read_only {
        findings.push(Finding::new("mount", "read-only").rules_out("a store must be written; remount it"));
    }
    let quotas = ["usrquota", "grpquota", "prjquota", "usrjquota", "grpjquota", "quota"];
    if let Some(option) = info.options.split(',').find(|o| quotas.contains(&o.split('=').next().unwrap_or(o))) {
        findings.push(Finding::new("quota", option).note("commits beyond it are refused cleanly"));
    }
    let limit = rustix::process::getrlimit(rustix::process::Resource::Fsize).current;
    if let Some(limit_bytes) = limit {
        let note = "a limit of this process; commits beyond it are refused cleanly";
        findings.push(Finding::new("file size limit", bytes(limit_bytes)).note(note));
    }
    Ok(findings)
}

/// Examines the system call that keeps paths inside a store.
pub fn kernel(dir: &Path) -> Vec<Finding> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let found = match rustix::fs::openat2(rustix::fs::CWD, dir, flags, Mode::empty(), ResolveFlags::NO_MAGICLINKS) {
        Err(Errno::NOSYS | Errno::PERM) => {
            Finding::new("openat2", "no").note("paths are walked step by step instead: slower, and as safe")
        }
        _ => Finding::new("openat2", "yes"),
    };
    vec![found, mounts()]
}

/// Examines what a mount (`untorn mount`) can do on this kernel.
fn mounts() -> Finding {
    let lacks: Vec<&str> = [
        (mount_kernels::maps_uncached_files(), "--commit=write (Linux 6.6)"),
        (mount_kernels::repeats_requests(), "a supervisor (6.9)"),
        (!mount_kernels::ends_writeback_early(), "--commit=store (6.16)"),
        (mount_kernels::passes_on_sync(), "-o sync_commits (6.18)"),
    ]
    .into_iter()
    .filter_map(|(has, what)| (!has).then_some(what))
    .collect();
    match (mount_kernels::is_served(), &lacks[..]) {
        (false, _) => Finding::new("untorn mount", "no").note("it needs Linux 5.15"),
        (true, []) => Finding::new("untorn mount", "in all modes"),
        (true, lacks) => Finding::new("untorn mount", "yes").note(format!("not on this kernel: {}", lacks.join(", "))),
    }
}

/// Examines which failures the memory of live heaps survives.
pub fn live_memory() -> Finding {
    let dir = untorn_os::live_memory_top();
    let found = |how: &str| Finding::new("live heaps", format!("{how} ({})", dir.display()));
    match LiveMedium::of_directory(&dir, false) {
        Ok(LiveMedium::Ordinary) => found("their memory survives the process"),
        Ok(LiveMedium::Persistent) => found("their memory survives a power cut: the hardware writes the caches back"),
        Ok(LiveMedium::Flushed) => found("sections in their memory survive a power cut, by flushes"),
        Err(e) => found("not usable").note(e.to_string()),
    }
}

/// Examines how much memory the changed pages of mapped files can take, and whether the system must be asked first.
pub fn memory() -> Vec<Finding> {
    let mut findings = Vec::new();
    if let Some(limit) = memory_limit() {
        let found = format!("{} with swap ({})", bytes(limit.bytes), limit.of);
        findings.push(
            Finding::new("memory", found)
                .note("mapping a larger file takes a `dirty_max`, as changed pages stay in memory"),
        );
    }
    if std::fs::read_to_string("/proc/sys/vm/overcommit_memory").is_ok_and(|mode| mode.trim() == "2") {
        let note = "files can be mapped only as far as the system has memory for all of their pages";
        findings.push(Finding::new("overcommit", "strict").note(note));
    }
    findings
}

/// Examines the trackers, which find stores to a mapping.
fn mappings(file: &dyn File) -> Finding {
    let tracked = |tracker| {
        let request = MapRequest { address_space: BLOCK_BYTES as u64, tracker: Some(tracker), ..MapRequest::default() };
        file.map(&request).and_then(|mapping| {
            mapping.show(0..mapping.page_bytes())?;
            mapping.copy_in(0, b"trial")?;
            let mut found = Vec::new();
            mapping.changed(0..mapping.page_bytes(), &mut found)?;
            Ok(found.len() == 1)
        })
    };
    let works = |tracker| tracked(tracker).unwrap_or(false);
    match (works(TrackerKind::Scan), works(TrackerKind::PageMap)) {
        (true, _) => Finding::new("mappings", "tracker scan"),
        (false, true) => Finding::new("mappings", "tracker pagemap").note(
            "commits compare all pages changed since they were last dropped; Linux 6.7 or newer with userfaultfd permitted is faster",
        ),
        (false, false) => Finding::new("mappings", "no").note("files cannot be mapped here; the file interface works"),
    }
}

/// A file for trials. It is removed when this value is dropped.
struct Trial {
    storage: Arc<Linux>,
    name: PathBuf,
}

impl Drop for Trial {
    fn drop(&mut self) {
        let _ = self.storage.unlink(&self.name);
    }
}

/// Tries on a real file the operations that a store needs.
pub fn on_a_file(dir: &Path) -> Vec<Finding> {
    match try_all(dir) {
        Ok(findings) => findings,
        Err(e) if matches!(e.kind(), io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem) => {
            let note = "this user cannot write here: attributes, direct writes and flushes were not tried";
            vec![Finding::new("trial file", e.to_string()).rules_out(note)]
        }
        Err(e) => {
            vec![Finding::new("trial file", e.to_string()).rules_out("making a file fails")]
        }
    }
}

fn try_all(dir: &Path) -> io::Result<Vec<Finding>> {
    let storage = Linux::open(dir)?;
    let mut unique = [0; 8];
    rustix::rand::getrandom(&mut unique, GetRandomFlags::empty())?;
    let name = PathBuf::from(format!(".untorn-doctor-{:016x}", u64::from_ne_bytes(unique)));
    let file = storage.open(&name, Open::create(0o600).direct())?;
    let trial = Trial { storage, name };

    let mut findings = Vec::new();
    let direct = Finding::new("direct writes", if file.is_direct() { "yes" } else { "no" });
    findings.push(if file.is_direct() { direct } else { direct.note("the journal goes through the page cache") });

    let mut block = AlignedBuf::default();
    block.resize(BLOCK_BYTES);
    untorn_os::write_all_at(&*file, &block, 0)?;
    file.sync_all(sync_point::ATTRIBUTE)?;
    if file.lines(BLOCK_BYTES as u64).is_ok() {
        findings.push(Finding::new("memory", "byte-addressable; commits need no calls"));
    }
    let mut flushes_us = Vec::new();
    for _ in 0..FLUSHES {
        untorn_os::write_all_at(&*file, &block, 0)?;
        let started = Instant::now();
        file.sync_data(sync_point::COMMIT)?;
        flushes_us.push(started.elapsed());
    }
    flushes_us.sort();
    let flush: Duration = flushes_us[flushes_us.len() / 2];
    findings.push(Finding::new("flush", format!("{} µs for one block (median of {FLUSHES})", flush.as_micros())));

    let value = b"trial".to_vec();
    let attribute = match file.set_attribute(&value).and_then(|()| file.attribute()) {
        Ok(found) if found.as_ref() == Some(&value) => Finding::new("attributes", "yes"),
        Ok(_) => Finding::new("attributes", "lost at once").rules_out("files cannot be tied to their store"),
        Err(e) => Finding::new("attributes", format!("no ({e})"))
            .rules_out("files cannot be tied to their store; use a file system with extended attributes"),
    };
    findings.push(attribute);

    findings.push(mappings(&*file));

    let other = trial.storage.open(&trial.name, Open::WRITE)?;
    let excludes = |mine: io::Result<bool>, theirs: io::Result<bool>| Ok::<_, io::Error>(mine? && !theirs?);
    let locks = excludes(file.lock(false), other.lock(false))? && excludes(file.try_claim(), other.try_claim())?;
    findings.push(if locks {
        Finding::new("locks", "yes")
    } else {
        Finding::new("locks", "not effective").rules_out("two owners at once would tear the store")
    });
    Ok(findings)
}
