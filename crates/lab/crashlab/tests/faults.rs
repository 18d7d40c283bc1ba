//! An error at every call site: longer programs, and at each of their calls in turn every error that a system call may
//! return, or a short read or write. Nothing panics. No acknowledged commit is lost, even by a crash after the error. A
//! store that is opened again shows a state that the model allows.

use untorn_crashlab::enumeration::enumerate::{Bounds, Effort, Enumeration};
use untorn_crashlab::programs::program::{Op, Setup, Trouble};
use untorn_testkit::{drawn_seed, slice};

const TROUBLES: &[fn(u64) -> Trouble] = &[
    |call| Trouble::Errno(call, libc::EIO),
    |call| Trouble::Errno(call, libc::ENOSPC),
    |call| Trouble::Errno(call, libc::EDQUOT),
    |call| Trouble::Errno(call, libc::EINTR),
    |call| Trouble::Errno(call, libc::EAGAIN),
    |call| Trouble::Short(call, 1),
    |call| Trouble::Short(call, 512),
];

/// Additional errors of calls on names.
const REFUSALS: &[fn(u64) -> Trouble] = &[
    |call| Trouble::Errno(call, libc::EACCES),
    |call| Trouble::Errno(call, libc::EPERM),
    |call| Trouble::Errno(call, libc::EXDEV),
    |call| Trouble::Errno(call, libc::EFBIG),
    |call| Trouble::Errno(call, libc::ENAMETOOLONG),
];

fn survives(setup: &str, ops: &[Op]) {
    survives_all(setup, ops, TROUBLES);
}

fn survives_all(setup: &str, ops: &[Op], troubles: &[fn(u64) -> Trouble]) {
    let setup: Setup = setup.parse().unwrap();
    // Two troubles of the list in a usual run.
    let numbers: Vec<usize> = (0..troubles.len()).collect();
    let chosen = slice(&numbers, 2, drawn_seed());
    let troubles: Vec<fn(u64) -> Trouble> = chosen.into_iter().map(|at| troubles[at]).collect();
    let enumeration = Enumeration::new(Bounds { violations_max: 5, ..Bounds::default() });
    let effort = Effort { cuts_max: 4, second_max: 1, after_failed_sync_max: 3, failed_sync_ways: 3 };
    enumeration.trouble_at_every_call(&setup, ops, &effort, &troubles);
    let (violations, totals) = (enumeration.violations(), enumeration.totals());
    println!("{setup}: {} crash states with something lost, {} recoveries checked", totals.states, totals.checked);
    for violation in &violations {
        println!("VIOLATION {violation}\n");
    }
    assert!(violations.is_empty(), "{} violations", violations.len());
    assert!(totals.checked > 500, "{} recoveries", totals.checked);
}

#[test]
fn a_new_store_and_contents() {
    use Op::{Across, Append, Both, Empty, Grow, Large, Shrink, Whole, Zero};
    let ops = [Across, Large, Shrink, Both, Whole, Grow, Zero, Append, Empty];
    survives("plain,posix,sector,tight,direct", &ops);
    survives("plain,ext4,garbage,roomy,buffered", &ops);
}

#[test]
fn names() {
    use Op::{Both, Close, Mkdir, Mode, Move, One, Replace, Rmdir, Swap, Unlink};
    let ops = [Replace, Swap, Mkdir, Mode, Move, One, Both, Rmdir, Unlink, Close, Mkdir];
    survives("closed,posix,sector,roomy,direct", &ops);
    survives("closed,btrfs,sector,tight,buffered", &ops);
    let ops = [Replace, Swap, Mkdir, Op::Cut, Mode, Op::Apply, Move, Rmdir, Op::Retire, Unlink];
    survives_all("closed,posix,sector,roomy,buffered", &ops, REFUSALS);
}

#[test]
fn checkpoints_and_recoveries() {
    use Op::{Across, Apply, Async, Cut, Dirty, Group, Kill, Large, Mark, Replace, Retire, Rollback};
    let ops = [Cut, Across, Mark, Apply, Large, Retire, Async, Group, Kill, Replace, Dirty, Rollback, Kill];
    survives("pending,posix,sector,roomy,direct", &ops);
    survives("pending,xfs,garbage,tight,direct", &ops);
}

#[test]
fn both_classes() {
    use Op::{Both, Close, Kill, Large, Other, Retire, Swap};
    let ops = [Both, Other, Large, Kill, Swap, Retire, Close, Both, Other, Large];
    survives("closed,posix,sector,tight,buffered", &ops);
    survives("closed,ext4,sector,roomy,direct", &ops);
}

#[test]
fn many_files() {
    survives("closed,posix,sector,tight,direct", &[Op::Many, Op::Retire, Op::Many, Op::Kill]);
}

#[test]
fn mapped_files() {
    use Op::{
        Abort, Apply, Back, Clip, Cut, Dip, End, Grow, Later, Line, Map, Pages, Poke, Quiesce, Stretch, Txn, Undo,
    };
    let ops =
        [Map, Line, Poke, Pages, Cut, Back, Apply, Stretch, Undo, Quiesce, Txn, Poke, Abort, Op::Unmap, Later, End];
    survives("closed,posix,sector,tight,direct", &ops);
    survives("pending,ext4,sector,roomy,buffered", &ops);
    survives(
        "closed,xfs,garbage,growing,buffered",
        &[Map, Dip, Clip, Line, Grow, Cut, Op::Shrink, Quiesce, Stretch, Pages],
    );
}
