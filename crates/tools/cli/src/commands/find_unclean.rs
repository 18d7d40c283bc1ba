//! `untorn find-unclean`.

use super::status;
use crate::json;
use crate::siblings::SESSION;
use crate::sqlite_files::{self, Guard};
use clap::{Args, ValueHint};
use rustix::fs::{AtFlags, CWD, FileType, StatxFlags, makedev, statx};
use serde::Serialize;
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Write};
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant, SystemTime};
use untorn::offline::{self, Inspection, RecoverOptions};
use untorn_terminal::table::count;
use untorn_terminal::{Failure, Output, shown, tell, time_limit};

/// A store needs recovery, or has a problem.
const UNCLEAN: u8 = 1;
/// A store or directory could not be examined.
const COULD_NOT_LOOK: u8 = 2;

/// File systems of the kernel, which hold no data.
const SKIPPED: [&str; 3] = ["/proc", "/sys", "/dev"];

/// A search that takes longer prints its progress, at this interval.
const TELL_AFTER: Duration = Duration::from_secs(2);

/// Find the stores below some directories that their owner did not close and that no program has open.
///
/// Opening such a store recovers it, so nothing has to be done; with `--recover` the command recovers each store now,
/// as the store's owner. A store that a program has open is in use, not unclean. Symbolic links are not followed.
///
/// Exit code: 0 nothing to do, or everything recovered; 1 a store needs recovery, or has a problem; 2 a store or a
/// directory could not be looked at.
#[derive(Args)]
pub struct FindUnclean {
    /// Directories to search.
    #[arg(required = true, value_hint = ValueHint::DirPath)]
    dirs: Vec<PathBuf>,
    /// Recover the unclean stores.
    #[arg(long)]
    recover: bool,
    /// Stay on the file systems of these directories.
    #[arg(short = 'x', long)]
    one_file_system: bool,
    /// Write figures for Prometheus' node exporter (textfile collector) to this file, whole or not at all.
    #[arg(long, value_hint = ValueHint::FilePath)]
    metrics: Option<PathBuf>,
    /// Print JSON, for programs.
    #[arg(long)]
    json: bool,
}

/// The condition of a store.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
enum Condition {
    Clean,
    InUse,
    Recovered,
    Unclean,
    Problem,
    Unknown,
}

const CONDITIONS: [(Condition, &str); 6] = [
    (Condition::Clean, "clean"),
    (Condition::InUse, "in-use"),
    (Condition::Recovered, "recovered"),
    (Condition::Unclean, "unclean"),
    (Condition::Problem, "problem"),
    (Condition::Unknown, "unknown"),
];

fn name(condition: Condition) -> &'static str {
    CONDITIONS.iter().find(|(known, _)| *known == condition).expect("all are named").1
}

#[derive(Serialize)]
struct FoundStore {
    #[serde(serialize_with = "json::path")]
    path: PathBuf,
    condition: Condition,
    files_pending: usize,
    /// A description of the problem.
    detail: Option<String>,
}

#[derive(Default, Serialize)]
struct Search {
    stores: Vec<FoundStore>,
    /// Directories that could not be read, with the error.
    unread: BTreeMap<String, String>,
    #[serde(skip)]
    directories: u64,
    #[serde(skip)]
    told: Option<Instant>,
}

impl FindUnclean {
    pub fn run(self) -> Result<Output, Failure> {
        let mut search = Search { told: Some(Instant::now()), ..Search::default() };
        for dir in &self.dirs {
            answers(dir).map_err(|e| Failure::io("look at", dir, e).code(COULD_NOT_LOOK))?;
            let meta = dir.metadata().map_err(|e| Failure::io("look at", dir, e).code(COULD_NOT_LOOK))?;
            search.directory(dir, meta.dev(), self.one_file_system);
        }
        search.stores.sort_by(|a, b| a.path.cmp(&b.path));
        search.stores.dedup_by(|a, b| a.path == b.path);
        if self.recover {
            search.recover();
        }
        if let Some(file) = &self.metrics {
            write_metrics(file, &search).map_err(|e| Failure::io("write", file, e).code(COULD_NOT_LOOK))?;
        }
        let output = if self.json { json::output(&search)? } else { Output::text(text(&search)) };
        Ok(output.code(code(&search)))
    }
}

