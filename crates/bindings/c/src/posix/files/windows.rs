//! The maps of managed files, as windows of addresses.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::*};

use untorn::Map;

use super::managed_files::{Managed, Managing, Window, begin_managing, has_files, read, release_if_unused, write};
use crate::boundary::error::{Failure, Result};
use crate::posix::state::address_ranges::{overlap, subtract};
use crate::posix::state::posix_descriptor::failure;

/// The number of ranges in the table that are doubled.
static DOUBLED: AtomicUsize = AtomicUsize::new(0);

/// Ends the newest windows that show a range of addresses, and stops managing their files if these are unused.
/// False: no window shows the range.
pub(crate) fn unmap(addresses: Range<usize>) -> Result<bool> {
    let managing = begin_managing();
    let taken = take_windows(addresses);
    let found = !taken.is_empty();
    let mut result = Ok(found);
    for Window { file, map, .. } in taken {
        let unmapped = match Arc::into_inner(map) {
            Some(map) if !file.is_parents() => map.unmap().map_err(Failure::from),
            _ => Ok(()),
        };
        result = result.and_then(|found| unmapped.and_then(|()| release_if_unused(&file, &managing)).map(|()| found));
    }
    result
}

/// The managed files that are mapped in a range of addresses.
pub(crate) fn mapped_in(addresses: &Range<usize>) -> Vec<Arc<Managed>> {
    let mut files: Vec<Arc<Managed>> = Vec::new();
    if has_files() {
        for window in read().windows.iter().filter(|window| overlap(&window.addresses, addresses).is_some()) {
            if !files.iter().any(|file| Arc::ptr_eq(file, &window.file)) {
                files.push(window.file.clone());
            }
        }
    }
    files
}

/// Whether a range of addresses overlaps the reserved addresses of a managed file.
pub(crate) fn is_reserved(addresses: &Range<usize>) -> bool {
    has_files() && read().files.values().any(|file| overlap(&file.reserved(), addresses).is_some())
}

/// A map of a file, if there is one.
pub(crate) fn map_of(file: &Arc<Managed>) -> Option<Arc<Map>> {
    read().windows.iter().find(|window| Arc::ptr_eq(&window.file, file)).map(|window| window.map.clone())
}

/// Adds the window of a new map.
pub(crate) fn add(window: Window) {
    write().windows.push(window);
}

/// Takes all windows of a file out of the table.
pub(crate) fn windows_of(file: &Arc<Managed>, _managing: &Managing) -> Vec<Window> {
    write().windows.extract_if(.., |window| Arc::ptr_eq(&window.file, file)).collect()
}

/// Puts new maps in the place of old ones.
pub(crate) fn renew_maps(
    file: &Arc<Managed>,
    _managing: &Managing,
    renew: impl Fn(&Map, usize) -> Result<Map>,
) -> Result<()> {
    let mut table = write();
    let mut renewed: Vec<(Arc<Map>, Arc<Map>)> = Vec::new();
    for window in table.windows.iter_mut().filter(|window| Arc::ptr_eq(&window.file, file)) {
        let known = renewed.iter().find(|(old, _)| Arc::ptr_eq(old, &window.map)).map(|(_, new)| new.clone());
        let new = match known {
            Some(new) => new,
            None => {
                let new = Arc::new(renew(&window.map, window.addresses.end)?);
                renewed.push((window.map.clone(), new.clone()));
                new
            }
        };
        window.map = new;
    }
    drop(table);
    Ok(())
}

/// Takes a range of addresses out of the windows: each address out of the newest window that shows it. Returns
/// the parts taken out.
fn take_windows(addresses: Range<usize>) -> Vec<Window> {
    let mut table = write();
    let (mut left, mut kept, mut taken) = (vec![addresses], Vec::new(), Vec::new());
    for window in std::mem::take(&mut table.windows).into_iter().rev() {
        let part = |addresses| Window { addresses, file: window.file.clone(), map: window.map.clone() };
        let here: Vec<_> = left.iter().filter_map(|range| overlap(range, &window.addresses)).collect();
        let stays = here.iter().fold(vec![window.addresses.clone()], subtract);
        kept.extend(stays.into_iter().map(part));
        taken.extend(here.into_iter().map(part));
        left = subtract(left, &window.addresses);
    }
    kept.reverse();
    table.windows = kept;
    taken
}

/// Notes that the program has mapped these addresses once more than the kernel knows.
pub(crate) fn double(addresses: Range<usize>) {
    let mut table = write();
    table.doubled.push(addresses);
    DOUBLED.store(table.doubled.len(), Release);
}

/// Whether any addresses are mapped more often than the kernel knows.
pub(crate) fn is_any_doubled() -> bool {
    DOUBLED.load(Acquire) > 0
}

/// Whether some of these addresses are mapped more often than the kernel knows.
pub(crate) fn is_doubled(addresses: &Range<usize>) -> bool {
    is_any_doubled() && read().doubled.iter().any(|range| overlap(range, addresses).is_some())
}

/// Ends one map of a range of addresses of files that are no longer managed. Returns the addresses that no other map
/// shows.
pub(crate) fn halve(addresses: Range<usize>) -> Vec<Range<usize>> {
    let mut table = write();
    let (mut left, mut kept) = (vec![addresses], Vec::new());
    for range in std::mem::take(&mut table.doubled) {
        let here: Vec<_> = left.iter().filter_map(|left| overlap(left, &range)).collect();
        left = subtract(left, &range);
        kept.extend(here.iter().fold(vec![range], subtract));
    }
    table.doubled = kept;
    DOUBLED.store(table.doubled.len(), Release);
    left
}

/// Extends the window that shows exactly this range, within the reserved addresses of its file.
pub(crate) fn extend(addresses: &Range<usize>, end: usize) -> Result<()> {
    let mut table = write();
    let window = table.windows.iter_mut().rev().find(|window| window.addresses == *addresses);
    let window = window.ok_or_else(|| failure(libc::EFAULT, "no map of a managed file has exactly these addresses"))?;
    if end > window.file.reserved().end {
        return Err(failure(libc::ENOMEM, "the map would outgrow the address space that is reserved for its file"));
    }
    window.addresses.end = end;
    Ok(())
}
