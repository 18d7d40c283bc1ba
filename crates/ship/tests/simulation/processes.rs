//! Processes: the real code, in a thread that waits for its turn at every call.

use super::STORE;
use super::contents::{Contents, InMemory, Workspace};
use super::machine::{name, place};
use bytes::Bytes;
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender};
use untorn_ship::bucket::{Bucket, Created, Failed};
use untorn_ship::chain::objects::Objects;
use untorn_ship::error::{Error, Result};
use untorn_ship::interface::{
    Commit, EpochStart, Hash, Held, Next, Owner, OwnerId, Pieces, Point, Random, Source, State, StoreId, Target,
};
use untorn_ship::object::hash::Nonces;
use untorn_ship::object::manifest::Position;
use untorn_ship::restore::follow::{follow, promote};
use untorn_ship::restore::plan::Wanted;
use untorn_ship::restore::run::restore;
use untorn_ship::retain::compact::{Compacted, compact};
use untorn_ship::retain::delete::delete;
use untorn_ship::retain::prune::{Policy, prune};
use untorn_ship::ship::running::NextPut;
use untorn_ship::ship::start::{Mode, Options, start};

/// A call that waits for its turn.
#[derive(Clone, Debug)]
pub enum Call {
    Create(String, Bytes),
    /// Creates without waiting for the answer.
    Send(u64, String, Bytes),
    Answers,
    Get(String),
    List(String),
    Delete(String),
    Durable(usize),
    Contains(usize, Point),
    Epochs(usize, u64),
    Commits(usize, u64, u64),
    Snapshot(usize),
    Acknowledge(usize, Point, Hash),
    Owner(usize),
    SetOwner(usize, OwnerId),
    /// The shipper started, or confirmed objects: the machine remembers its place.
    Started(usize, Position),
    ReplicaState,
    ReplicaApply(Vec<Commit>, State),
    ReplicaReplace(Contents, State),
    ReplicaOwner,
    ReplicaSetOwner(OwnerId),
    /// The replica becomes the store of machine 1.
    Open(State),
    /// A restored directory becomes the store of machine 1.
    Restored(Contents, State),
    /// The pruner waits for the grace period.
    Grace,
    /// Nothing to do.
    Idle,
}

/// An answer.
#[derive(Clone, Debug)]
pub enum Reply {
    Created(std::result::Result<Created2, Failed>),
    Answers(Vec<(u64, Created2)>),
    Bytes(Option<Bytes>),
    Names(Vec<String>),
    Point(Point),
    Bool(bool),
    Epochs(Vec<EpochStart>),
    Next(Next),
    Held(Point, u64, Contents),
    Owner(Option<OwnerId>),
    Replica(Box<(Option<State>, Contents)>),
    Failed(String),
    Done,
    Killed,
}

/// [`Created`], which cannot be cloned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Created2 {
    New,
    Exists,
    Unknown,
}

impl From<Created2> for Created {
    fn from(created: Created2) -> Created {
        match created {
            Created2::New => Created::New,
            Created2::Exists => Created::Exists,
            Created2::Unknown => Created::Unknown(Failed { reason: "no answer".into(), is_transient: true }),
        }
    }
}

/// The work of a process.
#[derive(Clone, Debug, PartialEq)]
pub enum Work {
    Ship(usize, Mode),
    Follow,
    Promote,
    Compact,
    Prune(Policy),
    /// Restores a point, to see that it is possible.
    Restore(Wanted),
    /// Restores a point, and makes it the store of machine 1.
    RestoreAsMachine(Wanted),
}

/// The end of a process.
#[derive(Debug)]
pub enum Outcome {
    Done,
    Restored(Wanted, Contents),
    Failed(Error),
    Killed,
    Panicked(String),
}

/// Unwinds a process that was killed.
pub struct Killed;

/// A process's way to the simulation.
#[derive(Clone)]
pub struct Link {
    calls: Arc<Mutex<Sender<Call>>>,
    replies: Arc<Mutex<Receiver<Reply>>>,
}

impl Link {
    pub fn new(calls: Sender<Call>, replies: Receiver<Reply>) -> Link {
        Link { calls: Arc::new(Mutex::new(calls)), replies: Arc::new(Mutex::new(replies)) }
    }