fn code(search: &Search) -> u8 {
    let any = |conditions: &[Condition]| search.stores.iter().any(|found| conditions.contains(&found.condition));
    if any(&[Condition::Unclean, Condition::Problem]) {
        UNCLEAN
    } else if any(&[Condition::Unknown]) || !search.unread.is_empty() {
        COULD_NOT_LOOK
    } else {
        0
    }
}

impl Search {
    fn directory(&mut self, dir: &Path, device: u64, one_file_system: bool) {
        if SKIPPED.iter().any(|skipped| dir == Path::new(skipped)) {
            return;
        }
        self.directories += 1;
        self.tell();
        let names = match std::fs::read_dir(dir) {
            Ok(names) => names,
            Err(e) => {
                self.unread.insert(shown(dir), e.to_string());
                return;
            }
        };
        for name in names {
            let Ok(name) = name.map(|entry| entry.file_name()) else { continue };
            let path = dir.join(&name);
            let Some(below) = device_of_directory(&path) else { continue };
            if below != device {
                if one_file_system {
                    continue;
                }
                if let Err(e) = answers(&path) {
                    self.unread.insert(shown(&path), e.to_string());
                    continue;
                }
            }
            let text = name.to_str();
            let of_session = text.and_then(|name| name.strip_prefix('.')?.strip_suffix(SESSION));
            match text.and_then(|name| name.strip_suffix(".untorn")) {
                Some("") => self.store(dir),
                Some(file) => self.store(&dir.join(file)),
                None => match of_session {
                    Some(of) => self.session(&path, &dir.join(of)),
                    None => self.directory(&path, below, one_file_system),
                },
            }
        }
    }

    fn store(&mut self, path: &Path) {
        let path = if path.as_os_str().is_empty() { Path::new(".") } else { path };
        self.stores.push(look(path));
    }

    /// Looks at the files of a session of `untorn run` on the directory `of`. Only `untorn recover` of that directory
    /// puts its changes back, so its store is not looked at.
    fn session(&mut self, at: &Path, of: &Path) {
        let has = |name| at.join(name).try_exists();
        let is_left = match has("manifest").and_then(|begun| Ok(begun && !has("done")?)) {
            Ok(is_left) => is_left,
            Err(e) => {
                self.unread.insert(shown(at), e.to_string());
                return;
            }
        };
        let is_running = File::open(at).is_ok_and(|dir| dir.try_lock_shared().is_err());
        let (condition, detail) = match (is_running, is_left) {
            (true, _) => (Condition::InUse, None),
            (false, true) => {
                let detail =
                    "a session of `untorn run` was left; `untorn recover` of this directory puts its changes back";
                (Condition::Problem, Some(detail.to_owned()))
            }
            (false, false) => return,
        };
        self.stores.push(FoundStore { path: of.to_owned(), condition, files_pending: 0, detail });
    }

    fn tell(&mut self) {
        if self.is_due() {
            let (directories, stores) = (self.directories, self.stores.len() as u64);
            let directories = count(directories, "directory", "directories");
            tell!("looking: {directories}, {} so far", count(stores, "store", "stores"));
        }
    }

    /// Recovers all unclean stores.
    fn recover(&mut self) {
        let mut stores = std::mem::take(&mut self.stores);
        let unclean: Vec<_> = stores.iter_mut().filter(|found| found.condition == Condition::Unclean).collect();
        let all = unclean.len();
        for (n, found) in unclean.into_iter().enumerate() {
            if self.is_due() {
                tell!("recovering: {n} of {}", count(all as u64, "store", "stores"));
            }
            recover(found);
        }
        self.stores = stores;
    }

