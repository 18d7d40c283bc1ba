//! The directory of the sockets and mount points of a user's sessions.

use anyhow::{Context, Result};
use std::fs;
use std::io;
use std::path::PathBuf;
use untorn_terminal::user_namespace::is_root;

/// The directory of the sockets and mount points of this user's sessions.
pub fn home() -> Result<PathBuf> {
    if is_root() {
        return Ok(PathBuf::from("/run/untorn-xsync"));
    }
    let user = rustix::process::geteuid().as_raw();
    let is_ours = |dir: &PathBuf| {
        use std::os::unix::fs::MetadataExt;
        fs::symlink_metadata(dir).is_ok_and(|meta| meta.is_dir() && meta.uid() == user && meta.mode() & 0o022 == 0)
    };
    let runtime = std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from).filter(is_ours);
    let dir = match runtime {
        Some(runtime) => runtime.join("untorn-xsync"),
        None => PathBuf::from(format!("/tmp/untorn-xsync-{user}")),
    };
    use std::os::unix::fs::DirBuilderExt;
    match fs::DirBuilder::new().mode(0o700).create(&dir) {
        Err(e) if e.kind() != io::ErrorKind::AlreadyExists => {
            return Err(e).with_context(|| format!("cannot make {}", dir.display()));
        }
        _ => {}
    }
    anyhow::ensure!(
        is_ours(&dir),
        "{} belongs to somebody else, or others may write to it; remove it, or set XDG_RUNTIME_DIR",
        dir.display()
    );
    Ok(dir)
}
