//! Committed changes that cannot be applied: they do not keep the rest of the log, survive every crash, and are applied
//! when the cause is gone.

use crate::checkpoint::open_with_surprise;
use crate::fixture::{contents, small};
use crate::hooked::Hooked;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use untorn::__private::{OpenStoreOn, StoreSteps};
use untorn::{FailureClass, File, Store};
use untorn_crashlab::{Failed, Fault, On, Refusal, Refused, SimDisk, What};
use untorn_journal::directories::store_dir::StoreDir;
use untorn_journal::sync_point;
use untorn_os::Linux;

/// The bytes of a commit of `a`; some thirty of them fill the journal.
const VERSION_BYTES: usize = 1900;
const JOURNAL_BYTES: u64 = 64 << 10;

/// The kinds of changes of names.
const CHANGES: [&str; 6] = ["create", "rename", "replace", "unlink", "mkdir", "rmdir"];

fn commit(file: &File, contents: &[u8]) {
    file.write_at(contents, 0).unwrap();
    file.commit().unwrap();
}

/// Commits versions of `a`, each of which must go through.
fn commit_versions(disk: &SimDisk, store: &Store, versions: std::ops::Range<u64>) {
    let a = store.open_file("a").unwrap();
    for version in versions {
        let mut bytes = vec![0; VERSION_BYTES];
        bytes[..8].copy_from_slice(&version.to_le_bytes());
        commit(&a, &bytes);
        disk.set_mark(version);
    }
}

/// A store whose journal has grown to its limit.
fn grown(disk: &SimDisk) -> Store {
    let store = small::open(disk);
    for name in ["a", "old", "victim"] {
        commit(&store.open_or_create_file(name).unwrap(), b"before");
    }
    let mut txn = store.begin();
    txn.mkdir("gone", 0o700).unwrap();
    txn.commit().unwrap();
    commit_versions(disk, &store, 1..100);
    store.checkpoint().unwrap();
    store
}

/// Commits until the log is filling up: waiting changes are restated only then.
fn fill_log(store: &Store) {
    let filler = store.open_or_create_file("filler").unwrap();
    while {
        let status = store.status();
        status.journal_bytes_pending * 2 <= status.journal_bytes_max
    } {
        commit(&filler, &[7; VERSION_BYTES]);
    }
}

fn change(store: &Store, what: &str) -> untorn::Result<()> {
    if matches!(what, "rename" | "replace" | "unlink") {
        commit(&store.open_file("old").unwrap(), b"newest");
    }
    let mut txn = store.begin();
    match what {
        "create" => txn.create("x", 0o640)?.write_all_at(b"newest", 0)?,
        "rename" => txn.rename("old", "x")?,
        "replace" => txn.rename("old", "victim")?,
        "unlink" => txn.unlink("old")?,
        "mkdir" => {
            txn.mkdir("d", 0o750)?;
            txn.create("d/x", 0o600)?.write_all_at(b"newest", 0)?;
        }
        _ => txn.rmdir("gone")?,
    }
    txn.commit()
}

#[track_caller]
fn is_changed(disk: &SimDisk, what: &str, when: &str) {
    let get = |name: &str| disk.get(name).ok();
    let right = match what {
        "create" => get("x").as_deref() == Some(b"newest") && disk.entry("x").unwrap().mode == 0o640,
        "rename" => get("x").as_deref() == Some(b"newest") && get("old").is_none(),
        "replace" => get("victim").as_deref() == Some(b"newest") && get("old").is_none(),
        "unlink" => get("old").is_none(),
        "mkdir" => get("d/x").as_deref() == Some(b"newest") && disk.entry("d").unwrap().mode == 0o750,
        "rmdir" => disk.meta("gone").is_err(),
        _ => true,
    };
    assert!(right, "{what}, {when}");
}

/// Makes creating and removing names fail from now on.
fn refuse_names(disk: &SimDisk) {
    disk.fail(Fault { on: On::Name, after: 0, times: u64::MAX, what: What::Errno(libc::ENOSPC) });
}

fn version(bytes: &[u8]) -> u64 {
    u64::from_le_bytes(bytes[..8].try_into().unwrap())
}

