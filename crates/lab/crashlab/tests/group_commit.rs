//! Concurrent commits, checkpoints and closes of the real store, under a scheduler that runs one thread at a time and
//! tries interleavings, at random and by priorities (PCT). Every schedule ends in a crash, often in the middle.
//! Acknowledged commits must be there, and other commits completely or not at all.
//!
//! A failing schedule prints its seed and itself; `SHUTTLE_RANDOM_SEED` runs it again. `UNTORN_SHUTTLE_SECONDS` gives
//! each scheduler more than its two seconds per scenario.

mod hooked;
mod interleaved;

use interleaved::fixture::{Fixture, is_plain, open_next, write};
use shuttle::rand::{Rng, thread_rng};
use shuttle::scheduler::{PctScheduler, RandomScheduler, Scheduler};
use shuttle::{Config, Runner, thread};
use std::io::ErrorKind;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};
use untorn::__private::{OpenStoreOn, StoreSteps, sync_point};
use untorn::{Error, StoreOptions};
use untorn_crashlab::{Failed, Fault, Model, On, Options, PROFILES, What};

const SEED: u64 = 0x5eed;
const PCT_DEPTH: usize = 3;
/// The number of schedules from one seed; then the clock is checked, and the next seed taken.
const BATCH: usize = 50;
/// The schedules that are tried whatever the time.
const LEAST: usize = 200;

struct SeedOfFailure<'a> {
    name: &'a str,
    how: &'a str,
    seed: u64,
}

impl Drop for SeedOfFailure<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let SeedOfFailure { name, how, seed } = self;
            eprintln!("{name}: failed {how}, in the schedules of SHUTTLE_RANDOM_SEED={seed}");
        }
    }
}

/// Runs a scenario under many schedules, for a limited time.
fn explore(name: &str, scenario: fn()) {
    let seconds = std::env::var("UNTORN_SHUTTLE_SECONDS").ok().and_then(|text| text.parse().ok()).unwrap_or(2);
    let run = |how: &str, scheduler: fn(u64) -> Box<dyn Scheduler + Send>| {
        let mut config = Config::new();
        config.stack_size = 512 << 10;
        config.silence_warnings = true;
        let (start, mut seed, mut schedules) = (Instant::now(), SEED, 0);
        while schedules < LEAST || start.elapsed() < Duration::from_secs(seconds) {
            let _seed = SeedOfFailure { name, how, seed };
            schedules += Runner::new(scheduler(seed), config.clone()).run(scenario);
            seed += 1;
        }
        println!("{name}: {schedules} schedules {how}, seeds {SEED:#x} to {:#x}", seed - 1);
    };
    run("by chance", |seed| Box::new(RandomScheduler::new_from_seed(seed, BATCH)));
    run("by priorities", |seed| Box::new(PctScheduler::new_from_seed(seed, PCT_DEPTH, BATCH)));
}

