//! Random transactions over names and bytes, beside a model in ordinary memory.

mod concerned;
mod effort;
mod enumeration;
mod player;
mod program;
mod recovery;
mod run;
mod simulation;
mod tree;

pub use effort::{NameEffort, NameTotals};
pub use enumeration::{OPERATIONS_MAX, drawn, numbered, programs_of, steps_before};
pub use player::NamePlayer;
pub use program::{NameProgram, NameStep, draw_refusal, draw_transaction};
pub use simulation::{NameViolation, smallest_violation, try_program};
pub use tree::{Alphabet, Entry, NameChange, NameTree, Rights};
