//! Keeps a session from making sockets and FIFOs in a directory that others see, by Landlock.
//!
//! They would lead past the gate.

use anyhow::{Context, Result};
use landlock::{
    AccessFs, BitFlags, CompatLevel, Compatible, PathBeneath, PathFd, Ruleset, RulesetAttr, RulesetCreatedAttr,
};
use std::path::Path;

/// Restricts this process and all its later children to make sockets and FIFOs only in these directories. Needs
/// CAP_SYS_ADMIN.
pub fn allow_only_in<'a>(directories: impl Iterator<Item = &'a Path>) -> Result<()> {
    let makes = AccessFs::MakeSock | AccessFs::MakeFifo;
    // `Refer` lets files be moved between directories, which Landlock otherwise forbids.
    let handled =
        Ruleset::default().set_compatibility(CompatLevel::HardRequirement).handle_access(makes | AccessFs::Refer);
    let rules = handled.ok().context(
        "the kernel has no Landlock (Linux 5.19 or newer, with `landlock` in the parameter lsm=): sockets and FIFOs \
         that the session makes in the directory would lead past the gate; use a volume instead",
    )?;
    let sealed = || -> Result<()> {
        let mut rules =
            rules.create()?.no_new_privs(false).add_rule(beneath(Path::new("/"), AccessFs::Refer.into())?)?;
        for directory in directories {
            rules = rules.add_rule(beneath(directory, makes)?)?;
        }
        rules.restrict_self()?;
        Ok(())
    };
    sealed().context("cannot seal the directory (Landlock)")
}

fn beneath(directory: &Path, allowed: BitFlags<AccessFs>) -> Result<PathBeneath<PathFd>> {
    Ok(PathBeneath::new(PathFd::new(directory)?, allowed))
}
