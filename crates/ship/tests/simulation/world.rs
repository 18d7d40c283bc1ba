//! The world: machines, a bucket, requests under way, and processes.

use super::Plain;
use super::checks;
use super::contents::{Contents, History};
use super::machine::{Store, name};
use super::processes::{Call, Created2, Extras, Killed, Link, Outcome, Reply, Work, run};
use bytes::Bytes;
use parking_lot::Mutex;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;
use untorn_ship::error::Error;
use untorn_ship::interface::{EpochStart, OwnerId, Source, State};
use untorn_ship::object::manifest::Position;

/// A request to create an object that is under way.
#[derive(Clone, Debug)]
pub struct Request {
    /// The process that waits for the answer, and its name for it.
    pub process: usize,
    pub lsn: u64,
    pub name: String,
    pub bytes: Bytes,
}

/// The way in which a call is answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum How {
    Well,
    /// It is done, and the answer is lost.
    Lost,
    /// It is done later, and the answer is lost.
    Late,
    /// It is done, the answer is lost, and it comes again later.
    Twice,
}

/// A process.
pub struct Process {
    pub work: Work,
    replies: Sender<Reply>,
    calls: Receiver<Call>,
    thread: Option<JoinHandle<Outcome>>,
    /// The call that waits for its turn; `None` if the process has ended.
    pub call: Option<Call>,
    pub outcome: Option<Outcome>,
    answers: Vec<(u64, Created2)>,
    /// Whether it has sent anything.
    pub has_sent: bool,
}

/// A replica.
#[derive(Clone, Debug, Default)]
pub struct Replica {
    pub state: Option<State>,
    pub contents: Contents,
    pub owner: Option<OwnerId>,
}

#[derive(Default)]
pub struct World {
    pub objects: BTreeMap<String, Bytes>,
    pub requests: Vec<Request>,
    pub stores: [Option<Store>; 2],
    pub replica: Option<Replica>,
    pub backup: Option<Store>,
    pub remembered: [Option<Position>; 2],
    pub processes: Vec<Process>,
    /// Histories that were durable once, none a prefix of another.
    pub histories: Vec<History>,
    /// Commits that a gate let through, by epoch and LSN.
    pub released: BTreeSet<(u64, u64)>,
    /// Commits that a person abandoned.
    pub abandoned: BTreeSet<(u64, u64)>,
    pub epochs: u64,
    pub steps: Vec<String>,
    /// The first thing that went wrong.
    pub violation: Option<String>,
    pub seed: u64,
    /// How often things happened that a schedule should reach.
    pub counts: BTreeMap<&'static str, u64>,
}

impl World {
    /// One machine with an empty store.
    pub fn new(seed: u64) -> World {
        let mut world = World::default();
        world.stores[0] = Some(Store::new(0, 1));
        (world.epochs, world.seed) = (1, seed);
        world
    }

    pub fn note(&mut self, step: String) {
        self.steps.push(step);
    }

    pub fn violate(&mut self, what: impl Into<String>) {
        let what = what.into();
        self.violation.get_or_insert(what);
    }

    pub fn count(&mut self, event: &'static str) {
        *self.counts.entry(event).or_default() += 1;
    }

    /// The bucket as it is now.
    pub fn bucket(&self) -> Plain {
        Plain(Mutex::new(self.objects.clone()))
    }

    pub fn store(&mut self, machine: usize) -> &mut Store {
        self.stores[machine].as_mut().expect("the machine has a store")
    }

    pub fn next_epoch(&mut self) -> u64 {
        self.epochs += 1;
        self.epochs
    }

    /// Notes that a machine's durable commits are a history.
    pub fn durable(&mut self, machine: usize) {
        let store = self.stores[machine].as_ref().expect("the machine has a store");
        let history = store.history[..store.durable].to_vec();
        if !self.was_durable(&history) {
            self.histories.retain(|known| !history.starts_with(known));
            self.histories.push(history);
        }
        self.release(machine);
    }

    pub fn was_durable(&self, history: &[u64]) -> bool {
        history.is_empty() || self.histories.iter().any(|known| known.starts_with(history))
    }

    /// Lets commits through the gate of a machine.
    fn release(&mut self, machine: usize) {
        let Some(store) = &self.stores[machine] else { return };
        self.released.extend(store.released().iter().copied().zip(1..));
    }

    // Processes.

