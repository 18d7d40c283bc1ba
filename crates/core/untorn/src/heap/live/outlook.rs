//! Shows the state that the next opening would make of live memory: runs the code of an opening on a copy.

use crate::engine::options::FailureClass;
use crate::heap::image::check::{Checker, HeapImage, HeapImageMut};
use crate::heap::image::free_in_image::free;
use crate::heap::image::layout::Stamp;
use crate::heap::image::report::{LiveOutlook, NextStart};
use crate::heap::live::memory_file::{Identity, class_of};
use crate::heap::live::{Mendable, Mended, mend, not_there};
use crate::heap::log::live_head::{LiveHead, Owner, START_BYTES};
use std::path::Path;
use std::ptr::NonNull;
use untorn_journal::{Context, Error, Result};
use untorn_os::{Linux, LiveCopy, Storage};

impl HeapImage for LiveCopy {
    fn bytes(&self) -> Result<u64> {
        Ok(self.body_bytes())
    }

    fn read(&self, buf: &mut [u8], offset: u64) -> Result<()> {
        self.read_at(buf, offset).context("read", self.path())
    }
}

impl HeapImageMut for LiveCopy {
    fn write(&mut self, bytes: &[u8], offset: u64) -> Result<()> {
        self.write_at(bytes, offset).context("change a copy of", self.path())
    }
}

impl Mendable for LiveCopy {
    fn name(&self) -> &Path {
        self.path()
    }

    fn own(&self) -> NonNull<u8> {
        self.head()
    }
}

/// The bytes of a heap with which the next opening would begin, unless somebody stores to its live memory.
pub struct LiveImage {
    copy: LiveCopy,
    bytes: u64,
}

impl LiveImage {
    /// The size of the heap.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Fills the buffer with bytes from an offset of the heap on.
    pub fn read(&self, buf: &mut [u8], offset: u64) -> Result<()> {
        self.copy.read(buf, offset)
    }
}

impl HeapImage for LiveImage {
    fn bytes(&self) -> Result<u64> {
        Ok(self.bytes)
    }

    fn read(&self, buf: &mut [u8], offset: u64) -> Result<()> {
        LiveImage::read(self, buf, offset)
    }
}

/// The facts about a heap's file that concern its live memory.
pub(crate) struct Named<'a> {
    pub path: &'a Path,
    pub boot: [u8; 16],
    pub identity: Identity,
    pub start: &'a [u8; START_BYTES],
}

/// The state that the next opening would make of the memory that a heap's file names, and the heap in that state. None:
/// the file names no memory. Nobody may store to the memory meanwhile.
pub(crate) fn outlook(file: &Named<'_>) -> Option<(LiveOutlook, Option<LiveImage>)> {
    let stamp = Stamp::read(file.start)?;
    let mut least: Option<(bool, LiveOutlook)> = None;
    for memory in file.identity.paths(stamp.uid) {
        let class = FailureClass::Process;
        let next = NextStart::GoesOn;
        let mut found = LiveOutlook { memory, class, flushes: false, next, undone: 0, cascaded: 0, heap: None };
        let exists = found.memory.symlink_metadata().is_ok();
        match look(file, &stamp, &mut found) {
            Ok(Ok(image)) => return Some((found, Some(image))),
            Ok(Err(why)) => found.next = NextStart::LastCut(why),
            Err(e) => found.next = NextStart::Unknown(e.to_string()),
        }
        // A memory that is there says more than one that is not.
        if exists || least.as_ref().is_none_or(|(exists, _)| !exists) {
            least = Some((exists, found));
        }
    }
    least.map(|(_, found)| (found, None))
}

fn look(file: &Named<'_>, stamp: &Stamp, found: &mut LiveOutlook) -> Result<std::result::Result<LiveImage, String>> {
    let Named { boot, identity: Identity { device, inode, .. }, .. } = *file;
    let mut copy = match LiveCopy::of(&found.memory, stamp.uid) {
        Ok(copy) => copy,
        Err(e) => return not_there(e, &found.memory, stamp.uid, || file.path.to_owned()).map(Err),
    };
    // SAFETY: as long as the copy is there, which is longer than this is used.
    let medium = unsafe { LiveHead::at(copy.own()) }.medium();
    (found.class, found.flushes) = (class_of(medium), medium.is_flushed());
    let owner = Owner { boot, incarnation: stamp.incarnation, device, inode };
    let Mended { recovery, header, bytes } = match mend(&mut copy, &owner, stamp)? {
        Ok(mended) => mended,
        Err(why) => return Ok(Err(why)),
    };
    (found.undone, found.cascaded) = (recovery.incomplete, recovery.cascaded);
    for address in recovery.free {
        free(&mut copy, address.wrapping_sub(header.address as usize))?;
    }
    let image = LiveImage { copy, bytes };
    let mut checker = Checker::new(&image, file.path, &|_, _| {})?;
    checker.find_leaks(&|_, _| {})?;
    found.heap = Some(checker.report);
    Ok(Ok(image))
}

/// The state that the next opening would make of the memory of a heap's file, which may belong to another process;
/// `last_commit` has the first bytes of the heap's last commit. For tests, which stop that process first.
pub fn live_outlook(path: &Path, last_commit: &[u8]) -> Result<Option<(LiveOutlook, Option<LiveImage>)>> {
    let start = last_commit.first_chunk().ok_or_else(|| Error::invalid("no heap is so short"))?;
    let meta = std::fs::metadata(path).context("look at", path)?;
    let dir = path.parent().unwrap_or(Path::new("/"));
    let boot = Linux::open(dir).and_then(|storage| storage.boot_id()).context("read the boot id for", path)?;
    Ok(outlook(&Named { path, boot, identity: Identity::at(path, &meta), start }))
}
