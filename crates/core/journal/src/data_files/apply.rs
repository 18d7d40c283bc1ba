//! Applies a final state to the data files: in an open store, and in recovery (redo).
//!
//! Everything here may be interrupted at any point and run again: each action first checks whether it has happened. A
//! file is recognised by its attribute, never by its name alone.

use crate::commits::final_state::{DirState, FileState, FinalState};
use crate::commits::overlay::{NO_END, Overlay, Source};
use crate::commits::spill::CHUNK_BYTES;
use crate::data_files::create::{Attempt, OWNER_RIGHTS, Replacements, may_pass, occupied};
use crate::data_files::create_ahead::Ahead;
use crate::data_files::locate::{DataFiles, Location, Locations, open_for_writing};
use crate::error::{Context, Error, Result};
use crate::format::sized_memory;
use crate::invariant;
use std::io::ErrorKind;
use std::ops::Range;
use std::path::{Path, PathBuf};
use untorn_os::{BLOCK_BYTES, File, Kind, holds, value_if_holds, write_more_at};

/// A directory that could not be brought to its final state.
#[derive(Clone, Debug)]
pub struct DirLeft {
    /// The directory.
    pub path: PathBuf,
    /// Why.
    pub reason: Error,
    /// The state is final: somebody put something into a directory that was to be removed.
    pub given_up: bool,
}

