//! The network of a session: its own loopback, and rules for connections that leave. Stands on no other module here.

pub(crate) mod inner_sockets;
pub(crate) mod netlink;
pub(crate) mod outgoing_rules;
pub mod session_network;
