//! The properties of a simulated disk, planned faults, and kinds of calls.

use super::refusal::Refusal;
use crate::mutation::sync_point_index;
use untorn_os::SyncPoint;

/// The possible fates of unflushed data after a power cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Model {
    /// An overwritten 512-byte sector has its old or its new contents, each sector by itself.
    SectorAtomic,
    /// In addition, a 4 KiB page that was being overwritten may have any contents.
    PageGarbage,
}

/// The way in which metadata becomes durable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Profile {
    /// One ordered log: names, sizes and attributes become durable in the order in which they were changed. A size from
    /// writing past the end never becomes durable without the data. `fsync` commits the log up to the file's last
    /// change; `fdatasync` does so only for a new file or a new size, and so can lose an attribute.
    Ext4,
    /// An ordered log as in `Ext4`; here `fdatasync` commits it for any change of the inode.
    Xfs,
    /// Power cuts as with an ordered log; `fsync` makes the file, its attribute and its names durable, and no other log
    /// entry.
    Btrfs,
    /// Only the promises of POSIX: every name, size, attribute and sector becomes durable by itself, a size without its
    /// data (then zeros or garbage), a file without its name.
    AnyPosix,
}

/// All profiles.
pub const PROFILES: [Profile; 4] = [Profile::Ext4, Profile::Xfs, Profile::Btrfs, Profile::AnyPosix];

/// A disk's properties.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// The way in which metadata becomes durable.
    pub profile: Profile,
    /// The possible fates of unflushed data.
    pub model: Model,
    /// Whether files can be opened past the cache.
    pub direct: bool,
    /// Whether files can be created without a name.
    pub unnamed: bool,
    /// Whether the disk is mounted read-only.
    pub read_only: bool,
    /// The effective user of processes, unless given otherwise.
    pub user: u32,
    /// The room for contents, in bytes; `None`: unlimited. Names and attributes take no room.
    pub capacity_bytes: Option<u64>,
    /// The most files and directories; `None`: unlimited.
    pub inodes_max: Option<u64>,
    /// Whether overwriting needs a free page, too.
    pub copy_on_write: bool,
    /// The value of [`untorn_os::Storage::open_files_max`]. Not enforced.
    pub open_files_max: usize,
    /// Sync points whose syncs do nothing, as bits; see [`Options::skip`].
    pub skipped: u64,
    /// Seeds [`untorn_os::Storage::random`] and the boot id.
    pub seed: u64,
    /// The operations that the kernel refuses; this lasts across crashes.
    pub refusal: Option<Refusal>,
    /// Whether permission bits have an effect, as for an ordinary user's own files.
    pub permissions: bool,
    /// Whether the disk is byte-addressable memory: programs store whole lines of files without calls, and a write
    /// within a file is torn like a store.
    pub lines: bool,
    /// Whether mappings have real memory at their addresses.
    pub memory: bool,
    /// Bytes of a page of simulated memory: a multiple of 4,096. Real memory has pages of its own.
    pub page_bytes: u64,
    /// Nanoseconds that pass with every changing call; 0 is a clock that is too coarse to distinguish two calls.
    pub clock_step_ns: u64,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            profile: Profile::AnyPosix,
            model: Model::SectorAtomic,
            direct: true,
            unnamed: true,
            read_only: false,
            user: 1000,
            capacity_bytes: None,
            inodes_max: None,
            copy_on_write: false,
            open_files_max: 64,
            skipped: 0,
            seed: 0,
            refusal: None,
            permissions: false,
            lines: false,
            memory: false,
            page_bytes: 4096,
            clock_step_ns: 1_000_000,
        }
    }
}

impl Options {
    /// Skips a sync point: its syncs return OK and do nothing.
    pub fn skip(mut self, step: SyncPoint) -> Options {
        self.skipped |= 1 << sync_point_index(step);
        self
    }

    pub(crate) fn skips(&self, step: SyncPoint) -> bool {
        self.skipped & (1 << sync_point_index(step)) != 0
    }
}

/// Kinds of calls, for fault plans.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Call {
    /// Reads contents.
    Read,
    /// Writes contents.
    Write,
    /// Changes a size, reserves room, zeroes a range.
    Size,
    /// Creates, renames or removes a name.
    Name,
    /// Changes an attribute or a mode.
    Attribute,
    /// Any sync, with its sync point.
    Sync(SyncPoint),
    /// Maps a file, loads and stores, shows and drops pages.
    Map,
    /// Opens, looks up, lists, locks, queries.
    Look,
    /// Loads from memory that shows a file. No fault applies to it.
    Load,
}

impl Call {
    pub(crate) fn changes(self) -> bool {
        !matches!(self, Call::Read | Call::Map | Call::Look | Call::Load)
    }
}

/// The calls that a fault applies to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum On {
    /// Every call.
    Any,
    /// Calls that change something, syncs included.
    Change,
    /// Reads.
    Read,
    /// Writes.
    Write,
    /// Size changes.
    Size,
    /// Name changes.
    Name,
    /// Attribute and mode changes.
    Attribute,
    /// Syncs.
    Sync,
    /// Syncs of one sync point.
    SyncPoint(SyncPoint),
}

impl On {
    pub(crate) fn matches(self, call: Call) -> bool {
        match self {
            On::Any => call != Call::Load,
            On::Change => call.changes(),
            On::Read => call == Call::Read,
            On::Write => call == Call::Write,
            On::Size => call == Call::Size,
            On::Name => call == Call::Name,
            On::Attribute => call == Call::Attribute,
            On::Sync => matches!(call, Call::Sync(_)),
            On::SyncPoint(step) => call == Call::Sync(step),
        }
    }
}

/// The fate of the data when a writeback fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Failed {
    /// Nothing reaches the disk; the cache keeps the data, marked clean. Measured on ext4 and XFS.
    Lost,
    /// The first half of the writes reaches the disk, the rest is lost.
    Half,
    /// All of it reaches the disk; only the result of the call is an error.
    Landed,
}

/// The way in which a call fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum What {
    /// The call fails with this `errno` and does nothing.
    Errno(i32),
    /// A read or write does at most this many bytes.
    Short(usize),
    /// A sync returns `EIO`. Other calls fail with it and do nothing.
    Writeback(Failed),
}

/// A planned fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fault {
    /// The calls that count.
    pub on: On,
    /// The number of these calls that succeed first.
    pub after: u64,
    /// The number of these calls that fail then.
    pub times: u64,
    /// The failure.
    pub what: What,
}
