//! The examples of `examples/heap` and the programs of the tutorial, built as a reader builds them and killed many
//! times: everything that they have acknowledged is kept.

mod common;

use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use common::{cc, crate_dir, cxx, link_with, output_of, run};
use untorn_testkit::variable_or;

fn example(path: &str) -> PathBuf {
    crate_dir().join("../../../examples/heap").join(path)
}

fn build(source: &str, directory: &Path) -> PathBuf {
    let source = example(source);
    let mut compiler = if source.extension().is_some_and(|e| e == "cpp") { cxx() } else { cc() };
    let binary = directory.join(source.file_stem().expect("a name"));
    run(link_with(compiler.arg(&source), &binary));
    binary
}

/// Random numbers, the same for the same seed.
struct Chance(u64);

impl Chance {
    fn new() -> Chance {
        let seed = variable_or("UNTORN_TEST_SEED", 1);
        println!("UNTORN_TEST_SEED={seed}");
        Chance(seed)
    }

    fn below(&mut self, n: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb) % n
    }
}

/// A running service and a client connected to it.
struct Service {
    child: Child,
    send: UnixStream,
    replies: BufReader<UnixStream>,
}

impl Service {
    fn start(binary: &Path, dir: &Path) -> Service {
        let socket = dir.join("socket");
        let mut child = Command::new(binary)
            .arg(dir.join("heap"))
            .arg(&socket)
            .stdout(Stdio::piped())
            .spawn()
            .expect("the service");
        let mut said = String::new();
        // The service prints the number of words when it accepts clients.
        BufReader::new(child.stdout.take().expect("a pipe")).read_line(&mut said).expect("a line");
        assert!(said.ends_with(" words\n"), "{said}");
        let send = UnixStream::connect(socket).expect("a connection");
        let replies = BufReader::new(send.try_clone().expect("a copy"));
        Service { child, send, replies }
    }

    fn reply(&mut self) -> Option<String> {
        let mut line = String::new();
        self.replies.read_line(&mut line).ok().filter(|_| line.pop() == Some('\n')).map(|_| line)
    }

    fn ask(&mut self, line: &str) -> String {
        writeln!(self.send, "{line}").expect("a request");
        self.reply().expect("a reply")
    }

    /// Kills the service; returns the replies received until then.
    fn kill(mut self) -> Vec<String> {
        self.child.kill().expect("a child to kill");
        self.child.wait().expect("its end");
        std::iter::from_fn(|| self.reply()).collect()
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        // No process is left, also after a failed test.
        let _ = self.child.kill().and_then(|()| self.child.wait());
    }
}

type Counts = BTreeMap<String, u64>;

fn count(counts: &mut Counts, text: &str) {
    text.split(' ').for_each(|word| *counts.entry(word.to_owned()).or_default() += 1);
}

#[test]
fn the_word_count_service_keeps_everything_that_it_has_acknowledged() {
    let dir = tempfile::tempdir().expect("a directory");
    let binary = build("wordcount/wordcount.cpp", dir.path());
    let mut chance = Chance::new();
    let mut counts = Counts::new();
    let text = |chance: &mut Chance| {
        let words: Vec<String> = (0..1 + chance.below(5))
            .map(|_| {
                let n = chance.below(40);
                "w".repeat(1 + n as usize % 30) + &n.to_string()
            })
            .collect();
        words.join(" ")
    };
    for round in 0..40 {
        let mut service = Service::start(&binary, dir.path());
        for _ in 0..chance.below(15) {
            let line = text(&mut chance);
            let words = line.split(' ').count().to_string();
            assert_eq!(service.ask(&format!("add {line}")), words);
            count(&mut counts, &line);
        }
        // Several requests at once, and then a kill at a random moment.
        let last: Vec<String> = (0..1 + chance.below(4)).map(|_| text(&mut chance)).collect();
        let all: String = last.iter().map(|line| format!("add {line}\n")).collect();
        service.send.write_all(all.as_bytes()).expect("a request");
        std::thread::sleep(Duration::from_micros(chance.below(1200)));
        let acknowledged = service.kill().len();
        let mut states = vec![counts.clone()];
        for line in &last {
            count(&mut counts, line);
            states.push(counts.clone());
        }
        let mut service = Service::start(&binary, dir.path());
        let mut top = vec![service.ask("top 1000")];
        while top.last().is_some_and(|line| line != ".") {
            top.push(service.reply().expect("a reply"));
        }
        let lines = top.iter().filter_map(|line| line.split_once(' '));
        let found: Counts = lines.map(|(n, word)| (word.to_owned(), n.parse().expect("a number"))).collect();
        assert!(states[acknowledged..].contains(&found), "round {round}: {acknowledged} of {last:?}: {found:?}");
        counts = found;
        if let Some((word, n)) = counts.iter().next() {
            assert_eq!(service.ask(&format!("count {word}")), n.to_string());
        }
        service.kill();
    }
    assert!(counts.values().sum::<u64>() > 100);
}

