//! Contents are in a file before a commit, or recovery, gives the file a name.

use crate::fixture::{contents, roomy, survives};
use std::path::Path;
use untorn::Store;
use untorn_crashlab::{Cut, Failed, Fault, On, Options, PROFILES, SimDisk, What};

const OLD: &[u8] = b"the old contents, committed and applied";
const NEW: &[u8] = b"the new contents";

/// A disk with the plain file `a`, which has the old contents.
fn disk_with_old(options: Options) -> (SimDisk, Store) {
    let disk = SimDisk::new(options);
    disk.put("a", OLD).unwrap();
    disk.settle();
    let store = roomy::open(&disk);
    (disk, store)
}

/// All profiles, with and without support for files without a name.
fn all_options() -> impl Iterator<Item = Options> {
    let with = |unnamed| PROFILES.map(|profile| Options { profile, unnamed, ..Options::default() });
    [true, false].into_iter().flat_map(with)
}

/// Commits the new contents over `a`: from a new file, or from one that is renamed with a commit that waits.
fn replace(store: &Store, moves: bool) -> untorn::Result<()> {
    let mut txn = store.begin();
    if moves {
        let file = store.open_or_create_file("b")?;
        file.write_all_at(NEW, 0)?;
        file.commit()?;
        txn.rename("b", "a")?;
    } else {
        txn.create("b", 0o600)?.write_all_at(NEW, 0)?;
        txn.rename("b", "a")?;
    }
    txn.commit()
}

/// The names other than Untorn's own.
fn names(disk: &SimDisk) -> Vec<String> {
    let tree = disk.tree().into_iter().map(|(path, _)| path.display().to_string());
    tree.filter(|path| !path.starts_with(".untorn")).collect()
}

/// The disk refuses the contents after their record is durable: the name still shows the old file.
#[test]
fn a_file_whose_contents_find_no_room_does_not_get_its_name() {
    for options in all_options() {
        for moves in [false, true] {
            // The first failing write that does not fail the commit is that of the contents, because records come
            // before it.
            let refuse = |after| {
                let (disk, store) = disk_with_old(options);
                disk.fail(Fault { on: On::Write, after, times: 1000, what: What::Errno(libc::ENOSPC) });
                replace(&store, moves).is_ok().then_some((disk, store))
            };
            let (disk, store) = (0..20).find_map(refuse).expect("a commit");
            assert_eq!(disk.get("a").unwrap(), OLD, "{options:?}, moves: {moves}");
            assert_eq!(names(&disk).len(), 1 + usize::from(moves), "{:?}", names(&disk));
            store.checkpoint().expect_err("the disk is full");
            assert_eq!(disk.get("a").unwrap(), OLD);
            let after = roomy::recovered(&disk);
            assert_eq!((names(&after), after.get("a").unwrap()), (vec!["a".to_owned()], NEW.to_vec()));
            // The living store with room again.
            disk.clear_faults();
            store.checkpoint().unwrap();
            assert_eq!((names(&disk), disk.get("a").unwrap()), (vec!["a".to_owned()], NEW.to_vec()));
            assert_eq!(contents(&store.open_file("a").unwrap()), NEW);
            store.close().unwrap();
        }
    }
}

/// A program that opens the name during the recovery sees the old file or the new one, completely.
#[test]
fn recovery_makes_names_of_whole_files() {
    for options in all_options() {
        for moves in [false, true] {
            let (disk, store) = disk_with_old(options);
            if moves {
                drop(store.open_or_create_file("b").unwrap());
            }
            disk.fail(Fault { on: On::Name, after: 0, times: 1000, what: What::Errno(libc::ENOSPC) });
            replace(&store, moves).unwrap();
            for cut in [None, Some(Cut::Nothing), Some(Cut::Everything)] {
                let after = match cut {
                    None => disk.fork(),
                    Some(cut) => disk.snapshot().power_cut(cut).disk,
                };
                after.record();
                roomy::open(&after).close().unwrap();
                let moments = after.recorded();
                assert!(moments.len() > 3);
                for moment in moments {
                    let shown = moment.killed().get("a").unwrap_or_else(|e| panic!("call {}: {e}", moment.call()));
                    assert!(shown == OLD || shown == NEW, "{options:?}, {cut:?}, call {}: {shown:?}", moment.call());
                }
                assert_eq!((names(&after), after.get("a").unwrap()), (vec!["a".to_owned()], NEW.to_vec()));
            }
        }
    }
}

/// The kernel loses contents that were written before the name. It reports that once to a checkpoint, or not at all if
/// the descriptor is another one.
#[test]
fn contents_that_a_failed_writeback_took_are_written_again() {
    for options in all_options() {
        for reopened in [false, true] {
            let (disk, store) = disk_with_old(Options { open_files_max: if reopened { 1 } else { 64 }, ..options });
            replace(&store, false).unwrap();
            if reopened {
                for name in ["x", "y", "z"] {
                    drop(store.open_or_create_file(name).unwrap());
                }
            }
            disk.fail_writeback(Path::new("a"), Failed::Lost).unwrap();
            if store.checkpoint().is_err() {
                store.checkpoint().unwrap();
            }
            let after = disk.snapshot().power_cut(Cut::Nothing).disk;
            assert_eq!(roomy::recovered(&after).get("a").unwrap(), NEW, "{options:?}, reopened: {reopened}");
        }
    }
}

