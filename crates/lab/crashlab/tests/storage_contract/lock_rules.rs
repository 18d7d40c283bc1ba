//! Rules about claims and locks: two kinds that do not affect each other, each held by one opening of a file. Held
//! ranges of bytes are shared locks of the second kind. Views show what others write.

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
    held_bytes_are_shared,
    held_ranges_are_a_union,
    released_bytes_split_a_range,
    held_bytes_and_locks_keep_each_other_out,
    held_bytes_end_with_their_opening,
    held_bytes_follow_the_file,
    bytes_are_held_where_nothing_can_be_written,
    a_view_shows_what_others_write,
    a_view_holds_nothing,
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

/// All bytes that a lock may lie in.
const ALL: std::ops::Range<u64> = 0..(1 << 63) - 1;

/// All ranges that others hold, in order, as far as they can be told apart.
fn held_by_others(file: &dyn File) -> Vec<std::ops::Range<u64>> {
    let (mut found, mut at) = (Vec::new(), 0);
    while at < 100 {
        match file.held(at..at + 1).unwrap() {
            None => at += 1,
            Some(_) => {
                let range = file.held(at..100).unwrap().expect("still held");
                same(range.start, at);
                at = range.end;
                found.push(range);
            }
        }
    }
    found
}

fn held_bytes_are_shared(fixture: &Fixture) {
    let file = fixture.file("f", b"");
    let [first, second] = again(fixture);
    let reader = fixture.open("f", Open::READ);
    holds(file.held(ALL).unwrap().is_none());
    // Also behind the end, and by an opening that only reads.
    holds(first.hold(7..8).unwrap() && first.hold(7..8).unwrap() && reader.hold(7..8).unwrap());
    holds(second.hold(1 << 62..(1 << 62) + 1).unwrap());
    same(file.held(0..100).unwrap(), Some(7..8));
    same(file.held(7..8).unwrap(), Some(7..8));
    holds(file.held(8..100).unwrap().is_none() && file.held(0..7).unwrap().is_none());
    same(file.held(100..ALL.end).unwrap(), Some(1 << 62..(1 << 62) + 1));
    // An opening does not see its own bytes.
    holds(second.held(100..ALL.end).unwrap().is_none());
    holds(file.held(5..5).unwrap().is_none());
    holds(fixture.file("g", b"").held(ALL).unwrap().is_none());
}

fn held_ranges_are_a_union(fixture: &Fixture) {
    let file = fixture.file("f", b"");
    let reader = fixture.open("f", Open::READ);
    holds(reader.hold(10..20).unwrap());
    same(file.held(0..100).unwrap(), Some(10..20));
    // The answer lies within the question.
    same(file.held(12..14).unwrap(), Some(12..14));
    same(file.held(0..12).unwrap(), Some(10..12));
    same(file.held(19..100).unwrap(), Some(19..20));
    holds(reader.hold(15..30).unwrap());
    same(file.held(0..100).unwrap(), Some(10..30));
    holds(reader.hold(12..14).unwrap());
    same(held_by_others(&*file).as_slice(), std::slice::from_ref(&(10..30)));
    // Ranges that touch become one, others do not.
    holds(reader.hold(30..31).unwrap() && reader.hold(40..41).unwrap());
    same(held_by_others(&*file), vec![10..31, 40..41]);
    holds(reader.hold(0..1 << 48).unwrap());
    same(file.held(ALL).unwrap(), Some(0..1 << 48));
}

fn released_bytes_split_a_range(fixture: &Fixture) {
    let file = fixture.file("f", b"");
    let [first, second] = again(fixture);
    // Nothing is held yet, and nothing is released.
    first.release(5..6).unwrap();
    first.release(5..5).unwrap();
    holds(first.hold(10..30).unwrap());
    first.release(12..15).unwrap();
    same(held_by_others(&*file), vec![10..12, 15..30]);
    first.release(0..11).unwrap();
    first.release(29..1000).unwrap();
    same(held_by_others(&*file), vec![11..12, 15..29]);
    // Others keep theirs.
    holds(second.hold(10..30).unwrap());
    first.release(ALL).unwrap();
    same(held_by_others(&*file).as_slice(), std::slice::from_ref(&(10..30)));
    holds(first.held(ALL).unwrap() == Some(10..30) && second.held(ALL).unwrap().is_none());
    // A reader shrinks its range to one byte without letting go of it.
    holds(first.hold(3..1 << 48).unwrap());
    first.release(3..8).unwrap();
    first.release(9..1 << 48).unwrap();
    same(second.held(ALL).unwrap(), Some(8..9));
}

