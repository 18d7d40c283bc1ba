//! Inspects and repairs a store by its path, without handles of files.

use crate::admin::inspection::{inspect_on, owner};
use crate::admin::leave::take_out;
use crate::admin::unneeded::{remove_store_dir, remove_unneeded, standalone_store};
use crate::engine::files::file_state::check_kind;
use crate::engine::handles::store::Store;
use crate::engine::lifecycle::open_store::OpenStore;
use crate::engine::lifecycle::status::{Quarantined, Recovered};
use crate::engine::options::{Readers, StoreOptions};
use crate::engine::paths::error_paths::error_in_store;
use crate::heap::handle::pointers;
use crate::heap::image::check::{Checker, HeapImage};
use crate::heap::live::memory_file::Identity;
use crate::heap::live::outlook::{Named, outlook};
use crate::heap::live::{self, LiveMemoryFound};
use crate::heap::log::live_head::START_BYTES;
use crate::heap::{Heap, HeapOptions, HeapReport, LiveOutlook};
use crate::reader::locate_store::locate;
use std::io::{ErrorKind, Read};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use untorn_journal::commits::overlay::{Overlay, read_through};
use untorn_journal::data_files::data_tree::TreeFile;
use untorn_journal::data_files::detach::detach;
use untorn_journal::data_files::locate::Location;
use untorn_journal::directories::store_dir::StoreDir;
use untorn_journal::format::{Attribute, AttributeFound, hex};
use untorn_journal::scanning::scan::read_header;
use untorn_journal::slots::slot_dir::SlotDir;
use untorn_journal::undo::index::NAMES_DIR;
use untorn_journal::{Context, Error, Result};
use untorn_os::{Access, File, Kind, Linux, Meta, Open, Storage, file_system_id, memory_limit, shown_by};

pub use crate::admin::adopt::{Adoption, adopt};
pub use crate::admin::inspection::{Inspection, PendingFile, RecordInfo, inspect};
pub use crate::admin::leave::{FileMark, file_mark, is_plain};
pub use crate::admin::slots::{SlotInfo, check_kept_log};
pub use crate::engine::lifecycle::left_marks::LeftMark;
pub use crate::heap::handle::last_cut::{Candidate, Rescued};
pub use crate::reader::lost::{LostFile, accept_lost, lost_files};

/// Store options for recovery with these options.
fn open_options(options: &RecoverOptions) -> StoreOptions {
    StoreOptions::new()
        .wait(options.wait)
        .accept_unknown(options.accept_unknown)
        .salvage(options.salvage)
        .redo(true)
        .background(false)
}

/// Opens the store at a path for maintenance and recovers it, whether it is a directory or a standalone file.
pub fn open(path: &Path, options: &RecoverOptions, progress: &dyn Fn(u64, u64)) -> Result<Store> {
    let (storage, store_dir) = locate(path)?;
    Ok(Store { open: OpenStore::open(storage, store_dir, path.to_owned(), &open_options(options), progress)? })
}

/// Checks a heap without changing a byte and without owning its store. If its program was killed, checks the state to
/// which recovery would bring the heap. Everything in the heap is read, and leaks are found.
///
/// # Errors
/// [`Error::Busy`] if a program has the heap open, because it changes meanwhile. Damage of the heap is in the report.
pub fn check_heap(path: &Path, progress: &dyn Fn(u64, u64)) -> Result<HeapReport> {
    inspect_heap(path, Depth::Leaks, progress)
}

/// Checks a heap like [`check_heap`], and looks for possible pointers out of the heap: numbers in memory that the roots
/// reach, at multiples of eight, that are addresses where Linux puts programs, libraries and stacks. Some may be plain
/// numbers or text.
pub fn check_heap_pointers(path: &Path, progress: &dyn Fn(u64, u64)) -> Result<HeapReport> {
    inspect_heap(path, Depth::Pointers, progress)
}

/// Inspects a heap like [`check_heap`], without searching for leaks, which requires reading everything in it.
pub fn dump_heap(path: &Path, progress: &dyn Fn(u64, u64)) -> Result<HeapReport> {
    inspect_heap(path, Depth::Metadata, progress)
}

