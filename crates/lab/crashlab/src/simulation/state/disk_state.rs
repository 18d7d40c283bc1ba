//! The disk and its cache: every file system operation, and the pending effects that it leaves.

mod names;

use super::disk_options::{Options, Profile};
use super::effect::{Effect, Patch, sector_mask};
use super::inodes::{Body, Image, Inode, PAGE_BYTES, Page, RESERVED, Slot, mix, read_pages};
use super::stored_lines::Stored;
use std::io;
use std::ops::Range;
use std::sync::Arc;
use untorn_os::{BLOCK_BYTES, Kind, Meta};

pub(crate) fn errno(code: i32) -> io::Error {
    io::Error::from_raw_os_error(code)
}

/// The largest size of a file.
pub const SIZE_MAX: u64 = 1 << 44;
/// The end of the range that can be written or reserved. Sizes may be larger: a hole costs nothing.
const FILE_BYTES_MAX: u64 = 1 << 32;
/// The number of dropped pages that are remembered, to reappear as garbage.
const STALE_PAGES_MAX: usize = 32;

/// The whole contents of a machine's cache and disk. A snapshot clones it.
#[derive(Clone)]
pub(crate) struct State {
    pub options: Options,
    /// The disk as programs see it, cache included.
    pub live: Image,
    /// The disk after a power cut that loses as much as possible.
    pub durable: Image,
    /// The effects that lead from `durable` to `live`, in the order of the program.
    pub pending: Arc<Vec<Arc<Effect>>>,
    /// A writeback has failed: `live` has data that is neither durable nor pending.
    pub diverged: bool,
    /// The contents of removed files, which a newly allocated block may have.
    pub stale: Arc<Vec<Arc<Page>>>,
    pub boots: u64,
    pub random: u64,
    pub now_ns: i128,
    pub mark: u64,
    /// Ranges that cannot be read, also after crashes.
    pub unreadable: Vec<Unreadable>,
}

/// A part of a file that the disk cannot read.
#[derive(Clone, Debug)]
pub(crate) struct Unreadable {
    pub slot: Slot,
    pub range: Range<u64>,
    /// It was rewritten, but not flushed: after a power cut it is unreadable again.
    pub is_written: bool,
}

impl State {
    pub fn new(options: Options) -> State {
        let now_ns = 1_700_000_000_000_000_000;
        let image = Image::new(options.user, now_ns);
        State {
            options,
            live: image.clone(),
            durable: image,
            pending: Arc::default(),
            diverged: false,
            stale: Arc::default(),
            boots: 0,
            random: mix(options.seed),
            now_ns,
            mark: 0,
            unreadable: Vec::new(),
        }
    }

    /// The error of a read that touches an unreadable range.
    pub fn check_readable(&self, slot: Slot, len: usize, offset: u64) -> io::Result<()> {
        let end = offset + len as u64;
        let fails =
            |bad: &Unreadable| bad.slot == slot && !bad.is_written && bad.range.start < end && offset < bad.range.end;
        match self.unreadable.iter().any(fails) {
            true => Err(errno(libc::EIO)),
            false => Ok(()),
        }
    }

    pub(crate) fn push(&mut self, effect: Effect) {
        Arc::make_mut(&mut self.pending).push(Arc::new(effect));
    }

    fn tick(&mut self) -> i128 {
        self.now_ns += self.options.clock_step_ns as i128;
        self.now_ns
    }

    pub fn inode(&self, slot: Slot) -> io::Result<&Arc<Inode>> {
        self.live.get(slot).ok_or_else(|| errno(libc::ESTALE))
    }

    fn inode_mut(&mut self, slot: Slot) -> io::Result<&mut Inode> {
        let now = self.tick();
        let inode = self.live.get_mut(slot).ok_or_else(|| errno(libc::ESTALE))?;
        inode.mtime_ns = now;
        Ok(inode)
    }

    // --- changes

    fn writable(&self) -> io::Result<()> {
        if self.options.read_only { Err(errno(libc::EROFS)) } else { Ok(()) }
    }

    /// Records an effect and makes it visible.
    fn push_applied(&mut self, effect: Effect) {
        let now = self.tick();
        effect.apply_whole(&mut self.live);
        for (directory, _) in effect.entries().into_iter().flatten() {
            if let Some(directory) = self.live.get_mut(directory) {
                directory.mtime_ns = now;
            }
        }
        self.push(effect);
    }

