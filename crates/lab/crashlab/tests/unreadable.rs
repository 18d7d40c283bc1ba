//! Disks that cannot read parts of the journal: each block of it in turn, and every read of an opening. Known state is
//! served, unknown state is waited for, and no commit is given up unless the user accepts the loss.

use std::collections::BTreeMap;
use std::ops::Range;
use std::path::{Path, PathBuf};
use untorn::__private::OpenStoreOn;
use untorn::{Error, Store, StoreOptions};
use untorn_crashlab::{Cut, Fault, On, Options, SimDisk, What};
use untorn_journal::directories::store_dir::StoreDir;
use untorn_journal::journal::Options as JournalOptions;
use untorn_journal::recovery::{OpenOptions, Quarantined, Recovered, open as open_journal};

const BLOCK: u64 = 4096;
type Contents = BTreeMap<String, Vec<u8>>;

fn open(disk: &SimDisk) -> Result<Store, Error> {
    let options = StoreOptions::new().create(true).background(false).sizes(512 << 10, 32 << 10, 24 << 10);
    options.open_on(disk.process(), StoreDir::of_directory(), PathBuf::new())
}

fn salvage(disk: &SimDisk) -> Result<(Recovered, Vec<Quarantined>), Error> {
    let (storage, store_dir) = (disk.process(), StoreDir::of_directory());
    let journal = JournalOptions {
        durable: true,
        journal_bytes: 512 << 10,
        segment_bytes_first: 32 << 10,
        inline_bytes_max: 24 << 10,
        shared_bytes_least: u64::MAX,
        clone_bytes_least: 1 << 20,
        in_memory_max: 64,
        window_bytes: 4096,
        index_bytes_least: u64::MAX,
        memory: true,
        spare: false,
        readers: false,
        readers_space: None,
        dir_mode: 0o700,
    };
    let progress = &|_, _| {};
    let (create, wait, accept_unknown) = (false, false, false);
    let options = OpenOptions { journal, create, wait, accept_unknown, salvage: true, redo: true, progress };
    let opened = open_journal(&storage, &store_dir, &options)?;
    opened.store_lock.release();
    Ok((opened.recovered, opened.quarantined))
}

fn contents(store: &Store, name: &str) -> Result<Vec<u8>, Error> {
    let file = store.open_file(name)?;
    let mut bytes = vec![0; file.len()? as usize];
    file.read_exact_at(&mut bytes, 0)?;
    Ok(bytes)
}

struct Program {
    store: Store,
    now: Contents,
    /// The state after each commit.
    states: Vec<Contents>,
}

impl Program {
    fn commit(&mut self, name: &str, at: usize, bytes: &[u8]) {
        let file = self.store.open_or_create_file(name).unwrap();
        file.write_all_at(bytes, at as u64).unwrap();
        file.commit().unwrap();
        let now = self.now.entry(name.to_owned()).or_default();
        now.resize(now.len().max(at + bytes.len()), 0);
        now[at..at + bytes.len()].copy_from_slice(bytes);
        self.states.push(self.now.clone());
    }

    /// Two commits in one write: their records share a block.
    fn group(&mut self, names: [&str; 2], bytes: &[u8]) {
        let ticket = |name: &str| {
            let file = self.store.open_or_create_file(name).unwrap();
            file.write_all_at(bytes, 0).unwrap();
            file.commit_async().unwrap()
        };
        for ticket in names.map(ticket) {
            ticket.wait().unwrap();
        }
        for name in names {
            self.now.get_mut(name).unwrap()[..bytes.len()].copy_from_slice(bytes);
            self.states.push(self.now.clone());
        }
    }

    fn commits(&mut self, seed: u8, old: &str, new: &str) {
        let bytes = |len: usize, of: u8| (0..len).map(|at| seed ^ of ^ (at / 64) as u8).collect::<Vec<u8>>();
        self.commit("small", 0, &bytes(1000, 1));
        self.group(["small", "other"], &bytes(700, 8));
        self.commit("long", 500, &bytes(20_000, 2));
        self.commit("small", 100, &bytes(1000, 3));
        self.commit("large", 0, &bytes(100_000, 4));
        self.commit("other", 7, &bytes(3000, 5));
        self.commit("long", 9000, &bytes(20_000, 6));
        let mut txn = self.store.begin();
        txn.rename(old, new).unwrap();
        txn.commit().unwrap();
        let moved = self.now.remove(old).unwrap();
        self.now.insert(new.to_owned(), moved);
        self.states.push(self.now.clone());
        self.commit("small", 2000, &bytes(1000, 7));
    }
}

