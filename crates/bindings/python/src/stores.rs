//! Stores, files, transactions, tickets and the output gate.

pub(crate) mod file;
pub(crate) mod gate;
pub(crate) mod replace;
pub(crate) mod store;
pub(crate) mod ticket;
pub(crate) mod txn;
