//! The papers' figures, numbers and features, from `papers/*.toml`.

use crate::paper::verdict::Better;
use anyhow::{Context, Result, ensure};
use serde::Deserialize;

/// The data of each paper, by the paper's name on the command line.
const DATA: [(&str, &str); 5] = [
    ("000", include_str!("../../papers/000.toml")),
    ("001", include_str!("../../papers/001.toml")),
    ("002", include_str!("../../papers/002.toml")),
    ("003", include_str!("../../papers/003.toml")),
    ("004", include_str!("../../papers/004.toml")),
];

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Paper {
    #[serde(skip)]
    pub id: String,
    pub title: String,
    /// None if they are not known here.
    pub authors: Option<String>,
    pub venue: String,
    /// The idea, in a sentence or two.
    pub about: String,
    #[serde(rename = "figure")]
    pub figures: Vec<Figure>,
    #[serde(rename = "feature")]
    pub features: Vec<Feature>,
}

/// A figure or table of a paper.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Figure {
    /// The name on the command line: `fig2`, `table1`.
    pub name: String,
    pub title: String,
    /// The workload that measures it.
    pub workload: Option<String>,
    /// Instead: why it is not measured.
    pub unmeasured: Option<String>,
    /// The panels of the workload that belong to the figure; all if none is named.
    #[serde(default)]
    pub panels: Vec<String>,
    /// Differences of our workload from the paper's.
    pub differs: Option<String>,
    /// The reasons of verdicts that are behind.
    pub behind: Option<String>,
    #[serde(default, rename = "claim")]
    pub claims: Vec<Claim>,
}

impl Figure {
    /// Whether a panel of the workload belongs to the figure.
    pub fn shows(&self, panel: &str) -> bool {
        self.panels.is_empty() || self.panels.iter().any(|name| name == panel)
    }
}

/// A number of a paper: a ratio between two contenders.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Claim {
    /// The statement of the paper, and where it is.
    pub says: String,
    /// The panel and the cell of our workload. None if the figure is not measured.
    pub panel: Option<String>,
    pub cell: Option<String>,
    /// The dividend and the divisor.
    pub divide: Option<[String; 2]>,
    pub paper: f64,
    /// Instead of a place: why our workload does not measure it.
    pub unmeasured: Option<String>,
    /// The better direction. None for a ratio without better and worse, which gets no verdict.
    pub better: Option<Better>,
}

/// A feature of a paper, and this project's counterpart.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Feature {
    pub name: String,
    pub here: Here,
    pub how: String,
}

#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "kebab-case")]
pub enum Here {
    There,
    Different,
    Better,
    LeftOut,
}

impl Here {
    pub fn word(self) -> &'static str {
        match self {
            Here::There => "there",
            Here::Different => "different",
            Here::Better => "better",
            Here::LeftOut => "left out",
        }
    }
}

/// All papers, in their order.
pub fn papers() -> Result<Vec<Paper>> {
    DATA.iter().map(|(id, text)| parse(id, text)).collect()
}

fn parse(id: &str, text: &str) -> Result<Paper> {
    let paper: Paper = toml::from_str(text).with_context(|| format!("papers/{id}.toml"))?;
    for figure in &paper.figures {
        let name = &figure.name;
        ensure!(
            figure.workload.is_some() != figure.unmeasured.is_some(),
            "{id} {name}: needs either a workload or the reason for not measuring it"
        );
        for claim in &figure.claims {
            let has_place = claim.panel.is_some() && claim.cell.is_some() && claim.divide.is_some();
            let is_measured = figure.workload.is_some() && claim.unmeasured.is_none();
            ensure!(has_place == is_measured, "{id} {name}: claims of a workload name their place in it");
            ensure!(
                claim.panel.as_ref().is_none_or(|panel| figure.shows(panel)),
                "{id} {name}: a claim is of a panel that it shows"
            );
            ensure!(claim.paper > 0.0 && !claim.says.is_empty(), "{id} {name}: a claim has a ratio and a sentence");
        }
    }
    Ok(Paper { id: id.to_owned(), ..paper })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn every_paper_parses_and_names_its_figures_once() {
        for paper in papers().unwrap() {
            let names: BTreeSet<&str> = paper.figures.iter().map(|figure| figure.name.as_str()).collect();
            assert_eq!(names.len(), paper.figures.len(), "{}", paper.id);
            assert!(!names.is_empty() && !paper.features.is_empty(), "{}", paper.id);
        }
    }

    #[test]
    fn a_figure_has_a_workload_or_a_reason() {
        let text = |figure: &str| {
            format!(
                "title='t'\nauthors='a'\nvenue='v'\nabout='a'\n[[feature]]\nname='n'\nhere='there'\nhow='h'\n\
                 [[figure]]\nname='fig1'\ntitle='t'\n{figure}"
            )
        };
        let claim = "\n[[figure.claim]]\nsays='s'\npaper=2\n";
        let placed = "panel='p'\ncell='c'\ndivide=['a','b']\nbetter='larger'\n";
        let is_right = |figure: String| parse("9", &text(&figure)).is_ok();
        assert!(is_right(format!("workload='w'{claim}{placed}")));
        assert!(is_right(format!("unmeasured='why'{claim}")));
        assert!(!is_right(String::new()));
        assert!(!is_right("workload='w'\nunmeasured='why'".to_owned()));
        assert!(!is_right(format!("workload='w'{claim}")));
        assert!(!is_right(format!("unmeasured='why'{claim}{placed}")));
        assert!(!is_right(format!("workload='w'{}{placed}", claim.replace("paper=2", "paper=0"))));
        assert!(!is_right("workload='w'\nfurther='f'".to_owned()));
    }
}
