//! The containers of C++ on Untorn's heap, in a C++ program.
//!
//! It is compiled when the benchmark runs, against the headers that the benchmark was built with and the `libuntorn.so`
//! beside it: once as it is, and once with the hooks of `untorn-c++`, which report its stores, so that its heaps have the
//! tracker `explicit`.

use super::kv_store::{Entry, Key, Scan, Store};
use crate::measuring::harness::Activity;
use crate::measuring::library::{c_path, c_text, functions, load};
use crate::measuring::scratch::Scratch;
use crate::measuring::unavailable::unavailable;
use anyhow::{Context, Result, ensure};
use libloading::Library;
use std::cell::OnceCell;
use std::ffi::{c_char, c_int};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::rc::Rc;

const SOURCES: [(&str, &str); 12] = [
    ("untorn.h", include_str!("../../../../../include/untorn.h")),
    ("untorn.hpp", include_str!("../../../../../include/untorn.hpp")),
    ("untorn_heap.hpp", include_str!("../../../../../include/untorn_heap.hpp")),
    ("untorn_containers.hpp", include_str!("../../../../../include/untorn_containers.hpp")),
    ("untorn_types.hpp", include_str!("../../../../../include/untorn_types.hpp")),
    ("untorn_section.hpp", include_str!("../../../../../include/untorn_section.hpp")),
    ("untorn_members.hpp", include_str!("../../../../../include/untorn_members.hpp")),
    ("hooks.c", include_str!("../../../../bindings/c/live/hooks.c")),
    ("libstdcxx.cpp", include_str!("../../../../bindings/c/live/libstdcxx.cpp")),
    ("live_flags.sh", include_str!("../../../../bindings/c/package/live_flags.sh")),
    ("stl.cpp", include_str!("stl.cpp")),
    ("build_stl.sh", include_str!("build_stl.sh")),
];

/// `kv_store` of `stl.cpp`.
#[repr(C)]
struct Handle {
    _opaque: [u8; 0],
}

/// `entry` of `stl.cpp`.
#[repr(C)]
struct CEntry {
    key: *const u8,
    value: *const u8,
    bytes: usize,
}

/// `counters` of `stl.cpp`.
#[repr(C)]
#[derive(Default)]
struct Counters {
    commits: u64,
    commits_waited: u64,
    groups: u64,
    checkpoints: u64,
    syncs: u64,
    journal_bytes: u64,
}

functions!(Functions {
    fn error() -> *const c_char;
    fn open(c_int, *const c_char) -> *mut Handle;
    fn put(*mut Handle, *const CEntry, usize) -> bool;
    fn remove(*mut Handle, *const u8) -> bool;
    fn read(*mut Handle, *const u8, usize, *mut u64) -> bool;
    fn scan(*mut Handle, *mut u64, *mut u64) -> bool;
    fn count(*mut Handle, *mut Counters) -> bool;
    fn close(*mut Handle);
});

/// The containers, by their numbers in `stl.cpp`.
#[derive(Clone, Copy, Debug)]
pub enum Container {
    Map = 0,
    UnorderedMap = 1,
    /// Without durability.
    MapInMemory = 2,
}

/// The compiled program.
pub struct Stl {
    functions: Functions,
}

/// How the program's stores are found.
#[derive(Clone, Copy, Debug)]
pub enum Stores {
    ByTheTracker,
    ByHooks,
}

thread_local! {
    static BUILT: [OnceCell<Rc<Stl>>; 2] = const { [const { OnceCell::new() }; 2] };
}

impl Stl {
    /// Compiles and loads the program, once.
    pub fn get(stores: Stores) -> Result<Rc<Stl>> {
        BUILT.with(|built| match built[stores as usize].get() {
            Some(stl) => Ok(stl.clone()),
            None => {
                let stl = Rc::new(Stl::build(stores)?);
                Ok(built[stores as usize].get_or_init(|| stl).clone())
            }
        })
    }

