//! Settings of a start.

use crate::object::manifest::Position;

/// How a shipper starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Goes on only with its own.
    Automatic,
    /// Shuts the machine out that ships now.
    TakeOver,
    /// Begins another history, and abandons the newest commits of the bucket.
    Fork {
        /// The LSN of the bucket's tip, as it was told to the person who decided.
        tip: Option<u64>,
    },
}

/// Settings of a start.
#[derive(Clone, Debug)]
pub struct Options {
    /// How.
    pub mode: Mode,
    /// The time, in nanoseconds since 1970.
    pub now: u64,
    /// A place on the chain that this machine remembers, from which the chain is read.
    pub remembered: Option<Position>,
    /// Most bytes of bodies in an object.
    pub bodies_bytes_max: u64,
    /// Most objects in flight.
    pub in_flight_max: usize,
}
