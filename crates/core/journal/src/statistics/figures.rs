//! The block of figures that an owner writes behind the readers' page.
//!
//! The owner replaces it as a whole, without a flush. A watcher that reads it meanwhile finds a wrong checksum, and
//! reads it again.

use crate::format::{crc64, u32_at, u64_at};
use crate::statistics::histogram::{BUCKETS, Histogram};

/// First bytes of the block.
pub const FIGURES_MAGIC: &[u8; 8] = b"UNTORN-F";
/// Version of the block. A watcher ignores a block of another version.
pub const FIGURES_VERSION: u32 = 1;
/// Bytes before the figures.
pub const FIGURES_HEAD_BYTES: usize = 24;
/// Bytes of a histogram: the sum of its durations, and its counts.
pub const HISTOGRAM_BYTES: usize = 8 + 8 * BUCKETS;
/// Bytes of the whole block.
pub const FIGURES_BYTES: usize = FIGURES_HEAD_BYTES + 8 * Figure::ALL.len() + HISTOGRAM_BYTES * Stage::ALL.len() + 8;

/// A number in the block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Figure {
    /// How often this opening has written the block.
    Publication,
    /// The owner's process.
    Pid,
    /// The epoch of the opening.
    Epoch,
    /// Nanoseconds from the opening to this publication.
    OpenNs,
    /// Commits since the opening.
    Commits,
    /// Groups of commits that shared a flush.
    Groups,
    /// Commits that waited for a checkpoint.
    Waited,
    /// Checkpoints since the opening.
    Checkpoints,
    /// Flushes of any kind.
    Syncs,
    /// Bytes written to any file.
    BytesWritten,
    /// Bytes written to the journal and its spill files.
    JournalBytesWritten,
    /// The last durable commit.
    Lsn,
    /// Limit for the bytes of the journal.
    JournalBytesMax,
    /// Bytes of journal on the disk.
    JournalBytesAllocated,
    /// Bytes of journal that a checkpoint would free.
    JournalBytesPending,
    /// Files in the store's table.
    OpenFiles,
    /// Bytes of memory of files with commits that are not in the data files yet.
    MemoryBytes,
    /// Quarantined files and directories.
    Quarantined,
    /// Commits that readers hold.
    Held,
    /// Bytes that are kept for readers.
    KeptBytes,
    /// 1 if the store takes no more commits.
    Failed,
}

impl Figure {
    /// All figures, in their order in the block.
    pub const ALL: [Figure; 21] = [
        Figure::Publication,
        Figure::Pid,
        Figure::Epoch,
        Figure::OpenNs,
        Figure::Commits,
        Figure::Groups,
        Figure::Waited,
        Figure::Checkpoints,
        Figure::Syncs,
        Figure::BytesWritten,
        Figure::JournalBytesWritten,
        Figure::Lsn,
        Figure::JournalBytesMax,
        Figure::JournalBytesAllocated,
        Figure::JournalBytesPending,
        Figure::OpenFiles,
        Figure::MemoryBytes,
        Figure::Quarantined,
        Figure::Held,
        Figure::KeptBytes,
        Figure::Failed,
    ];
}

/// A part of the time that a commit or a checkpoint takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// A commit, from the call until it is durable.
    Commit,
    /// The commit waits in the queue, for the group before it.
    Queue,
    /// The attributes of files that have their first commit are flushed.
    Attributes,
    /// The records of a group are written.
    Write,
    /// The group is flushed.
    Flush,
    /// A group waits for a checkpoint, because the journal is full.
    Room,
    /// A checkpoint.
    Checkpoint,
}

impl Stage {
    /// All stages, in their order in the block.
    pub const ALL: [Stage; 7] =
        [Stage::Commit, Stage::Queue, Stage::Attributes, Stage::Write, Stage::Flush, Stage::Room, Stage::Checkpoint];
}

/// The contents of a block.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Figures {
    numbers: [u64; Figure::ALL.len()],
    stages: [Histogram; Stage::ALL.len()],
}

impl Figures {
    /// A number.
    pub fn number(&self, figure: Figure) -> u64 {
        self.numbers[figure as usize]
    }

    /// Sets a number.
    pub fn set(&mut self, figure: Figure, number: u64) {
        self.numbers[figure as usize] = number;
    }

    /// The durations of a stage.
    pub fn stage(&self, stage: Stage) -> &Histogram {
        &self.stages[stage as usize]
    }

    /// The durations of a stage, to count more.
    pub fn stage_mut(&mut self, stage: Stage) -> &mut Histogram {
        &mut self.stages[stage as usize]
    }

    /// The bytes of the block, behind the page of this chain.
    pub fn encode(&self, chain: u64) -> Vec<u8> {
        let mut b = Vec::with_capacity(FIGURES_BYTES);
        b.extend_from_slice(FIGURES_MAGIC);
        b.extend_from_slice(&FIGURES_VERSION.to_le_bytes());
        b.extend_from_slice(&(FIGURES_BYTES as u32).to_le_bytes());
        b.extend_from_slice(&chain.to_le_bytes());
        self.numbers.iter().for_each(|number| b.extend_from_slice(&number.to_le_bytes()));
        for stage in &self.stages {
            b.extend_from_slice(&stage.sum_ns().to_le_bytes());
            stage.counts().iter().for_each(|count| b.extend_from_slice(&count.to_le_bytes()));
        }
        b.extend_from_slice(&crc64(&b).to_le_bytes());
        debug_assert_eq!(b.len(), FIGURES_BYTES);
        b
    }

    /// Reads a block of this chain. `None` if the block is of another chain or version, or is being written.
    pub fn decode(b: &[u8; FIGURES_BYTES], chain: u64) -> Option<Figures> {
        let is_ours = &b[..8] == FIGURES_MAGIC && u32_at(b, 8) == FIGURES_VERSION && u64_at(b, 16) == chain;
        if !is_ours || u64_at(b, FIGURES_BYTES - 8) != crc64(&b[..FIGURES_BYTES - 8]) {
            return None;
        }
        let mut numbers = (FIGURES_HEAD_BYTES..).step_by(8).map(|at| u64_at(b, at));
        let mut next = || numbers.next().expect("an endless run");
        Some(Figures {
            numbers: std::array::from_fn(|_| next()),
            stages: std::array::from_fn(|_| {
                let sum_ns = next();
                Histogram::new((0..BUCKETS).map(|_| next()).collect(), sum_ns)
            }),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn figures_and_stages_are_in_the_order_of_the_block() {
        assert!(Figure::ALL.iter().enumerate().all(|(n, figure)| *figure as usize == n));
        assert!(Stage::ALL.iter().enumerate().all(|(n, stage)| *stage as usize == n));
    }

    #[test]
    fn a_block_is_read_as_it_was_written() {
        let mut figures = Figures::default();
        Figure::ALL.into_iter().for_each(|figure| figures.set(figure, 7 + figure as u64));
        for stage in Stage::ALL {
            figures.stage_mut(stage).note(Duration::from_micros(10 << stage as u32));
        }
        let block: [u8; FIGURES_BYTES] = figures.encode(5).try_into().unwrap();
        assert_eq!(Figures::decode(&block, 5), Some(figures));
        assert_eq!(Figures::decode(&block, 6), None, "of another chain");
        for at in [0, 8, 100, FIGURES_BYTES - 1] {
            let mut torn = block;
            torn[at] ^= 1;
            assert_eq!(Figures::decode(&torn, 5), None, "byte {at} differs");
        }
    }
}
