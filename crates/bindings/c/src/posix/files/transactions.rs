//! Transactions over the files of several descriptors.
//!
//! A transaction belongs to the process that began it. Names that the thread which began it creates, renames and
//! unlinks in the transaction's store belong to it, too.

use std::collections::BTreeMap;
use std::ffi::c_int;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering::*};
use std::sync::{Arc, Mutex};

use super::at_exit;
use super::managed_files::{Managed, Managing, begin_managing, learn, watch_forks};
use super::managed_stores::ManagedStore;
use super::store_changes::Changes;
use crate::boundary::error::{Failure, Result};
use crate::posix::state::call_section::lock;
use crate::posix::state::posix_descriptor::failure;
use crate::posix::state::report::{reported, tell};

struct Transaction {
    process: u64,
    thread: libc::pid_t,
    /// None: it has no file yet, and no name.
    changes: Option<Changes>,
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

fn own_thread() -> libc::pid_t {
    // SAFETY: asks only.
    unsafe { libc::gettid() }
}

impl Transaction {
    fn check_own(&self) -> Result<()> {
        if self.process == untorn_os::process_generation() { Ok(()) } else { Err(Failure::forked()) }
    }
}

fn unknown(number: c_int) -> Failure {
    let text = format!("{number} is no open transaction: it was never begun, or it has ended");
    Failure { kind: crate::boundary::error::untorn_error::UNTORN_E_BAD_HANDLE, ..failure(libc::EBADF, text) }
}

/// The managed file of a descriptor.
pub(crate) fn file_of(fd: c_int) -> Result<Arc<Managed>> {
    let text =
        || format!("descriptor {fd} is not of a managed file: name the file by untorn_manage() before it is opened");
    learn(fd).ok_or_else(|| failure(libc::EINVAL, text()))
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
        let begun = Transaction { process: untorn_os::process_generation(), thread: own_thread(), changes: None };
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
    let file = file_of(fd)?;
    if file.is_parents() {
        return Err(Failure::forked());
    }
    let changes = match &mut one.changes {
        Some(changes) => changes,
        none => none.insert(Changes::begin(&store_of(&file)?)?),
    };
    changes.add(&file)
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
    let Some(changes) = taken.changes else { return Ok(()) };
    if changes.has_names() {
        return changes.commit(&begin_managing());
    }
    let (done, left) = changes.commit_contents();
    let released = left.release(&begin_managing());
    done.and(released)
}

pub(crate) fn abort(number: c_int) -> Result<()> {
    let managing = begin_managing();
    give_up(take(number, &managing)?, &managing)
}

fn give_up(one: Transaction, managing: &Managing) -> Result<()> {
    one.changes.map_or(Ok(()), |changes| changes.abort(managing))
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
    if OPEN.load(Acquire) == 0 {
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
    OPEN.load(Acquire) > 0
        && lock(&TABLE)
            .open
            .values()
            .any(|one| one.check_own().is_ok() && one.changes.as_ref().is_some_and(|changes| changes.gives(path)))
}

fn newest<'t>(table: &'t mut Table, store: &Arc<ManagedStore>) -> Result<Option<&'t mut Changes>> {
    let (process, thread) = (untorn_os::process_generation(), own_thread());
    let own = table.open.values_mut().rev().filter(|one| (one.process, one.thread) == (process, thread));
    for one in own {
        match &mut one.changes {
            Some(changes) if !Arc::ptr_eq(changes.store(), store) => {}
            Some(changes) => return Ok(Some(changes)),
            none => return Ok(Some(none.insert(Changes::begin(store)?))),
        }
    }
    Ok(None)
}

/// Discards all transactions at the end of the process.
fn end_all(managing: &Managing) {
    let open = std::mem::take(&mut lock(&TABLE).open);
    for (number, one) in open.into_iter().filter(|(_, one)| one.check_own().is_ok() && one.changes.is_some()) {
        tell(&format!("exit: transaction {number} was neither committed nor aborted: its changes are discarded"));
        reported("exit", (), || give_up(one, managing));
    }
}
