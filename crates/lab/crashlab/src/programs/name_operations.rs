//! The operations on names, and the comparisons with the reference model.

use crate::programs::differences::compare_views;
use crate::programs::fixture::umask;
use crate::programs::program::Op;
use crate::programs::reference_model::{Change, Changes, Files, Node};
use crate::programs::runner::{Runner, Step, wrong};
use std::path::Path;
use untorn::{Error, File, Store, Txn};

const A: &str = "a";
const B: &str = "b";
const MADE_BYTES: usize = 300;
const INNER_BYTES: usize = 100;

fn is_file(files: &Files, name: &str) -> bool {
    matches!(files.get(Path::new(name)), Some(Node::File(..)))
}

impl Runner<'_> {
    /// A transaction over names. If the names do not exist, it must be refused, and leave no trace.
    pub(crate) fn names(&mut self, store: &Store, op: Op) -> Step<()> {
        let now = &self.reference.now;
        let possible = match op {
            Op::Move | Op::Mode => is_file(now, A),
            Op::Swap => is_file(now, A) && is_file(now, B),
            Op::Unlink => is_file(now, B),
            Op::Mkdir => !now.contains_key(Path::new("d")),
            Op::Rmdir => now.contains_key(Path::new("d")),
            _ => true,
        };
        self.serial += 1;
        let mut txn = store.begin();
        let built = self.build(&mut txn, op);
        if !possible {
            return if built.is_err() { Ok(()) } else { wrong(format!("{op:?} went well, and must not")) };
        }
        if let Err(e) = built {
            return self.refused("a transaction", &e);
        }
        let changes = self.changes_by(op);
        let number = self.submit(changes.clone());
        if self.take_result(number, txn.commit())? {
            changes.iter().for_each(|change| change.apply(&mut self.reference.now));
            self.follow_mapped(&changes);
        }
        Ok(())
    }

    fn bytes(&self, len: usize) -> Vec<u8> {
        (0..len).map(|i| (self.serial * 16 + i * 3 % 239) as u8 | 1).collect()
    }

    fn mode(&self) -> u32 {
        if self.serial.is_multiple_of(2) { 0o600 } else { 0o640 }
    }

    fn build(&mut self, txn: &mut Txn, op: Op) -> Result<(), Error> {
        let make = |txn: &mut Txn, name: &str, bytes: &[u8]| -> Result<File, Error> {
            let file = txn.create(name, 0o660)?;
            file.write_at(bytes, 0)?;
            Ok(file)
        };
        match op {
            Op::Replace => {
                let file = make(txn, "c", &self.bytes(MADE_BYTES))?;
                self.handles.push(file);
                txn.rename("c", A)
            }
            Op::Move => txn.rename(A, B),
            Op::Unlink => txn.unlink(B),
            Op::Mkdir => {
                txn.mkdir("d", 0o770)?;
                let file = make(txn, "d/e", &self.bytes(INNER_BYTES))?;
                self.handles.push(file);
                Ok(())
            }
            Op::Rmdir => {
                txn.unlink("d/e")?;
                txn.rmdir("d")
            }
            Op::Swap => {
                txn.rename(A, "t")?;
                txn.rename(B, A)?;
                txn.rename("t", B)
            }
            _ => txn.chmod(A, self.mode()),
        }
    }

    /// The changes of a transaction. Uncommitted changes stay with their file, so the same changes apply to the
    /// program's view.
    fn changes_by(&self, op: Op) -> Changes {
        let made = |len: usize| Node::File(self.bytes(len), 0o660 & !umask());
        let rename = |from: &str, to: &str| Change::Rename(from.into(), to.into());
        match op {
            Op::Replace => vec![Change::Set("c".into(), made(MADE_BYTES)), rename("c", A)],
            Op::Move => vec![rename(A, B)],
            Op::Unlink => vec![Change::Remove(B.into())],
            Op::Mkdir => vec![
                Change::Set("d".into(), Node::Directory(0o770 & !umask())),
                Change::Set("d/e".into(), made(INNER_BYTES)),
            ],
            Op::Rmdir => vec![Change::Remove("d/e".into()), Change::Remove("d".into())],
            Op::Swap => vec![rename(A, "t"), rename(B, A), rename("t", B)],
            _ => vec![Change::Mode(A.into(), self.mode())],
        }
    }

    /// Compares the handles with the model, including uncommitted changes. After a fault, a committed name may have to
    /// wait for the next checkpoint: a file that cannot be read is then no violation.
    pub(crate) fn compare(&self, store: &Store) -> Step<()> {
        let mut files = self.reference.now.clone();
        let readable = |name: &Path| store.open_file(name).and_then(|file| file.read_at(&mut [0], 0)).is_ok();
        files.retain(|name, _| !self.faults || readable(name));
        compare_views(store, &files).or_else(wrong)
    }
}
