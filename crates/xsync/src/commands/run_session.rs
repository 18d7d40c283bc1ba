//! A session with a volume, from the volume to the exit code.

use crate::changes::access_lists::AccessLists;
use crate::changes::apply_changes::{self, Applied};
use crate::changes::kept_changes::KeptChanges;
use crate::changes::rescue;
use crate::changes::work_dirs::{DATA, Phase, WorkDirs, check_dirs};
use crate::filter::syscall_filter::Maps;
use crate::host::held_directories::{self, HeldDirectories};
use crate::host::host_mounts::HostMounts;
use crate::host::host_view::{OWN, View, mounts_of_the_host};
use crate::host::outer_streams::{tell, tell_text};
use crate::host::private_mounts::{check_root, private_mounts};
use crate::network::session_network::{Net, explain_net};
use crate::relays::listen::Port;
use crate::report::session_report::Report;
use crate::report::status_socket::StatusSocket;
use crate::session::supervisor::{self, Ended, Job};
use crate::view::exact;
use crate::volumes::committer::{Commits, Committer, check_mount};
use crate::volumes::scarce_room;
use crate::volumes::volume::{BYTES_DEFAULT, Image, Use, Volume};
use crate::volumes::volume_name;
use anyhow::{Context, Result, bail};
use indicatif::{ProgressBar, ProgressStyle};
use std::ffi::OsString;
use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The options of a session.
#[derive(Clone, Debug)]
pub struct Wanted {
    /// A volume that is kept (`--volume`): file or device, and its size.
    pub volume: Option<(PathBuf, Option<u64>)>,
    /// The path in the session of a volume that is kept.
    pub at: PathBuf,
    /// Directories whose changes are applied at the end. The working directory is one, too, if there is no volume that
    /// is kept.
    pub overlays: Vec<PathBuf>,
    /// The directory of the volumes that are thrown away at the end.
    pub place: PathBuf,
    /// The size of a volume that is thrown away.
    pub bytes: u64,
    /// Keep the volume that would be thrown away.
    pub keep: bool,
    /// Copy the volume's data to this directory in the end.
    pub export: Option<PathBuf>,
    /// If the volume's disk fails, save the kernel's memory of it to this directory.
    pub rescue: Option<PathBuf>,
    /// Addresses of this machine where the session's ports can be reached.
    pub listen: Vec<SocketAddr>,
    /// Whether the program reaches addresses outside.
    pub net: Net,
    /// The treatment of shared maps.
    pub maps: Maps,
    /// Flushes return the results that they have outside of a session, and io_uring works.
    pub exact: bool,
    /// List at the start which parts of the host the session sees.
    pub explain: bool,
    /// Print a summary at the end.
    pub summary: bool,
    /// The program and its arguments.
    pub command: Vec<OsString>,
    /// The moments of commits.
    pub commits: Commits,
}

impl Wanted {
    /// The default options for a program.
    pub fn new(command: Vec<OsString>) -> Wanted {
        Wanted {
            volume: None,
            at: "/data".into(),
            overlays: Vec::new(),
            place: volume_name::PLACE_DEFAULT.into(),
            bytes: BYTES_DEFAULT,
            keep: false,
            export: None,
            rescue: None,
            listen: Vec::new(),
            net: Net::default(),
            maps: Maps::default(),
            exact: false,
            explain: false,
            summary: false,
            command,
            commits: Commits::default(),
        }
    }

