//! CRC-64/NVME.
//!
//! `crc_fast` asks the processor for its instructions before its first sum. In a virtual machine each answer comes from
//! the host, and all of them take as long as a flush of a fast disk: too long for a process that commits once and ends.
//! So the first sums of a process go by tables; without the feature `fast-crc`, all do.

use crc::{CRC_64_NVME, Crc, Table};
#[cfg(feature = "fast-crc")]
use crc_fast::{CrcAlgorithm, Digest};
#[cfg(feature = "fast-crc")]
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

#[cfg(feature = "fast-crc")]
/// Bytes that still go by the tables. To sum so many takes about as long as to ask the processor.
static BY_TABLES: AtomicUsize = AtomicUsize::new(if cfg!(target_arch = "x86_64") { 64 << 10 } else { 0 });

static TABLES: Crc<u64, Table<16>> = Crc::<u64, Table<16>>::new(&CRC_64_NVME);

/// The state of the sum behind these bytes.
fn by_tables(state: u64, bytes: &[u8]) -> u64 {
    let mut digest = TABLES.digest_with_initial(state.reverse_bits());
    digest.update(bytes);
    !digest.finalize()
}

#[cfg(feature = "fast-crc")]
/// Whether so many bytes go by the tables. Once some do not, the processor was asked, and none do.
fn go_by_tables(by_tables: &AtomicUsize, bytes: usize) -> bool {
    // Threads that count at the same time lose counts, which changes no sum.
    let left = by_tables.load(Relaxed);
    if left > 0 {
        by_tables.store(left.saturating_sub(bytes), Relaxed);
    }
    bytes < left
}

/// Pieces of fewer bytes go by the tables always, which takes no longer.
#[cfg(feature = "fast-crc")]
const FEW_BYTES: usize = 128;

/// The state of a sum behind these bytes.
fn added(state: u64, bytes: &[u8]) -> u64 {
    #[cfg(feature = "fast-crc")]
    if bytes.len() >= FEW_BYTES && !go_by_tables(&BY_TABLES, bytes.len()) {
        let mut digest = Digest::new_with_init_state(CrcAlgorithm::Crc64Nvme, state);
        digest.update(bytes);
        return !digest.finalize();
    }
    by_tables(state, bytes)
}

/// CRC-64/NVME of the bytes.
pub fn crc64(bytes: &[u8]) -> u64 {
    !added(!0, bytes)
}

/// [`crc64`] of bytes that arrive piece by piece.
pub struct Crc64(u64);

impl Crc64 {
    /// The sum of no bytes.
    pub fn new() -> Crc64 {
        Crc64(!0)
    }

    /// Appends bytes to the sum.
    pub fn add(&mut self, bytes: &[u8]) {
        self.0 = added(self.0, bytes);
    }

    /// The checksum of all bytes so far.
    pub fn sum(&self) -> u64 {
        !self.0
    }
}

impl Default for Crc64 {
    fn default() -> Crc64 {
        Crc64::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_sum_is_that_of_the_catalogue() {
        assert_eq!(crc64(b"123456789"), 0xae8b_1486_0a79_9888);
        let mut pieces = Crc64::new();
        b"123456789".chunks(4).for_each(|piece| pieces.add(piece));
        assert_eq!(pieces.sum(), 0xae8b_1486_0a79_9888);
    }

    #[cfg(feature = "fast-crc")]
    #[test]
    fn both_ways_give_the_same_sums() {
        assert_eq!(!by_tables(!0, b"123456789"), 0xae8b_1486_0a79_9888);
        let bytes: Vec<u8> = (0..1000u32).map(|n| ((n * n) >> 3) as u8).collect();
        BY_TABLES.store(0, Relaxed);
        for end in 0..bytes.len() {
            let bytes = &bytes[..end];
            let fast = crc_fast::checksum(CrcAlgorithm::Crc64Nvme, bytes);
            assert_eq!(!by_tables(!0, bytes), fast);
            let mut pieces = Crc64::new();
            let (first, second) = bytes.split_at(end / 3);
            [first, second].into_iter().for_each(|piece| pieces.add(piece));
            assert_eq!((pieces.sum(), crc64(bytes)), (fast, fast));
        }
    }

    #[cfg(feature = "fast-crc")]
    #[test]
    fn many_bytes_end_the_sums_by_tables() {
        let few = AtomicUsize::new(10);
        assert!(go_by_tables(&few, 4) && go_by_tables(&few, 5));
        assert!(!go_by_tables(&few, 1) && !go_by_tables(&few, 0));
        let many = AtomicUsize::new(10);
        assert!(!go_by_tables(&many, 1 << 20) && !go_by_tables(&many, 1));
    }
}
