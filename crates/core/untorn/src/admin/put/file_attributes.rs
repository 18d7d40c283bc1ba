//! Metadata that a new file takes over from the one that it replaces: extended attributes, including access lists, and
//! flags.

use rustix::fs::{self, IFlags, XattrFlags};
use rustix::io::Errno;
use std::collections::BTreeMap;
use std::ffi::CString;
use std::os::fd::OwnedFd;

/// The mark of a managed file. Never copied: the copy is not managed.
pub(super) const MANAGED: &[u8] = b"user.untorn";

/// Hashes of the contents, maintained by the kernel, which are wrong for new contents.
const OF_CONTENTS: [&[u8]; 2] = [b"security.ima", b"security.evm"];

/// Flags of `chattr` about how a file is stored. Its flags about changes of the file (`+i`, `+a`) lead to a refusal
/// instead.
const KEPT: IFlags = IFlags::SECURE_REMOVAL
    .union(IFlags::UNRM)
    .union(IFlags::COMPRESSED)
    .union(IFlags::SYNC)
    .union(IFlags::NODUMP)
    .union(IFlags::NOATIME)
    .union(IFlags::JOURNALING)
    .union(IFlags::NOTAIL)
    .union(IFlags::NOCOW);

/// The flags of a file that a replacement must have; empty if the file system does not support flags.
pub(super) fn flags(file: &OwnedFd) -> IFlags {
    fs::ioctl_getflags(file).unwrap_or(IFlags::empty()) & KEPT
}

/// Gives a new file the flags of the old one.
pub(super) fn copy_flags(wanted: IFlags, to: &OwnedFd) -> rustix::io::Result<()> {
    if flags(to) == wanted {
        return Ok(());
    }
    let own = fs::ioctl_getflags(to)? - KEPT;
    fs::ioctl_setflags(to, own | wanted)
}

/// All extended attributes, including the ACL.
pub(super) fn attributes(file: &OwnedFd) -> rustix::io::Result<BTreeMap<Vec<u8>, Vec<u8>>> {
    let names = match grown(|buf| fs::flistxattr(file, buf)) {
        Err(Errno::NOTSUP | Errno::NOSYS) => return Ok(BTreeMap::new()),
        names => names?,
    };
    let mut all = BTreeMap::new();
    for name in names.split(|&b| b == 0).filter(|name| !name.is_empty()) {
        match grown(|buf| fs::fgetxattr(file, name, buf)) {
            Ok(value) => drop(all.insert(name.to_owned(), value)),
            // The attribute was removed after it was listed.
            Err(Errno::NODATA) => {}
            Err(e) => return Err(e),
        }
    }
    Ok(all)
}

/// Repeats a call with larger buffers until the result fits.
pub(super) fn grown(mut call: impl FnMut(&mut [u8]) -> rustix::io::Result<usize>) -> rustix::io::Result<Vec<u8>> {
    let mut buffer = vec![0; 1 << 10];
    loop {
        match call(&mut buffer) {
            Ok(n) => {
                buffer.truncate(n);
                return Ok(buffer);
            }
            Err(Errno::RANGE) if buffer.len() < 1 << 20 => buffer.resize(buffer.len() * 4, 0),
            Err(e) => return Err(e),
        }
    }
}

/// Makes the attributes of a new file those of the old one. On failure returns the attribute and the error.
pub(super) fn copy_attributes(
    wanted: &BTreeMap<Vec<u8>, Vec<u8>>,
    to: &OwnedFd,
) -> std::result::Result<(), (String, Errno)> {
    let kept = |name: &[u8]| name != MANAGED && !OF_CONTENTS.contains(&name);
    let text = |name: &[u8]| String::from_utf8_lossy(name).into_owned();
    let have = attributes(to).map_err(|e| ("list".to_owned(), e))?;
    for (name, value) in wanted.iter().filter(|(name, _)| kept(name)) {
        if have.get(name) != Some(value) {
            let c_name = CString::new(name.as_slice()).expect("names were split at zero bytes");
            fs::fsetxattr(to, c_name, value, XattrFlags::empty()).map_err(|e| (text(name), e))?;
        }
    }
    // Remove attributes that the new file got from the directory's default ACL and the old one did not have. Labels
    // that the kernel gives every new file (`security.*`) stay.
    for name in have.keys().filter(|name| name.starts_with(b"system.") && !wanted.contains_key(*name)) {
        fs::fremovexattr(to, name.as_slice()).map_err(|e| (text(name), e))?;
    }
    Ok(())
}
