//! Checks a heap's bytes, wherever they are, and trusts none of them.
//!
//! The metadata comes first, a segment at a time. If it is sound, the checker follows pointers from the roots. Any
//! eight bytes in a row, aligned or not, that are an address inside of an allocation reach that allocation, because
//! containers keep pointers into the middle. The address right behind an allocation reaches it, too, if no other
//! allocation begins there. An allocation that is not reached has leaked.
//!
//! Memory use: some bytes per chunk, and three bits per block.

mod reached;

use super::layout::*;
use crate::heap::image::report::{HeapChunk, HeapClass, HeapReport, HeapRoot};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ops::Range;
use std::path::Path;
use untorn_journal::Result;
use untorn_journal::format::sized_memory;

/// The bytes of a chunk's bitmap.
const BITMAP_BYTES: usize = BITMAP_WORDS * 8;

/// The bytes of a heap.
pub(crate) trait HeapImage {
    fn bytes(&self) -> Result<u64>;
    /// Fills the buffer, which lies within the heap.
    fn read(&self, buf: &mut [u8], offset: u64) -> Result<()>;
}

/// The bytes of a heap that nobody has open, or of a copy.
pub(crate) trait HeapImageMut: HeapImage {
    /// Changes bytes within the heap.
    fn write(&mut self, bytes: &[u8], offset: u64) -> Result<()>;
}

/// Some of the chunks of a segment.
#[derive(Clone, Copy, Default)]
pub(crate) struct ChunkSet(u64);

impl ChunkSet {
    pub(crate) const ALL: ChunkSet = ChunkSet(u64::MAX);

    /// Adds the chunks whose bitmaps touch these bytes of a segment; all, if a descriptor is among them.
    pub(crate) fn add_touched(&mut self, bytes: Range<usize>) {
        let (start, end) = (bytes.start.max(DESCRIPTORS_AT), bytes.end.min(ROOTS_AT));
        if start >= end {
            return;
        }
        if start < BITMAPS_AT {
            *self = ChunkSet::ALL;
            return;
        }
        let chunks = (start - BITMAPS_AT) / BITMAP_BYTES..(end - BITMAPS_AT).div_ceil(BITMAP_BYTES);
        chunks.for_each(|chunk| self.0 |= 1 << chunk);
    }

    pub(crate) fn is_empty(self) -> bool {
        self.0 == 0
    }

    fn has(self, chunk: usize) -> bool {
        self.0 >> chunk & 1 == 1
    }

    /// The index behind the last chunk of the set.
    fn end(self) -> usize {
        (u64::BITS - self.0.leading_zeros()) as usize
    }
}

const _: () = assert!(CHUNKS == u64::BITS as usize);

/// The state of a chunk during the walk.
#[derive(Clone, Copy, Default)]
struct Chunk {
    /// The index of the first word of its bits.
    bits: usize,
    /// The number of chunks back to the start of its allocation.
    back: u32,
    kind: Kind,
    /// Some of its blocks wait to be scanned.
    queued: bool,
}

#[derive(Clone, Copy, Default, PartialEq, Eq)]
enum Kind {
    #[default]
    Nothing,
    Blocks(u8),
    /// A part of an allocation of this many chunks.
    Whole(u32),
}

/// An allocation: its first chunk, and the block's number in it.
type Allocation = (usize, usize);

/// A check of one heap.
pub(crate) struct Checker<'a> {
    image: &'a dyn HeapImage,
    pub report: HeapReport,
    base: u64,
    chunks: Vec<Chunk>,
    used: Vec<u64>,
    reached: Vec<u64>,
    waiting: Vec<u64>,
    /// Chunks with allocations that were reached and not yet scanned.
    queue: VecDeque<usize>,
    /// The heap's bits for segments that lie inside of an allocation.
    insides: Vec<u8>,
}

fn bit(words: &[u64], at: usize, n: usize) -> bool {
    words[at + n / 64] >> (n % 64) & 1 == 1
}

