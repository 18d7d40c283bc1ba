//! The process that measures: transactions on memory whose lines take longer and longer.

use super::delay::{lines_so_far, set_line_ns};
use super::mapped::{FineLog, NoConsistency};
use super::pool_flushes::slow_down;
use super::slow_memory::SlowMemory;
use crate::measuring::harness::timed;
use crate::stores::two_files::managed::Managed;
use crate::stores::two_files::pool::Pool;
use crate::stores::two_files::protocol::{Change, Protocol, Shape};
use crate::stores::two_files::roster::{FINE_LOG, NO_CONSISTENCY, OURS, POOL};
use crate::stores::two_files::transactions::Transactions;
use anyhow::Result;
use fastrand::Rng;
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};
use std::time::Duration;
use untorn_terminal::say;

/// Bytes of a small commit.
pub const SMALL_BYTES: usize = 64;

/// The parameters of a measurement.
#[derive(Serialize, Deserialize)]
pub struct Program {
    pub dir: PathBuf,
    pub files: usize,
    /// Transactions over two files, and small commits, of a contender in a round.
    pub transactions: usize,
    pub commits: usize,
    pub rounds: usize,
    /// The times of a line.
    pub line_ns: Vec<u64>,
}

/// The size of each file, and the most bytes that a transaction changes in each of two.
pub const FILE_BYTES: u64 = 1 << 20;
pub const CHANGE_BYTES_MAX: usize = 16 << 10;

/// The means of a contender, one for each round.
#[derive(Serialize, Deserialize)]
pub struct Means {
    pub name: String,
    pub us: Vec<f64>,
    /// The lines that it flushed for an operation, by all threads.
    pub lines: f64,
}

/// The figures of memory with one time of a line.
#[derive(Serialize, Deserialize)]
pub struct Cell {
    pub line_ns: u64,
    pub transactions: Vec<Means>,
    pub commits: Vec<Means>,
}

/// Everything that was measured.
#[derive(Serialize, Deserialize)]
pub struct Measured {
    pub cells: Vec<Cell>,
    /// Why a contender is missing.
    pub missing: Option<String>,
}

struct Entrant {
    name: &'static str,
    protocol: Box<dyn Protocol>,
}

fn open(dir: &Path, shape: Shape) -> Result<(Vec<Entrant>, Option<String>)> {
    let place = |name: &str| -> Result<PathBuf> {
        let dir = dir.join(name.replace(' ', "-"));
        std::fs::create_dir(&dir)?;
        Ok(dir)
    };
    let dir_of_ours = place(OURS)?;
    let ours = Managed::open_on(&dir_of_ours, shape, SlowMemory::open(&dir_of_ours)?)?;
    let mut entrants = vec![
        Entrant { name: OURS, protocol: Box::new(ours) },
        Entrant { name: NO_CONSISTENCY, protocol: Box::new(NoConsistency::open(&place(NO_CONSISTENCY)?, shape)?) },
        Entrant { name: FINE_LOG, protocol: Box::new(FineLog::open(&place(FINE_LOG)?, shape)?) },
    ];
    let pool = Pool::open(&place(POOL)?, shape).and_then(|pool| {
        // SAFETY: a pool that was just opened.
        unsafe { slow_down(pool.address())? };
        Ok(pool)
    });
    let missing = match pool {
        Ok(pool) => {
            entrants.push(Entrant { name: POOL, protocol: Box::new(pool) });
            None
        }
        Err(e) => Some(format!("Left out: {POOL}; {e:#}.")),
    };
    Ok((entrants, missing))
}

