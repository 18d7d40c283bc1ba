//! The model of names: the expected entry of every name of a store, and the possible changes.

use crate::programs::differences::mixture;
use crate::programs::fixture::umask;
use crate::programs::reference_model::{Files, Model as Reference, Node};
use fastrand::Rng;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::Arc;

/// The rights that permission bits may take from the owner.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rights {
    /// No rights.
    Kept,
    /// The right to write, without which an ordinary user can still recover. Meanwhile nothing is written, and no entry
    /// changed.
    Recoverable,
    /// All rights, which root does not need.
    Any,
}

/// The kinds of changes and troubles from which programs are drawn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Alphabet {
    /// The name of a directory may become that of a file, and the other way round.
    pub kinds: bool,
    /// Permission bits may take rights from the owner.
    pub rights: Rights,
    /// The kernel may refuse changes, and single calls may fail.
    pub refusals: bool,
    /// The store may be open in the failure class `process`.
    pub classes: bool,
}

impl Alphabet {
    /// Only changes, on a machine that refuses none.
    pub const CHANGES: Alphabet = Alphabet { kinds: true, rights: Rights::Kept, refusals: false, classes: false };
}

/// A file or a directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Entry {
    /// A file, under any of its names.
    File {
        /// The file's number, which no other file has.
        id: u64,
        /// Contents.
        bytes: Arc<Vec<u8>>,
        /// Permission bits.
        mode: u32,
    },
    /// A directory and its permission bits.
    Directory(u32),
}

/// One change of names or bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NameChange {
    /// Creates a file with this mode, less the umask.
    Create(PathBuf, u32),
    /// Writes this many bytes at an offset; they depend on the stamp.
    Write(PathBuf, u64, usize, u64),
    /// Sets a new size.
    Truncate(PathBuf, u64),
    /// Renames a file or a directory.
    Rename(PathBuf, PathBuf),
    /// Removes a file.
    Unlink(PathBuf),
    /// Creates a directory with this mode, less the umask.
    Mkdir(PathBuf, u32),
    /// Removes an empty directory.
    Rmdir(PathBuf),
    /// Sets exactly these permission bits.
    Chmod(PathBuf, u32),
}

use NameChange::{Chmod, Create, Mkdir, Rename, Rmdir, Truncate, Unlink, Write};

/// The bytes of a write with this stamp.
pub(crate) fn stamped(stamp: u64, len: usize) -> Vec<u8> {
    (0..len as u64).map(|i| (stamp.wrapping_mul(37).wrapping_add(i / 16) % 255) as u8 + 1).collect()
}

/// All names and their entries.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NameTree {
    entries: BTreeMap<PathBuf, Entry>,
    /// Names that were directories (true) or files before; for [`Alphabet::kinds`].
    were_directories: BTreeMap<PathBuf, bool>,
    next_id: u64,
    /// Files that their owner could not write to for some time.
    narrowed: BTreeSet<u64>,
    history: History,
}

/// Every name that was used since the store was opened.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct History {
    /// The names of each file.
    pub files: BTreeMap<u64, BTreeSet<PathBuf>>,
    /// The names of directories.
    pub dirs: BTreeSet<PathBuf>,
}

const COMPONENTS: [&str; 4] = ["a", "b", "c", "d"];
const FILE_MODES: [u32; 3] = [0o600, 0o644, 0o640];
const DIRECTORY_MODES: [u32; 3] = [0o700, 0o755, 0o750];
/// Modes that take rights from the owner.
const NARROW_MODES: [u32; 5] = [0o000, 0o200, 0o444, 0o500, 0o111];
/// Modes of files and directories that take the right to write from the owner.
const READ_ONLY_MODES: [u32; 2] = [0o500, 0o555];
const WRITE: u32 = 0o200;
const FILE_BYTES_MAX: u64 = 12_000;
const TRIES: usize = 60;

