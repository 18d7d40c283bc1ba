//! Programs as their files describe them: whether a library can be loaded before their own, and which calls go past it.

use crate::siblings::in_path;
use object::elf::{ET_DYN, ET_EXEC, FileHeader64, PT_INTERP};
use object::read::elf::{ElfFile64, FileHeader, ProgramHeader};
use object::{Endianness, Object, ObjectSymbol};
use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Scripts whose interpreters are scripts, at most.
const SCRIPTS_MAX: usize = 4;

/// The attribute with the capabilities of a file.
const CAPABILITIES: &str = "security.capability";

/// Calls that the library does not see, and the reason.
const PAST: &[(&str, &str)] = &[
    ("io_setup", "Linux AIO writes past the library; tell the program not to use it for these files"),
    ("io_submit", "Linux AIO writes past the library; tell the program not to use it for these files"),
    ("io_uring_queue_init", "io_uring writes past the library; tell the program not to use it for these files"),
    ("io_uring_queue_init_params", "io_uring writes past the library; tell the program not to use it for these files"),
    ("io_uring_setup", "io_uring writes past the library; tell the program not to use it for these files"),
    ("lio_listio", "writes past the library"),
    ("lio_listio64", "writes past the library"),
    ("open_by_handle_at", "a file that is opened so is not managed"),
    ("remap_file_pages", "shows other pages of a file than the library expects"),
    ("syscall", "may call the kernel directly"),
];

/// A program and the file that the kernel loads for it.
pub struct Program {
    /// The program's file, or that of its interpreter.
    pub binary: PathBuf,
    /// The dynamic linker.
    pub linker: Option<PathBuf>,
    pub obstacle: Option<Obstacle>,
}

/// The reason why a library cannot be preloaded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Obstacle {
    Static,
    SetId,
    Capabilities,
    Go,
    OtherLibc,
    OtherMachine,
}

impl Program {
    /// Examines a program, or the interpreter of a script.
    ///
    /// # Errors
    /// It is not executable, or not a program.
    pub fn examine(path: &Path) -> Result<Program, String> {
        let mut binary = path.to_owned();
        for _ in 0..=SCRIPTS_MAX {
            let bytes = fs::read(&binary).map_err(|e| format!("cannot read {}: {e}", binary.display()))?;
            match interpreter(&bytes) {
                Some(next) => binary = next,
                None => return Program::examine_binary(binary, &bytes),
            }
        }
        Err(format!("{}: scripts whose interpreters are scripts, more than {SCRIPTS_MAX}", path.display()))
    }

    fn examine_binary(binary: PathBuf, bytes: &[u8]) -> Result<Program, String> {
        let no_program = |why: &str| Err(format!("{}: {why}", binary.display()));
        if !bytes.starts_with(b"\x7fELF") {
            return no_program("it is neither a program nor a script that begins with `#!`");
        }
        let other = |obstacle| Ok(Program { binary: binary.clone(), linker: None, obstacle: Some(obstacle) });
        let Ok(header) = FileHeader64::<Endianness>::parse(bytes) else { return other(Obstacle::OtherMachine) };
        let Ok(endian) = header.endian() else { return other(Obstacle::OtherMachine) };
        let own = fs::read("/proc/self/exe").ok();
        let own = own.as_deref().and_then(|own| FileHeader64::<Endianness>::parse(own).ok());
        if own.is_some_and(|own| own.e_machine(endian) != header.e_machine(endian)) {
            return other(Obstacle::OtherMachine);
        }
        if ![ET_EXEC, ET_DYN].contains(&header.e_type(endian)) {
            return no_program("it is an object file, not a program");
        }
        let parts = header.program_headers(endian, bytes).unwrap_or_default();
        let named = parts.iter().find(|part| part.p_type(endian) == PT_INTERP);
        let named = named.and_then(|part| part.interpreter(endian, bytes).ok().flatten());
        let linker = named.map(|path| PathBuf::from(OsStr::from_bytes(path)));
        let obstacle = obstacle(&binary, bytes, linker.as_deref());
        Ok(Program { binary, linker, obstacle })
    }
}

