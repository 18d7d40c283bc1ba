//! The command line: help, completions and manual pages all come from here.

use crate::daemon::{self, start, supervisor};
use crate::error_line::in_one_line;
use crate::fuse::{kernel, write_back_helper};
use crate::import_export::held_back::Skips;
use crate::import_export::{export, import, made_plain};
use crate::mounts::awaited_slot::AwaitedSlot;
use crate::mounts::committed_files;
use crate::mounts::mount_options::allowed;
use crate::mounts::mount_point::{self, Allowed};
use crate::mounts::{mount_check, mount_status, mounted_store, sync_paths, unmount};
use crate::processes::passed_descriptors;
use crate::processes::passed_signals::Signals;
use crate::processes::supervised::{DEVICE, Supervised, WithEnds};
use crate::processes::supervised_log::SupervisedLog;
use crate::session::run_on_plain::{self, Left};
use crate::session::session_mount::Session;
use anyhow::{Context, Result, ensure};
use clap::{Args, CommandFactory, Parser, Subcommand, ValueEnum, ValueHint};
use std::cell::Cell;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use untorn_terminal::log::{self, LevelFilter, LogOptions};
use untorn_terminal::pages::{Completions, Man};
use untorn_terminal::{Failure, ListingForm, Output, tell};
use untorn_tree::{CommitMode, FileTree, HandoverLog, Limits};

/// Opens the store that is to be mounted, and creates it if it does not exist.
pub type Open = fn(
    &Path,
    CommitMode,
    Option<Arc<dyn HandoverLog>>,
    Option<Arc<dyn Limits>>,
    Option<&AwaitedSlot>,
) -> Result<Arc<dyn FileTree>>;

/// The trigger that commits a file, besides a sync of it and a rename over another file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
enum Commit {
    /// A sync only; without one, files that no program has open for writing, after some seconds
    #[default]
    Fsync,
    /// The close by its last writer, soon after it; close() does not wait
    Close,
    /// Each write() of up to 1020 KiB, as one, and each change of a name or attribute, before the call returns;
    /// nothing is cached
    Write,
    /// Syncs only, and each commits all changes of all files so far, as one
    Store,
}

impl From<Commit> for CommitMode {
    fn from(commit: Commit) -> CommitMode {
        match commit {
            Commit::Fsync => CommitMode::Sync,
            Commit::Close => CommitMode::Close,
            Commit::Write => CommitMode::Write,
            Commit::Store => CommitMode::Store,
        }
    }
}

#[derive(Parser)]
#[command(
    name = "untorn-mount",
    version,
    max_term_width = 100,
    args_conflicts_with_subcommands = true,
    subcommand_negates_reqs = true,
    disable_help_subcommand = true
)]
struct Cli {
    #[command(flatten)]
    log: LogOptions,
    #[command(flatten)]
    mount: Option<Mount>,
    #[command(subcommand)]
    command: Option<Command>,
}

#[derive(Subcommand)]
enum Command {
    Umount(Umount),
    Sync(Sync),
    Import(Import),
    Export(Export),
    Run(Run),
    Recover(Recover),
    Status(Status),
    Check(Check),
    Cat(Cat),
    Ls(Ls),
    Eject(Eject),
    Session(SessionOf),
    #[command(name = write_back_helper::WRITE_BACK_HELPER, hide = true)]
    Helper,
    Completions(Completions),
    Man(Man),
}

