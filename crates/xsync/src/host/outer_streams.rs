//! The supervisor's standard streams, which belong to the outside and may be full, unread or non-blocking.

use rustix::fs::{FileType, OFlags, fcntl_getfl, fstat, major, minor, readlink};
use rustix::io::Errno;
use std::fmt::Display;
use std::os::fd::{AsRawFd, BorrowedFd};

/// Prints a message for people, after the program's name. If that fails, the session goes on.
pub fn tell(message: impl Display) {
    untorn_terminal::tell!("untorn-xsync: {message}");
}

/// Prints lines without the program's name.
pub fn tell_text(text: &str) {
    untorn_terminal::tell!("{text}");
}

/// Whether a stream discards everything: it is `/dev/null`, or closed.
pub fn is_null(descriptor: BorrowedFd<'_>) -> bool {
    let stat = match fstat(descriptor) {
        Ok(stat) => stat,
        // Another error is no proof: a file in another user's FUSE mount cannot be examined, but can be written to.
        Err(e) => return e == Errno::BADF,
    };
    let device = FileType::from_raw_mode(stat.st_mode) == FileType::CharacterDevice;
    device && (major(stat.st_rdev), minor(stat.st_rdev)) == (1, 3)
}

/// Whether two descriptors write to the same pipe or file, where the order of the output can be seen.
pub fn are_one_target(a: BorrowedFd<'_>, b: BorrowedFd<'_>) -> bool {
    let what = |descriptor: BorrowedFd<'_>| {
        let stat = fstat(descriptor).ok()?;
        // The name is compared, too, because some file systems give one inode number to several files.
        let name = readlink(format!("/proc/self/fd/{}", descriptor.as_raw_fd()), Vec::new()).ok()?;
        let written = fcntl_getfl(descriptor).is_ok_and(|flags| flags & OFlags::ACCMODE != OFlags::RDONLY);
        written.then_some((stat.st_dev, stat.st_ino, name))
    };
    what(a).is_some_and(|a| what(b) == Some(a))
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::pipe::{PipeFlags, pipe_with};
    use std::fs::File;
    use std::os::fd::AsFd;

    #[test]
    fn targets_are_told_apart() {
        let dir = tempfile::tempdir().unwrap();
        let file = |name: &str| File::options().create(true).append(true).open(dir.path().join(name)).unwrap();
        let one = |a: &File, b: &File| are_one_target(a.as_fd(), b.as_fd());
        let (first, again, other) = (file("a"), file("a"), file("b"));
        assert!(one(&first, &again) && one(&first, &first.try_clone().unwrap()) && !one(&first, &other));
        assert!(!one(&first, &File::open(dir.path().join("a")).unwrap()), "nobody writes to that one");
        let (pipe, another) = (pipe_with(PipeFlags::CLOEXEC).unwrap(), pipe_with(PipeFlags::CLOEXEC).unwrap());
        assert!(are_one_target(pipe.1.as_fd(), pipe.1.try_clone().unwrap().as_fd()));
        assert!(!are_one_target(pipe.1.as_fd(), another.1.as_fd()));
    }
}