    /// Runs the session and returns the exit code.
    pub fn run(self) -> Result<u8> {
        check_root()?;
        let cwd = std::env::current_dir().context("the working directory")?;
        let dirs = self.dirs(&cwd)?;
        if let Some(dir) = &self.export
            && dir.exists()
        {
            bail!("{} exists already; --export makes a new directory", dir.display());
        }
        let export = self.export.as_ref().map(std::path::absolute).transpose()?;
        let rescue_to = self.rescue.as_deref().map(rescue::check_place).transpose()?;
        let ports = Arc::new(self.listen.iter().copied().map(Port::take).collect::<Result<Vec<_>>>()?);
        let kept = self.volume.as_ref().map_or(&self.place, |(volume, _)| volume);
        let kept = [std::path::absolute(kept)?, cwd.clone()];
        let needed = dirs.iter().chain(&kept).chain(&export).chain(&rescue_to);
        let host_mounts = HostMounts::look(needed.cloned().collect())?;
        let scratch = private_mounts()?;
        let work = WorkDirs { dirs, phase: Phase::Running, throw_away: self.volume.is_none() };
        let (volume, _held) = self.volume(&scratch, &work)?;
        let view = self.view(&scratch, &volume, &work, &cwd)?;
        if self.explain {
            tell_text(&(view.explain() + &explain_net(self.net)));
        }
        let committer = Committer::new(&volume, &scratch, self.commits)?;
        committer.commit()?;
        let words: Vec<_> = self.command.iter().map(|word| word.to_string_lossy()).collect();
        let report = Report {
            pid: std::process::id(),
            command: words.join(" "),
            volume: volume.path().display().to_string(),
            ..Report::default()
        };
        let job = Job {
            command: self.command.clone(),
            view,
            maps: self.maps,
            exact: self.exact,
            net: self.net,
            ports,
            report,
            watcher: None,
            host_mounts,
        };
        let (ended, committer) = supervisor::run(job, committer, StatusSocket::bind()?)?;
        committer.close()?;
        if self.summary {
            tell(&ended.report);
        }
        if !ended.durable {
            tell_what_is_lost(&ended, volume.path(), &work);
            self.rescue(&volume, &work, rescue_to.as_deref());
            return Ok(ended.code);
        }
        let way = match self.volume {
            Some(_) => "`--volume FILE:SIZE` makes a larger volume",
            None => "`--size` makes a larger volume",
        };
        scarce_room::tell_the_cause(volume.at(), &work.dirs, ended.code, way);
        let path = volume.path().to_owned();
        let exported = export.as_deref().map_or(Ok(()), |dir| export_data(&volume, dir));
        finish(volume, work, self.keep).map_err(|e| not_applied(e, &path))?;
        exported?;
        Ok(ended.code)
    }

    /// The directories whose changes the volume holds, as absolute paths without links.
    pub(crate) fn dirs(&self, cwd: &Path) -> Result<Vec<PathBuf>> {
        let mut dirs = Vec::new();
        if self.volume.is_none() {
            dirs.push(cwd.to_owned());
        }
        for dir in &self.overlays {
            let dir = fs::canonicalize(dir).with_context(|| format!("the overlay {}", dir.display()))?;
            if !dirs.contains(&dir) {
                dirs.push(dir);
            }
        }
        check_dirs(&dirs)?;
        Ok(dirs)
    }

    /// Saves the kernel's memory of a failed volume. Runs before the volume is unmounted, because that drops the
    /// memory.
    fn rescue(&self, volume: &Volume, work: &WorkDirs, to: Option<&Path>) {
        let Some(to) = to else {
            tell("data that was only in memory, not on the disk, is lost now; --rescue DIR saves such data next time");
            return;
        };
        let data = self.volume.as_ref().map(|_| volume.at().join(DATA));
        match rescue::rescue(data.as_deref(), &work.layers(volume.at()), to) {
            Ok(rescued) => tell(rescued.tell(to)),
            Err(e) => tell(format_args!("nothing was saved from memory: {e:#}")),
        }
    }

    fn volume(&self, scratch: &Path, work: &WorkDirs) -> Result<(Volume, HeldDirectories)> {
        let at = scratch.join("volume");
        fs::create_dir_all(&at)?;
        let mounted = |image: Image| {
            let volume = image.mount(&at)?;
            check_mount(&at)?;
            Ok::<Volume, anyhow::Error>(volume)
        };
        match &self.volume {
            Some((path, bytes)) => {
                let volume = mounted(kept_image(path, *bytes)?)?;
                if let Some(before) = WorkDirs::read(&at)? {
                    let dirs: Vec<_> = before.dirs.iter().map(|dir| dir.display().to_string()).collect();
                    bail!(
                        "{} has changes of {} that are not applied yet: `untorn xsync --resume {0}` applies them, \
                         `untorn xsync --discard {0}` throws them away",
                        path.display(),
                        dirs.join(" and ")
                    );
                }
                let held = held_directories::hold(&work.dirs)?;
                work.make_layers(&at, &AccessLists::Own)?;
                if !work.dirs.is_empty() {
                    work.write(&at)?;
                }
                make_data(&at)?;
                Ok((volume, held))
            }
            None => {
                let use_for = if self.listen.is_empty() { Use::OneSession } else { Use::Servers };
                volume_name::make(&self.place, &work.dirs, volume_name::IMAGE, |new, path| {
                    let mut volume = mounted(Image::create(new, self.bytes, use_for)?)?;
                    let made = work.make_layers(&at, &AccessLists::Own).and_then(|()| work.write(&at));
                    made.and_then(|()| volume.rename(path)).inspect_err(|_| {
                        let _ = fs::remove_file(new);
                    })?;
                    Ok(volume)
                })
            }
        }
    }

