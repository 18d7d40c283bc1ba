//! Recoveries after crashes of programs over names, including recoveries that crash, or during which the kernel refuses
//! something.

use super::concerned::Concerned;
use crate::names_fuzz::program::{draw_refusal, draw_transaction};
use crate::names_fuzz::run::{Mark, Run, check_shown, open_store, other, text};
use crate::names_fuzz::tree::{NameChange, NameTree};
use crate::programs::differences::{mixture, shown_files_of};
use crate::programs::fixture::plain_files;
use crate::programs::oracle::check_leftovers;
use crate::programs::program::How;
use crate::programs::reference_model::Model as Reference;
use crate::programs::runner::KillOnDrop;
use crate::simulation::{Refusal, SimDisk, Snapshot};
use fastrand::Rng;
use std::path::Path;
use untorn::{Error, FailureClass};

/// A machine after a crash.
struct Crashed {
    disk: SimDisk,
    /// The commits that may be the last.
    allowed: Vec<NameTree>,
    mark: Mark,
}

impl NameChange {
    fn names(&self) -> Vec<&Path> {
        use NameChange::{Chmod, Create, Mkdir, Rename, Rmdir, Truncate, Unlink, Write};
        match self {
            Create(path, _)
            | Write(path, ..)
            | Truncate(path, _)
            | Unlink(path)
            | Mkdir(path, _)
            | Rmdir(path)
            | Chmod(path, _) => vec![path],
            Rename(from, to) => vec![from, to],
        }
    }
}

