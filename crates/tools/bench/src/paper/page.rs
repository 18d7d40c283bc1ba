//! `docs/PAPERS.md`: for each paper its numbers beside ours, and its features beside ours.

use crate::paper::measured::{Done, Results, judge};
use crate::paper::numbers::{Figure, Paper};
use crate::paper::table::{digits, ours, verdict};
use crate::paper::verdict::Verdict;
use std::fmt::Write;

const HEAD: &str = "# The papers

Five papers gave this project its ideas. For each, this page sets the numbers of its evaluation beside ours, and its features \
beside ours. `make papers` measures all figures and writes this page: by `untorn-bench paper --json`, then `--page`. The numbers and \
the features are in `crates/tools/bench/papers`.

A number is a ratio between two contenders on one device, in one run, in turns: no absolute times, as the machines differ. Ours is \
the median of at least five runs (in brackets: quartiles). *Surpassed*: both quartiles are better than the paper's ratio; \
*reproduced*: they enclose it; *behind*: both are worse. The sentences restate the papers.
";

/// Begins the reasons of verdicts that are behind.
const BEHIND: &str = "Why behind:";

/// The whole page. `pictures` is the folder of the drawings as the page sees it.
pub fn render(papers: &[Paper], results: &[Results], pictures: Option<&str>) -> String {
    let mut text = HEAD.to_owned();
    // Each setting once, with its figures.
    let mut settings: Vec<(String, Vec<String>)> = Vec::new();
    for results in results {
        let quick = if results.quick { "; a quick run, which has no verdicts" } else { "" };
        let Results { untorn_version, kernel, processors, .. } = results;
        let setting = format!("Untorn {untorn_version}, Linux {kernel}, {processors} processors{quick}");
        let figures = results.figures.iter().map(|done| format!("{} {}", done.paper, done.figure));
        match settings.iter_mut().find(|(known, _)| *known == setting) {
            Some((_, all)) => all.extend(figures),
            None => settings.push((setting, figures.collect())),
        }
    }
    for (setting, mut figures) in settings {
        figures.sort();
        figures.dedup();
        let _ = write!(text, "\nMeasured with {setting}: {}.\n", figures.join(", "));
    }
    for paper in papers {
        let authors = paper.authors.as_ref().map_or(String::new(), |authors| format!("{authors}. "));
        let _ = write!(text, "\n## {}: {}\n\n{authors}{}.\n\n{}\n", paper.id, paper.title, paper.venue, paper.about);
        let _ = write!(text, "\n### {}: numbers\n", paper.id);
        for figure in &paper.figures {
            text += &of_figure(paper, figure, results, pictures);
        }
        text += &features(paper);
    }
    text
}

/// The figure's table: the last result that has it.
fn of_figure(paper: &Paper, figure: &Figure, results: &[Results], pictures: Option<&str>) -> String {
    let found = results.iter().rev().find_map(|results| {
        let is_it = |done: &&Done| done.paper == paper.id && done.figure == figure.name;
        results.figures.iter().find(is_it).map(|done| (done, results.quick))
    });
    let mut text = format!("\n**{}: {}.**", figure.name, figure.title);
    if let Some(differs) = &figure.differs {
        let _ = write!(text, " {differs}");
    }
    let (panels, unmeasured, quick) = match found {
        Some((done, quick)) => (&done.panels[..], done.unmeasured.as_deref(), quick),
        None => (&[][..], Some(figure.unmeasured.as_deref().unwrap_or("no result has it yet")), false),
    };
    if let Some(why) = unmeasured {
        let _ = write!(text, " Not measured: {why}.");
    }
    text += "\n";
    if !figure.claims.is_empty() {
        text += "\n| the paper | ratio | paper | ours | verdict |\n|---|---|---|---|---|\n";
    }
    let mut is_behind = false;
    let mut rows = judge(figure, panels, unmeasured, quick);
    // Each statement of the paper once, with all its ratios.
    let statements: Vec<String> = rows.iter().map(|judged| judged.says.clone()).collect();
    rows.sort_by_key(|judged| statements.iter().position(|says| *says == judged.says));
    let mut said = "";
    for judged in &rows {
        is_behind |= judged.verdict == Some(Verdict::Behind);
        let verdict = if unmeasured.is_some() { "not measured".to_owned() } else { verdict(judged) };
        let says = if judged.says == said { "" } else { &judged.says };
        let (paper, ours) = (digits(judged.paper), ours(judged));
        let _ = writeln!(text, "| {says} | {} | {paper} | {ours} | {verdict} |", judged.of);
        said = &judged.says;
    }
    if let (Some(why), true) = (&figure.behind, is_behind) {
        let _ = write!(text, "\n{BEHIND} {why}\n");
    }
    if let (Some(pictures), false) = (pictures, panels.is_empty()) {
        let _ = write!(text, "\n![{}]({pictures}/{}-{}.svg)\n", figure.title, paper.id, figure.name);
    }
    text
}

