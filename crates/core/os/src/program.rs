//! Programs as their files describe them: whether a library can be loaded before their own.
//!
//! All of this may run in a child of `vfork`, and between `fork` and `exec` in a child of a process with several threads:
//! it makes system calls only, allocates nothing and takes no lock.

use rustix::fd::{AsFd, OwnedFd};
use rustix::fs::{self, Access, AtFlags, CWD, Mode, OFlags, Stat, StatVfsMountFlags};
use rustix::io::{Errno, pread};
use std::ffi::CStr;

/// Room for a path, its NUL included.
const PATH_BYTES: usize = libc::PATH_MAX as usize;

/// Room for the path of a dynamic linker.
const LINKER_BYTES: usize = 256;

/// Scripts whose interpreters are scripts, at most.
pub const SCRIPTS_MAX: usize = 4;

/// The reason why a library cannot be preloaded into a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Obstacle {
    /// Linked statically.
    Static,
    /// Setuid or setgid.
    SetId,
    /// A file with capabilities.
    Capabilities,
    /// By the compiler of Go.
    Go,
    /// Linked with another C library than GNU's.
    OtherLibc,
    /// For another machine.
    OtherMachine,
}

impl Obstacle {
    /// The end of a sentence that begins with the program.
    pub fn reason(self) -> &'static str {
        match self {
            Obstacle::Static => "it is linked statically, so no library can be loaded before its own",
            Obstacle::SetId => "it runs with the rights of another user or group, and then no library is preloaded",
            Obstacle::Capabilities => "it has file capabilities, and with these no library is preloaded",
            Obstacle::Go => "it is a Go program, which calls the kernel directly",
            Obstacle::OtherLibc => "it uses another C library than GNU's",
            Obstacle::OtherMachine => "it is a program for another machine than this library",
        }
    }
}

/// The reason why a file is no program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoProgram {
    /// The file, or an interpreter, cannot be read.
    Unreadable(Errno),
    /// Neither an ELF file nor a script.
    NotExecutable,
    /// An object file, or a core.
    Object,
    /// More than [`SCRIPTS_MAX`] scripts, each the interpreter of the one before.
    TooManyScripts,
}

/// A path of fewer than `N` bytes, in a place of its own.
pub struct PathBytes<const N: usize> {
    bytes: [u8; N],
    len: usize,
}

impl<const N: usize> PathBytes<N> {
    const EMPTY: PathBytes<N> = PathBytes { bytes: [0; N], len: 0 };

    /// The path, without NUL.
    pub fn as_bytes(&self) -> &[u8] {
        self.bytes.get(..self.len).unwrap_or_default()
    }

    /// Puts parts together. False: they are too long, or have a NUL.
    fn set(&mut self, parts: &[&[u8]]) -> bool {
        self.len = 0;
        for part in parts {
            // The last byte stays NUL.
            let room = self.bytes.get_mut(self.len..N - 1).and_then(|room| room.get_mut(..part.len()));
            match room {
                Some(room) if !part.contains(&0) => room.copy_from_slice(part),
                _ => {
                    self.len = 0;
                    break;
                }
            }
            self.len += part.len();
        }
        if let Some(end) = self.bytes.get_mut(self.len) {
            *end = 0;
        }
        self.len > 0
    }

    fn as_c_str(&self) -> &CStr {
        CStr::from_bytes_until_nul(&self.bytes).unwrap_or_default()
    }
}

/// A program. It is large, and stays where it was made.
pub struct Program {
    /// The program's file, or that of its interpreter.
    pub binary: PathBytes<PATH_BYTES>,
    /// The path of the dynamic linker. Empty: the program needs none.
    pub linker: PathBytes<LINKER_BYTES>,
    /// None: a library can be preloaded.
    pub obstacle: Option<Obstacle>,
}

impl Program {
    /// No program yet.
    pub const NONE: Program = Program { binary: PathBytes::EMPTY, linker: PathBytes::EMPTY, obstacle: None };

    /// Examines the program of this path, or the interpreter of a script. `search` is the PATH in which `env` searches
    /// an interpreter; without it, `env` is the program.
    ///
    /// # Errors
    /// It is no program.
    pub fn examine(&mut self, path: &[u8], search: Option<&[u8]>) -> Result<(), NoProgram> {
        if !self.binary.set(&[path]) {
            return Err(NoProgram::Unreadable(if path.is_empty() { Errno::NOENT } else { Errno::NAMETOOLONG }));
        }
        self.examine_from_binary(search)
    }

