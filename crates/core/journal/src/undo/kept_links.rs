//! Names in the undo directory of files that are also under their own names: these do not count as second names.

use crate::undo::index::{NAMES_DIR, link_of};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use untorn_os::{Meta, Storage};

/// How many names in the undo directory each data file has, by device and inode. Copies share the counts. A count is
/// never less than the number of names: names are counted before they are made, and until they are removed.
#[derive(Clone, Debug, Default)]
pub struct KeptLinks {
    links: Arc<Mutex<BTreeMap<(u64, u64), u64>>>,
    is_any: bool,
}

impl KeptLinks {
    /// For readers, which do not know the kept names of the owner: any number of names is right.
    pub fn any() -> KeptLinks {
        KeptLinks { is_any: true, ..KeptLinks::default() }
    }

    /// The names that are in an undo directory now, for tools that do not own the store.
    pub fn found(storage: &dyn Storage, undo: &Path) -> KeptLinks {
        let found = KeptLinks::default();
        let names = undo.join(NAMES_DIR);
        for name in storage.list(&names).unwrap_or_default() {
            if let Some(true) = name.to_str().map(|name| link_of(name).is_some())
                && let Ok(meta) = storage.stat(&names.join(&name))
            {
                found.add(meta.device, meta.inode);
            }
        }
        found
    }

    /// Notes one more name.
    pub fn add(&self, device: u64, inode: u64) {
        *self.links.lock().entry((device, inode)).or_default() += 1;
    }

    /// Notes that a name was removed.
    pub fn remove(&self, device: u64, inode: u64) {
        let mut all = self.links.lock();
        if let Some(links) = all.get_mut(&(device, inode)) {
            *links -= 1;
            if *links == 0 {
                all.remove(&(device, inode));
            }
        }
    }

    /// How many names a file has besides those in the undo directory: at most one, if it is managed.
    pub fn own_links(&self, meta: &Meta) -> u64 {
        let kept = self.links.lock().get(&(meta.device, meta.inode)).copied().unwrap_or(0);
        if self.is_any { meta.links.min(1) } else { meta.links.saturating_sub(kept) }
    }
}