fn disk() -> Options {
    let profile = PROFILES[thread_rng().gen_range(0..PROFILES.len())];
    Options { profile, seed: thread_rng().r#gen(), ..Options::default() }
}

/// A store with a thread of its own, and a small journal that is sometimes full.
fn options() -> StoreOptions {
    StoreOptions::new().create(true).sizes(48 << 10, 16 << 10, 8 << 10)
}

/// Starts a thread in the fixture.
fn start(fixture: &Arc<Fixture>, act: impl FnOnce(&Fixture) + Send + 'static) -> thread::JoinHandle<()> {
    let fixture = fixture.clone();
    thread::spawn(move || act(&fixture))
}

fn join(threads: Vec<thread::JoinHandle<()>>) {
    threads.into_iter().for_each(|t| t.join().expect("a thread that ends well"));
}

#[test]
fn committers_share_files_and_flushes() {
    static COMMITS: AtomicU64 = AtomicU64::new(0);
    static FLUSHES: AtomicU64 = AtomicU64::new(0);
    explore("committers", || {
        let fixture = Fixture::new(disk(), options());
        let mut threads = vec![
            start(&fixture, |w| w.commit_numbers("a", 0, 3)),
            start(&fixture, |w| w.commit_numbers("a", 1, 3)),
            start(&fixture, |w| w.commit_numbers("b", 0, 3)),
            start(&fixture, |w| w.watch("a", 0, 4)),
            start(&fixture, |w| {
                w.checkpoint();
                w.ok(w.store.write_durable_mark());
                w.checkpoint();
            }),
        ];
        if thread_rng().gen_ratio(2, 3) {
            threads.push(start(&fixture, |w| w.kill_at_some_time(600)));
        }
        join(threads);
        COMMITS.fetch_add(fixture.store.status().commits, Relaxed);
        FLUSHES.fetch_add(fixture.disk.syncs(sync_point::COMMIT), Relaxed);
        fixture.verify();
    });
    let (commits, flushes) = (COMMITS.load(Relaxed), FLUSHES.load(Relaxed));
    println!("committers: {flushes} flushes for {commits} commits");
    // Most commits here are alone: the creations of files, and those that a full journal separates.
    assert!(flushes * 20 < commits * 19, "{flushes} flushes for {commits} commits: nobody shared one");
}

#[test]
fn files_that_commit_together_stay_together() {
    explore("together", || {
        let fixture = Fixture::new(disk(), options());
        let mut threads = vec![
            start(&fixture, |w| {
                let Some(p) = w.ok(w.store.open_or_create_file("p")) else { return };
                let Some(q) = w.ok(w.store.open_or_create_file("q")) else { return };
                for number in 1..=3 {
                    w.ledger.tried("p", 0, number);
                    w.ledger.tried("q", 0, number);
                    let written = write(&p, 0, number).and_then(|()| write(&q, 0, number));
                    if w.ok(written.and_then(|()| w.store.syncv(&[&p, &q]))).is_none() {
                        return;
                    }
                    w.ledger.done("p", 0, number);
                    w.ledger.done("q", 0, number);
                }
            }),
            start(&fixture, |w| w.commit_numbers("b", 0, 4)),
            start(&fixture, |w| w.checkpoint()),
            // When a file is in a transaction, no other commit takes its changes.
            start(&fixture, |w| {
                let Some(file) = w.ok(w.store.open_or_create_file("t")) else { return };
                let mut txn = w.store.begin();
                w.ledger.tried("t", 0, 1);
                let committed = txn.add(&file).and_then(|()| write(&file, 0, 1)).and_then(|()| txn.commit());
                if w.ok(committed).is_some() {
                    w.ledger.done("t", 0, 1);
                }
            }),
            start(&fixture, |w| {
                let Some(file) = w.ok(w.store.open_or_create_file("t")) else { return };
                w.ledger.tried("t", 1, 1);
                match write(&file, 1, 1).and_then(|()| file.commit()) {
                    Err(Error::InTransaction { .. }) => {}
                    done => _ = w.ok(done),
                }
            }),
        ];
        threads.push(start(&fixture, |w| w.kill_at_some_time(500)));
        join(threads);
        fixture.verify();
        let after = fixture.disk.fork();
        let store = options()
            .background(false)
            .open_on(after.process(), untorn_journal::directories::store_dir::StoreDir::of_directory(), "".into())
            .expect("recovery");
        store.close().expect("a clean close");
        let numbers = ["p", "q"].map(|name| after.get(name).unwrap_or_default().first().copied().unwrap_or(0));
        assert_eq!(numbers[0], numbers[1], "files that were committed together");
    });
}

#[test]
fn names_change_under_committers() {
    explore("names", || {
        let fixture = Fixture::new(disk(), options());
        let is_gone = |e: &Error| matches!(e, Error::Io { source, .. } if source.kind() == ErrorKind::NotFound);
        let mut threads = vec![
            start(&fixture, |w| {
                for number in 1..=3 {
                    w.ledger.tried("target", 0, number);
                    let mut txn = w.store.begin();
                    let replaced = txn.create("fresh", 0o600).and_then(|file| {
                        write(&file, 0, number)?;
                        txn.rename("fresh", "target")?;
                        txn.commit()
                    });
                    if w.ok(replaced).is_none() {
                        return;
                    }
                    w.ledger.done("target", 0, number);
                }
            }),
            start(&fixture, |w| w.commit_numbers("shared", 0, 2)),
            start(&fixture, |w| w.commit_numbers("shared", 1, 2)),
            // Writes to a file that another thread removes, or replaces, at any moment.
            start(&fixture, move |w| {
                for name in ["doomed", "target"] {
                    let Some(file) = w.ok(w.store.open_or_create_file(name)) else { return };
                    w.ledger.tried(name, 1, 1);
                    match write(&file, 1, 1).and_then(|()| file.commit()) {
                        Err(e) if is_gone(&e) => {}
                        done => _ = w.ok(done),
                    }
                }
            }),
            start(&fixture, move |w| {
                for _ in 0..2 {
                    let mut txn = w.store.begin();
                    match txn.unlink("doomed").and_then(|()| txn.commit()) {
                        Err(e) if is_gone(&e) => {}
                        done => _ = w.ok(done),
                    }
                }
            }),
        ];
        if thread_rng().r#gen() {
            threads.push(start(&fixture, |w| w.kill_at_some_time(900)));
        }
        join(threads);
        fixture.verify();
    });
}

