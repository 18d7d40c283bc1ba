//! Ranges of addresses.

use std::ffi::c_void;
use std::ops::Range;

pub(crate) fn page_bytes() -> usize {
    // SAFETY: takes a number.
    unsafe { libc::sysconf(libc::_SC_PAGESIZE) as usize }
}

/// The pages of a range of addresses. None: not a valid range.
pub(crate) fn pages(address: *mut c_void, len: usize) -> Option<Range<usize>> {
    let (start, page) = (address.addr(), page_bytes());
    let end = start.checked_add(len)?.checked_next_multiple_of(page)?;
    (start.is_multiple_of(page) && start < end).then_some(start..end)
}

/// The addresses that two ranges share.
pub(crate) fn overlap(a: &Range<usize>, b: &Range<usize>) -> Option<Range<usize>> {
    let both = a.start.max(b.start)..a.end.min(b.end);
    (both.start < both.end).then_some(both)
}

/// Subtracts a range from several others.
pub(crate) fn subtract(ranges: Vec<Range<usize>>, hole: &Range<usize>) -> Vec<Range<usize>> {
    let outside = |r: Range<usize>| match overlap(&r, hole) {
        Some(both) => [r.start..both.start, both.end..r.end],
        None => [r, 0..0],
    };
    ranges.into_iter().flat_map(outside).filter(|r| !r.is_empty()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_subtracted() {
        let left = |hole: Range<usize>| subtract(vec![0..10, 20..30], &hole);
        assert_eq!(left(5..25), [0..5, 25..30]);
        assert_eq!(left(3..4), [0..3, 4..10, 20..30]);
        assert_eq!(left(10..20), [0..10, 20..30]);
        assert!(left(0..30).is_empty());
        assert_eq!(overlap(&(0..5), &(5..9)), None);
    }
}
