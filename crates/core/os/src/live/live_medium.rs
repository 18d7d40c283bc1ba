//! The failures that live memory survives: found out from the file system and the device below it.

use crate::descriptors::descriptor::above_standard;
use crate::mapping::line_stores::can_store;
use rustix::fs::{self, Mode, OFlags};
use rustix::mm::{self, MapFlags, ProtFlags};
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};

/// Names who writes the caches to byte-addressable memory, if the system does not know it.
const CACHES: &str = "UNTORN_LIVE_CACHES";

/// The memory of live heaps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LiveMedium {
    /// Memory that survives the process, and nothing more.
    Ordinary,
    /// Byte-addressable memory; the hardware writes the caches to it when power fails.
    Persistent,
    /// Byte-addressable memory; the caches are lost with the power, so lines are flushed.
    Flushed,
}

impl LiveMedium {
    /// The medium's number in the head of live memory.
    pub fn number(self) -> u64 {
        match self {
            LiveMedium::Ordinary => 0,
            LiveMedium::Persistent => 1,
            LiveMedium::Flushed => 2,
        }
    }

    /// The medium of a number. None: there is no such medium.
    pub fn of_number(number: u64) -> Option<LiveMedium> {
        [LiveMedium::Ordinary, LiveMedium::Persistent, LiveMedium::Flushed]
            .into_iter()
            .find(|one| one.number() == number)
    }

    /// Whether the memory survives the end of the kernel and a power cut.
    pub fn survives_power(self) -> bool {
        self != LiveMedium::Ordinary
    }

    /// Whether stores are durable only behind a flush of their line.
    pub fn is_flushed(self) -> bool {
        self == LiveMedium::Flushed
    }

    /// The medium of live memory in a directory. `on_trial`: the file system is taken for one on byte-addressable
    /// memory. `InvalidInput` if the environment variable `UNTORN_LIVE_CACHES` makes no sense.
    pub fn of_directory(dir: &Path, on_trial: bool) -> io::Result<LiveMedium> {
        if !can_store() || !(on_trial || keeps_stores(dir)) {
            return Ok(LiveMedium::Ordinary);
        }
        let told = std::env::var_os(CACHES).unwrap_or_default();
        let by_hardware = match told.as_encoded_bytes() {
            b"hardware" => true,
            b"flush" => false,
            b"" => caches_are_kept(dir),
            _ => {
                return Err(io::Error::new(
                    ErrorKind::InvalidInput,
                    format!("{CACHES} is {told:?}: it is `hardware` or `flush`, or not set"),
                ));
            }
        };
        // Other processors make stores visible in another order than that of the program.
        Ok(if by_hardware && cfg!(target_arch = "x86_64") { LiveMedium::Persistent } else { LiveMedium::Flushed })
    }
}

/// How memory is mapped whose stores need no call to be durable.
pub(crate) const SYNCED: MapFlags = MapFlags::SHARED_VALIDATE.union(MapFlags::SYNC);

/// Whether files in this directory are on byte-addressable memory, and this process can make some.
fn keeps_stores(dir: &Path) -> bool {
    let flags = OFlags::RDWR | OFlags::TMPFILE | OFlags::CLOEXEC;
    let Ok(file) = above_standard(|| fs::open(dir, flags, Mode::from_raw_mode(0o600))) else { return false };
    let both = ProtFlags::READ | ProtFlags::WRITE;
    // SAFETY: a new mapping, which replaces nothing, and which nobody uses.
    unsafe {
        let mapped = mm::mmap(std::ptr::null_mut(), 4096, both, SYNCED, &file, 0);
        mapped.and_then(|at| mm::munmap(at, 4096)).is_ok()
    }
}

/// Whether the hardware below a directory writes the caches back when power fails (eADR).
fn caches_are_kept(dir: &Path) -> bool {
    let Ok(stat) = fs::stat(dir) else { return false };
    let device = format!("/sys/dev/block/{}:{}", fs::major(stat.st_dev), fs::minor(stat.st_dev));
    std::fs::canonicalize(device).is_ok_and(|device| has_cache_domain(&device))
}

/// Whether all regions of memory below a block device say so.
fn has_cache_domain(device: &Path) -> bool {
    let below = std::fs::read_dir(device.join("slaves")).into_iter().flatten().flatten();
    let below: Vec<PathBuf> = below.filter_map(|one| std::fs::canonicalize(one.path()).ok()).collect();
    if !below.is_empty() {
        return below.iter().all(|device| has_cache_domain(device));
    }
    let told = device.ancestors().find_map(|dir| std::fs::read(dir.join("persistence_domain")).ok());
    told.is_some_and(|told| told.trim_ascii() == b"cpu_cache")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::{create_dir_all, write};
    use std::os::unix::fs::symlink;

    #[test]
    fn the_domain_of_a_device_is_that_of_all_regions_below_it() {
        let dir = tempfile::tempdir().unwrap();
        let bus = dir.path().join("bus");
        let device = |region: &str, domain: Option<&str>| {
            let device = bus.join(region).join("namespace0.0/block/pmem");
            create_dir_all(&device).unwrap();
            if let Some(domain) = domain {
                write(bus.join(region).join("persistence_domain"), domain).unwrap();
            }
            device
        };
        let kept = device("region0", Some("cpu_cache\n"));
        let lost = device("region1", Some("memory_controller\n"));
        let unknown = device("region2", None);
        assert!(has_cache_domain(&kept) && has_cache_domain(&kept.join("pmem0p1")));
        assert!(!has_cache_domain(&lost) && !has_cache_domain(&unknown) && !has_cache_domain(&bus.join("none")));
        for (below, wanted) in [(vec![&kept], true), (vec![&kept, &kept], true), (vec![&kept, &lost], false)] {
            let mapped = tempfile::tempdir_in(dir.path()).unwrap();
            create_dir_all(mapped.path().join("slaves")).unwrap();
            for (nth, device) in below.into_iter().enumerate() {
                symlink(device, mapped.path().join(format!("slaves/{nth}"))).unwrap();
            }
            assert_eq!(has_cache_domain(mapped.path()), wanted);
        }
    }

    #[test]
    fn ordinary_memory_keeps_nothing() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(LiveMedium::of_directory(dir.path(), false).unwrap(), LiveMedium::Ordinary);
        assert_eq!(LiveMedium::of_directory(&dir.path().join("none"), false).unwrap(), LiveMedium::Ordinary);
        if can_store() && std::env::var_os(CACHES).is_none() {
            assert_eq!(LiveMedium::of_directory(dir.path(), true).unwrap(), LiveMedium::Flushed);
        }
        for number in 0..4 {
            assert_eq!(LiveMedium::of_number(number).map_or(3, LiveMedium::number), number);
        }
    }
}
