//! Other processes, as seen in `/proc`.

use rustix::fs::{Stat, stat};
use std::fs::{read_dir, read_to_string};
use std::io::ErrorKind;

/// Whether the process with this id, in the pid namespace of this one, has a file open. `None` if this process may not
/// know. Only processes of the file's owner are considered.
pub(crate) fn has_open(pid: u32, file: &Stat) -> Option<bool> {
    let status = match read_to_string(format!("/proc/{pid}/status")) {
        Ok(status) => status,
        // `/proc` may be missing, or hide processes of other users.
        Err(e) if e.kind() == ErrorKind::NotFound => {
            let user = rustix::process::geteuid();
            let sees_it = user.is_root() || user.as_raw() == file.st_uid;
            return (sees_it && read_to_string("/proc/self/status").is_ok()).then_some(false);
        }
        Err(_) => return None,
    };
    let mut lines = status.lines();
    let effective_user = lines.find_map(|line| line.strip_prefix("Uid:"))?.split_whitespace().nth(1)?;
    if effective_user.parse() != Ok(file.st_uid) {
        return Some(false);
    }
    let is_it = |path| stat(path).is_ok_and(|found: Stat| (found.st_dev, found.st_ino) == (file.st_dev, file.st_ino));
    Some(read_dir(format!("/proc/{pid}/fd")).ok()?.flatten().any(|entry| is_it(entry.path())))
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fs::fstat;
    use std::process::{Command, Stdio};

    #[test]
    fn who_has_a_file_open_is_seen() {
        let file = tempfile::tempfile().unwrap();
        let of = fstat(&file).unwrap();
        assert_eq!(has_open(std::process::id(), &of), Some(true));
        let mut child = Command::new("cat").stdin(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap();
        assert_eq!(has_open(child.id(), &of), Some(false));
        drop(child.stdin.take());
        child.wait().unwrap();
        assert_eq!(has_open(child.id(), &of), Some(false), "it is gone");
        let mut with_it = Command::new("cat");
        let mut with_it = with_it.stdin(Stdio::piped()).stdout(file.try_clone().unwrap()).spawn().unwrap();
        assert_eq!(has_open(with_it.id(), &of), Some(true));
        drop(with_it.stdin.take());
        with_it.wait().unwrap();
    }
}