/// A store whose owner was killed, or two of them one after the other, and the states after its commits.
fn killed(owners: u8) -> (SimDisk, Vec<Contents>) {
    let disk = SimDisk::new(Options::default());
    let mut states = Vec::new();
    for n in 0..owners {
        let (old, new) = if n == 0 { ("old name", "new name") } else { ("new name", "old name") };
        let mut program =
            Program { store: open(&disk).unwrap(), now: states.last().cloned().unwrap_or_default(), states };
        if n == 0 {
            for name in ["small", "long", "large", "other", old] {
                program.commit(name, 0, &[9; 5000]);
            }
            program.store.checkpoint().unwrap();
            program.states.drain(..program.states.len() - 1);
        }
        program.commits(n * 0x80, old, new);
        states = program.states;
        disk.kill();
    }
    (disk, states)
}

/// Each block of each file of the journal.
fn blocks(disk: &SimDisk) -> Vec<(PathBuf, Range<u64>)> {
    let of_journal = |path: &Path| path.starts_with(".untorn/journal");
    let files = disk.tree().into_iter().filter(|(path, _)| of_journal(path));
    let blocks = |len: usize| (0..len as u64).step_by(BLOCK as usize).map(|at| at..at + BLOCK);
    files.flat_map(|(path, entry)| blocks(entry.contents.len()).map(move |block| (path.clone(), block))).collect()
}

/// The contents that the store shows; None for files that cannot be opened, which must be quarantined.
fn shown(store: &Store, expected: &Contents) -> BTreeMap<String, Option<Vec<u8>>> {
    let quarantined = store.status().quarantined;
    let look = |name: &String| match contents(store, name) {
        Ok(bytes) => Some(bytes),
        Err(e) => {
            assert!(quarantined.iter().any(|q| q.path == Path::new(name)), "{name} is not quarantined: {e}");
            None
        }
    };
    expected.keys().map(|name| (name.clone(), look(name))).collect()
}

fn all(expected: &Contents) -> BTreeMap<String, Option<Vec<u8>>> {
    expected.iter().map(|(name, bytes)| (name.clone(), Some(bytes.clone()))).collect()
}

#[derive(Debug, Default)]
struct Found {
    /// Openings that served everything.
    whole: u32,
    /// Openings that quarantined a file.
    held: u32,
    /// Openings that named an unreadable part.
    refused: u32,
}

/// Crashes the opening at each of its calls. The state may still be unreadable, but nothing is lost.
fn crashes(disk: &SimDisk, last: &Contents) {
    for snapshot in disk.recorded() {
        let cuts = snapshot.cuts(3, snapshot.call());
        let crashed = cuts.into_iter().map(|cut| snapshot.power_cut(cut).disk).chain([snapshot.killed()]);
        for disk in crashed {
            let at = format!("after a crash before call {}", snapshot.call());
            match open(&disk) {
                Ok(store) => {
                    let now = shown(&store, last);
                    let is_right =
                        |(name, bytes): (&String, &Option<_>)| bytes.as_ref().is_none_or(|b| *b == last[name]);
                    assert!(now.iter().all(is_right), "{at}, something else is shown");
                    store.close().unwrap();
                }
                Err(e) => assert_eq!(e.kind(), "io", "{at}: {e}"),
            }
            disk.set_readable();
            let store = open(&disk).unwrap_or_else(|e| panic!("{at}: {e}"));
            assert!(shown(&store, last) == all(last), "{at}, something is lost");
        }
    }
}