/// Recovers after the cause is gone, and asserts that everything acknowledged is there.
fn recovers(disk: &SimDisk, what: &str, acknowledged: u64, changed: bool, when: &str) {
    let store = small::open_with(disk, small::options()).unwrap_or_else(|e| panic!("{what}, {when}: {e}"));
    assert_eq!(store.status().quarantined, [], "{what}, {when}");
    assert!(version(&contents(&store.open_file("a").unwrap())) >= acknowledged, "{what}, {when}");
    commit(&store.open_file("a").unwrap(), b"after it");
    store.close().unwrap_or_else(|e| panic!("{what}, {when}: {e}"));
    if changed {
        is_changed(disk, what, when);
    }
}

#[test]
fn names_that_wait_do_not_keep_the_journal_and_heal_without_reopening() {
    for what in CHANGES {
        let disk = small::disk();
        let store = grown(&disk);
        refuse_names(&disk);
        change(&store, what).unwrap();
        commit_versions(&disk, &store, 100..400);
        assert!(store.checkpoint().is_err(), "{what}: it tells what waits");
        assert!(store.status().journal_bytes_allocated <= JOURNAL_BYTES, "{what}: {:?}", store.status());

        disk.clear_faults();
        store.checkpoint().unwrap_or_else(|e| panic!("{what}: {e}"));
        is_changed(&disk, what, "healed");
        commit_versions(&disk, &store, 400..500);
        change_after(&store, what);
        store.close().unwrap();
    }
}

/// Asserts that the waiting entry can be changed like any other afterwards.
fn change_after(store: &Store, what: &str) {
    let mut txn = store.begin();
    match what {
        "create" | "rename" => txn.rename("x", "y").unwrap(),
        "replace" => txn.unlink("victim").unwrap(),
        "unlink" => drop(txn.create("old", 0o600).unwrap()),
        "mkdir" => txn.unlink("d/x").and_then(|()| txn.rmdir("d")).unwrap(),
        _ => txn.mkdir("gone", 0o700).unwrap(),
    }
    txn.commit().unwrap();
}

#[test]
fn names_that_wait_survive_every_crash() {
    for what in CHANGES {
        let disk = small::disk();
        let store = grown(&disk);
        refuse_names(&disk);
        disk.record();
        change(&store, what).unwrap();
        disk.set_mark(100);
        commit_versions(&disk, &store, 101..180);
        let _ = store.checkpoint();
        disk.clear_faults();
        store.checkpoint().unwrap();
        // The waiting file is now a file like others, in the same log.
        if let Some(name) = ["x", "victim", "d/x"].into_iter().find(|name| disk.get(name).is_ok_and(|c| c == b"newest"))
        {
            commit(&store.open_file(name).unwrap(), b"newest");
        }
        commit_versions(&disk, &store, 180..190);
        store.checkpoint().unwrap();
        let (mut crashes, mut lost) = (0, 0);
        for moment in disk.recorded() {
            let changed = moment.mark() >= 100;
            // The change of names is not a version.
            let acknowledged = if moment.mark() == 100 { 99 } else { moment.mark() };
            recovers(&moment.killed(), what, acknowledged, changed, "killed");
            for cut in moment.cuts(6, moment.call()) {
                let outcome = moment.power_cut(cut);
                lost += u64::from(outcome.something_lost);
                let when = format!("before call {}, {cut}", moment.call());
                recovers(&outcome.disk, what, acknowledged, changed, &when);
                crashes += 1;
            }
        }
        assert!(crashes > 100 && lost > 0);
    }
}

