//! One process on the simulated machine, and its storage.

use super::machine::{Life, Machine, Shared};
use super::simulated_file::{SimFile, told};
use crate::simulation::state::disk_options::{Call, Failed, Profile, What};
use crate::simulation::state::disk_state::errno;
use crate::simulation::state::inodes::{Body, Inode};
use crate::simulation::state::permissions::allows;
use crate::simulation::state::refusal::Act;
use crate::simulation::turns::Seat;
use std::ffi::OsString;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::time::Duration;
use untorn_os::{Access, Counters, File, Meta, Open, Space, Storage, SyncPoint, shown_by};

/// The longest name, as on every file system for which Untorn is made.
const NAME_BYTES_MAX: u64 = 255;

/// The length of a pause.
const PAUSE: Duration = Duration::from_millis(5);

/// A process, and its storage.
pub struct SimProcess {
    shared: Arc<Shared>,
    life: Arc<Life>,
    user: u32,
    /// The number of failed writebacks that `syncfs` has already reported, or that are older than the process.
    failures_seen: AtomicU64,
}

impl SimProcess {
    pub(crate) fn new(shared: &Arc<Shared>, machine: &Machine, life: Arc<Life>, user: u32) -> Arc<SimProcess> {
        Arc::new(SimProcess { shared: shared.clone(), life, user, failures_seen: AtomicU64::new(machine.all_failures) })
    }

    /// Kills the process: its files return `EBADF`, and its locks and claims are free.
    pub fn kill(&self) {
        self.shared.machine().kill(&self.life);
        self.shared.unlocked.notify_all();
    }

    fn call<T>(
        &self,
        call: Call,
        describe: impl FnOnce() -> String,
        act: impl FnOnce(&mut Machine) -> io::Result<T>,
    ) -> io::Result<T> {
        self.shared.call(&self.life, call, describe, |machine, _| act(machine))
    }

    /// Lets time pass, and others act. A killed process does not wait.
    fn wait(&self, time: Duration) {
        if self.is_dead() {
            return;
        }
        self.shared.machine().uptime += time;
        if let Some(seat) = self.life.seat.get() {
            seat.pass();
        }
    }

    /// Makes this process's calls in turns with those of others.
    pub(crate) fn take_turns(&self, seat: Seat) {
        let _ = self.life.seat.set(seat);
    }

    /// Lets the process die right before its call with this number, counted from now.
    pub(crate) fn die_at(&self, call: u64) {
        self.life.dies_at.store(self.calls().saturating_add(call), SeqCst);
    }

    /// Allows at most this many calls from now on. With more, the process is killed, and its table of turns gets a
    /// description.
    pub(crate) fn allow(&self, calls: u64) {
        self.life.calls_max.store(self.calls().saturating_add(calls), SeqCst);
    }

    /// The number of calls that the process has made.
    pub(crate) fn calls(&self) -> u64 {
        self.life.calls.load(SeqCst)
    }

    /// Whether the process was killed.
    pub(crate) fn is_dead(&self) -> bool {
        !self.life.alive.load(SeqCst)
    }
}

impl Storage for SimProcess {
    fn open(&self, path: &Path, how: Open) -> io::Result<Arc<dyn File>> {
        let call = if how.create.is_some() { Call::Name } else { Call::Look };
        let (slot, handle, failures, direct) = self.call(
            call,
            || format!("open {} {how:?}", path.display()),
            |machine| {
                let state = &mut machine.state;
                let act = match (how.create, how.write) {
                    (Some(_), _) => Act::Make,
                    (None, true) => Act::OpenForWriting,
                    (None, false) => Act::OpenForReading,
                };
                allows(state, self.user, path, act)?;
                state.openable(path)?;
                let slot = match how.create {
                    Some(mode) => {
                        let parent = state.directory(path.parent().unwrap_or(Path::new("")))?;
                        let shown = if how.shown { shown_by(state.meta(parent)?.mode) } else { 0 };
                        state.create(path, Inode::empty_file(), mode | shown, self.user)?
                    }
                    None => state.resolve(path)?,
                };
                match state.inode(slot)?.body {
                    Body::Symlink => return Err(errno(libc::ELOOP)),
                    Body::Directory(_) if how.write => return Err(errno(libc::EISDIR)),
                    _ if how.write && state.options.read_only => return Err(errno(libc::EROFS)),
                    _ => {}
                }
                let direct = how.direct && state.options.direct;
                let handle = machine.opened(slot, &self.life);
                Ok((slot, handle, machine.failures.get(&slot).copied().unwrap_or(0), direct))
            },
        )?;
        Ok(Arc::new(SimFile {
            shared: self.shared.clone(),
            life: self.life.clone(),
            path: path.into(),
            slot,
            directory: None,
            handle,
            write: how.write,
            direct,
            failures_seen: AtomicU64::new(failures),
        }))
    }

