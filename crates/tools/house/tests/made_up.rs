//! The checker itself, on small made-up sources.

use std::fs;
use std::path::{Path, PathBuf};
use untorn_house::arrows::{Package, not_drawn, wrong_arrows};
use untorn_house::folders;
use untorn_house::habits::{bare_errors, clauses_as_nouns, first_lines_that_lean, printing};
use untorn_house::imports::{Imports, imports_of};
use untorn_house::listing::{self, Listing};
use untorn_house::modules::Crate;
use untorn_house::sizes;

/// The imports of a crate with these files. The first file is its root.
fn crate_of(files: &[(&str, &str)]) -> Imports {
    let dir = tempfile::tempdir().expect("a directory");
    for (name, text) in files {
        let path = dir.path().join(name);
        fs::create_dir_all(path.parent().expect("a parent")).expect("mkdir");
        fs::write(path, text).expect("write");
    }
    imports_of(&dir.path().join(files[0].0)).expect("imports")
}

/// The imports as lines: `from → to: items`.
fn lines(found: &Imports) -> Vec<String> {
    let name = |file: usize| found.files[file].display().to_string();
    let line = |((from, to), items): (&(usize, usize), &std::collections::BTreeSet<String>)| {
        format!("{} → {}: {}", name(*from), name(*to), items.iter().map(String::as_str).collect::<Vec<_>>().join(", "))
    };
    found.edges.iter().map(line).collect()
}

#[track_caller]
fn clean(files: &[(&str, &str)], imports: &[&str]) {
    let found = crate_of(files);
    assert_eq!(lines(&found), imports);
    assert_eq!(found.circles(), Vec::<String>::new());
}

/// Checks for one group of files that import each other, with these lines. The first line is its head.
#[track_caller]
fn circle(files: &[(&str, &str)], expected: &[&str]) {
    let found = crate_of(files).circles();
    assert_eq!(found.len(), 1, "{found:?}");
    assert_eq!(found[0].lines().collect::<Vec<_>>(), expected);
}

#[test]
fn two_modules_that_import_each_other() {
    circle(
        &[
            ("lib.rs", "mod a; mod b;"),
            ("a.rs", "use crate::b::B; pub struct A(B);"),
            ("b.rs", "pub struct B; fn f(_: &super::a::A) {}"),
        ],
        &[
            "2 files import each other, for example a.rs → b.rs → a.rs",
            "  a.rs imports b.rs: B",
            "  b.rs imports a.rs: A",
        ],
    );
}

#[test]
fn a_circle_by_way_of_a_third_module() {
    circle(
        &[
            ("lib.rs", "mod a; mod b; mod c; mod d;"),
            ("a.rs", "use crate::b::{self, deep::{E, F as G}}; fn f() { b::g(); } pub fn a() {}"),
            ("b/mod.rs", "pub mod deep; use crate::c::C; pub fn g() {}"),
            ("b/deep.rs", "pub struct E; pub struct F;"),
            ("c.rs", "pub struct C; fn f() { crate::a::a() }"),
            ("d.rs", "use super::{a::a, c::*}; fn f(_: C) {}"),
        ],
        &[
            "3 files import each other, for example a.rs → b/mod.rs → c.rs → a.rs",
            "  a.rs imports b/mod.rs: g",
            "  b/mod.rs imports c.rs: C",
            "  c.rs imports a.rs: a",
        ],
    );
}

#[test]
fn imports_that_run_down() {
    clean(
        &[
            ("lib.rs", "mod a; mod b; pub use a::A; pub use b::{B, Kind};"),
            ("a.rs", "use crate::b::Kind::{self, *}; pub struct A(super::b::B, Kind);"),
            ("b.rs", "use std::fmt; use serde::Serialize; pub struct B; pub enum Kind { One }"),
        ],
        &["a.rs → b.rs: B, Kind"],
    );
}

#[test]
fn reexports_are_followed_to_the_defining_module() {
    // Neither `crate::B` nor `crate::two::C` is an import of the root or of `two/mod.rs`.
    clean(
        &[
            ("lib.rs", "mod a; mod b; mod two; pub use b::*; pub use two::C; use a::A; fn f(_: A) {}"),
            ("a.rs", "use crate::{B, C as D}; use crate::two; pub struct A(B, D, two::C);"),
            ("b.rs", "pub struct B;"),
            ("two/mod.rs", "mod inner; pub(crate) use self::inner::C;"),
            ("two/inner.rs", "pub struct C;"),
        ],
        &["lib.rs → a.rs: A", "a.rs → b.rs: B", "a.rs → two/inner.rs: C"],
    );
    circle(
        &[
            ("lib.rs", "mod a; mod b; pub use a::A; pub use b::B;"),
            ("a.rs", "pub struct A(crate::B);"),
            ("b.rs", "pub struct B(Vec<crate::A>);"),
        ],
        &[
            "2 files import each other, for example a.rs → b.rs → a.rs",
            "  a.rs imports b.rs: B",
            "  b.rs imports a.rs: A",
        ],
    );
}

