//! Ordinary files on an Untorn mount (`untorn mount`): commits of several files as one, and transactions over them.
//!
//! On such a mount, `fsync` commits one file. These calls are for files that change together. They take ordinary
//! descriptors, open for writing, from [`std::fs::File`] or from elsewhere; they commit bytes written to the files by
//! `write`, and stored to shared mappings of them.
//!
//! ```no_run
//! use std::fs::File;
//! use std::io::Write;
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let (mut data, mut index) = (File::create("/srv/data/db")?, File::create("/srv/data/db.idx")?);
//! let mut txn = untorn::on_mount::Transaction::begin(&data)?;
//! txn.add(&index)?;
//! data.write_all(b"a record")?;
//! index.write_all(b"where it is")?;
//! txn.commit()?; // after any crash both are there, or neither
//! # Ok(()) }
//! ```

use crate::{Error, Result};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::path::PathBuf;
use untorn_os::{Errno, Fd, mount_calls};

/// A transaction over ordinary files of one mount.
///
/// All uncommitted changes of its files, earlier and later ones, by any program, are committed with the transaction and
/// by nothing else: until it ends, `fsync` of one of them fails with `EBUSY`. Other programs see written bytes at once.
/// Names, modes and the like are not part of it. Dropping it aborts it, and so does the end of the process. In a forked
/// child all its calls fail ([`Error::Forked`]), and dropping it does nothing.
#[derive(Debug)]
pub struct Transaction {
    /// Its files; the opening of the first keeps the transaction alive. Empty once it has ended.
    files: Vec<Fd>,
    number: u64,
    /// Whether a commit found no room. It may nevertheless have its place in the mount's log, and the transaction may
    /// have ended.
    waits: bool,
}

fn path_of(file: BorrowedFd<'_>) -> PathBuf {
    let link = format!("/proc/self/fd/{}", file.as_raw_fd());
    std::fs::read_link(&link).unwrap_or_else(|_| link.into())
}

/// Converts the answer of a mount into a result of the library.
fn told<T>(action: &'static str, file: BorrowedFd<'_>, said: std::result::Result<T, Errno>) -> Result<T> {
    said.map_err(|e| match e {
        Errno::NOTTY => Error::invalid(format!("{} is not on a mount of Untorn's", path_of(file).display())),
        Errno::BUSY => Error::InTransaction { path: path_of(file) },
        Errno::NOENT => Error::invalid("the transaction has ended, or is of another mount"),
        e => Error::io(action, path_of(file), io::Error::from_raw_os_error(e.raw_os_error())),
    })
}

impl Transaction {
    /// Begins a transaction with a file that is open for writing.
    ///
    /// # Errors
    /// [`Error::Invalid`] if the file is not on an Untorn mount, [`Error::InTransaction`] if it is in a transaction,
    /// [`Error::Io`] with `EBADF` if it is not open for writing.
    pub fn begin(file: impl AsFd) -> Result<Transaction> {
        Transaction::begin_with(file.as_fd(), false)
    }

    /// Commits the uncommitted changes of a file, of any program, and begins a transaction with it, which has only
    /// later changes: aborting it rolls back nothing from before.
    ///
    /// # Errors
    /// Those of [`begin`](Transaction::begin) and [`commit_and_chain`](Transaction::commit_and_chain). Then there is no
    /// transaction, and uncommitted changes stay uncommitted.
    pub fn begin_committed(file: impl AsFd) -> Result<Transaction> {
        // Until this commit is done, the end of the process must not roll anything back.
        let mut begun = Transaction::begin_with(file.as_fd(), true)?;
        match begun.commit_and_chain() {
            Ok(()) => Ok(begun),
            Err(e) => {
                begun.dissolve();
                Err(e)
            }
        }
    }

    fn begin_with(file: BorrowedFd<'_>, keeps: bool) -> Result<Transaction> {
        let number = told("begin a transaction on", file, mount_calls::begin(file, keeps))?;
        let mut begun = Transaction { files: Vec::new(), number, waits: false };
        match file.try_clone_to_owned().and_then(Fd::new) {
            Ok(own) => begun.files.push(own),
            Err(e) => {
                let _ = mount_calls::ask::<{ mount_calls::DISSOLVE }>(file, number);
                return Err(Error::io("duplicate the descriptor of", path_of(file), e));
            }
        }
        Ok(begun)
    }

    /// Adds a file of the same mount, open for writing.
    ///
    /// # Errors
    /// Those of [`begin`](Transaction::begin).
    pub fn add(&mut self, file: impl AsFd) -> Result<()> {
        self.first()?;
        let file = file.as_fd();
        told("add to a transaction", file, mount_calls::ask::<{ mount_calls::ADD }>(file, self.number).map(drop))?;
        let own = file.try_clone_to_owned().and_then(Fd::new);
        self.files.push(own.map_err(|e| Error::io("duplicate the descriptor of", path_of(file), e))?);
        Ok(())
    }

