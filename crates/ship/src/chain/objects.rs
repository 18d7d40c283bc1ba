//! The bucket's objects by their kinds.

use crate::bucket::{Bucket, Created, Failed};
use crate::error::{Error, Result};
use crate::interface::{Hash, StoreId};
use crate::invariant;
use crate::object::hash;
use crate::object::log::{LogObject, OBJECT_BYTES_MAX};
use crate::object::manifest::{MANIFEST_BYTES_MAX, Manifest};
use crate::object::names;
use crate::object::snapshot::{HEAD_BYTES_MAX, Head};
use bytes::Bytes;
use untorn_os::holds;

/// How often something is tried again that others may have disturbed.
pub const ATTEMPTS: u32 = 16;

/// How often an object is sent if no answer comes.
const SENDS: u32 = 3;

/// A bucket, and the store that it belongs to.
#[derive(Clone, Copy)]
pub struct Objects<'a> {
    /// The bucket.
    pub bucket: &'a dyn Bucket,
    /// The store.
    pub store: StoreId,
}

/// The object that is under a name after an attempt to create it.
#[derive(Debug)]
pub enum Placed {
    /// Mine: this request made it.
    Created,
    /// Mine: an earlier attempt made it.
    Mine,
    /// Somebody else's.
    Other(Bytes),
}

