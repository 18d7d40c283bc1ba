//! One state of the whole disk: inodes, directories, contents.
//!
//! An image is copied for every crash point and for every outcome of a power cut, so everything in
//! it is shared until it is written to: the inode table, each inode, and each page of contents.

use std::ffi::OsStr;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, LazyLock};

/// The unit that a device writes completely or not at all.
pub(crate) const SECTOR_BYTES: usize = 512;
/// The unit in which images share contents.
pub(crate) const PAGE_BYTES: usize = 4096;
pub(crate) const SECTORS_PER_PAGE: u32 = (PAGE_BYTES / SECTOR_BYTES) as u32;

/// The index of an inode in the table. Unlike [`Inode::number`] it is not reused while anything refers to it.
pub(crate) type Slot = u32;
pub(crate) const ROOT: Slot = 0;
pub(crate) type Name = Arc<OsStr>;

/// Scrambles 64 bits (the finaliser of splitmix64); every hash and random number here uses it.
pub(crate) fn mix(mut x: u64) -> u64 {
    x = x.wrapping_add(0x9e37_79b9_7f4a_7c15);
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

/// A hash for comparing images within one run of the laboratory only.
pub(crate) fn hash_bytes(bytes: &[u8], seed: u64) -> u64 {
    // Four lanes keep the multiplier busy; a page takes about a tenth of a microsecond.
    let mut lanes = [seed ^ 1, seed ^ 2, seed ^ 3, seed ^ 4];
    let (blocks, rest) = bytes.as_chunks::<32>();
    for block in blocks {
        for (lane, word) in lanes.iter_mut().zip(block.as_chunks::<8>().0) {
            *lane = (*lane ^ u64::from_le_bytes(*word)).wrapping_mul(0x9fb2_1c65_1e98_df25).rotate_left(29);
        }
    }
    let mut hash = mix(bytes.len() as u64 ^ seed);
    for lane in lanes {
        hash = mix(hash ^ lane);
    }
    for &byte in rest {
        hash = (hash ^ byte as u64).wrapping_mul(0x9fb2_1c65_1e98_df25).rotate_left(29);
    }
    mix(hash)
}

/// A hash that is computed once, and dropped on change. Zero: not computed.
#[derive(Default)]
struct Cached(AtomicU64);

impl Cached {
    fn get(&self, compute: impl FnOnce() -> u64) -> u64 {
        match self.0.load(Relaxed) {
            0 => {
                let hash = compute().max(1);
                self.0.store(hash, Relaxed);
                hash
            }
            hash => hash,
        }
    }
}

impl Clone for Cached {
    fn clone(&self) -> Cached {
        Cached(AtomicU64::new(self.0.load(Relaxed)))
    }
}

/// 4 KiB of contents.
#[derive(Clone)]
pub(crate) struct Page {
    bytes: [u8; PAGE_BYTES],
    hash: Cached,
}

/// The page of every reserved block (allocated and never written), recognised by its address.
pub(crate) static RESERVED: LazyLock<Arc<Page>> =
    LazyLock::new(|| Arc::new(Page { bytes: [0; PAGE_BYTES], hash: Cached::default() }));

impl Page {
    pub fn zeroed() -> Arc<Page> {
        Arc::new(Page { bytes: [0; PAGE_BYTES], hash: Cached::default() })
    }

    pub fn bytes(&self) -> &[u8; PAGE_BYTES] {
        &self.bytes
    }

    /// The page for writing, copied first if another image shares it.
    pub fn bytes_mut(page: &mut Arc<Page>) -> &mut [u8; PAGE_BYTES] {
        let page = Arc::make_mut(page);
        page.hash = Cached::default();
        &mut page.bytes
    }
}

/// `None` is a hole.
pub(crate) type Pages = Vec<Option<Arc<Page>>>;

#[derive(Clone)]
pub(crate) enum Body {
    File {
        size: u64,
        pages: Pages,
    },
    /// Sorted by name.
    Directory(Vec<(Name, Slot)>),
    Symlink,
}

#[derive(Clone)]
pub(crate) struct Inode {
    pub body: Body,
    /// The inode number of `stat`. Reused at once, as on ext4.
    pub number: u64,
    pub mode: u32,
    pub uid: u32,
    pub gid: u32,
    pub mtime_ns: i128,
    pub links: u32,
    pub attribute: Option<Arc<[u8]>>,
    hash: Cached,
}

impl Inode {
    pub fn new(body: Body, number: u64, mode: u32, owner: u32, mtime_ns: i128) -> Arc<Inode> {
        let hash = Cached::default();
        Arc::new(Inode { body, number, mode, uid: owner, gid: owner, mtime_ns, links: 1, attribute: None, hash })
    }

    pub fn empty_file() -> Body {
        Body::File { size: 0, pages: Vec::new() }
    }

    pub fn size(&self) -> u64 {
        match &self.body {
            Body::File { size, .. } => *size,
            _ => 0,
        }
    }

    pub fn pages(&self) -> &[Option<Arc<Page>>] {
        match &self.body {
            Body::File { pages, .. } => pages,
            _ => &[],
        }
    }

    pub fn pages_mut(&mut self) -> &mut Pages {
        match &mut self.body {
            Body::File { pages, .. } => pages,
            _ => unreachable!("contents of something that is no file"),
        }
    }

    pub fn entries(&self) -> &[(Name, Slot)] {
        match &self.body {
            Body::Directory(entries) => entries,
            _ => &[],
        }
    }

    pub fn is_directory(&self) -> bool {
        matches!(self.body, Body::Directory(_))
    }

    pub fn page(&self, index: u32) -> Option<&Arc<Page>> {
        self.pages().get(index as usize)?.as_ref()
    }

    pub fn set_page(&mut self, index: u32, page: Option<Arc<Page>>) {
        let pages = self.pages_mut();
        if pages.len() <= index as usize {
            if page.is_none() {
                return;
            }
            pages.resize(index as usize + 1, None);
        }
        pages[index as usize] = page;
    }

    /// The bytes of a page for writing; a hole is filled with zeros first.
    pub fn page_bytes_mut(&mut self, index: u32) -> &mut [u8; PAGE_BYTES] {
        let pages = self.pages_mut();
        if pages.len() <= index as usize {
            pages.resize(index as usize + 1, None);
        }
        Page::bytes_mut(pages[index as usize].get_or_insert_with(Page::zeroed))
    }

    /// Sets the size; bytes behind it are dropped, so that they read as zeros if the file grows again.
    pub fn set_size(&mut self, to: u64) {
        let Body::File { size, pages } = &mut self.body else { return };
        *size = to;
        pages.truncate(to.div_ceil(PAGE_BYTES as u64) as usize);
        let tail = (to % PAGE_BYTES as u64) as usize;
        let last = (to / PAGE_BYTES as u64) as usize;
        if tail > 0
            && let Some(Some(page)) = pages.get_mut(last)
            && page.bytes()[tail..].iter().any(|&b| b != 0)
        {
            Page::bytes_mut(page)[tail..].fill(0);
        }
    }

    /// Reads within the size; returns the number of bytes read.
    pub fn read(&self, buf: &mut [u8], offset: u64) -> usize {
        read_pages(buf, offset, self.size(), |index| self.page(index).map(|p| p.bytes().as_slice()))
    }

    pub fn set_entry(&mut self, name: &Name, to: Option<Slot>) {
        let Body::Directory(entries) = &mut self.body else { return };
        match (entries.binary_search_by(|(n, _)| n.cmp(name)), to) {
            (Ok(at), Some(slot)) => entries[at].1 = slot,
            (Ok(at), None) => drop(entries.remove(at)),
            (Err(at), Some(slot)) => entries.insert(at, (name.clone(), slot)),
            (Err(_), None) => {}
        }
    }

    pub fn entry(&self, name: &OsStr) -> Option<Slot> {
        let entries = self.entries();
        entries.binary_search_by(|(n, _)| (**n).cmp(name)).ok().map(|at| entries[at].1)
    }

    fn file_hash(&self) -> u64 {
        self.hash.get(|| {
            let mut hash = mix(self.size() ^ ((self.mode as u64) << 40));
            hash = mix(hash ^ ((self.uid as u64) << 32) ^ self.gid as u64);
            if let Some(value) = &self.attribute {
                hash = hash_bytes(value, hash);
            }
            for (index, page) in self.pages().iter().enumerate() {
                if let Some(page) = page {
                    let page = page.hash.get(|| hash_bytes(&page.bytes, 0));
                    // A page of zeros and a hole read alike and must hash alike.
                    if page != zero_page_hash() {
                        hash = mix(hash ^ page ^ mix(index as u64));
                    }
                }
            }
            hash
        })
    }
}

fn zero_page_hash() -> u64 {
    RESERVED.hash.get(|| hash_bytes(&RESERVED.bytes, 0))
}

/// Fills `buf` page by page from `page`, where `None` reads as zeros; returns the number of bytes read.
pub(crate) fn read_pages<'p>(buf: &mut [u8], offset: u64, size: u64, page: impl Fn(u32) -> Option<&'p [u8]>) -> usize {
    let len = (size.saturating_sub(offset)).min(buf.len() as u64) as usize;
    let mut done = 0;
    while done < len {
        let at = offset + done as u64;
        let within = (at % PAGE_BYTES as u64) as usize;
        let n = (PAGE_BYTES - within).min(len - done);
        match page((at / PAGE_BYTES as u64) as u32) {
            Some(bytes) => buf[done..done + n].copy_from_slice(&bytes[within..within + n]),
            None => buf[done..done + n].fill(0),
        }
        done += n;
    }
    len
}

