//! `untorn preload`.

mod program;

use crate::siblings::{NOT_EXECUTABLE, NOT_FOUND};
use clap::{Args, ValueEnum, ValueHint};
use program::{Program, called_past, find};
use std::env;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;
use untorn_os::program::Obstacle;
use untorn_terminal::table::count;
use untorn_terminal::{Failure, Output, standard_streams};

/// The library that is loaded before all others of a program.
const LIBRARY: &str = "libuntorn-preload.so";

/// Run a program, unchanged, whose named files change all or nothing at each fsync and msync.
///
/// A library is loaded before all others of the program, and of every program that it starts. It takes the calls on the
/// named files: open, write, mmap, fsync, rename and so on. All other files are as before. It needs no root, no mount
/// and no other kernel.
///
/// A file that is named is managed from its opening for writing on. Changes reach it at fsync, fdatasync and
/// msync(MS_SYNC), all at once, also through any crash. Changes that were not synced when the file is closed are
/// DISCARDED, with a message, unless --commit=close is given. Another program that opens the file for writing by
/// this command gets EBUSY. A change by a program without the library is noticed as a conflict while the file is open,
/// if it changes the file's time or length.
///
/// For programs that this cannot reach (static ones, Go, setuid): `untorn run` and `untorn mount`. One of these among
/// the programs that the program starts is named on standard error, once by each program that starts it. Its changes are
/// not noticed in files that nobody has open. With UNTORN_PRELOAD=off in its environment, a program runs without all
/// this.
///
/// A file cannot become standard input, output or error, because streams write there past the library: in a shell,
/// `program > app.db` is refused for a named file.
///
/// SQLite: use `PRAGMA journal_mode=MEMORY`, and one database in a transaction.
///
/// Exit code: that of the program; 126 if it cannot be run so, 127 if it is not found.
#[derive(Args)]
#[command(after_help = "Example:\n  untorn preload --manage '*.db' -- sqlite3 app.db")]
pub struct Preload {
    /// Files to manage: a pattern without a slash is for names, any other for whole paths; as for fnmatch.
    #[arg(long, short, value_name = "PATTERN", value_hint = ValueHint::FilePath)]
    manage: Vec<OsString>,
    /// A directory whose managed files belong to one store, so that they can be committed together.
    ///
    /// Without it, each file has a store of its own beside it. With it, all of them are in use by one program at a time;
    /// a rename or an unlink is a commit; `untorn_fd_syncv` and `untorn_fd_txn_begin` (see `untorn_posix.h`) commit
    /// several files and their names as one. May be repeated.
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath)]
    store: Vec<PathBuf>,
    /// How long to wait for a file that another program has open for writing, before EBUSY.
    #[arg(long, value_name = "SECONDS")]
    wait: Option<f64>,
    /// When a file is committed.
    #[arg(long, value_enum, value_name = "MODE")]
    commit: Option<Mode>,
    /// Another name of --commit=close.
    #[arg(long, conflicts_with = "commit")]
    commit_on_close: bool,
    /// Refuse to start programs that the library cannot be loaded into (EACCES), in place of naming them on standard error.
    #[arg(long)]
    strict: bool,
    /// Do not run it; list the calls of the program and its libraries that go past the library.
    ///
    /// Finds no calls of libraries that the program loads while it runs, such as modules of Python. Exit code: 0 none
    /// does, 1 some may, 126 the program cannot be preloaded.
    #[arg(long)]
    check: bool,
    /// The library, if it is not where `make install` puts it.
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    library: Option<PathBuf>,
    /// The program, and its arguments.
    #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true, value_hint = ValueHint::CommandWithArguments)]
    program: Vec<OsString>,
}

/// Commit modes, as `untorn mount` has them.
#[derive(Clone, Copy, ValueEnum)]
enum Mode {
    /// At fsync, fdatasync and msync(MS_SYNC); the default.
    Fsync,
    /// Also when its last descriptor for writing and its last map are gone: for programs that write files without
    /// fsync, as `sed -i` does.
    Close,
    /// At each call that changes it or its name, before the call returns; stores through maps at msync.
    Write,
}

impl Mode {
    /// The value of the library's variable.
    fn value(self) -> &'static str {
        match self {
            Mode::Fsync => "fsync",
            Mode::Close => "close",
            Mode::Write => "write",
        }
    }
}

impl Preload {
    pub fn run(self) -> Result<Output, Failure> {
        let (name, arguments) = self.program.split_first().expect("clap requires one");
        let path = find(name)
            .ok_or_else(|| Failure::new(format!("{}: no such program is in PATH", name.display())).code(NOT_FOUND))?;
        let program = Program::examine(&path).map_err(|why| Failure::new(why).code(NOT_EXECUTABLE))?;
        if let Some(obstacle) = program.obstacle {
            return Err(refusal(&program.binary, obstacle));
        }
        if self.check {
            return check(&program);
        }
        let patterns = self.patterns()?;
        let library = self.library()?;
        let mut command = Command::new(&path);
        command.arg0(name).args(arguments).env("UNTORN_MANAGE", patterns);
        command.env("LD_PRELOAD", preloaded(&library, env::var_os("LD_PRELOAD")));
        if let Some(mode) = self.commit.or(self.commit_on_close.then_some(Mode::Close)) {
            command.env("UNTORN_COMMIT", mode.value()).env_remove("UNTORN_COMMIT_ON_CLOSE");
        }
        if let Some(stores) = self.stores()? {
            command.env("UNTORN_STORE", stores);
        }
        if let Some(seconds) = self.wait {
            if Duration::try_from_secs_f64(seconds).is_err() {
                return Err(Failure::new(format!("--wait {seconds}: not a number of seconds")).code(2));
            }
            command.env("UNTORN_WAIT", seconds.to_string());
        }
        if self.strict {
            command.env("UNTORN_STRICT", "1");
        }
        command.env_remove("UNTORN_PRELOAD");
        standard_streams::leave_closed();
        Err(Failure::io("execute", &path, command.exec()).code(NOT_EXECUTABLE))
    }