/// Mount a store as a file system: each fsync and msync of any program is all-or-nothing.
///
/// STORE is created if it is missing or empty. The command returns when the mount is ready; its daemon continues in
/// the background until the mount is unmounted (untorn umount), or SIGTERM ends the daemon. An ordinary user needs
/// fusermount3 (package fuse3).
#[derive(Args)]
struct Mount {
    /// The store: a directory.
    #[arg(value_hint = ValueHint::DirPath)]
    store: PathBuf,
    /// An empty directory.
    #[arg(value_hint = ValueHint::DirPath)]
    mount_point: PathBuf,
    /// Stay in the foreground, and print errors there (for systemd).
    #[arg(long, short)]
    foreground: bool,
    /// The trigger that commits a file, besides fsync and similar calls, and a rename over another file.
    #[arg(long, value_enum, default_value_t)]
    commit: Commit,
    /// The slot that untorn ship serves: fsync and the other calls that commit return when the slot has acknowledged the
    /// commit, so that the loss of this machine does not lose it.
    ///
    /// After the time limit, by default 5 seconds, `hold` goes on waiting, for as long as it takes; `degrade` returns when
    /// the commit is durable on this machine, until the slot has caught up. The daemon's log tells it. Commits without a
    /// caller, and unmounting, do not wait for the slot.
    #[arg(long, value_name = "SLOT[,timeout=SECONDS,on-timeout=hold|degrade]")]
    remote: Option<AwaitedSlot>,
    /// Options as in /etc/fstab: nosuid, nodev, noexec, allow_other, sync_commits.
    ///
    /// With sync_commits, `sync` and `syncfs` by any user commit everything on the mount, as `untorn sync MOUNTPOINT`
    /// does. It is for root alone, and takes a loop device. Every `sync` on the machine then waits for this daemon;
    /// if the daemon hangs, so does `sync`, until somebody kills the daemon.
    #[arg(short, value_delimiter = ',', value_name = "OPTION")]
    options: Vec<String>,
    /// Seconds after which the kernel hands over stores to mapped files that programs did not sync; 0: at a time of
    /// the kernel's choice.
    ///
    /// This commits nothing. It determines which stores a killed program leaves, and which ones untorn status counts
    /// as uncommitted.
    #[arg(long, value_name = "SECONDS", default_value_t = daemon::WRITEBACK_AFTER.as_secs())]
    writeback_after: u64,
    /// Run without the process that starts another daemon when the daemon is killed: the mount is dead then.
    #[arg(long)]
    no_supervisor: bool,
    /// Marks the daemon of a supervisor, which is at the other end of its standard input.
    #[arg(long, hide = true, requires = "foreground")]
    supervised: bool,
    /// Marks the process that a command in the foreground waits for.
    #[arg(long, hide = true, requires = "foreground")]
    announce: bool,
}

/// Commit everything on a mount, unmount it, and wait for the end of its daemon.
#[derive(Args)]
struct Umount {
    /// Where the store is mounted.
    #[arg(value_hint = ValueHint::DirPath)]
    mount_point: PathBuf,
}

/// Commit files: several of one mount as one, all or none.
///
/// A directory stands for everything on its mount, as for `syncfs`.
#[derive(Args)]
struct Sync {
    /// The files, or one directory.
    #[arg(required = true, value_hint = ValueHint::AnyPath)]
    paths: Vec<PathBuf>,
}

/// Make a store that can be mounted out of a plain tree, all or nothing.
///
/// The tree stays as it is. Files of all kinds, hard links, holes, times, modes, owners, access lists (ACL) and
/// extended attributes are kept; blocks are shared if the file system supports it.
#[derive(Args)]
struct Import {
    /// The tree: a directory to which no program may write during the import.
    #[arg(value_hint = ValueHint::DirPath)]
    directory: PathBuf,
    /// The store to be made: a new or an empty directory.
    #[arg(value_hint = ValueHint::DirPath)]
    store: PathBuf,
    /// Write the copied items to this file, for a session.
    #[arg(long, hide = true)]
    manifest: Option<PathBuf>,
}

/// Make a plain tree out of a store that can be mounted, all or nothing.
///
/// The store stays as it is, and must not be mounted during the export. Owners and attributes that the user or the
/// file system cannot keep (owners and system attributes, unless this is root) are left out, and the command prints
/// their number. Devices need root.
#[derive(Args)]
struct Export {
    /// The store.
    #[arg(value_hint = ValueHint::DirPath)]
    store: PathBuf,
    /// The tree to be made: a new or an empty directory.
    #[arg(value_hint = ValueHint::DirPath)]
    to: PathBuf,
    /// Leave out the file or directory of this name (a path from the store's root), and everything below it; can be
    /// given several times.
    #[arg(long, value_name = "NAME")]
    skip: Vec<PathBuf>,
}

