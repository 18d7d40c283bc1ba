//! `untorn port-check`.

mod advice;
mod scanner;

use crate::json;
use advice::{Verdict, advice};
use clap::{Args, ValueHint};
use scanner::{Call, calls};
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use untorn_terminal::table::count;
use untorn_terminal::{Failure, Output};

/// List the calls of a C or C++ program that matter for porting it with untorn_posix.h.
///
/// Reads sources, not types: it finds calls by their names, with file and line, and prints how the header handles
/// each. It cannot see the calls in macro expansions and in other libraries.
///
/// Exit code: 0 no call goes past the header, 1 some calls do (marked `!`), 2 could not look.
#[derive(Args)]
pub struct PortCheck {
    /// Source files, or directories with source files.
    #[arg(required = true, value_hint = ValueHint::AnyPath)]
    sources: Vec<PathBuf>,
    /// Also list calls that need no attention.
    #[arg(long)]
    all: bool,
    /// Print JSON, for programs.
    #[arg(long)]
    json: bool,
}

/// A call, and the behaviour of the header for it.
#[derive(serde::Serialize)]
struct Finding {
    path: PathBuf,
    line: usize,
    call: String,
    verdict: Verdict,
    advice: &'static str,
}

const COULD_NOT_LOOK: u8 = 2;
const EXTENSIONS: [&str; 11] = ["c", "h", "cc", "hh", "cpp", "hpp", "cxx", "hxx", "C", "H", "inc"];

impl PortCheck {
    pub fn run(self) -> Result<Output, Failure> {
        let mut findings = Vec::new();
        let mut files = 0;
        for source in &self.sources {
            files += look(source, true, &mut findings)?;
        }
        if files == 0 {
            return Err(Failure::new("no C or C++ source there".to_owned()).code(COULD_NOT_LOOK));
        }
        let past = findings.iter().filter(|finding| finding.verdict == Verdict::Past).count() as u64;
        let output = if self.json { json::output(&findings)? } else { Output::text(self.text(&findings, files, past)) };
        Ok(output.code(u8::from(past > 0)))
    }

    /// The calls in the order of attention, with the places of each.
    fn text(&self, findings: &[Finding], files: u64, past: u64) -> String {
        let mut kinds: BTreeMap<(Verdict, &str, &str), Vec<String>> = BTreeMap::new();
        for finding in findings.iter().filter(|finding| self.all || finding.verdict != Verdict::Fine) {
            let place = format!("{}:{}", finding.path.display(), finding.line);
            kinds.entry((finding.verdict, &finding.call, finding.advice)).or_default().push(place);
        }
        let mut text = String::new();
        for ((verdict, call, advice), places) in kinds {
            text += &format!("{} {call}: {advice}\n", verdict.mark());
            for place in places {
                text += &format!("    {place}\n");
            }
        }
        let with_store = findings.iter().filter(|finding| finding.verdict == Verdict::Look).count() as u64;
        text += &format!(
            "{} in {}: {} past the header, {} to look at\n",
            count(findings.len() as u64, "call", "calls"),
            count(files, "file", "files"),
            past,
            with_store
        );
        text
    }
}

/// Examines a source file, or all source files of a directory. Returns the number of files.
fn look(path: &Path, named: bool, findings: &mut Vec<Finding>) -> Result<u64, Failure> {
    let failed = |e: std::io::Error| Failure::new(format!("cannot read {}: {e}", path.display())).code(COULD_NOT_LOOK);
    if !path.is_dir() {
        let is_source = path.extension().and_then(|e| e.to_str()).is_some_and(|e| EXTENSIONS.contains(&e));
        if !named && (!is_source || path.is_symlink()) {
            return Ok(0);
        }
        let text = fs::read(path).map_err(failed)?;
        for Call { line, name, arguments } in calls(&String::from_utf8_lossy(&text)) {
            if let Some((verdict, advice)) = advice(&name, &arguments) {
                findings.push(Finding { path: path.to_owned(), line, call: name, verdict, advice });
            }
        }
        return Ok(1);
    }
    if !named && path.is_symlink() {
        return Ok(0);
    }
    let entries = fs::read_dir(path).map_err(failed)?;
    let mut entries: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).collect();
    entries.sort();
    entries.iter().try_fold(0, |files, entry| Ok(files + look(entry, false, findings)?))
}
