//! The fixtures of the rules: a new storage for each rule, and changes of it by other programs.

use std::fmt::Debug;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tempfile::TempDir;
use untorn_crashlab::{Options, Profile, SimDisk};
use untorn_os::{File, Linux, Open, Storage};

/// The allowed differences between storages, by name. Everything else is the contract.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Difference {
    /// XFS: renaming a directory over one that is not empty returns `EEXIST`; elsewhere it is `ENOTEMPTY`.
    FullDirectoryExists,
    /// ext4: an allocation without enough room may have made the file longer, by zeros.
    FailedAllocationMayExtend,
    /// Linux: [`untorn_os::Mapping::copy_in`] may store into a hidden page, where nobody sees the bytes. The simulated
    /// disk returns `EFAULT`.
    HiddenPagesMayTakeStores,
    /// Linux without `process_vm_writev`: a hidden page may be loaded. Elsewhere it is `EFAULT`.
    HiddenPagesMayBeLoaded,
    /// Linux, tracker `scan`: a page that was loaded for the first time may be reported as if it had been stored to.
    LoadedPagesMayCountAsStoredTo,
}

/// A rule of the contract, and its name.
pub type Rule = (&'static str, fn(&Fixture));

/// Lists rules by their names.
macro_rules! rules {
    ($($name:ident,)+) => { pub const RULES: &[crate::fixture::Rule] = &[$((stringify!($name), $name),)+]; };
}
pub(crate) use rules;

enum Kind {
    Simulated(Options),
    Linux(PathBuf),
    /// Taken for byte-addressable memory.
    LinuxAsMemory(PathBuf),
}

/// A kind of storage that must keep the contract.
pub struct Backend {
    pub name: String,
    kind: Kind,
    differences: Vec<Difference>,
}

/// A storage for one rule, empty at first.
pub struct Fixture {
    pub storage: Arc<dyn Storage>,
    root: Root,
    differences: Vec<Difference>,
}

enum Root {
    Simulated(SimDisk),
    Linux(TempDir),
    LinuxAsMemory(TempDir),
}

impl Backend {
    /// The simulated disk.
    pub fn simulated(options: Options) -> Backend {
        let Options { profile, memory, lines, direct, permissions, .. } = options;
        let name = format!(
            "simulated disk, {profile:?}, direct: {direct}, lines: {lines}, memory: {memory}, permissions: {permissions}"
        );
        let differences = match profile {
            Profile::Ext4 => vec![Difference::FailedAllocationMayExtend],
            _ => Vec::new(),
        };
        Backend { name, kind: Kind::Simulated(options), differences }
    }

    /// A directory of this machine.
    pub fn linux(name: String, dir: &Path, its_own: &[Difference]) -> Backend {
        let everywhere = [Difference::HiddenPagesMayTakeStores, Difference::LoadedPagesMayCountAsStoredTo];
        let differences = everywhere.iter().chain(its_own).copied().collect();
        Backend { name, kind: Kind::Linux(dir.to_owned()), differences }
    }

    /// A directory of this machine, taken for one on byte-addressable memory.
    pub fn linux_as_memory(name: String, dir: &Path) -> Backend {
        Backend { kind: Kind::LinuxAsMemory(dir.to_owned()), ..Backend::linux(name, dir, &[]) }
    }

    fn fixture(&self) -> Fixture {
        let made = |dir: &Path| {
            let dir = tempfile::Builder::new().prefix("untorn-contract-").tempdir_in(dir);
            dir.expect("a writable directory")
        };
        let root = match &self.kind {
            Kind::Simulated(options) => Root::Simulated(SimDisk::new(*options)),
            Kind::Linux(dir) => Root::Linux(made(dir)),
            Kind::LinuxAsMemory(dir) => Root::LinuxAsMemory(made(dir)),
        };
        Fixture { storage: root.storage(), root, differences: self.differences.clone() }
    }

    /// Runs a rule; returns its message if it does not hold.
    pub fn try_rule(&self, (_, rule): &Rule) -> Result<(), String> {
        catch_unwind(AssertUnwindSafe(|| rule(&self.fixture()))).map_err(|panic| {
            let text = panic.downcast_ref::<String>().cloned();
            text.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned())).unwrap_or_default()
        })
    }
}