/// Frees the memory that no root of a heap reaches, in one commit, and reports it. Like [`crate::heap::Heap::collect`],
/// it does not recognise disguised pointers.
///
/// # Errors
/// [`Error::Busy`]; [`Error::Corrupt`] if the heap is damaged: nothing was freed.
pub fn collect_heap(path: &Path, progress: &dyn Fn(u64, u64)) -> Result<HeapReport> {
    let (_, store_dir, name) = locate_heap(path)?;
    let whole = path.canonicalize().context("look at", path)?;
    let dirty_max = memory_limit().map_or(COLLECT_DIRTY_MAX, |limit| COLLECT_DIRTY_MAX.min(limit.bytes / 2));
    let options = HeapOptions::new().dirty_max(dirty_max);
    let options = options.store(StoreOptions::default().background(false));
    let heap = match store_dir {
        Some(StoreDir { standalone: None, .. }) => {
            let top = whole.ancestors().nth(name.components().count()).unwrap_or(Path::new("/"));
            options.open_in(&open(top, &RecoverOptions::default(), progress)?, &name)?
        }
        _ => options.open(&whole)?,
    };
    let report = heap.free_leaks(progress)?;
    let store = heap.file().store();
    heap.commit()?;
    heap.close()?;
    store.close()?;
    Ok(HeapReport { path: path.to_owned(), ..report })
}

/// Bytes of pages that a collection changes before it drops them, because the heap may be larger than memory.
const COLLECT_DIRTY_MAX: u64 = 1 << 30;

/// The storage with a heap's file, its store if there is one, and its name in the storage.
fn locate_heap(path: &Path) -> Result<(Arc<Linux>, Option<StoreDir>, PathBuf)> {
    let whole = path.canonicalize().context("look at", path)?;
    let (Some(parent), Some(name)) = (whole.parent(), whole.file_name()) else {
        return Err(Error::invalid(format!("{} names no file", path.display())));
    };
    let standalone = StoreDir::of_file(Path::new(name));
    if parent.join(&standalone.dir).exists() {
        return Ok((Linux::open(parent).context("open", parent)?, Some(standalone), name.into()));
    }
    if let Some(top) =
        parent.ancestors().find(|dir| dir.join(untorn_journal::directories::store_dir::STORE_DIR).exists())
    {
        let name = whole.strip_prefix(top).expect("an ancestor");
        return Ok((Linux::open(top).context("open", top)?, Some(StoreDir::of_directory()), name.to_owned()));
    }
    Ok((Linux::open(parent).context("open", parent)?, None, name.into()))
}

/// A heap's file under the unapplied commits of its journal.
struct Recoverable {
    path: PathBuf,
    data: Option<Arc<dyn File>>,
    meta: Option<Meta>,
    overlay: Overlay,
}

impl HeapImage for Recoverable {
    fn bytes(&self) -> Result<u64> {
        Ok(self.overlay.size.unwrap_or(self.meta.map_or(0, |meta| meta.size)))
    }

    fn read(&self, buf: &mut [u8], offset: u64) -> Result<()> {
        let overlays: &[&Overlay] = if self.overlay.is_empty() { &[] } else { &[&self.overlay] };
        read_through(overlays, self.data.as_deref(), buf, offset).map_err(|e| match e {
            Error::Io { action, source, .. } => Error::Io { action, path: self.path.clone(), source },
            e => e,
        })
    }
}

/// How much of a heap is read.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Depth {
    Metadata,
    Leaks,
    Pointers,
}