impl<'a> Checker<'a> {
    /// Walks a heap's metadata; `progress` gets bytes done and bytes in all.
    ///
    /// # Errors
    /// This is no heap, or it cannot be read. Damage is listed in the report.
    pub(crate) fn new(image: &'a dyn HeapImage, path: &Path, progress: &dyn Fn(u64, u64)) -> Result<Checker<'a>> {
        let bytes = image.bytes()?;
        let mut head = [0; size_of::<Header>()];
        let n = bytes.min(head.len() as u64) as usize;
        image.read(&mut head[..n], 0)?;
        let header = Header::read(&head, path)?;
        let mut checker = Checker::empty(image, &header, path, bytes);
        header.problem(bytes).into_iter().for_each(|problem| checker.report.problem(problem));
        let segments = (bytes / SEGMENT_BYTES as u64).min(header.segments) as usize;
        checker.read_insides(segments, (0..segments.div_ceil(INSIDES)).collect())?;
        let mut classes = BTreeMap::new();
        while checker.chunks.len() < segments * CHUNKS {
            let segment = checker.chunks.len() / CHUNKS;
            progress((segment * CHUNK_BYTES) as u64, (segments * CHUNK_BYTES) as u64);
            checker.walk(segment, segments, ChunkSet::ALL, &mut classes)?;
        }
        checker.report.classes = classes.into_values().collect();
        if let Some(segment) = (segments..checker.insides.len() * 8).find(|segment| checker.is_inside(*segment)) {
            checker
                .report
                .problem(format!("segment {segment}: marked as inside of an allocation, beyond the heap's end"));
        }
        let words = checker.used.len();
        for bits in [&mut checker.reached, &mut checker.waiting] {
            sized_memory::reserve(bits, words, path)?;
            bits.resize(words, 0);
        }
        if segments > 0 {
            checker.walk_roots(&Checker::root_problems)?;
        }
        Ok(checker)
    }

    fn empty(image: &'a dyn HeapImage, header: &Header, path: &Path, bytes: u64) -> Checker<'a> {
        Checker {
            image,
            report: HeapReport {
                path: path.to_owned(),
                address: header.address,
                address_space_bytes: header.address_space,
                heap_bytes: bytes,
                ..HeapReport::default()
            },
            base: header.address,
            chunks: Vec::new(),
            used: Vec::new(),
            reached: Vec::new(),
            waiting: Vec::new(),
            queue: VecDeque::new(),
            insides: Vec::new(),
        }
    }

    /// Checks only the form of the table of roots, and not whether the roots point to allocations; returns the
    /// problems.
    pub(crate) fn problems_of_roots(image: &dyn HeapImage, header: &Header) -> Result<Vec<String>> {
        let mut checker = Checker::empty(image, header, Path::new(""), image.bytes()?);
        checker.walk_roots(&Checker::root_form_problems)?;
        Ok(checker.report.problems)
    }

    /// Checks the metadata of some segments, skipping those that are marked as inside of an allocation; returns the
    /// problems. In each segment, only the bitmaps of the given chunks are checked.
    pub(crate) fn problems_of(
        image: &dyn HeapImage,
        header: &Header,
        concerned: &BTreeMap<usize, ChunkSet>,
    ) -> Result<Vec<String>> {
        let mut checker = Checker::empty(image, header, Path::new(""), image.bytes()?);
        let segments = header.segments as usize;
        checker.read_insides(segments, concerned.keys().map(|segment| segment / INSIDES).collect())?;
        for (segment, chunks) in concerned.iter().filter(|(segment, _)| **segment < segments) {
            // Segments inside of a huge allocation have the program's data, and no metadata.
            if !checker.is_inside(*segment) {
                checker.walk(*segment, segments, *chunks, &mut BTreeMap::new())?;
            }
        }
        Ok(checker.report.problems)
    }

    /// Reads the bits of segments inside of allocations, for some groups of segments; the bits of other groups are not
    /// used.
    fn read_insides(&mut self, segments: usize, groups: BTreeSet<usize>) -> Result<()> {
        let all = segments.div_ceil(INSIDES);
        self.insides = vec![0; all * INSIDES / 8];
        for group in groups.into_iter().filter(|group| *group < all) {
            let bits = &mut self.insides[group * INSIDES / 8..][..INSIDES / 8];
            self.image.read(bits, (group * INSIDES * SEGMENT_BYTES + INSIDES_AT) as u64)?;
        }
        Ok(())
    }

    fn is_inside(&self, segment: usize) -> bool {
        self.insides[segment / 8] >> (segment % 8) & 1 == 1
    }

    /// Checks that the segments behind the first one of an allocation are marked as inside of it.
    fn check_insides(&mut self, segment: usize, spans: usize) {
        if self.is_inside(segment) {
            self.report.problem(format!(
                "segment {segment}: marked as inside of an allocation, but that allocation does not exist"
            ));
        }
        if let Some(inside) = (segment + 1..segment + spans).find(|segment| !self.is_inside(*segment)) {
            self.report.problem(format!("segment {inside}: inside of an allocation, but not marked as such"));
        }
        if segment / INSIDES != (segment + spans - 1) / INSIDES {
            self.report.problem(format!("segment {segment}: an allocation of {spans} segments hides others' marks"));
        }
    }

    /// Reads a segment, or all segments of a huge allocation. Bitmaps of chunks that are not in `looked_at` count as
    /// empty.
    fn walk(
        &mut self,
        segment: usize,
        segments: usize,
        looked_at: ChunkSet,
        classes: &mut BTreeMap<usize, HeapClass>,
    ) -> Result<()> {
        let mut bytes = vec![0; BITMAPS_AT - DESCRIPTORS_AT + looked_at.end() * BITMAP_BYTES];
        self.image.read(&mut bytes, (segment * SEGMENT_BYTES + DESCRIPTORS_AT) as u64)?;
        let (descriptors, bitmaps) = bytes.split_at(BITMAPS_AT - DESCRIPTORS_AT);
        let descriptor = |index: usize| Descriptor::read(&descriptors[index * size_of::<Descriptor>()..]);
        let bitmap = |index: usize| {
            let range = if looked_at.has(index) { index * BITMAP_BYTES..(index + 1) * BITMAP_BYTES } else { 0..0 };
            bitmaps[range].chunks_exact(8).map(|word| u64::from_le_bytes(word.try_into().expect("eight bytes")))
        };
        let spans = match descriptor(1).what(1) {
            Some(Use::Huge(spans)) if segment + spans <= segments => spans,
            _ => 1,
        };
        self.check_insides(segment, spans);
        self.push(HeapChunk::Metadata, Chunk::default());
        self.report.metadata_bytes += CHUNK_BYTES as u64;
        let mut index = 1;
        while index < CHUNKS {
            let at = |index: usize| format!("segment {segment}, chunk {index}");
            let found = descriptor(index);
            let Some(what) = found.what(index).filter(|what| found.is_exactly(*what)) else {
                self.report.problem(format!("{}: its descriptor is invalid: {found:?}", at(index)));
                self.push(HeapChunk::Free, Chunk::default());
                index += 1;
                continue;
            };
            let blocks_of = |index: usize, blocks: usize| {
                let stray = |(word, bits): (usize, u64)| bits & !word_mask(blocks, word) != 0;
                bitmap(index)
                    .enumerate()
                    .any(stray)
                    .then(|| format!("{}: bits are set for blocks that it does not have", at(index)))
            };
            match what {
                Use::Free | Use::Rest => {
                    if what == Use::Rest {
                        self.report.problem(format!(
                            "{}: marked as a part of an allocation, but no allocation contains it",
                            at(index)
                        ));
                    }
                    self.report.free_bytes += CHUNK_BYTES as u64;
                    blocks_of(index, 0).into_iter().for_each(|problem| self.report.problem(problem));
                    self.push(HeapChunk::Free, Chunk::default());
                }
                Use::Blocks(_) if !looked_at.has(index) => self.push(HeapChunk::Free, Chunk::default()),
                Use::Blocks(class) => {
                    let of = blocks(class);
                    blocks_of(index, of).into_iter().for_each(|problem| self.report.problem(problem));
                    let chunk = Chunk { bits: self.used.len(), kind: Kind::Blocks(class as u8), ..Chunk::default() };
                    let words = bitmap(index).take(of.div_ceil(64)).enumerate();
                    self.used.extend(words.map(|(word, bits)| bits & word_mask(of, word)));
                    let used: u32 = self.used[chunk.bits..].iter().map(|bits| bits.count_ones()).sum();
                    self.push(HeapChunk::Blocks { used: used as u16, of: of as u16 }, chunk);
                    let class = classes.entry(class).or_insert(HeapClass {
                        block_bytes: u64::from(SIZES[class]),
                        chunks: 0,
                        blocks: 0,
                        used: 0,
                    });
                    class.chunks += 1;
                    class.blocks += of as u64;
                    class.used += u64::from(used);
                }
                Use::Large(chunks) => {
                    for index in index + 1..index + chunks {
                        let other = descriptor(index);
                        if other.what(index) != Some(Use::Rest) || !other.is_exactly(Use::Rest) {
                            self.report.problem(format!(
                                "{}: overlaps an allocation of {chunks} chunks before it: {other:?}",
                                at(index)
                            ));
                        }
                    }
                    for index in index..index + chunks {
                        blocks_of(index, 0).into_iter().for_each(|problem| self.report.problem(problem));
                    }
                    self.report.large.add(found.bytes, chunks);
                    self.push_whole(HeapChunk::Large, chunks);
                    index += chunks - 1;
                }
                Use::Huge(spans) if segment + spans <= segments => {
                    for index in 1..CHUNKS {
                        blocks_of(index, 0).into_iter().for_each(|problem| self.report.problem(problem));
                        if index > 1 && !descriptor(index).is_exactly(Use::Free) {
                            self.report.problem(format!(
                                "{}: overlaps an allocation of {spans} segments before it: {:?}",
                                at(index),
                                descriptor(index)
                            ));
                        }
                    }
                    let chunks = spans * CHUNKS - 1;
                    self.report.huge.add(found.bytes, chunks);
                    self.push_whole(HeapChunk::Huge, chunks);
                    break;
                }
                Use::Huge(spans) => {
                    self.report.problem(format!("{}: {spans} segments reach beyond the heap's end", at(index)));
                    self.push(HeapChunk::Free, Chunk::default());
                }
            }
            index += 1;
        }
        Ok(())
    }

    fn push(&mut self, shown: HeapChunk, chunk: Chunk) {
        self.report.chunks.push(shown);
        self.chunks.push(chunk);
    }

    fn push_whole(&mut self, shown: HeapChunk, chunks: usize) {
        let bits = self.used.len();
        self.used.push(1);
        for back in 0..chunks as u32 {
            self.push(shown, Chunk { bits, back, kind: Kind::Whole(chunks as u32), queued: false });
        }
    }

    fn walk_roots(&mut self, problems: &dyn Fn(&Checker<'a>, &RootEntry) -> Vec<String>) -> Result<()> {
        let mut bytes = vec![0; ROOTS * size_of::<RootEntry>()];
        self.image.read(&mut bytes, ROOTS_AT as u64)?;
        let mut places = BTreeMap::new();
        for (index, bytes) in bytes.chunks_exact(size_of::<RootEntry>()).enumerate() {
            if bytes.iter().all(|byte| *byte == 0) {
                continue;
            }
            let entry = RootEntry::read(bytes);
            let name = text(&entry.name);
            for problem in problems(self, &entry) {
                self.report.problem(format!("root {index}, {name:?}: {problem}"));
            }
            if let Some(other) = places.insert(entry.name, index) {
                self.report.problem(format!("root {index}, {name:?}: root {other} has the same name"));
            }
            self.reach(entry.pointer);
            self.report.roots.push(HeapRoot {
                name,
                type_name: text(&entry.type_name),
                version: entry.version,
                size: entry.size,
                align: entry.align,
                address: entry.pointer,
            });
        }
        Ok(())
    }

    /// Problems of an entry that no version of the library writes, independent of the allocations.
    fn root_form_problems(&self, entry: &RootEntry) -> Vec<String> {
        let mut problems = Vec::new();
        let mut unless = |right: bool, what: &str| {
            if !right {
                problems.push(what.to_owned());
            }
        };
        unless(is_text(&entry.name) && entry.name[0] != 0 && entry.name[47] == 0, "its name is invalid");
        unless(is_text(&entry.type_name), "the name of its type is invalid");
        unless(entry.align.is_power_of_two(), "its alignment is not a power of two");
        unless(entry.align == 0 || entry.pointer.is_multiple_of(u64::from(entry.align)), "it is not aligned");
        let type_name = entry.type_name.split(|byte| *byte == 0).next().unwrap_or_default();
        // If the name was cut off, its fingerprint cannot be checked. A character has up to four bytes.
        let whole = type_name.len() <= entry.type_name.len() - 4;
        let same = entry.fingerprint == fingerprint(type_name, entry.size, entry.align, entry.version);
        unless(!whole || same, "its fingerprint is not that of its type");
        let offset = entry.pointer.wrapping_sub(self.base);
        unless(offset < self.report.heap_bytes, "it points out of the heap");
        problems
    }

    fn root_problems(&self, entry: &RootEntry) -> Vec<String> {
        let mut problems = self.root_form_problems(entry);
        let offset = entry.pointer.wrapping_sub(self.base);
        match self.find(offset) {
            Some(found) => {
                let (start, bytes) = self.bounds(found);
                if offset.checked_add(entry.size).is_none_or(|end| end > start + bytes) {
                    problems.push("it reaches beyond its allocation".to_owned());
                }
            }
            None if offset >= self.report.heap_bytes => {}
            None => problems.push("it points to memory that is not allocated".to_owned()),
        }
        problems
    }

    /// Fills the buffer with bytes of the heap.
    pub(crate) fn read(&self, buf: &mut [u8], offset: u64) -> Result<()> {
        self.image.read(buf, offset)
    }

    /// The allocation in use that has this byte of the heap.
    fn find(&self, offset: u64) -> Option<Allocation> {
        let number = usize::try_from(offset / CHUNK_BYTES as u64).ok()?;
        let chunk = self.chunks.get(number)?;
        let found = match chunk.kind {
            Kind::Nothing => return None,
            Kind::Blocks(class) => (number, offset as usize % CHUNK_BYTES / SIZES[class as usize] as usize),
            Kind::Whole(_) => (number - chunk.back as usize, 0),
        };
        (found.1 < chunk.units() && bit(&self.used, chunk.bits, found.1)).then_some(found)
    }

    /// The offset of an allocation, and its size.
    fn bounds(&self, (number, block): Allocation) -> (u64, u64) {
        let start = (number * CHUNK_BYTES) as u64;
        match self.chunks[number].kind {
            Kind::Nothing => (start, 0),
            Kind::Blocks(class) => {
                let bytes = u64::from(SIZES[class as usize]);
                (start + block as u64 * bytes, bytes)
            }
            Kind::Whole(chunks) => (start, u64::from(chunks) * CHUNK_BYTES as u64),
        }
    }
}

impl Chunk {
    /// The number of allocations that can begin in the chunk.
    fn units(&self) -> usize {
        match self.kind {
            Kind::Nothing => 0,
            Kind::Blocks(class) => blocks(class as usize),
            Kind::Whole(_) => 1,
        }
    }
}

/// Whether the bytes are UTF-8, filled up with zeros.
fn is_text(bytes: &[u8]) -> bool {
    let end = bytes.iter().position(|byte| *byte == 0).unwrap_or(bytes.len());
    std::str::from_utf8(&bytes[..end]).is_ok() && bytes[end..].iter().all(|byte| *byte == 0)
}
