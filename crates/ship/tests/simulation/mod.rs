//! Machines, processes and a bucket in one simulation, with the real code of shipping behind them.
//!
//! Each process is a thread that stands still at every call of the bucket and of its store until the simulation lets it
//! go on: the simulation decides the order of everything, by its seed or by a script.

// Each test program uses a part.
#![allow(dead_code)]

pub mod checks;
pub mod contents;
pub mod directed;
pub mod machine;
pub mod processes;
pub mod random;
pub mod world;

use bytes::Bytes;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use untorn_ship::bucket::{Bucket, Created, Failed};

/// The id of the store.
pub const STORE: [u8; 16] = [7; 16];

/// A bucket that does as it is told at once.
#[derive(Default)]
pub struct Plain(pub Mutex<BTreeMap<String, Bytes>>);

impl Bucket for Plain {
    fn create(&self, name: &str, bytes: Bytes) -> Result<Created, Failed> {
        let mut objects = self.0.lock();
        if objects.contains_key(name) {
            return Ok(Created::Exists);
        }
        objects.insert(name.to_owned(), bytes);
        Ok(Created::New)
    }

    fn get(&self, name: &str, bytes_max: u64) -> Result<Option<Bytes>, Failed> {
        let found = self.0.lock().get(name).cloned();
        let fits = found.as_ref().is_none_or(|bytes| bytes.len() as u64 <= bytes_max);
        if fits { Ok(found) } else { Err(Failed { reason: "too large".into(), is_transient: false }) }
    }

    fn list(&self, prefix: &str, after: Option<&str>) -> Result<Vec<String>, Failed> {
        let objects = self.0.lock();
        let wanted = |name: &&String| name.starts_with(prefix) && after.is_none_or(|after| name.as_str() > after);
        Ok(objects.keys().filter(wanted).cloned().collect())
    }

    fn delete(&self, name: &str) -> Result<(), Failed> {
        self.0.lock().remove(name);
        Ok(())
    }
}
