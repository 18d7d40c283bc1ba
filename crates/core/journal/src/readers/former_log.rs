//! The log behind the checkpoint that is kept for slots: its commits, in order, some at a time.
//!
//! A record is the one of its LSN if it belongs to the epoch that the list says: records that recovery dropped are of
//! other epochs. Within an epoch, each repeats the checksum of its predecessor.

use crate::commits::record::{CheckSpills, SpillCache};
use crate::commits::spill::{Spill, spill_name};
use crate::directories::store_dir::StoreDir;
use crate::error::{Context, Error, Result};
use crate::format::{BLOCK_BYTES, Key, RECORD_HEAD_BYTES, RecordHead, RecordKind};
use crate::scanning::scan::{AcceptedRecord, decode_body, read_header};
use crate::scanning::segment_reader::each_record;
use crate::slots::epochs::Epochs;
use crate::slots::kept_files::{kept_log_first, kept_log_name, kept_spill};
use bytes::Bytes;
use std::cell::RefCell;
use std::collections::{BTreeMap, HashMap};
use std::io::ErrorKind;
use std::path::Path;
use std::sync::Arc;
use untorn_os::{Open, Storage, read_full_at};

/// Commits of at least this many bytes are returned at once, unless the segment ends.
const PART_BYTES: u64 = 4 << 20;

/// A segment in memory, and its records that count.
struct KeptSegment {
    first_lsn: u64,
    contents: Bytes,
    records: BTreeMap<u64, (RecordHead, u64)>,
}

/// A place in the kept log.
pub(crate) struct FormerLog {
    /// LSN of the last record that was returned.
    pub lsn: u64,
    /// Checksum and epoch of that record, if it was read here.
    before: Option<(u64, u64)>,
    key: Key,
    epochs: Epochs,
    checkpoint_lsn: u64,
    segment: Option<KeptSegment>,
}

/// The part of the kept log behind a place.
pub(crate) enum Found {
    /// The next commits, or none where only marks follow.
    Commits(Vec<AcceptedRecord>),
    /// Commits up to this LSN are gone.
    Gap(u64),
    /// Nothing: the journal has the rest.
    End,
}

impl FormerLog {
    /// The place behind this record. `None` if no log is kept, or the checkpoint is not beyond it.
    pub fn behind(lsn: u64, storage: &dyn Storage, store_dir: &StoreDir) -> Result<Option<FormerLog>> {
        if firsts(storage, store_dir)?.is_empty() {
            return Ok(None);
        }
        let mut log =
            FormerLog { lsn, before: None, key: Key(0), epochs: Epochs::default(), checkpoint_lsn: 0, segment: None };
        log.look(storage, store_dir)?;
        Ok((log.checkpoint_lsn > lsn).then_some(log))
    }

    /// Looks at the header, and then at the list of epochs, which is no older.
    fn look(&mut self, storage: &dyn Storage, store_dir: &StoreDir) -> Result<()> {
        let header = read_header(storage, &store_dir.journal())?;
        if header.boot.is_some() {
            return Ok(());
        }
        let mut epochs = Epochs::read(storage, store_dir, &header.store)?.unwrap_or_default();
        epochs.add_journal(&header, &[]);
        (self.key, self.checkpoint_lsn, self.epochs) = (header.key, header.checkpoint_lsn, epochs);
        Ok(())
    }

    /// The next commits, up to the checkpoint. Those up to it are durable.
    pub fn next(&mut self, storage: &Arc<dyn Storage>, store_dir: &StoreDir) -> Result<Found> {
        if self.lsn >= self.checkpoint_lsn {
            self.look(&**storage, store_dir)?;
            if self.lsn >= self.checkpoint_lsn {
                return Ok(Found::End);
            }
        }
        let firsts = firsts(&**storage, store_dir)?;
        let next = self.lsn + 1;
        if !self.segment.as_ref().is_some_and(|segment| segment.records.contains_key(&next)) {
            self.segment = None;
            let at_or_before = firsts.iter().rev().copied().find(|first| *first <= next);
            self.segment = at_or_before.map(|first| self.read(first, &**storage, store_dir)).transpose()?.flatten();
        }
        match &self.segment {
            Some(segment) if segment.records.contains_key(&next) => self.take_part(storage, store_dir),
            // It may be in the journal still: it was linked in the last moment, or is not needed by a slot.
            _ => match firsts.into_iter().find(|first| *first > next) {
                Some(first) => Ok(Found::Gap(first - 1)),
                None => Ok(Found::End),
            },
        }
    }

    /// Goes on behind a gap.
    pub fn skip_to(&mut self, lsn: u64) {
        (self.lsn, self.before) = (lsn, None);
    }

