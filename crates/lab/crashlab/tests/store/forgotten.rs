//! Files that an open store forgets: they are complete and plain after any crash.

use crate::checkpoint::open_with_surprise;
use crate::fixture::roomy;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;
use untorn::__private::sync_point;
use untorn::Store;
use untorn_crashlab::{Fault, On, PROFILES, Profile, SimDisk, What};

/// The user's files, by name.
type Files = BTreeMap<String, Vec<u8>>;

fn files(disk: &SimDisk) -> Files {
    let all = disk.tree().into_iter().map(|(path, entry)| (path.to_string_lossy().into_owned(), entry.contents));
    all.filter(|(path, _)| !path.starts_with(".untorn")).collect()
}

fn write(store: &Store, name: &str, offset: u64, bytes: &[u8]) -> untorn::Result<()> {
    let mut txn = store.begin();
    let file = match store.open_file(name) {
        Ok(file) => file,
        Err(_) => txn.create(name, 0o600)?,
    };
    txn.add(&file)?;
    file.write_all_at(bytes, offset)?;
    txn.commit()
}

type Step = fn(&Store) -> untorn::Result<()>;

/// Commits to files without open handles, with checkpoints that forget the files in between.
const STEPS: &[Step] = &[
    |store| write(store, "a", 0, b"one"),
    |store| store.checkpoint(),
    |store| write(store, "a", 1, b"two and more"),
    |store| write(store, "b", 0, &[b'b'; 5000]),
    |store| store.checkpoint(),
    |store| store.rename("a", "c"),
    |store| write(store, "a", 0, b"another"),
    |store| write(store, "c", 3, &[b'c'; 40_000]),
    |store| store.checkpoint(),
    |store| {
        let mut txn = store.begin();
        txn.unlink("b")?;
        txn.rename("a", "b")?;
        txn.commit()
    },
    |store| store.checkpoint(),
    |store| write(store, "b", 0, b"B"),
    |store| store.clone().close(),
];

#[test]
fn files_that_are_forgotten_between_their_commits_survive_every_crash() {
    let (mut checked, mut forgotten) = (0, 0);
    for profile in PROFILES {
        let disk = roomy::disk(profile);
        let store = roomy::open(&disk);
        disk.record();
        // After each step: the committed state, and the number of the next call.
        let mut states = vec![(files(&disk), disk.calls())];
        for step in STEPS {
            let before = store.status().open_files;
            step(&store).unwrap_or_else(|e| panic!("{profile:?}: {e}"));
            forgotten += u64::from(before > 0 && store.status().open_files == 0);
            states.push((files(&roomy::recovered(&disk)), disk.calls()));
        }
        for snapshot in disk.recorded() {
            let done = states.iter().rposition(|(_, next)| *next <= snapshot.call()).unwrap_or(0);
            let allowed: Vec<&Files> = states[done..].iter().take(2).map(|(files, _)| files).collect();
            let cuts = snapshot.cuts(24, 1).into_iter();
            let ways = cuts.map(|cut| (cut.to_string(), snapshot.power_cut(cut).disk));
            for (how, after) in ways.chain([("killed".to_owned(), snapshot.killed())]) {
                checked += 1;
                let found = files(&roomy::recovered(&after));
                assert!(allowed.contains(&&found), "{profile:?}: {how} at {}: {found:?}", snapshot.call());
            }
        }
    }
    assert!(forgotten >= 4 * PROFILES.len() as u64, "only {forgotten} checkpoints forgot something");
    assert!(checked > 1000, "{checked} states");
}

/// Forgets a file, cuts the power in every way, and moves the file; returns the error of the first file that cannot be
/// read.
fn moved_after_a_power_cut(disk: &SimDisk, files: usize) -> untorn::Result<()> {
    let store = roomy::open(disk);
    for n in 0..files {
        write(&store, &n.to_string(), 0, b"acknowledged")?;
    }
    store.checkpoint()?;
    assert_eq!(store.status().open_files, 0);
    let moment = disk.snapshot();
    for cut in moment.cuts(64, 1) {
        let after = moment.power_cut(cut).disk;
        after.rename("0", "elsewhere").unwrap();
        let mut found = [0; 12];
        roomy::open(&after).open_file("elsewhere")?.read_exact_at(&mut found, 0)?;
        assert_eq!(&found, b"acknowledged", "{cut}");
    }
    Ok(())
}

#[test]
fn a_forgotten_file_can_be_moved_after_a_power_cut() {
    for files in [1, 20] {
        for profile in PROFILES {
            moved_after_a_power_cut(&roomy::disk(profile), files).unwrap_or_else(|e| panic!("{profile:?}: {e}"));
        }
        let disk = roomy::disk(Profile::AnyPosix);
        disk.skip(sync_point::FORGOTTEN);
        let missed = moved_after_a_power_cut(&disk, files).expect_err("the flush is needed");
        assert_eq!(missed.kind(), "needs-its-journal");
    }
}

#[test]
fn what_cannot_be_forgotten_now_is_forgotten_later() {
    let disk = roomy::disk(Profile::Ext4);
    let store = roomy::open(&disk);
    write(&store, "a", 0, b"acknowledged").unwrap();
    let once = |on| Fault { on, after: 0, times: 1, what: What::Errno(libc::EIO) };
    // The file's flag stays: the checkpoint sets the attribute once, and clears the flag with the second call.
    disk.fail(Fault { after: 1, ..once(On::Attribute) });
    store.checkpoint().unwrap();
    assert_eq!(store.status().open_files, 1);
    disk.clear_faults();
    store.checkpoint().unwrap();
    assert_eq!(store.status().open_files, 0);
    // The flag is cleared, but perhaps not durably.
    write(&store, "a", 0, b"ACK").unwrap();
    disk.fail(once(On::SyncPoint(sync_point::FORGOTTEN)));
    store.checkpoint().unwrap_err();
    disk.clear_faults();
    write(&store, "a", 3, b"N").unwrap();
    assert_eq!(roomy::recovered(&disk).get("a").unwrap(), b"ACKNowledged");
}

/// A store with a file that nobody uses. `act` runs while the next checkpoint flushes the file's cleared flag, after
/// the flush of its contents.
fn while_forgetting(disk: &SimDisk, act: impl Fn(&Store) + Send + Sync + 'static) -> Store {
    let (store, arm) = open_with_surprise(disk, roomy::options(), "sync_all", act);
    write(&store, "a", 0, b"before").unwrap();
    store.checkpoint().unwrap();
    write(&store, "a", 0, b"BEFORE").unwrap();
    let flushed = disk.syncs(sync_point::FORGOTTEN);
    arm(1);
    store.checkpoint().unwrap();
    assert!(disk.syncs(sync_point::FORGOTTEN) > flushed);
    store
}

/// The checkpoint still has a clone of the file's descriptor, with the claim on the file.
#[test]
fn a_file_that_is_being_flushed_is_not_forgotten() {
    let disk = roomy::disk(Profile::Ext4);
    let result: Arc<Mutex<Option<untorn::Result<()>>>> = Arc::default();
    let told = result.clone();
    let _store = while_forgetting(&disk, move |store| {
        drop(store.open_file("a").unwrap());
        *told.lock() = Some(store.open_file("a").map(drop));
    });
    result.lock().take().expect("it was opened").expect("nobody else has it");
}
