//! The table of mutants, `docs/generated/MUTANTS.md`, which has for each mutant a crash, a scenario or tests that show
//! it. `UNTORN_MUTANTS=check` refuses a table that is out of step, `UNTORN_MUTANTS=write` writes the new one.

use std::collections::BTreeMap;
use std::time::Instant;

const DOCUMENT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../../docs/generated/MUTANTS.md");

/// A sync point or an invariant that can be broken.
#[derive(Clone, Debug)]
pub struct Row {
    /// Its name.
    pub name: String,
    /// Its description.
    pub about: &'static str,
    /// The reason why no test of the gate needs it.
    pub why_not: Option<&'static str>,
}

/// The rows of a section: for each name, the text that says how the mutant is shown.
pub fn listed(section: &str) -> BTreeMap<String, String> {
    let document = std::fs::read_to_string(DOCUMENT).unwrap_or_default();
    let rows = body(&document, section).lines().filter_map(|line| {
        let cells: Vec<&str> = line.trim_matches('|').split('|').map(str::trim).collect();
        let [name, _, shown] = cells[..] else { return None };
        Some((name.strip_prefix('`')?.trim_end_matches('`').to_owned(), shown.to_owned()))
    });
    rows.collect()
}

fn body<'d>(document: &'d str, section: &str) -> &'d str {
    let Some((_, rest)) = document.split_once(&format!("## {section}\n")) else { return "" };
    rest.split_once("\n## ").map_or(rest, |(body, _)| body)
}

fn wanted(how: &str) -> bool {
    std::env::var("UNTORN_MUTANTS").is_ok_and(|wanted| wanted == how)
}

/// Whether the table must show each mutant as it is.
pub fn is_checking() -> bool {
    wanted("check")
}

/// Shows each mutant, and checks or writes the section of the table.
///
/// `show` gets the position of the mutant, and the text of its row so far. It returns the text of the row, or `None` if
/// nothing shows the mutant.
///
/// # Panics
/// If a mutant survives, or if the table is out of step.
pub fn check_section(section: &str, rows: &[Row], show: &mut dyn FnMut(usize, Option<&str>) -> Option<String>) {
    let listed = listed(section);
    let mut text = format!("\n| {} | purpose | without it |\n|---|---|---|\n", section.to_lowercase());
    let mut survived = Vec::new();
    for (n, Row { name, about, why_not }) in rows.iter().enumerate() {
        let started = Instant::now();
        let shown = why_not.map(str::to_owned).or_else(|| show(n, listed.get(name).map(String::as_str)));
        let shown = shown.unwrap_or_else(|| {
            survived.push(name);
            "SURVIVES".to_owned()
        });
        println!("{name}: {shown} ({:.1} s)", started.elapsed().as_secs_f32());
        text += &format!("| `{name}` | {about} | {shown} |\n");
    }
    let document = std::fs::read_to_string(DOCUMENT).unwrap_or_default();
    let old = body(&document, section).to_owned();
    if wanted("write") {
        let heading = format!("## {section}\n");
        let new = document.replacen(&format!("{heading}{old}"), &format!("{heading}{text}"), 1);
        std::fs::write(DOCUMENT, new).expect("the table is written");
    }
    assert!(survived.is_empty(), "nothing misses {survived:?}; `make mutants WRITE=1` looks for other crashes");
    assert!(
        !is_checking() || old == text,
        "docs/generated/MUTANTS.md is out of step; `make mutants WRITE=1` writes it"
    );
}
