//! `untorn eject`.

use super::recover;
use crate::progress_bar::Progress;
use crate::siblings;
use crate::sqlite_files::Guard;
use clap::{Args, ValueHint};
use std::io::IsTerminal;
use std::path::PathBuf;
use untorn::offline::{self, RecoverOptions, Report};
use untorn_terminal::standard_streams::confirmed;
use untorn_terminal::{Failure, Output};

/// Leave plain files: recover, then remove everything of Untorn's.
///
/// Data files keep their contents; the journal and Untorn's marks on the files are removed. Programs that open the
/// files through Untorn make a new store. Slots are dropped and named: their consumers need a whole copy then. SQLite databases get rid of the markers of Untorn's extension, too.
///
/// The store of a mount, which must not be mounted, becomes a plain directory with the files that the mount showed,
/// all or nothing. The program untorn-mount does this.
#[derive(Args)]
pub struct Eject {
    /// A store's directory, or a file with its own store.
    #[arg(value_hint = ValueHint::AnyPath)]
    path: PathBuf,
    /// Do not ask for confirmation.
    #[arg(short, long)]
    yes: bool,
    /// For the store of a mount: leave out the file or directory of this name (a path from the store's root), and
    /// everything below it; it is lost. Can be given several times.
    #[arg(long, value_name = "NAME")]
    skip: Vec<PathBuf>,
}

impl Eject {
    pub fn run(self) -> Result<Output, Failure> {
        if siblings::holds_a_tree(&self.path) || siblings::has_ejected_store(&self.path) {
            return Err(siblings::Other::Eject.execute());
        }
        if !self.skip.is_empty() {
            return Err(Failure::new("--skip is for the store of a mount: here nothing can be left out"));
        }
        if !self.yes && std::io::stdin().is_terminal() && !self.confirmed()? {
            return Err(Failure::new("nothing was changed"));
        }
        let progress = Progress::new("recovering");
        let show = |done, all| progress.show(done, all);
        let guard = Guard::of_store(&self.path, false)?;
        // Without the store, nothing would tell that a marker is not needed any more.
        let first =
            guard.any_marker().then(|| offline::recover(&self.path, &RecoverOptions::default(), &show)).transpose()?;
        let removed = first.as_ref().map_or(Ok(String::new()), |first| guard.remove_markers(first))?;
        let report = offline::eject(&self.path, &show)?;
        let recovered = recover::text(first.as_ref().map_or(&report.recovered, |first| &first.recovered))
            + &removed
            + &dropped_slots(&report);
        let path = self.path.display();
        if report.kept.is_empty() {
            return Ok(Output::text(format!("{recovered}{path}: nothing of Untorn's is left\n")));
        }
        let kept: Vec<_> = report.kept.iter().map(|path| path.display().to_string()).collect();
        Ok(Output::text(format!(
            "{recovered}{path}: the journal is removed. These files and directories could not be examined or changed, \
             so they, or files in them, keep the attribute `user.untorn`, which does no harm: {}\n",
            kept.join(", ")
        )))
    }

    fn confirmed(&self) -> Result<bool, Failure> {
        confirmed(&format!("Make the files of {} plain and remove their journal?", self.path.display()))
            .map_err(Failure::new)
    }
}

/// Names the slots that went with the store.
fn dropped_slots(report: &Report) -> String {
    let dropped = |name: &String| format!("slot {name} is dropped: its consumer cannot go on where it was\n");
    report.dropped_slots.iter().map(dropped).collect()
}
