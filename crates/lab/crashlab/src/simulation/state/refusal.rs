//! Operations that the kernel refuses from some moment on, for good or until somebody repairs the cause: lost rights, a
//! quota, a limit, another mount.

use std::fmt;
use std::io;
use std::path::Path;
use std::str::FromStr;

/// The operations that are refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refused {
    /// Everything below the directory.
    Below,
    /// Any change of the directory's entries.
    Entries,
    /// New entries, also by renames.
    New,
    /// Renames.
    Moves,
    /// Opening the directory's files for writing.
    Opening,
    /// Writing to the directory's files, and making them larger.
    Contents,
    /// Changing modes of the directory's entries.
    Modes,
}

/// A refusal of operations in one directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// The operations.
    pub what: Refused,
    /// The directory.
    pub dir: &'static str,
    /// The error.
    pub code: i32,
    /// Whether a check in advance reports the refusal.
    pub told: bool,
}

/// The kind of a call on a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Act {
    Look,
    List,
    OpenForReading,
    OpenForWriting,
    Make,
    Remove,
    MoveAway,
    MoveHere,
    Write,
    SetMode,
}

/// The kinds of refusals, with their names and errors.
pub const REFUSED: [(Refused, &str, &[i32]); 7] = [
    (Refused::Below, "below", &[libc::EACCES, libc::EXDEV]),
    (Refused::Entries, "entries", &[libc::EACCES, libc::EPERM]),
    (Refused::New, "new", &[libc::ENOSPC, libc::EDQUOT, libc::ENAMETOOLONG]),
    (Refused::Moves, "moves", &[libc::EXDEV, libc::EPERM]),
    (Refused::Opening, "opening", &[libc::EACCES, libc::EPERM]),
    (Refused::Contents, "contents", &[libc::EFBIG, libc::ENOSPC, libc::EDQUOT]),
    (Refused::Modes, "modes", &[libc::EPERM]),
];

/// Directories in which something may be refused: the store's own, and some that programs create.
pub const REFUSING_DIRS: [&str; 5] = ["", "a", "b", "c", "d"];

impl Refusal {
    /// Returns the error of a call that is refused.
    pub(crate) fn check(self, path: &Path, act: Act) -> io::Result<()> {
        if path.starts_with(".untorn") {
            return Ok(());
        }
        let inside = path.parent() == Some(Path::new(self.dir));
        let refused = match self.what {
            Refused::Below => path != Path::new(self.dir) && path.starts_with(self.dir),
            Refused::Entries => inside && matches!(act, Act::Make | Act::Remove | Act::MoveAway | Act::MoveHere),
            Refused::New => inside && matches!(act, Act::Make | Act::MoveHere),
            Refused::Moves => inside && matches!(act, Act::MoveAway | Act::MoveHere),
            Refused::Opening => inside && act == Act::OpenForWriting,
            Refused::Contents => inside && act == Act::Write,
            Refused::Modes => inside && act == Act::SetMode,
        };
        if refused { Err(io::Error::from_raw_os_error(self.code)) } else { Ok(()) }
    }

    /// Whether the refusal can concern a file or directory of this path.
    pub fn concerns(self, path: &Path) -> bool {
        match self.what {
            Refused::Below => path != Path::new(self.dir) && path.starts_with(self.dir),
            _ => path.parent() == Some(Path::new(self.dir)),
        }
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let word = REFUSED.iter().find(|(what, ..)| *what == self.what).map_or("?", |(_, word, _)| word);
        write!(f, "{word}:{}:{}:{}", self.dir, self.code, if self.told { "told" } else { "untold" })
    }
}

impl FromStr for Refusal {
    type Err = String;
    fn from_str(text: &str) -> Result<Refusal, String> {
        let words: Vec<&str> = text.split(':').collect();
        let [word, dir, code, told] = words[..] else { return Err(format!("a refusal has four words: {text}")) };
        let what = REFUSED.iter().find(|(_, known, _)| *known == word).map(|(what, ..)| *what);
        let dir = REFUSING_DIRS.into_iter().find(|known| *known == dir);
        Ok(Refusal {
            what: what.ok_or_else(|| format!("nothing is refused so: {word}"))?,
            dir: dir.ok_or_else(|| format!("no directory in which something is refused: {text}"))?,
            code: code.parse().map_err(|e| format!("{code}: {e}"))?,
            told: told == "told",
        })
    }
}
