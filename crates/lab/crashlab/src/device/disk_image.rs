//! The contents of a disk: sparse, cheap to copy, and summed, so that equal images are recognised at once.

use std::collections::BTreeMap;
use std::fs::File;
use std::hash::{DefaultHasher, Hasher};
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

/// The unit in which contents are copied, summed and stored.
pub const PAGE_BYTES: usize = 4096;

type Page = [u8; PAGE_BYTES];
const ZEROS: Page = [0; PAGE_BYTES];

/// The contents of a disk. Pages of zeros take no room.
#[derive(Clone)]
pub struct Image {
    pages: BTreeMap<u64, Arc<Page>>,
    bytes: u64,
    sum: u64,
}

impl Image {
    /// A disk of zeros.
    pub fn empty(bytes: u64) -> Image {
        Image { pages: BTreeMap::new(), bytes, sum: 0 }
    }

    /// Loads the contents of a file, skipping holes.
    pub fn load(file: &File) -> io::Result<Image> {
        let mut image = Image::empty(file.metadata()?.len());
        let mut buffer = vec![0; 1 << 20];
        let mut at = 0;
        while let Some((start, end)) = next_data(file, at)? {
            at = start;
            while at < end {
                let part = &mut buffer[..((end - at) as usize).min(1 << 20)];
                file.read_exact_at(part, at)?;
                image.write(at, part);
                at += part.len() as u64;
            }
        }
        Ok(image)
    }

    /// Makes the file have exactly these contents.
    pub fn store(&self, file: &File) -> io::Result<()> {
        file.set_len(0)?;
        file.set_len(self.bytes)?;
        let mut run: Vec<u8> = Vec::with_capacity(1 << 20);
        let mut start = 0;
        for (number, page) in &self.pages {
            let at = number * PAGE_BYTES as u64;
            if at != start + run.len() as u64 || run.len() >= 1 << 20 {
                file.write_all_at(&run, start)?;
                run.clear();
                start = at;
            }
            run.extend_from_slice(&page[..]);
        }
        file.write_all_at(&run, start)
    }

    /// Makes the file have exactly these contents, and writes only the differences, as states of one recording differ
    /// little.
    pub fn restore(&self, file: &File) -> io::Result<()> {
        if file.metadata()?.len() != self.bytes {
            return self.store(file);
        }
        let mut buffer = vec![0; 1 << 20];
        let mut wanted = self.pages.iter().peekable();
        let mut at = 0;
        while let Some((start, end)) = next_data(file, at)? {
            at = start / PAGE_BYTES as u64 * PAGE_BYTES as u64;
            while at < end {
                // Pages that lie in a hole of the file before this run of data.
                while let Some((number, page)) = wanted.next_if(|(number, _)| **number * (PAGE_BYTES as u64) < at) {
                    file.write_all_at(&page[..], number * PAGE_BYTES as u64)?;
                }
                let part = ((end - at) as usize).next_multiple_of(PAGE_BYTES).min(buffer.len());
                let part = &mut buffer[..part.min((self.bytes - at) as usize)];
                file.read_exact_at(part, at)?;
                for found in part.chunks(PAGE_BYTES) {
                    let page = wanted.next_if(|(number, _)| **number * (PAGE_BYTES as u64) == at);
                    let page = page.map_or(&ZEROS, |(_, page)| &**page);
                    if page[..found.len()] != *found {
                        file.write_all_at(&page[..found.len()], at)?;
                    }
                    at += found.len() as u64;
                }
            }
        }
        wanted.try_for_each(|(number, page)| file.write_all_at(&page[..], number * PAGE_BYTES as u64))
    }

    /// Size of the disk.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// A sum: equal for equal contents, and practically never equal for others.
    pub fn sum(&self) -> u64 {
        self.sum
    }

    /// Overwrites a part of the disk.
    pub fn write(&mut self, offset: u64, mut bytes: &[u8]) {
        let mut at = offset;
        while !bytes.is_empty() {
            let (number, within) = (at / PAGE_BYTES as u64, (at % PAGE_BYTES as u64) as usize);
            let part = bytes.len().min(PAGE_BYTES - within);
            let mut page = match self.pages.remove(&number) {
                Some(old) => {
                    self.sum ^= sum_of(number, &old);
                    old
                }
                None => Arc::new(ZEROS),
            };
            Arc::make_mut(&mut page)[within..within + part].copy_from_slice(&bytes[..part]);
            if *page != ZEROS {
                self.sum ^= sum_of(number, &page);
                self.pages.insert(number, page);
            }
            at += part as u64;
            bytes = &bytes[part..];
        }
    }

    /// Every page that is not all zeros, with its offset in bytes.
    pub fn pages(&self) -> impl Iterator<Item = (u64, &[u8])> {
        self.pages.iter().map(|(number, page)| (number * PAGE_BYTES as u64, &page[..]))
    }
}

fn sum_of(number: u64, page: &Page) -> u64 {
    let mut hasher = DefaultHasher::new();
    hasher.write_u64(number);
    hasher.write(page);
    hasher.finish()
}

/// The next run of data of a file.
fn next_data(file: &File, from: u64) -> io::Result<Option<(u64, u64)>> {
    use rustix::fs::{SeekFrom, seek};
    let start = match seek(file, SeekFrom::Data(from)) {
        Err(rustix::io::Errno::NXIO) => return Ok(None),
        done => done?,
    };
    Ok(Some((start, seek(file, SeekFrom::Hole(start))?)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_contents_have_equal_sums_however_they_came_about() {
        let (mut a, mut b) = (Image::empty(1 << 20), Image::empty(1 << 20));
        a.write(5000, &[1; 9000]);
        b.write(5000, &[2; 100]);
        assert_ne!(a.sum(), b.sum());
        b.write(5100, &[1; 8900]);
        b.write(5000, &[1; 100]);
        assert_eq!(a.sum(), b.sum());
        a.write(0, &[0; 20_000]);
        assert_eq!((a.sum(), a.pages().count()), (Image::empty(1 << 20).sum(), 0));
    }

    #[test]
    fn a_file_holds_what_was_restored() {
        let file = crate::device::memory_file("test").unwrap();
        let mut rng = fastrand::Rng::with_seed(1);
        let mut image = Image::empty(2 << 20);
        for _ in 0..50 {
            // Changes as by a file system that was mounted from the file meanwhile.
            for _ in 0..rng.usize(..6) {
                if file.metadata().unwrap().len() > 0 {
                    file.write_all_at(&vec![rng.u8(..); rng.usize(1..20_000)], rng.u64(..(2 << 20) - 20_000)).unwrap();
                }
            }
            for _ in 0..rng.usize(1..5) {
                image.write(rng.u64(..(2 << 20) - 9_000), &vec![rng.u8(..3); rng.usize(1..9_000)]);
            }
            image.restore(&file).unwrap();
            let again = Image::load(&file).unwrap();
            assert_eq!((again.sum(), again.bytes()), (image.sum(), 2 << 20));
        }
    }

    #[test]
    fn a_file_holds_what_was_stored() {
        let file = tempfile::tempfile().unwrap();
        let mut image = Image::empty(8 << 20);
        image.write(4096 * 3 - 7, &[3; 20_000]);
        image.write(7 << 20, &[9; 512]);
        file.write_all_at(&[5; 4096], 1 << 20).unwrap();
        image.store(&file).unwrap();
        let again = Image::load(&file).unwrap();
        assert_eq!((again.sum(), again.bytes()), (image.sum(), 8 << 20));
        assert!(again.pages().eq(image.pages()));
    }
}