    fn bury(&mut self, pages: impl IntoIterator<Item = Arc<Page>>) {
        let mut pages = pages.into_iter().filter(|page| !Arc::ptr_eq(page, &RESERVED)).peekable();
        if pages.peek().is_some() {
            let stale = Arc::make_mut(&mut self.stale);
            stale.extend(pages);
            let excess = stale.len().saturating_sub(STALE_PAGES_MAX);
            stale.drain(..excess);
        }
    }

    // --- contents

    fn free_pages(&self) -> u64 {
        match self.options.capacity_bytes {
            Some(bytes) => (bytes / PAGE_BYTES as u64).saturating_sub(self.live.allocated_pages()),
            None => u64::MAX,
        }
    }

    /// The number of bytes of a write for which there is room.
    fn room_for(&self, inode: &Inode, offset: u64, len: usize) -> usize {
        if self.options.capacity_bytes.is_none() {
            return len;
        }
        let mut free = self.free_pages();
        let end = offset + len as u64;
        for index in (offset / PAGE_BYTES as u64) as u32..end.div_ceil(PAGE_BYTES as u64) as u32 {
            let is_new = inode.page(index).is_none();
            if free == 0 && (is_new || self.options.copy_on_write) {
                return (index as u64 * PAGE_BYTES as u64).saturating_sub(offset) as usize;
            }
            free -= is_new as u64;
        }
        len
    }

    pub fn write(&mut self, slot: Slot, buf: &[u8], offset: u64, direct: bool) -> io::Result<usize> {
        self.writable()?;
        let inode = self.inode(slot)?;
        if !matches!(inode.body, Body::File { .. }) {
            return Err(errno(libc::EINVAL));
        }
        State::offset(offset)?;
        if offset.saturating_add(buf.len() as u64) > FILE_BYTES_MAX {
            return Err(errno(libc::EFBIG));
        }
        if buf.is_empty() {
            return Ok(0);
        }
        let buf = &buf[..self.room_for(inode, offset, buf.len())];
        if buf.is_empty() {
            return Err(errno(libc::ENOSPC));
        }
        let (from, to) = (offset, offset + buf.len() as u64);
        // The disk uses other sectors for rewritten data.
        for bad in self.unreadable.iter_mut().filter(|bad| bad.slot == slot) {
            bad.is_written |= from <= bad.range.start && bad.range.end <= to;
        }
        let inode = self.inode_mut(slot)?;
        let mut patches = Vec::new();
        let mut done = 0;
        while done < buf.len() {
            let at = offset + done as u64;
            let (index, within) = ((at / PAGE_BYTES as u64) as u32, (at % PAGE_BYTES as u64) as usize);
            let n = (PAGE_BYTES - within).min(buf.len() - done);
            inode.page_bytes_mut(index)[within..within + n].copy_from_slice(&buf[done..done + n]);
            let bytes = inode.page(index).cloned();
            patches.push(Patch { page: index, mask: sector_mask(index, from, to), bytes });
            done += n;
        }
        // After a failed writeback the size on the disk is too small; a new write sets it again.
        let mut grows = to > inode.size();
        if grows {
            inode.set_size(to);
        }
        grows |= self.diverged && self.durable.get(slot).is_some_and(|durable| to > durable.size());
        match self.options.lines && !grows {
            true => self.push(Effect::Store(Stored { slot, at: from, bytes: buf.into(), by: None })),
            false => self.push(Effect::Write { slot, patches, from, to, grows, direct }),
        }
        Ok(buf.len())
    }

    /// Stores lines of a file.
    pub fn store(&mut self, slot: Slot, bytes: &[u8], at: u64) -> io::Result<()> {
        let by = Some(std::thread::current().id());
        for bad in self.unreadable.iter_mut().filter(|bad| bad.slot == slot) {
            bad.is_written |= at <= bad.range.start && bad.range.end <= at + bytes.len() as u64;
        }
        let stored = Stored { slot, at, bytes: bytes.into(), by };
        // Stores change the time of the file at the next flush, which nothing here relies on.
        stored.land_whole(&mut self.live);
        self.push(Effect::Store(stored));
        Ok(())
    }

