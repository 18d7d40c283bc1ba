//! Arguments that several commands share.

use crate::bucket::Bucket;
use crate::bucket::ahead::Ahead;
use crate::bucket::place::Place;
use crate::chain::objects::Objects;
use crate::error::Error;
use crate::object::hash::Nonces;
use crate::object::log::OBJECT_BYTES_MAX;
use crate::program::time_text::parse_time;
use crate::restore::plan::Wanted;
use std::path::PathBuf;
use untorn_terminal::Failure;

impl From<Error> for Failure {
    fn from(e: Error) -> Failure {
        Failure::new(e.to_string())
    }
}

impl From<crate::bucket::Failed> for Failure {
    fn from(failed: crate::bucket::Failed) -> Failure {
        Failure::new(failed.reason)
    }
}

/// Reads a URL.
///
/// # Errors
/// It is none, or contains credentials.
pub fn place(text: &str) -> Result<Place, Failure> {
    Place::parse(text).map_err(|reason| Failure::new(reason).code(2))
}

/// Reads a URL, and opens the bucket, to read many objects of it.
///
/// # Errors
/// It cannot be opened.
pub fn bucket(text: &str) -> Result<Box<dyn Bucket>, Failure> {
    Ok(Box::new(Ahead::new(place(text)?.open(false)?, OBJECT_BYTES_MAX)))
}

/// The objects of a bucket that belongs to a store.
///
/// # Errors
/// It belongs to none, or does not answer.
pub fn objects(bucket: &dyn Bucket) -> Result<Objects<'_>, Failure> {
    Ok(Objects::open(bucket)?)
}

/// A source of numbers that no other process draws.
///
/// # Errors
/// The system gives no random bits.
pub fn nonces() -> Result<Nonces, Failure> {
    Ok(Nonces::new(random()?))
}

/// Random bytes.
///
/// # Errors
/// The system gives none.
pub fn random<const N: usize>() -> Result<[u8; N], Failure> {
    let mut seed = [0; N];
    rustix::rand::getrandom(&mut seed[..], rustix::rand::GetRandomFlags::empty())
        .map_err(|e| Failure::new(format!("the system gives no random bits: {e}")))?;
    Ok(seed)
}

/// Reads `LSN`, `GENERATION/LSN` or a time.
///
/// # Errors
/// The sentence that says how a point is written.
pub fn parse_wanted(text: &str) -> Result<Wanted, String> {
    if let Ok(lsn) = text.trim_start_matches('#').parse() {
        return Ok(Wanted::Lsn(lsn));
    }
    if let Some((generation, lsn)) = text.split_once('/')
        && let (Ok(generation), Ok(lsn)) = (generation.parse(), lsn.parse())
    {
        return Ok(Wanted::In(generation, lsn));
    }
    let form = "a point is a commit's number (1234), one of an abandoned history (3/1234, from `untorn-ship log`), or a \
                time (2026-11-29T08:00:00Z)";
    parse_time(text).map(Wanted::Time).ok_or_else(|| form.to_owned())
}

/// The directory for temporary copies.
pub fn workspace(chosen: Option<PathBuf>) -> PathBuf {
    chosen.unwrap_or_else(std::env::temp_dir)
}
