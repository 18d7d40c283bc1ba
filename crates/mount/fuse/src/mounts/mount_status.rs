//! `untorn status` of a live mount: asks the daemon, and prints the answer.

use crate::mounts::mount_point::{self, Mounted};
use crate::mounts::mounted_store;
use crate::mounts::status_question;
use crate::processes::supervised;
use anyhow::{Context, Result, bail};
use rustix::io::Errno;
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use untorn_os::mount_calls::STATUS_BYTES;
use untorn_terminal::Output;
use untorn_terminal::table::{count, pairs};
use untorn_tree::{CommitMode, TreeStatus};

/// Exit code: something is wrong.
const PROBLEMS: u8 = 1;

/// Builds the daemon's answer to a status request.
pub fn answer(status: &TreeStatus, mode: CommitMode) -> Vec<u8> {
    let mode = match mode {
        CommitMode::Sync => "fsync",
        CommitMode::Close => "close",
        CommitMode::Write => "write",
        CommitMode::Store => "store",
    };
    let supervisor = supervised::last_to_end();
    let daemon = std::process::id();
    let mut names: Vec<String> = status.poisoned.iter().map(|path| path.to_string_lossy().into_owned()).collect();
    loop {
        let value = json!({
            "daemon": daemon,
            "supervisor": (supervisor != daemon).then_some(supervisor),
            "user": rustix::process::geteuid().as_raw(),
            "mode": mode,
            "inodes": status.inodes,
            "open_for_writing": status.open_for_writing,
            "uncommitted": status.uncommitted,
            "uncommitted_seconds": status.oldest.map(|age| age.as_secs()),
            "names_uncommitted": status.names_uncommitted,
            "on_their_way": status.on_their_way,
            "deferred": status.deferred,
            "transactions": status.transactions,
            "poisoned": status.poisoned.len(),
            "poisoned_names": names,
            "failed": status.failed,
        });
        let mut text = value.to_string().into_bytes();
        if text.len() <= STATUS_BYTES {
            text.resize(STATUS_BYTES, 0);
            return text;
        }
        // The answer has no room for all names.
        names.truncate(names.len() / 2);
    }
}

/// The mount that a path is on.
pub struct FoundMount {
    /// The mount's entry in `mountinfo`.
    pub mounted: Mounted,
    /// The daemon's answer; `None` if it has ended, or does not answer.
    pub said: Option<Value>,
    /// The daemon has not ended, and does not answer: it is stopped, or waits for something.
    pub hangs: bool,
}

/// Finds the mount of Untorn that a directory is on or is the mount point of; `None` if there is none.
pub fn find(path: &Path) -> Result<Option<FoundMount>> {
    let Some(asked) = status_question::ask(path)? else {
        let mounted = mount_point::by_name(path)?;
        let mounted = mounted.with_context(|| format!("the file system of {} does not answer", path.display()))?;
        return Ok(Some(FoundMount { mounted, said: None, hangs: true }));
    };
    let (said, device) = match asked {
        Ok(said) => said,
        Err(Errno::NOTCONN | Errno::CONNABORTED) => {
            let at = mount_point::absolute(path)?;
            let mounted = mount_point::mounted_at(&at)?.filter(Mounted::is_ours);
            return Ok(mounted.map(|mounted| FoundMount { mounted, said: None, hangs: false }));
        }
        Err(Errno::PERM) => {
            bail!("{} is on a mount of another user; only that user and root can see its state", path.display())
        }
        // The caller's next check reports the error of the path.
        Err(_) => return Ok(None),
    };
    let said = serde_json::from_slice(&said).context("the daemon is of another version of Untorn")?;
    let is = |mounted: &Mounted| mounted.is_ours() && mounted.device == device;
    let mounted = mount_point::mounts()?.into_iter().find(is);
    let mounted = mounted.with_context(|| format!("the mount of {} is in no directory any more", path.display()))?;
    Ok(Some(FoundMount { mounted, said: Some(said), hangs: false }))
}

/// Asks the daemon of a mount for the files of which a write failed: the paths that the answer has room for, and the
/// number of all. `None` if the daemon does not answer this user.
pub fn poisoned(on: &Path) -> Option<(Vec<PathBuf>, u64)> {
    let FoundMount { mounted, said, .. } = find(on).ok()??;
    let said = said?;
    let names = said["poisoned_names"].as_array().into_iter().flatten().filter_map(Value::as_str);
    let paths: Vec<PathBuf> = names.map(|name| mounted.at.join(name)).collect();
    Some((paths, said["poisoned"].as_u64()?))
}

/// Lists files that are not committed, in one line.
pub fn not_committed((paths, count): &(Vec<PathBuf>, u64)) -> String {
    let mut names: Vec<String> = paths.iter().map(|path| path.display().to_string()).collect();
    if *count > names.len() as u64 {
        names.push(format!("and {} more", count - names.len() as u64));
    }
    format!("not committed, because a write failed; the last commit stands: {}", names.join(", "))
}

/// Whether a write or a flush of the log has failed on the mount at a directory.
pub fn has_failed(at: &Path) -> bool {
    let said = find(at).ok().flatten().and_then(|found| found.said);
    said.is_some_and(|said| said["failed"] == true)
}

