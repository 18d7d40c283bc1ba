//! The SQLite extension: databases whose transactions are commits of Untorn.
//!
//! `UNTORN_TEST_SEED` repeats the statements and the moments of the kills. `UNTORN_TEST_SQLITE=DIR` tests another
//! version of SQLite, whose `sqlite3.c` and `sqlite3.h` are in DIR.

mod commands;
mod driver;
mod early;
mod faults;
mod kills;
mod lockstep;
mod plain_reading;
mod plain_writers;
mod pragmas;
mod readers;
mod vfs;
