//! Turns: several processes, each in a thread of its own, of which exactly one runs at a time.
//!
//! A process may lose its turn before and after each of its calls. A seed decides when, and who is next, so the same
//! seed always gives the same order of all calls. Turns have very different lengths: some processes stop between any
//! two calls, others finish whole operations. A process that loses its turn at a call that matters to readers may also
//! be out for a while, so that others do a lot meanwhile.

use fastrand::Rng;
use parking_lot::{Condvar, Mutex, MutexGuard};
use std::collections::VecDeque;
use std::io;
use std::sync::Arc;

/// The number of calls that a failure shows.
const RECENT_MAX: usize = 4000;

/// The seat that gets every second turn, and longer ones: an operation of an owner takes more calls than one of a
/// reader.
pub(crate) const FIRST: usize = 0;

/// The next action of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Next {
    /// It makes its call.
    Call,
    /// The machine is off.
    Off,
}

/// The seat of one thread, whose processes take turns with those of the other threads.
#[derive(Clone)]
pub(crate) struct Seat {
    turns: Arc<Turns>,
    number: usize,
}

/// All seats, and who has the turn.
pub(crate) struct Turns {
    table: Mutex<Table>,
    wakeups: Vec<Condvar>,
    names: Vec<String>,
}

struct Table {
    rng: Rng,
    /// Whose turn it is.
    now: usize,
    /// The number of calls left in this turn.
    left: u64,
    /// The number of calls so far, and of the first call that finds the machine off.
    calls: u64,
    off_at: u64,
    is_off: bool,
    /// For each seat: whether it still takes turns, and the call before which it gets none.
    present: Vec<bool>,
    out_until: Vec<u64>,
    /// One of so many calls that matter to readers ends a turn.
    stops_one_in: u64,
    recent: VecDeque<String>,
    failure: Option<String>,
}

/// Whether a call matters to readers: it looks at or changes what owner and readers share, or it reads a data file.
fn is_crossing(description: &str) -> bool {
    let is_shared =
        ["readers ", "journal/header ", "undo"].iter().any(|path| description.contains(&format!(".untorn/{path}")));
    is_shared || !description.starts_with(".untorn/") && description.contains(" read ")
}

impl Turns {
    /// A table with these seats. The machine is off from call number `off_at` on.
    pub fn new(seed: u64, names: Vec<String>, off_at: u64) -> Arc<Turns> {
        let mut rng = Rng::with_seed(seed);
        let stops_one_in = rng.u64(2..12);
        let table = Table {
            now: rng.usize(..names.len()),
            left: 1,
            rng,
            calls: 0,
            off_at,
            is_off: false,
            present: vec![true; names.len()],
            out_until: vec![0; names.len()],
            stops_one_in,
            recent: VecDeque::new(),
            failure: None,
        };
        let wakeups = names.iter().map(|_| Condvar::new()).collect();
        Arc::new(Turns { table: Mutex::new(table), wakeups, names })
    }

    /// The seat with this number.
    pub fn seat(self: &Arc<Turns>, number: usize) -> Seat {
        Seat { turns: self.clone(), number }
    }

    /// Whether the machine is off.
    pub fn is_off(&self) -> bool {
        self.table.lock().is_off
    }

    /// The first failure, with the calls before it.
    pub fn failure(&self) -> Option<String> {
        self.table.lock().failure.clone()
    }
}

impl Table {
    /// Gives the turn to another seat, or to the same one again if no other takes turns.
    fn choose(&mut self) {
        let seats = 0..self.present.len();
        let present: Vec<usize> = seats.filter(|seat| self.present[*seat]).collect();
        let Some(next_back) = present.iter().copied().min_by_key(|seat| self.out_until[*seat]) else { return };
        let ready: Vec<usize> = present.into_iter().filter(|seat| self.out_until[*seat] <= self.calls).collect();
        let others: Vec<usize> = ready.iter().copied().filter(|seat| *seat != self.now).collect();
        let from = if others.is_empty() { &ready } else { &others };
        let is_for_first = others.contains(&FIRST) && self.rng.bool();
        self.now = if is_for_first { FIRST } else { self.rng.choice(from).copied().unwrap_or(next_back) };
        self.left = match self.rng.u8(..8) {
            0..=2 => self.rng.u64(1..4),
            3..=6 => self.rng.u64(1..40),
            _ if self.now == FIRST => self.rng.u64(1..1000),
            _ => self.rng.u64(1..200),
        };
    }

