//! File systems for one test.

use crate::{is_root, skipped};
use std::fs::{File, create_dir_all};
use std::path::{Path, PathBuf};
use std::process::Command;

/// A file system that is mounted for one test, and unmounted when dropped.
pub struct Mount(PathBuf);

impl Mount {
    /// Runs `mount` with these arguments at this place. `None`, with a message, if that is not allowed.
    pub fn new(arguments: &[&str], at: &Path) -> Option<Mount> {
        if !is_root() {
            skipped("needs root (to mount)");
            return None;
        }
        let output = Command::new("mount").args(arguments).arg(at).output().expect("the mount program");
        if output.status.success() {
            return Some(Mount(at.to_owned()));
        }
        skipped(&format!("cannot mount {arguments:?} here: {}", String::from_utf8_lossy(&output.stderr).trim()));
        None
    }

    /// Makes a file system by a command such as `mkfs.xfs -q` in an image of this many bytes beside the place, and
    /// mounts it with these options. `None`, with a message, if that is not allowed.
    ///
    /// # Panics
    /// If the file system cannot be made.
    pub fn made(make: &str, bytes: u64, options: &str, at: &Path) -> Option<Mount> {
        let image = at.with_extension("image");
        File::create(&image).expect("image").set_len(bytes).expect("image size");
        create_dir_all(at).expect("a place for the mount");
        let mut words = make.split(' ');
        run(Command::new(words.next().expect("a program")).args(words).arg(&image));
        let options = ["loop", options].join(",");
        Mount::new(&["-o", options.trim_end_matches(','), image.to_str().expect("UTF-8 path")], at)
    }

    /// A new ext4 of this many bytes in an image beside the place, all of it for ordinary users.
    pub fn ext4(bytes: u64, at: &Path) -> Option<Mount> {
        Mount::made("mkfs.ext4 -q -m 0", bytes, "", at)
    }

    /// Mounts again with other options, such as `ro`.
    pub fn remount(&self, options: &str) {
        run(Command::new("mount").args(["-o", &format!("remount,{options}")]).arg(&self.0));
    }

    /// The place of the mount.
    pub fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        // A store that is closing may still use it briefly; the lazy unmount ends after that.
        let _ = Command::new("umount").arg("-l").arg(&self.0).status();
    }
}

fn run(command: &mut Command) {
    let output = command.output().unwrap_or_else(|e| panic!("cannot run {command:?}: {e} (see `make setup`)"));
    assert!(output.status.success(), "{command:?} failed: {}", String::from_utf8_lossy(&output.stderr));
}