    /// Whether the progress is to be printed now.
    fn is_due(&mut self) -> bool {
        let is_due = self.told.is_some_and(|told| told.elapsed() > TELL_AFTER);
        if is_due {
            self.told = Some(Instant::now());
        }
        is_due
    }
}

/// Fails if the file system of a directory does not answer in time, such as a mount whose daemon is stopped.
fn answers(dir: &Path) -> io::Result<()> {
    match time_limit::file_system(dir)? {
        Some(_) => Ok(()),
        None => Err(io::Error::new(io::ErrorKind::TimedOut, "its file system does not answer")),
    }
}

/// The device of a directory, without a question to a daemon or server. None for other files.
fn device_of_directory(path: &Path) -> Option<u64> {
    let flags = AtFlags::SYMLINK_NOFOLLOW | AtFlags::NO_AUTOMOUNT | AtFlags::STATX_DONT_SYNC;
    let found = statx(CWD, path, flags, StatxFlags::TYPE).ok()?;
    let is_directory = FileType::from_raw_mode(found.stx_mode.into()) == FileType::Directory;
    is_directory.then(|| makedev(found.stx_dev_major, found.stx_dev_minor))
}

fn look(path: &Path) -> FoundStore {
    let found =
        |condition, files_pending, detail| FoundStore { path: path.to_owned(), condition, files_pending, detail };
    match offline::inspect(path) {
        Ok(inspection) => {
            let detail = problem(&inspection).or_else(|| marker(&inspection));
            found(condition(&inspection), inspection.files_pending.len(), detail)
        }
        Err(
            e @ (untorn::Error::Corrupt { .. }
            | untorn::Error::UnknownState { .. }
            | untorn::Error::NeedsJournal { .. }
            | untorn::Error::Foreign { .. }),
        ) => found(Condition::Problem, 0, Some(e.to_string())),
        Err(untorn::Error::Busy { .. }) => found(Condition::InUse, 0, None),
        Err(e) => found(Condition::Unknown, 0, Some(e.to_string())),
    }
}

fn condition(found: &Inspection) -> Condition {
    if found.owner.is_some() {
        Condition::InUse
    } else if !found.problems.is_empty() || found.unknown_state {
        Condition::Problem
    } else if status::is_unclean(found) || marker(found).is_some() {
        Condition::Unclean
    } else {
        Condition::Clean
    }
}

fn problem(found: &Inspection) -> Option<String> {
    if found.unknown_state && found.owner.is_none() {
        return Some("unknown state: see `untorn recover --accept-unknown`".into());
    }
    found.problems.first().cloned()
}

/// A text about a marker of a SQLite database that was left.
fn marker(found: &Inspection) -> Option<String> {
    let first = sqlite_files::marked_databases(&found.path).into_iter().next().filter(|_| found.owner.is_none())?;
    Some(format!("{} keeps other programs from the database", shown(&sqlite_files::journal_of(&first))))
}

fn recover_here(path: &Path) -> Result<(), Failure> {
    let guard = Guard::of_store(path, false)?;
    let report = offline::recover(path, &RecoverOptions::default(), &|_, _| {})?;
    guard.remove_markers(&report).map(drop)
}

/// Recovers a store as its owner, because nobody else may.
fn recover(found: &mut FoundStore) {
    let done = match other_owner(&found.path) {
        Some((user, group)) => recover_as(&found.path, user, group),
        None => recover_here(&found.path).map_err(|failure| failure.message),
    };
    *found = match done {
        Err(why) => FoundStore { condition: Condition::Problem, detail: Some(why), path: found.path.clone(), ..*found },
        Ok(()) => {
            let now = look(&found.path);
            let condition = if now.condition == Condition::Clean { Condition::Recovered } else { now.condition };
            FoundStore { condition, ..now }
        }
    };
}

