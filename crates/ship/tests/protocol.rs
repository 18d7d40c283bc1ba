//! Shipping without faults: the points that can be restored, and the sentences for those that cannot.

mod simulation;

use simulation::contents::{Contents, Workspace, time_of};
use simulation::machine::Store;
use simulation::{Plain, STORE};
use untorn_ship::bucket::Bucket;
use untorn_ship::chain::objects::Objects;
use untorn_ship::error::{Error, Result};
use untorn_ship::interface::State;
use untorn_ship::object::hash::Nonces;
use untorn_ship::object::manifest::Position;
use untorn_ship::restore::plan::Wanted;
use untorn_ship::restore::run::restore;
use untorn_ship::restore::verify::verify;
use untorn_ship::retain::compact::{Compacted, compact};
use untorn_ship::retain::delete::delete;
use untorn_ship::retain::prune::{Policy, prune};
use untorn_ship::ship::running::NextPut;
use untorn_ship::ship::start::{Mode, Options, start};

/// A bucket, and the random numbers of everybody who uses it.
struct Shipping {
    bucket: Plain,
    nonces: Nonces,
}

impl Shipping {
    fn new() -> Shipping {
        Shipping { bucket: Plain::default(), nonces: Nonces::new([1; 32]) }
    }

    fn objects(&self) -> Objects<'_> {
        Objects { bucket: &self.bucket, store: STORE }
    }

    /// Ships all durable commits, each by itself.
    fn ship(&mut self, store: &mut Store, mode: Mode) -> Result<()> {
        let options = Options { mode, now: 0, remembered: None, bodies_bytes_max: 1, in_flight_max: 4 };
        let mut shipper = start(&self.bucket, store, &mut self.nonces, &options)?;
        while let NextPut::Put(put) = shipper.next_put(store, 1)? {
            shipper.answered(put.lsn, self.bucket.create(&put.name, put.bytes))?;
            assert!(shipper.settle(&self.bucket, store)?.again.is_empty());
        }
        Ok(())
    }

    fn restored(&self, wanted: Wanted) -> Result<(Contents, State)> {
        let mut workspace = Workspace::default();
        let state = restore(&self.objects(), wanted, &mut workspace)?;
        Ok((workspace.contents, state))
    }

    fn error(&self, wanted: Wanted) -> String {
        self.restored(wanted).expect_err("not there").to_string()
    }

    fn compact(&mut self) -> Compacted {
        let objects = Objects { bucket: &self.bucket, store: STORE };
        compact(&objects, &mut Workspace::default(), &mut self.nonces, 0).expect("the bucket answers")
    }

    fn prune(&mut self, since: u64, every: u64) -> u64 {
        let objects = Objects { bucket: &self.bucket, store: STORE };
        let policy = Policy { since, every, announced_since: 0 };
        let deletion = prune(&objects, &mut self.nonces, &policy).expect("the bucket answers");
        let Some(deletion) = deletion else { return 0 };
        let deleted = delete(&objects, &deletion).expect("the bucket answers");
        deleted.log + deleted.snapshots
    }
}

fn commits(store: &mut Store, n: usize) {
    (0..n).for_each(|_| store.commit());
    store.durable = store.history.len();
}

#[test]
fn every_commit_is_restored_by_number_and_time() {
    let (mut shipping, mut store) = (Shipping::new(), Store::new(0, 9));
    commits(&mut store, 5);
    shipping.ship(&mut store, Mode::Automatic).expect("an empty bucket");
    for lsn in 0..=5 {
        for wanted in [Wanted::Lsn(lsn), Wanted::In(1, lsn), Wanted::Time(time_of(lsn) + 3)] {
            let (contents, state) = shipping.restored(wanted).expect("shipped");
            assert_eq!((contents.0.len() as u64, state.point.lsn, state.time), (lsn, lsn, time_of(lsn)), "{wanted:?}");
        }
    }
    assert_eq!(shipping.error(Wanted::Lsn(6)), "#6 is not in the bucket, whose newest commit is #5");
    assert_eq!(shipping.error(Wanted::In(4, 2)), "generation 4 has no commit #2 in the bucket");
}

#[test]
fn a_pruned_commit_is_named_and_a_kept_point_stays() {
    let (mut shipping, mut store) = (Shipping::new(), Store::new(0, 9));
    for _ in 0..3 {
        commits(&mut store, 2);
        shipping.ship(&mut store, Mode::Automatic).expect("my own");
        assert!(matches!(shipping.compact(), Compacted::Registered { .. }));
        assert_eq!(shipping.compact(), Compacted::NothingNew);
    }
    assert!(shipping.prune(u64::MAX, 15) > 0);
    assert_eq!(shipping.prune(u64::MAX, 15), 0, "a second prune finds nothing");
    assert_eq!(shipping.error(Wanted::Lsn(3)), "#3 was pruned: the oldest point in the bucket is #6");
    // One snapshot in each stretch of 15: those of times 20 and 40.
    for lsn in [2, 4, 6] {
        assert_eq!(shipping.restored(Wanted::Lsn(lsn)).expect("kept").0.0.len() as u64, lsn);
    }
    commits(&mut store, 1);
    shipping.ship(&mut store, Mode::Automatic).expect("my own");
    assert_eq!(shipping.restored(Wanted::Newest).expect("shipped").0.0, store.history);
}

