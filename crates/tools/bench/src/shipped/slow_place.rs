//! A place for shipping whose answers take as long as those of an object store: a directory that is served as if by ssh.

use crate::measuring::child::{JOB_VARIABLE, Job};
use crate::measuring::unavailable::program_beside;
use anyhow::{Context, Result, bail};
use bytes::Bytes;
use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;
use untorn_ship::bucket::place::Place;
use untorn_ship::bucket::serve::serve;
use untorn_ship::bucket::{Bucket, Created, Failed};

/// A directory that serves objects.
pub struct SlowPlace {
    /// The program that stands for ssh.
    ssh: PathBuf,
    directory: PathBuf,
}

/// A shipper that runs until this is dropped.
pub struct Shipping(Child);

impl SlowPlace {
    /// A place below a directory. Creating an object takes `put` longer than its flush.
    pub fn new(dir: &Path, put: Duration) -> Result<SlowPlace> {
        let (ssh, directory) = (dir.join("ssh"), dir.join("bucket"));
        let job = serde_json::to_string(&Job::ServeBucket { dir: directory.clone(), put_us: put.as_micros() as u64 })?;
        let program = std::env::current_exe()?;
        fs::write(&ssh, format!("#!/bin/sh\n{JOB_VARIABLE}='{job}' exec '{}'\n", program.display()))?;
        fs::set_permissions(&ssh, fs::Permissions::from_mode(0o755))?;
        Ok(SlowPlace { ssh, directory })
    }

    /// A command of `untorn-ship` with this place.
    pub fn command(&self, name: &str, before: &[&Path]) -> Result<Command> {
        let mut command = Command::new(program_beside("untorn-ship")?);
        command.arg(name).args(before).arg(format!("ssh://bench{}", self.directory.display()));
        command.env("UNTORN_SSH", &self.ssh);
        Ok(command)
    }

    /// Starts to ship a store, and returns when it has begun.
    pub fn ship(&self, store: &Path, slot: &str, interval: &str) -> Result<Shipping> {
        let mut command = self.command("ship", &[store])?;
        command.args(["--slot", slot, "--interval", interval, "--json"]).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().context("cannot start untorn-ship")?;
        let (output, errors) = (child.stdout.take().expect("piped"), child.stderr.take().expect("piped"));
        let shipping = Shipping(child);
        let (begun, wait) = std::sync::mpsc::channel();
        for stream in [Box::new(output) as Box<dyn std::io::Read + Send>, Box::new(errors)] {
            let begun = begun.clone();
            // Reads on: a full pipe would stop the shipper.
            std::thread::spawn(move || {
                for line in BufReader::new(stream).lines().map_while(Result::ok) {
                    let _ = begun.send(line);
                }
            });
        }
        drop(begun);
        match wait.recv_timeout(Duration::from_secs(60)) {
            Ok(line) if line.contains("started") => Ok(shipping),
            Ok(line) => bail!("untorn-ship says: {line}"),
            Err(_) => bail!("untorn-ship did not begin"),
        }
    }
}

impl Drop for Shipping {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

struct Slow(Box<dyn Bucket>, Duration);

impl Bucket for Slow {
    fn create(&self, name: &str, bytes: Bytes) -> std::result::Result<Created, Failed> {
        let created = self.0.create(name, bytes);
        std::thread::sleep(self.1);
        created
    }

    fn get(&self, name: &str, bytes_max: u64) -> std::result::Result<Option<Bytes>, Failed> {
        self.0.get(name, bytes_max)
    }

    fn list(&self, prefix: &str, after: Option<&str>) -> std::result::Result<Vec<String>, Failed> {
        self.0.list(prefix, after)
    }

    fn delete(&self, name: &str) -> std::result::Result<(), Failed> {
        self.0.delete(name)
    }
}

/// Serves the directory to a shipper, as the job of a child process.
pub fn serve_bucket(dir: PathBuf, put: Duration) -> Result<()> {
    let bucket = Place::of_directory(dir).open(true)?;
    Ok(serve(Arc::new(Slow(bucket, put)), std::io::stdin().lock(), std::io::stdout())?)
}