/// Another program has the name, and keeps it across crashes.
#[test]
fn names_that_wait_are_quarantined_by_recovery_while_the_cause_is_there() {
    for what in ["create", "rename"] {
        let disk = small::disk();
        let store = grown(&disk);
        refuse_names(&disk);
        change(&store, what).unwrap();
        disk.clear_faults();
        disk.put("x", b"foreign").unwrap();
        disk.settle();
        disk.record();
        commit_versions(&disk, &store, 101..180);
        assert!(store.checkpoint().is_err(), "{what}");
        assert!(store.close().is_err(), "{what}");
        for moment in disk.recorded().into_iter().step_by(3) {
            let Some(cut) = moment.cuts(6, moment.call()).into_iter().nth(moment.call() as usize % 2) else { continue };
            let after = moment.power_cut(cut).disk;
            let when = format!("{what}, before call {}, {cut}", moment.call());
            for _ in 0..2 {
                let store = small::open_with(&after, small::options()).unwrap_or_else(|e| panic!("{when}: {e}"));
                let quarantined: Vec<_> = store.status().quarantined.into_iter().map(|q| q.path).collect();
                assert_eq!(quarantined, [Path::new("x")], "{when}");
                let version = version(&contents(&store.open_file("a").unwrap()));
                assert!(moment.mark() < 101 || version >= moment.mark(), "{when}");
                store.close().unwrap();
            }
            assert_eq!(after.get("x").unwrap(), b"foreign", "{when}");
            after.remove("x").unwrap();
            recovers(&after, what, 0, true, &when);
        }
    }
}

/// The file has a second name: its commits are not written to it, and do not hold up other files.
#[test]
fn contents_that_wait_do_not_keep_the_journal() {
    let disk = small::disk();
    let store = grown(&disk);
    commit(&store.open_file("old").unwrap(), b"newest");
    disk.hard_link("old", "second").unwrap();
    disk.settle();
    // The attribute of this file was never flushed.
    commit(&store.open_or_create_file("new").unwrap(), b"newest");
    disk.hard_link("new", "third").unwrap();
    disk.record();
    commit_versions(&disk, &store, 100..200);
    assert!(store.checkpoint().is_err());
    disk.remove("second").unwrap();
    disk.remove("third").unwrap();
    for moment in disk.recorded() {
        for cut in moment.cuts(4, moment.call()) {
            let after = moment.power_cut(cut).disk;
            let when = format!("before call {}, {cut}", moment.call());
            let _ = (after.remove("second"), after.remove("third"));
            recovers(&after, "contents", moment.mark(), false, &when);
            for name in ["old", "new"] {
                assert_eq!(after.get(name).ok().as_deref(), Some(&b"newest"[..]), "{name}, {when}");
            }
        }
    }
    store.checkpoint().unwrap();
    assert_eq!(disk.get("old").unwrap(), b"newest");
    commit(&store.open_file("old").unwrap(), b"latest");
    store.close().unwrap();
    assert_eq!(disk.get("old").unwrap(), b"latest");
}

/// The kernel refuses writes to the file. Its contents go into the log again, and commits of other files go on, even if
/// the disk has no room for one more segment.
#[test]
fn contents_that_the_system_refuses_do_not_keep_the_journal() {
    for (code, full) in [
        (libc::ENOSPC, true),
        (libc::ENOSPC, false),
        (libc::EDQUOT, true),
        (libc::EFBIG, false),
        (libc::EROFS, false),
        (libc::EIO, false),
    ] {
        let disk = small::disk();
        let store = grown(&disk);
        let mut txn = store.begin();
        txn.mkdir("c", 0o700).unwrap();
        for name in ["c/w", "c/new"] {
            drop(txn.create(name, 0o600).unwrap());
        }
        txn.commit().unwrap();
        commit(&store.open_file("c/w").unwrap(), &[b'w'; 5000]);
        store.checkpoint().unwrap();
        let when = format!("error {code}, full disk: {full}");
        disk.set_options(|options| {
            options.refusal = Some(Refusal { what: Refused::Contents, dir: "c", code, told: false });
        });
        commit(&store.open_file("c/w").unwrap(), b"newest");
        commit(&store.open_file("c/new").unwrap(), b"contents");
        assert!(store.checkpoint().is_err(), "{when}");
        if full {
            disk.fill_up(true, true);
        }
        disk.record();
        commit_versions(&disk, &store, 100..200);
        assert!(store.checkpoint().is_err(), "{when}");
        let e = store.open_file("c/w").unwrap().append(b"x").and_then(|_| store.open_file("c/w")?.commit());
        assert_eq!(e.unwrap_err().kind(), if matches!(code, libc::EROFS | libc::EIO) { "io" } else { "no-space" });
        store.open_file("c/w").unwrap().rollback().unwrap();
        assert!(store.status().journal_bytes_allocated <= JOURNAL_BYTES, "{when}");
        let moments = disk.recorded();
        for moment in moments.into_iter().step_by(7) {
            for cut in moment.cuts(4, moment.call()) {
                let after = moment.power_cut(cut).disk;
                after.set_options(|options| (options.refusal, options.capacity_bytes) = (None, None));
                let when = format!("{when}, before call {}, {cut}", moment.call());
                recovers(&after, "contents", moment.mark(), false, &when);
                let w = after.get("c/w").unwrap();
                assert_eq!((&w[..7], w.len()), (&b"newestw"[..], 5000), "{when}");
                assert_eq!(after.get("c/new").unwrap(), b"contents", "{when}");
            }
        }
        disk.set_options(|options| (options.refusal, options.capacity_bytes) = (None, None));
        store.checkpoint().unwrap_or_else(|e| panic!("{when}: {e}"));
        assert_eq!(&disk.get("c/w").unwrap()[..7], b"newestw", "{when}");
        commit(&store.open_file("c/w").unwrap(), b"latest");
        store.close().unwrap();
        assert_eq!(&disk.get("c/w").unwrap()[..7], b"latestw", "{when}");
    }
}

