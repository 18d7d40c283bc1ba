//! Recovery on a full disk: the store opens, changes that cannot be applied are quarantined in reserved room, space can
//! be freed through the store, and quarantined changes are applied later.

use crate::fixture::{contents, open_on};
use std::path::Path;
use untorn::__private::OpenStoreOn;
use untorn::{FailureClass, File, Store, StoreOptions};
use untorn_crashlab::{Fault, Model, On, Options, PROFILES, Profile, SimDisk, What};

fn options(class: FailureClass) -> StoreOptions {
    StoreOptions::new().create(true).background(false).sizes(64 << 10, 16 << 10, 4 << 10).spare(true).class(class)
}

fn commit(file: &File, contents: &[u8]) {
    file.write_at(contents, 0).unwrap();
    file.commit().unwrap();
}

/// The ways in which the disk is full: without blocks, without inodes.
const WAYS: [(bool, bool); 3] = [(true, true), (true, false), (false, true)];

/// A store whose process was killed. Its journal has changes of contents and names that need room, and the disk has
/// none.
fn killed_on_full_disk(profile: Profile, way: (bool, bool), class: FailureClass) -> SimDisk {
    let disk = SimDisk::new(Options { profile, model: Model::SectorAtomic, ..Options::default() });
    let store = open_on(&disk, options(class)).unwrap();
    for name in ["grown", "small", "big", "old"] {
        commit(&store.open_or_create_file(name).unwrap(), b"before");
    }
    commit(&store.open_file("big").unwrap(), &[b'b'; 60 << 10]);
    store.checkpoint().unwrap();
    commit(&store.open_file("grown").unwrap(), &[b'g'; 14 << 10]);
    commit(&store.open_file("small").unwrap(), b"after!");
    // From here on the disk is full: committed names cannot be made.
    disk.fail(Fault { on: On::Name, after: 0, times: u64::MAX, what: What::Errno(libc::ENOSPC) });
    let mut txn = store.begin();
    txn.create("new", 0o640).unwrap().write_all_at(b"newest", 0).unwrap();
    txn.mkdir("d", 0o700).unwrap();
    txn.create("d/inside", 0o600).unwrap();
    txn.rename("old", "renamed").unwrap();
    txn.commit().unwrap();
    disk.clear_faults();
    disk.kill();
    drop(store);
    if class == FailureClass::Power {
        disk.settle();
    }
    disk.fill_up(way.0, way.1);
    disk
}

/// Opens the store on the full disk, and frees room through it.
fn opens_and_makes_room(disk: &SimDisk, class: FailureClass, when: &str) {
    let store = open_on(disk, options(class)).unwrap_or_else(|e| panic!("{when}: {e}"));
    assert_eq!(contents(&store.open_file("small").unwrap()), b"after!", "{when}");
    let renamed = store.open_file("renamed").unwrap_or_else(|e| panic!("{when}: {e}"));
    assert_eq!(contents(&renamed), b"before", "{when}");
    drop(renamed);
    if let Ok(big) = store.open_file("big") {
        drop(big);
        let mut txn = store.begin();
        txn.unlink("big").unwrap();
        txn.commit().unwrap_or_else(|e| panic!("{when}: {e}"));
        store.checkpoint().unwrap_or_else(|e| panic!("{when}: {e}"));
    }
    assert!(disk.get("big").is_err(), "{when}: the disk has its room");
    close(store, when);
}

fn close(store: Store, when: &str) {
    store.close().unwrap_or_else(|e| panic!("{when}: {e}"));
}

/// Asserts that with room again, everything committed is there.
fn heals(disk: &SimDisk, class: FailureClass, when: &str) {
    disk.set_options(|options| (options.capacity_bytes, options.inodes_max) = (None, None));
    let store = open_on(disk, options(class)).unwrap_or_else(|e| panic!("{when}: {e}"));
    assert_eq!(store.status().quarantined, [], "{when}");
    assert_eq!(contents(&store.open_file("grown").unwrap()), [b'g'; 14 << 10], "{when}");
    assert_eq!(contents(&store.open_file("new").unwrap()), b"newest", "{when}");
    commit(&store.open_file("grown").unwrap(), b"later");
    close(store, when);
    assert_eq!(disk.entry("new").unwrap().mode, 0o640, "{when}");
    assert_eq!(disk.get("d/inside").unwrap(), b"", "{when}");
    assert!(disk.get("old").is_err(), "{when}");
    let left = disk.tree().into_iter().map(|(path, _)| path);
    let left: Vec<_> = left.filter(|path| path.to_string_lossy().contains("quarantine.")).collect();
    assert_eq!(left, [] as [&Path; 0], "{when}");
}

