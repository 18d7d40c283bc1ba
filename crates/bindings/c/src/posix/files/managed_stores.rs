//! Directories whose managed files belong to one store, so that they can be committed together.
//!
//! A store is open while this process manages any of its files. Another process cannot write to its files until then.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, Once};

use untorn::{File, Store, StoreOptions, offline};

use crate::boundary::error::{Failure, Result};
use crate::posix::state::append_list::AppendList;
use crate::posix::state::call_section::lock;
use crate::posix::state::own_descriptors::keep_descriptors_high;
use crate::posix::state::patterns;
use crate::posix::state::posix_descriptor::failure;
use crate::posix::state::settings;

/// Directories of the environment, separated by colons.
const VARIABLE: &str = "UNTORN_STORE";

static STORES: AppendList<Arc<ManagedStore>> = AppendList::new();

/// A directory that the program has named as a store.
pub(crate) struct ManagedStore {
    /// The whole path, without symbolic links.
    dir: PathBuf,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// The store, if this process has it open, and the process as a count of forks.
    open: Option<(Store, u64)>,
    users: usize,
}

fn read_environment() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        for dir in settings::list(VARIABLE) {
            if let Err(failure) = insert(Path::new(&dir)) {
                crate::boundary::log::tell(&format!("{VARIABLE}: {}", failure.message));
            }
        }
    });
}

/// Names a directory whose managed files belong to one store.
pub(crate) fn add(dir: &Path) -> Result<()> {
    read_environment();
    insert(dir)
}

fn insert(dir: &Path) -> Result<()> {
    let missing = |e: std::io::Error| {
        failure(
            e.raw_os_error().unwrap_or(libc::ENOENT),
            format!("{}: {e}: a store is an existing directory", dir.display()),
        )
    };
    let dir = std::fs::canonicalize(dir).map_err(missing)?;
    if !dir.is_dir() {
        return Err(failure(libc::ENOTDIR, format!("{} is not a directory, so it cannot be a store", dir.display())));
    }
    STORES.add(Arc::new(ManagedStore { dir, state: Mutex::default() }));
    Ok(())
}

/// Whether the program has named any store.
pub(crate) fn is_any() -> bool {
    read_environment();
    STORES.iter().next().is_some()
}

/// The named store that a managed file of this path belongs to. None: it has a private store.
pub(crate) fn store_above(path: &Path) -> Option<Arc<ManagedStore>> {
    read_environment();
    let above = STORES.iter().filter(|store| path.starts_with(&store.dir) && path != store.dir);
    above.max_by_key(|store| store.dir.as_os_str().len()).cloned()
}

/// The named store of a path whose file the program has named.
pub(crate) fn store_of(path: &Path) -> Option<Arc<ManagedStore>> {
    store_above(path).filter(|_| patterns::match_path(path))
}

impl PartialEq for ManagedStore {
    fn eq(&self, other: &ManagedStore) -> bool {
        self.dir == other.dir
    }
}

impl ManagedStore {
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// The name of a file of the store.
    pub fn name<'p>(&self, path: &'p Path) -> Option<&'p Path> {
        path.strip_prefix(&self.dir).ok().filter(|name| !name.as_os_str().is_empty())
    }

    /// Opens the store, unless it is open.
    pub fn begin_use(self: &Arc<Self>) -> Result<StoreUse> {
        let mut state = lock(&self.state);
        let process = untorn_os::process_generation();
        let open = match &state.open {
            Some((open, of)) if *of == process => open.clone(),
            _ => {
                // A parent's store is closed in this process.
                *state = State::default();
                keep_descriptors_high();
                let open = StoreOptions::new().create(true).open(&self.dir)?;
                state.open = Some((open.clone(), process));
                open
            }
        };
        state.users += 1;
        Ok(StoreUse { of: self.clone(), open, process, ended: false })
    }

    /// Whether this process has the store open.
    pub fn is_open(&self) -> bool {
        matches!(&lock(&self.state).open, Some((_, process)) if *process == untorn_os::process_generation())
    }
}

/// A use of an open store. The store is closed with the last one.
pub(crate) struct StoreUse {
    of: Arc<ManagedStore>,
    open: Store,
    process: u64,
    ended: bool,
}

impl StoreUse {
    pub fn store(&self) -> &Store {
        &self.open
    }

    pub fn of(&self) -> &Arc<ManagedStore> {
        &self.of
    }

    /// Opens a file of the store. A store of its own beside the file is given up for this one.
    pub fn open_file(&self, path: &Path) -> Result<File> {
        let name = self.of.name(path).ok_or_else(|| failure(libc::EXDEV, outside(path, &self.of)))?;
        if let Some(inner) = inner_store(&self.of, path) {
            let text = format!(
                "{} belongs to the store {}, which lies in the store {}: name the inner one, too (--store, \
                 untorn_manage_store())",
                path.display(),
                inner.display(),
                self.of.dir.display()
            );
            return Err(failure(libc::EXDEV, text));
        }
        if has_store(path) {
            offline::eject(path, &|_, _| ())?;
        }
        Ok(self.open.open_file(name)?)
    }

    /// Ends the use. The files that this process has closed are plain afterwards.
    pub fn end(mut self) -> Result<()> {
        self.ended = true;
        self.leave(true)
    }

    fn leave(&self, is_plain: bool) -> Result<()> {
        let mut state = lock(&self.of.state);
        if self.process != untorn_os::process_generation() {
            return Ok(());
        }
        state.users = state.users.saturating_sub(1);
        if state.users > 0 {
            return if is_plain { Ok(self.open.checkpoint()?) } else { Ok(()) };
        }
        // Other threads wait for the lock until the store is closed.
        match state.open.take() {
            Some((open, _)) => Ok(crate::boundary::log::told(|| open.close())?),
            None => Ok(()),
        }
    }
}

impl Drop for StoreUse {
    fn drop(&mut self) {
        if !self.ended
            && let Err(Failure { message, .. }) = self.leave(false)
        {
            crate::boundary::log::tell(&message);
        }
    }
}

/// A store between a file and the store that the program has named.
fn inner_store(store: &ManagedStore, path: &Path) -> Option<PathBuf> {
    let dirs = path.ancestors().skip(1).take_while(|dir| *dir != store.dir);
    dirs.filter(|dir| dir.join(".untorn").is_dir()).last().map(Path::to_owned)
}

/// The refusal of a name outside of a store.
pub(crate) fn outside(path: &Path, store: &ManagedStore) -> String {
    format!(
        "{} is outside of the store {}: a managed file keeps to its store; copy it, or name a directory that has both as \
         the store",
        path.display(),
        store.dir.display()
    )
}

/// Whether a file has a private store beside it.
pub(crate) fn has_store(path: &Path) -> bool {
    store_dir(path).is_dir()
}

/// The private store of a file.
pub(crate) fn store_dir(path: &Path) -> PathBuf {
    let mut store = path.as_os_str().to_owned();
    store.push(".untorn");
    PathBuf::from(store)
}