/// The owner of a store, if that is another user and this process may act as any user.
fn other_owner(path: &Path) -> Option<(u32, u32)> {
    let mut beside = path.as_os_str().to_owned();
    beside.push(".untorn");
    let meta = path.join(".untorn").symlink_metadata().or_else(|_| Path::new(&beside).symlink_metadata()).ok()?;
    let me = rustix::process::geteuid();
    (me.is_root() && meta.uid() != me.as_raw()).then(|| (meta.uid(), meta.gid()))
}

fn recover_as(path: &Path, user: u32, group: u32) -> Result<(), String> {
    let program = std::env::current_exe().map_err(|e| format!("cannot find this program: {e}"))?;
    let mut command = Command::new(program);
    command.arg("recover").arg("--").arg(path).stdin(Stdio::null()).stdout(Stdio::null()).uid(user).gid(group);
    let done = command.output().map_err(|e| format!("cannot run `untorn recover` as user {user}: {e}"))?;
    match done.status.success() {
        true => Ok(()),
        false => Err(String::from_utf8_lossy(&done.stderr).trim().to_owned()),
    }
}

fn text(search: &Search) -> String {
    let mut text = String::new();
    for found in search.stores.iter().filter(|found| found.condition > Condition::InUse) {
        let files = match found.files_pending {
            0 => String::new(),
            n => format!("  {} pending", count(n as u64, "file", "files")),
        };
        let detail = found.detail.as_ref().map_or(String::new(), |detail| format!("  {detail}"));
        text += &format!("{:9}  {}{files}{detail}\n", name(found.condition), shown(&found.path));
    }
    for (dir, why) in &search.unread {
        text += &format!("unread     {dir}  {why}\n");
    }
    let of = |condition| search.stores.iter().filter(|found| found.condition == condition).count();
    let counts: Vec<String> = CONDITIONS
        .iter()
        .filter(|(condition, _)| of(*condition) > 0)
        .map(|(condition, name)| format!("{} {name}", of(*condition)))
        .collect();
    let counts = if counts.is_empty() { String::new() } else { format!(": {}", counts.join(", ")) };
    text + &format!("{}{counts}\n", count(search.stores.len() as u64, "store", "stores"))
}

/// The figures in the text format of Prometheus.
fn metrics(search: &Search, now: u64) -> String {
    let mut text = String::from("# HELP untorn_stores Stores of Untorn, by condition.\n# TYPE untorn_stores gauge\n");
    for (condition, name) in CONDITIONS {
        let n = search.stores.iter().filter(|found| found.condition == condition).count();
        text += &format!("untorn_stores{{condition=\"{name}\"}} {n}\n");
    }
    text += "# HELP untorn_store_attention A store that needs recovery, has a problem or could not be looked at.\n";
    text += "# TYPE untorn_store_attention gauge\n";
    for found in search.stores.iter().filter(|found| found.condition > Condition::Recovered) {
        let path = found.path.display().to_string();
        let path = path.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n");
        text += &format!("untorn_store_attention{{path=\"{path}\",condition=\"{}\"}} 1\n", name(found.condition));
    }
    text += "# HELP untorn_unread_directories Directories that could not be read.\n";
    text += "# TYPE untorn_unread_directories gauge\n";
    text += &format!("untorn_unread_directories {}\n", search.unread.len());
    text += "# HELP untorn_find_unclean_time_seconds When these figures were made.\n";
    text += "# TYPE untorn_find_unclean_time_seconds gauge\n";
    text + &format!("untorn_find_unclean_time_seconds {now}\n")
}

/// Replaces the file by a rename, because the collector may read it at any time.
fn write_metrics(path: &Path, search: &Search) -> std::io::Result<()> {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, |since| since.as_secs());
    let mut unfinished = path.as_os_str().to_owned();
    unfinished.push(format!(".{}", std::process::id()));
    let unfinished = PathBuf::from(unfinished);
    let mut file = std::fs::File::create(&unfinished)?;
    let done = file
        .write_all(metrics(search, now).as_bytes())
        .and_then(|()| file.sync_all())
        .and_then(|()| std::fs::rename(&unfinished, path));
    done.inspect_err(|_| _ = std::fs::remove_file(&unfinished))
}
