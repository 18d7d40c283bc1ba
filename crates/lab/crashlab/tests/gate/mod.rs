//! Shows mutants by crashes and scenarios. If the crash of a row no longer shows its mutant, because calls have other
//! numbers now, another crash is searched. With `UNTORN_MUTANTS=check` that is an error, too.

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use untorn_crashlab::enumeration::enumerate::{NO_SUCH_CALL, again};
use untorn_crashlab::mutants_table::{Row, check_section, is_checking};
use untorn_crashlab::programs::program::Case;
use untorn_crashlab::scenarios::SCENARIOS;

/// A sync point or an invariant that can be broken.
pub struct Mutant {
    /// Its row in the table.
    pub row: Row,
    /// Sync points that are skipped, as bits.
    pub skipped: u64,
    /// The scenario that shows it, if no crash does.
    pub scenario: Option<&'static str>,
}

/// The case in a row.
pub fn case_of(shown: &str) -> Option<Case> {
    shown.strip_prefix('`')?.strip_suffix('`')?.parse().ok()
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
    let mut well = BTreeMap::new();
    let rows: Vec<Row> = mutants.iter().map(|mutant| mutant.row.clone()).collect();
    check_section(section, &rows, &mut |n, old| {
        let mutant = &mutants[n];
        let take = |away| take(mutant, away);
        let case = old.and_then(case_of).filter(|case| shows(case, mutant.skipped, &take));
        let by_scenario = || {
            let shown = mutant.scenario.filter(|scenario| scenario_shows(scenario, &mut well, &take));
            shown.map(|scenario| format!("scenario `{scenario}`"))
        };
        let searched = || if is_checking() { None } else { search(mutant) };
        let shown = case.map(|case| format!("`{case}`")).or_else(by_scenario);
        shown.or_else(|| searched().map(|case| format!("`{case}`")))
    });
}
