//! `untorn metrics`.

use crate::exposition::Exposition;
use crate::top::{FIRST_FIGURES, seconds};
use crate::watched::Watched;
use clap::{Args, ValueHint};
use std::fs::File;
use std::io::Write;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use untorn_terminal::{Failure, Output, served_figures, shown, tell};

/// Give figures of stores to Prometheus: on a port, in a file, or once on standard output.
///
/// Watches the stores as `untorn top` does: owners measure while this runs. Counts are those since each owner opened
/// its store. `examples/monitoring` in Untorn's source has a dashboard and alert rules.
#[derive(Args)]
pub struct Metrics {
    /// Stores: directories, or files with a store of their own.
    #[arg(value_hint = ValueHint::AnyPath, required = true)]
    paths: Vec<PathBuf>,
    /// Answer at this address, such as 127.0.0.1:9464, until interrupted. Everybody who reaches it may read the figures.
    #[arg(long, value_name = "ADDRESS", conflicts_with = "file")]
    listen: Option<SocketAddr>,
    /// Replace this file each interval, until interrupted; for the textfile collector of node_exporter.
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    file: Option<PathBuf>,
    /// With --file: the time between two replacements, in seconds.
    #[arg(short, long, value_name = "SECONDS", default_value = "10", value_parser = seconds)]
    interval: Duration,
}

impl Metrics {
    pub fn run(self) -> Result<Output, Failure> {
        // A service may start before its stores are there.
        let stays = self.listen.is_some() || self.file.is_some();
        let stores = if stays { Watched::all(&self.paths) } else { Watched::some(&self.paths)? };
        let absent = stores.iter().filter_map(|store| Some((store.path(), store.absence()?)));
        absent.for_each(|(path, why)| tell!("{} is not watched yet: {why}", shown(path)));
        let exposition = Arc::new(Exposition::new(stores));
        if let Some(address) = self.listen {
            let at = served_figures::serve(address, move || exposition.text())?;
            tell!("figures are at http://{at}/metrics");
            loop {
                std::thread::park();
            }
        }
        let Some(file) = &self.file else {
            std::thread::sleep(FIRST_FIGURES);
            return Ok(Output::text(exposition.text()));
        };
        replace(file, &exposition.text())?;
        loop {
            std::thread::sleep(self.interval);
            // The disk may have room again, or the directory its rights.
            if let Err(e) = replace(file, &exposition.text()) {
                tell!("{}; the next try is in {} s", e.message, self.interval.as_secs_f64());
            }
        }
    }
}

/// Replaces a file as a whole.
fn replace(file: &Path, text: &str) -> Result<(), Failure> {
    let failed = |e: std::io::Error| Failure::io("write", file, e);
    let name = file.file_name().ok_or_else(|| failed(std::io::ErrorKind::InvalidInput.into()))?;
    // Always the same name, so that a killed process leaves at most one.
    let new = file.with_file_name(format!(".{}.new", name.to_string_lossy()));
    let mut to = File::create(&new).map_err(failed)?;
    to.write_all(text.as_bytes()).and_then(|()| to.sync_data()).map_err(failed)?;
    std::fs::rename(&new, file).map_err(failed)
}