/// A whole file system: the inode table.
#[derive(Clone)]
pub(crate) struct Image {
    inodes: Arc<Vec<Option<Arc<Inode>>>>,
}

impl Image {
    pub fn new(owner: u32, mtime_ns: i128) -> Image {
        let root = Inode::new(Body::Directory(Vec::new()), 2, 0o755, owner, mtime_ns);
        Image { inodes: Arc::new(vec![Some(root)]) }
    }

    pub fn get(&self, slot: Slot) -> Option<&Arc<Inode>> {
        self.inodes.get(slot as usize)?.as_ref()
    }

    pub fn get_mut(&mut self, slot: Slot) -> Option<&mut Inode> {
        let inode = Arc::make_mut(&mut self.inodes).get_mut(slot as usize)?.as_mut()?;
        let inode = Arc::make_mut(inode);
        inode.hash = Cached::default();
        Some(inode)
    }

    /// Sets a time. Times are not part of the hash, so the hash stays valid.
    pub fn set_time(&mut self, slot: Slot, mtime_ns: i128) {
        if self.get(slot).is_some_and(|inode| inode.mtime_ns != mtime_ns) {
            let inode = Arc::make_mut(&mut self.inodes)[slot as usize].as_mut().map(Arc::make_mut);
            inode.expect("looked at just now").mtime_ns = mtime_ns;
        }
    }

