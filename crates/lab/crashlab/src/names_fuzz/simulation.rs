//! Programs over names on the simulated disk, crashed at random moments, and during the recovery.

use crate::names_fuzz::effort::{NameEffort, NameTotals};
use crate::names_fuzz::program::{NameProgram, NameStep};
use crate::names_fuzz::run::{Mark, Run};
use crate::names_fuzz::tree::{NameTree, Rights};
use crate::simulation::{Options, SimDisk};
use std::fmt;
use std::time::Instant;
use untorn::FailureClass;

/// A program that led the store to a wrong state, by itself or by a crash.
#[derive(Clone, Debug)]
pub struct NameViolation {
    /// The program.
    pub program: NameProgram,
    /// The description.
    pub what: String,
}

impl fmt::Display for NameViolation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let NameViolation { program, what } = self;
        write!(
            f,
            "{program}\n  {what}\n  again: UNTORN_NAMES_CASE='{program}' cargo test -p untorn-crashlab --test names again \
             -- --nocapture"
        )
    }
}

/// Runs a program, and crashes it at random moments.
pub fn try_program(program: &NameProgram, effort: NameEffort) -> Result<NameTotals, NameViolation> {
    let wrong = |what| NameViolation { program: program.clone(), what };
    let permissions = effort.alphabet.rights == Rights::Recoverable;
    let disk = SimDisk::new(Options { permissions, ..program.setup.disk(0) });
    let start = Mark { class: FailureClass::Power, ..Mark::default() };
    let mut run = Run::open(program, effort, disk, vec![NameTree::default()], start).map_err(wrong)?;
    run.totals.programs = 1;
    for (nth, step) in program.steps.iter().enumerate() {
        run.step(step, nth as u64).map_err(|what| wrong(format!("step {nth}, {}: {what}", name_of(step))))?;
    }
    run.end().map_err(wrong)?;
    Ok(run.totals)
}

fn name_of(step: &NameStep) -> String {
    step.to_string().split('=').next().unwrap_or_default().to_owned()
}

/// The smallest program found that still shows a violation, minimised by leaving out single steps and changes.
pub fn smallest_violation(found: NameViolation, effort: NameEffort, until: Instant) -> NameViolation {
    let effort = NameEffort { moments: effort.moments.max(1) * 4, cuts: effort.cuts.max(1) * 2, ..effort };
    let mut smallest = found;
    'again: loop {
        for program in smallest.program.smaller() {
            if Instant::now() > until {
                return smallest;
            }
            if let Err(violation) = try_program(&program, effort) {
                smallest = violation;
                continue 'again;
            }
        }
        return smallest;
    }
}
