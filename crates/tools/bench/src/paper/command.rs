//! `untorn-bench paper`: measures figures of the papers, and prints them beside the papers' numbers.

use crate::measuring::bench_run::Run;
use crate::measuring::unavailable::Unavailable;
use crate::measuring::{fs, scratch};
use crate::paper::figures;
use crate::paper::measured::{Done, Panel, Results, judge};
use crate::paper::numbers::{Figure, Paper, papers};
use crate::paper::setting::Setting;
use crate::paper::verdict::RUNS_MIN;
use crate::paper::{page, table};
use crate::plot;
use crate::report::outcome::clock;
use crate::report::section::Section;
use crate::report::status_line::StatusLine;
use anyhow::{Context, Result, anyhow, bail, ensure};
use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::time::Instant;
use untorn_terminal::{say, tell};

/// Measure figures of the papers that Untorn's ideas come from, beside the papers' numbers
///
/// Each number is a ratio between two contenders on one device. Needs root for disks of given speeds; figures that
/// this machine lacks something for are named with their reasons.
#[derive(clap::Args, Debug)]
pub struct PaperFigures {
    /// Papers (000 to 004), each alone or followed by names of its figures; all if none is named
    #[arg(value_name = "PAPER [FIGURE...]")]
    names: Vec<String>,

    /// List the papers and their figures, and measure nothing
    #[arg(long)]
    list: bool,

    /// Does it work? All figures in at most five minutes, and no verdicts
    #[arg(long)]
    quick: bool,

    /// Number of runs, at least 5; each figure compares within a run
    #[arg(long, value_name = "N", default_value_t = RUNS_MIN as u16, value_parser = clap::value_parser!(u16).range(RUNS_MIN as i64..))]
    runs: u16,

    /// Directory for the images of disks
    #[arg(long, value_name = "DIR", default_value = ".")]
    dir: PathBuf,

    /// Also write the measurements and verdicts as JSON
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,

    /// Also draw each figure as SVG, in this directory; with --page, from the results
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,

    /// Measure nothing: print the page of all papers in Markdown, from these results as JSON; a later one replaces an earlier
    /// one
    #[arg(long, value_name = "FILE", num_args = 0.., conflicts_with_all = ["list", "quick", "json"])]
    page: Option<Vec<PathBuf>>,

    /// With --page: the folder of the drawings, as the page sees it
    #[arg(long, value_name = "FOLDER", requires = "page")]
    pictures: Option<String>,
}

/// A figure to measure.
type Chosen<'a> = (&'a Paper, &'a Figure);

/// Finds the figures that the words name.
fn choose<'a>(papers: &'a [Paper], words: &[String]) -> Result<Vec<Chosen<'a>>> {
    let mut groups: Vec<(&Paper, Vec<&Figure>)> = Vec::new();
    for word in words {
        if let Some(paper) = papers.iter().find(|paper| paper.id == *word) {
            groups.push((paper, Vec::new()));
            continue;
        }
        let (paper, figures) = groups.last_mut().with_context(|| format!("there is no paper {word}; see --list"))?;
        let figure = paper.figures.iter().find(|figure| figure.name == *word);
        figures.push(figure.with_context(|| format!("paper {} has no {word}; see --list", paper.id))?);
    }
    if words.is_empty() {
        groups = papers.iter().map(|paper| (paper, Vec::new())).collect();
    }
    let of = |(paper, figures): (&'a Paper, Vec<&'a Figure>)| -> Vec<Chosen<'a>> {
        let figures = if figures.is_empty() { paper.figures.iter().collect() } else { figures };
        figures.into_iter().map(|figure| (paper, figure)).collect()
    };
    Ok(groups.into_iter().flat_map(of).collect())
}

impl PaperFigures {
    pub fn run(&self) -> Result<()> {
        let papers = papers()?;
        if let Some(files) = &self.page {
            let read = |path: &PathBuf| -> Result<Results> {
                let text = std::fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
                serde_json::from_str(&text).with_context(|| format!("{} has no results of papers", path.display()))
            };
            let results = files.iter().map(read).collect::<Result<Vec<_>>>()?;
            // A later result replaces the picture of an earlier one, too.
            results.iter().flat_map(|results| &results.figures).try_for_each(|done| self.draw(done))?;
            say!("{}", page::render(&papers, &results, self.pictures.as_deref()).trim_end());
            return Ok(());
        }
        let chosen = choose(&papers, &self.names)?;
        if self.list {
            for (paper, figure) in chosen {
                let why = figure.unmeasured.as_ref().map_or(String::new(), |why| format!(" (not measured: {why})"));
                say!("{} {:<8} {}{why}", paper.id, figure.name, figure.title);
            }
            return Ok(());
        }
        self.measure(&chosen)
    }

