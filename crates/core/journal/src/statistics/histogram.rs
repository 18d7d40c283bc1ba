//! Durations, counted in buckets that owner and watchers share: eight for each doubling, from 1 µs to 137 s.
//!
//! A quantile is therefore at most an eighth too long. The buckets are part of the block that an owner publishes, so
//! that differences of two blocks are exact.

use std::time::Duration;

/// Number of buckets.
pub const BUCKETS: usize = ((LAST_DOUBLING - FIRST_DOUBLING + 1) << STEP_BITS) as usize;
/// The first bucket has all durations below 2^10 ns and an eighth.
const FIRST_DOUBLING: u32 = 10;
/// The last bucket has all durations of at least 2^37 ns without a sixteenth.
const LAST_DOUBLING: u32 = 36;
/// Each doubling has 2^3 buckets.
const STEP_BITS: u32 = 3;

/// Counts of durations.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Histogram {
    counts: Vec<u64>,
    sum_ns: u64,
}

impl Default for Histogram {
    fn default() -> Histogram {
        Histogram { counts: vec![0; BUCKETS], sum_ns: 0 }
    }
}

/// The bucket of a duration.
fn bucket_of(ns: u64) -> usize {
    let ns = ns.max(1 << FIRST_DOUBLING);
    let doubling = ns.ilog2();
    let step = ns >> (doubling - STEP_BITS) & ((1 << STEP_BITS) - 1);
    (((u64::from(doubling - FIRST_DOUBLING) << STEP_BITS) + step) as usize).min(BUCKETS - 1)
}

/// All durations of a bucket are shorter than this.
fn end_of(bucket: usize) -> Duration {
    let (doubling, step) = (FIRST_DOUBLING + (bucket >> STEP_BITS) as u32, bucket & ((1 << STEP_BITS) - 1));
    Duration::from_nanos(((1 << STEP_BITS) + step as u64 + 1) << (doubling - STEP_BITS))
}

impl Histogram {
    /// A histogram with these counts, one for each bucket, of durations with this sum.
    pub fn new(counts: Vec<u64>, sum_ns: u64) -> Histogram {
        debug_assert_eq!(counts.len(), BUCKETS);
        Histogram { counts, sum_ns }
    }

    /// Counts a duration.
    pub fn note(&mut self, took: Duration) {
        let ns = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
        self.counts[bucket_of(ns)] += 1;
        self.sum_ns = self.sum_ns.saturating_add(ns);
    }

    /// How many durations were counted.
    pub fn count(&self) -> u64 {
        self.counts.iter().fold(0, |sum, count| sum.saturating_add(*count))
    }

    /// The sum of all durations.
    pub fn sum(&self) -> Duration {
        Duration::from_nanos(self.sum_ns)
    }

    /// The duration that this share of all durations is shorter than; 0.5 is the median, 1 the longest. `None` if none
    /// was counted.
    pub fn quantile(&self, share: f64) -> Option<Duration> {
        let rank = ((self.count() as f64 * share).ceil() as u64).max(1);
        let mut seen = 0u64;
        let bucket = self.counts.iter().position(|count| {
            seen = seen.saturating_add(*count);
            seen >= rank
        });
        bucket.map(end_of)
    }

    /// The durations that were counted since `earlier`, which this histogram grew from.
    pub fn since(&self, earlier: &Histogram) -> Histogram {
        let counts = self.counts.iter().zip(&earlier.counts).map(|(now, then)| now.saturating_sub(*then));
        Histogram { counts: counts.collect(), sum_ns: self.sum_ns.saturating_sub(earlier.sum_ns) }
    }

    /// The end of each bucket, and how many durations are in the bucket.
    pub fn buckets(&self) -> impl Iterator<Item = (Duration, u64)> {
        self.counts.iter().enumerate().map(|(bucket, count)| (end_of(bucket), *count))
    }

    /// The counts of all buckets.
    pub(super) fn counts(&self) -> &[u64] {
        &self.counts
    }

    /// The sum of all durations in nanoseconds.
    pub(super) fn sum_ns(&self) -> u64 {
        self.sum_ns
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_duration_is_in_the_bucket_that_ends_behind_it() {
        let mut ns = 1 << FIRST_DOUBLING;
        while ns < 1 << (LAST_DOUBLING + 1) {
            for ns in [ns - 1, ns, ns + 1] {
                let (bucket, took) = (bucket_of(ns), Duration::from_nanos(ns));
                assert!(took < end_of(bucket), "{took:?} is in bucket {bucket}");
                assert!(bucket == 0 || end_of(bucket - 1) <= took, "{took:?} is in bucket {bucket}");
            }
            ns += ns / 16;
        }
        assert_eq!(bucket_of(0), 0);
        assert_eq!(bucket_of(u64::MAX), BUCKETS - 1);
        assert_eq!(end_of(BUCKETS - 1), Duration::from_nanos(1 << (LAST_DOUBLING + 1)));
    }

    #[test]
    fn quantiles_are_an_eighth_too_long_at_most() {
        let mut all = Histogram::default();
        assert_eq!(all.quantile(0.5), None);
        (1..=1000).for_each(|n| all.note(Duration::from_micros(n)));
        for (share, micros) in [(0.0, 1), (0.5, 500), (0.99, 990), (1.0, 1000)] {
            let (found, exact) = (all.quantile(share).unwrap(), Duration::from_micros(micros));
            assert!((exact..exact + exact / 7).contains(&found) || micros == 1, "{share}: {found:?}");
        }
        assert_eq!((all.count(), all.sum()), (1000, Duration::from_micros(500_500)));
    }

    #[test]
    fn a_difference_has_the_later_durations_only() {
        let mut all = Histogram::default();
        all.note(Duration::from_secs(1));
        let earlier = all.clone();
        all.note(Duration::from_millis(1));
        let since = all.since(&earlier);
        assert_eq!((since.count(), since.sum()), (1, Duration::from_millis(1)));
        assert!(since.quantile(1.0).unwrap() < Duration::from_millis(2));
        assert_eq!(since.buckets().map(|(_, count)| count).sum::<u64>(), 1);
    }
}