    fn build(stores: Stores) -> Result<Stl> {
        let library = library_of_untorn()?;
        let scratch = Scratch::new_in(&std::env::temp_dir())?;
        for (name, text) in SOURCES {
            std::fs::write(scratch.path().join(name), text)?;
        }
        let mut command = Command::new("sh");
        command.arg("build_stl.sh").arg(&library).current_dir(scratch.path());
        if let Stores::ByHooks = stores {
            command.arg("hooks");
        }
        let output = command.output().context("sh")?;
        let said = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "there is no C++ compiler (package g++), or it failed:\n{said}");
        // Once loaded, the library is found by its name, wherever it is.
        load(&[library.to_str().context("a path that is no text")?], "libuntorn")?;
        // SAFETY: compiled from our own source just now.
        let loaded = unsafe { Library::new(scratch.path().join("stl.so")) }.context("cannot load what was compiled")?;
        Ok(Stl { functions: Functions::of(Box::leak(Box::new(loaded)), "kv_")? })
    }

    fn failure(&self) -> anyhow::Error {
        // SAFETY: a string that lives until the next failure.
        anyhow::anyhow!("{}", unsafe { c_text((self.functions.error)()) })
    }
}

/// `libuntorn.so` of this build, or the installed one.
pub fn library_of_untorn() -> Result<PathBuf> {
    let program = std::env::current_exe()?;
    let beside = program.parent().context("a program in a directory")?;
    let places = [beside.to_owned(), beside.join("../lib"), beside.join("..")];
    match places.iter().map(|place| place.join("libuntorn.so")).find(|path| path.exists()) {
        Some(found) => Ok(found.canonicalize()?),
        None => Err(unavailable(format!(
            "there is no libuntorn.so beside {} (`make build` or `make install` make it)",
            program.display()
        ))),
    }
}

/// One container with its contents.
pub struct StlStore {
    stl: Rc<Stl>,
    handle: *mut Handle,
}

impl StlStore {
    pub fn open(stl: &Rc<Stl>, container: Container, dir: &Path) -> Result<StlStore> {
        let path = c_path(dir)?;
        // SAFETY: a string.
        let handle = unsafe { (stl.functions.open)(container as c_int, path.as_ptr()) };
        if handle.is_null() {
            return Err(stl.failure());
        }
        Ok(StlStore { stl: stl.clone(), handle })
    }

    fn check(&self, done: bool) -> Result<()> {
        if done { Ok(()) } else { Err(self.stl.failure()) }
    }
}

impl Drop for StlStore {
    fn drop(&mut self) {
        // SAFETY: the handle is ours, and open.
        unsafe { (self.stl.functions.close)(self.handle) };
    }
}

impl Store for StlStore {
    fn put(&mut self, entries: &[Entry<'_>]) -> Result<()> {
        let c_entry = |e: &Entry<'_>| CEntry { key: e.key.as_ptr(), value: e.value.as_ptr(), bytes: e.value.len() };
        let entries: Vec<CEntry> = entries.iter().map(c_entry).collect();
        // SAFETY: an open handle, and as many entries as we say, whose bytes are borrowed.
        self.check(unsafe { (self.stl.functions.put)(self.handle, entries.as_ptr(), entries.len()) })
    }

    fn delete(&mut self, key: &Key) -> Result<()> {
        // SAFETY: an open handle and a whole key.
        self.check(unsafe { (self.stl.functions.remove)(self.handle, key.as_ptr()) })
    }

    fn read(&mut self, keys: &[Key]) -> Result<u64> {
        let mut sum = 0;
        // SAFETY: an open handle, and as many keys as we say.
        let done = unsafe { (self.stl.functions.read)(self.handle, keys.as_ptr().cast(), keys.len(), &mut sum) };
        self.check(done).map(|()| sum)
    }

    fn scan(&mut self) -> Result<Scan> {
        let mut scan = Scan::default();
        // SAFETY: an open handle and two numbers of ours.
        let done = unsafe { (self.stl.functions.scan)(self.handle, &mut scan.count, &mut scan.sum) };
        self.check(done).map(|()| scan)
    }

    fn activity(&self) -> Result<Option<Activity>> {
        let mut c = Counters::default();
        // SAFETY: an open handle and a struct of ours.
        self.check(unsafe { (self.stl.functions.count)(self.handle, &mut c) })?;
        let Counters { commits, commits_waited, groups, checkpoints, syncs, journal_bytes } = c;
        let activity = Activity { commits, commits_waited, groups, checkpoints, syncs, journal_bytes };
        Ok((commits > 0).then_some(activity))
    }
}
