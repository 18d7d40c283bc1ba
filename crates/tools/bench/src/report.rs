//! Figures and their presentation: statistics, sections of the report, the terminal's status line.
//!
//! Stands on no other module here.

pub(crate) mod outcome;
pub(crate) mod section;
pub(crate) mod section_text;
pub(crate) mod statistics;
pub(crate) mod status_line;
