//! `untorn sync`: commits files by name.

use crate::mounts::mount_control;
use crate::mounts::mount_point::{self, Behind, Mounted};
use crate::mounts::mount_status;
use anyhow::{Context, Result, bail, ensure};
use rustix::fs::{Mode, OFlags};
use std::fs::File;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// Commits one file, several files of a mount in one commit, or everything on a directory's mount.
pub fn sync(paths: &[PathBuf]) -> Result<()> {
    let mounts: Vec<Mounted> = mount_point::mounts()?.into_iter().filter(Mounted::is_ours).collect();
    for path in paths {
        let shown = path.display();
        match mount_point::behind(path) {
            Behind::Answers => {}
            Behind::Dead => bail!(
                "{shown} is on a mount whose daemon has ended: nothing can be committed; `untorn status` says how to mount it \
                 again"
            ),
            Behind::Hangs => match mount_point::by_name(path)? {
                Some(mounted) => bail!("nothing of {shown} is committed now: {}", mount_point::no_answer(&mounted.at)),
                None => bail!("nothing of {shown} is committed now: its file system does not answer"),
            },
        }
        check_is_on(&mounts, path)?;
    }
    if let [path] = paths {
        return sync_one(path);
    }
    ensure!(
        paths.len() <= mount_control::MOST_FILES,
        "{} files cannot be committed as one; at most {} can",
        paths.len(),
        mount_control::MOST_FILES
    );
    let mut files = Vec::new();
    for path in paths {
        let about = opened(path)?.metadata().with_context(|| path.display().to_string())?;
        ensure!(about.is_file(), "{} is no file; give files, or one directory alone", path.display());
        files.push((about.dev(), about.ino()));
    }
    for (path, file) in paths.iter().zip(&files) {
        ensure!(
            file.0 == files[0].0,
            "{} and {} are on different mounts; only files of one mount are committed as one",
            paths[0].display(),
            path.display()
        );
    }
    let real = paths[0].canonicalize().with_context(|| paths[0].display().to_string())?;
    let directory = real.parent().context("a file is in a directory")?;
    let numbers: Vec<u64> = files.iter().map(|file| file.1).collect();
    mount_control::sync_files(directory, &numbers)
}

fn sync_one(path: &Path) -> Result<()> {
    let file = opened(path)?;
    let about = file.metadata().with_context(|| path.display().to_string())?;
    if about.is_dir() {
        return match mount_control::sync_all(path) {
            Err(e) => Err(match mount_status::poisoned(path) {
                Some(files) if files.1 > 0 => e.context(mount_status::not_committed(&files)),
                _ => e,
            }),
            Ok(_) => Ok(()),
        };
    }
    // The kernel reports an earlier failed write once, without asking the daemon. The second call asks the daemon,
    // which knows whether all data has arrived.
    file.sync_all()
        .or_else(|_| file.sync_all())
        .with_context(|| format!("cannot commit {}; its last commit stands", path.display()))
}

/// Refuses a path on another file system, where a sync would commit nothing.
fn check_is_on(mounts: &[Mounted], path: &Path) -> Result<()> {
    let shown = path.display();
    let device = path.metadata().with_context(|| format!("cannot open {shown}"))?.dev();
    let is_on = mounts.iter().any(|mounted| mounted.device == device);
    ensure!(is_on, "{shown} is on no mount of Untorn's; use `sync` there");
    Ok(())
}

/// Opens a file for the sync: permission to read or to write it suffices.
fn opened(path: &Path) -> Result<File> {
    let flags = OFlags::CLOEXEC | OFlags::NONBLOCK;
    let opened = rustix::fs::open(path, OFlags::RDONLY | flags, Mode::empty());
    let opened = opened.or_else(|e| rustix::fs::open(path, OFlags::WRONLY | flags, Mode::empty()).map_err(|_| e));
    Ok(opened.with_context(|| format!("cannot open {}", path.display()))?.into())
}
