//! The user namespace in which an ordinary user's session can make mounts and namespaces.

use std::fs;
use std::io;

/// Whether this process runs as root.
pub fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// Makes a user namespace and a mount namespace for this process, which must have one thread.
///
/// User and group stay the same. The error says the reason, and how to go on.
pub fn enter() -> Result<(), String> {
    let (user, group) = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
    // SAFETY: changes the namespaces of this process, which has one thread.
    if unsafe { libc::unshare(libc::CLONE_NEWUSER | libc::CLONE_NEWNS) } != 0 {
        return Err(refused(&io::Error::last_os_error()));
    }
    let maps = [
        ("setgroups", "deny".to_owned()),
        ("uid_map", format!("{user} {user} 1")),
        ("gid_map", format!("{group} {group} 1")),
    ];
    maps.iter().try_for_each(|(name, line)| fs::write(format!("/proc/self/{name}"), line)).map_err(|e| refused(&e))
}

/// A message about a refused namespace: the kernel's setting, if one is the reason, and how to go on.
pub fn refused(e: &io::Error) -> String {
    let setting = |path: &str| fs::read_to_string(path).ok().map(|text| text.trim().to_owned());
    let is = |path: &str, value: &str| setting(path).as_deref() == Some(value);
    let way = if is("/proc/sys/user/max_user_namespaces", "0") {
        "`sysctl user.max_user_namespaces` is 0: an administrator sets it to a number like 10000"
    } else if is("/proc/sys/kernel/unprivileged_userns_clone", "0") {
        "`sysctl kernel.unprivileged_userns_clone` is 0: an administrator sets it to 1"
    } else if is("/proc/sys/kernel/apparmor_restrict_unprivileged_userns", "1") {
        "AppArmor restricts them (`sysctl kernel.apparmor_restrict_unprivileged_userns` is 1): an administrator adds a \
         profile with `userns,` for this program to /etc/apparmor.d, or sets it to 0"
    } else {
        "this machine, or the container that this is in, forbids them: ask an administrator, or run this by sudo"
    };
    format!("a session without root needs a user namespace, which was refused ({e}); {way}")
}