fn one_block(disk: &SimDisk, states: &[Contents], found: &mut Found) {
    let last = states.last().unwrap();
    disk.record();
    match open(disk) {
        Ok(store) => {
            crashes(disk, last);
            let now = shown(&store, last);
            let held: Vec<&String> = now.iter().filter(|(_, bytes)| bytes.is_none()).map(|(name, _)| name).collect();
            if held.is_empty() {
                found.whole += 1;
            } else {
                found.held += 1;
                assert!(held.iter().all(|name| ["long", "large"].contains(&name.as_str())), "{held:?}");
            }
            let is_right = |(name, bytes): (&String, &Option<Vec<u8>>)| bytes.as_ref().is_none_or(|b| *b == last[name]);
            assert!(now.iter().all(is_right), "something else is shown");
            // The store goes on, beyond the journal's size, and through crashes.
            let file = store.open_file("other").unwrap();
            for n in 0..200 {
                file.write_all_at(&[n; 4000], 0).unwrap();
                file.commit().unwrap();
                if n == 0 {
                    // Rewritten data stays, wherever the power is cut from here on.
                    let cut = disk.fork();
                    cut.power_cut(Cut::Nothing);
                    open(&cut).unwrap_or_else(|e| panic!("after a power cut: {e}"));
                }
            }
            disk.kill();
            let (store, now_last) = (open(disk).unwrap(), {
                let mut last = last.clone();
                last.get_mut("other").unwrap()[..4000].copy_from_slice(&[199; 4000]);
                last
            });
            let again = shown(&store, &now_last);
            assert_eq!(
                held,
                again.iter().filter(|(_, bytes)| bytes.is_none()).map(|(name, _)| name).collect::<Vec<_>>()
            );
            store.close().unwrap();
            disk.set_readable();
            let store = open(disk).unwrap();
            assert!(shown(&store, &now_last) == all(&now_last), "what waited is not there");
            assert!(store.status().quarantined.is_empty());
        }
        Err(e) => {
            found.refused += 1;
            assert_eq!(e.kind(), "io", "{e}");
            assert_eq!(e.os_error(), Some(libc::EIO), "{e}");
            assert!(e.to_string().contains("untorn recover --salvage"), "{e}");
            let other = disk.fork();
            disk.set_readable();
            assert!(shown(&open(disk).unwrap(), last) == all(last), "something is lost");
            // The user accepts the loss of unreadable parts: everything before them stays.
            let (recovered, quarantined) = salvage(&other).unwrap();
            assert!(quarantined.is_empty(), "{quarantined:?}");
            assert_eq!(recovered.salvaged.len(), 1);
            let store = open(&other).unwrap();
            // A name may be newer, because the owner made it on the disk at once.
            let renamed = |state: &Contents| {
                let other = |name: &str| if name == "old name" { "new name" } else { "old name" }.to_owned();
                let name = |name: &String| if name.ends_with(" name") { other(name) } else { name.clone() };
                state.iter().map(|(key, bytes)| (name(key), bytes.clone())).collect::<Contents>()
            };
            let is_shown = |state: &Contents| shown_all(&store, state).is_some_and(|now| now == *state);
            let is_kept = |state: &Contents| is_shown(state) || is_shown(&renamed(state));
            assert!(states.iter().any(is_kept), "after {e}: no state is kept");
        }
    }
}

fn shown_all(store: &Store, state: &Contents) -> Option<Contents> {
    state.keys().map(|name| Some((name.clone(), contents(store, name).ok()?))).collect()
}

fn every_block(owners: u8) -> Found {
    let (disk, states) = killed(owners);
    let mut found = Found::default();
    for (path, block) in blocks(&disk) {
        println!("{} at {}", path.display(), block.start);
        let disk = disk.fork();
        disk.set_unreadable(&path, block).unwrap();
        one_block(&disk, &states, &mut found);
    }
    println!("{found:?}");
    found
}

#[test]
fn no_block_of_the_journal_is_guessed() {
    let found = every_block(1);
    assert!(found.held > 20 && found.refused > 5, "{found:?}");
}

#[test]
fn no_block_of_several_epochs_is_guessed() {
    let found = every_block(2);
    assert!(found.held > 20 && found.refused > 5 && found.whole > 5, "{found:?}");
}

#[test]
fn an_opening_outlives_every_failed_read() {
    for (owners, times) in [(1, 1), (2, 1), (1, u64::MAX), (2, u64::MAX)] {
        let (disk, states) = killed(owners);
        let last = states.last().unwrap();
        for after in 0.. {
            let disk = disk.fork();
            disk.fail(Fault { on: On::Read, after, times, what: What::Errno(libc::EIO) });
            if let Err(e) = open(&disk) {
                assert_eq!(e.kind(), "io", "read {after}: {e}");
            }
            let all_read = disk.faults_left();
            disk.clear_faults();
            disk.kill();
            let store = open(&disk).unwrap_or_else(|e| panic!("read {after}: {e}"));
            assert!(shown(&store, last) == all(last), "read {after}");
            if all_read && times == 1 || after > 60 {
                break;
            }
        }
    }
}

