//! A block device that belongs to one mount and stores nothing: Linux passes `sync` on only to file systems with a
//! device.

use anyhow::{Context, Error, Result, anyhow, ensure};
use rustix::fs::{MemfdFlags, memfd_create};
use std::ffi::OsString;
use std::fs::File;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};
use untorn_os::LoopDevice;

/// The longest name of a file in memory (`memfd_create`).
const NAME_MAX: usize = 249;

/// A device that exists until this is dropped and no mount uses it. The kernel then removes it, even after a kill.
pub struct MountDevice {
    pub path: PathBuf,
    _open: File,
}

impl MountDevice {
    /// Makes a device for a store; [`store`] finds the store of the device.
    pub fn new(store: &Path) -> Result<MountDevice> {
        ensure!(
            store.as_os_str().len() <= NAME_MAX,
            "with `sync_commits` the path of a store has at most {NAME_MAX} bytes; {} is longer",
            store.display()
        );
        let file = memfd_create(store, MemfdFlags::CLOEXEC).context("a file in memory")?;
        rustix::fs::ftruncate(&file, rustix::param::page_size() as u64).context("a file in memory")?;
        let LoopDevice { device, path } = LoopDevice::attach(&file, false, 0).map_err(|e| match e.raw_os_error() {
            Some(libc::ENOENT | libc::ENODEV | libc::ENXIO | libc::EPERM | libc::EACCES) => anyhow!(
                "`sync_commits` needs a loop device, and none can be opened ({e}), as in a container; load the module \
                 (modprobe loop), or leave `sync_commits` out and use `untorn sync`"
            ),
            _ => Error::new(e).context("cannot set up a loop device"),
        })?;
        Ok(MountDevice { path, _open: device })
    }
}

/// Returns the store for which a device was made; `None` if that cannot be told.
pub fn store(device: &Path) -> Option<PathBuf> {
    let of = Path::new("/sys/block").join(device.file_name()?).join("loop/backing_file");
    named(&std::fs::read(of).ok()?)
}

fn named(file: &[u8]) -> Option<PathBuf> {
    let name = file.strip_prefix(b"/memfd:")?.strip_suffix(b" (deleted)\n")?;
    Some(OsString::from_vec(name.to_vec()).into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_store_is_the_name_of_the_file() {
        assert_eq!(named(b"/memfd:/a b (deleted)\n (deleted)\n").unwrap(), Path::new("/a b (deleted)\n"));
        assert_eq!(named(b"/srv/image\n"), None);
    }
}