    /// After a crash, a shared range has a state that a write could have left, and never less.
    pub fn clone_range(&mut self, from: Slot, from_offset: u64, slot: Slot, offset: u64, len: u64) -> io::Result<()> {
        let source = self.inode(from)?;
        let inside = from_offset.checked_add(len).is_some_and(|end| end <= source.size());
        let overlaps = from == slot && from_offset.abs_diff(offset) < len;
        if !(from_offset | offset | len).is_multiple_of(PAGE_BYTES as u64) || !inside || overlaps {
            return Err(errno(libc::EINVAL));
        }
        let mut bytes = vec![0; len as usize];
        source.read(&mut bytes, from_offset);
        if self.room_for(self.inode(slot)?, offset, bytes.len()) < bytes.len() {
            return Err(errno(libc::ENOSPC));
        }
        self.write(slot, &bytes, offset, false).map(drop)
    }

    pub fn set_len(&mut self, slot: Slot, to: u64) -> io::Result<()> {
        self.writable()?;
        State::offset(to)?;
        if to > SIZE_MAX {
            return Err(errno(libc::EFBIG));
        }
        let cut: Vec<_> = {
            let pages = self.inode(slot)?.pages();
            let keep = to.div_ceil(PAGE_BYTES as u64).min(pages.len() as u64) as usize;
            pages[keep..].iter().flatten().cloned().collect()
        };
        let inode = self.inode_mut(slot)?;
        if inode.size() == to {
            return Ok(());
        }
        inode.set_size(to);
        self.bury(cut);
        self.push(Effect::Size { slot, to: Some(to), reserve: 0..0 });
        Ok(())
    }

    pub fn allocate(&mut self, slot: Slot, offset: u64, len: u64) -> io::Result<()> {
        self.writable()?;
        State::offset(offset)?;
        let end = offset.checked_add(len).filter(|_| len > 0).ok_or_else(|| errno(libc::EINVAL))?;
        if end > FILE_BYTES_MAX {
            return Err(errno(libc::EFBIG));
        }
        let range = (offset / PAGE_BYTES as u64) as u32..end.div_ceil(PAGE_BYTES as u64) as u32;
        let inode = self.inode(slot)?;
        let new = range.clone().filter(|&index| inode.page(index).is_none()).count() as u64;
        let free = self.free_pages();
        if new > free {
            // ext4 keeps the blocks that it got so far.
            if self.options.profile == Profile::Ext4 && free > 0 {
                let missing = range.clone().filter(|&index| inode.page(index).is_none());
                let last = missing.take(free as usize).last().expect("some are missing");
                let size = inode.size().max(((last as u64 + 1) * PAGE_BYTES as u64).min(end));
                let to = (size > inode.size()).then_some(size);
                self.tick();
                self.push_applied(Effect::Size { slot, to, reserve: range.start..last + 1 });
            }
            return Err(errno(libc::ENOSPC));
        }
        let to = (end > inode.size()).then_some(end);
        if new > 0 || to.is_some() {
            self.tick();
            self.push_applied(Effect::Size { slot, to, reserve: range });
        }
        Ok(())
    }

    pub fn zero(&mut self, slot: Slot, offset: u64, len: u64) -> io::Result<()> {
        self.writable()?;
        let inode = self.inode_mut(slot)?;
        let (from, to) = (offset, offset.saturating_add(len).min(inode.size()));
        if from >= to {
            return Ok(());
        }
        let mut patches = Vec::new();
        // Behind the last page that was ever written, there is only a hole.
        let end = to.div_ceil(PAGE_BYTES as u64).min(inode.pages().len() as u64) as u32;
        for index in (from / PAGE_BYTES as u64) as u32..end {
            let start = index as u64 * PAGE_BYTES as u64;
            let within = from.saturating_sub(start) as usize..(to - start).min(PAGE_BYTES as u64) as usize;
            // Bytes behind the end of the file are zero already, so the last page may become a hole, too.
            let whole = within.start == 0 && (within.end == PAGE_BYTES || start + within.end as u64 == inode.size());
            let mask = if whole { 0xff } else { sector_mask(index, from, to) };
            if whole {
                inode.set_page(index, None);
            } else if inode.page(index).is_some() {
                inode.page_bytes_mut(index)[within].fill(0);
            }
            patches.push(Patch { page: index, mask, bytes: inode.page(index).cloned() });
        }
        self.push(Effect::Write { slot, patches, from, to, grows: false, direct: false });
        Ok(())
    }

