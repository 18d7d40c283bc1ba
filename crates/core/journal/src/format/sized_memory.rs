//! Memory whose size a caller chooses: if there is not enough, the call fails and the process continues.

use crate::error::{Error, Result};
use std::path::Path;

/// The error of an allocation that failed, for the object with this path.
pub fn none(bytes: usize, path: &Path) -> Error {
    let detail = format!("no memory for {bytes} bytes: free some, or raise the limit of this process (`ulimit -v`)");
    Error::NoMemory { path: path.to_owned(), detail }
}

/// Reserves room for this many more elements.
pub fn reserve<T>(vec: &mut Vec<T>, more: usize, path: &Path) -> Result<()> {
    vec.try_reserve_exact(more).map_err(|_| none(more.saturating_mul(size_of::<T>()), path))
}

/// Resizes a vector of bytes; new bytes are zero.
pub fn resize(bytes: &mut Vec<u8>, len: usize, path: &Path) -> Result<()> {
    reserve(bytes, len.saturating_sub(bytes.len()), path)?;
    bytes.resize(len, 0);
    Ok(())
}

/// A vector of zeros.
pub fn zeros(len: u64, path: &Path) -> Result<Vec<u8>> {
    let mut bytes = Vec::new();
    resize(&mut bytes, usize::try_from(len).unwrap_or(usize::MAX), path)?;
    Ok(bytes)
}

/// A copy of bytes.
pub fn copy(bytes: &[u8], path: &Path) -> Result<Vec<u8>> {
    let mut copy = Vec::new();
    reserve(&mut copy, bytes.len(), path)?;
    copy.extend_from_slice(bytes);
    Ok(copy)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_there_is_no_memory_for_is_an_error() {
        let path = Path::new("file");
        for done in [zeros(u64::MAX, path), zeros(1 << 60, path)] {
            assert!(matches!(done, Err(Error::NoMemory { .. })), "{done:?}");
        }
        let mut bytes = copy(b"abc", path).expect("three bytes");
        assert!(resize(&mut bytes, usize::MAX, path).is_err() && bytes == b"abc");
        resize(&mut bytes, 4, path).expect("a byte");
        assert_eq!(bytes, b"abc\0");
        assert!(reserve(&mut Vec::<u64>::new(), usize::MAX / 4, path).is_err());
    }
}
