//! The events that the device records, and their format in the log.

use std::fs::File;
use std::io::{self, Read, Write};
use std::sync::Arc;

/// One entry of the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// Bytes that reached the device.
    Write {
        /// The offset in bytes.
        offset: u64,
        /// The bytes.
        bytes: Arc<[u8]>,
    },
    /// Everything before is durable.
    Flush,
    /// A line that the program acknowledged.
    Line(String),
    /// A mark that the laboratory sets to find this place in the log again.
    Mark(String),
}

const HEADER_BYTES: usize = 16;
const WRITE: u8 = 1;
const FLUSH: u8 = 2;
const LINE: u8 = 3;
const MARK: u8 = 4;

impl Event {
    /// Appends a write without owning its bytes.
    pub fn append_write(log: &mut impl Write, offset: u64, bytes: &[u8]) -> io::Result<()> {
        append(log, WRITE, offset, bytes)
    }

    /// Appends the event.
    pub fn append(&self, log: &mut impl Write) -> io::Result<()> {
        match self {
            Event::Write { offset, bytes } => append(log, WRITE, *offset, bytes),
            Event::Flush => append(log, FLUSH, 0, &[]),
            Event::Line(text) => append(log, LINE, 0, text.as_bytes()),
            Event::Mark(text) => append(log, MARK, 0, text.as_bytes()),
        }
    }

    /// The next event; none at the log's end.
    pub fn read(log: &mut impl Read) -> io::Result<Option<Event>> {
        let mut header = [0; HEADER_BYTES];
        match log.read_exact(&mut header) {
            Err(e) if e.kind() == io::ErrorKind::UnexpectedEof => return Ok(None),
            done => done?,
        }
        let length = u32::from_le_bytes(header[4..8].try_into().expect("four bytes"));
        let offset = u64::from_le_bytes(header[8..].try_into().expect("eight bytes"));
        let mut bytes = vec![0; length as usize];
        log.read_exact(&mut bytes)?;
        let text = |bytes| String::from_utf8_lossy(bytes).into_owned();
        Ok(Some(match header[0] {
            WRITE => Event::Write { offset, bytes: bytes.into() },
            FLUSH => Event::Flush,
            LINE => Event::Line(text(&bytes)),
            MARK => Event::Mark(text(&bytes)),
            kind => return Err(io::Error::other(format!("an event of kind {kind}"))),
        }))
    }

    /// All events of a log.
    pub fn read_all(log: File) -> io::Result<Vec<Event>> {
        let mut log = io::BufReader::with_capacity(1 << 20, log);
        let mut events = Vec::new();
        while let Some(event) = Event::read(&mut log)? {
            events.push(event);
        }
        Ok(events)
    }
}

fn append(log: &mut impl Write, kind: u8, offset: u64, bytes: &[u8]) -> io::Result<()> {
    let mut header = [0; HEADER_BYTES];
    header[0] = kind;
    header[4..8].copy_from_slice(&(bytes.len() as u32).to_le_bytes());
    header[8..].copy_from_slice(&offset.to_le_bytes());
    log.write_all(&header)?;
    log.write_all(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_appended_is_read_again() {
        let events = [
            Event::Write { offset: 1 << 40, bytes: vec![7; 1000].into() },
            Event::Flush,
            Event::Line("größer".into()),
            Event::Mark(String::new()),
        ];
        let mut log = Vec::new();
        events.iter().for_each(|event| event.append(&mut log).unwrap());
        let mut rest = &log[..];
        let read: Vec<_> = std::iter::from_fn(|| Event::read(&mut rest).unwrap()).collect();
        assert_eq!(read, events);
    }
}