/// A power cut tears the last commit, and the disk cannot read a block. A salvage must keep that commit completely or
/// not at all.
#[test]
fn what_is_torn_is_not_salvaged() {
    let disk = SimDisk::new(Options::default());
    let store = open(&disk).unwrap();
    for name in ["long", "gone"] {
        let file = store.open_or_create_file(name).unwrap();
        file.write_all_at(&[1; 9000], 0).unwrap();
        file.commit().unwrap();
    }
    store.checkpoint().unwrap();
    let (file, mut txn) = (store.open_file("long").unwrap(), store.begin());
    file.write_all_at(&[2; 9000], 0).unwrap();
    txn.add(&file).unwrap();
    txn.unlink("gone").unwrap();
    disk.record();
    txn.commit().unwrap();
    let (mut torn, mut salvaged) = (0, 0);
    for snapshot in disk.recorded() {
        for cut in snapshot.cuts(12, snapshot.call()) {
            let crashed = snapshot.power_cut(cut).disk;
            // An older header cannot tell which commits are in the files.
            let of_log = blocks(&crashed).into_iter().filter(|(path, _)| path.file_name().unwrap() != "header");
            for (path, block) in of_log {
                let disk = crashed.fork();
                disk.set_unreadable(&path, block.clone()).unwrap();
                let at = format!("before call {}, {cut:?}, {} at {}", snapshot.call(), path.display(), block.start);
                // The owner makes names on the disk at once.
                let is_removed = disk.tree().iter().all(|(path, _)| path != Path::new("gone"));
                let readable = disk.fork();
                readable.set_readable();
                let whole = contents(&open(&readable).unwrap(), "long").unwrap() == [2; 9000];
                torn += u32::from(!whole);
                if let Err(e) = open(&disk) {
                    assert_eq!(e.kind(), "io", "{at}: {e}");
                    salvage(&disk).unwrap_or_else(|e| panic!("{at}: {e}"));
                    salvaged += 1;
                }
                let store = open(&disk).unwrap_or_else(|e| panic!("{at}: {e}"));
                let now = (contents(&store, "long").ok(), contents(&store, "gone").is_ok());
                match now {
                    (Some(long), true) => assert!(long == [1; 9000], "{at}: half of the commit is there"),
                    (Some(long), false) => {
                        assert!(whole && (long == [2; 9000] || is_removed), "{at}: half of the commit is there");
                    }
                    // The file waits, because its commit is known to be complete.
                    (None, gone) => assert!(!gone && whole, "{at}"),
                }
            }
        }
    }
    assert!(torn > 50 && salvaged > 50, "{torn} torn, {salvaged} salvaged");
}

/// A failure that is not the log's fault is not damage.
#[test]
fn what_cannot_be_opened_is_not_damaged() {
    let (disk, states) = killed(2);
    let last = states.last().unwrap();
    for errno in [libc::EMFILE, libc::ENOMEM, libc::EIO] {
        for after in 0.. {
            let disk = disk.fork();
            disk.fail(Fault { on: On::Any, after, times: 1, what: What::Errno(errno) });
            if let Err(e) = open(&disk) {
                assert!(e.kind() != "corrupt", "call {after}, {errno}: {e}");
            }
            let all_called = disk.faults_left();
            disk.clear_faults();
            disk.kill();
            let store = open(&disk).unwrap_or_else(|e| panic!("call {after}, {errno}: {e}"));
            assert!(shown(&store, last) == all(last), "call {after}, {errno}: something is lost");
            if all_called {
                break;
            }
        }
    }
}

