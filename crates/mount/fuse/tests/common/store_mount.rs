//! A store that the program has mounted.

#![allow(dead_code, reason = "not every test program needs all of it")]

use super::can_mount;
use std::fs;
use std::path::PathBuf;
use std::process::Command;
use tempfile::TempDir;

const UNTORN: &str = env!("CARGO_BIN_EXE_untorn-mount");

/// A store that is mounted until the end of the test.
pub struct Mounted(TempDir);

impl Mounted {
    pub fn new() -> Option<Mounted> {
        if !can_mount() {
            return None;
        }
        let mounted = Mounted(tempfile::tempdir().unwrap());
        fs::create_dir(mounted.at("")).unwrap();
        mounted.mount();
        Some(mounted)
    }

    pub fn at(&self, name: &str) -> PathBuf {
        self.0.path().join("mnt").join(name)
    }

    pub fn mount(&self) {
        let done = Command::new(UNTORN).arg(self.0.path().join("store")).arg(self.at("")).status().unwrap();
        assert!(done.success());
    }

    pub fn unmount(&self) {
        assert!(Command::new(UNTORN).arg("umount").arg(self.at("")).status().unwrap().success());
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        let _ = rustix::mount::unmount(self.at(""), rustix::mount::UnmountFlags::DETACH);
    }
}
