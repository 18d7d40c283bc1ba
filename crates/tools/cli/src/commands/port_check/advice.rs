//! The behaviour of `untorn_posix.h` for each call.

use serde::Serialize;

/// The attention that a call needs, the most first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Verdict {
    /// The call bypasses the header. On a managed file it is wrong, or refused.
    Past,
    /// The call is renamed, and has a new meaning.
    Look,
    /// The call is renamed, and works as before.
    Fine,
}

impl Verdict {
    pub fn mark(self) -> char {
        match self {
            Verdict::Past => '!',
            Verdict::Look => '?',
            Verdict::Fine => ' ',
        }
    }
}

/// The header, which lists the calls that it renames.
const HEADER: &str = include_str!("../../../../../../include/untorn_posix.h");

/// Advice about calls. A call that the header renames and that is missing here works as before.
const ADVICE: &[(&[&str], Verdict, &str)] = {
    use Verdict::{Look, Past};
    &[
        (&["fsync", "fdatasync"], Look, "commits the whole file: one operation, one sync, at its end"),
        (
            &["close", "fclose"],
            Look,
            "the last one discards changes without a sync: sync before, or untorn_fd_commit_on_close()",
        ),
        (&["close_range", "closefrom"], Look, "as close; descriptors of the library's own stay open"),
        (
            &["exit", "quick_exit"],
            Look,
            "changes without a sync are discarded; synced ones are in the plain file (not after quick_exit)",
        ),
        (&["fork"], Look, "the child cannot use the parent's managed files (ECHILD)"),
        (
            &["rename", "renameat", "renameat2"],
            Look,
            "commits the file that it moves; both names are to be managed ones",
        ),
        (
            &["open", "openat", "creat", "fopen"],
            Look,
            "is the path one that untorn_manage() names? Managed: a second process gets EBUSY",
        ),
        (
            &["mkstemp", "mkostemp", "mkstemps", "mkostemps"],
            Look,
            "a file that will be renamed to a managed name is to be named, too",
        ),
        (&["fdopen"], Look, "the stream of a managed file goes through the renamed calls; fileno() is renamed, too"),
        (
            &["ftruncate", "truncate", "fallocate", "posix_fallocate"],
            Look,
            "a change like any other, until the next sync; no space is reserved",
        ),
        (&["madvise", "posix_madvise"], Look, "advice that drops pages is ignored"),
        (&["flock"], Look, "succeeds, as the process owns the file"),
        (&["munmap"], Look, "the memory stays until the file is closed"),
        (&["link", "linkat"], Past, "refused for a managed file (EPERM), which has one name: rename it"),
        (
            &["sendfile", "sendfile64", "splice", "copy_file_range"],
            Past,
            "refused for a managed file: read and write it",
        ),
        (
            &["aio_read", "aio_write", "aio_fsync", "lio_listio"],
            Past,
            "refused for a managed file: read, write and sync it",
        ),
        (&["futimens", "futimes", "utimensat", "utimes", "utime"], Past, "refused for an open managed file"),
        (&["freopen"], Past, "refused for a managed file: close the stream and open another"),
        (
            &["open_by_handle_at", "remap_file_pages", "io_setup", "io_uring_queue_init", "io_uring_queue_init_params"],
            Past,
            "does not link: it cannot be checked (UNTORN_POSIX_ALLOW_UNCHECKED, if it is not for managed files)",
        ),
        (
            &["fstream", "ifstream", "ofstream"],
            Past,
            "opens by itself: refused for an open managed file (with GNU's C++ library and libuntorn.so), else wrong",
        ),
        (&["syscall"], Past, "a system call by number is not renamed"),
        (
            &["_exit", "_Exit", "abort", "execl", "execv", "execve", "execlp", "execvp"],
            Look,
            "the file is recovered at its next opening; until then the plain file is as of the last checkpoint",
        ),
        (&["posix_spawn_file_actions_adddup2"], Look, "a managed file is EINVAL: let the program open it by its name"),
        (&["system", "popen"], Look, "the command sees the plain file, as of the last sync"),
        (
            &["posix_spawn", "posix_spawnp"],
            Look,
            "other programs see the plain file, as of the last checkpoint, also by descriptors that they inherit",
        ),
        (&["dlopen"], Look, "what is loaded is not renamed, unless it was compiled with the header"),
        (&["mprotect"], Look, "works on the one mapping of the file, and so on all of its maps"),
        (&["shm_open"], Look, "not a file that can be managed"),
    ]
};

/// The behaviour of the header for a call. None if the call does not matter.
pub fn advice(name: &str, arguments: &str) -> Option<(Verdict, &'static str)> {
    match name {
        "mmap" | "mmap64" => return Some(of_mmap(arguments)),
        "msync" => return Some(of_msync(arguments)),
        "fcntl" if arguments.contains("F_SETLK") || arguments.contains("F_OFD") => {
            return Some((
                Verdict::Look,
                "record locks stay; another process cannot open a managed file at all (EBUSY)",
            ));
        }
        "ioctl" if arguments.contains("FICLONE") => {
            return Some((Verdict::Past, "refused for a managed file: read and write it"));
        }
        _ => {}
    }
    let plain = name.strip_suffix("64").unwrap_or(name);
    match ADVICE.iter().find(|(names, ..)| names.contains(&plain)) {
        Some((_, verdict, advice)) => Some((*verdict, advice)),
        None if is_renamed(name) => Some((Verdict::Fine, "works as before")),
        None => None,
    }
}

fn is_renamed(name: &str) -> bool {
    HEADER
        .lines()
        .filter_map(|line| line.strip_prefix("#pragma redefine_extname "))
        .any(|line| line.split(' ').next() == Some(name))
}

fn of_mmap(arguments: &str) -> (Verdict, &'static str) {
    let has = |flag| arguments.contains(flag);
    if has("MAP_ANON") {
        (Verdict::Fine, "no file")
    } else if has("MAP_PRIVATE") {
        (Verdict::Past, "a private map shows the plain file, as of the last checkpoint")
    } else if has("MAP_FIXED") && !has("MAP_FIXED_NOREPLACE") {
        (Verdict::Past, "refused for a managed file (ENOTSUP): let the address be chosen")
    } else {
        (Verdict::Look, "all maps of a managed file are one; what is behind the end of the file is SIGSEGV")
    }
}

fn of_msync(arguments: &str) -> (Verdict, &'static str) {
    if arguments.contains("MS_INVALIDATE") {
        (Verdict::Look, "MS_INVALIDATE does nothing, or rolls back after untorn_invalidate_rolls_back(1)")
    } else if arguments.contains("MS_ASYNC") {
        (Verdict::Look, "starts a commit of the whole file")
    } else {
        (Verdict::Look, "commits the whole file: one operation, one sync, at its end")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every call that the header renames or refuses has a verdict, and other calls have none.
    #[test]
    fn every_renamed_call_has_a_verdict() {
        let renamed = HEADER.lines().filter_map(|line| line.strip_prefix("#pragma redefine_extname "));
        let renamed: Vec<_> = renamed.map(|line| line.split(' ').collect::<Vec<_>>()).collect();
        assert!(renamed.len() > 80, "{renamed:?}");
        for call in renamed {
            let found = advice(call[0], "");
            let refused = call[1].starts_with("untorn_posix_cannot_check_");
            assert!(found.is_some_and(|(verdict, _)| !refused || verdict == Verdict::Past), "{call:?}: {found:?}");
        }
        assert_eq!(advice("printf", ""), None);
    }
}
