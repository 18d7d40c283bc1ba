//! The public Rust API of a library as a list, for comparison with the list in the repository.
//!
//! Rustdoc writes the API as JSON, and the crate `public-api` makes a list of it. The JSON's format is unstable.
//! Rustdoc of the stable toolchain writes it only with `RUSTC_BOOTSTRAP=1`, and `scripts/rustdoc-json.sh` sets that for
//! rustdoc alone, so that nothing else is rebuilt. Each release of `public-api` reads one version of the format.

use anyhow::{Context, Result, ensure};
use serde_json::Value;
use std::fs;
use std::path::Path;
use std::process::Command;

/// The list in the repository.
pub const PLACE: &str = "docs/api/untorn.txt";
/// The command that writes the list.
pub const COMMAND: &str = "cargo run -p untorn-house -- api --write";

/// A list, or the reason why this toolchain cannot make one.
#[derive(Debug)]
pub enum Listing {
    /// The complete file, with its head.
    Made(String),
    /// The reason why the toolchain cannot make the list.
    Skipped(String),
}

/// Makes the list of the library `untorn` from its source.
pub fn make(workspace: &Path) -> Result<Listing> {
    let cargo = std::env::var_os("CARGO").unwrap_or("cargo".into());
    let mut command = Command::new(cargo);
    command.args(["rustdoc", "--quiet", "--locked", "-p", "untorn", "--lib", "--"]);
    command.args(["-Z", "unstable-options", "--output-format", "json"]);
    command.env("RUSTDOC", workspace.join("scripts/rustdoc-json.sh")).env_remove("RUSTDOCFLAGS");
    let output = command.current_dir(workspace).output().context("cargo rustdoc")?;
    let trouble = String::from_utf8_lossy(&output.stderr).into_owned();
    if trouble.contains("only accepted on the nightly compiler") || trouble.contains("unknown unstable option") {
        return Ok(Listing::Skipped(format!("rustdoc of this toolchain writes no JSON: {}", trouble.trim())));
    }
    ensure!(output.status.success(), "cargo rustdoc: {trouble}");
    let json = target_directory(workspace)?.join("doc/untorn.json");
    read(&json)
}

/// Makes the list from rustdoc's JSON.
pub fn read(json: &Path) -> Result<Listing> {
    let text = fs::read_to_string(json).with_context(|| json.display().to_string())?;
    let list = public_api::Builder::from_rustdoc_json(json)
        .omit_blanket_impls(true)
        .omit_auto_trait_impls(true)
        .omit_auto_derived_impls(true)
        .build();
    match list {
        Ok(api) => Ok(Listing::Made(format!(
            "# The public Rust API of the crate `untorn`, without derived and automatic implementations.\n\
             # Written by: {COMMAND}\n\
             # `make check` fails when the source differs. A line that goes or changes breaks programs: see CHANGELOG.md.\n\n{api}"
        ))),
        Err(e) => {
            let version = serde_json::from_str::<Value>(&text).map(|json| json["format_version"].to_string());
            let version = version.unwrap_or("an unknown version".to_owned());
            Ok(Listing::Skipped(format!("public-api does not read rustdoc JSON of format {version}: {e}")))
        }
    }
}

fn target_directory(workspace: &Path) -> Result<std::path::PathBuf> {
    let cargo = std::env::var_os("CARGO").unwrap_or("cargo".into());
    let mut command = Command::new(cargo);
    command.args(["metadata", "--no-deps", "--offline", "--format-version", "1"]).current_dir(workspace);
    let metadata: Value = serde_json::from_slice(&command.output().context("cargo metadata")?.stdout)?;
    Ok(metadata["target_directory"].as_str().context("a target directory")?.into())
}

/// The lines that are in one list only: `-` for removed ones, `+` for new ones.
pub fn differences(before: &str, after: &str) -> Vec<String> {
    let only = |mark: char, of: &str, other: &str| {
        let other: std::collections::BTreeSet<&str> = other.lines().collect();
        of.lines().filter(|line| !other.contains(line)).map(|line| format!("{mark} {line}")).collect::<Vec<_>>()
    };
    [only('-', before, after), only('+', after, before)].concat()
}
