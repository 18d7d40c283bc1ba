//! Results of benchmarks: sections of rows, from which the table, the JSON and the plot are made.

use crate::report::outcome::Outcome;
use crate::report::statistics::{Ratio, Summary};
use serde::ser::{Serialize, SerializeMap, Serializer};

/// The results of one run.
#[derive(serde::Serialize)]
pub struct Report {
    pub untorn_version: &'static str,
    pub kernel: String,
    pub processors: usize,
    /// A smoke run: the numbers show that the benchmark works, not how fast Untorn is.
    pub quick: bool,
    /// Every benchmark that was to run, and how it ended.
    pub outcomes: Vec<Outcome>,
    pub sections: Vec<Section>,
}

/// One published figure: one benchmark in one place.
#[derive(serde::Serialize)]
pub struct Section {
    pub title: String,
    /// `ext4`, `xfs`, `btrfs`, or `here (…)`.
    pub place: String,
    /// File system, mount options, device.
    pub place_details: String,
    /// The unit of the printed times; JSON is always in microseconds.
    #[serde(skip)]
    pub unit: Unit,
    /// The kind of chart.
    #[serde(skip)]
    pub chart: Chart,
    /// The definition of the ratio: dividend and divisor.
    pub ratio_means: &'static str,
    pub rows: Vec<Row>,
    /// Notes on the method, so that the measurement can be repeated.
    pub notes: Vec<String>,
}

/// The kinds of charts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Chart {
    /// A line of dots and bars for each contender of each row.
    Bars,
    /// A curve for each contender over all rows, of means and of medians.
    Curves,
    /// A curve for each contender over all rows, of medians alone.
    Lines,
    /// A bar for each contender, in a group for each row; the table has a line for each contender.
    Groups,
}

/// The unit of a table's figures.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Unit {
    Microseconds,
    Milliseconds,
    Bytes,
    PerSecond,
    /// A ratio.
    Times,
}

impl Unit {
    pub fn name(self) -> &'static str {
        match self {
            Unit::Microseconds => "µs",
            Unit::Milliseconds => "ms",
            Unit::Bytes => "B",
            Unit::PerSecond => "1/s",
            Unit::Times => "×",
        }
    }

    /// A time of so many microseconds in this unit. Figures that are no times stay as they are.
    pub fn scale_us(self, us: f64) -> f64 {
        match self {
            Unit::Microseconds | Unit::Bytes | Unit::PerSecond | Unit::Times => us,
            Unit::Milliseconds => us / 1e3,
        }
    }
}

/// One cell: Untorn, its peers, the ratio, and the target.
#[derive(Default, serde::Serialize)]
pub struct Row {
    pub cell: String,
    /// `saturated`, or the think time.
    pub load: String,
    /// Untorn first, then its peers.
    pub contenders: Vec<Summary>,
    pub ratio: Option<Ratio>,
    pub target: Option<Target>,
    pub verdict: Option<Verdict>,
    /// Further ratios, each shown with one of the contenders.
    pub others: Vec<Other>,
    pub extras: Extras,
    /// Further figures of single contenders, by name.
    pub details: Vec<(String, Extras)>,
}

/// A ratio beside the row's own.
#[derive(serde::Serialize)]
pub struct Other {
    /// The contender beside which it is shown.
    pub beside: String,
    pub ratio: Ratio,
    pub target: Option<Target>,
    pub verdict: Option<Verdict>,
}

impl Other {
    pub fn new(beside: &str, ratio: Ratio, target: Option<Target>, quick: bool) -> Other {
        let verdict = target.filter(|_| !quick).map(|target| target.verdict(&ratio));
        Other { beside: beside.to_owned(), ratio, target, verdict }
    }
}

impl Row {
    /// Adds a target and the verdict on it.
    ///
    /// The verdict depends on the ratio, and on whether commits waited where none may wait. A quick run has no
    /// verdicts.
    pub fn against_target(mut self, target: Option<Target>, waited: Waited, quick: bool) -> Row {
        self.target = target;
        self.verdict = match (&self.ratio, target) {
            _ if quick => None,
            (Some(ratio), Some(target)) => Some(match (target.verdict(ratio), waited) {
                (Verdict::Reached, Waited::Forbidden(commits)) if commits > 0 => Verdict::Waited,
                (verdict, _) => verdict,
            }),
            _ => None,
        };
        self
    }
}

