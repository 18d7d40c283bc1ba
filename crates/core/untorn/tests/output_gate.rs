//! Output behind a gate: its order, its bounds, its end. Also the server of `examples/gate`, killed repeatedly.

mod common;

use common::*;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::collections::HashMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::time::Duration;
use untorn::__private::GateSteps;
use untorn::{Gate, Store, StoreOptions};

#[test]
fn bytes_leave_in_the_order_in_which_they_were_written() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open_or_create(dir.path()).unwrap();
    let file = store.open_or_create_file("log").unwrap();
    let gate = Gate::new().unwrap();
    let (mut outside, inside) = UnixStream::pair().unwrap();
    let (mut pipe, to_pipe) = std::io::pipe().unwrap();
    let (answers, lines) = (gate.output(inside.into()), gate.output(to_pipe.into()));
    let mut wanted = String::new();
    for n in 0..500 {
        // Some depend on a commit, and some only on the output before them.
        let ticket = (n % 3 != 0).then(|| {
            file.append(b"x").unwrap();
            file.commit_async().unwrap()
        });
        let line = format!("{n}\n");
        answers.write(line.as_bytes(), ticket.as_ref()).unwrap();
        lines.write(line.as_bytes(), ticket.as_ref()).unwrap();
        wanted += &line;
    }
    answers.write(b"", None).unwrap();
    drop((answers, lines));
    gate.drain().unwrap();
    for said in [&mut outside as &mut dyn Read, &mut pipe] {
        let mut text = String::new();
        said.read_to_string(&mut text).unwrap();
        assert_eq!(text, wanted);
    }
}

/// A slow reader of one output holds up the writers of that output, and nobody else.
#[test]
fn a_slow_reader_holds_up_its_own_output_alone() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open_or_create(dir.path()).unwrap();
    let file = store.open_or_create_file("log").unwrap();
    let gate = Gate::with_bytes_max(64 << 10).unwrap();
    let (mut slow, to_slow) = UnixStream::pair().unwrap();
    let (quick, to_quick) = UnixStream::pair().unwrap();
    let (to_slow, to_quick) = (gate.output(to_slow.into()), gate.output(to_quick.into()));
    const PIECES: usize = 200;
    const PIECE: [u8; 10_000] = [b's'; 10_000];
    let (full, is_full) = mpsc::channel();
    let writer = std::thread::spawn(move || {
        for n in 0..PIECES {
            to_slow.write(&PIECE, None).unwrap();
            full.send(n).unwrap();
        }
    });
    // Two megabytes are more than a socket and the gate buffer.
    let mut written = 0;
    while let Ok(n) = is_full.recv_timeout(Duration::from_millis(300)) {
        written = n;
    }
    assert!(written < PIECES - 1, "nobody waited");
    let mut lines = BufReader::new(quick).lines();
    for n in 0..20 {
        file.append(b"x").unwrap();
        to_quick.write(format!("{n}\n").as_bytes(), Some(&file.commit_async().unwrap())).unwrap();
        assert_eq!(lines.next().unwrap().unwrap(), n.to_string());
    }
    assert!(gate.held_bytes() <= 64 << 10, "{}", gate.held_bytes());
    let mut all = vec![0; PIECES * PIECE.len()];
    slow.read_exact(&mut all).unwrap();
    writer.join().unwrap();
    gate.drain().unwrap();
}

#[test]
fn a_write_that_may_not_wait_any_longer_takes_nothing() {
    const MOMENT: Duration = Duration::from_millis(20);
    let gate = Gate::with_bytes_max(1000).unwrap();
    let (mut slow, to_slow) = std::io::pipe().unwrap();
    let pipe = to_slow.try_clone().unwrap();
    let is_full = || poll(&mut [PollFd::new(&pipe, PollFlags::OUT)], Some(&Timespec::default())).unwrap() == 0;
    let to_slow = gate.output(to_slow.into());
    let mut taken = Vec::new();
    let mut number = 0_u32;
    let mut write = |at_most| {
        // Pieces that tell whether one was lost or sent twice.
        let piece = number.to_le_bytes().repeat(100);
        let is_taken = to_slow.write_within(&piece, None, at_most).unwrap();
        number += 1;
        if is_taken {
            taken.extend_from_slice(&piece);
        }
        is_taken
    };
    // Until neither the pipe nor the gate takes more; then a few more attempts.
    loop {
        // The gate's thread writes to the pipe when it gets to run.
        let pipe_is_full = is_full();
        if !write(MOMENT) && pipe_is_full {
            break;
        }
    }
    assert!((0..3).all(|_| !write(Duration::ZERO)));
    assert!(!gate.drain_within(MOMENT).unwrap());
    let held = gate.held_bytes();
    assert!(0 < held && held <= 1000, "{held}");
    let mut begin = vec![0; 32_000];
    std::thread::scope(|threads| {
        let waits = threads.spawn(|| write(Duration::from_secs(60)));
        slow.read_exact(&mut begin).unwrap();
        assert!(waits.join().unwrap(), "a reader makes room");
    });
    let rest = std::thread::spawn(move || {
        let mut rest = Vec::new();
        slow.read_to_end(&mut rest).map(|_| rest)
    });
    assert!(gate.drain_within(Duration::from_secs(60)).unwrap());
    drop((to_slow, pipe));
    assert!([begin, rest.join().unwrap().unwrap()].concat() == taken, "bytes were lost or sent twice");
}

