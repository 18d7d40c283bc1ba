//! Cuts of live heaps at any instruction of the program. A cut takes the state that a kill at that moment would have
//! left, and repairs the copy as an opening would.
//!
//! ```text
//! copy ahead    the pages stored to so far, while the threads run
//! lock          the allocator, so that no thread is within it; guards are waited for
//! stop          all threads, wherever they are
//! copy          the logs of sections, and the pages that were stored to since
//! go on         the threads run again
//! recover       sections that have not ended are undone in the staged copy, with those that have seen their changes
//! commit        the staged copy, as any commit
//! ```
//!
//! These sections are undone in the staged copy only, not in memory. So the next cut compares their pages again,
//! whether they are stored to or not.

use super::open_heap::Heap;
use super::verify::verify_image;

use crate::engine::commit::capture::{Stop, Threads};
use crate::engine::commit::stop_the_world::Staged;
use crate::engine::waiting::completion::Completion;
use crate::heap::image::check::{HeapImage, HeapImageMut};
use crate::heap::image::free_in_image::free;
use crate::heap::live::Working;
use crate::heap::live::cuts::Cuts;
use crate::heap::log::section_log::SectionLogs;
use crate::heap::log::section_recovery;
use crate::invariant;
use std::ops::Range;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};
use untorn_journal::format::sized_memory;
use untorn_journal::{Error, Result};
use untorn_os::{LIVE_HEAD_BYTES, NotStopped, Scratch, holds, with_threads_stopped};

/// A cut that waits for guards lets other threads take guards after this time: the holders may wait for those threads.
const QUIET_MOST: Duration = Duration::from_millis(20);
/// The first limit on how long threads stand while one of them does not stop. Each retry doubles it, up to `STOP_MOST`.
const STOP_FIRST: Duration = Duration::from_millis(5);
const STOP_MOST: Duration = Duration::from_millis(160);
/// The first limit on the number of pages that are copied while threads stand.
const PAGES_FIRST: u64 = 256;
/// After this many attempts that found too many pages, the limit on pages doubles with each further one. Before each,
/// the pages stored to meanwhile are copied while the threads run.
const SAME_PAGES: usize = 3;
/// A thread that does not stop within this time is an error.
const PATIENCE: Duration = Duration::from_secs(10);

const ABANDONED_UNLOGGED: &str = "a thread ended within a section that had changed more than its log holds: its \
     changes are half done, and only a rollback to the last commit undoes them. This commit was not made";

/// The reason to retry a cut.
enum Again {
    /// Something is being changed without a log.
    Changing,
    /// Threads have stored to more pages than may be copied while they stand.
    TooMany,
    NotStopped(NotStopped),
}

/// The outcome of stopping the threads once.
enum Moment {
    Copied,
    Changing,
    TooMany,
}

/// One attempt at a cut.
struct Attempt<'h> {
    working: &'h Working,
    /// The heap's path, kept here because the lock of the file's state is held.
    path: PathBuf,
    addresses: Range<usize>,
    /// Copies of the logs, with the layout of the head of the memory.
    copy: Scratch,
    most: Duration,
    pages_most: u64,
    again: Option<Again>,
}

impl HeapImage for Staged<'_> {
    fn bytes(&self) -> Result<u64> {
        Ok(self.size())
    }

    fn read(&self, buf: &mut [u8], offset: u64) -> Result<()> {
        Staged::read(self, buf, offset)
    }
}

impl HeapImageMut for Staged<'_> {
    fn write(&mut self, bytes: &[u8], offset: u64) -> Result<()> {
        Staged::write(self, bytes, offset)
    }
}

impl Attempt<'_> {
    fn logs(&self) -> SectionLogs {
        // SAFETY: as many bytes as a head has, which live longer than the result.
        unsafe { SectionLogs::at(self.copy.address()) }
    }

    fn later(&mut self, why: Again) -> Error {
        self.again = Some(why);
        Error::invalid("not at this moment")
    }
}

