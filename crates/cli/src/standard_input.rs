//! Standard input as new contents of a file: one that was closed, or cannot be read, is no empty file.

use rustix::fs::{OFlags, fcntl_getfl};
use std::os::fd::AsFd;
use untorn_terminal::standard_streams::Waiting;
use untorn_terminal::{Failure, standard_streams};

/// Standard input, if it was not closed.
pub fn open(allow_empty: bool) -> Result<Waiting, Failure> {
    let stdin = std::io::stdin();
    let refused = |why: &str| {
        Failure::new(format!(
            "standard input {why}: there are no new contents; nothing was changed. For an empty file, say `< /dev/null` \
             or --allow-empty"
        ))
    };
    let fd = stdin.as_fd();
    let mode = fcntl_getfl(fd).map_err(|e| refused(&format!("cannot be used ({e})")))?;
    if mode & OFlags::RWMODE == OFlags::WRONLY {
        return Err(refused("is open for writing only"));
    }
    if standard_streams::input_was_closed() && !allow_empty {
        return Err(refused("was closed"));
    }
    // Unlike that of the standard library, this one takes no error for the end.
    let file = fd.try_clone_to_owned().map_err(|e| refused(&format!("cannot be used ({e})")))?;
    Ok(Waiting(file.into()))
}
