//! Option `full_page`, on a disk that damages the page being written.

use crate::fixture::{roomy, survives};
use untorn::__private::StoreSteps;
use untorn_crashlab::{Model, Options, Profile, SimDisk};

/// With option `full_page`, zeros over a part of a page were not logged as a whole page, and neither was a commit that
/// waited for a checkpoint.
#[test]
fn full_page_covers_zeros_and_commits_that_waited() {
    survives("closed,ext4,garbage,roomy,buffered/0/zero,retire/");
    survives("closed,ext4,garbage,tight,buffered/0/one,group/");
    survives("pending,posix,garbage,tight,direct/0/both,retire/");
}

/// With `full_page`, a record has the pages that the checkpoint after it needs, even if it was requested before the
/// last one began.
#[test]
fn a_page_is_logged_whole_for_the_checkpoint_that_follows() {
    let disk = SimDisk::new(Options { profile: Profile::Ext4, model: Model::PageGarbage, ..Options::default() });
    disk.put("a", &[1; 4096]).unwrap();
    disk.settle();
    let store = roomy::open_with(&disk, roomy::options().full_page(true)).unwrap();
    let a = store.open_file("a").unwrap();
    a.write_at(&[2; 100], 0).unwrap();
    a.commit().unwrap();
    a.write_at(&[3; 100], 1000).unwrap();
    let asked_for_before = a.commit_async().unwrap();
    store.begin_checkpoint().unwrap().unwrap().apply().unwrap().truncate_log().unwrap();
    asked_for_before.wait().unwrap();
    disk.record();
    store.checkpoint().unwrap();
    for snapshot in disk.recorded() {
        for cut in snapshot.cuts(64, 1) {
            let after = roomy::recovered(&snapshot.power_cut(cut).disk).get("a").unwrap();
            let right = [&[2; 100][..], &[1; 900], &[3; 100], &[1; 2996]].concat();
            assert!(after == right, "{} {cut}", snapshot.call());
        }
    }
}