    pub fn spawn(&mut self, work: Work, extras: Extras) -> usize {
        let (replies, from_world) = channel();
        let (to_world, calls) = channel();
        let link = Link::new(to_world, from_world);
        let (of_thread, seed) = (work.clone(), extras.seed ^ self.seed << 16);
        let thread = std::thread::spawn(move || {
            let extras = Extras { seed, ..extras };
            let work = std::panic::AssertUnwindSafe(|| run(&link, &of_thread, &extras));
            match std::panic::catch_unwind(work) {
                Ok(Ok(outcome)) => outcome,
                Ok(Err(error)) => Outcome::Failed(error),
                Err(panic) if panic.is::<Killed>() => Outcome::Killed,
                Err(panic) => {
                    let text = panic.downcast_ref::<String>().cloned();
                    Outcome::Panicked(text.unwrap_or_else(|| "a panic".into()))
                }
            }
        });
        let (thread, call, outcome, answers) = (Some(thread), None, None, Vec::new());
        self.note(format!("p{} begins: {work:?}", self.processes.len()));
        self.processes.push(Process { work, replies, calls, thread, call, outcome, answers, has_sent: false });
        let process = self.processes.len() - 1;
        self.wait(process);
        process
    }

    /// Waits until a process calls or ends.
    fn wait(&mut self, process: usize) {
        let it = &mut self.processes[process];
        it.call = it.calls.recv().ok();
        if it.call.is_none() {
            let outcome = it.thread.take().expect("it runs").join().expect("caught");
            self.note(format!("p{process} ends: {outcome:?}"));
            self.look_at(process, &outcome);
            self.processes[process].outcome = Some(outcome);
        }
    }

    /// Failures that nothing excuses.
    fn look_at(&mut self, process: usize, outcome: &Outcome) {
        match outcome {
            Outcome::Failed(Error::Fenced { .. }) => self.count("shut out"),
            Outcome::Failed(Error::Diverged { .. }) => self.count("diverged"),
            Outcome::Failed(Error::OtherOwner { .. }) => self.count("other owners"),
            Outcome::Failed(Error::PutBack { .. }) => self.count("put back"),
            Outcome::Restored(..) => self.count("restores during a schedule"),
            Outcome::Done if self.processes[process].work == Work::Compact => self.count("snapshots"),
            _ => {}
        }
        match outcome {
            Outcome::Failed(error @ Error::Fenced { .. }) => {
                let machine = if let Work::Ship(machine, _) = self.processes[process].work { machine } else { 1 };
                if checks::owns_the_tip(self, machine) {
                    self.violate(format!("(4) stuck: machine {machine}, which owns the newest generation: {error}"));
                }
            }
            Outcome::Panicked(text) => self.violate(format!("a process panicked: {text}")),
            Outcome::Failed(error @ (Error::Damaged { .. } | Error::DoesNotFit { .. } | Error::OtherStore { .. })) => {
                self.violate(format!("(5) {error}"));
            }
            Outcome::Failed(error @ Error::Store(_)) => self.violate(format!("(1) {error}")),
            Outcome::Restored(wanted, contents) if !self.was_durable(&contents.0) => {
                self.violate(format!("(1) restore of {wanted:?} gives {:?}", contents.0));
            }
            _ => {}
        }
    }

    pub fn is_alive(&self, process: usize) -> bool {
        self.processes[process].call.is_some()
    }

    /// Kills a process. A request that it waits for may still arrive.
    pub fn kill(&mut self, process: usize, arrives: bool) {
        let Some(call) = self.processes[process].call.take() else { return };
        self.note(format!("p{process} is killed at {}", brief(&call)));
        if let (Call::Create(name, bytes) | Call::Send(_, name, bytes), true) = (call, arrives) {
            self.requests.push(Request { process, lsn: 0, name, bytes });
        }
        let _ = self.processes[process].replies.send(Reply::Killed);
        self.wait(process);
    }

    /// Lets a process go on to its next call.
    pub fn go(&mut self, process: usize, how: How) {
        let Some(call) = self.processes[process].call.clone() else { return };
        self.note(format!(
            "p{process} {}{}",
            brief(&call),
            if how == How::Well { String::new() } else { format!(" ({how:?})") }
        ));
        let reply = self.reply(process, call, how);
        self.processes[process].call = None;
        let _ = self.processes[process].replies.send(reply);
        self.wait(process);
    }

