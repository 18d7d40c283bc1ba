//! A storage on byte-addressable memory whose lines take a given time: those that a program stores, and those that calls
//! write. Lines that it only copies to, for others to see, stay in the caches and take none.

use super::delay::{lines_of, take_time_of};
use std::any::Any;
use std::ffi::{OsStr, OsString};
use std::io::Result;
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use untorn_os::{
    Access, Counters, File, Lines, Linux, Listener, MapRequest, Mapping, Meta, Open, ReadMapping, Space, Storage,
    SyncPoint, View,
};

/// A directory in ordinary memory that stands for such memory.
pub struct SlowMemory {
    below: Arc<dyn Storage>,
}

impl SlowMemory {
    pub fn open(dir: &Path) -> Result<Arc<dyn Storage>> {
        Ok(Arc::new(SlowMemory { below: Linux::open_as_memory(dir)? }))
    }
}

struct SlowFile {
    below: Arc<dyn File>,
}

struct SlowLines {
    below: Box<dyn Lines>,
}

impl Lines for SlowLines {
    fn store(&self, bytes: &[u8], at: u64) -> Result<()> {
        self.below.store(bytes, at)?;
        take_time_of(lines_of(at as usize, bytes.len()));
        Ok(())
    }

    fn copy(&self, bytes: &[u8], at: u64) -> Result<()> {
        self.below.copy(bytes, at)
    }

    fn fence(&self, point: SyncPoint) -> Result<()> {
        self.below.fence(point)
    }
}

/// Methods that the storage below has.
macro_rules! pass {
    ($(fn $name:ident(&self $(, $argument:ident: $type:ty)*) -> $result:ty;)+) => {
        $(fn $name(&self $(, $argument: $type)*) -> $result {
            self.below.$name($($argument),*)
        })+
    };
}

impl Storage for SlowMemory {
    fn open(&self, path: &Path, how: Open) -> Result<Arc<dyn File>> {
        Ok(Arc::new(SlowFile { below: self.below.open(path, how)? }))
    }
    fn create_unnamed(&self, directory: &Path) -> Result<Arc<dyn File>> {
        Ok(Arc::new(SlowFile { below: self.below.create_unnamed(directory)? }))
    }
    fn at_once(&self, other: &mut (dyn FnMut() + Send), own: &mut dyn FnMut()) {
        self.below.at_once(other, own);
    }
    pass! {
        fn stat(&self, path: &Path) -> Result<Meta>;
        fn list(&self, path: &Path) -> Result<Vec<OsString>>;
        fn rename(&self, from: &Path, to: &Path, replace: bool) -> Result<()>;
        fn link(&self, from: &Path, to: &Path) -> Result<()>;
        fn unlink(&self, path: &Path) -> Result<()>;
        fn mkdir(&self, path: &Path, mode: u32) -> Result<()>;
        fn set_dir_mode(&self, path: &Path, mode: u32) -> Result<()>;
        fn rmdir(&self, path: &Path) -> Result<()>;
        fn check_access(&self, path: &Path, access: Access) -> Result<()>;
        fn has_access_list(&self, dir: &Path) -> bool;
        fn sync_dir(&self, path: &Path, point: SyncPoint) -> Result<()>;
        fn sync_file_system(&self, point: SyncPoint) -> Result<()>;
        fn sync_file_system_reports_errors(&self) -> bool;
        fn keeps_order(&self) -> bool;
        fn space(&self) -> Result<Space>;
        fn open_files_max(&self) -> usize;
        fn effective_user(&self) -> u32;
        fn boot_id(&self) -> Result<[u8; 16]>;
        fn time(&self) -> Option<u64>;
        fn file_size_limit(&self) -> u64;
        fn random(&self, bytes: &mut [u8]) -> Result<()>;
        fn pause(&self) -> ();
        fn pause_for(&self, time: Duration) -> ();
        fn uptime(&self) -> Duration;
        fn shows_another(&self) -> bool;
        fn in_threads(&self, most: usize, work: &(dyn Fn() + Sync)) -> ();
        fn counters(&self) -> Counters;
    }
}

impl File for SlowFile {
    fn write_at(&self, buf: &[u8], offset: u64) -> Result<usize> {
        let n = self.below.write_at(buf, offset)?;
        take_time_of(lines_of(offset as usize, n));
        Ok(n)
    }
    fn write_allowed_at(&self, buf: &[u8], offset: u64) -> Result<usize> {
        let n = self.below.write_allowed_at(buf, offset)?;
        take_time_of(lines_of(offset as usize, n));
        Ok(n)
    }
    fn lines(&self, len: u64) -> Result<Box<dyn Lines>> {
        Ok(Box::new(SlowLines { below: self.below.lines(len)? }))
    }
    fn clone_range(&self, from: &dyn File, from_offset: u64, offset: u64, len: u64) -> Result<()> {
        let from = (from as &dyn Any).downcast_ref::<SlowFile>().map_or(from, |slow| &*slow.below);
        self.below.clone_range(from, from_offset, offset, len)
    }
    pass! {
        fn give_name(&self, name: &OsStr) -> Result<()>;
        fn read_at(&self, buf: &mut [u8], offset: u64) -> Result<usize>;
        fn check_own(&self) -> Result<()>;
        fn born_ns(&self) -> u64;
        fn read_past_cache_at(&self, buf: &mut [u8], offset: u64) -> Result<usize>;
        fn begin_read(&self, range: Range<u64>) -> ();
        fn forget_cached(&self) -> Result<()>;
        fn set_len(&self, size: u64) -> Result<()>;
        fn size_max(&self) -> Result<u64>;
        fn allocate(&self, offset: u64, len: u64) -> Result<()>;
        fn keep_room(&self, offset: u64, len: u64) -> Result<()>;
        fn zero(&self, offset: u64, len: u64) -> Result<()>;
        fn sync_data(&self, point: SyncPoint) -> Result<()>;
        fn sync_all(&self, point: SyncPoint) -> Result<()>;
        fn begin_write_out(&self, offset: u64, len: u64) -> ();
        fn write_out(&self, point: SyncPoint) -> Result<()>;
        fn meta(&self) -> Result<Meta>;
        fn set_mode(&self, mode: u32) -> Result<()>;
        fn attribute(&self) -> Result<Option<Vec<u8>>>;
        fn set_attribute(&self, value: &[u8]) -> Result<()>;
        fn remove_attribute(&self) -> Result<()>;
        fn try_claim(&self) -> Result<bool>;
        fn lock(&self, wait: bool) -> Result<bool>;
        fn is_locked(&self) -> Result<bool>;
        fn hold(&self, range: Range<u64>) -> Result<bool>;
        fn release(&self, range: Range<u64>) -> Result<()>;
        fn held(&self, range: Range<u64>) -> Result<Option<Range<u64>>>;
        fn view(&self, len: usize) -> Result<Box<dyn View>>;
        fn is_open_in(&self, pid: u32) -> Option<bool>;
        fn listen(&self) -> Result<Box<dyn Listener>>;
        fn is_direct(&self) -> bool;
        fn map(&self, request: &MapRequest) -> Result<Box<dyn Mapping>>;
        fn show_in(&self, memory: &mut ReadMapping, len: usize) -> Result<()>;
        fn duplicate(&self) -> Result<OwnedFd>;
        fn next_contents(&self, from: u64, end: u64) -> Result<Option<Range<u64>>>;
    }
}
