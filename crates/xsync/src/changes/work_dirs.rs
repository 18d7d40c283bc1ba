//! The list in a volume of the directories whose changes it holds, and how far the session has come.

use crate::changes::access_lists::{AccessLists, NAMES};
use crate::host::host_view::Written;
use crate::view::overlays::overlay_attributes;
use anyhow::{Context, Result, bail};
use rustix::fs::{Access, XattrFlags, access, lgetxattr, llistxattr, lsetxattr, statvfs};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};
use std::fs::{self, File};
use std::io::{ErrorKind, Write};
use std::os::unix::fs::{MetadataExt, PermissionsExt, lchown};
use std::path::{Path, PathBuf};

/// The file in a volume with the list.
const LIST: &str = "session.json";
/// The list for the phase `Applying`, written in advance.
const NEXT: &str = "session.next.json";
/// The directory with the overlays' layers.
const LAYERS: &str = "overlays";
/// The part of a volume that the session sees.
pub const DATA: &str = "data";

/// The progress of a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Phase {
    /// The program runs, or ran when the session broke off.
    Running,
    /// Changes are being applied to the directories.
    Applying,
    /// All changes are applied but those that the directories refused.
    Kept,
}

/// The directories whose changes a volume holds.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WorkDirs {
    /// The directories of the host. The index of a directory is the number of its layer.
    pub dirs: Vec<PathBuf>,
    /// The progress of the session.
    pub phase: Phase,
    /// The volume has no other data, and is removed at the end.
    pub throw_away: bool,
}

impl WorkDirs {
    /// Reads the list of a volume. None if the volume holds no changes.
    pub fn read(volume: &Path) -> Result<Option<WorkDirs>> {
        match fs::read(volume.join(LIST)) {
            Err(e) if e.kind() == ErrorKind::NotFound => Ok(None),
            read => {
                let bytes = read.context("the volume's list of directories")?;
                Ok(Some(serde_json::from_slice(&bytes).context("the volume's list of directories is damaged")?))
            }
        }
    }

    /// Writes the list durably, and the list for the next phase with it, because the volume may be full by then.
    pub fn write(&self, volume: &Path) -> Result<()> {
        self.write_as(&volume.join(NEXT), Phase::Applying)?;
        self.replace(volume, self.phase)
    }

    /// Notes durably that the volume holds refused changes only. This has room to write, because the applied changes
    /// are gone from the volume.
    pub fn note_kept(&self, volume: &Path) -> Result<()> {
        self.replace(volume, Phase::Kept)
    }

    fn replace(&self, volume: &Path, phase: Phase) -> Result<()> {
        let new = volume.join("session.json.new");
        self.write_as(&new, phase)?;
        fs::rename(&new, volume.join(LIST)).context("the volume's list of directories")?;
        File::open(volume)?.sync_all().context("the volume cannot be flushed")
    }

    fn write_as(&self, path: &Path, phase: Phase) -> Result<()> {
        let mut file = File::create(path).context("the volume's list of directories")?;
        file.write_all(&serde_json::to_vec(&WorkDirs { phase, ..self.clone() })?)?;
        Ok(file.sync_all()?)
    }

    /// Notes durably that changes are being applied from now on. It is a rename only, and needs no room.
    pub fn begin_to_apply(&self, volume: &Path) -> Result<()> {
        if self.phase != Phase::Running {
            return Ok(());
        }
        fs::rename(volume.join(NEXT), volume.join(LIST)).context("the volume's list of directories")?;
        File::open(volume)?.sync_all().context("the volume cannot be flushed")
    }

    /// Removes the list: the volume holds no changes any more.
    pub fn forget(volume: &Path) -> Result<()> {
        fs::remove_file(volume.join(LIST)).context("the volume's list of directories")?;
        File::open(volume)?.sync_all().context("the volume cannot be flushed")
    }

    /// Removes the remaining layers from a volume that is kept.
    pub fn remove_layers(volume: &Path) -> Result<()> {
        match fs::remove_dir_all(volume.join(LAYERS)) {
            Err(e) if e.kind() != ErrorKind::NotFound => Err(e).context("the volume's layers"),
            _ => Ok(()),
        }
    }

    /// The directories with their layers.
    pub fn layers(&self, volume: &Path) -> Vec<Written> {
        let layer = |(number, dir): (usize, &PathBuf)| {
            let home = volume.join(LAYERS).join(number.to_string());
            Written { dir: dir.clone(), upper: home.join("upper"), work: home.join("work") }
        };
        self.dirs.iter().enumerate().map(layer).collect()
    }

