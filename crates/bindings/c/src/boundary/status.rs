//! A store's status as a C struct.

use std::ffi::c_char;
use std::mem::{offset_of, size_of};

use untorn::{FailureClass, Status};

use crate::boundary::options::{UNTORN_CLASS_POWER, UNTORN_CLASS_PROCESS};
use crate::boundary::versioned::{self, Versioned};

/// Bytes of `untorn_status.store_id`, NUL included.
pub const UNTORN_STORE_ID_BYTES: usize = 48;

/// A store's status. Counters start at 0 when the store is opened. untorn_store_status_json() also has
/// the texts: paths, quarantined files, the reason of a failure.
#[repr(C)]
#[derive(Clone, Copy)]
#[allow(non_camel_case_types)]
pub struct untorn_status {
    /// Set it to sizeof(untorn_status) before the call; the call fills that many bytes.
    pub size: usize,
    /// The store's identity, hexadecimal, ended by NUL.
    pub store_id: [c_char; UNTORN_STORE_ID_BYTES],
    /// UNTORN_CLASS_POWER or UNTORN_CLASS_PROCESS.
    pub failure_class: u32,
    /// 1 if whole pages are logged (UNTORN_FULL_PAGE).
    pub full_page: u32,
    /// 1 if the journal is written with O_DIRECT, past the page cache.
    pub journal_direct: u32,
    /// 1 after a failed sync: no more commits until the store is reopened.
    pub failed: u32,
    /// The journal's largest size: at this size commits wait for a checkpoint.
    pub journal_bytes_max: u64,
    /// Bytes that the journal uses on the disk.
    pub journal_bytes_allocated: u64,
    /// Journal bytes that the next checkpoint will free.
    pub journal_bytes_pending: u64,
    /// Commits.
    pub commits: u64,
    /// Flushes of the journal, each for one or more commits.
    pub commit_groups: u64,
    /// Commits that had to wait for a checkpoint.
    pub commits_waited: u64,
    /// Checkpoints.
    pub checkpoints: u64,
    /// LSN of the last durable commit. LSNs count from the creation of the store.
    pub lsn: u64,
    /// Calls of fdatasync, fsync and syncfs.
    pub syncs: u64,
    /// Bytes written to the journal and to data files.
    pub bytes_written: u64,
    /// Bytes written to the journal.
    pub journal_bytes_written: u64,
    /// Files open through the store.
    pub open_files: u64,
    /// Memory that uncommitted and unapplied changes use, in bytes.
    pub memory_bytes: u64,
    /// Quarantined files: recovery could not bring them up to date. All other files work as usual.
    pub quarantined: u64,
    /// Commits that recovery found and applied when the store was opened.
    pub recovered_commits: u64,
    /// Files that recovery changed.
    pub recovered_files: u64,
    /// Bytes that recovery wrote.
    pub recovered_bytes: u64,
    /// 1 if recovery dropped a torn record at the journal's end: a commit that was never acknowledged.
    pub recovered_torn_tail: u64,
    /// Mapped files. untorn_store_status_json() describes each of them.
    pub mapped_files: u64,
    /// Bytes of mapped files that can be accessed.
    pub mapped_bytes: u64,
    /// Bytes of mapped pages that were stored to and not dropped. They use memory or swap.
    pub mapped_private_bytes: u64,
    /// Memory for copies of mapped pages, in bytes. The next commits compare pages with these copies.
    pub mapped_copies_bytes: u64,
    /// Mapped files with more changed bytes in memory than their `dirty_max` allows.
    pub mapped_files_over: u64,
    /// Commits that readers hold; untorn_store_status_json() lists them.
    pub held: u64,
    /// Bytes that are kept for readers of older commits.
    pub kept_bytes: u64,
    /// LSN of the last commit that the slot of untorn_options.remote_slot has acknowledged; 0: none, or no slot.
    pub remote_lsn: u64,
    /// 1 if a commit has waited for the slot for longer than untorn_options.remote_timeout_ms.
    pub remote_late: u64,
    /// 1 if commits count as remote without an acknowledgement: UNTORN_REMOTE_DEGRADE, and remote_late.
    pub remote_degraded: u64,
    /// 1 if commits are stored to byte-addressable memory, without calls. Known from the first one on.
    pub journal_in_memory: u64,
}

const _: () = assert!(size_of::<untorn_status>() == 8 + UNTORN_STORE_ID_BYTES + 4 * 4 + 29 * 8, "no padding");

fn convert(status: &Status) -> untorn_status {
    let mut store_id = [0; UNTORN_STORE_ID_BYTES];
    // The last byte stays NUL for an identity of any length.
    for (to, &from) in store_id[..UNTORN_STORE_ID_BYTES - 1].iter_mut().zip(status.store_id.as_bytes()) {
        *to = from as c_char;
    }
    let maps = &status.maps;
    untorn_status {
        size: size_of::<untorn_status>(),
        store_id,
        failure_class: match status.class {
            // Commits of any other class are of class `power` first.
            FailureClass::Power | FailureClass::Memory | FailureClass::Remote => UNTORN_CLASS_POWER,
            FailureClass::Process => UNTORN_CLASS_PROCESS,
        },
        full_page: status.full_page.into(),
        journal_direct: status.journal_direct.into(),
        failed: status.failed.is_some().into(),
        journal_bytes_max: status.journal_bytes_max,
        journal_bytes_allocated: status.journal_bytes_allocated,
        journal_bytes_pending: status.journal_bytes_pending,
        commits: status.commits,
        commit_groups: status.commit_groups,
        commits_waited: status.commits_waited,
        checkpoints: status.checkpoints,
        lsn: status.lsn,
        syncs: status.syncs,
        bytes_written: status.bytes_written,
        journal_bytes_written: status.journal_bytes_written,
        open_files: status.open_files,
        memory_bytes: status.memory_bytes,
        quarantined: status.quarantined.len() as u64,
        recovered_commits: status.recovered.commits,
        recovered_files: status.recovered.files,
        recovered_bytes: status.recovered.bytes,
        recovered_torn_tail: status.recovered.torn_tail.into(),
        mapped_files: maps.len() as u64,
        mapped_bytes: maps.iter().map(|map| map.mapped_bytes).sum(),
        mapped_private_bytes: maps.iter().map(|map| map.private_bytes).sum(),
        mapped_copies_bytes: maps.iter().map(|map| map.copies_bytes).sum(),
        mapped_files_over: maps.iter().filter(|map| map.over).count() as u64,
        held: status.held.len() as u64,
        kept_bytes: status.kept_bytes,
        remote_lsn: status.remote.as_ref().and_then(|remote| remote.acknowledged).map_or(0, |point| point.lsn),
        remote_late: status.remote.as_ref().is_some_and(|remote| remote.late).into(),
        remote_degraded: status.remote.as_ref().is_some_and(|remote| remote.degraded).into(),
        journal_in_memory: status.journal_in_memory.into(),
    }
}

// SAFETY: numbers and bytes.
unsafe impl Versioned for untorn_status {
    const NAME: &'static str = "untorn_status";
    const SIZE_MIN: usize = offset_of!(untorn_status, store_id);
}

/// Fills `size` bytes of a caller's struct, of any version.
///
/// # Safety
/// `to` points to `size` writable bytes.
pub(crate) unsafe fn write(status: &Status, to: *mut untorn_status, size: usize) {
    // SAFETY: the caller's promise; a status has no padding.
    unsafe { versioned::write(&convert(status), to, size) };
}