    fn call(&self, call: Call) -> Reply {
        // If the simulation has ended, so does the process.
        let sent = self.calls.lock().send(call).is_ok();
        match sent.then(|| self.replies.lock().recv()) {
            Some(Ok(Reply::Killed) | Err(_)) | None => std::panic::resume_unwind(Box::new(Killed)),
            Some(Ok(reply)) => reply,
        }
    }

    fn done(&self, call: Call) -> Result<()> {
        match self.call(call) {
            Reply::Failed(reason) => Err(Error::store(reason)),
            _ => Ok(()),
        }
    }
}

macro_rules! answer {
    ($link:expr, $call:expr, $pattern:pat => $value:expr) => {
        match $link.call($call) {
            $pattern => $value,
            other => panic!("the simulation answered {other:?}"),
        }
    };
}

impl Bucket for Link {
    fn create(&self, name: &str, bytes: Bytes) -> std::result::Result<Created, Failed> {
        answer!(self, Call::Create(name.to_owned(), bytes), Reply::Created(done) => done.map(Created::from))
    }

    fn get(&self, name: &str, _: u64) -> std::result::Result<Option<Bytes>, Failed> {
        answer!(self, Call::Get(name.to_owned()), Reply::Bytes(found) => Ok(found))
    }

    fn list(&self, prefix: &str, _: Option<&str>) -> std::result::Result<Vec<String>, Failed> {
        answer!(self, Call::List(prefix.to_owned()), Reply::Names(names) => Ok(names))
    }

    fn delete(&self, name: &str) -> std::result::Result<(), Failed> {
        answer!(self, Call::Delete(name.to_owned()), Reply::Done => Ok(()))
    }
}

/// A machine's store, from its shipper.
struct Machine(Link, usize);

impl Owner for Machine {
    fn owner(&mut self) -> Result<Option<OwnerId>> {
        answer!(self.0, Call::Owner(self.1), Reply::Owner(owner) => Ok(owner))
    }

    fn set_owner(&mut self, owner: OwnerId) -> Result<()> {
        self.0.done(Call::SetOwner(self.1, owner))
    }

    fn place(&mut self) -> Result<Random> {
        Ok(place(self.1))
    }

    fn who(&self) -> String {
        name(self.1)
    }
}

impl Source for Machine {
    fn store_id(&self) -> StoreId {
        STORE
    }

    fn durable(&mut self) -> Result<Point> {
        answer!(self.0, Call::Durable(self.1), Reply::Point(point) => Ok(point))
    }

    fn contains(&mut self, point: Point) -> Result<bool> {
        answer!(self.0, Call::Contains(self.1, point), Reply::Bool(contains) => Ok(contains))
    }

    fn epochs(&mut self, from_lsn: u64) -> Result<Vec<EpochStart>> {
        answer!(self.0, Call::Epochs(self.1, from_lsn), Reply::Epochs(epochs) => Ok(epochs))
    }

    fn commits(&mut self, behind: u64, bytes_max: u64) -> Result<Next> {
        answer!(self.0, Call::Commits(self.1, behind, bytes_max), Reply::Next(next) => Ok(next))
    }

    fn snapshot(&mut self) -> Result<Held> {
        let held = |contents: &Contents| Box::new(InMemory(contents.pieces().into_iter()));
        let call = Call::Snapshot(self.1);
        answer!(self.0, call, Reply::Held(point, time, contents) => Ok(Held { point, time, pieces: held(&contents) }))
    }

    fn acknowledge(&mut self, point: Point, hash: Hash) -> Result<()> {
        self.0.done(Call::Acknowledge(self.1, point, hash))
    }
}

/// The replica.
struct Replica(Link);

impl Replica {
    fn get(&self) -> (Option<State>, Contents) {
        answer!(self.0, Call::ReplicaState, Reply::Replica(replica) => *replica)
    }
}

impl Owner for Replica {
    fn owner(&mut self) -> Result<Option<OwnerId>> {
        answer!(self.0, Call::ReplicaOwner, Reply::Owner(owner) => Ok(owner))
    }

    fn set_owner(&mut self, owner: OwnerId) -> Result<()> {
        self.0.done(Call::ReplicaSetOwner(owner))
    }

    fn place(&mut self) -> Result<Random> {
        Ok(place(1))
    }

    fn who(&self) -> String {
        name(1)
    }
}

impl Target for Replica {
    fn state(&mut self) -> Result<Option<State>> {
        Ok(self.get().0)
    }