#[test]
fn the_to_do_list_is_forty_lines_and_keeps_what_it_has_printed() {
    let source = fs::read_to_string(example("todo/todo.c")).expect("the source");
    assert!(source.lines().count() <= 40);
    let dir = tempfile::tempdir().expect("a directory");
    let binary = build("todo/todo.c", dir.path());
    let todo = |arguments: &[&str]| {
        let mut command = Command::new(&binary);
        command.args(arguments).current_dir(dir.path());
        command
    };
    let mut chance = Chance::new();
    let mut items: Vec<(u64, bool, String)> = Vec::new();
    let mut last_number = 0;
    assert_eq!(output_of(&mut todo(&["list"])), "");
    let started = Instant::now();
    output_of(&mut todo(&["list"]));
    let usual_us = started.elapsed().as_micros() as u64;
    let mut killed = 0;
    for round in 0..60 {
        let number = items.get(chance.below(1 + items.len() as u64) as usize).map(|item| item.0);
        let (mut after, what) = (items.clone(), number.map_or(format!("thing {round}"), |number| number.to_string()));
        let command = match number {
            None => {
                after.push((last_number + 1, false, what.clone()));
                "add"
            }
            Some(number) if chance.below(2) == 0 => {
                after.retain(|item| item.0 != number);
                "remove"
            }
            Some(number) => {
                after.iter_mut().filter(|item| item.0 == number).for_each(|item| item.1 = true);
                "done"
            }
        };
        let mut child = todo(&[command, &what]).stdout(Stdio::null()).spawn().expect("the program");
        std::thread::sleep(Duration::from_micros(chance.below(usual_us)));
        child.kill().expect("a child to kill");
        let finished = child.wait().expect("its end").success();
        killed += u32::from(!finished);
        let print = |items: &[(u64, bool, String)]| -> String {
            items
                .iter()
                .map(|(number, done, text)| format!("{number} [{}] {text}\n", if *done { 'x' } else { ' ' }))
                .collect()
        };
        let found = output_of(&mut todo(&["list"]));
        if found == print(&after) {
            last_number += u64::from(command == "add");
            items = after;
        } else {
            assert!(!finished && found == print(&items), "round {round}: {command} {what}: {found}");
        }
    }
    println!("{killed} of 60 were killed");
    assert!(killed > 0);
    let refused = todo(&["done", "1000"]).output().expect("the program");
    assert_eq!(refused.status.code(), Some(1));
}

/// Runs a program of the tutorial with these input lines, kills it after `moment_us`, and returns its output.
fn play(binary: &Path, dir: &Path, lines: &str, moment_us: Option<u64>) -> Vec<String> {
    let mut command = Command::new(binary);
    let mut child = command.current_dir(dir).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("the program");
    child.stdin.take().expect("a pipe").write_all(lines.as_bytes()).expect("its input");
    if let Some(moment_us) = moment_us {
        std::thread::sleep(Duration::from_micros(moment_us));
        child.kill().expect("a child to kill");
    }
    let output = child.wait_with_output().expect("its end");
    assert!(moment_us.is_some() || output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).expect("text").lines().map(str::to_owned).collect()
}

#[test]
fn the_tutorials_programs_run() {
    let dir = tempfile::tempdir().expect("a directory");
    let before = build("scores/before.cpp", dir.path());
    let after = build("scores/after.cpp", dir.path());
    let later = build("scores/later.cpp", dir.path());
    let anna = |points: u64, games: u64| format!("anna: {points} points in {games} games");
    assert_eq!(play(&before, dir.path(), "anna 3\nanna 4\n", None), [anna(3, 1), anna(7, 2)]);
    assert_eq!(play(&before, dir.path(), "anna 3\n", None), [anna(3, 1)]);

    let refused = "anna has too few points".to_owned();
    assert_eq!(
        play(&after, dir.path(), "anna -1\nanna 3\nanna -4\nanna 1\n", None),
        [refused.clone(), anna(3, 1), refused, anna(4, 2)]
    );
    let mut chance = Chance::new();
    // `games` are known to be kept. Of the `unknown` runs that were killed since then, each may have committed one
    // more.
    let (mut games, mut unknown) = (2, 0);
    for round in 0.. {
        // Longer on a busy machine, until some are kept.
        let is_last = round >= 30 && games > 2;
        assert!(round < 300, "no game in {round} rounds");
        let moment_us = (!is_last).then(|| (1000 + chance.below(12_000)) * (1 + round / 30));
        let lines = if is_last { 1 } else { 50 };
        let lines = play(&after, dir.path(), &"anna 2\n".repeat(lines), moment_us);
        let count = lines.len() as u64;
        let from = |first: u64| (first..first + count).map(|n| anna(2 * n, n)).collect::<Vec<_>>();
        let in_flight = (0..=unknown).find(|more| lines == from(games + more + 1));
        let in_flight = in_flight.unwrap_or_else(|| panic!("{games} games, {unknown} unknown, {lines:?}"));
        unknown += 1;
        if count > 0 {
            games += in_flight + count;
            unknown = 1;
        }
        if is_last {
            break;
        }
    }
    let best = |points: u64, games: u64| format!("{}, 3 in the best", anna(points, games));
    assert_eq!(play(&later, dir.path(), "", None), [""; 0]);
    assert_eq!(play(&later, dir.path(), "anna 1\n", None), [best(2 * games + 1, games + 1)]);
    let output = Command::new(&after).current_dir(dir.path()).output().expect("the first version");
    assert!(!output.status.success() && String::from_utf8_lossy(&output.stderr).contains("version 2"), "{output:?}");
}
