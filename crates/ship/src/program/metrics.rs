//! Figures for Prometheus.

use parking_lot::Mutex;
use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::Registry;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::{Duration, SystemTime};
use untorn_terminal::{Failure, served_figures};

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
        let metrics = metrics.clone();
        served_figures::serve(address, move || metrics.text()).map(drop)
    }
}
