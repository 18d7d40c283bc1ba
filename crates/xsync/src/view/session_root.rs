//! Mounts the session's root directory, in the mount namespace of the session's first process.

use crate::host::host_view::{OWN, Shown, View, Written};
use crate::view::exact;
use crate::view::on_directory::HIDDEN;
use crate::view::origins;
use crate::view::overlays::{memory, overlay, path_of, show};
use crate::view::split_view;
use anyhow::{Context, Result};
use rustix::fs::{CWD, FileType, Mode, mknodat, symlinkat};
use rustix::mount::{
    MountAttrFlags, MountFlags, MountPropagationFlags, MoveMountFlags, UnmountFlags, mount, mount_bind, mount_change,
    mount_remount, move_mount, unmount,
};
use std::fs::{self, File};
use std::os::fd::OwnedFd;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use untorn_terminal::user_namespace::is_root;

/// The devices of a session: name, major, minor.
const DEVICES: [(&str, u32, u32); 6] =
    [("null", 1, 3), ("zero", 1, 5), ("full", 1, 7), ("random", 1, 8), ("urandom", 1, 9), ("tty", 5, 0)];
const LINKS: [(&str, &str); 5] = [
    ("ptmx", "pts/ptmx"),
    ("fd", "/proc/self/fd"),
    ("stdin", "/proc/self/fd/0"),
    ("stdout", "/proc/self/fd/1"),
    ("stderr", "/proc/self/fd/2"),
];
/// Parts of /proc with settings of the kernel, which the session must not change.
const PROC_READ_ONLY: [&str; 5] = ["sys", "sysrq-trigger", "irq", "bus", "fs"];

/// Mounts everything, and makes it this process's root. Returns messages about parts of the host that could not be
/// shown.
pub fn enter(view: &View) -> Result<Vec<String>> {
    mount_change("/", MountPropagationFlags::PRIVATE | MountPropagationFlags::REC).context("private mounts")?;
    let root = view.scratch.join("root");
    let skeleton = skeleton(view)?;
    let empty = view.scratch.join("empty");
    let mut missing = Vec::new();
    if is_root() {
        show_all(view, &root, &skeleton, &mut missing)?;
    } else {
        split_view::show(Path::new("/"), &root, &empty, &mut missing).context("the session's root directory")?;
    }
    for own in OWN.iter().filter(|own| !own.starts_with("/dev")) {
        let (mode, place) = (if *own == "/run" { "mode=755" } else { "mode=1777" }, inside(&root, Path::new(own)));
        if place.is_dir() {
            memory(&place, mode)?;
        }
    }
    devices(&root.join("dev"))?;
    kernel(&root)?;
    for dir in &view.also {
        let at = inside(&root, dir);
        fs::create_dir_all(&at).with_context(|| format!("a place for {}", dir.display()))?;
        let done = match is_root() {
            true => show(&Shown { at: dir.clone(), is_file: false }, &at, &lowest(view, &skeleton, dir)),
            false => split_view::show(dir, &at, &empty, &mut missing),
        };
        done.with_context(|| format!("cannot show {}", dir.display()))?;
    }
    for written in &view.written {
        keep_changes(written, &root).with_context(|| format!("an overlay of {}", written.dir.display()))?;
    }
    if let Some((data, at)) = &view.data {
        let place = inside(&root, at);
        if !place.is_dir() {
            fs::create_dir_all(&place).with_context(|| format!("a place for the volume at {}", at.display()))?;
        }
        let done = match &view.exact {
            Some(home) => exact::mount(data, home, &place),
            None => mount_bind(data, &place).map_err(anyhow::Error::from),
        };
        done.with_context(|| format!("the volume at {}", at.display()))?;
    }
    if let Some((tree, at)) = &view.on {
        write_itself(tree, at, &inside(&root, at)).with_context(|| format!("the directory {}", at.display()))?;
    }
    change_root(&root)?;
    std::env::set_current_dir(&view.cwd)
        .with_context(|| format!("the working directory {} is not in the session", view.cwd.display()))?;
    Ok(missing)
}

/// Mounts root's view: an overlay of each mount of the host.
fn show_all(view: &View, root: &Path, skeleton: &Path, missing: &mut Vec<String>) -> Result<()> {
    show(&Shown { at: "/".into(), is_file: false }, root, skeleton).context("the session's root directory")?;
    for shown in view.shown.iter().filter(|shown| shown.at != Path::new("/")) {
        if let Err(e) = show(shown, &inside(root, &shown.at), &lowest(view, skeleton, &shown.at)) {
            missing.push(format!("{} is not shown: {e:#}", shown.at.display()));
        }
    }
    Ok(())
}

/// The lowest layer of the overlay that is shown at a path.
fn lowest(view: &View, skeleton: &Path, at: &Path) -> PathBuf {
    let lowest = inside(skeleton, at);
    if lowest.is_dir() { lowest } else { view.scratch.join("empty") }
}

