//! Transactions: groups of files whose uncommitted contents are committed together, or given up.

use crate::interface::file_tree::{Errno, FileTree, Ino, KernelCache, Result, Transaction};
use crate::resume::continuation::happened;
use crate::tree::core::{Core, Txn};
use crate::tree::store_tree::{CommitMode, StoreTree};
use std::collections::BTreeSet;

/// The files of transactions that continue.
fn files(core: &Core, txns: &[Transaction]) -> Result<Vec<Ino>> {
    let mut inos = Vec::new();
    for txn in txns {
        inos.extend(&core.txns.get(txn).ok_or(Errno(libc::ENOENT))?.files);
    }
    Ok(inos)
}

/// Checks that no write of these files has failed.
fn check_whole(core: &Core, inos: &[Ino]) -> Result<()> {
    for ino in inos {
        if core.inode(*ino)?.is_poisoned() {
            return Err(Errno(libc::EIO));
        }
    }
    Ok(())
}

/// Ends a transaction: its files are in none any more.
fn set_free(core: &mut Core, txn: Transaction) {
    let Some(ended) = core.txns.remove(&txn) else { return };
    for ino in &ended.files {
        if let Ok(inode) = core.inode_mut(*ino) {
            debug_assert_eq!(inode.txn, Some(txn), "inode {ino} belongs to another transaction");
            inode.txn = None;
        }
    }
    core.note_ended(txn);
}

impl Core {
    /// Makes the end of the opening abort the transaction from now on.
    fn end_keeping(&mut self, number: Transaction) {
        let Some(txn) = self.txns.get_mut(&number).filter(|txn| txn.keeps) else { return };
        txn.keeps = false;
        let txn = txn.clone();
        self.note_begun(number, &txn);
    }
}

impl StoreTree {
    pub(crate) fn begin_transaction(&self, owner: u64, keeps: bool) -> Result<Transaction> {
        let mut core = self.changing()?;
        if let Some(begun) = happened(&core) {
            return Ok(begun);
        }
        // A program that knows the number may end the transaction, so the number is random.
        let mut number = [0; 8];
        rustix::rand::getrandom(&mut number, rustix::rand::GetRandomFlags::empty())
            .map_err(|e| Errno(e.raw_os_error()))?;
        let txn = u64::from_ne_bytes(number);
        let begun = Txn { owner, keeps, left: false, resumed: false, files: BTreeSet::new() };
        core.note_begun(txn, &begun);
        let before = core.txns.insert(txn, begun);
        debug_assert!(before.is_none(), "two transactions have the number {txn}");
        core.note_happened(txn);
        Ok(txn)
    }

    pub(crate) fn add_to(&self, txn: Transaction, ino: Ino) -> Result<()> {
        let mut core = self.changing()?;
        files(&core, &[txn])?;
        if core.is_deferred(ino) {
            // A rename has made these contents visible; aborting the transaction must not discard them.
            core.commit(&[])?;
        }
        let inode = core.inode_mut(ino)?;
        if !inode.is_file() {
            return Err(Errno(libc::EINVAL));
        }
        if inode.txn.is_some_and(|other| other != txn) {
            return Err(Errno(libc::EBUSY));
        }
        inode.txn = Some(txn);
        if let Some(txn) = core.txns.get_mut(&txn) {
            txn.files.insert(ino);
        }
        Ok(())
    }

    /// Commits the files of transactions in one commit. With `chains`, the transactions continue.
    pub(crate) fn commit_transactions(
        &self,
        txns: &[Transaction],
        chains: bool,
        cache: &dyn KernelCache,
    ) -> Result<()> {
        let inos = {
            let core = self.changing()?;
            // If a transaction still exists, the commit was refused, or its end was not logged, or it chains: it is
            // committed, perhaps a second time.
            if happened(&core).is_some() && !txns.iter().any(|txn| core.txns.contains_key(txn)) {
                return self.wait_to_tell(core);
            }
            files(&core, txns)?
        };
        for ino in &inos {
            self.write_back_and_restore(*ino, cache)?;
        }
        let mut core = self.changing()?;
        if self.mode == CommitMode::Store {
            check_whole(&core, &inos)?;
            drop(core);
            return self.commit_round_with(txns, chains, cache);
        }
        Self::submit_transactions(&mut core, txns, chains, &[])?;
        self.wait_to_tell(core)
    }