/// Run a program in a plain directory where its files are all-or-nothing, as on a mount; it is plain again after.
///
/// The contents of the directory are copied to a store beside it, which is mounted over the directory for the program
/// alone, in namespaces of its own (needs no root where users may make namespaces and open /dev/fuse). When the
/// program has ended, processes that it left running are ended, and the changes go back to the directory. If the
/// session is killed, `untorn recover` puts the committed changes back. A change by another program in the meantime
/// is a conflict, and is not overwritten.
///
/// Signals are passed to the program, except those that stop it and let it continue. A signal that ends programs
/// (SIGHUP, SIGINT, SIGQUIT, SIGTERM) and arrives before the program has begun ends the session; the directory is as
/// it was.
///
/// The exit code is the program's; 124: some changes were not put back, because of a conflict, or because the
/// directory refused a name; 125: the session could not begin, was killed, or could not commit everything at its end;
/// 128 and the number of the signal: a signal ended the session before the program began.
#[derive(Args)]
struct Run {
    /// The directory.
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath)]
    on: PathBuf,
    /// The trigger that commits a file, besides fsync and similar calls, and a rename over another file.
    #[arg(long, value_enum, default_value_t)]
    commit: Commit,
    /// The program and its arguments.
    #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true, value_hint = ValueHint::CommandWithArguments)]
    command: Vec<OsString>,
}

/// Put back the changes of a session (untorn-mount run) that was killed or met a conflict, up to its last commits.
///
/// The command can be killed and repeated. Exit code 124: some changes are not put back, because of a conflict, or
/// because the directory refused a name; the command names each of them. If it is repeated, it tries them again.
#[derive(Args)]
struct Recover {
    /// The directory of the session.
    #[arg(value_hint = ValueHint::DirPath)]
    directory: PathBuf,
    /// Put changes back even where another program changed the same file or directory in the meantime; the changes of
    /// that program are lost.
    #[arg(long)]
    overwrite: bool,
    /// Discard the changes of the session, or, if some are put back already, the changes that are in conflict.
    #[arg(long, conflicts_with_all = ["overwrite", "skip"])]
    discard: bool,
    /// Discard the changes of the session to this name (a path from the directory), and to everything below it; can
    /// be given several times.
    #[arg(long, value_name = "NAME")]
    skip: Vec<PathBuf>,
}

/// Print the state of a mount: which daemon serves it, what is uncommitted, which files are poisoned; or whether a
/// session works on a directory.
///
/// For a mount point, or a directory on a mount, asks its daemon. The exit code is 1 if a file is poisoned, nothing
/// can be committed any more, or the daemon has ended. For another directory, says whether a session (untorn-mount
/// run) works on it, or was left there; then the exit code is 1.
#[derive(Args)]
struct Status {
    /// A directory.
    #[arg(value_hint = ValueHint::DirPath)]
    directory: PathBuf,
    /// Print JSON, for programs. For a session, `session` is `none`, `running` or `left`.
    #[arg(long)]
    json: bool,
}

/// Verify the store of a mount as of its last commit, without changing a byte; programs and the daemon go on.
///
/// Verifies every checksum of the store's log; that names, inodes, links and attributes fit together; and that the
/// contents are there. Exit code: 0 sound, 1 problems, 2 could not look.
#[derive(Args)]
struct Check {
    /// A mount point, a directory on a mount, or a store that can be mounted.
    #[arg(value_hint = ValueHint::DirPath)]
    path: PathBuf,
    /// Print JSON, for programs.
    #[arg(long)]
    json: bool,
}

/// Print files of a store that can be mounted, as of its last commit: `untorn cat`.
#[derive(Args)]
#[command(hide = true)]
struct Cat {
    /// Files, each as the store's path followed by the path in the mounted tree.
    #[arg(required = true, value_hint = ValueHint::FilePath)]
    paths: Vec<PathBuf>,
}