fn held_bytes_and_locks_keep_each_other_out(fixture: &Fixture) {
    let file = fixture.file("f", b"");
    let [first, second] = again(fixture);
    holds(first.hold(7..9).unwrap());
    holds(file.is_locked().unwrap() && !file.lock(false).unwrap() && !first.is_locked().unwrap());
    first.release(7..8).unwrap();
    holds(file.is_locked().unwrap() && !file.lock(false).unwrap());
    drop(first);
    holds(!file.is_locked().unwrap() && file.lock(false).unwrap());
    holds(!second.hold(7..8).unwrap() && !fixture.open("f", Open::READ).hold(7..8).unwrap());
    same(second.held(3..9).unwrap(), Some(3..9));
}

fn held_bytes_end_with_their_opening(fixture: &Fixture) {
    let file = fixture.file("f", b"");
    let [first, second] = again(fixture);
    holds(first.hold(7..8).unwrap() && second.hold(7..8).unwrap());
    // Dropping other openings releases nothing, even if they held the same bytes.
    drop(fixture.open("f", Open::READ));
    let other = fixture.open("f", Open::READ);
    holds(other.hold(7..9).unwrap());
    drop(other);
    holds(file.held(8..100).unwrap().is_none());
    drop(first);
    same(file.held(0..100).unwrap(), Some(7..8));
    // Dropping the last handle of the opening releases it.
    let handle = second.clone();
    drop(second);
    same(file.held(0..100).unwrap(), Some(7..8));
    drop(handle);
    holds(file.held(0..100).unwrap().is_none());
}

fn held_bytes_follow_the_file(fixture: &Fixture) {
    let file = fixture.file("f", b"");
    holds(fixture.open("f", Open::READ).hold(7..8).unwrap() && file.held(0..100).unwrap().is_none());
    let reader = fixture.open("f", Open::READ);
    holds(reader.hold(7..8).unwrap());
    fixture.storage.link(Path::new("f"), Path::new("g")).unwrap();
    fixture.storage.rename(Path::new("f"), Path::new("h"), false).unwrap();
    for name in ["g", "h"] {
        same(fixture.open(name, Open::READ).held(0..100).unwrap(), Some(7..8));
    }
    holds(fixture.file("f", b"").held(0..100).unwrap().is_none());
    // Also when the file has no name any more.
    fixture.storage.unlink(Path::new("g")).unwrap();
    fixture.storage.unlink(Path::new("h")).unwrap();
    same(file.held(0..100).unwrap(), Some(7..8));
    // The file may become shorter than the held byte.
    file.set_len(0).unwrap();
    same(file.held(0..100).unwrap(), Some(7..8));
    drop(reader);
    holds(file.held(0..100).unwrap().is_none());
}

fn bytes_are_held_where_nothing_can_be_written(fixture: &Fixture) {
    let file = fixture.file("f", b"");
    file.set_mode(0o400).unwrap();
    fixture.while_read_only(|storage| {
        let reader = storage.open(Path::new("f"), Open::READ).unwrap();
        holds(reader.hold(7..20).unwrap());
        reader.release(8..20).unwrap();
        same(file.held(0..100).unwrap(), Some(7..8));
        drop(reader);
        holds(file.held(0..100).unwrap().is_none());
    });
}

fn a_view_shows_what_others_write(fixture: &Fixture) {
    let file = fixture.file("f", &[0; 4096]);
    let number = |n: u64| n.to_ne_bytes();
    // An opening that only reads is enough, and need not last.
    let view = fixture.another_storage().open(Path::new("f"), Open::READ).unwrap().view(64).unwrap();
    same((view.load(0), view.load(56)), (0, 0));
    for n in 1..4 {
        untorn_os::write_all_at(&*file, &number(n), 0).unwrap();
        untorn_os::write_all_at(&*file, &number(u64::MAX - n), 56).unwrap();
        same((view.load(0), view.load(8), view.load(56)), (n, 0, u64::MAX - n));
    }
    // It follows the file, and not the name.
    fixture.storage.rename(Path::new("f"), Path::new("g"), false).unwrap();
    fixture.file("f", &[0xff; 4096]);
    untorn_os::write_all_at(&*file, &number(7), 8).unwrap();
    same(view.load(8), 7);
    fixture.storage.unlink(Path::new("g")).unwrap();
    untorn_os::write_all_at(&*file, &number(8), 8).unwrap();
    same(view.load(8), 8);
    drop(file);
    same(view.load(8), 8);
}

fn a_view_holds_nothing(fixture: &Fixture) {
    let file = fixture.file("f", &[0; 4096]);
    let reader = fixture.open("f", Open::READ);
    let view = reader.view(64).unwrap();
    holds(reader.hold(7..8).unwrap());
    same(file.held(0..100).unwrap(), Some(7..8));
    drop(reader);
    holds(file.held(0..100).unwrap().is_none() && file.lock(false).unwrap());
    same(view.load(0), 0);
}
