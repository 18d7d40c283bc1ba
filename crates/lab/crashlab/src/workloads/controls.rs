//! Programs with a known mistake, which every run of the laboratory must find.
//!
//! All of them write a number to every place of their file or files, and increase it.

use crate::device::{Acks, FileSystem};
use crate::replay::{Check, Program};
use anyhow::{Context, Result};
use rustix::mm::{MapFlags, MsyncFlags, ProtFlags, mmap, msync, munmap};
use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::Path;

/// The mistake.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mistake {
    EarlyAck,
    NoBarrier,
    DiskWithoutFlush,
    RenameWithoutSync,
    PlainMapping,
}

/// A program with a mistake, and the seed of its bytes.
#[derive(Clone, Copy, Debug)]
pub struct Control {
    mistake: Mistake,
    seed: u64,
}

const fn control(mistake: Mistake) -> Control {
    Control { mistake, seed: 0 }
}

/// All controls.
pub const CONTROLS: [Control; 5] = [
    control(Mistake::EarlyAck),
    control(Mistake::NoBarrier),
    control(Mistake::DiskWithoutFlush),
    control(Mistake::RenameWithoutSync),
    control(Mistake::PlainMapping),
];

const ROUNDS: u64 = 40;
const BLOCK_BYTES: usize = 4096;
/// The number of blocks of the log with a header, and of pages of the mapping.
const BLOCKS: u64 = 16;
const FILE: &str = "data";

impl Control {
    /// The name for reports.
    pub fn name(self) -> &'static str {
        match self.mistake {
            Mistake::EarlyAck => "early-ack",
            Mistake::NoBarrier => "no-barrier",
            Mistake::DiskWithoutFlush => "disk-without-flush",
            Mistake::RenameWithoutSync => "rename-without-sync",
            Mistake::PlainMapping => "plain-mapping",
        }
    }

    /// This mistake with another seed.
    pub fn seeded(self, seed: u64) -> Control {
        Control { seed, ..self }
    }

    /// Whether the mistake can show on a file system. btrfs writes everything before an `fsync` to the disk in one
    /// step, so that the order of these writes does not matter.
    pub fn must_be_found_on(self, fs: FileSystem) -> bool {
        match self.mistake {
            Mistake::EarlyAck | Mistake::RenameWithoutSync => fs != FileSystem::Ext4NoBarrier,
            Mistake::NoBarrier | Mistake::PlainMapping => {
                !matches!(fs, FileSystem::Btrfs | FileSystem::Ext4NoBarrier | FileSystem::Ext4Journal)
            }
            Mistake::DiskWithoutFlush => fs == FileSystem::Ext4NoBarrier,
        }
    }

    fn block(self, number: u64) -> [u8; BLOCK_BYTES] {
        let mut block = [0; BLOCK_BYTES];
        for part in block.chunks_exact_mut(8) {
            part.copy_from_slice(&(number + (self.seed << 32)).to_le_bytes());
        }
        block
    }

    /// The number in a block; None if there is more than one.
    fn number(self, block: &[u8]) -> Option<u64> {
        let mut numbers = block.chunks_exact(8).map(|b| u64::from_le_bytes(b.try_into().expect("eight bytes")));
        let first = numbers.next()?;
        // The initial contents.
        let number = if first == 0 { 0 } else { first.checked_sub(self.seed << 32)? };
        numbers.all(|n| n == first).then_some(number)
    }

    /// Writes a record, and its number in a header beside it; both are durable before the acknowledgement. Only a
    /// barrier keeps them in order.
    fn round_of_log(self, file: &File, number: u64, barrier: bool) -> Result<()> {
        let place = 1 + number % (BLOCKS - 1);
        file.write_all_at(&self.block(number), place * BLOCK_BYTES as u64)?;
        if barrier {
            file.sync_data()?;
        }
        file.write_all_at(&self.block(number), 0)?;
        Ok(file.sync_data()?)
    }

    fn read_log(self, dir: &Path) -> Result<u64, String> {
        let file = std::fs::read(dir.join(FILE)).map_err(|e| e.to_string())?;
        let block = |n: u64| file.get(n as usize * BLOCK_BYTES..(n as usize + 1) * BLOCK_BYTES);
        let header = block(0).and_then(|b| self.number(b)).ok_or("the header is torn")?;
        if header > 0 && block(1 + header % (BLOCKS - 1)).and_then(|b| self.number(b)) != Some(header) {
            return Err(format!("the header says {header}, whose record is not there"));
        }
        Ok(header)
    }

    fn read_whole(self, dir: &Path) -> Result<u64, String> {
        let file = std::fs::read(dir.join(FILE)).map_err(|e| e.to_string())?;
        self.number(&file).ok_or_else(|| format!("a mixture, of {} bytes", file.len()))
    }

    fn replace(self, dir: &Path, number: u64) -> Result<()> {
        std::fs::write(dir.join("data.new"), self.block(number))?;
        Ok(std::fs::rename(dir.join("data.new"), dir.join(FILE))?)
    }
}

