//! The whole command on a tree in memory, to try the layers between programs and a tree. No data is kept.

#[path = "../tests/common/memory_tree.rs"]
mod memory_tree;

use std::process::ExitCode;
use std::sync::Arc;

fn main() -> ExitCode {
    untorn_terminal::print(
        "untorn-mount",
        untorn_mount::cli::run(|_, _, _, _, _| Ok(Arc::new(memory_tree::MemoryTree::new()))),
    )
}
