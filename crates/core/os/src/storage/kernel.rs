//! The version of the running kernel.

/// Whether the kernel has this version or a later one.
pub(crate) fn kernel_is(major: u32, minor: u32) -> bool {
    // SAFETY: all-zero is a valid `utsname`.
    let mut name: libc::utsname = unsafe { std::mem::zeroed() };
    // The C library's call, which MemorySanitizer knows, and no `strlen` of bytes that the kernel wrote.
    // SAFETY: fills the structure, which lives.
    let known = unsafe { libc::uname(&raw mut name) } == 0;
    let bytes = name.release.iter().take_while(|byte| known && **byte != 0);
    let release: String = bytes.map(|byte| char::from(*byte as u8)).collect();
    let mut numbers = release.split(|c: char| !c.is_ascii_digit()).map_while(|n| n.parse::<u32>().ok());
    (numbers.next(), numbers.next()) >= (Some(major), Some(minor))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_kernel_is_no_older_than_itself() {
        assert!(kernel_is(3, 0) && !kernel_is(u32::MAX, 0));
    }
}
