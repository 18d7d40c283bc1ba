//! A quick run of all benchmarks on the file system of the temporary directory.

use serde_json::Value;
use std::path::Path;
use std::process::Command;
use untorn_testkit::library_dir;

/// The figures, table and picture of a quick run. The run must leave nothing else.
fn quick_run(words: &[&str]) -> (Value, String, String) {
    let [scratch, figures] = [(); 2].map(|()| tempfile::tempdir().unwrap());
    let [json, svg] = ["figures.json", "figures.svg"].map(|name| figures.path().join(name));
    let output = Command::new(env!("CARGO_BIN_EXE_untorn-bench"))
        .args(words)
        // The heaps of programs with hooks refuse a commit that lacks a store.
        .env("UNTORN_DEBUG_UNMARKED", "1")
        .args(["--quick", "--fs", "here", "--dir"])
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
    let report = serde_json::from_slice(&std::fs::read(&json).unwrap()).unwrap();
    (report, String::from_utf8_lossy(&output.stdout).into_owned(), std::fs::read_to_string(&svg).unwrap())
}

#[test]
fn every_benchmark_runs_and_leaves_only_its_figures() {
    library_dir();
    link_the_extension();
    let (report, table, picture) = quick_run(&["all"]);
    let outcomes = report["outcomes"].as_array().unwrap();
    assert_eq!(outcomes.len(), 22);
    // Skipped benchmarks name the missing program. None may fail.
    for outcome in outcomes.iter().filter(|outcome| outcome["ended"] != "done") {
        let name = outcome["benchmark"].as_str().unwrap();
        assert!(MAY_BE_SKIPPED.contains(&name), "{outcome}");
        assert!(outcome["ended"]["skipped"].as_str().is_some_and(|why| table.contains(why)), "{outcome}");
    }
    let sections = report["sections"].as_array().unwrap();
    let titles: Vec<&str> = sections.iter().map(|section| section["title"].as_str().unwrap()).collect();
    for title in titles {
        // The picture has another form of apostrophes.
        let drawn = title.split('\'').next().unwrap();
        assert!(table.contains(title) && picture.contains(drawn), "{title}");
    }
    for row in sections.iter().flat_map(|section| section["rows"].as_array().unwrap()) {
        assert!(row["ratio"].is_null() || row["ratio"]["value"].as_f64().is_some_and(f64::is_finite), "{row}");
        assert!(row["verdict"].is_null(), "a smoke run has no verdicts: {row}");
        for contender in row["contenders"].as_array().unwrap() {
            let figure = |name: &str| contender[name].as_f64().unwrap();
            assert!(figure("samples") >= 1.0 && 0.0 < figure("p25_us"), "{contender}");
            assert!(figure("p25_us") <= figure("median_us") && figure("median_us") <= figure("p999_us"), "{contender}");
        }
    }
    let rows = |benchmark: &str, title: &str| -> Vec<&Value> {
        let of = |section: &&Value| section["title"].as_str().unwrap().starts_with(title);
        let rows: Vec<_> = sections.iter().filter(of).flat_map(|section| section["rows"].as_array().unwrap()).collect();
        let is_done = outcomes.iter().any(|outcome| outcome["benchmark"] == benchmark && outcome["ended"] == "done");
        assert_eq!(rows.is_empty(), !is_done, "{benchmark}: {title}");
        rows
    };
    transactions_of_sqlite(&rows("sqlite", "sqlite: "));
    for row in rows("flush-times", "commit of a file, over the flush") {
        let medians = row["contenders"].as_array().unwrap().iter().map(|contender| &contender["median_us"]);
        assert!(medians.map(|us| us.as_f64().unwrap()).all(|us| us >= 100.0), "shorter than a flush: {row}");
    }
    for row in rows("nvm", "nvm: a transaction over two files, over") {
        let waited_us = row["cell"].as_str().unwrap().split(' ').next().unwrap().parse::<f64>().unwrap() / 1e3;
        for (contender, further) in row["contenders"].as_array().unwrap().iter().zip(row["details"].as_array().unwrap())
        {
            let lines = further[1]["lines each"].as_f64().unwrap();
            // Each takes its time.
            assert!(lines > 2.0 && contender["mean_us"].as_f64().unwrap() > 2.0 * waited_us, "{row}");
        }
    }
    sessions(&rows);
}

/// Benchmarks that need root, a compiler, a processor's instructions, or a program that a build of the tests does not make.
const MAY_BE_SKIPPED: [&str; 8] = ["live", "xsync", "flush-times", "nvm", "mount", "preload", "sqlite", "ship"];

/// Links the extension of SQLite beside the benchmark, if SQLite's headers are here.
fn link_the_extension() {
    let beside = Path::new(env!("CARGO_BIN_EXE_untorn-bench")).parent().unwrap();
    let link = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../bindings/sqlite/link.sh");
    let linked = Command::new(link).args(["libuntorn.a", "libuntorn_sqlite.so"].map(|name| beside.join(name))).output();
    let complaint = String::from_utf8_lossy(&linked.unwrap().stderr).into_owned();
    assert!(complaint.is_empty() || complaint.contains("sqlite3ext.h"), "{complaint}");
}