/// A journal at its limit, with segments that are all too small for the commit, while something is restated in one of
/// them.
#[test]
fn a_commit_larger_than_every_segment_while_something_is_restated() {
    const LARGE_BYTES: usize = 10 << 10;
    let disk = small::disk();
    let store = small::open_with(&disk, small::options().sizes(16 << 10, 4 << 10, 2 << 10)).unwrap();
    commit(&store.open_or_create_file("a").unwrap(), b"before");
    commit_versions(&disk, &store, 1..20);
    assert_eq!(store.status().journal_bytes_allocated, 16 << 10);
    store.close().unwrap();
    let options = || small::options().sizes(16 << 10, 16 << 10, 12 << 10);
    let store = small::open_with(&disk, options()).unwrap();
    let large = store.open_or_create_file("large").unwrap();
    store.checkpoint().unwrap();
    refuse_names(&disk);
    change(&store, "create").unwrap();
    commit_versions(&disk, &store, 20..30);
    disk.clear_faults();
    // The journal grows with files whose names can be made; the waiting change still waits.
    disk.put("x", b"foreign").unwrap();
    disk.settle();
    disk.record();
    for round in 0..4u8 {
        commit(&large, &[round; LARGE_BYTES]);
        disk.set_mark(100 + u64::from(round));
    }
    assert!(store.checkpoint().is_err());
    assert!(store.status().journal_bytes_allocated <= 64 << 10, "{:?}", store.status());
    for moment in disk.recorded().into_iter().step_by(2) {
        for cut in moment.cuts(4, moment.call()) {
            let after = moment.power_cut(cut).disk;
            let when = format!("before call {}, {cut}", moment.call());
            after.remove("x").unwrap();
            let store = small::open_with(&after, options()).unwrap_or_else(|e| panic!("{when}: {e}"));
            assert_eq!(store.status().quarantined, [], "{when}");
            let found = contents(&store.open_file("large").unwrap());
            let round = moment.mark().checked_sub(100);
            let whole = found.iter().all(|byte| *byte == found[0]) && found.len() == LARGE_BYTES;
            assert!(whole || (round.is_none() && found.is_empty()), "{when}");
            assert!(round.is_none_or(|round| u64::from(found[0]) >= round), "{when}");
            store.close().unwrap();
            is_changed(&after, "create", &when);
        }
    }
    disk.remove("x").unwrap();
    store.checkpoint().unwrap();
    store.close().unwrap();
}

