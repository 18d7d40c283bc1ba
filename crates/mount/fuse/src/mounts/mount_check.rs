//! `untorn check` of a mount or of its store: checks the log, and the tree as of the last commit, while the daemon goes
//! on.

use crate::error_line::in_one_line;
use crate::mounts::mount_status;
use anyhow::Result;
use serde_json::json;
use std::path::Path;
use std::time::Duration;
use untorn::offline::{self, Inspection};
use untorn::{Error, Reader};
use untorn_terminal::table::{bytes, count};
use untorn_terminal::{Failure, Output};
use untorn_tree::{Verified, verify};

/// Exit codes, the same as those of `untorn check`.
const PROBLEMS: u8 = 1;
const COULD_NOT_LOOK: u8 = 2;
/// How often the log is read, with a pause in between: while the owner changes it, a read may find no consistent state.
const LOOKS: usize = 50;
const REST: Duration = Duration::from_millis(20);

/// Checks the store of a mount, or a store.
pub fn check(path: &Path, json: bool) -> Result<Output, Failure> {
    let could_not = |e: anyhow::Error| Failure::new(in_one_line(&e)).code(COULD_NOT_LOOK);
    let store = mount_status::store_of(path).map_err(could_not)?;
    let shown = store.display();
    let mut problems = Vec::new();
    // After a crash or kill, commits may be in the log alone until the next opening applies them. Readers see them, so
    // that is no problem.
    let log = match look(&store) {
        Ok(log) => Some(log),
        Err(Error::Busy { .. }) => None,
        Err(e @ (Error::Corrupt { .. } | Error::UnknownState { .. })) => {
            problems.push(e.to_string());
            None
        }
        Err(e) => return Err(Failure::from(e).code(COULD_NOT_LOOK)),
    };
    if let Some(log) = &log {
        problems.extend(log.problems.iter().cloned());
        if log.unknown_state {
            problems.push("the state of the store is unknown".to_owned());
        }
    }
    let mut tree = None;
    match look_at_tree(&store) {
        Ok((lsn, found)) => {
            let tree = &tree.insert((lsn, found)).1;
            problems.extend(tree.problems.iter().cloned());
            if tree.problem_count > tree.problems.len() as u64 {
                problems.push(format!("and {} more", tree.problem_count - tree.problems.len() as u64));
            }
        }
        Err(e @ (Error::Corrupt { .. } | Error::UnknownState { .. })) => problems.push(e.to_string()),
        Err(e) => {
            return Err(could_not(anyhow::Error::from(e).context(format!("cannot look at the tree in {shown}"))));
        }
    }
    let sound = problems.is_empty();
    let is_unclean = log.as_ref().is_some_and(|log| log.owner.is_none() && (!log.clean || log.journal_missing));
    let text = if json {
        let of = |number: fn(&Verified) -> u64| tree.as_ref().map(|(_, tree)| number(tree));
        let value = json!({
            "store": store.to_string_lossy(),
            "sound": sound,
            "commit": tree.as_ref().map(|(lsn, _)| lsn),
            "log_looked_at": log.is_some(),
            "files": of(|tree| tree.files),
            "directories": of(|tree| tree.directories),
            "others": of(|tree| tree.others),
            "bytes": of(|tree| tree.bytes),
            "removed_in_use": of(|tree| tree.removed),
            "problems": problems,
        });
        format!("{value:#}\n")
    } else {
        let mut text = String::new();
        if let Some((lsn, tree)) = &tree {
            text += &format!(
                "{shown}: {}, {}, {}, {}, as of commit {lsn}\n",
                count(tree.files, "file", "files"),
                count(tree.directories, "directory", "directories"),
                count(tree.others, "other", "others"),
                bytes(tree.bytes)
            );
        }
        if log.is_none() && sound {
            text += "note     the log changed all the time, so only the part that readers use was verified\n";
        }
        problems.iter().for_each(|problem| text += &format!("PROBLEM  {problem}\n"));
        text += match (sound, is_unclean) {
            (true, false) => "sound\n",
            (true, true) => {
                "sound, but not closed: the next mount, or `untorn recover`, brings what is in the log into the files\n"
            }
            (false, _) => "not sound; `untorn check` of the closed store says more about its log\n",
        };
        text
    };
    Ok(Output::text(text).code(if sound && !is_unclean { 0 } else { PROBLEMS }))
}

fn look(store: &Path) -> untorn::Result<Inspection> {
    for _ in 1..LOOKS {
        match offline::inspect(store) {
            Err(Error::Busy { .. }) => std::thread::sleep(REST),
            done => return done,
        }
    }
    offline::inspect(store)
}

/// Verifies the tree as of the last durable commit, which the owner keeps meanwhile.
fn look_at_tree(store: &Path) -> untorn::Result<(u64, Verified)> {
    Reader::open(store)?.with_snapshot(|snapshot| Ok((snapshot.lsn(), verify(snapshot)?)))
}
