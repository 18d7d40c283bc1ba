//! Transactions over two files of many: Untorn in its ways, and protocols over plain files.

pub(crate) mod managed;
mod plain;
pub(crate) mod pool;
pub(crate) mod protocol;
pub(crate) mod redo_log;
pub(crate) mod roster;
mod shadow;
pub(crate) mod transactions;
