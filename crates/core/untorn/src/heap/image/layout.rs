//! The layout of a heap file.
//!
//! ```text
//! heap      segments of 4 MiB, at a fixed address
//! segment   64 chunks of 64 KiB; the first is metadata
//! metadata  header page · 64 descriptors of 64 bytes · 64 bitmaps of 512 bytes ·
//!           128 roots of 192 bytes (in the first segment)
//! header    in the first segment only; from byte 64 on, of a live heap, the stamp of its memory;
//!           from byte 128 on, also in every 31744th segment, one bit for each segment that
//!           lies inside of an allocation, and so has no metadata
//! chunk     free · blocks of one size class, a bit each · a part of a large allocation
//! ```
//!
//! An allocation changes one line of a bitmap, and a descriptor if a chunk changes its use. Freed blocks are not
//! written to. Numbers are little-endian; pointers are absolute, as the heap is always mapped at the same address.

use std::path::Path;
use untorn_journal::{Error, Result};

/// The lowest address of a heap: above the addresses that sanitizers keep for themselves, below the highest that
/// Valgrind can map, and far from where kernels put programs, libraries and stacks.
pub(crate) const ADDRESS_MIN: usize = 17 << 40;
/// The end of the addresses of heaps.
pub(crate) const ADDRESS_MAX: usize = 31 << 40;

/// The lowest address of a heap in a program under ThreadSanitizer or MemorySanitizer, which keep most addresses for
/// themselves. AddressSanitizer leaves these addresses free, too, and Linux puts programs behind them.
pub(crate) const SANITIZED_MIN: usize = if cfg!(target_arch = "aarch64") { 0xaaaa_0000_0000 } else { 0x5500_0000_0000 };
/// The end of the addresses of heaps under these sanitizers.
pub(crate) const SANITIZED_MAX: usize = if cfg!(target_arch = "aarch64") { 0xaaaa_a000_0000 } else { 0x5555_0000_0000 };
/// Default address space of a heap under these sanitizers.
pub(crate) const SANITIZED_SPACE: u64 = if cfg!(target_arch = "aarch64") { 256 << 20 } else { 16 << 30 };

/// Whether a heap may have these addresses.
pub(crate) fn may_lie(address: u64, address_space: u64) -> bool {
    (1..=space_at(address)).contains(&address_space)
}

/// The largest address space that a heap at this address may have.
pub(crate) fn space_at(address: u64) -> u64 {
    let places = [ADDRESS_MIN..ADDRESS_MAX, SANITIZED_MIN..SANITIZED_MAX];
    let here = places.into_iter().find(|place| place.contains(&(address as usize)));
    here.map_or(0, |place| place.end as u64 - address)
}

/// The size of a segment.
pub(crate) const SEGMENT_BYTES: usize = 4 << 20;
/// The size of a chunk.
pub(crate) const CHUNK_BYTES: usize = 64 << 10;
/// Chunks of a segment, the metadata included.
pub(crate) const CHUNKS: usize = SEGMENT_BYTES / CHUNK_BYTES;
/// The offset of a segment's descriptors.
pub(crate) const DESCRIPTORS_AT: usize = 4096;
/// The offset of a segment's bitmaps.
pub(crate) const BITMAPS_AT: usize = DESCRIPTORS_AT + CHUNKS * size_of::<Descriptor>();
/// The offset of the bits for segments inside of allocations, in the metadata of the first segment of each group.
pub(crate) const INSIDES_AT: usize = 128;
/// The number of these bits, which is the number of segments in a group. No allocation spans two groups.
pub(crate) const INSIDES: usize = (DESCRIPTORS_AT - INSIDES_AT) * 8;
/// The words of a bitmap: it has as many bits as a chunk has blocks of the smallest size.
pub(crate) const BITMAP_WORDS: usize = CHUNK_BYTES / SIZES[0] as usize / 64;
/// The offset of the roots in the first segment.
pub(crate) const ROOTS_AT: usize = BITMAPS_AT + CHUNKS * BITMAP_WORDS * 8;
/// The number of roots of a heap.
pub(crate) const ROOTS: usize = (CHUNK_BYTES - ROOTS_AT) / size_of::<RootEntry>();

/// The sizes of blocks, by class.
pub(crate) const SIZES: [u32; 41] = [
    16, 32, 48, 64, 80, 96, 112, 128, 160, 192, 224, 256, 320, 384, 448, 512, 640, 768, 896, 1024, 1280, 1536, 1792,
    2048, 2560, 3072, 3584, 4096, 5120, 6144, 7168, 8192, 9216, 10240, 12288, 13056, 16384, 18688, 21840, 26208, 32768,
];

pub(crate) const MAGIC: [u8; 8] = *b"UNTORNHP";
pub(crate) const VERSION: u32 = 2;

/// The header: the first bytes of the file.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Header {
    pub magic: [u8; 8],
    pub version: u32,
    pub segment_bytes: u32,
    /// The address at which the heap is mapped.
    pub address: u64,
    /// The bytes of address space that the heap has.
    pub address_space: u64,
    /// The number of segments, which is the file's size.
    pub segments: u64,
    /// Checksum of the fields before it.
    pub sum: u64,
}

