//! Room that is set apart while the disk has some, for what recovery must write on a disk that has none.

use std::io::{self, ErrorKind};
use std::path::Path;
use std::sync::Arc;
use untorn_os::{File, Open, Storage, write_all_at};

/// Makes a file, or takes the one that was set apart under its name. Whether it was there is told.
pub fn open_or_create(storage: &dyn Storage, path: &Path, direct: bool) -> io::Result<(Arc<dyn File>, bool)> {
    let how = |how: Open| if direct { how.direct() } else { how };
    match storage.open(path, how(Open::create(0o600).shown())) {
        Err(e) if e.kind() == ErrorKind::AlreadyExists => Ok((storage.open(path, how(Open::WRITE))?, true)),
        created => Ok((created?, false)),
    }
}

/// Sets room apart under a name, unless there is some. Nothing is flushed: what a power cut takes away is free.
pub fn set_apart(storage: &dyn Storage, path: &Path, bytes: u64) -> io::Result<()> {
    if storage.stat(path).is_ok_and(|meta| meta.size >= bytes) {
        return Ok(());
    }
    let (file, _) = open_or_create(storage, path, false)?;
    let fill = || -> io::Result<()> {
        file.allocate(0, bytes)?;
        match file.meta()?.size >= bytes {
            true => Ok(()),
            // The file system cannot reserve.
            false => write_all_at(&*file, &vec![0; bytes as usize], 0),
        }
    };
    fill().inspect_err(|_| {
        // Room that does not suffice is better free.
        let _ = storage.unlink(path);
    })
}
