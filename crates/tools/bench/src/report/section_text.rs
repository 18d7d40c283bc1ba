//! Prints sections as text.

use crate::report::section::{Chart, Extras, Row, Section, Target, Verdict};
use crate::report::statistics::Ratio;
use untorn_terminal::table::{Align, aligned};

/// Text in columns: the first `left` columns are aligned to the left, all others to the right.
struct Columns {
    left: usize,
    lines: Vec<Vec<String>>,
}

impl Columns {
    fn new(left: usize, heads: impl IntoIterator<Item = String>) -> Columns {
        Columns { left, lines: vec![heads.into_iter().collect()] }
    }

    fn render(&self) -> String {
        let (head, rows) = self.lines.split_first().expect("a head");
        aligned(head, rows, |column| if column < self.left { Align::Left } else { Align::Right })
    }
}

/// The whole section as text: the place, the times, the further figures, and the notes.
pub fn render(section: &Section) -> String {
    let mut out = format!("\n{} on {}\n{}\n\n", section.title, section.place, section.place_details);
    let times = if section.chart == Chart::Groups { grid(section) } else { times(section) };
    out.push_str(&times.render());
    for further in [extras(section), details(section)].into_iter().flatten() {
        out.push('\n');
        out.push_str(&further.render());
    }
    out.push('\n');
    out.push_str(&format!("Ratio: {}, the median of the rounds.\n", section.ratio_means));
    for note in &section.notes {
        out.push_str(note);
        out.push('\n');
    }
    out
}

/// The table with a line for each contender. The row's ratio is in the first line, Untorn's.
fn times(section: &Section) -> Columns {
    let unit = section.unit.name();
    let mut heads = vec!["cell".to_owned(), "load".to_owned(), "what".to_owned(), "samples".to_owned()];
    heads.extend(["mean", "p25", "median", "p75", "p99.9"].map(|head| format!("{head} {unit}")));
    heads.extend(["ratio ×", "p25–p75 ×", "target ×", "verdict"].map(str::to_owned));
    let mut columns = Columns::new(3, heads);
    for row in &section.rows {
        for (n, contender) in row.contenders.iter().enumerate() {
            let best = row.ratio.as_ref().is_some_and(|ratio| ratio.against == contender.name);
            let mut line = if n == 0 { vec![row.cell.clone(), row.load.clone()] } else { vec![String::new(); 2] };
            line.push(if best { format!("{} *", contender.name) } else { contender.name.clone() });
            line.push(contender.samples.to_string());
            let c = contender;
            let times_us = [c.mean_us, c.p25_us, c.median_us, c.p75_us, c.p999_us];
            line.extend(times_us.map(|us| format!("{:.1}", section.unit.scale_us(us))));
            line.extend(verdict(row, n));
            columns.lines.push(line);
        }
    }
    columns
}

/// The table with a line for each contender and a column for each row of the section: median and quartiles, and the
/// ratios below.
fn grid(section: &Section) -> Columns {
    let unit = section.unit.name();
    let heads = section.rows.iter().map(|row| format!("{} {unit}", row.cell));
    let mut columns = Columns::new(1, std::iter::once("what".to_owned()).chain(heads));
    let mut line = |name: &str, cell: &dyn Fn(&Row) -> String| {
        columns.lines.push(std::iter::once(name.to_owned()).chain(section.rows.iter().map(cell)).collect());
    };
    let names = section.rows.first().map_or(&[][..], |row| &row.contenders);
    for contender in names {
        line(&contender.name, &|row| {
            let Some(c) = row.contenders.iter().find(|c| c.name == contender.name) else { return "–".to_owned() };
            let [p25, median, p75] = [c.p25_us, c.median_us, c.p75_us].map(|us| section.unit.scale_us(us));
            let decimals = if median < 1.0 { 3 } else { 1 };
            format!("{median:.decimals$} ({p25:.decimals$}–{p75:.decimals$})")
        });
    }
    let ratio = |ratio: &Ratio, verdict: Option<Verdict>| {
        let verdict = verdict.map_or(String::new(), |verdict| format!("{}: ", verdict.word()));
        format!("{verdict}{:.2} ({:.2}–{:.2}) × {}", ratio.value, ratio.p25, ratio.p75, ratio.against)
    };
    let target = |target: Option<Target>| target.map_or("ratio".to_owned(), |target| format!("target {target}"));
    if let Some(first) = section.rows.first() {
        line(&target(first.target), &|row| row.ratio.as_ref().map_or(String::new(), |r| ratio(r, row.verdict)));
        for (n, other) in first.others.iter().enumerate() {
            line(&target(other.target), &|row| {
                row.others.get(n).map_or(String::new(), |other| ratio(&other.ratio, other.verdict))
            });
        }
    }
    columns
}

fn verdict(row: &Row, contender: usize) -> [String; 4] {
    let other = row.others.iter().find(|other| other.beside == row.contenders[contender].name);
    match other {
        _ if contender == 0 => verdict_cells(row.ratio.as_ref(), row.target, row.verdict),
        Some(other) => verdict_cells(Some(&other.ratio), other.target, other.verdict),
        None => Default::default(),
    }
}