    pub fn insert(&mut self, slot: Slot, inode: Arc<Inode>) {
        let inodes = Arc::make_mut(&mut self.inodes);
        if inodes.len() <= slot as usize {
            inodes.resize(slot as usize + 1, None);
        }
        inodes[slot as usize] = Some(inode);
    }

    pub fn remove(&mut self, slot: Slot) {
        if self.get(slot).is_some() {
            Arc::make_mut(&mut self.inodes)[slot as usize] = None;
        }
    }

    /// The index behind the last slot in use.
    pub fn slots(&self) -> Slot {
        self.inodes.len() as Slot
    }

    pub fn inodes(&self) -> impl Iterator<Item = (Slot, &Arc<Inode>)> {
        self.inodes.iter().enumerate().filter_map(|(slot, inode)| Some((slot as Slot, inode.as_ref()?)))
    }

    pub fn allocated_pages(&self) -> u64 {
        self.inodes().map(|(_, inode)| inode.pages().iter().flatten().count() as u64).sum()
    }

    /// Removes all inodes without a name, as the file system's own recovery does, and recounts links.
    pub fn collect(&mut self) {
        let mut links = vec![0u32; self.inodes.len()];
        links[ROOT as usize] = 1;
        let mut todo = vec![ROOT];
        while let Some(directory) = todo.pop() {
            let Some(inode) = self.get(directory) else { continue };
            for (_, slot) in inode.entries() {
                links[*slot as usize] += 1;
                if links[*slot as usize] == 1 && self.get(*slot).is_some_and(|i| i.is_directory()) {
                    todo.push(*slot);
                }
            }
        }
        for (slot, &links) in links.iter().enumerate() {
            let Some(inode) = &self.inodes[slot] else { continue };
            if links == 0 {
                Arc::make_mut(&mut self.inodes)[slot] = None;
            } else if inode.links != links {
                let inode = Arc::make_mut(&mut self.inodes)[slot].as_mut().map(Arc::make_mut);
                inode.expect("looked at just now").links = links;
            }
        }
    }

    /// A hash of everything that a program could read (names, contents, sizes, modes, owners, attributes), without
    /// times and inode numbers.
    pub fn hash(&self) -> u64 {
        self.hash_of(ROOT)
    }

    fn hash_of(&self, slot: Slot) -> u64 {
        let Some(inode) = self.get(slot) else { return 0 };
        match &inode.body {
            Body::File { .. } => inode.file_hash(),
            Body::Symlink => 3,
            Body::Directory(entries) => {
                let mut hash = mix(inode.mode as u64 | ((inode.uid as u64) << 32));
                for (name, child) in entries {
                    hash = hash_bytes(name.as_encoded_bytes(), hash);
                    hash = mix(hash ^ self.hash_of(*child));
                }
                hash
            }
        }
    }
}