fn inspect_heap(path: &Path, depth: Depth, progress: &dyn Fn(u64, u64)) -> Result<HeapReport> {
    let (linux, store_dir, name) = locate_heap(path)?;
    let storage: Arc<dyn Storage> = linux;
    let mut file = Recoverable { path: path.to_owned(), data: None, meta: None, overlay: Overlay::default() };
    let mut place = Some(name.clone());
    let mut problems = Vec::new();
    let mut before = None;
    if let Some(store_dir) = &store_dir {
        let (found, mut pending) = inspect_on(path, &storage, store_dir)?;
        if found.unknown_state {
            return Err(Error::UnknownState { path: path.to_owned() });
        }
        free_of_owner(&*storage, store_dir, path)?;
        problems.extend(found.problems.iter().map(|problem| format!("its store: {problem}")));
        before = Some((store_dir, read_header(&*storage, &store_dir.journal())?));
        if let Some(id) = pending.state.files.values().find(|f| f.name.as_deref() == Some(&name)).map(|f| f.id) {
            place = match pending.locations.remove(&id).expect("an outcome for each file")? {
                Location::At(at) => Some(at),
                Location::Absent => None,
            };
            file.overlay = pending.state.files.remove(&id).expect("found just now").overlay;
        }
    }
    if let Some(place) = place {
        let data = storage.open(&place, Open::READ).context("open", path)?;
        let meta = data.meta().context("look at", path)?;
        check_kind(&meta, meta.links, path)?;
        if store_dir.is_none() {
            refuse_pending(&*data, path)?;
        }
        (file.data, file.meta) = (Some(data), Some(meta));
    }
    let mut checker = Checker::new(&file, path, progress)?;
    checker.report.problems.splice(0..0, problems);
    if depth != Depth::Metadata {
        checker.find_leaks(progress)?;
    }
    if depth == Depth::Pointers {
        pointers::guess(&mut checker)?;
    }
    if let Some(meta) = file.meta.filter(|_| depth != Depth::Metadata) {
        checker.report.live = look_at_live(&file, &meta, &*storage, path)?.map(Box::new);
    }
    // A program that opened the heap meanwhile may have changed it during the check.
    if let Some((store_dir, header)) = before {
        free_of_owner(&*storage, store_dir, path)?;
        let now = file.data.as_ref().map(|data| data.meta()).transpose().context("look at", path)?;
        if read_header(&*storage, &store_dir.journal())? != header || now != file.meta {
            return Err(Error::busy(path, None));
        }
    }
    Ok(checker.report)
}

/// The result of the next opening of a heap with the live memory that its file names.
fn look_at_live(heap: &Recoverable, meta: &Meta, storage: &dyn Storage, path: &Path) -> Result<Option<LiveOutlook>> {
    let mut start = [0; START_BYTES];
    heap.read(&mut start, 0)?;
    let boot = storage.boot_id().context("read the boot id for", path)?;
    let file_system = std::fs::File::open(path).ok().and_then(file_system_id);
    let identity = Identity { device: meta.device, inode: meta.inode, file_system };
    let named = Named { path, boot, identity, start: &start };
    Ok(outlook(&named).map(|(found, _)| found))
}

fn free_of_owner(storage: &dyn Storage, store_dir: &StoreDir, path: &Path) -> Result<()> {
    match owner(storage, store_dir) {
        Some(owner) => Err(owner.busy(path)),
        None => Ok(()),
    }
}

/// Refuses a file that was separated from its journal, because it is incomplete.
fn refuse_pending(data: &dyn File, path: &Path) -> Result<()> {
    match Attribute::decode(data.attribute().context("read the attribute of", path)?.as_deref()) {
        AttributeFound::Valid(a) if a.pending => Err(Error::NeedsJournal {
            path: path.to_owned(),
            detail: format!("it belongs to the store {}, which was not closed", hex(&a.store)),
        }),
        _ => Ok(()),
    }
}

/// The users that may read a store besides its owner.
///
/// # Errors
/// Those of [`inspect`].
pub fn readers(path: &Path) -> Result<Readers> {
    let (storage, store_dir) = locate(path)?;
    store_dir.check_may_read(&*storage).map_err(|e| error_in_store(e, path))?;
    Ok(Readers::of(storage.stat(&store_dir.dir).context("look at", path)?.mode))
}

