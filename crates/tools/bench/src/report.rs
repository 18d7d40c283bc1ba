//! Figures and how they are shown: statistics, sections of the report, the line on the terminal. Stands on nothing
//! else here.

pub(crate) mod section;
pub(crate) mod section_text;
pub(crate) mod statistics;
pub(crate) mod status_line;
