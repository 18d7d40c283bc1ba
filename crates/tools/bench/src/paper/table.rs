//! A figure as text: all contenders of each cell, and the paper's numbers beside ours.

use crate::paper::measured::{Cell, Done, Judged, Panel};
use crate::report::statistics::Summary;
use untorn_terminal::table::{Align, aligned};

/// The contender that all others are compared with in the table of a panel.
const OURS: &str = "Untorn";

/// The whole figure.
pub fn render(done: &Done, title: &str) -> String {
    let mut text = format!("\n{} {}: {title}\n", done.paper, done.figure);
    if let Some(why) = &done.unmeasured {
        text += &format!("not measured: {why}\n");
    }
    for panel in &done.panels {
        text += &format!("\n{} on {}\n{}\n\n", panel.title, panel.place, panel.place_details);
        text += &cells(panel);
        for [name, setting] in &panel.settings {
            text += &format!("{name}: {setting}\n");
        }
        for note in &panel.notes {
            text += &format!("{note}\n");
        }
    }
    if !done.judged.is_empty() {
        text += "\n";
        text += &claims(&done.judged, done.unmeasured.is_some());
    }
    text
}

/// A number with some three digits.
pub fn digits(number: f64) -> String {
    let decimals = match number.abs() {
        100.0.. => 0,
        10.0.. => 1,
        1.0.. => 2,
        _ => 3,
    };
    format!("{number:.decimals$}")
}

/// The ratio and its quartiles, `0.51 (0.50–0.53)`.
pub fn ours(judged: &Judged) -> String {
    let ratio = judged.ours.as_ref();
    ratio.map_or("–".to_owned(), |r| format!("{} ({}–{})", digits(r.value), digits(r.p25), digits(r.p75)))
}

/// The verdict; without one, the reason.
pub fn verdict(judged: &Judged) -> String {
    match (judged.verdict, &judged.why_none, &judged.ours) {
        (Some(verdict), _, _) => verdict.word().to_owned(),
        (None, Some(why), Some(_)) => format!("no verdict: {why}"),
        (None, Some(why), None) => format!("not measured: {why}"),
        (None, None, _) => String::new(),
    }
}

fn claims(judged: &[Judged], is_unmeasured: bool) -> String {
    let head = ["the paper", "ratio", "paper", "ours", "verdict"].map(str::to_owned);
    // The reason stands above.
    let verdict = |one: &Judged| if is_unmeasured { "not measured".to_owned() } else { verdict(one) };
    let row = |one: &Judged| vec![one.says.clone(), one.of.clone(), digits(one.paper), ours(one), verdict(one)];
    let rows: Vec<Vec<String>> = judged.iter().map(row).collect();
    aligned(&head, &rows, |column| if [2, 3].contains(&column) { Align::Right } else { Align::Left })
}

fn cells(panel: &Panel) -> String {
    let unit = panel.unit.name();
    let head = ["cell".to_owned(), "contender".to_owned(), format!("median {unit}"), "p25–p75".to_owned()];
    let head: Vec<String> = head.into_iter().chain(["runs".to_owned(), format!("÷ {OURS}")]).collect();
    let rows: Vec<Vec<String>> = panel.cells.iter().flat_map(|cell| of_cell(panel, cell)).collect();
    aligned(&head, &rows, |column| if column < 2 { Align::Left } else { Align::Right })
}

fn of_cell(panel: &Panel, cell: &Cell) -> Vec<Vec<String>> {
    let summaries: Vec<Summary> =
        cell.contenders.iter().map(|contender| Summary::of_values(&contender.name, &contender.runs)).collect();
    let ours = summaries.iter().find(|summary| summary.name == OURS);
    let line = |(n, one): (usize, &Summary)| {
        let [p25, median, p75] = [one.p25_us, one.median_us, one.p75_us].map(|us| digits(panel.unit.scale_us(us)));
        let against = ours.map_or(String::new(), |ours| digits(one.median_us / ours.median_us));
        let cell = if n == 0 { cell.name.clone() } else { String::new() };
        vec![cell, one.name.clone(), median, format!("{p25}–{p75}"), one.samples.to_string(), against]
    };
    summaries.iter().enumerate().map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::paper::measured::judge;
    use crate::paper::measured::tests::{sample_figure, sample_panel};

    #[test]
    fn a_figure_reads_as_text() {
        let (figure, panels) = (sample_figure(0.7, "4 pages"), vec![sample_panel()]);
        let judged = judge(&figure, &panels, None, false);
        let done = |unmeasured: Option<&str>| Done {
            paper: "000".to_owned(),
            figure: figure.name.clone(),
            seconds: 1.0,
            unmeasured: unmeasured.map(str::to_owned),
            panels: panels.clone(),
            judged: judged.clone(),
        };
        let expected = "
000 fig1: Latency

latency of a commit on ext4
ext4 on /dev/loop0

cell     contender  median µs    p25–p75  runs  ÷ Untorn
───────  ─────────  ─────────  ─────────  ────  ────────
4 pages  Untorn          30.0  20.0–40.0     5      1.00
         peer            60.0  40.0–80.0     5      2.00
peer: as its manual says

the paper             ratio                   paper                 ours  verdict
────────────────────  ─────────────────────  ──────  ───────────────────  ─────────
A commit takes less.  Untorn ÷ peer, 4 pages  0.700  0.500 (0.500–0.500)  surpassed
";
        let words = |text: &str| text.split_whitespace().map(|word| word.replace('─', "")).collect::<Vec<_>>();
        assert_eq!(words(&render(&done(None), "Latency")), words(expected));
        assert!(render(&done(Some("no disk")), "Latency").contains("not measured: no disk\n"));
    }
}