#[test]
fn a_failed_commit_poisons_the_gate_and_shows_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("f");
    std::fs::write(&path, "before").unwrap();
    let store = StoreOptions::new().create(true).background(false).open(dir.path()).unwrap();
    let (file, other) = (store.open_file("f").unwrap(), store.open_or_create_file("other").unwrap());
    let gate = Gate::new().unwrap();
    let (mut outside, inside) = UnixStream::pair().unwrap();
    let answers = gate.output(inside.into());
    other.append(b"x").unwrap();
    answers.write(b"true\n", Some(&other.commit_async().unwrap())).unwrap();
    let mut shown = [0; 5];
    outside.read_exact(&mut shown).unwrap();
    assert_eq!(&shown, b"true\n");
    // Another program has changed the file, so its commit is refused.
    file.write_all_at(b"refused", 0).unwrap();
    std::fs::write(&path, "somebody else's").unwrap();
    answers.write(b"a lie\n", Some(&file.commit_async().unwrap())).unwrap();
    eventually(Duration::from_secs(60), "the gate is poisoned", || answers.write(b"more\n", None).is_err());
    refused(answers.write(b"and more\n", None), &["conflict"]);
    drop(answers);
    refused(gate.drain(), &["conflict"]);
    let mut rest = String::new();
    outside.read_to_string(&mut rest).unwrap();
    assert_eq!(rest, "");
}

#[test]
fn a_reader_who_has_left_is_an_error_of_its_output() {
    let gate = Gate::new().unwrap();
    let (gone, inside) = UnixStream::pair().unwrap();
    let (mut here, to_here) = UnixStream::pair().unwrap();
    drop(gone);
    let (nowhere, here_too) = (gate.output(inside.into()), gate.output(to_here.into()));
    eventually(Duration::from_secs(60), "an error", || nowhere.write(b"x", None).is_err());
    here_too.write(b"y", None).unwrap();
    here.read_exact(&mut [0]).unwrap();
    gate.drain().unwrap();
}

/// A gate that is dropped without being finished loses its held output, and later writes are refused.
#[test]
fn a_gate_that_is_dropped_takes_what_it_holds_along() {
    let dir = tempfile::tempdir().unwrap();
    let store = StoreOptions::new().create(true).background(false).open(dir.path()).unwrap();
    let file = store.open_or_create_file("log").unwrap();
    let gate = Gate::without_thread(1000).unwrap();
    let (mut outside, inside) = UnixStream::pair().unwrap();
    let answers = gate.output(inside.into());
    file.append(b"x").unwrap();
    answers.write(b"early", Some(&file.commit_async().unwrap())).unwrap();
    assert_eq!(gate.held_bytes(), 5);
    drop(gate);
    assert!(answers.write(b"late", None).unwrap_err().to_string().contains("a gate that is closed"));
    drop(answers);
    let mut rest = String::new();
    outside.read_to_string(&mut rest).unwrap();
    assert_eq!(rest, "");
}

/// A server; killed when this is dropped.
struct Server(Child, String);

impl Server {
    fn start(example: &Path, dir: &Path) -> Server {
        let mut child = Command::new(example).arg(dir).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
        Server(child, line.trim().to_owned())
    }

    fn client(&self) -> BufReader<TcpStream> {
        BufReader::new(TcpStream::connect(&self.1).unwrap())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn a_killed_server_has_all_that_it_answered() {
    let dir = tempfile::tempdir().unwrap();
    let example = untorn_testkit::example("untorn", "kv_server");
    let seed = seed();
    let mut random = fastrand::Rng::with_seed(seed);
    // For each client's key, the last value that was answered, and the last that was requested.
    let mut answered: HashMap<String, u64> = HashMap::new();
    let mut asked: HashMap<String, u64> = HashMap::new();
    // On a slow disk, few requests are answered in a short life.
    let mut lives = 0;
    while lives < 8 || lives < 80 && answered.values().sum::<u64>() <= 20 {
        lives += 1;
        let server = Server::start(&example, dir.path());
        let mut reader = server.client();
        for (key, least) in &answered {
            reader.get_mut().write_all(format!("get {key}\n").as_bytes()).unwrap();
            let mut value = String::new();
            reader.read_line(&mut value).unwrap();
            let value: u64 = value.trim().parse().unwrap_or_else(|_| panic!("{key}: {value}, {least} was answered"));
            assert!(*least <= value && value <= asked[key], "{key} is {value}, {least} was answered");
        }
        let clients: Vec<_> = (0..4).map(|n| (format!("key{n}"), server.client())).collect();
        let work = clients.into_iter().map(|(key, mut client)| {
            let from = asked.get(&key).copied().unwrap_or(0) + 1;
            std::thread::spawn(move || {
                let (mut last, mut value) = (None, from);
                loop {
                    let mut answer = String::new();
                    if client.get_mut().write_all(format!("set {key} {value}\n").as_bytes()).is_err() {
                        return (key, last, value);
                    }
                    match client.read_line(&mut answer) {
                        Ok(3) => last = Some(value),
                        _ => return (key, last, value),
                    }
                    value += 1;
                }
            })
        });
        let work: Vec<_> = work.collect();
        std::thread::sleep(Duration::from_millis(random.u64(5..60) * (1 + lives / 8)));
        drop(server);
        for (key, last, tried) in work.into_iter().map(|client| client.join().unwrap()) {
            if let Some(last) = last {
                answered.insert(key.clone(), last);
            }
            asked.insert(key, tried);
        }
    }
    assert!(answered.values().sum::<u64>() > 20, "hardly anything was answered: {answered:?}");
}
