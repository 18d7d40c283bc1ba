//! Identifies the file or directory of the host behind an entry of an overlay's layer.
//!
//! The identity is the file handle, which a rename does not change.

use crate::host::deep_path::DeepPath;
use crate::host::host_view::Written;
use crate::view::overlays::overlay_attributes;
use anyhow::{Context, Result, bail, ensure};
use rustix::fs::{CWD, RenameFlags, lgetxattr, renameat_with};
use rustix::io::Errno;
use std::collections::HashMap;
use std::ffi::{CString, OsString};
use std::fs;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use untorn_terminal::user_namespace::is_root;

/// The prefix of names in the host's directory for directories that are being moved by an apply.
pub const ASIDE: &str = ".untorn-xsync.aside.";
/// The subdirectory of an overlay's work directory with files that had several names.
const INDEX: &str = "index";
/// Offsets in the attribute with a file handle that an overlay sets: of the handle's kind, and of the handle.
const KIND_AT: usize = 4;
const HANDLE_AT: usize = 21;
/// MAX_HANDLE_SZ of `<linux/exportfs.h>`.
const HANDLE_BYTES_MAX: usize = 128;

/// The identity of a file of the host, whatever its name is.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Origin {
    kind: i32,
    handle: Vec<u8>,
}

/// `struct file_handle`, with room for the largest handle.
#[repr(C)]
struct Handle {
    bytes: u32,
    kind: i32,
    handle: [u8; HANDLE_BYTES_MAX],
}

impl Origin {
    /// The identity of a file of the host. None if its file system has no handles.
    pub fn of(real: &Path) -> Option<Origin> {
        let path = CString::new(real.as_os_str().as_bytes()).ok()?;
        let mut found = Handle { bytes: HANDLE_BYTES_MAX as u32, kind: 0, handle: [0; HANDLE_BYTES_MAX] };
        let mut mount: libc::c_int = 0;
        // SAFETY: the call reads the path and fills both others, and all outlive it.
        let done = unsafe {
            libc::syscall(libc::SYS_name_to_handle_at, libc::AT_FDCWD, path.as_ptr(), &mut found, &mut mount, 0)
        };
        (done == 0).then(|| Origin { kind: found.kind, handle: found.handle[..found.bytes as usize].to_vec() })
    }

    /// The identity of the host's file that an overlay copied. None if the file is new.
    pub fn copied(upper: &Path) -> Result<Option<Origin>> {
        let value = attribute(upper, "origin")?;
        let handle = |value: Vec<u8>| {
            let handle = value.get(HANDLE_AT..)?.to_vec();
            (!handle.is_empty()).then(|| Origin { kind: value[KIND_AT].into(), handle })
        };
        Ok(value.and_then(handle))
    }
}

/// Whether an overlay over a directory keeps the names of one file together, and renames directories.
///
/// It needs file handles for that, which the kernel lets only root use.
pub fn names_are_kept(dir: &Path) -> bool {
    is_root() && Origin::of(dir).is_some()
}

fn attribute(upper: &Path, name: &str) -> Result<Option<Vec<u8>>> {
    let mut value = vec![0; 8 << 10];
    match lgetxattr(upper, format!("{}{name}", overlay_attributes()), &mut value[..]) {
        Ok(bytes) => Ok(Some(value[..bytes].to_vec())),
        Err(Errno::NODATA | Errno::NOTSUP) => Ok(None),
        Err(e) => Err(e).with_context(|| upper.display().to_string()),
    }
}

/// The copies of files of the host that had several names, in the overlay's index, with their origins.
pub fn indexed(layer: &Written) -> Result<Vec<(PathBuf, Origin)>> {
    let mut found = Vec::new();
    let entries = match fs::read_dir(layer.work.join(INDEX)) {
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(found),
        entries => entries.with_context(|| layer.work.display().to_string())?,
    };
    for entry in entries {
        let path = entry?.path();
        if fs::symlink_metadata(&path)?.is_file()
            && let Some(origin) = Origin::copied(&path)?
        {
            found.push((path, origin));
        }
    }
    Ok(found)
}

/// A directory of the host that the session renamed.
#[derive(Debug)]
struct Moved {
    source: PathBuf,
    target: PathBuf,
    origin: Origin,
}