impl NameTree {
    /// The entry of a name.
    pub fn get(&self, path: &Path) -> Option<&Entry> {
        self.entries.get(path)
    }

    /// A copy of the tree without some names.
    pub(crate) fn without(&self, left_out: impl Fn(&Path) -> bool) -> NameTree {
        let mut tree = self.clone();
        tree.entries.retain(|path, _| !left_out(path));
        tree
    }

    /// The name of a file.
    pub fn path_of(&self, wanted: u64) -> Option<&Path> {
        let same = |entry: &Entry| matches!(entry, Entry::File { id, .. } if *id == wanted);
        self.entries.iter().find(|(_, entry)| same(entry)).map(|(path, _)| path.as_path())
    }

    /// All names and their entries, sorted.
    pub fn iter(&self) -> impl Iterator<Item = (&Path, &Entry)> {
        self.entries.iter().map(|(path, entry)| (path.as_path(), entry))
    }

    /// The tree in the form of the reference model.
    pub(crate) fn files(&self) -> Files {
        let node = |entry: &Entry| match entry {
            Entry::File { bytes, mode, .. } => Node::File(bytes.to_vec(), *mode),
            Entry::Directory(mode) => Node::Directory(*mode),
        };
        self.entries.iter().map(|(path, entry)| (path.clone(), node(entry))).collect()
    }

    /// Whether these are all names, with their contents and permission bits. For an ordinary user, a crash may leave
    /// the right to write that a recovery adds for a moment.
    pub(crate) fn is_same(&self, files: &Files, alphabet: Alphabet) -> bool {
        let widened = |mode: u32, found: u32| alphabet.rights == Rights::Recoverable && mode | WRITE == found;
        let same = |(path, entry): (&PathBuf, &Entry)| match (entry, files.get(path)) {
            (Entry::File { bytes, mode, .. }, Some(Node::File(found, found_mode))) => {
                **bytes == *found && (mode == found_mode || widened(*mode, *found_mode))
            }
            (Entry::Directory(mode), Some(Node::Directory(found))) => mode == found,
            _ => false,
        };
        self.entries.len() == files.len() && self.entries.iter().all(same)
    }

    /// Describes how a directory on this machine differs from these names; Untorn's own files are ignored.
    pub fn difference_from(&self, root: &Path, alphabet: Alphabet) -> io::Result<Option<String>> {
        let mut files = Files::new();
        let mut left = vec![PathBuf::new()];
        while let Some(dir) = left.pop() {
            for entry in std::fs::read_dir(root.join(&dir))? {
                let name = dir.join(entry?.file_name());
                let meta = std::fs::symlink_metadata(root.join(&name))?;
                let mode = meta.permissions().mode() & 0o7777;
                if name == Path::new(".untorn") {
                    continue;
                }
                if meta.is_dir() {
                    left.push(name.clone());
                    files.insert(name, Node::Directory(mode));
                } else {
                    files.insert(name.clone(), Node::File(std::fs::read(root.join(&name))?, mode));
                }
            }
        }
        let differs = || mixture(&Reference::new(self.files()), 1, &files);
        Ok((!self.is_same(&files, alphabet)).then(differs))
    }

    /// The names used since [`NameTree::forget_history`].
    pub(crate) fn history(&self) -> &History {
        &self.history
    }

    /// Restarts the history with the present names.
    pub(crate) fn forget_history(&mut self) {
        self.history = History::default();
        for (path, entry) in &self.entries {
            match entry {
                Entry::File { id, .. } => _ = self.history.files.entry(*id).or_default().insert(path.clone()),
                Entry::Directory(_) => _ = self.history.dirs.insert(path.clone()),
            }
        }
    }

    /// Whether the owner may change the entry of this name.
    fn entry_may_change(&self, path: &Path, alphabet: Alphabet) -> bool {
        let writable = |mode: &u32| mode & 0o300 == 0o300;
        alphabet.rights == Rights::Any
            || match path.parent().and_then(|parent| self.entries.get(parent)) {
                Some(Entry::Directory(mode)) => writable(mode),
                _ => true,
            }
    }