impl Stop for Attempt<'_> {
    fn pages_most(&self) -> u64 {
        self.pages_most
    }

    fn too_many(&mut self) -> Error {
        self.later(Again::TooMany)
    }

    fn while_stopped(&mut self, copy: &mut dyn FnMut() -> std::io::Result<bool>) -> Result<()> {
        let (head, logs) = (self.working.head, self.working.logs());
        let copied = self.logs();
        let mut work = || {
            if head.is_changing() {
                return Ok(Moment::Changing);
            }
            // SAFETY: the threads stand, and the memory is this attempt's.
            unsafe { logs.copy_to(&copied) };
            copy().map(|all| if all { Moment::Copied } else { Moment::TooMany })
        };
        let done = match holds(invariant::CUT_STOPS) {
            true => with_threads_stopped(self.most, work),
            false => Ok((work(), Duration::ZERO)),
        };
        let moment = match done {
            Ok((moment, took)) => {
                self.working.note_stop(took, matches!(moment, Ok(Moment::Copied)));
                moment
            }
            Err(why) => return Err(self.later(Again::NotStopped(why))),
        };
        match moment {
            Ok(Moment::Copied) => Ok(()),
            Ok(Moment::Changing) => Err(self.later(Again::Changing)),
            Ok(Moment::TooMany) => Err(self.too_many()),
            Err(e) => Err(Error::io("copy the memory of", &self.path, e)),
        }
    }

    fn mend(&mut self, mut staged: Staged<'_>) -> Result<()> {
        let base = self.addresses.start;
        if holds(invariant::CUT_RECOVERS) {
            // SAFETY: the copy is this attempt's.
            let recovery = unsafe { section_recovery::recover(&self.logs(), self.addresses.clone()) };
            let senseless =
                || Error::corrupt_heap(self.path.clone(), "the logs of its sections are invalid".to_owned());
            let recovery = recovery.ok_or_else(senseless)?;
            for old in &recovery.restore {
                let offset = (old.address - base) as u64;
                let mut now = vec![0; old.bytes.len()];
                staged.read(&mut now, offset)?;
                if now != old.bytes {
                    staged.write(&old.bytes, offset)?;
                }
            }
            for address in recovery.free {
                free(&mut staged, address.wrapping_sub(base))?;
            }
        }
        if holds(invariant::HEAP_VERIFIED) {
            let touched = staged.touched();
            verify_image(&staged, self.addresses.clone(), || self.path.clone(), touched)?;
        }
        staged.approve();
        Ok(())
    }
}

impl Heap {
    fn has_abandoned_section(&self) -> bool {
        self.downgrade().entry.sections.is_abandoned_unlogged()
    }

    /// The working memory, if a commit of this heap alone stops the threads.
    pub(crate) fn stops_threads(&self) -> Option<&Working> {
        let body = self.body();
        // These look for problems in memory, not in a copy.
        let debugs = body.debug_races || body.debug_pointers;
        body.working.as_ref().filter(|_| body.cuts == Cuts::Stop && !debugs)
    }

    /// Queues a cut as of a moment at which all threads stand, wherever they are; returns its number.
    pub(crate) fn submit_stopped(&self, working: &Working) -> Result<(Arc<Completion>, u64)> {
        let body = self.body();
        body.file.store.stage_ahead(&body.file.shared)?;
        let (mut most, mut pause) = (STOP_FIRST, Duration::from_micros(100));
        // Threads that stored to many pages during the last cut are likely to do so again.
        let mut pages_most = working.copied_pages().max(PAGES_FIRST);
        let mut tries = 0;
        let mut stubborn_since = None;
        loop {
            let Some(quiescent) = self.quiesce_for(QUIET_MOST)? else {
                std::thread::sleep(Duration::from_millis(1));
                continue;
            };
            let cut = working.begin_cut(&body.map)?;
            let copy = Scratch::new(LIVE_HEAD_BYTES);
            let copy = copy.map_err(|_| sized_memory::none(LIVE_HEAD_BYTES, &body.file.path()))?;
            let (base, bytes) = self.memory();
            let (path, base) = (body.file.path(), base.as_ptr() as usize);
            let addresses = base..base + bytes;
            let mut attempt = Attempt { working, path, addresses, copy, most, pages_most, again: None };
            let mut quiescent = Some(quiescent);
            let mut copied = || quiescent = None;
            let threads = Threads::Stop { stop: &mut attempt, copied: &mut copied };
            let done = body.file.store().submit_captured(&[&body.file], threads);
            drop(quiescent);
            match (done, attempt.again) {
                (Ok(completion), _) => {
                    working.note_copied_pages(pages_most / 2);
                    return Ok((completion, cut));
                }
                (Err(e), None) => return Err(e),
                (Err(_), Some(Again::Changing)) if self.has_abandoned_section() => {
                    return Err(Error::invalid(ABANDONED_UNLOGGED));
                }
                (Err(_), Some(Again::Changing)) => {}
                (Err(_), Some(Again::TooMany)) => {
                    tries += 1;
                    stubborn_since = None;
                    if tries >= SAME_PAGES {
                        pages_most = pages_most.saturating_mul(2);
                    }
                    body.file.store.stage_ahead(&body.file.shared)?;
                    continue;
                }
                (Err(_), Some(Again::NotStopped(why))) => {
                    let may_stop = matches!(why, NotStopped::Thread { .. } | NotStopped::List(_));
                    if !may_stop || stubborn_since.get_or_insert_with(Instant::now).elapsed() > PATIENCE {
                        let detail = format!(
                            "a cut has to stop all threads of the program, but {why}. Nothing was committed. If you \
                             open the heap with cuts that wait for guards (Cuts::Wait, UNTORN_HEAP_CUTS_WAIT), cuts \
                             stop no threads"
                        );
                        return Err(Error::Unsupported { path: body.file.path(), detail });
                    }
                    most = (most * 2).min(STOP_MOST);
                }
            }
            std::thread::sleep(pause);
            pause = (pause * 2).min(Duration::from_millis(20));
        }
    }
}
