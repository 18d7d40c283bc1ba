//! `untorn eject`: replaces a store by a plain tree, as a whole or not at all, and then removes the store.
//!
//! The tree is made beside the store and flushed; then the two exchange their names, which is durable before any part
//! of the store is removed. The store stays locked until then, so that nobody commits to a store that is about to be
//! removed. After a kill at any point there is either the store, or the tree with a rest of the store beside it;
//! running the command again completes the work.

use crate::import_export::atomic_directory::{AtomicDirectory, remove_left};
use crate::import_export::export::Export;
use crate::import_export::held_back::Skips;
use crate::mounts::mount_point;
use crate::mounts::mounted_store;
use crate::mounts::store_files::{self, JOURNAL};
use crate::plain_trees::copying::NoKernel;
use anyhow::{Context, Error, Result, bail, ensure};
use std::io::IsTerminal;
use std::path::Path;
use untorn_terminal::standard_streams;
use untorn_tree::{Errno, FileTree};

/// Replaces a store by a plain tree. Skipped names are lost. Returns a message for the user.
pub fn eject(store: &Path, yes: bool, skips: &Skips) -> Result<String> {
    let place = mount_point::absolute(store)?;
    let shown = place.display();
    ensure!(!place.is_symlink(), "{shown} is a symbolic link; give the directory that it leads to");
    ensure!(place.is_dir(), "there is no store in {shown}");
    if !place.join(JOURNAL).exists() {
        // An earlier run was killed after the exchange.
        ensure!(remove_left(&place)?, "there is no store in {shown}; nothing was changed");
        return Ok(format!("{shown} was a plain directory already; the rest of its store is removed\n"));
    }
    let tree = mounted_store::open_to_export(&place)?;
    store_files::check(&place).context("nothing was changed, as this would be removed with the store")?;
    if !yes && std::io::stdin().is_terminal() && !confirmed(&place)? {
        bail!("nothing was changed");
    }
    let error = |Errno(number)| std::io::Error::from_raw_os_error(number);
    tree.write_back()
        .map_err(error)
        .with_context(|| format!("cannot bring {shown} up to date; nothing was changed"))?;
    let made = AtomicDirectory::beside(&place)?;
    let mut export = Export::new(&tree, "ejecting");
    export.root(made.path(), skips).context("nothing was changed")?;
    let report = export.report;
    report.refuse_what_was_left_out().context(
        "nothing was changed, as this would be lost with the store; do it as root, or use `untorn export`, which leaves it \
         out",
    )?;
    let removed = made.exchange()?;
    // The store has no longer a name by which anybody opens it, so a failure does no harm.
    let _ = tree.close(&NoKernel);
    removed.remove().with_context(|| format!("{shown} is plain now, but not all of its store is removed"))?;
    Ok(format!("{shown} is a plain directory now: {}; nothing of Untorn's is left\n", report.counts()))
}

fn confirmed(store: &Path) -> Result<bool> {
    standard_streams::confirmed(&format!(
        "Make {} a plain directory, and remove the store with its log?",
        store.display()
    ))
    .map_err(Error::msg)
}
