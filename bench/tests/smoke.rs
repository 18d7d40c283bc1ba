//! A quick run of everything on the file system under the temporary directory.

use serde_json::Value;
use std::process::Command;

#[test]
fn every_benchmark_runs_and_leaves_only_its_figures() {
    let [scratch, figures] = [(); 2].map(|()| tempfile::tempdir().unwrap());
    let [json, svg] = ["figures.json", "figures.svg"].map(|name| figures.path().join(name));
    let output = Command::new(env!("CARGO_BIN_EXE_untorn-bench"))
        .args(["all", "--quick", "--fs", "here", "--dir"])
        .arg(scratch.path())
        .arg("--json")
        .arg(&json)
        .arg("--svg")
        .arg(&svg)
        .output()
        .unwrap();
    let complaint = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{complaint}");
    assert_eq!(std::fs::read_dir(scratch.path()).unwrap().count(), 0, "something was left behind");

    let report: Value = serde_json::from_slice(&std::fs::read(&json).unwrap()).unwrap();
    let sections = report["sections"].as_array().unwrap();
    let titles: Vec<&str> = sections.iter().map(|section| section["title"].as_str().unwrap()).collect();
    assert_eq!(titles.len(), 13, "{titles:?}");
    for row in sections.iter().flat_map(|section| section["rows"].as_array().unwrap()) {
        assert!(row["ratio"]["value"].as_f64().is_some_and(|ratio| ratio > 0.0), "{row}");
        assert!(row["verdict"].is_null(), "a smoke run judges nothing: {row}");
        for contender in row["contenders"].as_array().unwrap() {
            let figure = |name: &str| contender[name].as_f64().unwrap();
            assert!(figure("samples") >= 1.0 && 0.0 < figure("p25_us"), "{contender}");
            assert!(figure("p25_us") <= figure("median_us") && figure("median_us") <= figure("p999_us"), "{contender}");
        }
    }
    let table = String::from_utf8_lossy(&output.stdout);
    let picture = std::fs::read_to_string(&svg).unwrap();
    assert!(titles.iter().all(|title| table.contains(title) && picture.contains(title)));
}