/// Another thread writes the commit that creates a file, while the file's creator continues. The creator's writes are
/// in the file at every moment, and a size that is set meanwhile comes after them.
#[test]
fn a_new_file_is_whole_while_its_commit_is_written() {
    explore("new", || {
        let fixture = Fixture::new(disk(), options());
        let creator = start(&fixture, |w| {
            for name in ["one", "two"] {
                let mut txn = w.store.begin();
                let file = txn.create(name, 0o600).expect("a new name");
                file.write_at(&[1; 100], 0).expect("a healthy disk");
                let ticket = txn.commit_async().expect("a healthy disk");
                assert_eq!(file.len().expect("an open file"), 100);
                file.set_len(200).expect("a healthy disk");
                file.commit().expect("a healthy disk");
                ticket.wait().expect("a healthy disk");
            }
        });
        join(vec![creator, start(&fixture, |w| w.commit_numbers("shared", 0, 2)), start(&fixture, |w| w.checkpoint())]);
        fixture.may_end();
        fixture.store.clone().close().expect("a healthy disk");
        for name in ["one", "two"] {
            assert_eq!(fixture.disk.get(name).expect("a file that is there"), [[1; 100], [0; 100]].concat(), "{name}");
        }
        fixture.verify();
    });
}

#[test]
fn tickets_are_waited_for_elsewhere_and_closing_races_with_all() {
    explore("closing", || {
        let fixture = Fixture::new(disk(), options());
        let committer = |name: &'static str| {
            move |w: &Fixture| {
                let Some(file) = w.ok(w.store.open_or_create_file(name)) else { return };
                for number in 1..=2 {
                    w.ledger.tried(name, 0, number);
                    let Some(()) = w.ok(write(&file, 0, number)) else { return };
                    let Some(ticket) = w.ok(file.commit_async()) else { return };
                    // A ticket that was returned must succeed, also if the store is closed meanwhile.
                    thread::spawn(move || ticket.wait()).join().unwrap().expect("an accepted commit");
                    w.ledger.done(name, 0, number);
                }
            }
        };
        let closer = |w: &Fixture| {
            for _ in 0..thread_rng().gen_range(0..200) {
                thread::yield_now();
            }
            w.may_end();
            w.store.clone().close().expect("a healthy disk");
            for name in ["a", "b"] {
                assert!(is_plain(&w.disk, Path::new(name)), "{name}");
                w.plain_number(name, 0);
            }
            // The other thread may have it open at the moment.
            let Ok(next) = open_next(w) else { return };
            for name in ["a", "b"] {
                let opened = next.open_file(name);
                assert!(!matches!(opened, Err(Error::Busy { .. })), "{name}: a claim outlived the store");
            }
            next.close().expect("a healthy disk");
        };
        let threads = vec![
            start(&fixture, committer("a")),
            start(&fixture, committer("b")),
            start(&fixture, |w| w.watch("a", 0, 3)),
            start(&fixture, |w| w.checkpoint()),
            start(&fixture, closer),
            start(&fixture, closer),
        ];
        join(threads);
        open_next(&fixture).expect("the store is free").close().expect("a healthy disk");
        fixture.verify();
    });
}

