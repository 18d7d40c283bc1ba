//! Programs that use Untorn's public interface, and the states that a crash may leave.

use super::plan::{Bounds, Change, Files, Plan, Step};
use crate::device::{Acks, Again};
use crate::replay::{Check, Program};
use anyhow::{Context, Result};
use std::collections::BTreeMap;
use std::io::{BufRead, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;
use untorn::{File, FileOptions, Map, MapOptions, Store, StoreOptions};

pub(super) const SUBMIT: &str = "submit ";
pub(super) const COMMIT: &str = "commit ";
const SETTLED: &str = "settled ";
/// The commit that was submitted last did not happen, and will not come back.
const REFUSED: &str = "refused";
/// Begins the lines of a process that is to be killed, among other output to the same pipe.
const HEARD: &str = "said: ";
pub(super) const STORE: &str = "store";
const LONE: &str = "lone";

/// Kinds of programs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flavour {
    /// Several files of one store, by single commits and `syncv`.
    Several,
    /// Transactions over many files and their names.
    Names,
    /// One file with a store of its own.
    Lone,
    /// The smallest journal, so that checkpoints run all the time.
    Tight,
    /// Several files, changed by stores to their mappings, committed by `msync` and `syncv`.
    Mapped,
}

/// All kinds.
pub const FLAVOURS: [Flavour; 5] = [Flavour::Several, Flavour::Names, Flavour::Lone, Flavour::Tight, Flavour::Mapped];

impl Flavour {
    /// The name for reports.
    pub fn name(self) -> &'static str {
        match self {
            Flavour::Several => "several",
            Flavour::Names => "names",
            Flavour::Lone => "lone",
            Flavour::Tight => "tight",
            Flavour::Mapped => "mapped",
        }
    }

    /// The kind with this name.
    pub fn by_name(name: &str) -> Option<Flavour> {
        FLAVOURS.into_iter().find(|f| f.name() == name)
    }

    fn options(self) -> StoreOptions {
        let options = StoreOptions::new().create(true);
        match self {
            Flavour::Tight => options.journal_bytes(64 << 10),
            _ => options.journal_bytes(1 << 20),
        }
    }

    fn bounds(self) -> Bounds {
        let commits = 40;
        match self {
            Flavour::Several | Flavour::Mapped => {
                Bounds { files_max: 4, file_bytes_max: 200_000, names: false, commits }
            }
            Flavour::Names => Bounds { files_max: 6, file_bytes_max: 50_000, names: true, commits },
            Flavour::Lone => Bounds { files_max: 1, file_bytes_max: 300_000, names: false, commits },
            Flavour::Tight => Bounds { files_max: 5, file_bytes_max: 60_000, names: true, commits },
        }
    }

    fn start(self) -> Files {
        match self {
            Flavour::Lone => [(LONE.to_owned(), Vec::new())].into(),
            Flavour::Several | Flavour::Mapped => (0..4).map(|n| (format!("file-{n}"), Vec::new())).collect(),
            Flavour::Names | Flavour::Tight => Files::new(),
        }
    }
}

/// The way in which a run on a failing disk ended.
pub enum Ended {
    /// The program noticed no failure.
    Well,
    /// The program got an error.
    Refused {
        /// The error.
        error: anyhow::Error,
        /// The journal failed, and every commit after that was refused.
        refuses_on: bool,
    },
}

/// A program that uses Untorn, drawn from a seed.
pub struct Managed {
    flavour: Flavour,
    plan: Plan,
}

/// The line of a program that has opened the store and found this commit: the store must show it from then on.
pub fn settled(commit: usize) -> String {
    format!("{SETTLED}{commit}")
}

impl Managed {
    /// The program of a seed.
    pub fn new(flavour: Flavour, seed: u64) -> Managed {
        Managed { flavour, plan: Plan::new(seed, flavour.start(), flavour.bounds()) }
    }

    /// This program with fewer commits.
    pub fn short(flavour: Flavour, seed: u64, commits: usize) -> Managed {
        let bounds = Bounds { commits, ..flavour.bounds() };
        Managed { flavour, plan: Plan::new(seed, flavour.start(), bounds) }
    }