/// The program as a shell finds it.
pub fn find(name: &OsStr) -> Option<PathBuf> {
    if name.as_bytes().contains(&b'/') {
        let path = PathBuf::from(name);
        return path.exists().then_some(path);
    }
    in_path(name)
}

/// The interpreter of a script.
fn interpreter(bytes: &[u8]) -> Option<PathBuf> {
    let line = bytes.strip_prefix(b"#!")?.split(|byte| *byte == b'\n').next()?;
    let mut words = line.split(|byte| b" \t".contains(byte)).filter(|word| !word.is_empty());
    let first = Path::new(OsStr::from_bytes(words.next()?));
    // `env` searches the interpreter.
    let second = words.find(|word| !word.starts_with(b"-") && !word.contains(&b'='));
    match (first.file_name(), second) {
        (Some(name), Some(searched)) if name == "env" => find(OsStr::from_bytes(searched)),
        _ => None,
    }
    .or_else(|| Some(first.to_owned()))
}

fn obstacle(binary: &Path, bytes: &[u8], linker: Option<&Path>) -> Option<Obstacle> {
    let Some(linker) = linker else { return Some(Obstacle::Static) };
    if let Ok(file) = ElfFile64::<Endianness>::parse(bytes)
        && (file.section_by_name(".go.buildinfo").is_some() || file.section_by_name(".note.go.buildid").is_some())
    {
        return Some(Obstacle::Go);
    }
    if !linker.as_os_str().as_bytes().windows(9).any(|part| part == b"ld-linux-") {
        return Some(Obstacle::OtherLibc);
    }
    let meta = fs::metadata(binary).ok()?;
    let [user, group] = [meta.mode() & 0o4000 != 0, meta.mode() & 0o2010 == 0o2010];
    let is_other_user = user && meta.uid() != rustix::process::getuid().as_raw();
    let is_other_group = group && meta.gid() != rustix::process::getgid().as_raw();
    if is_other_user || is_other_group {
        return Some(Obstacle::SetId);
    }
    let has_capabilities = rustix::fs::getxattr(binary, CAPABILITIES, &mut [0u8; 64]).is_ok_and(|bytes| bytes > 0);
    (has_capabilities && !rustix::process::getuid().is_root()).then_some(Obstacle::Capabilities)
}

/// The calls of a program that go past the library.
pub struct CalledPast {
    pub calls: BTreeMap<PathBuf, Vec<(&'static str, &'static str)>>,
    pub looked_at: u64,
}

/// Looks at a program and the libraries that it is linked with, without running it.
pub fn called_past(program: &Program) -> Result<CalledPast, String> {
    let mut files = vec![program.binary.clone()];
    if let Some(linker) = &program.linker {
        let listed = Command::new(linker).arg("--list").arg(&program.binary).output();
        let listed = listed.map_err(|e| format!("cannot execute {}: {e}", linker.display()))?;
        let listed = String::from_utf8_lossy(&listed.stdout).into_owned();
        let paths = listed.lines().filter_map(|line| line.split_once(" => ")?.1.split(" (").next().map(PathBuf::from));
        files.extend(paths);
    }
    // The calls of the C and C++ libraries for themselves are no matter of the program.
    let is_language = |path: &Path| {
        let name = path.file_name().map(|name| name.as_bytes().to_owned()).unwrap_or_default();
        [&b"libc.so"[..], b"libstdc++.so", b"libpthread.so", b"librt.so", b"libdl.so", b"libm.so"]
            .iter()
            .any(|own| name.starts_with(own))
    };
    let mut found = CalledPast { calls: BTreeMap::new(), looked_at: 0 };
    for path in files.into_iter().filter(|path| !is_language(path)) {
        let bytes = fs::read(&path).map_err(|e| format!("cannot read {}: {e}", path.display()))?;
        let Ok(file) = ElfFile64::<Endianness>::parse(&*bytes) else { continue };
        found.looked_at += 1;
        let imported: Vec<&str> = file
            .dynamic_symbols()
            .filter(|symbol| symbol.is_undefined())
            .filter_map(|symbol| symbol.name().ok())
            .collect();
        let calls: Vec<_> = PAST.iter().filter(|(call, _)| imported.contains(call)).copied().collect();
        if !calls.is_empty() {
            found.calls.insert(path, calls);
        }
    }
    Ok(found)
}
