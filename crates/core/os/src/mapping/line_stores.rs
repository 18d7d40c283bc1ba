//! Stores of whole cache lines to byte-addressable memory, past the processor's caches, and the fence behind them.

/// Bytes of a line: processors write memory in such units, of which eight aligned bytes are never torn.
pub const LINE_BYTES: usize = 64;

/// One line.
pub(crate) type Line = [u8; LINE_BYTES];

pub(crate) use of_processor::{can_store, fence, flush, store};

#[cfg(target_arch = "x86_64")]
mod of_processor {
    use super::Line;
    use std::arch::asm;
    use std::arch::x86_64::{__cpuid, __cpuid_count, __m128i, _mm_loadu_si128, _mm_sfence, _mm_stream_si128};
    use std::sync::OnceLock;

    /// Every processor of this architecture has stores that do not stay in a cache.
    pub(crate) fn can_store() -> bool {
        true
    }

    /// Stores lines. They may reach the memory in any order until this thread's fence.
    ///
    /// # Safety
    /// `to` is aligned to lines, and this process may write that many lines there. It does not access them otherwise.
    pub(crate) unsafe fn store(to: *mut u8, lines: &[Line]) {
        let (to, from) = (to.cast::<__m128i>(), lines.as_ptr().cast::<__m128i>());
        for part in 0..size_of_val(lines) / size_of::<__m128i>() {
            // SAFETY: within the lines on both sides, of which the target is aligned; the caller vouches for the rest.
            unsafe { _mm_stream_si128(to.add(part), _mm_loadu_si128(from.add(part))) };
        }
    }

    /// The instructions that write a line back, from the oldest: each is faster than the one before it.
    #[derive(Clone, Copy, PartialEq, Eq)]
    enum WriteBack {
        Clflush,
        Clflushopt,
        Clwb,
    }

    fn write_back() -> WriteBack {
        static KNOWN: OnceLock<WriteBack> = OnceLock::new();
        *KNOWN.get_or_init(|| {
            #[allow(unused_unsafe, reason = "it is safe in newer versions of Rust")]
            // SAFETY: every processor of this architecture has the instruction.
            let (most, bits) = unsafe { (__cpuid(0).eax, __cpuid_count(7, 0).ebx) };
            match bits {
                bits if most >= 7 && bits & 1 << 24 != 0 => WriteBack::Clwb,
                bits if most >= 7 && bits & 1 << 23 != 0 => WriteBack::Clflushopt,
                _ => WriteBack::Clflush,
            }
        })
    }

    /// Begins to write back the line at an address. The line is in the memory behind this thread's next fence.
    ///
    /// # Safety
    /// The line is mapped.
    pub(crate) unsafe fn flush(line: usize) {
        // SAFETY: the caller's promise; the processor has the instruction, which changes no contents.
        unsafe {
            match write_back() {
                WriteBack::Clwb => asm!("clwb [{0}]", in(reg) line, options(nostack, preserves_flags)),
                WriteBack::Clflushopt => asm!("clflushopt [{0}]", in(reg) line, options(nostack, preserves_flags)),
                WriteBack::Clflush => asm!("clflush [{0}]", in(reg) line, options(nostack, preserves_flags)),
            }
        }
    }

    /// Returns when all lines that this thread has stored or flushed are in the memory, or in a buffer that a power cut
    /// spares.
    pub(crate) fn fence() {
        // SAFETY: every processor of this architecture has the instruction.
        #[allow(unused_unsafe, reason = "it is safe in newer versions of Rust")]
        unsafe {
            _mm_sfence()
        };
    }
}

#[cfg(target_arch = "aarch64")]
mod of_processor {
    use super::Line;
    use std::arch::asm;

    /// `HWCAP_DCPOP`: cleaning a line to the point of persistence.
    const CLEANS: u64 = 1 << 16;

    pub(crate) fn can_store() -> bool {
        // SAFETY: asks only.
        unsafe { libc::getauxval(libc::AT_HWCAP) & CLEANS != 0 }
    }

    /// Stores lines. They may reach the memory in any order until this thread's fence.
    ///
    /// # Safety
    /// `to` is aligned to lines, and this process may write that many lines there. It does not access them otherwise.
    /// [`can_store`] was true.
    pub(crate) unsafe fn store(to: *mut u8, lines: &[Line]) {
        for (nth, line) in lines.iter().enumerate() {
            // SAFETY: a line of the target, for which the caller vouches.
            unsafe {
                let to = to.cast::<Line>().add(nth);
                to.write(*line);
                flush(to as usize);
            }
        }
    }

    /// Begins to write back the line at an address. The line is in the memory behind this thread's next fence.
    ///
    /// # Safety
    /// The line is mapped. [`can_store`] was true.
    pub(crate) unsafe fn flush(line: usize) {
        // SAFETY: the caller's promise. The instruction is `dc cvap`, which changes no contents.
        unsafe { asm!("sys #3, c7, c12, #1, {0}", in(reg) line, options(nostack, preserves_flags)) };
    }

    /// Returns when all lines that this thread has stored are in the memory, or in a buffer that a power cut spares.
    pub(crate) fn fence() {
        // SAFETY: a barrier.
        unsafe { asm!("dsb sy", options(nostack, preserves_flags)) };
    }
}

#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
mod of_processor {
    use super::Line;

    /// On other processors, memory is written by calls.
    pub(crate) fn can_store() -> bool {
        false
    }

    pub(crate) unsafe fn store(_to: *mut u8, _lines: &[Line]) {
        unreachable!("lines are not stored on this processor");
    }

    pub(crate) unsafe fn flush(_line: usize) {
        unreachable!("lines are not flushed on this processor");
    }

    pub(crate) fn fence() {
        unreachable!("lines are not stored on this processor");
    }
}