    /// Opens the store, recovering it if it has crashed.
    fn open(&self, dir: &Path) -> Result<Open, untorn::Error> {
        let options = self.flavour.options();
        match self.flavour {
            Flavour::Lone => {
                let file = FileOptions::new().create(true).store(options).open(dir.join(LONE))?;
                let handles: BTreeMap<String, File> = [(LONE.to_owned(), file)].into();
                Ok(Open { store: handles[LONE].store(), handles, maps: None })
            }
            flavour => Ok(Open {
                store: options.open(dir.join(STORE))?,
                handles: BTreeMap::new(),
                maps: (flavour == Flavour::Mapped).then(BTreeMap::new),
            }),
        }
    }

    /// Runs all steps except for the last one, which closes.
    fn go(&self, open: &mut Open, dir: &Path, acks: &mut Acks) -> Result<()> {
        let mut commits = 0;
        for step in &self.plan.steps {
            match step {
                Step::Checkpoint => open.checkpoint()?,
                Step::Reopen => {
                    open.close()?;
                    *open = self.open(dir)?;
                }
                Step::Commit { changes, in_background } => {
                    commits += 1;
                    tell(acks, &format!("{SUBMIT}{commits}"))?;
                    open.commit(changes, *in_background).with_context(|| format!("commit {commits}"))?;
                    tell(acks, &format!("{COMMIT}{commits}"))?;
                }
            }
        }
        Ok(())
    }

    /// Runs until something fails, or to the end. Then it calls `heal`, and a store with a failed journal must continue
    /// to refuse commits, even if the disk works again.
    pub fn run_on_failing_disk(&self, dir: &Path, acks: &Path, heal: impl FnOnce() -> Result<()>) -> Result<Ended> {
        let mut acks = Acks::open(acks)?;
        let mut open = match self.open(dir) {
            Ok(open) => open,
            Err(e) => return heal().map(|()| Ended::Refused { error: e.into(), refuses_on: false }),
        };
        let done = self.go(&mut open, dir, &mut acks).and_then(|()| open.close());
        heal()?;
        let Err(error) = done else { return Ok(Ended::Well) };
        let refuses_on = matches!(error.downcast_ref(), Some(untorn::Error::SyncFailed { .. }));
        if let Some(untorn::Error::SyncFailed { outcome: untorn::Outcome::NotCommitted, .. }) = error.downcast_ref() {
            acks.say(REFUSED)?;
        }
        if refuses_on {
            for name in open.handles.keys().cloned().collect::<Vec<_>>() {
                let change = Change::Write { name, at: 0, bytes: vec![1; 100] };
                if open.commit(&[change], false).is_ok() {
                    anyhow::bail!("after `{error:#}` another commit was acknowledged");
                }
            }
        }
        // Its result does not matter: the files are checked afterwards.
        let _ = open.close();
        Ok(Ended::Refused { error, refuses_on })
    }

    /// Opens the store, recovering it, and closes it; returns the commit that it showed.
    pub fn held(&self, dir: &Path, said: &[String]) -> Result<usize, String> {
        let mut open = self.open(dir).map_err(|e| format!("the store cannot be opened: {e}"))?;
        let held = self.which(dir, &mut open, Window::of(said))?;
        open.close().map_err(|e| format!("the store cannot be closed: {e:#}"))?;
        Ok(held)
    }

    fn home(&self, dir: &Path) -> PathBuf {
        if self.flavour == Flavour::Lone { dir.to_owned() } else { dir.join(STORE) }
    }

    /// Finds the commit that the store shows, among those in question.
    fn which(&self, dir: &Path, open: &mut Open, window: Window) -> Result<usize, String> {
        let found = open.contents(&self.home(dir))?;
        let fits = |n: &usize| self.plan.states[*n] == found;
        (window.least..=window.most).find(fits).ok_or_else(|| {
            let held = match (0..self.plan.states.len()).find(fits) {
                Some(n) => format!("it holds commit {n}"),
                None => difference(&found, &self.plan.states[window.least], window.least),
            };
            format!("commit {} was acknowledged and {} submitted: {held}", window.least, window.most)
        })
    }
}

