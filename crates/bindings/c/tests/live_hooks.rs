//! Programs that untorn-cc and untorn-c++ compile: the stores that their hooks see, and the sections that a kill
//! leaves.

mod common;

use std::collections::BTreeSet;
use std::fs;
use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Duration;

use common::hooked_programs::{compilers, program, version, wrapper};
use common::killed_programs::{Moments, killed_after_pause, kills};
use common::{cc, crate_dir, link_with, output_of, run, skipped};
use untorn_testkit::{drawn_seed, slice};

fn source(name: &str) -> PathBuf {
    crate_dir().join("tests/live").join(name)
}

/// The stores that no hook announces: assembly, which has no hooks; complex numbers, whose stores vary with gcc; and
/// with gcc 14 a function's result in memory, if it is written to its destination directly. docs/LIVE_HEAPS.md lists
/// the same.
fn missed(compiler: &str, flags: &[&str]) -> BTreeSet<String> {
    let mut missed = BTreeSet::new();
    if cfg!(target_arch = "x86_64") {
        missed.insert("assembly");
    }
    if compiler.starts_with("gcc") {
        let is_new = version(compiler) > 12;
        missed.extend((is_new || flags != ["-O0"]).then_some("complex_number"));
        missed.extend(["assign_large", "return_into"].into_iter().filter(|_| is_new));
    }
    missed.into_iter().map(str::to_owned).collect()
}

/// The zoo of stores: each kind is announced, by each compiler, however it optimises.
#[test]
fn hooks_see_every_store() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let wide: &[&str] = match fs::read_to_string("/proc/cpuinfo").unwrap_or_default() {
        cpu if cpu.contains(" avx512f ") => &["-O3", "-mavx512f", "-mavx2"],
        cpu if cpu.contains(" avx2 ") => &["-O3", "-mavx2"],
        _ => &["-O3"],
    };
    let all =
        compilers().iter().flat_map(|(compiler, _)| [&["-O0"][..], &["-O2"], wide].map(|flags| (compiler, flags)));
    for (compiler, flags) in slice(&all.collect::<Vec<_>>(), 4, drawn_seed()) {
        let binary = dir.path().join(format!("{compiler}{}", flags.concat()));
        let mut command = wrapper("untorn-cc", compiler);
        // The sources of this test compute nothing.
        command.args(["-std=gnu11", "-Wno-psabi"]).args(flags).arg(source("zoo.c"));
        run(command.arg("-o").arg(&binary));
        let text = output_of(program(&binary).arg(dir.path().join("heap")));
        let all: usize = text.lines().last().and_then(|line| line.parse().ok()).expect("a number");
        assert!(all > 55, "{text}");
        let of = |word: &str| text.lines().filter_map(|line| line.strip_prefix(word)).map(str::to_owned).collect();
        let (nothing, found): (BTreeSet<String>, BTreeSet<String>) = (of("nothing "), of("missed "));
        assert!(nothing.is_empty(), "{compiler} {flags:?}: these change nothing: {nothing:?}");
        assert_eq!(found, missed(compiler, flags), "{compiler} {flags:?}");
        println!("{compiler} {flags:?}: {all} kinds of stores, {found:?} not seen");
        // The same for an ordinary heap with the tracker `explicit`.
        let text = output_of(program(&binary).arg("told").arg(dir.path().join("told")));
        let of = |word: &str| text.lines().filter_map(|line| line.strip_prefix(word)).map(str::to_owned).collect();
        let (nothing, found): (BTreeSet<String>, BTreeSet<String>) = (of("nothing "), of("missed "));
        assert!(nothing.is_empty() && text.lines().last() == Some(&all.to_string()), "{text}");
        assert_eq!(found, missed(compiler, flags), "{compiler} {flags:?}, told");
        fs::remove_file(dir.path().join("told")).expect("a heap");
    }
}

/// Containers of the standard library, taken back byte by byte.
#[test]
fn containers_are_taken_back_whole() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let mut ways = Vec::new();
    for (_, compiler) in compilers() {
        ways.push((compiler, vec!["-O2"]));
        if compiler.starts_with("clang++") && common::libcxx().is_some() {
            ways.push((compiler, vec!["-O2", "-stdlib=libc++"]));
        }
    }
    for (compiler, flags) in slice(&ways, 1, drawn_seed()) {
        let binary = dir.path().join(format!("{compiler}{}", flags.concat()));
        let mut command = wrapper("untorn-c++", compiler);
        run(command.arg("-std=c++17").args(&flags).arg(source("containers.cpp")).arg("-o").arg(&binary));
        assert_eq!(output_of(program(&binary).arg(dir.path().join("heap")).arg("80")), "80\n");
        fs::remove_file(dir.path().join("heap")).expect("a heap");
    }
}

