//! Invariants: properties that the code ensures, besides flushing, so that a crash or a mistake does no harm.
//!
//! The code names each invariant with [`holds`] where it ensures it. In a build for the mutation gate (feature
//! `mutants`) one of them can be disabled, by `disable` or for a whole process by the environment variable
//! `UNTORN_DISABLED`, and a test must then fail. In every other build [`holds`] is `true` at compile time.

use std::fmt;

/// A property that the code ensures: a mutation point of the mutation gate.
///
/// A crate declares its invariants with [`invariants!`](crate::invariants). Names are unique in the
/// workspace.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Invariant {
    name: &'static str,
    about: &'static str,
}

impl Invariant {
    /// Makes an invariant, for [`invariants!`](crate::invariants).
    #[doc(hidden)]
    pub const fn new(name: &'static str, about: &'static str) -> Invariant {
        Invariant { name, about }
    }

    /// The name of the constant.
    pub const fn name(self) -> &'static str {
        self.name
    }

    /// The property, in one sentence.
    pub const fn about(self) -> &'static str {
        self.about
    }
}

impl fmt::Debug for Invariant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name)
    }
}

/// Declares the invariants of a crate: a constant for each, and the list `INVARIANTS` of all.
///
/// ```
/// untorn_os::invariants! {
///     /// A record counts only if its checksum is right.
///     CHECKSUM,
/// }
/// assert!(untorn_os::holds(CHECKSUM));
/// assert_eq!(INVARIANTS, &[CHECKSUM]);
/// ```
#[macro_export]
macro_rules! invariants {
    ($($(#[doc = $doc:literal])+ $name:ident,)+) => {
        $(
            $(#[doc = $doc])+
            pub const $name: $crate::Invariant =
                $crate::Invariant::new(stringify!($name), concat!($($doc),+).trim_ascii_start());
        )+
        /// All invariants of this crate.
        pub const INVARIANTS: &[$crate::Invariant] = &[$($name,)+];
    };
}

#[cfg(not(feature = "mutants"))]
mod gate {
    use super::Invariant;

    /// Whether the code ensures the invariant: always.
    #[inline(always)]
    pub const fn holds(_: Invariant) -> bool {
        true
    }
}

#[cfg(feature = "mutants")]
mod gate {
    use super::Invariant;
    use std::sync::atomic::{AtomicU64, Ordering::SeqCst};

    /// The environment variable with the name of the invariant that a process disables from its beginning.
    const VARIABLE: &str = "UNTORN_DISABLED";
    /// The number before the environment was read.
    const UNREAD: u64 = 0;
    /// The number if no invariant is disabled.
    const NONE: u64 = 2;

    /// The number of the disabled invariant.
    static DISABLED: AtomicU64 = AtomicU64::new(UNREAD);

    /// A hash of the name (FNV-1a), always odd.
    const fn number(name: &str) -> u64 {
        let (mut hash, mut at) = (0xcbf2_9ce4_8422_2325, 0);
        while at < name.len() {
            hash = (hash ^ name.as_bytes()[at] as u64).wrapping_mul(0x0100_0000_01b3);
            at += 1;
        }
        hash | 1
    }

    /// Whether the code ensures the invariant: true unless it was disabled.
    pub fn holds(invariant: Invariant) -> bool {
        let disabled = match DISABLED.load(SeqCst) {
            UNREAD => read_environment(),
            known => known,
        };
        disabled == NONE || disabled != number(invariant.name())
    }

    #[cold]
    fn read_environment() -> u64 {
        let named = std::env::var(VARIABLE).map_or(NONE, |name| number(&name));
        DISABLED.compare_exchange(UNREAD, named, SeqCst, SeqCst).map_or_else(|known| known, |_| named)
    }

    /// Disables this invariant in this process, or enables all with `None`.
    pub fn disable(invariant: Option<Invariant>) {
        DISABLED.store(invariant.map_or(NONE, |invariant| number(invariant.name())), SeqCst);
    }
}

pub use gate::*;

/// The value if the invariant holds; the default of its type if it was disabled.
#[inline(always)]
pub fn value_if_holds<T: Default>(invariant: Invariant, value: T) -> T {
    if holds(invariant) { value } else { T::default() }
}