    fn view(&self, scratch: &Path, volume: &Volume, work: &WorkDirs, cwd: &Path) -> Result<View> {
        let written = work.layers(volume.at());
        let hidden = OWN.iter().any(|own| cwd.starts_with(own)) && !work.dirs.iter().any(|dir| cwd.starts_with(dir));
        let data = self.volume.as_ref().map(|_| (volume.at().join(DATA), self.at.clone()));
        let exact = self.exact && data.is_some();
        Ok(View {
            scratch: scratch.to_owned(),
            shown: mounts_of_the_host(scratch)?,
            written,
            data,
            exact: exact.then(|| exact::make(volume.at())).transpose()?,
            on: None,
            also: hidden.then(|| cwd.to_owned()).into_iter().chain(resolver_dir()).collect(),
            cwd: cwd.to_owned(),
        })
    }
}

/// The directory of the resolver's settings, if the session has a directory of its own in that place.
pub(crate) fn resolver_dir() -> Option<PathBuf> {
    let dir = fs::canonicalize("/etc/resolv.conf").ok()?.parent()?.to_owned();
    OWN.iter().any(|own| dir.starts_with(own)).then_some(dir)
}

/// Copies the data of a volume to a new directory.
fn export_data(volume: &Volume, dir: &Path) -> Result<()> {
    let data = volume.at().join(DATA);
    let bar = progress(apply_changes::measure(&data)?.1, "exporting");
    let copied = apply_changes::copy_out(&data, dir, &mut |done| bar.set_position(done.bytes));
    bar.finish_and_clear();
    copied.map(drop).with_context(|| {
        format!(
            "nothing was exported; all data are in {}: `untorn xsync --volume {0} --export DIR -- true` exports them \
             when the reason is gone",
            volume.path().display()
        )
    })
}

/// Makes the directory of a volume that the session sees.
fn make_data(volume: &Path) -> Result<()> {
    fs::create_dir_all(volume.join(DATA)).context("the volume's data")
}

fn kept_image(path: &Path, bytes: Option<u64>) -> Result<Image> {
    if !path.exists() {
        return Image::create(path, bytes.unwrap_or(BYTES_DEFAULT), Use::Servers);
    }
    let image = Image::open(path)?;
    if let Some(bytes) = bytes {
        image.grow(bytes)?;
    }
    Ok(image)
}

/// Applies the session's changes, then throws the volume away, or keeps it.
fn finish(volume: Volume, work: WorkDirs, keep: bool) -> Result<()> {
    apply_all(volume.at(), &work, &AccessLists::Own)?;
    if work.throw_away {
        return if keep { keep_applied(volume) } else { volume.throw_away() };
    }
    WorkDirs::remove_layers(volume.at())?;
    exact::remove(volume.at())?;
    volume.unmount().map(drop)
}

/// Keeps a volume whose changes were applied, as a record of them. Its new name does not hold up later sessions.
fn keep_applied(mut volume: Volume) -> Result<()> {
    let kept = volume.path().with_extension(volume_name::KEPT);
    volume.rename(&kept)?;
    volume.unmount()?;
    tell(format_args!(
        "the volume is kept: {0} (what changed is in overlays/*/upper of its file system); \
         `untorn xsync --discard {0}` removes it",
        kept.display()
    ));
    Ok(())
}

pub(crate) fn apply_all(volume: &Path, work: &WorkDirs, lists: &AccessLists) -> Result<()> {
    if work.dirs.is_empty() {
        return Ok(());
    }
    let layers = work.layers(volume);
    // Reads all layers to their ends first: if one cannot be read, nothing is applied, and the volume can still be
    // thrown away.
    let sizes = layers.iter().map(|layer| apply_changes::measure(&layer.upper)).collect::<Result<Vec<_>>>()?;
    work.begin_to_apply(volume)?;
    let mut kept = KeptChanges::default();
    for (layer, (_, bytes)) in layers.iter().zip(sizes) {
        let bar = progress(bytes, &format!("applying to {}", layer.dir.display()));
        let applied = apply_changes::apply(layer, lists, &mut |done: &Applied| bar.set_position(done.bytes))?;
        bar.finish_and_clear();
        kept.add(layer, applied.refused);
    }
    if kept.is_empty() {
        return WorkDirs::forget(volume);
    }
    // The applied changes leave the volume, so that `--resume` does not apply them over later changes by others.
    kept.leave_alone()?;
    work.note_kept(volume)?;
    Err(kept.into())
}