    fn apply(&mut self, commits: &[Commit], state: &State) -> Result<()> {
        self.0.done(Call::ReplicaApply(commits.to_vec(), state.clone()))
    }

    fn replace(&mut self, pieces: Option<&mut dyn Pieces>, state: &State) -> Result<()> {
        self.0.done(Call::ReplicaReplace(Contents::of(pieces)?, state.clone()))
    }

    fn pieces(&mut self) -> Result<Box<dyn Pieces + '_>> {
        Ok(Box::new(InMemory(self.get().1.pieces().into_iter())))
    }
}

/// Options of a process besides its work.
#[derive(Clone, Debug, Default)]
pub struct Extras {
    /// Random bits of the process.
    pub seed: u64,
    /// A place on the chain that the machine remembers.
    pub remembered: Option<Position>,
    /// Most bytes of bodies in an object.
    pub bodies_bytes_max: u64,
    /// The time at which it announces snapshots.
    pub now: u64,
}

/// Does the work.
pub fn run(link: &Link, work: &Work, extras: &Extras) -> Result<Outcome> {
    let mut seed = [0; 32];
    seed[..8].copy_from_slice(&extras.seed.to_le_bytes());
    let mut nonces = Nonces::new(seed);
    let objects = Objects { bucket: link, store: STORE };
    match work {
        Work::Ship(machine, mode) => ship(link, *machine, *mode, &mut nonces, extras)?,
        Work::Follow => loop {
            match follow(&objects, &mut Replica(link.clone())) {
                Err(error @ (Error::DoesNotFit { .. } | Error::Damaged { .. })) => return Err(error),
                // The bucket was pruned meanwhile, or nothing is new.
                _ => link.done(Call::Idle)?,
            }
        },
        Work::Promote => {
            let state = promote(&objects, &mut Replica(link.clone()), &mut nonces)?;
            link.done(Call::Open(state))?;
            ship(link, 1, Mode::Automatic, &mut nonces, extras)?;
        }
        Work::Compact => {
            let made = compact(&objects, &mut Workspace::default(), &mut nonces, extras.now)?;
            debug_assert!(!matches!(made, Compacted::Registered { number: 0, .. }));
        }
        Work::Prune(policy) => {
            if let Some(deletion) = prune(&objects, &mut nonces, policy)? {
                link.done(Call::Grace)?;
                delete(&objects, &deletion)?;
            }
        }
        Work::Restore(wanted) => {
            let mut workspace = Workspace::default();
            restore(&objects, *wanted, &mut workspace)?;
            return Ok(Outcome::Restored(*wanted, workspace.contents));
        }
        Work::RestoreAsMachine(wanted) => {
            let mut workspace = Workspace::default();
            let state = restore(&objects, *wanted, &mut workspace)?;
            link.done(Call::Restored(workspace.contents, state))?;
        }
    }
    Ok(Outcome::Done)
}

fn ship(link: &Link, machine: usize, mode: Mode, nonces: &mut Nonces, extras: &Extras) -> Result<()> {
    let mut source = Machine(link.clone(), machine);
    let bodies_bytes_max = extras.bodies_bytes_max;
    let mut mode = mode;
    let mut remembered = extras.remembered.clone();
    loop {
        let options = Options { mode, now: 0, remembered: remembered.take(), bodies_bytes_max, in_flight_max: 2 };
        let mut shipper = start(link, &mut source, nonces, &options)?;
        link.done(Call::Started(machine, shipper.confirmed().clone()))?;
        mode = Mode::Automatic;
        loop {
            match shipper.next_put(&mut source, bodies_bytes_max)? {
                NextPut::Put(put) => link.done(Call::Send(put.lsn, put.name, put.bytes))?,
                NextPut::Gap if shipper.in_flight() == 0 => break,
                NextPut::Gap | NextPut::Nothing | NextPut::Full => {}
            }
            let answers = answer!(link, Call::Answers, Reply::Answers(answers) => answers);
            for (lsn, answer) in answers {
                shipper.answered(lsn, Ok(answer.into()))?;
            }
            for put in shipper.settle(link, &mut source)?.again {
                link.done(Call::Send(put.lsn, put.name, put.bytes))?;
            }
            link.done(Call::Started(machine, shipper.confirmed().clone()))?;
        }
    }
}
