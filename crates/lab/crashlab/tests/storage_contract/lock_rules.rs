//! Rules about claims and locks: two kinds that do not affect each other, each held by one opening of a file. Leases
//! are shared locks of the second kind.

use crate::fixture::{Fixture, holds, refused, rules, same};
use libc::EBADF;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use untorn_os::{File, MapRequest, Open};

rules! {
    a_claim_is_exclusive,
    a_lock_is_exclusive,
    claims_and_locks_are_apart,
    they_follow_the_file,
    they_end_with_their_opening,
    waiting_for_a_lock,
    a_lock_needs_the_right_to_write,
    a_mapping_holds_none,
    leases_are_shared,
    leases_and_locks_keep_each_other_out,
    a_lease_ends_with_its_opening,
    a_lease_follows_the_file,
    a_lease_is_taken_where_nothing_can_be_written,
}

fn again(fixture: &Fixture) -> [Arc<dyn File>; 2] {
    [fixture.open("f", Open::WRITE), fixture.another_storage().open(Path::new("f"), Open::WRITE).unwrap()]
}

fn a_claim_is_exclusive(fixture: &Fixture) {
    let file = fixture.file("f", b"");
    let others = again(fixture);
    holds(file.try_claim().unwrap());
    holds(file.try_claim().unwrap());
    others.iter().for_each(|other| holds(!other.try_claim().unwrap()));
    // The same for an opening that only reads.
    holds(!fixture.open("f", Open::READ).try_claim().unwrap());
    holds(fixture.file("g", b"").try_claim().unwrap());
}

fn a_lock_is_exclusive(fixture: &Fixture) {
    let file = fixture.file("f", b"");
    let others = again(fixture);
    others.iter().for_each(|other| holds(!other.is_locked().unwrap()));
    holds(file.lock(false).unwrap());
    holds(file.lock(false).unwrap() && file.lock(true).unwrap());
    others.iter().for_each(|other| holds(other.is_locked().unwrap() && !other.lock(false).unwrap()));
    holds(!file.is_locked().unwrap());
    holds(fixture.open("f", Open::READ).is_locked().unwrap());
    holds(fixture.file("g", b"").lock(false).unwrap());
}

fn claims_and_locks_are_apart(fixture: &Fixture) {
    let file = fixture.file("f", b"");
    let [first, second] = again(fixture);
    holds(file.try_claim().unwrap());
    holds(!first.is_locked().unwrap() && first.lock(false).unwrap());
    holds(!second.try_claim().unwrap() && !second.lock(false).unwrap());
    drop(first);
    holds(!second.try_claim().unwrap() && second.lock(false).unwrap());
}

fn they_follow_the_file(fixture: &Fixture) {
    let file = fixture.file("f", b"");
    holds(file.try_claim().unwrap() && file.lock(false).unwrap());
    fixture.hard_link("f", "g");
    fixture.storage.rename(Path::new("f"), Path::new("h"), false).unwrap();
    for name in ["g", "h"] {
        let other = fixture.open(name, Open::WRITE);
        holds(!other.try_claim().unwrap() && !other.lock(false).unwrap() && other.is_locked().unwrap());
    }
    let new = fixture.file("f", b"");
    holds(new.try_claim().unwrap() && new.lock(false).unwrap());
}

fn they_end_with_their_opening(fixture: &Fixture) {
    let file = fixture.file("f", b"");
    let [first, second] = again(fixture);
    holds(first.try_claim().unwrap() && first.lock(false).unwrap());
    // Dropping other openings releases nothing.
    drop(fixture.open("f", Open::WRITE));
    holds(!file.try_claim().unwrap() && file.is_locked().unwrap());
    // Dropping the last handle of the opening releases it.
    let handle = first.clone();
    drop(first);
    holds(!file.try_claim().unwrap() && file.is_locked().unwrap());
    drop(handle);
    holds(!file.is_locked().unwrap() && file.try_claim().unwrap() && second.lock(false).unwrap());
}

fn waiting_for_a_lock(fixture: &Fixture) {
    let holder = fixture.file("f", b"");
    let waiter = fixture.open("f", Open::WRITE);
    holds(holder.lock(true).unwrap());
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| waiter.lock(true).unwrap());
        std::thread::sleep(Duration::from_millis(30));
        holds(!waiting.is_finished());
        drop(holder);
        holds(waiting.join().unwrap());
    });
    holds(fixture.open("f", Open::WRITE).is_locked().unwrap());
}

fn a_lock_needs_the_right_to_write(fixture: &Fixture) {
    drop(fixture.file("f", b""));
    let reader = fixture.open("f", Open::READ);
    refused(reader.lock(false), &[EBADF]);
    refused(reader.lock(true), &[EBADF]);
    holds(!reader.is_locked().unwrap() && reader.try_claim().unwrap());
}

