//! Buckets of object stores, in memory, and in a local directory, behind the four operations.
//!
//! Calls block; the requests run on a small runtime. A request to create an object is sent once: if no answer comes,
//! the object may still appear later, and only the protocol knows how to find that out. Reading, listing and deleting
//! are repeated.

use crate::bucket::secrets::Secrets;
use crate::bucket::{Bucket, Created, Failed};
use bytes::{Bytes, BytesMut};
use futures_util::StreamExt;
use object_store::path::Path;
use object_store::{Error, ObjectStore, ObjectStoreExt, PutMode, PutOptions, PutPayload};
use std::ffi::OsStr;
use std::io::ErrorKind;
use std::path::{Path as FilePath, PathBuf};
use std::sync::{Arc, Once, OnceLock};
use std::time::Duration;
use tokio::runtime::{Builder, Runtime};

/// The time limit of a request, without its bytes.
const REQUEST: Duration = Duration::from_secs(30);

/// The slowest transfer that is waited for.
const BYTES_PER_SECOND_MIN: u64 = 128 << 10;

/// How often a request that has no effect is sent.
const ATTEMPTS: u32 = 4;

/// A file of an upload that is older than this belongs to a process that was killed.
const UPLOAD: Duration = Duration::from_secs(86_400);

/// A bucket, or a prefix in one.
pub struct ObjectBucket {
    store: Arc<dyn ObjectStore>,
    /// The part of all names that the URL gives.
    prefix: Option<Path>,
    /// The directory, if this is one.
    directory: Option<PathBuf>,
    secrets: Secrets,
    /// Done before the first object is created.
    removal: Once,
}

/// The runtime of all buckets.
fn runtime() -> Result<&'static Runtime, Failed> {
    static RUNTIME: OnceLock<Option<Runtime>> = OnceLock::new();
    let make = || Builder::new_multi_thread().worker_threads(2).thread_name("untorn-bucket").enable_all().build().ok();
    let failed = || Failed { reason: "no thread can be started for the bucket's requests".into(), is_transient: true };
    RUNTIME.get_or_init(make).as_ref().ok_or_else(failed)
}

impl ObjectBucket {
    /// A bucket of any object store.
    pub fn new(store: Arc<dyn ObjectStore>, prefix: Option<Path>, secrets: Secrets) -> ObjectBucket {
        ObjectBucket { store, prefix, directory: None, secrets, removal: Once::new() }
    }

    /// A bucket in memory.
    pub fn in_memory() -> ObjectBucket {
        ObjectBucket::new(Arc::new(object_store::memory::InMemory::new()), None, Secrets::default())
    }

    /// A local directory, which exists.
    ///
    /// # Errors
    /// It is none.
    pub fn in_directory(directory: PathBuf) -> Result<ObjectBucket, Failed> {
        check_directory(&directory)?;
        let refused = |e: Error| Failed { reason: format!("open {}: {e}", directory.display()), is_transient: false };
        let store = object_store::local::LocalFileSystem::new_with_prefix(&directory).map_err(refused)?;
        let bucket = ObjectBucket::new(Arc::new(store.with_fsync(true)), None, Secrets::default());
        Ok(ObjectBucket { directory: Some(directory), ..bucket })
    }

    /// Removes the files `NAME#1` that uploads into this directory left, if they were killed more than a day ago.
    ///
    /// Such a file is no object, and only takes room: one that cannot be removed stays.
    fn remove_left_uploads(&self) {
        let Some(directory) = &self.directory else { return };
        // Not the whole directory: somebody may keep files of their own beside Untorn's.
        let mut ahead: Vec<PathBuf> = ["log", "meta", "probe", "snap"].map(|part| directory.join(part)).into();
        while let Some(at) = ahead.pop() {
            for entry in std::fs::read_dir(&at).into_iter().flatten().flatten() {
                let Ok(kind) = entry.file_type() else { continue };
                let modified = || entry.metadata().and_then(|about| about.modified());
                if kind.is_dir() {
                    ahead.push(entry.path());
                } else if kind.is_file()
                    && is_of_upload(&entry.file_name())
                    && modified().is_ok_and(|then| then.elapsed().is_ok_and(|age| age > UPLOAD))
                {
                    let _ = std::fs::remove_file(entry.path());
                }
            }
        }
    }

    fn path(&self, name: &str) -> Path {
        self.prefix.iter().flat_map(Path::parts).chain(Path::from(name).parts()).collect()
    }

    fn name(&self, path: &Path) -> Option<String> {
        match &self.prefix {
            None => Some(path.to_string()),
            Some(prefix) => Some(path.as_ref().strip_prefix(prefix.as_ref())?.strip_prefix('/')?.to_owned()),
        }
    }

