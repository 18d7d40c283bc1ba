//! The enumerated programs: the alphabet of operations, the initial setups, and the text form of a case.
//!
//! There are two files, `a` (6000 bytes) and `b` (700 bytes). An operation on a missing file creates it first, as a
//! commit of its own. An impossible operation (removing a missing file) must be refused and change nothing.

use crate::simulation::Cut;
use crate::simulation::{Failed, Fault, Model, On, Options, PROFILES, Profile, What};
use std::fmt;
use std::str::FromStr;

macro_rules! alphabet {
    ($list:ident: $($(#[doc = $doc:literal])+ $name:ident = $text:literal,)+) => {
        /// One operation of a program.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum Op { $($(#[doc = $doc])+ $name,)+ }
        /// Every operation with its name in a written program.
        pub const $list: &[(Op, &str)] = &[$((Op::$name, $text),)+];
    };
}

alphabet! { OPERATIONS:
    /// One byte at the start of `a`; commit.
    One = "one",
    /// 20 bytes across the first page boundary of `a`; commit.
    Across = "across",
    /// 4097 bytes at 100 of `b`, one more than goes inline; commit.
    Large = "large",
    /// 4000 bytes into `a`: a record that no segment of one block holds; commit.
    Whole = "whole",
    /// 600 bytes behind the end of `b`; commit.
    Append = "append",
    /// `a` to size 0; commit.
    Empty = "empty",
    /// `a` down by 1000 bytes, into the middle of a page; commit.
    Shrink = "shrink",
    /// `a` up by 3000 bytes; commit.
    Grow = "grow",
    /// Zeros over 1000..5000 of `a`; commit.
    Zero = "zero",
    /// Some bytes in `a` and in `b`; one commit of both.
    Both = "both",
    /// Two bytes in `a`; an asynchronous commit that nobody waits for.
    Async = "async",
    /// Two bytes in `b`, then in `a`; two asynchronous commits, waited for together: one flush.
    Group = "group",
    /// 4097 bytes in `a`, not committed.
    Dirty = "dirty",
    /// 4097 bytes in `a` and one in `b`; `a` rolled back, `b` committed.
    Rollback = "rollback",
    /// Transaction: make `c`, write 300 bytes to it, rename it over `a`.
    Replace = "replace",
    /// Transaction: rename `a` over `b`.
    Move = "move",
    /// Transaction: unlink `b`.
    Unlink = "unlink",
    /// Transaction: make the directory `d`, and in it `e` with 100 bytes.
    Mkdir = "mkdir",
    /// Transaction: unlink `d/e`, remove `d`.
    Rmdir = "rmdir",
    /// Transaction: `a` and `b` swap names by three renames.
    Swap = "swap",
    /// Transaction: other permission bits for `a`.
    Mode = "mode",
    /// A durable mark, as an idle journal writes it.
    Mark = "mark",
    /// Begins a checkpoint.
    Cut = "cut",
    /// Applies a checkpoint: the data files are flushed.
    Apply = "apply",
    /// Finishes a checkpoint: the log is truncated.
    Retire = "retire",
    /// A checkpoint of `a` alone.
    Only = "only",
    /// Close and open again.
    Close = "close",
    /// Close and open again in the other failure class.
    Other = "other",
    /// Kills the process, and opens again.
    Kill = "kill",
    /// Writes 20 small files; one commit of all.
    Many = "many",
    /// The process is killed, another program moves `a` away, open again: `a` is quarantined; moved back, open again.
    Away = "away",
    /// Maps `a`. Every operation below maps it first if it is not mapped.
    Map = "map",
    /// Ends the map; its stores stay, uncommitted.
    Unmap = "unmap",
    /// 5 bytes within a line are stored; `msync`.
    Line = "line",
    /// 100 bytes across lines are stored; `msync`.
    Lines = "lines",
    /// 20 bytes across the first page boundary are stored; `msync`.
    Pages = "pages",
    /// 12 bytes are stored across the end of the file; `msync`.
    End = "end",
    /// 200 bytes across the first page boundary are stored, not committed.
    Poke = "poke",
    /// Stores the contents that the file had before the last commit that changed it; `msync`.
    Back = "back",
    /// 70 bytes are stored; an asynchronous `msync` that nobody waits for.
    Later = "later",
    /// The mapped file is rolled back.
    Undo = "undo",
    /// The mapped file down by 3000 bytes and up again; `msync`.
    Dip = "dip",
    /// The mapped file up by 5000 bytes, and bytes stored at its new end; not committed.
    Stretch = "stretch",
    /// The mapped file down by 2500 bytes, not committed.
    Clip = "clip",
    /// Transaction: stores to the mapped file, and a write to a plain one.
    Txn = "txn",
    /// Transaction as in `Txn`, aborted.
    Abort = "abort",
    /// The mapped file gives its memory back.
    Quiesce = "quiesce",
    /// Maps `a`, or maps it anew, with the tracker `explicit`, which later maps have, too.
    Told = "told",
}

impl Op {
    /// Whether the operation needs a mapped file.
    pub fn is_of_maps(self) -> bool {
        self as usize >= Op::Map as usize
    }
}

/// The operations of which every program is made. The others need many files, another program, or a mapping, or have a
/// test of their own.
pub fn alphabet() -> impl Iterator<Item = Op> + Clone {
    let plain = |op: &Op| !matches!(op, Op::Many | Op::Away | Op::Only) && !op.is_of_maps();
    OPERATIONS.iter().map(|(op, _)| *op).filter(plain)
}

/// The operations on names, and others that can come between them: steps of checkpoints, writes, openings and crashes.
pub fn names_alphabet() -> impl Iterator<Item = Op> + Clone {
    use Op::{Across, Apply, Async, Close, Cut, Kill, Large, Mkdir, Mode, Move, Replace, Retire, Rmdir, Swap, Unlink};
    [Replace, Move, Unlink, Mkdir, Rmdir, Swap, Mode, Cut, Apply, Retire, Across, Large, Async, Close, Kill].into_iter()
}

/// The operations of programs with a mapped file: those of maps, and others that can interact with them.
pub fn mapped_alphabet() -> impl Iterator<Item = Op> + Clone {
    use Op::{Apply, Both, Close, Cut, Dirty, Empty, Grow, Kill, One, Retire, Shrink, Swap, Zero};
    let others = [Apply, Both, Close, Cut, Dirty, Empty, Grow, Kill, One, Retire, Shrink, Swap, Zero];
    OPERATIONS.iter().map(|(op, _)| *op).filter(move |op| op.is_of_maps() || others.contains(op))
}

/// The initial state of the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Start {
    /// `a` and `b` are plain files and there is no store.
    Plain,
    /// There is a store with both files; it was closed, all is durable.
    Closed,
    /// The store is open and has one commit to each file that no checkpoint has covered.
    Pending,
}

/// All starts.
pub const STARTS: [Start; 3] = [Start::Closed, Start::Pending, Start::Plain];

/// Sizes of the journal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Journal {
    /// One segment of two blocks, reused by the third commit.
    Tight,
    /// Up to four segments of one block: larger records go to a spill file, including the list of operations.
    Roomy,
    /// A first segment of one block, then larger ones: a record may not fit where it should start.
    Growing,
}

