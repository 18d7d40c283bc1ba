//! The figures of a store in the time between two publications of its owner.

use std::time::Duration;
use untorn::reader::{Figures, Histogram, Stage};

/// The time between two publications of one opening.
#[derive(Clone, Debug)]
pub struct Interval {
    before: Figures,
    now: Figures,
}

impl Interval {
    /// `None` if the figures are of two openings, or of one publication.
    pub fn new(before: Figures, now: Figures) -> Option<Interval> {
        let is_later = before.epoch == now.epoch && before.open_for < now.open_for;
        is_later.then_some(Interval { before, now })
    }

    fn took(&self) -> Duration {
        self.now.open_for - self.before.open_for
    }

    /// How fast a count grew.
    pub fn per_second(&self, count: impl Fn(&Figures) -> u64) -> f64 {
        count(&self.now).saturating_sub(count(&self.before)) as f64 / self.took().as_secs_f64()
    }

    /// Commits that shared a flush, on average; 0 without commits.
    pub fn commits_per_group(&self) -> f64 {
        let grew = |count: fn(&Figures) -> u64| count(&self.now).saturating_sub(count(&self.before)) as f64;
        let groups = grew(|figures| figures.commit_groups);
        if groups > 0.0 { grew(|figures| figures.commits) / groups } else { 0.0 }
    }

    /// The durations of a stage.
    pub fn stage(&self, stage: Stage) -> Histogram {
        self.now.stage(stage).since(self.before.stage(stage))
    }
}

/// The share of the journal that a checkpoint would free, in percent.
pub fn journal_percent(figures: &Figures) -> u64 {
    figures.journal_bytes_pending.saturating_mul(100) / figures.journal_bytes_max.max(1)
}

/// All stages, with their names for people and programs.
pub const STAGES: [(Stage, &str); 7] = [
    (Stage::Commit, "commit"),
    (Stage::Queue, "queue"),
    (Stage::Attributes, "attributes"),
    (Stage::Write, "write"),
    (Stage::Flush, "flush"),
    (Stage::Room, "room"),
    (Stage::Checkpoint, "checkpoint"),
];