impl<'a> Objects<'a> {
    /// The bucket of this store. An empty bucket becomes one.
    ///
    /// # Errors
    /// The bucket belongs to another store, or does not answer.
    pub fn open_or_create(bucket: &'a dyn Bucket, store: StoreId) -> Result<Objects<'a>> {
        if bucket.get(names::STORE, 4096)?.is_none() {
            let text = format!("{{\"format\":1,\"store\":\"{}\"}}\n", names::hex(&store));
            place(bucket, names::STORE, &text.into())?;
        }
        let objects = Objects::open(bucket)?;
        if objects.store == store { Ok(objects) } else { Err(objects.of_other_store()) }
    }

    /// The bucket of whichever store it belongs to.
    ///
    /// # Errors
    /// The bucket is empty, or does not answer.
    pub fn open(bucket: &'a dyn Bucket) -> Result<Objects<'a>> {
        let Some(bytes) = bucket.get(names::STORE, 4096)? else {
            return Err(Error::NotThere("the bucket is empty: nothing was shipped to it".into()));
        };
        match parse_store(&bytes) {
            Some(store) => Ok(Objects { bucket, store }),
            None => Err(Error::Damaged { name: names::STORE.into(), reason: "it does not name a store".into() }),
        }
    }

    fn of_other_store(&self) -> Error {
        Error::OtherStore { found: names::hex(&self.store) }
    }

    /// A log object.
    ///
    /// # Errors
    /// The bucket does not answer, or the object is damaged.
    pub fn log(&self, generation: u64, lsn: u64) -> Result<Option<LogObject>> {
        let name = names::log(generation, lsn);
        let bytes = self.bucket.get(&name, OBJECT_BYTES_MAX)?;
        bytes.map(|bytes| LogObject::decode(&name, Some(&self.store), &bytes)).transpose()
    }

    /// Head of a snapshot.
    ///
    /// # Errors
    /// The bucket does not answer, or the object is damaged.
    pub fn head(&self, number: u64) -> Result<Option<Head>> {
        let name = names::head(number);
        let bytes = self.bucket.get(&name, HEAD_BYTES_MAX)?;
        bytes.map(|bytes| Head::decode(&name, Some(&self.store), &bytes)).transpose()
    }

    /// A manifest.
    ///
    /// # Errors
    /// The bucket does not answer, or the object is damaged.
    pub fn manifest(&self, number: u64) -> Result<Option<Manifest>> {
        let name = names::meta(number);
        let bytes = self.bucket.get(&name, MANIFEST_BYTES_MAX)?;
        bytes.map(|bytes| Manifest::decode(&name, Some(&self.store), &bytes)).transpose()
    }

    /// The highest number of a manifest, 0 if there is none.
    ///
    /// # Errors
    /// The bucket does not answer.
    pub fn highest(&self) -> Result<u64> {
        let names = self.bucket.list(names::META, None)?;
        Ok(names.iter().filter_map(|name| names::parse_meta(name)).max().unwrap_or(0))
    }

    /// The newest manifest.
    ///
    /// # Errors
    /// The bucket does not answer, or the object is damaged.
    pub fn newest(&self) -> Result<Manifest> {
        for _ in 0..ATTEMPTS {
            match self.highest()? {
                0 => return Ok(Manifest::first(&self.store)),
                // The two highest are never deleted: if this one was, there are others by now.
                number => {
                    if let Some(manifest) = self.manifest(number)? {
                        return Ok(manifest);
                    }
                }
            }
        }
        Err(Error::Busy(ATTEMPTS))
    }

    /// A log object beyond this place, the end of the chain: the object that leads there is on its way, or lost.
    ///
    /// # Errors
    /// The bucket does not answer.
    pub fn beyond(&self, tip: (u64, u64)) -> Result<Option<String>> {
        // The end of the chain itself is below the next name.
        let listed = self.bucket.list(names::LOG, Some(&names::log(tip.0, tip.1)))?;
        Ok(listed.into_iter().find(|name| names::parse_log(name).is_some_and(|place| place > tip)))
    }

    /// Publishes a manifest. False if another one was published instead.
    ///
    /// # Errors
    /// It is not known whether the manifest counts.
    pub fn publish(&self, manifest: &Manifest) -> Result<bool> {
        match place_unless(self.bucket, &names::meta(manifest.number), &manifest.encode(), &|| {
            // A number that was given and deleted: this object will not count, even if it arrives.
            Ok(self.highest()? > manifest.number)
        })? {
            Some(Placed::Created | Placed::Mine) => self.stands(manifest),
            Some(Placed::Other(_)) | None => Ok(false),
        }
    }

    /// Whether a manifest that was created counts: a slow process may have created a number that was deleted.
    fn stands(&self, manifest: &Manifest) -> Result<bool> {
        if !holds(invariant::MANIFEST_IS_VERIFIED) {
            return Ok(true);
        }
        if !holds(invariant::MANIFEST_BY_ITS_SUCCESSOR) {
            return Ok(manifest.number == 1 || self.manifest(manifest.number - 1)?.is_some());
        }
        if self.highest()? == manifest.number {
            return Ok(true);
        }
        Ok(self.manifest(manifest.number + 1)?.is_some_and(|next| next.previous == manifest.nonce))
    }
}

fn parse_store(bytes: &[u8]) -> Option<StoreId> {
    let text = std::str::from_utf8(bytes).ok()?;
    let hex = text.strip_prefix("{\"format\":1,\"store\":\"")?.split_once('"')?.0;
    if hex.len() != 32 || !hex.is_ascii() {
        return None;
    }
    let bytes: Option<Vec<u8>> = (0..16).map(|n| u8::from_str_radix(&hex[2 * n..2 * n + 2], 16).ok()).collect();
    bytes?.try_into().ok()
}

/// Creates an object, and finds out by reading if the answer does not say whether it was done.
///
/// # Errors
/// It is not known whether the object is there, or will come.
pub fn place(bucket: &dyn Bucket, name: &str, bytes: &Bytes) -> Result<Placed> {
    Ok(place_unless(bucket, name, bytes, &|| Ok(false))?.expect("never given up"))
}

/// Creates it as [`place`] does. `None` if the object is not there, and is not to be sent again.
fn place_unless(
    bucket: &dyn Bucket,
    name: &str,
    bytes: &Bytes,
    is_too_late: &dyn Fn() -> Result<bool>,
) -> Result<Option<Placed>> {
    let wanted: Hash = hash::of(bytes);
    let mut failed = Failed { reason: format!("{name} disappears again and again"), is_transient: true };
    for _ in 0..SENDS {
        match bucket.create(name, bytes.clone())? {
            Created::New => return Ok(Some(Placed::Created)),
            Created::Exists => {}
            Created::Unknown(reason) => failed = reason,
        }
        match bucket.get(name, bytes.len() as u64 + OBJECT_BYTES_MAX)? {
            Some(found) if hash::of(&found) == wanted => return Ok(Some(Placed::Mine)),
            Some(found) => return Ok(Some(Placed::Other(found))),
            None if is_too_late()? => return Ok(None),
            None => {}
        }
    }
    Err(failed.into())
}
