//! Explains to users why a session ran out of room (ENOSPC).
//!
//! Programs cannot know the cause: all that they write goes to a volume, and an overlay copies a whole file there
//! before the first write to it.

use crate::host::outer_streams::tell;
use rustix::fs::statvfs;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// The most names that are examined. The user waits for the exit code meanwhile.
const NAMES_MAX: usize = 100_000;
const MIB: u64 = 1 << 20;

/// Prints the cause, if one is found, for a session that ended with this exit code. `way` says how to get more room.
pub fn tell_the_cause(volume: &Path, dirs: &[PathBuf], code: u8, way: &str) {
    let Ok(stat) = statvfs(volume) else { return };
    let (room, all) = (stat.f_bavail * stat.f_frsize, stat.f_blocks * stat.f_frsize);
    if stat.f_bavail < stat.f_blocks / 100 || stat.f_favail == 0 {
        return tell(format_args!(
            "the session's {} MiB are full: all further writes failed (ENOSPC); {way}",
            all / MIB
        ));
    }
    let Some((path, bytes)) = (code != 0).then(|| larger_than(room, dirs)).flatten() else { return };
    tell(format_args!(
        "{} ({} MiB) is larger than the session's room ({} MiB): opening it for writing copies it first, and fails (ENOSPC); \
         {way}",
        path.display(),
        bytes / MIB,
        room / MIB
    ));
}

/// Finds a file that is larger than the room.
fn larger_than(room: u64, dirs: &[PathBuf]) -> Option<(PathBuf, u64)> {
    let (mut left, mut looked_at) = (dirs.to_vec(), 0);
    while let Some(dir) = left.pop() {
        for entry in fs::read_dir(&dir).into_iter().flatten().flatten() {
            let Ok(meta) = entry.metadata() else { continue };
            looked_at += 1;
            // Holes are copied as holes.
            let bytes = meta.blocks() * 512;
            match meta.is_file() {
                true if bytes > room => return Some((entry.path(), bytes)),
                _ if looked_at > NAMES_MAX => return None,
                _ if meta.is_dir() => left.push(entry.path()),
                _ => {}
            }
        }
    }
    None
}
