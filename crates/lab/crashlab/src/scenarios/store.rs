//! Scenarios over files and mappings: damage, and a second thread.

use super::opening::{failed, open};
use crate::programs::oracle::check_marks;
use crate::simulation::SimDisk;
use crate::simulation::{Cut, Options, Profile};
use std::path::{Path, PathBuf};
use untorn::__private::{OpenStoreOn, StoreSteps};
use untorn::{Error, FailureClass, File, MapOptions, Store, StoreOptions, TrackerKind};
use untorn_journal::directories::store_dir::StoreDir;
use untorn_journal::format::{
    Attribute, AttributeFound, BLOCK_BYTES, HEADER_SLOTS, Header, RECORD_HEAD_BYTES, RecordHead, RecordKind,
};
use untorn_journal::recovery::clear_pending;
use untorn_os::Open;

fn is_refused(opened: Result<Store, Error>) -> Result<(), String> {
    match opened {
        Err(Error::Corrupt { .. }) => Ok(()),
        Err(e) => Err(format!("another error: {e}")),
        Ok(_) => Err("the store opens as if nothing were missing".into()),
    }
}

/// The first of two records is damaged, and the second says that the first was durable.
pub(crate) fn damage_before_durable_commits_is_no_torn_end() -> Result<(), String> {
    let disk = SimDisk::new(Options::default());
    let store = open(&disk, FailureClass::Power).map_err(failed)?;
    let file = store.open_or_create_file("a").map_err(failed)?;
    for text in [b"one", b"two"] {
        file.write_all_at(text, 0).and_then(|()| file.commit()).map_err(failed)?;
    }
    disk.kill();
    disk.overwrite(".untorn/journal/segment.0", 20, &[0xff]).map_err(|e| e.to_string())?;
    is_refused(open(&disk, FailureClass::Power))
}

/// Opens a store whose segments have room to grow.
fn open_roomy(disk: &SimDisk) -> Result<Store, String> {
    let options = StoreOptions::new().create(true).background(false).sizes(1 << 20, 16 << 10, 32 << 10);
    options.open_on(disk.process(), StoreDir::of_directory(), PathBuf::new()).map_err(failed)
}

/// Opens a store, and commits to its file "a".
fn commit(disk: &SimDisk, bytes: &[u8]) -> Result<(Store, File), String> {
    let store = open_roomy(disk)?;
    let file = store.open_or_create_file("a").map_err(failed)?;
    file.write_all_at(bytes, 0).and_then(|()| file.commit()).map_err(failed)?;
    Ok((store, file))
}

/// A first commit is behind the former end of a segment, and the attributes that say so were not copied.
pub(crate) fn a_copy_without_attributes_is_not_taken_for_closed() -> Result<(), String> {
    let disk = SimDisk::new(Options { profile: Profile::Xfs, ..Options::default() });
    disk.put("a", b"plain").map_err(|e| e.to_string())?;
    // This close also writes its header to a slot, so that a copy has it.
    commit(&disk, b"one")?.0.close().map_err(failed)?;
    let _open = commit(&disk, b"two")?;
    disk.kill();
    for copied in ["a", ".untorn/journal/header", ".untorn/journal/segment.0"] {
        disk.set_attribute(copied, None).map_err(|e| e.to_string())?;
    }
    match open_roomy(&disk)?.status().quarantined.len() {
        1 => Ok(()),
        _ => Err("the commit is not missed".into()),
    }
}

/// An owner died between marking a file and committing to it; another program has locked the file when the next owner
/// closes the store.
pub(crate) fn a_mark_that_stays_is_looked_for_again() -> Result<(), String> {
    let disk = SimDisk::new(Options::default());
    disk.put("a", b"plain").map_err(|e| e.to_string())?;
    let store = open(&disk, FailureClass::Power).map_err(failed)?;
    let file = store.open_file("a").map_err(failed)?;
    file.write_all_at(b"one", 0).and_then(|()| file.commit()).map_err(failed)?;
    store.checkpoint().map_err(failed)?;
    disk.kill();
    drop((file, store));
    let other = disk.process();
    let locked = other.open(Path::new("a"), Open::WRITE).map_err(|e| e.to_string())?;
    if !locked.try_claim().map_err(|e| e.to_string())? {
        return Err("a dead owner has the file locked".into());
    }
    open(&disk, FailureClass::Power).and_then(Store::close).map_err(failed)?;
    if check_marks(&disk).is_ok() {
        return Err("the mark of a locked file was cleared".into());
    }
    drop(locked);
    open(&disk, FailureClass::Power).and_then(Store::close).map_err(failed)?;
    check_marks(&disk)
}

