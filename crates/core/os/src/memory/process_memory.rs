//! The mappings of this process, and write permission to its pages.

use rustix::mm::{self, MprotectFlags};
use std::io;
use std::ops::Range;

/// Accessible address ranges and their mappings: a file's path, `[heap]`, `[stack]`, or an empty name for other
/// anonymous memory.
pub fn process_memory() -> io::Result<Vec<(Range<u64>, String)>> {
    Ok(std::fs::read_to_string("/proc/self/maps")?.lines().filter_map(entry).collect())
}

/// Removes write permission from whole pages of the process, or restores it.
///
/// # Safety
/// The pages are the caller's, and nobody relies on being able to store to them, or on being unable.
pub unsafe fn set_read_only(pages: Range<usize>, on: bool) -> io::Result<()> {
    let mut protection = MprotectFlags::READ;
    protection.set(MprotectFlags::WRITE, !on);
    // SAFETY: the caller's promise; contents do not change.
    unsafe { mm::mprotect(pages.start as *mut _, pages.len(), protection)? };
    Ok(())
}

/// Parses a line `START-END PERMISSIONS OFFSET DEVICE INODE   PATH`.
fn entry(line: &str) -> Option<(Range<u64>, String)> {
    let (range, rest) = line.split_once(' ')?;
    if rest.starts_with("---") {
        return None;
    }
    let (start, end) = range.split_once('-')?;
    let number = |text| u64::from_str_radix(text, 16).ok();
    let name = rest.splitn(5, ' ').nth(4).unwrap_or_default().trim();
    Some((number(start)?..number(end)?, name.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_of_this_process_is_found() {
        let all = process_memory().expect("/proc/self/maps");
        let (here, on_stack) = ((memory_of_this_process_is_found as fn()) as usize as u64, 0);
        let name = |at: u64| all.iter().find(|(range, _)| range.contains(&at)).map(|(_, name)| name.as_str());
        let program = std::env::current_exe().expect("this program");
        assert_eq!(name(here), program.to_str());
        assert!(name(&raw const on_stack as u64).is_some());
        assert_eq!(name(0), None);
    }
}
