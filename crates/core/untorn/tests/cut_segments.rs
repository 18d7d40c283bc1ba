//! A journal with a truncated segment that had acknowledged commits: every way to open or inspect the store reports it,
//! and the remaining commits can be salvaged.

mod common;

use common::child_process::{ChildProcess, close_clean_with};
use common::*;
use std::fs;
use untorn::offline::{RecoverOptions, inspect, recover};
use untorn::{Reader, Store};

#[test]
fn a_segment_that_was_cut_short_is_damage_until_it_is_salvaged() {
    let dir = directory();
    close_clean_with(dir.path(), &["a"], "0");
    let mut process = ChildProcess::owning(dir.path());
    process.ok(&["file", "a"]);
    for nth in 1..=40 {
        process.commit("a", &nth.to_string());
    }
    process.kill();
    let segment = |index| dir.path().join(format!(".untorn/journal/segment.{index}"));
    let newest = segment((0..).take_while(|index| segment(*index).exists()).last().unwrap());
    let bytes = fs::metadata(&newest).unwrap().len();
    fs::File::options().write(true).open(&newest).unwrap().set_len(bytes / 2 + 100).unwrap();

    let problems = inspect(dir.path()).unwrap().problems;
    assert!(problems.iter().any(|problem| problem.contains("commits at its end are lost")), "{problems:?}");
    let (before, journal) = (plain(dir.path().join("a")), plain(&newest));
    refused(Store::open_or_create(dir.path()), &["corrupt"]);
    refused(recover(dir.path(), &RecoverOptions::default(), &|_, _| ()), &["corrupt"]);
    match Reader::open(dir.path()).and_then(|reader| reader.read("a")) {
        // The lost part may have had no commit that a reader needs.
        Ok(found) => assert_same(&found, &text("40", "a"), "the last commit"),
        Err(e) => assert_eq!(e.kind(), "corrupt", "{e}"),
    }
    assert!(plain(dir.path().join("a")) == before && plain(&newest) == journal, "nothing was changed");

    let salvage = RecoverOptions { salvage: true, ..RecoverOptions::default() };
    assert_eq!(recover(dir.path(), &salvage, &|_, _| ()).unwrap().recovered.salvaged.len(), 1);
    let kept = plain(dir.path().join("a"));
    assert!((0..=40).any(|nth: u32| kept == text(&nth.to_string(), "a")), "it is the state of a commit");
    assert_eq!(inspect(dir.path()).unwrap().problems, Vec::<String>::new());
    let store = Store::open_or_create(dir.path()).unwrap();
    assert_same(&stored(&store, "a"), &kept, "and stays so");
}