/// An owner was killed while it closed the store: it had cleared a mark, and not flushed that. The next owner finds no
/// mark, closes the store, and the power is cut.
pub(crate) fn a_mark_cleared_by_a_killed_owner_stays_cleared() -> Result<(), String> {
    for profile in [Profile::Btrfs, Profile::AnyPosix] {
        let disk = SimDisk::new(Options { profile, ..Options::default() });
        let store = open(&disk, FailureClass::Power).map_err(failed)?;
        let file = store.open_or_create_file("a").map_err(failed)?;
        file.write_all_at(b"one", 0).and_then(|()| file.commit()).map_err(failed)?;
        store.checkpoint().map_err(failed)?;
        disk.kill();
        drop((file, store));
        let data = disk.process().open(Path::new("a"), Open::WRITE).map_err(|e| e.to_string())?;
        let value = data.attribute().map_err(|e| e.to_string())?;
        let AttributeFound::Valid(a) = Attribute::decode(value.as_deref()) else { return Err("no mark".into()) };
        if !clear_pending(&*data, a.store, a.file) {
            return Err("the file has no mark to be cleared".into());
        }
        drop(data);
        disk.kill();
        open(&disk, FailureClass::Power).and_then(Store::close).map_err(failed)?;
        disk.power_cut(Cut::Nothing);
        check_marks(&disk).map_err(|e| format!("{profile:?}: {e}"))?;
    }
    Ok(())
}

/// The size of a commit that fills most of a segment.
const FILLING_BYTES: usize = 11 << 10;

/// A store whose only segment was full of these bytes. A smaller commit, which is not applied yet, has replaced the
/// start of their record.
fn recycled(filling: &[u8]) -> Result<SimDisk, String> {
    let disk = SimDisk::new(Options::default());
    let options = StoreOptions::new().create(true).background(false).sizes(16 << 10, 16 << 10, 12 << 10);
    let opened = options.open_on(disk.process(), StoreDir::of_directory(), PathBuf::new());
    let store = opened.map_err(failed)?;
    let file = store.open_or_create_file("a").map_err(failed)?;
    // In blocks 1 to 3 of the segment, then 0 to 2, 3, and 0.
    for bytes in [filling, filling, b"first", b"small"] {
        store.checkpoint().map_err(failed)?;
        file.write_all_at(bytes, 0).and_then(|()| file.commit()).map_err(failed)?;
    }
    disk.kill();
    Ok(disk)
}

/// A program writes bytes that would be valid records, forged by somebody who can read the header. When the segment is
/// reused, recovery finds these bytes.
pub(crate) fn contents_that_look_like_records_are_none() -> Result<(), String> {
    let segment = |disk: &SimDisk| disk.get(".untorn/journal/segment.0").map_err(|e| e.to_string());
    // The same seed repeats everything, so this finds the place of the bytes.
    let mut rng = fastrand::Rng::with_seed(1);
    let marked: Vec<u8> = (0..FILLING_BYTES).map(|_| rng.u8(1..)).collect();
    let before = recycled(&marked)?;
    let found = segment(&before)?;
    let slots = before.get(".untorn/journal/header").map_err(|e| e.to_string())?;
    let mut headers = slots.chunks(BLOCK_BYTES).filter_map(|slot| Header::decode(slot, Path::new("header")).ok()?);
    let key = headers.next().ok_or("no header")?.key;
    let mut filling = vec![0; FILLING_BYTES];
    let mut made = 0;
    for position in (0..found.len()).step_by(BLOCK_BYTES) {
        let left = &found[position..position + RECORD_HEAD_BYTES];
        let Some(at) = marked.windows(RECORD_HEAD_BYTES).position(|bytes| bytes == left) else { continue };
        let head = RecordHead {
            kind: RecordKind::DurableMark,
            body_by_reference: false,
            len: RECORD_HEAD_BYTES as u64,
            lsn: 1_000_000,
            epoch: 1,
            generation: 1_000_000,
            position: position as u64,
            previous_crc: 0,
            durable_lsn: 999_999,
            time: None,
        };
        head.seal(&mut filling[at..at + RECORD_HEAD_BYTES], key);
        made += 1;
    }
    if made == 0 {
        return Err("nothing of the first commit is left in the segment".into());
    }
    let disk = recycled(&filling)?;
    open(&disk, FailureClass::Power).and_then(Store::close).map_err(failed)?;
    filling[..5].copy_from_slice(b"small");
    if disk.get("a").is_ok_and(|found| found == filling) { Ok(()) } else { Err("another file is there".into()) }
}