    /// Examines like [`examine`](Program::examine) the program that a shell finds by a name without a slash in
    /// `directories`.
    ///
    /// # Errors
    /// It is no program.
    pub fn examine_found(&mut self, name: &[u8], directories: &[u8]) -> Result<(), NoProgram> {
        if name.contains(&b'/') {
            return self.examine(name, None);
        }
        if name.is_empty() || !find(name, directories, &mut self.binary) {
            return Err(NoProgram::Unreadable(Errno::NOENT));
        }
        self.examine_from_binary(None)
    }

    fn examine_from_binary(&mut self, search: Option<&[u8]>) -> Result<(), NoProgram> {
        self.obstacle = None;
        self.linker.set(&[]);
        for _ in 0..=SCRIPTS_MAX {
            let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY;
            let file = fs::openat(CWD, self.binary.as_c_str(), flags, Mode::empty()).map_err(NoProgram::Unreadable)?;
            // The kernel reads no more of a script's first line.
            let mut head = [0; 256];
            let len = read(&file, &mut head, 0).map_err(NoProgram::Unreadable)?;
            let head = head.get(..len).unwrap_or_default();
            if !self.continue_with_interpreter(head, search) {
                return self.examine_binary(&file, head);
            }
        }
        Err(NoProgram::TooManyScripts)
    }

    /// Takes the interpreter of a script as the program. False: it is no script.
    fn continue_with_interpreter(&mut self, head: &[u8], search: Option<&[u8]>) -> bool {
        let Some(line) = head.strip_prefix(b"#!").and_then(|head| head.split(|byte| *byte == b'\n').next()) else {
            return false;
        };
        let mut words = line.split(|byte| b" \t".contains(byte)).filter(|word| !word.is_empty());
        let Some(first) = words.next() else { return false };
        // `env` searches the interpreter.
        let searched = words.find(|word| !word.starts_with(b"-") && !word.contains(&b'='));
        let is_env = first.rsplit(|byte| *byte == b'/').next() == Some(b"env");
        match searched.zip(search.filter(|_| is_env)) {
            Some((searched, search)) if find(searched, search, &mut self.binary) => true,
            _ => self.binary.set(&[first]),
        }
    }

    fn examine_binary(&mut self, file: &OwnedFd, head: &[u8]) -> Result<(), NoProgram> {
        if !head.starts_with(b"\x7fELF") {
            return Err(NoProgram::NotExecutable);
        }
        let Some(header) = Header::read(head) else {
            self.obstacle = Some(Obstacle::OtherMachine);
            return Ok(());
        };
        if !header.is_program {
            return Err(NoProgram::Object);
        }
        header.linker(file, &mut self.linker);
        self.obstacle = self.obstacle_of(file, &header);
        Ok(())
    }

    fn obstacle_of(&self, file: &OwnedFd, header: &Header) -> Option<Obstacle> {
        if self.linker.len == 0 && !self.is_linker() {
            return Some(Obstacle::Static);
        }
        if header.has_section_of_go(file) {
            return Some(Obstacle::Go);
        }
        if self.linker.len > 0 && !contains(self.linker.as_bytes(), b"ld-linux-") {
            return Some(Obstacle::OtherLibc);
        }
        let stat = fs::fstat(file).ok()?;
        if changes_user(file, &stat) {
            return Some(Obstacle::SetId);
        }
        let has_capabilities = fs::fgetxattr(file, c"security.capability", &mut [0u8; 64]).is_ok_and(|len| len > 0);
        (has_capabilities && !rustix::process::getuid().is_root() && !is_ignored(file))
            .then_some(Obstacle::Capabilities)
    }

    /// Whether the program is the dynamic linker itself, which loads the program of its first argument.
    fn is_linker(&self) -> bool {
        let name = self.binary.as_bytes().rsplit(|byte| *byte == b'/').next().unwrap_or_default();
        name.starts_with(b"ld-linux-") || name == b"ld.so"
    }
}

/// Whether the kernel gives a program the rights of another user or group.
fn changes_user(file: &OwnedFd, stat: &Stat) -> bool {
    let mode = stat.st_mode;
    let user = mode & libc::S_ISUID != 0 && stat.st_uid != rustix::process::getuid().as_raw();
    let by_group = libc::S_ISGID | libc::S_IXGRP;
    let group = mode & by_group == by_group && stat.st_gid != rustix::process::getgid().as_raw();
    (user || group) && !is_ignored(file)
}

