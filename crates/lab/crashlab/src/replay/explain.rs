//! Describes a violation in words.

use super::bench::{Bench, Verdict};
use super::crash_state::{Fate, SECTOR_BYTES, State};
use super::extents::{Stretch, find, map};
use super::recording::Recording;
use crate::device::{Event, FileSystem};
use anyhow::Result;
use std::fmt::Write;

/// The most writes that a report lists; more are counted.
const LINES_MAX: usize = 12;
/// The most acknowledgements that a report quotes.
const SAID_MAX: usize = 3;

/// Describes a state: the moment, the lost writes, and the violation.
pub fn explain(bench: &mut Bench, recording: &Recording, state: &State, verdict: &Verdict) -> Result<String> {
    let files = files(bench, recording, state)?;
    let mut text = String::new();
    let said = recording.said(state.cut);
    let ends = [Fate::Kept, Fate::Lost].map(|end| state.fates.values().filter(|fate| **fate == end).count());
    let torn = state.fates.len() - ends[0] - ends[1];
    let _ = writeln!(
        text,
        "power cut on {} after {} of {} events: {} writes since the last flush, of which {} reached the disk, {} did not, {torn} did in part",
        recording.fs,
        state.cut,
        recording.events.len(),
        state.fates.len(),
        ends[0],
        ends[1],
    );
    let shown = said.len().saturating_sub(SAID_MAX);
    let _ = writeln!(
        text,
        "acknowledged by then: {} lines{}",
        said.len(),
        if said.is_empty() { "" } else { ", the last:" }
    );
    for line in &said[shown..] {
        let _ = writeln!(text, "  | {line}");
    }
    for (title, wanted) in [("did not survive:", false), ("survived:", true)] {
        let writes: Vec<_> = state.fates.iter().filter(|(_, fate)| (**fate == Fate::Kept) == wanted).collect();
        if !writes.is_empty() {
            let _ = writeln!(text, "{title}");
        }
        for (event, fate) in writes.iter().take(LINES_MAX) {
            let _ = writeln!(text, "  {}", describe(recording, **event, fate, &files));
        }
        if writes.len() > LINES_MAX {
            let _ = writeln!(text, "  … and {} more", writes.len() - LINES_MAX);
        }
    }
    if state.fates.values().all(|fate| *fate == Fate::Kept) {
        text.push_str("nothing that the disk was given is lost: the missing data were still in the kernel's cache, and no program had flushed them\n");
    }
    match verdict {
        Verdict::Sound => text.push_str("and yet nothing is wrong"),
        Verdict::Broken(why) => text.push_str(why.trim_end()),
        Verdict::Unmountable(why) => text.push_str(why),
    }
    Ok(text)
}

/// The places of files on the disk, if everything before the cut had reached it.
fn files(bench: &mut Bench, recording: &Recording, state: &State) -> Result<Vec<Stretch>> {
    if recording.fs == FileSystem::Btrfs {
        return Ok(Vec::new());
    }
    Ok(bench.with(recording.fs, &recording.image(state.cut), map)?.unwrap_or_default())
}

fn describe(recording: &Recording, event: usize, fate: &Fate, files: &[Stretch]) -> String {
    let Event::Write { offset, bytes } = &recording.events[event] else { return String::new() };
    let lost = match fate {
        Fate::Torn(sectors) => sectors.iter().position(|there| !there).unwrap_or(0),
        _ => 0,
    };
    let part = match fate {
        Fate::Torn(sectors) => {
            let there: String = sectors.iter().take(32).map(|t| if *t { '#' } else { '.' }).collect();
            format!(", {} of {} sectors: {there}", sectors.iter().filter(|t| **t).count(), sectors.len())
        }
        _ => String::new(),
    };
    let place = match find(files, offset + (lost * SECTOR_BYTES) as u64) {
        Some((path, within)) => format!("{} at {within}", path.display()),
        None if recording.fs == FileSystem::Btrfs => "data or metadata".to_owned(),
        None => "the file system's own (metadata or journal)".to_owned(),
    };
    format!("write {event}: {} bytes at {offset} of the disk: {place}{part}", bytes.len())
}