fn progress(bytes: u64, what: &str) -> ProgressBar {
    let style = ProgressStyle::with_template("{msg} {wide_bar} {bytes}/{total_bytes}").expect("a fixed template");
    ProgressBar::new(bytes).with_style(style).with_message(what.to_owned())
}

/// Adds to an error that some or all changes were not applied, and how to go on.
pub(crate) fn not_applied(e: anyhow::Error, path: &Path) -> anyhow::Error {
    let path = path.display();
    if e.is::<KeptChanges>() {
        return e.context(format!(
            "some changes could not be applied, all others were; `untorn xsync --resume {path}` applies them when the \
             reason is gone, `untorn xsync --discard {path}` throws them away"
        ));
    }
    e.context(format!(
        "all that the program did is in {path}; `untorn xsync --resume {path}` applies it when the reason is gone; if nothing \
         is applied yet, `untorn xsync --discard {path}` throws it away"
    ))
}

pub(crate) fn tell_what_is_lost(ended: &Ended, path: &Path, work: &WorkDirs) {
    let held = match ended.lost_bytes {
        0 => "No output was held back.".to_owned(),
        bytes => format!("{bytes} bytes of output were held back, and nobody has seen them."),
    };
    let path = path.display();
    let what_to_do = match work.dirs.is_empty() {
        true => "Open it again when its disk works.".to_owned(),
        false => format!("`untorn xsync --resume {path}` applies it when its disk works."),
    };
    tell(format_args!(
        "the session was ended, because its volume failed. {held} Everything that was shown is in {path}. \
         {what_to_do}"
    ));
}

/// Applies the changes of directories in a volume, after a crash or an error.
pub fn resume(path: &Path) -> Result<()> {
    check_root()?;
    let scratch = private_mounts()?;
    let volume = left_over(path, &scratch)?;
    let Some(work) = WorkDirs::read(volume.at())? else {
        if is_for_data(&volume) {
            volume.unmount()?;
            bail!("{} holds no changes of directories; there is nothing to apply", path.display());
        }
        if path.extension().is_some_and(|end| end == volume_name::KEPT) {
            volume.unmount()?;
            bail!("the changes in {} were applied already; `untorn xsync --discard {0}` removes it", path.display());
        }
        // The session was killed between the end of the apply and the removal of the volume.
        tell("everything was applied already");
        return volume.throw_away();
    };
    let _held = held_directories::hold(&work.dirs)?;
    if work.phase == Phase::Running {
        tell(NOTHING_APPLIED_YET);
    }
    finish(volume, work, false).map_err(|e| not_applied(e, path))
}

/// A message for a session that was killed, or whose apply failed before its first step.
pub(crate) const NOTHING_APPLIED_YET: &str =
    "the program had not ended, or its changes could not be applied; its changes until its last commit are applied now";

/// Throws away the changes of directories in a volume.
pub fn discard(path: &Path) -> Result<()> {
    check_root()?;
    let scratch = private_mounts()?;
    let volume = left_over(path, &scratch)?;
    let Some(work) = WorkDirs::read(volume.at())? else {
        if is_for_data(&volume) {
            volume.unmount()?;
            bail!(
                "{} holds no changes of directories, but the data of a program: remove the file if nobody needs them",
                path.display()
            );
        }
        return volume.throw_away();
    };
    if work.phase == Phase::Applying {
        volume.unmount()?;
        bail!(
            "the changes in {} may be applied in part, and must not stay so: `untorn xsync --resume {0}` applies the \
             rest; if that is impossible, remove the file",
            path.display()
        );
    }
    if !work.throw_away {
        WorkDirs::forget(volume.at())?;
        WorkDirs::remove_layers(volume.at())?;
        return volume.unmount().map(drop);
    }
    volume.throw_away()
}

/// Whether the volume is one of `--volume`. Only its owner throws that away.
fn is_for_data(volume: &Volume) -> bool {
    volume.at().join(DATA).exists()
}

fn left_over(path: &Path, scratch: &Path) -> Result<Volume> {
    let at = scratch.join("volume");
    fs::create_dir_all(&at)?;
    Image::open(path)?.mount(&at)
}