impl Root {
    fn storage(&self) -> Arc<dyn Storage> {
        match self {
            Root::Simulated(disk) => disk.process(),
            Root::Linux(dir) => Linux::open(dir.path()).expect("a directory"),
            Root::LinuxAsMemory(dir) => Linux::open_as_memory(dir.path()).expect("a directory"),
        }
    }
}

impl Fixture {
    pub fn has(&self, difference: Difference) -> bool {
        self.differences.contains(&difference)
    }

    /// The directory as another storage.
    pub fn another_storage(&self) -> Arc<dyn Storage> {
        self.root.storage()
    }

    #[track_caller]
    pub fn open(&self, path: &str, how: Open) -> Arc<dyn File> {
        self.storage.open(Path::new(path), how).unwrap_or_else(|e| panic!("{path}: {e}"))
    }

    /// A new file with these contents, open for reading and writing.
    #[track_caller]
    pub fn file(&self, path: &str, contents: &[u8]) -> Arc<dyn File> {
        let file = self.open(path, Open::create(0o644));
        untorn_os::write_all_at(&*file, contents, 0).expect("room for contents");
        file
    }

    #[track_caller]
    pub fn directory(&self, path: &str) {
        self.storage.mkdir(Path::new(path), 0o755).expect("a new directory");
    }

    /// The names in a directory, sorted.
    #[track_caller]
    pub fn names(&self, path: &str) -> Vec<String> {
        let names = self.storage.list(Path::new(path)).expect("a directory");
        let mut names: Vec<String> = names.into_iter().map(|name| name.into_string().unwrap()).collect();
        names.sort();
        names
    }

    // --- other programs

    /// A symbolic link. On real file systems it leads to `target` in its own directory.
    pub fn symbolic_link(&self, path: &str) {
        match &self.root {
            Root::Simulated(disk) => disk.symlink(path).unwrap(),
            Root::Linux(dir) | Root::LinuxAsMemory(dir) => {
                std::os::unix::fs::symlink("target", dir.path().join(path)).unwrap()
            }
        }
    }

    pub fn hard_link(&self, from: &str, to: &str) {
        match &self.root {
            Root::Simulated(disk) => disk.hard_link(from, to).unwrap(),
            Root::Linux(dir) | Root::LinuxAsMemory(dir) => {
                std::fs::hard_link(dir.path().join(from), dir.path().join(to)).unwrap()
            }
        }
    }

    /// Makes a named pipe. False: the simulated disk has none.
    pub fn pipe(&self, path: &str) -> bool {
        let (Root::Linux(dir) | Root::LinuxAsMemory(dir)) = &self.root else { return false };
        let mode = rustix::fs::Mode::from_raw_mode(0o600);
        rustix::fs::mknodat(rustix::fs::CWD, dir.path().join(path), rustix::fs::FileType::Fifo, mode, 0).unwrap();
        true
    }

    /// Mounts something empty on a directory while `act` runs. Does nothing where that is impossible: without root,
    /// outside of a worker's own mount namespace, on the simulated disk.
    pub fn with_mount_on(&self, path: &str, act: impl FnOnce()) {
        use rustix::mount::{MountFlags, mount};
        let Some(dir) = self.mountable() else { return };
        let at = dir.join(path);
        mount("tmpfs", &at, "tmpfs", MountFlags::empty(), None).unwrap();
        let _unmount = Unmount(at);
        act();
    }

    /// Passes the directory as a storage that is mounted read-only to `act`. Does nothing where that is impossible.
    pub fn while_read_only(&self, act: impl FnOnce(&dyn Storage)) {
        use rustix::mount::{MountFlags, mount_bind, mount_remount};
        if let Root::Simulated(disk) = &self.root {
            disk.set_options(|options| options.read_only = true);
            act(&*disk.process());
            return disk.set_options(|options| options.read_only = false);
        }
        let Some(dir) = self.mountable() else { return };
        let at = tempfile::tempdir().unwrap();
        mount_bind(dir, at.path()).unwrap();
        let _unmount = Unmount(at.path().to_owned());
        mount_remount(at.path(), MountFlags::BIND | MountFlags::RDONLY, "").unwrap();
        let storage = Linux::open(at.path()).unwrap();
        act(&*storage);
    }

    /// Whether permission bits have an effect for this user.
    pub fn counts_permissions(&self) -> bool {
        let they_do = match &self.root {
            Root::Simulated(disk) => disk.options().permissions,
            Root::Linux(_) | Root::LinuxAsMemory(_) => true,
        };
        they_do && self.storage.effective_user() != 0
    }

