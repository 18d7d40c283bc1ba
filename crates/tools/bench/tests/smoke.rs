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
    let (report, table, picture) = quick_run(&["all"]);
    let sections = report["sections"].as_array().unwrap();
    let titles: Vec<&str> = sections.iter().map(|section| section["title"].as_str().unwrap()).collect();
    assert_eq!(titles.len(), 25, "{titles:?}");
    for row in sections.iter().flat_map(|section| section["rows"].as_array().unwrap()) {
        assert!(row["ratio"]["value"].as_f64().is_some_and(|ratio| ratio > 0.0), "{row}");
        assert!(row["verdict"].is_null(), "a smoke run has no verdicts: {row}");
        for contender in row["contenders"].as_array().unwrap() {
            let figure = |name: &str| contender[name].as_f64().unwrap();
            assert!(figure("samples") >= 1.0 && 0.0 < figure("p25_us"), "{contender}");
            assert!(figure("p25_us") <= figure("median_us") && figure("median_us") <= figure("p999_us"), "{contender}");
        }
    }
    assert!(titles.iter().all(|title| table.contains(title) && picture.contains(title)));
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
fn transactions_of_sqlite_are_measured() {
    library_dir();
    let beside = Path::new(env!("CARGO_BIN_EXE_untorn-bench")).parent().unwrap();
    let link = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../bindings/sqlite/link.sh");
    let linked = Command::new(link).args(["libuntorn.a", "libuntorn_sqlite.so"].map(|name| beside.join(name))).output();
    let complaint = String::from_utf8_lossy(&linked.unwrap().stderr).into_owned();
    if complaint.contains("sqlite3ext.h") {
        println!("skipped: sqlite3ext.h is not here (Debian: libsqlite3-dev)");
        return;
    }
    assert_eq!(complaint, "");
    let (report, table, _) = quick_run(&["sqlite"]);
    let rows = report["sections"][0]["rows"].as_array().unwrap();
    assert_eq!(rows.len(), 9);
    for row in rows {
        let times: Vec<_> =
            row["contenders"].as_array().unwrap().iter().map(|c| c["median_us"].as_f64().unwrap()).collect();
        assert!(times.len() == 3 && times.iter().all(|&time| time > 0.0), "{row}");
    }
    // A commit is written to the journal, and in the end to the database.
    let apart = &rows[8]["details"][0];
    for head in ["B written each", "B in the end, each"] {
        assert!(apart[1][head].as_f64().is_some_and(|bytes| bytes > 0.0), "{apart}");
    }
    assert!(table.contains("one database, 8 threads"), "{table}");
}

#[test]
fn commits_are_measured_over_the_flush() {
    if !rustix::process::geteuid().is_root() || !Path::new("/dev/fuse").exists() {
        println!("skipped: needs root and /dev/fuse for a disk whose flushes take a given time");
        return;
    }
    let (report, ..) = quick_run(&["flush-times"]);
    let sections = report["sections"].as_array().unwrap();
    assert_eq!(sections.len(), 3);
    for contender in sections.iter().flat_map(|section| section["rows"][0]["contenders"].as_array().unwrap()) {
        assert!(contender["median_us"].as_f64().unwrap() >= 100.0, "shorter than a flush: {contender}");
    }
}

#[test]
fn sessions_are_measured_and_leave_nothing() {
    if !rustix::process::geteuid().is_root() {
        println!("skipped: needs root to start sessions");
        return;
    }
    let (report, table, picture) = quick_run(&["xsync"]);
    let sections = report["sections"].as_array().unwrap();
    let rows = |title: &str| -> Vec<&serde_json::Value> {
        let titled = |section: &&serde_json::Value| section["title"].as_str().unwrap().starts_with(title);
        sections.iter().filter(titled).flat_map(|section| section["rows"].as_array().unwrap()).collect()
    };
    assert_eq!(rows("xsync: a session").len(), 5);
    for title in ["xsync: PostMark", "xsync: programs", "xsync: a server, 50 clients, over the flush"] {
        assert!(!rows(title).is_empty(), "{title}");
    }
    // The server answered in all three ways, and each client got its own answers.
    let served = [rows("xsync: a server"), rows("xsync: one client")].concat();
    assert!(served.len() >= 4, "{served:?}");
    for row in served {
        assert!(row["ratio"]["value"].as_f64().is_some_and(|ratio| ratio > 0.0), "{row}");
        assert!(row["extras"]["answers/s"].as_f64().is_some_and(|rate| rate > 0.0), "{row}");
    }
    assert!(table.contains("key, one byte appended") && picture.contains("in a session without gate"), "{table}");
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
