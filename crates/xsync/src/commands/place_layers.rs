//! Sessions of ordinary users over the working directory (`--place DIR`).
//!
//! Their changes are kept in a directory of an ext4 file system with data in its journal, not in a volume, which only
//! root can mount.
//!
//! That directory has no permissions at all, so that nobody looks into it by mistake. In the user namespace of a
//! session they are not needed.

use crate::changes::access_lists::AccessLists;
use crate::changes::rescue;
use crate::changes::work_dirs::{Phase, WorkDirs};
use crate::commands::run_session::{
    NOTHING_APPLIED_YET, Wanted, apply_all, not_applied, resolver_dir, tell_what_is_lost,
};
use crate::host::held_directories::{self, HeldDirectories};
use crate::host::host_mounts::HostMounts;
use crate::host::host_view::{OWN, View, mount_points, mounts_of_the_host};
use crate::host::outer_streams::{tell, tell_text};
use crate::host::private_mounts::{private_mounts, root_is_needed};
use crate::network::session_network::explain_net;
use crate::relays::listen::Port;
use crate::report::session_report::Report;
use crate::report::status_socket::StatusSocket;
use crate::session::supervisor::{self, Job};
use crate::view::on_directory;
use crate::view::overlays::{overlay, path_of};
use crate::volumes::committer::{Committer, Ground};
use crate::volumes::scarce_room;
use crate::volumes::volume::sync_parent;
use crate::volumes::volume_name;
use anyhow::{Context, Result, bail, ensure};
use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;
use rustix::mount::{MountAttrFlags, UnmountFlags, unmount};
use std::fs::{self, DirBuilder, File};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};
use untorn_terminal::user_namespace::is_root;

/// The extension of such a directory's name. Directories that are being made or removed have another extension.
const LAYERS: &str = "layers";
/// After the supervisor was killed, the kernel needs a moment to end the processes of the session.
const LEFT_BEHIND_TIME_MAX: Duration = Duration::from_secs(2);

/// Runs the session and returns the exit code.
pub fn run(wanted: &Wanted) -> Result<u8> {
    let cwd = std::env::current_dir().context("the working directory")?;
    ensure!(wanted.volume.is_none(), root_is_needed());
    check_kernel()?;
    let place = on_directory::check(&wanted.place)
        .with_context(|| format!("{}; --place {} cannot be used", root_is_needed(), wanted.place.display()))?;
    let dirs = wanted.dirs(&cwd)?;
    ensure!(!wanted.keep, "--keep keeps a volume, and a session without root has none; leave it out");
    dirs.iter().try_for_each(|dir| check_dir(dir, &place.dir))?;
    let rescue_to = wanted.rescue.as_deref().map(rescue::check_place).transpose()?;
    let ports = Arc::new(wanted.listen.iter().copied().map(Port::take).collect::<Result<Vec<_>>>()?);
    let lists = AccessLists::outside()?;
    let needed = dirs.iter().chain([&cwd, &place.dir]).chain(&rescue_to);
    let host_mounts = HostMounts::look(needed.cloned().collect())?;
    let scratch = private_mounts()?;
    let work = WorkDirs { dirs, phase: Phase::Running, throw_away: true };
    let (home, _held) = Home::make(&place.dir, &work, &lists)?;
    let hidden = OWN.iter().any(|own| cwd.starts_with(own)) && !work.dirs.iter().any(|dir| cwd.starts_with(dir));
    let view = View {
        scratch: scratch.clone(),
        shown: mounts_of_the_host(&scratch)?,
        written: work.layers(&home.path),
        data: None,
        exact: None,
        on: None,
        also: hidden.then(|| cwd.clone()).into_iter().chain(resolver_dir()).collect(),
        cwd,
    };
    if wanted.explain {
        tell_text(&(view.explain() + &explain_net(wanted.net)));
    }
    let ground = Ground { root: &home.root, at: &home.path, disk: &place.disk };
    let committer = Committer::on(ground, &scratch, wanted.commits)?;
    committer.commit()?;
    let words: Vec<_> = wanted.command.iter().map(|word| word.to_string_lossy()).collect();
    let report = Report {
        pid: std::process::id(),
        command: words.join(" "),
        volume: home.path.display().to_string(),
        ..Report::default()
    };
    let Wanted { maps, exact, net, .. } = *wanted;
    let (command, watcher) = (wanted.command.clone(), None);
    let job = Job { command, view, maps, exact, net, ports, report, watcher, host_mounts };
    let (ended, committer) = supervisor::run(job, committer, StatusSocket::bind()?)?;
    committer.close()?;
    if wanted.summary {
        tell(&ended.report);
    }
    if !ended.durable {
        tell_what_is_lost(&ended, &home.path, &work);
        if let Some(to) = &rescue_to {
            match rescue::rescue(None, &work.layers(&home.path), to) {
                Ok(rescued) => tell(rescued.tell(to)),
                Err(e) => tell(format_args!("nothing was saved from memory: {e:#}")),
            }
        }
        return Ok(ended.code);
    }
    scarce_room::tell_the_cause(&home.path, &work.dirs, ended.code, "--place on a larger file system has more room");
    home.finish(&work, &lists)?;
    Ok(ended.code)
}

