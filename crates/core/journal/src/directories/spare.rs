//! Reserved space: taken while the disk has room, for writes that recovery must do on a full disk.

use std::io::{self, ErrorKind};
use std::path::Path;
use std::sync::Arc;
use untorn_os::{File, Open, Storage, write_all_at};

/// Creates a file, or opens the reserved one under this name. Returns it, and whether it existed.
pub fn open_or_create(storage: &dyn Storage, path: &Path, direct: bool) -> io::Result<(Arc<dyn File>, bool)> {
    let how = |how: Open| if direct { how.direct() } else { how };
    match storage.open(path, how(Open::create(0o600).shown())) {
        Err(e) if e.kind() == ErrorKind::AlreadyExists => Ok((storage.open(path, how(Open::WRITE))?, true)),
        created => Ok((created?, false)),
    }
}

/// Reserves space under a name, unless it is reserved already. Nothing is flushed: a reserve that a power cut takes
/// away is free space again.
pub fn set_apart(storage: &dyn Storage, path: &Path, bytes: u64) -> io::Result<()> {
    if storage.stat(path).is_ok_and(|meta| meta.size >= bytes) {
        return Ok(());
    }
    let (file, _) = open_or_create(storage, path, false)?;
    let fill = || -> io::Result<()> {
        file.allocate(0, bytes)?;
        match file.meta()?.size >= bytes {
            true => Ok(()),
            // The file system does not support reserving.
            false => write_all_at(&*file, &vec![0; bytes as usize], 0),
        }
    };
    fill().inspect_err(|_| {
        // An insufficient reserve is more useful as free space.
        let _ = storage.unlink(path);
    })
}
