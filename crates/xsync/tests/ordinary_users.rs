//! Network access of ordinary users' sessions.

mod common;

use common::directory::Directory;
use common::{OUTSIDE4, OUTSIDE6, Place, Run, Session, example, network_of_its_own};
use std::fs;
use std::net::UdpSocket;
use std::process::{Command, Stdio};
use std::sync::mpsc::TryRecvError;
use std::thread;
use std::time::Duration;
use untorn_testkit::NOBODY;

/// How often many flows begin together.
const ROUNDS: usize = 5;

/// A DNS server outside, which answers every question with one address. Returns the types of the questions.
fn answer_names(socket: &UdpSocket, questions: usize) -> Vec<u8> {
    let mut kinds = Vec::new();
    while kinds.len() < questions {
        let mut question = [0; 512];
        let (bytes, from) = socket.recv_from(&mut question).unwrap();
        // The id of the question, the flags of an answer, one question, one answer; then the question; then a pointer
        // to its name, and an address.
        let mut answer = question[..2].to_vec();
        answer.extend([0x81, 0x80, 0, 1, 0, 1, 0, 0, 0, 0]);
        let end = 12 + question[12..bytes].iter().position(|byte| *byte == 0).unwrap() + 5;
        answer.extend(&question[12..end]);
        answer.extend([0xC0, 12, 0, 1, 0, 1, 0, 0, 0, 60, 0, 4, 203, 0, 113, 7]);
        kinds.push(question[end - 3]);
        socket.send_to(&answer, from).unwrap();
    }
    kinds
}

/// The resolver of the C library asks a server outside, by UDP.
#[test]
fn names_are_found() {
    if Place::new().is_none() || !network_of_its_own() {
        return;
    }
    let directory = Directory::mounted("data=journal");
    let _watcher = directory.watcher();
    let etc = directory.at().join("etc");
    fs::create_dir(&etc).unwrap();
    fs::write(etc.join("resolv.conf"), format!("nameserver {OUTSIDE4}\n")).unwrap();
    fs::write(etc.join("nsswitch.conf"), "hosts: dns\n").unwrap();
    let program = directory.program(env!("CARGO_BIN_EXE_untorn-xsync").as_ref());
    let socket = UdpSocket::bind((OUTSIDE4, 53)).unwrap();
    let server = thread::spawn(move || answer_names(&socket, 2));
    for user in [0, NOBODY] {
        directory.give_to(user);
        let script = format!(
            "set -e\nfor name in resolv.conf nsswitch.conf; do\n\
             test -e /etc/$name || touch /etc/$name; mount --bind {etc}/$name \"$(realpath /etc/$name)\"; done\n\
             exec setpriv --reuid {user} --regid {user} --clear-groups env -u XDG_RUNTIME_DIR \
             {program} --summary --on {at} -- getent ahostsv4 untorn.test",
            etc = etc.display(),
            program = program.display(),
            at = directory.at().display()
        );
        let mut command = Command::new("unshare");
        let run: Run =
            command.args(["-m", "sh", "-c", &script]).current_dir("/").stdin(Stdio::null()).output().unwrap().into();
        assert!(run.err.contains("; 1 datagram to the outside"), "user {user}: {run:?}");
        assert!(run.ok().starts_with("203.0.113.7 "), "user {user}");
    }
    assert_eq!(server.join().unwrap(), [1, 1]);
}

/// A directory of an ordinary user with the program `probe`, and its watcher, in a network with addresses outside. None
/// if that is not possible.
fn directory_with_probe() -> Option<(Directory, Session)> {
    if Place::new().is_none() || !network_of_its_own() {
        return None;
    }
    let directory = Directory::mounted("data=journal");
    let watcher = directory.watcher();
    directory.give_to(NOBODY);
    untorn_testkit::install(&example("probe"), &directory.at().join("probe"));
    Some((directory, watcher))
}

/// More flows than the supervisor keeps, over both protocols.
#[test]
fn datagrams_of_many_flows_are_answered() {
    let Some((directory, _watcher)) = directory_with_probe() else { return };
    for (ip, words) in [(OUTSIDE4, ["flows", "600"]), (OUTSIDE6, ["tell", "5"])] {
        let socket = UdpSocket::bind((ip, 0)).unwrap();
        let address = socket.local_addr().unwrap().to_string();
        let count: usize = words[1].parse().unwrap();
        let server = thread::spawn(move || {
            for _ in 0..count {
                let (_, from) = socket.recv_from(&mut [0; 100]).unwrap();
                socket.send_to(b"!", from).unwrap();
            }
        });
        let program = match words {
            ["flows", count] => vec!["./probe", "flows", &address, count],
            [_, count] => vec!["./probe", "tell", "udp", &address, "log", count],
        };
        let run: Run = directory.session(NOBODY, &program).output().unwrap().into();
        assert_eq!(run.ok(), "done\n", "{ip}");
        server.join().unwrap();
    }
}

/// Each flow takes its own datagrams, also those that come while its socket is made.
#[test]
fn datagrams_of_flows_that_begin_together_are_not_mixed_up() {
    let Some((directory, _watcher)) = directory_with_probe() else { return };
    for _ in 0..ROUNDS {
        let socket = UdpSocket::bind((OUTSIDE4, 0)).unwrap();
        let address = socket.local_addr().unwrap().to_string();
        let (ended, is_ended) = std::sync::mpsc::channel::<()>();
        socket.set_read_timeout(Some(Duration::from_millis(100))).unwrap();
        let server = thread::spawn(move || {
            let mut number = [0; 8];
            while is_ended.try_recv() == Err(TryRecvError::Empty) {
                if let Ok((_, from)) = socket.recv_from(&mut number) {
                    socket.send_to(&number, from).unwrap();
                }
            }
        });
        let run: Run = directory.session(NOBODY, &["./probe", "swarm", &address, "100"]).output().unwrap().into();
        drop(ended);
        server.join().unwrap();
        assert_eq!(run.ok(), "done\n");
    }
}
