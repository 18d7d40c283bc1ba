//! A storage that reports every call before it is made.

use std::any::Any;
use std::ffi::{OsStr, OsString};
use std::io::Result;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use untorn_os::{Access, Counters, File, MapRequest, Mapping, Meta, Open, Space, Storage, SyncPoint, View};

/// A callback that gets the name of the method.
pub type Hook = Arc<dyn Fn(&str) + Send + Sync>;

/// Calls a function in this number of threads.
pub type InThreads = fn(usize, &(dyn Fn() + Sync));

/// The storage of a process that is observed.
pub struct Hooked {
    pub below: Arc<dyn Storage>,
    pub hook: Hook,
    pub in_threads: InThreads,
}

impl Hooked {
    /// With the caller's thread alone.
    pub fn over(below: Arc<dyn Storage>, hook: Hook) -> Hooked {
        Hooked { below, hook, in_threads: |_, work| work() }
    }
}

struct HookedFile {
    below: Arc<dyn File>,
    hook: Hook,
}

/// Methods that report, then call the storage below.
macro_rules! pass {
    ($(fn $name:ident(&self $(, $argument:ident: $type:ty)*) -> $result:ty;)+) => {
        $(fn $name(&self $(, $argument: $type)*) -> $result {
            (self.hook)(stringify!($name));
            self.below.$name($($argument),*)
        })+
    };
}

impl Storage for Hooked {
    fn open(&self, path: &Path, how: Open) -> Result<Arc<dyn File>> {
        (self.hook)("open");
        let below = self.below.open(path, how)?;
        Ok(Arc::new(HookedFile { below, hook: self.hook.clone() }))
    }
    fn create_unnamed(&self, directory: &Path) -> Result<Arc<dyn File>> {
        (self.hook)("create_unnamed");
        let below = self.below.create_unnamed(directory)?;
        Ok(Arc::new(HookedFile { below, hook: self.hook.clone() }))
    }
    fn in_threads(&self, most: usize, work: &(dyn Fn() + Sync)) {
        (self.in_threads)(most, work);
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
        fn counters(&self) -> Counters;
    }
}

impl File for HookedFile {
    fn clone_range(&self, from: &dyn File, from_offset: u64, offset: u64, len: u64) -> Result<()> {
        (self.hook)("clone_range");
        let from = (from as &dyn Any).downcast_ref::<HookedFile>().map_or(from, |hooked| &*hooked.below);
        self.below.clone_range(from, from_offset, offset, len)
    }

    pass! {
        fn give_name(&self, name: &OsStr) -> Result<()>;
        fn born_ns(&self) -> u64;
        fn read_at(&self, buf: &mut [u8], offset: u64) -> Result<usize>;
        fn write_at(&self, buf: &[u8], offset: u64) -> Result<usize>;
        fn read_past_cache_at(&self, buf: &mut [u8], offset: u64) -> Result<usize>;
        fn set_len(&self, size: u64) -> Result<()>;
        fn size_max(&self) -> Result<u64>;
        fn allocate(&self, offset: u64, len: u64) -> Result<()>;
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
        fn is_direct(&self) -> bool;
        fn map(&self, request: &MapRequest) -> Result<Box<dyn Mapping>>;
    }
}
