//! Examines which users may write here, and whether Untorn would trust their journal.

use super::finding::Finding;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use untorn_terminal::Failure;

const OTHERS_WRITE: u32 = 0o022;
const STICKY: u32 = 0o1000;

/// Examines the owner of the data, and whether other users may write the directory.
pub fn directory(path: &Path, dir: &Path) -> Result<Vec<Finding>, Failure> {
    let failed = |e| Failure::io("look at", dir, e);
    let meta = dir.metadata().map_err(failed)?;
    // A standalone file's owner becomes the owner of its store. A file that does not exist yet will be ours.
    let me = rustix::process::geteuid().as_raw();
    let owner = if path.is_dir() { meta.uid() } else { path.metadata().map_or(me, |m| m.uid()) };
    let found = Finding::new("owner", format!("user {owner}"));
    let mut findings = vec![if owner == me {
        found
    } else if me == 0 {
        found.note("you are root: a store is made on that user's behalf")
    } else {
        found.rules_out(format!("only user {owner}, or root, may make a store here; you are user {me}"))
    }];
    let mode = meta.mode() & 0o7777;
    if mode & OTHERS_WRITE != 0 {
        let found = Finding::new("directory mode", format!("{mode:04o}"));
        findings.push(found.note(if mode & STICKY != 0 {
            "others may create files here, but not change yours"
        } else {
            "others may rename and remove files here, a store included; they cannot write into it"
        }));
    }
    Ok(findings)
}

/// Whether Untorn would trust the journal that is here.
pub fn journal(journal: &Path) -> Option<Finding> {
    let meta = journal.symlink_metadata().ok()?;
    let me = rustix::process::geteuid().as_raw();
    let mode = meta.mode() & 0o7777;
    let found = Finding::new("journal directory", format!("user {}, mode {mode:04o}", meta.uid()));
    Some(if meta.is_symlink() || !meta.is_dir() {
        found.rules_out("it is not a directory; another user put it here")
    } else if meta.uid() != me && meta.uid() != 0 {
        found.rules_out("it belongs to another user, so Untorn does not trust it")
    } else if mode & 0o077 != 0 {
        found.rules_out("other users have access to it; its mode must be 0700")
    } else {
        found
    })
}
