//! Programs watch a store that another process has open, and its owner measures only then.

mod common;

use common::child_process::{ChildProcess, path_text};
use common::*;
use rustix::process::Signal;
use std::fs;
use std::os::unix::fs::chown;
use std::path::Path;
use std::time::Duration;
use untorn::reader::{Figures, Stage, Watch};
use untorn::{FailureClass, Store, StoreOptions};
use untorn_testkit::NOBODY;

/// Longer than any test takes: only a broken program waits this long.
const LONG: Duration = Duration::from_secs(120);

/// Bytes of a page behind which nothing was published.
const PAGE_BYTES: u64 = 4096;

fn page_bytes(dir: &Path) -> u64 {
    fs::metadata(dir.join(".untorn/readers")).unwrap().len()
}

/// The first figures, of an owner that goes on committing, that have a property.
fn figures_of(watch: &Watch, process: &mut ChildProcess, what: &str, is_right: impl Fn(&Figures) -> bool) -> Figures {
    let (mut found, mut n) = (None, 0);
    eventually(LONG, what, || {
        n += 1;
        process.commit("a", &n.to_string());
        found = watch.figures().unwrap().filter(&is_right);
        found.is_some()
    });
    found.unwrap()
}

#[test]
fn an_owner_publishes_what_it_does() {
    let dir = directory();
    let mut process = ChildProcess::start();
    process.ok(&["open", path_text(dir.path())]);
    process.ok(&["create", "a"]);
    process.commit("a", "first");
    let watch = Watch::open(dir.path()).unwrap();
    assert_eq!(watch.owner().unwrap(), Some(process.pid()));
    let first = figures_of(&watch, &mut process, "the owner publishes", |_| true);
    assert_eq!((first.pid, first.failed, first.quarantined), (process.pid(), false, 0));
    assert!(first.commits > 0 && first.lsn >= first.commits && first.journal_bytes_allocated > 0, "{first:?}");
    let has = |figures: &Figures, stages: &[Stage]| stages.iter().all(|stage| figures.stage(*stage).count() > 0);
    let measured = figures_of(&watch, &mut process, "commits are measured", |figures| {
        has(figures, &[Stage::Commit, Stage::Queue, Stage::Write, Stage::Flush])
    });
    assert!(measured.stage(Stage::Commit).sum() >= measured.stage(Stage::Flush).sum(), "a flush is a part of a commit");
    assert_eq!(measured.stage(Stage::Write).count(), measured.stage(Stage::Flush).count());
    assert!(measured.stage(Stage::Commit).count() < measured.commits, "commits before the watch are not measured");
    process.ok(&["checkpoint"]);
    let later =
        figures_of(&watch, &mut process, "a checkpoint is measured", |figures| has(figures, &[Stage::Checkpoint]));
    assert!(later.checkpoints > first.checkpoints && later.publication > first.publication);
    assert!(later.bytes_written > first.bytes_written && later.syncs > first.syncs);
}

#[test]
fn nothing_is_measured_while_nobody_watches() {
    let dir = directory();
    let mut process = ChildProcess::start();
    process.ok(&["open", path_text(dir.path())]);
    process.ok(&["create", "a"]);
    process.commit("a", "first");
    assert_eq!(page_bytes(dir.path()), PAGE_BYTES);
    let watch = Watch::open(dir.path()).unwrap();
    figures_of(&watch, &mut process, "the owner publishes", |_| true);
    assert!(page_bytes(dir.path()) > PAGE_BYTES);
    drop(watch);
    // The owner finds out, and then counts commits without measuring them.
    let mut n = 0;
    eventually(LONG, "the owner stops measuring", || {
        let watch = Watch::open(dir.path()).unwrap();
        let before = figures_of(&watch, &mut process, "figures before", |_| true);
        drop(watch);
        // More than an interval without a watch.
        std::thread::sleep(Duration::from_millis(600));
        for _ in 0..100 {
            n += 1;
            process.commit("a", &n.to_string());
        }
        let watch = Watch::open(dir.path()).unwrap();
        let after = figures_of(&watch, &mut process, "figures after", |figures| figures.commits > before.commits + 100);
        let measured = |figures: &Figures| figures.stage(Stage::Commit).count();
        after.commits - before.commits > measured(&after) - measured(&before)
    });
}

