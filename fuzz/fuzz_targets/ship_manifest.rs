#![no_main]

// Each target uses one of them.
#[allow(dead_code)]
#[path = "../ship.rs"]
mod ship;

libfuzzer_sys::fuzz_target!(|input: &[u8]| ship::manifest(input));
