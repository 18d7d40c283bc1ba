//! Mounts the session's root directory; runs in the session's first process, in a mount namespace of its own.

use crate::cares::Cares;
use crate::host_view::{OWN, Shown, View, Written};
use anyhow::{Context, Result, bail};
use rustix::fs::{CWD, FileType, Mode, mknodat, symlinkat};
use rustix::mount::{
    FsMountFlags, FsOpenFlags, MountAttrFlags, MountFlags, MountPropagationFlags, MoveMountFlags, UnmountFlags,
    fsconfig_create, fsconfig_set_string, fsmount, fsopen, mount, mount_bind, mount_change, mount_remount, move_mount,
    unmount,
};
use std::fs::{self, File};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

/// Devices that a program may expect: name, major, minor.
const DEVICES: [(&str, u32, u32); 6] =
    [("null", 1, 3), ("zero", 1, 5), ("full", 1, 7), ("random", 1, 8), ("urandom", 1, 9), ("tty", 5, 0)];
const LINKS: [(&str, &str); 5] = [
    ("ptmx", "pts/ptmx"),
    ("fd", "/proc/self/fd"),
    ("stdin", "/proc/self/fd/0"),
    ("stdout", "/proc/self/fd/1"),
    ("stderr", "/proc/self/fd/2"),
];
/// Parts of /proc that change the kernel, not the session.
const PROC_READ_ONLY: [&str; 5] = ["sys", "sysrq-trigger", "irq", "bus", "fs"];

/// Mounts everything and makes it this process's root. What could not be shown of the host is returned.
pub fn enter(view: &View, cares: Cares) -> Result<Vec<String>> {
    mount_change("/", MountPropagationFlags::PRIVATE | MountPropagationFlags::REC).context("private mounts")?;
    let root = view.scratch.join("root");
    let skeleton = skeleton(view)?;
    let mut missing = Vec::new();
    show(&Shown { at: "/".into(), is_file: false }, &root, &skeleton, cares).context("the session's root directory")?;
    let empty = view.scratch.join("empty");
    for shown in view.shown.iter().filter(|shown| shown.at != Path::new("/")) {
        if let Err(e) = show(shown, &root, &empty, cares) {
            missing.push(format!("{} is not shown: {e:#}", shown.at.display()));
        }
    }
    for own in OWN.iter().filter(|own| !own.starts_with("/dev")) {
        let mode = if *own == "/run" { "mode=755" } else { "mode=1777" };
        memory(&inside(&root, Path::new(own)), mode)?;
    }
    devices(&root.join("dev"))?;
    kernel(&root)?;
    for dir in &view.also {
        let at = inside(&root, dir);
        fs::create_dir_all(&at).with_context(|| format!("a place for {}", dir.display()))?;
        show(&Shown { at: dir.clone(), is_file: false }, &root, &empty, cares)
            .with_context(|| format!("cannot show {}", dir.display()))?;
    }
    for written in &view.written {
        keep_changes(written, &root).with_context(|| format!("an overlay of {}", written.dir.display()))?;
    }
    if let Some((data, at)) = &view.data {
        let place = inside(&root, at);
        if !place.is_dir() {
            fs::create_dir_all(&place).with_context(|| format!("a place for the volume at {}", at.display()))?;
        }
        mount_bind(data, &place).with_context(|| format!("the volume at {}", at.display()))?;
    }
    change_root(&root)?;
    std::env::set_current_dir(&view.cwd)
        .with_context(|| format!("the working directory {} is not in the session", view.cwd.display()))?;
    Ok(missing)
}

