//! A file with a position, for code that reads and writes streams.

use crate::engine::handles::file::File;
use std::io::{self, ErrorKind, Read, Seek, SeekFrom, Write};

/// A position in a file. Reads and writes move it; nothing is committed before [`File::commit`].
///
/// ```
/// # let dir = tempfile::tempdir().unwrap();
/// use std::io::{Seek, Write};
///
/// let store = untorn::Store::open_or_create(dir.path())?;
/// let file = store.open_or_create_file("log")?;
/// let mut cursor = file.cursor();
/// cursor.seek(std::io::SeekFrom::End(0))?;
/// writeln!(cursor, "one more line")?;
/// file.commit()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Cursor<'a> {
    file: &'a File,
    position: u64,
}

impl File {
    /// A position in the file, at its beginning.
    pub fn cursor(&self) -> Cursor<'_> {
        Cursor { file: self, position: 0 }
    }
}

impl Cursor<'_> {
    /// Bytes from the beginning of the file.
    pub fn position(&self) -> u64 {
        self.position
    }

    /// Moves the position, which may be behind the end of the file.
    pub fn set_position(&mut self, position: u64) {
        self.position = position;
    }
}

impl Read for Cursor<'_> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let n = self.file.read_at(buf, self.position)?;
        self.position += n as u64;
        Ok(n)
    }
}

impl Write for Cursor<'_> {
    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        let n = self.file.write_at(buf, self.position)?;
        self.position += n as u64;
        Ok(n)
    }

    /// Does nothing: bytes are in the file's write set at once, and [`File::commit`] makes them durable.
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Seek for Cursor<'_> {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        let position = match to {
            SeekFrom::Start(offset) => Some(offset),
            SeekFrom::End(by) => self.file.len()?.checked_add_signed(by),
            SeekFrom::Current(by) => self.position.checked_add_signed(by),
        };
        self.position = position.ok_or_else(|| io::Error::from(ErrorKind::InvalidInput))?;
        Ok(self.position)
    }
}
