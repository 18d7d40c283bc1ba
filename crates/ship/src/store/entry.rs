//! The metadata of a snapshot's pieces: the same files have the same pieces on every machine.
//!
//! ```text
//! about    version u8 = 1, kind u8 (1: directory, 2: file, 3: contents of the file before it, 4: standalone file),
//!          of directories and files: mode u32, length u64, length of the path u16, path
//!          of contents: offset u64
//! ```
//!
//! A file's piece is followed by its contents, in blocks of [`PIECE_BYTES_MAX`]. Blocks of zeros are left out.

use crate::interface::{PIECE_BYTES_MAX, Piece};
use crate::store::paths::checked;
use bytes::Bytes;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

const VERSION: u8 = 1;
const FILE_BYTES_MAX: u64 = i64::MAX as u64;

/// The metadata of a piece.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum About {
    /// A directory: path, permission bits.
    Directory(PathBuf, u32),
    /// A file: path, permission bits, length.
    File(PathBuf, u32, u64),
    /// The file of a store that has this file only.
    Standalone(PathBuf, u32, u64),
    /// Contents of the last file from this offset on.
    Contents(u64),
}

impl About {
    /// The piece with this metadata.
    pub fn piece(&self, data: Bytes) -> Piece {
        let mut about = vec![VERSION];
        match self {
            About::Directory(path, mode) => named(&mut about, 1, path, *mode, 0),
            About::File(path, mode, len) => named(&mut about, 2, path, *mode, *len),
            About::Standalone(path, mode, len) => named(&mut about, 4, path, *mode, *len),
            About::Contents(offset) => {
                about.push(3);
                about.extend(offset.to_le_bytes());
            }
        }
        Piece { about: about.into(), data }
    }

    /// Reads the metadata of a piece, which may be hostile.
    ///
    /// # Errors
    /// The reason why nobody can have written it.
    pub fn of(piece: &Piece) -> Result<About, String> {
        let short = || "a piece of a snapshot is too short".to_owned();
        let bytes = &piece.about[..];
        let (head, rest) = bytes.split_at_checked(2).ok_or_else(short)?;
        let kind = match head {
            [VERSION, kind] => *kind,
            _ => return Err("a piece of a snapshot has an unknown version: use a newer Untorn".into()),
        };
        if kind == 3 {
            let offset = u64::from_le_bytes(rest.try_into().map_err(|_| short())?);
            let is_there = offset.is_multiple_of(PIECE_BYTES_MAX as u64) && offset < FILE_BYTES_MAX;
            let has_data = (1..=PIECE_BYTES_MAX).contains(&piece.data.len());
            return match is_there && has_data {
                true => Ok(About::Contents(offset)),
                false => Err(format!("{} bytes at {offset} are no block of a file", piece.data.len())),
            };
        }
        let (fixed, path) = rest.split_at_checked(14).ok_or_else(short)?;
        let mode = u32::from_le_bytes(fixed[..4].try_into().map_err(|_| short())?);
        let len = u64::from_le_bytes(fixed[4..12].try_into().map_err(|_| short())?);
        let path_len = u16::from_le_bytes(fixed[12..].try_into().map_err(|_| short())?);
        if usize::from(path_len) != path.len() || mode > 0o7777 || len > FILE_BYTES_MAX || !piece.data.is_empty() {
            return Err("a file of a snapshot has impossible metadata".into());
        }
        let path = checked(path)?;
        match kind {
            1 if len == 0 => Ok(About::Directory(path, mode)),
            2 => Ok(About::File(path, mode, len)),
            4 if path.components().count() == 1 => Ok(About::Standalone(path, mode, len)),
            _ => Err(format!("a piece of a snapshot has the unknown kind {kind}")),
        }
    }
}

fn named(about: &mut Vec<u8>, kind: u8, path: &Path, mode: u32, len: u64) {
    let path = path.as_os_str().as_bytes();
    about.push(kind);
    about.extend(mode.to_le_bytes());
    about.extend(len.to_le_bytes());
    about.extend((path.len() as u16).to_le_bytes());
    about.extend(path);
}

/// Whether all bytes are zero.
pub fn is_zero(bytes: &[u8]) -> bool {
    bytes.iter().all(|byte| *byte == 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn metadata_comes_back() {
        let all = [
            About::Directory("a".into(), 0o755),
            About::File("a/b".into(), 0o640, 1 << 40),
            About::Standalone("a.db".into(), 0o640, 1),
            About::Contents(3 * PIECE_BYTES_MAX as u64),
        ];
        for about in all {
            let data = if matches!(about, About::Contents(_)) { Bytes::from_static(b"x") } else { Bytes::new() };
            assert_eq!(About::of(&about.piece(data)).unwrap(), about);
        }
    }

    #[test]
    fn hostile_metadata_is_refused() {
        let none = Bytes::new;
        let bad = [
            About::File("../a".into(), 0o644, 1).piece(none()),
            About::File("/a".into(), 0o644, 1).piece(none()),
            About::File(".untorn/journal".into(), 0o644, 1).piece(none()),
            About::File("a".into(), 0o644, u64::MAX).piece(none()),
            About::File("a".into(), 0o100_644, 1).piece(none()),
            About::Contents(0).piece(none()),
            About::Contents(1).piece(Bytes::from_static(b"x")),
            Piece { about: Bytes::from_static(&[1, 2, 3]), data: none() },
            Piece { about: none(), data: none() },
        ];
        for piece in bad {
            assert!(About::of(&piece).is_err(), "{piece:?}");
        }
    }
}