    fn create_unnamed(&self, directory: &Path) -> io::Result<Arc<dyn File>> {
        let describe = || format!("create_unnamed in {:?}", directory.display());
        let path = directory.join("an unnamed file");
        let (slot, directory, handle) = self.call(Call::Name, describe, |machine| {
            allows(&machine.state, self.user, &path, Act::Make)?;
            let slot = machine.state.create_unnamed(directory, self.user)?;
            Ok((slot, machine.state.directory(directory)?, machine.opened(slot, &self.life)))
        })?;
        Ok(Arc::new(SimFile {
            shared: self.shared.clone(),
            life: self.life.clone(),
            path: path.as_path().into(),
            slot,
            directory: Some(directory),
            handle,
            write: true,
            direct: false,
            failures_seen: AtomicU64::new(0),
        }))
    }

    fn stat(&self, path: &Path) -> io::Result<Meta> {
        let describe = || format!("stat {}", path.display());
        self.call(Call::Look, describe, |machine| {
            allows(&machine.state, self.user, path, Act::Look)?;
            machine.state.meta(machine.state.named(path)?)
        })
    }

    fn list(&self, path: &Path) -> io::Result<Vec<OsString>> {
        let describe = || format!("list {}", path.display());
        self.call(Call::Look, describe, |machine| {
            allows(&machine.state, self.user, path, Act::List)?;
            machine.state.list(path)
        })
    }

    fn rename(&self, from: &Path, to: &Path, replace: bool) -> io::Result<()> {
        let describe = || format!("rename {} to {}, replace: {replace}", from.display(), to.display());
        self.call(Call::Name, describe, |machine| {
            // Linux reports that the name is taken before it checks rights to the directories.
            let taken = !replace && machine.state.named(from).is_ok() && machine.state.named(to).is_ok();
            let acts = if taken { [Act::Look; 2] } else { [Act::MoveAway, Act::MoveHere] };
            allows(&machine.state, self.user, from, acts[0])?;
            allows(&machine.state, self.user, to, acts[1])?;
            if let Some(replaced) = machine.state.rename(from, to, replace)? {
                machine.unnamed(replaced);
            }
            Ok(())
        })
    }

    fn link(&self, from: &Path, to: &Path) -> io::Result<()> {
        let describe = || format!("link {} to {}", from.display(), to.display());
        self.call(Call::Name, describe, |machine| {
            allows(&machine.state, self.user, from, Act::Look)?;
            allows(&machine.state, self.user, to, Act::Make)?;
            machine.state.hard_link(from, to)
        })
    }

    fn unlink(&self, path: &Path) -> io::Result<()> {
        let describe = || format!("unlink {}", path.display());
        self.call(Call::Name, describe, |machine| {
            allows(&machine.state, self.user, path, Act::Remove)?;
            let slot = machine.state.unlink(path)?;
            machine.unnamed(slot);
            Ok(())
        })
    }

    fn mkdir(&self, path: &Path, mode: u32) -> io::Result<()> {
        let describe = || format!("mkdir {}", path.display());
        self.call(Call::Name, describe, |machine| {
            allows(&machine.state, self.user, path, Act::Make)?;
            machine.state.create(path, Body::Directory(Vec::new()), mode, self.user)?;
            Ok(())
        })
    }

    fn set_dir_mode(&self, path: &Path, mode: u32) -> io::Result<()> {
        let describe = || format!("set_dir_mode {} {mode:o}", path.display());
        self.call(Call::Attribute, describe, |machine| {
            allows(&machine.state, self.user, path, Act::SetMode)?;
            let slot = machine.state.directory(path)?;
            machine.state.set_mode(slot, mode)
        })
    }

    fn rmdir(&self, path: &Path) -> io::Result<()> {
        let describe = || format!("rmdir {}", path.display());
        self.call(Call::Name, describe, |machine| {
            allows(&machine.state, self.user, path, Act::Remove)?;
            let slot = machine.state.rmdir(path)?;
            machine.unnamed(slot);
            Ok(())
        })
    }

