//! The network of a session: its own loopback, and which connections may go out. Stands on nothing else here.

pub(crate) mod inner_sockets;
pub(crate) mod netlink;
pub(crate) mod outgoing_rules;
pub mod session_network;
