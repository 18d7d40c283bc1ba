//! Commits 64 bytes, again and again, in class `power`, and prints the processor's time for each: with the journal on a
//! disk, and with it on byte-addressable memory, for which ordinary memory stands in; with the readers' page and the index
//! of the log, and without.
//!
//!     cargo run --release -p untorn --example memory_cost -- DIRECTORY_IN_TMPFS COMMITS [memory|disk]

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;
use untorn::__private::OpenStoreOn;
use untorn::StoreOptions;
use untorn_journal::directories::store_dir::StoreDir;
use untorn_os::{Linux, Storage};

fn cpu_ns() -> u128 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    time.tv_sec as u128 * 1_000_000_000 + time.tv_nsec as u128
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let (Some(directory), Some(commits)) = (arguments.next(), arguments.next()) else {
        return Err("usage: memory_cost DIRECTORY COMMITS [memory|disk]".into());
    };
    let (commits, only) = (commits.parse::<u64>()?, arguments.next());
    for medium in ["disk", "memory"].into_iter().filter(|medium| only.as_deref().is_none_or(|only| only == *medium)) {
        let path = PathBuf::from(&directory).join(medium);
        std::fs::create_dir_all(&path)?;
        let storage: Arc<dyn Storage> = match medium {
            "memory" => Linux::open_as_memory(&path)?,
            _ => Linux::open(&path)?,
        };
        for (parts, page, indexed) in
            [("page and index", true, true), ("index", false, true), ("neither", false, false)]
        {
            let options = StoreOptions::new().create(true).page(page);
            let options = if indexed { options } else { options.index_bytes_least(u64::MAX) };
            let store = options.open_on(storage.clone(), StoreDir::of_directory(), PathBuf::new())?;
            let file = store.open_or_create_file("file")?;
            let (start, cpu) = (Instant::now(), cpu_ns());
            for number in 0..commits {
                file.write_all_at(&[number as u8; 64], number % 60 * 64)?;
                file.commit()?;
            }
            let (wall, cpu) = (start.elapsed().as_nanos(), cpu_ns() - cpu);
            println!(
                "{medium}, {parts}: {} ns for a commit, {} ns of them on processors",
                wall / u128::from(commits),
                cpu / u128::from(commits)
            );
            drop(file);
            store.close()?;
        }
    }
    Ok(())
}
