//! The times of a disk's requests: flushes, writes in order and elsewhere, bandwidth, a volatile cache.
//!
//! Only durations: a power cut of such a disk is the crash laboratory's matter.

use clap::ValueEnum;
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// A write this close behind the end of the last one counts as in order: it is in the same track, or the same block of flash.
const NEAR_BYTES: u64 = 128 << 10;

/// The durations of a disk's operations. All zero: no longer than those of the image.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct DiskTimes {
    pub flush: Duration,
    /// Of a write where the last one ended.
    pub write: Duration,
    /// Of a write elsewhere.
    pub write_elsewhere: Duration,
    /// Zero: no limit.
    pub bytes_per_s: u64,
    /// Zero: writes go through. Otherwise a write takes no time while it fits into the cache, which the disk writes back
    /// when it has nothing else to do, and in a flush.
    pub cache_bytes: u64,
    /// One request at a time, as on a disk without a queue.
    pub in_turn: bool,
}

impl DiskTimes {
    /// A disk with flushes and writes of given times, wherever they go, several at a time.
    pub fn of(flush: Duration, write: Duration) -> DiskTimes {
        DiskTimes { flush, write, write_elsewhere: write, ..DiskTimes::default() }
    }

    /// Whether writes take a time at all.
    pub fn has_writes(&self) -> bool {
        !self.write.is_zero() || !self.write_elsewhere.is_zero() || self.bytes_per_s > 0
    }

    /// The model in words.
    pub fn describe(&self) -> String {
        let ms = |time: Duration| time.as_micros() as f64 / 1e3;
        let mut text = format!("a disk whose flushes take {} ms", ms(self.flush));
        if self.write == self.write_elsewhere && !self.write.is_zero() {
            text += &format!(", and whose writes take {} ms", ms(self.write));
        } else if self.has_writes() {
            text += &format!(", writes {} ms in order and {} ms elsewhere", ms(self.write), ms(self.write_elsewhere));
        }
        if self.bytes_per_s > 0 {
            text += &format!(", {} MB/s", self.bytes_per_s / 1_000_000);
        }
        if self.cache_bytes > 0 {
            text += &format!(", with a volatile cache of {} KiB", self.cache_bytes >> 10);
        }
        if self.in_turn { text + ", one request at a time" } else { text }
    }
}

/// Disks of the papers. Times are the papers' latencies of 4 KiB; bandwidths are assumed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Disk {
    /// The hard disk of paper 000 (2013), without its cache
    Hdd2013,
    /// The slower SSD of paper 000
    Ssd1,
    /// The faster SSD of paper 000
    Ssd2,
    /// A hard disk of paper 002 (2006), with a volatile cache of 2 MiB
    Wd2006,
    /// A RAID like that of paper 003 (2015): a cache with a battery takes the writes; its times are assumed
    Raid2015,
    /// An SSD like that of paper 003 (2015)
    Ssd2015,
    /// An SSD whose capacitors make flushes cheap
    SsdCap,
}

impl Disk {
    pub fn name(self) -> String {
        self.to_possible_value().expect("no disk is hidden").get_name().to_owned()
    }

    pub fn times(self) -> DiskTimes {
        let us = Duration::from_micros;
        let through = |write: u64, elsewhere: u64, mb_per_s: u64| DiskTimes {
            write: us(write),
            write_elsewhere: us(elsewhere),
            bytes_per_s: mb_per_s * 1_000_000,
            in_turn: true,
            ..DiskTimes::default()
        };
        match self {
            // A write in order just misses its sector, and waits for a whole turn of the disk.
            Disk::Hdd2013 => through(8_470, 7_030, 100),
            Disk::Ssd1 => through(4_200, 4_610, 200),
            Disk::Ssd2 => through(80, 110, 400),
            // A cache that survives a power cut is no volatile one: a write is done when it is in there.
            Disk::Raid2015 => through(150, 150, 300),
            Disk::Ssd2015 => through(300, 300, 250),
            // Writes that follow one another wait for no turn of the disk in its cache.
            Disk::Wd2006 => DiskTimes { flush: us(8_000), cache_bytes: 2 << 20, ..through(200, 8_000, 50) },
            Disk::SsdCap => DiskTimes { flush: us(60), ..DiskTimes::default() },
        }
    }
}

/// The state of a disk: where the last write ended, and the cached work that is still to be done.
#[derive(Debug)]
pub struct DiskModel {
    times: DiskTimes,
    /// The end of the last write; none before the first one.
    end: Option<u64>,
    cached_bytes: u64,
    /// The time that the cached writes take, as of `at`.
    debt: Duration,
    at: Duration,
}

impl DiskModel {
    pub fn new(times: DiskTimes) -> DiskModel {
        DiskModel { times, end: None, cached_bytes: 0, debt: Duration::ZERO, at: Duration::ZERO }
    }