/// List the files of a store that can be mounted, as of its last commit: `untorn ls`.
#[derive(Args)]
#[command(hide = true)]
struct Ls {
    /// The store, or the store's path followed by a path in the mounted tree.
    #[arg(value_hint = ValueHint::AnyPath)]
    path: PathBuf,
    #[command(flatten)]
    form: ListingForm,
}

/// Turn a store that is not mounted into a plain directory, in its place, all or nothing.
///
/// The files are copied (blocks are shared if the file system supports it), flushed, and take the store's place; then
/// the store is removed. If something cannot be kept, such as owners by an ordinary user, nothing is changed. The
/// command can be killed and repeated.
#[derive(Args)]
struct Eject {
    /// The store.
    #[arg(value_hint = ValueHint::DirPath)]
    store: PathBuf,
    /// Do not ask for confirmation.
    #[arg(short, long)]
    yes: bool,
    /// Leave out the file or directory of this name (a path from the store's root), and everything below it; it is
    /// lost. Can be given several times.
    #[arg(long, value_name = "NAME")]
    skip: Vec<PathBuf>,
}

/// The process that serves a session.
#[derive(Args)]
#[command(hide = true)]
struct SessionOf {
    #[arg(long, value_enum)]
    commit: Commit,
    #[arg(long)]
    parent: i32,
    #[arg(long)]
    blocked: u64,
    #[arg(long)]
    tells: i32,
    store: PathBuf,
    at: PathBuf,
    cwd: PathBuf,
    #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true)]
    command: Vec<OsString>,
}

/// Runs the command that this process was started with.
pub fn run(open: Open) -> Result<Output, Failure> {
    let cli = untorn_terminal::parse::<Cli>();
    log::install("untorn-mount", &cli.log, LevelFilter::WARN);
    let done = match (cli.command, cli.mount) {
        (Some(Command::Completions(completions)), _) => return completions.run(Cli::command()),
        (Some(Command::Man(man)), _) => return man.run(Cli::command()),
        (Some(Command::Umount(umount)), _) => unmount::unmount(&umount.mount_point),
        (Some(Command::Sync(sync)), _) => sync_paths::sync(&sync.paths).map(|()| Output::default()),
        (Some(Command::Import(import)), _) => import.run(),
        (Some(Command::Export(export)), _) => export::export(&export.store, &export.to, &Skips::new(&export.skip)).map(Output::text),
        (Some(Command::Run(run)), _) => return run.run(),
        (Some(Command::Recover(recover)), _) => recover.run(),
        (Some(Command::Status(status)), _) => status.run(),
        (Some(Command::Check(check)), _) => return mount_check::check(&check.path, check.json),
        (Some(Command::Cat(cat)), _) => return committed_files::cat(&cat.paths),
        (Some(Command::Ls(ls)), _) => return ls.run(),
        (Some(Command::Eject(of)), _) => made_plain::eject(&of.store, of.yes, &Skips::new(&of.skip)).map(Output::text),
        (Some(Command::Session(session)), _) => return session.run(open),
        (Some(Command::Helper), _) => write_back_helper::run().map(|()| Output::default()),
        (None, Some(mount)) => mount.run(open),
        (None, None) => return Err(Failure::new(
            "nothing to do: give STORE and MOUNTPOINT, or a command (umount, sync, status, check, import, export, eject, run, \
             recover); see --help",
        )
        .code(2)),
    };
    done.map_err(|e| Failure::new(in_one_line(&e)))
}