impl Program for Managed {
    fn prepare(&self, dir: &Path) -> Result<()> {
        // The initial files of the plan exist before the store; recovery has nothing to do with them.
        if [Flavour::Several, Flavour::Mapped].contains(&self.flavour) {
            std::fs::create_dir(dir.join(STORE))?;
            for name in self.plan.states[0].keys() {
                std::fs::write(dir.join(STORE).join(name), b"")?;
            }
        } else if self.flavour == Flavour::Lone {
            std::fs::write(dir.join(LONE), b"")?;
        }
        Ok(())
    }

    fn run(&self, dir: &Path, acks: &Path) -> Result<()> {
        let mut open = self.open(dir)?;
        self.go(&mut open, dir, &mut Acks::open(acks)?)?;
        open.close()
    }
}

impl Check for Managed {
    fn check(&self, dir: &Path, said: &[String]) -> Result<(), String> {
        let window = Window::of(said);
        let mut open = match self.open(dir) {
            Ok(open) => open,
            // The first opening makes the directory itself.
            Err(e) => return Err(format!("the store cannot be opened: {e}")),
        };
        let quarantined = open.store.status().quarantined;
        if !quarantined.is_empty() {
            return Err(format!("files were set aside: {quarantined:?}"));
        }
        let held = self.which(dir, &mut open, window)?;
        // The store takes another commit, closes, and leaves plain files.
        let mut expected = self.plan.states[held].clone();
        let late = super::plan::bytes(u64::MAX, 3000);
        let change = match self.flavour {
            Flavour::Lone => Change::Write { name: LONE.to_owned(), at: 0, bytes: late.clone() },
            _ => Change::Create { name: "late".to_owned(), bytes: late.clone() },
        };
        let text = |e: anyhow::Error| format!("after recovery: {e:#}");
        open.commit(&[change], false).map_err(text)?;
        open.close().map_err(text)?;
        match self.flavour {
            Flavour::Lone => {
                let file = expected.get_mut(LONE).expect("the start has it");
                file.resize(file.len().max(late.len()), 0);
                file[..late.len()].copy_from_slice(&late);
            }
            _ => drop(expected.insert("late".to_owned(), late)),
        }
        let plain = plain_files(&self.home(dir)).map_err(|e| format!("after recovery: {e}"))?;
        if plain == expected { Ok(()) } else { Err(format!("after closing: {}", difference(&plain, &expected, held))) }
    }
}

/// A program that can recover from a crash.
pub trait Recovers: Program + Check {
    /// Opens, and passes the commit to `found` before it closes.
    fn recover(&self, dir: &Path, said: &[String], found: &mut dyn FnMut(usize) -> Result<()>) -> Result<()>;
}

impl Recovers for Managed {
    fn recover(&self, dir: &Path, said: &[String], found: &mut dyn FnMut(usize) -> Result<()>) -> Result<()> {
        let mut open = self.open(dir)?;
        found(self.which(dir, &mut open, Window::of(said)).map_err(anyhow::Error::msg)?)?;
        open.close()
    }
}

/// Recovers another program from a crash: the commit that it finds must be there after the next crash, too.
pub struct Reopening<'a> {
    /// The program that crashed.
    pub of: &'a dyn Recovers,
    /// The lines that the program had acknowledged.
    pub said: &'a [String],
}

impl Program for Reopening<'_> {
    fn run(&self, dir: &Path, acks: &Path) -> Result<()> {
        self.of.recover(dir, self.said, &mut |held| Ok(Acks::open(acks)?.say(&settled(held))?))
    }
}

/// Runs the program in a process of its own, kills it during its work, and recovers it while the killed process's
/// writes may still be only in the cache.
pub struct Killed<'a> {
    /// The program.
    pub of: &'a dyn Recovers,
    /// Its name, by which the other process selects it.
    pub name: &'a str,
    /// The command line of the other process.
    pub again: &'a Again,
    /// The number of acknowledged lines after which the program is killed.
    pub lines: usize,
}

/// The environment variable that makes this process run a program: its name, the directory and the file of
/// acknowledgements, separated by tabs.
pub(super) const ASKED: &str = "UNTORN_CRASHLAB_PROGRAM";

