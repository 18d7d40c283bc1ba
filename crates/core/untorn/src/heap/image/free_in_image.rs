//! Frees blocks in a heap image without an allocator: in the staged bytes of a cut, or in a copy of live memory.

use super::check::{HeapImage, HeapImageMut};
use super::layout::*;
use untorn_journal::Result;

/// Frees the allocation at an offset of a heap, if there is one, as the allocator would.
pub(crate) fn free(image: &mut dyn HeapImageMut, offset: usize) -> Result<()> {
    let (segment, at) = (offset / SEGMENT_BYTES, offset % SEGMENT_BYTES);
    let (chunk, inside) = (at / CHUNK_BYTES, at % CHUNK_BYTES);
    let first = segment * SEGMENT_BYTES;
    if (offset as u64) >= image.bytes()? || chunk == 0 || is_inside(image, segment)? {
        return Ok(());
    }
    let descriptor_at = |chunk: usize| (first + DESCRIPTORS_AT + chunk * size_of::<Descriptor>()) as u64;
    let mut line = [0; size_of::<Descriptor>()];
    image.read(&mut line, descriptor_at(chunk))?;
    let nothing = [0; size_of::<Descriptor>()];
    match Descriptor::read(&line).what(chunk) {
        Some(Use::Blocks(class)) if inside.is_multiple_of(SIZES[class] as usize) => {
            let block = inside / SIZES[class] as usize;
            let at = (first + BITMAPS_AT + (chunk * BITMAP_WORDS + block / 64) * 8) as u64;
            let mut word = [0; 8];
            image.read(&mut word, at)?;
            let (bits, bit) = (u64::from_ne_bytes(word), 1 << (block % 64));
            if block < blocks(class) && bits & bit != 0 {
                image.write(&(bits & !bit).to_ne_bytes(), at)?;
            }
        }
        Some(Use::Large(chunks)) if inside == 0 => {
            for chunk in chunk..chunk + chunks {
                image.write(&nothing, descriptor_at(chunk))?;
            }
        }
        Some(Use::Huge(segments)) if inside == 0 => {
            image.write(&nothing, descriptor_at(chunk))?;
            for segment in segment + 1..segment + segments {
                image.write(&[0; CHUNK_BYTES], (segment * SEGMENT_BYTES) as u64)?;
                let (at, bit) = inside_bit(segment);
                let mut byte = [0];
                image.read(&mut byte, at as u64)?;
                image.write(&[byte[0] & !bit], at as u64)?;
            }
        }
        _ => {}
    }
    Ok(())
}

/// Whether a segment lies inside of an allocation, and so has no metadata.
pub(crate) fn is_inside(image: &dyn HeapImage, segment: usize) -> Result<bool> {
    let (at, bit) = inside_bit(segment);
    let mut byte = [0];
    image.read(&mut byte, at as u64)?;
    Ok(byte[0] & bit != 0)
}
