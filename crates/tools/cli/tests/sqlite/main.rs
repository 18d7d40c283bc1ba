//! The SQLite extension: databases whose transactions are commits of Untorn.
//!
//! `UNTORN_TEST_SEED` repeats the statements and the moments of the kills.

mod driver;
mod faults;
mod kills;
mod lockstep;
mod vfs;