fn a_mapping_holds_none(fixture: &Fixture) {
    let file = fixture.file("f", b"contents");
    let other = fixture.open("f", Open::WRITE);
    holds(file.try_claim().unwrap() && file.lock(false).unwrap());
    let mapping = file.map(&MapRequest { address_space: 1, ..MapRequest::default() }).unwrap();
    drop(file);
    holds(other.try_claim().unwrap() && other.lock(false).unwrap());
    mapping.show(0..mapping.page_bytes()).unwrap();
    let mut bytes = [0; 8];
    mapping.copy_out(&mut [untorn_os::Piece { offset: 0, into: &mut bytes }]).unwrap();
    same(&bytes, b"contents");
    drop(mapping);
    holds(fixture.open("f", Open::WRITE).is_locked().unwrap());
}

fn leases_are_shared(fixture: &Fixture) {
    let file = fixture.file("f", b"");
    let [first, second] = again(fixture);
    let reader = fixture.open("f", Open::READ);
    holds(file.leased(0..100).unwrap().is_none());
    // Also behind the end, and by an opening that only reads.
    holds(
        first.lease(7).unwrap()
            && first.lease(7).unwrap()
            && reader.lease(7).unwrap()
            && second.lease(1 << 62).unwrap(),
    );
    same(file.leased(0..100).unwrap(), Some(7));
    same(file.leased(7..8).unwrap(), Some(7));
    holds(file.leased(8..100).unwrap().is_none() && file.leased(0..7).unwrap().is_none());
    same(file.leased(100..(1 << 63) - 1).unwrap(), Some(1 << 62));
    // An opening does not see its own lease.
    holds(second.leased(100..(1 << 63) - 1).unwrap().is_none());
    holds(file.leased(5..5).unwrap().is_none());
    holds(fixture.file("g", b"").leased(0..(1 << 63) - 1).unwrap().is_none());
}

fn leases_and_locks_keep_each_other_out(fixture: &Fixture) {
    let file = fixture.file("f", b"");
    let [first, second] = again(fixture);
    holds(first.lease(7).unwrap());
    holds(file.is_locked().unwrap() && !file.lock(false).unwrap() && !first.is_locked().unwrap());
    drop(first);
    holds(!file.is_locked().unwrap() && file.lock(false).unwrap());
    holds(!second.lease(7).unwrap() && !fixture.open("f", Open::READ).lease(7).unwrap());
}

fn a_lease_ends_with_its_opening(fixture: &Fixture) {
    let file = fixture.file("f", b"");
    let [first, second] = again(fixture);
    holds(first.lease(7).unwrap() && second.lease(7).unwrap());
    // Dropping other openings releases nothing, and neither does a lease of another byte.
    drop(fixture.open("f", Open::READ));
    let other = fixture.open("f", Open::READ);
    holds(other.lease(7).unwrap() && other.lease(8).unwrap());
    drop(other);
    holds(file.leased(8..100).unwrap().is_none());
    drop(first);
    same(file.leased(0..100).unwrap(), Some(7));
    // Dropping the last handle of the opening releases it.
    let handle = second.clone();
    drop(second);
    same(file.leased(0..100).unwrap(), Some(7));
    drop(handle);
    holds(file.leased(0..100).unwrap().is_none());
}

fn a_lease_follows_the_file(fixture: &Fixture) {
    let file = fixture.file("f", b"");
    holds(fixture.open("f", Open::READ).lease(7).unwrap() && file.leased(0..100).unwrap().is_none());
    let reader = fixture.open("f", Open::READ);
    holds(reader.lease(7).unwrap());
    fixture.storage.link(Path::new("f"), Path::new("g")).unwrap();
    fixture.storage.rename(Path::new("f"), Path::new("h"), false).unwrap();
    for name in ["g", "h"] {
        same(fixture.open(name, Open::READ).leased(0..100).unwrap(), Some(7));
    }
    holds(fixture.file("f", b"").leased(0..100).unwrap().is_none());
    // Also when the file has no name any more.
    fixture.storage.unlink(Path::new("g")).unwrap();
    fixture.storage.unlink(Path::new("h")).unwrap();
    same(file.leased(0..100).unwrap(), Some(7));
    // The file may become shorter than the leased byte.
    file.set_len(0).unwrap();
    same(file.leased(0..100).unwrap(), Some(7));
    drop(reader);
    holds(file.leased(0..100).unwrap().is_none());
}

fn a_lease_is_taken_where_nothing_can_be_written(fixture: &Fixture) {
    let file = fixture.file("f", b"");
    file.set_mode(0o400).unwrap();
    fixture.while_read_only(|storage| {
        let reader = storage.open(Path::new("f"), Open::READ).unwrap();
        holds(reader.lease(7).unwrap());
        same(file.leased(0..100).unwrap(), Some(7));
        drop(reader);
        holds(file.leased(0..100).unwrap().is_none());
    });
}
