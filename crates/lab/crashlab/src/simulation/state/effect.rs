//! Changes that are not yet durable, and the choice of those that a sync makes durable.

use super::disk_options::Profile;
use super::inodes::{Image, Inode, Name, PAGE_BYTES, Page, SECTOR_BYTES, SECTORS_PER_PAGE, Slot};
use super::stored_lines::Stored;
use std::ops::Range;
use std::sync::Arc;

/// The sectors of one page that a write touched, and the page after the write.
#[derive(Clone)]
pub(crate) struct Patch {
    pub page: u32,
    /// One bit per sector.
    pub mask: u8,
    /// `None`: the page became a hole.
    pub bytes: Option<Arc<Page>>,
}

/// One change; changes are kept in the order in which the program made them.
#[derive(Clone)]
pub(crate) enum Effect {
    /// Written contents; with `grows`, the file's new size is `to`.
    Write { slot: Slot, patches: Vec<Patch>, from: u64, to: u64, grows: bool, direct: bool },
    /// Stored or written contents within a file on byte-addressable memory.
    Store(Stored),
    /// The device has the file's contents so far in its cache: its next flush makes them durable, whatever the flush is
    /// for, and it is flushed before later entries of the log.
    WrittenOut { slot: Slot },
    /// `ftruncate` or `fallocate`: a new size, and pages that are reserved.
    Size { slot: Slot, to: Option<u64>, reserve: Range<u32> },
    /// A new name (`created`: of a new inode).
    Link { directory: Slot, name: Name, slot: Slot, created: bool },
    /// A removed name.
    Unlink { directory: Slot, name: Name, slot: Slot },
    /// A renamed entry, which replaces that of the new name: one step, never half.
    Rename { from_directory: Slot, from: Name, directory: Slot, name: Name, slot: Slot },
    /// The attribute `user.untorn`.
    Attribute { slot: Slot, value: Option<Arc<[u8]>> },
    /// Permission bits.
    Mode { slot: Slot, mode: u32 },
}

impl Effect {
    /// The inode that the effect changes or names.
    pub fn slot(&self) -> Slot {
        match self {
            Effect::Write { slot, .. }
            | Effect::WrittenOut { slot }
            | Effect::Size { slot, .. }
            | Effect::Link { slot, .. }
            | Effect::Unlink { slot, .. }
            | Effect::Rename { slot, .. }
            | Effect::Attribute { slot, .. }
            | Effect::Mode { slot, .. } => *slot,
            Effect::Store(stored) => stored.slot,
        }
    }

    pub fn is_write(&self) -> bool {
        matches!(self, Effect::Write { .. } | Effect::Store(_))
    }

    /// The range of contents that the effect writes, and whether it makes the file longer.
    pub fn contents(&self) -> Option<(Range<u64>, bool)> {
        match self {
            Effect::Write { from, to, grows, .. } => Some((*from..*to, *grows)),
            Effect::Store(stored) => Some((stored.at..stored.end(), false)),
            _ => None,
        }
    }

    /// Whether the effect goes through the file system's log, in order, if there is one.
    pub fn is_logged(&self) -> bool {
        !self.is_write() && !matches!(self, Effect::WrittenOut { .. })
    }

    pub fn resizes(&self) -> bool {
        matches!(self, Effect::Write { grows: true, .. } | Effect::Size { to: Some(_), .. })
    }

    pub fn sectors(&self) -> u32 {
        match self {
            Effect::Write { patches, .. } => patches.iter().map(|p| p.mask.count_ones()).sum(),
            _ => 0,
        }
    }

    /// The directory entries that the effect changes.
    pub fn entries(&self) -> [Option<(Slot, &Name)>; 2] {
        match self {
            Effect::Link { directory, name, .. } | Effect::Unlink { directory, name, .. } => {
                [Some((*directory, name)), None]
            }
            Effect::Rename { from_directory, from, directory, name, .. } => {
                [Some((*directory, name)), Some((*from_directory, from))]
            }
            _ => [None, None],
        }
    }

    /// Whether this effect on the disk without `earlier` would be a state that no order of steps leads to.
    fn needs(&self, earlier: &Effect, profile: Profile) -> bool {
        // The size is one field of one inode; an ordered log keeps its history anyway.
        if profile == Profile::AnyPosix && self.resizes() && earlier.resizes() && self.slot() == earlier.slot() {
            return true;
        }
        let ours = self.entries();
        if ours[0].is_none() {
            return false;
        }
        // A removed directory was empty: every entry that left it must have left it on the disk, too.
        let removed = matches!(self, Effect::Unlink { .. }).then(|| self.slot());
        earlier.entries().iter().flatten().any(|(directory, name)| {
            removed == Some(*directory) || ours.iter().flatten().any(|(d, n)| d == directory && n == name)
        })
    }