/// Changes the users that may read a store besides its owner, also while a program has it open. Readers keep files that
/// they have already opened. [`Readers`] describes which data this exposes.
///
/// # Errors
/// [`Error::Untrusted`]: the store belongs to another user.
pub fn set_readers(path: &Path, who: Readers) -> Result<()> {
    let (storage, store_dir) = locate(path)?;
    store_dir.check_trust(&*storage).map_err(|e| error_in_store(e, path))?;
    let before = storage.stat(&store_dir.dir).context("look at", path)?.mode;
    let mode = (before & !0o777) | who.dir_mode();
    let set = |dir: &Path| storage.set_dir_mode(dir, mode).context("change the mode of", dir);
    // Access is first removed from the top; when access is added, the top comes last, so that everything below is open
    // by then.
    let is_narrower = mode & 0o077 & before != before & 0o077;
    if is_narrower {
        set(&store_dir.dir)?;
    }
    for name in storage.list(&store_dir.dir).context("list", &store_dir.dir)? {
        let entry = store_dir.dir.join(name);
        // Slots are of consumers that act for the store's user.
        if entry == store_dir.slots() {
            continue;
        }
        let meta = storage.stat(&entry).context("look at", &entry)?;
        match meta.kind {
            // Owners exclude each other by this file, and any user that could read it could lock them out.
            Kind::File if entry == store_dir.owner_file() => {}
            Kind::File => set_shown(&*storage, &entry, mode)?,
            Kind::Directory => {
                // Files that are created in it meanwhile take its permissions.
                set(&entry)?;
                for name in storage.list(&entry).context("list", &entry)? {
                    let inner = entry.join(&name);
                    if entry != store_dir.undo() || name != NAMES_DIR {
                        set_shown(&*storage, &inner, mode)?;
                    } else if is_narrower {
                        // Kept files are data files, whose modes belong to the program. When they were kept, it was not
                        // checked whether their directories exclude the users that get access now.
                        set(&inner)?;
                    }
                }
            }
            _ => {}
        }
    }
    set(&store_dir.dir)
}

fn set_shown(storage: &dyn Storage, path: &Path, dir_mode: u32) -> Result<()> {
    let file = match storage.open(path, Open::READ) {
        // The owner removed it just now.
        Err(e) if e.kind() == ErrorKind::NotFound => return Ok(()),
        done => done.context("open", path)?,
    };
    file.set_mode(0o600 | shown_by(dir_mode)).context("change the mode of", path)
}

/// Options for recovery.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RecoverOptions {
    /// Keep the acceptable part of a damaged journal and move the rest to `untorn-salvage.*` in the store's directory;
    /// files that cannot be redone are taken as they are.
    pub salvage: bool,
    /// Take the files of a class `process` store as they are after a machine crash.
    pub accept_unknown: bool,
    /// Wait for another owner.
    pub wait: bool,
}

/// The results and failures of [`recover`].
#[derive(Clone, Debug, serde::Serialize)]
pub struct Report {
    /// The results of recovery.
    #[serde(flatten)]
    pub recovered: Recovered,
    /// Files that could not be redone.
    pub quarantined: Vec<Quarantined>,
    /// Files that wait for commits in journals that are not here.
    pub lost_files: Vec<LostFile>,
    /// Files that may keep marks of programs that did not close the store.
    pub left_marks: Vec<LeftMark>,
    /// Files that keep the attribute `user.untorn` after [`eject`], and directories that it cannot read. The attribute
    /// is harmless.
    #[serde(serialize_with = "crate::engine::paths::path_text::paths")]
    pub kept: Vec<PathBuf>,
    /// The slots that [`eject`] has dropped with the store.
    pub dropped_slots: Vec<String>,
}

/// Recovers a store and closes it: data files are then plain and complete.
pub fn recover(path: &Path, options: &RecoverOptions, progress: &dyn Fn(u64, u64)) -> Result<Report> {
    let once = || -> Result<_> {
        let store = open(path, options, progress)?;
        let status = store.status();
        let left_marks = store.open.clear_all_marks()?;
        store.close()?;
        Ok((status.recovered, status.quarantined, left_marks))
    };
    let (mut recovered, mut quarantined, mut left_marks) = once()?;
    if options.salvage && !quarantined.is_empty() {
        // The first opening quarantines the journal of files that cannot be redone; the second one archives it.
        let again = once()?;
        (quarantined, left_marks) = (again.1, again.2);
        recovered.salvaged.extend(again.0.salvaged);
        recovered.notes.extend(again.0.notes);
    }
    let lost_files = lost_files(path).unwrap_or_default();
    let (kept, dropped_slots) = (Vec::new(), Vec::new());
    Ok(Report { recovered, quarantined, lost_files, left_marks, kept, dropped_slots })
}

/// The working memory of live heaps of all users, as far as this user can see it.
pub fn live_memories() -> Vec<Candidate> {
    crate::heap::handle::last_cut::candidates()
}