    fn reply(&mut self, process: usize, call: Call, how: How) -> Reply {
        match call {
            Call::Create(name, bytes) => {
                self.processes[process].has_sent = true;
                Reply::Created(Ok(self.create(Request { process, lsn: 0, name, bytes }, how)))
            }
            Call::Send(lsn, name, bytes) => {
                self.processes[process].has_sent = true;
                self.requests.push(Request { process, lsn, name, bytes });
                Reply::Done
            }
            Call::Answers => Reply::Answers(std::mem::take(&mut self.processes[process].answers)),
            Call::Get(name) => Reply::Bytes(self.objects.get(&name).cloned()),
            Call::List(prefix) => {
                Reply::Names(self.objects.keys().filter(|name| name.starts_with(&prefix)).cloned().collect())
            }
            Call::Delete(name) => {
                self.objects.remove(&name);
                self.count(if name.starts_with("log/") { "pruned objects" } else { "other deleted objects" });
                Reply::Done
            }
            Call::Idle | Call::Grace => Reply::Done,
            Call::Started(machine, position) => {
                self.remembered[machine] = Some(position);
                Reply::Done
            }
            other => self.reply_of_store(other),
        }
    }

    fn reply_of_store(&mut self, call: Call) -> Reply {
        let ours = "the simulated store does not fail";
        match call {
            Call::Durable(machine) => Reply::Point(self.store(machine).last()),
            Call::Contains(machine, point) => Reply::Bool(self.store(machine).has(point)),
            Call::Epochs(machine, from) => Reply::Epochs(self.store(machine).epochs(from).expect(ours)),
            Call::Commits(machine, behind, max) => Reply::Next(self.store(machine).commits(behind, max).expect(ours)),
            Call::Snapshot(machine) => {
                let store = self.store(machine);
                let contents = Contents(store.history[..store.durable].to_vec());
                Reply::Held(store.last(), super::contents::time_of(store.durable as u64), contents)
            }
            Call::Acknowledge(machine, point, _) => {
                self.store(machine).acknowledged = Some(point);
                self.release(machine);
                Reply::Done
            }
            Call::Owner(machine) => Reply::Owner(self.store(machine).owner),
            Call::SetOwner(machine, owner) => {
                self.store(machine).owner = Some(owner);
                Reply::Done
            }
            Call::Open(state) => {
                if !checks::has_won(self, &state) {
                    self.violate("(2) two owners: the replica opens for writing, and its end is not in the log");
                }
                let Some(replica) = self.replica.take() else { return Reply::Failed("no replica".into()) };
                self.begin(replica.contents, &state, replica.owner);
                self.count("promotions");
                Reply::Done
            }
            Call::Restored(contents, state) => {
                if self.stores[1].is_none() && self.replica.is_none() {
                    self.begin(contents, &state, None);
                    self.count("restored machines");
                }
                Reply::Done
            }
            other => self.reply_of_replica(other),
        }
    }

    fn reply_of_replica(&mut self, call: Call) -> Reply {
        let Some(replica) = &mut self.replica else { return Reply::Killed };
        match call {
            Call::ReplicaState => Reply::Replica(Box::new((replica.state.clone(), replica.contents.clone()))),
            Call::ReplicaOwner => Reply::Owner(replica.owner),
            Call::ReplicaSetOwner(owner) => {
                replica.owner = Some(owner);
                Reply::Done
            }
            Call::ReplicaApply(commits, state) => {
                let mut contents = replica.contents.clone();
                if let Err(error) = commits.iter().try_for_each(|commit| contents.apply(commit)) {
                    self.violate(format!("(5) the replica cannot apply: {error}"));
                    return Reply::Failed(error.to_string());
                }
                (replica.contents, replica.state) = (contents, Some(state));
                self.look_at_replica();
                self.count("objects that the replica applied");
                Reply::Done
            }
            Call::ReplicaReplace(contents, state) => {
                (replica.contents, replica.state) = (contents, Some(state));
                self.look_at_replica();
                self.count("snapshots that the replica loaded");
                Reply::Done
            }
            other => unreachable!("{other:?}"),
        }
    }

    fn look_at_replica(&mut self) {
        let Some(replica) = self.replica.clone() else { return };
        let lsn = replica.state.as_ref().map_or(0, |state| state.point.lsn);
        if !self.was_durable(&replica.contents.0) || lsn != replica.contents.0.len() as u64 {
            self.violate(format!("(5) the replica shows {:?} as #{lsn}", replica.contents.0));
        }
    }

