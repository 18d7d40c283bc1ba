//! Samples, their summary, and ratios with their spread.

use serde::Serialize;
use std::time::Duration;

/// The samples of one contender, in nanoseconds.
#[derive(Clone, Debug)]
pub struct Measured {
    /// The contender's name in tables.
    pub name: String,
    /// The samples of each round.
    pub rounds_ns: Vec<Vec<u64>>,
}

impl Measured {
    /// A contender without samples yet.
    pub fn new(name: impl Into<String>) -> Measured {
        Measured { name: name.into(), rounds_ns: Vec::new() }
    }

    /// Starts a new round.
    pub fn begin_round(&mut self) {
        self.rounds_ns.push(Vec::new());
    }

    /// Adds a sample to the running round.
    pub fn push(&mut self, time: Duration) {
        if self.rounds_ns.is_empty() {
            self.begin_round();
        }
        let round = self.rounds_ns.last_mut().expect("a round was begun");
        round.push(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX));
    }

    /// The summary of all rounds together.
    pub fn summary(&self) -> Summary {
        Summary::of(&self.name, self.rounds_ns.concat())
    }

    /// The mean of each round.
    pub fn round_means_ns(&self) -> Vec<f64> {
        let mean = |round: &Vec<u64>| round.iter().map(|&ns| ns as f64).sum::<f64>() / round.len().max(1) as f64;
        self.rounds_ns.iter().map(mean).collect()
    }

    /// The median of each round.
    pub fn round_medians_ns(&self) -> Vec<f64> {
        self.rounds_ns.iter().map(|round| quantile(&sorted(round.clone()), 0.5) as f64).collect()
    }
}

/// The figures of one contender. Times are in microseconds.
#[derive(Clone, Debug, Serialize)]
pub struct Summary {
    pub name: String,
    pub samples: usize,
    pub mean_us: f64,
    pub p25_us: f64,
    pub median_us: f64,
    pub p75_us: f64,
    pub p999_us: f64,
}

impl Summary {
    /// The figures of some values, one of each run. They may be no times.
    pub fn of_values(name: &str, values: &[f64]) -> Summary {
        let mut sorted = values.to_vec();
        sorted.sort_unstable_by(f64::total_cmp);
        let at = |q| at_rank(&sorted, q).unwrap_or(0.0);
        Summary {
            name: name.to_owned(),
            samples: values.len(),
            mean_us: values.iter().sum::<f64>() / values.len().max(1) as f64,
            p25_us: at(0.25),
            median_us: at(0.5),
            p75_us: at(0.75),
            p999_us: at(0.999),
        }
    }

    fn of(name: &str, samples_ns: Vec<u64>) -> Summary {
        let samples_ns = sorted(samples_ns);
        let us = |q| quantile(&samples_ns, q) as f64 / 1e3;
        let sum_ns: f64 = samples_ns.iter().map(|&ns| ns as f64).sum();
        Summary {
            name: name.to_owned(),
            samples: samples_ns.len(),
            mean_us: sum_ns / samples_ns.len().max(1) as f64 / 1e3,
            p25_us: us(0.25),
            median_us: us(0.5),
            p75_us: us(0.75),
            p999_us: us(0.999),
        }
    }
}

fn sorted(mut samples_ns: Vec<u64>) -> Vec<u64> {
    samples_ns.sort_unstable();
    samples_ns
}

/// The quantile by nearest rank, which is always one of the samples. With fewer than 1,000 samples the 99.9th
/// percentile is the largest of them.
fn quantile(sorted_ns: &[u64], q: f64) -> u64 {
    at_rank(sorted_ns, q).unwrap_or(0)
}

fn at_rank<T: Copy>(sorted: &[T], q: f64) -> Option<T> {
    let rank = (q * sorted.len() as f64).ceil() as usize;
    sorted.get(rank.saturating_sub(1)).copied()
}

/// A ratio for each round. The published figure is the median of the rounds.
#[derive(Clone, Debug, Serialize, serde::Deserialize)]
pub struct Ratio {
    pub against: String,
    pub value: f64,
    pub p25: f64,
    pub p75: f64,
    pub rounds: usize,
}

impl Ratio {
    /// The ratio from one figure for each round.
    pub fn of_rounds(against: &str, mut ratios: Vec<f64>) -> Ratio {
        ratios.sort_unstable_by(f64::total_cmp);
        let at = |q: f64| at_rank(&ratios, q).unwrap_or(f64::NAN);
        Ratio { against: against.to_owned(), value: at(0.5), p25: at(0.25), p75: at(0.75), rounds: ratios.len() }
    }

    /// The time of `ours` divided by the peer's: small is good.
    pub fn cost(ours: &Measured, peers: &[&Measured]) -> Ratio {
        Ratio::divide(ours, peers, |ours, peer| ours / peer)
    }

    /// The time of the peer divided by that of `ours`: large is good.
    pub fn speedup(ours: &Measured, peers: &[&Measured]) -> Ratio {
        Ratio::divide(ours, peers, |ours, peer| peer / ours)
    }

    /// Compares with the peer of the lowest median, which is the hardest comparison.
    fn divide(ours: &Measured, peers: &[&Measured], divide: impl Fn(f64, f64) -> f64) -> Ratio {
        let best = peers
            .iter()
            .min_by(|a, b| a.summary().median_us.total_cmp(&b.summary().median_us))
            .expect("something to compare with");
        let pairs = ours.round_medians_ns().into_iter().zip(best.round_medians_ns());
        Ratio::of_rounds(&best.name, pairs.map(|(ours, peer)| divide(ours, peer)).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn measured(name: &str, rounds_us: &[&[u64]]) -> Measured {
        let mut m = Measured::new(name);
        for round in rounds_us {
            m.begin_round();
            round.iter().for_each(|&us| m.push(Duration::from_micros(us)));
        }
        m
    }

    #[test]
    fn quantiles_are_values_that_occurred() {
        let s = measured("a", &[&[40, 10], &[20, 30, 1000]]).summary();
        assert_eq!((s.samples, s.p25_us, s.median_us, s.p75_us, s.p999_us), (5, 20.0, 30.0, 40.0, 1000.0));
        assert_eq!(s.mean_us, 220.0);
        let many: Vec<u64> = (1..=10_000).collect();
        assert_eq!(measured("b", &[&many]).summary().p999_us, 9990.0);
    }

    #[test]
    fn values_that_are_no_times_are_summed_up_alike() {
        let of_times = measured("a", &[&[40, 10], &[20, 30, 1000]]);
        let of_values = Summary::of_values("a", &[40.0, 10.0, 20.0, 30.0, 1000.0]);
        assert_eq!(format!("{of_values:?}"), format!("{:?}", of_times.summary()));
        assert_eq!(of_times.round_means_ns(), [25_000.0, 350_000.0]);
    }

    #[test]
    fn ratios_are_medians_of_rounds_against_the_better_peer() {
        let ours = measured("ours", &[&[20, 20], &[30, 30], &[100, 100]]);
        let slow = measured("slow", &[&[50], &[50], &[50]]);
        let fast = measured("fast", &[&[10], &[10], &[10]]);
        let cost = Ratio::cost(&ours, &[&slow, &fast]);
        assert_eq!((cost.against.as_str(), cost.value, cost.p25, cost.p75), ("fast", 3.0, 2.0, 10.0));
        let speedup = Ratio::speedup(&ours, &[&slow]);
        assert!((speedup.value - 50.0 / 30.0).abs() < 1e-9);
    }
}
