//! The steps of a program, drawn from a seed, and the contents of its files after each commit.

use std::collections::BTreeMap;

/// Names and contents.
pub(super) type Files = BTreeMap<String, Vec<u8>>;

/// One change within a commit.
#[derive(Clone, Debug)]
pub(super) enum Change {
    Write { name: String, at: u64, bytes: Vec<u8> },
    Zero { name: String, at: u64, len: u64 },
    Size { name: String, size: u64 },
    Create { name: String, bytes: Vec<u8> },
    Rename { from: String, to: String },
    Unlink { name: String },
}

impl Change {
    /// Whether it changes names.
    pub fn is_of_names(&self) -> bool {
        matches!(self, Change::Create { .. } | Change::Rename { .. } | Change::Unlink { .. })
    }

    fn apply(&self, files: &mut Files) {
        match self {
            Change::Write { name, at, bytes } => {
                let file = files.get_mut(name).expect("a plan changes what exists");
                let end = *at as usize + bytes.len();
                file.resize(file.len().max(end), 0);
                file[*at as usize..end].copy_from_slice(bytes);
            }
            Change::Zero { name, at, len } => {
                let file = files.get_mut(name).expect("a plan changes what exists");
                let end = (*at + *len) as usize;
                file.resize(file.len().max(end), 0);
                file[*at as usize..end].fill(0);
            }
            Change::Size { name, size } => {
                files.get_mut(name).expect("a plan changes what exists").resize(*size as usize, 0);
            }
            Change::Create { name, bytes } => drop(files.insert(name.clone(), bytes.clone())),
            Change::Rename { from, to } => {
                let bytes = files.remove(from).expect("a plan renames what exists");
                files.insert(to.clone(), bytes);
            }
            Change::Unlink { name } => drop(files.remove(name)),
        }
    }
}

/// One step.
#[derive(Clone, Debug)]
pub(super) enum Step {
    Commit { changes: Vec<Change>, in_background: bool },
    Checkpoint,
    Reopen,
}

/// Steps, and the files after each commit; the first entry is the initial state.
pub(super) struct Plan {
    pub steps: Vec<Step>,
    pub states: Vec<Files>,
}

/// The limits of a plan.
#[derive(Clone, Copy)]
pub(super) struct Bounds {
    pub files_max: usize,
    pub file_bytes_max: u64,
    pub names: bool,
    pub commits: usize,
}

impl Plan {
    /// The plan of a seed.
    pub fn new(seed: u64, start: Files, bounds: Bounds) -> Plan {
        let mut random = fastrand::Rng::with_seed(seed);
        let (mut steps, mut states) = (Vec::new(), vec![start]);
        while states.len() <= bounds.commits {
            match random.u8(..20) {
                0 => steps.push(Step::Reopen),
                1 | 2 => steps.push(Step::Checkpoint),
                _ => {
                    let mut files = states.last().expect("the start").clone();
                    let mut changes = Vec::new();
                    for n in 0..1 + random.usize(..4) {
                        let stamp = (seed << 20) ^ (states.len() as u64) << 4 ^ n as u64;
                        if let Some(change) = draw(&files, &changes, bounds, stamp, &mut random) {
                            change.apply(&mut files);
                            changes.push(change);
                        }
                    }
                    if changes.is_empty() || files == *states.last().expect("the start") {
                        continue;
                    }
                    steps.push(Step::Commit { changes, in_background: random.u8(..4) == 0 });
                    states.push(files);
                }
            }
        }
        Plan { steps, states }
    }
}

fn draw(files: &Files, before: &[Change], b: Bounds, stamp: u64, random: &mut fastrand::Rng) -> Option<Change> {
    let names: Vec<&String> = files.keys().collect();
    let fresh = format!("file-{}", random.usize(..b.files_max * 2));
    if b.names && (names.is_empty() || random.u8(..4) == 0) {
        // A name that was created or renamed in this commit is not changed again.
        let settled = |name: &str| {
            !before.iter().any(|change| match change {
                Change::Create { name: n, .. } | Change::Unlink { name: n } => n == name,
                Change::Rename { from, to } => from == name || to == name,
                _ => false,
            })
        };
        if !settled(&fresh) {
            return None;
        }
        if !files.contains_key(&fresh) && (names.len() < b.files_max || names.is_empty()) {
            let length = random.usize(..20_000);
            return Some(Change::Create { name: fresh, bytes: bytes(stamp, length) });
        }
        let name = names.get(random.usize(..names.len()))?.to_string();
        if !settled(&name) || before.iter().any(|change| !change.is_of_names()) {
            return None;
        }
        return Some(match random.bool() && name != fresh {
            true => Change::Rename { from: name, to: fresh },
            false => Change::Unlink { name },
        });
    }
    let name = names.get(random.usize(..names.len().max(1)))?.to_string();
    let size = files[&name].len() as u64;
    // Handles are opened before names change.
    let opened = |change: &Change| match change {
        Change::Create { name: n, .. } => *n != name,
        Change::Rename { to, .. } => *to != name,
        _ => true,
    };
    if !before.iter().all(opened) {
        return None;
    }
    let room = b.file_bytes_max.saturating_sub(size);
    let length = match random.u8(..16) {
        0 => random.u64(30_000..120_000),
        1..=5 => random.u64(1..64),
        _ => random.u64(64..12_000),
    };
    Some(match random.u8(..10) {
        0 => Change::Size { name, size: random.u64(..=size) },
        1 => Change::Size { name, size: size + random.u64(..=room.min(20_000)) },
        2 => Change::Zero { name, at: random.u64(..=size), len: length },
        3 | 4 if room > length => Change::Write { name, at: size, bytes: bytes(stamp, length as usize) },
        _ => Change::Write { name, at: random.u64(..=size), bytes: bytes(stamp, length as usize) },
    })
}

/// Bytes that are in no other commit.
pub(super) fn bytes(stamp: u64, length: usize) -> Vec<u8> {
    let mut random = fastrand::Rng::with_seed(stamp);
    let mut bytes = vec![0; length];
    random.fill(&mut bytes);
    bytes
}
