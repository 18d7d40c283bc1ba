//! Commits of a store, and the files that its readers are shown.

use super::refused;
use untorn::Store;
use untorn::reader::Snapshot;

/// Commits a file with these contents.
pub fn commit(store: &Store, name: &str, contents: &[u8]) {
    let file = store.open_or_create_file(name).unwrap();
    file.set_len(0).and_then(|()| file.write_all_at(contents, 0)).and_then(|()| file.commit()).unwrap();
}

/// The contents of a file.
pub fn shown(snapshot: &Snapshot, name: &str) -> untorn::Result<Vec<u8>> {
    let file = snapshot.open(name)?;
    let mut bytes = vec![0; file.len()? as usize];
    file.read_at(&mut bytes, 0)?;
    Ok(bytes)
}

/// Asserts that the snapshot was given up for space.
#[track_caller]
pub fn expired<T>(result: untorn::Result<T>) {
    refused(result, &["snapshot-expired"]);
}