    fn measure(&self, chosen: &[Chosen<'_>]) -> Result<()> {
        let dir = self.dir.canonicalize().with_context(|| format!("cannot use {}", self.dir.display()))?;
        fs::enter_private_namespace();
        scratch::clean_up_on_signals()?;
        if cfg!(debug_assertions) {
            tell!("This is a debug build: its figures mean nothing. Build with --release.");
        }
        let run = Run {
            quick: self.quick,
            all: false,
            peers: false,
            runs: None,
            think_ms: Vec::new(),
            log_mib: Vec::new(),
            without: Vec::new(),
            dir,
            progress: StatusLine::new(),
        };
        let setting = Setting { run: &run, runs: if self.quick { 2 } else { self.runs.into() } };
        let mut results = Results {
            untorn_version: env!("CARGO_PKG_VERSION").to_owned(),
            kernel: std::fs::read_to_string("/proc/sys/kernel/osrelease")?.trim().to_owned(),
            processors: std::thread::available_parallelism()?.get(),
            quick: self.quick,
            figures: Vec::new(),
        };
        // Figures that show one workload in two ways share its measurement.
        let mut measured: BTreeMap<&str, Result<Vec<Panel>, (String, bool)>> = BTreeMap::new();
        let (mut failed, begun) = (0, Instant::now());
        for (n, (paper, figure)) in chosen.iter().enumerate() {
            let start = Instant::now();
            run.progress.benchmark(&format!("{} {}", paper.id, figure.name), n + 1, chosen.len());
            let (panels, unmeasured) = match &figure.workload {
                None => (Vec::new(), figure.unmeasured.clone()),
                Some(workload) => {
                    let measured = measured.entry(workload).or_insert_with(|| measure(workload, &setting));
                    match measured {
                        Ok(panels) => {
                            (panels.iter().filter(|panel| figure.shows(&panel.name)).cloned().collect(), None)
                        }
                        Err((why, is_failure)) => {
                            failed += usize::from(*is_failure);
                            (Vec::new(), Some(why.clone()))
                        }
                    }
                }
            };
            let judged = judge(figure, &panels, unmeasured.as_deref(), self.quick);
            let (paper, name) = (paper.id.clone(), figure.name.clone());
            let done = Done { paper, figure: name, seconds: start.elapsed().as_secs_f64(), unmeasured, panels, judged };
            run.progress.print(table::render(&done, &figure.title).trim_end());
            results.figures.push(done);
            self.write(&results)?;
        }
        let of = results.figures.iter().filter(|done| done.unmeasured.is_none()).count();
        let time = clock(begun.elapsed().as_secs_f64());
        run.progress.print(&format!("\n{of} of {} figures were measured in {time}", chosen.len()));
        ensure!(failed == 0, "{failed} of {} figures failed", chosen.len());
        Ok(())
    }

    /// Writes the results so far, and the picture of the last figure.
    fn write(&self, results: &Results) -> Result<()> {
        if let Some(path) = &self.json {
            write(path, serde_json::to_string_pretty(results)? + "\n")?;
        }
        results.figures.last().map_or(Ok(()), |last| self.draw(last))
    }

    /// Draws a figure that was measured.
    fn draw(&self, done: &Done) -> Result<()> {
        let Some(out) = self.out.as_ref().filter(|_| !done.panels.is_empty()) else { return Ok(()) };
        std::fs::create_dir_all(out).with_context(|| format!("cannot make {}", out.display()))?;
        let name = format!("{} {}", done.paper, done.figure);
        let sections: Vec<Section> = done.panels.iter().map(|panel| panel.section(&name)).collect();
        write(&out.join(format!("{}-{}.svg", done.paper, done.figure)), plot::render(&sections)?)
    }
}

fn write(path: &Path, text: String) -> Result<()> {
    std::fs::write(path, text).with_context(|| format!("cannot write {}", path.display()))
}

/// Measures a workload. An error has its reason, and whether it is a failure, not a lack of the machine.
fn measure(workload: &str, setting: &Setting<'_>) -> Result<Vec<Panel>, (String, bool)> {
    let measured = catch_unwind(AssertUnwindSafe(|| match figures::find(workload) {
        Some(measure) => measure(setting),
        None => bail!("there is no workload {workload}"),
    }));
    measured.unwrap_or_else(|_| Err(anyhow!("it panicked"))).map_err(|e| (format!("{e:#}"), !e.is::<Unavailable>()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(words: &[&str]) -> Result<Vec<String>> {
        let papers = papers().unwrap();
        let words: Vec<String> = words.iter().map(|&word| word.to_owned()).collect();
        Ok(choose(&papers, &words)?
            .into_iter()
            .map(|(paper, figure)| format!("{} {}", paper.id, figure.name))
            .collect())
    }

    #[test]
    fn figures_are_chosen_by_paper() {
        let all = names(&[]).unwrap();
        assert_eq!(names(&["003", "fig2", "000", "table1", "fig2"]).unwrap(), ["003 fig2", "000 table1", "000 fig2"]);
        let of_two: Vec<&String> =
            all.iter().filter(|name| name.starts_with("000") || name.starts_with("004")).collect();
        assert_eq!(names(&["000", "004"]).unwrap().iter().collect::<Vec<_>>(), of_two);
        for wrong in [&["fig2"][..], &["000", "fig99"], &["005"]] {
            assert!(names(wrong).is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn every_workload_of_the_data_is_here_and_used() {
        let papers = papers().unwrap();
        let figures = papers.iter().flat_map(|paper| &paper.figures);
        let used: Vec<&str> = figures.filter_map(|figure| figure.workload.as_deref()).collect();
        for workload in &used {
            assert!(figures::find(workload).is_some(), "{workload}");
        }
        for (name, _) in figures::WORKLOADS {
            assert!(used.contains(name), "{name}");
        }
    }
}
