//! Programs that watch the figures of an owner on the simulated disk.

use std::path::PathBuf;
use std::time::{Duration, Instant};
use untorn::__private::OpenStoreOn;
use untorn::StoreOptions;
use untorn_crashlab::{Fault, On, Options, SimDisk, What};
use untorn_journal::directories::store_dir::StoreDir;
use untorn_journal::statistics::figures::{Figure, Figures};
use untorn_journal::undo::page::WatchedPage;

/// Longer than any test takes: only a broken program waits this long.
const LONG: Duration = Duration::from_secs(120);

/// A program that begins to watch after the failure hears of it, although all commits are refused.
#[test]
fn a_store_that_failed_before_somebody_watched_is_told_as_failed() {
    let disk = SimDisk::new(Options::default());
    let (owner, watcher) = (disk.spawn(), disk.spawn());
    let store_dir = StoreDir::of_directory();
    let options = StoreOptions::new().create(true).background(true);
    let store = options.open_on(owner, store_dir.clone(), PathBuf::new()).unwrap();
    let file = store.open_or_create_file("a").unwrap();
    let commit = || file.write_all_at(b"changed", 0).and_then(|()| file.commit());
    commit().unwrap();
    disk.fail(Fault { on: On::Sync, after: 0, times: 1, what: What::Errno(libc::EIO) });
    commit().unwrap_err();
    // Until the owner's thread has nothing to do, and sleeps.
    std::thread::sleep(Duration::from_millis(500));
    let page = WatchedPage::open(&*watcher, &store_dir).unwrap().expect("the page of the owner");
    let start = Instant::now();
    let has_failed = |figures: Figures| figures.number(Figure::Failed) == 1;
    while !page.figures(&*watcher).unwrap().is_some_and(has_failed) {
        commit().unwrap_err();
        assert!(start.elapsed() < LONG, "the failure is not told");
        std::thread::sleep(Duration::from_millis(5));
    }
}
