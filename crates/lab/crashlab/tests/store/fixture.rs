//! Stores on simulated disks, for the tests beside this file.

use std::path::PathBuf;
use untorn::__private::OpenStoreOn;
use untorn::{File, Store, StoreOptions};
use untorn_crashlab::enumeration::enumerate::{Bounds, Effort, Enumeration};
use untorn_crashlab::programs::program::Case;
use untorn_crashlab::{Options, Profile, SimDisk};
use untorn_journal::directories::store_dir::StoreDir;

pub fn open_on(disk: &SimDisk, options: StoreOptions) -> untorn::Result<Store> {
    options.open_on(disk.process(), StoreDir::of_directory(), PathBuf::new())
}

/// Stores with a roomy journal, on a disk of a chosen profile.
pub mod roomy {
    use super::*;

    pub use super::open_on as open_with;

    pub fn disk(profile: Profile) -> SimDisk {
        SimDisk::new(Options { profile, ..Options::default() })
    }

    pub fn options() -> StoreOptions {
        StoreOptions::new().create(true).background(false).sizes(256 << 10, 16 << 10, 32 << 10)
    }

    pub fn open(disk: &SimDisk) -> Store {
        open_with(disk, options()).expect("a healthy disk")
    }

    /// The machine after its processes were killed and the store was recovered.
    pub fn recovered(disk: &SimDisk) -> SimDisk {
        let after = disk.fork();
        let store = open_with(&after, options()).expect("recovery");
        assert_eq!(
            store.status().quarantined.iter().map(|q| q.reason.clone()).collect::<Vec<_>>(),
            Vec::<String>::new()
        );
        store.close().expect("a clean close");
        after
    }
}

/// Stores with a small journal, so that many commits go to spill files, on a disk that keeps only the promises of
/// POSIX.
pub mod small {
    use super::*;

    pub use super::open_on as open_with;

    pub fn disk() -> SimDisk {
        SimDisk::new(Options { profile: Profile::AnyPosix, ..Options::default() })
    }

    pub fn options() -> StoreOptions {
        StoreOptions::new().create(true).background(false).sizes(64 << 10, 16 << 10, 4 << 10)
    }

    pub fn open(disk: &SimDisk) -> Store {
        open_with(disk, options()).expect("a healthy disk")
    }
}

pub fn contents(file: &File) -> Vec<u8> {
    let mut bytes = vec![0; file.len().unwrap() as usize];
    file.read_at(&mut bytes, 0).unwrap();
    bytes
}

/// Asserts that the program, written as `setup/sync points skipped/operations/`, survives every crash.
pub fn survives(case: &str) {
    let case: Case = case.parse().unwrap();
    let enumeration = Enumeration::new(Bounds::default());
    let effort = Effort { cuts_max: 200, second_max: 4, after_failed_sync_max: 4, failed_sync_ways: 3 };
    enumeration.program(&case.setup, &case.ops, &effort);
    if let Some(violation) = enumeration.violations().first() {
        panic!("{violation}");
    }
    assert!(enumeration.totals().checked > 0);
}