impl DataFiles<'_> {
    /// Applies names, existence and modes. Files whose location is an error are left alone; if an action fails, its
    /// file gets that error as location. An action that waits for another one (a directory for its files, a name for
    /// the file that has it now) is tried again as long as any action succeeds. Modes of directories come last, because
    /// they may forbid changes inside. Returns the directories that could not be brought to their final state.
    pub fn apply_names(&self, state: &FinalState, locations: &mut Locations) -> Vec<DirLeft> {
        debug_assert!(
            state.files.keys().all(|id| locations.contains_key(id)),
            "{} files have {} locations",
            state.files.len(),
            locations.len()
        );
        let mut left = self.apply_entries(state, locations);
        debug_assert!(
            state.files.values().all(|file| is_final(file, locations)),
            "a file is neither where it belongs nor left alone: {locations:?}"
        );
        self.put_back(state, locations);
        if self.newest_lsn.is_some() {
            self.remove_creation_temporaries(state, locations);
        }
        for (path, dir) in state.dirs.iter().rev() {
            if dir.exists
                && !left.iter().any(|dir| dir.path == *path)
                && let Err(reason) = self.set_final_mode(path, *dir)
            {
                left.push(DirLeft { path: path.clone(), reason, given_up: false });
            }
        }
        for dir in left.iter_mut().filter(|dir| matches!(dir.reason, Error::Conflict { .. })) {
            // The rest of its contents may belong to these commits, too.
            let inside = |file: &FileState| file.names.iter().any(|name| name.starts_with(&dir.path));
            let waits = |file: &FileState| locations.get(&file.id).is_some_and(Result::is_err);
            dir.given_up =
                !state.dirs[&dir.path].exists && !state.files.values().any(|file| inside(file) && waits(file));
        }
        left
    }

    fn apply_entries(&self, state: &FinalState, locations: &mut Locations) -> Vec<DirLeft> {
        let mut todo = self.actions(state, locations);
        let replacements = Replacements::of(state, locations);
        let at_once = self.contents.map_or(0, |contents| contents.made_at_once());
        loop {
            let before = todo.len();
            let mut actions = std::mem::take(&mut todo).into_iter().peekable();
            while actions.peek().is_some() {
                let part: Vec<Action> = actions.by_ref().take(if at_once == 0 { before } else { at_once }).collect();
                let new = part.iter().filter_map(|action| match &action.what {
                    What::Create { at } => Some((&state.files[&action.file?], at.as_path())),
                    _ => None,
                });
                let new = new.filter(|(file, _)| matches!(locations.get(&file.id), Some(Ok(Location::Absent))));
                let ahead = if at_once == 0 { Ahead::default() } else { self.make_ahead(state, new) };
                for mut action in part {
                    match self.attempt(&mut action, state, &replacements, &ahead, locations) {
                        Ok(Attempt::Done) => {}
                        Ok(Attempt::Blocked(why)) => {
                            action.why = Some(why);
                            todo.push(action);
                        }
                        Err(e) => match action.file {
                            Some(id) => _ = locations.insert(id, Err(e)),
                            None => {
                                action.why = Some(e);
                                todo.push(action);
                            }
                        },
                    }
                }
            }
            debug_assert!(todo.len() <= before, "{before} actions became {}", todo.len());
            if todo.is_empty() {
                return Vec::new();
            }
            if todo.len() == before && !self.break_cycle(&todo, state, locations) {
                break;
            }
        }
        let mut left = Vec::new();
        for action in todo {
            let reason = action.why.expect("a blocked action says why");
            match (action.file, action.what) {
                (Some(id), _) => _ = locations.insert(id, Err(reason)),
                (None, What::Directory { path, .. }) => left.push(DirLeft { path, reason, given_up: false }),
                (None, _) => unreachable!("an action is on a file or on a directory"),
            }
        }
        left
    }

    fn actions(&self, state: &FinalState, locations: &Locations) -> Vec<Action> {
        let mut todo = Vec::new();
        let action = |file: Option<u64>, what: What| Action { file, what, why: None, written: false };
        for file in state.files.values() {
            let Some(Ok(location)) = locations.get(&file.id) else { continue };
            let what = match (location, &file.name) {
                (Location::At(at), None) => What::Unlink { at: at.clone() },
                (Location::Absent, None) => continue,
                (Location::At(at), Some(to)) if at != to => What::Move { to: to.clone() },
                (Location::At(_), Some(_)) if file.created.is_none() && file.mode.is_none() => continue,
                (_, Some(to)) => What::Create { at: to.clone() },
            };
            todo.push(action(Some(file.id), what));
        }
        for (path, dir) in &state.dirs {
            todo.push(action(None, What::Directory { path: path.clone(), dir: *dir }));
        }
        // A file and its replacement change in one step, if the new file comes first.
        todo.sort_by_key(|action| matches!(action.what, What::Unlink { .. }));
        todo
    }

    fn attempt(
        &self,
        action: &mut Action,
        state: &FinalState,
        replacements: &Replacements<'_>,
        ahead: &Ahead,
        locations: &mut Locations,
    ) -> Result<Attempt> {
        match &action.what {
            What::Unlink { at } => {
                let id = action.file.expect("a file");
                if matches!(locations.get(&id), Some(Ok(Location::Absent))) {
                    // A rename has replaced the file meanwhile: the name belongs to another file now.
                    return Ok(Attempt::Done);
                }
                if let Some(reason) = replacements.waits(locations, at) {
                    return Ok(Attempt::Blocked(reason));
                }
                match self.with_rights(state, &[at], || self.storage.unlink(at)) {
                    Err(e) if e.kind() != ErrorKind::NotFound => return Err(Error::io("unlink", at, e)),
                    _ => {}
                }
                locations.insert(id, Ok(Location::Absent));
                Ok(Attempt::Done)
            }
            What::Move { to } => {
                let id = action.file.expect("a file");
                if !action.written {
                    self.write_before_move(&state.files[&id], to, state, locations)?;
                    action.written = true;
                }
                self.attempt_move(id, to, state, replacements, ahead, locations)
            }
            What::Create { at } => self.attempt_create(
                state,
                &state.files[&action.file.expect("a file")],
                at,
                replacements,
                ahead,
                locations,
            ),
            What::Directory { path, dir } => self.attempt_directory(state, path, *dir),
        }
    }

    fn attempt_move(
        &self,
        id: u64,
        to: &Path,
        state: &FinalState,
        replacements: &Replacements<'_>,
        ahead: &Ahead,
        locations: &mut Locations,
    ) -> Result<Attempt> {
        let Some(Ok(Location::At(from))) = locations.get(&id).cloned() else { return Ok(Attempt::Done) };
        let replaced = replacements.replaced_by(locations, to);
        if self.durable && state.files[&id].created.is_none() && from.parent() != to.parent() {
            self.sync_parents(to)?;
        }
        let renamed = self.with_rights(state, &[&from, to], || self.storage.rename(&from, to, replaced.is_some()));
        match renamed {
            Ok(()) => {
                if let Some(victim) = replaced {
                    locations.insert(victim, Ok(Location::Absent));
                }
                locations.insert(id, Ok(Location::At(to.to_owned())));
                self.attempt_create(state, &state.files[&id], to, replacements, ahead, locations)
            }
            Err(e) if may_pass(&e) => Ok(Attempt::Blocked(occupied(to, &e))),
            Err(e) => Err(Error::io("rename to", to, e)),
        }
    }

    /// Writes the missing contents of a file in its present place, before it is renamed.
    fn write_before_move(&self, file: &FileState, to: &Path, state: &FinalState, locations: &Locations) -> Result<()> {
        let Some(Ok(Location::At(from))) = locations.get(&file.id) else { return Ok(()) };
        if !self.are_missing(file) {
            return Ok(());
        }
        let handle = self.with_rights(state, &[from], || open_for_writing(self.storage, from)).context("open", from)?;
        self.identify(file, &*handle, from, to)?;
        self.write_contents(file, &handle, false)
    }

    fn attempt_directory(&self, state: &FinalState, path: &Path, dir: DirState) -> Result<Attempt> {
        if !dir.exists {
            return match self.with_rights(state, &[path], || self.storage.rmdir(path)) {
                Ok(()) => Ok(Attempt::Done),
                Err(e) if matches!(e.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => Ok(Attempt::Done),
                // XFS reports a directory that is not empty as EEXIST.
                Err(e) if matches!(e.kind(), ErrorKind::DirectoryNotEmpty | ErrorKind::AlreadyExists) => {
                    Ok(Attempt::Blocked(Error::Conflict {
                        path: path.to_owned(),
                        detail: "the directory is to be removed, but somebody put something in it".into(),
                    }))
                }
                Err(e) => match self.storage.stat(path) {
                    // The directory was removed before, and a file took its place. Without write permission in the
                    // parent directory, the kernel reports the missing permission instead.
                    Ok(meta) if meta.kind != Kind::Directory => Ok(Attempt::Done),
                    _ => Err(Error::io("remove the directory", path, e)),
                },
            };
        }
        match self.storage.stat(path) {
            Ok(meta) if meta.kind == Kind::Directory => return Ok(Attempt::Done),
            Ok(_) => return Ok(Attempt::Blocked(occupied(path, &ErrorKind::AlreadyExists.into()))),
            Err(_) => {}
        }
        let mode = dir.mode.unwrap_or(0o700) | value_if_holds(invariant::MODES_LAST, OWNER_RIGHTS);
        match self.with_rights(state, &[path], || self.storage.mkdir(path, mode)) {
            Ok(()) => Ok(Attempt::Done),
            Err(e) if may_pass(&e) => Ok(Attempt::Blocked(occupied(path, &e))),
            Err(e) => Err(Error::io("make the directory", path, e)),
        }
    }

    fn set_final_mode(&self, path: &Path, dir: DirState) -> Result<()> {
        let Some(mode) = dir.mode else { return Ok(()) };
        match self.storage.stat(path) {
            Ok(meta) if meta.kind == Kind::Directory && meta.mode != mode => {
                self.storage.set_dir_mode(path, mode).context("change the mode of", path)
            }
            Ok(_) => Ok(()),
            Err(e) => Err(Error::io("change the mode of", path, e)),
        }
    }

    /// Moves one of several files that wait for each other's names in a cycle to a rename temporary. A file that waits
    /// for a file that is left alone keeps its place.
    fn break_cycle(&self, todo: &[Action], state: &FinalState, locations: &mut Locations) -> bool {
        let mut moves = Vec::new();
        for action in todo {
            if let (Some(id), What::Move { to }) = (action.file, &action.what)
                && let Some(Ok(Location::At(from))) = locations.get(&id)
            {
                moves.push((id, from.clone(), to.clone()));
            }
        }
        // One name may be a directory above the other.
        let waits_for = |a: usize, b: usize| {
            let (to, from): (&Path, &Path) = (&moves[a].2, &moves[b].1);
            from.starts_with(to) || to.starts_with(from)
        };
        for start in 0..moves.len() {
            let (id, from, _) = &moves[start];
            let temporary = self.rename_temporary(*id);
            if *from == temporary || (holds(invariant::ONLY_CYCLES) && !in_cycle(start, moves.len(), &waits_for)) {
                continue;
            }
            if self.with_rights(state, &[from], || self.storage.rename(from, &temporary, false)).is_ok() {
                locations.insert(*id, Ok(Location::At(temporary)));
                return true;
            }
        }
        false
    }

    /// Moves files that cannot get their names back from the rename temporaries, where nobody would look for them.
    fn put_back(&self, state: &FinalState, locations: &Locations) {
        for file in state.files.values().filter(|file| matches!(locations.get(&file.id), Some(Err(_)))) {
            let temporary = self.rename_temporary(file.id);
            if self.storage.stat(&temporary).is_ok() {
                let _ = file.names.iter().rev().find(|name| self.storage.rename(&temporary, name, false).is_ok());
            }
        }
    }
}

