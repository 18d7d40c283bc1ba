//! The setup of a program: the initial disk, the options of the store, and the states that a crash may leave at some
//! moment.

use crate::programs::program::{Journal, Setup, Start};
use crate::programs::reference_model::{Files, Model as Reference, Node, numbers};
use crate::simulation::Model;
use crate::simulation::SimDisk;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use untorn::__private::OpenStoreOn;
use untorn::{FailureClass, StoreOptions};
use untorn_journal::directories::store_dir::StoreDir;

/// The states that a crash may leave at some moment, packed into the mark of snapshots.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Expect {
    /// The commits that may be the last, as bits.
    pub allowed: u64,
    /// The class in which the store is open.
    pub class: FailureClass,
    /// There may be commits of class `process` that were not flushed.
    pub exposed: bool,
    /// Another program has moved `a` away.
    pub away: bool,
}

const CLASS_BIT: u64 = 1 << 62;
const EXPOSED_BIT: u64 = 1 << 61;
const AWAY_BIT: u64 = 1 << 60;
/// The path of `a` while it is moved away, which is not in the store.
pub(crate) const ELSEWHERE: &str = "elsewhere";

impl Expect {
    pub fn pack(self) -> u64 {
        let class = if self.class == FailureClass::Process { CLASS_BIT } else { 0 };
        let exposed = if self.exposed { EXPOSED_BIT } else { 0 };
        self.allowed | class | exposed | if self.away { AWAY_BIT } else { 0 }
    }

    pub fn unpack(mark: u64) -> Expect {
        let class = if mark & CLASS_BIT != 0 { FailureClass::Process } else { FailureClass::Power };
        let (exposed, away) = (mark & EXPOSED_BIT != 0, mark & AWAY_BIT != 0);
        Expect { allowed: mark & !(CLASS_BIT | EXPOSED_BIT | AWAY_BIT), class, exposed, away }
    }
}

/// The options of every store in the laboratory: no thread of its own, so that everything happens in calls.
pub(crate) fn store_options(setup: &Setup, class: FailureClass) -> StoreOptions {
    let (journal_bytes, segment_bytes_first, inline_bytes_max) = setup.journal.sizes();
    StoreOptions::new()
        .create(true)
        .background(false)
        .sizes(journal_bytes, segment_bytes_first, inline_bytes_max)
        .shared_bytes_least(if setup.journal == Journal::Growing { 4096 } else { u64::MAX })
        .class(class)
        .full_page(setup.model == Model::PageGarbage)
}

/// Everything in the store that is not Untorn's own.
pub(crate) fn plain_files(disk: &SimDisk) -> Files {
    let own = |path: &Path| {
        let text = path.as_os_str().as_encoded_bytes();
        text.starts_with(b".untorn") || text.starts_with(b"untorn-salvage.") || text == ELSEWHERE.as_bytes()
    };
    let node = |entry: crate::Entry| match entry.kind {
        untorn_os::Kind::Directory => Node::Directory(entry.mode),
        _ => Node::File(entry.contents, entry.mode),
    };
    disk.tree().into_iter().filter(|(path, _)| !own(path)).map(|(path, entry)| (path, node(entry))).collect()
}

/// Finds the allowed commit that the plain files show.
pub(crate) fn find_state(reference: &Reference, allowed: u64, found: &Files) -> Option<usize> {
    numbers(allowed).find(|n| reference.state(*n) == *found)
}

pub(crate) fn umask() -> u32 {
    static UMASK: OnceLock<u32> = OnceLock::new();
    *UMASK.get_or_init(untorn_os::umask)
}

/// A disk with `a` and `b`, and with a store unless the start is [`Start::Plain`]; all of it durable.
pub(crate) fn prepare(setup: &Setup, many: bool) -> SimDisk {
    let disk = SimDisk::new(setup.disk(0));
    let bytes = |seed: usize, len: usize| (0..len).map(|i| (seed + i * 7 % 251) as u8 | 1).collect::<Vec<u8>>();
    disk.put("a", &bytes(3, 6000)).expect("an empty disk");
    disk.put("b", &bytes(5, 700)).expect("an empty disk");
    for i in 0..if many { MANY } else { 0 } {
        disk.put(many_name(i), &bytes(i, 100)).expect("an empty disk");
    }
    disk.settle();
    if setup.start != Start::Plain {
        let options = store_options(setup, FailureClass::Power);
        let opened = options.open_on(disk.process(), StoreDir::of_directory(), PathBuf::new());
        let store = opened.expect("a new store on a healthy disk");
        for name in ["a", "b"] {
            let file = store.open_file(name).expect("a plain file");
            file.write_at(b"first", 9).expect("a healthy disk");
            file.commit().expect("a healthy disk");
        }
        store.close().expect("a healthy disk");
        disk.settle();
    }
    disk
}

/// The number of files that [`Many`](crate::programs::program::Op::Many) writes: too many to be flushed one by one.
pub(crate) const MANY: usize = 20;

pub(crate) fn many_name(i: usize) -> String {
    format!("m{i:02}")
}
