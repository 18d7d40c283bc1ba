//! Starts sessions in a process of their own.

use crate::measuring::bench_run::Run;
use crate::measuring::child::{JOB_VARIABLE, Job, SessionJob};
use crate::measuring::fs::{Device, FileSystem, Place};
use anyhow::{Context, Result, bail, ensure};
use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use untorn_xsync::commands::run_session::Wanted;
use untorn_xsync::volumes::committer::Commits;

const VOLUME_BYTES: u64 = 1 << 30;

/// Runs the session of a job in this process, which must have one thread. Fails unless the program's exit code is 0.
pub fn run(job: SessionJob) -> Result<()> {
    let SessionJob { commits, exact, volume, place, listen, program } = job;
    let listen: Vec<std::net::SocketAddr> =
        listen.into_iter().map(|port| (std::net::Ipv4Addr::LOCALHOST, port).into()).collect();
    let bytes = VOLUME_BYTES;
    let volume = volume.map(|path| (path, Some(bytes)));
    let program = program.into_iter().map(Into::into).collect();
    let code = Wanted { commits, exact, volume, place, bytes, listen, ..Wanted::new(program) }.run()?;
    ensure!(code == 0, "the session ended with code {code}");
    Ok(())
}

/// The command of a guest: this program, with a job in its environment.
pub fn guest(job: &Job) -> Result<Vec<String>> {
    let program = std::env::current_exe()?.to_str().context("the path of this program")?.to_owned();
    Ok(vec!["env".to_owned(), format!("{JOB_VARIABLE}={}", serde_json::to_string(job)?), program])
}

/// The volumes of sessions.
pub struct Host {
    /// The directory of temporary volumes.
    dir: PathBuf,
    /// A volume that is kept, so that it is made only once.
    volume: PathBuf,
    commits: Commits,
}

impl Host {
    /// A session on the volume that is kept.
    pub fn on_volume(&self, listen: Option<u16>, program: Vec<String>) -> SessionJob {
        let volume = Some(self.volume.clone());
        SessionJob { commits: self.commits, exact: false, volume, place: self.dir.clone(), listen, program }
    }

    /// A session over its working directory.
    pub fn over_a_directory(&self, program: Vec<String>) -> SessionJob {
        SessionJob { commits: self.commits, exact: false, volume: None, place: self.dir.clone(), listen: None, program }
    }
}

/// A place, and the directories and devices beside it for other sessions and peers.
pub struct Setting {
    pub dir: PathBuf,
    /// Sessions whose volumes are files in the place.
    pub host: Host,
    /// Such sessions whose commits follow one another.
    pub eager: Host,
    /// Such sessions whose output does not wait.
    pub ungated: Host,
    /// Sessions whose volume is a block device, as in the paper on xsyncfs. None if the place was not made for the
    /// benchmark.
    pub on_device: Option<Host>,
    /// A directory of an ext4 with data=journal, on a device of its own. None as above.
    pub journaling: Option<PathBuf>,
    _device: Option<Device>,
    _journaling: Option<Place>,
}

impl Setting {
    pub fn new(run: &Run, place: &Place) -> Result<Setting> {
        let dir = place.directory("xsync")?;
        let journaling = place.beside(FileSystem::Ext4DataJournal, run)?;
        let device = place.device_beside(VOLUME_BYTES, run)?;
        if let Some(device) = &device {
            make_volume(&device.path)?;
        }
        let host = |volume: &Path, commits| Host { dir: dir.clone(), volume: volume.to_owned(), commits };
        let volume = dir.join("volume.img");
        Ok(Setting {
            host: host(&volume, Commits::BeforeOutput),
            eager: host(&volume, Commits::Eager),
            ungated: host(&volume, Commits::Never),
            on_device: device.as_ref().map(|device| host(&device.path, Commits::BeforeOutput)),
            journaling: journaling.as_ref().map(|place| place.directory("xsync")).transpose()?,
            dir,
            _device: device,
            _journaling: journaling,
        })
    }
}

/// Makes a device a volume, as `untorn xsync --volume` makes a file one.
fn make_volume(device: &Path) -> Result<()> {
    let options = [
        ["-L", "untorn-xsync"],
        ["-O", "^fast_commit,^encrypt,^casefold,^verity"],
        ["-E", "lazy_itable_init=0,lazy_journal_init=0,nodiscard"],
        ["-J", "size=256"],
    ];
    let mut command = Command::new("mkfs.ext4");
    command.args(["-q", "-F", "-m", "0"]).args(options.as_flattened()).arg(device);
    wait(command.spawn().context("mkfs.ext4")?)
}

/// The command of a session. Its working directory is that of this program, so that a guest can see the program.
pub fn command(job: &SessionJob) -> Result<Command> {
    let program = std::env::current_exe()?;
    let mut command = Command::new(&program);
    command.env(JOB_VARIABLE, serde_json::to_string(&Job::Session(job.clone()))?);
    command.current_dir(program.parent().context("the directory of this program")?).stdin(Stdio::null());
    Ok(command)
}

/// A shell's script, which ends at the first error: in a session that listens at a port, or outside of one.
pub fn shell(host: Option<&Host>, listen: Option<u16>, script: &str) -> Result<Command> {
    let words = ["sh", "-e", "-c", &format!("cd /; {script}")].map(str::to_owned);
    let mut shell = match host {
        Some(host) => command(&host.on_volume(listen, words.into()))?,
        None => {
            let mut shell = Command::new(&words[0]);
            shell.args(&words[1..]);
            shell
        }
    };
    shell.stdin(Stdio::null());
    Ok(shell)
}

/// Lets other users enter a directory and the one above it. Directories that they may enter stay as they are.
pub fn let_others_enter(dir: &Path) -> Result<()> {
    for dir in dir.ancestors().take(2) {
        let permissions = fs::metadata(dir)?.permissions();
        if permissions.mode() & 0o001 == 0 {
            fs::set_permissions(dir, Permissions::from_mode(0o755))?;
        }
    }
    Ok(())
}

/// Waits for the process to end, and fails unless it succeeded.
pub fn wait(mut child: Child) -> Result<()> {
    let status = child.wait()?;
    if !status.success() {
        bail!("a process of the benchmark ended badly: {status}");
    }
    Ok(())
}
