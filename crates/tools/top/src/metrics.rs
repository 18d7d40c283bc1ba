//! `untorn metrics`.

use crate::exposition::Exposition;
use crate::top::{FIRST_FIGURES, seconds};
use crate::watched::Watched;
use clap::{Args, ValueHint};
use std::io::Write;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use untorn_terminal::{Failure, Output, served_figures, tell};

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
        let exposition = Arc::new(Exposition::new(Watched::all(&self.paths)?));
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
        loop {
            replace(file, &exposition.text())?;
            std::thread::sleep(self.interval);
        }
    }
}

/// Replaces a file as a whole. A crash may leave the old figures.
fn replace(file: &Path, text: &str) -> Result<(), Failure> {
    let failed = |e: std::io::Error| Failure::io("write", file, e);
    let dir = file.parent().filter(|dir| !dir.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o644);
    let mut new = tempfile::Builder::new().permissions(mode).tempfile_in(dir).map_err(failed)?;
    new.write_all(text.as_bytes()).map_err(failed)?;
    new.persist(file).map(drop).map_err(|e| failed(e.error))
}