#[test]
fn a_gap_begins_with_a_snapshot_and_is_named() {
    let (mut shipping, mut store) = (Shipping::new(), Store::new(0, 9));
    commits(&mut store, 2);
    shipping.ship(&mut store, Mode::Automatic).expect("an empty bucket");
    commits(&mut store, 4);
    store.truncated = 5;
    shipping.ship(&mut store, Mode::Automatic).expect("a snapshot leads on");
    assert_eq!(shipping.restored(Wanted::Newest).expect("shipped").0.0, store.history);
    assert_eq!(shipping.restored(Wanted::Lsn(2)).expect("shipped").0.0.len(), 2);
    assert_eq!(shipping.error(Wanted::Lsn(4)), "#4 was never shipped: the bucket has #2 and then #6");
}

#[test]
fn a_store_that_was_put_back_is_told_how_it_differs() {
    let (mut shipping, mut store) = (Shipping::new(), Store::new(0, 9));
    commits(&mut store, 2);
    shipping.ship(&mut store, Mode::Automatic).expect("an empty bucket");
    let mut older = store.clone();
    commits(&mut store, 2);
    shipping.ship(&mut store, Mode::Automatic).expect("my own");

    let refused = shipping.ship(&mut older, Mode::Automatic).expect_err("older").to_string();
    assert!(
        refused.starts_with("the store is older than the bucket, whose newest commit is #4; --fork=4"),
        "{refused}"
    );
    older.open(2, 10);
    commits(&mut older, 2);
    let refused = shipping.ship(&mut older, Mode::TakeOver).expect_err("another history").to_string();
    assert!(refused.starts_with("the store has another history than the bucket"), "{refused}");
    assert!(refused.ends_with("abandons #3 to #4"), "{refused}");
    let moved = shipping.ship(&mut older, Mode::Fork { tip: Some(3) }).expect_err("the tip is #4").to_string();
    assert_eq!(moved, "the bucket's newest commit is #4 by now");

    shipping.ship(&mut older, Mode::Fork { tip: Some(4) }).expect("on request");
    assert_eq!(shipping.restored(Wanted::Newest).expect("shipped").0.0, older.history);
    // The abandoned history is there by its generation; the common commits belong to the newest, too.
    assert_eq!(shipping.restored(Wanted::In(2, 4)).expect("abandoned").0.0, store.history);
    assert_eq!(shipping.restored(Wanted::Lsn(2)).expect("common").0.0, [9, 9]);
    let never = "#3 of the newest history was never shipped: the bucket has that history from #4 on";
    assert_eq!(shipping.error(Wanted::Lsn(3)), never);
    assert!(matches!(shipping.ship(&mut store, Mode::TakeOver), Err(Error::Diverged { common: 2, .. })));
}

#[test]
fn a_fork_behind_a_gap_does_not_give_abandoned_commits() {
    let (mut shipping, mut store) = (Shipping::new(), Store::new(0, 9));
    commits(&mut store, 1);
    shipping.ship(&mut store, Mode::Automatic).expect("an empty bucket");
    let mut older = store.clone();
    commits(&mut store, 2);
    shipping.ship(&mut store, Mode::Automatic).expect("my own");
    commits(&mut store, 1);
    store.truncated = 4;
    shipping.ship(&mut store, Mode::Automatic).expect("a snapshot leads on");
    older.open(1, 10);
    commits(&mut older, 2);
    shipping.ship(&mut older, Mode::Fork { tip: Some(4) }).expect("on request");
    assert_eq!(shipping.restored(Wanted::Lsn(3)).expect("shipped").0.0, [9, 10, 10]);
    assert_eq!(shipping.restored(Wanted::Lsn(1)).expect("common").0.0, [9]);
    assert!(shipping.error(Wanted::Lsn(2)).starts_with("#2 of the newest history was never shipped"));
}

