//! `untorn rescue`.

use crate::json;
use clap::Args;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt::Write;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use untorn::offline::{self, Candidate, Rescued};
use untorn_terminal::table;
use untorn_terminal::{Failure, Output};

/// A heap has memory that is not committed to its file.
const SOME_LEFT: u8 = 1;

/// Make the last cuts of live heaps, before the machine goes down.
///
/// Memory of a live heap that is not yet in its file is committed: for programs that have ended, by this command; for
/// running programs, by the program, if it makes cuts in the background (`cut_every`). The memory stays, so that the
/// programs continue from it if the machine does not go down. An ordinary user rescues the user's own heaps; root
/// rescues those of all users, acting as each of them.
///
/// A heap that was moved out of its directory or store is not found: open it once at its new place. If it was
/// removed, --remove-lost removes its memory.
///
/// Exit code: 0 everything is committed, or there was nothing to commit; 1 some heap is not committed.
#[derive(Args)]
pub struct Rescue {
    /// How long to wait for the answer of a running program.
    #[arg(long, value_name = "SECONDS", default_value_t = 10)]
    wait: u64,
    /// Remove the memory of heaps whose files were removed, not moved, and that no program has open.
    ///
    /// Also remove memory without data, of programs that were killed while they created it.
    #[arg(long)]
    remove_lost: bool,
    /// Print JSON, for programs.
    #[arg(long)]
    json: bool,
}

/// The outcome for one heap.
#[derive(Serialize, Deserialize)]
struct Line {
    #[serde(serialize_with = "json::path")]
    memory: PathBuf,
    #[serde(skip_serializing_if = "Option::is_none", serialize_with = "json::maybe_path", default)]
    heap: Option<PathBuf>,
    #[serde(skip_serializing_if = "Option::is_none")]
    outcome: Option<Rescued>,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
    milliseconds: u64,
}

impl Line {
    fn is_left(&self) -> bool {
        self.error.is_some() || matches!(self.outcome, Some(Rescued::Silent | Rescued::Lost { .. }))
    }

    fn text(&self) -> String {
        let name = self.heap.as_ref().unwrap_or(&self.memory).display();
        let took = self.milliseconds;
        match (&self.outcome, &self.error) {
            (Some(Rescued::Committed { bytes }), _) => {
                format!("{name}: committed ({} of memory, {took} ms)", table::bytes(*bytes))
            }
            (Some(Rescued::Answered), _) => format!("{name}: its program has made a cut ({took} ms)"),
            (Some(Rescued::Silent), _) => format!(
                "{name}: NOT committed: the program that has it open did not answer. Only programs that make cuts in \
                 the background (cut_every) can answer; the log of such a program says why a cut fails"
            ),
            (Some(Rescued::Removed { bytes }), _) if self.heap.is_none() => {
                format!("{name}: it had no data, and was removed ({})", table::bytes(*bytes))
            }
            (Some(Rescued::Unfinished), _) => format!(
                "{name}: no data: a program was killed while it made this memory. `untorn rescue --remove-lost` removes it"
            ),
            (Some(Rescued::Removed { bytes }), _) => {
                format!("{name}: the heap's file no longer exists; its memory was removed ({})", table::bytes(*bytes))
            }
            (Some(Rescued::Lost { exists: Some(true) }), _) => format!(
                "{name}: NOT committed: the heap's file was moved. Open the heap once at its new place, and rescue \
                 again"
            ),
            (Some(Rescued::Lost { exists: Some(false) }), _) => format!(
                "{name}: NOT committed: the heap's file no longer exists: it was removed. `untorn rescue \
                 --remove-lost` removes its memory, {}",
                self.memory.display()
            ),
            (Some(Rescued::Lost { exists: None }), _) => format!(
                "{name}: NOT committed: the heap's file no longer exists there. If it was moved, open the heap once at \
                 its new place, and rescue again; if it was removed, `untorn rescue --remove-lost` removes its memory, \
                 {}",
                self.memory.display()
            ),
            (Some(Rescued::Nothing(why)), _) => format!("{name}: nothing to commit: {why}"),
            (None, e) => format!("{name}: NOT committed: {}", e.as_deref().unwrap_or("unknown")),
        }
    }
}

impl Rescue {
    pub fn run(self) -> Result<Output, Failure> {
        let this = rustix::process::geteuid();
        let (own, others): (Vec<_>, Vec<_>) =
            offline::live_memories().into_iter().partition(|one| one.user == this.as_raw());
        let users: BTreeMap<u32, u32> = others.iter().map(|one| (one.user, one.group)).collect();
        // All users' heaps are rescued at the same time, because there may be little time.
        let children: Vec<_> = match this.is_root() {
            true => users.into_iter().map(|(user, group)| (user, self.start_as(user, group))).collect(),
            false => Vec::new(),
        };
        let mut lines: Vec<Line> = Vec::new();
        let mut left = false;
        let mut text = String::new();
        for one in own {
            let line = self.rescue(&one);
            left |= line.is_left();
            let _ = writeln!(text, "{}", line.text());
            lines.push(line);
        }
        for (user, child) in children {
            let ended = child.and_then(|child| child.wait_with_output());
            let found: Result<Vec<Line>, String> = match &ended {
                Ok(output) => serde_json::from_slice(&output.stdout)
                    .map_err(|_| format!("`untorn rescue` as this user has ended: {}", output.status)),
                Err(e) => Err(format!("`untorn rescue` cannot be run as this user: {e}")),
            };
            match found {
                Ok(found) => {
                    left |= found.iter().any(Line::is_left);
                    found.iter().for_each(|line| _ = writeln!(text, "user {user}: {}", line.text()));
                    lines.extend(found);
                }
                Err(why) => {
                    left = true;
                    let _ = writeln!(text, "user {user}: NOT committed: {why}");
                }
            }
        }
        if text.is_empty() {
            text.push_str("no live heap has anything in memory\n");
        }
        let output = if self.json { json::output(&lines)? } else { Output::text(text) };
        Ok(if left { output.code(SOME_LEFT) } else { output })
    }

    fn start_as(&self, user: u32, group: u32) -> std::io::Result<Child> {
        let mut command = Command::new(std::env::current_exe()?);
        command.args(["rescue", "--json", "--wait", &self.wait.to_string()]).uid(user).gid(group);
        command.args(self.remove_lost.then_some("--remove-lost"));
        command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn()
    }

    fn rescue(&self, one: &Candidate) -> Line {
        let begun = Instant::now();
        let mut done = offline::rescue(&one.memory, Duration::from_secs(self.wait));
        let may_go = |outcome: &Rescued| matches!(outcome, Rescued::Lost { .. } | Rescued::Unfinished);
        if self.remove_lost
            && let Ok((_, outcome)) = &mut done
            && may_go(outcome)
        {
            match offline::remove_lost_live_memory(&one.memory) {
                Ok(removed) => *outcome = removed.unwrap_or(outcome.clone()),
                Err(e) => done = Err(e),
            }
        }
        let milliseconds = begun.elapsed().as_millis() as u64;
        let memory = one.memory.clone();
        match done {
            Ok((heap, outcome)) => Line { memory, heap, outcome: Some(outcome), error: None, milliseconds },
            Err(e) => Line { memory, heap: None, outcome: None, error: Some(e.to_string()), milliseconds },
        }
    }
}