/// The paper's features beside ours.
pub fn features(paper: &Paper) -> String {
    let mut text = format!("\n### {}: features\n\n| the paper | here | |\n|---|---|---|\n", paper.id);
    for feature in &paper.features {
        let _ = writeln!(text, "| {} | {} | {} |", feature.name, feature.here.word(), feature.how);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::paper::measured::tests::{sample_figure, sample_panel};
    use crate::paper::numbers::papers;

    fn sample_paper() -> Paper {
        let mut papers = papers().unwrap();
        Paper { figures: vec![sample_figure(0.7, "4 pages")], ..papers.remove(0) }
    }

    #[test]
    fn the_page_of_the_docs_has_the_features_of_the_data() {
        let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../../../docs/PAPERS.md");
        let page = std::fs::read_to_string(page).unwrap();
        for paper in papers().unwrap() {
            let table = features(&paper);
            assert!(page.contains(&table), "docs/PAPERS.md is out of step: `untorn-bench paper --page`\n{table}");
            for figure in &paper.figures {
                assert!(
                    page.contains(&format!("**{}: {}.**", figure.name, figure.title)),
                    "{} {}",
                    paper.id,
                    figure.name
                );
            }
        }
    }

    #[test]
    fn the_page_of_the_docs_says_why_we_are_behind() {
        let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../../../docs/PAPERS.md");
        let page = std::fs::read_to_string(page).unwrap();
        // Each figure begins with its name in bold.
        for figure in page.split("\n**").skip(1) {
            let is_said = !figure.contains("| behind |") || figure.contains(BEHIND);
            assert!(is_said, "docs/PAPERS.md gives no reason: {}", figure.lines().next().unwrap_or_default());
        }
    }

    #[test]
    fn a_later_result_replaces_an_earlier_one() {
        let results = |times: f64| Results {
            untorn_version: "1".to_owned(),
            kernel: "6".to_owned(),
            processors: 2,
            quick: false,
            figures: vec![Done {
                paper: "000".to_owned(),
                figure: "fig1".to_owned(),
                seconds: 1.0,
                unmeasured: None,
                panels: vec![{
                    let mut panel = sample_panel();
                    panel.cells[0].contenders[0].runs.iter_mut().for_each(|time| *time *= times);
                    panel
                }],
                judged: Vec::new(),
            }],
        };
        let page = render(&[sample_paper()], &[results(1.0), results(2.0)], Some("pictures"));
        assert!(page.contains("| 0.700 | 1.00 (1.00–1.00) | behind |"), "{page}");
        assert!(page.contains("](pictures/000-fig1.svg)"), "{page}");
        assert_eq!(page.matches("Measured with").count(), 1, "{page}");
        let page = render(&[sample_paper()], &[], None);
        assert!(
            page.contains("Not measured: no result has it yet.") && page.contains("| 0.700 | – | not measured |"),
            "{page}"
        );
    }
}
