//! A recording of the events on a disk.

use crate::device::{Event, FileSystem, Image};
use anyhow::{Context, Result, bail};
use std::fs::File;
use std::io::{BufReader, BufWriter, Write};
use std::ops::Range;
use std::path::Path;

/// Marks the start of the program: power cuts before that are not of interest.
pub(super) const BEGIN: &str = "begin";
/// Separates the disk of a saved recording from its events.
const BASE: &str = "base";

/// The initial contents of a disk, and everything that reached it since.
pub struct Recording {
    /// The file system on the disk.
    pub fs: FileSystem,
    /// The initial disk.
    pub base: Image,
    /// The events.
    pub events: Vec<Event>,
    /// The acknowledgements before the recording: the initial disk may be one after a crash.
    pub said_before: Vec<String>,
}

impl Recording {
    /// The moments at which a cut is of interest, each as the number of events before it.
    pub fn window(&self) -> Range<usize> {
        let begin = self.events.iter().position(|e| matches!(e, Event::Mark(text) if text == BEGIN));
        begin.map_or(0, |n| n + 1)..self.events.len() + 1
    }

    /// The acknowledgements before a cut.
    pub fn said(&self, cut: usize) -> Vec<String> {
        let lines = self.events[..cut].iter().filter_map(|event| match event {
            Event::Line(line) => Some(line.clone()),
            _ => None,
        });
        self.said_before.iter().cloned().chain(lines).collect()
    }

    /// The number of the first event after the last flush before a cut.
    pub fn flushed(&self, cut: usize) -> usize {
        let flush = self.events[..cut].iter().rposition(|e| *e == Event::Flush);
        flush.map_or(0, |n| n + 1)
    }

    /// The disk after this many events, all of them complete.
    pub fn image(&self, events: usize) -> Image {
        let mut image = self.base.clone();
        apply(&mut image, &self.events[..events]);
        image
    }

    /// The number of flushes.
    pub fn flushes(&self) -> usize {
        self.events.iter().filter(|e| **e == Event::Flush).count()
    }

    /// Saves the recording in a file.
    pub fn save(&self, path: &Path) -> Result<()> {
        let mut file = BufWriter::new(File::create(path).with_context(|| format!("create {}", path.display()))?);
        Event::Mark(format!("{} {}", self.fs, self.base.bytes())).append(&mut file)?;
        for line in &self.said_before {
            Event::Line(line.clone()).append(&mut file)?;
        }
        for (offset, bytes) in self.base.pages() {
            Event::append_write(&mut file, offset, bytes)?;
        }
        Event::Mark(BASE.into()).append(&mut file)?;
        for event in &self.events {
            event.append(&mut file)?;
        }
        Ok(file.flush()?)
    }

    /// Reads a recording that [`Recording::save`] has written.
    pub fn load(path: &Path) -> Result<Recording> {
        let mut file = BufReader::new(File::open(path).with_context(|| format!("open {}", path.display()))?);
        let Some(Event::Mark(head)) = Event::read(&mut file)? else { bail!("{} is no recording", path.display()) };
        let (fs, bytes) = head.split_once(' ').context("a recording names its file system and size")?;
        let fs = fs.parse().map_err(anyhow::Error::msg)?;
        let (mut base, mut said_before) = (Image::empty(bytes.parse()?), Vec::new());
        loop {
            match Event::read(&mut file)? {
                Some(Event::Write { offset, bytes }) => base.write(offset, &bytes),
                Some(Event::Line(line)) => said_before.push(line),
                Some(Event::Mark(text)) if text == BASE => break,
                other => bail!("a recording does not begin with {other:?}"),
            }
        }
        let mut events = Vec::new();
        while let Some(event) = Event::read(&mut file)? {
            events.push(event);
        }
        Ok(Recording { fs, base, events, said_before })
    }
}

/// Applies every write to the image.
pub(super) fn apply(image: &mut Image, events: &[Event]) {
    for event in events {
        if let Event::Write { offset, bytes } = event {
            image.write(*offset, bytes);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_saved_is_loaded_again() {
        let mut base = Image::empty(1 << 20);
        base.write(8192, &[1; 5000]);
        let write = Event::Write { offset: 512, bytes: vec![2; 512].into() };
        let events = vec![Event::Mark(BEGIN.into()), write, Event::Line("one".into()), Event::Flush];
        let recording = Recording { fs: FileSystem::Xfs, base, events, said_before: vec!["zero".into()] };
        let file = tempfile::NamedTempFile::new().unwrap();
        recording.save(file.path()).unwrap();
        let again = Recording::load(file.path()).unwrap();
        assert_eq!(again.events, recording.events);
        assert_eq!((again.fs, again.base.sum()), (recording.fs, recording.base.sum()));
        assert_eq!(again.said(4), ["zero", "one"]);
        assert_eq!((again.window(), again.flushed(4), again.flushed(3)), (1..5, 4, 0));
    }
}