    /// Sets a flag of `chattr` while `act` runs. Does nothing where that is impossible: outside of a worker, on file
    /// systems that do not have the flag, on the simulated disk.
    pub fn with_flag(&self, path: &str, flag: char, act: impl FnOnce()) {
        let Some(dir) = self.mountable() else { return };
        let at = dir.join(path);
        if !change_flag(&at, '+', flag) {
            return;
        }
        let _cleared = Flagged(at, flag);
        act();
    }

    /// Runs `act` as another user, who owns these files. Does nothing where that is impossible: outside of a worker, on
    /// the simulated disk.
    pub fn as_another_user(&self, owned: &[&str], act: impl FnOnce(&dyn Storage) + Send) {
        const USER: u32 = 65534;
        let Some(dir) = self.mountable() else { return };
        for path in owned {
            std::os::unix::fs::chown(dir.join(path), Some(USER), Some(USER)).unwrap();
        }
        std::fs::set_permissions(dir, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
        let storage = &self.storage;
        let done = std::thread::scope(|scope| {
            let as_user = scope.spawn(move || {
                // SAFETY: the bare system call changes this thread alone, which ends with it.
                assert_eq!(unsafe { libc::syscall(libc::SYS_setresuid, USER, USER, USER) }, 0);
                act(&**storage);
            });
            as_user.join()
        });
        if let Err(panic) = done {
            std::panic::resume_unwind(panic);
        }
    }

    /// The directory, if this process may mount something on it: in a worker, which has its own mounts.
    fn mountable(&self) -> Option<&Path> {
        let (Root::Linux(dir) | Root::LinuxAsMemory(dir)) = &self.root else { return None };
        std::env::var_os("UNTORN_CRASHLAB_WORKER").map(|_| dir.path())
    }

    /// Runs `act` with a storage that has room for about `bytes`, if possible.
    pub fn with_room_for(&self, bytes: u64, act: impl FnOnce(&Fixture)) {
        match &self.root {
            Root::Simulated(disk) => {
                disk.set_capacity(Some(bytes));
                act(self);
                disk.set_capacity(None);
            }
            Root::Linux(_) if self.mountable().is_some() => act(self),
            Root::Linux(_) | Root::LinuxAsMemory(_) => {}
        }
    }
}

fn change_flag(path: &Path, sign: char, flag: char) -> bool {
    let mut command = std::process::Command::new("chattr");
    command.arg(format!("{sign}{flag}")).arg(path).stderr(std::process::Stdio::null());
    command.status().is_ok_and(|status| status.success())
}

struct Flagged(PathBuf, char);

impl Drop for Flagged {
    fn drop(&mut self) {
        change_flag(&self.0, '-', self.1);
    }
}

struct Unmount(PathBuf);

impl Drop for Unmount {
    fn drop(&mut self) {
        let _ = rustix::mount::unmount(&self.0, rustix::mount::UnmountFlags::DETACH);
    }
}

/// Asserts that the call was refused with one of these errors.
#[track_caller]
pub fn refused<T>(result: io::Result<T>, errors: &[i32]) {
    let name = |code: &i32| io::Error::from_raw_os_error(*code).to_string();
    match result.map(drop) {
        Err(e) if e.raw_os_error().is_some_and(|code| errors.contains(&code)) => {}
        other => panic!(
            "{other:?}, not {} (line {})",
            errors.iter().map(name).collect::<Vec<_>>().join(" or "),
            std::panic::Location::caller().line()
        ),
    }
}

/// Asserts equality; the panic names the line.
#[track_caller]
pub fn same<T: PartialEq + Debug>(found: T, expected: T) {
    assert!(found == expected, "line {}: {found:?}, not {expected:?}", std::panic::Location::caller().line());
}

/// Asserts a condition; the panic names the line.
#[track_caller]
pub fn holds(condition: bool) {
    assert!(condition, "line {}", std::panic::Location::caller().line());
}

/// The contents of a whole file.
pub fn contents(file: &dyn File) -> Vec<u8> {
    let mut bytes = vec![0xee; file.meta().unwrap().size as usize + 10];
    let n = untorn_os::read_full_at(file, &mut bytes, 0).unwrap();
    bytes.truncate(n);
    bytes
}
