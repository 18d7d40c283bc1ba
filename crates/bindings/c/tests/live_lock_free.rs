//! The lock-free skip list of `examples/heap`, killed again and again: every number is there, with all numbers that
//! it depends on.

mod common;

use std::fs;
use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};
use std::time::Duration;

use common::killed_programs::{Moments, killed_after_pause, kills};
use common::{crate_dir, cxx, link_with, run};

const THREADS: usize = 16;

#[test]
fn a_lock_free_skip_list_loses_nothing_and_keeps_its_order() {
    let mut random = Moments::of_test();
    let (seed, kills) = (random.seed, kills(40));
    let dir = tempfile::tempdir().expect("a temporary directory");
    let (binary, heap) = (dir.path().join("skip_list"), dir.path().join("heap"));
    run(link_with(cxx().arg("-O2").arg(crate_dir().join("../../../examples/heap/skip_list/skip_list.cpp")), &binary));
    let mut acknowledged = [0u64; THREADS];
    for round in 0..kills {
        let what = format!("seed {seed}, round {round}");
        let mut command = Command::new(&binary);
        command.arg(&heap).arg(if round % 2 == 0 { "2" } else { "4" }).stdout(Stdio::piped());
        // Every other time with a cut in the background.
        if random.below(2) == 0 {
            command.arg("3");
        }
        let mut child = command.spawn().expect("the example");
        let mut out = BufReader::new(child.stdout.take().expect("a pipe"));
        let mut line = String::new();
        loop {
            line.clear();
            // The program checks the list itself, and prints an error.
            assert_ne!(out.read_line(&mut line).expect("a line"), 0, "{what}: it ended by itself");
            match line.split_whitespace().collect::<Vec<_>>()[..] {
                ["begun", how] => assert_eq!(how, if round == 0 { "new" } else { "went-on" }, "{what}"),
                ["has", thread, last] => {
                    let (thread, last): (usize, u64) =
                        (thread.parse().expect("a thread"), last.parse().expect("a number"));
                    assert!(last >= acknowledged[thread], "{what}: {line}{acknowledged:?}");
                }
                ["ready"] => break,
                _ => panic!("{what}: {line}"),
            }
        }
        for (thread, last) in killed_after_pause(child, out, Duration::from_micros(random.below(10_000))) {
            acknowledged[thread] = last;
        }
    }
    println!("{kills} kills, put in at least {acknowledged:?}");
    // Each process has printed a line, and a thread prints one for 16 numbers.
    assert!(acknowledged.iter().sum::<u64>() >= (16 * kills).max(1001));
    // After a power cut the list is as of the last cut, and whole: the program checks it once more.
    let inspected = untorn::offline::inspect(&heap).expect("a heap");
    fs::remove_file(&inspected.live_memory[0].memory).expect("its memory");
    let mut child = Command::new(&binary).arg(&heap).arg("2").stdout(Stdio::piped()).spawn().expect("the example");
    let out = BufReader::new(child.stdout.take().expect("a pipe"));
    let lines: Vec<String> = out.lines().map_while(Result::ok).take_while(|line| line != "ready").collect();
    child.kill().expect("a child to kill");
    child.wait().expect("its end");
    assert!(lines.len() == THREADS + 1 && lines[0] == "begun last-cut", "{lines:?}");
    untorn::offline::eject(&heap, &|_, _| {}).expect("an end");
}