/// Whether the kernel ignores setuid bits and capabilities of a file, or of any for this process.
fn is_ignored(file: &OwnedFd) -> bool {
    fs::fstatvfs(file).is_ok_and(|about| about.f_flag.contains(StatVfsMountFlags::NOSUID))
        || rustix::thread::no_new_privs().unwrap_or(false)
}

/// Searches a program as `execvp` does.
fn find<const N: usize>(name: &[u8], search: &[u8], found: &mut PathBytes<N>) -> bool {
    search.split(|byte| *byte == b':').any(|dir| {
        let is_whole = if dir.is_empty() { found.set(&[name]) } else { found.set(&[dir, b"/", name]) };
        is_whole && is_executable(found.as_c_str())
    })
}

fn is_executable(path: &CStr) -> bool {
    let is_file = |stat: Stat| stat.st_mode & libc::S_IFMT == libc::S_IFREG;
    fs::accessat(CWD, path, Access::EXEC_OK, AtFlags::empty()).is_ok() && fs::stat(path).is_ok_and(is_file)
}

/// Reads from an offset on; fewer bytes than asked for at the end of the file.
fn read(file: impl AsFd, buf: &mut [u8], at: u64) -> Result<usize, Errno> {
    let mut done = 0;
    while let Some(rest) = buf.get_mut(done..).filter(|rest| !rest.is_empty()) {
        match pread(&file, rest, at.saturating_add(done as u64)) {
            Ok(0) => break,
            Ok(n) => done += n,
            Err(Errno::INTR) => {}
            Err(e) => return Err(e),
        }
    }
    Ok(done)
}

fn contains(text: &[u8], part: &[u8]) -> bool {
    text.windows(part.len()).any(|window| window == part)
}

/// A number at an offset; 0 behind the end.
fn number<const BYTES: usize>(bytes: &[u8], at: usize) -> u64 {
    let mut wide = [0; 8];
    let found = bytes.get(at..).and_then(|rest| rest.get(..BYTES));
    if let (Some(found), Some(low)) = (found, wide.get_mut(..BYTES)) {
        low.copy_from_slice(found);
    }
    u64::from_le_bytes(wide)
}

/// The machine of this library.
const MACHINE: u64 = if cfg!(target_arch = "aarch64") { 183 } else { 62 };

/// Parts of an ELF header of 64 bits.
struct Header {
    is_program: bool,
    segments_at: u64,
    segments: u64,
    sections_at: u64,
    names_section: u64,
}

impl Header {
    const SEGMENT_BYTES: usize = 56;
    const SECTION_BYTES: u64 = 64;
    const INTERPRETER: u64 = 3;

    /// None: for another machine.
    fn read(head: &[u8]) -> Option<Header> {
        let is_64_little = head.get(4..6) == Some(&[2, 1]);
        if !is_64_little || number::<2>(head, 18) != MACHINE {
            return None;
        }
        Some(Header {
            // An executable, at a fixed address or at any.
            is_program: matches!(number::<2>(head, 16), 2 | 3),
            segments_at: number::<8>(head, 32),
            segments: number::<2>(head, 56),
            sections_at: number::<8>(head, 40),
            names_section: number::<2>(head, 62),
        })
    }

    /// Finds the path of the dynamic linker.
    fn linker(&self, file: &OwnedFd, path: &mut PathBytes<LINKER_BYTES>) {
        for n in 0..self.segments {
            let mut segment = [0; Header::SEGMENT_BYTES];
            let at = self.segments_at.saturating_add(n * Header::SEGMENT_BYTES as u64);
            if read(file, &mut segment, at) != Ok(segment.len()) {
                return;
            }
            if number::<4>(&segment, 0) == Header::INTERPRETER {
                let mut text = [0; LINKER_BYTES];
                let len = number::<8>(&segment, 32).min(text.len() as u64) as usize;
                let len = text.get_mut(..len).and_then(|text| read(file, text, number::<8>(&segment, 8)).ok());
                let text = text.get(..len.unwrap_or(0)).unwrap_or_default();
                path.set(&[text.split(|byte| *byte == 0).next().unwrap_or_default()]);
                return;
            }
        }
    }

