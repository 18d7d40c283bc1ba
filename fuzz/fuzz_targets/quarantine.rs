#![no_main]

// Each target uses one of them.
#[allow(dead_code)]
#[path = "../entries.rs"]
mod entries;

libfuzzer_sys::fuzz_target!(|input: &[u8]| entries::quarantine(input));
