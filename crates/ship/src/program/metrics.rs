//! Figures for Prometheus.

use parking_lot::Mutex;
use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::Registry;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::{Duration, SystemTime};
use untorn_terminal::Failure;

/// The longest request of a scraper.
const REQUEST_BYTES_MAX: u64 = 16 << 10;

/// Figures of a process that ships or follows.
pub struct Metrics {
    registry: Registry,
    store_lsn: Gauge<u64, AtomicU64>,
    ship_lsn: Gauge<u64, AtomicU64>,
    last_success: Gauge<f64, AtomicU64>,
    lag: Gauge<f64, AtomicU64>,
    put: Histogram,
    errors: Counter,
    /// Since when the bucket lacks a commit.
    behind_since: Mutex<Option<SystemTime>>,
}

impl Default for Metrics {
    fn default() -> Metrics {
        let put = Histogram::new(exponential_buckets(0.001, 2.0, 16));
        let (store_lsn, ship_lsn, last_success, lag) =
            (Gauge::default(), Gauge::default(), Gauge::default(), Gauge::default());
        let (errors, mut registry) = (Counter::default(), Registry::default());
        registry.register("untorn_store_lsn", "Last durable commit of the store", store_lsn.clone());
        registry.register("untorn_ship_lsn", "Last commit that is in the bucket", ship_lsn.clone());
        registry.register("untorn_ship_lag_seconds", "Since when the bucket lacks a commit", lag.clone());
        registry.register(
            "untorn_ship_last_success_timestamp_seconds",
            "When the bucket last had every commit",
            last_success.clone(),
        );
        registry.register("untorn_ship_put_seconds", "Time of requests that create an object", put.clone());
        registry.register("untorn_ship_errors", "Requests that failed or had no answer", errors.clone());
        Metrics { registry, store_lsn, ship_lsn, last_success, lag, put, errors, behind_since: Mutex::default() }
    }
}

impl Metrics {
    /// The store's last commit.
    pub fn store(&self, lsn: u64) {
        self.store_lsn.set(lsn);
        self.compare();
    }

    /// The bucket's last commit.
    pub fn shipped(&self, lsn: u64) {
        self.ship_lsn.set(lsn);
        self.compare();
    }

    fn compare(&self) {
        let now = SystemTime::now();
        let mut since = self.behind_since.lock();
        if self.ship_lsn.get() >= self.store_lsn.get() {
            *since = None;
            self.last_success.set(now.duration_since(SystemTime::UNIX_EPOCH).map_or(0.0, |since| since.as_secs_f64()));
        } else {
            since.get_or_insert(now);
        }
    }

    /// A request took so long.
    pub fn put(&self, took: Duration) {
        self.put.observe(took.as_secs_f64());
    }

    /// A request failed.
    pub fn failed(&self) {
        self.errors.inc();
    }

    fn text(&self) -> String {
        let lag = self.behind_since.lock().and_then(|since| since.elapsed().ok());
        self.lag.set(lag.map_or(0.0, |lag| lag.as_secs_f64()));
        let mut text = String::new();
        // Writing into a text cannot fail.
        let _ = encode(&mut text, &self.registry);
        text
    }

    /// Serves the figures, in a thread of their own.
    ///
    /// # Errors
    /// The address is taken, or not this machine's.
    pub fn serve(metrics: &Arc<Metrics>, address: SocketAddr) -> Result<(), Failure> {
        let failed = |e: std::io::Error| Failure::new(format!("cannot serve figures at {address}: {e}"));
        let listener = TcpListener::bind(address).map_err(failed)?;
        let metrics = metrics.clone();
        let serve = move || {
            for stream in listener.incoming().flatten() {
                let _ = metrics.answer(stream);
            }
        };
        std::thread::Builder::new().name("metrics".into()).spawn(serve).map(|_| ()).map_err(failed)
    }

    fn answer(&self, mut stream: TcpStream) -> std::io::Result<()> {
        stream.set_read_timeout(Some(Duration::from_secs(5)))?;
        stream.set_write_timeout(Some(Duration::from_secs(5)))?;
        let lines = BufReader::new(stream.try_clone()?.take(REQUEST_BYTES_MAX)).lines();
        for line in lines {
            if line?.is_empty() {
                break;
            }
        }
        let text = self.text();
        let kind = "application/openmetrics-text; version=1.0.0; charset=utf-8";
        let head = format!(
            "HTTP/1.1 200 OK\r\nContent-Type: {kind}\r\nContent-Length: {}\r\nConnection: close\r\n\r\n",
            text.len()
        );
        stream.write_all(head.as_bytes())?;
        stream.write_all(text.as_bytes())
    }
}
