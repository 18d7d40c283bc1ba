//! Settings of a test: environment variables, the part of a long test that a run takes, the user who runs it.

use std::fmt::Debug;
use std::str::FromStr;

/// User and group of a test that must not be root.
pub const NOBODY: u32 = 65534;

/// The value of an environment variable.
///
/// # Panics
/// The value is of another type.
pub fn variable<T: FromStr>(name: &str) -> Option<T> {
    let text = std::env::var(name).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{name}={text} cannot be understood")))
}

/// The value of an environment variable, or the usual value.
///
/// # Panics
/// The value is of another type.
pub fn variable_or<T: FromStr>(name: &str, usual: T) -> T {
    variable(name).unwrap_or(usual)
}

/// The seed of a random test: `UNTORN_TEST_SEED` repeats a run, and the default is always the same.
pub fn seed() -> u64 {
    let seed = variable_or("UNTORN_TEST_SEED", 20_260_101);
    println!("seed {seed} (UNTORN_TEST_SEED={seed} makes the same choices)");
    seed
}

/// Whether everything is to be tested (`make test-full`), not only a part of each long test.
pub fn is_full() -> bool {
    std::env::var_os("UNTORN_FULL").is_some()
}

/// The extent of a long test: seconds, programs or states, for a usual run and for a full one.
pub fn extent<T>(usual: T, full: T) -> T {
    if is_full() { full } else { usual }
}

/// The seed of a test that takes another part of its cases in each run. It is printed, and `UNTORN_TEST_SEED` repeats
/// the run.
pub fn drawn_seed() -> u64 {
    let seed = variable("UNTORN_TEST_SEED").unwrap_or_else(|| fastrand::u64(1..1_000_000));
    println!("seed {seed} (UNTORN_TEST_SEED={seed} makes the same choices)");
    seed
}

/// The cases that this run tests: all if it is [full](is_full), otherwise `most`, chosen by the seed and printed.
pub fn slice<T: Clone + Debug>(cases: &[T], most: usize, seed: u64) -> Vec<T> {
    if cases.len() <= most || is_full() {
        return cases.to_vec();
    }
    let mut order: Vec<usize> = (0..cases.len()).collect();
    fastrand::Rng::with_seed(seed).shuffle(&mut order);
    order.truncate(most);
    order.sort_unstable();
    let chosen: Vec<T> = order.into_iter().map(|at| cases[at].clone()).collect();
    println!("{most} of {} cases (UNTORN_FULL=1 tests all): {chosen:?}", cases.len());
    chosen
}

/// Whether this process is root.
pub fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slice_is_the_same_for_the_same_seed() {
        let cases: Vec<u32> = (0..100).collect();
        let (one, same, other) = (slice(&cases, 5, 1), slice(&cases, 5, 1), slice(&cases, 5, 2));
        assert!(one == same && (is_full() || one != other && one.len() == 5), "{one:?}, {same:?}, {other:?}");
    }
}
