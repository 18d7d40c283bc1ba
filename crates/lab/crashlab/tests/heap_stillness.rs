//! The threads that a commit of a heap makes wait: threads that change the heap wait while their changes are copied,
//! but not while they are compared with the committed state, written and flushed.

mod hooked;

use hooked::Hooked;
use parking_lot::Mutex;
use std::alloc::Layout;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::sync::mpsc::channel;
use std::time::Duration;
use untorn::__private::OpenStoreOn;
use untorn::heap::HeapOptions;
use untorn::{StoreOptions, TrackerKind};
use untorn_crashlab::{Options, SimDisk};
use untorn_journal::directories::store_dir::StoreDir;

/// A thread that does not get the guard within this time never gets it, as the commit waits for that thread.
const LIMIT: Duration = Duration::from_secs(60);

#[test]
fn threads_go_on_while_a_commit_compares_and_flushes() {
    for (tracker, during) in
        [(TrackerKind::Scan, "read_at"), (TrackerKind::PageMap, "read_at"), (TrackerKind::Scan, "sync_data")]
    {
        let disk = SimDisk::new(Options { memory: true, ..Options::default() });
        let (armed, seen) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
        let (ask, asked) = channel::<()>();
        let (answer, answered) = channel::<()>();
        let hook = {
            let (armed, seen) = (armed.clone(), seen.clone());
            let channels = Mutex::new((ask, answered));
            move |call: &str| {
                if call == during && armed.swap(false, SeqCst) {
                    let channels = channels.lock();
                    channels.0.send(()).expect("the other thread");
                    let done = channels.1.recv_timeout(LIMIT);
                    assert!(done.is_ok(), "{tracker}: a thread waits for the guard during `{during}`");
                    seen.fetch_add(1, SeqCst);
                }
            }
        };
        let storage = Arc::new(Hooked::over(disk.spawn(), Arc::new(hook)));
        let options = StoreOptions::new().create(true).background(false);
        let store = options.open_on(storage, StoreDir::of_directory(), PathBuf::new()).expect("a store");
        let open = || HeapOptions::new().create(true).address_space(32 << 20).tracker(tracker).open_in(&store, "heap");
        let heap = open().expect("a heap");
        let layout = Layout::from_size_align(100_000, 16).expect("a layout");
        let block = heap.allocate(layout).expect("a block");
        heap.commit().expect("a commit");
        store.checkpoint().expect("a checkpoint");
        heap.close().expect("closed");
        // A new opening does not remember the committed state, so the commit must read it.
        let heap = open().expect("a heap");
        std::thread::scope(|scope| {
            let heap = &heap;
            scope.spawn(move || {
                if asked.recv_timeout(2 * LIMIT).is_ok() {
                    let _guard = heap.mutate();
                    let other = heap.allocate(Layout::from_size_align(100, 16).expect("a layout")).expect("a block");
                    // SAFETY: allocated just now.
                    unsafe { other.write_bytes(3, 100) };
                    answer.send(()).expect("the commit");
                }
            });
            // SAFETY: within the block.
            unsafe { block.write_bytes(1, 10_000) };
            armed.store(true, SeqCst);
            heap.commit().expect("a commit");
        });
        assert_eq!(seen.load(SeqCst), 1, "{tracker}: there was no `{during}`");
        heap.commit().expect("what came in between");
        assert!(heap.check(&|_, _| {}).expect("a look").is_sound());
        heap.close().expect("closed");
        store.close().expect("closed");
    }
}
