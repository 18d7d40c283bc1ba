//! A bucket whose objects are read before they are asked for, several at the same time.

use crate::bucket::{Bucket, Created, Failed};
use bytes::Bytes;
use parking_lot::Mutex;
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};

/// Objects that are read at the same time: as many requests as keep a connection of a gigabit busy at 30 ms.
const READS: usize = 16;
/// If objects are larger than this, fewer are read at the same time.
const LARGE_BYTES: usize = 8 << 20;
const LARGE_READS: usize = 3;

type Found = Result<Option<Bytes>, Failed>;

/// The bucket. [`Bucket::expect`] says which objects come.
pub struct Ahead {
    bucket: Arc<dyn Bucket>,
    bytes_max: u64,
    reading: Mutex<Reading>,
}

#[derive(Default)]
struct Reading {
    /// Names that will be asked for, in their order.
    names: VecDeque<String>,
    /// Requests that were made, in the order of the names.
    begun: VecDeque<(String, Receiver<Found>)>,
    /// Bytes of the largest object so far.
    largest: usize,
}

impl Ahead {
    /// Reads ahead in a bucket whose objects have at most so many bytes.
    pub fn new(bucket: Box<dyn Bucket>, bytes_max: u64) -> Ahead {
        Ahead { bucket: bucket.into(), bytes_max, reading: Mutex::default() }
    }

    /// The request that was made for a name. Names before it are not asked for any more.
    fn begun(&self, name: &str) -> Option<Receiver<Found>> {
        let mut reading = self.reading.lock();
        let begun = match reading.begun.iter().position(|(known, _)| known == name) {
            Some(at) => reading.begun.drain(..=at).next_back().map(|(_, receiver)| receiver),
            None => {
                let at = reading.names.iter().position(|known| known == name)?;
                reading.begun.clear();
                reading.names.drain(..=at);
                None
            }
        };
        let reads = if reading.largest > LARGE_BYTES { LARGE_READS } else { READS };
        while reading.begun.len() < reads
            && let Some(name) = reading.names.pop_front()
        {
            let (sender, receiver) = channel();
            let (bucket, of, bytes_max) = (self.bucket.clone(), name.clone(), self.bytes_max);
            // The answer is not wanted any more if nobody receives it.
            let work = move || drop(sender.send(bucket.get(&of, bytes_max)));
            if std::thread::Builder::new().name("untorn-read".into()).spawn(work).is_ok() {
                reading.begun.push_back((name, receiver));
            }
        }
        begun
    }
}

impl Bucket for Ahead {
    fn create(&self, name: &str, bytes: Bytes) -> Result<Created, Failed> {
        self.bucket.create(name, bytes)
    }

    fn get(&self, name: &str, bytes_max: u64) -> Found {
        let early = self.begun(name).and_then(|receiver| receiver.recv().ok());
        match early {
            Some(Ok(Some(bytes))) if bytes.len() as u64 <= bytes_max => {
                let mut reading = self.reading.lock();
                reading.largest = reading.largest.max(bytes.len());
                Ok(Some(bytes))
            }
            // By now it may be there, or the bucket may answer.
            _ => self.bucket.get(name, bytes_max),
        }
    }

    fn list(&self, prefix: &str, after: Option<&str>) -> Result<Vec<String>, Failed> {
        self.bucket.list(prefix, after)
    }

    fn delete(&self, name: &str) -> Result<(), Failed> {
        self.bucket.delete(name)
    }

    fn expect(&self, names: &mut dyn FnMut() -> Result<Vec<String>, Failed>) {
        // Without them, each object is read when it is asked for.
        let names = names().unwrap_or_default();
        *self.reading.lock() = Reading { names: names.into(), ..Reading::default() };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bucket::remote::ObjectBucket;
    use std::sync::Barrier;

    /// Answers when so many requests are there.
    struct Together(ObjectBucket, Barrier);

    impl Bucket for Together {
        fn create(&self, name: &str, bytes: Bytes) -> Result<Created, Failed> {
            self.0.create(name, bytes)
        }

        fn get(&self, name: &str, bytes_max: u64) -> Found {
            self.1.wait();
            self.0.get(name, bytes_max)
        }

        fn list(&self, prefix: &str, after: Option<&str>) -> Result<Vec<String>, Failed> {
            self.0.list(prefix, after)
        }

        fn delete(&self, name: &str) -> Result<(), Failed> {
            self.0.delete(name)
        }
    }

    fn filled(count: u8) -> (ObjectBucket, Vec<String>) {
        let bucket = ObjectBucket::in_memory();
        let names: Vec<String> = (0..count).map(|n| format!("log/{n:03}")).collect();
        for (name, n) in names.iter().zip(0..) {
            bucket.create(name, vec![n].into()).unwrap();
        }
        (bucket, names)
    }

    #[test]
    fn objects_are_read_at_the_same_time() {
        // The object that is asked for first, and those that come behind it.
        let (bucket, names) = filled(1 + READS as u8);
        let ahead = Ahead::new(Box::new(Together(bucket, Barrier::new(1 + READS))), 100);
        ahead.expect(&mut || Ok(names.clone()));
        for (name, n) in names.iter().zip(0..) {
            assert_eq!(ahead.get(name, 100).unwrap().unwrap(), [n].as_slice(), "{name}");
        }
    }

    #[test]
    fn other_objects_and_late_ones_are_read_when_they_are_asked_for() {
        let (bucket, mut names) = filled(60);
        names.push("log/late".into());
        let ahead = Ahead::new(Box::new(bucket), 100);
        ahead.expect(&mut || Ok(names.clone()));
        assert_eq!(ahead.get("log/000", 100).unwrap().unwrap(), [0].as_slice());
        // Over a hole in the window, over more than a window, back, and something else.
        for (name, wanted) in [("log/005", 5), ("log/050", 50), ("log/003", 3)] {
            assert_eq!(ahead.get(name, 100).unwrap().unwrap(), [wanted].as_slice());
        }
        assert!(ahead.get("log/other", 100).unwrap().is_none());
        assert_eq!(ahead.get("log/059", 100).unwrap().unwrap(), [59].as_slice());
        ahead.create("log/late", vec![1].into()).unwrap();
        assert_eq!(ahead.get("log/late", 100).unwrap().unwrap(), [1].as_slice());
        assert!(ahead.get("log/059", 0).is_err());
    }
}