#[test]
fn a_store_opens_on_a_full_disk_makes_room_and_heals() {
    for profile in PROFILES {
        for way in WAYS {
            for class in [FailureClass::Power, FailureClass::Process] {
                let when = format!("{profile:?}, blocks and inodes {way:?}, {class:?}");
                let disk = killed_on_full_disk(profile, way, class);
                let store = open_on(&disk, options(class)).unwrap_or_else(|e| panic!("{when}: {e}"));
                let quarantined = store.status().quarantined;
                let told = quarantined.iter().any(|q| q.reason.contains("No space left on device"));
                assert!(told, "{when}: {quarantined:?}");
                close(store, &when);
                // Again, with the quarantined journal there: any number of times.
                for again in 0..2 {
                    opens_and_makes_room(&disk, class, &format!("{when}, again {again}"));
                }
                heals(&disk, class, &when);
            }
        }
    }
}

#[test]
fn recovery_on_a_full_disk_survives_every_crash() {
    let (mut crashes, mut lost) = (0, 0);
    for (profile, way) in [(Profile::AnyPosix, WAYS[0]), (Profile::Ext4, WAYS[0]), (Profile::AnyPosix, WAYS[2])] {
        let class = FailureClass::Power;
        let disk = killed_on_full_disk(profile, way, class);
        disk.record();
        opens_and_makes_room(&disk, class, "recorded");
        for moment in disk.recorded() {
            let when = format!("{profile:?}, blocks and inodes {way:?}, killed before call {}", moment.call());
            let killed = moment.killed();
            opens_and_makes_room(&killed, class, &when);
            heals(&killed, class, &when);
            for cut in moment.cuts(8, moment.call()) {
                let outcome = moment.power_cut(cut);
                lost += u64::from(outcome.something_lost);
                let when = format!("{when}, {cut}");
                opens_and_makes_room(&outcome.disk, class, &when);
                heals(&outcome.disk, class, &when);
                crashes += 1;
            }
        }
    }
    assert!(crashes > 100 && lost > 0, "{crashes} crashes, {lost} of them lost something");
}

/// A new file waits for room, and its record fills the journal: a commit that would free room must still be possible.
#[test]
fn an_open_store_makes_room_on_a_full_disk_while_a_new_file_waits() {
    let (mut waited, mut made_room) = (0, 0);
    for kib in (4..120).step_by(4) {
        let when = format!("a new file of {kib} KiB");
        let disk =
            SimDisk::new(Options { profile: Profile::AnyPosix, model: Model::SectorAtomic, ..Options::default() });
        // Contents go into the journal, and the disk has no room for more segments.
        let options = options(FailureClass::Power).sizes(512 << 10, 16 << 10, 128 << 10);
        let store = open_on(&disk, options).unwrap();
        let large = store.open_or_create_file("large").unwrap();
        for at in 0..8 {
            large.write_all_at(&[b'l'; 8 << 10], at << 13).unwrap();
            large.commit().unwrap();
            store.checkpoint().unwrap();
        }
        disk.fill_up(true, false);
        // The journal takes the record, and no room is left for the file.
        let committed = (0..200).any(|_| {
            let mut txn = store.begin();
            let written = txn.create("new", 0o600).and_then(|new| new.write_all_at(&vec![b'n'; kib << 10], 0));
            let done = written.is_ok() && txn.commit().is_ok();
            disk.set_options(|options| {
                options.capacity_bytes = options.capacity_bytes.map(|bytes| bytes + if done { 0 } else { 1024 });
            });
            done
        });
        if !committed || store.checkpoint().is_ok() {
            continue;
        }
        waited += 1;
        large.set_len(10).unwrap();
        if large.commit().is_err() {
            // Not even one block is left.
            continue;
        }
        made_room += 1;
        drop(large);
        let mut txn = store.begin();
        txn.unlink("large").unwrap();
        txn.commit().unwrap_or_else(|e| panic!("{when}: {e}"));
        let _ = store.checkpoint();
        assert!(disk.get("large").is_err(), "{when}: the disk has its room");
        disk.set_options(|options| options.capacity_bytes = None);
        store.checkpoint().unwrap_or_else(|e| panic!("{when}: {e}"));
        assert_eq!(disk.get("new").unwrap(), vec![b'n'; kib << 10], "{when}");
        close(store, &when);
    }
    assert!(waited >= 20 && made_room + 6 >= waited, "{made_room} of {waited}");
}