/// Prints the condition of a mount. The exit code is 1 if something is wrong.
pub fn status(found: &FoundMount, json: bool) -> Output {
    let FoundMount { mounted, said, hangs } = found;
    let (at, store) = (&mounted.at, &mounted.source);
    let number = |name: &str| said.as_ref().and_then(|said| said[name].as_u64()).unwrap_or(0);
    let is = |name: &str| said.as_ref().is_some_and(|said| said[name] == true);
    let code = if said.is_none() || is("failed") || number("poisoned") > 0 { PROBLEMS } else { 0 };
    if json {
        let mut value = said.clone().unwrap_or_else(|| json!({}));
        value["mount"] = at.to_string_lossy().into();
        value["store"] = store.to_string_lossy().into();
        value["serving"] = said.is_some().into();
        value["hangs"] = (*hangs).into();
        value["sync_commits"] = mounted.sync_commits().into();
        return Output::text(format!("{value:#}\n")).code(code);
    }
    let mut lines = vec![("mount", at.display().to_string()), ("store", store.display().to_string())];
    let Some(said) = said else {
        let again = format!("untorn mount {} {}", store.display(), at.display());
        lines.push((
            "state",
            match mounted_store::is_there(store) {
                _ if *hangs => mount_point::no_answer(at),
                true => format!("dead: its daemon has ended; `{again}` goes on from the last commits"),
                false => format!(
                    "dead: its daemon has ended, and {} is no longer a store; if the store was moved, its last commits \
                     are at its new place",
                    store.display()
                ),
            },
        ));
        return Output::text(pairs(&lines)).code(code);
    };
    let mut served = format!("process {}, user {}", number("daemon"), number("user"));
    if let Some(supervisor) = said["supervisor"].as_u64() {
        served += &format!("; supervisor: process {supervisor}");
    }
    lines.push(("served by", served));
    let mut commits = mode_in_words(said["mode"].as_str().unwrap_or("?"));
    if mounted.sync_commits() {
        commits += "; `sync` and `syncfs` commit everything (-o sync_commits)";
    } else if said["mode"] != "write" {
        commits += &format!("; `sync` and `syncfs` commit nothing, but `untorn sync {}` does", at.display());
    }
    lines.push(("commits", commits));
    let writing = count(number("open_for_writing"), "file is open for writing", "files are open for writing");
    let transactions = match number("transactions") {
        0 => String::new(),
        n => format!(", {}", count(n, "transaction", "transactions")),
    };
    lines.push(("in use", format!("{writing}{transactions}; {} in all", count(number("inodes"), "inode", "inodes"))));
    let mut uncommitted = count(number("uncommitted"), "file", "files");
    if is("names_uncommitted") {
        uncommitted += ", names or attributes";
    }
    if number("deferred") > 0 {
        uncommitted += &format!(", {} renamed on a full disk", count(number("deferred"), "file", "files"));
    }
    let age = match said["uncommitted_seconds"].as_u64() {
        Some(seconds) => format!(", the oldest for {}", count(seconds, "second", "seconds")),
        None => String::new(),
    };
    lines.push(("uncommitted", format!("{uncommitted}{age}, and changes that the kernel has not sent yet")));
    lines.push(("on their way", count(number("on_their_way"), "commit", "commits")));
    let state = match (is("failed"), number("poisoned")) {
        (true, _) => {
            "a write or flush of the log failed: every change and every sync says EIO. Unmount, and mount again"
                .to_owned()
        }
        (_, 0) => "in order".to_owned(),
        (_, n) => format!("a write of {} failed", count(n, "file", "files")),
    };
    lines.push(("state", state));
    let mut text = pairs(&lines);
    let names: Vec<&str> = said["poisoned_names"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
    for name in &names {
        text += &format!("POISONED  {}\n", at.join(name).display());
    }
    if number("poisoned") > names.len() as u64 {
        text += &format!("POISONED  and {} more\n", number("poisoned") - names.len() as u64);
    }
    if number("poisoned") > 0 {
        text += "A poisoned file keeps its last commit: nothing commits it until the failed data is written anew or \
             cut off, or the file is truncated to 0 or removed. When a program opens it for writing, and no other \
             program has it open for writing, the program finds its last commit. If the kernel still has all of the \
             failed data, the next sync writes it again.\n";
    }
    Output::text(text).code(code)
}

fn mode_in_words(mode: &str) -> String {
    match mode {
        "fsync" => {
            "by fsync and similar calls; after some seconds, files that no program has open for writing".to_owned()
        }
        "close" => {
            "by fsync and similar calls, and soon after the last writer has closed a file (--commit=close)".to_owned()
        }
        "write" => "each write, before it returns (--commit=write)".to_owned(),
        "store" => "everything by each sync, and by nothing else (--commit=store)".to_owned(),
        other => other.to_owned(),
    }
}

/// The store of the mount that a path is on, or else the path itself.
pub fn store_of(path: &Path) -> Result<PathBuf> {
    match find(path)? {
        Some(found) => Ok(found.mounted.source),
        None => path.canonicalize().with_context(|| format!("cannot open {}", path.display())),
    }
}
