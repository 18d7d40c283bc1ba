//! The operations of every store that takes part.

use crate::measuring::harness::Activity;
use anyhow::{Result, ensure};
use fastrand::Rng;

pub const KEY_BYTES: usize = 24;

pub type Key = [u8; KEY_BYTES];

/// A key and its value.
#[derive(Clone, Copy)]
pub struct Entry<'a> {
    pub key: &'a Key,
    pub value: &'a [u8],
}

/// An open key-value store. The changes of each `put` or `delete` are one commit, which is durable when the call
/// returns.
pub trait Store {
    fn put(&mut self, entries: &[Entry<'_>]) -> Result<()>;
    fn delete(&mut self, key: &Key) -> Result<()>;
    /// Reads the keys one after the other, and returns the sum of all [`taste`]s.
    fn read(&mut self, keys: &[Key]) -> Result<u64>;
    /// Reads everything in the store's own order.
    fn scan(&mut self) -> Result<Scan>;
    /// The activity of Untorn's store so far.
    fn activity(&self) -> Result<Option<Activity>> {
        Ok(None)
    }
    /// Whether the store keeps its entries; the floor does not.
    fn keeps(&self) -> bool {
        true
    }
}

/// The result of a scan.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Scan {
    pub count: u64,
    /// The sum of all tastes.
    pub sum: u64,
}

impl Scan {
    pub fn add(&mut self, value: &[u8]) {
        self.count += 1;
        self.sum += taste(value);
    }
}

/// A little work on a value that was read, the same for all stores.
pub fn taste(value: &[u8]) -> u64 {
    match value {
        [] => 0,
        [.., last] => value.len() as u64 + u64::from(value[0]) + u64::from(*last),
    }
}

/// The n-th key: text that does not follow the order of the numbers.
pub fn key(n: u64) -> Key {
    let scattered = (n + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    let text = format!("{scattered:016x}{n:08x}");
    text.as_bytes().try_into().expect("24 digits")
}

/// The expected contents of a store, in the order of the keys' numbers.
pub struct Expected {
    tastes: Vec<Option<u64>>,
}

impl Expected {
    pub fn new(keys: usize) -> Expected {
        Expected { tastes: vec![None; keys] }
    }

    pub fn put(&mut self, n: usize, value: &[u8]) {
        self.tastes[n] = Some(taste(value));
    }

    pub fn delete(&mut self, n: usize) {
        self.tastes[n] = None;
    }

    pub fn taste(&self, n: usize) -> Option<u64> {
        self.tastes[n]
    }

    pub fn scan(&self) -> Scan {
        let there = self.tastes.iter().flatten();
        Scan { count: there.clone().count() as u64, sum: there.sum() }
    }

    /// Compares a store with the expected contents, by a scan and by reads.
    pub fn compare(&self, store: &mut dyn Store, keys: &[Key]) -> Result<()> {
        if store.keeps() {
            let (wanted, found, read) = (self.scan(), store.scan()?, store.read(keys)?);
            ensure!(found == wanted && read == wanted.sum, "holds {found:?}, reads {read}, instead of {wanted:?}");
        }
        Ok(())
    }
}

/// The keys' numbers in a new random order.
pub fn shuffled(keys: usize, random: &mut Rng) -> Vec<usize> {
    let mut order: Vec<usize> = (0..keys).collect();
    random.shuffle(&mut order);
    order
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_distinct_and_out_of_order() {
        let keys: Vec<Key> = (0..1000).map(key).collect();
        let distinct: std::collections::BTreeSet<&Key> = keys.iter().collect();
        assert_eq!(distinct.len(), 1000);
        assert!(!keys.is_sorted() && !keys.iter().rev().is_sorted());
    }

    /// A store that loses a value, or has a wrong one.
    struct Liar(Scan);

    impl Store for Liar {
        fn put(&mut self, _: &[Entry<'_>]) -> Result<()> {
            Ok(())
        }
        fn delete(&mut self, _: &Key) -> Result<()> {
            Ok(())
        }
        fn read(&mut self, _: &[Key]) -> Result<u64> {
            Ok(self.0.sum)
        }
        fn scan(&mut self) -> Result<Scan> {
            Ok(self.0)
        }
    }

    #[test]
    fn a_store_that_does_not_hold_what_it_should_is_found_out() {
        let mut expected = Expected::new(3);
        expected.put(0, b"first");
        expected.put(2, b"second");
        expected.put(0, b"again");
        expected.delete(2);
        let right = Scan { count: 1, sum: taste(b"again") };
        assert_eq!(expected.scan(), right);
        assert!(expected.compare(&mut Liar(right), &[]).is_ok());
        assert!(expected.compare(&mut Liar(Scan { count: 2, ..right }), &[]).is_err());
        assert!(expected.compare(&mut Liar(Scan { sum: taste(b"first") + 1, ..right }), &[]).is_err());
    }
}