    /// Reads a segment and finds its records that count. `None` if it is gone.
    fn read(&self, first_lsn: u64, storage: &dyn Storage, store_dir: &StoreDir) -> Result<Option<KeptSegment>> {
        let path = store_dir.kept().join(kept_log_name(first_lsn));
        let file = match storage.open(&path, Open::READ) {
            Err(e) if e.kind() == ErrorKind::NotFound => return Ok(None),
            done => done.context("open", &path)?,
        };
        let bytes = file.meta().context("look at", &path)?.size;
        let mut contents = crate::format::sized_memory::zeros(bytes - bytes % BLOCK_BYTES as u64, &path)?;
        let n = read_full_at(&*file, &mut contents, 0).context("read", &path)?;
        contents.truncate(n);
        let mut records = BTreeMap::new();
        each_record(&contents, self.key, |head, crc| {
            if head.lsn >= first_lsn && self.epochs.of(head.lsn) == Some(head.epoch) {
                records.entry(head.lsn).or_insert((head, crc));
            }
        });
        Ok(Some(KeptSegment { first_lsn, contents: contents.into(), records }))
    }

    fn take_part(&mut self, storage: &Arc<dyn Storage>, store_dir: &StoreDir) -> Result<Found> {
        let segment = self.segment.as_ref().expect("a segment");
        let path = store_dir.kept().join(kept_log_name(segment.first_lsn));
        let mut spills = [kept_spills(storage, store_dir), SpillCache::new(storage.clone(), store_dir.journal())];
        spills.iter_mut().for_each(|spills| spills.check = CheckSpills::Never);
        let (mut commits, mut bytes) = (Vec::new(), 0);
        while self.lsn < self.checkpoint_lsn && bytes < PART_BYTES {
            let Some((head, crc)) = segment.records.get(&(self.lsn + 1)) else { break };
            if self.before.is_some_and(|(before, epoch)| epoch == head.epoch && before != head.previous_crc) {
                return Err(Error::corrupt(path, format!("commit {} does not follow its predecessor", head.lsn)));
            }
            if head.kind == RecordKind::Commit {
                let from = head.position as usize;
                let body = segment.contents.slice(from + RECORD_HEAD_BYTES..from + head.len as usize);
                let record = decode(head, body, &mut spills, &path)?;
                commits.push(AcceptedRecord { lsn: head.lsn, epoch: head.epoch, time: head.time, record });
            }
            bytes += head.len;
            (self.lsn, self.before) = (head.lsn, Some((*crc, head.epoch)));
        }
        Ok(Found::Commits(commits))
    }
}

/// Decodes a commit, whose spill files are kept, or in the journal until it is truncated behind their last commit.
fn decode(
    head: &RecordHead,
    body: Bytes,
    [kept, journal]: &mut [SpillCache; 2],
    path: &Path,
) -> Result<crate::commits::record::Record> {
    let first = decode_body(head, body.clone(), kept);
    let second = first.or_else(|_| decode_body(head, body.clone(), journal));
    let decoded = second.or_else(|_| decode_body(head, body, kept));
    decoded.map_err(|e| match e {
        Error::Io { source, .. } if source.kind() == ErrorKind::NotFound => {
            Error::corrupt(path, format!("a spill file of commit {} is missing", head.lsn))
        }
        e => e,
    })
}

/// The kept spill files. The directory is listed when one is opened that is not known: they come into it meanwhile.
fn kept_spills(storage: &Arc<dyn Storage>, store_dir: &StoreDir) -> SpillCache {
    let (storage, store_dir) = (storage.clone(), store_dir.clone());
    let listed: RefCell<HashMap<u64, String>> = RefCell::default();
    SpillCache::with(move |id| {
        let mut listed = listed.borrow_mut();
        if !listed.contains_key(&id) {
            let names = names(&*storage, &store_dir)?;
            *listed = names.into_iter().filter_map(|name| Some((kept_spill(&name)?.0, name))).collect();
        }
        let name = listed.get(&id).cloned().unwrap_or_else(|| spill_name(id));
        Spill::open_at(&storage, store_dir.kept().join(name), id)
    })
}

/// The names of the kept files.
fn names(storage: &dyn Storage, store_dir: &StoreDir) -> Result<Vec<String>> {
    let names = match storage.list(&store_dir.kept()) {
        Err(e) if e.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
        done => done.context("list", store_dir.kept())?,
    };
    Ok(names.iter().filter_map(|name| Some(name.to_str()?.to_owned())).collect())
}

/// The LSNs with which the kept segments begin, ascending.
fn firsts(storage: &dyn Storage, store_dir: &StoreDir) -> Result<Vec<u64>> {
    let names = names(storage, store_dir)?;
    let mut firsts: Vec<u64> = names.iter().filter_map(|name| kept_log_first(name)).collect();
    firsts.sort_unstable();
    Ok(firsts)
}
