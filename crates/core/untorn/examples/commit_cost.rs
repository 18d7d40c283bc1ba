//! Commits 100 bytes, again and again, in class `process`, and prints the seconds that it took: the part of the library
//! in the figures of `crates/bindings/python/bench`.
//!
//!     cargo run --release -p untorn --example commit_cost -- DIRECTORY COMMITS

use std::time::Instant;
use untorn::{FailureClass, FileOptions, StoreOptions};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let (Some(directory), Some(commits)) = (arguments.next(), arguments.next()) else {
        return Err("usage: commit_cost DIRECTORY COMMITS".into());
    };
    let store = StoreOptions::new().class(FailureClass::Process);
    let path = std::path::Path::new(&directory).join("commit_cost");
    let file = FileOptions::new().create(true).store(store).open(path)?;
    let commits: u64 = commits.parse()?;
    let start = Instant::now();
    for number in 0..commits {
        file.write_all_at(&[number as u8; 100], number % 40 * 100)?;
        file.commit()?;
    }
    println!("{}", start.elapsed().as_secs_f64());
    file.close()?;
    Ok(())
}