const MISSING: &str = r#"
#include <stdlib.h>
#include <untorn.h>
int main(int argc, char **argv) {
    untorn_heap_options options = {.size = sizeof options, .flags = UNTORN_HEAP_LIVE | UNTORN_CREATE};
    untorn_heap *heap = untorn_heap_open(argv[argc - 1], &options, NULL);
    long *n = untorn_heap_malloc(heap, 16);
    untorn_mutex mutex = {{0}};
    if (untorn_mutex_lock(&mutex)) return 7;
    *n = 5;
#ifdef SECRET
    __asm__ volatile("movq $5, (%0)" : : "r"(n + 1) : "memory");
#endif
    if (untorn_mutex_unlock(&mutex) || untorn_heap_close(heap)) return 8;
    return 0;
}
"#;

/// A program without hooks cannot have sections; with the audit, a store that no hook saw is reported.
#[test]
fn what_is_not_seen_is_not_trusted() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let (file, heap) = (dir.path().join("missing.c"), dir.path().join("heap"));
    fs::write(&file, MISSING).expect("a source");
    let plain = dir.path().join("plain");
    run(link_with(cc().arg(&file), &plain));
    assert_eq!(Command::new(&plain).arg(&heap).status().expect("a program").code(), Some(7));
    for (compiler, _) in compilers() {
        for secret in [false, true] {
            let binary = dir.path().join(format!("{compiler}{secret}"));
            let mut command = wrapper("untorn-cc", compiler);
            command.arg("-O2").arg(&file).arg("-o").arg(&binary);
            if secret && cfg!(target_arch = "x86_64") {
                command.arg("-DSECRET");
            }
            run(&mut command);
            assert!(program(&binary).arg(&heap).status().expect("a program").success(), "{compiler}, {secret}");
            let audit = program(&binary).arg(&heap).env("UNTORN_SECTION_AUDIT", "1").output().expect("a program");
            let told = String::from_utf8_lossy(&audit.stderr);
            match secret && cfg!(target_arch = "x86_64") {
                true => assert!(!audit.status.success() && told.contains("audit: a section stored to"), "{told}"),
                false => assert!(audit.status.success(), "{told}"),
            }
        }
    }
}

/// The wrapper reports unsupported uses.
#[test]
fn the_wrapper_refuses_what_would_not_work() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let file = dir.path().join("empty.c");
    fs::write(&file, "int main(void) { return 0; }\n").expect("a source");
    for (flag, why) in [("-shared", "shared library"), ("-flto", "link-time")] {
        let refused = wrapper("untorn-cc", "cc").arg(flag).arg(&file).output().expect("the wrapper");
        let told = String::from_utf8_lossy(&refused.stderr);
        assert!(!refused.status.success() && told.contains(why), "{told}");
    }
    let shown = output_of(wrapper("untorn-cc", "cc").arg("--show"));
    assert!(shown.contains("-fsanitize=kernel-address") && shown.contains("--wrap=memcpy"), "{shown}");
    let refused = wrapper("untorn-cc", "no-such-compiler").arg(&file).output().expect("the wrapper");
    assert!(String::from_utf8_lossy(&refused.stderr).contains("UNTORN_CC"));
    let object = dir.path().join("empty.o");
    run(wrapper("untorn-cc", "cc").arg("-c").arg(&file).arg("-o").arg(&object));
    run(wrapper("untorn-cc", "cc").arg(&object).arg("-o").arg(dir.path().join("empty")));
}