#[test]
fn a_child_and_what_its_parent_defines() {
    let child = "use super::Parent; pub fn child(_: &Parent) {}";
    // The parent declares the child, and re-exports it.
    clean(
        &[("lib.rs", "mod p;"), ("p.rs", "mod child; pub use child::child; pub struct Parent;"), ("p/child.rs", child)],
        &["p/child.rs → p.rs: Parent"],
    );
    // The parent uses the child.
    circle(
        &[
            ("lib.rs", "mod p;"),
            ("p.rs", "mod child; pub struct Parent; fn f() { child::child(&Parent) }"),
            ("p/child.rs", child),
        ],
        &[
            "2 files import each other, for example p.rs → p/child.rs → p.rs",
            "  p.rs imports p/child.rs: child",
            "  p/child.rs imports p.rs: Parent",
        ],
    );
    // By a glob, by names that the parent imports, and by the name of a re-export.
    clean(
        &[
            ("lib.rs", "mod p; mod q;"),
            ("p.rs", "mod child; mod other; use crate::q::Q; pub use other::helper; fn f(_: Q) { child::child() }"),
            ("p/child.rs", "use super::*; pub fn child() { let f = Q; helper(f) }"),
            ("p/other.rs", "pub fn helper(_: crate::q::Q) {}"),
            ("q.rs", "pub struct Q;"),
        ],
        &[
            "p.rs → p/child.rs: child",
            "p.rs → q.rs: Q",
            "p/child.rs → p/other.rs: helper",
            "p/child.rs → q.rs: Q",
            "p/other.rs → q.rs: Q",
        ],
    );
}

#[test]
fn macros_and_their_arguments() {
    clean(
        &[
            ("lib.rs", "#[macro_use] mod rules; mod a; mod b;"),
            ("rules.rs", "macro_rules! say { ($e:expr) => { $crate::b::print($e) } }"),
            ("a.rs", "use crate::b; fn f(b: B) { say!(1); assert!(b::check(b.print), \"{}\", crate::b::B::NEW); }"),
            ("b.rs", "pub fn print(_: u8) {} pub fn check() {} pub struct B;"),
        ],
        &["rules.rs → b.rs: print", "a.rs → rules.rs: say!", "a.rs → b.rs: B, check"],
    );
}

#[test]
fn calls_of_methods_away_from_their_type() {
    let dir = tempfile::tempdir().expect("a directory");
    for (name, text) in [
        ("lib.rs", "mod a; mod b; mod c;"),
        ("a.rs", "pub struct A; impl A { pub fn new() -> A { A } } fn f(a: &A) { a.flush_all(); a.len() }"),
        ("b.rs", "impl crate::a::A { pub fn flush_all(&self) {} pub fn len(&self) {} }"),
        ("c.rs", "struct C; impl C { fn len(&self) {} } fn f(a: &crate::a::A) { a.flush_all() }"),
    ] {
        fs::write(dir.path().join(name), text).expect("write");
    }
    let source = Crate::read(&dir.path().join("lib.rs")).expect("the crate");
    let mut found = Imports::of(&source);
    assert_eq!(found.circles(), Vec::<String>::new());
    found.add_calls(&source);
    assert_eq!(
        lines(&found),
        ["a.rs → b.rs: .flush_all()", "b.rs → a.rs: A", "c.rs → a.rs: A", "c.rs → b.rs: .flush_all()"]
    );
    assert_eq!(found.circles().len(), 1);
}

#[test]
fn tests_and_inline_modules() {
    clean(
        &[
            ("lib.rs", "mod a; mod b;"),
            (
                "a.rs",
                "pub struct A; #[cfg(test)] mod tests; #[cfg(test)] use crate::b::B; #[cfg(test)] mod more { use crate::b::B; }",
            ),
            ("a/tests.rs", "use crate::b::B;"),
            (
                "b.rs",
                "mod inline { use super::super::a::A; pub struct I(A); } pub struct B(inline::I); #[test] fn t() {}",
            ),
        ],
        &["b.rs → a.rs: A"],
    );
}