#[test]
fn figures_end_with_their_owner_and_go_on_with_the_next() {
    let dir = directory();
    let mut process = ChildProcess::start();
    process.ok(&["open", path_text(dir.path())]);
    process.ok(&["create", "a"]);
    let watch = Watch::open(dir.path()).unwrap();
    let first = figures_of(&watch, &mut process, "the first owner publishes", |_| true);
    process.kill();
    assert_eq!((watch.owner().unwrap(), watch.figures().unwrap()), (None, None), "nobody has the store open");
    let mut process = ChildProcess::start();
    process.ok(&["open", path_text(dir.path())]);
    process.ok(&["create", "a"]);
    assert_eq!(watch.figures().unwrap(), None, "these would be the figures of the killed owner");
    let second = figures_of(&watch, &mut process, "the next owner publishes", |_| true);
    assert!(second.epoch != first.epoch && second.lsn >= first.lsn, "{first:?} {second:?}");
    process.ok(&["close"]);
    assert_eq!(watch.figures().unwrap(), None);
}

#[test]
fn a_watch_that_came_first_sees_a_store_that_begins_a_new_page() {
    let dir = directory();
    drop(Store::open_or_create(dir.path()).unwrap());
    let watch = Watch::open(dir.path()).unwrap();
    // An owner in class `process` ends the page, and shows nothing.
    let store = StoreOptions::new().class(FailureClass::Process).open(dir.path()).unwrap();
    assert_eq!((watch.owner().unwrap(), watch.figures().unwrap()), (Some(std::process::id()), None));
    store.close().unwrap();
    let mut process = ChildProcess::start();
    process.ok(&["open", path_text(dir.path())]);
    process.ok(&["create", "a"]);
    figures_of(&watch, &mut process, "the owner publishes in a new page", |_| true);
}

#[test]
fn a_user_who_may_only_read_watches() {
    if !is_root() {
        return skipped("only root has two users");
    }
    let dir = directory();
    set_mode(dir.path(), 0o755);
    let at = dir.path().join("store");
    fs::create_dir(&at).unwrap();
    chown(&at, Some(NOBODY), Some(NOBODY)).unwrap();
    let mut process = ChildProcess::start();
    process.ok(&["become", &NOBODY.to_string()]);
    process.ok(&["open", path_text(&at)]);
    process.ok(&["create", "a"]);
    let watch = Watch::open(&at).unwrap();
    figures_of(&watch, &mut process, "root sees the figures of an ordinary user", |_| true);
}

#[test]
fn a_full_disk_does_not_stop_commits_of_a_watched_store() {
    let place = directory();
    let at = place.path().join("disk");
    fs::create_dir(&at).unwrap();
    let Some(_mount) = Mount::ext4(16 << 20, &at) else { return };
    let dir = at.join("store");
    fs::create_dir(&dir).unwrap();
    let mut process = ChildProcess::start();
    process.ok(&["open", path_text(&dir)]);
    process.ok(&["create", "a"]);
    process.commit("a", "first");
    process.ok(&["checkpoint"]);
    let ballast = at.join("ballast");
    let filled = fs::File::create(&ballast).and_then(|mut file| std::io::copy(&mut std::io::repeat(1), &mut file));
    assert!(filled.is_err(), "the disk is full");
    let watch = Watch::open(&dir).unwrap();
    for n in 0..200 {
        process.commit("a", &n.to_string());
        std::thread::sleep(Duration::from_millis(2));
    }
    // Without room there are no figures; with room they come.
    fs::remove_file(&ballast).unwrap();
    figures_of(&watch, &mut process, "the owner publishes when there is room", |_| true);
}

#[test]
fn old_figures_are_not_shown_and_a_cut_page_is_no_harm() {
    let dir = directory();
    let mut process = ChildProcess::start();
    process.ok(&["open", path_text(dir.path())]);
    process.ok(&["create", "a"]);
    let watch = Watch::open(dir.path()).unwrap();
    figures_of(&watch, &mut process, "the owner publishes", |_| true);
    process.signal(Signal::STOP);
    eventually(LONG, "the owner is stopped", || {
        let stat = fs::read_to_string(format!("/proc/{}/stat", process.pid())).unwrap();
        stat.rsplit(')').next().is_some_and(|rest| rest.starts_with(" T"))
    });
    let late = Watch::open(dir.path()).unwrap();
    assert_eq!(late.figures().unwrap(), None, "these are older than the watch");
    eventually(LONG, "the figures of an owner that hangs grow old", || watch.figures().unwrap().is_none());
    fs::OpenOptions::new().write(true).open(dir.path().join(".untorn/readers")).unwrap().set_len(0).unwrap();
    assert_eq!(watch.figures().unwrap(), None);
}

#[test]
fn a_path_without_a_store_is_refused() {
    let dir = directory();
    refused(Watch::open(dir.path()), &["io"]);
    refused(Watch::open(dir.path().join("none")), &["io"]);
}