/// A commit that found no room keeps its place. A thread that waits for it writes it again, and meanwhile the store is
/// closed: the commit is there, or the waiting thread gets an error.
#[test]
fn a_commit_that_kept_its_place_is_not_lost_by_a_close() {
    static WITHOUT_ROOM: AtomicU64 = AtomicU64::new(0);
    static ACKNOWLEDGED: AtomicU64 = AtomicU64::new(0);
    explore("places", || {
        let fixture = Fixture::with_files(disk(), options().in_order(true).background(false), &["a"]);
        // The first commit of a file sets its attribute, for which there is no room now, but after a few more attempts.
        let (times, what) = (thread_rng().gen_range(1..4), What::Errno(libc::ENOSPC));
        fixture.disk.fail(Fault { on: On::Attribute, after: 0, times, what });
        let file = fixture.store.open_file("a").expect("a file that is there");
        fixture.ledger.tried("a", 0, 1);
        write(&file, 0, 1).expect("an open file");
        let ticket = file.commit_async().expect("a commit that waits");
        drop(file);
        let threads = vec![
            start(&fixture, move |w| {
                for _ in 0..3 {
                    if ticket.wait().is_ok() {
                        w.ledger.done("a", 0, 1);
                        ACKNOWLEDGED.fetch_add(1, Relaxed);
                        return;
                    }
                    WITHOUT_ROOM.fetch_add(1, Relaxed);
                }
            }),
            start(&fixture, |w| {
                (0..thread_rng().gen_range(0..20)).for_each(|_| thread::yield_now());
                w.may_end();
                w.store.clone().close().expect("room for what was acknowledged");
            }),
        ];
        join(threads);
        let (plain, done) = (fixture.plain_number("a", 0), fixture.ledger.acknowledged("a", 0));
        assert!(plain >= done, "{done} was acknowledged, and the closed store left {plain}");
        fixture.verify();
    });
    let (without, acknowledged) = (WITHOUT_ROOM.load(Relaxed), ACKNOWLEDGED.load(Relaxed));
    println!("places: {acknowledged} commits acknowledged, {without} answers that there is no room");
    assert!(without > 0 && acknowledged > 0);
}

#[test]
fn descriptors_come_and_go_while_the_journal_is_full() {
    explore("descriptors", || {
        let full_page = thread_rng().r#gen();
        let model = if full_page { Model::PageGarbage } else { Model::SectorAtomic };
        let disk = Options { open_files_max: 1, model, ..disk() };
        let small = options().sizes(32 << 10, 16 << 10, 8 << 10).background(thread_rng().r#gen());
        let fixture = Fixture::with_files(disk, small.full_page(full_page), &["a", "b", "r"]);
        let mut threads = vec![
            start(&fixture, |w| w.commit_numbers("a", 0, 2)),
            // On the same page.
            start(&fixture, |w| w.commit_numbers("a", 1, 2)),
            start(&fixture, |w| w.commit_numbers("b", 1, 3)),
            start(&fixture, |w| w.commit_numbers("c", 0, 3)),
            // No thread writes to this one: its last handle is dropped, and another thread opens it again.
            start(&fixture, |w| w.watch("r", 0, 3)),
            start(&fixture, |w| w.watch("r", 0, 3)),
            start(&fixture, |w| {
                w.watch("a", 0, 2);
                w.watch("b", 1, 2);
            }),
            start(&fixture, |w| {
                w.checkpoint();
                w.checkpoint();
            }),
        ];
        if thread_rng().r#gen() {
            threads.push(start(&fixture, |w| w.kill_at_some_time(900)));
        }
        join(threads);
        fixture.verify();
    });
}

