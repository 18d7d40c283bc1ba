//! One fact about a place, and what it does to the promises.

use serde::Serialize;

/// What comes between a commit and its readers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Failure {
    ProcessKilled,
    KernelCrash,
    PowerCut,
    DiskDamage,
}

pub const FAILURES: [Failure; 4] =
    [Failure::ProcessKilled, Failure::KernelCrash, Failure::PowerCut, Failure::DiskDamage];

/// Whether committed data survives a failure. The lesser is the worse.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    NotKept,
    Depends,
    Kept,
}

impl Verdict {
    pub fn text(self) -> &'static str {
        match self {
            Verdict::NotKept => "not kept",
            Verdict::Depends => "depends",
            Verdict::Kept => "kept",
        }
    }
}

/// A fact, and its consequences.
#[derive(Clone, Debug, Serialize)]
pub struct Finding {
    /// What was looked at.
    pub topic: &'static str,
    /// What it is.
    pub found: String,
    /// What that means, where it means anything.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub why: Option<String>,
    /// The promises that it lowers.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub lowers: Vec<(Failure, Verdict)>,
    /// No store can be used here because of it.
    pub rules_out: bool,
}

impl Finding {
    /// A fact without consequences.
    pub fn new(topic: &'static str, found: impl Into<String>) -> Finding {
        Finding { topic, found: found.into(), why: None, lowers: Vec::new(), rules_out: false }
    }

    pub fn note(mut self, why: impl Into<String>) -> Finding {
        self.why = Some(why.into());
        self
    }

    /// The promise for these failures is no better than this.
    pub fn lowers(mut self, failures: &[Failure], to: Verdict, why: impl Into<String>) -> Finding {
        self.lowers = failures.iter().map(|&f| (f, to)).collect();
        self.note(why)
    }

    /// A store cannot be used at all.
    pub fn rules_out(mut self, why: impl Into<String>) -> Finding {
        self.rules_out = true;
        self.note(why)
    }

    /// What this finding leaves of the promise for a failure.
    pub fn verdict(&self, failure: Failure) -> Verdict {
        let lowered = self.lowers.iter().find(|(f, _)| *f == failure).map(|(_, v)| *v);
        if self.rules_out { Verdict::NotKept } else { lowered.unwrap_or(Verdict::Kept) }
    }
}