    /// Applies the effect to an image. `keep` says which of a write's sectors, counted from 0, reach it.
    pub fn apply(&self, image: &mut Image, keep: impl Fn(u32) -> bool, metadata: bool) {
        match self {
            Effect::Write { slot, patches, to, grows, .. } => {
                let Some(inode) = image.get_mut(*slot) else { return };
                let mut ordinal = 0;
                for patch in patches {
                    let mut mask = 0u8;
                    for bit in (0..SECTORS_PER_PAGE).filter(|bit| patch.mask & (1 << bit) != 0) {
                        mask |= (keep(ordinal) as u8) << bit;
                        ordinal += 1;
                    }
                    patch.apply(inode, mask);
                }
                if *grows && metadata {
                    let size = inode.size().max(*to);
                    inode.set_size(size);
                }
            }
            Effect::Store(stored) => stored.land_whole(image),
            Effect::WrittenOut { .. } => {}
            _ if !metadata => {}
            Effect::Size { slot, to, reserve } => {
                let Some(inode) = image.get_mut(*slot) else { return };
                if let Some(to) = to {
                    inode.set_size(*to);
                }
                for index in reserve.clone() {
                    if inode.page(index).is_none() {
                        inode.set_page(index, Some(super::inodes::RESERVED.clone()));
                    }
                }
            }
            Effect::Link { directory, name, slot, .. } => {
                if let Some(directory) = image.get_mut(*directory) {
                    directory.set_entry(name, Some(*slot));
                }
            }
            Effect::Unlink { directory, name, .. } => {
                if let Some(directory) = image.get_mut(*directory) {
                    directory.set_entry(name, None);
                }
            }
            Effect::Rename { from_directory, from, directory, name, slot } => {
                if let Some(directory) = image.get_mut(*from_directory) {
                    directory.set_entry(from, None);
                }
                if let Some(directory) = image.get_mut(*directory) {
                    directory.set_entry(name, Some(*slot));
                }
            }
            Effect::Attribute { slot, value } => {
                if let Some(inode) = image.get_mut(*slot) {
                    inode.attribute = value.clone();
                }
            }
            Effect::Mode { slot, mode } => {
                if let Some(inode) = image.get_mut(*slot) {
                    inode.mode = *mode;
                }
            }
        }
    }

    pub fn apply_whole(&self, image: &mut Image) {
        self.apply(image, |_| true, true);
    }

    /// A description for reports.
    pub fn describe(&self, image: &Image) -> String {
        let file = |slot: Slot| format!("#{}", image.get(slot).map_or(u64::from(slot), |inode| inode.number));
        match self {
            Effect::Write { slot, from, to, grows, direct, .. } => {
                let how = if *direct { "direct write" } else { "write" };
                let grows = if *grows { ", growing" } else { "" };
                format!("{how} to {} [{from}..{to}){grows}", file(*slot))
            }
            Effect::Store(stored) => {
                let how = if stored.by.is_some() { "store" } else { "write" };
                format!("{how} of lines to {} [{}..{})", file(stored.slot), stored.at, stored.end())
            }
            Effect::WrittenOut { slot } => format!("contents of {}, written out", file(*slot)),
            Effect::Size { slot, to: Some(to), .. } => format!("size of {} = {to}", file(*slot)),
            Effect::Size { slot, reserve, .. } => format!("room for {} pages {reserve:?}", file(*slot)),
            Effect::Link { directory, name, slot, .. } => {
                format!("name {name:?} in {} for {}", file(*directory), file(*slot))
            }
            Effect::Unlink { directory, name, .. } => format!("no name {name:?} in {}", file(*directory)),
            Effect::Rename { from_directory, from, directory, name, .. } => {
                format!("{from:?} in {} becomes {name:?} in {}", file(*from_directory), file(*directory))
            }
            Effect::Attribute { slot, value } => {
                format!("attribute of {}, {} bytes", file(*slot), value.as_ref().map_or(0, |v| v.len()))
            }
            Effect::Mode { slot, mode } => format!("mode of {} = {mode:o}", file(*slot)),
        }
    }
}