    /// Whether a process loses its turn at a call.
    fn loses_turn(&mut self, seat: usize, description: &str) -> bool {
        if is_crossing(description) && self.rng.u64(..self.stops_one_in) == 0 {
            if self.rng.u8(..5) == 0 {
                let most = if self.rng.bool() {
                    60
                } else if seat == FIRST {
                    400
                } else {
                    1500
                };
                self.out_until[seat] = self.calls + self.rng.u64(1..=most);
            }
            return true;
        }
        self.left == 0
    }
}

impl Seat {
    /// The name of the thread.
    pub fn name(&self) -> &str {
        &self.turns.names[self.number]
    }

    /// Waits for the first turn.
    pub fn begin(&self) {
        drop(self.wait(self.turns.table.lock()));
    }

    /// Takes no more turns.
    pub fn end(&self) {
        let mut table = self.turns.table.lock();
        table.present[self.number] = false;
        if table.now == self.number {
            table.choose();
            self.turns.wakeups[table.now].notify_one();
        }
    }

    /// Whether the first seat still takes turns.
    pub fn has_first(&self) -> bool {
        self.turns.table.lock().present[FIRST]
    }

    /// Gives the turn to somebody else, and waits for the next one.
    pub fn pass(&self) {
        self.rest(0);
    }

    /// Lets others make about this many calls.
    pub fn rest(&self, calls: u64) {
        let mut table = self.turns.table.lock();
        table.out_until[self.number] = table.calls + calls;
        table.choose();
        drop(self.wait(table));
    }

    /// Notes a failure, unless there was one before, and switches the machine off.
    pub fn fail(&self, what: String) {
        let mut table = self.turns.table.lock();
        if table.failure.is_none() && !table.is_off {
            let recent: Vec<&str> = table.recent.iter().map(String::as_str).collect();
            table.failure = Some(format!("{what}\nThe last calls:\n{}", recent.join("\n")));
        }
        self.wake_all(&mut table);
    }

    /// The machine is off, and all processes are dead: nobody waits for a turn any more.
    pub fn switch_off(&self) {
        self.wake_all(&mut self.turns.table.lock());
    }

    /// Whether the machine is off.
    pub fn is_off(&self) -> bool {
        self.turns.is_off()
    }

    /// Before a call: waits for a turn, unless the process keeps its own.
    pub fn before(&self, description: &str) -> Next {
        let mut table = self.turns.table.lock();
        if !table.is_off && table.loses_turn(self.number, description) {
            table.choose();
        }
        let mut table = self.wait(table);
        if table.is_off || table.calls >= table.off_at {
            return Next::Off;
        }
        table.calls += 1;
        table.left = table.left.saturating_sub(1);
        Next::Call
    }

    /// After a call, which succeeded or failed.
    pub fn after(&self, description: &str, error: Option<&io::Error>) {
        let mut table = self.turns.table.lock();
        if table.recent.len() == RECENT_MAX {
            table.recent.pop_front();
        }
        let outcome = error.map_or_else(|| "ok".to_owned(), ToString::to_string);
        let line = format!("{:5} {} {description} -> {outcome}", table.calls - 1, self.name());
        table.recent.push_back(line);
        if !table.is_off && is_crossing(description) && table.loses_turn(self.number, description) {
            table.choose();
            drop(self.wait(table));
        }
    }

    fn wake_all(&self, table: &mut Table) {
        table.is_off = true;
        self.turns.wakeups.iter().for_each(|wakeup| _ = wakeup.notify_all());
    }

    fn wait<'t>(&'t self, mut table: MutexGuard<'t, Table>) -> MutexGuard<'t, Table> {
        if table.now != self.number {
            self.turns.wakeups[table.now].notify_one();
        }
        while table.now != self.number && !table.is_off {
            self.turns.wakeups[self.number].wait(&mut table);
        }
        table
    }
}
