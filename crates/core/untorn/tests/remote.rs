//! Class `remote`: commits that wait until the consumer of a slot has acknowledged them. The tests are the consumer.

mod common;

use common::child_process::{ChildProcess, path_text};
use common::*;
use std::io::{ErrorKind, Read};
use std::os::unix::fs::FileExt;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::task::{Context, Waker};
use std::time::Duration;
use untorn::reader::Acknowledged;
use untorn::{Error, FailureClass, File, Gate, OnTimeout, Point, Reader, Remote, Slot, Store, StoreOptions, Ticket};

/// Acknowledgements are seen at once.
const LIMIT: Duration = Duration::from_secs(60);
/// No test waits this long.
const NEVER: Duration = Duration::from_secs(3600);

fn options(on_timeout: OnTimeout, timeout: Duration) -> StoreOptions {
    StoreOptions::new().create(true).remote("backup", Remote { timeout, on_timeout })
}

fn hold() -> StoreOptions {
    options(OnTimeout::Hold, NEVER)
}

/// A new store with a file, and a slot.
fn with_slot(dir: &Path, options: &StoreOptions) -> (Store, File, Slot) {
    let store = options.open(dir).unwrap();
    let file = store.open_or_create_file("a").unwrap();
    let slot = Slot::open_or_create(dir, "backup", Some(1 << 20)).unwrap();
    (store, file, slot)
}

fn commit(file: &File, text: &[u8]) -> Ticket {
    file.append(text).unwrap();
    file.commit_async().unwrap()
}

fn last(dir: &Path) -> Point {
    Reader::open(dir).unwrap().last_commit().unwrap()
}

fn acknowledge(slot: &Slot, point: Point) {
    slot.acknowledge(&Acknowledged { point, ..Acknowledged::default() }).unwrap();
}

fn poll(ticket: &Ticket) -> Option<Result<(), Error>> {
    ticket.poll_for(FailureClass::Remote)
}

fn was_closed(result: Result<(), Error>) {
    match result {
        Err(Error::Io { source, .. }) if source.kind() == ErrorKind::ConnectionAborted => {}
        other => panic!("{other:?}"),
    }
}

/// Without a thread of the store, each poll looks at the file.
#[test]
fn only_an_acknowledgement_of_this_commit_releases_it() {
    let dir = directory();
    let (store, file, slot) = with_slot(dir.path(), &hold().background(false));
    let (first, second) = (commit(&file, b"one"), commit(&file, b"two"));
    second.wait().unwrap();
    assert!(poll(&first).is_none() && poll(&second).is_none());
    let point = last(dir.path());
    assert_eq!(second.lsn(), Some(point.lsn));
    // Another store has a commit of this LSN, and later ones.
    for lsn in [point.lsn, point.lsn + 100] {
        acknowledge(&slot, Point { epoch: point.epoch ^ 1, lsn });
        assert!(poll(&first).is_none() && poll(&second).is_none(), "{lsn}");
    }
    acknowledge(&slot, Point { lsn: point.lsn - 1, ..point });
    assert!(poll(&first).unwrap().is_ok() && poll(&second).is_none());
    let status = store.status().remote.unwrap();
    assert_eq!(
        (&*status.slot, status.lag, status.late, status.degraded, status.missing),
        ("backup", 1, false, false, false)
    );
    assert_eq!(status.acknowledged, Some(Point { lsn: point.lsn - 1, ..point }));
    acknowledge(&slot, point);
    assert!(poll(&second).unwrap().is_ok());
    store.wait_for(FailureClass::Remote).unwrap();
    // An older acknowledgement takes nothing back, and a dropped slot neither.
    acknowledge(&slot, Point { lsn: point.lsn - 1, ..point });
    assert!(poll(&second).unwrap().is_ok());
    slot.drop_slot().unwrap();
    assert!(poll(&second).unwrap().is_ok());
    let third = commit(&file, b"three");
    assert!(poll(&third).is_none() && store.status().remote.unwrap().missing);
    store.close().unwrap();
    was_closed(poll(&third).unwrap());
    was_closed(third.wait_for(FailureClass::Remote));
    second.wait_for(FailureClass::Remote).unwrap();
}

