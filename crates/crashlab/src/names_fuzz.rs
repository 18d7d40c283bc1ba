//! Random transactions over names and bytes, beside a model in ordinary memory.

mod name_player;
mod name_program;
mod name_simulation;
mod name_tree;

pub use name_player::NamePlayer;
pub use name_program::{NameProgram, NameStep, draw_transaction};
pub use name_simulation::{NameEffort, NameTotals, NameViolation, smallest_violation, try_program};
pub use name_tree::{Alphabet, Entry, NameChange, NameTree};