impl Journal {
    /// The bytes of the journal, of its first segment, and of the largest inline commit.
    pub fn sizes(self) -> (u64, u64, u64) {
        match self {
            Journal::Tight => (8 << 10, 8 << 10, 4096),
            Journal::Roomy => (16 << 10, 4 << 10, 4096),
            Journal::Growing => (32 << 10, 4 << 10, 4096),
        }
    }

    /// The most bytes that a commit needs: two blocks, if it creates its file first. A journal that grows also has a
    /// block at the end of a segment that a record of two blocks passes over.
    pub fn room_bytes_min(self) -> u64 {
        match self {
            Journal::Tight | Journal::Roomy => 8 << 10,
            Journal::Growing => 12 << 10,
        }
    }
}

/// The disk and store that a program starts on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Setup {
    /// The state of the store at the start.
    pub start: Start,
    /// How metadata becomes durable.
    pub profile: Profile,
    /// The fate of unflushed data.
    pub model: Model,
    /// Sizes of the journal.
    pub journal: Journal,
    /// The way in which the disk takes the journal.
    pub medium: Medium,
}

/// The way in which a disk takes the journal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Medium {
    /// By writes past the cache.
    Direct,
    /// By writes through the cache.
    Buffered,
    /// By stores: the disk is byte-addressable memory.
    Memory,
}

impl Setup {
    /// Every setup with a disk, and then every one with memory.
    pub fn all(start: Start, turn: usize) -> impl Iterator<Item = Setup> {
        Setup::of_disks(start, turn).chain(Setup::of_memory(start, turn))
    }

    /// One of [`Setup::all`]: each turn has another one.
    pub fn in_turn(start: Start, turn: usize) -> impl Iterator<Item = Setup> {
        let number = Setup::all(start, 0).count();
        Setup::all(start, turn / number).skip(turn % number).take(1)
    }

