//! One file per command.

pub mod audience;
pub mod cat;
pub mod check;
pub mod checkpoint;
pub mod cp;
pub mod diff;
pub mod doctor;
pub mod dump;
pub mod eject;
pub mod find_unclean;
pub mod heap;
pub mod history;
pub mod log;
pub mod ls;
pub mod port_check;
pub mod preload;
pub mod put;
pub mod recover;
pub mod rescue_heaps;
pub mod slots;
pub mod sqlite;
pub mod status;
pub mod tail;
