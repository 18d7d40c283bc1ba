//! The version of the running kernel.

/// Whether the kernel has this version or a later one.
pub(crate) fn kernel_is(major: u32, minor: u32) -> bool {
    let release = rustix::system::uname().release().to_string_lossy().into_owned();
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
