//! Options of a mount, as in /etc/fstab.

use crate::mounts::mount_point::Allowed;
use anyhow::{Result, bail};

/// Parses options as `mount` passes them on; options that describe the default behaviour have no effect.
pub(crate) fn allowed(options: &[String]) -> Result<Allowed> {
    let mut allowed = Allowed::default();
    for option in options {
        match option.as_str() {
            "nosuid" => allowed.no_setuid = true,
            "nodev" => allowed.no_devices = true,
            "noexec" => allowed.no_execute = true,
            "allow_other" => allowed.others = true,
            "sync_commits" => allowed.sync_commits = true,
            "rw" | "defaults" | "suid" | "dev" | "exec" | "auto" | "noauto" | "nofail" | "_netdev" | "noatime"
            | "relatime" => {}
            other if other.starts_with("x-") || other.starts_with("comment=") => {}
            other => bail!(
                "the option `{other}` is not known; there are nosuid, nodev, noexec, allow_other and sync_commits"
            ),
        }
    }
    Ok(allowed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_of_fstab_are_understood() {
        let of = |text: &str| allowed(&text.split(',').map(str::to_owned).collect::<Vec<_>>());
        assert_eq!(of("rw,defaults,x-systemd.automount").unwrap(), Allowed::default());
        let some = Allowed { no_setuid: true, no_execute: true, ..Allowed::default() };
        assert_eq!(of("nosuid,noexec").unwrap(), some);
        assert!(of("sync_commits").unwrap().sync_commits);
        assert!(of("ro").unwrap_err().to_string().contains("`ro`"));
    }
}
