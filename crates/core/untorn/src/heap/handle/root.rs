//! Named roots: a program finds its structures by them, and learns whether the layout has changed.

use super::open_heap::Heap;
use crate::heap::collections::in_heap::InHeap;
use crate::heap::collections::storable::Storable;
use crate::heap::image::layout::{self, CHUNK_BYTES, ROOTS, ROOTS_AT, RootEntry, text};
use crate::heap::live::own_pages::{self, ROOT_PAGES};
use crate::heap::log::section_thread::section_of;
use std::alloc::Layout;
use std::path::PathBuf;
use std::ptr::NonNull;
use untorn_journal::{Error, Result};

/// A root's pointer and type, as they were when the root was set.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RootInfo {
    /// The root's name.
    pub name: String,
    /// The type's name, cut off after 104 bytes.
    pub type_name: String,
    /// The type's size in bytes.
    pub size: u64,
    /// The type's alignment.
    pub align: u32,
    /// The program's own version number of the layout.
    pub version: u32,
    /// The address of the object.
    pub address: NonNull<u8>,
}

/// Options for the layout of a root.
#[derive(Clone, Copy, Debug, Default)]
pub struct RootOptions {
    version: u32,
}

impl RootOptions {
    /// Version 0.
    pub const fn new() -> RootOptions {
        RootOptions { version: 0 }
    }

    /// Sets a version number. Change it whenever fields change their meaning but not their size.
    pub const fn version(mut self, version: u32) -> Self {
        self.version = version;
        self
    }
}

/// The layout of a type, as it is stored with a root.
#[derive(Clone, Copy, Debug)]
pub struct RootShape<'a> {
    /// The type's name.
    pub type_name: &'a str,
    /// Its size and alignment.
    pub layout: Layout,
    /// The program's own version number of the layout.
    pub version: u32,
}

impl RootShape<'_> {
    pub(crate) fn of<T>(options: RootOptions) -> RootShape<'static> {
        RootShape { type_name: std::any::type_name::<T>(), layout: Layout::new::<T>(), version: options.version }
    }

    fn fingerprint(&self) -> u64 {
        let (size, align) = (self.layout.size() as u64, self.layout.align() as u32);
        layout::fingerprint(self.type_name.as_bytes(), size, align, self.version)
    }
}

pub(crate) fn info(entry: &RootEntry) -> Option<RootInfo> {
    Some(RootInfo {
        name: text(&entry.name),
        type_name: text(&entry.type_name),
        size: entry.size,
        align: entry.align,
        version: entry.version,
        address: NonNull::new(entry.pointer as *mut u8)?,
    })
}

/// Whether this many bytes at an address lie behind the first metadata and before the end of a heap's memory. Whether
/// the bytes are allocated is not checked: that would need a check of everything before them.
fn holds((base, len): (NonNull<u8>, usize), address: NonNull<u8>, bytes: u64) -> bool {
    let offset = (address.as_ptr() as u64).wrapping_sub(base.as_ptr() as u64);
    offset >= CHUNK_BYTES as u64 && offset.checked_add(bytes).is_some_and(|end| end <= len as u64)
}

/// Checks an entry of a heap in this memory, and returns its contents.
fn checked(
    entry: &RootEntry,
    name: &str,
    memory: (NonNull<u8>, usize),
    path: impl FnOnce() -> PathBuf,
) -> Result<Option<RootInfo>> {
    let found = info(entry);
    let inside = |found: &RootInfo| {
        let aligned =
            found.align.is_power_of_two() && (found.address.as_ptr() as usize).is_multiple_of(found.align as usize);
        aligned && holds(memory, found.address, found.size)
    };
    match found {
        Some(found) if !inside(&found) => {
            Err(Error::corrupt_heap(path(), format!("the root {name:?} points out of the heap")))
        }
        found => Ok(found),
    }
}

/// The name of a type, without the checksum of its layout that C++ adds.
fn without_layout(type_name: &str) -> &str {
    type_name.split_once(" [layout ").map_or(type_name, |(name, _)| name)
}

