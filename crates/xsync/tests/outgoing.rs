//! Programs in a session that connect to servers outside.

mod common;

use common::{OUTSIDE4, OUTSIDE6, Place, Run, Session, network_of_its_own};
use std::collections::HashSet;
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream, UdpSocket};
use std::process::Stdio;
use std::thread::{self, JoinHandle};

/// A place in a network of its own, which sessions reach only through their supervisor.
fn place() -> Option<Place> {
    let place = Place::new()?;
    place.probe();
    network_of_its_own().then_some(place)
}

/// Starts a server for one client. Returns its address.
fn server<T: Send + 'static>(ip: &str, serve: impl FnOnce(TcpStream) -> T + Send + 'static) -> (String, JoinHandle<T>) {
    let listener = TcpListener::bind((ip, 0)).unwrap();
    let address = listener.local_addr().unwrap().to_string();
    (address, thread::spawn(move || serve(listener.accept().unwrap().0)))
}

/// Each end sends after the other one has finished sending.
#[test]
fn servers_outside_are_reached() {
    let Some(place) = place() else { return };
    for ip in [OUTSIDE4, OUTSIDE6] {
        let (address, server) = server(ip, |mut stream| {
            let mut lines = Vec::new();
            for line in BufReader::new(stream.try_clone().unwrap()).lines() {
                lines.push(line.unwrap());
                stream.write_all(b"!").unwrap();
            }
            stream.write_all(b"that was all\n").unwrap();
            lines
        });
        let run = place.run(&["--summary", "--", "./probe", "tell", "tcp", &address, "log", "3"]);
        assert!(run.err.contains("; 1 connection to the outside"), "{run:?}");
        assert_eq!(run.ok(), "that was all\ndone\n");
        assert_eq!(server.join().unwrap(), ["00000000", "00000001", "00000002"]);
    }
}

/// Datagrams of many flows. Each answer comes from the address that the datagram was sent to.
#[test]
fn datagrams_are_answered() {
    let Some(place) = place() else { return };
    for ip in [OUTSIDE4, OUTSIDE6] {
        let socket = UdpSocket::bind((ip, 0)).unwrap();
        let address = socket.local_addr().unwrap().to_string();
        let server = thread::spawn(move || {
            let (mut datagram, mut lines) = ([0; 100], Vec::new());
            while lines.len() < 6 {
                let (bytes, from) = socket.recv_from(&mut datagram).unwrap();
                lines.push(String::from_utf8(datagram[..bytes].to_vec()).unwrap());
                socket.send_to(b"!", from).unwrap();
            }
            lines
        });
        let script = format!("./probe tell udp {address} log 3; ./probe tell udp {address} log 3");
        let run = place.run(&["--summary", "--", "sh", "-c", &script]);
        assert!(run.err.contains("; 6 datagrams to the outside"), "{run:?}");
        assert_eq!(run.ok(), "done\ndone\n");
        let lines = ["00000000\n", "00000001\n", "00000002\n"];
        assert_eq!(server.join().unwrap(), [lines, lines].concat());
    }
}

/// More flows than are kept: the least recently used ones make room.
#[test]
fn datagrams_of_a_thousand_flows_leave() {
    let Some(place) = place() else { return };
    let socket = UdpSocket::bind((OUTSIDE4, 0)).unwrap();
    let address = socket.local_addr().unwrap().to_string();
    let server = thread::spawn(move || {
        let mut seen = HashSet::new();
        for _ in 0..1000 {
            let (_, from) = socket.recv_from(&mut [0; 100]).unwrap();
            seen.insert(from);
            socket.send_to(b"!", from).unwrap();
        }
        seen.len()
    });
    assert_eq!(place.run(&["--", "./probe", "flows", &address, "1000"]).ok(), "done\n");
    // A socket that gets an earlier port belongs to the same flow.
    assert!(server.join().unwrap() > 512);
}

