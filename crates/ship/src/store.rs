//! Stores and directories, as the protocol sees them.

pub mod body;
pub mod entry;
pub mod fresh;
pub mod live;
pub mod owner;
pub mod paths;
pub mod plain;
pub mod replica;
pub mod replica_state;
mod snapshot_pieces;
