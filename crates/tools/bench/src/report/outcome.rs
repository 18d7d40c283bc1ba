//! How each benchmark of a run ended.

use std::fmt::Write;
use std::time::Duration;

/// A benchmark at a place, and how it ended.
#[derive(serde::Serialize)]
pub struct Outcome {
    pub benchmark: String,
    pub place: String,
    pub seconds: f64,
    pub ended: Ended,
}

#[derive(Clone, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Ended {
    Done,
    /// The machine lacks something that it needs, which the reason names.
    Skipped(String),
    Failed(String),
}

/// The benchmarks that were not measured, each with its reason, and the number of the others.
pub fn summary(outcomes: &[Outcome]) -> String {
    let done = outcomes.iter().filter(|outcome| matches!(outcome.ended, Ended::Done)).count();
    let seconds = outcomes.iter().map(|outcome| outcome.seconds).sum();
    let mut text = format!("\n{done} of {} benchmarks were measured in {}", outcomes.len(), clock(seconds));
    for Outcome { benchmark, place, ended, .. } in outcomes {
        let _ = match ended {
            Ended::Done => Ok(()),
            Ended::Skipped(why) => write!(text, "\n{benchmark} on {place} was skipped: {why}"),
            Ended::Failed(why) => write!(text, "\n{benchmark} on {place} failed: {why}"),
        };
    }
    text
}

/// Seconds as `minutes:seconds`.
pub fn clock(seconds: f64) -> String {
    let whole = Duration::from_secs_f64(seconds).as_secs();
    format!("{}:{:02} min", whole / 60, whole % 60)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reasons_are_named() {
        let outcome = |ended| Outcome { benchmark: "kv".to_owned(), place: "xfs".to_owned(), seconds: 61.5, ended };
        let text = summary(&[outcome(Ended::Done), outcome(Ended::Skipped("no disk".to_owned()))]);
        assert_eq!(text, "\n1 of 2 benchmarks were measured in 2:03 min\nkv on xfs was skipped: no disk");
        assert_eq!(serde_json::to_string(&Ended::Failed("why".to_owned())).unwrap(), r#"{"failed":"why"}"#);
    }
}
