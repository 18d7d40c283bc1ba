//! Every crash of a program, and sequences of crashes. Stands on `programs`.

pub mod crash_loops;
pub mod enumerate;