/// On a disk that damages the page being written, each record must have the bytes that the next checkpoint needs,
/// wherever the checkpoint before it began.
#[test]
fn pages_are_logged_whole_around_a_checkpoint() {
    explore("pages", || {
        let profile = PROFILES[thread_rng().gen_range(0..PROFILES.len())];
        let disk = Options { profile, model: Model::PageGarbage, ..disk() };
        let fixture =
            Fixture::new(disk, options().full_page(true).sizes(256 << 10, 64 << 10, 32 << 10).background(false));
        join(vec![
            start(&fixture, |w| w.commit_numbers("a", 0, 3)),
            start(&fixture, |w| w.commit_numbers("a", 1, 2)),
            start(&fixture, |w| (0..4).for_each(|_| w.checkpoint())),
            start(&fixture, |w| w.kill_at_some_time(400)),
        ]);
        fixture.verify();
    });
}

#[test]
fn a_failed_flush_is_never_taken_for_a_good_one() {
    explore("failures", || {
        let fixture = Fixture::new(disk(), options());
        for name in ["a", "b", "c"] {
            fixture.store.open_or_create_file(name).expect("a healthy disk");
        }
        let step = [sync_point::COMMIT, sync_point::COMMIT, sync_point::CHECKPOINT_DATA, sync_point::HEADER]
            [thread_rng().gen_range(0..4)];
        let how = [Failed::Lost, Failed::Half, Failed::Landed][thread_rng().gen_range(0..3)];
        let after = thread_rng().gen_range(0..5);
        fixture.disk.fail(Fault { on: On::SyncPoint(step), after, times: 1, what: What::Writeback(how) });
        let threads = vec![
            start(&fixture, |w| w.commit_while_it_goes_well("a", 3)),
            start(&fixture, |w| w.commit_while_it_goes_well("b", 3)),
            start(&fixture, |w| w.commit_while_it_goes_well("c", 3)),
            // A checkpoint may be the call that fails.
            start(&fixture, |w| (0..3).for_each(|_| drop(w.store.checkpoint()))),
        ];
        join(threads);
        if step == sync_point::COMMIT && fixture.store.clone().close().is_err() {
            for name in ["a", "b", "c"] {
                let (plain, done) = (fixture.plain_number(name, 0), fixture.ledger.acknowledged(name, 0));
                assert!(plain <= done, "{name}: {plain} was applied, {done} was acknowledged");
            }
        }
        fixture.verify();
    });
}

/// Threads of one checkpoint write a large file and small ones side by side, while others commit and the power is cut. Another checkpoint, if a write fails, writes everything again.
#[test]
fn a_checkpoint_writes_files_side_by_side() {
    const AREAS: u64 = 10;
    explore("side by side", || {
        let sized = options().sizes(128 << 10, 64 << 10, 8 << 10).background(thread_rng().r#gen());
        let fixture = Fixture::with_files(disk(), sized, &["a", "b", "c"]);
        if thread_rng().r#gen() {
            let (after, what) = (thread_rng().gen_range(0..40), What::Errno(libc::EIO));
            fixture.disk.fail(Fault { on: On::Write, after, times: 1, what });
            fixture.may_end();
        }
        let threads = vec![
            start(&fixture, |w| {
                let Some(file) = w.ok(w.store.open_file("a")) else { return };
                for number in 1..=2 {
                    for area in 0..AREAS {
                        w.ledger.tried("a", area, number);
                        if w.ok(write(&file, area, number)).is_none() {
                            return;
                        }
                    }
                    if w.ok(file.commit()).is_none() {
                        return;
                    }
                    (0..AREAS).for_each(|area| w.ledger.done("a", area, number));
                    if w.store.checkpoint().is_err() {
                        w.checkpoint();
                    }
                }
            }),
            start(&fixture, |w| w.commit_numbers("a", AREAS, 3)),
            start(&fixture, |w| w.commit_numbers("b", 0, 3)),
            start(&fixture, |w| w.commit_numbers("c", 0, 3)),
            start(&fixture, |w| w.watch("a", 3, 3)),
            start(&fixture, |w| w.kill_at_some_time(1200)),
        ];
        join(threads);
        fixture.verify();
    });
}
