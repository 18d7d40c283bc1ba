//! A fact about a place, and its effect on the promises.

use serde::Serialize;

/// A failure between a commit and a later read.
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

/// Whether committed data survive a failure. A smaller value is worse.
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

/// A fact, and its effects.
#[derive(Clone, Debug, Serialize)]
pub struct Finding {
    /// The examined thing.
    pub topic: &'static str,
    /// The fact about it.
    pub found: String,
    /// The meaning of the fact, if it has one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub why: Option<String>,
    /// The promises that the fact lowers.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub lowers: Vec<(Failure, Verdict)>,
    /// The fact makes every store impossible here.
    pub rules_out: bool,
}

impl Finding {
    /// A fact without effects.
    pub fn new(topic: &'static str, found: impl Into<String>) -> Finding {
        Finding { topic, found: found.into(), why: None, lowers: Vec::new(), rules_out: false }
    }

    pub fn note(mut self, why: impl Into<String>) -> Finding {
        self.why = Some(why.into());
        self
    }

    /// Limits the promise for these failures to a verdict.
    pub fn lowers(mut self, failures: &[Failure], to: Verdict, why: impl Into<String>) -> Finding {
        self.lowers = failures.iter().map(|&f| (f, to)).collect();
        self.note(why)
    }

    /// Makes every store impossible here.
    pub fn rules_out(mut self, why: impl Into<String>) -> Finding {
        self.rules_out = true;
        self.note(why)
    }

    /// The best verdict on a failure that this finding allows.
    pub fn verdict(&self, failure: Failure) -> Verdict {
        let lowered = self.lowers.iter().find(|(f, _)| *f == failure).map(|(_, v)| *v);
        if self.rules_out { Verdict::NotKept } else { lowered.unwrap_or(Verdict::Kept) }
    }
}