/// Applies the changes in such a directory, after a crash or an error.
pub fn resume(path: &Path) -> Result<()> {
    let lists = AccessLists::outside()?;
    let (home, work) = Home::left_over(path)?;
    let Some(work) = work else { return home.remove() };
    let _held = held_directories::hold(&work.dirs)?;
    if work.phase == Phase::Running {
        tell(NOTHING_APPLIED_YET);
    }
    home.finish(&work, &lists)
}

/// Throws away the changes in such a directory.
pub fn discard(path: &Path) -> Result<()> {
    let (home, work) = Home::left_over(path)?;
    if work.is_some_and(|work| work.phase == Phase::Applying) {
        bail!(
            "the changes in {} may be applied in part, and must not stay so: `untorn xsync --resume {0}` applies the \
             rest; if that is impossible, remove the directory by hand",
            path.display()
        );
    }
    home.remove()
}

/// The directory with a session's layers, locked.
#[derive(Debug)]
struct Home {
    path: PathBuf,
    root: File,
}

impl Home {
    fn make(place: &Path, work: &WorkDirs, lists: &AccessLists) -> Result<(Home, HeldDirectories)> {
        volume_name::make(place, &work.dirs, LAYERS, |new, path| {
            DirBuilder::new().mode(0o700).create(new).with_context(|| format!("cannot make {}", new.display()))?;
            let made = (|| {
                let root = File::open(new)?;
                flock(&root, FlockOperation::NonBlockingLockExclusive)?;
                work.make_layers(new, lists)?;
                work.write(new)?;
                root.set_permissions(fs::Permissions::from_mode(0o000))?;
                fs::rename(new, path)?;
                sync_parent(path).map(|()| root)
            })();
            let made = made.inspect_err(|_| drop(fs::remove_dir_all(new)));
            let root = made.with_context(|| format!("cannot make {}", path.display()))?;
            Ok(Home { path: path.to_owned(), root })
        })
    }

    /// Opens the directory of a session that has ended, in a user namespace. None instead of the list if the list is
    /// gone: then nothing is to be applied.
    fn left_over(path: &Path) -> Result<(Home, Option<WorkDirs>)> {
        let path = fs::canonicalize(path).with_context(|| path.display().to_string())?;
        ensure!(
            path.extension().is_some_and(|end| end == LAYERS),
            "{} holds no changes of a session: their names end in .{LAYERS}",
            path.display()
        );
        ensure!(
            !is_root(),
            "{} holds changes of an ordinary user: let that user apply them, because root cannot see them as that user \
             does",
            path.display()
        );
        let scratch = private_mounts()?;
        let root = File::open(&path).with_context(|| format!("cannot open {}", path.display()))?;
        let home = Home { path, root };
        flock(&home.root, FlockOperation::NonBlockingLockExclusive)
            .with_context(|| format!("{} belongs to another session; wait for its end", home.path.display()))?;
        let work = WorkDirs::read(&home.path)?;
        work.iter().try_for_each(|work| home.wait_until_over(work, &scratch))?;
        Ok((home, work))
    }

