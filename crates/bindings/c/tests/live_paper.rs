//! The programs of Table 1 of Procrastination Beats Prevention (HPL-2014-70), as `untorn-bench paper 004 table1` measures
//! them, killed again and again: the paper's equations hold for the heap that each kill leaves.
//!
//! `paper_iteration.hpp` states the equations. The program checks them itself when it begins on such a heap.

mod common;

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use common::hooked_programs::{compilers, program, wrapper};
use common::killed_programs::{Moments, kills};
use common::{crate_dir, cxx, link_with, run, skipped};
use untorn_testkit::{is_full, slice};

/// Kills of each program in a full run: 1,000 of all.
const KILLS_FULL: u64 = 250;
/// Keys of the map and of the list: in a full run as in Table 1.
const KEYS_FULL: u64 = 1_000_000;
const KEYS: u64 = 20_000;
/// The kills in which a control has to violate an equation, and in which the same stores with a log do not.
const CONTROL_KILLS: usize = 60;
const LOG_KILLS: usize = 20;

fn source(name: &str) -> PathBuf {
    crate_dir().join("../../tools/bench/src/live").join(name)
}

/// Adds the folders of the headers, and the macros.
fn with_sources<'c>(command: &'c mut Command, name: &str, macros: &[&str]) -> &'c mut Command {
    let skip_list = crate_dir().join("../../../examples/heap/skip_list");
    command.args(["-std=c++17", "-O2", "-I"]).arg(skip_list).args(macros).arg(source(name))
}

/// The program with hooks.
fn hooked(dir: &Path, compiler: &str, macros: &[&str]) -> PathBuf {
    let binary = dir.join(format!("map{}", macros.concat()));
    run(with_sources(&mut wrapper("untorn-c++", compiler), "live_map.cpp", macros).arg("-o").arg(&binary));
    binary
}

/// The program without hooks.
fn plain(dir: &Path, name: &str, macros: &[&str]) -> PathBuf {
    let binary = dir.join(format!("{name}{}", macros.concat()));
    run(link_with(with_sources(&mut cxx(), name, macros), &binary));
    binary
}

/// A program that is killed, and its heap.
struct Killed {
    binary: PathBuf,
    heap: PathBuf,
    threads: u64,
    keys: u64,
    /// Iterations so far, and threads that a kill found within one.
    iterations: u64,
    within: u64,
}

impl Killed {
    fn new(binary: PathBuf, threads: u64, keys: u64) -> Killed {
        let heap = binary.with_file_name(format!("heap-{threads}"));
        Killed { binary, heap, threads, keys, iterations: 0, within: 0 }
    }

    /// Starts the program, which checks the heap that the last kill has left, and kills it. An error has the equation
    /// that does not hold.
    fn kill(&mut self, moments: &mut Moments) -> Result<(), String> {
        let is_new = !self.heap.exists();
        let mut command = program(&self.binary);
        command.arg(&self.heap).arg("paper").args([self.keys, self.threads, 600_000].map(|number| number.to_string()));
        let mut child = command.stdout(Stdio::piped()).spawn().expect("a program");
        let mut lines = BufReader::new(child.stdout.take().expect("a pipe")).lines().map_while(Result::ok);
        let mut checked = false;
        let ended = loop {
            let Some(line) = lines.next() else { break Err("it ended by itself".to_owned()) };
            match line.split([' ', ',']).collect::<Vec<_>>()[..] {
                ["ready"] => break Ok(()),
                ["holds", iterations, .., within] => {
                    checked = true;
                    self.iterations = iterations.parse().expect("a number");
                    self.within += within.parse::<u64>().expect("a number");
                }
                _ => break Err(line),
            }
        };
        if ended.is_ok() {
            assert_ne!(checked, is_new, "it checks the heap of a killed program");
            std::thread::sleep(Duration::from_micros(moments.below(10_000)));
        }
        child.kill().expect("a child to kill");
        child.wait().expect("its end");
        ended
    }

    /// Kills the program until an equation does not hold.
    fn kill_until_violated(&mut self, moments: &mut Moments, most: usize) -> Option<String> {
        (0..most).find_map(|_| self.kill(moments).err())
    }
}

impl Drop for Killed {
    fn drop(&mut self) {
        if let Err(e) = untorn::offline::eject(&self.heap, &|_, _| {}) {
            println!("{}: {e}", self.heap.display());
        }
    }
}

/// The equations of the paper hold after each kill of exactly its programs.
#[test]
fn the_equations_hold_after_every_kill() {
    let mut moments = Moments::of_test();
    let (seed, kills) = (moments.seed, kills(if is_full() { KILLS_FULL } else { 5 }));
    let keys = if is_full() { KEYS_FULL } else { KEYS };
    let dir = tempfile::tempdir().expect("a temporary directory");
    let list = plain(dir.path(), "live_list.cpp", &[]);
    let mut programs = vec![(list, 8)];
    match slice(compilers(), 1, seed).first() {
        None => skipped("no compiler has hooks here"),
        Some((_, compiler)) => {
            let map = hooked(dir.path(), compiler, &[]);
            println!("the map by {compiler}");
            programs.extend([1, 2, 8].map(|threads| (map.clone(), threads)));
        }
    }
    let mut all = 0;
    for (binary, threads) in programs {
        let name = binary.file_name().expect("a name").to_string_lossy().into_owned();
        let dir = tempfile::tempdir_in(dir.path()).expect("a temporary directory");
        let mut killed = Killed::new(binary, threads, keys);
        killed.heap = dir.path().join("heap");
        // The start after the last kill checks the heap, too.
        for round in 0.. {
            // More than these only until a kill has found a thread within an iteration.
            if round > kills && killed.iterations > kills && killed.within > 0 {
                break;
            }
            assert!(round < kills + 200, "{} iterations, {} threads within one", killed.iterations, killed.within);
            let ended = killed.kill(&mut moments);
            ended.unwrap_or_else(|why| panic!("{name}, {threads} threads, seed {seed}, round {round}: {why}"));
        }
        let Killed { iterations, within, .. } = killed;
        println!(
            "{name}, {threads} threads, {keys} keys: {kills} kills, {iterations} iterations, {within} threads within one"
        );
        all += kills;
    }
    println!("{all} kills: the equations hold");
}

/// The controls: a program that sets its counters in another order, and one without a log, violate the equations.
#[test]
fn without_order_or_log_the_equations_do_not_hold() {
    let mut moments = Moments::of_test();
    let dir = tempfile::tempdir().expect("a temporary directory");
    let controls = [("live_list.cpp", &["-DSWAPPED"][..], 2), ("live_map.cpp", &["-DSLOW", "-DNO_LOG"], 3)];
    for (name, macros, equation) in controls {
        let mut killed = Killed::new(plain(dir.path(), name, macros), 8, KEYS);
        killed.heap = dir.path().join(format!("control-{equation}"));
        let found = killed
            .kill_until_violated(&mut moments, CONTROL_KILLS)
            .unwrap_or_else(|| panic!("{name} {macros:?} holds"));
        assert!(found.starts_with(&format!("violated ({equation})")), "{name} {macros:?}: {found}");
        println!("{name} {macros:?}: {found}");
    }
    // The same stores with a log.
    if let Some((_, compiler)) = slice(compilers(), 1, moments.seed).first() {
        let mut killed = Killed::new(hooked(dir.path(), compiler, &["-DSLOW"]), 8, KEYS);
        assert_eq!(killed.kill_until_violated(&mut moments, LOG_KILLS), None);
    }
}