fn package(name: &str, dependencies: &[&str], program: bool) -> Package {
    let dependencies = dependencies.iter().map(|d| (*d).to_owned()).collect();
    let dir = PathBuf::from(format!("/w/crates/{}", name.trim_start_matches("untorn-")));
    Package { name: name.into(), dir, dependencies, program, published: !program, ..Package::default() }
}

#[test]
fn arrows_between_crates() {
    let mut packages = vec![
        package("untorn-os", &[], false),
        package("untorn-journal", &["untorn-os"], false),
        package("untorn", &["untorn-journal", "untorn-os"], false),
        package("untorn-crashtest", &["untorn", "untorn-crashlab"], true),
        package("untorn-crashlab", &["untorn"], true),
    ];
    assert_eq!(wrong_arrows(&packages), Vec::<String>::new());
    packages[0].dependencies.push("untorn".into());
    packages[2].dependencies.push("untorn-crashlab".into());
    packages.push(package("untorn-news", &[], false));
    assert_eq!(
        wrong_arrows(&packages),
        [
            "untorn-os depends on untorn, which is not below it",
            "untorn depends on untorn-crashlab, which is not below it",
            "untorn depends on untorn-crashlab and is no program",
            "untorn may be published, but not untorn-crashlab, which it depends on",
            "untorn-news has no place among the crates: say in ALLOWED what it may depend on",
        ]
    );
}

#[test]
fn crates_that_the_drawing_leaves_out() {
    let packages = [package("untorn-os", &[], false), package("untorn-osmosis", &[], false)];
    let document = "# Rooms\n```\n  crates/os   the bottom\n```\nand `crates/osmosis`\n";
    assert_eq!(not_drawn(document, Path::new("/w"), &packages), ["crates/osmosis (untorn-osmosis)"]);
}

/// The violations between the folders of a crate with these files.
fn wrong_folders(files: &[(&str, &str)], floors: &[(&str, &[&str])]) -> Vec<String> {
    let dir = tempfile::tempdir().expect("a directory");
    for (name, text) in files {
        let path = dir.path().join(name);
        fs::create_dir_all(path.parent().expect("a parent")).expect("mkdir");
        fs::write(path, text).expect("write");
    }
    let source = Crate::read(&dir.path().join("lib.rs")).expect("the crate");
    let found = Imports::of(&source);
    assert_eq!(found.circles(), Vec::<String>::new(), "no file may be in a circle here");
    folders::wrong(&source, &found, "src", floors)
}

#[test]
fn folders_that_import_each_other() {
    let files = [
        ("lib.rs", "mod a; mod b;"),
        ("a.rs", "pub mod one; pub mod two;"),
        ("a/one.rs", "use crate::b::three::T; pub struct O(T);"),
        ("a/two.rs", "pub struct W;"),
        ("b.rs", "pub mod three;"),
        ("b/three.rs", "use crate::a::two::W; pub struct T(W);"),
    ];
    let found = wrong_folders(&files, &[]);
    assert_eq!(found.len(), 1, "{found:?}");
    assert_eq!(
        found[0].lines().collect::<Vec<_>>(),
        ["in src: 2 parts import each other, for example a → b → a", "  a imports b: T", "  b imports a: W",]
    );
}

#[test]
fn a_head_between_its_parts_and_a_head_in_a_circle_with_one() {
    let below = ("a/below.rs", "pub struct B;");
    let above = ("a/above.rs", "use crate::a::Head; pub struct A(Head);");
    let head = ("a.rs", "pub mod above; pub mod below; use below::B; pub struct Head(B);");
    assert_eq!(wrong_folders(&[("lib.rs", "mod a;"), head, below, above], &[]), Vec::<String>::new());
    // One file of the folder `deep` is below the head, the other one above it.
    let found = wrong_folders(
        &[
            ("lib.rs", "mod a;"),
            ("a.rs", "pub mod deep; use deep::below::B; pub struct Head(B);"),
            ("a/deep.rs", "pub mod above; pub mod below;"),
            ("a/deep/below.rs", below.1),
            ("a/deep/above.rs", above.1),
        ],
        &[],
    );
    assert_eq!(found.len(), 1, "{found:?}");
    assert!(found[0].starts_with("in src/a: 2 parts import each other"), "{found:?}");
}

#[test]
fn imports_that_point_up_and_folders_without_a_floor() {
    let files = [
        ("lib.rs", "mod a; mod b; mod c;"),
        ("a.rs", "pub mod one;"),
        ("a/one.rs", "use crate::b::two::T; pub struct O(T);"),
        ("b.rs", "pub mod two;"),
        ("b/two.rs", "pub struct T;"),
        ("c.rs", "pub mod three;"),
        ("c/three.rs", "pub struct C;"),
    ];
    assert_eq!(wrong_folders(&files, &[("src", &["b", "a", "c"])]), Vec::<String>::new());
    assert_eq!(
        wrong_folders(&files, &[("src", &["a", "b"])]),
        ["in src: a imports b, which is above it: T", "src/c has no floor: say in FLOORS where it stands",]
    );
}

