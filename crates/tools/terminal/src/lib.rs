//! The parts that Untorn's programs share.
//!
//! They are output, errors and exit codes ([`Output`], [`Failure`]), tables ([`mod@table`]), interruption
//! ([`signals`]), standard streams ([`standard_streams`]), user namespaces ([`user_namespace`]), questions with a time
//! limit ([`time_limit`]), figures for Prometheus ([`served_figures`]), relative paths ([`stays_within`]), and, with the feature `pages`, command lines, the log, forms
//! of listings, completion scripts and manual pages.

#[cfg(feature = "pages")]
mod command_line;
#[cfg(feature = "pages")]
mod listing;
#[cfg(feature = "pages")]
pub mod log;
mod name_text;
mod output;
#[cfg(feature = "pages")]
pub mod pages;
mod relative_path;
pub mod served_figures;
pub mod signals;
pub mod standard_streams;
pub mod table;
pub mod time_limit;
pub mod user_namespace;

#[cfg(feature = "pages")]
pub use command_line::parse;
#[cfg(feature = "pages")]
pub use listing::ListingForm;
pub use name_text::shown;
pub use output::{Failure, Output, print, write};
pub use relative_path::stays_within;