    /// Whether one of the sections has a name that Go's linker gives.
    fn has_section_of_go(&self, file: &OwnedFd) -> bool {
        const NAMES: [&[u8]; 2] = [b".go.buildinfo\0", b".note.go.buildid\0"];
        /// More than other programs have for these names.
        const BYTES_MAX: u64 = 1 << 16;
        let mut section = [0; Header::SECTION_BYTES as usize];
        let at = self.sections_at.saturating_add(self.names_section * Header::SECTION_BYTES);
        if self.sections_at == 0 || read(file, &mut section, at) != Ok(section.len()) {
            return false;
        }
        let (mut at, bytes) = (number::<8>(&section, 24), number::<8>(&section, 32).min(BYTES_MAX));
        let end = at.saturating_add(bytes);
        let mut names = [0; 1024];
        while at < end {
            let len = (end - at).min(names.len() as u64) as usize;
            let Some(Ok(len)) = names.get_mut(..len).map(|names| read(file, names, at)) else { return false };
            let part = names.get(..len).unwrap_or_default();
            if NAMES.iter().any(|name| contains(part, name)) {
                return true;
            }
            // A name may continue in the next part.
            let step = len.saturating_sub(if at + (len as u64) < end { 32 } else { 0 });
            if step == 0 {
                return false;
            }
            at += step as u64;
        }
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MISSING: NoProgram = NoProgram::Unreadable(Errno::NOENT);

    #[test]
    fn this_test_can_be_preloaded() {
        let mut program = Box::new(Program::NONE);
        assert_eq!(program.examine(b"/proc/self/exe", None), Ok(()));
        assert_eq!(program.obstacle, None);
        assert!(contains(program.linker.as_bytes(), b"ld-linux-"));
        assert_eq!(program.examine(b"/", None), Err(NoProgram::Unreadable(Errno::ISDIR)));
        assert_eq!(program.examine(b"/missing", None), Err(NoProgram::Unreadable(Errno::NOENT)));
        assert_eq!(program.examine(&[b'x'; PATH_BYTES], None), Err(NoProgram::Unreadable(Errno::NAMETOOLONG)));
        assert_eq!(program.examine(b"/dev/null", None), Err(NoProgram::NotExecutable));
    }

    #[test]
    fn interpreters_are_followed() {
        let dir = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &[u8]| {
            let path = dir.path().join(name);
            std::fs::write(&path, text).unwrap();
            path.into_os_string().into_encoded_bytes()
        };
        let mut program = Box::new(Program::NONE);
        let script = write("script", b"#!/usr/bin/env -S A=b sh -e\n");
        assert_eq!(program.examine(&script, Some(b"/missing:/bin:/usr/bin")), Ok(()));
        assert_eq!(program.binary.as_bytes(), b"/bin/sh");
        assert_eq!(program.examine(&script, Some(b"/missing")), Ok(()));
        assert_eq!(program.binary.as_bytes(), b"/usr/bin/env");
        assert_eq!(program.examine_found(b"script", dir.path().as_os_str().as_encoded_bytes()), Err(MISSING));
        std::fs::set_permissions(dir.path().join("script"), std::os::unix::fs::PermissionsExt::from_mode(0o755))
            .unwrap();
        assert_eq!(program.examine_found(b"script", dir.path().as_os_str().as_encoded_bytes()), Ok(()));
        assert_eq!(program.binary.as_bytes(), b"/usr/bin/env");
        assert_eq!(program.examine_found(b"", b"/bin"), Err(MISSING));
        let own = [b"#! ".as_slice(), &write("itself", b"")].concat();
        assert_eq!(program.examine(&write("itself", &own), None), Err(NoProgram::TooManyScripts));
        assert_eq!(program.examine(&write("empty", b"#!  \n"), None), Err(NoProgram::NotExecutable));
    }

    /// Files that end anywhere, or whose numbers lead anywhere, are read without a panic.
    #[test]
    fn damaged_files_are_examined() {
        let dir = tempfile::tempdir().unwrap();
        let whole = std::fs::read("/bin/sh").unwrap();
        let path = dir.path().join("program");
        let mut program = Box::new(Program::NONE);
        let mut examine = |bytes: &[u8]| {
            std::fs::write(&path, bytes).unwrap();
            let _ = program.examine(path.as_os_str().as_encoded_bytes(), None);
            program.obstacle
        };
        for len in [4, 6, 20, 63, 64, 100, 700, whole.len() / 2] {
            examine(&whole[..len]);
        }
        for at in 4..64 {
            for byte in [0, 1, 0x7f, 0xff] {
                let mut damaged = whole.clone();
                damaged[at] = byte;
                examine(&damaged);
            }
        }
        let mut other = whole.clone();
        other[18] ^= 1;
        assert_eq!(examine(&other), Some(Obstacle::OtherMachine));
        let mut without = whole;
        without[56] = 0;
        assert_eq!(examine(&without), Some(Obstacle::Static));
    }
}
