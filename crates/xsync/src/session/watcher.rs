//! A process of root, the watcher, that holds outside readers of a session's directory until a commit.
//!
//! A session of root starts a watcher of its own. A session of an ordinary user connects to the one that an
//! administrator runs for the file system (`untorn xsync --watch DIR`). If the supervisor is killed, the watcher goes
//! on until the session has ended and its changes are durable. If the watcher ends first, the session is ended.

use crate::control::Control;
use crate::host::outer_streams::tell;
use crate::host::outside_readers::OutsideReaders;
use crate::session::session_init::close_all_but;
use crate::view::on_directory::disk_of;
use anyhow::{Context, Result, bail, ensure};
use parking_lot::Mutex;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::{FileType, Mode, OFlags, fstat, fsync, openat};
use rustix::io::Errno;
use rustix::net::{Shutdown, shutdown};
use rustix::process::{Pid, PidfdFlags, Signal, WaitOptions, pidfd_open, setsid, waitpid};
use serde::{Deserialize, Serialize};
use std::collections::HashMap;
use std::fs;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::thread::{self, JoinHandle};
use untorn_terminal::log;
use untorn_terminal::user_namespace::is_root;

/// The directory of the watchers' sockets.
const HOME: &str = "/run/untorn-xsync";
/// The most sessions that one user may have on one file system.
const SESSIONS_MAX: usize = 64;

/// Requests of a supervisor.
#[derive(Debug, Serialize, Deserialize)]
enum Asked {
    /// Hold outside readers. Comes with the session's own mount of the directory.
    Hold,
    /// Hold them until this process ends. Comes with a descriptor of the session's first process.
    Until,
}

/// Answers of a watcher.
#[derive(Debug, Serialize, Deserialize)]
enum Answer {
    /// Outside readers wait from now on.
    Holding,
    /// They do not wait, for this reason.
    Refused(String),
}

/// The supervisor's connection to a watcher.
#[derive(Debug)]
pub struct Watcher {
    connection: Arc<Control>,
    own: Option<Pid>,
    ended: Arc<AtomicBool>,
    hears: Option<JoinHandle<()>>,
}

impl Watcher {
    /// Makes outside readers of a directory wait from now on, except through this mount. If this process is root's, it
    /// must have one thread.
    pub fn hold(dir: &Path, mount: &OwnedFd) -> Result<Watcher> {
        let (connection, own) = if is_root() { of_its_own(mount)? } else { (connect(dir)?, None) };
        let watcher = Watcher { connection: Arc::new(connection), own, ended: Arc::default(), hears: None };
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let directory = openat(mount, ".", flags, Mode::empty()).context("the session's mount")?;
        watcher.connection.send(&Asked::Hold, Some(directory.as_fd()))?;
        match watcher.connection.receive::<Answer>()? {
            Some((Answer::Holding, _)) => Ok(watcher),
            Some((Answer::Refused(why), _)) => bail!("outside readers of {} cannot be held: {why}", dir.display()),
            None => bail!("outside readers of {} cannot be held: the watcher has ended", dir.display()),
        }
    }

    /// Holds outside readers until the session, which has begun, has ended. If the watcher ends first, the session is
    /// ended.
    pub fn until_the_end_of(&mut self, init: Pid) -> Result<()> {
        let session = pidfd_open(init, PidfdFlags::empty()).context("the session's first process")?;
        self.connection.send(&Asked::Until, Some(session.as_fd()))?;
        let (connection, ended) = (self.connection.clone(), self.ended.clone());
        self.hears = Some(thread::spawn(move || {
            let _ = connection.receive::<Answer>();
            if !ended.load(SeqCst) {
                tell("the watcher has ended, so outside readers no longer wait; the session ends, too");
                let _ = rustix::process::pidfd_send_signal(&session, Signal::KILL);
            }
        }));
        Ok(())
    }
}

impl Drop for Watcher {
    /// Ends the hold. By now all changes are durable, or can never be.
    fn drop(&mut self) {
        self.ended.store(true, SeqCst);
        let _ = shutdown(self.connection.as_fd(), Shutdown::Write);
        if let Some(hears) = self.hears.take() {
            let _ = hears.join();
        }
        if let Some(own) = self.own {
            let _ = waitpid(Some(own), WaitOptions::empty());
        }
    }
}

/// Starts a watcher for one session, in a process that survives the end of the supervisor.
fn of_its_own(mount: &OwnedFd) -> Result<(Control, Option<Pid>)> {
    let (ours, theirs) = Control::pair()?;
    let device = fstat(mount)?.st_dev;
    // SAFETY: this process has one thread, so that no lock is held by another one.
    match unsafe { libc::fork() } {
        0 => {
            let _ = setsid();
            close_all_but(&[theirs.as_fd().as_raw_fd()]);
            log::leave_terminal();
            if let Err(e) = serve(&theirs, device, 0) {
                failed(0, &e);
            }
            // SAFETY: ends the process at once; nothing of the supervisor's, which this is a copy of, is cleaned up.
            unsafe { libc::_exit(0) }
        }
        pid if pid > 0 => Ok((ours, Pid::from_raw(pid))),
        _ => Err(std::io::Error::last_os_error()).context("a process for the watcher"),
    }
}

