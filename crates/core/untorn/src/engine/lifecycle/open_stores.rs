//! The stores that this process has open, by their directories.

use crate::engine::lifecycle::open_store::OpenStore;
use parking_lot::{Mutex, MutexGuard};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::{Arc, Weak};
use std::time::Duration;

/// Device and inode of a directory.
type Identity = (u64, u64);
type Stores = Vec<(Identity, Weak<OpenStore>)>;

/// Nobody holds the lock for longer.
const LOCK_WAIT: Duration = Duration::from_millis(100);

static OPEN: Mutex<Stores> = Mutex::new(Vec::new());

/// The list. `None` in a forked child if a thread of the parent held the lock during the fork.
fn list() -> Option<MutexGuard<'static, Stores>> {
    OPEN.try_lock_for(LOCK_WAIT)
}

fn identity(dir: &Path) -> Option<Identity> {
    let meta = std::fs::metadata(dir).ok()?;
    Some((meta.dev(), meta.ino()))
}

/// Notes that the store of a directory is open.
pub(crate) fn note(dir: &Path, store: &Arc<OpenStore>) {
    if let (Some(identity), Some(mut open)) = (identity(dir), list()) {
        open.retain(|(_, store)| store.strong_count() > 0);
        open.push((identity, Arc::downgrade(store)));
    }
}

/// The open store of a directory. A parent process's store is not open in a forked child.
pub(crate) fn find(dir: &Path) -> Option<Arc<OpenStore>> {
    let identity = identity(dir)?;
    let open = list()?;
    let mut of_dir = open.iter().filter(|(known, _)| *known == identity).filter_map(|(_, store)| store.upgrade());
    of_dir.find(|store| store.life.check_usable().is_ok())
}