impl Run<'_> {
    /// Crashes the machine at this moment in several ways, and recovers.
    pub fn crash_all(&mut self, snapshot: &Snapshot, rng: &mut Rng) -> Result<(), String> {
        let mut ways = vec![How::Killed];
        let cuts = snapshot.cuts(64, rng.u64(..));
        ways.extend((0..self.effort.cuts).map(|_| How::Power(cuts[rng.usize(..cuts.len())])));
        let mark = Mark::unpack(snapshot.mark());
        for how in ways {
            let (how_written, disk) = match how {
                How::Killed => ("killed".to_owned(), snapshot.killed()),
                How::Power(cut) => {
                    let outcome = snapshot.power_cut(cut);
                    self.totals.states += u64::from(outcome.something_lost);
                    (cut.to_string(), outcome.disk)
                }
            };
            let crashed = Crashed { disk, allowed: self.allowed(mark), mark };
            let checked = if mark.exposed && how != How::Killed {
                self.recover_unknown(crashed)
            } else {
                self.recover(crashed, rng)
            };
            checked.map_err(|what| format!("{how_written}@{}: {what}", snapshot.call()))?;
        }
        Ok(())
    }

    /// After a power cut in class `process`, the store must say that its state is unknown, and open if that is
    /// accepted.
    fn recover_unknown(&mut self, crashed: Crashed) -> Result<(), String> {
        self.totals.checked += 1;
        let Crashed { disk, allowed, mark } = crashed;
        disk.set_options(|options| options.refusal = None);
        let life = KillOnDrop(disk.spawn());
        match open_store(self.program, &life, mark.class) {
            Err(Error::UnknownState { .. }) => Ok(()),
            Err(e) => Err(text("opening a store of class `process` after a power cut")(e)),
            // The last commits had not begun, or were flushed already.
            Ok(store) => {
                drop(store);
                drop(life);
                Run::open(self.program, self.effort, disk, allowed, mark).map(drop)
            }
        }
    }

    /// Recovers, sometimes with a crash in between, or while the kernel refuses something; makes more commits, and
    /// closes the store to plain files.
    fn recover(&mut self, mut crashed: Crashed, rng: &mut Rng) -> Result<(), String> {
        self.totals.checked += 1;
        if crashed.mark.class == FailureClass::Process && rng.bool() {
            crashed.mark.class = other(crashed.mark.class);
        }
        let refusal = crashed.disk.options().refusal;
        let drawn = self.effort.alphabet.refusals && refusal.is_none() && rng.u32(..3) == 0;
        if let Some(refusal) = refusal.or_else(|| drawn.then(|| draw_refusal(rng))) {
            crashed = self.recover_refused(crashed, refusal, rng).map_err(|what| format!("{refusal}: {what}"))?;
        }
        // Unflushed commits of class `process` do not survive a second crash that cuts the power.
        if !crashed.mark.exposed && rng.u32(..4) == 0 {
            self.totals.second += 1;
            crashed = self.recover_twice(crashed, rng)?;
        }
        let Crashed { disk, allowed, mark } = crashed;
        let mut next = Run::open(self.program, self.effort, disk, allowed, mark)?;
        let mut more = Vec::new();
        for _ in 0..rng.usize(..3) {
            let mut tree = next.last();
            more.push(draw_transaction(rng, &mut tree, self.effort.alphabet));
            let last = more.last().expect("just drawn");
            next.commit(last, true).map_err(|what| format!("after the recovery: {what}: {more:?}"))?;
        }
        let last = next.last();
        next.close().map_err(|what| format!("after the recovery: {what}"))?;
        let files = plain_files(&next.disk);
        if !last.is_same(&files, self.effort.alphabet) {
            return Err(format!("after a close, {}", mixture(&Reference::new(last.files()), 1, &files)));
        }
        check_leftovers(&next.disk)
    }

    /// Recovers, and crashes the recovery.
    fn recover_twice(&self, crashed: Crashed, rng: &mut Rng) -> Result<Crashed, String> {
        let Crashed { disk, mut allowed, mark } = crashed;
        disk.record();
        let first = Run::open(self.program, self.effort, disk, allowed.clone(), mark)?;
        let snapshots = first.disk.recorded();
        check_shown(&snapshots, |_| allowed.clone())?;
        let snapshot = &snapshots[rng.usize(..snapshots.len())];
        let cuts = snapshot.cuts(64, rng.u64(..));
        let cut = cuts[rng.usize(..cuts.len())];
        if snapshots.last().is_some_and(|last| last.call() == snapshot.call()) {
            allowed = vec![first.last()];
        }
        drop(first);
        let disk = if rng.bool() { snapshot.killed() } else { snapshot.power_cut(cut).disk };
        Ok(Crashed { disk, allowed, mark })
    }

    /// Recovers while the kernel refuses something. The store must open. Every name that the refusal does not concern
    /// must show the state of one of the commits, and take further commits, and nothing else may be in quarantine. Then
    /// that process ends: by closing, by a kill, or by a power cut.
    fn recover_refused(&mut self, crashed: Crashed, refusal: Refusal, rng: &mut Rng) -> Result<Crashed, String> {
        self.totals.refused += 1;
        let Crashed { disk, mut allowed, mut mark } = crashed;
        let concerned = Concerned::by(refusal, &allowed);
        disk.set_options(|options| options.refusal = Some(refusal));
        disk.record();
        let life = KillOnDrop(disk.spawn());
        let store = open_store(self.program, &life, mark.class).map_err(text("opening the store"))?;
        let before_opening = mark;
        if mark.class == FailureClass::Power {
            mark.exposed = false;
        }
        let snapshots = disk.recorded();
        let quarantined = store.status().quarantined;
        self.totals.quarantined += u64::from(!quarantined.is_empty());
        if let Some(other) = quarantined.iter().find(|quarantined| !concerned.has(&quarantined.path)) {
            return Err(format!("this has nothing to do with what is in quarantine: {other:?}"));
        }
        let found = shown_files_of(&store, &disk, |name| !concerned.has(name) && !concerned.leaves(name))?;
        let spared = |tree: &NameTree| tree.without(|name| concerned.has(name));
        let before = allowed.clone();
        allowed.retain(|tree| spared(tree).is_same(&found, self.effort.alphabet));
        if allowed.is_empty() {
            let expected = before.last().map(|tree| spared(tree).files()).unwrap_or_default();
            let differs = mixture(&Reference::new(expected), 1, &found);
            return Err(format!(
                "of {} commits that may be the last, besides what is refused, {differs}",
                before.len()
            ));
        }
        // Crashes the recovery itself.
        if !before_opening.exposed && rng.u32(..3) == 0 {
            let snapshot = &snapshots[rng.usize(..snapshots.len())];
            let cuts = snapshot.cuts(64, rng.u64(..));
            let disk = match rng.bool() {
                true => snapshot.killed(),
                false => snapshot.power_cut(cuts[rng.usize(..cuts.len())]).disk,
            };
            return Ok(Crashed { disk, allowed: before, mark: before_opening });
        }
        let mut player = super::NamePlayer::new(store);
        for _ in 0..rng.usize(..3) {
            let mut changes = draw_transaction(rng, &mut allowed[0].clone(), self.effort.alphabet);
            changes.retain(|change| change.names().iter().all(|name| concerned.spares(name)));
            let mut tree = allowed[0].clone();
            player
                .commit(&mut tree, &changes, self.effort.alphabet)
                .map_err(|e| format!("what is refused does not concern {changes:?}: {e}"))?;
            mark.exposed |= mark.class == FailureClass::Process;
            for tree in &mut allowed {
                for change in &changes {
                    if tree.allows(change, self.effort.alphabet) {
                        tree.apply(change);
                    }
                }
            }
        }
        player.forget(&NameTree::default(), true);
        if rng.bool() {
            // The close may return an error because of the names that wait.
            let closed = player.store.clone().close();
            mark.exposed &= closed.is_err();
        }
        let snapshot = disk.snapshot();
        let cuts = snapshot.cuts(64, rng.u64(..));
        let disk = match mark.exposed || rng.bool() {
            true => snapshot.killed(),
            false => snapshot.power_cut(cuts[rng.usize(..cuts.len())]).disk,
        };
        Ok(Crashed { disk, allowed, mark })
    }
}