/// Makes the last cut of the live heap with this memory: for a dead process, or by asking the process, which has `wait`
/// to answer. The memory stays. Also returns the path of the heap's file, if that is known.
pub fn rescue(memory: &Path, wait: Duration) -> Result<(Option<PathBuf>, Rescued)> {
    crate::heap::handle::last_cut::rescue(memory, wait)
}

/// Removes a live memory whose heap's file is not found. Only for callers that know that the file was removed, and not
/// moved. Returns `None` if the file is found, or exists elsewhere, or a program uses the memory.
pub fn remove_lost_live_memory(memory: &Path) -> Result<Option<Rescued>> {
    crate::heap::handle::last_cut::remove_lost(memory)
}

/// Recovers a store, then removes everything of Untorn's, so that plain files remain. Refused while a file waits for
/// commits that could not be applied.
pub fn eject(path: &Path, progress: &dyn Fn(u64, u64)) -> Result<Report> {
    let (storage, store_dir) = locate(path)?;
    let slots = SlotDir::all(&*storage, &store_dir)?.into_iter().map(|slot| slot.name).collect();
    if let Some(lost) = lost_files(path)?.first() {
        let detail = format!("it waits for commits in the journal of store {}", lost.store_id);
        return Err(Error::NeedsJournal { path: lost.path.clone(), detail });
    }
    prove_removal(&*storage, &store_dir, path)?;
    bring_in_live_memory(path, &store_dir, progress)?;
    let store = open(path, &RecoverOptions::default(), progress)?;
    let status = store.status();
    if let Some(q) = status.quarantined.first() {
        return Err(Error::Conflict {
            path: q.path.clone(),
            detail: format!(
                "it has commits that are only in the journal, so the journal must stay ({}). The other files are whole, and \
                 nothing was removed; once the cause is gone, eject again. `untorn check` says what else can be done",
                why(q)
            ),
        });
    }
    let refused = |path: &Path, reason: &str| Error::Conflict {
        path: path.to_owned(),
        detail: format!(
            "it may need the journal that would be removed, and it cannot be changed ({reason}). The journal was not \
             removed; remove the cause, and eject again"
        ),
    };
    if let Some(left) = store.open.clear_all_marks()?.first() {
        return Err(refused(&left.path, &left.reason));
    }
    // Readers that hold a commit need files that are removed now.
    store.open.end_readers()?;
    let mut moved = None;
    let mut kept = detach(&*storage, &store_dir, &mut |file, a| {
        let is_data = matches!(file, TreeFile::Data(_));
        let is_ours = a.store == store.open.store_id;
        if is_ours && a.pending && is_data {
            moved.get_or_insert_with(|| file.path().to_owned());
        }
        is_ours && !(a.pending && is_data)
    });
    if let Some(path) = moved {
        return Err(refused(
            &path,
            "it was moved or copied while it waited for commits; `untorn recover` says what to do",
        ));
    }
    if let Some(at) = kept.iter().position(|one| one.path == Path::new("")) {
        return Err(Error::io("list", path, kept.remove(at).error));
    }
    remove_store_dir(&*storage, &store_dir)?;
    // Nothing is left to close, neither journal nor lock file.
    store.open.forget();
    Ok(Report {
        recovered: status.recovered,
        quarantined: Vec::new(),
        lost_files: Vec::new(),
        left_marks: Vec::new(),
        kept: kept.into_iter().map(|one| one.path).collect(),
        dropped_slots: slots,
    })
}

/// Recovers the store of a directory, and takes the file `name` out of it: the file is plain, and no longer the store's.
/// Returns the results of recovery, and whether other files are the store's.
///
/// # Errors
/// [`Error::NeedsJournal`]: the file waits for commits that could not be applied.
pub fn leave(path: &Path, name: &Path, progress: &dyn Fn(u64, u64)) -> Result<(Report, bool)> {
    let report = recover(path, &RecoverOptions::default(), progress)?;
    Ok((report, take_out(path, name)?))
}

