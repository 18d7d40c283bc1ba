//! Runs the entries of the fuzz targets with random and damaged bytes: short, and without a special compiler.

#[path = "../../../../fuzz/entries.rs"]
mod entries;

use fastrand::Rng;
use std::time::{Duration, Instant};
use untorn_testkit::variable_or;

/// The time for each entry and each kind of input.
const TIME: Duration = Duration::from_millis(400);

/// Calls the entry with inputs from `make` for a while, and prints the number of calls.
fn run(name: &str, entry: fn(&[u8]), mut make: impl FnMut(&mut Rng) -> Vec<u8>) {
    let seed = variable_or("UNTORN_TEST_SEED", 1);
    let rng = &mut Rng::with_seed(seed);
    let (start, mut inputs) = (Instant::now(), 0u32);
    while inputs < 50 || start.elapsed() < TIME {
        let input = make(rng);
        if let Err(panic) = std::panic::catch_unwind(|| entry(&input)) {
            eprintln!("{name} failed on input {inputs} of seed {seed}: {:?}", &input[..input.len().min(400)]);
            std::panic::resume_unwind(panic);
        }
        inputs += 1;
    }
    println!("{name}: {inputs} inputs");
}

#[test]
fn valid_bytes() {
    for (_, entry, sample) in entries::samples() {
        entry(&sample);
    }
}

#[test]
fn random_bytes() {
    for (name, entry, _) in entries::samples() {
        run(name, entry, |rng| {
            let magnitude = rng.usize(..13);
            let len = rng.usize(..1 << magnitude);
            (0..len).map(|_| rng.u8(..)).collect()
        });
    }
}

#[test]
fn damaged_bytes() {
    for (name, entry, sample) in entries::samples() {
        run(name, entry, |rng| {
            let mut bytes = sample.clone();
            // The first bytes of every input are heads, where damage has the largest effect.
            for _ in 0..rng.usize(1..6) {
                let reach = if rng.bool() { bytes.len().min(128) } else { bytes.len() };
                let at = rng.usize(..reach);
                match rng.u8(..4) {
                    0 => bytes[at] ^= 1 << rng.u8(..8),
                    1 => bytes[at] = [0, 1, 0x7f, 0x80, 0xff][rng.usize(..5)],
                    2 => bytes.truncate(at + 1),
                    _ => {
                        bytes.splice(at..at, (0..rng.usize(..9)).map(|_| rng.u8(..)).collect::<Vec<_>>()).for_each(drop)
                    }
                }
            }
            bytes[0] = rng.u8(..);
            bytes
        });
    }
}