impl Mount {
    fn run(&self, open: Open) -> Result<Output> {
        if self.supervised {
            return self.serve_supervised(open);
        }
        let store = mount_point::store_of(&self.store);
        let store = std::path::absolute(&store).with_context(|| store.display().to_string())?;
        let at = mount_point::absolute(&self.mount_point)?;
        if self.options.iter().any(|option| option == "remount") {
            return self.remount(&at);
        }
        let allowed = allowed(&self.options)?;
        ensure!(
            mount_point::is_root() || !allowed.sync_commits,
            "the option `sync_commits` is for root, as every `sync` on the machine then waits for this mount; leave it out: \
             `untorn sync {}` commits the same",
            at.display()
        );
        ensure!(
            !allowed.sync_commits || kernel::passes_on_sync(),
            "the option `sync_commits` needs Linux 6.18: this kernel passes `sync` and `syncfs` on to no FUSE mount; leave it \
             out: `untorn sync {}` commits the same",
            at.display()
        );
        mount_point::prepare(&store, &at)?;
        if !self.foreground {
            let arguments = self.arguments("--announce", &store, &at);
            let code = start::start(&arguments)?;
            // Not a result of the command: the mount is there, whether or not anybody reads this hint, so a failed
            // write is no error.
            let said = self.hints(&at);
            if code == 0 && !said.is_empty() && untorn_terminal::write(said.as_bytes()).is_err() {
                tell!("untorn-mount: {said}");
            }
            return Ok(Output::default().code(code));
        }
        if self.announce {
            start::leave_starter()?;
        }
        let ready = || {
            if self.announce {
                return start::ready();
            }
            for said in self.hints(&at).lines() {
                tell!("untorn-mount: {said}");
            }
            Ok(())
        };
        if !self.no_supervisor && kernel::repeats_requests() {
            let arguments = self.arguments("--supervised", &store, &at);
            return supervisor::supervise(&arguments, ready).map(|code| Output::default().code(code));
        }
        self.serve(open, (&store, &at), allowed, (None, None), ready)?;
        Ok(Output::default())
    }