/// Whether a file is where it belongs, or left alone with a reason.
fn is_final(file: &FileState, locations: &Locations) -> bool {
    match locations.get(&file.id) {
        Some(Ok(Location::At(at))) => file.name.as_ref() == Some(at),
        Some(Ok(Location::Absent)) => file.name.is_none(),
        Some(Err(_)) => true,
        None => false,
    }
}

/// Whether an item waits for itself, directly or through others.
fn in_cycle(start: usize, count: usize, waits_for: &dyn Fn(usize, usize) -> bool) -> bool {
    let (mut seen, mut next) = (vec![false; count], vec![start]);
    while let Some(at) = next.pop() {
        for (other, seen) in seen.iter_mut().enumerate() {
            if waits_for(at, other) && !std::mem::replace(seen, true) {
                next.push(other);
            }
        }
    }
    seen[start]
}

struct Action {
    file: Option<u64>,
    what: What,
    why: Option<Error>,
    /// For a move: the contents are written.
    written: bool,
}

enum What {
    Unlink { at: PathBuf },
    Move { to: PathBuf },
    Create { at: PathBuf },
    Directory { path: PathBuf, dir: DirState },
}

/// Applies an overlay to a data file, which is never smaller than its final size on the way. Where a spill file has at
/// least `clone_bytes_least` bytes in whole blocks, the data file shares them if the file system supports that; with
/// `None`, everything is copied.
pub fn apply_overlay(file: &dyn File, overlay: &Overlay, path: &Path, clone_bytes_least: Option<u64>) -> Result<()> {
    apply_overlay_in_steps(file, overlay, path, clone_bytes_least, &mut |_| Ok(()))
}

