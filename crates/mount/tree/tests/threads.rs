//! Threads over one tree, on a real file system.

mod common;
use common::*;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use untorn::StoreOptions;
use untorn_tree::*;

fn open_in(dir: &std::path::Path, commit: CommitMode) -> StoreTree {
    open_with_small(dir, commit, 64 << 10)
}

fn open_with_small(dir: &std::path::Path, commit: CommitMode, small_max: usize) -> StoreTree {
    let store = StoreOptions::new().create(true).open(dir.join("store")).unwrap();
    StoreTree::open(store, TreeOptions { small_max, ..tree_options(&Arc::default(), commit) }).unwrap()
}

#[test]
fn threads_that_sync_their_own_files() {
    // Each file has an object; or those that grow get one on the way; or all are in the pack.
    for (small_max, objects) in [(0, 9), (4096, 8), (64 << 10, 0)] {
        sync_own_files(small_max, objects);
    }
}

fn sync_own_files(small_max: usize, objects: usize) {
    let temp = tempfile::tempdir().unwrap();
    let tree = open_with_small(temp.path(), CommitMode::Sync, small_max);
    let ends = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let workers: Vec<_> = (0..4u8)
            .map(|n| {
                let tree = &tree;
                scope.spawn(move || {
                    let a = file(tree, &format!("{n}"));
                    tree.open(a, true).unwrap();
                    for round in 0..50u8 {
                        tree.write(a, u64::from(round) * 100, &[n; 100]).unwrap();
                        tree.sync(a, &Clean).unwrap();
                        assert_eq!(contents(tree, a), vec![n; 100 * usize::from(round + 1)]);
                        let (new, old) = (format!("{n}.new"), format!("{n}.old"));
                        let b = file(tree, &new);
                        tree.write(b, 0, &[round; 5000]).unwrap();
                        tree.rename((ROOT, name(&new)), (ROOT, name(&old)), RenameFlags::Replace, &Clean).unwrap();
                        tree.forget(b, 1);
                    }
                    tree.release(a, true);
                })
            })
            .collect();
        scope.spawn(|| {
            while !ends.load(SeqCst) {
                tree.tick(&Clean);
                tree.sync_names(&Clean).unwrap();
                assert!(tree.read_dir(ROOT, 0, 100).unwrap().len() <= 12);
                tree.space().unwrap();
            }
        });
        let done: Vec<_> = workers.into_iter().map(|worker| worker.join()).collect();
        ends.store(true, SeqCst);
        assert!(done.iter().all(|done| done.is_ok()));
    });
    let held = file(&tree, "held");
    tree.write(held, 0, b"held").unwrap();
    tree.close(&Clean).unwrap();
    drop(tree);
    let tree = open_in(temp.path(), CommitMode::Sync);
    assert!(tree.pack_is_as_rows_say().unwrap());
    for n in 0..4u8 {
        assert_eq!(contents_of(&tree, &format!("{n}")), vec![n; 5000]);
        assert_eq!(contents_of(&tree, &format!("{n}.old")), [49; 5000]);
    }
    assert_eq!(contents_of(&tree, "held"), b"held");
    let found = std::fs::read_dir(temp.path().join("store/obj/0")).unwrap();
    let found = found.filter(|entry| !entry.as_ref().unwrap().file_name().to_string_lossy().contains("untorn"));
    assert_eq!(found.count(), objects, "replaced files left nothing");
}

/// A kernel that checks that no two rounds write back at a time: the commit of one would have half of the changes that
/// the other writes back.
#[derive(Default)]
struct OneAtATime {
    write_backs: AtomicBool,
    count: AtomicUsize,
}

impl KernelCache for OneAtATime {
    fn write_back(&self, _: Ino) -> Result<()> {
        assert!(!self.write_backs.swap(true, SeqCst), "two rounds write back at a time");
        self.count.fetch_add(1, SeqCst);
        std::thread::yield_now();
        self.write_backs.store(false, SeqCst);
        Ok(())
    }
}

#[test]
fn rounds_come_one_after_the_other_and_are_shared() {
    let temp = tempfile::tempdir().unwrap();
    let tree = open_in(temp.path(), CommitMode::Store);
    let cache = OneAtATime::default();
    std::thread::scope(|scope| {
        for n in 0..4u8 {
            let (tree, cache) = (&tree, &cache);
            scope.spawn(move || {
                let a = file(tree, &format!("{n}"));
                tree.open(a, true).unwrap();
                for round in 0..50u8 {
                    tree.write(a, 0, &[round; 100]).unwrap();
                    tree.sync(a, cache).unwrap();
                }
                tree.release(a, true);
            });
        }
    });
    assert!(cache.count.load(SeqCst) >= 50, "an open file is written back");
    tree.close(&cache).unwrap();
    drop(tree);
    let tree = open_in(temp.path(), CommitMode::Sync);
    (0..4).for_each(|n| assert_eq!(contents_of(&tree, &format!("{n}")), vec![49; 100]));
}