/// Replaces the contents of `path` by everything that `from` yields; returns the bytes written.
///
/// After a crash at any point, the file holds its old contents, or all of the new ones; on return it durably holds the
/// new ones. Mode, owner, ACL, extended attributes and flags (`lsattr`) are kept; if that is impossible, nothing is
/// changed and the error says why. A missing file is created, with mode 0666 less the umask.
///
/// A symbolic link is followed: the file that it names is replaced and the link stays. Directories and devices are
/// refused, and so are files that this user may not write, and files with several hard links, which a replacement would
/// separate.
///
/// `from` is read only after the file was found to be replaceable.
///
/// An error of `from` leaves everything as it is. Replacements of one file, and those of files of one store, wait for
/// each other. The temporary file of a killed replacement is removed by the next replacement of that file.
pub fn put(path: &Path, from: &mut dyn Read) -> Result<u64> {
    let is_gone = path.symlink_metadata().is_err_and(|e| e.kind() == ErrorKind::NotFound);
    // To create a file in the store that a removed file left would be a commit before that of the contents.
    if is_gone && matches!(standalone_store(path), Ok(Some(_))) && !remove_unneeded(path)? {
        // The commits that wait may be those of a moved file; then this does nothing.
        let _ = recover(path, &RecoverOptions::default(), &|_, _| ());
    }
    crate::admin::put::put(path, from)
}

/// Replaces the contents of several files of one store, all or none: each file gets everything that its reader yields.
/// Returns the bytes written. Files are named by their paths in the store's directory. Missing files are created, with
/// mode 0666 less the umask; so is the store, which is removed again if the replacement is refused.
///
/// An error of one reader leaves all files as they are. Replacements in one store wait for each other.
pub fn put_files(store: &Path, files: &mut [(PathBuf, Box<dyn Read + '_>)]) -> Result<u64> {
    let is_new = !store.exists();
    crate::admin::put::put_files(store, files, &|| {
        // If this fails, an empty store remains.
        let _ = eject(store, &|_, _| {});
        if is_new {
            let _ = std::fs::remove_dir(store);
        }
    })
}

/// Commits the working memory of live heaps, like their next opening, and removes it.
fn bring_in_live_memory(path: &Path, store_dir: &StoreDir, progress: &dyn Fn(u64, u64)) -> Result<()> {
    let found = live::memories(path);
    if found.is_empty() {
        return Ok(());
    }
    let options = HeapOptions::new().store(StoreOptions::default().background(false));
    let bring_in = |heap: Result<Heap>, one: &LiveMemoryFound| match heap {
        Ok(heap) => heap.close(),
        // The memory belonged to another file, which had the same inode number before.
        Err(Error::Foreign { .. }) => live::forget(one),
        Err(e) => Err(e),
    };
    if store_dir.standalone.is_some() {
        return found.iter().try_for_each(|one| bring_in(options.open(path), one));
    }
    let store = open(path, &RecoverOptions::default(), progress)?;
    found.iter().try_for_each(|one| bring_in(options.open_in(&store, &one.path), one))?;
    store.close()
}

/// Checks that the store directory can be removed, before anything is changed.
fn prove_removal(storage: &dyn Storage, store_dir: &StoreDir, path: &Path) -> Result<()> {
    let Err(e) = storage.check_access(&store_dir.dir, Access::Remove) else { return Ok(()) };
    let within = match store_dir.standalone {
        Some(_) => path.parent().filter(|dir| !dir.as_os_str().is_empty()).unwrap_or(Path::new(".")),
        None => path,
    };
    let is_owner = storage.stat(Path::new("")).is_ok_and(|meta| meta.uid == storage.effective_user());
    let advice = match is_owner && e.kind() == ErrorKind::PermissionDenied {
        true => format!("`chmod u+w {}`, and eject again", within.display()),
        false => "remove the cause, and eject again".to_owned(),
    };
    let detail = format!("{} in it cannot be removed: {e}. Nothing was changed; {advice}", store_dir.dir.display());
    Err(Error::Unsupported { path: within.to_owned(), detail })
}

/// Why a file is quarantined, without its name and without text that the surrounding error has anyway.
fn why(q: &Quarantined) -> &str {
    let name = format!("{}: ", q.path.display());
    let reason = q.reason.strip_prefix(&name).unwrap_or(&q.reason);
    reason.strip_suffix(". Nothing was overwritten").unwrap_or(reason)
}
