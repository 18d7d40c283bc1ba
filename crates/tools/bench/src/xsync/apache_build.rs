//! The build of Apache in stages, in a session and outside: its sources are unpacked, configured, built and removed.

use super::runs::syncfs;
use super::session::{Host, shell};
use crate::measuring::unavailable::unavailable;
use anyhow::{Context, Result, ensure};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant};

/// The variable that names Apache's sources, a tar archive.
const SOURCES: &str = "UNTORN_BENCH_APACHE";

/// The stages with their commands. `$sources` is the archive.
const STAGES: [(&str, &str); 4] = [
    ("unpack", "mkdir source; tar -xf $sources -C source --strip-components=1"),
    ("configure", "cd source; ./configure -q >/dev/null 2>&1; cd .."),
    ("make", "make -s -j2 -C source >/dev/null 2>&1; test -x source/httpd"),
    ("remove", "rm -r source"),
];

/// The sources, as far as a run builds them.
pub struct Sources {
    archive: PathBuf,
    /// A quick run unpacks and removes them.
    is_built: bool,
}

/// The place of a build: the volume that is kept, or a directory.
pub enum Way<'a> {
    Session(&'a Host),
    Outside(&'a Path),
}

/// The times of one build.
pub struct Times {
    /// From the start until everything is durable.
    pub whole: Duration,
    /// Each stage by its name, without the start and the end of a session, or the last flush.
    pub stages: Vec<(&'static str, Duration)>,
}

impl Sources {
    pub fn find(quick: bool) -> Result<Sources> {
        let missing = || unavailable(format!("Apache's sources are missing: scripts/apache-sources.sh, and {SOURCES}"));
        let archive = PathBuf::from(std::env::var_os(SOURCES).filter(|path| !path.is_empty()).ok_or_else(missing)?);
        let archive = archive.canonicalize().with_context(|| archive.display().to_string())?;
        Ok(Sources { archive, is_built: !quick })
    }

    fn stages(&self) -> impl Iterator<Item = (&'static str, &'static str)> {
        STAGES.into_iter().filter(|(name, _)| self.is_built || !["configure", "make"].contains(name))
    }

    /// Builds Apache once.
    pub fn build(&self, way: &Way<'_>) -> Result<Times> {
        let (host, at) = match way {
            Way::Session(host) => (Some(*host), PathBuf::from("/data/apache")),
            Way::Outside(dir) => (None, dir.join("apache")),
        };
        let (at, sources) = (at.display(), self.archive.display());
        let stages: String = self.stages().map(|(_, commands)| format!("{commands}\ndate +%s%N >>times\n")).collect();
        // The moments are shown at the end, because a session shows nothing before it is durable.
        let script = format!(
            "sources={sources}\nrm -rf {at}\nmkdir {at}\ncd {at}\ndate +%s%N >times\n{stages}cat times\ncd ..\nrm -r {at}\n"
        );
        let begun = Instant::now();
        let output = shell(host, None, &script)?.stdout(Stdio::piped()).stderr(Stdio::inherit()).output()?;
        ensure!(output.status.success(), "Apache could not be built in {at}: {}", output.status);
        if let Way::Outside(dir) = way {
            syncfs(dir)?;
        }
        let whole = begun.elapsed();
        let shown = String::from_utf8_lossy(&output.stdout);
        let moments: Vec<u64> =
            shown.lines().map(str::parse).collect::<Result<_, _>>().context("the moments of stages")?;
        let names = self.stages().map(|(name, _)| name);
        let stages: Vec<_> = names.zip(moments.windows(2)).map(|(name, pair)| (name, span(pair))).collect();
        ensure!(stages.len() + 1 == moments.len(), "a build of {} stages told {} moments", stages.len(), moments.len());
        Ok(Times { whole, stages })
    }
}

fn span(moments: &[u64]) -> Duration {
    Duration::from_nanos(moments[1].saturating_sub(moments[0]))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::process::Command;

    /// An archive of sources with this script for `configure`.
    fn archive(dir: &Path, configure: &str) -> PathBuf {
        let (sources, archive) = (dir.join("httpd"), dir.join("httpd.tar"));
        fs::create_dir(&sources).unwrap();
        fs::write(sources.join("configure"), format!("#!/bin/sh\n{configure}\n")).unwrap();
        fs::write(sources.join("Makefile"), "httpd: configured\n\tcp configured httpd\n\tchmod +x httpd\n").unwrap();
        let script = "chmod +x httpd/configure; tar -cf httpd.tar httpd";
        assert!(Command::new("sh").args(["-e", "-c", script]).current_dir(dir).status().unwrap().success());
        archive
    }

    #[test]
    fn a_build_has_its_stages_and_leaves_nothing() {
        for (is_built, names) in
            [(true, &["unpack", "configure", "make", "remove"][..]), (false, &["unpack", "remove"])]
        {
            let (dir, place) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
            let sources = Sources { archive: archive(dir.path(), "echo yes >configured"), is_built };
            let times = sources.build(&Way::Outside(place.path())).unwrap();
            assert_eq!(times.stages.iter().map(|(name, _)| *name).collect::<Vec<_>>(), names);
            assert_eq!(fs::read_dir(place.path()).unwrap().count(), 0);
        }
    }

    #[test]
    fn a_build_that_fails_is_an_error() {
        for configure in ["exit 1", "true"] {
            let (dir, place) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
            let sources = Sources { archive: archive(dir.path(), configure), is_built: true };
            assert!(sources.build(&Way::Outside(place.path())).is_err(), "{configure}");
        }
    }
}