impl Program for Control {
    fn prepare(&self, dir: &Path) -> Result<()> {
        let blocks = if self.mistake == Mistake::RenameWithoutSync { 1 } else { BLOCKS };
        for _ in 0..blocks {
            use std::io::Write;
            let mut file = OpenOptions::new().create(true).append(true).open(dir.join(FILE))?;
            file.write_all(&[0; BLOCK_BYTES])?;
        }
        Ok(())
    }

    fn run(&self, dir: &Path, acks: &Path) -> Result<()> {
        let mut acks = Acks::open(acks)?;
        let file = OpenOptions::new().read(true).write(true).open(dir.join(FILE))?;
        let mut pages = match self.mistake {
            Mistake::PlainMapping => Some(Pages::map(&file)?),
            _ => None,
        };
        for number in 1..=ROUNDS {
            match (self.mistake, &mut pages) {
                (Mistake::EarlyAck, _) => {
                    file.write_all_at(&self.block(number), 0)?;
                    acks.say(&number.to_string())?;
                    file.sync_data()?;
                    continue;
                }
                (Mistake::PlainMapping, Some(pages)) => pages.fill(&self.block(number))?,
                (Mistake::RenameWithoutSync, _) => self.replace(dir, number)?,
                (mistake, _) => self.round_of_log(&file, number, mistake == Mistake::DiskWithoutFlush)?,
            }
            acks.say(&number.to_string())?;
        }
        Ok(())
    }
}

impl Check for Control {
    fn check(&self, dir: &Path, said: &[String]) -> Result<(), String> {
        let found = match self.mistake {
            Mistake::NoBarrier | Mistake::DiskWithoutFlush => self.read_log(dir)?,
            Mistake::EarlyAck => {
                let file = std::fs::read(dir.join(FILE)).map_err(|e| e.to_string())?;
                // Torn numbers do not matter here.
                u64::from_le_bytes(file[..8].try_into().expect("eight bytes")).saturating_sub(self.seed << 32)
            }
            Mistake::RenameWithoutSync | Mistake::PlainMapping => self.read_whole(dir)?,
        };
        let acknowledged = said.last().map_or(Ok(0), |line| line.parse()).map_err(|e| format!("{e}"))?;
        if found < acknowledged {
            return Err(format!("{acknowledged} was acknowledged, {found} is there"));
        }
        Ok(())
    }
}

/// A shared mapping of a file.
struct Pages(*mut core::ffi::c_void);

const PAGES_BYTES: usize = BLOCKS as usize * BLOCK_BYTES;

impl Pages {
    fn map(file: &File) -> Result<Pages> {
        // SAFETY: a new mapping at a place of the kernel's choice; the file is that large and stays so.
        let start = unsafe {
            mmap(std::ptr::null_mut(), PAGES_BYTES, ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED, file, 0)
        };
        Ok(Pages(start.context("mmap")?))
    }

    /// Fills every page with the block, and makes it durable by `msync`.
    fn fill(&mut self, block: &[u8; BLOCK_BYTES]) -> Result<()> {
        for n in 0..BLOCKS as usize {
            // SAFETY: within the mapping, which nobody else uses.
            unsafe {
                std::ptr::copy_nonoverlapping(block.as_ptr(), self.0.cast::<u8>().add(n * BLOCK_BYTES), BLOCK_BYTES)
            };
        }
        // SAFETY: the whole mapping, which is ours.
        Ok(unsafe { msync(self.0, PAGES_BYTES, MsyncFlags::SYNC) }?)
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        // SAFETY: the mapping is ours, and nothing refers to it any more.
        let _ = unsafe { munmap(self.0, PAGES_BYTES) };
    }
}