/// The header of the open store is damaged; the header before it says that the store is closed.
pub(crate) fn a_lost_header_is_missed() -> Result<(), String> {
    let disk = SimDisk::new(Options::default());
    commit(&disk, b"one")?.0.close().map_err(failed)?;
    let _open = commit(&disk, b"two")?;
    disk.kill();
    let slots = disk.get(".untorn/journal/header").map_err(|e| e.to_string())?;
    let generation = |at: &usize| {
        let slot = Header::decode(&slots[*at..*at + BLOCK_BYTES], Path::new("header"));
        slot.ok().flatten().map(|header| header.generation)
    };
    let newest = (0..HEADER_SLOTS as usize).map(|slot| slot * BLOCK_BYTES).max_by_key(generation);
    let newest = newest.ok_or("no header")?;
    disk.overwrite(".untorn/journal/header", newest as u64 + 30, &[0xff]).map_err(|e| e.to_string())?;
    is_refused(open(&disk, FailureClass::Power))
}

/// Another thread stores to a page during its commit, at every moment in turn.
pub(crate) fn a_racing_store_is_in_this_commit_or_the_next() -> Result<(), String> {
    for tracker in [TrackerKind::Scan, TrackerKind::PageMap, TrackerKind::Explicit] {
        for nth in 0.. {
            let disk = SimDisk::new(Options::default());
            disk.put("a", &[b'.'; 6000]).map_err(|e| e.to_string())?;
            let store = open(&disk, FailureClass::Power).map_err(failed)?;
            let file = store.open_file("a").map_err(failed)?;
            let map = file.map_with(&MapOptions::new().tracker(tracker).address_space(1 << 16)).map_err(failed)?;
            let store_to = |at: usize| map.as_ptr().wrapping_add(at);
            disk.store(store_to(10), b"first").map_err(|e| e.to_string())?;
            let mark =
                |at, len| if tracker == TrackerKind::Explicit { map.mark_dirty(store_to(at), len) } else { Ok(()) };
            mark(10, 5).and_then(|()| mark(200, 4)).map_err(failed)?;
            let race = disk.calls() + nth;
            disk.store_at(race, store_to(200), b"race");
            map.msync().map_err(failed)?;
            if disk.calls() <= race {
                break;
            }
            // The other thread marks its store afterwards.
            mark(200, 4).map_err(failed)?;
            map.msync().map_err(failed)?;
            let after = disk.fork();
            drop((map, file));
            open(&after, FailureClass::Power).and_then(Store::close).map_err(failed)?;
            let found = after.get("a").map_err(|e| e.to_string())?;
            if (&found[10..15], &found[200..204]) != (b"first", b"race") {
                return Err(format!("tracker {tracker}: a store right before call {nth} of a commit is lost"));
            }
        }
    }
    Ok(())
}

