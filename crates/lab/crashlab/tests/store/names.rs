//! Names of files that were new, moved, removed, or half made at the crash.

use crate::fixture::{roomy, survives};
use untorn_crashlab::{Fault, On, Options, Profile, SimDisk, What};

/// A power cut left a new file with contents and without the attribute that distinguishes it from another program's
/// file.
#[test]
fn a_new_file_has_its_attribute_before_its_contents() {
    survives("closed,posix,garbage,tight,direct/0/replace,retire/");
    survives("closed,posix,sector,tight,direct/0/mkdir,close/");
}

/// Created, then renamed or unlinked before the first name or the attribute was durable: the empty file stayed under
/// the earlier name.
#[test]
fn a_half_made_file_is_found_under_its_earlier_names() {
    survives("closed,posix,sector,tight,buffered/0/replace,move/");
    survives("closed,posix,garbage,tight,direct/0/mkdir,rmdir/");
    survives("closed,posix,sector,tight,buffered/0/replace,swap/");
    // Another half-made file had the name that it was to get.
    survives("closed,posix,sector,roomy,direct/0/replace,unlink,append,move/");
}

/// A file that was unlinked while it had its temporary name for a swap came back there.
#[test]
fn nothing_stays_where_files_wait_for_each_others_names() {
    survives("closed,btrfs,garbage,roomy,direct/0/swap,unlink/");
}

#[test]
fn names_are_judged_by_what_is_committed_not_by_what_is_there_yet() {
    let disk = roomy::disk(Profile::Ext4);
    let store = roomy::open(&disk);
    let mut txn = store.begin();
    drop(txn.create("x", 0o600).unwrap());
    // The journal takes the commit, and then the disk refuses the name.
    disk.fail(Fault { on: On::Name, after: 0, times: 1, what: What::Errno(libc::ENOSPC) });
    txn.commit().unwrap();
    let mut again = store.begin();
    if again.create("x", 0o640).is_ok() {
        assert!(again.commit().is_err(), "one name, two files");
    }
    let after = roomy::recovered(&disk);
    assert_eq!(after.entry("x").unwrap().mode, 0o600);
}

/// Makes the next changes of names fail.
fn refuse_names(disk: &SimDisk, times: u64) {
    disk.fail(Fault { on: On::Name, after: 0, times, what: What::Errno(libc::ENOSPC) });
}

#[test]
fn a_directory_is_not_removed_under_a_committed_file() {
    let disk = roomy::disk(Profile::Ext4);
    let store = roomy::open(&disk);
    let mut txn = store.begin();
    txn.mkdir("d", 0o700).unwrap();
    txn.commit().unwrap();
    // The file is committed, but its name could not be made: no listing of the directory shows it.
    let mut txn = store.begin();
    txn.create("d/f", 0o600).unwrap().write_all_at(b"acknowledged", 0).unwrap();
    refuse_names(&disk, 2);
    txn.commit().unwrap();
    let mut txn = store.begin();
    if txn.rmdir("d").is_ok() {
        assert!(txn.commit().is_err(), "an acknowledged file is in it");
    }
    let after = roomy::recovered(&disk);
    assert_eq!(after.entry("d/f").unwrap().contents, b"acknowledged");
}

/// Two files exchange their names, and somebody gives one of them a second name before the recovery: the other file was
/// left under a name that nobody looks at.
#[test]
fn a_file_that_cannot_be_renamed_keeps_the_others_in_their_places() {
    let disk = roomy::disk(Profile::Ext4);
    let store = roomy::open(&disk);
    for name in ["a", "b"] {
        let file = store.open_or_create_file(name).unwrap();
        file.write_all_at(name.as_bytes(), 0).unwrap();
        file.commit().unwrap();
    }
    store.checkpoint().unwrap();
    let mut txn = store.begin();
    txn.rename("a", "t").unwrap();
    txn.rename("b", "a").unwrap();
    txn.rename("t", "b").unwrap();
    refuse_names(&disk, 1000);
    txn.commit().unwrap();
    let after = disk.fork();
    after.clear_faults();
    after.hard_link("b", "second").unwrap();

    let store = roomy::open_with(&after, roomy::options()).unwrap();
    assert!(!store.status().quarantined.is_empty());
    store.close().unwrap();
    assert_eq!(after.entry("a").expect("it keeps its name").contents, b"a");

    after.remove("second").unwrap();
    let store = roomy::open_with(&after, roomy::options()).unwrap();
    assert_eq!(store.status().quarantined, []);
    store.close().unwrap();
    assert_eq!((after.get("a").unwrap(), after.get("b").unwrap()), (b"b".to_vec(), b"a".to_vec()));
}

/// Another program has closed the directory in which a file has replaced a directory. The directory's removal counts as
/// done, although the kernel only says that nothing may be removed there.
#[test]
fn a_directory_whose_place_a_file_has_is_not_removed_again() {
    let disk = SimDisk::new(Options { permissions: true, ..Options::default() });
    let store = roomy::open(&disk);
    let mut txn = store.begin();
    txn.mkdir("c", 0o700).unwrap();
    txn.mkdir("c/b", 0o700).unwrap();
    txn.commit().unwrap();
    store.checkpoint().unwrap();
    let mut txn = store.begin();
    txn.rmdir("c/b").unwrap();
    txn.create("c/b", 0o600).unwrap().write_all_at(b"a file", 0).unwrap();
    txn.commit().unwrap();
    let after = disk.snapshot().killed();
    after.set_mode("c", 0o500).unwrap();
    assert_eq!(roomy::recovered(&after).get("c/b").unwrap(), b"a file");
}