    /// A directory from the bucket becomes the store of machine 1.
    fn begin(&mut self, contents: Contents, state: &State, owner: Option<OwnerId>) {
        let epoch = self.next_epoch();
        let kept = contents.0.len();
        let mut epochs: Vec<EpochStart> = Vec::new();
        for (epoch, lsn) in contents.0.iter().zip(1..) {
            if epochs.last().is_none_or(|last| last.epoch != *epoch) {
                epochs.push(EpochStart { epoch: *epoch, first_lsn: lsn });
            }
        }
        // The list from the objects must say the same, from its beginning on.
        let known = state.epochs.first().map_or(u64::MAX, |first| first.first_lsn);
        let expected: Vec<EpochStart> = epochs.iter().copied().filter(|start| start.first_lsn > known).collect();
        let found: Vec<EpochStart> = state.epochs.iter().copied().filter(|start| start.first_lsn > known).collect();
        if expected != found {
            self.violate(format!("(1) the list of epochs is {:?} for {:?}", state.epochs, contents.0));
        }
        let mut store = Store { truncated: kept, epochs, owner, history: contents.0, ..Store::new(1, 0) };
        store.open(kept, epoch);
        self.stores[1] = Some(store);
        self.durable(1);
    }

    // The bucket.

    fn create(&mut self, request: Request, how: How) -> Created2 {
        match how {
            How::Late => {
                self.requests.push(request);
                return Created2::Unknown;
            }
            How::Twice => self.requests.push(request.clone()),
            How::Well | How::Lost => {}
        }
        let is_new = self.put(&request);
        match (how, is_new) {
            (How::Well, true) => Created2::New,
            (How::Well, false) => Created2::Exists,
            _ => Created2::Unknown,
        }
    }

    /// Lets a request arrive.
    pub fn land(&mut self, n: usize, how: How) {
        let request = self.requests.remove(n);
        let is_new = self.put(&request);
        let done = if is_new { "arrives" } else { "is refused" };
        self.note(format!("{} of p{} {done} ({how:?})", request.name, request.process));
        if how == How::Twice {
            self.requests.push(Request { lsn: 0, ..request.clone() });
        }
        let answer = match (how, is_new) {
            (How::Well, true) => Created2::New,
            (How::Well, false) => Created2::Exists,
            _ => Created2::Unknown,
        };
        if request.lsn > 0 {
            self.processes[request.process].answers.push((request.lsn, answer));
        }
    }

    /// The answer to a request is lost, or none will come.
    pub fn lose(&mut self, n: usize) {
        let request = &mut self.requests[n];
        if request.lsn > 0 {
            let (process, lsn) = (request.process, std::mem::take(&mut request.lsn));
            let text = format!("the answer to {} of p{process} is lost", request.name);
            self.processes[process].answers.push((lsn, Created2::Unknown));
            self.note(text);
        }
    }

    fn put(&mut self, request: &Request) -> bool {
        if self.objects.contains_key(&request.name) {
            return false;
        }
        let end = checks::end(&request.name, &request.bytes);
        let before = end.as_ref().and_then(|end| checks::at_tip(&self.bucket(), end));
        self.objects.insert(request.name.clone(), request.bytes.clone());
        if let Some((end, before)) = end.zip(before) {
            checks::end_arrived(self, &end, &before);
        }
        true
    }

    /// Ends all processes.
    pub fn kill_all(&mut self) {
        (0..self.processes.len()).for_each(|process| self.kill(process, true));
    }

    /// The live shipper of a machine.
    pub fn shipper(&self, machine: usize) -> Option<usize> {
        let ships = |work: &Work| match work {
            Work::Ship(of, _) => *of == machine,
            Work::Promote => machine == 1,
            _ => false,
        };
        (0..self.processes.len()).find(|n| self.is_alive(*n) && ships(&self.processes[*n].work))
    }

    /// The steps, and the violation.
    pub fn report(&self, seed: &str) -> String {
        let violation = self.violation.as_deref().unwrap_or("nothing");
        format!("{violation}\n  seed: {seed}; machines: {}\n    {}", name(0), self.steps.join("\n    "))
    }
}

impl Drop for World {
    fn drop(&mut self) {
        self.kill_all();
    }
}

/// A call in few words.
pub fn brief(call: &Call) -> String {
    match call {
        Call::Create(name, _) => format!("creates {name}"),
        Call::Send(_, name, _) => format!("sends {name}"),
        Call::ReplicaApply(commits, state) => format!("applies {} commits to #{}", commits.len(), state.point.lsn),
        Call::ReplicaReplace(_, state) => format!("replaces the replica by g{} #{}", state.generation, state.point.lsn),
        Call::Acknowledge(machine, point, _) => format!("acknowledges {point:?} to machine {machine}"),
        Call::Open(state) | Call::Restored(_, state) => format!("opens g{} #{}", state.generation, state.point.lsn),
        Call::Started(machine, at) => format!("machine {machine} owns g{} from #{}", at.generation, at.point.lsn),
        other => format!("{other:?}"),
    }
}
