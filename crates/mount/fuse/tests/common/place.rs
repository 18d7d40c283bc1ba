//! A directory in which a user runs the program, and listings of trees of files.

#![allow(dead_code, reason = "not every test program needs all of it")]

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use tempfile::TempDir;
pub use untorn_testkit::NOBODY;

/// A directory, and the user who works in it.
pub struct Place {
    pub dir: TempDir,
    pub uid: u32,
}

impl Place {
    pub fn of(uid: u32) -> Place {
        let place = Place { dir: tempfile::tempdir().unwrap(), uid };
        // The user may not have access to the build directory.
        let built = env!("CARGO_BIN_EXE_untorn-mount");
        let installed = Command::new("install").args(["-m", "755", built]).arg(place.at("program")).status();
        assert!(installed.unwrap().success());
        place.give("");
        place
    }

    /// The user who runs the tests, and an ordinary user if that is root.
    pub fn all() -> Vec<Place> {
        let me = rustix::process::geteuid().as_raw();
        if me != 0 {
            eprintln!("skipped: as root");
            return vec![Place::of(me)];
        }
        vec![Place::of(0), Place::of(NOBODY)]
    }

    pub fn at(&self, name: &str) -> PathBuf {
        match name {
            "" => self.dir.path().canonicalize().unwrap(),
            name => self.dir.path().canonicalize().unwrap().join(name),
        }
    }

    /// Gives files that the test made to the user.
    pub fn give(&self, name: &str) {
        if rustix::process::geteuid().is_root() {
            let owner = format!("{0}:{0}", self.uid);
            assert!(Command::new("chown").args(["-hR", &owner]).arg(self.at(name)).status().unwrap().success());
        }
    }

    pub fn command(&self, arguments: &[&str]) -> Command {
        self.command_by(&[], arguments)
    }

    /// A command that the user starts by another program, with that program's arguments.
    pub fn command_by(&self, launcher: &[&str], arguments: &[&str]) -> Command {
        let (uid, program) = (self.uid.to_string(), self.at("program"));
        let become_user = ["setpriv", "--reuid", &uid, "--regid", &uid, "--clear-groups"];
        let become_user = if rustix::process::geteuid().is_root() { &become_user[..] } else { &[] };
        let before = become_user.iter().chain(launcher).map(OsStr::new);
        let mut words = before.chain([program.as_os_str()]).chain(arguments.iter().map(OsStr::new));
        let mut command = Command::new(words.next().expect("a program"));
        command.args(words).current_dir(self.at("")).stdin(Stdio::null());
        // Without directories that the user may not read.
        command.env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin");
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    pub fn run(&self, arguments: &[&str]) -> Output {
        self.command(arguments).output().unwrap()
    }

    pub fn done(&self, arguments: &[&str]) -> Output {
        let output = self.run(arguments);
        assert!(output.status.success(), "as {}: {arguments:?}: {}", self.uid, said(&output));
        output
    }

    /// Checks that a store is sound, whether it was closed or not.
    #[allow(dead_code, reason = "not every test file looks")]
    pub fn sound(&self, store: &str) {
        let output = self.run(&["check", store]);
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(text.lines().any(|line| line.starts_with("sound")), "{text}{}", said(&output));
    }

    pub fn refused(&self, arguments: &[&str], words: &str) {
        self.refused_with(1, arguments, words);
    }

    pub fn refused_with(&self, code: i32, arguments: &[&str], words: &str) {
        let output = self.run(arguments);
        assert_eq!(output.status.code(), Some(code), "as {}: {arguments:?}: {}", self.uid, said(&output));
        assert!(said(&output).contains(words), "as {}: {arguments:?}: {}", self.uid, said(&output));
    }

    /// Names in the directory, except those of `known`.
    pub fn left(&self, known: &[&str]) -> Vec<String> {
        let names = fs::read_dir(self.at("")).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
        names.filter(|name| name != "program" && !known.contains(&name.as_str())).collect()
    }
}

pub fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// Lists all properties of each name that a copy keeps, except the access time, which this changes. Inode numbers are
/// replaced by the inode's first name.
pub fn listing(root: &Path) -> BTreeMap<PathBuf, String> {
    fn walk(at: &Path, root: &Path, found: &mut BTreeMap<PathBuf, String>, first: &mut BTreeMap<u64, PathBuf>) {
        let about = fs::symlink_metadata(at).unwrap();
        let name = at.strip_prefix(root).unwrap().to_owned();
        let kind = about.file_type();
        let contents = match (kind.is_file(), kind.is_symlink()) {
            (true, _) => {
                let mut hash = DefaultHasher::new();
                fs::read(at).unwrap().hash(&mut hash);
                format!("{:x}", hash.finish())
            }
            (_, true) => format!("{:?}", fs::read_link(at).unwrap()),
            _ => String::new(),
        };
        let size = if kind.is_dir() { 0 } else { about.size() };
        let (links, of) = match kind.is_dir() {
            true => (0, name.clone()),
            false => (about.nlink(), first.entry(about.ino()).or_insert_with(|| name.clone()).clone()),
        };
        let mut names = [0; 4096];
        let len = rustix::fs::llistxattr(at, &mut names[..]).unwrap();
        let mut attributes: Vec<_> = names[..len].split(|byte| *byte == 0).filter(|name| !name.is_empty()).collect();
        attributes.sort_unstable();
        let attributes: Vec<String> = attributes
            .into_iter()
            .map(|name| {
                let mut value = [0; 4096];
                let name = std::str::from_utf8(name).unwrap();
                let len = rustix::fs::lgetxattr(at, name, &mut value[..]).unwrap();
                format!("{name}={}", String::from_utf8_lossy(&value[..len]))
            })
            .collect();
        let line = format!(
            "{:o} {}:{} {size} {links} {of:?} {} {}.{} {contents} {attributes:?}",
            about.mode(),
            about.uid(),
            about.gid(),
            about.rdev(),
            about.mtime(),
            about.mtime_nsec()
        );
        found.insert(name, line);
        if kind.is_dir() {
            let mut names: Vec<_> = fs::read_dir(at).unwrap().map(|entry| entry.unwrap().path()).collect();
            names.sort();
            names.iter().for_each(|path| walk(path, root, found, first));
        }
    }
    let (mut found, mut first) = Default::default();
    walk(root, root, &mut found, &mut first);
    found
}
