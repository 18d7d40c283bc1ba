//! Standard input as the new contents of a file.
//!
//! A closed or unreadable standard input is an error, not an empty file, and so is an empty pipe.

use rustix::fs::{FileType, OFlags, fcntl_getfl, fstat};
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::AsFd;
use untorn_terminal::standard_streams::Waiting;
use untorn_terminal::{Failure, standard_streams};

/// New contents. A pipe that ends without a byte is an error unless that is allowed, because the program before it may
/// have failed.
pub struct Contents {
    file: Waiting,
    name: String,
    may_be_empty: bool,
}

impl Contents {
    /// The contents of a file that is open for reading.
    pub fn of(file: File, name: String, allow_empty: bool) -> Contents {
        let kind = fstat(&file).map(|stat| FileType::from_raw_mode(stat.st_mode));
        let is_pipe = matches!(kind, Ok(FileType::Fifo | FileType::Socket));
        Contents { file: Waiting(file), name, may_be_empty: allow_empty || !is_pipe }
    }
}

impl Read for Contents {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let n = self.file.read(buf)?;
        if n == 0 && !buf.is_empty() && !self.may_be_empty {
            return Err(io::Error::other(format!(
                "{} is a pipe that ended without a byte: the program before it may have failed. Nothing was changed; for an \
                 empty file, say --allow-empty or `< /dev/null`",
                self.name
            )));
        }
        self.may_be_empty = true;
        Ok(n)
    }
}

/// Opens standard input. Fails if it was closed.
pub fn open(allow_empty: bool) -> Result<Contents, Failure> {
    let stdin = io::stdin();
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
    // Unlike the standard library's standard input, this file does not take an error for the end.
    let file = fd.try_clone_to_owned().map_err(|e| refused(&format!("cannot be used ({e})")))?;
    Ok(Contents::of(file.into(), "standard input".to_owned(), allow_empty))
}
