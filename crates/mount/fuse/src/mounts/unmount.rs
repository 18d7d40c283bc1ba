//! Unmounts a mount: commits everything, reports changes that are lost, and waits for the daemon.

use crate::mounts::mount_control;
use crate::mounts::mount_point::{self, Behind, Mounted};
use crate::mounts::mount_status;
use crate::mounts::mounted_store;
use anyhow::{Context, Result, bail, ensure};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use std::path::Path;
use std::time::Duration;
use untorn_terminal::{Output, tell};

/// How long `umount` waits in silence before it says why it still waits.
const TELL_AFTER: Duration = Duration::from_secs(2);

/// Commits everything on a mount, unmounts it, and waits for the end of its daemon.
pub fn unmount(place: &Path) -> Result<Output> {
    let at = mount_point::absolute(place)?;
    let shown = at.display();
    let Some(mounted) = mount_point::mounted_at(&at)? else { bail!("nothing is mounted at {shown}") };
    ensure!(mounted.is_ours(), "{shown} is a mount of type {}, not of Untorn; use umount", mounted.kind);
    match mount_point::behind(&at) {
        Behind::Answers => {}
        Behind::Dead => {
            mount_point::detach(&at)?;
            return Ok(had_ended(&at, &mounted.source));
        }
        Behind::Hangs => bail!("{shown} stays mounted: {}", mount_point::no_answer(&at)),
    }
    if mount_point::is_root() && mount_point::is_closed(&at) {
        mount_point::unmount_soon(&at)?;
        return Ok(Output::text(format!(
            "{shown}, the mount of another user, is unmounted. If its daemon was still running, it commits \
             everything before it ends: `untorn status {}` shows the state of the store\n",
            mounted.source.display()
        )));
    }
    let prepared = mount_control::prepare_unmount(&at);
    let lost = mount_status::poisoned(&at).filter(|(_, count)| *count > 0);
    let daemon = match prepared {
        Err(_) if mount_point::is_dead(&at) => {
            mount_point::detach(&at)?;
            return Ok(had_ended(&at, &mounted.source));
        }
        Err(e) => {
            return Err(match lost {
                Some(files) => e.context(mount_status::not_committed(&files)),
                None => e,
            });
        }
        Ok(daemon) => daemon,
    };
    let has_failed = mount_status::has_failed(&at);
    let daemon = i32::try_from(daemon).ok().and_then(Pid::from_raw);
    // A daemon in another PID namespace cannot be seen, so it is not waited for.
    let daemon = daemon.and_then(|daemon| pidfd_open(daemon, PidfdFlags::empty()).ok());
    mount_point::unmount_soon(&at)?;
    if let Some(daemon) = daemon {
        let wait = |most: Option<&Timespec>| poll(&mut [PollFd::new(&daemon, PollFlags::IN)], most);
        let soon = Timespec { tv_sec: TELL_AFTER.as_secs().cast_signed(), tv_nsec: 0 };
        if wait(Some(&soon)).context("cannot wait for the daemon")? == 0 {
            if !has_failed {
                tell!("untorn-mount: {}", why_it_goes_on(&mounted, &shown.to_string()));
            }
            wait(None).context("cannot wait for the daemon")?;
        }
    }
    ensure!(
        !has_failed,
        "{shown} is unmounted, but a write or flush of its log had failed: changes that were not acknowledged are \
         lost; {} has everything else",
        mounted.source.display()
    );
    if let Some(files) = lost {
        bail!("{shown} is unmounted; {}", mount_status::not_committed(&files));
    }
    Ok(Output::default())
}

/// Explains why the daemon still runs although the mount is gone here.
fn why_it_goes_on(mounted: &Mounted, shown: &str) -> String {
    match mount_point::elsewhere(mounted.device) {
        Some((process, name)) => format!(
            "everything is committed, and {shown} is unmounted here; but process {process} ({name}) has the mount \
             in another mount namespace, and the daemon runs until that process releases the mount; waiting"
        ),
        None => format!("{shown} is unmounted; waiting for its daemon, which closes the store"),
    }
}

/// Reports that a mount was removed whose daemon had been killed before.
fn had_ended(at: &Path, store: &Path) -> Output {
    let (shown, store_shown) = (at.display(), store.display());
    Output::text(match mounted_store::is_there(store) {
        true => format!("the daemon of {shown} had ended before; {store_shown} has the last commits\n"),
        false => format!(
            "the daemon of {shown} had ended before; {store_shown} is no longer a store: if the store was moved, the \
             last commits are at its new place\n"
        ),
    })
}