    fn failed(&self, verb: &str, name: &str, e: &Error) -> Failed {
        let is_transient = matches!(e, Error::Generic { .. } | Error::JoinError { .. } | Error::Precondition { .. });
        let text = chain_of(e);
        let reason = self.secrets.remove_from(&format!("{verb} {name} in the bucket: {text}{}", advice(e, &text)));
        Failed { reason, is_transient }
    }

    fn no_answer(&self, verb: &str, name: &str, limit: Duration) -> Failed {
        let reason = format!("{verb} {name} in the bucket: no answer within {} s", limit.as_secs());
        Failed { reason, is_transient: true }
    }

    /// Sends a request that can be repeated.
    fn repeated<T, F: Future<Output = Result<T, Error>>>(
        &self,
        verb: &str,
        name: &str,
        limit: Duration,
        mut request: impl FnMut() -> F,
    ) -> Result<Option<T>, Failed> {
        let runtime = runtime()?;
        let mut pause = Duration::from_millis(100);
        let mut last = None;
        for attempt in 0..ATTEMPTS {
            if attempt > 0 {
                std::thread::sleep(pause);
                pause *= 4;
            }
            let failed = match runtime.block_on(async { tokio::time::timeout(limit, request()).await }) {
                Ok(Ok(done)) => return Ok(Some(done)),
                Ok(Err(Error::NotFound { .. })) => return Ok(None),
                Ok(Err(e)) => self.failed(verb, name, &e),
                Err(_) => self.no_answer(verb, name, limit),
            };
            let is_final = !failed.is_transient;
            last = Some(failed);
            if is_final {
                break;
            }
        }
        Err(last.unwrap_or_else(|| self.no_answer(verb, name, limit)))
    }

    /// Flushes the directory of an object that another process made, perhaps one that was killed before its flush.
    fn flush_directory(&self, name: &str) -> Result<(), Failed> {
        let Some(directory) = &self.directory else { return Ok(()) };
        let path = directory.join(name);
        let parents = path.ancestors().skip(1).take_while(|parent| parent.starts_with(directory));
        for parent in parents {
            let flushed = std::fs::File::open(parent).and_then(|parent| parent.sync_all());
            flushed.map_err(|e| Failed { reason: format!("flush {}: {e}", parent.display()), is_transient: true })?;
        }
        Ok(())
    }
}

/// Refuses a path that is no directory.
fn check_directory(directory: &FilePath) -> Result<(), Failed> {
    let reason = match std::fs::metadata(directory) {
        Ok(about) if about.is_dir() => return Ok(()),
        Ok(_) => format!("{} is no directory: give the URL of one", directory.display()),
        Err(e) if e.kind() == ErrorKind::NotFound => format!(
            "the directory {} is not there: correct the URL, or mount its disk; `untorn-ship ship` makes a new one",
            directory.display()
        ),
        Err(e) => format!("open {}: {e}", directory.display()),
    };
    Err(Failed { reason, is_transient: false })
}

/// Whether a file has the name of an unfinished upload: that of an object, `#` and a number.
fn is_of_upload(name: &OsStr) -> bool {
    let is_object =
        |name: &str| name == "head" || (name.len() >= 10 && name.bytes().all(|c| c.is_ascii_hexdigit() || c == b'-'));
    let parts = name.to_str().and_then(|name| name.split_once('#'));
    parts.is_some_and(|(name, number)| {
        is_object(name) && !number.is_empty() && number.bytes().all(|c| c.is_ascii_digit())
    })
}

/// The sentence that says what to do about an error with this text.
fn advice(e: &Error, text: &str) -> &'static str {
    // The machines of a cloud ask there for credentials if nothing else gives any.
    let asks_machine = text.contains("169.254.169.254") || text.contains("metadata.google.internal");
    if asks_machine && text.contains("computeMetadata") {
        return "; no credentials were found: set GOOGLE_APPLICATION_CREDENTIALS, or log in with `gcloud auth \
                application-default login`";
    }
    if asks_machine && text.contains("metadata/identity") {
        return "; no credentials were found: set AZURE_STORAGE_ACCOUNT_NAME and AZURE_STORAGE_ACCOUNT_KEY";
    }
    if asks_machine {
        return "; no credentials were found: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or choose a profile of \
                ~/.aws/credentials with AWS_PROFILE";
    }
    match e {
        Error::PermissionDenied { .. } => "; check the credentials, the clock, and the rights of this user there",
        Error::Unauthenticated { .. } => "; check the credentials",
        Error::NotFound { .. } => "; check that the bucket exists",
        _ => "",
    }
}

/// The error with its causes.
fn chain_of(e: &Error) -> String {
    let mut text = e.to_string();
    let mut cause = std::error::Error::source(e);
    while let Some(e) = cause {
        let part = e.to_string();
        if !text.contains(&part) {
            text = format!("{text}: {part}");
        }
        cause = e.source();
    }
    text
}

