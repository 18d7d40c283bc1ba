//! The table of mutants, `docs/generated/MUTANTS.md`, which has for each mutant a small crash that shows it. If the
//! crash of a row no longer shows it, because calls have other numbers now, another crash is searched. With
//! `UNTORN_MUTANTS=check` that is an error, too, and `UNTORN_MUTANTS=write` writes the new table.

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Instant;
use untorn_crashlab::enumeration::enumerate::{NO_SUCH_CALL, again};
use untorn_crashlab::programs::program::Case;
use untorn_crashlab::scenarios::SCENARIOS;

const DOCUMENT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../../docs/generated/MUTANTS.md");

/// A sync point or an invariant that can be broken.
pub struct Mutant {
    /// Its name.
    pub name: String,
    /// Its description.
    pub about: &'static str,
    /// The reason why no test here needs it.
    pub why_not: Option<&'static str>,
    /// Sync points that are skipped, as bits.
    pub skipped: u64,
    /// The scenario that shows it, if no crash does.
    pub scenario: Option<&'static str>,
}

/// The rows of a section: for each name, the crash or scenario that shows the mutant.
pub fn listed(section: &str) -> BTreeMap<String, String> {
    let document = std::fs::read_to_string(DOCUMENT).unwrap_or_default();
    let rows = body(&document, section).lines().filter_map(|line| {
        let cells: Vec<&str> = line.trim_matches('|').split('|').map(str::trim).collect();
        let [name, _, shown] = cells[..] else { return None };
        Some((name.strip_prefix('`')?.trim_end_matches('`').to_owned(), shown.to_owned()))
    });
    rows.collect()
}

/// The case in a row.
pub fn case_of(shown: &str) -> Option<Case> {
    shown.strip_prefix('`')?.strip_suffix('`')?.parse().ok()
}

fn body<'d>(document: &'d str, section: &str) -> &'d str {
    let Some((_, rest)) = document.split_once(&format!("## {section}\n")) else { return "" };
    rest.split_once("\n## ").map_or(rest, |(body, _)| body)
}

/// Repeats a case; a panic is a violation, too.
pub fn run(case: &Case) -> Result<(), String> {
    catch_unwind(AssertUnwindSafe(|| again(case, &|_| {}))).unwrap_or_else(|_| Err("it panicked".into()))
}

/// Whether the case passes without the mutant and fails with it. The mutant may change the number of calls.
pub fn shows(case: &Case, skipped: u64, take: &dyn Fn(bool)) -> bool {
    take(false);
    let well = run(&Case { skipped: 0, ..case.clone() });
    let well = well.is_ok() || well.is_err_and(|what| what == NO_SUCH_CALL);
    take(true);
    let missed = run(&Case { skipped, ..case.clone() }).is_err_and(|what| what != NO_SUCH_CALL);
    take(false);
    well && missed
}

/// Whether the scenario passes: with the mutant that is switched on, if any.
fn goes_well(scenario: &str) -> bool {
    let play = SCENARIOS.iter().find(|(name, _)| *name == scenario).expect("a scenario of that name").1;
    matches!(catch_unwind(AssertUnwindSafe(play)), Ok(Ok(())))
}

/// Whether the scenario passes without the mutant and fails with it. A scenario that has passed once is not repeated,
/// as several mutants share a scenario.
fn scenario_shows(scenario: &'static str, well: &mut BTreeMap<&'static str, bool>, take: &dyn Fn(bool)) -> bool {
    take(true);
    let missed = !goes_well(scenario);
    take(false);
    missed && *well.entry(scenario).or_insert_with(|| goes_well(scenario))
}

/// Switches each mutant on, and checks the section of the table. `take` switches it, `search` looks for a case that
/// shows it.
pub fn gate(section: &str, mutants: &[Mutant], take: &dyn Fn(&Mutant, bool), search: &dyn Fn(&Mutant) -> Option<Case>) {
    let how = std::env::var("UNTORN_MUTANTS").unwrap_or_default();
    let (writing, checking) = (how == "write", how == "check");
    let listed = listed(section);
    let mut text = format!("\n| {} | what it is about | without it |\n|---|---|---|\n", section.to_lowercase());
    let mut survived = Vec::new();
    let mut well = BTreeMap::new();
    for mutant in mutants {
        let started = Instant::now();
        let take = |away| take(mutant, away);
        let old = listed.get(&mutant.name);
        let case = old.and_then(|shown| case_of(shown)).filter(|case| shows(case, mutant.skipped, &take));
        let scenario = mutant
            .scenario
            .filter(|scenario| scenario_shows(scenario, &mut well, &take))
            .map(|scenario| format!("scenario `{scenario}`"));
        let searched = || if checking { None } else { search(mutant) };
        let shown = match mutant.why_not {
            Some(why) => Some(why.to_owned()),
            None => (case.map(|case| format!("`{case}`")))
                .or(scenario)
                .or_else(|| searched().map(|case| format!("`{case}`"))),
        };
        let shown = shown.unwrap_or_else(|| {
            survived.push(&mutant.name);
            "SURVIVES".to_owned()
        });
        println!("{}: {shown} ({:.1} s)", mutant.name, started.elapsed().as_secs_f32());
        text += &format!("| `{}` | {} | {shown} |\n", mutant.name, mutant.about);
    }
    let document = std::fs::read_to_string(DOCUMENT).unwrap_or_default();
    let old = body(&document, section).to_owned();
    if writing {
        let heading = format!("## {section}\n");
        let new = document.replacen(&format!("{heading}{old}"), &format!("{heading}{text}"), 1);
        std::fs::write(DOCUMENT, new).expect("the table is written");
    }
    assert!(survived.is_empty(), "nothing misses {survived:?}; `make mutants WRITE=1` looks for other crashes");
    assert!(!checking || old == text, "docs/generated/MUTANTS.md is out of step; `make mutants WRITE=1` writes it");
}