/// The user accepts a loss, and meanwhile something fails that is not the log's fault: nothing more is given up.
#[test]
fn no_more_is_salvaged_than_is_lost() {
    let (disk, states) = killed(2);
    let last = states.last().unwrap();
    let is_refused = |(path, block): &(PathBuf, Range<u64>)| {
        disk.set_readable();
        disk.set_unreadable(path, block.clone()).unwrap();
        path.file_name().unwrap() != "header" && open(&disk.fork()).is_err()
    };
    let blocks = blocks(&disk);
    // One of the last commits, so that most commits are kept.
    assert!(blocks.iter().filter(|(path, _)| !path.to_string_lossy().contains("spill")).rev().any(is_refused));
    let salvaged = disk.fork();
    salvage(&salvaged).unwrap();
    let kept = shown(&open(&salvaged).unwrap(), last);
    assert!(kept != shown(&open(&SimDisk::new(Options::default())).unwrap(), &Contents::new()));
    for errno in [libc::EMFILE, libc::ENOMEM] {
        let mut failed = 0;
        for after in 0.. {
            let disk = disk.fork();
            disk.fail(Fault { on: On::Any, after, times: 1, what: What::Errno(errno) });
            let done = salvage(&disk);
            failed += u32::from(done.is_err());
            let all_called = disk.faults_left();
            disk.clear_faults();
            disk.kill();
            if let Err(e) = done {
                assert!(e.kind() != "corrupt", "call {after}, {errno}: {e}");
                salvage(&disk).unwrap_or_else(|e| panic!("call {after}, {errno}: {e}"));
            }
            let store = open(&disk).unwrap_or_else(|e| panic!("call {after}, {errno}: {e}"));
            // A file that could not be opened is left as it is, and its redone contents are kept beside the journal.
            let beside: BTreeMap<PathBuf, Vec<u8>> =
                disk.tree().into_iter().map(|(path, entry)| (path, entry.contents)).collect();
            for (name, now) in shown(&store, last) {
                let is_beside = |(path, bytes): (&PathBuf, &Vec<u8>)| {
                    path.ends_with(Path::new("salvaged").join(&name)) && Some(bytes) == kept[&name].as_ref()
                };
                assert!(now == kept[&name] || beside.iter().any(is_beside), "call {after}, {errno}: {name} is lost");
            }
            if all_called {
                break;
            }
        }
        assert!(failed > 20, "{failed} failed");
    }
}

/// A quarantined journal needs only the part of its log that it had when it was quarantined.
#[test]
fn no_block_of_a_quarantined_journal_is_guessed() {
    let (disk, states) = killed(1);
    let last = states.last().unwrap();
    let is_held = |(path, block): &(PathBuf, Range<u64>)| {
        let disk = disk.fork();
        disk.set_unreadable(path, block.clone()).unwrap();
        let held = open(&disk).is_ok_and(|store| !store.status().quarantined.is_empty());
        held.then_some(disk)
    };
    let held = blocks(&disk).iter().find_map(is_held).expect("a block of contents");
    held.kill();
    let of_quarantined = |path: &Path| path.starts_with(".untorn") && !path.starts_with(".untorn/journal");
    let (mut served, mut refused) = (0, 0);
    for (path, entry) in held.tree().into_iter().filter(|(path, _)| of_quarantined(path)) {
        for at in (0..entry.contents.len() as u64).step_by(BLOCK as usize) {
            let disk = held.fork();
            disk.set_unreadable(&path, at..at + BLOCK).unwrap();
            let at = format!("{} at {at}", path.display());
            match open(&disk) {
                Ok(store) => {
                    served += 1;
                    let now = shown(&store, last);
                    let is_right =
                        |(name, bytes): (&String, &Option<Vec<u8>>)| bytes.as_ref().is_none_or(|b| *b == last[name]);
                    assert!(now.iter().all(is_right), "{at}: something else is shown");
                    store.close().unwrap();
                }
                Err(e) => {
                    refused += 1;
                    assert_eq!(e.kind(), "io", "{at}: {e}");
                    let other = disk.fork();
                    if salvage(&other).is_ok() {
                        open(&other).unwrap_or_else(|e| panic!("{at}, salvaged: {e}"));
                    }
                }
            }
            disk.set_readable();
            let store = open(&disk).unwrap_or_else(|e| panic!("{at}, readable again: {e}"));
            assert!(shown(&store, last) == all(last), "{at}: something is lost");
        }
    }
    println!("{served} served, {refused} refused");
    assert!(served > 2 * refused && refused > 2, "{served} served, {refused} refused");
}