    /// The duration of a write that arrives at `now`, counted from the start of the disk.
    pub fn write(&mut self, now: Duration, offset: u64, bytes: u64) -> Duration {
        let is_in_order = self.end.is_some_and(|end| (end..=end + NEAR_BYTES).contains(&offset));
        self.end = Some(offset + bytes);
        let place = if is_in_order { self.times.write } else { self.times.write_elsewhere };
        let own = place + self.transfer(bytes);
        if self.times.cache_bytes == 0 {
            return own;
        }
        self.write_back_until(now);
        let waits = if self.cached_bytes + bytes > self.times.cache_bytes { self.write_back() } else { Duration::ZERO };
        self.at = now + waits;
        self.cached_bytes += bytes;
        self.debt += own;
        waits
    }

    /// The duration of a flush that arrives at `now`.
    pub fn flush(&mut self, now: Duration) -> Duration {
        self.write_back_until(now);
        let takes = self.write_back() + self.times.flush;
        self.at = now + takes;
        takes
    }

    fn transfer(&self, bytes: u64) -> Duration {
        match self.times.bytes_per_s {
            0 => Duration::ZERO,
            limit => Duration::from_secs_f64(bytes as f64 / limit as f64),
        }
    }

    /// The disk has written back since the last request.
    fn write_back_until(&mut self, now: Duration) {
        let idle = now.saturating_sub(self.at);
        if idle >= self.debt {
            self.cached_bytes = 0;
        } else {
            self.cached_bytes =
                (self.cached_bytes as f64 * (1.0 - idle.as_secs_f64() / self.debt.as_secs_f64())) as u64;
        }
        self.debt = self.debt.saturating_sub(idle);
        self.at = now;
    }

    /// Empties the cache, and returns how long that takes.
    fn write_back(&mut self) -> Duration {
        self.cached_bytes = 0;
        std::mem::take(&mut self.debt)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: fn(u64) -> Duration = Duration::from_millis;

    fn through() -> DiskTimes {
        DiskTimes { flush: MS(1), write: MS(2), write_elsewhere: MS(5), in_turn: true, ..DiskTimes::default() }
    }

    #[test]
    fn writes_in_order_and_elsewhere_take_their_times() {
        let mut disk = DiskModel::new(through());
        let mut write = |offset| disk.write(Duration::ZERO, offset, 4096);
        assert_eq!([write(0), write(4096), write(8192)], [MS(5), MS(2), MS(2)]);
        assert_eq!(write(0), MS(5), "behind the last one");
        assert_eq!(write(4096 + NEAR_BYTES), MS(2), "a small gap");
        assert_eq!(write(2 * 4096 + 2 * NEAR_BYTES + 1), MS(5), "a large gap");
        assert_eq!(disk.flush(Duration::ZERO), MS(1));
    }

    #[test]
    fn long_writes_take_the_time_of_their_bytes() {
        let mut disk = DiskModel::new(DiskTimes { bytes_per_s: 1_000_000, ..through() });
        assert_eq!(disk.write(Duration::ZERO, 0, 3000), MS(8));
        assert_eq!(disk.write(Duration::ZERO, 3000, 1_000_000), MS(1002));
    }

    #[test]
    fn a_cache_defers_writes_until_it_is_full_or_flushed() {
        let mut disk = DiskModel::new(DiskTimes { cache_bytes: 8192, ..through() });
        assert_eq!([0, 4096].map(|offset| disk.write(MS(0), offset, 4096)), [MS(0); 2]);
        // The cache is full: the two writes before take 5 ms and 2 ms.
        assert_eq!(disk.write(MS(0), 8192, 4096), MS(7));
        // The third one is still cached, of which 1 ms is done by 8 ms.
        assert_eq!(disk.flush(MS(8)), MS(1 + 1));
        assert_eq!(disk.flush(MS(10)), MS(1));
    }

    #[test]
    fn a_cache_is_written_back_while_the_disk_has_nothing_to_do() {
        let mut disk = DiskModel::new(DiskTimes { cache_bytes: 8192, ..through() });
        assert_eq!(disk.write(MS(0), 0, 8192), MS(0));
        assert_eq!(disk.write(MS(5), 8192, 8192), MS(0), "all 5 ms are over");
        assert_eq!(disk.write(MS(6), 16_384, 8192), MS(1), "one of 2 ms is over");
        assert_eq!(disk.flush(MS(100)), MS(1));
    }

    #[test]
    fn a_disk_without_times_takes_none() {
        let mut disk = DiskModel::new(DiskTimes::default());
        assert_eq!(disk.write(MS(3), 1 << 30, 1 << 20) + disk.flush(MS(4)), Duration::ZERO);
        assert!(!DiskTimes::default().has_writes() && DiskTimes::of(MS(0), MS(1)).has_writes());
    }

    #[test]
    fn disks_of_the_papers_go_through_or_have_a_cache() {
        for disk in Disk::value_variants() {
            let mut model = DiskModel::new(disk.times());
            let far = [0, 1 << 30].map(|offset| model.write(MS(0), offset, 4096));
            let is_cached = disk.times().cache_bytes > 0;
            assert_eq!(far[1] < disk.times().write_elsewhere, is_cached, "{disk:?}");
            assert!(!disk.times().describe().is_empty());
        }
    }
}
