//! Figures of stores as text for Prometheus.

use crate::interval::STAGES;
use crate::watched::{State, Watched};
use parking_lot::Mutex;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, NoLabelSet, text::encode};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::Registry;
use std::fmt;
use std::sync::Arc;
use untorn::reader::{Figures, Histogram};
use untorn_terminal::shown;

/// The stores, as Prometheus sees them.
pub struct Exposition {
    stores: Mutex<Vec<Watched>>,
    registry: Registry,
    looked: Looked,
}

/// The last look at each store.
type Looked = Arc<Mutex<Vec<(String, State)>>>;

/// The figures of the last look.
struct OfLook(Looked);

impl fmt::Debug for OfLook {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("figures of stores")
    }
}

impl Exposition {
    /// The figures of these stores.
    pub fn new(stores: Vec<Watched>) -> Exposition {
        let (looked, mut registry) = (Looked::default(), Registry::default());
        registry.register_collector(Box::new(OfLook(looked.clone())));
        Exposition { stores: Mutex::new(stores), registry, looked }
    }

    /// The text of a new look.
    pub fn text(&self) -> String {
        let mut stores = self.stores.lock();
        let looked = stores.iter_mut().map(|store| (shown(store.path()).to_string(), store.look())).collect();
        *self.looked.lock() = looked;
        let mut text = String::new();
        // Writing into a text cannot fail.
        let _ = encode(&mut text, &self.registry);
        text
    }
}

/// A number of each store: its name and meaning, and where it is among the figures.
type Number = (&'static str, &'static str, fn(&Figures) -> u64);

const COUNTERS: [Number; 7] = [
    ("untorn_commits", "Commits since the store was opened", |f| f.commits),
    ("untorn_commit_groups", "Groups of commits that shared a flush", |f| f.commit_groups),
    ("untorn_commits_waited", "Commits that waited for a checkpoint", |f| f.commits_waited),
    ("untorn_checkpoints", "Checkpoints since the store was opened", |f| f.checkpoints),
    ("untorn_syncs", "Flushes of any kind", |f| f.syncs),
    ("untorn_written_bytes", "Bytes written to any file", |f| f.bytes_written),
    ("untorn_journal_written_bytes", "Bytes written to the journal and its spill files", |f| f.journal_bytes_written),
];

const GAUGES: [Number; 10] = [
    ("untorn_store_lsn", "Last durable commit of the store", |f| f.lsn),
    ("untorn_journal_limit_bytes", "Limit for the bytes of the journal", |f| f.journal_bytes_max),
    ("untorn_journal_bytes", "Bytes of journal on the disk", |f| f.journal_bytes_allocated),
    ("untorn_journal_pending_bytes", "Bytes of journal that a checkpoint would free", |f| f.journal_bytes_pending),
    ("untorn_open_files", "Files in the store's table", |f| f.open_files),
    ("untorn_memory_bytes", "Memory of files with commits that are not applied yet", |f| f.memory_bytes),
    ("untorn_quarantined", "Files and directories to which commits could not be applied", |f| f.quarantined),
    ("untorn_held_commits", "Commits that readers hold", |f| f.held),
    ("untorn_kept_bytes", "Bytes that are kept for readers of older commits", |f| f.kept_bytes),
    ("untorn_failed", "1 if the store takes no more commits", |f| f.failed.into()),
];

impl Collector for OfLook {
    fn encode(&self, mut encoder: DescriptorEncoder) -> fmt::Result {
        let looked = self.0.lock();
        let mut shown: Vec<(&str, &Figures)> = Vec::new();
        for (store, state) in &*looked {
            if let State::Shown(figures, _) = state {
                shown.push((store, figures));
            }
        }
        let help = "1 if a process has the store open";
        let mut metric = encoder.encode_descriptor("untorn_open", help, None, MetricType::Gauge)?;
        for (store, state) in &*looked {
            let is_open = matches!(state, State::Shown(..) | State::Silent(_));
            metric.encode_family(&[("store", store.as_str())])?.encode_gauge(&u64::from(is_open))?;
        }
        let help = "0 if the store is gone, or cannot be read by the process that gives these figures";
        let mut metric = encoder.encode_descriptor("untorn_watched", help, None, MetricType::Gauge)?;
        for (store, state) in &*looked {
            let is_watched = !matches!(state, State::Lost(_));
            metric.encode_family(&[("store", store.as_str())])?.encode_gauge(&u64::from(is_watched))?;
        }
        for (name, help, of) in COUNTERS {
            let mut metric = encoder.encode_descriptor(name, help, None, MetricType::Counter)?;
            for (store, figures) in &shown {
                metric.encode_family(&[("store", *store)])?.encode_counter::<NoLabelSet, _, f64>(&of(figures), None)?;
            }
        }
        for (name, help, of) in GAUGES {
            let mut metric = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
            for (store, figures) in &shown {
                metric.encode_family(&[("store", *store)])?.encode_gauge(&of(figures))?;
            }
        }
        let help = "Durations of the stages of commits and checkpoints, while somebody watched";
        let mut metric = encoder.encode_descriptor("untorn_stage_seconds", help, None, MetricType::Histogram)?;
        for (store, figures) in &shown {
            for (stage, name) in STAGES {
                let durations = figures.stage(stage);
                let labels = [("store", *store), ("stage", name)];
                metric.encode_family(&labels)?.encode_histogram::<NoLabelSet>(
                    durations.sum().as_secs_f64(),
                    durations.count(),
                    &doublings(durations),
                    None,
                )?;
            }
        }
        Ok(())
    }
}

/// Each doubling of a histogram is a bucket, of which Prometheus has fewer; the last one has everything else.
fn doublings(durations: &Histogram) -> Vec<(f64, u64)> {
    let all: Vec<(f64, u64)> = durations.buckets().map(|(end, count)| (end.as_secs_f64(), count)).collect();
    let mut doublings: Vec<(f64, u64)> = all
        .chunks(8)
        .map(|steps| (steps.last().expect("eight steps").0, steps.iter().map(|(_, count)| count).sum()))
        .collect();
    doublings.last_mut().expect("many doublings").0 = f64::INFINITY;
    doublings
}
