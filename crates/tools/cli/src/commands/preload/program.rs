//! Programs as their files describe them: whether a library can be loaded before their own, and which calls go past it.

use crate::siblings::in_path;
use object::read::elf::ElfFile64;
use object::{Endianness, Object, ObjectSymbol};
use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs, io};
use untorn_os::program::{self, NoProgram, Obstacle, SCRIPTS_MAX};

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

impl Program {
    /// Examines a program, or the interpreter of a script.
    ///
    /// # Errors
    /// It is not executable, or not a program.
    pub fn examine(path: &Path) -> Result<Program, String> {
        let mut found = Box::new(program::Program::NONE);
        let search = env::var_os("PATH").unwrap_or_default();
        let examined = found.examine(path.as_os_str().as_bytes(), Some(search.as_bytes()));
        let path_of = |bytes: &[u8]| PathBuf::from(OsString::from_vec(bytes.to_vec()));
        let binary = path_of(found.binary.as_bytes());
        match examined {
            Ok(()) => {
                let linker = Some(path_of(found.linker.as_bytes())).filter(|path| !path.as_os_str().is_empty());
                Ok(Program { binary, linker, obstacle: found.obstacle })
            }
            Err(NoProgram::Unreadable(e)) => {
                Err(format!("cannot read {}: {}", binary.display(), io::Error::from_raw_os_error(e.raw_os_error())))
            }
            Err(NoProgram::NotExecutable) => {
                Err(format!("{}: it is neither a program nor a script that begins with `#!`", binary.display()))
            }
            Err(NoProgram::Object) => Err(format!("{}: it is an object file, not a program", binary.display())),
            Err(NoProgram::TooManyScripts) => {
                Err(format!("{}: scripts whose interpreters are scripts, more than {SCRIPTS_MAX}", path.display()))
            }
        }
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