    /// Whether the owner may change the contents. A file that was ever read-only is not changed again, as a handle
    /// opened meanwhile cannot write.
    fn contents_may_change(&self, path: &Path, alphabet: Alphabet) -> bool {
        match self.entries.get(path) {
            Some(Entry::File { id, .. }) => alphabet.rights == Rights::Any || !self.narrowed.contains(id),
            _ => false,
        }
    }

    fn is_directory(&self, path: &Path) -> bool {
        path.as_os_str().is_empty() || matches!(self.entries.get(path), Some(Entry::Directory(_)))
    }

    fn is_file(&self, path: &Path) -> bool {
        matches!(self.entries.get(path), Some(Entry::File { .. }))
    }

    fn may_be_made(&self, path: &Path, directory: bool, alphabet: Alphabet) -> bool {
        let kept = alphabet.kinds || self.were_directories.get(path).is_none_or(|was| *was == directory);
        kept && self.is_directory(path.parent().unwrap_or(Path::new(""))) && self.entry_may_change(path, alphabet)
    }

    /// Whether a change is possible here.
    pub fn allows(&self, change: &NameChange, alphabet: Alphabet) -> bool {
        match change {
            Create(path, _) => !self.entries.contains_key(path) && self.may_be_made(path, false, alphabet),
            Mkdir(path, _) => !self.entries.contains_key(path) && self.may_be_made(path, true, alphabet),
            Write(path, ..) | Truncate(path, _) => self.contents_may_change(path, alphabet),
            Unlink(path) => self.is_file(path) && self.entry_may_change(path, alphabet),
            Rename(from, to) => {
                from != to
                    && self.is_file(from)
                    && self.entry_may_change(from, alphabet)
                    && !self.is_directory(to)
                    && self.may_be_made(to, false, alphabet)
            }
            Rmdir(path) => {
                matches!(self.entries.get(path), Some(Entry::Directory(_)))
                    && self.entry_may_change(path, alphabet)
                    && !self.entries.keys().any(|name| name != path && name.starts_with(path))
            }
            Chmod(path, mode) => {
                let needed = match (alphabet.rights, self.is_directory(path)) {
                    (Rights::Kept, true) => 0o700,
                    (Rights::Kept, false) => 0o600,
                    (Rights::Recoverable, true) => 0o500,
                    (Rights::Recoverable, false) => 0o400,
                    (Rights::Any, _) => 0,
                };
                self.entries.contains_key(path) && mode & needed == needed
            }
        }
    }

    /// Applies a change that is possible.
    pub fn apply(&mut self, change: &NameChange) {
        self.apply_change(change);
        self.note(change);
    }

    /// Notes names for [`NameTree::history`], and files that are read-only now.
    fn note(&mut self, change: &NameChange) {
        let (Create(path, _) | Rename(_, path) | Mkdir(path, _) | Chmod(path, _)) = change else { return };
        match self.entries.get(path) {
            Some(Entry::File { id, mode, .. }) => {
                self.history.files.entry(*id).or_default().insert(path.clone());
                if mode & WRITE == 0 {
                    self.narrowed.insert(*id);
                }
            }
            _ => _ = self.history.dirs.insert(path.clone()),
        }
    }