    /// The patterns as the library reads them, with those that are in the environment.
    fn patterns(&self) -> Result<OsString, Failure> {
        let inherited = env::var_os("UNTORN_MANAGE").filter(|patterns| !patterns.is_empty());
        if self.manage.is_empty() && inherited.is_none() {
            return Err(Failure::new(
                "name the files that are to be managed, such as --manage '*.db': if all were, the program's temporary \
                 files, logs and pipes to others would be, too",
            )
            .code(2));
        }
        let here = env::current_dir().map_err(|e| Failure::new(format!("cannot find the current directory: {e}")))?;
        let mut all = Vec::new();
        for pattern in &self.manage {
            if pattern.as_bytes().contains(&b':') {
                let message = format!("{}: a pattern cannot contain `:`; use `?` in its place", pattern.display());
                return Err(Failure::new(message).code(2));
            }
            let is_path = pattern.as_bytes().contains(&b'/');
            let relative = pattern.as_bytes().strip_prefix(b"./").unwrap_or(pattern.as_bytes());
            all.push(if is_path { here.join(OsStr::from_bytes(relative)).into_os_string() } else { pattern.clone() });
        }
        all.extend(inherited);
        Ok(all.join(OsStr::new(":")))
    }

    /// The directories of stores as the library reads them, with those that are in the environment.
    fn stores(&self) -> Result<Option<OsString>, Failure> {
        let mut all = Vec::new();
        for dir in &self.store {
            let whole = dir.canonicalize().map_err(|e| Failure::io("find the store's directory", dir, e).code(2))?;
            if !whole.is_dir() {
                return Err(Failure::new(format!("{}: a store is a directory", dir.display())).code(2));
            }
            if whole.as_os_str().as_bytes().contains(&b':') {
                let message = format!("{}: the path of a store cannot contain `:`", whole.display());
                return Err(Failure::new(message).code(2));
            }
            all.push(whole.into_os_string());
        }
        all.extend(env::var_os("UNTORN_STORE").filter(|stores| !stores.is_empty()));
        Ok((!all.is_empty()).then(|| all.join(OsStr::new(":"))))
    }

    fn library(&self) -> Result<PathBuf, Failure> {
        let missing = |what: String| Failure::new(what).code(NOT_FOUND);
        let found = match &self.library {
            Some(named) => named.is_file().then(|| named.clone()),
            None => installed(LIBRARY),
        };
        let Some(found) = found else {
            return Err(missing(match &self.library {
                Some(named) => format!("{}: no such file", named.display()),
                None => format!(
                    "{LIBRARY} is neither beside this program nor in ../lib/untorn; `make install` in Untorn's source \
                     installs it, and --library names another place"
                ),
            }));
        };
        let whole = found.canonicalize().map_err(|e| Failure::io("find", &found, e))?;
        if whole.as_os_str().as_bytes().iter().any(|byte| b": ".contains(byte)) {
            let message = format!("{}: the dynamic linker takes no path with a space or `:`", whole.display());
            return Err(missing(message));
        }
        Ok(whole)
    }
}

/// The place of one of Untorn's libraries that programs load: beside this program, or where it is installed.
pub fn installed(library: &str) -> Option<PathBuf> {
    let dir = env::current_exe().ok().and_then(|exe| exe.parent().map(Path::to_owned))?;
    let triple = format!("lib/{}-linux-gnu", env::consts::ARCH);
    let installed = ["lib", "lib64", &triple].map(|lib| dir.join("..").join(lib).join("untorn").join(library));
    std::iter::once(dir.join(library)).chain(installed).find(|place| place.is_file())
}

/// The libraries that are preloaded: ours last, as it calls none behind it, and once.
fn preloaded(library: &Path, others: Option<OsString>) -> OsString {
    let others = others.unwrap_or_default();
    let others = others.as_bytes().split(|byte| b": ".contains(byte));
    let others = others.filter(|other| !other.is_empty() && *other != library.as_os_str().as_bytes());
    let all: Vec<&[u8]> = others.chain([library.as_os_str().as_bytes()]).collect();
    OsString::from_vec(all.join(&b':'))
}

fn refusal(binary: &Path, obstacle: Obstacle) -> Failure {
    let (binary, why) = (binary.display(), obstacle.reason());
    Failure::new(format!("{binary}: {why}; use `untorn run` or `untorn mount`, which work with any program"))
        .code(NOT_EXECUTABLE)
}

fn check(program: &Program) -> Result<Output, Failure> {
    let found = called_past(program).map_err(|why| Failure::new(why).code(NOT_EXECUTABLE))?;
    let mut text = String::new();
    for (binary, calls) in &found.calls {
        text += &format!("{}\n", binary.display());
        for (call, advice) in calls {
            text += &format!("    {call}: {advice}\n");
        }
    }
    let files = count(found.looked_at, "file", "files");
    text += &match found.calls.is_empty() {
        true => format!("{files} looked at: no call goes past the library\n"),
        false => format!("{files} looked at: the calls above may go past the library\n"),
    };
    Ok(Output::text(text).code(u8::from(!found.calls.is_empty())))
}