    /// Opens the store and serves it. If that fails before the mount answers, no new store is left.
    fn serve(
        &self,
        open: Open,
        (store, at): (&Path, &Path),
        allowed: Allowed,
        (kept, supervised): (Option<Arc<dyn HandoverLog>>, Option<WithEnds<'_>>),
        ready: impl FnOnce() -> Result<()>,
    ) -> Result<()> {
        let new = mounted_store::NewStore::look(store);
        let is_ready = Cell::new(false);
        let ready = || {
            is_ready.set(true);
            ready()
        };
        let mut tree = None;
        let served = open(store, self.commit.into(), kept, None, self.remote.as_ref()).and_then(|opened| {
            let tree = tree.insert(opened);
            daemon::serve((&*tree, self.commit.into()), store, at, allowed, supervised, self.writeback_after(), ready)
        });
        if let (Err(e), Some(new), false) = (&served, new, is_ready.get()) {
            new.remove(tree.as_ref(), e);
        }
        served
    }

    /// Handles `mount -o remount`, which passes all options that the mount has.
    fn remount(&self, at: &Path) -> Result<Output> {
        let of_kernel = ["user_id=", "group_id=", "default_permissions", "blksize=", "max_read="];
        let (of_mount, others): (Vec<&String>, Vec<&String>) = self
            .options
            .iter()
            .filter(|option| !of_kernel.iter().any(|start| option.starts_with(start)))
            .partition(|option| matches!(option.as_str(), "remount" | "ro"));
        let allowed = allowed(&others.into_iter().cloned().collect::<Vec<_>>())?;
        mount_point::remount(at, allowed, of_mount.into_iter().any(|option| option == "ro"))?;
        Ok(Output::default())
    }

    /// The limits of this mount, a line each.
    fn hints(&self, at: &Path) -> String {
        let mut said = String::new();
        // Programs that rely on `sync` and `syncfs` (package managers, containers) are not told by the calls themselves.
        let commits = self.commit == Commit::Write || self.options.iter().any(|option| option == "sync_commits");
        if !commits {
            let root = if kernel::passes_on_sync() { ", and root can mount with `-o sync_commits`" } else { "" };
            said += &format!("`sync` and `syncfs` commit nothing on {0}; `untorn sync {0}` does{root}\n", at.display());
        }
        if !self.no_supervisor && !kernel::repeats_requests() {
            said += "no supervisor: Linux before 6.9 cannot hand over requests, so the mount is dead if its daemon is \
                     killed; the store has the last commits then\n";
        }
        said
    }

    fn writeback_after(&self) -> Option<Duration> {
        (self.writeback_after > 0).then(|| Duration::from_secs(self.writeback_after))
    }

    /// Builds the command line with which this program starts itself again in another role.
    fn arguments(&self, role: &str, store: &Path, at: &Path) -> Vec<OsString> {
        let mut arguments: Vec<OsString> = vec!["--foreground".into(), role.into()];
        arguments.extend(log::options());
        if self.announce && role != "--announce" {
            arguments.push("--announce".into());
        }
        if self.no_supervisor {
            arguments.push("--no-supervisor".into());
        }
        arguments.push(format!("--commit={}", self.commit.name()).into());
        arguments.push(format!("--writeback-after={}", self.writeback_after).into());
        if let Some(remote) = &self.remote {
            arguments.push(format!("--remote={}", remote.text).into());
        }
        for option in &self.options {
            arguments.extend(["-o".into(), option.into()]);
        }
        arguments.extend(["--".into(), store.into(), at.into()]);
        arguments
    }

    fn serve_supervised(&self, open: Open) -> Result<Output> {
        // The supervisor passes signals on to the daemon.
        Signals::that_end().block()?;
        let supervised = Arc::new(Supervised::begin()?);
        if self.announce && supervised.kept_bytes(DEVICE).is_some() {
            log::leave_terminal();
        }
        let ends = supervised.ends()?;
        let served = (|| {
            let near = self.store.ancestors().find(|path| path.is_dir()).unwrap_or(Path::new("/"));
            let kept = SupervisedLog::of(&supervised, near)?;
            // The handover log lists the kernel's writes that no commit has. A mount without that log cannot be
            // continued.
            ensure!(kept.len()? > 0 || supervised.kept_bytes(DEVICE).is_none(), "what was uncommitted is lost");
            let ready = || if self.announce { start::ready() } else { Ok(()) };
            let places = (self.store.as_path(), self.mount_point.as_path());
            self.serve(open, places, allowed(&self.options)?, (Some(kept), Some((&supervised, ends))), ready)
        })();
        supervised.ending();
        served.map(|()| Output::default())
    }
}

impl Commit {
    fn name(self) -> String {
        self.to_possible_value().expect("no mode is hidden").get_name().to_owned()
    }
}

impl Import {
    fn run(&self) -> Result<Output> {
        import::import(&self.directory, &self.store, self.manifest.as_deref()).map(Output::text)
    }
}

/// Gives this program's own failures an exit code that differs from the session's, so that callers can tell them apart.
fn could_not(e: &anyhow::Error) -> Failure {
    Failure::new(in_one_line(e)).code(run_on_plain::COULD_NOT)
}

impl Run {
    fn run(&self) -> Result<Output, Failure> {
        let code = run_on_plain::run(&self.on, &self.commit.name(), &self.command).map_err(|e| could_not(&e))?;
        Ok(Output::default().code(code))
    }
}

impl Recover {
    fn run(&self) -> Result<Output> {
        let what = match (self.overwrite, self.discard) {
            (true, _) => Left::Overwrite,
            (_, true) => Left::Discard,
            _ => Left::PutBack,
        };
        run_on_plain::recover(&self.directory, what, &Skips::new(&self.skip))
    }
}

impl Status {
    fn run(&self) -> Result<Output> {
        match mount_status::find(&self.directory)? {
            Some(found) => Ok(mount_status::status(&found, self.json)),
            None => run_on_plain::status(&self.directory, self.json),
        }
    }
}

impl Ls {
    fn run(&self) -> Result<Output, Failure> {
        committed_files::ls(&self.path, self.form)
    }
}

impl SessionOf {
    fn run(self, open: Open) -> Result<Output, Failure> {
        let SessionOf { commit, parent, blocked, tells, store, at, cwd, command } = self;
        let (commit, blocked) = (commit.into(), Signals(blocked));
        let tells = passed_descriptors::inherited(tells).map_err(|e| could_not(&e))?;
        let session = Session { store, at, cwd, tells, parent, commit, blocked, command };
        session
            .run(|store, commit, kept, limits| open(store, commit, kept, limits, None))
            .map_err(|e| could_not(&e))?;
        Ok(Output::default())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }
}