impl Killed<'_> {
    /// Runs the other process and kills it; returns its lines before the kill.
    fn run_and_kill(&self, dir: &Path, acks: &Path) -> Result<Vec<String>> {
        let heard = std::process::Stdio::piped();
        let order = format!("{}\t{}\t{}", self.name, dir.display(), acks.display());
        let mut child = self.again.command().env(ASKED, order).stdout(heard).spawn()?;
        let lines = std::io::BufReader::new(child.stdout.take().expect("piped")).lines();
        let lines = lines.map_while(Result::ok).filter_map(|line| {
            let (_, said) = line.split_once(HEARD)?;
            Some(said.to_owned())
        });
        let mut said: Vec<String> = Vec::new();
        for line in lines {
            said.push(line);
            if said.len() == self.lines {
                // Not at once, but in the middle of the next step.
                std::thread::sleep(Duration::from_micros(self.lines as u64 * 37 % 900));
                child.kill()?;
            }
        }
        child.wait()?;
        Ok(said)
    }
}

impl Program for Killed<'_> {
    fn prepare(&self, dir: &Path) -> Result<()> {
        self.of.prepare(dir)
    }

    fn run(&self, dir: &Path, acks: &Path) -> Result<()> {
        let said = self.run_and_kill(dir, acks)?;
        Reopening { of: self.of, said: &said }.run(dir, acks)
    }
}

impl Check for Reopening<'_> {
    fn check(&self, dir: &Path, said: &[String]) -> Result<(), String> {
        self.of.check(dir, said)
    }
}

/// Writes a line to `acks`, and to the pipe of the process that will kill this one, if there is one.
pub(super) fn tell(acks: &mut Acks, line: &str) -> Result<()> {
    acks.say(line)?;
    if std::env::var_os(ASKED).is_some() {
        let mut out = std::io::stdout().lock();
        out.write_all(format!("{HEARD}{line}\n").as_bytes())?;
        out.flush()?;
    }
    Ok(())
}

/// The range of commits, any of which may be the last after a crash.
#[derive(Clone, Copy, Debug)]
pub(super) struct Window {
    pub least: usize,
    pub most: usize,
}

impl Window {
    pub fn of(said: &[String]) -> Window {
        let mut window = Window { least: 0, most: 0 };
        for line in said {
            let number = |prefix: &str| line.strip_prefix(prefix).and_then(|n| n.parse().ok());
            if let Some(n) = number(SUBMIT) {
                window.most = n;
            } else if let Some(n) = number(COMMIT) {
                window = Window { least: n, most: n };
            } else if let Some(n) = number(SETTLED) {
                window = Window { least: n, most: n };
            } else if line == REFUSED {
                window.most = window.least;
            }
        }
        window
    }
}

/// An open store.
struct Open {
    store: Store,
    handles: BTreeMap<String, File>,
    /// The maps by which a program changes its files, if it does so.
    maps: Option<BTreeMap<String, Map>>,
}

impl Open {
    fn handle(&mut self, name: &str) -> Result<&File> {
        if !self.handles.contains_key(name) {
            let file = self.store.open_file(name)?;
            if let Some(maps) = &mut self.maps {
                maps.insert(name.to_owned(), file.map_with(&MapOptions::new().quiet(true))?);
            }
            self.handles.insert(name.to_owned(), file);
        }
        Ok(&self.handles[name])
    }

    fn commit(&mut self, changes: &[Change], in_background: bool) -> Result<()> {
        let touched: Vec<&str> = changes
            .iter()
            .filter_map(|change| match change {
                Change::Write { name, .. } | Change::Zero { name, .. } | Change::Size { name, .. } => Some(&**name),
                _ => None,
            })
            .collect();
        for name in &touched {
            self.handle(name)?;
        }
        let ticket = if changes.iter().any(Change::is_of_names) {
            let mut txn = self.store.begin();
            for name in &touched {
                txn.add(&self.handles[*name])?;
            }
            for change in changes {
                match change {
                    Change::Create { name, bytes } => txn.create(name, 0o644)?.write_all_at(bytes, 0)?,
                    Change::Rename { from, to } => txn.rename(from, to)?,
                    Change::Unlink { name } => txn.unlink(name)?,
                    contents => self.change(contents)?,
                }
            }
            match in_background {
                true => Some(txn.commit_async()?),
                false => txn.commit().map(|()| None)?,
            }
        } else {
            changes.iter().try_for_each(|change| self.change(change))?;
            let files: Vec<&File> = touched.iter().map(|name| &self.handles[*name]).collect();
            match (&files[..], in_background) {
                ([_], false) if self.maps.is_some() => self.map(touched[0]).msync().map(|()| None)?,
                ([file], true) => Some(file.commit_async()?),
                ([file], false) => file.commit().map(|()| None)?,
                (files, true) => Some(self.store.syncv_async(files)?),
                (files, false) => self.store.syncv(files).map(|()| None)?,
            }
        };
        if let Some(ticket) = ticket {
            ticket.wait()?;
        }
        // A handle follows its file, so names must be opened again.
        if changes.iter().any(Change::is_of_names) {
            self.handles.clear();
            self.maps.iter_mut().for_each(BTreeMap::clear);
        }
        Ok(())
    }

