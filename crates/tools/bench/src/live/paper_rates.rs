//! Rates of paper 004: its iteration of a map and of a lock-free list, three kernels, and memcached, each with no
//! protection, with the log, and with the log and a flush of each record.

use crate::live::programs::{Built, Programs, build};
use crate::measuring::bench_run::Run;
use crate::measuring::fs::Place;
use crate::measuring::scratch::Scratch;
use anyhow::{Context, Result, ensure};
use std::path::{Path, PathBuf};
use std::process::Command;

pub const NO_PROTECTION: &str = "no protection";
pub const LOG: &str = "Untorn";
pub const LOG_AND_FLUSH: &str = "log and one flush";
pub const POOL: &str = "libpmemobj";

/// The rates of each contender: one for each round.
pub type Rates = Vec<(&'static str, Vec<f64>)>;

/// The compiler, and the rates of each cell.
pub struct Cells {
    pub compiler: String,
    pub cells: Vec<(String, Rates)>,
}

/// A cell: the contenders, and the program of each.
struct Asked<'a> {
    name: String,
    contenders: Vec<(&'static str, &'a str)>,
    work: (&'a str, u64, u64),
}

/// Measures cells, in each round all contenders in turns.
fn in_turns(
    programs: &Programs<'_>,
    place: &Place,
    asked: &[Asked<'_>],
    rounds: usize,
) -> Result<Vec<(String, Rates)>> {
    let measure = |asked: &Asked<'_>| {
        let contenders: Vec<_> = asked.contenders.iter().filter(|(_, way)| programs.has(way)).collect();
        let mut rates: Rates = contenders.iter().map(|(name, _)| (*name, Vec::new())).collect();
        for round in 0..rounds {
            programs.run.progress.cell(format!("{}: live, {}, run {} of {rounds}", place.name, asked.name, round + 1));
            for turn in 0..contenders.len() {
                let who = (turn + round) % contenders.len();
                rates[who].1.push(programs.rate(contenders[who].1, asked.work)?);
            }
        }
        Ok((asked.name.clone(), rates))
    };
    asked.iter().map(measure).collect()
}

fn with_programs<T>(run: &Run, place: &Place, then: impl FnOnce(&Programs<'_>) -> Result<T>) -> Result<T> {
    let Built { scratch, compilers } = build(run, place, 1)?;
    let dir = place.directory("live")?;
    let measured = then(&Programs { run, dir: &dir, scratch: scratch.path(), compiler: &compilers[0] })?;
    std::fs::remove_dir_all(&dir)?;
    Ok(measured)
}

/// Measures the paper's iteration for each number of threads, in the map and in the lock-free list.
pub fn iterations(run: &Run, place: &Place, keys: u64, threads: &[u64], rounds: usize) -> Result<[Cells; 2]> {
    let map = [(LOG, "log"), (NO_PROTECTION, "plain"), (LOG_AND_FLUSH, "once"), (POOL, "pool")];
    let list = [(LOG, "list"), (NO_PROTECTION, "plain-list")];
    with_programs(run, place, |programs| {
        let cells = |contenders: &[(&'static str, &'static str)]| {
            let ask = |threads: &u64| Asked {
                name: format!("{threads} thread{}", if *threads == 1 { "" } else { "s" }),
                contenders: contenders.to_vec(),
                work: ("paper", keys, *threads),
            };
            let asked: Vec<Asked<'_>> = threads.iter().map(ask).collect();
            let cells = in_turns(programs, place, &asked, rounds)?;
            Ok::<_, anyhow::Error>(Cells { compiler: programs.compiler.to_owned(), cells })
        };
        Ok([cells(&map)?, cells(&list)?])
    })
}

/// The kernels: name, the word of the program, size, size of a quick run.
const KERNELS: [(&str, &str, u64, u64); 3] =
    [("LU", "lu", 512, 64), ("radix sort", "radix", 1_000_000, 20_000), ("molecules", "water", 501, 51)];
const THREADS: u64 = 2;

/// The directory in which `make ports` has built memcached: the variable's, or the usual one beside this program's.
const PORTS: &str = "UNTORN_BENCH_PORTS";
pub const MEMCACHED: &str = "memcached";
/// The cell of the means of all programs.
pub const MEAN: &str = "geometric mean";

fn ports() -> Result<Option<PathBuf>> {
    if let Some(dir) = std::env::var_os(PORTS) {
        return Ok(Some(dir.into()));
    }
    let program = std::env::current_exe()?;
    let usual = program.ancestors().nth(2).map(|target| target.join("ports"));
    Ok(usual.filter(|dir| dir.join("memcached.port/kill").exists()))
}

/// Measures the kernels, and memcached if it was built; the last cell is the mean.
pub fn kernels(run: &Run, place: &Place, rounds: usize) -> Result<Cells> {
    with_programs(run, place, |programs| {
        let ask = |(name, word, size, size_quick): &(&str, &'static str, u64, u64)| Asked {
            name: (*name).to_owned(),
            contenders: vec![(LOG, "log-kernels"), (NO_PROTECTION, "plain-kernels"), (LOG_AND_FLUSH, "once-kernels")],
            work: (word, if run.quick { *size_quick } else { *size }, THREADS),
        };
        let asked: Vec<Asked<'_>> = KERNELS.iter().map(ask).collect();
        let mut cells = in_turns(programs, place, &asked, rounds)?;
        if let Some(ports) = ports()? {
            run.progress.cell(format!("{}: live, {MEMCACHED}", place.name));
            cells.push((MEMCACHED.to_owned(), memcached(run, &ports, rounds)?));
        }
        cells.push((MEAN.to_owned(), means(&cells)));
        Ok(Cells { compiler: programs.compiler.to_owned(), cells })
    })
}

/// The geometric means of cells, in each round, of the contenders that all cells have.
fn means(cells: &[(String, Rates)]) -> Rates {
    let rates_of = |name: &str| -> Option<Vec<&Vec<f64>>> {
        let of = |(_, rates): &'_ (String, Rates)| rates.iter().position(|(one, _)| *one == name);
        cells.iter().map(|cell| of(cell).map(|at| &cell.1[at].1)).collect()
    };
    let mean = |all: &[&Vec<f64>], round: usize| {
        (all.iter().map(|rates| rates[round].ln()).sum::<f64>() / all.len() as f64).exp()
    };
    let names = cells.first().map_or(&[][..], |(_, rates)| rates);
    let means = names.iter().filter_map(|(name, rates)| {
        let all = rates_of(name)?;
        Some((*name, (0..rates.len()).map(|round| mean(&all, round)).collect()))
    });
    means.collect()
}

/// Measures memcached: its sets in a second. The program that measures removes the heap.
fn memcached(run: &Run, ports: &Path, rounds: usize) -> Result<Rates> {
    let scratch = Scratch::new_in(&std::env::temp_dir())?;
    let (keys, seconds) = if run.quick { ("1000", "1") } else { ("20000", "2") };
    let all = [(LOG, "port"), (NO_PROTECTION, "plain"), (LOG_AND_FLUSH, "flush")];
    let here = all.into_iter().map(|(name, kind)| (name, kind, ports.join(format!("memcached.{kind}"))));
    let here: Vec<_> = here.filter(|(.., dir)| dir.join("kill").exists()).collect();
    ensure!(here.len() > 1, "{}: no memcached; `make ports` builds it", ports.display());
    let mut rates: Rates = here.iter().map(|(name, ..)| (*name, Vec::new())).collect();
    for round in 0..rounds {
        for turn in 0..here.len() {
            let who = (turn + round) % here.len();
            let (_, kind, dir) = &here[who];
            let heap = scratch.path().join("heap");
            let mut command = Command::new(dir.join("kill"));
            command.arg("load").arg(dir.join(MEMCACHED));
            command.arg(if *kind == "plain" { Path::new("-") } else { &heap }).args([keys, seconds]);
            let output = command.output()?;
            ensure!(output.status.success(), "{MEMCACHED} {kind}: {}", String::from_utf8_lossy(&output.stderr));
            let text = String::from_utf8(output.stdout)?;
            rates[who].1.push(text.split_whitespace().next().context("no figure")?.parse()?);
        }
    }
    Ok(rates)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn means_are_geometric_and_of_contenders_that_all_cells_have() {
        let cell = |name: &str, rates: Rates| (name.to_owned(), rates);
        let cells = [
            cell("a", vec![(LOG, vec![1.0, 4.0]), (NO_PROTECTION, vec![2.0, 2.0])]),
            cell("b", vec![(LOG, vec![4.0, 16.0])]),
        ];
        let means = means(&cells);
        assert_eq!(means.len(), 1);
        assert_eq!(means[0].0, LOG);
        assert!((means[0].1[0] - 2.0).abs() < 1e-9 && (means[0].1[1] - 8.0).abs() < 1e-9, "{means:?}");
    }
}
