//! Mounts whose syncs wait for a slot (`--remote`). The tests are the consumer of the slot.

mod common;

use common::place::{Place, said};
use common::{can_mount, one_at_a_time, serving_processes};
use rustix::process::{Signal, kill_process};
use std::fs::{self, OpenOptions};
use std::io::Write;
use std::path::PathBuf;
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::{Duration, Instant};
use untorn::reader::Acknowledged;
use untorn::{Point, Reader, Slot};
use untorn_mount::fuse::kernel;

/// Everything that must end ends within this time.
const PATIENCE: Duration = Duration::from_secs(60);
/// A call that has not returned after this time counts as waiting.
const MOMENT: Duration = Duration::from_millis(200);

/// A store with a slot, mounted; what waits is released at the end.
struct Mounted {
    place: Place,
    slot: Slot,
}

impl Mounted {
    fn new(option: &str) -> Option<Mounted> {
        if !can_mount() {
            return None;
        }
        let place = Place::of(rustix::process::geteuid().as_raw());
        fs::create_dir(place.at("mnt")).unwrap();
        let mounted = place.done(&["--remote", option, "store", "mnt"]);
        assert!(!said(&mounted).contains("error"), "{}", said(&mounted));
        let slot = Slot::open_or_create(place.at("store"), "backup", None).unwrap();
        Some(Mounted { place, slot })
    }

    fn at(&self, name: &str) -> PathBuf {
        self.place.at("mnt").join(name)
    }

    fn last(&self) -> Point {
        Reader::open(self.place.at("store")).unwrap().last_commit().unwrap()
    }

    fn acknowledge(&self, point: Point) {
        self.slot.acknowledge(&Acknowledged { point, ..Acknowledged::default() }).unwrap();
    }

    /// A thread that writes to a new file and syncs it, after its commit is durable.
    fn syncs(&self, name: &str) -> Receiver<std::io::Result<()>> {
        let before = self.last().lsn;
        let (done, is_done) = channel();
        let mut file = OpenOptions::new().create_new(true).write(true).open(self.at(name)).unwrap();
        thread::spawn(move || {
            file.write_all(b"hello").unwrap();
            done.send(file.sync_all())
        });
        let end = Instant::now() + PATIENCE;
        while self.last().lsn == before {
            assert!(Instant::now() < end, "no commit");
            thread::sleep(Duration::from_millis(5));
        }
        is_done
    }

    /// Acknowledges commits until the call has returned.
    fn release(&self, waiting: &Receiver<std::io::Result<()>>) {
        let end = Instant::now() + PATIENCE;
        loop {
            self.acknowledge(self.last());
            match waiting.recv_timeout(MOMENT) {
                Ok(done) => return done.unwrap(),
                Err(_) => assert!(Instant::now() < end, "the sync waits although everything is acknowledged"),
            }
        }
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        let point = Reader::open(self.place.at("store")).and_then(|reader| reader.last_commit());
        if let Ok(point) = point {
            let _ = self.slot.acknowledge(&Acknowledged { point, ..Acknowledged::default() });
        }
        let _ = self.place.run(&["umount", "mnt"]);
    }
}

#[test]
fn a_sync_returns_when_the_slot_has_the_commit() {
    let _turn = one_at_a_time();
    let Some(mounted) = Mounted::new("backup,timeout=1") else { return };
    let (first, second) = (mounted.syncs("a"), mounted.syncs("b"));
    assert!(first.recv_timeout(MOMENT).is_err() && second.recv_timeout(MOMENT).is_err());
    // Reading, and writing without a sync, wait for nothing.
    fs::write(mounted.at("c"), "unsynced").unwrap();
    assert_eq!(fs::read(mounted.at("c")).unwrap(), b"unsynced");
    let last = mounted.last();
    mounted.acknowledge(Point { epoch: last.epoch ^ 1, lsn: last.lsn + 100 });
    assert!(first.recv_timeout(MOMENT).is_err() && second.recv_timeout(MOMENT).is_err(), "another store's commit");
    mounted.release(&first);
    mounted.release(&second);
    // A sync after them waits for its own commit.
    let third = mounted.syncs("d");
    assert!(third.recv_timeout(MOMENT).is_err());
    mounted.release(&third);
    // An unmount does not wait for the slot.
    mounted.place.done(&["umount", "mnt"]);
    mounted.place.sound("store");
}

#[test]
fn a_mount_that_degrades_goes_on() {
    let _turn = one_at_a_time();
    let Some(mounted) = Mounted::new("backup,timeout=0.05,on-timeout=degrade") else { return };
    for name in ["a", "b"] {
        mounted.syncs(name).recv_timeout(PATIENCE).unwrap().unwrap();
    }
    mounted.place.done(&["umount", "mnt"]);
}

/// The new daemon waits for the same slot as the killed one.
#[test]
fn a_sync_waits_on_after_a_kill_of_the_daemon() {
    if !kernel::repeats_requests() {
        eprintln!("skipped: Linux before 6.9 has no supervisor");
        return;
    }
    let _turn = one_at_a_time();
    let Some(mounted) = Mounted::new("backup") else { return };
    let waiting = mounted.syncs("a");
    assert!(waiting.recv_timeout(MOMENT).is_err());
    let daemon = |(pid, is_daemon): (_, bool)| is_daemon.then_some(pid);
    let killed = serving_processes(&mounted.place.at("store")).into_iter().find_map(daemon).expect("a daemon");
    kill_process(killed, Signal::KILL).unwrap();
    assert_eq!(fs::read(mounted.at("a")).unwrap(), b"hello");
    assert!(waiting.recv_timeout(MOMENT).is_err(), "the slot has acknowledged nothing");
    mounted.release(&waiting);
}

#[test]
fn a_wrong_option_is_refused() {
    let place = Place::of(rustix::process::geteuid().as_raw());
    fs::create_dir(place.at("mnt")).unwrap();
    place.refused_with(2, &["--remote", "backup,soon", "store", "mnt"], "timeout=SECONDS");
    if can_mount() {
        place.refused(&["--remote", "a/b", "store", "mnt"], "cannot name a slot");
    }
}