impl Header {
    /// Reads the header from the start of a file.
    pub(crate) fn read(bytes: &[u8; size_of::<Header>()], path: &Path) -> Result<Header> {
        // SAFETY: a header is numbers, and any bytes are numbers.
        let header: Header = unsafe { std::ptr::read_unaligned(bytes.as_ptr().cast()) };
        if header.magic != MAGIC {
            return Err(Error::Foreign { path: path.to_owned(), detail: "this is not a heap of Untorn".into() });
        }
        if header.version < VERSION {
            let detail = format!(
                "this heap has version {} of the format, which was never released; make it anew",
                header.version
            );
            return Err(Error::Foreign { path: path.to_owned(), detail });
        }
        if header.version != VERSION {
            return Err(Error::NewerVersion { path: path.to_owned(), found: header.version, supported: VERSION });
        }
        Ok(header)
    }

    /// Describes the header if it makes no sense for a file of this size.
    pub(crate) fn problem(&self, file_bytes: u64) -> Option<String> {
        let Header { address, address_space, segments, segment_bytes, .. } = *self;
        let sound = *self == self.summed()
            && segment_bytes == SEGMENT_BYTES as u32
            && segments > 0
            && segments.checked_mul(SEGMENT_BYTES as u64) == Some(file_bytes)
            && file_bytes <= address_space
            && may_lie(address, address_space)
            && address.is_multiple_of(SEGMENT_BYTES as u64);
        (!sound).then(|| format!("the heap's header is invalid: {self:?}, in a file of {file_bytes} bytes"))
    }

    /// The header with its checksum.
    pub(crate) fn summed(mut self) -> Header {
        let Header { magic, version, segment_bytes, address, address_space, segments, .. } = self;
        let numbers = [u64::from(version), u64::from(segment_bytes), address, address_space, segments];
        let bytes: Vec<u8> = magic.into_iter().chain(numbers.iter().flat_map(|n| n.to_le_bytes())).collect();
        self.sum = untorn_journal::format::crc64(&bytes);
        self
    }
}

/// The offset of the stamp in the file.
pub(crate) const STAMP_AT: usize = 64;

/// The stamp: names the live memory that a heap's commits come from; zeros if there is none.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Stamp {
    /// The random number of that memory.
    pub incarnation: [u8; 16],
    /// The number of the cut, counting attempts, that this commit is.
    pub cut: u64,
    /// The user that owns the memory.
    pub uid: u32,
    unused: u32,
    /// Checksum of the fields before it.
    sum: u64,
}

impl Stamp {
    pub(crate) const NONE: Stamp = Stamp { incarnation: [0; 16], cut: 0, uid: 0, unused: 0, sum: 0 };

    pub(crate) fn new(incarnation: [u8; 16], cut: u64, uid: u32) -> Stamp {
        let mut bytes = incarnation.to_vec();
        bytes.extend(cut.to_le_bytes());
        bytes.extend(uid.to_le_bytes());
        Stamp { incarnation, cut, uid, unused: 0, sum: untorn_journal::format::crc64(&bytes) }
    }

    /// Reads the stamp from the start of a file. None: the heap has no live memory.
    pub(crate) fn read(bytes: &[u8; STAMP_AT + size_of::<Stamp>()]) -> Option<Stamp> {
        // SAFETY: this many bytes are there; a stamp is numbers, and any bytes are numbers.
        let stamp: Stamp = unsafe { std::ptr::read_unaligned(bytes[STAMP_AT..].as_ptr().cast()) };
        (stamp.incarnation != [0; 16] && stamp == Stamp::new(stamp.incarnation, stamp.cut, stamp.uid)).then_some(stamp)
    }
}

/// The use of a chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Use {
    Free,
    /// Blocks of this size class.
    Blocks(usize),
    /// The first of this many chunks of one allocation.
    Large(usize),
    /// Another chunk of a large allocation.
    Rest,
    /// The first chunk of an allocation of this many whole segments.
    Huge(usize),
}

/// The descriptor of a chunk, on a cache line of its own.
#[repr(C, align(64))]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Descriptor {
    kind: u32,
    count: u32,
    /// The bytes that were asked for, for an allocation of whole chunks or segments.
    pub bytes: u64,
    unused: [u64; 6],
}

impl Descriptor {
    pub(crate) fn new(what: Use, bytes: u64) -> Descriptor {
        let (kind, count) = match what {
            Use::Free => (0, 0),
            Use::Blocks(class) => (1, class),
            Use::Large(chunks) => (2, chunks),
            Use::Rest => (3, 0),
            Use::Huge(segments) => (4, segments),
        };
        Descriptor { kind, count: count as u32, bytes, unused: [0; 6] }
    }

    /// Reads a descriptor from its bytes.
    pub(crate) fn read(bytes: &[u8]) -> Descriptor {
        assert!(bytes.len() >= size_of::<Descriptor>());
        // SAFETY: this many bytes are there; a descriptor is numbers, and any bytes are numbers.
        unsafe { std::ptr::read_unaligned(bytes.as_ptr().cast()) }
    }

