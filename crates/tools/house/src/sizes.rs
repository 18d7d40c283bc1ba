//! Checks that source files are short.

use crate::attributes::is_test;
use anyhow::{Context, Result};
use std::ffi::OsStr;
use std::path::Path;
use syn::Item;

/// Lines that a source file may have, without the tests at its end.
pub const LINES_MAX: usize = 600;

/// The violation of a file, if it is too long. `shown` is its path in the workspace.
pub fn wrong(shown: &Path, text: &str) -> Result<Option<String>> {
    if is_of_tests(shown) {
        return Ok(None);
    }
    let lines = lines(text).with_context(|| shown.display().to_string())?;
    Ok((lines > LINES_MAX).then(|| format!("{}: {lines} lines; at most {LINES_MAX}", shown.display())))
}

/// Whether a file has nothing but tests, by its path: it is in a folder `tests`, or it is a module `tests`.
fn is_of_tests(shown: &Path) -> bool {
    shown.file_name() == Some(OsStr::new("tests.rs")) || shown.iter().any(|part| part == "tests")
}

/// The number of lines, without those of a module for tests that is the last item.
pub fn lines(text: &str) -> Result<usize> {
    let source = syn::parse_file(text)?;
    let tests = match source.items.last() {
        Some(Item::Mod(last)) if is_test(&last.attrs) => last.attrs.first(),
        _ => None,
    };
    let most = tests.map_or(usize::MAX, |first| first.pound_token.spans[0].start().line - 1);
    let own = text.lines().take(most);
    Ok(own.enumerate().filter(|(_, line)| !line.trim().is_empty()).last().map_or(0, |(at, _)| at + 1))
}