/// A failed flush of the journal is remembered, whichever call made it: no later call returns OK.
#[test]
fn a_failed_flush_of_what_is_restated_ends_commits() {
    let disk = small::disk();
    let store = grown(&disk);
    let a = store.open_file("a").unwrap();
    fill_log(&store);
    refuse_names(&disk);
    change(&store, "create").unwrap();
    disk.clear_faults();
    disk.put("x", b"foreign").unwrap();
    let restated = On::SyncPoint(sync_point::RESTATED);
    disk.fail(Fault { on: restated, after: 0, times: 1, what: What::Writeback(Failed::Lost) });
    assert!(store.checkpoint().is_err());
    assert!(store.status().failed.is_some());
    // The error comes before anything is submitted.
    a.write_at(b"more", 0).unwrap();
    match a.commit_async() {
        Err(e) => assert!(e.kind().starts_with("failed-sync"), "{e}"),
        Ok(_) => panic!("nothing is committed any more, and the call knows it"),
    }
    drop(a);
    assert!(store.close().is_err());
}

/// Nothing new is in the log: trying again takes no room in it.
#[test]
fn trying_again_restates_nothing() {
    let disk = small::disk();
    let store = grown(&disk);
    refuse_names(&disk);
    change(&store, "create").unwrap();
    commit_versions(&disk, &store, 100..110);
    let pending = store.status().journal_bytes_pending;
    assert!(store.checkpoint().is_err());
    assert!(store.status().journal_bytes_pending < pending, "the log is truncated");
    let written = store.status().journal_bytes_written;
    for _ in 0..100 {
        assert!(store.checkpoint().is_err());
    }
    assert_eq!(store.status().journal_bytes_written, written);
    disk.clear_faults();
    store.close().unwrap();
    is_changed(&disk, "create", "closed");
}

/// A new file that was flushed, and then moved away while a small change of it waits, is not treated as new any more.
#[test]
fn a_part_of_a_file_is_never_taken_for_the_whole() {
    for class in [FailureClass::Power, FailureClass::Process] {
        let options = || small::options().class(class);
        let disk = small::disk();
        let store = small::open_with(&disk, options()).unwrap();
        commit(&store.open_or_create_file("other").unwrap(), b"other");
        let file = store.open_or_create_file("f").unwrap();
        commit(&file, &[b'f'; 9000]);
        store.checkpoint().unwrap();
        commit(&file, b"newest");
        fill_log(&store);
        disk.rename("f", "elsewhere").unwrap();
        assert!(store.checkpoint().is_err());
        disk.kill();
        drop((file, store));
        let store = small::open_with(&disk, options()).unwrap();
        assert_eq!(store.status().quarantined.len(), 1, "{class:?}");
        store.close().unwrap();
        assert!(disk.get("f").is_err(), "{class:?}: the rest of it is elsewhere");
        disk.rename("elsewhere", "f").unwrap();
        small::open_with(&disk, options()).unwrap().close().unwrap();
        let found = disk.get("f").unwrap();
        assert_eq!((found.len(), &found[..7]), (9000, &b"newestf"[..]), "{class:?}");
    }
}

/// A commit makes the names between the flush of their directory and the end of the checkpoint.
#[test]
fn names_that_heal_under_a_checkpoint_are_flushed_by_the_next() {
    let disk = Arc::new(small::disk());
    let healing = disk.clone();
    let (store, arm) = open_with_surprise(&disk, small::options(), "sync_dir", move |store| {
        healing.clear_faults();
        let mut txn = store.begin();
        drop(txn.create("w", 0o600).unwrap());
        txn.commit().unwrap();
    });
    commit(&store.open_or_create_file("a").unwrap(), &[0; 8]);
    commit(&store.open_or_create_file("old").unwrap(), b"before");
    let mut txn = store.begin();
    txn.mkdir("z", 0o700).unwrap();
    txn.commit().unwrap();
    store.checkpoint().unwrap();
    let mut txn = store.begin();
    drop(txn.create("z/y", 0o600).unwrap());
    txn.commit().unwrap();
    fill_log(&store);
    refuse_names(&disk);
    change(&store, "rename").unwrap();
    // The second directory: the first one, in which the name appears, is flushed by then.
    arm(1);
    assert!(store.checkpoint().is_err());
    for again in [false, true] {
        let moment = disk.snapshot();
        for cut in moment.cuts(64, 1) {
            recovers(&moment.power_cut(cut).disk, "rename", 0, true, &format!("{cut}"));
        }
        if !again {
            store.checkpoint().unwrap();
        }
    }
}