fn transactions_of_sqlite(rows: &[&Value]) {
    for row in rows {
        assert_eq!(row["contenders"].as_array().unwrap().len(), 3, "{row}");
    }
    // A commit is written to the journal, and in the end to the database.
    if let Some(row) = rows.get(8) {
        let apart = &row["details"][0];
        for head in ["B written each", "B in the end, each"] {
            assert!(apart[1][head].as_f64().is_some_and(|bytes| bytes > 0.0), "{apart}");
        }
    }
}

fn sessions<'a>(rows: &impl Fn(&str, &str) -> Vec<&'a Value>) {
    for title in ["xsync: a session", "xsync: PostMark", "xsync: a server, 50 clients, over the flush"] {
        rows("xsync", title);
    }
    // The server answered in all ways, and each client got its own answers.
    for row in [rows("xsync", "xsync: a server"), rows("xsync", "xsync: one client")].concat() {
        assert!(row["contenders"].as_array().unwrap().len() >= 4, "{row}");
        assert!(row["ratio"]["value"].as_f64().is_some_and(|ratio| ratio > 0.0), "{row}");
        assert!(row["extras"]["answers/s"].as_f64().is_some_and(|rate| rate > 0.0), "{row}");
    }
}

#[test]
fn key_value_stores_race_and_hold_what_they_should() {
    library_dir();
    let words = ["kv", "kv-large", "kv-open", "--think-ms", "0,1", "--runs", "1", "--without", "Kyoto Cabinet tree"];
    let (report, table, picture) = quick_run(&words);
    let sections = report["sections"].as_array().unwrap();
    assert_eq!(sections.len(), 4);
    for section in &sections[..2] {
        let rows = section["rows"].as_array().unwrap();
        assert_eq!(
            rows.iter().map(|row| row["cell"].as_str().unwrap()).collect::<Vec<_>>(),
            ["insert", "replace", "delete"]
        );
        for row in rows {
            let contenders = row["contenders"].as_array().unwrap();
            let names: Vec<&str> = contenders.iter().map(|contender| contender["name"].as_str().unwrap()).collect();
            for always in [
                "hashbrown on Untorn (Rust)",
                "explicit hash table on Untorn (Rust)",
                "redb",
                "fjall",
                "floor, buffered",
                "std::map in memory",
            ] {
                assert!(names.contains(&always), "{names:?}");
            }
            assert_eq!(names[0], "std::map on Untorn", "{}", section["notes"]);
            assert!(names.contains(&"std::unordered_map, untorn-c++"), "{}", section["notes"]);
            assert!(!names.iter().any(|name| name.starts_with("Kyoto Cabinet tree")), "{names:?}");
            // The notes name a store that is not installed, with its package.
            for (name, package) in [("LevelDB", "libleveldb"), ("LMDB", "liblmdb"), ("gdbm", "libgdbm")] {
                let left_out = section["notes"].as_array().unwrap().iter().any(|note| {
                    let note = note.as_str().unwrap();
                    note.starts_with(&format!("Left out: {name}")) && note.contains(package)
                });
                assert!(left_out != names.contains(&name), "{name}: {}", section["notes"]);
            }
            let us = |n: usize| contenders[n]["median_us"].as_f64().unwrap();
            assert!(us(names.len() - 1) < us(0), "what is durable cannot be as fast as what is not: {row}");
            let (_, ours) = (&row["details"][0][0], &row["details"][0][1]);
            let figure = |name: &str| ours[name].as_f64().unwrap();
            assert!(figure("syncs") >= 1.0 && figure("journal B") >= 24.0 && figure("pages") >= 1.0, "{ours}");
        }
    }
    // The large benchmarks verify their reads themselves.
    let cells = |n: usize| sections[n]["rows"].as_array().unwrap().len();
    assert_eq!((cells(2), cells(3)), (5, 2));
    assert!(table.contains("kv: 10 keys, think 1 ms") && picture.contains("1 std::map on Untorn"));
}

#[test]
fn a_benchmark_that_is_named_and_cannot_run_fails_and_the_next_one_runs() {
    let scratch = tempfile::tempdir().unwrap();
    // A program of the project that is not beside it.
    let alone = scratch.path().join("untorn-bench");
    untorn_testkit::install(Path::new(env!("CARGO_BIN_EXE_untorn-bench")), &alone);
    let run = |benchmark: &str| {
        let arguments = [benchmark, "oneshot", "--quick", "--fs", "here", "--dir"];
        let output = Command::new(&alone).args(arguments).arg(scratch.path()).output().unwrap();
        let [out, err] = [output.stdout, output.stderr].map(|bytes| String::from_utf8(bytes).unwrap());
        (output.status.success(), out, err)
    };
    let (success, out, err) = run("ship");
    assert!(!success && err.contains("1 of 2 benchmarks failed"), "{err}");
    assert!(out.contains("oneshot: ") && out.contains("untorn-ship is missing"), "{out}");
    assert_eq!(std::fs::read_dir(scratch.path()).unwrap().count(), 1, "more than the program is there");
}