/// Another program edited the file, which has commits that are not in it. A commit that renamed it wrote them over the
/// edit, and nobody got an error.
#[test]
fn an_edit_from_outside_is_not_written_over_before_a_name() {
    for options in all_options() {
        let (disk, store) = disk_with_old(options);
        let file = store.open_file("a").unwrap();
        file.write_all_at(NEW, 0).unwrap();
        file.commit().unwrap();
        disk.overwrite("a", 0, b"an edit that makes the file longer than it was before").unwrap();
        let edited = disk.get("a").unwrap();
        store.rename("a", "b").unwrap();
        assert_eq!((names(&disk), disk.get("a").unwrap()), (vec!["a".to_owned()], edited.clone()), "{options:?}");
        let told = store.checkpoint().expect_err("the edit is in the way");
        assert_eq!(told.kind(), "conflict", "{told}");
        assert_eq!(disk.get("a").unwrap(), edited);
    }
}

#[test]
fn crashes_around_a_file_that_has_its_contents_first() {
    survives("closed,posix,garbage,tight,direct/0/replace,retire/");
    survives("closed,ext4,sector,tight,direct/0/one,move,retire/");
    survives("closed,btrfs,sector,tight,buffered/0/one,replace,retire/");
    survives("closed,posix,garbage,tight,buffered/0/append,move,retire/");
}

/// More files than are flushed one by one.
const MANY: usize = 20;

fn text(name: &str) -> Vec<u8> {
    format!("what is in {name}").into_bytes()
}

/// Makes many files with contents, in one commit.
fn make_many(store: &Store, letter: char) -> untorn::Result<Vec<String>> {
    let names: Vec<String> = (0..MANY).map(|n| format!("{letter}{n}")).collect();
    let mut txn = store.begin();
    for name in &names {
        txn.create(name, 0o600)?.write_all_at(&text(name), 0)?;
    }
    txn.commit().map(|()| names)
}

/// One flush is enough for the attributes of many files, and one for their contents, whichever descriptors are still
/// open.
#[test]
fn many_new_files_share_their_flushes() {
    for options in all_options().filter(|options| options.unnamed) {
        let (disk, store) = disk_with_old(options);
        let before = disk.counters().syncs;
        let made = make_many(&store, 'f').unwrap();
        store.close().unwrap();
        let flushes = disk.counters().syncs - before;
        assert!(flushes < MANY as u64, "{options:?}: {flushes}");
        let after = disk.snapshot().power_cut(Cut::Nothing).disk;
        made.iter().for_each(|name| assert_eq!(after.get(name).unwrap(), text(name), "{options:?}"));
    }
}

/// With descriptors for all of them, for some, and for none.
#[test]
fn many_new_files_are_there_whole_or_not_at_all() {
    for options in all_options() {
        for open_files_max in [1, 12, 64] {
            let (disk, store) = disk_with_old(Options { open_files_max, ..options });
            disk.record();
            make_many(&store, 'f').unwrap();
            store.checkpoint().unwrap();
            drop(store);
            for moment in disk.recorded().into_iter().step_by(17) {
                for cut in [Cut::Nothing, Cut::Everything, Cut::Seed(moment.call())] {
                    let after = roomy::recovered(&moment.power_cut(cut).disk);
                    let made = names(&after).len() - 1;
                    assert!(made == 0 || made == MANY, "{options:?}, {cut:?}, call {}: {made}", moment.call());
                    for name in names(&after).iter().filter(|name| *name != "a") {
                        assert_eq!(
                            after.get(name).unwrap(),
                            text(name),
                            "{options:?}, {cut:?}, call {}",
                            moment.call()
                        );
                    }
                }
            }
        }
    }
}

/// The flush that reports the loss may be the checkpoint's, or one of another commit before it.
#[test]
fn contents_of_many_files_that_a_failed_writeback_took_are_written_again() {
    for options in all_options() {
        for (open_files_max, told_before) in [(1, false), (64, false), (1, true), (64, true)] {
            let (disk, store) = disk_with_old(Options { open_files_max, ..options });
            let mut made = make_many(&store, 'f').unwrap();
            disk.fail_writeback(Path::new("f7"), Failed::Lost).unwrap();
            if told_before {
                made.extend(make_many(&store, 'g').unwrap());
            }
            if store.checkpoint().is_err() {
                store.checkpoint().unwrap();
            }
            let after = roomy::recovered(&disk.snapshot().power_cut(Cut::Nothing).disk);
            for name in made {
                assert_eq!(after.get(&name).unwrap(), text(&name), "{options:?}, {open_files_max}, {told_before}");
            }
        }
    }
}
