//! Random transactions over names and bytes, beside a model in ordinary memory.

mod concerned;
mod name_effort;
mod name_enumeration;
mod name_player;
mod name_program;
mod name_recovery;
mod name_run;
mod name_simulation;
mod name_tree;

pub use name_effort::{NameEffort, NameTotals};
pub use name_enumeration::{OPERATIONS_MAX, drawn, numbered, programs_of, steps_before};
pub use name_player::NamePlayer;
pub use name_program::{NameProgram, NameStep, draw_refusal, draw_transaction};
pub use name_simulation::{NameViolation, smallest_violation, try_program};
pub use name_tree::{Alphabet, Entry, NameChange, NameTree, Rights};