#[test]
fn what_is_not_reached_is_said() {
    let Some(place) = place() else { return };
    let probe = |net: &str, address: &str| place.run(&[net, "--", "./probe", "tell", "tcp", address, "log", "1"]).out;
    // A connection to a closed port is accepted, then reset.
    assert_eq!(probe("--net=gated", &format!("{OUTSIDE4}:9")), "Connection reset by peer (os error 104)\n");
    assert_eq!(probe("--net=gated", "[2001:db8:9::1]:9"), "Network is unreachable (os error 101)\n");
    assert_eq!(probe("--net=none", &format!("{OUTSIDE4}:9")), "Network is unreachable (os error 101)\n");
    // The loopback addresses are the session's own, even at the port of the supervisor's socket.
    assert_eq!(probe("--net=gated", "127.0.0.1:9"), "Connection refused (os error 111)\n");
    assert_eq!(probe("--net=gated", "127.0.0.1:1"), "Connection reset by peer (os error 104)\n");
    assert_eq!(place.run(&["--", "./probe", "ping", OUTSIDE4]).out, "Operation not permitted (os error 1)\n");
    let explained = |net| place.run(&[net, "--explain", "--", "true"]).err;
    assert!(explained("--net=gated").contains("TCP and UDP leave after a commit"));
    assert!(explained("--net=none").contains("none, besides"));
}

#[test]
fn five_hundred_connections_are_relayed() {
    let Some(place) = place() else { return };
    let listener = TcpListener::bind((OUTSIDE4, 0)).unwrap();
    let address = listener.local_addr().unwrap().to_string();
    thread::spawn(move || {
        for stream in listener.incoming() {
            thread::spawn(move || {
                let (mut stream, mut line) = (stream.unwrap(), [0; 9]);
                stream.read_exact(&mut line).unwrap();
                stream.write_all(&line).unwrap();
            });
        }
    });
    assert_eq!(place.run(&["--", "./probe", "crowd", &address, "500"]).ok(), "done\n");
}

/// Output leaves even if the session has ended and the reader is slow. Little of it is held in memory.
#[test]
fn more_than_memory_leaves_when_it_is_read() {
    const BYTES: usize = 64 << 20;
    let Some(place) = place() else { return };
    let listener = TcpListener::bind((OUTSIDE4, 0)).unwrap();
    let address = listener.local_addr().unwrap();
    let script = format!("head -c {BYTES} /dev/zero > /dev/tcp/{}/{}", address.ip(), address.port());
    let mut child = Session::start(place.xsync(&["--", "bash", "-c", &script]).stdout(Stdio::null()));
    let (mut stream, _) = listener.accept().unwrap();
    let (mut piece, mut got) = (vec![0; 1 << 20], 0);
    while got < BYTES {
        got += stream.read(&mut piece).unwrap();
    }
    let status = fs::read_to_string(format!("/proc/{}/status", child.id())).unwrap();
    let most = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).expect("VmHWM").trim();
    let most: usize = most.trim_end_matches(" kB").parse().unwrap();
    assert!(most < 32 << 10, "{most} KiB of memory");
    assert_eq!(stream.read(&mut piece).unwrap(), 0);
    assert!(child.wait().unwrap().success());
}

#[test]
fn ends_that_are_rude_are_passed_on() {
    let Some(place) = place() else { return };
    // A server that closes without reading resets the connection.
    let (address, server) = server(OUTSIDE4, |stream| stream.peek(&mut [0]).map(|_| drop(stream)).unwrap());
    let run: Run = place.run(&["--", "./probe", "tell", "tcp", &address, "log", "1"]);
    assert_eq!(run.out, "Connection reset by peer (os error 104)\n");
    server.join().unwrap();
}

/// An urgent byte stays in its place among the others.
#[test]
fn urgent_bytes_are_bytes() {
    let Some(place) = place() else { return };
    let (address, server) = server(OUTSIDE4, |mut stream| {
        let mut text = String::new();
        stream.read_to_string(&mut text).unwrap();
        text
    });
    assert_eq!(place.run(&["--", "./probe", "urgent", &address]).ok(), "done\n");
    assert_eq!(server.join().unwrap(), "abc");
}
