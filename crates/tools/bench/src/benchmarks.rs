//! The benchmarks by their names, and the part of each in a run of all.

use crate::maps::{heap_large, in_order, msync, msync_large};
use crate::measuring::bench_run::Run;
use crate::measuring::fs::FileSystem::{self, Btrfs, Ext4, Xfs};
use crate::measuring::fs::Place;
use crate::mounts::{fuse_peers, mariadb, mounted, mounted_programs};
use crate::preloaded::programs;
use crate::report::section::Section;
use crate::shipped::shipping;
use crate::sqlite::transactions;
use crate::stores::{
    append, checkpoints, commits, flush_times, nvm, oneshot, reader_costs, recovery_time, syncv, threads,
};
use crate::{kv, live, xsync};
use anyhow::Result;
use clap::ValueEnum;

#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub enum Benchmark {
    /// Commits at random offsets; class process
    Commit,
    /// Commits of up to 64 threads of one store; of eight with heaps of their own
    Threads,
    /// Append and commit; store to a mapping in order and commit
    Append,
    /// Many files in one commit
    Syncv,
    /// Commits of a mapped file, against ordinary msync
    Msync,
    /// Commits of a mapped file of 1 GiB and of a sparse one of 64 GiB; reads and stores in between
    MsyncLarge,
    /// A heap of 2 GiB beside one of 16 MiB: commits, rollback, the allocator; threads of a heap
    HeapLarge,
    /// Sections of a live heap: a hash map with hooks and a log, against one without (needs a C++ compiler)
    Live,
    /// Opening after a crash with a full journal
    Recovery,
    /// Checkpoints side by side, one file after the other, and after each commit; commits beside them
    Checkpoints,
    /// One small change in a new process
    Oneshot,
    /// Readers in other processes: the owner's commits beside them, their reads, following, opening
    Readers,
    /// The containers of C++ and Rust on Untorn, against key-value stores (hours, because of the think time)
    Kv,
    /// Containers and key-value stores with a million small values: loading, commits, reads, a scan
    KvLarge,
    /// The first lookup after opening containers and stores of 4 GiB, after a clean close and after a crash
    KvOpen,
    /// Sessions of untorn xsync: their costs, a server with clients, programs (root only)
    Xsync,
    /// Commits for different flush times of a disk: files, mappings, threads (root only; makes its own ext4)
    FlushTimes,
    /// Transactions over two files and small commits on byte-addressable memory, for which tmpfs stands in, over the time of
    /// a flushed line
    Nvm,
    /// Files on a mounted store (root only; untorn-mount must be beside this program)
    Mount,
    /// Unchanged programs under untorn preload (`untorn` and its library must be beside this program)
    Preload,
    /// Transactions of SQLite with the extension, against its own WAL and rollback journal (`libuntorn_sqlite.so` must be
    /// beside this program)
    Sqlite,
    /// Stores that are shipped: commits, answers that wait for the bucket, restores (`untorn-ship` must be beside this
    /// program)
    Ship,
    /// All benchmarks, each on the file systems for which its figures differ, with fewer runs of kv and no think time: at
    /// most 90 minutes. One that this machine lacks something for is skipped
    All,
}

/// The benchmarks of `all`, and the file systems that each runs on if the command line names none.
///
/// Planned for 90 minutes at most, on an idle machine; the report has the time of each.
pub const ALL: [(Benchmark, &[FileSystem]); 22] = [
    (Benchmark::Commit, &[Ext4, Xfs, Btrfs]),
    (Benchmark::Threads, &[Xfs]),
    (Benchmark::Append, &[Xfs]),
    (Benchmark::Syncv, &[Ext4, Xfs, Btrfs]),
    (Benchmark::Msync, &[Xfs]),
    (Benchmark::MsyncLarge, &[Xfs]),
    (Benchmark::HeapLarge, &[Xfs]),
    (Benchmark::Live, &[Ext4]),
    (Benchmark::Recovery, &[Ext4, Xfs]),
    (Benchmark::Checkpoints, &[Ext4]),
    (Benchmark::Oneshot, &[Ext4, Xfs, Btrfs]),
    (Benchmark::Readers, &[Ext4, Xfs]),
    (Benchmark::Kv, &[Xfs]),
    (Benchmark::KvLarge, &[Xfs]),
    (Benchmark::KvOpen, &[Xfs]),
    (Benchmark::Xsync, &[Ext4]),
    (Benchmark::FlushTimes, &[Ext4]),
    (Benchmark::Nvm, &[Ext4]),
    (Benchmark::Mount, &[Ext4, Xfs]),
    (Benchmark::Preload, &[Ext4, Xfs]),
    (Benchmark::Sqlite, &[Ext4, Xfs]),
    (Benchmark::Ship, &[Xfs]),
];

impl Benchmark {
    /// The name on the command line.
    pub fn name(self) -> String {
        self.to_possible_value().expect("no benchmark is hidden").get_name().to_owned()
    }

    /// Whether the benchmark makes its own disks, so that it runs once, whatever the places.
    pub fn is_on_own_disks(self) -> bool {
        matches!(self, Benchmark::FlushTimes | Benchmark::Nvm)
    }

    /// Measures at a place.
    pub fn sections(self, run: &Run, place: &Place) -> Result<Vec<Section>> {
        Ok(match self {
            Benchmark::Commit => commits::run(run, place)?,
            Benchmark::Threads => threads::run(run, place)?,
            Benchmark::Append => vec![append::run(run, place)?, in_order::run(run, place)?],
            Benchmark::Syncv => vec![syncv::run(run, place)?],
            Benchmark::Msync => msync::run(run, place)?,
            Benchmark::MsyncLarge => msync_large::run(run, place)?,
            Benchmark::HeapLarge => heap_large::run(run, place)?,
            Benchmark::Live => live::run(run, place)?,
            Benchmark::Recovery => vec![recovery_time::run(run, place)?],
            Benchmark::Checkpoints => checkpoints::run(run, place)?,
            Benchmark::Oneshot => vec![oneshot::run(run, place)?],
            Benchmark::Readers => {
                let mut sections = reader_costs::run(run, place)?;
                sections.extend(kv::snapshot_costs::run(run, place)?);
                sections
            }
            Benchmark::Kv => kv::run(run, place)?,
            Benchmark::KvLarge => vec![kv::large::run(run, place)?],
            Benchmark::KvOpen => vec![kv::first::run(run, place)?],
            Benchmark::FlushTimes => flush_times::run(run)?,
            Benchmark::Nvm => nvm::run(run)?,
            Benchmark::Mount => {
                let mut sections = vec![mounted::run(run, place)?, mounted_programs::run(run, place)?];
                sections.extend(mariadb::run(run, place)?);
                if run.peers {
                    sections.extend(fuse_peers::run(run, place)?);
                }
                sections
            }
            Benchmark::Preload => programs::run(run, place)?,
            Benchmark::Ship => shipping::run(run, place)?,
            Benchmark::Sqlite => transactions::run(run, place)?,
            Benchmark::Xsync => xsync::run(run, place)?,
            Benchmark::All => unreachable!("All stands for the others"),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_has_every_benchmark_once() {
        let every = Benchmark::value_variants().iter().filter(|benchmark| **benchmark != Benchmark::All);
        for benchmark in every.clone() {
            assert_eq!(ALL.iter().filter(|(planned, _)| planned == benchmark).count(), 1, "{benchmark:?}");
        }
        assert_eq!(ALL.len(), every.count());
        assert!(ALL.iter().all(|(_, file_systems)| !file_systems.is_empty()));
    }
}
