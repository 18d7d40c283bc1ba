//! Standard streams of the supervisor, as somebody outside made them: full, unread, or not wanting to wait.

use rustix::fs::{FileType, OFlags, fcntl_getfl, fstat, major, minor, readlink};
use rustix::io::Errno;
use std::fmt::Display;
use std::os::fd::{AsRawFd, BorrowedFd};

/// Says something to people, after the program's name. What cannot be said ends nobody: the session goes on.
pub fn tell(message: impl Display) {
    untorn_terminal::tell!("untorn-xsync: {message}");
}

/// As [`tell`], lines as they are.
pub fn tell_text(text: &str) {
    untorn_terminal::tell!("{text}");
}

/// Whether nothing comes from it, and nothing is kept: `/dev/null`, or a descriptor that is closed.
pub fn is_null(descriptor: BorrowedFd<'_>) -> bool {
    let stat = match fstat(descriptor) {
        Ok(stat) => stat,
        // Others may not be asked about, and yet written to: files of somebody else's FUSE.
        Err(e) => return e == Errno::BADF,
    };
    let device = FileType::from_raw_mode(stat.st_mode) == FileType::CharacterDevice;
    device && (major(stat.st_rdev), minor(stat.st_rdev)) == (1, 3)
}

/// Whether what is written to both goes to one pipe or file, where the order is to be seen.
pub fn are_one_target(a: BorrowedFd<'_>, b: BorrowedFd<'_>) -> bool {
    let what = |descriptor: BorrowedFd<'_>| {
        let stat = fstat(descriptor).ok()?;
        // Some file systems give one number to several files.
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
