//! Writing and reading of bytes that anybody may have made.

use crate::error::{Error, Result};
use crate::interface::{Hash, Point, Random};
use std::io::Read;
use untorn_journal::format::crc64;

/// The newest version of the objects that this program knows, and the one that it writes.
pub const VERSION: u32 = 1;

/// An object that is being written.
pub struct Writer(Vec<u8>);

impl Writer {
    /// Begins with the magic and the version.
    pub fn new(magic: &[u8; 8]) -> Writer {
        Writer(magic.to_vec()).u32(VERSION)
    }

    /// Begins with nothing.
    pub fn empty() -> Writer {
        Writer(Vec::new())
    }

    /// Appends bytes.
    pub fn put(mut self, bytes: &[u8]) -> Writer {
        self.0.extend_from_slice(bytes);
        self
    }

    /// Appends a number, little-endian.
    pub fn u32(self, value: u32) -> Writer {
        self.put(&value.to_le_bytes())
    }

    /// Appends a number, little-endian.
    pub fn u64(self, value: u64) -> Writer {
        self.put(&value.to_le_bytes())
    }

    /// Appends a length and the bytes.
    pub fn sized(self, bytes: &[u8]) -> Writer {
        self.u32(bytes.len() as u32).put(bytes)
    }

    /// Appends a commit's name.
    pub fn point(self, point: Point) -> Writer {
        self.u64(point.epoch).u64(point.lsn)
    }

    /// Appends a list.
    pub fn list<T>(self, items: &[T], each: impl Fn(Writer, &T) -> Writer) -> Writer {
        items.iter().fold(self.u32(items.len() as u32), each)
    }

    /// Ends with a checksum of everything before.
    pub fn sealed(self) -> Vec<u8> {
        let crc = crc64(&self.0);
        self.u64(crc).0
    }

    /// The bytes, without a checksum.
    pub fn bare(self) -> Vec<u8> {
        self.0
    }
}

/// An object that is being read.
pub struct Reader<'a> {
    name: &'a str,
    rest: &'a [u8],
}

impl<'a> Reader<'a> {
    /// Checks magic and version.
    pub fn new(name: &'a str, magic: &[u8; 8], bytes: &'a [u8]) -> Result<Reader<'a>> {
        let mut reader = Reader { name, rest: bytes };
        if reader.take(8)? != magic {
            return reader.fail("it does not begin as such an object does");
        }
        let version = reader.u32()?;
        if version > VERSION {
            return Err(Error::Newer { name: name.to_owned(), version, known: VERSION });
        }
        if version == 0 { reader.fail("version 0") } else { Ok(reader) }
    }

    /// Checks magic, version, and the checksum at the end.
    pub fn sealed(name: &'a str, magic: &[u8; 8], bytes: &'a [u8]) -> Result<Reader<'a>> {
        let mut reader = Reader::new(name, magic, bytes)?;
        let Some((rest, crc)) = reader.rest.split_last_chunk::<8>() else { return reader.fail("it is too short") };
        if crc64(&bytes[..bytes.len() - 8]) != u64::from_le_bytes(*crc) {
            return reader.fail("wrong checksum");
        }
        reader.rest = rest;
        Ok(reader)
    }

    /// Bytes without magic.
    pub fn bare(name: &'a str, rest: &'a [u8]) -> Reader<'a> {
        Reader { name, rest }
    }

    /// The error of this object.
    pub fn fail<T>(&self, reason: impl Into<String>) -> Result<T> {
        Err(Error::Damaged { name: self.name.to_owned(), reason: reason.into() })
    }

    /// The next bytes.
    pub fn take(&mut self, n: usize) -> Result<&'a [u8]> {
        let Some((taken, rest)) = self.rest.split_at_checked(n) else { return self.fail("it is too short") };
        self.rest = rest;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N]> {
        Ok(self.take(N)?.try_into().expect("as many"))
    }

    /// A number.
    pub fn u32(&mut self) -> Result<u32> {
        self.array().map(u32::from_le_bytes)
    }

    /// A number.
    pub fn u64(&mut self) -> Result<u64> {
        self.array().map(u64::from_le_bytes)
    }

    /// 16 bytes.
    pub fn random(&mut self) -> Result<Random> {
        self.array()
    }

    /// 32 bytes.
    pub fn hash(&mut self) -> Result<Hash> {
        self.array()
    }

    /// A commit's name.
    pub fn point(&mut self) -> Result<Point> {
        Ok(Point { epoch: self.u64()?, lsn: self.u64()? })
    }

    /// Bytes with their length before them, at most `max`.
    pub fn sized(&mut self, max: usize) -> Result<&'a [u8]> {
        let length = self.u32()? as usize;
        if length > max { self.fail("a part of it is too long") } else { self.take(length) }
    }

    /// A text for people: at most [`WHO_BYTES_MAX`] bytes without control characters.
    pub fn who(&mut self) -> Result<String> {
        let text = self.sized(WHO_BYTES_MAX)?;
        match std::str::from_utf8(text) {
            Ok(text) if !text.chars().any(char::is_control) => Ok(text.to_owned()),
            _ => self.fail("invalid text"),
        }
    }

    /// A list whose entries have `least` bytes at least.
    pub fn list<T>(&mut self, least: usize, mut each: impl FnMut(&mut Self) -> Result<T>) -> Result<Vec<T>> {
        let n = self.u32()? as usize;
        if n > self.rest.len() / least {
            return self.fail("a list has more entries than there is room for");
        }
        (0..n).map(|_| each(self)).collect()
    }

    /// Whether all was read.
    pub fn is_empty(&self) -> bool {
        self.rest.is_empty()
    }

    /// Ends: nothing may be left.
    pub fn end(self) -> Result<()> {
        if self.rest.is_empty() { Ok(()) } else { self.fail("bytes are left over") }
    }
}

/// Most bytes of a text for people.
pub const WHO_BYTES_MAX: usize = 200;

/// Cuts a text for people to the length that an object takes.
pub fn who(text: &str) -> String {
    let mut cut: String = text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
    while cut.len() > WHO_BYTES_MAX {
        cut.pop();
    }
    cut
}

/// Compresses.
pub fn compress(plain: &[u8]) -> Vec<u8> {
    zstd::bulk::compress(plain, 1).expect("zstd compresses whatever fits into memory")
}

/// Decompresses to exactly `length` bytes, which the caller has bounded: never takes more memory than that.
pub fn decompress(name: &str, stored: &[u8], length: u64) -> Result<Vec<u8>> {
    let damaged = |reason: String| Error::Damaged { name: name.to_owned(), reason };
    let mut plain = Vec::new();
    let decoder = zstd::stream::read::Decoder::new(stored).map_err(|e| damaged(e.to_string()))?;
    decoder.take(length + 1).read_to_end(&mut plain).map_err(|e| damaged(e.to_string()))?;
    if plain.len() as u64 == length { Ok(plain) } else { Err(damaged("it decompresses to another size".into())) }
}
