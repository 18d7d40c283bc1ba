//! Untorn's own directory in a store: who may use it, who owns it now, and how it comes to be.
//!
//! ```text
//! .untorn/                0700, beside the data (or `foo.db.untorn/` for a lone file)
//!     lock                the owner holds a lock on it and writes its process id in it; never removed
//!     journal/            header, segment.N, extent.X
//!     journal.new/        a journal being made: of no meaning, removed by the next owner
//!     held.N/             a journal set aside for files that could not be served
//! ```

use crate::error::{Context, Error, Result};
use crate::format::{BLOCK_BYTES, HEADER_SLOTS, Header, StoreId, crc64};
use std::ffi::OsString;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use untorn_os::{AlignedBuf, File, Kind, Open, Step, Storage, read_full_at, write_all_at};

/// Name of Untorn's directory in a store.
pub const HOME: &str = ".untorn";

/// Where a store keeps what is Untorn's, relative to the storage's root.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Home {
    /// `.untorn`, or `foo.db.untorn`.
    pub dir: PathBuf,
    /// The one file of a lone store.
    pub lone: Option<PathBuf>,
}

impl Home {
    /// A directory with many files.
    pub fn of_directory() -> Home {
        Home { dir: HOME.into(), lone: None }
    }

    /// One file, by its name in its directory.
    pub fn of_file(name: &Path) -> Home {
        let mut dir: OsString = name.as_os_str().to_owned();
        dir.push(HOME);
        Home { dir: dir.into(), lone: Some(name.to_owned()) }
    }

    /// The lock file.
    pub fn lock_file(&self) -> PathBuf {
        self.dir.join("lock")
    }

    /// The journal.
    pub fn journal(&self) -> PathBuf {
        self.dir.join("journal")
    }

    fn journal_new(&self) -> PathBuf {
        self.dir.join("journal.new")
    }

    /// A journal that is set aside.
    pub fn held(&self, session: u64) -> PathBuf {
        self.dir.join(format!("held.{session:016x}"))
    }

    /// All journals that are set aside.
    pub fn all_held(&self, storage: &dyn Storage) -> Result<Vec<PathBuf>> {
        let names = storage.list(&self.dir).context("list", &self.dir)?;
        let mut held: Vec<PathBuf> =
            names.iter().filter(|n| n.to_string_lossy().starts_with("held.")).map(|n| self.dir.join(n)).collect();
        held.sort();
        Ok(held)
    }

    /// The directory is ours to trust: a real directory, of the effective user or root, closed to
    /// others. False: there is none.
    pub fn check_trust(&self, storage: &dyn Storage) -> Result<bool> {
        let meta = match storage.stat(&self.dir) {
            Ok(meta) => meta,
            Err(e) if e.kind() == ErrorKind::NotFound => return Ok(false),
            Err(e) => return Err(Error::io("look at", &self.dir, e)),
        };
        let untrusted = |detail: String| Err(Error::Untrusted { path: self.dir.clone(), detail });
        let user = storage.effective_user();
        if meta.kind != Kind::Directory {
            return untrusted("it is not a directory; somebody put something else in its place. Remove it".into());
        }
        if meta.uid != user && meta.uid != 0 {
            return untrusted(format!(
                "it belongs to user {}, and this process runs as user {user}; run as user {}, or remove it if it is not wanted",
                meta.uid, meta.uid
            ));
        }
        if meta.mode & 0o077 != 0 {
            return untrusted(format!(
                "its mode {:04o} lets others in; if you know why, `chmod 700` it and open again",
                meta.mode
            ));
        }
        Ok(true)
    }

    /// Only the data's owner makes a store.
    fn check_may_create(&self, storage: &dyn Storage) -> Result<()> {
        let user = storage.effective_user();
        let (data, owner) = match &self.lone {
            Some(file) => match storage.stat(file) {
                Ok(meta) => (file.clone(), meta.uid),
                Err(e) if e.kind() == ErrorKind::NotFound => return Ok(()),
                Err(e) => return Err(Error::io("look at", file, e)),
            },
            None => (PathBuf::from("."), storage.stat(Path::new("")).context("look at", ".")?.uid),
        };
        if owner != user {
            return Err(Error::Untrusted {
                path: data,
                detail: format!(
                    "it belongs to user {owner}, and this process runs as user {user}; only the owner makes a store (run as user {owner}, with `setpriv` or `sudo -u`)"
                ),
            });
        }
        Ok(())
    }
}

