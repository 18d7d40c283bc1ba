//! Tickets as futures, the notification descriptor, and other calls for programs with event loops or with databases of
//! their own.

use rustix::event::{PollFd, PollFlags, poll};
use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::SeqCst};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};
use std::time::{Duration, Instant};
use untorn::{Error, FileOptions, Reader, Store, StoreOptions, Ticket};

struct Unpark(Thread, AtomicU32);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.1.fetch_add(1, SeqCst);
        self.0.unpark();
    }
}

fn block_on<F: Future>(future: F) -> (F::Output, u32) {
    let unpark = Arc::new(Unpark(thread::current(), AtomicU32::new(0)));
    let waker = Waker::from(unpark.clone());
    let mut future = pin!(future);
    loop {
        match future.as_mut().poll(&mut Context::from_waker(&waker)) {
            Poll::Ready(done) => return (done, unpark.1.load(SeqCst)),
            Poll::Pending => thread::park(),
        }
    }
}

#[test]
fn a_ticket_is_a_future_that_knows_its_lsn() {
    for background in [true, false] {
        let dir = tempfile::tempdir().unwrap();
        let store = StoreOptions::new().create(true).background(background).open(dir.path()).unwrap();
        let file = store.open_or_create_file("f").unwrap();
        let mut last = 0;
        for n in 0..20u8 {
            file.write_all_at(&[n], 0).unwrap();
            let ticket = file.commit_async().unwrap();
            let (done, woken) = block_on(ticket.clone());
            done.unwrap();
            assert!(woken <= 1, "woken {woken} times");
            let lsn = ticket.lsn().expect("the commit has succeeded");
            assert!(lsn > last, "{lsn} after {last}");
            last = lsn;
            // Another process can wait for it.
            assert!(Reader::open(dir.path()).unwrap().wait_for(lsn, Duration::from_secs(60)).unwrap());
        }
        // A commit without changes has that of the last record, a commit or a mark.
        let empty = file.commit_async().unwrap();
        block_on(empty.clone()).0.unwrap();
        assert!(empty.lsn() >= Some(last));
        // The store closes: the ticket has its result.
        file.write_all_at(b"x", 0).unwrap();
        let ticket = file.commit_async().unwrap();
        drop(file);
        store.close().unwrap();
        block_on(ticket).0.unwrap();
    }
}

#[test]
fn one_descriptor_tells_of_all_commits() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open_or_create(dir.path()).unwrap();
    let files: Vec<_> = (0..8).map(|n| store.open_or_create_file(n.to_string()).unwrap()).collect();
    let fd = store.notification_fd().unwrap();
    let is_readable = |wait_ms: i64| {
        let timeout = rustix::event::Timespec { tv_sec: wait_ms / 1000, tv_nsec: wait_ms % 1000 * 1_000_000 };
        poll(&mut [PollFd::new(&fd, PollFlags::IN)], Some(&timeout)).unwrap() == 1
    };
    assert!(!is_readable(0), "no commit has a result since the descriptor was made");
    for _ in 0..10 {
        let mut open: Vec<Ticket> = files
            .iter()
            .map(|file| {
                file.append(b"more").unwrap();
                file.commit_async().unwrap()
            })
            .collect();
        while !open.is_empty() {
            assert!(is_readable(60_000), "{} commits have no result", open.len());
            let mut count = [0; 8];
            rustix::io::read(fd, &mut count).unwrap();
            open.retain(|ticket| match ticket.poll() {
                Some(done) => {
                    done.unwrap();
                    false
                }
                None => true,
            });
        }
    }
}

#[test]
fn all_commits_that_were_started_are_waited_for() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open_or_create(dir.path()).unwrap();
    let file = store.open_or_create_file("f").unwrap();
    for _ in 0..50 {
        file.append(b"more").unwrap();
        let ticket = file.commit_async().unwrap();
        store.wait().unwrap();
        ticket.poll().expect("it has a result").unwrap();
    }
}

#[test]
fn only_lines_that_differ_are_logged() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open_or_create(dir.path()).unwrap();
    let file = store.open_or_create_file("f").unwrap();
    let mut page = vec![7u8; 4096];
    assert!(file.write_changed_at(&page, 4096).unwrap() && file.has_changes().unwrap());
    assert_eq!(file.len().unwrap(), 8192);
    file.commit().unwrap();
    assert!(!file.has_changes().unwrap());
    assert!(!file.write_changed_at(&page, 4096).unwrap() && !file.has_changes().unwrap());
    let before = store.status().journal_bytes_written;
    for n in 0..8u8 {
        page[300] = n;
        assert!(file.write_changed_at(&page, 4096).unwrap());
        file.commit().unwrap();
    }
    let each = (store.status().journal_bytes_written - before) / 8;
    assert_eq!(each, 4096, "one block for each commit");
    let mut read = vec![0; 4096];
    file.read_exact_at(&mut read, 4096).unwrap();
    assert_eq!(read, page);
    let read_only = FileOptions::new().read_only(true).open_in(&store, "f").unwrap();
    assert!(matches!(read_only.write_changed_at(&page, 0), Err(Error::Invalid { .. })));
    // Also of a mapped file, and stores to the mapping count as changes.
    let map = file.map().unwrap();
    // SAFETY: within the map, and no other thread uses it.
    unsafe { map.as_ptr().cast_mut().add(5000).write(1) };
    assert!(file.has_changes().unwrap());
    file.rollback().unwrap();
    assert!(!file.has_changes().unwrap());
    assert!(!file.write_changed_at(&page, 4096).unwrap());
}

