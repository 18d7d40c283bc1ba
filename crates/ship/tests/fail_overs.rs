//! Clients outside are answered when the bucket has their commits. A second machine, which follows, takes over under this
//! load, while the first one is killed, loses its shipper, or goes on. The new one must have everything that a client was
//! told, also by the first one afterwards.

mod common;

use common::{Killed, program, run, text, url, wait_until};
use std::io::{Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::time::Duration;
use untorn::{FailureClass, File, Gate, Output, Reader, Remote, Store, StoreOptions};
use untorn_testkit::{again, extent, seed};

const CLIENTS: usize = 8;
/// Where the service listens, and its store.
const SOCKET: &str = "UNTORN_TEST_SOCKET";
const STORE: &str = "UNTORN_TEST_STORE";

#[test]
#[ignore = "the service, which the test below starts"]
fn service() {
    let Some(socket) = std::env::var_os(SOCKET).map(PathBuf::from) else { return };
    let store = std::env::var_os(STORE).map(PathBuf::from).expect("a store");
    let store = StoreOptions::new().remote("ship", Remote::default()).wait(true).open(store).expect("the store");
    let file = store.open_or_create_file("numbers").expect("the file");
    let gate = Gate::new().expect("a gate");
    let listener = UnixListener::bind(socket).expect("a socket");
    std::thread::scope(|scope| {
        for client in listener.incoming() {
            let client = client.expect("a client");
            let output = gate.output_when(client.try_clone().expect("a socket").into(), FailureClass::Remote);
            let file = &file;
            scope.spawn(move || serve(client, output, file));
        }
    });
}

/// Keeps the number that a client sends, and repeats it.
fn serve(mut client: UnixStream, output: Output, file: &File) {
    let mut request = [0; 16];
    while client.read_exact(&mut request).is_ok() {
        let place = u64::from_le_bytes(request[..8].try_into().expect("8 bytes"));
        file.write_at(&request[8..], place).expect("a write");
        let ticket = file.commit_async().expect("a commit");
        output.write(&request[8..], Some(&ticket)).expect("an answer");
    }
}

/// The last number that each client sent, and the last one that came back.
#[derive(Default)]
struct Client {
    sent: AtomicU64,
    told: AtomicU64,
}

/// Sends one number after the other until the service is gone.
fn ask(client: &Client, place: u64, socket: &Path) {
    let mut stream = UnixStream::connect(socket).expect("the service");
    loop {
        let number = client.sent.load(SeqCst) + 1;
        client.sent.store(number, SeqCst);
        let request = [place.to_le_bytes(), number.to_le_bytes()].concat();
        let mut answer = [0; 8];
        if stream.write_all(&request).and_then(|()| stream.read_exact(&mut answer)).is_err() {
            return;
        }
        assert_eq!(u64::from_le_bytes(answer), number);
        client.told.store(number, SeqCst);
    }
}

struct Machine {
    dir: PathBuf,
    service: Killed,
    shipper: Killed,
    socket: PathBuf,
}

impl Machine {
    fn begin(dir: PathBuf, bucket: &str) -> Machine {
        let shipper = background(&["ship", text(&dir), bucket, "--interval", "1ms"]);
        let socket = dir.with_extension("socket");
        let mut command = again!("service");
        command.arg("--ignored").env(SOCKET, &socket).env(STORE, &dir).stdout(Stdio::null());
        let service = Killed(command.spawn().expect("a service"));
        wait_until("the service", || UnixStream::connect(&socket).is_ok());
        Machine { dir, service, shipper, socket }
    }
}

fn background(arguments: &[&str]) -> Killed {
    Killed(program(arguments).stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("untorn-ship"))
}

/// The numbers in a store.
fn numbers(dir: &Path) -> Vec<u64> {
    let bytes = Reader::open(dir).and_then(|reader| reader.read("numbers")).unwrap_or_default();
    let number =
        |n: usize| bytes.get(8 * n..8 * n + 8).map_or(0, |b| u64::from_le_bytes(b.try_into().expect("8 bytes")));
    (0..CLIENTS).map(number).collect()
}

#[test]
fn a_store_without_commits_is_taken_over() {
    let tmp = tempfile::tempdir().expect("a directory");
    let [first, next] = ["first", "next"].map(|name| tmp.path().join(name));
    let bucket = url(&tmp.path().join("bucket"));
    Store::open_or_create(&first).expect("a store").close().expect("closing");
    run(&["ship", text(&first), &bucket, "--once"]);
    run(&["follow", &bucket, text(&next), "--promote"]);
    let store = Store::open_or_create(&next).expect("the store that took over");
    let file = store.open_or_create_file("numbers").expect("a file");
    file.append(b"one").and_then(|_| file.commit()).expect("a commit");
    drop(file);
    store.close().expect("closing");
    run(&["ship", text(&next), &bucket, "--once"]);
    let third = tmp.path().join("third");
    run(&["restore", &bucket, text(&third)]);
    assert_eq!(std::fs::read(third.join("numbers")).expect("a restored file"), b"one");
}

#[test]
fn the_machine_that_takes_over_has_everything_that_a_client_was_told() {
    let mut random = fastrand::Rng::with_seed(seed());
    let tmp = tempfile::tempdir().expect("a directory");
    let bucket = url(&tmp.path().join("bucket"));
    let first = tmp.path().join("machine-0");
    Store::open_or_create(&first).expect("a store").close().expect("closing");
    run(&["ship", text(&first), &bucket, "--once"]);
    let mut machine = Machine::begin(first, &bucket);
    let clients: Vec<Client> = (0..CLIENTS).map(|_| Client::default()).collect();
    let rounds = extent(4, 100);
    for round in 1..=rounds {
        let next = tmp.path().join(format!("machine-{round}"));
        let follower = background(&["follow", &bucket, text(&next), "--interval", "1ms"]);
        let Machine { dir, mut service, mut shipper, socket } = machine;
        std::thread::scope(|scope| {
            for (client, n) in clients.iter().zip(0u64..) {
                let socket = &socket;
                scope.spawn(move || ask(client, 8 * n, socket));
            }
            let before: Vec<u64> = clients.iter().map(|client| client.told.load(SeqCst)).collect();
            for (client, before) in clients.iter().zip(before) {
                wait_until("an answer for each client", || client.told.load(SeqCst) > before);
            }
            std::thread::sleep(Duration::from_millis(random.u64(..350)));
            // Each second machine begins with a snapshot, while the history before the snapshot is pruned.
            if round % 2 == 0 {
                run(&["compact", &bucket]);
                run(&["prune", &bucket, "--keep", "0s"]);
            }
            let kind = random.u8(..3);
            if kind == 0 {
                service.0.kill().expect("a kill");
            }
            if kind < 2 {
                shipper.0.kill().expect("a kill");
            }
            drop(follower);
            run(&["follow", &bucket, text(&next), "--promote"]);
            // The first machine serves on.
            std::thread::sleep(Duration::from_millis(random.u64(..100)));
            if kind == 2 {
                wait_until("the end of the first shipper", || shipper.0.try_wait().expect("a child").is_some());
            }
            drop(service);
        });
        for ((client, found), n) in clients.iter().zip(numbers(&next)).zip(0..) {
            let (told, sent) = (client.told.load(SeqCst), client.sent.load(SeqCst));
            assert!((told..=sent).contains(&found), "round {round}: client {n} was told {told}, and {found} is there");
        }
        std::fs::remove_dir_all(dir).expect("the first machine");
        machine = Machine::begin(next, &bucket);
    }
    drop(machine);
    run(&["verify", &bucket]);
    let told: u64 = clients.iter().map(|client| client.told.load(SeqCst)).sum();
    assert!(told >= rounds * CLIENTS as u64, "only {told} answers came");
    println!("{rounds} fail-overs, {told} answers");
}
