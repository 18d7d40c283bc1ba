//! The files of the kept log, as their names and lengths show them.

use crate::commits::spill::{spill_id, spill_name};
use crate::directories::store_dir::StoreDir;
use crate::error::{Context, Result};
use std::collections::BTreeMap;
use std::io::ErrorKind;
use untorn_os::Storage;

const LOG: &str = "log.";

/// The name of a kept segment whose first record has this LSN.
pub fn kept_log_name(first_lsn: u64) -> String {
    format!("{LOG}{first_lsn:016x}")
}

/// The LSN of the first record in a kept segment, by its name.
pub fn kept_log_first(name: &str) -> Option<u64> {
    let digits = name.strip_prefix(LOG)?;
    (digits.len() == 16).then(|| u64::from_str_radix(digits, 16).ok()).flatten()
}

/// The name of a kept spill file to which the commit of this LSN refers last.
pub fn kept_spill_name(id: u64, last_lsn: u64) -> String {
    format!("{}.{last_lsn:016x}", spill_name(id))
}

/// The id of a kept spill file and the LSN of the last commit that refers to it, by its name.
pub fn kept_spill(name: &str) -> Option<(u64, u64)> {
    let (spill, last_lsn) = name.rsplit_once('.')?;
    let last_lsn = (last_lsn.len() == 16).then(|| u64::from_str_radix(last_lsn, 16).ok()).flatten()?;
    Some((spill_id(spill)?, last_lsn))
}

/// The kept files of a store.
#[derive(Clone, Debug, Default)]
pub struct KeptFiles {
    /// Bytes of kept segments, by the LSN of their first record.
    pub logs: BTreeMap<u64, u64>,
    /// Bytes of kept spill files, by the last commit that refers to them and their id.
    pub spills: BTreeMap<(u64, u64), u64>,
    /// Names of other files, which are no part of the kept log.
    pub others: Vec<String>,
}

impl KeptFiles {
    /// Finds the kept files of a store.
    pub fn find(storage: &dyn Storage, store_dir: &StoreDir) -> Result<KeptFiles> {
        let kept = store_dir.kept();
        let names = match storage.list(&kept) {
            Err(e) if e.kind() == ErrorKind::NotFound => return Ok(KeptFiles::default()),
            done => done.context("list", &kept)?,
        };
        let mut found = KeptFiles::default();
        for name in names {
            let Ok(meta) = storage.stat(&kept.join(&name)) else { continue };
            let text = name.to_string_lossy();
            if let Some(first) = kept_log_first(&text) {
                found.logs.insert(first, meta.size);
            } else if let Some((id, last_lsn)) = kept_spill(&text) {
                found.spills.insert((last_lsn, id), meta.size);
            } else {
                found.others.push(text.into_owned());
            }
        }
        Ok(found)
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.logs.is_empty() && self.spills.is_empty()
    }

    /// Their number.
    pub fn count(&self) -> usize {
        self.logs.len() + self.spills.len()
    }

    /// Their bytes.
    pub fn bytes(&self) -> u64 {
        self.logs.values().sum::<u64>() + self.spills.values().sum::<u64>()
    }

    /// The last LSN that a kept segment may have. `to`: the last commit that was truncated from the log, or is about to be.
    pub fn last_of(&self, first: u64, to: u64) -> u64 {
        self.logs.range(first + 1..).next().map_or(to, |(next, _)| next - 1)
    }

    /// Bytes of the files with commits behind this one. `to`: as of [`KeptFiles::last_of`].
    pub fn bytes_behind(&self, after: u64, to: u64) -> u64 {
        let logs = self.logs.iter().filter(|(first, _)| self.last_of(**first, to) > after).map(|(_, bytes)| bytes);
        let spills = self.spills.iter().filter(|((last, _), _)| *last > after).map(|(_, bytes)| bytes);
        logs.chain(spills).sum()
    }
}