/// The object that an entry points to, if it has the wanted type.
pub(crate) fn found_of(
    entry: &RootEntry,
    name: &str,
    wanted: &RootShape<'_>,
    memory: (NonNull<u8>, usize),
    path: impl Fn() -> PathBuf,
) -> Result<Option<NonNull<u8>>> {
    let Some(found) = checked(entry, name, memory, &path)? else { return Ok(None) };
    if entry.fingerprint == wanted.fingerprint() {
        return Ok(Some(found.address));
    }
    let same_type =
        found.version == wanted.version && without_layout(&found.type_name) == without_layout(wanted.type_name);
    let what = match same_type && found.type_name != wanted.type_name {
        // The two checksums would not help the reader of the message.
        true => format!(
            "the members of {}, or of a type in it, have changed since the root {name:?} was set ({} bytes and alignment {} \
             then, {} bytes and alignment {} now)",
            without_layout(wanted.type_name),
            found.size,
            found.align,
            wanted.layout.size(),
            wanted.layout.align()
        ),
        false => format!(
            "the root {name:?} holds {} (version {}, {} bytes, alignment {}), and the program expects {} (version {}, {} \
             bytes, alignment {}): its layout has changed",
            found.type_name,
            found.version,
            found.size,
            found.align,
            wanted.type_name,
            wanted.version,
            wanted.layout.size(),
            wanted.layout.align()
        ),
    };
    let detail = format!(
        "{what}. Nothing was changed; run the program that wrote it, or migrate it \
         (`Heap::migrate_root`, in C++ `heap.root<T>(name, version, function)`)"
    );
    Err(Error::LayoutChanged { path: path(), detail })
}

impl Heap {
    fn entries(&self) -> NonNull<RootEntry> {
        let (base, _) = self.memory();
        // SAFETY: the roots are in the first segment, which is always mapped.
        unsafe { base.add(ROOTS_AT).cast() }
    }

    fn entry(&self, name: &str) -> Result<Option<NonNull<RootEntry>>> {
        if name.is_empty() || name.len() > 47 || name.contains('\0') {
            return Err(Error::invalid(format!("a root's name has 1 to 47 bytes and no NUL: {name:?}")));
        }
        // SAFETY: the table is mapped, and any bytes are an entry.
        Ok((0..ROOTS).map(|i| unsafe { self.entries().add(i) }).find(|e| unsafe { e.as_ref().is_named(name) }))
    }

    /// All roots.
    pub fn roots(&self) -> Vec<RootInfo> {
        let _roots = self.lock_roots();
        // SAFETY: the table is mapped, and any bytes are an entry.
        let all = (0..ROOTS).map(|i| unsafe { self.entries().add(i).read() });
        all.filter(|entry| entry.name[0] != 0).filter_map(|entry| info(&entry)).collect()
    }

    /// The pointer and type of a root of any type: for migrations.
    ///
    /// A program whose layout has changed reads the old object, builds the new one, sets the root to it and frees the
    /// old one. One commit makes all of that durable, or nothing of it.
    ///
    /// ```
    /// # let dir = tempfile::tempdir().unwrap();
    /// # let path = dir.path().join("heap");
    /// # {
    /// #     let heap = untorn::heap::Heap::open_or_create(&path)?;
    /// #     let accounts = heap.root_or("accounts", |alloc| untorn::heap::HeapVec::<OldAccount>::new_in(alloc))?;
    /// #     unsafe { (*accounts.as_ptr()).push(OldAccount { cents: 250 }) };
    /// #     heap.commit()?;
    /// # }
    /// use untorn::heap::{Heap, HeapVec, RootOptions, Storable};
    ///
    /// #[derive(Storable)]
    /// #[repr(C)]
    /// struct OldAccount {
    ///     cents: u32,
    /// }
    ///
    /// #[derive(Storable)]
    /// #[repr(C)]
    /// struct Account {
    ///     cents: i64,
    ///     limit: i64,
    /// }
    ///
    /// const VERSION: RootOptions = RootOptions::new().version(2);
    ///
    /// let heap = Heap::open(&path)?;
    /// if let Some(info) = heap.root_info("accounts")?.filter(|info| info.version == 0) {
    ///     let old = info.address.cast::<HeapVec<OldAccount>>();
    ///     let mut new = HeapVec::new_in(heap.allocator());
    ///     // SAFETY: that is what version 0 had there, and nobody else uses it.
    ///     let accounts = unsafe { old.read() };
    ///     new.extend(accounts.iter().map(|account| Account { cents: account.cents.into(), limit: 0 }));
    ///     let place = heap.allocate(std::alloc::Layout::new::<HeapVec<Account>>())?.cast();
    ///     // SAFETY: allocated just now with this layout.
    ///     unsafe { place.write(new) };
    ///     heap.set_root_with("accounts", Some(place), VERSION)?;
    ///     drop(accounts);
    ///     // SAFETY: what was there has just been dropped.
    ///     unsafe { heap.free(old.cast())? };
    ///     heap.commit()?;
    /// }
    /// let accounts = heap.root_with::<HeapVec<Account>>("accounts", VERSION)?.expect("a root");
    /// # assert_eq!(unsafe { accounts.as_ref() }[0].cents, 250);
    /// # assert_eq!(heap.check(&|_, _| {})?.leaks.unwrap().count, 0);
    /// # Ok::<(), untorn::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Corrupt`]: the pointer is not to a place in the heap of that size and alignment.
    pub fn root_info(&self, name: &str) -> Result<Option<RootInfo>> {
        let _roots = self.lock_roots();
        let Some(entry) = self.entry(name)? else { return Ok(None) };
        // SAFETY: as above.
        checked(unsafe { entry.as_ref() }, name, self.memory(), || self.file().path())
    }

