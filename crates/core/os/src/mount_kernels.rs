//! The parts of a mount (`untorn mount`) that work since which version of the kernel.

/// Version of an older kernel (`6.1`) as which this one is treated, for tests.
pub const AS_KERNEL: &str = "UNTORN_MOUNT_AS_KERNEL";

/// The first two numbers of a version.
type Version = (u32, u32);

fn parse(release: &str) -> Version {
    let mut numbers = release.split(|c: char| !c.is_ascii_digit()).map_while(|number| number.parse().ok());
    (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0))
}

/// The kernel's version.
pub fn version() -> Version {
    let present = parse(&rustix::system::uname().release().to_string_lossy());
    std::env::var(AS_KERNEL).map_or(present, |other| present.min(parse(&other)))
}

/// Whether a store can be mounted.
pub fn is_served() -> bool {
    version() >= (5, 15)
}

/// Whether files whose writes are not cached can be mapped, as the mode `write` needs.
pub fn maps_uncached_files() -> bool {
    version() >= (6, 6)
}

/// Whether the kernel's writeback may end before the daemon has the data.
pub fn ends_writeback_early() -> bool {
    version() < (6, 16)
}

/// Whether the kernel can repeat the requests that a killed daemon has not answered (`FUSE_NOTIFY_RESEND`).
pub fn repeats_requests() -> bool {
    version() >= (6, 9)
}

/// Whether `sync` and `syncfs` reach a daemon whose mount has a block device.
pub fn passes_on_sync() -> bool {
    version() >= (6, 18)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn releases_of_distributions_are_understood() {
        for (release, version) in [
            ("6.1.0-56-cloud-amd64", (6, 1)),
            ("6.12.117+deb13", (6, 12)),
            ("5.15.0-97-generic", (5, 15)),
            ("6", (6, 0)),
        ] {
            assert_eq!(parse(release), version);
        }
    }
}
