//! Measurements of a figure: in each cell one number of each contender in each run.

use crate::paper::numbers::{Claim, Figure};
use crate::paper::verdict::{RUNS_MIN, Verdict};
use crate::report::section::{Chart, Row, Section, Unit};
use crate::report::statistics::{Measured, Ratio, Summary};
use serde::{Deserialize, Serialize};

/// All that a run of the command has measured.
#[derive(Serialize, Deserialize)]
pub struct Results {
    pub untorn_version: String,
    pub kernel: String,
    pub processors: usize,
    pub quick: bool,
    pub figures: Vec<Done>,
}

/// A figure, and how its measurement ended.
#[derive(Serialize, Deserialize)]
pub struct Done {
    pub paper: String,
    pub figure: String,
    pub seconds: f64,
    /// Why nothing was measured.
    pub unmeasured: Option<String>,
    pub panels: Vec<Panel>,
    /// The papers' numbers beside ours.
    pub judged: Vec<Judged>,
}

/// One chart: cells on one device, with contenders that each cell has in common.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Panel {
    /// The name that claims use.
    pub name: String,
    pub title: String,
    pub place: String,
    pub place_details: String,
    pub unit: Unit,
    pub chart: Chart,
    /// The contenders' names and settings.
    pub settings: Vec<[String; 2]>,
    pub cells: Vec<Cell>,
    pub notes: Vec<String>,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Cell {
    pub name: String,
    pub contenders: Vec<Runs>,
}

/// The number of a contender in each run: times in microseconds, else in the panel's unit.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Runs {
    pub name: String,
    pub runs: Vec<f64>,
}

/// The number of a run, from the times in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Statistic {
    Mean,
    Median,
}

impl Runs {
    /// One number of each round, in microseconds.
    pub fn of(measured: &Measured, statistic: Statistic) -> Runs {
        let rounds_ns = match statistic {
            Statistic::Mean => measured.round_means_ns(),
            Statistic::Median => measured.round_medians_ns(),
        };
        Runs { name: measured.name.clone(), runs: rounds_ns.iter().map(|ns| ns / 1e3).collect() }
    }
}

impl Cell {
    /// A cell of times.
    pub fn of<'a>(
        name: impl Into<String>,
        measured: impl IntoIterator<Item = &'a Measured>,
        statistic: Statistic,
    ) -> Cell {
        let contenders = measured.into_iter().map(|measured| Runs::of(measured, statistic)).collect();
        Cell { name: name.into(), contenders }
    }

    /// The ratio of two contenders, one for each run that both had.
    fn ratio(&self, [over, under]: &[String; 2]) -> Result<Ratio, String> {
        let find = |name: &String| {
            let found = self.contenders.iter().find(|contender| contender.name == *name);
            found.ok_or_else(|| format!("{name} was not measured in “{}”", self.name))
        };
        let (over, under) = (find(over)?, find(under)?);
        let ratios = over.runs.iter().zip(&under.runs).map(|(over, under)| over / under).collect();
        Ok(Ratio::of_rounds(&under.name, ratios))
    }
}

/// A number of a paper beside ours.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Judged {
    pub says: String,
    /// The two contenders and the cell.
    pub of: String,
    pub paper: f64,
    pub ours: Option<Ratio>,
    pub verdict: Option<Verdict>,
    /// The reason, if our ratio or its verdict is missing.
    pub why_none: Option<String>,
}

/// Sets a figure's numbers beside the measurements.
pub fn judge(figure: &Figure, panels: &[Panel], unmeasured: Option<&str>, quick: bool) -> Vec<Judged> {
    figure.claims.iter().map(|claim| judge_one(claim, panels, unmeasured, quick)).collect()
}

fn judge_one(claim: &Claim, panels: &[Panel], unmeasured: Option<&str>, quick: bool) -> Judged {
    let unmeasured = unmeasured.or(claim.unmeasured.as_deref());
    let (of, ours) = match (unmeasured, &claim.panel, &claim.cell, &claim.divide) {
        (None, Some(panel), Some(cell), Some(pair)) => {
            (format!("{} ÷ {}, {cell}", pair[0], pair[1]), find(panels, panel, cell).and_then(|cell| cell.ratio(pair)))
        }
        (why, _, cell, pair) => (
            pair.iter().zip(cell).map(|(pair, cell)| format!("{} ÷ {}, {cell}", pair[0], pair[1])).collect(),
            Err(why.unwrap_or("it is not measured").to_owned()),
        ),
    };
    let judged = Judged { says: claim.says.clone(), of, paper: claim.paper, ours: None, verdict: None, why_none: None };
    let ours = match ours {
        Ok(ours) => ours,
        Err(why) => return Judged { why_none: Some(why), ..judged },
    };
    let verdict = claim.better.filter(|_| !quick).and_then(|better| Verdict::on(&ours, claim.paper, better));
    let why_none = match (verdict, claim.better) {
        (Some(_), _) => None,
        (None, None) => Some("neither direction is better".to_owned()),
        (None, _) if quick => Some("a quick run has no verdicts".to_owned()),
        (None, _) => Some(format!("{} runs; a verdict needs {RUNS_MIN}", ours.rounds)),
    };
    Judged { ours: Some(ours), verdict, why_none, ..judged }
}