    /// Finds a root. `None`: there is no root of that name.
    ///
    /// # Errors
    /// [`Error::LayoutChanged`] if it was set with another type, size, alignment or version: see
    /// [`Heap::migrate_root`].
    pub fn root<T: Storable>(&self, name: &str) -> Result<Option<NonNull<T>>> {
        self.root_with(name, RootOptions::new())
    }

    /// Finds a root whose layout has a version.
    pub fn root_with<T: Storable>(&self, name: &str, options: RootOptions) -> Result<Option<NonNull<T>>> {
        Ok(self.find_root(name, &RootShape::of::<T>(options))?.map(NonNull::cast))
    }

    /// Finds a root of a type that is known only by its shape.
    pub fn find_root(&self, name: &str, wanted: &RootShape<'_>) -> Result<Option<NonNull<u8>>> {
        let _roots = self.lock_roots();
        let Some(entry) = self.entry(name)? else { return Ok(None) };
        // SAFETY: as above.
        found_of(unsafe { entry.as_ref() }, name, wanted, self.memory(), || self.file().path())
    }

    /// Finds a root that earlier versions of the program may have set. `migrate` gets the old object and makes the new
    /// one, and both changes are committed as one. If that fails, the heap is rolled back. `None`: there is no root of
    /// that name.
    ///
    /// Changes that are not committed yet are part of this commit, or are rolled back with it.
    ///
    /// # Safety
    /// The promise of [`Heap::rollback`]: if the migration fails, nothing is used that was allocated or changed since
    /// the last commit. Also, nobody else uses the old object.
    pub unsafe fn migrate_root<'h, T: Storable>(
        &'h self,
        name: &str,
        options: RootOptions,
        migrate: impl FnOnce(RootInfo, InHeap<'h>) -> Result<T>,
    ) -> Result<Option<NonNull<T>>> {
        let migrated = {
            let _mutating = self.mutate();
            let _roots = self.lock_roots();
            let found = self.root_with(name, options);
            let (Err(Error::LayoutChanged { .. }), Some(old)) = (&found, self.root_info(name)?) else { return found };
            migrate(old, self.allocator()).and_then(|new| {
                let place = self.put_in(new)?;
                self.set_root_with(name, Some(place), options)?;
                Ok(Some(place))
            })
        };
        match migrated {
            Ok(_) => self.commit()?,
            Err(_) => self.roll_back()?,
        }
        migrated
    }

    /// Moves a value into the heap.
    fn put_in<T: Storable>(&self, what: T) -> Result<NonNull<T>> {
        let place = self.allocate(Layout::new::<T>())?.cast::<T>();
        // SAFETY: allocated just now with this layout.
        unsafe { place.write(what) };
        self.mark_dirty(place.as_ptr().cast(), size_of::<T>())?;
        Ok(place)
    }

    /// Sets a root, or removes it.
    pub fn set_root<T: Storable>(&self, name: &str, to: Option<NonNull<T>>) -> Result<()> {
        self.set_root_with(name, to, RootOptions::new())
    }

    /// Sets a root whose layout has a version, or removes it.
    pub fn set_root_with<T: Storable>(&self, name: &str, to: Option<NonNull<T>>, options: RootOptions) -> Result<()> {
        self.put_root(name, to.map(NonNull::cast), &RootShape::of::<T>(options))
    }

    /// Refuses to set a root within a section: all threads share the table of roots, so a section could not undo its
    /// own changes of it alone.
    fn check_no_section(&self, name: &str) -> Result<()> {
        match section_of(self.downgrade().opening()) {
            Some(_) => Err(Error::invalid(format!(
                "the root {name:?} cannot be set within a section, because a section cannot undo this. Set the root \
                 before the section, to an object with a pointer, and change only that pointer in sections"
            ))),
            None => Ok(()),
        }
    }