/// With the tracker `explicit`, bytes that were not declared are in no commit and no checkpoint, before and after a power
/// cut.
pub(crate) fn what_was_not_told_is_in_no_commit() -> Result<(), String> {
    let disk = SimDisk::new(Options::default());
    disk.put("a", &[b'.'; 6000]).map_err(|e| e.to_string())?;
    let store = open(&disk, FailureClass::Power).map_err(failed)?;
    let file = store.open_file("a").map_err(failed)?;
    let options = MapOptions::new().tracker(TrackerKind::Explicit).address_space(1 << 16);
    let map = file.map_with(&options).map_err(failed)?;
    let mut wanted = [b'.'; 6000];
    for (round, at) in [70usize, 4090, 5990].into_iter().enumerate() {
        disk.store(map.as_ptr().wrapping_add(at - 10), &[b'X'; 20]).map_err(|e| e.to_string())?;
        map.mark_dirty(map.as_ptr().wrapping_add(at), 8).map_err(failed)?;
        map.msync().map_err(failed)?;
        wanted[at..at + 8].fill(b'X');
        let after = disk.fork();
        after.settle();
        after.power_cut(crate::Cut::Nothing);
        open(&after, FailureClass::Power).and_then(Store::close).map_err(failed)?;
        is_shown(&after, "a", &wanted).map_err(|e| format!("round {round}, recovered: {e}"))?;
        store.checkpoint().map_err(failed)?;
        is_shown(&disk, "a", &wanted).map_err(|e| format!("round {round}, checkpoint: {e}"))?;
    }
    Ok(())
}

/// Commits with so many ranges that each is kept separately until a checkpoint, with small commits in between. The file
/// must have the newest bytes, after recovery and after a checkpoint.
pub(crate) fn large_commits_lie_over_each_other() -> Result<(), String> {
    const PLACES: usize = 100;
    let disk = SimDisk::new(Options::default());
    disk.put("a", &[b'.'; PLACES * 16]).map_err(|e| e.to_string())?;
    let store = open(&disk, FailureClass::Power).map_err(failed)?;
    let file = store.open_file("a").map_err(failed)?;
    let options = MapOptions::new().tracker(TrackerKind::Explicit).address_space(1 << 16);
    let map = file.map_with(&options).map_err(failed)?;
    let mut wanted = vec![b'.'; PLACES * 16];
    for round in 0..20 {
        // Every second or third place, or only one.
        let every = if round % 5 == 4 { PLACES } else { 2 + round % 2 };
        for at in (round % 3..PLACES).step_by(every).map(|place| place * 16 + round % 8) {
            wanted[at..at + 4].fill(b'a' + round as u8);
            disk.store(map.as_ptr().wrapping_add(at), &wanted[at..at + 4]).map_err(|e| e.to_string())?;
            map.mark_dirty(map.as_ptr().wrapping_add(at), 4).map_err(failed)?;
        }
        map.msync().map_err(failed)?;
        let after = disk.fork();
        after.settle();
        after.power_cut(crate::Cut::Nothing);
        open(&after, FailureClass::Power).and_then(Store::close).map_err(failed)?;
        is_shown(&after, "a", &wanted).map_err(|e| format!("round {round}, recovered: {e}"))?;
        if round % 7 == 6 {
            store.checkpoint().map_err(failed)?;
            is_shown(&disk, "a", &wanted).map_err(|e| format!("round {round}, checkpoint: {e}"))?;
        }
    }
    drop((map, file));
    store.close().map_err(failed)?;
    is_shown(&disk, "a", &wanted)
}

/// A large change that is overwritten again and again must not change another large change of the same commit.
pub(crate) fn what_is_spilled_is_overwritten_by_nothing_else() -> Result<(), String> {
    let disk = SimDisk::new(Options::default());
    let store = open(&disk, FailureClass::Power).map_err(failed)?;
    let file = store.open_or_create_file("a").map_err(failed)?;
    file.write_all_at(&[1; 40_000], 100_000).map_err(failed)?;
    for round in 2..8 {
        file.write_all_at(&[round; 40_000], 0).map_err(failed)?;
    }
    for when in ["uncommitted", "committed"] {
        let mut found = vec![0; 140_000];
        file.read_exact_at(&mut found, 0).map_err(failed)?;
        if found[..40_000] != [7; 40_000] || found[100_000..] != [1; 40_000] {
            return Err(format!("{when}, the file has bytes of another change"));
        }
        file.commit().map_err(failed)?;
    }
    let after = disk.fork();
    open(&after, FailureClass::Power).and_then(Store::close).map_err(failed)?;
    let found = after.get("a").map_err(|e| e.to_string())?;
    match found[..40_000] == [7; 40_000] && found[100_000..] == [1; 40_000] {
        true => Ok(()),
        false => Err("recovery finds bytes of another change".into()),
    }
}