fn socket_of(dir: &Path) -> Result<PathBuf> {
    Ok(Path::new(HOME).join(format!("watch-{}", disk_of(dir)?)))
}

/// Connects to the watcher that an administrator runs.
fn connect(dir: &Path) -> Result<Control> {
    let stream = UnixStream::connect(socket_of(dir)?).with_context(|| {
        format!(
            "no watcher holds outside readers of {0}, so a session without root cannot work on it; an administrator \
             has to run `untorn xsync --watch {0}` (`untorn xsync --print-fstab {0}` prints a unit for it)",
            dir.display()
        )
    })?;
    // Only root can make files in that directory, so the socket is a watcher's.
    Ok(Control::of(stream.into()))
}

/// Holds outside readers for sessions of ordinary users on the file system of a directory, until this process is ended.
pub fn watch(dir: &Path) -> Result<()> {
    ensure!(is_root(), "a watcher holds outside readers by fanotify, which needs root; run it by sudo, or as a unit");
    let dir = fs::canonicalize(dir).with_context(|| format!("--watch {}", dir.display()))?;
    let (device, path) = (fs::metadata(&dir)?.dev(), socket_of(&dir)?);
    fs::create_dir_all(HOME).with_context(|| format!("cannot make {HOME}"))?;
    if UnixStream::connect(&path).is_ok() {
        bail!("a watcher for the file system of {} runs already", dir.display());
    }
    let _ = fs::remove_file(&path);
    let listener = UnixListener::bind(&path).with_context(|| format!("cannot make {}", path.display()))?;
    fs::set_permissions(&path, fs::Permissions::from_mode(0o666))?;
    tell(format_args!("watching the file system of {}", dir.display()));
    let sessions: Arc<Mutex<HashMap<u32, usize>>> = Arc::default();
    for stream in listener.incoming() {
        let stream = stream.context("the watcher's socket")?;
        let user = rustix::net::sockopt::socket_peercred(&stream).context("the watcher's socket")?.uid.as_raw();
        let sessions = sessions.clone();
        *sessions.lock().entry(user).or_default() += 1;
        thread::spawn(move || {
            let connection = Control::of(stream.into());
            let served = if sessions.lock()[&user] > SESSIONS_MAX {
                connection.send(&Answer::Refused(format!("more than {SESSIONS_MAX} sessions of one user")), None)
            } else {
                serve(&connection, device, user)
            };
            if let Err(e) = served {
                failed(user, &e);
            }
            *sessions.lock().get_mut(&user).expect("counted") -= 1;
        });
    }
    Ok(())
}

fn failed(user: u32, e: &anyhow::Error) {
    tracing::warn!(
        id = "untorn.watcher.session_failed",
        user,
        error = %format_args!("{e:#}"),
        "outside readers of a session no longer wait"
    );
}

/// Serves one session until its supervisor and its processes have ended and its changes are durable.
fn serve(connection: &Control, device: u64, user: u32) -> Result<()> {
    let Some((Asked::Hold, Some(mount))) = connection.receive::<Asked>()? else { return Ok(()) };
    let held = check(&mount, device, user).and_then(|()| OutsideReaders::hold(mount.as_fd()));
    let readers = match held {
        Ok(readers) => readers,
        Err(e) => return connection.send(&Answer::Refused(format!("{e:#}")), None),
    };
    connection.send(&Answer::Holding, None)?;
    let commit = || fsync(&mount).context("the journal cannot be committed");
    let (mut session, mut supervisor_ended) = (None, false);
    loop {
        let mut ready = vec![PollFd::new(&readers, PollFlags::IN)];
        match &session {
            Some(session) if supervisor_ended => ready.push(PollFd::new(session, PollFlags::IN)),
            None if supervisor_ended => break,
            _ => ready.push(PollFd::new(connection, PollFlags::IN)),
        }
        match poll(&mut ready, None) {
            Err(Errno::INTR) => continue,
            done => done.context("waiting for outside readers")?,
        };
        let (somebody_reads, news) = (!ready[0].revents().is_empty(), !ready[1].revents().is_empty());
        drop(ready);
        if somebody_reads {
            readers.answer(commit)?;
        }
        if news && supervisor_ended {
            break;
        }
        if news {
            match connection.receive::<Asked>() {
                Ok(Some((Asked::Until, Some(process)))) => session = Some(process),
                _ => supervisor_ended = true,
            }
        }
    }
    // Changes that a killed supervisor left become durable before the readers go on.
    let durable = commit();
    while readers.somebody_waits() {
        readers.answer(commit)?;
    }
    durable
}

/// Refuses a directory that is not the user's, or not on the watched file system.
fn check(mount: &OwnedFd, device: u64, user: u32) -> Result<()> {
    let stat = fstat(mount).context("the session's directory")?;
    ensure!(
        FileType::from_raw_mode(stat.st_mode) == FileType::Directory && stat.st_dev == device,
        "the directory lies on another file system"
    );
    ensure!(
        user == 0 || stat.st_uid == user,
        "the directory belongs to user {}, not to user {user}; an administrator gives it away by chown",
        stat.st_uid
    );
    Ok(())
}
