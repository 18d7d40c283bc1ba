//! Shared read-only maps of files of the host that the session has not written yet.
//!
//! An overlay copies a file when it is first opened for writing. Maps that were made before go on showing the file of
//! the host.
//!
//! A program that locks a file expects others to write it. So its map is refused, and such programs read the file
//! instead (SQLite does). All other maps work. If the session wrote such a file later, a message names the file.

use crate::host::host_view::Written;
use crate::host::outer_streams::tell;
use crate::view::overlays::overlay_attributes;
use rustix::fs::{lgetxattr, major, minor};
use std::collections::HashMap;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// The most maps that are noted. Later ones are not reported.
const NOTED_MAX: usize = 65_536;

/// Maps of one session.
#[derive(Debug, Default)]
pub struct StaleMaps {
    written: Vec<Written>,
    /// By files of the host: the path of the session's copy, if there will be one, and whether a map was refused.
    noted: HashMap<PathBuf, (PathBuf, bool)>,
}

impl StaleMaps {
    /// Watches maps in these directories, whose changes are kept in layers.
    pub fn new(written: Vec<Written>) -> StaleMaps {
        StaleMaps { written, noted: HashMap::new() }
    }

    /// The directories whose changes are kept in layers.
    pub fn written(&self) -> &[Written] {
        &self.written
    }

    /// Whether a shared map of a descriptor that is open for reading is refused.
    pub fn refuses(&mut self, pid: u32, descriptor: i32) -> bool {
        let Ok(path) = fs::read_link(format!("/proc/{pid}/fd/{descriptor}")) else { return false };
        let Some(written) = self.written.iter().find(|written| path.starts_with(&written.dir)) else { return false };
        let upper = written.upper.join(path.strip_prefix(&written.dir).expect("it starts so"));
        if fs::symlink_metadata(&upper).is_ok() || !fs::metadata(&path).is_ok_and(|meta| meta.is_file()) {
            return false;
        }
        let refused = is_locked(pid, descriptor, &written.dir);
        if refused && !self.noted.get(&path).is_some_and(|(_, told)| *told) {
            tell(format_args!(
                "{0}: a shared map was refused (ENODEV), because it would not show later writes of the session to this \
                 file; if a program needs the map, write to the file first (`touch {0}` in the session)",
                path.display()
            ));
        }
        if self.noted.len() < NOTED_MAX {
            self.noted.entry(path).or_insert((upper, false)).1 |= refused;
        }
        refused
    }

    /// Names in a message the files that were mapped first and written later.
    pub fn tell_of_those_that_were(&self) {
        let mut stale: Vec<&PathBuf> = self.noted.iter().filter(is_stale).map(|(path, _)| path).collect();
        stale.sort();
        let Some(first) = stale.first() else { return };
        let more = match stale.len() {
            1 => String::new(),
            n => format!(" (and {} other files)", n - 1),
        };
        tell(format_args!(
            "{0}{more} was mapped by a program before the session wrote to it: the older map did not show the writes; \
             to avoid this, run `touch {0}` in the session before the file is mapped",
            first.display()
        ));
    }
}

/// Whether the session wrote a file after it was mapped. Only a copy that the overlay made has the attribute `origin`.
fn is_stale((path, (upper, refused)): &(&PathBuf, &(PathBuf, bool))) -> bool {
    let copied = lgetxattr(upper, format!("{}origin", overlay_attributes()), &mut [0; 256][..]).is_ok();
    let (Ok(before), Ok(after)) = (fs::symlink_metadata(path), fs::symlink_metadata(upper)) else { return false };
    let state = |meta: &fs::Metadata| (meta.len(), meta.mtime(), meta.mtime_nsec());
    !refused && copied && state(&before) != state(&after)
}

/// Whether any process has a lock on the file.
fn is_locked(pid: u32, descriptor: i32, dir: &Path) -> bool {
    let info = fs::read_to_string(format!("/proc/{pid}/fdinfo/{descriptor}")).unwrap_or_default();
    let number = info.lines().find_map(|line| line.strip_prefix("ino:")).map(str::trim);
    let in_session = dir.strip_prefix("/").unwrap_or(dir);
    let device = fs::metadata(Path::new(&format!("/proc/{pid}/root")).join(in_session)).map(|meta| meta.dev());
    let (Some(number), Ok(device)) = (number, device) else { return false };
    let file = format!("{:02x}:{:02x}:{number}", major(device), minor(device));
    let locks = fs::read_to_string("/proc/locks").unwrap_or_default();
    locks.lines().any(|line| line.split_whitespace().any(|word| word == file))
}
