//! Every crash of a program, and crashes in a row. Stands on `programs`.

pub mod crash_loops;
pub mod enumerate;