    /// Sets a root of a type that is known only by its shape, or removes it.
    ///
    /// # Errors
    /// [`Error::Invalid`]: a wrong name, an address out of the heap or not aligned, too many roots; or this thread is
    /// in a section of the heap, which could not undo it.
    pub fn put_root(&self, name: &str, to: Option<NonNull<u8>>, shape: &RootShape<'_>) -> Result<()> {
        let _held = self.hold_cuts();
        let _roots = self.lock_roots();
        self.check_no_section(name)?;
        let old = self.entry(name)?;
        // SAFETY: an all-zero entry is an unused one.
        let mut new: RootEntry = unsafe { std::mem::zeroed() };
        if let Some(to) = to {
            if !holds(self.memory(), to, shape.layout.size() as u64) {
                return Err(Error::invalid(format!("the root {name:?} would point out of the heap")));
            }
            if !(to.as_ptr() as usize).is_multiple_of(shape.layout.align()) {
                let align = shape.layout.align();
                return Err(Error::invalid(format!("the root {name:?} would not be aligned to {align} bytes: {to:p}")));
            }
            let most = shape.type_name.len().min(new.type_name.len());
            let cut = (0..=most).rev().find(|at| shape.type_name.is_char_boundary(*at)).unwrap_or(0);
            new.name[..name.len()].copy_from_slice(name.as_bytes());
            new.type_name[..cut].copy_from_slice(&shape.type_name.as_bytes()[..cut]);
            new.size = shape.layout.size() as u64;
            new.align = shape.layout.align() as u32;
            new.version = shape.version;
            new.fingerprint = shape.fingerprint();
            new.pointer = to.as_ptr() as u64;
        }
        // SAFETY: as above.
        let free = || (0..ROOTS).map(|i| unsafe { self.entries().add(i) }).find(|e| unsafe { e.as_ref().name[0] == 0 });
        let entry = match (old, to) {
            (Some(entry), _) => entry,
            (None, None) => return Ok(()),
            (None, Some(_)) => free().ok_or_else(|| Error::invalid(format!("a heap has at most {ROOTS} roots")))?,
        };
        own_pages::unlock(&self.body().map, ROOT_PAGES)?;
        // SAFETY: an entry of the table, which the guard keeps from being committed half-written.
        let changed = self
            .downgrade()
            .change_whole(entry.as_ptr().cast(), size_of::<RootEntry>(), || unsafe { entry.write(new) });
        let marked = self.mark_dirty(entry.as_ptr().cast(), size_of::<RootEntry>());
        own_pages::lock(&self.body().map, ROOT_PAGES);
        changed.and(marked)
    }

    /// Calls `work` while other threads that find or set roots wait, and commits, too. So looking up a root and acting
    /// on the result are one step, as in [`Heap::root_or`]. `work` must not wait for a thread that may use roots.
    ///
    /// # Errors
    /// [`Error::Forked`]; `work` was not called.
    pub fn with_roots<R>(&self, work: impl FnOnce() -> R) -> Result<R> {
        // In a forked child the locks may be held for ever.
        self.body().file.store.life.check_fork()?;
        let _held = self.hold_cuts();
        let _roots = self.lock_roots();
        Ok(work())
    }

    /// Finds a root, or creates it: `make` gets the heap's allocator, and its result is moved into the heap. Other
    /// threads that use roots wait meanwhile. Within a section of a live heap no root is created: [`Error::Invalid`].
    pub fn root_or<'h, T: Storable>(&'h self, name: &str, make: impl FnOnce(InHeap<'h>) -> T) -> Result<NonNull<T>> {
        self.root_or_with(name, RootOptions::new(), make)
    }

    /// Finds a root whose layout has a version, or creates it.
    pub fn root_or_with<'h, T: Storable>(
        &'h self,
        name: &str,
        options: RootOptions,
        make: impl FnOnce(InHeap<'h>) -> T,
    ) -> Result<NonNull<T>> {
        self.with_roots(|| {
            if let Some(found) = self.root_with(name, options)? {
                return Ok(found);
            }
            self.check_no_section(name)?;
            let place = self.put_in(make(self.allocator()))?;
            self.set_root_with(name, Some(place), options)?;
            Ok(place)
        })?
    }
}
