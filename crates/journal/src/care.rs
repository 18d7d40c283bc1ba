//! The cares, by name: what the code does, besides flushing, so that a crash or a mistake does no harm.
//!
//! Each can be taken away in a build for the mutation gate (feature `mutants`), which shows the test that
//! then fails. In every other build [`kept`] is `true`, known to the compiler.

macro_rules! cares {
    ($($(#[doc = $doc:literal])+ $name:ident,)+) => {
        /// Something that the code takes care of.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum Care { $($(#[doc = $doc])+ $name,)+ }
        /// All cares.
        pub const CARES: &[Care] = &[$(Care::$name,)+];
        impl Care {
            /// What it is about, for reports.
            pub fn about(self) -> &'static str {
                match self { $(Care::$name => concat!($($doc),+).trim_ascii_start(),)+ }
            }
        }
    };
}

cares! {
    /// A record counts only if its checksum is right.
    Checksum,
    /// A record is accepted only behind the one whose checksum it repeats.
    Chain,
    /// A record is accepted only if the ones before it are of the same session.
    Session,
    /// A recovered journal goes on behind a random number, where no dropped record can follow.
    FreshStart,
    /// A broken record is damage, not a torn end, if a later one says that it was durable.
    DurableThrough,
    /// A record that is newer than the newest header is a sign that a header was lost.
    NewestHeader,
    /// A header goes into the slot that the last one does not use.
    OtherSlot,
    /// A header that is not flushed never goes over the newest durable one.
    DurableHeader,
    /// After a failed write or flush of the journal no commit goes through.
    StickyError,
    /// A large commit's extent stays until the records that refer to it are given up.
    KeptExtents,
    /// An empty file without an attribute is found under each name that it had.
    HalfMade,
    /// A change that was not applied, or not flushed, is applied again by the next checkpoint.
    ApplyAgain,
    /// The gap before a write behind the end is written as zeros.
    ZeroGap,
    /// Option `full_page`: the first change of a page is logged with the whole page.
    FullPage,
    /// Memory is compared with what is committed, not with the data file.
    CompareWithView,
    /// What is compared, journaled and compared with next time is one copy of a page.
    OneCopy,
    /// A page is dropped only if no layer knows of it.
    KnownPagesStay,
    /// Rolling back brings committed bytes into memory, also those that the data file lacks.
    CommittedBytesBack,
    /// A page with bytes in a layer shows them from the moment that it is mapped.
    LayersShow,
    /// A file that shrinks and grows again shows zeros, not what it held before.
    GrowsByZeros,
    /// Bytes stored behind the end of a file are gone when it grows.
    StoresBehindTheEnd,
    /// A page that a checkpoint is about to cut off does not show the data file.
    CutPagesHidden,
    /// Pages that the tracker told of are not forgotten when looking closer fails.
    FoundOnce,
    /// What could not be undone in memory is not committed.
    UndoneIsNotCommitted,
    /// A range that is zeroed is zero in memory from that moment, so that what is stored there later stays.
    ZeroedAtOnce,
    /// A new heap's size and header are one commit.
    HeapMadeWhole,
    /// A heap's new size and its count of segments are one commit.
    HeapGrowsWhole,
    /// A commit of a heap waits for those that are changing it.
    HeapIsQuiet,
    /// What a heap's allocator remembers is forgotten when the heap is rolled back.
    HeapForgets,
    /// A chunk of a heap that is free again gives out no more blocks of its old size.
    FreeChunkUnlisted,
    /// Segments inside of an allocation hold the program's bytes, not the allocator's.
    InsidesSkipped,
    /// Such segments are zeros before they are the allocator's again.
    InsidesZeroed,
}

#[cfg(not(feature = "mutants"))]
mod switch {
    use super::Care;

    /// The care is taken.
    #[inline(always)]
    pub const fn kept(_: Care) -> bool {
        true
    }
}

#[cfg(feature = "mutants")]
mod switch {
    use super::Care;
    use std::sync::atomic::{AtomicU64, Ordering::SeqCst};

    static WITHOUT: AtomicU64 = AtomicU64::new(0);

    /// The care is taken.
    pub fn kept(care: Care) -> bool {
        WITHOUT.load(SeqCst) & (1 << care as u64) == 0
    }

    /// Takes one care away in this process, or none.
    pub fn without(care: Option<Care>) {
        WITHOUT.store(care.map_or(0, |care| 1 << care as u64), SeqCst);
    }
}

pub use switch::*;

/// The value, as long as the care is taken.
#[inline(always)]
pub fn cared<T: Default>(care: Care, value: T) -> T {
    if kept(care) { value } else { T::default() }
}