/// The store is ours: dropping this gives it up.
pub struct Ownership {
    lock: Arc<dyn File>,
    /// The owner before did not release the store: it was killed, or a step of its close failed.
    pub unclean: bool,
}

impl Ownership {
    /// Gives the store up after everything of it was flushed, and says so to the next owner, who then
    /// has nothing to flush. What becomes of this note in a power cut does not matter: after one, cache
    /// and disk are the same.
    pub fn release(self) {
        // A note that cannot be left costs the next owner some flushes.
        let _ = self.lock.set_len(0);
    }
}

/// Takes ownership, making Untorn's directory if there is none and `create` says so.
pub fn own(storage: &dyn Storage, home: &Home, create: bool, wait: bool) -> Result<Ownership> {
    if !home.check_trust(storage)? {
        if !create {
            return Err(Error::io("open the store in", &home.dir, ErrorKind::NotFound.into()));
        }
        home.check_may_create(storage)?;
        match storage.mkdir(&home.dir, 0o700) {
            Err(e) if e.kind() != ErrorKind::AlreadyExists => return Err(Error::io("make", &home.dir, e)),
            _ => {}
        }
        if !home.check_trust(storage)? {
            return Err(Error::io("make", &home.dir, ErrorKind::NotFound.into()));
        }
    }
    let path = home.lock_file();
    // Another opener may be ejecting the store: what we locked must still be what the name says.
    for _ in 0..1000 {
        let file = open_lock_file(storage, &path)?;
        if !take(storage, &*file, wait).context("lock", &path)? {
            return Err(Error::Busy { path: home.dir.clone(), pid: read_pid(&*file) });
        }
        let locked = file.meta().context("look at", &path)?;
        if storage.stat(&path).is_ok_and(|named| named.inode == locked.inode && locked.links > 0) {
            let unclean = locked.size > 0;
            let pid = format!("{}\n", std::process::id());
            // Never empty in between: that would be the note of a clean release.
            write_all_at(&*file, pid.as_bytes(), 0).context("write", &path)?;
            file.set_len(pid.len() as u64).context("write", &path)?;
            return Ok(Ownership { lock: file, unclean });
        }
    }
    Err(Error::Busy { path: home.dir.clone(), pid: None })
}

/// Locks. A child that a process is just spawning holds copies of its locks until it executes its
/// program, also of a store that was closed: such a lock is worth a moment's patience.
fn take(storage: &dyn Storage, file: &dyn File, wait: bool) -> io::Result<bool> {
    for _ in 0..20 {
        if file.lock(wait)? {
            return Ok(true);
        }
        if read_pid(file).is_some_and(|owner| owner != std::process::id()) {
            break;
        }
        storage.pause();
    }
    Ok(false)
}

fn open_lock_file(storage: &dyn Storage, path: &Path) -> Result<Arc<dyn File>> {
    let mut last = io::Error::from(ErrorKind::NotFound);
    for _ in 0..1000 {
        for how in [Open::WRITE, Open::create(0o600)] {
            match storage.open(path, how) {
                Ok(file) if file.meta().context("look at", path)?.kind == Kind::File => return Ok(file),
                Ok(_) => return Err(Error::Foreign { path: path.to_owned(), detail: "it is not a file".into() }),
                Err(e) if matches!(e.kind(), ErrorKind::NotFound | ErrorKind::AlreadyExists) => last = e,
                Err(e) => return Err(Error::io("open", path, e)),
            }
        }
    }
    Err(Error::io("open", path, last))
}

/// The process that wrote itself into a lock file.
pub fn read_pid(lock: &dyn File) -> Option<u32> {
    let mut text = [0; 16];
    let n = read_full_at(lock, &mut text, 0).ok()?;
    std::str::from_utf8(&text[..n]).ok()?.trim().parse().ok()
}

