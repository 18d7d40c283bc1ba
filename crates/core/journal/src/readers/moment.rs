//! Read validity: data that a reader read stays valid for a moment without another check, and the owner waits out a
//! longer time before it invalidates that data.
//!
//! ```text
//! reader   locks a byte of the page ─▶ t = now ─▶ looks: nothing announced ─▶ reads … ─▶ now < t + COUNTS: valid
//! owner    announces a change ─▶ is the byte locked? ─▶ waits for WAITED ─▶ writes
//! ```
//!
//! A look at the page after each read would cost more than a small read. So the owner announces each change before it
//! makes it, and then waits. If a reader looks at time `t` or later and finds no announcement, every change that is
//! announced later is written after `t + WAITED`; so data that it reads by `t + COUNTS` is unaffected. A reader that
//! was stopped in between looks again, because the time has passed. Both times come from one kernel clock, which never
//! goes back; `WAITED` exceeds by far the difference between the clocks of two processors. Without a page, nobody can
//! see whether somebody reads, so an owner that opens such a store always waits.

use std::sync::atomic::{
    AtomicU64,
    Ordering::{Relaxed, SeqCst},
    fence,
};
use std::time::Duration;
use untorn_os::{File, Storage};

/// How long a check stays valid.
const COUNTS: Duration = Duration::from_micros(50);
/// How long the owner waits between announcing a change and writing it.
const WAITED: Duration = Duration::from_micros(200);

/// The byte of the page that every reader locks. No lease is there.
pub const READ_AT: u64 = 1 << 62;

/// How long data that a reader read stays valid.
#[derive(Default)]
pub(crate) struct Moment {
    /// New owners can see that somebody reads.
    is_shown: bool,
    /// End of validity, in nanoseconds of the storage's clock.
    until: AtomicU64,
}

impl Moment {
    /// Locks the byte of the page, if there is a page. The caller does so before it looks at anything.
    pub(crate) fn shown_in(storage: &dyn Storage, page: Option<&dyn File>) -> Moment {
        // Through an overlay or FUSE, other processes may not see the lock.
        let is_shown = !storage.shows_another() && page.is_none_or(|page| page.lease(READ_AT).unwrap_or(false));
        fence(SeqCst);
        Moment { is_shown, until: AtomicU64::new(0) }
    }

    /// Notes that a look that began at this time found everything unchanged.
    pub(crate) fn seen(&self, since: Duration) {
        if self.is_shown {
            self.until.fetch_max(nanoseconds(since + COUNTS), Relaxed);
        }
    }

    /// Whether data that was read before this call is valid without another look.
    pub(crate) fn lasts(&self, storage: &dyn Storage) -> bool {
        nanoseconds(storage.uptime()) < self.until.load(Relaxed)
    }
}

fn nanoseconds(time: Duration) -> u64 {
    time.as_nanos() as u64
}

/// Whether somebody reads the store; true if the kernel cannot tell.
pub(crate) fn is_read(page: &dyn File) -> bool {
    !matches!(page.leased(READ_AT..READ_AT + 1), Ok(None))
}

/// Waits out the grace period after an announcement in this page, so that no reader relies on older state.
pub(crate) fn let_pass(storage: &dyn Storage, page: Option<&dyn File>) {
    if page.is_none_or(is_read) {
        storage.pause_for(WAITED);
    }
}
