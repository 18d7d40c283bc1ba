//! The figures of the papers that Untorn's ideas come from: each paper's numbers beside measurements of ours.

pub(crate) mod command;
mod figures;
mod measured;
mod numbers;
mod page;
mod setting;
mod table;
mod verdict;