/// What a new journal starts from.
pub struct Birth {
    /// The store; drawn at random for a new one.
    pub store: StoreId,
    /// The last commit of the journal before it.
    pub through: u64,
    /// Its checksum.
    pub through_crc: u64,
    /// Its header's generation.
    pub generation: u64,
    /// Bytes of the first segment.
    pub segment_bytes: u64,
    /// Whether to wait for the disk.
    pub durable: bool,
}

/// Makes an empty journal. Whatever crash interrupts it, the next owner finds none or a whole one.
pub fn create_journal(storage: &dyn Storage, home: &Home, birth: &Birth) -> Result<()> {
    let new = home.journal_new();
    remove_tree(storage, &new)?;
    storage.mkdir(&new, 0o700).context("make", &new)?;
    let header = Header {
        store: birth.store,
        generation: birth.generation + 1,
        through: birth.through,
        through_crc: birth.through_crc,
        clean: true,
        start_segment: 0,
        start_crc: crc64(&[0; BLOCK_BYTES]),
        boot: None,
        session: 0,
    };
    let path = new.join("header");
    let file = storage.open(&path, Open::create(0o600)).context("create", &path)?;
    let mut slots = vec![0; BLOCK_BYTES * HEADER_SLOTS as usize];
    let at = BLOCK_BYTES * (header.generation % HEADER_SLOTS) as usize;
    slots[at..at + BLOCK_BYTES].copy_from_slice(&header.encode());
    write_all_at(&*file, &slots, 0).context("write", &path)?;
    if birth.durable {
        file.sync_all(Step::CreateContents).context("flush", &path)?;
    }
    create_segment(storage, &new, 0, birth.segment_bytes, birth.durable, Step::CreateContents)?;
    if birth.durable {
        storage.sync_dir(&new, Step::CreateEntries).context("flush", &new)?;
    }
    let journal = home.journal();
    storage.rename(&new, &journal, false).context("rename to", &journal)?;
    if birth.durable {
        storage.sync_dir(&home.dir, Step::CreateName).context("flush", &home.dir)?;
        storage.sync_dir(Path::new(""), Step::CreateStoreName).context("flush", ".")?;
    }
    Ok(())
}

/// The name of a segment.
pub fn segment_name(index: u32) -> String {
    format!("segment.{index}")
}

/// The index of a segment's name.
pub fn segment_index(name: &str) -> Option<u32> {
    let digits = name.strip_prefix("segment.")?;
    let index = digits.parse().ok()?;
    (segment_name(index) == name).then_some(index)
}

/// Makes a segment: written whole, so that a commit's flush finds no metadata to write. The caller
/// syncs the directory.
pub fn create_segment(
    storage: &dyn Storage,
    journal: &Path,
    index: u32,
    bytes: u64,
    durable: bool,
    step: Step,
) -> Result<Arc<dyn File>> {
    let path = journal.join(segment_name(index));
    let how = Open::create(0o600);
    let file = storage.open(&path, if durable { how.direct() } else { how }).context("create", &path)?;
    let fill = || -> io::Result<()> {
        file.allocate(0, bytes)?;
        let zeros = AlignedBuf::zeroed((bytes as usize).min(1 << 20));
        let mut at = 0;
        while at < bytes {
            let n = zeros.len().min((bytes - at) as usize);
            write_all_at(&*file, &zeros[..n], at)?;
            at += n as u64;
        }
        if durable { file.sync_data(step) } else { Ok(()) }
    };
    if let Err(e) = fill() {
        // A segment that is not whole has no use; its name may stay if even this fails.
        let _ = storage.unlink(&path);
        return Err(Error::io("write", &path, e));
    }
    Ok(file)
}

/// Removes a directory of Untorn's own and all in it; nothing happens if there is none.
pub fn remove_tree(storage: &dyn Storage, dir: &Path) -> Result<()> {
    let names = match storage.list(dir) {
        Ok(names) => names,
        Err(e) if e.kind() == ErrorKind::NotFound => return Ok(()),
        Err(e) => return Err(Error::io("list", dir, e)),
    };
    for name in names {
        let path = dir.join(name);
        if storage.stat(&path).context("look at", &path)?.kind == Kind::Directory {
            remove_tree(storage, &path)?;
        } else {
            storage.unlink(&path).context("remove", &path)?;
        }
    }
    storage.rmdir(dir).context("remove", dir)
}
