//! Things that a benchmark needs and this machine does not have.

use anyhow::Result;
use std::fmt;
use std::path::PathBuf;

/// The reason why a benchmark cannot run here. A run of all benchmarks goes on without it, and that is no failure.
#[derive(Debug)]
pub struct Unavailable(String);

impl fmt::Display for Unavailable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Unavailable {}

/// The error of a benchmark that cannot run here, for this reason.
pub fn unavailable(reason: impl Into<String>) -> anyhow::Error {
    Unavailable(reason.into()).into()
}

/// Fails with this reason unless a benchmark finds the programs and rights that it needs.
pub fn need(is_there: bool, reason: impl Into<String>) -> Result<()> {
    if is_there { Ok(()) } else { Err(unavailable(reason)) }
}

/// Fails for ordinary users.
pub fn need_root(what: &str) -> Result<()> {
    need(rustix::process::geteuid().is_root(), format!("{what} needs root: run this by sudo"))
}

/// A program of this project, which must be beside this one.
pub fn program_beside(name: &str) -> Result<PathBuf> {
    let path = std::env::current_exe()?.with_file_name(name);
    need(path.exists(), format!("{} is missing: `make build` builds it", path.display()))?;
    Ok(path)
}

#[cfg(test)]
mod tests {
    use super::*;
    use anyhow::Context;

    #[test]
    fn the_reason_is_found_below_a_context() {
        assert!(need(true, "").is_ok());
        let e = need(false, "no disk").context("mount").unwrap_err();
        assert_eq!(e.downcast_ref::<Unavailable>().unwrap().to_string(), "no disk");
        assert!(program_beside("untorn-nothing").unwrap_err().is::<Unavailable>());
    }
}
