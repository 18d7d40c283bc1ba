//! Transactions over the files of several descriptors.
//!
//! A transaction belongs to the process that began it. Names that the thread which began it creates, renames and
//! unlinks in the transaction's store belong to it, too. On a mount such names are refused.

use std::collections::BTreeMap;
use std::ffi::c_int;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering::*};
use std::sync::{Arc, Mutex};

use untorn_os::mount_calls::TOGETHER_MOST;

use super::at_exit;
use super::managed_files::{Managed, Managing, begin_managing, learn, watch_forks};
use super::managed_stores::ManagedStore;
use super::mount_files::{self, MountFile};
use super::name::{Name, kept};
use super::relocation::is_dir_on_mount;
use super::store_changes::Changes;
use crate::boundary::error::untorn_error::UNTORN_E_NO_SPACE;
use crate::boundary::error::{Failure, Result};
use crate::posix::state::call_section::lock;
use crate::posix::state::posix_descriptor::{failure, refusal};
use crate::posix::state::report::{reported, tell};

struct Transaction {
    process: u64,
    thread: libc::pid_t,
    content: Content,
}

/// The files and names of a transaction.
enum Content {
    Nothing,
    /// Those of a store.
    InStore(Box<Changes>),
    /// Files on a mount, each in a transaction of the mount.
    OnMount(Vec<Arc<MountFile>>),
}

/// The file of a descriptor.
enum Member {
    InStore(Arc<Managed>),
    OnMount(Arc<MountFile>),
}

#[derive(Default)]
struct Table {
    open: BTreeMap<c_int, Transaction>,
    newest: c_int,
}

/// Locked only while files cannot start or stop being managed, so that no fork happens meanwhile.
static TABLE: Mutex<Table> = Mutex::new(Table { open: BTreeMap::new(), newest: 0 });

/// The number of open transactions, those of a parent process included.
static OPEN: AtomicUsize = AtomicUsize::new(0);

/// Whether there are open transactions.
pub(crate) fn is_any_open() -> bool {
    OPEN.load(Acquire) > 0
}

fn own_thread() -> libc::pid_t {
    // SAFETY: asks only.
    unsafe { libc::gettid() }
}

impl Transaction {
    fn is_of_this_thread(&self) -> bool {
        (self.process, self.thread) == (untorn_os::process_generation(), own_thread())
    }

    fn check_own(&self) -> Result<()> {
        if self.process == untorn_os::process_generation() { Ok(()) } else { Err(Failure::forked()) }
    }
}

fn unknown(number: c_int) -> Failure {
    let text = format!("{number} is no open transaction: it was never begun, or it has ended");
    Failure { kind: crate::boundary::error::untorn_error::UNTORN_E_BAD_HANDLE, ..failure(libc::EBADF, text) }
}

/// The managed file of a descriptor.
fn file_of(fd: c_int) -> Result<Member> {
    let text =
        || format!("descriptor {fd} is not of a managed file: name the file by untorn_manage() before it is opened");
    let on_mount = || mount_files::learn(fd).map(Member::OnMount);
    learn(fd).map(Member::InStore).or_else(on_mount).ok_or_else(|| failure(libc::EINVAL, text()))
}

fn apart(of: &str) -> Failure {
    failure(libc::EINVAL, format!("{of}: files that are committed together are of one store, or of one mount"))
}

/// Refuses files of different mounts.
fn check_one_mount(files: &[Arc<MountFile>], other: &MountFile) -> Result<()> {
    match files.iter().all(|file| file.mount() == other.mount()) {
        true => Ok(()),
        false => Err(apart("the files are on different mounts")),
    }
}

/// The store that files of this one are committed in together.
fn store_of(file: &Managed) -> Result<Arc<ManagedStore>> {
    file.shared_store().ok_or_else(|| {
        failure(
            libc::EINVAL,
            "the file has a store of its own: name the directory that has all files of the transaction \
             (untorn_manage_store(), --store) before they are opened",
        )
    })
}

pub(crate) fn begin(fds: &[c_int]) -> Result<c_int> {
    watch_forks();
    at_exit::run_first(end_all);
    let managing = begin_managing();
    let number = {
        let mut table = lock(&TABLE);
        table.newest = table.newest.checked_add(1).ok_or_else(|| failure(libc::EMFILE, "too many transactions"))?;
        let number = table.newest;
        let begun =
            Transaction { process: untorn_os::process_generation(), thread: own_thread(), content: Content::Nothing };
        table.open.insert(number, begun);
        OPEN.store(table.open.len(), Release);
        number
    };
    match fds.iter().try_for_each(|fd| add_locked(number, *fd)) {
        Ok(()) => Ok(number),
        Err(e) => {
            let _ = take(number, &managing).and_then(|begun| give_up(begun, &managing));
            Err(e)
        }
    }
}

