//! Relays between the session and the outside, with commits in between. Stands on `network` and `volumes`.

pub(crate) mod answers;
pub(crate) mod connection;
pub(crate) mod datagrams;
pub mod listen;
pub(crate) mod outgoing;
pub mod relay;
pub(crate) mod requests;
