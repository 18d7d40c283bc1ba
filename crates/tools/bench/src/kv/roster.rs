//! Who takes part.

use super::crates::{FjallStore, RedbStore};
use super::gdbm::{Gdbm, GdbmStore};
use super::kv_store::{Entry, Key, Scan, Store};
use super::kyoto::{Durable, Kind, Kyoto, KyotoStore};
use super::lmdb::{Lmdb, LmdbStore};
use super::lsm::{Lsm, LsmStore};
use super::rust_heap::HashbrownStore;
use super::sqlite::{JournalMode, Sqlite, SqliteStore};
use super::stl::{Container, Stl, StlStore};
use super::told_table::ToldStore;
use crate::measuring::peers::Floor;
use anyhow::{Context, Result, ensure};
use std::path::Path;
use std::rc::Rc;

/// What an entrant is in the race.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    Untorn,
    Peer,
    Floor,
    /// Untorn's program without durability.
    Ceiling,
}

/// The table that tells what it changes.
pub const TOLD: &str = "told hash table on Untorn (Rust)";

type Open = Box<dyn Fn(&Path) -> Result<Box<dyn Store>>>;

/// One that takes part.
pub struct Entrant {
    pub name: &'static str,
    pub role: Role,
    open: Open,
}

impl Entrant {
    /// Opens it in a directory, or makes it there.
    pub fn open(&self, dir: &Path) -> Result<Box<dyn Store>> {
        (self.open)(dir).with_context(|| format!("cannot open {}", self.name))
    }
}

/// What the entrants have to know of the work.
#[derive(Clone, Copy, Debug)]
pub struct Work {
    /// Most bytes of one put, and what the floor gets to write them to in turn.
    pub put_bytes: usize,
    pub floor_bytes: u64,
    /// LMDB wants to know the most that it will ever hold.
    pub map_bytes: usize,
    /// Values for which SQLite advises a table with a rowid.
    pub large_values: bool,
    /// Thousands of operations in one commit.
    pub bulk: bool,
    /// Who is to take part; empty: all.
    pub only: &'static [&'static str],
}

/// All that are here, Untorn first, and why others are not.
pub struct Roster {
    pub entrants: Vec<Entrant>,
    pub missing: Vec<String>,
    only: &'static [&'static str],
}

impl Roster {
    /// `probe`: an empty directory where the work will be done.
    pub fn here(probe: &Path, work: Work) -> Result<Roster> {
        let mut roster = Roster { entrants: Vec::new(), missing: Vec::new(), only: work.only };
        let stl = roster.look("std::", Stl::get);
        if let Some(stl) = &stl {
            roster.container("std::map on Untorn", Role::Untorn, stl, Container::Map);
            roster.container("std::unordered_map on Untorn", Role::Untorn, stl, Container::UnorderedMap);
        }
        roster.add("hashbrown on Untorn (Rust)", Role::Untorn, HashbrownStore::open);
        let places = if work.bulk { 1 << 20 } else { 1 << 12 };
        roster.add(TOLD, Role::Untorn, move |dir| ToldStore::open(dir, places));
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
            // Auto-sync flushes every single operation.
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

    /// Those whose names begin so stay away. The first is never one of them.
    pub fn without(mut self, names: &[String]) -> Result<Roster> {
        let first = self.entrants[0].name;
        self.entrants.retain(|e| e.name == first || !names.iter().any(|name| e.name.starts_with(name.as_str())));
        self.missing.extend(names.iter().map(|name| format!("Left out: {name}…; as was asked for.")));
        let some = |role| self.entrants.iter().any(|entrant| entrant.role == role);
        ensure!(some(Role::Peer) && some(Role::Floor), "no store is left to compare with");
        Ok(self)
    }

    /// What the entrants whose names begin so need.
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

/// Writes as many bytes and flushes them; nothing can be found again.
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