#[test]
fn a_torn_acknowledgement_is_no_news() {
    let dir = directory();
    let (store, file, slot) = with_slot(dir.path(), &hold().background(false));
    let first = commit(&file, b"one");
    first.wait().unwrap();
    acknowledge(&slot, last(dir.path()));
    assert!(poll(&first).unwrap().is_ok());
    let second = commit(&file, b"two");
    second.wait().unwrap();
    let path = slot.dir().join("acknowledged");
    let (old, whole) =
        (plain(&path), Acknowledged { point: last(dir.path()), hash: [7; 32], ..Acknowledged::default() });
    acknowledge(&slot, whole.point);
    slot.acknowledge(&whole).unwrap();
    let new = plain(&path);
    let to_file = std::fs::OpenOptions::new().write(true).open(&path).unwrap();
    for cut in 0..new.len() {
        let torn = [&new[..cut], &old[cut..]].concat();
        if torn == old || torn == new {
            continue;
        }
        to_file.write_all_at(&torn, 0).unwrap();
        assert!(poll(&second).is_none(), "the first {cut} bytes are new");
        assert!(poll(&first).unwrap().is_ok());
    }
    to_file.set_len(40).unwrap();
    assert!(poll(&second).is_none(), "a short file");
    to_file.set_len(0).unwrap();
    to_file.write_all_at(&new, 0).unwrap();
    assert!(poll(&second).unwrap().is_ok());
    store.close().unwrap();
}

/// The store goes on from an older copy: the shipper has its former commits, which have the same LSNs.
#[test]
fn a_store_that_was_put_back_to_the_past_waits_for_its_own_commits() {
    let dir = directory();
    let (path, copy) = (dir.path().join("store"), dir.path().join("copy"));
    let (store, file, slot) = with_slot(&path, &hold().background(false));
    commit(&file, b"common").wait().unwrap();
    let common = last(&path);
    drop(file);
    store.close().unwrap();
    run("cp", ["-a", path_text(&path), path_text(&copy)]);
    let store = hold().background(false).open(&path).unwrap();
    let file = store.open_file("a").unwrap();
    let abandoned: Vec<Ticket> = (0..5).map(|_| commit(&file, b"abandoned")).collect();
    abandoned[4].wait().unwrap();
    let ahead = last(&path);
    acknowledge(&slot, ahead);
    assert!(poll(&abandoned[4]).unwrap().is_ok());
    drop((file, slot));
    store.close().unwrap();
    std::fs::remove_dir_all(&path).unwrap();
    std::fs::rename(&copy, &path).unwrap();
    let slot = Slot::open(&path, "backup").unwrap();
    acknowledge(&slot, ahead);
    let store = hold().background(false).open(&path).unwrap();
    let file = store.open_file("a").unwrap();
    let mut own = None;
    while own.as_ref().and_then(Ticket::lsn).is_none_or(|lsn| lsn < ahead.lsn + 2) {
        let ticket = commit(&file, b"own");
        ticket.wait().unwrap();
        assert!(poll(&ticket).is_none(), "{:?}", ticket.lsn());
        own = Some(ticket);
    }
    assert!(own.is_some_and(|own| poll(&own).is_none()));
    acknowledge(&slot, common);
    assert_eq!(store.status().remote.unwrap().acknowledged, Some(common));
    acknowledge(&slot, last(&path));
    store.wait_for(FailureClass::Remote).unwrap();
    store.close().unwrap();
}

#[test]
fn a_thousand_tickets_in_threads_tasks_and_polls() {
    let dir = directory();
    let (store, file, slot) = with_slot(dir.path(), &hold());
    let tickets: Vec<Ticket> = (0..1000).map(|_| commit(&file, b"x")).collect();
    store.wait().unwrap();
    let end = last(dir.path());
    let (waits, tasks, polls) = (&tickets[..200], &tickets[200..600], &tickets[600..]);
    std::thread::scope(|scope| {
        let waits: Vec<_> = waits.iter().map(|t| scope.spawn(|| t.wait_for(FailureClass::Remote))).collect();
        let tasks = scope.spawn(|| {
            let futures = tasks.iter().map(|t| t.durable(FailureClass::Remote));
            futures.map(block_on).collect::<Result<Vec<()>, Error>>()
        });
        for lsn in end.lsn - 999..=end.lsn {
            acknowledge(&slot, Point { lsn, ..end });
        }
        waits.into_iter().for_each(|wait| wait.join().unwrap().unwrap());
        assert_eq!(tasks.join().unwrap().unwrap().len(), 400);
    });
    eventually(LIMIT, "all are acknowledged", || polls.iter().all(|t| poll(t).is_some_and(|done| done.is_ok())));
    store.close().unwrap();
}

