//! Paths in a bucket, which may be hostile: names beneath the directory, and none of Untorn's own.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// The longest path.
pub const PATH_BYTES_MAX: usize = 4095;

/// The file of a following directory that says where it stands.
pub const REPLICA: &str = ".untorn-replica";

/// The file of a following directory with its owner id.
pub const REPLICA_OWNER: &str = ".untorn-replica-owner";

/// A path beneath a directory, as it is written in a bucket.
///
/// # Errors
/// It could lead out of the directory, or names a file of Untorn's.
pub fn checked(bytes: &[u8]) -> Result<PathBuf, String> {
    let path = || String::from_utf8_lossy(&bytes[..bytes.len().min(200)]).into_owned();
    if bytes.is_empty() || bytes.len() > PATH_BYTES_MAX || bytes.contains(&0) {
        return Err(format!("a path of {} bytes is none", bytes.len()));
    }
    for part in bytes.split(|byte| *byte == b'/') {
        if part.is_empty() || part == b"." || part == b".." {
            return Err(format!("the path {:?} is not one beneath a directory", path()));
        }
        if is_own(part) {
            return Err(format!("the path {:?} is one of Untorn's own files", path()));
        }
    }
    Ok(PathBuf::from(OsStr::from_bytes(bytes)))
}

/// Whether the name is one of Untorn's own, which are never shipped and never restored.
pub fn is_own(name: &[u8]) -> bool {
    name.ends_with(b".untorn") || name == REPLICA.as_bytes() || name == REPLICA_OWNER.as_bytes()
}

/// Whether a part of a path is one of Untorn's own names.
pub fn has_own_part(path: &Path) -> bool {
    path.iter().any(|part| is_own(part.as_bytes()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_names_beneath_the_directory_are_paths() {
        for good in ["a", "a/b", ".hidden", "a.untorn.txt", "..a/b.."] {
            assert_eq!(checked(good.as_bytes()).unwrap().as_os_str(), good);
        }
        let long = "a/".repeat(PATH_BYTES_MAX) + "a";
        for bad in ["", "/", "/etc/passwd", "..", "a/../b", "a//b", "a/", "./a", "a\0", ".untorn", ".untorn/journal"] {
            assert!(checked(bad.as_bytes()).is_err(), "{bad:?}");
        }
        for bad in ["db.untorn/journal", "a/.untorn/lock", ".untorn-replica", long.as_str()] {
            assert!(checked(bad.as_bytes()).is_err(), "{bad:?}");
        }
    }
}