/// A commit of the waiting file comes between the beginning and the end of the checkpoint: its record stays in the log,
/// and the record before it does not.
#[test]
fn a_commit_under_the_checkpoint_that_restates_its_file() {
    let disk = small::disk();
    let store = grown(&disk);
    let old = store.open_file("old").unwrap();
    store.checkpoint().unwrap();
    commit(&old, b"one");
    commit_versions(&disk, &store, 100..110);
    let checkpoint = store.begin_checkpoint().unwrap().unwrap();
    commit(&old, b"two");
    disk.hard_link("old", "second").unwrap();
    assert!(checkpoint.apply().unwrap().truncate_log().is_err());
    let moment = disk.snapshot();
    for cut in moment.cuts(64, 1) {
        let after = moment.power_cut(cut).disk;
        let _ = after.remove("second");
        recovers(&after, "contents", 99, false, &format!("{cut}"));
        assert_eq!(after.get("old").unwrap(), b"twoore", "{cut}");
    }
}

/// Another commit makes a restated change possible, which continues in the log in which it was restated.
#[test]
fn what_heals_by_a_commit_goes_on_in_the_same_log() {
    for what in ["create", "rename", "replace"] {
        let disk = small::disk();
        let store = grown(&disk);
        commit(&store.open_or_create_file("filler").unwrap(), b"before");
        refuse_names(&disk);
        change(&store, what).unwrap();
        fill_log(&store);
        assert!(store.checkpoint().is_err());
        disk.clear_faults();
        let mut txn = store.begin();
        txn.mkdir("w", 0o700).unwrap();
        txn.commit().unwrap();
        is_changed(&disk, what, "healed");
        let name = if what == "replace" { "victim" } else { "x" };
        commit(&store.open_file(name).unwrap(), b"latest, and longer");
        let moment = disk.snapshot();
        for cut in moment.cuts(64, 1) {
            let after = moment.power_cut(cut).disk;
            recovers(&after, "what heals", 99, false, &format!("{what}, {cut}"));
            assert_eq!(after.get(name).unwrap(), b"latest, and longer", "{what}, {cut}");
        }
    }
}

/// Makes the kernel refuse modes, or stop refusing them.
fn refuse_modes(disk: &SimDisk, refused: bool) {
    let refusal = Refusal { what: Refused::Modes, dir: "", code: libc::EPERM, told: false };
    disk.set_options(|options| options.refusal = refused.then_some(refusal));
}

fn chmod(store: &Store, name: &str, mode: u32) {
    let mut txn = store.begin();
    txn.chmod(name, mode).unwrap();
    txn.commit().unwrap();
}

/// A file with a refused mode kept the log, because a checkpoint could not set the mode after the contents; also, the
/// mode must be flushed once it is set.
#[test]
fn a_mode_that_waits_does_not_keep_the_journal() {
    let disk = small::disk();
    let store = grown(&disk);
    commit(&store.open_file("old").unwrap(), b"newest");
    refuse_modes(&disk, true);
    chmod(&store, "old", 0o640);
    commit_versions(&disk, &store, 100..300);
    fill_log(&store);
    assert!(store.checkpoint().is_err());
    refuse_modes(&disk, false);
    store.checkpoint().unwrap();
    assert_eq!(disk.entry("old").unwrap().mode, 0o640);
    let moment = disk.snapshot();
    for cut in moment.cuts(64, 1) {
        let after = moment.power_cut(cut).disk;
        recovers(&after, "a mode", 299, false, &format!("{cut}"));
        assert_eq!((after.entry("old").unwrap().mode, after.get("old").unwrap()), (0o640, b"newest".to_vec()), "{cut}");
    }
}

