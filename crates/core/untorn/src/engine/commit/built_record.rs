//! Builds the record of a commit: its files with their commits before, ranges, and checked names.

use crate::engine::Engine;
use crate::engine::commit::names::Names;
use crate::engine::files::file_state::{FileState, Life, SharedFile};
use crate::engine::files::queue::Request;
use crate::invariant;
use std::collections::HashMap;
use std::sync::Arc;
use untorn_journal::Result;
use untorn_journal::commits::record::{FileRef, Record};
use untorn_os::holds;

/// A commit as a record, and its files.
#[derive(Default)]
pub(super) struct BuiltRecord {
    pub record: Record,
    pub files: Vec<RecordFile>,
    /// Index of a file in `files`, once there are more than [`SEARCHED_MAX`].
    index: HashMap<u64, usize>,
}

/// So many files are searched one by one.
const SEARCHED_MAX: usize = 16;

/// A file of a commit.
pub(super) struct RecordFile {
    pub file: Arc<SharedFile>,
    /// Whether the request took the file's write set.
    pub has_overlay: bool,
    /// Index of the file in the record, if the record names it.
    pub index: Option<u32>,
    /// With `full_page`: pages that are completely in the record.
    pub whole_pages: Vec<u64>,
}

/// State of a file after the requests of a run that are built so far.
#[derive(Default)]
struct RunFile {
    /// LSN of the last commit that touches the file, if any does.
    last_lsn: Option<u64>,
    /// Number of the file's overlays that the requests took.
    overlays: usize,
}

/// State of the files after the requests of a run that are built so far.
#[derive(Default)]
pub(super) struct RunState {
    files: HashMap<u64, RunFile>,
    /// Files whose first commit in this epoch is in the run. Their attributes must precede the records.
    pub without_attribute: Vec<Arc<SharedFile>>,
}

impl RunState {
    /// The index of a file of the commit in its record.
    fn index_in_record(&mut self, built: &mut BuiltRecord, at: usize, lsn: u64, state: &FileState) -> u32 {
        let part = &mut built.files[at];
        *part.index.get_or_insert_with(|| {
            let id = part.file.id;
            let earlier = self.files.entry(id).or_default().last_lsn.replace(lsn);
            debug_assert!(
                earlier.unwrap_or(state.last_lsn) < lsn,
                "commit {lsn} of {:?} follows {earlier:?}, {}",
                state.path(),
                state.last_lsn
            );
            let needs_attribute = !state.attribute_set || state.attribute_due;
            if earlier.is_none() && needs_attribute && state.life == Life::Named {
                self.without_attribute.push(part.file.clone());
            }
            let path = state.path().to_owned();
            built.record.files.push(FileRef { id, previous_lsn: earlier.unwrap_or(state.last_lsn), path });
            built.record.files.len() as u32 - 1
        })
    }
}

impl BuiltRecord {
    /// The index of a file in `files`; adds the file if it is new.
    fn part(&mut self, file: &Arc<SharedFile>) -> usize {
        let at = self.files.len();
        let found = match at {
            0..=SEARCHED_MAX => self.files.iter().position(|part| part.file.id == file.id).unwrap_or(at),
            _ => {
                if self.index.is_empty() {
                    self.index.extend(self.files.iter().enumerate().map(|(at, part)| (part.file.id, at)));
                }
                *self.index.entry(file.id).or_insert(at)
            }
        };
        if found == at {
            let file = file.clone();
            self.files.push(RecordFile { file, has_overlay: false, index: None, whole_pages: Vec::new() });
        }
        found
    }
}

impl Engine {
    /// Builds the record of a request.
    pub(super) fn build_record(&self, request: &Request, lsn: u64, run: &mut RunState) -> Result<BuiltRecord> {
        let mut names = Names::new(self);
        for op in &request.names {
            names.add(op)?;
        }
        let mut built = BuiltRecord::default();
        for file in &request.files {
            let taken = &mut run.files.entry(file.id).or_default().overlays;
            let nth = std::mem::replace(taken, *taken + 1);
            let full_page = self.options.full_page && holds(invariant::FULL_PAGE);
            let state = if full_page { self.readable(file)? } else { file.read() };
            debug_assert!(
                nth < state.content.committing.len(),
                "commit {nth} of {:?}, which has {} on their way",
                state.path(),
                state.content.committing.len()
            );
            // An earlier commit may have removed the file, or failed to create it.
            state.check_alive()?;
            let part = built.part(file);
            built.files[part].has_overlay = true;
            let overlay = if full_page {
                let (overlay, pages) = state.content.with_whole_pages(nth, &state.whole_pages)?;
                built.files[part].whole_pages = pages;
                Arc::new(overlay)
            } else {
                state.content.committing[nth].overlay.clone()
            };
            if !overlay.is_empty() {
                let index = run.index_in_record(&mut built, part, lsn, &state);
                built.record.push_overlay(index, &overlay);
            }
        }
        let operations = names.operations(|file| {
            let part = built.part(file);
            run.index_in_record(&mut built, part, lsn, &file.read())
        });
        built.record.ops.extend(operations);
        Ok(built)
    }
}
