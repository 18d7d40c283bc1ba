//! Takes over the data that an earlier owner of the same boot kept for readers.

use crate::error::{Context, Result};
use crate::undo::index::{Entry, NAMES_DIR, Old, Was, index_name, interval_of, link_of, read_entries};
use crate::undo::kept::{Kept, Link, OldBytes, damaged};
use crate::undo::page::Published;
use std::collections::{BTreeMap, BTreeSet};
use std::io::ErrorKind;
use std::ops::Range;
use std::path::Path;
use untorn_os::{Open, Storage, read_full_at};

/// The data that an earlier owner kept, as far as it was published. Everything else is removed.
pub(super) fn taken_over(storage: &dyn Storage, dir: &Path, published: Published) -> Result<Kept> {
    let mut kept = Kept::new(published);
    let mut links: BTreeMap<u64, Range<u64>> = BTreeMap::new();
    let path = dir.join(index_name(published.generation));
    if published.bytes > 0 {
        let index = storage.open(&path, Open::WRITE).context("open", &path)?;
        let mut b = vec![0; published.bytes as usize];
        if read_full_at(&*index, &mut b, 0).context("read", &path)? < b.len() {
            return Err(damaged(&path));
        }
        let mut intervals = BTreeSet::new();
        read_entries(&b, &path, |Entry { commits, old }| {
            match old {
                Old::Name { was: Was::File { link, .. }, .. } => _ = links.insert(link, commits.clone()),
                Old::Bytes { .. } => return,
                _ => {}
            }
            intervals.insert((commits.start, commits.end));
        })?;
        (kept.index, kept.intervals) = (Some(index), intervals);
    }
    let names = match storage.list(dir) {
        Err(e) if e.kind() == ErrorKind::NotFound => return Ok(kept),
        done => done.context("list", dir)?,
    };
    for name in names {
        let path = dir.join(&name);
        let text = name.to_string_lossy();
        if let Some(commits) = interval_of(&text) {
            let file = storage.open(&path, Open::WRITE).context("open", &path)?;
            let bytes = file.meta().context("look at", &path)?.size;
            kept.old_bytes.insert((commits.start, commits.end), OldBytes { file, bytes });
            continue;
        }
        if text == NAMES_DIR {
            continue;
        }
        if published.bytes == 0 || text != index_name(published.generation) {
            storage.unlink(&path).context("remove", &path)?;
        }
    }
    let dir = dir.join(NAMES_DIR);
    let names = match storage.list(&dir) {
        Err(e) if e.kind() == ErrorKind::NotFound => return Ok(kept),
        done => done.context("list", &dir)?,
    };
    for name in names {
        let path = dir.join(&name);
        match link_of(&name.to_string_lossy()).and_then(|link| Some((link, links.get(&link)?))) {
            Some((link, commits)) => {
                let meta = storage.stat(&path).context("look at", &path)?;
                let file = (meta.device, meta.inode);
                kept.own_links.add(file.0, file.1);
                kept.links.insert(link, Link { commits: commits.clone(), file, bytes: 0 });
                kept.next_link = kept.next_link.max(link + 1);
            }
            None => storage.unlink(&path).context("remove", &path)?,
        }
    }
    Ok(kept)
}
