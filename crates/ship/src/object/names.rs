//! The names of objects. Numbers are decimal and padded, so that a list has the order of the chain.

use crate::interface::Hash;
use std::fmt::Write;

/// Which store the bucket belongs to.
pub const STORE: &str = "store.json";
/// Before the names of log objects.
pub const LOG: &str = "log/";
/// Before the names of manifests.
pub const META: &str = "meta/";
/// Before the names of the parts of snapshots.
pub const SNAP: &str = "snap/";

/// A log object: its generation and first LSN.
pub fn log(generation: u64, lsn: u64) -> String {
    format!("{}{lsn:020}", log_of(generation))
}

/// Before the names of a generation's log objects.
pub fn log_of(generation: u64) -> String {
    format!("{LOG}{generation:010}/")
}

/// A manifest.
pub fn meta(number: u64) -> String {
    format!("{META}{number:010}")
}

/// Head of a snapshot.
pub fn head(number: u64) -> String {
    format!("{SNAP}{number:010}/head")
}

/// An extent of a snapshot.
pub fn extent(number: u64, hash: &Hash) -> String {
    format!("{SNAP}{number:010}/x/{}", hex(hash))
}

/// Bytes as text.
pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

fn number(text: &str, digits: usize) -> Option<u64> {
    (text.len() == digits && text.bytes().all(|c| c.is_ascii_digit())).then(|| text.parse().ok()).flatten()
}

/// Generation and LSN of a log object's name.
pub fn parse_log(name: &str) -> Option<(u64, u64)> {
    let (generation, lsn) = name.strip_prefix(LOG)?.split_once('/')?;
    Some((number(generation, 10)?, number(lsn, 20)?))
}

/// The number in a manifest's name.
pub fn parse_meta(name: &str) -> Option<u64> {
    number(name.strip_prefix(META)?, 10)
}

/// The number in the name of a snapshot's part, and the hash of an extent as text; `None` for the head.
pub fn parse_snap(name: &str) -> Option<(u64, Option<&str>)> {
    let (text, part) = name.strip_prefix(SNAP)?.split_once('/')?;
    let number = number(text, 10)?;
    if part == "head" { Some((number, None)) } else { Some((number, Some(part.strip_prefix("x/")?))) }
}