impl Patch {
    /// Applies the sectors in `mask` to the page.
    pub fn apply(&self, inode: &mut Inode, mask: u8) {
        if mask == 0 {
            return;
        }
        if mask == 0xff {
            inode.set_page(self.page, self.bytes.clone());
            return;
        }
        let page = inode.page_bytes_mut(self.page);
        for bit in (0..SECTORS_PER_PAGE as usize).filter(|bit| mask & (1 << bit) != 0) {
            let range = bit * SECTOR_BYTES..(bit + 1) * SECTOR_BYTES;
            match &self.bytes {
                Some(bytes) => page[range.clone()].copy_from_slice(&bytes.bytes()[range]),
                None => page[range].fill(0),
            }
        }
    }
}

/// The sectors of `page` that `from..to` touches, as bits.
pub(crate) fn sector_mask(page: u32, from: u64, to: u64) -> u8 {
    let start = page as u64 * PAGE_BYTES as u64;
    let first = from.saturating_sub(start) / SECTOR_BYTES as u64;
    let end = (to - start).min(PAGE_BYTES as u64).div_ceil(SECTOR_BYTES as u64);
    (first..end).fold(0, |mask, bit| mask | 1 << bit)
}

/// Adds to the chosen effects the earlier ones that they need.
pub(crate) fn close_over(pending: &[Arc<Effect>], chosen: &mut [bool], profile: Profile) {
    for i in (0..pending.len()).rev() {
        if !chosen[i] {
            continue;
        }
        for j in 0..i {
            if !chosen[j] && pending[i].needs(&pending[j], profile) {
                chosen[j] = true;
            }
        }
    }
}

/// Chooses the effects that `fdatasync` or `fsync` (`all`) of a file makes durable.
pub(crate) fn chosen_by_file_sync(pending: &[Arc<Effect>], slot: Slot, all: bool, profile: Profile) -> Vec<bool> {
    // Contents and size always. Whether the file's log entries, and with an ordered log everything logged before them,
    // become durable depends on the file system.
    let mut chosen: Vec<bool> =
        pending.iter().map(|e| e.slot() == slot && (e.is_write() || matches!(**e, Effect::Size { .. }))).collect();
    let forces_log = |e: &Effect| match e {
        Effect::Write { grows, .. } => *grows,
        Effect::Size { .. } | Effect::Link { created: true, .. } => true,
        // On ext4 these do not make `fdatasync` commit the log.
        _ => all || profile != Profile::Ext4,
    };
    match profile {
        Profile::Ext4 | Profile::Xfs => {
            let last = pending.iter().rposition(|e| e.slot() == slot && forces_log(e));
            for (chosen, e) in chosen.iter_mut().zip(pending).take(last.map_or(0, |last| last + 1)) {
                *chosen |= e.is_logged();
            }
        }
        Profile::Btrfs => {
            for (chosen, e) in chosen.iter_mut().zip(pending) {
                *chosen |= e.slot() == slot && !matches!(**e, Effect::Unlink { .. });
            }
        }
        Profile::AnyPosix => {
            for (chosen, e) in chosen.iter_mut().zip(pending) {
                let own = matches!(**e, Effect::Attribute { .. } | Effect::Mode { .. });
                *chosen |= all && own && e.slot() == slot;
            }
        }
    }
    close_over(pending, &mut chosen, profile);
    chosen
}

/// Chooses the effects that `fsync` of a directory makes durable.
pub(crate) fn chosen_by_directory_sync(pending: &[Arc<Effect>], directory: Slot, profile: Profile) -> Vec<bool> {
    let own = |e: &Effect| {
        let mode = matches!(e, Effect::Mode { slot, .. } if *slot == directory);
        mode || e.entries().iter().flatten().any(|(d, _)| *d == directory)
    };
    // The strictest interpretation: a rename between directories is durable when the new directory is synced.
    let target = |e: &Effect| match e {
        Effect::Rename { directory: to, .. } => *to == directory,
        _ => own(e),
    };
    let mut chosen: Vec<bool> = match profile {
        Profile::Ext4 | Profile::Xfs => {
            let last = pending.iter().rposition(|e| own(e)).map_or(0, |last| last + 1);
            pending.iter().enumerate().map(|(i, e)| i < last && e.is_logged()).collect()
        }
        Profile::Btrfs => pending.iter().map(|e| own(e)).collect(),
        Profile::AnyPosix => pending.iter().map(|e| target(e)).collect(),
    };
    close_over(pending, &mut chosen, profile);
    chosen
}