    fn apply_change(&mut self, change: &NameChange) {
        let change_bytes = |entries: &mut BTreeMap<PathBuf, Entry>, path: &Path, act: &dyn Fn(&mut Vec<u8>)| {
            if let Some(Entry::File { bytes, .. }) = entries.get_mut(path) {
                act(Arc::make_mut(bytes));
            }
        };
        match change {
            Create(path, mode) => {
                self.next_id += 1;
                let file = Entry::File { id: self.next_id, bytes: Arc::default(), mode: mode & !umask() };
                self.entries.insert(path.clone(), file);
                self.were_directories.insert(path.clone(), false);
            }
            Mkdir(path, mode) => {
                self.entries.insert(path.clone(), Entry::Directory(mode & !umask()));
                self.were_directories.insert(path.clone(), true);
            }
            Write(path, offset, len, stamp) => change_bytes(&mut self.entries, path, &|bytes| {
                let start = *offset as usize;
                bytes.resize(bytes.len().max(start + len), 0);
                bytes[start..start + len].copy_from_slice(&stamped(*stamp, *len));
            }),
            Truncate(path, size) => change_bytes(&mut self.entries, path, &|bytes| bytes.resize(*size as usize, 0)),
            Rename(from, to) => {
                let file = self.entries.remove(from).expect("a file that is there");
                self.entries.insert(to.clone(), file);
                self.were_directories.insert(to.clone(), false);
            }
            Unlink(path) | Rmdir(path) => _ = self.entries.remove(path),
            Chmod(path, new) => match self.entries.get_mut(path).expect("a name that is there") {
                Entry::File { mode, .. } | Entry::Directory(mode) => *mode = *new,
            },
        }
    }

    /// Draws some changes that make sense together, each possible after the one before it.
    pub fn draw(&self, rng: &mut Rng, alphabet: Alphabet) -> Vec<NameChange> {
        for _ in 0..TRIES {
            let drawn = self.draw_any(rng, alphabet);
            let mut after = self.clone();
            let mut fits = |change: &NameChange| {
                let allowed = after.allows(change, alphabet);
                if allowed {
                    after.apply(change);
                }
                allowed
            };
            if !drawn.is_empty() && drawn.iter().all(&mut fits) {
                return drawn;
            }
        }
        Vec::new()
    }

    fn draw_any(&self, rng: &mut Rng, alphabet: Alphabet) -> Vec<NameChange> {
        // All other names are the program's own.
        let drawn = |path: &&PathBuf| COMPONENTS.iter().any(|name| path.starts_with(name));
        let there: Vec<&PathBuf> = self.entries.keys().filter(drawn).collect();
        let (files, dirs): (Vec<&PathBuf>, Vec<&PathBuf>) = there.iter().partition(|path| self.is_file(path));
        let any =
            |rng: &mut Rng, of: &[&PathBuf]| rng.choice(of).map_or_else(|| draw_path(rng), |path| (*path).clone());
        let dir_mode = |rng: &mut Rng| draw_mode(rng, &DIRECTORY_MODES, alphabet);
        let file_mode = |rng: &mut Rng| draw_mode(rng, &FILE_MODES, alphabet);
        match rng.u32(..100) {
            0..14 => {
                let (path, mode) = (draw_path(rng), file_mode(rng));
                vec![Create(path.clone(), mode), draw_write(rng, path)]
            }
            14..19 => vec![Create(draw_path(rng), file_mode(rng))],
            19..38 => {
                let path = any(rng, &files);
                vec![draw_write(rng, path)]
            }
            38..44 => vec![Truncate(any(rng, &files), rng.u64(..FILE_BYTES_MAX))],
            44..56 => vec![Rename(any(rng, &files), draw_path(rng))],
            56..62 => vec![Unlink(any(rng, &files))],
            62..72 => vec![Mkdir(draw_path(rng), dir_mode(rng))],
            72..78 => vec![Rmdir(any(rng, &dirs))],
            78..81 => vec![Chmod(any(rng, &files), file_mode(rng))],
            81..84 => vec![Chmod(any(rng, &dirs), dir_mode(rng))],
            // Two or three files exchange names.
            84..90 => {
                let free = draw_path(rng);
                let mut names: Vec<PathBuf> = (0..rng.usize(2..4)).map(|_| any(rng, &files)).collect();
                names.sort();
                names.dedup();
                rng.shuffle(&mut names);
                let mut changes = vec![Rename(names[0].clone(), free.clone())];
                changes.extend(names.windows(2).map(|two| Rename(two[1].clone(), two[0].clone())));
                changes.push(Rename(free, names[names.len() - 1].clone()));
                changes
            }
            // A file is replaced by a new one.
            90..94 => {
                let (new, old) = (draw_path(rng), any(rng, &files));
                vec![Create(new.clone(), file_mode(rng)), draw_write(rng, new.clone()), Rename(new, old)]
            }
            // A directory becomes a file, or a file a directory, perhaps with something in it.
            94..97 => {
                let path = any(rng, &dirs);
                vec![Rmdir(path.clone()), Create(path.clone(), file_mode(rng)), draw_write(rng, path)]
            }
            _ => {
                let path = any(rng, &files);
                let inside = path.join(COMPONENTS[rng.usize(..COMPONENTS.len())]);
                vec![Unlink(path.clone()), Mkdir(path, dir_mode(rng)), Create(inside, file_mode(rng))]
            }
        }
    }
}