    /// Memory with the file systems that give programs direct access to it, and with the promises of POSIX alone. Journal
    /// sizes alternate with `turn`.
    pub fn of_memory(start: Start, turn: usize) -> impl Iterator<Item = Setup> {
        [Profile::Ext4, Profile::Xfs, Profile::AnyPosix].into_iter().zip(turn..).map(move |(profile, turn)| {
            let journal = JOURNAL_NAMES[turn % JOURNAL_NAMES.len()].0;
            Setup { start, profile, model: Model::SectorAtomic, journal, medium: Medium::Memory }
        })
    }

    /// Every profile with every disk model, for a start. Journal size and direct writes alternate with `turn`, so that
    /// six turns have every combination.
    pub fn of_disks(start: Start, turn: usize) -> impl Iterator<Item = Setup> {
        let of_profile = move |(i, profile): (usize, Profile)| {
            [Model::SectorAtomic, Model::PageGarbage].into_iter().enumerate().map(move |(j, model)| {
                let turn = turn + i + 5 * j;
                let journal = JOURNAL_NAMES[turn % JOURNAL_NAMES.len()].0;
                let medium = [Medium::Direct, Medium::Buffered][turn / JOURNAL_NAMES.len() % 2];
                Setup { start, profile, model, journal, medium }
            })
        };
        PROFILES.into_iter().enumerate().flat_map(of_profile)
    }

    /// Whether files can be written past the cache.
    pub fn is_direct(&self) -> bool {
        self.medium != Medium::Buffered
    }

    /// Bytes of a page of memory: those of x86-64 in four of six combinations, and larger ones of other machines.
    pub fn page_bytes(&self) -> u64 {
        match (self.journal, self.medium) {
            (Journal::Roomy, Medium::Buffered) => 16 << 10,
            (Journal::Growing, Medium::Direct) => 64 << 10,
            _ => 4096,
        }
    }

    /// The disk.
    pub fn disk(&self, skipped: u64) -> Options {
        let (profile, model, direct) = (self.profile, self.model, self.is_direct());
        // One dimension less: disks without direct writes cannot create files without a name, either.
        Options {
            profile,
            model,
            direct,
            unnamed: direct,
            lines: self.medium == Medium::Memory,
            skipped,
            seed: 1,
            page_bytes: self.page_bytes(),
            ..Options::default()
        }
    }
}

/// A crash.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum How {
    /// All processes are killed; the cache survives.
    Killed,
    /// The power is cut.
    Power(Cut),
}

/// A failure at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trouble {
    /// A crash right before this call.
    Crash(u64, How),
    /// The n-th sync of the run fails in this way; everything works again afterwards.
    Sync(u64, Failed),
    /// The n-th call of the run fails with this `errno`; everything works again afterwards.
    Errno(u64, i32),
    /// The n-th call of the run, if it reads or writes, transfers at most this many bytes; more, if they lie in one
    /// page of the page cache.
    Short(u64, usize),
}

impl Trouble {
    /// The fault that causes it; `None` for a crash.
    pub fn fault(self) -> Option<Fault> {
        let (on, after, what) = match self {
            Trouble::Crash(..) => return None,
            Trouble::Sync(after, how) => (On::Sync, after, What::Writeback(how)),
            Trouble::Errno(after, code) => (On::Any, after, What::Errno(code)),
            Trouble::Short(after, most) => (On::Any, after, What::Short(most)),
        };
        Some(Fault { on, after, times: 1, what })
    }
}

/// One case: a program, and one or two failures.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Case {
    /// The initial disk and store.
    pub setup: Setup,
    /// Sync points that are skipped, as bits; see [`Options::skipped`].
    pub skipped: u64,
    /// The program.
    pub ops: Vec<Op>,
    /// The failures in order: during the program, then during the recovery.
    pub troubles: Vec<Trouble>,
}

