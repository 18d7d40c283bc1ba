//! Sync points: the named reasons for flushes.

use std::fmt;

/// The reason for one flush. The crash laboratory can skip each sync point by name, and shows the crash that then loses
/// data.
///
/// A crate declares its sync points with [`sync_points!`](crate::sync_points). Names are unique in
/// the workspace.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SyncPoint {
    name: &'static str,
    about: &'static str,
}

impl SyncPoint {
    /// Makes a sync point, for [`sync_points!`](crate::sync_points).
    #[doc(hidden)]
    pub const fn new(name: &'static str, about: &'static str) -> SyncPoint {
        SyncPoint { name, about }
    }

    /// The name of the constant.
    pub const fn name(self) -> &'static str {
        self.name
    }

    /// The object of the flush, and the event that it precedes.
    pub const fn about(self) -> &'static str {
        self.about
    }
}

impl fmt::Debug for SyncPoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name)
    }
}

/// Declares the sync points of a crate: a constant for each, and the list `SYNC_POINTS` of all.
///
/// ```
/// untorn_os::sync_points! {
///     /// The one flush of a commit.
///     COMMIT,
/// }
/// assert_eq!((COMMIT.name(), COMMIT.about()), ("COMMIT", "The one flush of a commit."));
/// assert_eq!(SYNC_POINTS, &[COMMIT]);
/// ```
#[macro_export]
macro_rules! sync_points {
    ($($(#[doc = $doc:literal])+ $name:ident,)+) => {
        $(
            $(#[doc = $doc])+
            pub const $name: $crate::SyncPoint =
                $crate::SyncPoint::new(stringify!($name), concat!($($doc),+).trim_ascii_start());
        )+
        /// All sync points of this crate, in the order in which a store meets them.
        pub const SYNC_POINTS: &[$crate::SyncPoint] = &[$($name,)+];
    };
}