fn is_shown(disk: &SimDisk, name: &str, expected: &[u8]) -> Result<(), String> {
    let found = disk.get(name).map_err(|e| format!("{name}: {e}"))?;
    match found == expected {
        true => Ok(()),
        false => Err(format!("{name} shows {found:?}, not {expected:?}")),
    }
}

/// Another program opens a name as soon as a commit has created it: a new file, one that replaces another, and one that
/// is renamed with commits that no checkpoint has applied.
pub(crate) fn a_name_shows_what_is_committed() -> Result<(), String> {
    for unnamed in [true, false] {
        let disk = SimDisk::new(Options { unnamed, ..Options::default() });
        let store = open(&disk, FailureClass::Power).map_err(failed)?;
        let mut txn = store.begin();
        txn.create("a", 0o600).and_then(|file| file.write_all_at(b"first", 0)).map_err(failed)?;
        txn.commit().map_err(failed)?;
        is_shown(&disk, "a", b"first")?;

        let mut txn = store.begin();
        txn.create("new", 0o600).and_then(|file| file.write_all_at(b"second", 0)).map_err(failed)?;
        txn.rename("new", "a").and_then(|()| txn.commit()).map_err(failed)?;
        is_shown(&disk, "a", b"second")?;

        let moving = store.open_or_create_file("b").map_err(failed)?;
        for text in [&b"older and longer"[..], b"third"] {
            moving.set_len(0).and_then(|()| moving.write_all_at(text, 0)).map_err(failed)?;
            moving.commit().map_err(failed)?;
        }
        let mut txn = store.begin();
        txn.rename("b", "a").and_then(|()| txn.commit()).map_err(failed)?;
        is_shown(&disk, "a", b"third")?;
        if let Some((left, _)) = disk.tree().iter().find(|(path, _)| !path.starts_with(".untorn") && *path != *"a") {
            return Err(format!("{} is left over", left.display()));
        }
    }
    Ok(())
}

/// A file gets a name together with newer contents, while a checkpoint is about to write older ones.
pub(crate) fn a_checkpoint_leaves_newer_contents() -> Result<(), String> {
    let disk = SimDisk::new(Options::default());
    let store = open(&disk, FailureClass::Power).map_err(failed)?;
    let file = store.open_or_create_file("a").map_err(failed)?;
    let change = |text: &[u8]| file.write_all_at(text, 0).and_then(|()| file.commit()).map_err(failed);
    change(b"old")?;
    let checkpoint = store.begin_checkpoint().map_err(failed)?.ok_or("nothing to apply")?;
    change(b"newest")?;
    let mut txn = store.begin();
    txn.rename("a", "b").and_then(|()| txn.commit()).map_err(failed)?;
    is_shown(&disk, "b", b"newest")?;
    // One more commit, so that the checkpoint has something to write.
    file.write_all_at(b"!", 6).and_then(|()| file.commit()).map_err(failed)?;
    let applied = checkpoint.apply().map_err(failed)?;
    is_shown(&disk, "b", b"newest!")?;
    applied.truncate_log().map_err(failed)?;
    drop(file);
    let after = disk.snapshot().power_cut(crate::Cut::Nothing).disk;
    open(&after, FailureClass::Power).and_then(Store::close).map_err(failed)?;
    is_shown(&after, "b", b"newest!")
}

/// A power cut keeps the first name of an empty new file, but neither its attribute nor its second name.
pub(crate) fn what_is_half_made_has_no_second_name() -> Result<(), String> {
    let disk = SimDisk::new(Options::default());
    let store = open(&disk, FailureClass::Power).map_err(failed)?;
    let mut txn = store.begin();
    txn.create("a", 0o600).map(drop).and_then(|()| txn.commit()).map_err(failed)?;
    let mut txn = store.begin();
    txn.rename("a", "b").and_then(|()| txn.commit()).map_err(failed)?;
    let moment = disk.snapshot();
    for cut in moment.cuts(256, 1) {
        let after = moment.power_cut(cut).disk;
        open(&after, FailureClass::Power).and_then(Store::close).map_err(failed)?;
        is_shown(&after, "b", b"")?;
        if after.get("a").is_ok() {
            return Err(format!("{cut}: the file is there under a name that it has no more, too"));
        }
    }
    Ok(())
}