    /// Whether every byte is as an allocator writes it for this use.
    pub(crate) fn is_exactly(&self, what: Use) -> bool {
        let bytes = if matches!(what, Use::Large(_) | Use::Huge(_)) { self.bytes } else { 0 };
        *self == Descriptor::new(what, bytes)
    }

    /// The use that the descriptor records. None: no heap of this version has such a descriptor for the chunk with this
    /// index in its segment.
    pub(crate) fn what(&self, index: usize) -> Option<Use> {
        let count = self.count as usize;
        Some(match self.kind {
            0 => Use::Free,
            1 if count < SIZES.len() => Use::Blocks(count),
            2 if (1..=CHUNKS - index).contains(&count) && self.bytes as usize <= count * CHUNK_BYTES => {
                Use::Large(count)
            }
            3 => Use::Rest,
            4 if index == 1 && count > 0 && self.bytes <= (count * SEGMENT_BYTES - CHUNK_BYTES) as u64 => {
                Use::Huge(count)
            }
            _ => return None,
        })
    }
}

/// A named pointer into the heap, with the layout of its target.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct RootEntry {
    /// UTF-8, filled up with zeros; all zeros: unused.
    pub name: [u8; 48],
    /// The type's name, cut off if it is too long.
    pub type_name: [u8; 104],
    pub size: u64,
    pub align: u32,
    /// The program's own version number of the layout.
    pub version: u32,
    /// A checksum of the type's name, size, alignment and version.
    pub fingerprint: u64,
    pub pointer: u64,
    pub unused: u64,
}

impl RootEntry {
    /// Reads an entry from its bytes.
    pub(crate) fn read(bytes: &[u8]) -> RootEntry {
        assert!(bytes.len() >= size_of::<RootEntry>());
        // SAFETY: this many bytes are there; an entry is numbers, and any bytes are numbers.
        unsafe { std::ptr::read_unaligned(bytes.as_ptr().cast()) }
    }

    pub(crate) fn is_named(&self, name: &str) -> bool {
        self.name.starts_with(name.as_bytes()) && self.name[name.len()..].iter().all(|byte| *byte == 0)
    }
}

/// A checksum of a type's name, size, alignment and version.
pub(crate) fn fingerprint(type_name: &[u8], size: u64, align: u32, version: u32) -> u64 {
    let bytes = [type_name, &size.to_le_bytes(), &align.to_le_bytes(), &version.to_le_bytes()];
    untorn_journal::format::crc64(&bytes.concat())
}

const _: () = assert!(size_of::<Descriptor>() == 64 && size_of::<RootEntry>() == 192);
const _: () = assert!(ROOTS_AT + ROOTS * size_of::<RootEntry>() <= CHUNK_BYTES && ROOTS == 128);
const _: () = assert!(size_of::<Header>() <= STAMP_AT && STAMP_AT + size_of::<Stamp>() <= INSIDES_AT);
const _: () = assert!(INSIDES.is_multiple_of(8));

/// The number of blocks of a class in a chunk.
pub(crate) const fn blocks(class: usize) -> usize {
    CHUNK_BYTES / SIZES[class] as usize
}

/// The bits of a bitmap's word that stand for blocks, in a chunk with this many blocks.
pub(crate) fn word_mask(blocks: usize, word: usize) -> u64 {
    match blocks.saturating_sub(word * 64) {
        0 => 0,
        bits => u64::MAX >> (64 - bits.min(64)),
    }
}

/// The bit that marks a segment as inside of an allocation: the offset of its byte in the heap, and the bit.
pub(crate) fn inside_bit(segment: usize) -> (usize, u8) {
    let n = segment % INSIDES;
    ((segment - n) * SEGMENT_BYTES + INSIDES_AT + n / 8, 1 << (n % 8))
}

/// The smallest class for a size and an alignment. None: the size is too large for classes.
pub(crate) fn class_of(bytes: usize, align: usize) -> Option<usize> {
    let first = SIZES.partition_point(|size| (*size as usize) < bytes);
    (first..SIZES.len()).find(|class| (SIZES[*class] as usize).is_multiple_of(align))
}

/// Text that is filled up with zeros.
pub(crate) fn text(bytes: &[u8]) -> String {
    let end = bytes.iter().position(|b| *b == 0).unwrap_or(bytes.len());
    String::from_utf8_lossy(&bytes[..end]).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn classes_waste_at_most_a_quarter() {
        for bytes in 1..=32768 {
            let size = SIZES[class_of(bytes, 1).unwrap()] as usize;
            assert!(size >= bytes && (size - bytes <= 16 || (size - bytes) * 4 <= size), "{bytes} in {size}");
        }
        for align in (0..=12).map(|n| 1 << n) {
            assert!((SIZES[class_of(1, align).unwrap()] as usize).is_multiple_of(align));
        }
        assert_eq!(class_of(32769, 1), None);
    }
}
