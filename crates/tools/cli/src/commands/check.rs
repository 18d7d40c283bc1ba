//! `untorn check`.

use super::heap::{self, Target};
use super::recover;
use super::status::{self, COULD_NOT_LOOK, PROBLEMS};
use crate::json;
use crate::progress_bar::Progress;
use crate::siblings;
use crate::sqlite_files;
use clap::Args;
use std::path::Path;
use untorn::FailureClass;
use untorn::heap::{HeapReport, LiveMemoryFound, NextStart};
use untorn::offline::{self, Inspection};
use untorn_terminal::table::{bytes, count};
use untorn_terminal::{Failure, Output};

/// Verify every checksum and invariant of a store, or of a heap, without changing a byte.
///
/// Exit code: 0 sound; 1 something is to be done: there are problems, or the owner did not close the store (it is
/// sound then if recovery will bring back its last commit); 2 could not look.
///
/// Reads the log that is kept for slots, too, and names slots that have lost a part of it; the store is sound then.
///
/// For a mount, or its store, also verifies that names, inodes, links and contents fit together, as of the last
/// commit; programs on the mount continue. The program untorn-mount does this.
///
/// `untorn check heap PATH` checks a heap instead, in the state that recovery would give it: every chunk, block and
/// root. It also finds leaks, which are allocations that no root reaches. Leaks do not count as problems for the exit
/// code. A heap that a program has open is busy: it changes, so it is not checked.
///
/// For a live heap, the checked state is the last cut. The memory that its process left is examined, too, in a copy,
/// as the next opening would do it: whether the heap continues from that memory, which changes are undone then, and
/// which errors the memory has, or why the heap goes back to the last cut.
#[derive(Args)]
#[command(override_usage = "untorn check [OPTIONS] [heap] <PATH>")]
pub struct Check {
    #[command(flatten)]
    target: Target,
    /// For a sound heap: free the allocations that no root reaches, in one commit. Any eight bytes in reached memory
    /// count as a pointer if they are an address in the heap. A program that stores disguised pointers (as
    /// differences, or with other data in some bits) would lose the objects that they point to.
    #[arg(long)]
    gc: bool,
    /// Also look for values that may be pointers out of the heap, such as those of std::string: exit code 1 if there
    /// are any. They are addresses where Linux puts programs, libraries and stacks; some may be numbers or text.
    #[arg(long, conflicts_with = "gc")]
    pointers: bool,
    /// Print JSON, for programs.
    #[arg(long)]
    json: bool,
}

impl Check {
    pub fn run(self) -> Result<Output, Failure> {
        let (path, in_heap) = self.target.path()?;
        if in_heap {
            return check_heap(&path, self.gc, self.pointers, self.json);
        }
        if self.gc {
            return Err(
                Failure::new("`--gc` reclaims leaks of a heap: `untorn check heap --gc PATH`").code(COULD_NOT_LOOK)
            );
        }
        if self.pointers {
            return Err(Failure::new("`--pointers` looks into a heap: `untorn check heap --pointers PATH`")
                .code(COULD_NOT_LOOK));
        }
        if siblings::is_on_mount(&path) || siblings::holds_a_tree(&path) {
            return Err(siblings::Other::Check.execute());
        }
        let mut found = status::look(&path)?;
        found.problems.extend(kept_log_problems(&path)?);
        let sound = status::is_sound(&found);
        let output = if self.json {
            let mut value = status::summary(&found)?;
            value["sound"] = sound.into();
            json::output(&value)?
        } else {
            Output::text(text(&found, sound))
        };
        Ok(output.code(status::code(&found)))
    }
}

fn check_heap(path: &Path, gc: bool, pointers: bool, json: bool) -> Result<Output, Failure> {
    let progress = Progress::new("looking");
    let show = |done, all| progress.show(done, all);
    let collected = match gc {
        true => match offline::collect_heap(path, &show) {
            // The check without changes reports all problems.
            Err(untorn::Error::Corrupt { .. }) => None,
            done => Some(done),
        },
        false => None,
    };
    let reclaimed = collected.is_some();
    let look = if pointers { offline::check_heap_pointers } else { offline::check_heap };
    let found = match collected.unwrap_or_else(|| look(path, &show)) {
        Ok(found) => found,
        Err(e @ (untorn::Error::Corrupt { .. } | untorn::Error::UnknownState { .. })) => {
            return Err(Failure::from(e).code(PROBLEMS));
        }
        Err(e) => return Err(Failure::from(e).code(COULD_NOT_LOOK)),
    };
    // If the heap is in a store of several files, `status` of that store names its live memory.
    let live = offline::inspect(path).map(|store| store.live_memory).unwrap_or_default();
    let output = if json {
        let mut value = heap::json(&found)?;
        value["reclaimed"] = reclaimed.into();
        value["live_memory"] = json::value(&live)?;
        json::output(&value)?
    } else {
        Output::text(heap::check_text(&found, reclaimed, &live_text(&found, &live)))
    };
    let leads_out = found.pointers.as_ref().is_some_and(|pointers| pointers.count > 0);
    let is_unknown = found.live.as_ref().is_some_and(|live| matches!(live.next, NextStart::Unknown(_)));
    Ok(output.code(match found.is_sound_with_live() && !leads_out {
        true if is_unknown => COULD_NOT_LOOK,
        true => 0,
        false => PROBLEMS,
    }))
}

