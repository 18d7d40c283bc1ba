//! Names in the undo directory of files that are also under their own names: these do not count as second names.

use crate::undo::index::link_of;
use std::collections::BTreeMap;
use std::path::Path;
use untorn_os::{Meta, Storage};

/// How many names in the undo directory each data file has, by device and inode.
#[derive(Clone, Debug, Default)]
pub struct KeptLinks {
    links: BTreeMap<(u64, u64), u64>,
    is_any: bool,
}

impl KeptLinks {
    /// For readers, which do not know what the owner keeps: any number of names is right.
    pub fn any() -> KeptLinks {
        KeptLinks { is_any: true, ..KeptLinks::default() }
    }

    /// The names that are in an undo directory now, for tools that do not own the store.
    pub fn found(storage: &dyn Storage, undo: &Path) -> KeptLinks {
        let mut found = KeptLinks::default();
        for name in storage.list(undo).unwrap_or_default() {
            if let Some(true) = name.to_str().map(|name| link_of(name).is_some())
                && let Ok(meta) = storage.stat(&undo.join(&name))
            {
                found.add(meta.device, meta.inode);
            }
        }
        found
    }

    /// Notes one more name.
    pub fn add(&mut self, device: u64, inode: u64) {
        *self.links.entry((device, inode)).or_default() += 1;
    }

    /// Notes that a name was removed.
    pub fn remove(&mut self, device: u64, inode: u64) {
        if let Some(links) = self.links.get_mut(&(device, inode)) {
            *links -= 1;
            if *links == 0 {
                self.links.remove(&(device, inode));
            }
        }
    }

    /// How many names a file has besides those in the undo directory: one, if it is managed.
    pub fn own_links(&self, meta: &Meta) -> u64 {
        let kept = self.links.get(&(meta.device, meta.inode)).copied().unwrap_or(0);
        if self.is_any { meta.links.min(1) } else { meta.links.saturating_sub(kept) }
    }
}
