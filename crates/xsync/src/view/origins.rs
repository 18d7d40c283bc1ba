//! Which file or directory of the host a layer of an overlay stands for: by its file handle, which a rename does not change.

use crate::host::deep_path::DeepPath;
use crate::host::host_view::Written;
use crate::view::overlays::overlay_attributes;
use anyhow::{Context, Result, bail, ensure};
use rustix::fs::lgetxattr;
use rustix::io::Errno;
use std::ffi::{CString, OsString};
use std::fs;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use untorn_terminal::user_namespace::is_root;

/// Names in the host's directory, while changes are being applied, of what is on its way.
pub const ASIDE: &str = ".untorn-xsync.aside.";
/// In the directory that an overlay works in: files that had several names.
const INDEX: &str = "index";
/// Of the attribute in which an overlay keeps a file handle: where the handle's kind is, and where the handle begins.
const KIND_AT: usize = 4;
const HANDLE_AT: usize = 21;
/// MAX_HANDLE_SZ of `<linux/exportfs.h>`.
const HANDLE_BYTES_MAX: usize = 128;

/// A file of the host, whatever its name is.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Origin {
    kind: i32,
    handle: Vec<u8>,
}

/// `struct file_handle`, with room.
#[repr(C)]
struct Handle {
    bytes: u32,
    kind: i32,
    handle: [u8; HANDLE_BYTES_MAX],
}

impl Origin {
    /// What a file of the host is; none on file systems that have no handles.
    pub fn of(real: &Path) -> Option<Origin> {
        let path = CString::new(real.as_os_str().as_bytes()).ok()?;
        let mut found = Handle { bytes: HANDLE_BYTES_MAX as u32, kind: 0, handle: [0; HANDLE_BYTES_MAX] };
        let mut mount: libc::c_int = 0;
        // SAFETY: the path is what the call reads, both others are what it fills, and all outlive it.
        let done = unsafe {
            libc::syscall(libc::SYS_name_to_handle_at, libc::AT_FDCWD, path.as_ptr(), &mut found, &mut mount, 0)
        };
        (done == 0).then(|| Origin { kind: found.kind, handle: found.handle[..found.bytes as usize].to_vec() })
    }

    /// Of which file of the host an overlay made a copy; none if it is a new one.
    pub fn copied(upper: &Path) -> Result<Option<Origin>> {
        let value = attribute(upper, "origin")?;
        let handle = |value: Vec<u8>| {
            let handle = value.get(HANDLE_AT..)?.to_vec();
            (!handle.is_empty()).then(|| Origin { kind: value[KIND_AT].into(), handle })
        };
        Ok(value.and_then(handle))
    }
}

/// Whether an overlay over a directory keeps all names of a file names of one, and renames directories: by the handles of
/// its files, which the kernel lets root alone use.
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

/// Files of the host that had several names, and were written: each by the number of its copy.
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
    /// The number of the layer's directory that stands for it.
    number: u64,
    source: PathBuf,
    target: PathBuf,
    origin: Origin,
}

/// Sets all directories aside that the session renamed, so that nothing that is applied stands in another's way. Whatever
/// of it was done before is not done again.
pub fn set_renamed_aside(layer: &Written) -> Result<()> {
    let mut moved = Vec::new();
    find_renamed(layer, &DeepPath::new(&layer.upper), &layer.dir, Some(&layer.dir), &mut moved)?;
    // Those in others go first.
    moved.sort_by_key(|moved| std::cmp::Reverse(moved.source.components().count()));
    for Moved { number, source, target, origin } in &moved {
        let aside = aside(&layer.dir, *number);
        let is_done = fs::symlink_metadata(&aside).is_ok() || Origin::of(target).as_ref() == Some(origin);
        if is_done {
            continue;
        }
        ensure!(
            Origin::of(source).as_ref() == Some(origin),
            "the session renamed {}, and somebody else has changed or removed it since",
            source.display()
        );
        fs::rename(source, &aside).with_context(|| format!("cannot rename {}", source.display()))?;
    }
    Ok(())
}

/// Where a directory waits whose copy has this number.
pub fn aside(dir: &Path, number: u64) -> PathBuf {
    dir.join(format!("{ASIDE}{number}"))
}

/// Whether a directory of a layer stands for one of the host that had another name.
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
                // Without it most of the directory would be lost.
                bail!("{} does not say which directory of {} it is", path.shown().display(), layer.dir.display());
            };
            moved.push(Moved { number: meta.ino(), source, target: target.clone(), origin });
        }
        find_renamed(layer, &path, &target, source.as_deref(), moved)?;
    }
    Ok(())
}