/// Directories for mount points that the host may not have; the lowest layer of the root.
fn skeleton(view: &View) -> Result<PathBuf> {
    let dir = view.scratch.join("skeleton");
    let fixed = ["/proc", "/sys", "/dev"].into_iter().chain(OWN).map(Path::new);
    let placed = view.data.iter().map(|(_, at)| at.as_path());
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

/// Shows a directory or file of the host, read-only. An overlay has sockets and FIFOs of its own: a bind would lead to
/// the processes of the host that listen there.
fn show(shown: &Shown, root: &Path, lowest: &Path, cares: Cares) -> Result<()> {
    let place = inside(root, &shown.at);
    if shown.is_file || !cares.overlays_of_the_host {
        if shown.is_file && !fs::metadata(&shown.at)?.is_file() {
            bail!("neither a directory nor a regular file");
        }
        mount_bind(&shown.at, &place)?;
        let flags = MountFlags::BIND | MountFlags::RDONLY | MountFlags::NODEV;
        return Ok(mount_remount(&place, flags, "")?);
    }
    let (upper, lower) = (File::open(&shown.at)?, File::open(lowest)?);
    let layers = format!("{}:{}", path_of(&upper), path_of(&lower));
    overlay(&[("lowerdir", &layers)], MountAttrFlags::MOUNT_ATTR_RDONLY, &place)
}

/// A directory of the host whose changes go to the volume. The kind `volatile` flushes nothing by itself.
fn keep_changes(written: &Written, root: &Path) -> Result<()> {
    let place = inside(root, &written.dir);
    fs::create_dir_all(&place)?;
    let (lower, upper, work) = (File::open(&written.dir)?, File::open(&written.upper)?, File::open(&written.work)?);
    let options = [
        ("lowerdir", path_of(&lower)),
        ("upperdir", path_of(&upper)),
        ("workdir", path_of(&work)),
        // What the upper layer holds is then all that there is to apply.
        ("redirect_dir", "off".to_owned()),
        ("metacopy", "off".to_owned()),
        ("index", "off".to_owned()),
    ];
    let options: Vec<(&str, &str)> = options.iter().map(|(name, value)| (*name, value.as_str())).collect();
    overlay(&[&options[..], &[("volatile", "")]].concat(), MountAttrFlags::empty(), &place)
}

/// The path of an open directory: short, and without characters that an option would need to escape.
fn path_of(file: &File) -> String {
    format!("/proc/self/fd/{}", file.as_raw_fd())
}

fn overlay(options: &[(&str, &str)], more: MountAttrFlags, at: &Path) -> Result<()> {
    let context = fsopen("overlay", FsOpenFlags::FSOPEN_CLOEXEC).context("overlays (the file system overlayfs)")?;
    for (name, value) in options {
        let set = match *value {
            "" => rustix::mount::fsconfig_set_flag(&context, *name),
            value => fsconfig_set_string(&context, *name, value),
        };
        set.with_context(|| format!("{name}={value}{}", said(&context)))?;
    }
    fsconfig_create(&context).with_context(|| format!("overlay{}", said(&context)))?;
    let mounted = fsmount(&context, FsMountFlags::FSMOUNT_CLOEXEC, more | MountAttrFlags::MOUNT_ATTR_NODEV)?;
    Ok(move_mount(&mounted, "", CWD, at, MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH)?)
}

/// What the kernel says about a mount that it refused.
fn said(context: &OwnedFd) -> String {
    let mut text = [0; 512];
    match rustix::io::read(context, &mut text[..]) {
        Ok(bytes) if bytes > 0 => format!(" ({})", String::from_utf8_lossy(&text[..bytes]).trim()),
        _ => String::new(),
    }
}

fn memory(at: &Path, mode: &str) -> Result<()> {
    let options = std::ffi::CString::new(mode)?;
    mount("untorn-xsync", at, "tmpfs", MountFlags::NOSUID | MountFlags::NODEV, &*options)
        .with_context(|| format!("a directory in memory at {}", at.display()))
}

fn devices(dev: &Path) -> Result<()> {
    // Devices work here, and nowhere else in the session.
    mount("untorn-xsync", dev, "tmpfs", MountFlags::NOSUID | MountFlags::NOEXEC, c"mode=755").context("/dev")?;
    for (name, major, minor) in DEVICES {
        let path = dev.join(name);
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
    let options = c"newinstance,ptmxmode=0666,mode=620,gid=5";
    mount("devpts", dev.join("pts"), "devpts", MountFlags::NOSUID | MountFlags::NOEXEC, options)
        .context("terminals of the session's own (devpts)")
}

fn kernel(root: &Path) -> Result<()> {
    let flags = MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC;
    let proc = root.join("proc");
    mount("proc", &proc, "proc", flags, None).context("/proc")?;
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

/// The new root instead of the old one, which is gone from this namespace.
fn change_root(root: &Path) -> Result<()> {
    std::env::set_current_dir(root)?;
    rustix::process::pivot_root(".", ".").context("the session's root directory")?;
    unmount(".", UnmountFlags::DETACH).context("the host's root directory")?;
    Ok(std::env::set_current_dir("/")?)
}
