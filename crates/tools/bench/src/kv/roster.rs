//! The stores that take part.

use super::crates::{FjallStore, RedbStore};
use super::explicit_table::ExplicitStore;
use super::gdbm::{Gdbm, GdbmStore};
use super::kv_store::{Entry, Key, Scan, Store};
use super::kyoto::{Durable, Kind, Kyoto, KyotoStore};
use super::lmdb::{Lmdb, LmdbStore};
use super::lsm::{Lsm, LsmStore};
use super::rust_heap::{HashbrownStore, TreeStore};
use super::sqlite::{JournalMode, Sqlite, SqliteStore};
use super::stl::{Container, Stl, StlStore, Stores};
use crate::measuring::peers::Floor;
use anyhow::{Context, Result, ensure};
use std::path::Path;
use std::rc::Rc;

/// The role of an entrant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    Untorn,
    Peer,
    Floor,
    /// Untorn's C++ program without durability.
    Ceiling,
}

/// The map of C++ whose stores the compiler reports.
const HOOKED_MAP: &str = "std::map, untorn-c++";

/// The hash table with explicit dirty ranges.
pub const EXPLICIT: &str = "explicit hash table on Untorn (Rust)";

type Open = Box<dyn Fn(&Path) -> Result<Box<dyn Store>>>;

/// A store that takes part.
pub struct Entrant {
    pub name: &'static str,
    pub role: Role,
    open: Open,
}

impl Entrant {
    /// Opens the store in a directory, or creates it there.
    pub fn open(&self, dir: &Path) -> Result<Box<dyn Store>> {
        (self.open)(dir).with_context(|| format!("cannot open {}", self.name))
    }
}

/// Facts about the work that the entrants need.
#[derive(Clone, Copy, Debug)]
pub struct Work {
    /// The largest number of bytes in one put, and the size of the file that the floor writes to in turn.
    pub put_bytes: usize,
    pub floor_bytes: u64,
    /// LMDB needs the largest size that it will ever have.
    pub map_bytes: usize,
    /// The values are large, so that SQLite advises a table with a rowid.
    pub large_values: bool,
    /// Thousands of operations in one commit.
    pub bulk: bool,
    /// The names of the entrants; all if empty.
    pub only: &'static [&'static str],
}

/// The entrants that are available, Untorn's first, and the reasons why others are missing.
pub struct Roster {
    pub entrants: Vec<Entrant>,
    pub missing: Vec<String>,
    only: &'static [&'static str],
}

