//! Names of files: new, moved, removed, and half made when the crash came.

use crate::fixture::{roomy, survives};
use untorn_crashlab::{Fault, On, Profile, What};

/// A power cut left a new file with contents and without the attribute that tells it from another program's file.
#[test]
fn a_new_file_has_its_attribute_before_its_contents() {
    survives("closed,posix,garbage,tight,direct/0/replace,retire/");
    survives("closed,posix,sector,tight,direct/0/mkdir,close/");
}

/// Created, then renamed or unlinked before the first name or the attribute was durable: the empty file
/// under the earlier name stayed.
#[test]
fn a_half_made_file_is_found_under_its_earlier_names() {
    survives("closed,posix,sector,tight,buffered/0/replace,move/");
    survives("closed,posix,garbage,tight,direct/0/mkdir,rmdir/");
    survives("closed,posix,sector,tight,buffered/0/replace,swap/");
    // Another half-made file had the name that it was to get.
    survives("closed,posix,sector,roomy,direct/0/replace,unlink,append,move/");
}

/// A file that was unlinked while it stood aside for a swap of names came back there.
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
    // The journal takes the commit, and then the disk does not take the name.
    disk.fail(Fault { on: On::Name, after: 0, times: 1, what: What::Errno(libc::ENOSPC) });
    txn.commit().unwrap();
    let mut again = store.begin();
    if again.create("x", 0o640).is_ok() {
        assert!(again.commit().is_err(), "one name, two files");
    }
    let after = roomy::recovered(&disk);
    assert_eq!(after.entry("x").unwrap().mode, 0o600);
}