/// `std::map` and `std::unordered_map` under locks, killed again and again.
#[test]
fn a_ledger_is_whole_after_every_kill() {
    let mut random = Moments::of_test();
    let (seed, kills) = (random.seed, kills(20));
    let dir = tempfile::tempdir().expect("a temporary directory");
    for (_, compiler) in &slice(compilers(), 1, random.seed) {
        let (binary, heap) = (dir.path().join(compiler), dir.path().join(format!("{compiler}.heap")));
        let mut command = wrapper("untorn-c++", compiler);
        let file = crate_dir().join("../../../examples/heap/ledger/ledger.cpp");
        run(command.args(["-std=c++17", "-O2"]).arg(file).arg("-o").arg(&binary));
        let mut done = [0u64; 16];
        let mut last = 0;
        for round in 0..kills {
            let threads = if round % 2 == 0 { "2" } else { "4" };
            let mut child =
                program(&binary).arg(&heap).arg(threads).stdout(Stdio::piped()).spawn().expect("the example");
            let mut out = BufReader::new(child.stdout.take().expect("a pipe"));
            let mut line = String::new();
            out.read_line(&mut line).expect("a line");
            let next: u64 = line.strip_prefix("ready ").and_then(|n| n.trim().parse().ok()).unwrap_or_else(|| {
                panic!("{compiler}, seed {seed}, round {round}: {line:?}, {:?}", child.wait());
            });
            assert!(next >= last, "{compiler}, seed {seed}, round {round}: {next} after {last}");
            for (thread, n) in killed_after_pause(child, out, Duration::from_micros(random.below(8000))) {
                // Any thread may print this line: the one that notices it.
                done[thread] = n.max(done[thread]);
            }
            last = done.iter().sum();
        }
        println!("{compiler}: {kills} kills, at least {last} transfers");
        // Each process has printed a line, and a thread prints one for 16 transfers.
        assert!(last >= 16 * kills, "{done:?}");
        // All of its stores are seen.
        let mut audited = program(&binary)
            .arg(&heap)
            .arg("2")
            .env("UNTORN_SECTION_AUDIT", "1")
            .stdout(Stdio::piped())
            .spawn()
            .expect("the example");
        let out = BufReader::new(audited.stdout.take().expect("a pipe"));
        assert_eq!(out.lines().map_while(Result::ok).take(6).count(), 6, "{compiler}: it went on under the audit");
        audited.kill().expect("a child to kill");
        audited.wait().expect("its end");
        untorn::offline::eject(&heap, &|_, _| {}).expect("an end");
    }
    if compilers().is_empty() {
        skipped("no compiler has hooks here");
    }
}

/// A program that uses pthread locks only, unchanged, killed again and again.
#[test]
fn locks_of_pthread_make_sections() {
    let mut random = Moments::of_test();
    let (seed, kills) = (random.seed, kills(30));
    let dir = tempfile::tempdir().expect("a temporary directory");
    for (compiler, _) in compilers() {
        let (binary, heap) = (dir.path().join(compiler), dir.path().join(format!("{compiler}.heap")));
        let mut command = wrapper("untorn-cc", compiler);
        command.env("UNTORN_PTHREAD", "1").args(["-std=gnu11", "-O2"]);
        run(command.arg(source("pthread_bank.c")).arg("-o").arg(&binary));
        let mut done = [0u64; 16];
        for round in 0..kills {
            let what = format!("{compiler}, seed {seed}, round {round}");
            let threads = if round % 2 == 0 { "2" } else { "4" };
            let mut child = program(&binary).arg(&heap).arg(threads).stdout(Stdio::piped()).spawn().expect("a program");
            let mut out = BufReader::new(child.stdout.take().expect("a pipe"));
            let mut line = String::new();
            loop {
                line.clear();
                // The program checks the bank itself, and prints an error.
                assert_ne!(out.read_line(&mut line).expect("a line"), 0, "{what}: it ended by itself");
                match line.split_whitespace().collect::<Vec<_>>()[..] {
                    ["begun", how] => assert_eq!(how, if round == 0 { "1" } else { "2" }, "{what}"),
                    // Where locks are released early, a section that has ended need not be stable yet, and the
                    // printing thread does not wait for that. So the number may be less than the one printed before.
                    ["has", thread, last] => {
                        done[thread.parse::<usize>().expect("a thread")] = last.parse().expect("a number");
                    }
                    ["ready"] => {}
                    // The first sections of a process take longer.
                    ["did", ..] => break,
                    _ => panic!("{what}: {line}"),
                }
            }
            std::thread::sleep(Duration::from_micros(random.below(8000)));
            child.kill().expect("a child to kill");
            child.wait().expect("its end");
        }
        println!("{compiler}: {kills} kills, {done:?} transfers");
        assert!(done.iter().sum::<u64>() > 100);
        untorn::offline::eject(&heap, &|_, _| {}).expect("an end");
    }
}

/// Constructors before `main`, calls that wait, forks, locks from before the heap was open: `corners.c` checks each.
#[test]
fn corners_of_hooks_and_locks() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    for (compiler, _) in compilers() {
        let binary = dir.path().join(compiler);
        let mut command = wrapper("untorn-cc", compiler);
        command.env("UNTORN_PTHREAD", "1").args(["-std=gnu11", "-O2"]);
        run(command.arg(source("corners.c")).arg("-o").arg(&binary));
        for (which, is_early) in [
            ("early_told", true),
            ("blocked_read", true),
            ("one_after_the_other", true),
            ("commit_that_waits", false),
            ("early_reader", false),
            ("clocks", false),
            ("forked", false),
            ("owner_died", false),
        ] {
            let heap = dir.path().join(format!("{compiler}.{which}"));
            let mut command = program(&binary);
            if is_early {
                command.env("EARLY", &heap);
            }
            let out = command.arg(which).arg(&heap).output().expect("a program");
            assert!(
                out.status.success(),
                "{compiler}, {which}: {}\n{}",
                out.status,
                String::from_utf8_lossy(&out.stderr)
            );
        }
    }
}
