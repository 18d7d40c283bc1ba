//! Answers that leave when they are durable: `gate FILE` appends numbers, and prints each behind a gate, without waiting
//! for the disk. After 300 ms it crashes. Each number that was printed is in the file.

use std::os::fd::AsFd;
use std::time::{Duration, Instant};
use untorn::{File, Gate};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let path = std::env::args().nth(1).unwrap_or("numbers".into());
    let file = File::open_or_create(path)?;
    let gate = Gate::new()?;
    let output = gate.output(std::io::stdout().as_fd().try_clone_to_owned()?);
    let mut n = file.len()? / 8;
    let until = Instant::now() + Duration::from_millis(300);
    while Instant::now() < until {
        n += 1;
        file.append(format!("{n:7}\n").as_bytes())?;
        let ticket = file.commit_async()?;
        output.write(format!("{n}\n").as_bytes(), Some(&ticket))?;
    }
    std::process::abort()
}
