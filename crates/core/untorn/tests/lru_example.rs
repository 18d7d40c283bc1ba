//! The cache of `examples/heap/lru`, killed repeatedly: it has everything that it has printed. Also the program of the
//! tutorial.

mod common;

use common::*;
use fastrand::Rng;
use std::collections::VecDeque;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

const CAPACITY: usize = 20;

/// A cache in memory, most recently used first.
#[derive(Clone, Default)]
struct Model(VecDeque<(String, String)>);

impl Model {
    fn output(&mut self, line: &str) -> String {
        let words: Vec<&str> = line.split(' ').collect();
        let at = words.get(1).and_then(|key| self.0.iter().position(|(k, _)| k == key));
        match words[..] {
            ["put", key, value] => {
                at.map(|at| self.0.remove(at));
                self.0.push_front((key.to_owned(), value.to_owned()));
                self.0.truncate(CAPACITY);
                "ok".to_owned()
            }
            ["get", _] => {
                let Some(entry) = at.and_then(|at| self.0.remove(at)) else { return "none".to_owned() };
                self.0.push_front(entry);
                self.0[0].1.clone()
            }
            _ => self.0.iter().map(|(key, value)| format!("{key}={value} ")).collect(),
        }
    }
}

fn start(example: &Path, heap: &Path) -> Child {
    let mut command = Command::new(example);
    command.arg(heap).arg(CAPACITY.to_string()).stdin(Stdio::piped()).stdout(Stdio::piped());
    command.spawn().expect("the example")
}

#[test]
fn what_the_cache_has_answered_it_still_has_after_a_kill() {
    let seed = seed();
    let rng = &mut Rng::with_seed(seed);
    let (dir, example) = (directory(), untorn_testkit::example("untorn", "lru"));
    let heap = dir.path().join("heap");
    let mut model = Model::default();
    let mut lines_printed = 0;
    for round in 0..40 {
        let mut child = start(&example, &heap);
        let mut input = child.stdin.take().expect("a pipe");
        let mut printed = BufReader::new(child.stdout.take().expect("a pipe")).lines();
        let mut ask = |lines: &[String]| input.write_all((lines.join("\n") + "\n").as_bytes());
        ask(&["list".to_owned()]).expect("a question");
        let first = printed.next().expect("a line").expect("text");
        assert_eq!(first, model.output("list"), "seed {seed}, round {round}");
        // The lines of each batch; of the batch during the kill, any number of first lines may be there.
        for _ in 0..rng.usize(..12) {
            let batch: Vec<String> = (0..rng.usize(1..6)).map(|_| line(rng)).collect();
            ask(&batch).expect("a question");
            for line in &batch {
                let output = printed.next().expect("a line").expect("text");
                assert_eq!(output, model.output(line), "seed {seed}, round {round}: {line}");
                lines_printed += 1;
            }
        }
        let last: Vec<String> = (0..rng.usize(1..6)).map(|_| line(rng)).collect();
        ask(&last).expect("a question");
        std::thread::sleep(Duration::from_micros(rng.u64(..1500)));
        child.kill().expect("a child to kill");
        child.wait().expect("its end");
        let acknowledged = printed.map_while(Result::ok).count();
        let states: Vec<Model> = std::iter::once(model.clone())
            .chain(last.iter().map(|line| {
                model.output(line);
                model.clone()
            }))
            .collect();
        // The present contents show which of these states it is.
        let mut child = start(&example, &heap);
        child.stdin.take().expect("a pipe").write_all(b"list\n").expect("a question");
        let output = child.wait_with_output().expect("its end");
        let found = String::from_utf8(output.stdout).expect("text");
        let mut allowed = states[acknowledged..].iter();
        let state = allowed.find(|state| (*state).clone().output("list") == found.trim_end_matches('\n'));
        model = state
            .unwrap_or_else(|| panic!("seed {seed}, round {round}: after {acknowledged} of {last:?}: {found}"))
            .clone();
    }
    println!("seed {seed}: {lines_printed} lines before kills");
    assert!(lines_printed > 100);
}

fn line(rng: &mut Rng) -> String {
    let key = format!("key{}", rng.u32(..40));
    if rng.u32(..3) == 0 { format!("get {key}") } else { format!("put {key} {}", "v".repeat(rng.usize(1..200))) }
}

/// The tutorial's program in Rust: everything that it has printed survives a kill.
#[test]
fn the_tutorials_scores_are_kept() {
    let program = untorn_testkit::example("untorn", "scores");
    let dir = directory();
    let mut total = 0;
    for round in 1..=3 {
        let mut command = Command::new(&program);
        command.arg(dir.path().join("players.heap")).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().expect("the program");
        let mut out = BufReader::new(child.stdout.take().expect("its output"));
        for (points, games) in [(3, 2 * round - 1), (4, 2 * round)] {
            total += points;
            writeln!(child.stdin.as_mut().expect("its input"), "anna {points}").expect("a line");
            let mut line = String::new();
            out.read_line(&mut line).expect("a line");
            assert_eq!(line.trim_end(), format!("{total} points in {games} games"));
        }
        child.kill().expect("killed");
        child.wait().expect("its end");
    }
}