    fn map(&self, name: &str) -> &Map {
        &self.maps.as_ref().expect("a program that maps")[name]
    }

    /// Makes a checkpoint; with mappings, also drops memory that equals the files.
    fn checkpoint(&self) -> Result<()> {
        for map in self.maps.iter().flat_map(BTreeMap::values) {
            map.reclaim()?;
        }
        Ok(self.store.checkpoint()?)
    }

    fn change(&self, change: &Change) -> Result<()> {
        match change {
            Change::Write { name, at, bytes } if self.maps.is_some() => {
                let (map, end) = (self.map(name), at + bytes.len() as u64);
                if end > map.len() {
                    map.resize(end)?;
                }
                map.store(bytes, *at)?;
            }
            Change::Write { name, at, bytes } => self.handles[name].write_all_at(bytes, *at)?,
            Change::Zero { name, at, len } => self.handles[name].zero(*at, *len)?,
            Change::Size { name, size } => self.handles[name].set_len(*size)?,
            names => anyhow::bail!("{names:?} is a change of names"),
        }
        Ok(())
    }

    /// The contents of every file, as the library reads them.
    fn contents(&mut self, home: &Path) -> Result<Files, String> {
        let mut files = Files::new();
        for name in names(home).map_err(|e| format!("the directory cannot be read: {e}"))? {
            let file = self.handle(&name).map_err(|e| format!("{name} cannot be opened: {e:#}"))?;
            let read = || -> Result<Vec<u8>, untorn::Error> {
                let mut bytes = vec![0; file.len()? as usize];
                let length = file.read_at(&mut bytes, 0)?;
                bytes.truncate(length);
                Ok(bytes)
            };
            files.insert(name.clone(), read().map_err(|e| format!("{name} cannot be read: {e}"))?);
        }
        Ok(files)
    }

    fn close(&mut self) -> Result<()> {
        for map in self.maps.iter_mut().flat_map(std::mem::take).map(|(_, map)| map) {
            map.unmap()?;
        }
        let handles = std::mem::take(&mut self.handles);
        for file in handles.into_values() {
            file.close()?;
        }
        Ok(self.store.clone().close()?)
    }
}

/// The files other than Untorn's own and the file system's.
fn names(home: &Path) -> std::io::Result<Vec<String>> {
    let mut names = Vec::new();
    for entry in std::fs::read_dir(home)? {
        let entry = entry?;
        if entry.file_type()?.is_file() {
            names.push(entry.file_name().to_string_lossy().into_owned());
        }
    }
    Ok(names)
}

fn plain_files(home: &Path) -> std::io::Result<Files> {
    names(home)?.into_iter().map(|name| Ok((name.clone(), std::fs::read(home.join(name))?))).collect()
}

fn difference(found: &Files, wanted: &Files, number: usize) -> String {
    let (has, had) = (found.keys().collect::<Vec<_>>(), wanted.keys().collect::<Vec<_>>());
    if has != had {
        return format!("it holds no commit whole; beside commit {number}: files {has:?} instead of {had:?}");
    }
    let name = wanted.keys().find(|name| found[*name] != wanted[*name]).expect("they differ");
    let (is, was) = (&found[name], &wanted[name]);
    let at = is.iter().zip(was).position(|(a, b)| a != b).unwrap_or(is.len().min(was.len()));
    format!(
        "it holds no commit whole; beside commit {number}: {name} ({} bytes instead of {}) differs at {at}",
        is.len(),
        was.len()
    )
}
