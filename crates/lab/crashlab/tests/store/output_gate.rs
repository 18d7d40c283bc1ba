//! Output behind a gate: when the output leaves, a power cut loses nothing that it tells of.

use crate::fixture::roomy;
use parking_lot::Mutex;
use std::io;
use std::sync::Arc;
use untorn::__private::{GateSteps, Sink};
use untorn::Gate;
use untorn_crashlab::{Cut, Fault, On, Profile, SimDisk, What};

/// An outside observer: cuts the power of a copy of the machine each time that it gets output.
struct Observer {
    disk: Arc<SimDisk>,
    told: Arc<Mutex<Vec<u8>>>,
    lost: Arc<Mutex<Vec<String>>>,
}

impl Sink for Observer {
    fn take(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let mut told = self.told.lock();
        // A slow reader, which takes little at a time.
        let taken = bytes.len().min(3);
        told.extend_from_slice(&bytes[..taken]);
        for cut in [Cut::Nothing, Cut::Everything, Cut::Seed(told.len() as u64)] {
            let after = roomy::recovered(&self.disk.snapshot().power_cut(cut).disk);
            let log = after.get("log").unwrap_or_default();
            if !log.starts_with(&told) {
                self.lost.lock().push(format!("{} bytes were told, {} are there", told.len(), log.len()));
            }
        }
        Ok(taken)
    }
}

/// Writes output about each commit, behind its ticket or at once; returns the commits that a power cut would have lost.
fn told_too_early(profile: Profile, waits: bool) -> Vec<String> {
    let disk = Arc::new(roomy::disk(profile));
    let store = roomy::open(&disk);
    let log = store.open_or_create_file("log").unwrap();
    log.commit().unwrap();
    let gate = Gate::without_thread(64).unwrap();
    let (told, lost) = <(Arc<Mutex<Vec<u8>>>, Arc<Mutex<Vec<String>>>)>::default();
    let output = gate.output_to(Box::new(Observer { disk: disk.clone(), told: told.clone(), lost: lost.clone() }));
    let mut all = Vec::new();
    for n in 0..30 {
        let line = format!("line {n}\n");
        log.append(line.as_bytes()).unwrap();
        let ticket = log.commit_async().unwrap();
        // In two pieces, the second without a commit of its own; a write waits if the gate is full.
        let (first, second) = line.as_bytes().split_at(4);
        output.write(first, waits.then_some(&ticket)).unwrap();
        output.write(second, None).unwrap();
        all.extend_from_slice(line.as_bytes());
        if n % 4 == 0 {
            gate.release();
        }
    }
    gate.drain().unwrap();
    assert_eq!(*told.lock(), all);
    let lost = lost.lock();
    lost.clone()
}

#[test]
fn what_has_left_survives_a_power_cut() {
    for profile in [Profile::Ext4, Profile::AnyPosix] {
        assert_eq!(told_too_early(profile, true), Vec::<String>::new());
        assert_ne!(told_too_early(profile, false), Vec::<String>::new(), "the observer notices nothing");
    }
}

#[test]
fn what_waits_for_a_failed_commit_never_leaves() {
    let disk = Arc::new(roomy::disk(Profile::Ext4));
    let store = roomy::open(&disk);
    let log = store.open_or_create_file("log").unwrap();
    log.commit().unwrap();
    let gate = Gate::without_thread(1000).unwrap();
    let (told, lost) = <(Arc<Mutex<Vec<u8>>>, Arc<Mutex<Vec<String>>>)>::default();
    let output = gate.output_to(Box::new(Observer { disk: disk.clone(), told: told.clone(), lost }));
    log.append(b"first").unwrap();
    output.write(b"first", Some(&log.commit_async().unwrap())).unwrap();
    gate.release();
    log.append(b"second").unwrap();
    output.write(b"second", Some(&log.commit_async().unwrap())).unwrap();
    output.write(b"third", None).unwrap();
    disk.fail(Fault { on: On::Write, after: 0, times: 1, what: What::Errno(libc::EIO) });
    gate.release();
    assert!(output.write(b"fourth", None).is_err());
    assert!(gate.drain().is_err());
    assert_eq!(*told.lock(), b"first");
}
