//! `ship`.

use crate::bucket::Bucket;
use crate::bucket::place::Place;
use crate::bucket::probe::probe;
use crate::object::names::hex;
use crate::program::arguments::{nonces, place, random};
use crate::program::interrupts::stop_flag;
use crate::program::metrics::Metrics;
use crate::program::shipping::{Settings, ship};
use crate::program::status;
use crate::program::time_text::parse_interval;
use crate::ship::start::Mode;
use crate::store::live::LiveStore;
use clap::{Args, ValueHint};
use std::fs::File;
use std::io::Write;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use untorn::Slot;
use untorn_terminal::{Failure, Output};

/// Ship the commits of a store to an object store, until it is stopped.
///
/// The store keeps its log for the slot until it is shipped. Credentials come from the environment
/// (AWS_ACCESS_KEY_ID, GOOGLE_APPLICATION_CREDENTIALS, AZURE_STORAGE_ACCOUNT_NAME, …) and from the files of the
/// cloud's own programs, never from the URL.
#[derive(Args)]
pub struct Ship {
    /// The store: a directory, or a file with its store beside it.
    #[arg(value_hint = ValueHint::AnyPath)]
    store: PathBuf,
    /// The place: s3://BUCKET/PREFIX, gs://…, az://… or file:///DIRECTORY.
    #[arg(required_unless_present = "status", conflicts_with = "status")]
    url: Option<String>,
    /// Go on instead of another machine, which is shut out.
    #[arg(long, conflicts_with = "fork")]
    take_over: bool,
    /// Begin another history, and abandon the commits of the bucket that this store lacks. With a number: only if
    /// this is the bucket's newest commit.
    #[arg(long, value_name = "LSN", num_args = 0..=1, require_equals = true)]
    fork: Option<Option<u64>>,
    /// Wait so long between two looks at the store.
    #[arg(long, value_name = "DURATION", default_value = "1s", value_parser = parse_interval)]
    interval: Duration,
    /// The slot in the store, one for each place.
    #[arg(long, value_name = "NAME", default_value = "ship")]
    slot: String,
    /// Keep at most so many bytes of log for a new slot [default: 16 GiB, or a tenth of the free space].
    #[arg(long, value_name = "BYTES")]
    cap: Option<u64>,
    /// Ship all commits that are made by now, and end.
    #[arg(long)]
    once: bool,
    /// Serve figures for Prometheus at this address, for example 127.0.0.1:9469.
    #[arg(long, value_name = "ADDRESS")]
    metrics: Option<SocketAddr>,
    /// Show how far the store's slots are, and ship nothing.
    #[arg(long)]
    status: bool,
    /// Print JSON, one object for each event.
    #[arg(long)]
    json: bool,
}

impl Ship {
    /// Ships.
    pub fn run(self) -> Result<Output, Failure> {
        let url = match &self.url {
            Some(url) if !self.status => url.clone(),
            _ => return status::show(&self.store, self.json),
        };
        let place = place(&url)?;
        if let Some(directory) = place.directory() {
            check_apart(&self.store, directory)?;
        }
        let mut store = LiveStore::open(&self.store, &self.slot, self.cap)?;
        let _lock = lock(&store, &self.store, &self.slot)?;
        let has_shipped = has_shipped(&store, &place)?;
        if has_shipped && place.directory().is_some_and(|directory| matches!(directory.try_exists(), Ok(false))) {
            return Err(Failure::new(self.empty(&place)));
        }
        let bucket = place.open(!has_shipped)?;
        prove(&bucket, &place, &store)?;
        let is_stopped = stop_flag("ends when its requests are answered")?;
        let metrics = Arc::new(Metrics::default());
        if let Some(address) = self.metrics {
            Metrics::serve(&metrics, address)?;
        }
        let mode = match self.fork {
            Some(tip) => Mode::Fork { tip },
            None if self.take_over => Mode::TakeOver,
            None => Mode::Automatic,
        };
        let settings = Settings {
            mode,
            interval: self.interval,
            is_once: self.once,
            json: self.json,
            name: place.name(),
            has_shipped,
            empty: self.empty(&place),
            is_stopped,
            metrics,
        };
        ship(&mut store, &bucket, &mut nonces()?, &settings)
    }

    /// The message for a place that has nothing any more.
    fn empty(&self, place: &Place) -> String {
        format!(
            "{} is empty, though this slot has shipped to it: is its disk mounted, was it deleted? To begin anew there, \
             drop the slot (`untorn slots {} --drop {}`)",
            place.name(),
            self.store.display(),
            self.slot
        )
    }
}

/// Refuses a place inside of the store, whose objects would be shipped, and a store inside of the place.
fn check_apart(store: &Path, directory: &Path) -> Result<(), Failure> {
    let (real, place) = (without_links(store), without_links(directory));
    let (inner, outer) = match (place.starts_with(&real), real.starts_with(&place)) {
        (true, _) => (directory, store),
        (_, true) => (store, directory),
        _ => return Ok(()),
    };
    Err(Failure::new(format!(
        "{} is inside of {}: ship to a directory beside the store, best on another disk",
        inner.display(),
        outer.display()
    )))
}

/// The path without symbolic links, also of a directory that is not there yet.
fn without_links(path: &Path) -> PathBuf {
    let found = path.ancestors().find_map(|at| Some((at, at.canonicalize().ok()?)));
    found.map_or_else(|| path.to_owned(), |(at, real)| real.join(path.strip_prefix(at).unwrap_or(Path::new(""))))
}

/// Whether commits were shipped to this place with the store's slot. A new slot has an acknowledgement without a time;
/// one that a power cut tore counts as shipped.
fn has_shipped(store: &LiveStore, place: &Place) -> Result<bool, Failure> {
    let Some(slot) = store.slot() else { return Ok(false) };
    Ok(is_proved(slot, place) && slot.acknowledged()?.is_none_or(|last| last.time_ns != 0))
}

fn is_proved(slot: &Slot, place: &Place) -> bool {
    std::fs::read_to_string(slot.dir().join("bucket")).is_ok_and(|proved| proved == place.name())
}

fn lock(store: &LiveStore, path: &Path, name: &str) -> Result<impl Sized + use<>, Failure> {
    let slot = store.slot().ok_or_else(|| Failure::new("the store has no slot"))?;
    slot.lock().map_err(|e| match e {
        untorn::Error::Busy { .. } => Failure::new(format!(
            "another process ships {} with the slot {name}: stop it, or use another slot (--slot) for another place",
            path.display()
        )),
        e => Failure::from(e),
    })
}

/// Proves that the bucket keeps its word, unless it was proved for this slot and place.
fn prove(bucket: &dyn Bucket, place: &Place, store: &LiveStore) -> Result<(), Failure> {
    let Some(slot) = store.slot() else { return Ok(()) };
    if is_proved(slot, place) {
        return Ok(());
    }
    let (path, name) = (slot.dir().join("bucket"), place.name());
    probe(bucket, &hex(&random::<16>()?))?;
    let written = File::create(&path).and_then(|mut file| file.write_all(name.as_bytes()));
    written.map_err(|e| Failure::io("write", &path, e))
}
