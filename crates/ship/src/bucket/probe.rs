//! The proof that a bucket keeps its word: two writers of one name would overwrite each other's log otherwise.

use crate::bucket::{Bucket, Created, Failed};
use bytes::Bytes;

/// How many names are tried.
const ROUNDS: u32 = 4;

/// Largest object of the probe.
const BYTES_MAX: u64 = 4096;

fn broken(what: &str) -> Failed {
    let reason = format!(
        "the bucket does not keep its word: {what}. Two machines could overwrite each other's commits there, so nothing \
         is shipped to it. Use a bucket that supports conditional writes (`If-None-Match: *`) and is strongly \
         consistent, such as Amazon S3, Google Cloud Storage, Azure, R2 or a recent versitygw"
    );
    Failed { reason, is_transient: false }
}

/// Proves that of two requests to create one name exactly one succeeds, that a deleted name is free again, and that
/// reads and lists show each change at once. `random` names the objects, which are deleted again.
///
/// # Errors
/// The bucket does not keep its word, or does not answer.
pub fn probe(bucket: &dyn Bucket, random: &str) -> Result<(), Failed> {
    for round in 0..ROUNDS {
        let name = format!("probe/{random}-{round}");
        let done = probe_name(bucket, &name);
        let deleted = bucket.delete(&name);
        done?;
        deleted?;
    }
    Ok(())
}

fn probe_name(bucket: &dyn Bucket, name: &str) -> Result<(), Failed> {
    let bodies = [0u8, 1].map(|n| Bytes::from(format!("{name} {n}")));
    let mut outcomes = [None, None];
    std::thread::scope(|scope| {
        for (outcome, body) in outcomes.iter_mut().zip(&bodies) {
            scope.spawn(move || *outcome = Some(bucket.create(name, body.clone())));
        }
    });
    let mut made = Vec::new();
    let mut is_unknown = false;
    for (outcome, body) in outcomes.into_iter().zip(&bodies) {
        match outcome {
            Some(Ok(Created::New)) => made.push(body),
            Some(Ok(Created::Exists)) => {}
            Some(Ok(Created::Unknown(_))) | None => is_unknown = true,
            Some(Err(failed)) => return Err(failed),
        }
    }
    let found = bucket.get(name, BYTES_MAX)?;
    if made.len() > 1 {
        return Err(broken("of two requests to create one object, both succeeded"));
    }
    let Some(found) = found else {
        return match is_unknown {
            true => Err(Failed { reason: "the bucket did not answer to its probe".into(), is_transient: true }),
            false => Err(broken("an object that was created cannot be read")),
        };
    };
    if !bodies.contains(&found) || (!is_unknown && made != [&found]) {
        return Err(broken("an object has other bytes than those that were created"));
    }
    if let Created::New = bucket.create(name, Bytes::from_static(b"later"))? {
        return Err(broken("an object that exists was created again"));
    }
    if bucket.get(name, BYTES_MAX)? != Some(found) {
        return Err(broken("a request to create an object that exists changed it"));
    }
    let listed = |bucket: &dyn Bucket| Ok(bucket.list("probe/", None)?.iter().any(|listed| listed == name));
    if !listed(bucket)? {
        return Err(broken("a list lacks an object that was created before"));
    }
    bucket.delete(name)?;
    if bucket.get(name, BYTES_MAX)?.is_some() || listed(bucket)? {
        return Err(broken("an object is still there after it was deleted"));
    }
    if let Created::Exists = bucket.create(name, Bytes::from_static(b"again"))? {
        return Err(broken("the name of a deleted object is not free"));
    }
    Ok(())
}
