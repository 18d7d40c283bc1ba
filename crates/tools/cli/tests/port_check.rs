//! `untorn port-check`: the calls of a program that matter for porting it.

mod common;

use common::{json, run, untorn};
use std::fs;

#[test]
fn calls_are_listed_with_their_lines() {
    let dir = tempfile::tempdir().unwrap();
    let source = dir.path().join("store.c");
    let text = "int save(int fd, char *at) {\n  /* msync(at) */\n  msync(at, 4096, MS_SYNC);\n  fsync(fd);\n\
                \x20 read(fd, at, 1);\n  return rename(\"a\", \"b\");\n}\n";
    fs::write(&source, text).unwrap();
    let said = run(&["port-check"], dir.path()).ok();
    for (call, line) in [("msync", 3), ("fsync", 4), ("rename", 6)] {
        assert!(said.contains(&format!("? {call}: ")) && said.contains(&format!("store.c:{line}\n")), "{said}");
    }
    assert!(
        !said.contains("read:") && said.ends_with("4 calls in 1 file: 0 past the header, 3 to look at\n"),
        "{said}"
    );
    assert!(run(&["port-check", "--all"], &source).ok().contains("  read: works as before"));

    let found = json(&run(&["port-check", "--json"], &source).ok());
    assert_eq!((found[0]["call"].as_str(), found[0]["line"].as_u64()), (Some("msync"), Some(3)));

    // The exit code tells of calls that bypass the header.
    fs::write(dir.path().join("copy.cc"), "void f() {\n  std::ofstream out(\"x\");\n  ::sendfile(a, b, 0, 9);\n}\n")
        .unwrap();
    let past = run(&["port-check"], dir.path());
    assert_eq!(past.code, Some(1));
    assert!(past.out.contains("! ofstream: ") && past.out.contains("copy.cc:3\n"), "{}", past.out);
}

#[test]
fn nothing_to_look_at_is_an_error() {
    let dir = tempfile::tempdir().unwrap();
    assert!(run(&["port-check"], dir.path()).fails(2).contains("no C or C++ source"));
    assert!(run(&["port-check"], &dir.path().join("missing.c")).fails(2).contains("missing.c"));
    let none = untorn().arg("port-check").output().unwrap();
    assert_eq!(none.status.code(), Some(2));
}
