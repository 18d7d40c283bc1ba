//! The working directory and the running child, both of which must be gone at the end.

use crate::updater::{self, Ack, Keeper};
use parking_lot::{Mutex, MutexGuard};
use rustix::process::Signal;
use std::io::Read;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Stdio};
use std::sync::Arc;
use tempfile::TempDir;
use untorn_terminal::{Failure, signals};

/// File systems on which writes never reach a disk.
const IN_MEMORY: [&str; 2] = ["tmpfs", "ramfs"];

/// The things to clean up.
struct State {
    dir: Option<TempDir>,
    child: Option<Child>,
    acks: Vec<Ack>,
    interrupted: bool,
}

impl State {
    fn clean_up(&mut self) {
        if let Some(mut child) = self.child.take() {
            let _ = child.kill().and_then(|()| child.wait());
        }
        if let Some(dir) = self.dir.take() {
            signals::remove_meanwhile(&dir.keep());
        }
    }
}

/// The working directory and the child, shared with the handler of Ctrl-C.
pub struct Workplace {
    state: Arc<Mutex<State>>,
    dir: PathBuf,
}

impl Workplace {
    /// Makes a directory, on a disk if there is one, and removes it at the end or at Ctrl-C.
    pub fn new(program: &'static str, named: Option<&Path>) -> Result<Workplace, Failure> {
        let dir = match named {
            Some(parent) => temp_dir_in(parent)?,
            None => on_a_disk()?,
        };
        let path = dir.path().to_owned();
        let state = State { dir: Some(dir), child: None, acks: Vec::new(), interrupted: false };
        let state = Arc::new(Mutex::new(state));
        let theirs = state.clone();
        signals::on_interrupt(program, "interrupted", move || {
            let mut state = theirs.lock();
            state.interrupted = true;
            state.clean_up();
        })
        .map_err(|e| Failure::new(format!("cannot watch for Ctrl-C: {e}")))?;
        Ok(Workplace { state, dir: path })
    }

    /// A description of the place, for people.
    pub fn describe(&self) -> String {
        let kind = untorn_os::file_system_info(&self.dir).map_or("?".to_owned(), |info| info.kind);
        format!("{} ({kind})", self.dir.display())
    }

    pub fn texts(&self) -> PathBuf {
        self.dir.join("texts")
    }

    pub fn make(&self, keeper: Keeper) -> Result<PathBuf, Failure> {
        let dir = self.dir.join(keeper.name());
        std::fs::create_dir(&dir).map_err(|e| Failure::io("make", &dir, e))?;
        Ok(dir)
    }

    /// Starts a child in a process group of its own, because the parent handles Ctrl-C.
    pub fn spawn(&self, keeper: Keeper, dir: &Path, seed: u64) -> Result<(), Failure> {
        let mut command = updater::command(keeper, seed, &self.texts(), dir)?;
        command.stdin(Stdio::null()).stdout(Stdio::piped()).process_group(0);
        let mut state = self.living()?;
        state.child = Some(command.spawn().map_err(|e| Failure::io("start", Path::new(command.get_program()), e))?);
        state.acks.clear();
        Ok(())
    }

    /// Waits until the child has made `count` updates.
    pub fn wait_for_acks(&self, count: u64) -> Result<(), Failure> {
        let mut pipe = take_pipe(&mut *self.living()?);
        let acks: Vec<Ack> = (0..count).map_while(|_| Ack::read(&mut pipe)).collect();
        let mut state = self.living()?;
        state.acks = acks;
        state.child.as_mut().expect("a child was spawned").stdout = Some(pipe);
        Ok(())
    }

    /// The state, unless the handler of Ctrl-C has cleaned up.
    fn living(&self) -> Result<MutexGuard<'_, State>, Failure> {
        let state = self.state.lock();
        if state.interrupted { Err(Failure::new("interrupted")) } else { Ok(state) }
    }

    /// Kills the child, and returns every update that it reported as durable.
    pub fn kill(&self) -> Result<Vec<Ack>, Failure> {
        let mut state = self.living()?;
        let mut pipe = take_pipe(&mut state);
        let mut child = state.child.take().expect("a child was spawned");
        let status = child.kill().and_then(|()| child.wait()).map_err(|e| Failure::new(format!("cannot kill: {e}")))?;
        if status.signal() != Some(Signal::KILL.as_raw()) {
            return Err(Failure::new(format!("the child ended by itself ({status}), before it was killed")));
        }
        let mut rest = Vec::new();
        pipe.read_to_end(&mut rest).map_err(|e| Failure::new(format!("cannot read what the child says: {e}")))?;
        let mut rest = &rest[..];
        let mut acks = std::mem::take(&mut state.acks);
        acks.extend(std::iter::from_fn(|| Ack::read(&mut rest)));
        Ok(acks)
    }

    /// After Ctrl-C, waits for the handler to end the process. Errors do not matter then.
    pub fn wait_if_interrupted(&self) {
        if self.living().is_err() {
            loop {
                std::thread::park();
            }
        }
    }
}

impl Drop for Workplace {
    /// Cleans up explicitly, because the handler keeps its reference to the state forever.
    fn drop(&mut self) {
        self.state.lock().clean_up();
    }
}

fn take_pipe(state: &mut State) -> ChildStdout {
    let child = state.child.as_mut().expect("a child was spawned");
    child.stdout.take().expect("its output is a pipe")
}

fn temp_dir_in(parent: &Path) -> Result<TempDir, Failure> {
    let made = tempfile::Builder::new().prefix("untorn-demo-").tempdir_in(parent);
    made.map_err(|e| Failure::io("make a directory in", parent, e))
}

/// Makes a directory in the first usual place that is writable and on a disk, or else in the first that is writable.
fn on_a_disk() -> Result<TempDir, Failure> {
    let places = [PathBuf::from("/var/tmp"), std::env::temp_dir(), PathBuf::from(".")];
    let in_memory =
        |place: &PathBuf| untorn_os::file_system_info(place).is_ok_and(|info| IN_MEMORY.contains(&info.kind.as_str()));
    let (memory, disk): (Vec<PathBuf>, Vec<PathBuf>) = places.into_iter().partition(in_memory);
    let made = disk.iter().chain(&memory).find_map(|place| temp_dir_in(place).ok());
    made.ok_or_else(|| Failure::new("no writable place for temporary files; name one with --dir"))
}