#[test]
fn rustdoc_of_another_format_is_skipped() {
    let dir = tempfile::tempdir().expect("a directory");
    let json = dir.path().join("untorn.json");
    fs::write(&json, "{\"format_version\":1}").expect("write");
    match listing::read(&json).expect("a file that can be read") {
        Listing::Skipped(why) => assert!(why.contains("of format 1"), "{why}"),
        Listing::Made(list) => panic!("{list}"),
    }
}

#[test]
fn differences_of_two_lists() {
    assert_eq!(listing::differences("a\nb\nc\n", "a\nc\nd\n"), ["- b", "+ d"]);
}

#[test]
fn first_lines_that_need_another_line() {
    let text = "/// The same for maps.\nfn a() {}\n/// A map.\n/// The same as above.\nfn b() {}\n//! The same, again.\n// The same\n";
    assert_eq!(first_lines_that_lean(text), [1, 6]);
    let text =
        "/// What it costs.\nfn a() {}\n/// Its cost:\n/// What it takes.\nfn b() {}\n/// As before.\n/// Whatever.\n";
    assert_eq!(first_lines_that_lean(text), [1, 6]);
}

#[test]
fn comments_with_clauses_as_nouns() {
    let text = "// Keeps what it got.\nlet what = 1; // what\n/// Somewhat.\n//! Asks whoever comes.\n";
    assert_eq!(clauses_as_nouns(text), (3, 2));
}

#[test]
fn errors_compared_with_bare_numbers() {
    let text = "fn f(e: Error) -> bool {
        let a = e.raw_os_error() == Some(28);
        let b = Some(5) == e.raw_os_error();
        let c = matches!(e.raw_os_error(), Some(5 | 6));
        let d = match e.raw_os_error() { Some(17) => 1, _ => 0 };
        let e = e.raw_os_error().unwrap_or(0) != 5;
        let f = e.raw_os_error() == Some(libc::ENOSPC);
        let g = io::Error::from_raw_os_error(5);
        let h = f(28); let i = e.raw_os_error();
        assert_eq!(e.os_error(), Some(Errno::IO.raw_os_error()));
    }
    fn raw_os_error() -> Option<i32> { Some(1) }";
    assert_eq!(bare_errors(text).expect("tokens"), [2, 3, 4, 5, 6]);
}

#[test]
fn macros_that_panic_where_a_stream_takes_nothing() {
    let text = "fn f() {
        println!(\"a\");
        bar.suspend(|| eprint!(\"b\"));
        tell!(\"c\"); let print = 1; print(); writeln!(to, \"println!\");
    }
    #[cfg(test)]
    use other::thing;
    fn g() { std::eprintln!(\"d\"); }
    #[cfg(test)]
    mod tests { fn h() { println!(\"e\"); } }
    fn i() { dbg!(1); }";
    assert_eq!(printing(text).expect("tokens"), [2, 3, 8, 11]);
}

/// The violation of a file with this many lines of its own, and a module for tests behind them.
fn too_long(name: &str, own: usize) -> Option<String> {
    let tests = "\n#[cfg(test)]\nmod tests {\n    #[test]\n    fn t() {}\n}\n";
    let text = "fn f() {}\n".repeat(own) + tests;
    sizes::wrong(Path::new(name), &text).expect("a source")
}

#[test]
fn files_that_are_too_long() {
    assert_eq!(too_long("src/a.rs", 600), None);
    assert_eq!(too_long("src/a.rs", 601).as_deref(), Some("src/a.rs: 601 lines; at most 600"));
    for allowed in ["tests/a.rs", "tests/deep/a.rs", "src/a/tests.rs"] {
        assert_eq!(too_long(allowed, 601), None, "{allowed}");
    }
}

#[test]
fn lines_of_a_file_without_the_tests_at_its_end() {
    let lines = |text| sizes::lines(text).expect("a source");
    assert_eq!(lines(""), 0);
    assert_eq!(lines("//! A file.\n\nfn f() {}\n\n"), 3);
    assert_eq!(lines("fn f() {}\n\n/// Tests.\n#[cfg(test)]\nmod tests;\n"), 1);
    // Such a module in the middle counts.
    assert_eq!(lines("#[cfg(test)]\nmod tests {\n}\nfn f() {}\n"), 4);
    assert_eq!(lines("fn f() {}\nmod tests {\n}\n"), 3);
}