/// Applies like [`apply_overlay`], and calls `step` with the number of bytes after each write.
pub fn apply_overlay_in_steps(
    file: &dyn File,
    overlay: &Overlay,
    path: &Path,
    clone_bytes_least: Option<u64>,
    step: &mut dyn FnMut(u64) -> Result<()>,
) -> Result<()> {
    if let Some(e) = overlay.unreadable() {
        return Err(e.clone());
    }
    // One check for all the writes below.
    file.check_own().context("write", path)?;
    let current = file.meta().context("stat", path)?.size;
    let size = overlay.size.unwrap_or(current);
    if size < current {
        // Shrink first: that never needs space, and contents beyond the size are dropped in any case.
        file.set_len(size).context("truncate", path)?;
    }
    // Ranges in the log are written in the order of the log, so that the log is read sequentially.
    let (mut logged, rest): (Vec<_>, Vec<_>) = overlay.ranges().partition(|(_, source)| source.log_place().is_some());
    logged.sort_by_key(|(_, source)| source.log_place().map(|(segment, end)| (segment.last_lsn(), end)));
    let mut chunk = Vec::new();
    let mut joined = Joined { file, path, start: 0, bytes: Vec::new() };
    for (range, source) in rest.into_iter().chain(logged) {
        let end = range.end.min(size);
        if range.start >= end {
            continue;
        }
        match source {
            Source::Unreadable(e) => return Err((**e).clone()),
            Source::Zero => {
                let end = end.min(current);
                if range.start < end {
                    file.zero(range.start, end - range.start).context("zero a range of", path)?;
                }
            }
            Source::Bytes { bytes, origin } => {
                let from = (range.start - origin) as usize;
                joined.write(range.start, &bytes[from..from + (end - range.start) as usize], step)?;
            }
            Source::Spill { .. } | Source::Log { .. } => {
                if let Some((segment, end)) = source.log_place() {
                    segment.read_ahead(end);
                }
                if let Source::Spill { spill, at, len, crc, .. } = source {
                    spill.check_used(*at, *len, *crc)?;
                }
                let range = range.start..end;
                let cloned = clone_bytes_least.and_then(|least| clone_blocks(file, source, &range, least));
                let cloned = cloned.unwrap_or(range.end..range.end);
                debug_assert!(
                    range.start <= cloned.start && cloned.end <= range.end,
                    "blocks at {cloned:?} are shared for {range:?}"
                );
                for mut rest in [range.start..cloned.start, cloned.end..range.end] {
                    sized_memory::resize(&mut chunk, CHUNK_BYTES.min((end - range.start) as usize), path)?;
                    while rest.start < rest.end {
                        let n = chunk.len().min((rest.end - rest.start) as usize);
                        source.copy_to(&mut chunk[..n], rest.start)?;
                        write_more_at(file, &chunk[..n], rest.start).context("write", path)?;
                        rest.start += n as u64;
                        step(n as u64)?;
                    }
                }
            }
        }
    }
    joined.end(step)?;
    if file.meta().context("stat", path)?.size != size {
        file.set_len(size).context("extend", path)?;
    }
    debug_assert!(
        overlay.ranges().all(|(range, source)| range.end != NO_END || *source == Source::Zero),
        "bytes without an end in {overlay:?}"
    );
    Ok(())
}