/// A directory of the host that has a temporary name during an apply.
#[derive(Debug)]
pub struct Aside {
    /// Its path now.
    pub at: PathBuf,
    /// Its path before the session.
    pub source: PathBuf,
    /// The path that the session gave it.
    pub target: PathBuf,
}

/// Moves all directories aside that the session renamed, so that they do not block each other during the apply. Returns
/// them by their identity. An interrupted apply can repeat this: finished moves are skipped.
pub fn set_renamed_aside(layer: &Written) -> Result<HashMap<Origin, Aside>> {
    let mut moved = Vec::new();
    find_renamed(layer, &DeepPath::new(&layer.upper), &layer.dir, Some(&layer.dir), &mut moved)?;
    // Inner directories are moved first.
    moved.sort_by_key(|moved| std::cmp::Reverse(moved.source.components().count()));
    let (mut there, mut asides) = (found_aside(&layer.dir)?, HashMap::new());
    for Moved { source, target, origin } in moved {
        let at = match there.remove(&origin) {
            Some(at) => at,
            None if Origin::of(&target).as_ref() == Some(&origin) => continue,
            None => {
                ensure!(
                    Origin::of(&source).as_ref() == Some(&origin),
                    "the session renamed {}, and somebody else has changed or removed it since",
                    source.display()
                );
                let at = free_name(&layer.dir, fs::symlink_metadata(&source)?.ino());
                renameat_with(CWD, &source, CWD, &at, RenameFlags::NOREPLACE)
                    .with_context(|| format!("cannot rename {}", source.display()))?;
                at
            }
        };
        asides.insert(origin, Aside { at, source, target });
    }
    Ok(asides)
}

/// The directories with temporary names that an interrupted apply, perhaps of another session, left in a directory.
fn found_aside(dir: &Path) -> Result<HashMap<Origin, PathBuf>> {
    let mut found = HashMap::new();
    for entry in fs::read_dir(dir).with_context(|| dir.display().to_string())? {
        let entry = entry?;
        if entry.file_name().as_bytes().starts_with(ASIDE.as_bytes())
            && entry.file_type()?.is_dir()
            && let Some(origin) = Origin::of(&entry.path())
        {
            found.insert(origin, entry.path());
        }
    }
    Ok(found)
}

fn free_name(dir: &Path, number: u64) -> PathBuf {
    let mut names = (number..).map(|number| dir.join(format!("{ASIDE}{number}")));
    names.find(|name| fs::symlink_metadata(name).is_err()).expect("a directory has fewer names")
}

/// Whether a directory of a layer stands for a directory of the host with another name.
pub fn is_renamed(upper: &Path) -> Result<bool> {
    Ok(attribute(upper, "redirect")?.is_some())
}

fn find_renamed(
    layer: &Written,
    upper: &DeepPath,
    target: &Path,
    lower: Option<&Path>,
    moved: &mut Vec<Moved>,
) -> Result<()> {
    let upper = upper.directory().with_context(|| upper.shown().display().to_string())?;
    for entry in fs::read_dir(&upper).with_context(|| upper.shown().display().to_string())? {
        let entry = entry?;
        let meta = entry.metadata()?;
        if !meta.is_dir() {
            continue;
        }
        let (path, name) = (upper.join(entry.file_name()), entry.file_name());
        let redirect = attribute(&path, "redirect")?.map(OsString::from_vec).map(PathBuf::from);
        let source = match &redirect {
            Some(to) if to.is_absolute() => Some(layer.dir.join(to.strip_prefix("/").expect("it is absolute"))),
            Some(to) => lower.map(|lower| lower.join(to)),
            None => lower.map(|lower| lower.join(&name)),
        };
        let target = target.join(&name);
        if redirect.is_some() {
            let (Some(source), Some(origin)) = (source.clone(), Origin::copied(&path)?) else {
                // Without an origin, most of the directory's contents would be lost.
                bail!("{} does not say which directory of {} it is", path.shown().display(), layer.dir.display());
            };
            moved.push(Moved { source, target: target.clone(), origin });
        }
        find_renamed(layer, &path, &target, source.as_deref(), moved)?;
    }
    Ok(())
}
