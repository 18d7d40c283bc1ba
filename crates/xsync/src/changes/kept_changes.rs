//! Changes that a directory of the host refused: the layer keeps them, and loses the applied ones.

use crate::host::deep_path::DeepPath;
use crate::host::host_view::Written;
use crate::view::overlays::overlay_attributes;
use anyhow::{Context, Result};
use rustix::fs::{CWD, FileType, Mode, XattrFlags, lremovexattr, lsetxattr, mknodat};
use rustix::io::Errno;
use std::collections::BTreeMap;
use std::fmt::{self, Display};
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

/// The most refused changes that a message names.
const NAMED_MAX: usize = 20;

/// A refused change: the reason, and the part of the layer that it is.
#[derive(Clone, Debug)]
pub struct Refused {
    /// The reason, for people.
    pub why: String,
    /// The part of the layer that holds the change.
    pub part: Part,
}

/// The parts of a layer that a change can be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// A file, or a whole directory that is to hold only the entries of the layer.
    Whole {
        /// The entry lies in an opaque directory.
        is_opaque: bool,
    },
    /// The attributes of a directory.
    Attributes,
    /// A name that is to be removed, because its directory is opaque and the layer does not have the name.
    Removal,
    /// Another name of a file with several names, which only the overlay's index knows.
    OtherName,
}

/// Refused changes of a layer, by paths in it.
pub type RefusedChanges = BTreeMap<PathBuf, Refused>;

/// The refused changes of all layers.
#[derive(Debug, Default)]
pub struct KeptChanges(Vec<(Written, RefusedChanges)>);

impl KeptChanges {
    /// Adds the refused changes of a layer.
    pub fn add(&mut self, layer: &Written, refused: RefusedChanges) {
        if !refused.is_empty() {
            self.0.push((layer.clone(), refused));
        }
    }

    /// Whether no change was refused.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Removes the applied changes from the layers. After a crash this can start from the beginning: the layers
    /// describe the refused changes in the same way throughout.
    pub fn leave_alone(&self) -> Result<()> {
        for (layer, refused) in &self.0 {
            mark(&layer.upper, refused)?;
            prune(&DeepPath::new(&layer.upper), Path::new(""), refused)
                .with_context(|| layer.upper.display().to_string())?;
            File::open(&layer.upper)?.sync_all().context("the volume cannot be flushed")?;
        }
        Ok(())
    }
}

/// The refused changes of a copy to a new directory.
pub fn of_copy(to: &Path, refused: RefusedChanges) -> KeptChanges {
    KeptChanges(vec![(Written { dir: to.to_owned(), upper: PathBuf::new(), work: PathBuf::new() }, refused)])
}

impl Display for KeptChanges {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let all =
            || self.0.iter().flat_map(|(layer, refused)| refused.iter().map(move |(path, one)| (layer, path, one)));
        write!(f, "changes that were refused: {}", all().count())?;
        for (layer, path, refused) in all().take(NAMED_MAX) {
            write!(f, "\n  {}: {}", layer.dir.join(path).display(), refused.why)?;
        }
        match all().count().saturating_sub(NAMED_MAX) {
            0 => Ok(()),
            more => write!(f, "\n  and {more} more"),
        }
    }
}

impl std::error::Error for KeptChanges {}

fn attribute(name: &str) -> String {
    format!("{}{name}", overlay_attributes())
}

/// Marks each refused change that so far follows only from an opaque directory, because `prune` removes the opaque
/// marks.
fn mark(upper: &Path, refused: &RefusedChanges) -> Result<()> {
    for (path, one) in refused {
        let entry = entry(upper, path)?;
        match one.part {
            Part::Removal => match mknodat(CWD, &*entry, FileType::CharacterDevice, Mode::empty(), 0) {
                Err(Errno::EXIST) => {}
                made => made.context("a mark of a name that is to be gone")?,
            },
            Part::Whole { is_opaque: true } if fs::symlink_metadata(&entry)?.is_dir() => {
                lsetxattr(&*entry, attribute("opaque"), b"y", XattrFlags::empty())
                    .context("an attribute of a layer")?;
            }
            _ => {}
        }
    }
    Ok(())
}

fn entry(upper: &Path, path: &Path) -> io::Result<DeepPath> {
    path.iter().try_fold(DeepPath::new(upper), |dir, name| Ok(dir.directory()?.join(name)))
}

/// Removes from a directory of a layer all entries that do not lead to refused changes.
fn prune(upper: &DeepPath, at: &Path, refused: &RefusedChanges) -> Result<()> {
    for name in ["opaque", "redirect"] {
        match lremovexattr(&**upper, attribute(name)) {
            Err(Errno::NODATA | Errno::NOTSUP) => {}
            removed => removed.context("an attribute of a layer")?,
        }
    }
    let inner = upper.directory()?;
    let names = fs::read_dir(&inner)?.map(|entry| entry.map(|entry| entry.file_name()));
    for name in names.collect::<io::Result<Vec<_>>>()? {
        let (entry, path) = (inner.join(&name), at.join(&name));
        if refused.get(&path).is_some_and(|one| one.part != Part::Attributes) {
            continue;
        }
        let is_dir = fs::symlink_metadata(&entry)?.is_dir();
        let leads_on = refused.range(path.clone()..).next().is_some_and(|(next, _)| next.starts_with(&path));
        match is_dir {
            true if leads_on => prune(&entry, &path, refused)?,
            true => fs::remove_dir_all(&entry)?,
            false => fs::remove_file(&entry)?,
        }
    }
    Ok(())
}