/// Whole pages over pages of which the store has the contents in memory.
#[test]
fn lines_that_stay_the_same_are_not_logged_again() {
    use untorn::__private::write_over;
    let dir = tempfile::tempdir().unwrap();
    let store = StoreOptions::new().create(true).background(false).open(dir.path()).unwrap();
    let file = store.open_or_create_file("f").unwrap();
    let mut rng = fastrand::Rng::with_seed(1);
    let mut model = vec![7u8; 5 * 4096];
    let check = |model: &[u8]| {
        let mut read = vec![0; model.len()];
        file.read_exact_at(&mut read, 0).unwrap();
        assert!(read == model);
    };
    write_over(&file, &model, 0).unwrap();
    file.commit().unwrap();
    let logged = |n: usize, model: &mut Vec<u8>| {
        let before = store.status().journal_bytes_written;
        for _ in 0..n {
            model[2 * 4096 + 300] += 1;
            write_over(&file, &model[4096..4 * 4096], 4096).unwrap();
            file.commit().unwrap();
        }
        store.status().journal_bytes_written - before
    };
    assert_eq!(logged(8, &mut model), 8 * 4096, "one block for each commit");
    // The bytes are not in memory any more: the first commit has all of them.
    store.checkpoint().unwrap();
    assert_eq!(logged(1, &mut model), 4 * 4096);
    assert_eq!(logged(8, &mut model), 8 * 4096);
    check(&model);
    // Unlike those of a commit that may still fail.
    write_over(&file, &[9; 4096], 0).unwrap();
    let ticket = file.commit_async().unwrap();
    write_over(&file, &[9; 4096], 0).unwrap();
    assert!(file.has_changes().unwrap());
    file.commit().unwrap();
    ticket.wait().unwrap();
    model[..4096].fill(9);
    check(&model);
    for n in 0..300 {
        let at = rng.usize(..model.len());
        let end = (at + rng.usize(1..5000)).min(model.len());
        (0..rng.usize(..4)).for_each(|_| model[rng.usize(at..end)] = n as u8);
        write_over(&file, &model[at..end], at as u64).unwrap();
        match rng.u8(..8) {
            0 => store.checkpoint().unwrap(),
            1 => {
                model.truncate(model.len() - rng.usize(..500));
                file.set_len(model.len() as u64).unwrap();
                model.resize(5 * 4096, 0);
                file.set_len(model.len() as u64).unwrap();
            }
            2 => file.commit().unwrap(),
            _ => {}
        }
        check(&model);
    }
    file.commit().unwrap();
    drop(store);
    file.close().unwrap();
    assert!(std::fs::read(dir.path().join("f")).unwrap() == model);
}

#[test]
fn a_file_is_recognised_by_its_data_file() {
    use std::os::unix::fs::MetadataExt;
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open_or_create(dir.path()).unwrap();
    let file = store.open_or_create_file("f").unwrap();
    let meta = std::fs::metadata(dir.path().join("f")).unwrap();
    assert_eq!(file.identity().unwrap(), Some((meta.dev(), meta.ino())));
    let mut txn = store.begin();
    let new = txn.create("g", 0o600).unwrap();
    assert_eq!(new.identity().unwrap(), None);
    txn.commit().unwrap();
    assert!(new.identity().unwrap().is_some());
}

#[test]
fn a_store_is_found_in_its_process_and_waited_for_in_others() {
    let dir = tempfile::tempdir().unwrap();
    assert!(Store::find(dir.path()).is_none());
    let store = Store::open_or_create(dir.path()).unwrap();
    let file = store.open_or_create_file("f").unwrap();
    let found = Store::find(dir.path().join(".")).expect("it is open");
    found.open_file("f").unwrap().write_all_at(b"by another part", 0).unwrap();
    file.commit().unwrap();
    let started = Instant::now();
    let options = StoreOptions::new().wait_for(Duration::from_millis(50));
    assert!(matches!(options.open(dir.path()), Err(Error::Busy { .. })));
    assert!(started.elapsed() >= Duration::from_millis(50));
    let closer = thread::spawn(move || {
        thread::sleep(Duration::from_millis(50));
        drop(file);
        store.close().unwrap();
    });
    StoreOptions::new().wait_for(Duration::from_secs(60)).open(dir.path()).unwrap().close().unwrap();
    closer.join().unwrap();
    assert!(Store::find(dir.path()).is_none(), "a closed store");
    drop(found);
}
