//! Directories on a file system of their own, for users who may write there.

use super::Session;
use std::ffi::OsStr;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use untorn_testkit::Mount;

/// A mounted ext4 file system, as an administrator provides it. It is unmounted when this value is dropped.
pub struct Directory {
    mount: Mount,
    dir: tempfile::TempDir,
}

impl Directory {
    /// The kernel commits by itself only after ten minutes, so that tests see requested commits only.
    pub fn mounted(options: &str) -> Directory {
        let dir = tempfile::tempdir().unwrap();
        fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755)).unwrap();
        let (make, options) = ("mkfs.ext4 -q -F -J size=8", format!("noatime,commit=600,{options}"));
        let mount = Mount::made(make, 40 << 20, &options, &dir.path().join("mounted")).expect("a mount");
        let directory = Directory { mount, dir };
        fs::remove_dir(directory.at().join("lost+found")).unwrap();
        directory
    }

    pub fn at(&self) -> PathBuf {
        self.mount.path().to_owned()
    }

    /// A link to a program, in a place where an ordinary user can execute it.
    pub fn program(&self, from: &Path) -> PathBuf {
        let to = self.dir.path().join(from.file_name().unwrap());
        if !to.exists() {
            fs::hard_link(from, &to).unwrap_or_else(|_| untorn_testkit::install(from, &to));
        }
        to
    }

    pub fn give_to(&self, user: u32) {
        std::os::unix::fs::chown(self.at(), Some(user), Some(user)).unwrap();
    }

    /// The command `untorn-xsync` with these arguments, as this user.
    pub fn xsync<S: AsRef<OsStr>>(&self, user: u32, arguments: &[S]) -> Command {
        let mut command = Command::new(self.program(Path::new(env!("CARGO_BIN_EXE_untorn-xsync"))));
        command.args(arguments).uid(user).gid(user).env_remove("XDG_RUNTIME_DIR").current_dir("/").stdin(Stdio::null());
        command
    }

    /// A session on the directory, as this user.
    pub fn session(&self, user: u32, program: &[&str]) -> Command {
        let mut command = self.xsync(user, &["--on"]);
        command.arg(self.at()).arg("--").args(program).current_dir(self.at());
        command
    }

    /// Starts the administrator's watcher, and waits until it listens.
    pub fn watcher(&self) -> Session {
        let mut command = self.xsync(0, &["--watch"]);
        let mut watcher = Session::start(command.arg(self.at()).stderr(Stdio::piped()));
        let mut said = [0; 13];
        std::io::Read::read_exact(watcher.stderr.as_mut().unwrap(), &mut said).unwrap();
        assert_eq!(&said, b"untorn-xsync:");
        watcher
    }

    /// The number of transactions that the file system's journal has committed.
    pub fn transactions(&self) -> u64 {
        let disk = untorn_xsync::view::on_directory::disk_of(&self.at()).unwrap();
        let mut entries = fs::read_dir("/proc/fs/jbd2").unwrap().flatten();
        let ours = entries.find(|entry| entry.file_name().to_string_lossy().starts_with(&format!("{disk}-"))).unwrap();
        let info = fs::read_to_string(ours.path().join("info")).unwrap();
        info.split_whitespace().next().unwrap().parse().unwrap()
    }
}