/// Makes the lowest layers of the overlays.
///
/// They have directories for mount points that the host may lack, or that lie on a mount that is not shown.
fn skeleton(view: &View) -> Result<PathBuf> {
    let dir = view.scratch.join("skeleton");
    let fixed = ["/proc", "/sys", "/dev"].into_iter().chain(OWN).map(Path::new);
    let placed = view.data.iter().map(|(_, at)| at.as_path());
    let placed = placed.chain(view.on.iter().map(|(_, at)| at.as_path()));
    let placed = placed.chain(view.written.iter().map(|written| written.dir.as_path()));
    for place in fixed.chain(placed) {
        fs::create_dir_all(inside(&dir, place))?;
    }
    fs::create_dir_all(view.scratch.join("empty"))?;
    fs::create_dir_all(view.scratch.join("root"))?;
    Ok(dir)
}

fn inside(root: &Path, path: &Path) -> PathBuf {
    root.join(path.strip_prefix("/").unwrap_or(path))
}

/// Mounts an overlay that keeps the changes of a host's directory in the volume. As it is `volatile`, it flushes
/// nothing.
fn keep_changes(written: &Written, root: &Path) -> Result<()> {
    let place = inside(root, &written.dir);
    fs::create_dir_all(&place)?;
    let (lower, upper, work) = (File::open(&written.dir)?, File::open(&written.upper)?, File::open(&written.work)?);
    let [lower, upper, work] = [&lower, &upper, &work].map(path_of);
    let mut options = vec![("lowerdir", lower.as_str()), ("upperdir", &upper), ("workdir", &work), ("volatile", "")];
    // The apply identifies renamed directories, and the names of one file, by file handles, as the overlay does. Only
    // root can use the `trusted` attributes; with the `user` ones, the kernel does not rename directories of the host.
    let by_handles = if origins::names_are_kept(&written.dir) { "on" } else { "off" };
    options.push(("index", by_handles));
    match is_root() {
        true => options.extend([("redirect_dir", by_handles), ("metacopy", "off")]),
        false => options.push(("userxattr", "")),
    }
    overlay(&options, MountAttrFlags::empty(), &place)
}

/// Mounts a host's directory that the session writes directly, through a mount that no other process has.
fn write_itself(tree: &OwnedFd, at: &Path, place: &Path) -> Result<()> {
    if !place.is_dir() {
        fs::create_dir_all(place).with_context(|| format!("a place for {}", at.display()))?;
    }
    move_mount(tree, "", CWD, place, MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH)?;
    memory(&place.join(HIDDEN), "mode=555,size=4k")
}

fn devices(dev: &Path) -> Result<()> {
    // Devices work on this mount, and nowhere else in the session.
    mount("untorn-xsync", dev, "tmpfs", MountFlags::NOSUID | MountFlags::NOEXEC, c"mode=755").context("/dev")?;
    for (name, major, minor) in DEVICES {
        let path = dev.join(name);
        if !is_root() {
            // Device files cannot be made in a user namespace.
            File::create(&path)?;
            mount_bind(Path::new("/dev").join(name), &path).with_context(|| format!("/dev/{name}"))?;
            continue;
        }
        mknodat(CWD, &path, FileType::CharacterDevice, Mode::from(0o666), rustix::fs::makedev(major, minor))
            .with_context(|| format!("/dev/{name}"))?;
        fs::set_permissions(&path, fs::Permissions::from_mode(0o666))?;
    }
    for (name, target) in LINKS {
        symlinkat(target, CWD, dev.join(name))?;
    }
    fs::create_dir(dev.join("shm"))?;
    fs::create_dir(dev.join("pts"))?;
    memory(&dev.join("shm"), "mode=1777")?;
    // A user namespace does not have the group `tty`.
    let root = c"newinstance,ptmxmode=0666,mode=620,gid=5";
    let options = if is_root() { root } else { c"newinstance,ptmxmode=0666,mode=620" };
    mount("devpts", dev.join("pts"), "devpts", MountFlags::NOSUID | MountFlags::NOEXEC, options)
        .context("terminals of the session's own (devpts)")
}

fn kernel(root: &Path) -> Result<()> {
    let flags = MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC;
    let proc = root.join("proc");
    mount("proc", &proc, "proc", flags, None)
        .context("/proc; in a container that hides parts of it, only root of the machine can start a session")?;
    for name in PROC_READ_ONLY {
        let path = proc.join(name);
        if path.exists() {
            mount_bind(&path, &path)
                .and_then(|()| mount_remount(&path, MountFlags::BIND | MountFlags::RDONLY | flags, ""))
                .with_context(|| format!("/proc/{name}"))?;
        }
    }
    mount("sysfs", root.join("sys"), "sysfs", flags | MountFlags::RDONLY, None).context("/sys")
}

/// Replaces the old root by the new one, and unmounts the old one in this namespace.
fn change_root(root: &Path) -> Result<()> {
    std::env::set_current_dir(root)?;
    rustix::process::pivot_root(".", ".").context("the session's root directory")?;
    unmount(".", UnmountFlags::DETACH).context("the host's root directory")?;
    Ok(std::env::set_current_dir("/")?)
}
