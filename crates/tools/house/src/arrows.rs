//! The crates of the workspace, and their allowed dependencies.

use anyhow::{Context, Result, ensure};
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The allowed dependencies of each crate, from the bottom up.
pub const ALLOWED: &[(&str, &[&str])] = &[
    ("untorn-derive", &[]),
    ("untorn-os", &[]),
    ("untorn-journal", &["untorn-os"]),
    ("untorn", &["untorn-derive", "untorn-os", "untorn-journal"]),
    ("untorn-capi", &["untorn-os", "untorn-journal", "untorn"]),
    ("untorn-python", &["untorn"]),
    (CRASHLAB, &["untorn-os", "untorn-journal", "untorn"]),
    ("untorn-terminal", &["untorn-os", "untorn-journal", "untorn"]),
    ("untorn-demo", &["untorn-os", "untorn-journal", "untorn", "untorn-terminal"]),
    ("untorn-cli", &["untorn-os", "untorn-journal", "untorn", "untorn-terminal"]),
    ("untorn-crashtest", &["untorn-os", "untorn-journal", "untorn", "untorn-terminal", CRASHLAB]),
    ("untorn-tree", &["untorn-os", "untorn-journal", "untorn"]),
    ("untorn-xsync", &["untorn-os", "untorn-journal", "untorn", "untorn-terminal", CRASHLAB]),
    ("untorn-top", &["untorn", "untorn-terminal"]),
    ("untorn-ship", &["untorn-os", "untorn-journal", "untorn", "untorn-terminal", CRASHLAB]),
    ("untorn-mount", &["untorn-os", "untorn-journal", "untorn", "untorn-terminal", "untorn-tree"]),
    (
        "untorn-bench",
        &["untorn-os", "untorn-journal", "untorn", "untorn-terminal", "untorn-demo", "untorn-ship", "untorn-xsync"],
    ),
    ("untorn-house", &[]),
    (TESTKIT, &[]),
];

/// The crash laboratory. Only programs may depend on it, so that it does not get into a library.
const CRASHLAB: &str = "untorn-crashlab";

/// Helpers of tests. Only tests may depend on it.
const TESTKIT: &str = "untorn-testkit";

/// One crate of the workspace.
#[derive(Debug, Clone, Default)]
pub struct Package {
    /// Its name.
    pub name: String,
    /// Its directory.
    pub dir: PathBuf,
    /// The crates of the workspace that it depends on, for any purpose, including tests and build scripts.
    pub dependencies: Vec<String>,
    /// Root files of its library and its programs.
    pub roots: Vec<PathBuf>,
    /// Whether it has a program.
    pub program: bool,
    /// Whether it may be published.
    pub published: bool,
}

/// The crates of the workspace, from cargo's metadata.
pub fn packages(workspace: &Path) -> Result<Vec<Package>> {
    let cargo = std::env::var_os("CARGO").unwrap_or("cargo".into());
    let mut command = Command::new(cargo);
    command.args(["metadata", "--no-deps", "--offline", "--format-version", "1"]).current_dir(workspace);
    let output = command.output().context("cargo metadata")?;
    ensure!(output.status.success(), "cargo metadata: {}", String::from_utf8_lossy(&output.stderr));
    let metadata: Value = serde_json::from_slice(&output.stdout)?;
    let list = |value: &Value| value.as_array().cloned().unwrap_or_default();
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let described = list(&metadata["packages"]);
    let names: Vec<String> = described.iter().map(|package| text(&package["name"])).collect();
    let package = |described: &Value| {
        let manifest = PathBuf::from(text(&described["manifest_path"]));
        let targets = list(&described["targets"]);
        let is =
            |target: &Value, kinds: &[&str]| list(&target["kind"]).iter().any(|k| kinds.contains(&text(k).as_str()));
        let of_source = |target: &&Value| is(target, &["lib", "rlib", "cdylib", "staticlib", "bin"]);
        let dependencies = list(&described["dependencies"]);
        // Tests of an unpublished crate may use the crash laboratory, because it does not get into anything that is
        // built from the crate.
        let is_for_tests = |d: &Value| match text(&d["name"]).as_str() {
            CRASHLAB => described["publish"].is_array() && text(&d["kind"]) == "dev",
            TESTKIT => text(&d["kind"]) == "dev",
            _ => false,
        };
        let comes_in = |d: &&Value| names.contains(&text(&d["name"])) && !is_for_tests(d);
        Package {
            name: text(&described["name"]),
            dir: manifest.parent().unwrap_or(workspace).to_owned(),
            dependencies: dependencies.iter().filter(comes_in).map(|d| text(&d["name"])).collect(),
            roots: targets.iter().filter(of_source).map(|target| text(&target["src_path"]).into()).collect(),
            program: targets.iter().any(|target| is(target, &["bin"])),
            published: described["publish"].is_null(),
        }
    };
    Ok(described.iter().map(package).collect())
}

/// Dependencies that are not allowed, because they point up or sideways. Empty if there are none.
pub fn wrong_arrows(packages: &[Package]) -> Vec<String> {
    let mut wrong = Vec::new();
    for package in packages {
        let name = &package.name;
        let Some((_, allowed)) = ALLOWED.iter().find(|(known, _)| known == name) else {
            wrong.push(format!("{name} has no place among the crates: say in ALLOWED what it may depend on"));
            continue;
        };
        for dependency in &package.dependencies {
            if !allowed.contains(&dependency.as_str()) {
                wrong.push(format!("{name} depends on {dependency}, which is not below it"));
            }
            if dependency == CRASHLAB && !package.program {
                wrong.push(format!("{name} depends on {CRASHLAB} and is no program"));
            }
            let published = |name: &str| packages.iter().any(|package| package.name == name && package.published);
            if package.published && !published(dependency) {
                wrong.push(format!("{name} may be published, but not {dependency}, which it depends on"));
            }
        }
    }
    wrong
}

/// Crates whose directory is missing in the drawing, which is the first code block of the document.
pub fn not_drawn(document: &str, workspace: &Path, packages: &[Package]) -> Vec<String> {
    let drawing = document.split("```").nth(1).unwrap_or_default();
    let words: Vec<&str> = drawing.split(|c: char| c.is_whitespace() || ",:;".contains(c)).collect();
    let missing = packages.iter().filter_map(|package| {
        let dir = package.dir.strip_prefix(workspace).unwrap_or(&package.dir).display().to_string();
        (!words.contains(&dir.as_str())).then(|| format!("{dir} ({})", package.name))
    });
    missing.collect()
}

/// All crates with their dependencies.
pub fn listing(packages: &[Package]) -> String {
    let lines = packages.iter().map(|package| {
        let below =
            if package.dependencies.is_empty() { "nothing".to_owned() } else { package.dependencies.join(", ") };
        format!("  {} → {below}\n", package.name)
    });
    lines.collect()
}
