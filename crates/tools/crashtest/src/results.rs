//! The results of a test, for people and for CI.

use crate::job::Done;
use quick_junit::{NonSuccessKind, Report, TestCase, TestCaseStatus, TestSuite};
use std::fmt::Write;
use std::path::Path;
use std::time::Duration;
use untorn_crashlab::device::FileSystem;
use untorn_terminal::Failure;
use untorn_terminal::table::table;

/// The result on one file system.
pub struct Result {
    pub fs: FileSystem,
    pub done: Done,
    pub took: Duration,
}

/// The verdict as text. `again` is the command that shows a state again.
pub fn text(results: &[Result], again: &str, kept: &Path, seed: u64) -> String {
    let mut text = String::new();
    for Result { fs, done, .. } in results {
        let Some(found) = &done.violation else { continue };
        let _ = writeln!(text, "VIOLATION on {fs}\n{}\n", found.text);
        let _ =
            writeln!(text, "to see it again:   {again} --fs {fs} --replay {} --keep {}", found.seed, kept.display());
        let _ = writeln!(text, "to look at it:     mount -o loop {} /mnt\n", found.image.display());
    }
    let head = [
        "file system",
        "acknowledged",
        "flushes",
        "crash states",
        "reordered",
        "torn",
        "violations",
        "could not be mounted",
    ];
    let mut rows = Vec::new();
    for Result { fs, done, .. } in results {
        let numbers =
            [done.acknowledged, done.flushes, done.states, done.reordered, done.torn, done.broken, done.unmountable];
        rows.push([fs.name().to_owned()].into_iter().chain(numbers.iter().map(u64::to_string)).collect());
    }
    text += &table(&head, &rows);
    let violated = results.iter().filter(|r| r.done.violation.is_some()).count();
    text += &match (violated, results.iter().map(|r| r.done.states).sum::<u64>()) {
        (0, 0) => "NOTHING WAS CHECKED: no write was in flight at any moment\n".to_owned(),
        (0, _) => format!("no violation found (seed {seed})\n"),
        (n, _) => format!("VIOLATED on {n} of {} file systems (seed {seed})\n", results.len()),
    };
    text
}

/// Writes the results as JUnit's XML, a test case for each file system.
pub fn junit(results: &[Result], program: &[String], path: &Path) -> std::result::Result<(), Failure> {
    let mut suite = TestSuite::new(env!("CARGO_BIN_NAME"));
    for Result { fs, done, took } in results {
        let status = match &done.violation {
            None => TestCaseStatus::success(),
            Some(found) => {
                let mut status = TestCaseStatus::non_success(NonSuccessKind::Failure);
                status.set_message("a power cut breaks what was acknowledged").set_description(&found.text);
                status
            }
        };
        let mut case = TestCase::new(format!("{} on {fs}", program.join(" ")), status);
        case.set_time(*took);
        suite.add_test_case(case);
    }
    let mut report = Report::new(env!("CARGO_BIN_NAME"));
    report.add_test_suite(suite);
    let xml = report.to_string().map_err(|e| Failure::new(format!("cannot write JUnit's XML: {e}")))?;
    std::fs::write(path, xml).map_err(|e| Failure::io("write", path, e))
}