fn find<'a>(panels: &'a [Panel], panel: &str, cell: &str) -> Result<&'a Cell, String> {
    let panel = panels.iter().find(|one| one.name == panel).ok_or_else(|| format!("there is no panel {panel}"))?;
    let found = panel.cells.iter().find(|one| one.name == cell);
    found.ok_or_else(|| format!("“{cell}” was not measured"))
}

impl Panel {
    /// The panel as a section, which the plots draw.
    pub fn section(&self, figure: &str) -> Section {
        let row = |cell: &Cell| Row {
            cell: cell.name.clone(),
            contenders: cell.contenders.iter().map(|one| Summary::of_values(&one.name, &one.runs)).collect(),
            ..Row::default()
        };
        Section {
            title: format!("{figure}: {}", self.title),
            place: self.place.clone(),
            place_details: self.place_details.clone(),
            unit: self.unit,
            chart: self.chart,
            ratio_means: "",
            rows: self.cells.iter().map(row).collect(),
            notes: self.notes.clone(),
        }
    }
}

#[cfg(test)]
pub mod tests {
    use super::*;
    use crate::paper::verdict::Better;

    /// A panel with one cell, in which Untorn takes half of the peer's time in five runs.
    pub fn sample_panel() -> Panel {
        let runs = |name: &str, times: [f64; 5]| Runs { name: name.to_owned(), runs: times.to_vec() };
        Panel {
            name: "latency".to_owned(),
            title: "latency of a commit".to_owned(),
            place: "ext4".to_owned(),
            place_details: "ext4 on /dev/loop0".to_owned(),
            unit: Unit::Microseconds,
            chart: Chart::Lines,
            settings: vec![["peer".to_owned(), "as its manual says".to_owned()]],
            cells: vec![Cell {
                name: "4 pages".to_owned(),
                contenders: vec![
                    runs("Untorn", [10.0, 20.0, 30.0, 40.0, 50.0]),
                    runs("peer", [20.0, 40.0, 60.0, 80.0, 100.0]),
                ],
            }],
            notes: Vec::new(),
        }
    }

    pub fn sample_figure(paper: f64, cell: &str) -> Figure {
        Figure {
            name: "fig1".to_owned(),
            title: "Latency".to_owned(),
            workload: Some("latency".to_owned()),
            unmeasured: None,
            panels: Vec::new(),
            differs: None,
            behind: None,
            claims: vec![Claim {
                says: "A commit takes less.".to_owned(),
                panel: Some("latency".to_owned()),
                cell: Some(cell.to_owned()),
                divide: Some(["Untorn", "peer"].map(str::to_owned)),
                paper,
                unmeasured: None,
                better: Some(Better::Smaller),
            }],
        }
    }

    #[test]
    fn ratios_are_of_runs_of_one_time() {
        let judged = &judge(&sample_figure(0.7, "4 pages"), &[sample_panel()], None, false)[0];
        let ours = judged.ours.as_ref().unwrap();
        assert_eq!((ours.p25, ours.value, ours.p75, ours.rounds), (0.5, 0.5, 0.5, 5));
        assert_eq!((judged.verdict, &judged.why_none), (Some(Verdict::Surpassed), &None));
        assert_eq!(judged.of, "Untorn ÷ peer, 4 pages");
    }

    #[test]
    fn nothing_is_judged_that_was_not_measured() {
        let panel = sample_panel();
        let why = |figure: &Figure, unmeasured, quick| {
            let judged = judge(figure, std::slice::from_ref(&panel), unmeasured, quick).remove(0);
            assert_eq!(judged.verdict, None);
            (judged.ours.is_some(), judged.why_none.unwrap())
        };
        let figure = sample_figure(0.7, "4 pages");
        assert_eq!(why(&figure, Some("no disk"), false), (false, "no disk".to_owned()));
        assert_eq!(why(&figure, None, true), (true, "a quick run has no verdicts".to_owned()));
        let elsewhere = sample_figure(0.7, "8 pages");
        assert_eq!(why(&elsewhere, None, false), (false, "“8 pages” was not measured".to_owned()));
        let mut alone = panel.clone();
        alone.cells[0].contenders.pop();
        let judged = judge(&figure, &[alone], None, false).remove(0);
        assert_eq!(judged.why_none.unwrap(), "peer was not measured in “4 pages”");
    }

    #[test]
    fn the_json_can_be_read_again() {
        let judged = judge(&sample_figure(0.7, "4 pages"), &[sample_panel()], None, false);
        let done = Done {
            paper: "000".to_owned(),
            figure: "fig1".to_owned(),
            seconds: 1.5,
            unmeasured: None,
            panels: vec![sample_panel()],
            judged,
        };
        let text = serde_json::to_string(&done).unwrap();
        let again: Done = serde_json::from_str(&text).unwrap();
        assert_eq!(serde_json::to_string(&again).unwrap(), text);
    }
}
