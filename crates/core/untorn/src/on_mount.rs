//! Ordinary files on a mount of Untorn's (`untorn mount`): several committed as one, and transactions over them.
//!
//! On such a mount `fsync` commits one file. These calls are for files that change together. They take ordinary
//! descriptors, open for writing, from [`std::fs::File`] or from anywhere else; what was written to the files by `write`,
//! and stored to shared mappings of them, is committed.
//!
//! ```no_run
//! use std::fs::File;
//! use std::io::Write;
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let (mut data, mut index) = (File::create("/srv/data/db")?, File::create("/srv/data/db.idx")?);
//! let mut txn = Transaction::begin(&data)?;
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
/// All that is uncommitted of its files, from before and from then on, whoever writes it, is committed with it and by
/// nothing else: until it ends, `fsync` of one of them fails with `EBUSY`. Other programs see at once what is written.
/// Names, modes and the like are not part of it. Dropping it aborts it, and so does the end of the process. In a forked
/// child all its calls fail ([`Error::Forked`]), and dropping it does nothing.
#[derive(Debug)]
pub struct Transaction {
    /// The first keeps it going; none once it has ended.
    files: Vec<Fd>,
    number: u64,
    /// A commit found no room. It may have its place in the log of the mount nevertheless, and this may have ended.
    waits: bool,
}

fn path_of(file: BorrowedFd<'_>) -> PathBuf {
    let link = format!("/proc/self/fd/{}", file.as_raw_fd());
    std::fs::read_link(&link).unwrap_or_else(|_| link.into())
}

/// What a mount said, as an error of the library.
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
    /// [`Error::Invalid`] if the file is on no mount of Untorn's, [`Error::InTransaction`] if it is in a transaction,
    /// [`Error::Io`] with `EBADF` if it is not open for writing.
    pub fn begin(file: impl AsFd) -> Result<Transaction> {
        Transaction::begin_with(file.as_fd(), false)
    }

    /// Commits what is uncommitted of a file, whoever has written it, and begins a transaction with it, which has what comes
    /// then: nothing from before is given up with it.
    ///
    /// # Errors
    /// As [`begin`](Transaction::begin) and [`commit_and_chain`](Transaction::commit_and_chain). There is no transaction then,
    /// and what was uncommitted stays so.
    pub fn begin_committed(file: impl AsFd) -> Result<Transaction> {
        // Until it is committed, the end of the process gives nothing up either.
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
    /// As [`begin`](Transaction::begin).
    pub fn add(&mut self, file: impl AsFd) -> Result<()> {
        self.first()?;
        let file = file.as_fd();
        told("add to a transaction", file, mount_calls::ask::<{ mount_calls::ADD }>(file, self.number).map(drop))?;
        let own = file.try_clone_to_owned().and_then(Fd::new);
        self.files.push(own.map_err(|e| Error::io("duplicate the descriptor of", path_of(file), e))?);
        Ok(())
    }

    /// Commits, and ends it: after any crash all of it is there, or nothing.
    ///
    /// # Errors
    /// [`Error::NoSpace`] if the commit cannot be written now: it goes on, and this can be called again when there is room.
    /// Until then write nothing more to the files. `EIO` if a write of one of the files failed in the background; nothing of
    /// it is committed then, and it is aborted, as after any other error.
    pub fn commit(&mut self) -> Result<()> {
        let file = self.first()?;
        let mut said = mount_calls::ask::<{ mount_calls::COMMIT }>(file, self.number).map(drop);
        if self.waits && said == Err(Errno::NOENT) {
            // The commit that found no room waits for it in the log: this one comes behind it.
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

    /// Commits, and goes on with the same files, which nobody else gets in between.
    ///
    /// # Errors
    /// As [`commit`](Transaction::commit), but it goes on after each of them. After [`Error::NoSpace`] what was to be
    /// committed may have its place in the log of the mount, and is committed then when there is room.
    pub fn commit_and_chain(&mut self) -> Result<()> {
        let file = self.first()?;
        told("commit", file, mount_calls::ask::<{ mount_calls::COMMIT_AND_CHAIN }>(file, self.number).map(drop))
    }

    /// Gives up what is uncommitted of the files, as [`abort`](Transaction::abort), and goes on with them. Returns whether
    /// there was anything.
    ///
    /// # Errors
    /// Those of the mount; [`Error::Invalid`] if it is over.
    pub fn abort_and_chain(&mut self) -> Result<bool> {
        let file = self.first()?;
        told("abort the transaction of", file, mount_calls::ask::<{ mount_calls::ABORT_AND_CHAIN }>(file, self.number))
            .map(|given_up| given_up != 0)
    }

    /// Gives it up: the files are as of their last commits, for every program. Returns whether anything was uncommitted.
    ///
    /// # Errors
    /// Those of the mount; [`Error::Invalid`] if it is over, and if a commit of it found no room and waits for it: that one
    /// is not taken back, and all of it is there when there is room.
    pub fn abort(mut self) -> Result<bool> {
        let file = self.first()?;
        let said = match mount_calls::ask::<{ mount_calls::ABORT }>(file, self.number) {
            Err(Errno::NOENT) if self.waits => {
                Err(Error::invalid("a commit of the transaction waits for room, and is not taken back"))
            }
            said => told("abort the transaction of", file, said).map(|given_up| given_up != 0),
        };
        self.files.clear();
        said
    }

    /// Ends it: what is uncommitted of the files stays so, and is committed as that of any file.
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
            // One that has ended is not there any more.
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

/// Commits several files of one mount as one, all or none: each is open for writing.
///
/// # Errors
/// As [`Transaction::begin`] and [`Transaction::commit`]; what was written stays uncommitted then.
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