#[test]
fn another_machine_needs_a_take_over_and_shuts_the_first_out() {
    let (mut shipping, mut store) = (Shipping::new(), Store::new(0, 9));
    commits(&mut store, 2);
    shipping.ship(&mut store, Mode::Automatic).expect("an empty bucket");
    let options = Options { mode: Mode::Automatic, now: 0, remembered: None, bodies_bytes_max: 1, in_flight_max: 4 };
    let mut first = start(&shipping.bucket, &mut store, &mut shipping.nonces, &options).expect("my own");

    let mut copy = Store { machine: 1, ..store.clone() };
    copy.open(2, 10);
    let refused = shipping.ship(&mut copy, Mode::Automatic).expect_err("a copy").to_string();
    assert!(refused.starts_with("another machine ships this store to the bucket (machine 0, up to #2)"), "{refused}");
    commits(&mut copy, 1);
    shipping.ship(&mut copy, Mode::TakeOver).expect("on request");

    commits(&mut store, 1);
    let NextPut::Put(put) = first.next_put(&mut store, 1).expect("a commit") else { panic!("nothing to send") };
    first.answered(put.lsn, shipping.bucket.create(&put.name, put.bytes)).expect("an answer");
    let fenced = first.settle(&shipping.bucket, &mut store).expect_err("shut out").to_string();
    assert!(fenced.starts_with("machine 1 ships this store now, from #2 on"), "{fenced}");
    assert_eq!(store.released().len(), 2, "nothing after the end was let through");
}

#[test]
fn a_remembered_place_saves_reading_the_chain() {
    let (mut shipping, mut store) = (Shipping::new(), Store::new(0, 9));
    commits(&mut store, 20);
    let options =
        |remembered| Options { mode: Mode::Automatic, now: 0, remembered, bodies_bytes_max: 1, in_flight_max: 4 };
    shipping.ship(&mut store, Mode::Automatic).expect("an empty bucket");
    let first = start(&shipping.bucket, &mut store, &mut shipping.nonces, &options(None)).expect("my own");
    let bytes = first.confirmed().encode(&STORE);
    let remembered = Position::decode("place", &STORE, &bytes).expect("sound");
    assert_eq!(remembered, *first.confirmed());
    assert!(Position::decode("place", &[8; 16], &bytes).is_err(), "another store");
    assert!(Position::decode("place", &STORE, &bytes[1..]).is_err(), "damaged");

    // Everything before the remembered place may be missing.
    let mut objects = shipping.bucket.0.lock();
    objects.retain(|name, _| !name.starts_with("log/0000000001/"));
    drop(objects);
    let second = start(&shipping.bucket, &mut store, &mut shipping.nonces, &options(Some(remembered)));
    assert_eq!(second.expect("my own").confirmed().place(), (3, 20));
}

#[test]
fn a_bucket_of_another_store_is_refused() {
    let mut shipping = Shipping::new();
    let other = "{\"format\":1,\"store\":\"00000000000000000000000000000001\"}\n";
    shipping.bucket.create("store.json", other.into()).expect("an answer");
    let refused = shipping.ship(&mut Store::new(0, 9), Mode::TakeOver).expect_err("another store");
    assert!(matches!(&refused, Error::OtherStore { found } if found.ends_with("01")), "{refused}");
    shipping.bucket.0.lock().insert("store.json".into(), "hello".into());
    assert!(matches!(Objects::open(&shipping.bucket), Err(Error::Damaged { .. })));
}

#[test]
fn damage_is_found_and_named() {
    let (mut shipping, mut store) = (Shipping::new(), Store::new(0, 9));
    commits(&mut store, 3);
    shipping.ship(&mut store, Mode::Automatic).expect("an empty bucket");
    shipping.compact();
    let mut workspace = Workspace::default();
    let well = verify(&shipping.objects(), Some(&mut workspace), Some(&mut store)).expect("whole");
    assert_eq!((well.oldest, well.newest, well.snapshots, well.extents), (0, 3, 1, 3));

    let names: Vec<String> = shipping.bucket.0.lock().keys().cloned().collect();
    for name in names.iter().filter(|name| *name != "store.json" && !name.ends_with("meta/0000000001")) {
        let sound = shipping.bucket.0.lock().get(name).cloned().expect("there");
        let mut damaged = sound.to_vec();
        let at = damaged.len() / 2;
        damaged[at] ^= 0x10;
        shipping.bucket.0.lock().insert(name.clone(), damaged.into());
        let error = verify(&shipping.objects(), None, None).expect_err(name).to_string();
        assert!(error.contains(name.as_str()), "{name}: {error}");
        shipping.bucket.0.lock().insert(name.clone(), sound);
    }
    verify(&shipping.objects(), None, None).expect("whole again");
}

#[test]
fn the_history_of_a_copied_object_does_not_fit() {
    let (mut shipping, mut store) = (Shipping::new(), Store::new(0, 9));
    commits(&mut store, 2);
    shipping.ship(&mut store, Mode::Automatic).expect("an empty bucket");
    let mut objects = shipping.bucket.0.lock();
    let first = objects["log/0000000001/00000000000000000001"].clone();
    objects.insert("log/0000000001/00000000000000000003".into(), first);
    drop(objects);
    assert!(shipping.error(Wanted::Newest).contains("a copy of an object with another name"));
}