fn block_on<F: Future + Unpin>(mut future: F) -> F::Output {
    struct Unpark(std::thread::Thread);
    impl std::task::Wake for Unpark {
        fn wake(self: std::sync::Arc<Self>) {
            self.0.unpark();
        }
    }
    let waker = Waker::from(std::sync::Arc::new(Unpark(std::thread::current())));
    loop {
        match std::pin::Pin::new(&mut future).poll(&mut Context::from_waker(&waker)) {
            std::task::Poll::Ready(done) => return done,
            std::task::Poll::Pending => std::thread::park(),
        }
    }
}

#[test]
fn a_close_ends_all_waiting_with_the_reason() {
    for background in [true, false] {
        let dir = directory();
        let (store, file, slot) = with_slot(dir.path(), &hold().background(background));
        let shipped = commit(&file, b"shipped");
        shipped.wait().unwrap();
        acknowledge(&slot, last(dir.path()));
        let tickets: Vec<Ticket> = (0..20).map(|_| commit(&file, b"x")).collect();
        let waits: Vec<_> = tickets
            .iter()
            .map(|ticket| {
                let (ticket, task) = (ticket.clone(), ticket.durable(FailureClass::Remote));
                (
                    std::thread::spawn(move || ticket.wait_for(FailureClass::Remote)),
                    std::thread::spawn(|| block_on(task)),
                )
            })
            .collect();
        drop(file);
        // The last handle, or a call.
        if background {
            store.close().unwrap()
        } else {
            drop(store)
        }
        for (wait, task) in waits {
            was_closed(within(LIMIT, "a wait", move || wait.join().unwrap()));
            was_closed(within(LIMIT, "a task", move || task.join().unwrap()));
        }
        assert!(poll(&shipped).unwrap().is_ok());
    }
}

#[test]
fn degraded_is_explicit_and_ends_when_the_slot_has_caught_up() {
    let dir = directory();
    let (store, file, slot) = with_slot(dir.path(), &options(OnTimeout::Degrade, Duration::from_millis(50)));
    let ticket = commit(&file, b"x");
    ticket.wait_for(FailureClass::Remote).unwrap();
    let status = store.status().remote.unwrap();
    assert!(status.degraded && status.late && status.lag > 0, "{status:?}");
    // It need not wait again.
    assert!(poll(&ticket).unwrap().is_ok());
    acknowledge(&slot, last(dir.path()));
    eventually(LIMIT, "the slot has caught up", || !store.status().remote.unwrap().degraded);
    assert_eq!(store.status().remote.unwrap().lag, 0);
    store.close().unwrap();
}

#[test]
fn hold_tells_that_it_is_late_and_never_lies() {
    let dir = directory();
    let (store, file, slot) = with_slot(dir.path(), &options(OnTimeout::Hold, Duration::ZERO));
    let ticket = commit(&file, b"x");
    ticket.wait().unwrap();
    assert!(poll(&ticket).is_none());
    eventually(LIMIT, "the status tells it", || store.status().remote.unwrap().late);
    let status = store.status().remote.unwrap();
    assert!(!status.degraded && poll(&ticket).is_none(), "{status:?}");
    // Late, and true.
    acknowledge(&slot, last(dir.path()));
    ticket.wait_for(FailureClass::Remote).unwrap();
    store.close().unwrap();
}

#[test]
fn a_gate_holds_what_waits_for_the_slot_and_nothing_else() {
    let dir = directory();
    let (store, file, slot) = with_slot(dir.path(), &hold());
    let gate = Gate::new().unwrap();
    let ((mut far, to_far), (mut near, to_near)) = (UnixStream::pair().unwrap(), UnixStream::pair().unwrap());
    let (far_out, near_out) = (gate.output_when(to_far.into(), FailureClass::Remote), gate.output(to_near.into()));
    for n in 0..3 {
        let ticket = commit(&file, b"x");
        far_out.write(format!("{n}\n").as_bytes(), Some(&ticket)).unwrap();
        far_out.write(b"-\n", None).unwrap();
        near_out.write(format!("{n}\n").as_bytes(), Some(&ticket)).unwrap();
    }
    let mut said = [0; 6];
    near.read_exact(&mut said).unwrap();
    assert_eq!(&said, b"0\n1\n2\n");
    assert_eq!(gate.held_bytes(), 12);
    let end = last(dir.path());
    acknowledge(&slot, Point { lsn: end.lsn - 2, ..end });
    let mut said = [0; 4];
    far.read_exact(&mut said).unwrap();
    assert_eq!(&said, b"0\n-\n");
    assert_eq!(gate.held_bytes(), 8);
    acknowledge(&slot, end);
    gate.drain().unwrap();
    let mut said = [0; 8];
    far.read_exact(&mut said).unwrap();
    assert_eq!(&said, b"1\n-\n2\n-\n");
    // Bytes without a ticket depend on all that was told before, also by other outputs.
    let ticket = commit(&file, b"x");
    near_out.write(b"3\n", Some(&ticket)).unwrap();
    far_out.write(b"after 3\n", None).unwrap();
    let mut said = [0; 2];
    near.read_exact(&mut said).unwrap();
    assert_eq!(gate.held_bytes(), 8);
    drop(gate);
    drop((far_out, near_out));
    let mut rest = Vec::new();
    far.read_to_end(&mut rest).unwrap();
    assert_eq!(rest, b"");
    store.close().unwrap();
}

