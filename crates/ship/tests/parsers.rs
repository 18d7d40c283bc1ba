//! Runs the entries of the fuzz targets of shipping with random and damaged bytes: short, and without a special compiler.

#[path = "../../../fuzz/ship.rs"]
mod ship;

use fastrand::Rng;
use std::time::{Duration, Instant};
use untorn_testkit::seed;

/// The time for each entry and each kind of input.
const TIME: Duration = Duration::from_millis(300);

/// Calls the entry with inputs from `make` for a while, and prints the number of calls.
fn run(name: &str, entry: fn(&[u8]), seed: u64, mut make: impl FnMut(&mut Rng) -> Vec<u8>) {
    let rng = &mut Rng::with_seed(seed);
    let (start, mut inputs) = (Instant::now(), 0u32);
    while inputs < 50 || start.elapsed() < TIME {
        let input = make(rng);
        if let Err(panic) = std::panic::catch_unwind(|| entry(&input)) {
            eprintln!("{name} failed on input {inputs}: {:?}", &input[..input.len().min(400)]);
            std::panic::resume_unwind(panic);
        }
        inputs += 1;
    }
    println!("{name}: {inputs} inputs");
}

#[test]
fn valid_bytes() {
    for (_, entry, sample) in ship::samples() {
        entry(&sample);
    }
}

#[test]
fn random_bytes() {
    let seed = seed();
    for (name, entry, _) in ship::samples() {
        run(name, entry, seed, |rng| {
            let magnitude = rng.usize(..13);
            let len = rng.usize(..1 << magnitude);
            (0..len).map(|_| rng.u8(..)).collect()
        });
    }
}

#[test]
fn damaged_bytes() {
    let seed = seed();
    for (name, entry, sample) in ship::samples() {
        run(name, entry, seed, |rng| {
            let mut bytes = sample.clone();
            // Checksums are put right in half of the inputs.
            bytes[0] = rng.u8(..2);
            for _ in 0..rng.usize(1..5) {
                let at = rng.usize(1..bytes.len());
                match rng.u8(..4) {
                    0 => bytes[at] ^= 1 << rng.u8(..8),
                    1 => bytes[at] = [0, 1, 0x7f, 0x80, 0xff][rng.usize(..5)],
                    2 => bytes.truncate(at + 1),
                    _ => {
                        let end = (at + rng.usize(1..9)).min(bytes.len());
                        bytes[at..end].fill(rng.u8(..));
                    }
                }
            }
            bytes
        });
    }
}

/// A small object must not claim a large body: a compression bomb ends at the length that its header says.
#[test]
fn bombs_are_refused() {
    let zeros = untorn_ship::object::bytes::compress(&vec![0; 64 << 20]);
    assert!(zeros.len() < 1 << 20);
    let found = untorn_ship::object::bytes::decompress("a bomb", &zeros, 1000);
    assert!(found.is_err_and(|error| error.to_string().contains("another size")));
}