    /// Makes empty layers. An upper directory gets the attributes of its host directory, because the session sees them
    /// as that directory's own.
    pub fn make_layers(&self, volume: &Path, lists: &AccessLists) -> Result<()> {
        match fs::remove_dir_all(volume.join(LAYERS)) {
            Err(e) if e.kind() != ErrorKind::NotFound => return Err(e).context("the volume's layers"),
            _ => {}
        }
        for layer in self.layers(volume) {
            fs::create_dir_all(&layer.upper)?;
            fs::create_dir_all(&layer.work)?;
            copy_attributes_by(&layer.dir, &layer.upper, lists)
                .with_context(|| format!("the attributes of {}", layer.dir.display()))?;
        }
        Ok(())
    }
}

/// Refuses a directory within another one, because both cannot be overlays, and directories that cannot be applied to.
pub fn check_dirs(dirs: &[PathBuf]) -> Result<()> {
    for (n, dir) in dirs.iter().enumerate() {
        if !dir.is_dir() {
            bail!("{} is not a directory", dir.display());
        }
        if dir == Path::new("/") {
            bail!("the root directory cannot be an overlay; name a directory in it by --overlay");
        }
        if access(dir, Access::WRITE_OK) == Err(Errno::ROFS) {
            bail!(
                "{} is on a read-only file system, so that no changes could be applied; begin the session in another \
                 directory",
                dir.display()
            );
        }
        if let Some(other) = dirs.iter().enumerate().find(|(m, other)| *m != n && dir.starts_with(other)) {
            bail!("{} lies in {}: one overlay is enough", dir.display(), other.1.display());
        }
    }
    Ok(())
}

/// Whether the file system of a path has room for far more than an attribute.
fn has_room(path: &Path) -> bool {
    const ROOM: u64 = 1 << 20;
    statvfs(path).is_ok_and(|room| room.f_bavail.saturating_mul(room.f_frsize) >= ROOM)
}

/// Owner, mode, times, extended attributes and access lists, from one file to another of its kind.
pub fn copy_attributes(from: &Path, to: &Path) -> Result<()> {
    copy_attributes_by(from, to, &AccessLists::Own)
}

/// Works like [`copy_attributes`], with access lists copied by `lists`.
pub fn copy_attributes_by(from: &Path, to: &Path, lists: &AccessLists) -> Result<()> {
    let meta = fs::symlink_metadata(from)?;
    lchown(to, Some(meta.uid()), Some(meta.gid()))?;
    let mut names = vec![0; 64 << 10];
    let names = match llistxattr(from, &mut names[..]) {
        Ok(bytes) => names[..bytes].to_vec(),
        Err(rustix::io::Errno::NOTSUP) => Vec::new(),
        Err(e) => return Err(e.into()),
    };
    for name in names.split(|byte| *byte == 0).filter(|name| !name.is_empty()) {
        if name.starts_with(overlay_attributes().as_bytes()) {
            continue;
        }
        if NAMES.iter().any(|list| name == list.as_bytes()) && lists.copy(from, to)? {
            continue;
        }
        let mut value = vec![0; 64 << 10];
        let bytes = lgetxattr(from, name, &mut value[..])?;
        match lsetxattr(to, name, &value[..bytes], XattrFlags::empty()) {
            // The target's file system may lack such attributes, and the target's own policy sets SELinux labels.
            Err(rustix::io::Errno::NOTSUP) => {}
            Err(_) if name.starts_with(b"security.selinux") => {}
            // ext4 says this of an attribute that is larger than a block.
            Err(Errno::NOSPC) if has_room(to) => Err(Errno::TOOBIG).with_context(|| {
                format!("the attribute {} is larger than this file system takes", String::from_utf8_lossy(name))
            })?,
            done => done.with_context(|| format!("the attribute {}", String::from_utf8_lossy(name)))?,
        }
    }
    if !meta.is_symlink() {
        fs::set_permissions(to, fs::Permissions::from_mode(meta.mode() & 0o7777))?;
    }
    copy_times(&meta, to)
}

/// Copies the times of access and modification.
pub fn copy_times(meta: &fs::Metadata, to: &Path) -> Result<()> {
    let at = |seconds: i64, nanoseconds: i64| rustix::fs::Timespec { tv_sec: seconds, tv_nsec: nanoseconds as _ };
    let times = rustix::fs::Timestamps {
        last_access: at(meta.atime(), meta.atime_nsec()),
        last_modification: at(meta.mtime(), meta.mtime_nsec()),
    };
    Ok(rustix::fs::utimensat(rustix::fs::CWD, to, &times, rustix::fs::AtFlags::SYMLINK_NOFOLLOW)?)
}