/// The most bytes that are written together, and the least that are written alone: a copy of them takes longer than a
/// write.
const JOINED_BYTES_MAX: usize = 256 << 10;
const ALONE_BYTES: usize = 32 << 10;

/// Ranges in memory that lie next to each other, and are written together: a program that changes page after page has one
/// range for each.
struct Joined<'a> {
    file: &'a dyn File,
    path: &'a Path,
    /// Offset of the first byte.
    start: u64,
    bytes: Vec<u8>,
}

impl Joined<'_> {
    /// Writes a range, perhaps later, together with the next ones.
    fn write(&mut self, at: u64, bytes: &[u8], step: &mut dyn FnMut(u64) -> Result<()>) -> Result<()> {
        if at != self.start + self.bytes.len() as u64 || self.bytes.len() + bytes.len() > JOINED_BYTES_MAX {
            self.end(step)?;
        }
        if bytes.len() < ALONE_BYTES && self.bytes.try_reserve(bytes.len()).is_ok() {
            self.start = at - self.bytes.len() as u64;
            self.bytes.extend_from_slice(bytes);
            return Ok(());
        }
        self.end(step)?;
        write_more_at(self.file, bytes, at).context("write", self.path)?;
        step(bytes.len() as u64)
    }

    /// Writes the ranges that are left.
    fn end(&mut self, step: &mut dyn FnMut(u64) -> Result<()>) -> Result<()> {
        if self.bytes.is_empty() {
            return Ok(());
        }
        write_more_at(self.file, &self.bytes, self.start).context("write", self.path)?;
        let len = self.bytes.len() as u64;
        self.bytes.clear();
        step(len)
    }
}

/// Lets the data file share the whole blocks of a range that lie in a spill file, and returns the shared range. Returns
/// `None` if there are too few blocks, or if sharing fails; copying then either works or reports the error.
fn clone_blocks(file: &dyn File, source: &Source, range: &Range<u64>, least: u64) -> Option<Range<u64>> {
    let Source::Spill { spill, at, origin, .. } = source else { return None };
    let block = BLOCK_BYTES as u64;
    let (start, end) = (range.start.next_multiple_of(block), range.end - range.end % block);
    if at % block != origin % block || end < start.saturating_add(least.max(block)) {
        return None;
    }
    spill.clone_to(file, at + (start - origin), start, end - start).ok()?;
    Some(start..end)
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::Bytes;
    use untorn_os::{Linux, Open, Storage};

    #[test]
    fn ranges_side_by_side_are_written_together() {
        const PAGE: usize = 4096;
        let dir = tempfile::tempdir().expect("a directory");
        let storage = Linux::open(dir.path()).expect("open");
        let file = storage.open(Path::new("f"), Open::create(0o600)).expect("make");
        let mut model = vec![0; 400 * PAGE];
        let mut overlay = Overlay::default();
        let mut insert = |overlay: &mut Overlay, pages: Range<usize>, value: u8| {
            let range = pages.start * PAGE..pages.end * PAGE;
            model[range.clone()].fill(value);
            let source = Source::Bytes { bytes: Bytes::from(vec![value; range.len()]), origin: range.start as u64 };
            overlay.insert(range.start as u64..range.end as u64, source);
        };
        // 30 pages, a gap, and more pages than are joined; a long range; the last page.
        (0..30).for_each(|n| insert(&mut overlay, n..n + 1, n as u8 + 1));
        (31..131).for_each(|n| insert(&mut overlay, n..n + 1, n as u8 + 1));
        insert(&mut overlay, 131..331, 3);
        insert(&mut overlay, 399..400, 4);
        overlay.size = Some(400 * PAGE as u64);
        let mut steps = Vec::new();
        let before = storage.counters().writes;
        let step = &mut |bytes| {
            steps.push(bytes / PAGE as u64);
            Ok(())
        };
        apply_overlay_in_steps(&*file, &overlay, Path::new("f"), None, step).expect("apply");
        assert_eq!(steps, [30, 64, 36, 200, 1]);
        assert_eq!(storage.counters().writes - before, 5);
        assert!(std::fs::read(dir.path().join("f")).expect("read") == model);
    }
}
