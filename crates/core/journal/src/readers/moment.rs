//! What a reader saw counts for a moment, without another look; whoever is about to make it wrong waits for longer.
//!
//! ```text
//! reader   locks a byte of the page ─▶ t = now ─▶ looks: all is as it was ─▶ reads … ─▶ now < t + COUNTS: they count
//! owner    tells what it is about to write ─▶ is the byte locked? ─▶ waits for WAITED ─▶ writes
//! ```
//!
//! A look at the page after each read costs more than a small read. A reader that was told nothing when it looked, at `t`
//! or later, was told before anything was told: so what it was not told yet is written after `t + WAITED`, and what it
//! has read by `t + COUNTS` is none of that. A reader that is stopped looks again, as time has passed then. Both times are
//! of one clock of the kernel, which never goes back; `WAITED` is longer by far than clocks of two processors differ.
//! Where there is no page, nobody can see who reads: so who opens such a store waits all the same.

use std::sync::atomic::{
    AtomicU64,
    Ordering::{Relaxed, SeqCst},
    fence,
};
use std::time::Duration;
use untorn_os::{File, Storage};

/// What was seen counts for so long.
const COUNTS: Duration = Duration::from_micros(50);
/// What makes it wrong is written after so long.
const WAITED: Duration = Duration::from_micros(200);

/// The byte of the page that is locked by whoever reads; no lease is there.
pub const READ_AT: u64 = 1 << 62;

/// How long what a reader saw still counts.
#[derive(Default)]
pub(crate) struct Moment {
    /// Whoever comes sees that somebody reads.
    is_shown: bool,
    /// In nanoseconds of the storage's clock.
    until: AtomicU64,
}

impl Moment {
    /// Locks the byte of the page, if there is one: before anything is looked at.
    pub(crate) fn shown_in(storage: &dyn Storage, page: Option<&dyn File>) -> Moment {
        // Through an overlay or FUSE, others may not see the lock.
        let is_shown = !storage.shows_another() && page.is_none_or(|page| page.lease(READ_AT).unwrap_or(false));
        fence(SeqCst);
        Moment { is_shown, until: AtomicU64::new(0) }
    }

    /// Everything was seen to be as it was, by a look that began at this time.
    pub(crate) fn seen(&self, since: Duration) {
        if self.is_shown {
            self.until.fetch_max(nanoseconds(since + COUNTS), Relaxed);
        }
    }

    /// What was read before this call counts.
    pub(crate) fn lasts(&self, storage: &dyn Storage) -> bool {
        nanoseconds(storage.uptime()) < self.until.load(Relaxed)
    }
}

fn nanoseconds(time: Duration) -> u64 {
    time.as_nanos() as u64
}

/// Whether somebody reads, as far as that can be told.
pub(crate) fn is_read(page: &dyn File) -> bool {
    !matches!(page.leased(READ_AT..READ_AT + 1), Ok(None))
}

/// Readers were told, in this page, of what makes what they saw wrong. Waits until nobody goes by that any more.
pub(crate) fn let_pass(storage: &dyn Storage, page: Option<&dyn File>) {
    if page.is_none_or(is_read) {
        storage.pause_for(WAITED);
    }
}