fn draw_path(rng: &mut Rng) -> PathBuf {
    let depth = [1, 1, 1, 2, 2, 3][rng.usize(..6)];
    (0..depth).map(|_| COMPONENTS[rng.usize(..COMPONENTS.len())]).collect()
}

fn draw_mode(rng: &mut Rng, of: &[u32], alphabet: Alphabet) -> u32 {
    match alphabet.rights {
        Rights::Recoverable if rng.u32(..4) == 0 => READ_ONLY_MODES[rng.usize(..READ_ONLY_MODES.len())],
        Rights::Any if rng.u32(..4) == 0 => NARROW_MODES[rng.usize(..NARROW_MODES.len())],
        _ => of[rng.usize(..of.len())],
    }
}

fn draw_write(rng: &mut Rng, path: PathBuf) -> NameChange {
    let len = if rng.u32(..8) == 0 { rng.usize(4000..9000) } else { rng.usize(1..700) };
    Write(path, rng.u64(..FILE_BYTES_MAX / 2), len, rng.u64(1..1000))
}

impl fmt::Display for NameChange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Create(path, mode) => write!(f, "create:{}:{mode:o}", path.display()),
            Write(path, offset, len, stamp) => write!(f, "write:{}:{offset}:{len}:{stamp}", path.display()),
            Truncate(path, size) => write!(f, "truncate:{}:{size}", path.display()),
            Rename(from, to) => write!(f, "rename:{}:{}", from.display(), to.display()),
            Unlink(path) => write!(f, "unlink:{}", path.display()),
            Mkdir(path, mode) => write!(f, "mkdir:{}:{mode:o}", path.display()),
            Rmdir(path) => write!(f, "rmdir:{}", path.display()),
            Chmod(path, mode) => write!(f, "chmod:{}:{mode:o}", path.display()),
        }
    }
}

impl FromStr for NameChange {
    type Err = String;
    fn from_str(text: &str) -> Result<NameChange, String> {
        let bad = |e| format!("{text}: {e}");
        let words: Vec<&str> = text.split(':').collect();
        let number = |word: &str| word.parse::<u64>().map_err(bad);
        let mode = |word: &str| u32::from_str_radix(word, 8).map_err(bad);
        Ok(match words[..] {
            ["create", path, bits] => Create(path.into(), mode(bits)?),
            ["write", path, offset, len, stamp] => {
                Write(path.into(), number(offset)?, number(len)? as usize, number(stamp)?)
            }
            ["truncate", path, size] => Truncate(path.into(), number(size)?),
            ["rename", from, to] => Rename(from.into(), to.into()),
            ["unlink", path] => Unlink(path.into()),
            ["mkdir", path, bits] => Mkdir(path.into(), mode(bits)?),
            ["rmdir", path] => Rmdir(path.into()),
            ["chmod", path, bits] => Chmod(path.into(), mode(bits)?),
            _ => return Err(format!("no such change: {text}")),
        })
    }
}