#[test]
fn one_benchmark_by_itself_and_completions_and_manual_pages() {
    let dir = tempfile::tempdir().unwrap();
    let run = |arguments: &[&str]| {
        let output = Command::new(env!("CARGO_BIN_EXE_untorn-bench")).args(arguments).current_dir(&dir).output();
        let output = output.unwrap();
        let [out, err] = [output.stdout, output.stderr].map(|bytes| String::from_utf8(bytes).unwrap());
        assert!(output.status.success(), "{out}{err}");
        out
    };
    let out = run(&["recovery", "--quick", "--fs", "here", "--dir", "."]);
    assert!(out.contains("recovery of a full journal") && out.contains("pwrites + fdatasync"), "{out}");
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
    for shell in ["bash", "zsh", "fish"] {
        let script = run(&["completions", shell]);
        assert!(script.contains("untorn-bench") && script.contains("kv-large") && script.contains("kills"), "{script}");
    }
    run(&["man", "."]);
    for page in ["untorn-bench.1", "untorn-bench-demo.1"] {
        assert!(std::fs::read_to_string(dir.path().join(page)).unwrap().contains(".SH SYNOPSIS"), "{page}");
    }
}

/// The models of disks are no faster than they were told. A write at a random place may be behind the one before it by
/// chance, and takes the other time then.
fn disks_take_their_times(table1: &Value) {
    let cells = table1["panels"][0]["cells"].as_array().unwrap();
    for (cell, [in_order, elsewhere]) in cells.iter().zip([[8_470.0_f64, 7_030.0], [4_200.0, 4_610.0], [80.0, 110.0]]) {
        for (contender, least_us) in
            cell["contenders"].as_array().unwrap().iter().zip([in_order, elsewhere.min(in_order)])
        {
            let runs = contender["runs"].as_array().unwrap();
            assert!(runs.iter().all(|run| run.as_f64().unwrap() >= least_us), "{cell}: {contender}");
        }
    }
}

#[test]
fn figures_of_papers_are_measured_or_say_why_not() {
    library_dir();
    let [scratch, results] = [(); 2].map(|()| tempfile::tempdir().unwrap());
    let json = results.path().join("results.json");
    // A full run measures everything.
    let names = match std::env::var_os("UNTORN_FULL") {
        Some(_) => &[][..],
        None => &["000", "table1", "001", "fig8", "002", "fig3", "003", "recovery", "004", "table1", "programs"],
    };
    let mut command = Command::new(env!("CARGO_BIN_EXE_untorn-bench"));
    command.arg("paper").args(names).args(["--quick", "--dir"]).arg(scratch.path());
    let output = command.arg("--json").arg(&json).arg("--out").arg(results.path()).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert_eq!(std::fs::read_dir(scratch.path()).unwrap().count(), 0, "something was left behind");
    let table = String::from_utf8_lossy(&output.stdout).into_owned();
    let report: Value = serde_json::from_slice(&std::fs::read(&json).unwrap()).unwrap();
    let mut measured = 0;
    for figure in report["figures"].as_array().unwrap() {
        let name = format!("{}-{}", figure["paper"].as_str().unwrap(), figure["figure"].as_str().unwrap());
        let picture = std::fs::read_to_string(results.path().join(format!("{name}.svg")));
        let panels = figure["panels"].as_array().unwrap();
        assert!(table.contains(&name.replace('-', " ")), "{name}");
        match figure["unmeasured"].as_str() {
            Some(why) => assert!(table.contains(why) && panels.is_empty() && picture.is_err(), "{name}: {why}"),
            None => assert!(picture.unwrap().contains(panels[0]["title"].as_str().unwrap()), "{name}"),
        }
        measured += panels.len();
        for contender in panels
            .iter()
            .flat_map(|panel| panel["cells"].as_array().unwrap())
            .flat_map(|cell| cell["contenders"].as_array().unwrap())
        {
            let runs = contender["runs"].as_array().unwrap();
            assert_eq!(runs.len(), 2, "{name}: {contender}");
            assert!(runs.iter().all(|run| run.as_f64().is_some_and(|number| number > 0.0)), "{name}: {contender}");
        }
        for claim in figure["judged"].as_array().unwrap() {
            let why = claim["why_none"].as_str().expect("a quick run has no verdicts");
            assert!(claim["verdict"].is_null(), "{claim}");
            // Names that no workload has. Stores of other houses may be missing here.
            assert!(!why.contains("there is no panel"), "{name}: {claim}");
            assert!(name == "000-table2" || !why.contains("was not measured in"), "{name}: {claim}");
        }
    }
    if rustix::process::geteuid().is_root() {
        assert!(measured >= 3, "{table}");
        disks_take_their_times(&report["figures"][0]);
    } else {
        assert!(table.contains("needs root"), "{table}");
    }
    let page = Command::new(env!("CARGO_BIN_EXE_untorn-bench")).args(["paper", "--page"]).arg(&json).output().unwrap();
    assert!(String::from_utf8_lossy(&page.stdout).contains("a quick run, which has no verdicts"));
}