    /// Commits and ends the transaction: after a crash at any point, all of it is there, or nothing.
    ///
    /// # Errors
    /// [`Error::NoSpace`] if the commit cannot be written now: the transaction continues, and this can be called again
    /// when there is room. Until then write nothing more to the files. `EIO` if a write of one of the files failed in
    /// the background; then nothing is committed, and the transaction is aborted, as after any other error.
    pub fn commit(&mut self) -> Result<()> {
        let file = self.first()?;
        let mut said = mount_calls::ask::<{ mount_calls::COMMIT }>(file, self.number).map(drop);
        if self.waits && said == Err(Errno::NOENT) {
            // The commit that found no room waits in the log; the following commit comes behind it.
            let files = self.files.iter().map(|file| file.get().map_err(|_| Error::Forked));
            syncv(&files.collect::<Result<Vec<_>>>()?)?;
            said = Ok(());
        }
        let done = told("commit", file, said);
        match &done {
            Ok(()) => self.files.clear(),
            Err(Error::NoSpace { .. }) => self.waits = true,
            Err(_) => self.give_up(),
        }
        done
    }

    /// Commits, and begins the next transaction with the same files; nobody else can get them in between.
    ///
    /// # Errors
    /// Those of [`commit`](Transaction::commit), but the transaction continues after each of them. After
    /// [`Error::NoSpace`], the changes may have their place in the mount's log, and are then committed when there is
    /// room.
    pub fn commit_and_chain(&mut self) -> Result<()> {
        let file = self.first()?;
        told("commit", file, mount_calls::ask::<{ mount_calls::COMMIT_AND_CHAIN }>(file, self.number).map(drop))
    }

    /// Rolls back uncommitted changes of the files, like [`abort`](Transaction::abort), and continues with the same
    /// files. Returns whether there were any.
    ///
    /// # Errors
    /// Those of the mount; [`Error::Invalid`] if the transaction has ended.
    pub fn abort_and_chain(&mut self) -> Result<bool> {
        let file = self.first()?;
        told("abort the transaction of", file, mount_calls::ask::<{ mount_calls::ABORT_AND_CHAIN }>(file, self.number))
            .map(|given_up| given_up != 0)
    }

    /// Aborts the transaction: the files return to their last commits, for every program. Returns whether there were
    /// uncommitted changes.
    ///
    /// # Errors
    /// Those of the mount; [`Error::Invalid`] if the transaction has ended, or if one of its commits waits for room:
    /// that commit is not taken back, and is done when there is room.
    pub fn abort(mut self) -> Result<bool> {
        let file = self.first()?;
        let said = match mount_calls::ask::<{ mount_calls::ABORT }>(file, self.number) {
            Err(Errno::NOENT) if self.waits => {
                Err(Error::invalid("a commit of the transaction waits for room, and cannot be aborted any more"))
            }
            said => told("abort the transaction of", file, said).map(|given_up| given_up != 0),
        };
        self.files.clear();
        said
    }

    /// Ends the transaction without a commit: uncommitted changes of the files stay uncommitted, and are committed like
    /// those of any file.
    pub fn dissolve(mut self) {
        if let Ok(file) = self.first() {
            let _ = mount_calls::ask::<{ mount_calls::DISSOLVE }>(file, self.number);
        }
        self.files.clear();
    }

    fn first(&self) -> Result<BorrowedFd<'_>> {
        let first = self.files.first().ok_or_else(|| Error::invalid("the transaction has ended"))?;
        first.get().map_err(|_| Error::Forked)
    }

    fn give_up(&mut self) {
        if let Ok(file) = self.first() {
            // If the transaction has ended, the mount does not know it any more.
            let _ = mount_calls::ask::<{ mount_calls::ABORT }>(file, self.number);
        }
        self.files.clear();
    }
}

impl Drop for Transaction {
    fn drop(&mut self) {
        self.give_up();
    }
}

/// Commits the changes of several transactions of one mount as one commit, all or none. Each transaction continues with
/// its files, as after [`Transaction::commit_and_chain`]. At most 511 transactions.
///
/// # Errors
/// Those of [`Transaction::commit_and_chain`], after each of which all transactions continue. [`Error::Invalid`] if
/// there are none or too many, or they are of different mounts.
pub fn commit_together(transactions: &mut [&mut Transaction]) -> Result<()> {
    let first = transactions.first().ok_or_else(|| Error::invalid("no transactions to commit"))?.first()?;
    for transaction in &*transactions {
        transaction.first()?;
    }
    let numbers: Vec<u64> = transactions.iter().map(|transaction| transaction.number).collect();
    match mount_calls::commit_together(first, &numbers) {
        Err(Errno::TOOBIG) => Err(Error::invalid(format!(
            "{} transactions are too many: at most {} are committed together",
            numbers.len(),
            mount_calls::TOGETHER_MOST
        ))),
        said => told("commit", first, said),
    }
}

/// Commits several files of one mount as one commit, all or none. Each must be open for writing.
///
/// # Errors
/// Those of [`Transaction::begin`] and [`Transaction::commit`]; written bytes stay uncommitted then.
pub fn syncv(files: &[impl AsFd]) -> Result<()> {
    let (first, others) = files.split_first().ok_or_else(|| Error::invalid("no files to commit"))?;
    let first = first.as_fd();
    let mut txn = Transaction::begin_with(first, true)?;
    let mut done = others.iter().try_for_each(|file| txn.add(file));
    if done.is_ok() {
        done = told("commit", first, mount_calls::ask::<{ mount_calls::COMMIT }>(first, txn.number).map(drop));
    }
    if done.is_err() {
        let _ = mount_calls::ask::<{ mount_calls::DISSOLVE }>(first, txn.number);
    }
    txn.files.clear();
    done
}
