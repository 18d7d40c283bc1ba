//! The committed header matches the sources; the libraries export exactly the functions that it documents.

mod common;

use std::collections::BTreeSet;
use std::fs;
use std::process::Command;

use common::{crate_dir, library_dir, output_of};

/// In the order in which the header should introduce things.
const SOURCES: [&str; 20] = [
    "boundary/error.rs",
    "boundary/log.rs",
    "boundary/text.rs",
    "boundary/options.rs",
    "boundary/status.rs",
    "stores/store.rs",
    "stores/file.rs",
    "stores/ticket.rs",
    "stores/output_gate.rs",
    "stores/txn.rs",
    "stores/on_mount.rs",
    "readers/reader.rs",
    "readers/follow.rs",
    "stores/map.rs",
    "heaps/heap.rs",
    "heaps/memory.rs",
    "heaps/roots.rs",
    "heaps/inspect.rs",
    "heaps/section_calls.rs",
    "heaps/read_copies.rs",
];

fn generated() -> String {
    let config = cbindgen::Config::from_file(crate_dir().join("cbindgen.toml")).expect("cbindgen.toml");
    let mut builder = cbindgen::Builder::new().with_config(config);
    for source in SOURCES {
        builder = builder.with_src(crate_dir().join("src").join(source));
    }
    let mut text = Vec::new();
    builder.generate().expect("cbindgen understands the sources").write(&mut text);
    let text = String::from_utf8(text).expect("a header in UTF-8");
    tidy(&text)
}

/// Makes the changes for which cbindgen has no setting: drops sections for Rust, joins short comments to one line,
/// and keeps to C89 and C++98, which have no comments with slashes and no comma behind the last enumerator.
fn tidy(text: &str) -> String {
    let text = without_rust_sections(text).replace("\n\n\n", "\n\n");
    let mut lines: Vec<String> = Vec::new();
    for line in text.lines() {
        if line.starts_with('}')
            && let Some(last) = lines.last_mut()
            && last.ends_with(',')
        {
            last.pop();
        }
        if let Some((code, comment)) = line.split_once(" // ").filter(|_| line.starts_with("#endif")) {
            lines.push(format!("{} /* {comment} */", code.trim_end()));
        } else if line.trim() == "*/" && lines.len() >= 2 && lines[lines.len() - 2].trim() == "/**" {
            let only = lines.pop().expect("two lines");
            let indent = line.len() - line.trim_start().len() - 1;
            let only = only.trim().trim_start_matches("* ");
            *lines.last_mut().expect("one line") = format!("{:indent$}/** {only} */", "");
        } else {
            lines.push(line.to_owned());
        }
    }
    lines.join("\n") + "\n"
}

/// Drops the `# Safety` sections: they state for Rust the rules that the prose before them states for C.
fn without_rust_sections(text: &str) -> String {
    let mut lines: Vec<&str> = Vec::new();
    let mut dropping = false;
    for line in text.lines() {
        if line.trim() == "* # Safety" {
            dropping = true;
            while lines.last().is_some_and(|last| last.trim() == "*") {
                lines.pop();
            }
        }
        dropping &= line.trim() != "*/";
        if !dropping {
            lines.push(line);
        }
    }
    lines.join("\n") + "\n"
}

/// Writes the header anew with `UNTORN_UPDATE_HEADER=1 cargo test -p untorn-capi --test header`.
#[test]
fn the_header_is_in_step_with_the_sources() {
    let path = crate_dir().join("../../../include/untorn.h");
    let fresh = generated();
    if std::env::var_os("UNTORN_UPDATE_HEADER").is_some() {
        fs::write(&path, &fresh).expect("include/untorn.h can be written");
    }
    let committed = fs::read_to_string(&path).expect("include/untorn.h");
    let differs = fresh.lines().zip(committed.lines()).enumerate().find(|(_, (a, b))| a != b);
    assert!(
        fresh == committed,
        "include/untorn.h is out of step, first at {differs:?}; run\n    \
         UNTORN_UPDATE_HEADER=1 cargo test -p untorn-capi --test header"
    );
}

/// The functions that the generated header declares, each with whether a comment stands right above it.
fn declared() -> Vec<(String, bool)> {
    declared_in(&generated())
}

fn posix_header() -> String {
    fs::read_to_string(crate_dir().join("../../../include/untorn_posix.h")).expect("include/untorn_posix.h")
}

