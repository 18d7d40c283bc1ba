//! Properties of a simulated disk, planned faults, and kinds of calls.

use super::refusal::Refusal;
use crate::mutation::sync_point_index;
use untorn_os::SyncPoint;

/// What may become of data that was written and not flushed when the power goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Model {
    /// An overwritten 512-byte sector holds its old or its new content, each sector by itself.
    SectorAtomic,
    /// In addition, any 4 KiB page that was being overwritten may hold anything.
    PageGarbage,
}

/// How metadata becomes durable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Profile {
    /// One ordered log: names, sizes and attributes become durable as a prefix of what was done. A
    /// size that came from writing past the end never becomes durable without the data. `fsync`
    /// commits the log up to the file's last change; `fdatasync` does so only for a new file or a
    /// new size, so that it loses an attribute.
    Ext4,
    /// An ordered log as in `Ext4`; here `fdatasync` commits it for any change of the inode.
    Xfs,
    /// Power cuts as with an ordered log; `fsync` makes durable the file, its attribute and its
    /// names, and no other log entry.
    Btrfs,
    /// Nothing that POSIX does not promise: every name, size, attribute and sector by itself, a size
    /// without its data (then zeros or garbage), a file without its name.
    AnyPosix,
}

/// All profiles.
pub const PROFILES: [Profile; 4] = [Profile::Ext4, Profile::Xfs, Profile::Btrfs, Profile::AnyPosix];

/// A disk's properties.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// How metadata becomes durable.
    pub profile: Profile,
    /// What becomes of unflushed data.
    pub model: Model,
    /// Whether files can be opened past the cache.
    pub direct: bool,
    /// Whether files can be made without a name.
    pub unnamed: bool,
    /// Mounted read-only.
    pub read_only: bool,
    /// Effective user of processes, unless said otherwise.
    pub user: u32,
    /// Room for contents, in bytes; `None`: no end. Names and attributes take none.
    pub capacity_bytes: Option<u64>,
    /// Most files and directories; `None`: no end.
    pub inodes_max: Option<u64>,
    /// Overwriting needs a free page, too.
    pub copy_on_write: bool,
    /// The value of [`untorn_os::Storage::open_files_max`]. Not enforced.
    pub open_files_max: usize,
    /// Sync points whose syncs do nothing, as bits; see [`Options::skip`].
    pub skipped: u64,
    /// Seeds [`untorn_os::Storage::random`] and the boot id.
    pub seed: u64,
    /// What the kernel refuses; it lasts, also over crashes.
    pub refusal: Option<Refusal>,
    /// Permission bits count, as they do for an ordinary user's own files.
    pub permissions: bool,
    /// Mappings have real memory at their addresses.
    pub memory: bool,
    /// Nanoseconds that pass with every changing call; 0 is a clock too coarse to tell two calls apart.
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
            memory: false,
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
    /// Opens, looks, lists, locks, asks.
    Look,
}

impl Call {
    pub(crate) fn changes(self) -> bool {
        !matches!(self, Call::Read | Call::Map | Call::Look)
    }
}

/// Which calls a fault is for.
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
            On::Any => true,
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

/// What becomes of the data when a writeback fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Failed {
    /// Nothing reaches the disk; the cache keeps it, marked clean. As measured on ext4 and XFS.
    Lost,
    /// The first half of the writes reaches the disk, the rest is lost.
    Half,
    /// All of it reaches the disk; only the result is an error.
    Landed,
}

/// The way in which a call goes wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum What {
    /// The call fails with this `errno` and does nothing.
    Errno(i32),
    /// A read or write does at most this many bytes.
    Short(usize),
    /// A sync says `EIO`. Other calls fail with it and do nothing.
    Writeback(Failed),
}

/// A planned fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fault {
    /// The calls that count.
    pub on: On,
    /// How many of them go well first.
    pub after: u64,
    /// How many of them go wrong then.
    pub times: u64,
    /// What goes wrong.
    pub what: What,
}