pub(crate) fn add(number: c_int, fd: c_int) -> Result<()> {
    let _managing = begin_managing();
    add_locked(number, fd)
}

fn add_locked(number: c_int, fd: c_int) -> Result<()> {
    let mut table = lock(&TABLE);
    let one = table.open.get_mut(&number).ok_or_else(|| unknown(number))?;
    one.check_own()?;
    match file_of(fd)? {
        Member::InStore(file) if file.is_parents() => Err(Failure::forked()),
        Member::InStore(file) => {
            if let Content::Nothing = one.content {
                one.content = Content::InStore(Box::new(Changes::begin(&store_of(&file)?)?));
            }
            match &mut one.content {
                Content::InStore(changes) => changes.add(&file),
                _ => Err(apart("the transaction has files on a mount")),
            }
        }
        Member::OnMount(file) => {
            if let Content::Nothing = one.content {
                one.content = Content::OnMount(Vec::new());
            }
            match &mut one.content {
                Content::OnMount(files) => join(files, file),
                _ => Err(apart("the transaction has files of a store")),
            }
        }
    }
}

fn join(files: &mut Vec<Arc<MountFile>>, file: Arc<MountFile>) -> Result<()> {
    if files.iter().any(|known| Arc::ptr_eq(known, &file)) {
        return Ok(());
    }
    check_one_mount(files, &file)?;
    if files.len() == TOGETHER_MOST {
        return Err(failure(libc::EINVAL, format!("a transaction on a mount has at most {TOGETHER_MOST} files")));
    }
    file.join()?;
    files.push(file);
    Ok(())
}

/// Commits several files as one.
pub(crate) fn syncv(fds: &[c_int]) -> Result<()> {
    let (mut in_store, mut on_mount) = (Vec::new(), Vec::new());
    for fd in fds {
        match file_of(*fd)? {
            // A handle of its own, so that no call holds the locks of two files.
            Member::InStore(file) => in_store.push(file.with(|file| Ok(file.try_clone()?))?),
            Member::OnMount(file) => {
                check_one_mount(&on_mount, &file)?;
                on_mount.push(file);
            }
        }
    }
    let Some(first) = in_store.first() else {
        return match on_mount.is_empty() {
            true => Err(failure(libc::EINVAL, "no descriptors")),
            false => mount_files::commit_together(&on_mount, false),
        };
    };
    if !on_mount.is_empty() {
        return Err(apart("some of the files are on a mount"));
    }
    first.store().syncv(&in_store.iter().collect::<Vec<_>>()).map_err(|e| match Failure::from(e) {
        Failure { errno: libc::EINVAL, message, .. } => failure(
            libc::EINVAL,
            format!("{message}: name that directory (untorn_manage_store(), --store) before they are opened"),
        ),
        other => other,
    })
}

fn take(number: c_int, _managing: &Managing) -> Result<Transaction> {
    let mut table = lock(&TABLE);
    table.open.get(&number).ok_or_else(|| unknown(number))?.check_own()?;
    let one = table.open.remove(&number).ok_or_else(|| unknown(number));
    OPEN.store(table.open.len(), Release);
    one
}

pub(crate) fn commit(number: c_int) -> Result<()> {
    let taken = take(number, &begin_managing())?;
    match taken.content {
        Content::Nothing => Ok(()),
        Content::InStore(changes) if changes.has_names() => changes.commit(&begin_managing()),
        Content::InStore(changes) => {
            let (done, left) = changes.commit_contents();
            let released = left.release(&begin_managing());
            done.and(released)
        }
        Content::OnMount(ref files) => match mount_files::commit_together(files, true) {
            Err(e) if e.kind == UNTORN_E_NO_SPACE => {
                put_back(number, taken, &begin_managing());
                Err(e)
            }
            Err(e) => {
                let _ = give_up(taken, &begin_managing());
                Err(e)
            }
            Ok(()) => leave(files),
        },
    }
}

/// Lets a transaction go on whose commit found no room.
fn put_back(number: c_int, taken: Transaction, _managing: &Managing) {
    let mut table = lock(&TABLE);
    table.open.insert(number, taken);
    OPEN.store(table.open.len(), Release);
}

/// Takes files on a mount out of a transaction that has ended.
fn leave(files: &[Arc<MountFile>]) -> Result<()> {
    files.iter().map(MountFile::leave).fold(Ok(()), Result::and)
}

