//! Random numbers.

/// Returns a random number that nobody can guess.
pub fn rand_u128() -> u128 {
    let mut bytes = [0; 16];
    let got = rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty());
    assert_eq!(got, Ok(bytes.len()), "the system has random numbers");
    u128::from_ne_bytes(bytes)
}