    /// Waits until the processes of a killed supervisor's session are gone: they may still write, and as long as they
    /// do, the layers cannot be mounted as an overlay.
    fn wait_until_over(&self, work: &WorkDirs, scratch: &Path) -> Result<()> {
        let (started, at) = (Instant::now(), scratch.join("tried"));
        fs::create_dir_all(&at)?;
        for layer in work.layers(&self.path) {
            let [lower, upper, work] = [&layer.dir, &layer.upper, &layer.work].map(File::open);
            let lower = lower.with_context(|| format!("cannot open {}", layer.dir.display()))?;
            let (upper, work) = (upper?, work?);
            let [lower, upper, work] = [&lower, &upper, &work].map(path_of);
            let options = [
                ("lowerdir", lower.as_str()),
                ("upperdir", &upper),
                ("workdir", &work),
                ("userxattr", ""),
                ("index", "on"),
            ];
            let is_used = || match overlay(&options, MountAttrFlags::empty(), &at) {
                Ok(()) => unmount(&at, UnmountFlags::DETACH).is_err(),
                Err(e) => e.downcast_ref::<Errno>() == Some(&Errno::BUSY),
            };
            while is_used() {
                ensure!(
                    started.elapsed() < LEFT_BEHIND_TIME_MAX,
                    "another process has the changes in {} mounted; wait for its end",
                    self.path.display()
                );
                std::thread::sleep(Duration::from_millis(5));
            }
        }
        Ok(())
    }

    fn finish(self, work: &WorkDirs, lists: &AccessLists) -> Result<()> {
        let path = self.path.clone();
        let applied = apply_all(&self.path, work, lists);
        applied.and_then(|()| self.remove()).map_err(|e| not_applied(e, &path))
    }

    /// Removes the directory. If a crash interrupts this, the next session removes the rest.
    fn remove(self) -> Result<()> {
        let unfinished = self.path.with_extension(volume_name::unfinished(LAYERS));
        let renamed = fs::rename(&self.path, &unfinished).and_then(|()| fs::remove_dir_all(&unfinished));
        renamed.with_context(|| format!("cannot remove {}", self.path.display()))?;
        sync_parent(&self.path)
    }
}

/// Refuses a directory over which an ordinary user cannot have an overlay.
fn check_dir(dir: &Path, place: &Path) -> Result<()> {
    ensure!(
        !place.starts_with(dir),
        "--place {} lies in {}, whose changes it is to hold; name a directory elsewhere",
        place.display(),
        dir.display()
    );
    let meta = fs::metadata(dir).with_context(|| dir.display().to_string())?;
    ensure!(
        meta.uid() == rustix::process::geteuid().as_raw(),
        "{} belongs to user {}: a session without root works only on directories of its own user; run it by sudo",
        dir.display(),
        meta.uid()
    );
    ensure!(
        meta.gid() == rustix::process::getegid().as_raw(),
        "{} belongs to group {}, but a session without root knows only the group that begins it: begin it with `sg \
         GROUP`, if you belong to this group",
        dir.display(),
        meta.gid()
    );
    match mount_points()?.iter().find(|at| *at != dir && at.starts_with(dir)) {
        Some(mount) => bail!(
            "{} has another file system in it, at {}, which a session without root cannot cover; unmount it, or run \
             this by sudo",
            dir.display(),
            mount.display()
        ),
        None => Ok(()),
    }
}

fn check_kernel() -> Result<()> {
    let release = rustix::system::uname().release().to_string_lossy().into_owned();
    ensure!(
        has_overlays_of_users(&release),
        "Linux {release} lets root alone mount overlays: run this by sudo, or on Linux 5.11 or newer; a directory can be \
         worked on without overlays (--on DIR)"
    );
    Ok(())
}

/// Whether the kernel is Linux 5.11 or newer. An unreadable release is taken for a new one.
fn has_overlays_of_users(release: &str) -> bool {
    let mut numbers =
        release.split(|c: char| !c.is_ascii_digit()).map(|digits| digits.parse::<u32>().unwrap_or(u32::MAX));
    (numbers.next().unwrap_or(u32::MAX), numbers.next().unwrap_or(u32::MAX)) >= (5, 11)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn old_kernels_are_known() {
        for (release, new) in
            [("5.10.0-28-amd64", false), ("5.11.0", true), ("6.1", true), ("4.19.2", false), ("x", true)]
        {
            assert_eq!(has_overlays_of_users(release), new, "{release}");
        }
    }
}
