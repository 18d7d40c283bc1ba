//! A user namespace: what a session of an ordinary user needs to make mounts and namespaces of its own.

use anyhow::{Context, Result, anyhow};
use std::fs;
use std::io;
use std::path::PathBuf;

/// Whether this process is one of root.
pub fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// Makes a user namespace and a mount namespace for this process, which must have one thread. User and group stay what
/// they are.
pub fn enter() -> Result<()> {
    let (user, group) = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
    // SAFETY: changes the namespaces of this process, which has one thread.
    if unsafe { libc::unshare(libc::CLONE_NEWUSER | libc::CLONE_NEWNS) } != 0 {
        return Err(refused(io::Error::last_os_error()));
    }
    let maps = [
        ("setgroups", "deny".to_owned()),
        ("uid_map", format!("{user} {user} 1")),
        ("gid_map", format!("{group} {group} 1")),
    ];
    maps.iter().try_for_each(|(name, line)| fs::write(format!("/proc/self/{name}"), line)).map_err(refused)
}

/// Why a namespace was refused, as far as the kernel's settings tell, and what to do.
pub fn refused(e: io::Error) -> anyhow::Error {
    let setting = |path: &str| fs::read_to_string(path).ok().map(|text| text.trim().to_owned());
    let is = |path: &str, value: &str| setting(path).as_deref() == Some(value);
    let way = if is("/proc/sys/user/max_user_namespaces", "0") {
        "`sysctl user.max_user_namespaces` is 0: an administrator sets it to a number like 10000"
    } else if is("/proc/sys/kernel/unprivileged_userns_clone", "0") {
        "`sysctl kernel.unprivileged_userns_clone` is 0: an administrator sets it to 1"
    } else if is("/proc/sys/kernel/apparmor_restrict_unprivileged_userns", "1") {
        "AppArmor restricts them (`sysctl kernel.apparmor_restrict_unprivileged_userns` is 1): an administrator adds a \
         profile with `userns,` for untorn-xsync to /etc/apparmor.d, or sets it to 0"
    } else {
        "this machine, or the container that this is in, forbids them: ask an administrator, or run this by sudo"
    };
    anyhow!("a session without root needs a user namespace, which was refused ({e}); {way}")
}

/// Where the sockets and mount points of this user's sessions are.
pub fn home() -> Result<PathBuf> {
    if is_root() {
        return Ok(PathBuf::from("/run/untorn-xsync"));
    }
    let user = rustix::process::geteuid().as_raw();
    let is_ours = |dir: &PathBuf| {
        use std::os::unix::fs::MetadataExt;
        fs::symlink_metadata(dir).is_ok_and(|meta| meta.is_dir() && meta.uid() == user && meta.mode() & 0o022 == 0)
    };
    let runtime = std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from).filter(is_ours);
    let dir = match runtime {
        Some(runtime) => runtime.join("untorn-xsync"),
        None => PathBuf::from(format!("/tmp/untorn-xsync-{user}")),
    };
    use std::os::unix::fs::DirBuilderExt;
    match fs::DirBuilder::new().mode(0o700).create(&dir) {
        Err(e) if e.kind() != io::ErrorKind::AlreadyExists => {
            return Err(e).with_context(|| format!("cannot make {}", dir.display()));
        }
        _ => {}
    }
    anyhow::ensure!(
        is_ours(&dir),
        "{} belongs to somebody else, or others may write to it; remove it, or set XDG_RUNTIME_DIR",
        dir.display()
    );
    Ok(dir)
}
