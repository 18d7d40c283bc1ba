//! A block device that belongs to one mount and stores nothing: Linux passes `sync` on only to file systems with a
//! device.

use anyhow::{Context, Result, bail, ensure};
use rustix::fd::{AsRawFd, OwnedFd};
use rustix::fs::{MemfdFlags, Mode, OFlags, memfd_create};
use rustix::io::Errno;
use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

const CONTROL: &str = "/dev/loop-control";
/// The longest name of a file in memory (`memfd_create`).
const NAME_MAX: usize = 249;
/// How often another process may take the free device first.
const TRIES: usize = 64;

/// From `linux/loop.h`; the crate `libc` does not define them.
const LOOP_CTL_GET_FREE: libc::Ioctl = 0x4c82;
const LOOP_CONFIGURE: libc::Ioctl = 0x4c0a;
const LO_FLAGS_AUTOCLEAR: u32 = 4;

/// `struct loop_config`.
#[repr(C)]
struct Config {
    file: u32,
    block_size: u32,
    before_flags: [u32; 13],
    flags: u32,
    rest: [u64; 30],
}

/// A device that exists until this is dropped and no mount uses it. The kernel then removes it, even after a kill.
pub struct MountDevice {
    pub path: PathBuf,
    _open: OwnedFd,
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
        let control = open(CONTROL.as_ref())?;
        for _ in 0..TRIES {
            // SAFETY: the call takes no argument.
            let number = unsafe { libc::ioctl(control.as_raw_fd(), LOOP_CTL_GET_FREE) };
            if number < 0 {
                return Err(std::io::Error::last_os_error()).context("no loop device is free");
            }
            let path = PathBuf::from(format!("/dev/loop{number}"));
            let device = open(&path)?;
            let config = Config {
                file: file.as_raw_fd().cast_unsigned(),
                block_size: 0,
                before_flags: [0; 13],
                flags: LO_FLAGS_AUTOCLEAR,
                rest: [0; 30],
            };
            // SAFETY: the kernel reads a configuration, which is as long as it expects, and outlives the call.
            if unsafe { libc::ioctl(device.as_raw_fd(), LOOP_CONFIGURE, &raw const config) } == 0 {
                return Ok(MountDevice { path, _open: device });
            }
            let e = std::io::Error::last_os_error();
            if e.raw_os_error() != Some(libc::EBUSY) {
                return Err(e).with_context(|| format!("cannot set up {}", path.display()));
            }
        }
        bail!("other processes take every loop device that is free; try again")
    }
}

fn open(path: &Path) -> Result<OwnedFd> {
    let shown = path.display();
    match rustix::fs::open(path, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty()) {
        Ok(opened) => Ok(opened),
        Err(e @ (Errno::NOENT | Errno::NODEV | Errno::NXIO | Errno::PERM | Errno::ACCESS)) => bail!(
            "`sync_commits` needs a loop device, and {shown} cannot be opened ({e}), as in a container; load the module \
             (modprobe loop), or leave `sync_commits` out and use `untorn sync`"
        ),
        Err(e) => Err(e).with_context(|| format!("cannot open {shown}")),
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
    fn the_configuration_is_as_the_kernel_has_it() {
        assert_eq!(std::mem::offset_of!(Config, flags), 8 + 52);
        assert_eq!(size_of::<Config>(), 8 + 232 + 64);
    }

    #[test]
    fn the_store_is_the_name_of_the_file() {
        assert_eq!(named(b"/memfd:/a b (deleted)\n (deleted)\n").unwrap(), Path::new("/a b (deleted)\n"));
        assert_eq!(named(b"/srv/image\n"), None);
    }
}
