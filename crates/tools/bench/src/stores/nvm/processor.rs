//! The processor's instructions for byte-addressable memory, and its clock.

/// Bytes of a line.
pub const LINE_BYTES: usize = 64;

pub use of_processor::{CAN_FLUSH, fence, store_lines, ticks, write_back};

#[cfg(target_arch = "x86_64")]
mod of_processor {
    use super::LINE_BYTES;
    use std::arch::asm;
    use std::arch::x86_64::{__cpuid_count, __m128i, _mm_loadu_si128, _mm_sfence, _mm_stream_si128, _rdtsc};
    use std::sync::LazyLock;

    /// Whether this program knows the processor's instructions.
    pub const CAN_FLUSH: bool = true;

    /// The best instruction that writes a line back: `clwb`, `clflushopt`, or `clflush`.
    #[derive(Clone, Copy)]
    enum Way {
        Clwb,
        ClflushOpt,
        Clflush,
    }

    static WAY: LazyLock<Way> = LazyLock::new(|| {
        // SAFETY: every processor of this architecture has the instruction.
        #[allow(unused_unsafe, reason = "it is safe in newer versions of Rust")]
        let features = unsafe { __cpuid_count(7, 0) }.ebx;
        match (features >> 24 & 1, features >> 23 & 1) {
            (1, _) => Way::Clwb,
            (_, 1) => Way::ClflushOpt,
            _ => Way::Clflush,
        }
    });

    /// The processor's clock.
    pub fn ticks() -> u64 {
        // SAFETY: every processor of this architecture has the instruction.
        unsafe { _rdtsc() }
    }

    /// Copies whole lines past the caches.
    ///
    /// # Safety
    /// `to` is aligned to lines, and this process may write that many there; so many bytes are at `from`.
    pub unsafe fn store_lines(to: *mut u8, from: *const u8, lines: usize) {
        let (to, from) = (to.cast::<__m128i>(), from.cast::<__m128i>());
        for part in 0..lines * (LINE_BYTES / size_of::<__m128i>()) {
            // SAFETY: the caller's promise.
            unsafe { _mm_stream_si128(to.add(part), _mm_loadu_si128(from.add(part))) };
        }
    }

    /// Writes a line back to the memory.
    ///
    /// # Safety
    /// `line` is in memory of this process.
    pub unsafe fn write_back(line: *const u8) {
        // SAFETY: the caller's promise; the processor has the instruction.
        unsafe {
            match *WAY {
                Way::Clwb => asm!("clwb [{0}]", in(reg) line, options(nostack, preserves_flags)),
                Way::ClflushOpt => asm!("clflushopt [{0}]", in(reg) line, options(nostack, preserves_flags)),
                Way::Clflush => asm!("clflush [{0}]", in(reg) line, options(nostack, preserves_flags)),
            }
        }
    }

    /// Waits until the lines are in the memory.
    pub fn fence() {
        // SAFETY: every processor of this architecture has the instruction.
        #[allow(unused_unsafe, reason = "it is safe in newer versions of Rust")]
        unsafe {
            _mm_sfence()
        };
    }
}

#[cfg(not(target_arch = "x86_64"))]
mod of_processor {
    /// Whether this program knows the processor's instructions.
    pub const CAN_FLUSH: bool = false;

    pub fn ticks() -> u64 {
        unreachable!("nothing is measured on this processor");
    }

    /// # Safety
    /// Never called.
    pub unsafe fn store_lines(_to: *mut u8, _from: *const u8, _lines: usize) {
        unreachable!("nothing is measured on this processor");
    }

    /// # Safety
    /// Never called.
    pub unsafe fn write_back(_line: *const u8) {
        unreachable!("nothing is measured on this processor");
    }

    pub fn fence() {
        unreachable!("nothing is measured on this processor");
    }
}