/// A restated record says which commits the file has already: an older copy of the file in its place is refused.
#[test]
fn an_older_copy_is_not_taken_for_what_was_restated() {
    let disk = small::disk();
    let store = grown(&disk);
    let old = store.open_file("old").unwrap();
    commit(&old, b"the first one");
    store.checkpoint().unwrap();
    disk.copy("old", "copy", true).unwrap();
    commit(&old, b"second");
    store.checkpoint().unwrap();
    commit(&old, b"third");
    disk.hard_link("old", "second").unwrap();
    fill_log(&store);
    assert!(store.checkpoint().is_err());
    let after = disk.snapshot().killed();
    after.remove("second").unwrap();
    after.rename("copy", "old").unwrap();
    let store = small::open_with(&after, small::options()).unwrap();
    let quarantined: Vec<_> = store.status().quarantined.into_iter().map(|q| q.reason).collect();
    assert!(matches!(&quarantined[..], [reason] if reason.contains("older copy")), "{quarantined:?}");
}

/// A directory that can be closed to this process and opened again: by its mode, or for root by a mount over it.
struct Closable(PathBuf);

impl Closable {
    fn is_root(&self) -> bool {
        std::fs::metadata(&self.0).unwrap().uid() == 0
    }

    fn run(&self, program: &str, arguments: &[&str]) -> bool {
        Command::new(program).args(arguments).arg(&self.0).status().is_ok_and(|status| status.success())
    }

    fn close(&self) -> bool {
        match self.is_root() {
            true => self.run("mount", &["-t", "tmpfs", "none"]),
            false => self.run("chmod", &["500"]),
        }
    }

    fn open(&self) {
        assert!(if self.is_root() { self.run("umount", &[]) } else { self.run("chmod", &["700"]) });
    }
}

impl Drop for Closable {
    fn drop(&mut self) {
        // A failed test leaves no mount behind.
        let _ = Command::new("umount").arg("-l").arg(&self.0).stderr(Stdio::null()).status();
    }
}

/// On the real kernel: while a commit is flushed, the directory of its new file is closed.
#[test]
fn a_directory_that_closes_while_a_commit_is_flushed() {
    let dir = tempfile::tempdir().unwrap();
    let place = dir.path().join("p");
    std::fs::create_dir(&place).unwrap();
    let closable = Arc::new(Closable(place.clone()));
    if !closable.close() {
        return println!("skipped: cannot mount here");
    }
    closable.open();
    let armed = Arc::new(AtomicBool::new(false));
    let hook = {
        let (armed, closable) = (armed.clone(), closable.clone());
        move |call: &str| {
            if call == "sync_data" && armed.swap(false, SeqCst) {
                assert!(closable.close());
            }
        }
    };
    let open = |hook| {
        let storage = Arc::new(Hooked::over(Linux::open(dir.path()).unwrap(), hook));
        small::options().open_on(storage, StoreDir::of_directory(), dir.path().to_owned()).unwrap()
    };
    let store = open(Arc::new(hook));
    let a = store.open_or_create_file("a").unwrap();
    let go_on =
        |versions: std::ops::Range<u64>| versions.for_each(|version| commit(&a, &[version as u8; VERSION_BYTES]));
    go_on(0..50);
    let mut txn = store.begin();
    txn.create("p/x", 0o600).unwrap().write_all_at(b"newest", 0).unwrap();
    armed.store(true, SeqCst);
    txn.commit().unwrap();
    assert!(!armed.load(SeqCst));
    go_on(50..250);
    assert!(store.checkpoint().is_err());
    closable.open();
    store.checkpoint().unwrap();
    assert_eq!(std::fs::read(place.join("x")).unwrap(), b"newest");
    go_on(250..255);

    // Again, and the store is closed and opened while the cause is still there.
    let mut txn = store.begin();
    txn.rename("p/x", "p/y").unwrap();
    armed.store(true, SeqCst);
    txn.commit().unwrap();
    go_on(0..100);
    drop(a);
    assert!(store.close().is_err());
    let store = open(Arc::new(|_: &str| {}));
    assert_eq!(store.status().quarantined.len(), 1);
    assert_eq!(contents(&store.open_file("a").unwrap())[..], [99; VERSION_BYTES]);
    store.close().unwrap();
    closable.open();
    let store = open(Arc::new(|_: &str| {}));
    assert_eq!(store.status().quarantined, []);
    store.close().unwrap();
    assert_eq!(std::fs::read(place.join("y")).unwrap(), b"newest");
}