impl Roster {
    /// Finds the available entrants. `probe` is an empty directory on the file system of the work.
    pub fn here(probe: &Path, work: Work) -> Result<Roster> {
        let mut roster = Roster { entrants: Vec::new(), missing: Vec::new(), only: work.only };
        let stl = roster.look("std::", || Stl::get(Stores::ByTheTracker));
        if let Some(stl) = &stl {
            roster.container("std::map on Untorn", Role::Untorn, stl, Container::Map);
            roster.container("std::unordered_map on Untorn", Role::Untorn, stl, Container::UnorderedMap);
        }
        if let Some(stl) = &roster.look(HOOKED_MAP, || Stl::get(Stores::ByHooks)) {
            roster.container(HOOKED_MAP, Role::Untorn, stl, Container::Map);
            roster.container("std::unordered_map, untorn-c++", Role::Untorn, stl, Container::UnorderedMap);
        }
        roster.add("hashbrown on Untorn (Rust)", Role::Untorn, HashbrownStore::open);
        roster.add("B-tree on Untorn, explicit (Rust)", Role::Untorn, TreeStore::open);
        let places = if work.bulk { 1 << 20 } else { 1 << 12 };
        roster.add(EXPLICIT, Role::Untorn, move |dir| ExplicitStore::open(dir, places));
        for (name, library) in [("LevelDB", Lsm::leveldb as fn() -> Result<Lsm>), ("RocksDB", Lsm::rocksdb)] {
            if let Some(lsm) = roster.look(name, || library().map(Rc::new)) {
                roster.add(name, Role::Peer, move |dir| LsmStore::open(&lsm, dir));
            }
        }
        if let Some(lmdb) = roster.look("LMDB", || Lmdb::load().map(Rc::new)) {
            roster.add("LMDB", Role::Peer, move |dir| LmdbStore::open(&lmdb, dir, work.map_bytes));
        }
        if let Some(sqlite) = roster.look("SQLite", || Sqlite::load().map(Rc::new)) {
            for (name, mode) in [("SQLite, WAL", JournalMode::Wal), ("SQLite, rollback journal", JournalMode::Delete)] {
                let sqlite = sqlite.clone();
                roster.add(name, Role::Peer, move |dir| SqliteStore::open(&sqlite, dir, mode, work.large_values));
            }
        }
        if let Some(kyoto) = roster.look("Kyoto Cabinet", || Kyoto::load().map(Rc::new)) {
            let all = [
                ("Kyoto Cabinet tree, transactions", Kind::Tree, Durable::Transactions),
                ("Kyoto Cabinet tree, auto-sync", Kind::Tree, Durable::AutoSync),
                ("Kyoto Cabinet hash, transactions", Kind::Hash, Durable::Transactions),
                ("Kyoto Cabinet hash, auto-sync", Kind::Hash, Durable::AutoSync),
            ];
            // With auto-sync every single operation is flushed.
            for (name, kind, durable) in all.into_iter().filter(|all| !work.bulk || all.2 == Durable::Transactions) {
                let kyoto = kyoto.clone();
                roster.add(name, Role::Peer, move |dir| KyotoStore::open(&kyoto, dir, kind, durable));
            }
        }
        if let Some(gdbm) = roster.look("gdbm", || Gdbm::load().map(Rc::new)) {
            roster.add("gdbm", Role::Peer, move |dir| GdbmStore::open(&gdbm, dir));
        }
        roster.add("redb", Role::Peer, RedbStore::open);
        roster.add("fjall", Role::Peer, FjallStore::open);
        let Work { put_bytes, floor_bytes, .. } = work;
        roster.add(Floor::BUFFERED, Role::Floor, move |dir| {
            Ok(FloorStore(Floor::buffered(dir, put_bytes, floor_bytes)?))
        });
        if Floor::direct(probe, put_bytes, floor_bytes)?.is_some() {
            roster.add(Floor::DIRECT, Role::Floor, move |dir| {
                Ok(FloorStore(Floor::direct(dir, put_bytes, floor_bytes)?.context("no O_DIRECT here")?))
            });
        }
        if let Some(stl) = &stl {
            roster.container("std::map in memory", Role::Ceiling, stl, Container::MapInMemory);
        }
        Ok(roster)
    }

    /// Leaves out entrants by the beginnings of their names, but never the first one.
    pub fn without(mut self, names: &[String]) -> Result<Roster> {
        let first = self.entrants[0].name;
        self.entrants.retain(|e| e.name == first || !names.iter().any(|name| e.name.starts_with(name.as_str())));
        self.missing.extend(names.iter().map(|name| format!("Left out: {name}…; as was asked for.")));
        let some = |role| self.entrants.iter().any(|entrant| entrant.role == role);
        ensure!(some(Role::Peer) && some(Role::Floor), "no store is left to compare with");
        Ok(self)
    }

    /// Finds the library of the entrants whose names begin with `name`. Notes a reason if it is missing.
    fn look<T>(&mut self, name: &str, find: impl FnOnce() -> Result<T>) -> Option<T> {
        if !self.only.is_empty() && !self.only.iter().any(|only| only.starts_with(name)) {
            return None;
        }
        match find() {
            Ok(found) => Some(found),
            Err(e) => {
                self.missing.push(format!("Left out: {name}…; {e:#}."));
                None
            }
        }
    }

    fn add<S: Store + 'static>(&mut self, name: &'static str, role: Role, open: impl Fn(&Path) -> Result<S> + 'static) {
        if !self.only.is_empty() && !self.only.contains(&name) {
            return;
        }
        self.entrants.push(Entrant { name, role, open: Box::new(move |dir| Ok(Box::new(open(dir)?))) });
    }

    fn container(&mut self, name: &'static str, role: Role, stl: &Rc<Stl>, container: Container) {
        let stl = stl.clone();
        self.add(name, role, move |dir| StlStore::open(&stl, container, dir));
    }
}

/// Writes as many bytes as the entries have, and flushes them. They cannot be read again.
struct FloorStore(Floor);

impl Store for FloorStore {
    fn put(&mut self, entries: &[Entry<'_>]) -> Result<()> {
        self.0.write(entries.iter().map(|entry| entry.key.len() + entry.value.len()).sum()).map(|_| ())
    }

    fn delete(&mut self, key: &Key) -> Result<()> {
        self.0.write(key.len()).map(|_| ())
    }

    fn read(&mut self, _: &[Key]) -> Result<u64> {
        Ok(0)
    }

    fn scan(&mut self) -> Result<Scan> {
        Ok(Scan::default())
    }

    fn keeps(&self) -> bool {
        false
    }
}
