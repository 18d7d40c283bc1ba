//! A look at stores as a table and as JSON.

use crate::interval::{Interval, STAGES, journal_percent};
use crate::watched::{State, silence};
use serde_json::{Value, json};
use std::path::Path;
use std::time::Duration;
use untorn::reader::{Figures, Histogram, Stage};
use untorn_terminal::shown;
use untorn_terminal::table::{bytes, table};

/// The columns of a line for each store.
pub const COLUMNS: [&str; 12] = [
    "store",
    "owner",
    "commits/s",
    "per flush",
    "p50",
    "p99",
    "flush p50",
    "waits/s",
    "journal",
    "memory",
    "held",
    "LSN",
];

/// The cells of a store's line. Without figures, only the first cells.
pub fn cells(path: &Path, state: &State) -> Vec<String> {
    let name = shown(path).to_string();
    match state {
        State::Shown(figures, interval) => {
            let mut cells = vec![name, figures.pid.to_string()];
            cells.extend(rates(interval.as_deref()));
            cells.push(format!("{}%", journal_percent(figures)));
            cells.push(bytes(figures.memory_bytes));
            cells.push(held(figures));
            cells.push(format!("{}{}", figures.lsn, alarm(figures)));
            cells
        }
        State::Silent(pid) => vec![name, pid.to_string()],
        State::NoOwner | State::Lost(_) => vec![name, "none".into()],
    }
}

fn rates(interval: Option<&Interval>) -> [String; 6] {
    let Some(interval) = interval else { return std::array::from_fn(|_| "-".to_owned()) };
    let (commit, flush) = (interval.stage(Stage::Commit), interval.stage(Stage::Flush));
    [
        format!("{:.0}", interval.per_second(|figures| figures.commits)),
        format!("{:.1}", interval.commits_per_group()),
        quantile(&commit, 0.5),
        quantile(&commit, 0.99),
        quantile(&flush, 0.5),
        format!("{:.0}", interval.per_second(|figures| figures.commits_waited)),
    ]
}

fn held(figures: &Figures) -> String {
    match (figures.held, figures.kept_bytes) {
        (held, 0) => held.to_string(),
        (held, kept) => format!("{held} ({})", bytes(kept)),
    }
}

fn alarm(figures: &Figures) -> String {
    match (figures.failed, figures.quarantined) {
        (true, _) => " FAILED".into(),
        (false, 0) => String::new(),
        (false, n) => format!(" {n} QUARANTINED"),
    }
}

/// A quantile for people; `-` without durations.
pub fn quantile(durations: &Histogram, share: f64) -> String {
    durations.quantile(share).map_or("-".into(), time)
}

/// A duration for people.
pub fn time(took: Duration) -> String {
    match took.as_nanos() {
        0..1_000_000 => format!("{:.0} µs", took.as_secs_f64() * 1e6),
        1_000_000..1_000_000_000 => format!("{:.1} ms", took.as_secs_f64() * 1e3),
        _ => format!("{:.1} s", took.as_secs_f64()),
    }
}

/// The columns of a line for each stage.
pub const STAGE_COLUMNS: [&str; 6] = ["stage", "per second", "p50", "p90", "p99", "longest"];

/// A line for each stage of a store's interval.
pub fn stage_lines(interval: &Interval) -> Vec<Vec<String>> {
    let line = |(stage, name): (Stage, &str)| {
        let durations = interval.stage(stage);
        let rate = interval.per_second(|figures| figures.stage(stage).count());
        let mut cells = vec![name.to_owned(), format!("{rate:.0}")];
        cells.extend([0.5, 0.9, 0.99, 1.0].map(|share| quantile(&durations, share)));
        cells
    };
    STAGES.into_iter().map(line).collect()
}

/// All stores in a table for people, then why some have no figures.
pub fn text(stores: &[(&Path, State)]) -> String {
    let mut rows: Vec<Vec<String>> = stores.iter().map(|(path, state)| cells(path, state)).collect();
    rows.iter_mut().for_each(|row| row.resize(COLUMNS.len(), "-".into()));
    let mut text = table(&COLUMNS, &rows);
    for (path, state) in stores {
        if let Some(why) = silence(state) {
            text += &format!("{}: {why}\n", shown(path));
        }
    }
    text
}

/// A store for programs: figures since the opening, and those of the last interval.
pub fn value(path: &Path, state: &State) -> Value {
    let name = path.to_string_lossy();
    match state {
        State::Shown(figures, interval) => {
            let interval = interval.as_deref().map(|interval| {
                let stages = STAGES.map(|(stage, name)| (name.to_owned(), durations(&interval.stage(stage))));
                json!({
                    "commits_per_second": interval.per_second(|figures| figures.commits),
                    "commits_per_flush": interval.commits_per_group(),
                    "commits_waited_per_second": interval.per_second(|figures| figures.commits_waited),
                    "bytes_written_per_second": interval.per_second(|figures| figures.bytes_written),
                    "stages": stages.into_iter().collect::<serde_json::Map<_, _>>(),
                })
            });
            json!({ "store": name, "owner": figures.pid, "figures": &**figures, "interval": interval })
        }
        State::Silent(pid) => json!({ "store": name, "owner": pid, "figures": null, "interval": null }),
        State::NoOwner => json!({ "store": name, "owner": null, "figures": null, "interval": null }),
        State::Lost(why) => json!({ "store": name, "error": why, "figures": null, "interval": null }),
    }
}

fn durations(stage: &Histogram) -> Value {
    let us = |share: f64| stage.quantile(share).map(|took| took.as_secs_f64() * 1e6);
    json!({ "count": stage.count(), "p50_us": us(0.5), "p90_us": us(0.9), "p99_us": us(0.99), "max_us": us(1.0) })
}