/// Measures an operation of each contender in turns, the same ones for all. Behind each turn, everything is brought to its
/// place, on fast memory.
fn measure(
    entrants: &[Entrant],
    rounds: usize,
    line_ns: u64,
    count: usize,
    operations: &dyn Fn(&dyn Protocol, &mut Rng) -> Result<Duration>,
) -> Result<Vec<Means>> {
    let new = |entrant: &Entrant| Means { name: entrant.name.to_owned(), us: Vec::new(), lines: 0.0 };
    let mut means: Vec<Means> = entrants.iter().map(new).collect();
    for round in 0..rounds {
        for turn in 0..entrants.len() {
            let who = (turn + round) % entrants.len();
            let protocol = &*entrants[who].protocol;
            set_line_ns(line_ns);
            let before = lines_so_far();
            let mean = operations(protocol, &mut Rng::with_seed(round as u64))?;
            means[who].lines += (lines_so_far() - before) as f64 / (count * rounds) as f64;
            means[who].us.push(mean.as_secs_f64() * 1e6);
            set_line_ns(0);
            protocol.settle()?;
        }
    }
    Ok(means)
}

/// Makes so many small commits to the first file, and returns the mean time of one.
fn commit_small(protocol: &dyn Protocol, count: usize, random: &mut Rng) -> Result<Duration> {
    let bytes = [random.u8(..); SMALL_BYTES];
    let whole = timed(|| {
        for _ in 0..count {
            let at = random.u64(..FILE_BYTES / SMALL_BYTES as u64) * SMALL_BYTES as u64;
            protocol.transact(&[Change { file: 0, at, bytes: &bytes }])?;
        }
        anyhow::Ok(())
    })?;
    Ok(whole / count as u32)
}

/// Measures, and prints the figures.
pub fn run(program: &Program) -> Result<()> {
    let shape = Shape { files: program.files, file_bytes: FILE_BYTES, change_bytes_max: CHANGE_BYTES_MAX };
    let (entrants, missing) = open(&program.dir, shape)?;
    let two_files = Transactions::new(shape, None);
    let cell = |line_ns: &u64| -> Result<Cell> {
        let many =
            |protocol: &dyn Protocol, random: &mut Rng| two_files.many(protocol, program.transactions, 0.0, random);
        let small = |protocol: &dyn Protocol, random: &mut Rng| commit_small(protocol, program.commits, random);
        Ok(Cell {
            line_ns: *line_ns,
            transactions: measure(&entrants, program.rounds, *line_ns, program.transactions, &many)?,
            commits: measure(&entrants, program.rounds, *line_ns, program.commits, &small)?,
        })
    };
    let cells = program.line_ns.iter().map(cell).collect::<Result<Vec<Cell>>>()?;
    say!("{}", serde_json::to_string(&Measured { cells, missing })?);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stores::nvm::processor::CAN_FLUSH;

    /// A library whose flushes are system calls cannot be slowed down: it is left out.
    #[test]
    fn every_contender_flushes_its_lines_and_changes_only_its_bytes() {
        if !CAN_FLUSH {
            return;
        }
        const SMALL: Shape = Shape { files: 3, file_bytes: 100_000, change_bytes_max: 10_000 };
        let dir = tempfile::tempdir().unwrap();
        let (entrants, _) = open(dir.path(), SMALL).unwrap();
        assert!(entrants.len() >= 3);
        for Entrant { name, protocol } in entrants {
            let mut expected: Vec<Vec<u8>> = (0..SMALL.files).map(|file| protocol.read(file).unwrap()).collect();
            let mut random = Rng::with_seed(7);
            for n in 0..60 {
                let bytes = [n; 700];
                let changes = [0, 2].map(|file| {
                    let len = random.usize(1..=bytes.len());
                    Change { file, at: random.u64(..=SMALL.file_bytes - len as u64), bytes: &bytes[..len] }
                });
                let before = lines_so_far();
                protocol.transact(&changes).unwrap();
                let lines: usize = changes.iter().map(|change| change.bytes.len().div_ceil(64)).sum();
                assert!(lines_so_far() - before >= lines as u64, "{name}");
                for Change { file, at, bytes } in changes {
                    expected[file][at as usize..][..bytes.len()].copy_from_slice(bytes);
                }
                if n % 20 == 19 {
                    protocol.settle().unwrap();
                }
            }
            for (file, expected) in expected.iter().enumerate() {
                assert!(protocol.read(file).unwrap() == *expected, "{name}, file {file}");
            }
        }
    }
}
