//! The four operations of an object store that shipping uses.

pub mod ahead;
pub mod place;
pub mod probe;
pub mod profile;
pub mod remote;
pub mod secrets;
pub mod serve;
pub mod ssh;
pub mod wire;

use bytes::Bytes;
use std::fmt;

/// The answer to a request to create an object.
#[derive(Debug)]
pub enum Created {
    /// The object is durable under its name, and this request made it.
    New,
    /// The name was taken, perhaps by an earlier attempt of this request.
    Exists,
    /// No answer came: the object may be there, may come later, or never.
    Unknown(Failed),
}

/// A request that failed.
#[derive(Clone, Debug)]
pub struct Failed {
    /// The reason, as a sentence without credentials.
    pub reason: String,
    /// Whether the same request can succeed later without a person's help.
    pub is_transient: bool,
}

impl fmt::Display for Failed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.reason)
    }
}

impl std::error::Error for Failed {}

/// An object store. Names have parts, separated by `/`. Every answer is strongly consistent.
pub trait Bucket: Send + Sync {
    /// Creates an object if its name is free. Nothing ever overwrites an object.
    ///
    /// # Errors
    /// The request was refused, and certainly had no effect.
    fn create(&self, name: &str, bytes: Bytes) -> Result<Created, Failed>;
    /// Reads an object of at most `bytes_max` bytes; `None` if the bucket has no object of this name.
    ///
    /// # Errors
    /// No answer, or an object that is larger.
    fn get(&self, name: &str, bytes_max: u64) -> Result<Option<Bytes>, Failed>;
    /// Lists the names that begin with `prefix` and come after `after`, in ascending order of their bytes.
    ///
    /// # Errors
    /// No answer.
    fn list(&self, prefix: &str, after: Option<&str>) -> Result<Vec<String>, Failed>;
    /// Deletes an object. One that is not there is deleted already.
    ///
    /// # Errors
    /// No answer: the object may be deleted, now or later.
    fn delete(&self, name: &str) -> Result<(), Failed>;
    /// Says which objects will be read next, in this order. A bucket may read them before.
    fn expect(&self, names: &mut dyn FnMut() -> Result<Vec<String>, Failed>) {
        let _ = names;
    }
}

impl<B: Bucket + ?Sized> Bucket for Box<B> {
    fn create(&self, name: &str, bytes: Bytes) -> Result<Created, Failed> {
        (**self).create(name, bytes)
    }

    fn get(&self, name: &str, bytes_max: u64) -> Result<Option<Bytes>, Failed> {
        (**self).get(name, bytes_max)
    }

    fn list(&self, prefix: &str, after: Option<&str>) -> Result<Vec<String>, Failed> {
        (**self).list(prefix, after)
    }

    fn delete(&self, name: &str) -> Result<(), Failed> {
        (**self).delete(name)
    }

    fn expect(&self, names: &mut dyn FnMut() -> Result<Vec<String>, Failed>) {
        (**self).expect(names);
    }
}