#[test]
fn a_full_gate_ends_with_the_store() {
    let dir = directory();
    let (store, file, _slot) = with_slot(dir.path(), &hold());
    let gate = Gate::with_bytes_max(100).unwrap();
    let (mut far, to_far) = UnixStream::pair().unwrap();
    let out = gate.output_when(to_far.into(), FailureClass::Remote);
    let ticket = commit(&file, b"x");
    out.write(&[b'x'; 80], Some(&ticket)).unwrap();
    let writer = std::thread::spawn(move || {
        let done = out.write(&[b'y'; 80], Some(&ticket));
        (done, out)
    });
    drop(file);
    store.close().unwrap();
    let (done, out) = within(LIMIT, "a write to a full gate", move || writer.join().unwrap());
    was_closed(done);
    was_closed(gate.drain());
    drop((out, gate));
    let mut rest = Vec::new();
    far.read_to_end(&mut rest).unwrap();
    assert_eq!(rest, b"");
}

/// The commits that a killed owner left become remote by the acknowledgement of its epoch.
#[test]
fn a_killed_owners_commits_are_waited_for() {
    let dir = directory();
    let path = dir.path();
    drop(with_slot(path, &StoreOptions::new().create(true)));
    let mut owner = ChildProcess::owning(path);
    owner.ok(&["create", "b"]);
    owner.commit("b", "one");
    let of_killed = last(path);
    owner.kill();
    let slot = Slot::open(path, "backup").unwrap();
    let store = hold().background(false).open(path).unwrap();
    acknowledge(&slot, Point { epoch: of_killed.epoch ^ 1, lsn: of_killed.lsn + 10 });
    assert_eq!(
        store.status().remote.unwrap().lag,
        store.status().lsn - store.status().remote.unwrap().acknowledged.map_or(0, |p| p.lsn)
    );
    acknowledge(&slot, of_killed);
    assert_eq!(store.status().remote.unwrap().acknowledged, Some(of_killed));
    store.wait_for(FailureClass::Remote).unwrap();
    let file = store.open_file("a").unwrap();
    let ticket = commit(&file, b"two");
    ticket.wait().unwrap();
    assert!(poll(&ticket).is_none());
    acknowledge(&slot, last(path));
    assert!(poll(&ticket).unwrap().is_ok());
    store.close().unwrap();
}

#[test]
fn options_that_do_not_agree_are_refused() {
    let dir = directory();
    refused(hold().class(FailureClass::Process).open(dir.path()), &["invalid"]);
    refused(StoreOptions::new().create(true).class(FailureClass::Remote).open(dir.path()), &["invalid"]);
    refused(StoreOptions::new().create(true).remote("a/b", Remote::default()).open(dir.path()), &["invalid"]);
    let store = Store::open_or_create(dir.path()).unwrap();
    let file = store.open_or_create_file("a").unwrap();
    let ticket = commit(&file, b"x");
    refused(ticket.wait_for(FailureClass::Remote), &["invalid"]);
    refused(poll(&ticket).unwrap(), &["invalid"]);
    refused(store.wait_for(FailureClass::Remote), &["invalid"]);
    let gate = Gate::new().unwrap();
    let out = gate.output_when(UnixStream::pair().unwrap().1.into(), FailureClass::Remote);
    refused(out.write(b"x", Some(&ticket)), &["invalid"]);
    store.close().unwrap();
}
