//! Verdicts: a ratio of ours against a paper's.

use crate::report::statistics::Ratio;
use serde::{Deserialize, Serialize};

/// The least number of runs that a verdict needs.
pub const RUNS_MIN: usize = 5;

/// The better direction of a ratio.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Better {
    Smaller,
    Larger,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Verdict {
    /// Both quartiles are better than the paper's ratio.
    Surpassed,
    /// The paper's ratio lies between the quartiles, or on one of them.
    Reproduced,
    /// Both quartiles are worse.
    Behind,
}

impl Verdict {
    /// The verdict on a ratio. None with too few runs, or with a run that gave no number.
    pub fn on(ours: &Ratio, paper: f64, better: Better) -> Option<Verdict> {
        if ours.rounds < RUNS_MIN || !(ours.p25.is_finite() && ours.p75.is_finite()) {
            return None;
        }
        if ours.p25 <= paper && paper <= ours.p75 {
            return Some(Verdict::Reproduced);
        }
        let is_beyond = match better {
            Better::Smaller => ours.p75 < paper,
            Better::Larger => ours.p25 > paper,
        };
        Some(if is_beyond { Verdict::Surpassed } else { Verdict::Behind })
    }

    pub fn word(self) -> &'static str {
        match self {
            Verdict::Surpassed => "surpassed",
            Verdict::Reproduced => "reproduced",
            Verdict::Behind => "behind",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ratio(runs: &[f64]) -> Ratio {
        Ratio::of_rounds("peer", runs.to_vec())
    }

    #[test]
    fn the_quartiles_decide_and_the_direction() {
        // The quartiles are 2 and 4.
        let ours = ratio(&[5.0, 1.0, 4.0, 2.0, 3.0]);
        let cases = [
            (4.5, Better::Smaller, Verdict::Surpassed),
            (4.5, Better::Larger, Verdict::Behind),
            (1.5, Better::Smaller, Verdict::Behind),
            (1.5, Better::Larger, Verdict::Surpassed),
            (2.0, Better::Smaller, Verdict::Reproduced),
            (3.7, Better::Larger, Verdict::Reproduced),
            (4.0, Better::Larger, Verdict::Reproduced),
        ];
        for (paper, better, expected) in cases {
            assert_eq!(Verdict::on(&ours, paper, better), Some(expected), "{paper} {better:?}");
        }
    }

    #[test]
    fn too_few_runs_and_runs_without_a_number_get_none() {
        assert_eq!(Verdict::on(&ratio(&[1.0; 4]), 2.0, Better::Smaller), None);
        assert_eq!(Verdict::on(&ratio(&[1.0; 5]), 2.0, Better::Smaller), Some(Verdict::Surpassed));
        assert_eq!(Verdict::on(&ratio(&[f64::NAN; 5]), 2.0, Better::Smaller), None);
        assert_eq!(Verdict::on(&ratio(&[0.0, 1.0, 2.0, f64::INFINITY, f64::INFINITY]), 2.0, Better::Larger), None);
    }
}
