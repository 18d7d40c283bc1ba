//! Standard input as new contents of a file: one that was closed, or cannot be read, is no empty file.

use rustix::fs::{OFlags, fcntl_getfl, fstat, major, minor};
use std::fs::File;
use std::os::fd::AsFd;
use untorn_terminal::Failure;

/// The device number of `/dev/null`.
const NULL_DEVICE: (u32, u32) = (1, 3);

/// Standard input, if it was not closed.
///
/// Before `main`, the runtime opens `/dev/null` in the place of a standard input that is closed: for reading and
/// writing. A shell's `< /dev/null` is for reading only, so that one means what it says.
pub fn open(allow_empty: bool) -> Result<File, Failure> {
    let stdin = std::io::stdin();
    let refused = |why: &str| {
        Failure::new(format!(
            "standard input {why}: there are no new contents; nothing was changed. For an empty file, say `< /dev/null` \
             or --allow-empty"
        ))
    };
    let fd = stdin.as_fd();
    let look = || -> std::io::Result<(OFlags, bool)> {
        let stat = fstat(fd)?;
        let null = rustix::fs::FileType::from_raw_mode(stat.st_mode) == rustix::fs::FileType::CharacterDevice
            && (major(stat.st_rdev), minor(stat.st_rdev)) == NULL_DEVICE;
        Ok((fcntl_getfl(fd)? & OFlags::RWMODE, null))
    };
    let (mode, null) = look().map_err(|e| refused(&format!("cannot be used ({e})")))?;
    if mode == OFlags::WRONLY {
        return Err(refused("is open for writing only"));
    }
    if null && mode == OFlags::RDWR && !allow_empty {
        return Err(refused("was closed"));
    }
    // Unlike that of the standard library, this one takes no error for the end.
    let file = fd.try_clone_to_owned().map_err(|e| refused(&format!("cannot be used ({e})")))?;
    Ok(file.into())
}
