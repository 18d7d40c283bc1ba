//! Mapped files, one module per subject; each test runs with every tracker that works here.

#[path = "../common/mod.rs"]
mod common;

mod closing;
mod commit;
mod explicit;
mod growth;
mod memory;
mod outside;
mod permissions;
mod rollback;
mod sharing;
mod system_calls;
mod tracking;
mod transactions;