    /// Reads from the device: durable contents and direct writes. Pages that are not waiting to be written are dropped
    /// from the cache, which is when a failed writeback becomes visible.
    pub fn read_device(&mut self, slot: Slot, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        let size = self.inode(slot)?.size();
        let mut device = self.durable.get(slot).unwrap_or(self.inode(slot)?).clone();
        for effect in self.pending.iter().filter(|e| e.slot() == slot) {
            match &**effect {
                Effect::Write { patches, direct: true, .. } => {
                    let device = Arc::make_mut(&mut device);
                    patches.iter().for_each(|patch| patch.apply(device, patch.mask));
                }
                Effect::Store(stored) => stored.apply(Arc::make_mut(&mut device), |_| true),
                _ => {}
            }
        }
        if self.diverged {
            let end = offset + buf.len() as u64;
            self.drop_cache(slot, (offset / PAGE_BYTES as u64) as u32, end.div_ceil(PAGE_BYTES as u64) as u32);
        }
        Ok(read_pages(buf, offset, size, |index| device.page(index).map(|p| p.bytes().as_slice())))
    }

    /// Forgets cached pages that need no writing.
    pub fn drop_cache(&mut self, slot: Slot, first: u32, end: u32) {
        let Some(durable) = self.durable.get(slot).cloned() else { return };
        let Some(live) = self.live.get(slot) else { return };
        let end = end.min(live.size().div_ceil(PAGE_BYTES as u64) as u32);
        for index in first..end {
            let waiting = self.pending.iter().any(|e| match &**e {
                Effect::Write { slot: s, patches, .. } => *s == slot && patches.iter().any(|p| p.page == index),
                Effect::Store(stored) => {
                    let start = index as u64 * PAGE_BYTES as u64;
                    stored.slot == slot && stored.at < start + PAGE_BYTES as u64 && start < stored.end()
                }
                Effect::Size { slot: s, .. } => *s == slot,
                _ => false,
            });
            if !waiting && let Some(live) = self.live.get_mut(slot) {
                live.set_page(index, durable.page(index).cloned());
            }
        }
    }

    // --- metadata

    pub fn meta(&self, slot: Slot) -> io::Result<Meta> {
        let inode = self.inode(slot)?;
        let kind = match inode.body {
            Body::File { .. } => Kind::File,
            Body::Directory(_) => Kind::Directory,
            Body::Symlink => Kind::Symlink,
        };
        let links = inode.links as u64 + (kind == Kind::Directory) as u64;
        let Inode { number, mode, uid, gid, mtime_ns, .. } = **inode;
        Ok(Meta { kind, device: 1, inode: number, size: inode.size(), mtime_ns, links, mode, uid, gid })
    }

    pub fn set_mode(&mut self, slot: Slot, mode: u32) -> io::Result<()> {
        self.writable()?;
        self.push_applied(Effect::Mode { slot, mode: mode & 0o7777 });
        Ok(())
    }

    pub fn set_attribute(&mut self, slot: Slot, value: Option<&[u8]>) -> io::Result<()> {
        self.writable()?;
        if value.is_some() || self.inode(slot)?.attribute.is_some() {
            self.push_applied(Effect::Attribute { slot, value: value.map(Arc::from) });
        }
        Ok(())
    }

    /// Changes a file's owner, durable at once: only tests do that.
    pub fn set_owner(&mut self, slot: Slot, uid: u32, gid: u32) {
        for image in [&mut self.live, &mut self.durable] {
            if let Some(inode) = image.get_mut(slot) {
                (inode.uid, inode.gid) = (uid, gid);
            }
        }
    }

    // --- the rest

    pub fn next_random(&mut self) -> u64 {
        self.random = self.random.wrapping_add(1);
        mix(self.random ^ self.boots.rotate_left(32))
    }

    pub fn boot_id(&self) -> [u8; 16] {
        let (high, low) = (mix(self.options.seed ^ mix(self.boots)), mix(self.boots ^ mix(self.options.seed)));
        (((high as u128) << 64) | low as u128).to_be_bytes()
    }

    pub fn space(&self) -> (u64, u64) {
        let total = self.options.capacity_bytes.unwrap_or(1 << 40);
        (self.free_pages().min(total / PAGE_BYTES as u64) * PAGE_BYTES as u64, total)
    }

    /// Linux takes an offset as a signed number.
    pub fn offset(offset: u64) -> io::Result<()> {
        if i64::try_from(offset).is_ok() { Ok(()) } else { Err(errno(libc::EINVAL)) }
    }

    pub fn aligned(buf: &[u8], offset: u64) -> io::Result<()> {
        let bits = buf.len() | offset as usize | buf.as_ptr() as usize;
        if bits.is_multiple_of(BLOCK_BYTES) { Ok(()) } else { Err(errno(libc::EINVAL)) }
    }
}