fn verdict_cells(ratio: Option<&Ratio>, target: Option<Target>, verdict: Option<Verdict>) -> [String; 4] {
    [
        ratio.map_or(String::new(), |r| format!("{:.2}", r.value)),
        ratio.map_or(String::new(), |r| format!("{:.2}–{:.2}", r.p25, r.p75)),
        target.map_or(String::new(), |target| target.to_string()),
        verdict.map_or(String::new(), |verdict| verdict.word().to_owned()),
    ]
}

fn heads<'a>(extras: impl Iterator<Item = &'a Extras>) -> Vec<&'static str> {
    let mut heads = Vec::new();
    for head in extras.flat_map(Extras::heads) {
        if !heads.contains(&head) {
            heads.push(head);
        }
    }
    heads
}

/// The third table: further figures of single contenders, one line each.
fn details(section: &Section) -> Option<Columns> {
    let heads = heads(section.rows.iter().flat_map(|row| &row.details).map(|(_, extras)| extras));
    if heads.is_empty() {
        return None;
    }
    let mut columns = Columns::new(3, ["cell", "load", "what"].iter().chain(&heads).map(|head| (*head).to_owned()));
    for row in &section.rows {
        for (n, (name, extras)) in row.details.iter().enumerate() {
            let mut line = if n == 0 { vec![row.cell.clone(), row.load.clone()] } else { vec![String::new(); 2] };
            line.push(name.clone());
            line.extend(heads.iter().map(|head| extras.text(head)));
            columns.lines.push(line);
        }
    }
    Some(columns)
}

/// The second table: the further figures of rows, one line each.
fn extras(section: &Section) -> Option<Columns> {
    let heads = heads(section.rows.iter().map(|row| &row.extras));
    if heads.is_empty() {
        return None;
    }
    let mut columns = Columns::new(2, ["cell", "load"].iter().chain(&heads).map(|head| (*head).to_owned()));
    for row in &section.rows {
        let mut line = vec![row.cell.clone(), row.load.clone()];
        line.extend(heads.iter().map(|head| row.extras.text(head)));
        columns.lines.push(line);
    }
    Some(columns)
}

#[cfg(test)]
pub mod tests {
    use super::*;
    use crate::report::section::{Chart, Extras, Target, Unit, Waited};
    use crate::report::statistics::{Measured, Ratio};
    use std::time::Duration;

    /// A section with one row, for the tests of the table and of the plot.
    pub fn sample() -> Section {
        let [ours, floor] = [("Untorn", 120), ("floor, buffered <&>", 100)].map(|(name, us)| {
            let mut m = Measured::new(name);
            m.push(Duration::from_micros(us));
            m
        });
        let mut extras = Extras::default();
        extras.add("syncs per commit", 1.0, 3);
        let row = Row {
            cell: "4 KiB".to_owned(),
            load: "saturated".to_owned(),
            contenders: vec![ours.summary(), floor.summary()],
            ratio: Some(Ratio::cost(&ours, &[&floor])),
            extras,
            ..Row::default()
        };
        Section {
            title: "commit".to_owned(),
            chart: Chart::Bars,
            place: "xfs".to_owned(),
            place_details: "xfs (rw) on /dev/loop0".to_owned(),
            unit: Unit::Microseconds,
            ratio_means: "Untorn ÷ floor",
            rows: vec![row.against_target(Some(Target::AtMost(1.25)), Waited::Allowed, false)],
            notes: vec!["A note.".to_owned()],
        }
    }

    #[test]
    fn groups_read_as_a_line_for_each_contender() {
        let text = render(&Section { chart: Chart::Groups, ..sample() });
        assert!(text.contains("120.0 (120.0–120.0)\n"), "{text}");
        assert!(text.contains("target ≤ 1.25        reached: 1.20 (1.20–1.20) × floor, buffered <&>\n"), "{text}");
    }

    #[test]
    fn a_section_reads_as_text() {
        let expected = "
commit on xfs
xfs (rw) on /dev/loop0

cell   load       what                   samples  mean µs  p25 µs  median µs  p75 µs  p99.9 µs  ratio ×  p25–p75 ×  target ×  verdict
─────  ─────────  ─────────────────────  ───────  ───────  ──────  ─────────  ──────  ────────  ───────  ─────────  ────────  ───────
4 KiB  saturated  Untorn                       1    120.0   120.0      120.0   120.0     120.0     1.20  1.20–1.20    ≤ 1.25  reached
                  floor, buffered <&> *        1    100.0   100.0      100.0   100.0     100.0

cell   load       syncs per commit
─────  ─────────  ────────────────
4 KiB  saturated             1.000

Ratio: Untorn ÷ floor, the median of the rounds.
A note.
";
        assert_eq!(render(&sample()), expected);
    }
}