fn one_of<T: Copy + PartialEq>(names: &[(T, &'static str)], value: T) -> &'static str {
    names.iter().find(|(v, _)| *v == value).map_or("?", |(_, name)| name)
}

fn named<T: Copy>(names: &[(T, &'static str)], text: &str) -> Result<T, String> {
    names.iter().find(|(_, name)| *name == text).map(|(v, _)| *v).ok_or_else(|| format!("unknown word: {text}"))
}

const START_NAMES: [(Start, &str); 3] =
    [(Start::Plain, "plain"), (Start::Closed, "closed"), (Start::Pending, "pending")];
const PROFILE_NAMES: [(Profile, &str); 4] =
    [(Profile::Ext4, "ext4"), (Profile::Xfs, "xfs"), (Profile::Btrfs, "btrfs"), (Profile::AnyPosix, "posix")];
const MODEL_NAMES: [(Model, &str); 2] = [(Model::SectorAtomic, "sector"), (Model::PageGarbage, "garbage")];
const JOURNAL_NAMES: [(Journal, &str); 3] =
    [(Journal::Tight, "tight"), (Journal::Roomy, "roomy"), (Journal::Growing, "growing")];
const MEDIUM_NAMES: [(Medium, &str); 3] =
    [(Medium::Direct, "direct"), (Medium::Buffered, "buffered"), (Medium::Memory, "memory")];
const FAILED_NAMES: [(Failed, &str); 3] = [(Failed::Lost, "lost"), (Failed::Half, "half"), (Failed::Landed, "landed")];

impl fmt::Display for Trouble {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Trouble::Crash(call, How::Killed) => write!(f, "killed@{call}"),
            Trouble::Crash(call, How::Power(cut)) => write!(f, "{cut}@{call}"),
            Trouble::Sync(nth, how) => write!(f, "sync-{}@{nth}", one_of(&FAILED_NAMES, *how)),
            Trouble::Errno(nth, code) => write!(f, "errno-{code}@{nth}"),
            Trouble::Short(nth, most) => write!(f, "short-{most}@{nth}"),
        }
    }
}

impl FromStr for Trouble {
    type Err = String;
    fn from_str(text: &str) -> Result<Trouble, String> {
        let (how, at) = text.split_once('@').ok_or("a trouble is how@when")?;
        let at = at.parse().map_err(|e| format!("{at}: {e}"))?;
        let bad = |e| format!("{text}: {e}");
        Ok(match how.split_once('-').unwrap_or((how, "")) {
            ("sync", how) => Trouble::Sync(at, named(&FAILED_NAMES, how)?),
            ("errno", code) => Trouble::Errno(at, code.parse().map_err(bad)?),
            ("short", most) => Trouble::Short(at, most.parse().map_err(bad)?),
            ("killed", "") => Trouble::Crash(at, How::Killed),
            _ => Trouble::Crash(at, How::Power(how.parse()?)),
        })
    }
}

impl fmt::Display for Setup {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let start = one_of(&START_NAMES, self.start);
        let (profile, model) = (one_of(&PROFILE_NAMES, self.profile), one_of(&MODEL_NAMES, self.model));
        let (journal, medium) = (one_of(&JOURNAL_NAMES, self.journal), one_of(&MEDIUM_NAMES, self.medium));
        write!(f, "{start},{profile},{model},{journal},{medium}")
    }
}

impl FromStr for Setup {
    type Err = String;
    fn from_str(text: &str) -> Result<Setup, String> {
        let words: Vec<&str> = text.split(',').collect();
        let [start, profile, model, journal, medium] = words[..] else {
            return Err(format!("a setup has five words: {text}"));
        };
        Ok(Setup {
            start: named(&START_NAMES, start)?,
            profile: named(&PROFILE_NAMES, profile)?,
            model: named(&MODEL_NAMES, model)?,
            journal: named(&JOURNAL_NAMES, journal)?,
            medium: named(&MEDIUM_NAMES, medium)?,
        })
    }
}

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ops: Vec<&str> = self.ops.iter().map(|op| one_of(OPERATIONS, *op)).collect();
        let troubles: Vec<String> = self.troubles.iter().map(ToString::to_string).collect();
        write!(f, "{}/{:x}/{}/{}", self.setup, self.skipped, ops.join(","), troubles.join(","))
    }
}

impl FromStr for Case {
    type Err = String;
    fn from_str(text: &str) -> Result<Case, String> {
        let parts: Vec<&str> = text.split('/').collect();
        let [setup, skipped, ops, troubles] = parts[..] else { return Err(format!("a case has four parts: {text}")) };
        let list =
            |text: &'_ str| text.split(',').filter(|word| !word.is_empty()).map(str::to_owned).collect::<Vec<_>>();
        Ok(Case {
            setup: setup.parse()?,
            skipped: u64::from_str_radix(skipped, 16).map_err(|e| format!("{skipped}: {e}"))?,
            ops: list(ops).iter().map(|word| named(OPERATIONS, word)).collect::<Result<_, _>>()?,
            troubles: list(troubles).iter().map(|word| word.parse()).collect::<Result<_, _>>()?,
        })
    }
}
