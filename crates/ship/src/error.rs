//! Errors of shipping.

use crate::bucket::Failed;
use crate::point::Point;

/// A result of this crate.
pub type Result<T> = std::result::Result<T, Error>;

/// A failure. Every message says what to do, if something can be done.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The bucket did not answer, or refused.
    #[error("{0}")]
    Bucket(#[from] Failed),
    /// The store, or the directory that is restored or follows, cannot be read or written.
    #[error("{0}")]
    Store(Box<dyn std::error::Error + Send + Sync>),
    /// An object has contents that this version cannot have written.
    #[error("{name} in the bucket is damaged, or was not written by Untorn: {reason}")]
    Damaged {
        /// The object.
        name: String,
        /// The reason.
        reason: String,
    },
    /// An object of a newer version.
    #[error("{name} in the bucket has version {version}; this program knows {known}: use a newer Untorn")]
    Newer {
        /// The object.
        name: String,
        /// Its version.
        version: u32,
        /// The newest version that this program knows.
        known: u32,
    },
    /// The bucket belongs to another store.
    #[error("the bucket belongs to another store (its id is {found}): use another prefix for this one")]
    OtherStore {
        /// The id of the bucket's store.
        found: String,
    },
    /// Another machine ships this store.
    #[error(
        "another machine ships this store to the bucket ({who}, up to #{lsn}); with --take-over this one goes on, \
         and the other is shut out"
    )]
    OtherOwner {
        /// The machine, as it named itself.
        who: String,
        /// The last LSN in the bucket.
        lsn: u64,
    },
    /// The store does not contain the newest commit of the bucket.
    #[error(
        "{} than the bucket, whose newest commit is #{}; --fork={} begins a new history and abandons {}",
        if *.is_behind { "the store is older" } else { "the store has another history" },
        .tip.lsn, .tip.lsn, abandoned(*.common, .tip.lsn)
    )]
    Diverged {
        /// The newest commit of the bucket.
        tip: Point,
        /// The last commit that both have.
        common: u64,
        /// Whether the store only lacks commits.
        is_behind: bool,
    },
    /// A fork was asked for that is not needed, or from another tip than the newest.
    #[error("{0}")]
    Fork(String),
    /// A shipper was shut out.
    #[error(
        "{who} ships this store now, from #{lsn} on: this machine stops, and its later commits are not in the bucket"
    )]
    Fenced {
        /// The machine that did it, as it named itself.
        who: String,
        /// The last LSN of this machine in the bucket.
        lsn: u64,
    },
    /// The store was put back, or is another one, while it was shipped.
    #[error(
        "the store no longer contains its commit #{lsn}, which was shipped: it was put back to an older state, or \
         replaced; start shipping again to see how it differs"
    )]
    PutBack {
        /// The commit.
        lsn: u64,
    },
    /// The wanted point is below everything that is retained.
    #[error("#{lsn} was pruned: the oldest point in the bucket is #{oldest}")]
    Pruned {
        /// The wanted LSN.
        lsn: u64,
        /// The oldest one.
        oldest: u64,
    },
    /// The wanted point is not in the bucket.
    #[error("{0}")]
    NotThere(String),
    /// Retention changed during each attempt.
    #[error("the bucket was pruned during {0} attempts to read it: try again")]
    Busy(u32),
    /// A part of a snapshot is not there: it was pruned meanwhile, or the bucket lost it.
    #[error("{name} is missing in the bucket")]
    Gone {
        /// The object.
        name: String,
    },
    /// Another machine shipped its next object sooner, again and again.
    #[error("another machine ships too fast for a promotion beside it: stop its `untorn-ship ship`, or try again")]
    Outrun,
    /// A history that does not fit to the directory.
    #[error("the bucket's history does not continue this directory's at #{lsn}: restore it anew")]
    DoesNotFit {
        /// The directory's last LSN.
        lsn: u64,
    },
}

fn abandoned(common: u64, tip: u64) -> String {
    if common >= tip { "nothing".to_owned() } else { format!("#{} to #{tip}", common + 1) }
}

impl Error {
    /// Wraps an error of the store.
    pub fn store(error: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Error {
        Error::Store(error.into())
    }
}
