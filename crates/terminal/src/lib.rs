//! What Untorn's programs share: output, errors and exit codes ([`Output`], [`Failure`]), tables
//! ([`table`]), interruption ([`signals`]), and completion scripts and manual pages ([`pages`]).

mod output;
#[cfg(feature = "pages")]
pub mod pages;
pub mod signals;
pub mod table;

pub use output::{Failure, Output, print};
