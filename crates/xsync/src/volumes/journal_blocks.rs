//! Writes the blocks of a volume's journal once, before they are used.
//!
//! Allocated blocks that were never written have a special state in the file system that holds the image. The first
//! write to such a block changes that file system's metadata, and the next flush waits for its journal, too. Once the
//! blocks of the volume's journal are written, a commit costs a tenth of that.

use anyhow::{Context, Result, ensure};
use std::fs::File;
use std::ops::Range;
use std::os::unix::fs::FileExt;

/// The number of bytes that are copied at a time.
const PIECE_BYTES: u64 = 1 << 20;

/// Reads the blocks in `list`, the output of debugfs, and writes them back, up to `bytes_max` bytes.
pub fn write_back(image: &File, list: &str, block_bytes: u64, bytes_max: u64) -> Result<()> {
    let mut left = bytes_max;
    let mut buffer = vec![0; PIECE_BYTES as usize];
    for run in runs(list)? {
        let (mut at, end) = (run.start * block_bytes, run.end * block_bytes);
        while at < end && left > 0 {
            let piece = &mut buffer[..PIECE_BYTES.min(end - at).min(left) as usize];
            image.read_exact_at(piece, at).context("the volume's journal")?;
            image.write_all_at(piece, at).context("the volume's journal")?;
            at += piece.len() as u64;
            left -= piece.len() as u64;
        }
    }
    Ok(())
}

/// Joins consecutive blocks.
fn runs(list: &str) -> Result<Vec<Range<u64>>> {
    let mut runs: Vec<Range<u64>> = Vec::new();
    for number in list.split_whitespace() {
        let block: u64 = number.parse().with_context(|| format!("debugfs lists a block {number:?}"))?;
        match runs.last_mut() {
            Some(run) if run.end == block => run.end += 1,
            _ => runs.push(block..block + 1),
        }
    }
    ensure!(!runs.is_empty(), "debugfs lists no blocks of the volume's journal");
    Ok(runs)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_are_written_back_as_they_are() {
        let file = tempfile::tempfile().unwrap();
        file.set_len(64 << 10).unwrap();
        file.write_all_at(b"superblock", 4096).unwrap();
        let allocated = || rustix::fs::fstat(&file).unwrap().st_blocks * 512;
        let before = allocated();
        write_back(&file, "1 2 3 8 9 \n", 4096, 4 * 4096).unwrap();
        assert_eq!(allocated() - before, 3 * 4096, "blocks 2, 3 and 8, and not 9");
        let mut kept = [0; 10];
        file.read_exact_at(&mut kept, 4096).unwrap();
        assert_eq!(&kept, b"superblock");
        assert!(runs("").is_err() && runs("1 x").is_err());
        assert_eq!(runs("5 6 7 9").unwrap(), [5..8, 9..10]);
    }
}
