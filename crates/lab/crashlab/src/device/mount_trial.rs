//! The worker's side of the probe: one small mount through all layers of the laboratory.

use crate::device::again::Again;
use crate::device::event::Event;
use crate::device::filesystem::{FileSystem, unmount_now};
use crate::device::recorder::Recorder;
use crate::device::watch::watchdog::directory;
use anyhow::{Result, bail};

/// The worker's side of [`probe`](crate::device::watch::probe).
pub fn try_mount(again: &Again) -> Result<()> {
    let mounted = directory("mounted")?;
    let recorder = Recorder::start(again, FileSystem::Ext4.make(0)?)?;
    let device = recorder.attach()?;
    FileSystem::Ext4.mount(device.path(), &mounted)?;
    std::fs::write(mounted.join("file"), "text")?;
    std::fs::File::open(mounted.join("file"))?.sync_all()?;
    unmount_now(&mounted)?;
    drop(device);
    let (_, events) = recorder.stop()?;
    if !events.contains(&Event::Flush) {
        bail!("no flush reached the device");
    }
    Ok(())
}