    fn check_access(&self, path: &Path, access: Access) -> io::Result<()> {
        let describe = || format!("check_access {} {access:?}", path.display());
        self.call(Call::Look, describe, |machine| {
            let options = &machine.state.options;
            if options.permissions || options.refusal.is_some_and(|refusal| refusal.told) {
                match access {
                    Access::Add => allows(&machine.state, self.user, &path.join("new"), Act::Make)?,
                    Access::Remove => allows(&machine.state, self.user, path, Act::Remove)?,
                    Access::Mode(_) => allows(&machine.state, self.user, path, Act::SetMode)?,
                    // Groups are not simulated.
                    Access::NewMode(_) => {}
                }
            }
            match access {
                Access::Add | Access::NewMode(_) => machine.state.directory(path)?,
                Access::Remove | Access::Mode(_) => machine.state.named(path)?,
            };
            if machine.state.options.read_only { Err(errno(libc::EROFS)) } else { Ok(()) }
        })
    }

    fn sync_dir(&self, path: &Path, step: SyncPoint) -> io::Result<()> {
        let describe = || format!("sync_dir {} ({step:?})", path.display());
        self.shared.call(&self.life, Call::Sync(step), describe, |machine, fault| {
            allows(&machine.state, self.user, path, Act::List)?;
            let slot = machine.state.directory(path)?;
            if let Some(What::Writeback(how)) = fault {
                if how == Failed::Landed {
                    machine.state.sync_directory(slot);
                }
                return Err(errno(libc::EIO));
            }
            if !machine.state.options.skips(step) {
                machine.state.sync_directory(slot);
            }
            Ok(())
        })
    }

    fn sync_file_system(&self, step: SyncPoint) -> io::Result<()> {
        let describe = || format!("sync_file_system ({step:?})");
        self.shared.call(&self.life, Call::Sync(step), describe, |machine, fault| {
            if machine.state.options.skips(step) {
                return Ok(());
            }
            if let Some(What::Writeback(how)) = fault {
                machine.fail_writeback(None, how);
            } else {
                machine.state.sync_file_system();
            }
            told(&self.failures_seen, machine.all_failures)
        })
    }

    fn sync_file_system_reports_errors(&self) -> bool {
        true
    }

    fn keeps_order(&self) -> bool {
        matches!(self.shared.machine().state.options.profile, Profile::Ext4 | Profile::Xfs)
    }

    fn space(&self) -> io::Result<Space> {
        self.call(
            Call::Look,
            || "space".to_owned(),
            |machine| {
                let (available_bytes, total_bytes) = machine.state.space();
                let read_only = machine.state.options.read_only;
                let (available_inodes, name_bytes_max) = (machine.state.free_inodes(), NAME_BYTES_MAX);
                Ok(Space { available_bytes, total_bytes, available_inodes, name_bytes_max, read_only })
            },
        )
    }

    fn open_files_max(&self) -> usize {
        self.shared.machine().state.options.open_files_max
    }

    fn file_size_limit(&self) -> u64 {
        u64::MAX
    }

    fn effective_user(&self) -> u32 {
        self.user
    }

    fn time(&self) -> Option<u64> {
        // Always the same, so that a seed determines every byte.
        Some(1_700_000_000)
    }

    fn boot_id(&self) -> io::Result<[u8; 16]> {
        self.call(Call::Look, || "boot_id".to_owned(), |machine| Ok(machine.state.boot_id()))
    }

    fn random(&self, bytes: &mut [u8]) -> io::Result<()> {
        let len = bytes.len();
        self.call(
            Call::Look,
            || format!("random {len}"),
            |machine| {
                for chunk in bytes.chunks_mut(8) {
                    chunk.copy_from_slice(&machine.state.next_random().to_le_bytes()[..chunk.len()]);
                }
                Ok(())
            },
        )
    }

    fn pause(&self) {
        self.wait(PAUSE);
    }

    /// A record is flushed before the contents that it refers to: the worse order.
    fn at_once(&self, other: &mut (dyn FnMut() + Send), own: &mut dyn FnMut()) {
        own();
        other();
    }

    fn pause_for(&self, time: Duration) {
        self.wait(time);
    }

    fn uptime(&self) -> Duration {
        self.shared.machine().uptime
    }

    fn counters(&self) -> Counters {
        *self.life.counters()
    }
}
