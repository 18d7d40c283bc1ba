//! The store on the simulated disk, by subject: small programs, each of which once showed a lost, doubled or misjudged
//! state.

mod checkpoint;
mod contents_first;
mod cut_segments;
mod failure_classes;
mod fixture;
mod forgotten;
mod full_disk;
mod full_page;
#[path = "../hooked/mod.rs"]
mod hooked;
mod interplay;
mod journal_flushes;
mod large_commits;
mod left_marks;
mod names;
mod one_file;
mod output_gate;
mod quarantine;
mod recovery;
mod refused_commits;
mod relocation;
mod side_by_side;
mod transactions;
mod waiting;
