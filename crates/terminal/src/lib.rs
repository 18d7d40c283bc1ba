//! What Untorn's programs share: output, errors and exit codes ([`Output`], [`Failure`]), tables ([`mod@table`]),
//! interruption ([`signals`]), user namespaces ([`user_namespace`]), and, with the feature `pages`, completion scripts
//! and manual pages.

mod output;
#[cfg(feature = "pages")]
pub mod pages;
pub mod signals;
pub mod table;
pub mod user_namespace;

pub use output::{Failure, Output, print};
