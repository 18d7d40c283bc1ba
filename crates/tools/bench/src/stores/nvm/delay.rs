//! The time that slow memory takes for a line, as a busy wait of the thread that flushes it.
//!
//! It is one for the whole process, because the flushes of a library wait, too.

use super::processor::{LINE_BYTES, ticks};
use std::hint::spin_loop;
use std::sync::LazyLock;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

/// The wait for a thousand lines, in ticks of the processor's clock.
static TICKS: AtomicU64 = AtomicU64::new(0);
/// Lines that were waited for, with any time.
static LINES: AtomicU64 = AtomicU64::new(0);

static TICKS_PER_US: LazyLock<f64> = LazyLock::new(|| {
    let (start, from) = (Instant::now(), ticks());
    while start.elapsed() < Duration::from_millis(20) {
        spin_loop();
    }
    (ticks() - from) as f64 / start.elapsed().as_secs_f64() / 1e6
});

/// From now on, each line takes so long.
pub fn set_line_ns(ns: u64) {
    TICKS.store((ns as f64 * *TICKS_PER_US) as u64, Relaxed);
}

/// The lines that were waited for so far.
pub fn lines_so_far() -> u64 {
    LINES.load(Relaxed)
}

/// The lines that bytes at this address, or at this offset of a mapping, lie in.
pub fn lines_of(at: usize, bytes: usize) -> usize {
    if bytes == 0 { 0 } else { (at + bytes - 1) / LINE_BYTES - at / LINE_BYTES + 1 }
}

/// Takes the time of so many lines.
pub fn take_time_of(lines: usize) {
    LINES.fetch_add(lines as u64, Relaxed);
    let wait = lines as u64 * TICKS.load(Relaxed) / 1000;
    if wait > 0 {
        let from = ticks();
        while ticks().wrapping_sub(from) < wait {
            spin_loop();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_counted_by_their_borders() {
        assert_eq!([lines_of(0, 0), lines_of(0, 1), lines_of(0, 64), lines_of(0, 65)], [0, 1, 1, 2]);
        assert_eq!([lines_of(63, 1), lines_of(63, 2), lines_of(100, 200)], [1, 2, 4]);
    }

    #[test]
    fn lines_take_their_time() {
        if !super::super::processor::CAN_FLUSH {
            return;
        }
        set_line_ns(1000);
        let before = lines_so_far();
        let time = |_| {
            let start = Instant::now();
            take_time_of(5000);
            start.elapsed()
        };
        // Another process may have the processor meanwhile, but not each time.
        let least = (0..20).map(time).min().expect("times");
        set_line_ns(0);
        assert!(lines_so_far() - before >= 20 * 5000);
        assert!((Duration::from_micros(4800)..Duration::from_millis(200)).contains(&least), "{least:?}");
    }
}
