//! Reads a heap's file by its format alone, without the allocator.

use std::collections::BTreeMap;

const SEGMENT_BYTES: usize = 4 << 20;
const CHUNK_BYTES: usize = 64 << 10;
const CHUNKS: usize = 64;
const SEGMENTS_AT: usize = 32;
const INSIDES_AT: usize = 128;
const DESCRIPTORS_AT: usize = 4096;
const BITMAPS_AT: usize = 8192;
const SIZES: [usize; 41] = [
    16, 32, 48, 64, 80, 96, 112, 128, 160, 192, 224, 256, 320, 384, 448, 512, 640, 768, 896, 1024, 1280, 1536, 1792,
    2048, 2560, 3072, 3584, 4096, 5120, 6144, 7168, 8192, 9216, 10240, 12288, 13056, 16384, 18688, 21840, 26208, 32768,
];

/// Whether an offset is in the heap's metadata: the first chunk of a segment that does not lie inside of an allocation.
pub fn is_metadata(heap: &[u8], at: usize) -> bool {
    let segment = at / SEGMENT_BYTES;
    let is_inside = heap[INSIDES_AT + segment / 8] >> (segment % 8) & 1 == 1;
    at % SEGMENT_BYTES < CHUNK_BYTES && !is_inside
}

/// All allocations of a heap with their sizes, by offset. Also checks that free chunks are zeros.
pub fn blocks_of(heap: &[u8]) -> Result<BTreeMap<usize, usize>, String> {
    let number = |at: usize, len: usize| {
        let bytes = heap.get(at..at + len).unwrap_or_default();
        bytes.iter().rev().fold(0usize, |number, byte| number << 8 | usize::from(*byte))
    };
    let segments = number(SEGMENTS_AT, 8);
    if heap.len() != segments * SEGMENT_BYTES {
        return Err(format!("{} bytes in {segments} segments", heap.len()));
    }
    let mut blocks = BTreeMap::new();
    let mut segment = 0;
    while segment < segments {
        let base = segment * SEGMENT_BYTES;
        segment += 1;
        let mut chunk = 1;
        while chunk < CHUNKS {
            let (descriptor, bitmap) = (base + DESCRIPTORS_AT + 64 * chunk, base + BITMAPS_AT + 512 * chunk);
            let (kind, count) = (number(descriptor, 4), number(descriptor + 4, 4));
            let (at, wrong) = (base + chunk * CHUNK_BYTES, format!("chunk {chunk} at {base:#x}: {kind}, {count}"));
            let size = *SIZES.get(count).unwrap_or(&CHUNK_BYTES);
            chunk += 1;
            match kind {
                0 if heap[at..at + CHUNK_BYTES] == [0; CHUNK_BYTES] => {}
                1 if size < CHUNK_BYTES => {
                    let used = |n: &usize| heap[bitmap + n / 8] >> (n % 8) & 1 == 1;
                    if (CHUNK_BYTES / size..4096).any(|n| used(&n)) {
                        return Err(format!("{wrong}: blocks behind the last"));
                    }
                    blocks.extend((0..CHUNK_BYTES / size).filter(used).map(|n| (at + n * size, size)));
                }
                2 if count > 0 && chunk - 1 + count <= CHUNKS => {
                    let rest = (1..count).map(|n| number(descriptor + 64 * n, 4));
                    if rest.into_iter().any(|kind| kind != 3) {
                        return Err(format!("{wrong}: not all of it"));
                    }
                    blocks.insert(at, count * CHUNK_BYTES);
                    chunk += count - 1;
                }
                4 if chunk == 2 && count > 0 && segment - 1 + count <= segments => {
                    blocks.insert(at, count * SEGMENT_BYTES - CHUNK_BYTES);
                    segment += count - 1;
                    break;
                }
                _ => return Err(wrong),
            }
        }
    }
    Ok(blocks)
}