/// A text about the memory that an ended process left, and its use by the next opening.
fn live_text(found: &HeapReport, live: &[LiveMemoryFound]) -> String {
    let Some(outlook) = &found.live else {
        let of_nobody = |one: &LiveMemoryFound| {
            format!("note     {} is not this heap's: the next opening removes it\n", one.memory.display())
        };
        return live.iter().map(of_nobody).collect();
    };
    let memory = outlook.memory.display();
    let mut text = match &outlook.next {
        NextStart::LastCut(why) => {
            format!("note     this is the last cut, to which the next opening goes back: {memory}: {why}\n")
        }
        NextStart::Unknown(why) => {
            format!("note     this is the last cut; the memory could not be examined: {why}\n")
        }
        NextStart::GoesOn => format!(
            "note     this is the last cut; an ended process left newer changes in {memory}. The next opening \
             continues from them; `--gc`, `untorn rescue` and `untorn eject` bring them into the file\n"
        ),
    };
    if outlook.class == FailureClass::Memory {
        let how = if outlook.flushes { "sections and guarded changes in it survive" } else { "it survives" };
        text.push_str(&format!("note     the memory is of class memory: {how} a power cut\n"));
    }
    if outlook.undone > 0 {
        let undone = count(outlook.undone as u64, "section that had not ended", "sections that had not ended");
        let cascaded = match outlook.cascaded {
            0 => String::new(),
            n => format!(", and {n} that had seen their changes"),
        };
        text += &format!("         it undoes {undone}{cascaded}\n");
    }
    if let Some(heap) = &outlook.heap {
        heap.problems.iter().for_each(|problem| text += &format!("PROBLEM  in memory: {problem}\n"));
        if heap.problems_more > 0 {
            text += &format!("PROBLEM  in memory: and {} more\n", heap.problems_more);
        }
        if let Some(leaks) = heap.leaks.as_ref().filter(|leaks| leaks.count > 0) {
            let all = format!("{}, {}", count(leaks.count, "allocation", "allocations"), bytes(leaks.bytes));
            text += &format!("         no root reaches {all} there\n");
        }
        if heap.is_sound() {
            text += "         the heap in memory is sound\n";
        }
    }
    text
}

/// Problems of the log that is kept for slots.
fn kept_log_problems(path: &Path) -> Result<Vec<String>, Failure> {
    offline::check_kept_log(path).map_err(|e| Failure::from(e).code(COULD_NOT_LOOK))
}

fn text(found: &Inspection, sound: bool) -> String {
    let mut text = status::text(found) + &sqlite_files::left_markers(found);
    if found.owner.is_some() {
        text += "note     the store is in use; this was its state a moment ago\n";
    }
    let cannot_be_applied =
        |problem: &str| found.files_pending.iter().any(|file| !file.recoverable && file.outcome == problem);
    text + &if sound && status::is_unclean(found) {
        "sound, but not closed: the next opening, or `untorn recover`, brings what is in the journal into the files\n"
            .to_owned()
    } else if sound {
        "sound\n".to_owned()
    } else if found.problems.is_empty() {
        "not sound: its state is unknown\n".to_owned()
    } else if !found.lost_files.is_empty() && found.lost_files.len() == found.problems.len() {
        "not sound: files wait for a journal that is not here\n".to_owned()
    } else if found.left_marks.iter().filter(|left| left.seen).count() == found.problems.len() {
        "not sound: files keep marks. Remove the causes, then run `untorn recover`\n".to_owned()
    } else if found.quarantined.len() == found.problems.len() {
        "not sound: commits are quarantined. Remove the causes, then run `untorn recover`, or open the store\n"
            .to_owned()
    } else if let Some(advice) = recover::adoption_advice(&found.path) {
        format!("not sound. {advice}\n")
    } else if found.quarantined.len() + found.problems.iter().filter(|problem| cannot_be_applied(problem)).count()
        == found.problems.len()
    {
        "not sound: commits cannot be applied. Remove the causes, then run `untorn recover`, or open the store; if a \
         cause cannot be removed, `untorn recover --salvage --dry-run` shows what can be kept\n"
            .to_owned()
    } else {
        "not sound; `untorn recover --salvage --dry-run` shows what can be kept, `untorn recover --salvage` keeps it\n"
            .to_owned()
    }
}