fn limit_for(bytes: u64) -> Duration {
    REQUEST + Duration::from_secs(bytes / BYTES_PER_SECOND_MIN)
}

impl Bucket for ObjectBucket {
    fn create(&self, name: &str, bytes: Bytes) -> Result<Created, Failed> {
        self.removal.call_once(|| self.remove_left_uploads());
        let (path, limit) = (self.path(name), limit_for(bytes.len() as u64));
        let options = PutOptions { mode: PutMode::Create, ..PutOptions::default() };
        let request = async {
            let sent = self.store.put_opts(&path, PutPayload::from_bytes(bytes), options);
            tokio::time::timeout(limit, sent).await
        };
        match runtime()?.block_on(request) {
            Ok(Ok(_)) => Ok(Created::New),
            // A conflict with another request is among these: the protocol reads the object.
            Ok(Err(Error::AlreadyExists { .. } | Error::Precondition { .. } | Error::NotModified { .. })) => {
                self.flush_directory(name)?;
                Ok(Created::Exists)
            }
            Ok(Err(e @ (Error::Generic { .. } | Error::JoinError { .. }))) => {
                Ok(Created::Unknown(self.failed("create", name, &e)))
            }
            Ok(Err(e)) => Err(self.failed("create", name, &e)),
            Err(_) => Ok(Created::Unknown(self.no_answer("create", name, limit))),
        }
    }

    fn get(&self, name: &str, bytes_max: u64) -> Result<Option<Bytes>, Failed> {
        let path = self.path(name);
        let read = self.repeated("read", name, limit_for(bytes_max), || async {
            let found = self.store.get(&path).await?;
            if found.meta.size > bytes_max {
                return Ok(Err(found.meta.size));
            }
            let mut bytes = BytesMut::with_capacity(found.meta.size as usize);
            let mut parts = found.into_stream();
            while let Some(part) = parts.next().await {
                bytes.extend_from_slice(&part?);
                // The server may send more than it announced.
                if bytes.len() as u64 > bytes_max {
                    return Ok(Err(bytes.len() as u64));
                }
            }
            Ok(Ok(bytes.freeze()))
        })?;
        let too_large = |size| Failed {
            reason: format!("{name} in the bucket has {size} bytes, which Untorn never writes: it is not Untorn's"),
            is_transient: false,
        };
        read.transpose().map_err(too_large)
    }

    fn list(&self, prefix: &str, after: Option<&str>) -> Result<Vec<String>, Failed> {
        // An object store lists whole parts of names.
        let directory = prefix.rsplit_once('/').map_or("", |(directory, _)| directory);
        let path = (!directory.is_empty()).then(|| self.path(directory)).or_else(|| self.prefix.clone());
        let after = after.map(|name| self.path(name));
        let listed = self.repeated("list", prefix, REQUEST * 20, || async {
            let found = match &after {
                Some(after) => self.store.list_with_offset(path.as_ref(), after),
                None => self.store.list(path.as_ref()),
            };
            let found: Vec<_> = found.collect().await;
            found.into_iter().map(|found| Ok(found?.location)).collect::<Result<Vec<Path>, Error>>()
        })?;
        let names = listed.unwrap_or_default().into_iter().filter_map(|path| self.name(&path));
        let mut names: Vec<String> = names.filter(|name| name.starts_with(prefix)).collect();
        names.sort_unstable();
        Ok(names)
    }

    fn delete(&self, name: &str) -> Result<(), Failed> {
        let path = self.path(name);
        self.repeated("delete", name, REQUEST, || self.store.delete(&path)).map(|_| ())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_without_credentials_says_where_they_come_from() {
        let said = |text: &str| {
            let e = Error::Generic { store: "S3", source: text.to_owned().into() };
            ObjectBucket::in_memory().failed("read", "a", &e).reason
        };
        assert!(said("PUT http://169.254.169.254/latest/api/token").contains("AWS_ACCESS_KEY_ID"));
        assert!(said("GET http://metadata.google.internal/computeMetadata/v1").contains("GOOGLE_APPLICATION"));
        assert!(!said("GET http://host/a").contains("credentials"));
    }

    #[test]
    fn names_of_unfinished_uploads_are_those_of_objects_with_a_number() {
        for name in ["0000000001#1", "head#12", "00000000000000000007#3", "0123456789abcdef-0#1"] {
            assert!(is_of_upload(OsStr::new(name)), "{name}");
        }
        for name in ["head", "head#", "head#x", "0000000001#1#2", "notes#1", "7#1", "#1"] {
            assert!(!is_of_upload(OsStr::new(name)), "{name}");
        }
    }
}