fn declared_in(header: &str) -> Vec<(String, bool)> {
    let mut documented = false;
    let mut functions = Vec::new();
    for line in header.lines() {
        if let Some(name) = line.split('(').next().filter(|_| line.contains('(') && !line.starts_with([' ', '#', '/']))
        {
            let name = name.rsplit([' ', '*']).next().unwrap_or_default();
            if name.starts_with("untorn_") {
                functions.push((name.to_owned(), documented));
            }
        }
        documented = line.ends_with("*/") || (documented && line == "UNTORN_MUST_USE");
    }
    functions
}

#[test]
fn every_function_is_documented() {
    let functions = declared();
    assert!(functions.len() > 40, "the test sees only {functions:?}");
    let bare: Vec<_> = functions.iter().filter(|(_, documented)| !documented).collect();
    assert!(bare.is_empty(), "without a comment: {bare:?}");
}

/// Each renamed call goes to a function that the header declares. Each declared function replaces a call, except the
/// functions without a counterpart in POSIX.
#[test]
fn the_posix_header_renames_to_what_it_declares() {
    let header = posix_header();
    let renamed = header.lines().filter_map(|line| line.strip_prefix("#pragma redefine_extname "));
    let targets = renamed.map(|rest| rest.split(' ').nth(1).expect("two names").to_owned());
    // A program that makes one of these calls does not link.
    let targets: BTreeSet<String> = targets.filter(|name| !name.starts_with("untorn_posix_cannot_check_")).collect();
    assert!(targets.len() > 20, "{targets:?}");
    let (before, after) = header.split_once("Functions without a counterpart in POSIX").expect("two lists");
    let names = |text| declared_in(text).into_iter().map(|(name, _)| name).collect::<BTreeSet<_>>();
    assert_eq!(names(before), targets);
    assert_eq!(names(after).intersection(&targets).count(), 0);
    assert!(names(after).len() > 3);
}

/// Names of the functions and data that `nm` shows as defined and global.
fn exported(nm_arguments: &[&str], library: &str) -> BTreeSet<String> {
    let text = output_of(Command::new("nm").args(nm_arguments).arg(library_dir().join(library)));
    text.lines().filter_map(|line| line.split_whitespace().nth(2)).map(str::to_owned).collect()
}

#[test]
fn the_libraries_export_exactly_the_documented_functions() {
    let both = declared().into_iter().chain(declared_in(&posix_header()));
    let documented: BTreeSet<_> = both.map(|(name, _)| name).collect();
    let shared = exported(&["--dynamic", "--defined-only"], "libuntorn.so");
    // The functions of the C++ library that this library replaces for managed files.
    let (cxx, shared): (BTreeSet<_>, BTreeSet<_>) = shared.into_iter().partition(|name| name.starts_with("_ZNSt"));
    let checked = ["4open", "6rename", "6remove", "11resize_file", "9file_size", "9file_size", "9copy_file"];
    let unknown: Vec<_> = cxx.iter().filter(|name| !checked.iter().any(|part| name.contains(part))).collect();
    assert!(cxx.len() == checked.len() && unknown.is_empty(), "{cxx:?}");
    // The functions for `libuntorn-preload.so` alone; `package/untorn.map` hides them when the library is installed.
    let private = fs::read_to_string(crate_dir().join("../preload/preload.h")).expect("preload.h");
    let private: BTreeSet<_> = declared_in(&private).into_iter().map(|(name, _)| name).collect();
    assert_eq!(private.len(), 1, "{private:?}");
    let documented = &documented | &private;
    assert_eq!(shared, documented);
    // A static archive shows all of Rust's names, but nothing else of ours.
    let archive = exported(&["--extern-only", "--defined-only"], "libuntorn.a");
    let ours: BTreeSet<_> = archive.into_iter().filter(|name| name.starts_with("untorn_")).collect();
    assert_eq!(ours, documented);
}

#[test]
fn the_shared_library_carries_its_name_and_stays_loaded() {
    let dynamic = output_of(Command::new("readelf").arg("--dynamic").arg(library_dir().join("libuntorn.so")));
    assert!(dynamic.contains("soname: [libuntorn.so.0]"), "{dynamic}");
    assert!(dynamic.contains("NODELETE"), "{dynamic}");
}
