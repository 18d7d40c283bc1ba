//! Capabilities that root in a session lacks, so that the session cannot lead out of itself.

use anyhow::{Context, Result};
use rustix::thread::{CapabilitySet, CapabilitySets, capabilities, set_capabilities};

/// Capabilities over mounts, devices, the kernel, the host's clock and network, and other processes. Those for file
/// owners, permissions, users and ports stay, so that `dpkg` and `su` work.
const DROPPED: CapabilitySet = CapabilitySet::SYS_ADMIN
    .union(CapabilitySet::MKNOD)
    .union(CapabilitySet::SYS_RAWIO)
    .union(CapabilitySet::SYS_MODULE)
    .union(CapabilitySet::SYS_BOOT)
    .union(CapabilitySet::SYS_TIME)
    .union(CapabilitySet::NET_ADMIN)
    .union(CapabilitySet::SYS_PTRACE)
    .union(CapabilitySet::BPF)
    .union(CapabilitySet::PERFMON)
    .union(CapabilitySet::SYSLOG)
    .union(CapabilitySet::LINUX_IMMUTABLE)
    .union(CapabilitySet::SYS_RESOURCE)
    .union(CapabilitySet::SYS_PACCT)
    .union(CapabilitySet::SYS_TTY_CONFIG)
    .union(CapabilitySet::MAC_ADMIN)
    .union(CapabilitySet::MAC_OVERRIDE)
    .union(CapabilitySet::AUDIT_CONTROL)
    .union(CapabilitySet::AUDIT_READ)
    .union(CapabilitySet::WAKE_ALARM)
    .union(CapabilitySet::BLOCK_SUSPEND)
    .union(CapabilitySet::CHECKPOINT_RESTORE);

/// Drops all capabilities. In an ordinary user's session they come from the user namespace, which the session needed to
/// mount; the program must not have them.
pub fn drop_all() -> Result<()> {
    let none = CapabilitySet::empty();
    for capability in CapabilitySet::all().iter() {
        // Fails for a capability that the kernel does not know, which nobody has.
        let _ = rustix::thread::remove_capability_from_bounding_set(capability);
    }
    set_capabilities(None, CapabilitySets { effective: none, permitted: none, inheritable: none })
        .context("cannot drop capabilities")
}

/// Drops these capabilities in this process and in all its later children, programs with the setuid bit included.
pub fn drop_what_leads_out() -> Result<()> {
    for capability in DROPPED.iter() {
        match rustix::thread::remove_capability_from_bounding_set(capability) {
            // The kernel does not know this capability yet.
            Err(rustix::io::Errno::INVAL) => {}
            done => done.context("cannot drop a capability")?,
        }
    }
    let now = capabilities(None).context("this process's capabilities")?;
    let kept = now.permitted - DROPPED;
    let sets = CapabilitySets { effective: kept, permitted: kept, inheritable: CapabilitySet::empty() };
    set_capabilities(None, sets).context("cannot drop capabilities")
}