/// A part of a quarantined journal can be redone, but there is no room for the list of the rest. The redone files must
/// take no commits, because the next opening would redo the old ones over them.
#[test]
fn a_list_that_finds_no_room_keeps_all_of_it_quarantined() {
    let class = FailureClass::Power;
    let disk = killed_on_full_disk(Profile::AnyPosix, (true, true), class);
    close(open_on(&disk, options(class)).unwrap(), "quarantined");
    // Blocks for the contents, and no inode for a list or for the new files.
    disk.set_options(|options| options.capacity_bytes = None);
    let store = open_on(&disk, options(class)).unwrap();
    assert!(disk.get("grown").is_ok_and(|bytes| bytes == [b'g'; 14 << 10]), "it could be redone");
    match store.open_file("grown") {
        Ok(grown) => commit(&grown, b"newer"),
        Err(e) => assert_eq!(e.kind(), "no-space", "{e}"),
    }
    let is_newer = store.open_file("grown").is_ok();
    close(store, "partly redone");
    disk.set_options(|options| options.inodes_max = None);
    close(open_on(&disk, options(class)).unwrap(), "healed");
    assert_eq!(disk.get("grown").unwrap().starts_with(b"newer"), is_newer);
    assert!(is_newer || disk.get("grown").unwrap() == [b'g'; 14 << 10]);
}

/// The journal has taken room that a data file needs. It gives segments back, at every crash without a loss; commits that
/// take no room go on.
#[test]
fn a_journal_that_gives_segments_back_survives_every_crash() {
    let (mut crashes, mut lost, mut given) = (0, 0, 0);
    for profile in PROFILES {
        let disk = SimDisk::new(Options { profile, model: Model::SectorAtomic, ..Options::default() });
        let options = || options(FailureClass::Power).sizes(128 << 10, 16 << 10, 32 << 10);
        let store = open_on(&disk, options()).unwrap();
        let file = store.open_or_create_file("a").unwrap();
        let mut bytes = Vec::new();
        let append = |bytes: &mut Vec<u8>, nth: u8| {
            let done = file.append(&[nth; 6000]).and_then(|_| file.commit());
            match done {
                Ok(()) => bytes.extend([nth; 6000]),
                Err(_) => file.rollback().unwrap(),
            }
            done.is_ok()
        };
        for nth in 0..18 {
            assert!(append(&mut bytes, nth));
        }
        store.checkpoint().unwrap();
        let allocated = store.status().journal_bytes_allocated;
        assert!(append(&mut bytes, 20) && append(&mut bytes, 21));
        disk.fill_up(true, false);
        disk.record();
        let before = bytes.len();
        store.checkpoint().unwrap_or_else(|e| panic!("{profile:?}: {e}"));
        assert!(disk.get("a").unwrap() == bytes, "{profile:?}");
        given += u64::from(store.status().journal_bytes_allocated < allocated);
        let moments = disk.recorded();
        // Growth ends at last, and other commits go on.
        while append(&mut bytes, 30) {
            assert!(bytes.len() < 1 << 20, "{profile:?}: the disk never fills up");
        }
        file.write_all_at(&[40; 100], 50).unwrap();
        file.commit().unwrap_or_else(|e| panic!("{profile:?}: {e}"));
        bytes[50..150].fill(40);
        file.set_len(1000).unwrap();
        file.commit().unwrap_or_else(|e| panic!("{profile:?}: {e}"));
        store.checkpoint().unwrap_or_else(|e| panic!("{profile:?}: {e}"));
        drop(file);
        close(store, &format!("{profile:?}"));
        assert!(disk.get("a").unwrap() == bytes[..1000], "{profile:?}");
        for moment in moments {
            let states = moment.cuts(8, moment.call()).into_iter().map(|cut| {
                let outcome = moment.power_cut(cut);
                lost += u64::from(outcome.something_lost);
                (cut.to_string(), outcome.disk)
            });
            for (how, after) in states.collect::<Vec<_>>().into_iter().chain([("killed".into(), moment.killed())]) {
                let when = format!("{profile:?}, call {}, {how}", moment.call());
                after.set_options(|options| options.capacity_bytes = None);
                close(open_on(&after, options()).unwrap_or_else(|e| panic!("{when}: {e}")), &when);
                let found = after.get("a").unwrap();
                assert!(found.len() == before && found.ends_with(&[21; 6000]), "{when}: {} bytes", found.len());
                crashes += 1;
            }
        }
    }
    assert!(crashes > 100 && lost > 0 && given > 0, "{crashes} crashes, {lost} lost something, {given} gave back");
}
