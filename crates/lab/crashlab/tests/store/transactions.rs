//! Transactions without changes.

use crate::fixture::roomy;
use untorn_crashlab::Profile;

#[test]
fn a_transaction_without_changes_does_not_stand_before_the_next_commit() {
    let disk = roomy::disk(Profile::Ext4);
    let store = roomy::open(&disk);
    let file = store.open_or_create_file("a").unwrap();
    let mut txn = store.begin();
    txn.add(&file).unwrap();
    txn.commit().unwrap();
    file.write_at(b"acknowledged", 0).unwrap();
    file.commit().unwrap();
    assert_eq!(roomy::recovered(&disk).get("a").unwrap(), b"acknowledged");
}

#[test]
fn a_transaction_that_names_a_file_without_changes_breaks_no_chain() {
    let disk = roomy::disk(Profile::Ext4);
    let store = roomy::open(&disk);
    let (a, b) = (store.open_or_create_file("a").unwrap(), store.open_or_create_file("b").unwrap());
    a.write_at(b"one", 0).unwrap();
    a.commit().unwrap();
    let mut txn = store.begin();
    txn.add(&a).unwrap();
    txn.add(&b).unwrap();
    b.write_at(b"other", 0).unwrap();
    txn.commit().unwrap();
    a.write_at(b"two", 0).unwrap();
    a.commit().unwrap();
    assert_eq!(roomy::recovered(&disk).get("a").unwrap(), b"two");
}

/// The entry on disk under the name of a directory is a file that the transaction itself has renamed.
#[test]
fn a_directory_of_the_transaction_alone_can_be_removed() {
    let disk = roomy::disk(Profile::Ext4);
    let store = roomy::open(&disk);
    drop(store.open_or_create_file("a").unwrap());
    let mut txn = store.begin();
    txn.rename("a", "b").unwrap();
    txn.mkdir("a", 0o700).unwrap();
    txn.rmdir("a").unwrap();
    txn.commit().unwrap();
    let after = roomy::recovered(&disk);
    assert!(after.entry("a").is_err() && after.get("b").unwrap().is_empty());
}