/// Whether a commit may wait for a checkpoint, and if not, how many did.
#[derive(Clone, Copy, Debug)]
pub enum Waited {
    Allowed,
    Forbidden(u64),
}

/// The limit of a ratio.
#[derive(Clone, Copy, Debug, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Target {
    AtMost(f64),
    AtLeast(f64),
}

impl Target {
    fn verdict(self, ratio: &Ratio) -> Verdict {
        let reached = match self {
            Target::AtMost(limit) => ratio.value <= limit,
            Target::AtLeast(limit) => ratio.value >= limit,
        };
        if reached { Verdict::Reached } else { Verdict::Missed }
    }
}

impl std::fmt::Display for Target {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Target::AtMost(limit) => write!(f, "≤ {limit:.2}"),
            Target::AtLeast(limit) => write!(f, "≥ {limit:.2}"),
        }
    }
}

/// The verdict on a target.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Verdict {
    Reached,
    Missed,
    /// The ratio was reached, but commits waited where none may wait.
    Waited,
}

impl Verdict {
    pub fn word(self) -> &'static str {
        match self {
            Verdict::Reached => "reached",
            Verdict::Missed => "missed",
            Verdict::Waited => "missed: waited",
        }
    }
}

/// Further figures of a row, each under a head that names its unit.
#[derive(Clone, Debug, Default)]
pub struct Extras(Vec<Extra>);

#[derive(Clone, Debug)]
struct Extra {
    head: &'static str,
    value: f64,
    decimals: usize,
}

impl Extras {
    pub fn add(&mut self, head: &'static str, value: f64, decimals: usize) {
        self.0.push(Extra { head, value, decimals });
    }

    pub fn heads(&self) -> impl Iterator<Item = &'static str> + '_ {
        self.0.iter().map(|e| e.head)
    }

    /// The figure under a head, as text. A dash if the row does not have it.
    pub fn text(&self, head: &str) -> String {
        match self.0.iter().find(|e| e.head == head) {
            Some(e) => format!("{:.*}", e.decimals, e.value),
            None => "–".to_owned(),
        }
    }
}

impl Serialize for Extras {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(Some(self.0.len()))?;
        for extra in &self.0 {
            map.serialize_entry(extra.head, &extra.value)?;
        }
        map.end()
    }
}

/// A size as text in the largest unit that divides it: `64 B`, `4 KiB`, `64 MiB`.
pub fn bytes_text(bytes: u64) -> String {
    for (unit, name) in [(1u64 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")] {
        if bytes >= unit && bytes.is_multiple_of(unit) {
            return format!("{} {name}", bytes / unit);
        }
    }
    format!("{bytes} B")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(value: f64) -> Row {
        Row {
            cell: String::new(),
            load: String::new(),
            contenders: Vec::new(),
            ratio: Some(Ratio::of_rounds("floor", vec![value])),
            ..Row::default()
        }
    }

    #[test]
    fn a_target_is_missed_by_the_ratio_or_by_a_wait() {
        let verdict = |value, target, waited, quick| row(value).against_target(Some(target), waited, quick).verdict;
        let at_most = Target::AtMost(1.25);
        assert_eq!(verdict(1.25, at_most, Waited::Allowed, false), Some(Verdict::Reached));
        assert_eq!(verdict(1.26, at_most, Waited::Allowed, false), Some(Verdict::Missed));
        assert_eq!(verdict(1.0, at_most, Waited::Forbidden(0), false), Some(Verdict::Reached));
        assert_eq!(verdict(1.0, at_most, Waited::Forbidden(1), false), Some(Verdict::Waited));
        assert_eq!(verdict(9.9, Target::AtLeast(10.0), Waited::Allowed, false), Some(Verdict::Missed));
        assert_eq!(verdict(1.0, at_most, Waited::Allowed, true), None);
        assert_eq!(verdict(f64::NAN, at_most, Waited::Allowed, false), Some(Verdict::Missed));
    }

    #[test]
    fn sizes_read_well() {
        assert_eq!(bytes_text(64), "64 B");
        assert_eq!(bytes_text(4096), "4 KiB");
        assert_eq!(bytes_text(64 << 20), "64 MiB");
        assert_eq!(bytes_text(1537), "1537 B");
    }
}
