//! Patterns of the paths of files that the program wants to be managed.

use std::ffi::{CString, OsStr};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Once;

use super::append_list::AppendList;
use super::posix_descriptor::failure;
use super::settings;
use crate::boundary::error::Result;

static PATTERNS: AppendList<CString> = AppendList::new();

/// Patterns of the environment, separated by colons.
const VARIABLE: &str = "UNTORN_MANAGE";

fn read_environment() {
    static ONCE: Once = Once::new();
    if ONCE.is_completed() {
        return;
    }
    ONCE.call_once(|| settings::list(VARIABLE).iter().for_each(|pattern| _ = insert(pattern.as_bytes())));
}

/// Adds a pattern. A relative pattern with a slash is resolved against the present working directory.
pub(crate) fn add(pattern: &[u8]) -> Result<()> {
    read_environment();
    insert(pattern)
}

fn insert(pattern: &[u8]) -> Result<()> {
    let mut whole = pattern.to_vec();
    if pattern.contains(&b'/') && !pattern.starts_with(b"/") {
        let here = std::env::current_dir()
            .map_err(|e| failure(libc::ENOENT, format!("the working directory of a relative pattern: {e}")))?;
        let pattern = pattern.strip_prefix(b"./").unwrap_or(pattern);
        whole = here.join(OsStr::from_bytes(pattern)).into_os_string().into_encoded_bytes();
    }
    let whole = CString::new(whole).map_err(|_| failure(libc::EINVAL, "a pattern with NUL in it"))?;
    PATTERNS.add(whole);
    Ok(())
}

fn all() -> impl Iterator<Item = &'static CString> {
    read_environment();
    PATTERNS.iter()
}

/// Whether the program has given any pattern.
pub(crate) fn is_any() -> bool {
    all().next().is_some()
}

/// Whether an absolute path belongs to a file that the program wants to be managed. A pattern without a slash is
/// matched against the file's name.
pub(crate) fn match_path(path: &Path) -> bool {
    all().any(|pattern| {
        let whole = pattern.as_bytes().contains(&b'/');
        let text = if whole { Some(path.as_os_str()) } else { path.file_name() };
        let Some(text) = text.and_then(|text| CString::new(text.as_bytes()).ok()) else { return false };
        // SAFETY: both end in NUL.
        unsafe { libc::fnmatch(pattern.as_ptr(), text.as_ptr(), if whole { libc::FNM_PATHNAME } else { 0 }) == 0 }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_match_names_or_whole_paths() {
        assert!(!match_path(Path::new("/data/t1.pattern")));
        add(b"*.pattern").unwrap();
        add(b"/data/x?/f").unwrap();
        assert!(is_any() && match_path(Path::new("/data/t1.pattern")) && match_path(Path::new("/data/x1/f")));
        assert!(!match_path(Path::new("/data/x1/y/f")) && !match_path(Path::new("/data/f")));
        add(b"./under/*").unwrap();
        assert!(match_path(&std::env::current_dir().unwrap().join("under/f")));
        assert!(add(b"a\0b").is_err());
    }
}