pub(crate) fn abort(number: c_int) -> Result<()> {
    let managing = begin_managing();
    give_up(take(number, &managing)?, &managing)
}

fn give_up(one: Transaction, managing: &Managing) -> Result<()> {
    match one.content {
        Content::Nothing => Ok(()),
        Content::InStore(changes) => changes.abort(managing),
        Content::OnMount(files) => {
            let done = files.iter().map(|file| file.roll_back_joined()).fold(Ok(()), Result::and);
            done.and(leave(&files))
        }
    }
}

/// Makes a change of names: in the newest transaction of this thread in the store, or as a commit of its own.
pub(crate) fn change_names<T>(
    store: &Arc<ManagedStore>,
    managing: &Managing,
    change: impl FnOnce(&mut Changes) -> Result<T>,
) -> Result<T> {
    {
        let mut table = lock(&TABLE);
        if let Some(changes) = newest(&mut table, store)? {
            return change(changes);
        }
    }
    let mut changes = Changes::begin(store)?;
    match change(&mut changes) {
        Ok(done) => changes.commit(managing).map(|()| done),
        Err(e) => {
            let _ = changes.abort(managing);
            Err(e)
        }
    }
}

/// Creates a file in the newest transaction of this thread in the store. None: there is no such transaction, or the
/// file exists.
pub(crate) fn create(
    store: &Arc<ManagedStore>,
    path: &Path,
    flags: c_int,
    mode: libc::mode_t,
) -> Result<Option<c_int>> {
    if !is_any_open() {
        return Ok(None);
    }
    let managing = begin_managing();
    let mut table = lock(&TABLE);
    match newest(&mut table, store)? {
        Some(changes) if std::fs::symlink_metadata(path).is_err() => {
            changes.create(path, flags, mode, &managing).map(Some)
        }
        _ => Ok(None),
    }
}

/// Whether a transaction of this process gives this name to a file.
pub(crate) fn is_given(path: &Path) -> bool {
    is_any_open()
        && lock(&TABLE).open.values().any(|one| {
            one.check_own().is_ok() && matches!(&one.content, Content::InStore(changes) if changes.gives(path))
        })
}

fn newest<'t>(table: &'t mut Table, store: &Arc<ManagedStore>) -> Result<Option<&'t mut Changes>> {
    for one in table.open.values_mut().rev().filter(|one| one.is_of_this_thread()) {
        match &mut one.content {
            Content::OnMount(_) => {}
            Content::InStore(changes) if !Arc::ptr_eq(changes.store(), store) => {}
            Content::InStore(changes) => return Ok(Some(changes)),
            nothing => {
                *nothing = Content::InStore(Box::new(Changes::begin(store)?));
                return Ok(match nothing {
                    Content::InStore(changes) => Some(changes),
                    _ => None,
                });
            }
        }
    }
    Ok(None)
}

/// Refuses a change of a managed name, if the name is on a mount and the change would belong to a transaction of this
/// thread, or if the file is in a transaction.
pub(crate) fn check_name_on_mount(name: &Name) -> Result<()> {
    let dir = name.dir();
    if !is_any_open() || !is_dir_on_mount(dir) {
        return Ok(());
    }
    let mount = std::fs::metadata(dir).map(|found| found.dev()).ok();
    let would_have = |one: &&Transaction| {
        one.is_of_this_thread()
            && match &one.content {
                Content::Nothing => true,
                Content::InStore(_) => false,
                Content::OnMount(files) => files.first().is_none_or(|file| Some(file.mount()) == mount),
            }
    };
    let number = lock(&TABLE).open.iter().rev().find(|(_, one)| would_have(one)).map(|(number, _)| *number);
    match number {
        None => kept(name).map_or(Ok(()), |file| file.check_not_joined()),
        Some(number) => Err(refusal(
            libc::EOPNOTSUPP,
            format!(
                "{} cannot change in transaction {number}, which has only contents of files, as they are on a mount: \
                 change the name before it or after it",
                name.path.display()
            ),
        )),
    }
}

/// Discards all transactions at the end of the process.
fn end_all(managing: &Managing) {
    let open = std::mem::take(&mut lock(&TABLE).open);
    for (number, one) in
        open.into_iter().filter(|(_, one)| one.check_own().is_ok() && !matches!(one.content, Content::Nothing))
    {
        tell(&format!("exit: transaction {number} was neither committed nor aborted: its changes are discarded"));
        reported("exit", (), || give_up(one, managing));
    }
}
