//! The two files as mapped files, by Untorn or by `mmap`.

use crate::medium::{Medium, NAMES, Which, open_plain};
use memmap2::{MmapMut, MmapOptions};
use std::fs::File;
use std::path::{Path, PathBuf};
use untorn::{FileOptions, Map, Store};
use untorn_terminal::Failure;

/// The reserved address space in which a file may grow. Memory beyond its end is not accessed.
const ROOM_BYTES: usize = 1 << 30;

/// `mmap` and `msync`.
pub struct PlainMapped {
    dir: PathBuf,
    files: [(File, MmapMut); 2],
}

impl PlainMapped {
    pub fn open(dir: &Path) -> Result<PlainMapped, Failure> {
        let open = |name: &str| -> Result<(File, MmapMut), Failure> {
            let file = open_plain(dir, name)?;
            // SAFETY: no other program has these files, and this one only makes them larger.
            let map = unsafe { MmapOptions::new().len(ROOM_BYTES).map_mut(&file) };
            Ok((file, map.map_err(|e| Failure::io("map", &dir.join(name), e))?))
        };
        Ok(PlainMapped { dir: dir.to_owned(), files: [open(NAMES[0])?, open(NAMES[1])?] })
    }

    fn size(&self, which: Which) -> Result<usize, Failure> {
        let meta = self.files[which as usize].0.metadata().map_err(|e| Failure::io("look at", &self.dir, e))?;
        Ok((meta.len() as usize).min(ROOM_BYTES))
    }
}

impl Medium for PlainMapped {
    fn read(&self, which: Which, offset: u64, len: usize) -> Result<Vec<u8>, Failure> {
        let (from, size) = (offset as usize, self.size(which)?);
        Ok(self.files[which as usize].1[from.min(size)..from.saturating_add(len).min(size)].to_vec())
    }

    fn write(&mut self, which: Which, bytes: &[u8], offset: u64) -> Result<(), Failure> {
        let (from, to) = (offset as usize, offset as usize + bytes.len());
        let size = self.size(which)?;
        let (file, map) = &mut self.files[which as usize];
        if to > size {
            file.set_len(to as u64).map_err(|e| Failure::io("extend", &self.dir, e))?;
        }
        map[from..to].copy_from_slice(bytes);
        Ok(())
    }

    fn commit(&mut self) -> Result<(), Failure> {
        for which in [Which::Data, Which::Index] {
            let size = self.size(which)?;
            self.files[which as usize].1.flush_range(0, size).map_err(|e| Failure::io("flush", &self.dir, e))?;
        }
        Ok(())
    }
}

/// The two files mapped by Untorn: ordinary stores, and one commit of both files.
pub struct Mapped {
    store: Store,
    maps: [Map; 2],
}

impl Mapped {
    pub fn open(dir: &Path) -> Result<Mapped, Failure> {
        let store = Store::open_or_create(dir)?;
        let options = FileOptions::new().create(true);
        let map = |name: &str| -> Result<Map, Failure> { Ok(options.open_in(&store, name)?.map()?) };
        let maps = [map(NAMES[0])?, map(NAMES[1])?];
        Ok(Mapped { store, maps })
    }
}

impl Medium for Mapped {
    fn read(&self, which: Which, offset: u64, len: usize) -> Result<Vec<u8>, Failure> {
        let map = &self.maps[which as usize];
        let mut bytes = vec![0; len.min(map.len().saturating_sub(offset) as usize)];
        map.load(&mut bytes, offset.min(map.len()))?;
        Ok(bytes)
    }

    fn write(&mut self, which: Which, bytes: &[u8], offset: u64) -> Result<(), Failure> {
        let map = &self.maps[which as usize];
        let end = offset + bytes.len() as u64;
        if end > map.len() {
            map.resize(end)?;
        }
        // SAFETY: this is the only thread, and nothing else holds a part of the map.
        let memory = unsafe { map.as_mut_slice() };
        memory[offset as usize..end as usize].copy_from_slice(bytes);
        Ok(())
    }

    fn commit(&mut self) -> Result<(), Failure> {
        Ok(self.store.syncv(&[self.maps[0].file(), self.maps[1].file()])?)
    }

    fn close(self: Box<Self>) -> Result<(), Failure> {
        self.maps.into_iter().try_for_each(Map::unmap)?;
        Ok(self.store.close()?)
    }
}