    /// Submits a commit of the transactions' files, and of others. If that fails, or with `chains`, the transactions
    /// continue.
    pub(crate) fn submit_transactions(
        core: &mut Core,
        txns: &[Transaction],
        chains: bool,
        others: &[Ino],
    ) -> Result<()> {
        let inos = files(core, txns)?;
        check_whole(core, &inos)?;
        check_whole(core, others)?;
        Self::mark_synced(core, &inos)?;
        let all: Vec<Ino> = inos.iter().chain(others).copied().collect();
        txns.first().into_iter().for_each(|txn| core.note_happened(*txn));
        debug_assert!(core.committing.is_empty(), "{:?} are committed, and {txns:?}", core.committing);
        core.committing = txns.to_vec();
        let asked = core.commit(&all);
        core.committing.clear();
        asked?;
        for txn in txns {
            match chains {
                true => core.end_keeping(*txn),
                false => set_free(core, *txn),
            }
        }
        Ok(())
    }

    pub(crate) fn abort_transaction(&self, txn: Transaction, chains: bool, cache: &dyn KernelCache) -> Result<bool> {
        let inos = {
            let core = self.core()?;
            if happened(&core).is_some() {
                return Ok(false);
            }
            files(&core, &[txn])?
        };
        // Pulled, so that the kernel's dirty pages are discarded, too. A write that fails does no harm.
        let failed: Vec<Ino> = inos.iter().copied().filter(|ino| self.write_back_file(*ino, cache).is_err()).collect();
        let (mut done, mut had_changes, mut stale) = (Ok(()), false, Vec::new());
        {
            let mut core = self.core()?;
            // The killed process may have rolled back files whose discarded contents the kernel still has in its cache.
            let is_resumed = core.txns.get(&txn).is_some_and(|txn| txn.resumed);
            for ino in inos {
                let is_changed = core.inode(ino).is_ok_and(|inode| inode.uncommitted.is_some() || inode.is_poisoned());
                had_changes |= is_changed;
                if is_changed || is_resumed || failed.contains(&ino) {
                    done = done.and(core.roll_back(ino));
                    stale.push(ino);
                }
            }
        }
        for ino in &stale {
            if let Ok(of) = self.attributes(*ino) {
                cache.rolled_back(*ino, of.size);
            }
        }
        // Noted only when the kernel has dropped its cache: if this process is killed before, the next one does the
        // abort again.
        let mut core = self.core()?;
        match core.txns.get_mut(&txn) {
            Some(going_on) if chains => going_on.resumed = false,
            _ => set_free(&mut core, txn),
        }
        core.note_happened(txn);
        done.map(|()| had_changes)
    }

    pub(crate) fn dissolve_transaction(&self, txn: Transaction) {
        if let Ok(mut core) = self.core() {
            set_free(&mut core, txn);
        }
    }

    pub(crate) fn transactions_begun(&self, owner: u64) -> Vec<Transaction> {
        let Ok(core) = self.core() else { return Vec::new() };
        core.txns.iter().filter(|(_, txn)| txn.owner == owner).map(|(number, _)| *number).collect()
    }

    pub(crate) fn end_opening_of(&self, owner: u64) -> Vec<Transaction> {
        let Ok(mut core) = self.core() else { return Vec::new() };
        let mut ended = Vec::new();
        for (number, txn) in core.txns.iter_mut().filter(|(_, txn)| txn.owner == owner && !txn.left) {
            txn.left = true;
            ended.push((*number, txn.clone()));
        }
        ended.iter().for_each(|(number, txn)| core.note_begun(*number, txn));
        ended.into_iter().map(|(number, _)| number).collect()
    }

    pub(crate) fn transactions_left(&self) -> Vec<Transaction> {
        let Ok(core) = self.core() else { return Vec::new() };
        core.txns.iter().filter(|(_, txn)| txn.left).map(|(number, _)| *number).collect()
    }

    pub(crate) fn leave_transaction(&self, txn: Transaction, cache: &dyn KernelCache) {
        let keeps = self.core().is_ok_and(|core| core.txns.get(&txn).is_none_or(|txn| txn.keeps));
        if keeps {
            self.dissolve_transaction(txn);
        } else if let Err(e) = self.abort_transaction(txn, false, cache) {
            tracing::error!(id = "untorn.tree.abort_failed", errno = e.0, "a transaction could not be aborted");
        }
    }
}
