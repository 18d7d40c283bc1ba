//! The program `untorn-ship`.

pub mod arguments;
pub mod cli;
mod following;
mod interrupts;
mod keep;
mod listing;
mod metrics;
mod restore;
mod serve;
mod shipping;
mod start;
mod status;
mod time_text;
