//! Servers in a session, and clients outside.

mod common;

use common::{OUTSIDE4, OUTSIDE6, Place, Run, Session, network_of_its_own};
use std::fs;
use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::net::{IpAddr, TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// A port that was free a moment ago.
fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

/// A session that starts its server when it gets a line.
fn server(place: &Place, port: u16) -> Command {
    let probe = place.probe();
    let script = format!("read go; exec {} serve {port} log", probe.display());
    let mut command = place.xsync(&["--listen", &format!("127.0.0.1:{port}"), "--", "sh", "-c", &script]);
    command.stdin(Stdio::piped()).stdout(Stdio::piped());
    command
}

fn go(child: &mut Child) {
    child.stdin.as_mut().unwrap().write_all(b"go\n").unwrap();
    let mut said = [0; 10];
    child.stdout.as_mut().unwrap().read_exact(&mut said).unwrap();
    assert_eq!(&said, b"listening\n");
}

/// Connects as soon as the port is open.
fn connect(port: u16) -> TcpStream {
    loop {
        match TcpStream::connect(("127.0.0.1", port)) {
            Err(e) if e.kind() == ErrorKind::ConnectionRefused => std::thread::sleep(Duration::from_millis(1)),
            done => return done.unwrap(),
        }
    }
}

fn ask(stream: &mut BufReader<TcpStream>, line: &str) -> std::io::Result<String> {
    stream.get_mut().write_all(format!("{line}\n").as_bytes())?;
    let mut answer = String::new();
    stream.read_line(&mut answer)?;
    Ok(answer)
}

fn stop(mut child: Session, port: u16) {
    connect(port).write_all(b"stop\n").unwrap();
    assert!(child.wait().unwrap().success());
}

/// A client that comes too early is refused, not reset, so that it knows to try again.
#[test]
fn clients_find_a_server_that_listens_or_none() {
    let Some(place) = Place::new() else { return };
    let port = free_port();
    let script = format!("echo ready; read go; exec {} serve {port} log", place.probe().display());
    let mut command = place.xsync(&["--listen", &format!("127.0.0.1:{port}"), "--", "sh", "-c", &script]);
    let mut child = Session::start(command.stdin(Stdio::piped()).stdout(Stdio::piped()));
    let refused = || TcpStream::connect(("127.0.0.1", port)).unwrap_err().kind() == ErrorKind::ConnectionRefused;
    assert!(refused());
    child.stdout.as_mut().unwrap().read_exact(&mut [0; 6]).unwrap();
    assert!(refused(), "the session is there, and its server is not");
    go(&mut child);
    let mut stream = BufReader::new(connect(port));
    assert_eq!(ask(&mut stream, "one").unwrap(), "ok one\n");
    // The end of a connection is passed on in both directions.
    stream.get_mut().write_all(b"bye\n").unwrap();
    assert_eq!(stream.read(&mut [0; 10]).unwrap(), 0);
    stop(child, port);
    assert_eq!(fs::read_to_string(place.work().join("log")).unwrap(), "one\nbye\n");
}

#[test]
fn five_hundred_clients_are_answered() {
    let Some(place) = Place::new() else { return };
    let port = free_port();
    let mut child = Session::start(&mut server(&place, port));
    go(&mut child);
    let mut clients: Vec<_> = (0..500).map(|_| BufReader::new(connect(port))).collect();
    for round in 0..2 {
        // All of them send before the first answer is read.
        for (n, client) in clients.iter_mut().enumerate() {
            client.get_mut().write_all(format!("{round}-{n}\n").as_bytes()).unwrap();
        }
        for (n, client) in clients.iter_mut().enumerate() {
            let mut answer = String::new();
            client.read_line(&mut answer).unwrap();
            assert_eq!(answer, format!("ok {round}-{n}\n"));
        }
    }
    // Connected clients do not keep the session from ending.
    stop(child, port);
    assert_eq!(fs::read_to_string(place.work().join("log")).unwrap().lines().count(), 1000);
}

/// Unread answers hold up only their own client.
#[test]
fn a_client_that_does_not_read_holds_up_nobody() {
    const BYTES: usize = 32 << 20;
    let Some(place) = Place::new() else { return };
    let port = free_port();
    let mut child = Session::start(&mut server(&place, port));
    go(&mut child);
    let (mut slow, mut quick) = (BufReader::new(connect(port)), BufReader::new(connect(port)));
    slow.get_mut().write_all(format!("large {BYTES}\n").as_bytes()).unwrap();
    slow.get_mut().peek(&mut [0]).unwrap();
    for n in 0..50 {
        assert_eq!(ask(&mut quick, &n.to_string()).unwrap(), format!("ok {n}\n"));
    }
    let mut large = vec![0; BYTES];
    slow.read_exact(&mut large).unwrap();
    assert!(large.iter().all(|byte| *byte == b'!'));
    assert_eq!(ask(&mut slow, "and then").unwrap(), "ok and then\n");
    stop(child, port);
}

/// The opposite case: a server does not read, here because its answers are not read.
#[test]
fn a_server_that_does_not_read_gets_all_of_it_later() {
    let Some(place) = Place::new() else { return };
    let port = free_port();
    let mut child = Session::start(&mut server(&place, port));
    go(&mut child);
    let stream = connect(port);
    let mut to = stream.try_clone().unwrap();
    let line = "x".repeat(4000);
    const LINES: usize = 10_000;
    let text = line.clone();
    let asking = std::thread::spawn(move || {
        (0..LINES).for_each(|n| to.write_all(format!("{n} {text}\n").as_bytes()).unwrap());
    });
    let mut answers = BufReader::new(stream).lines();
    for n in 0..LINES {
        if n == 0 {
            // Waits until every buffer between here and the server is full.
            std::thread::sleep(Duration::from_millis(100));
        }
        assert_eq!(answers.next().unwrap().unwrap(), format!("ok {n} {line}"));
    }
    asking.join().unwrap();
    stop(child, port);
}

/// When a client leaves in the middle of its answer, or a server ends, the connection ends on both sides.
#[test]
fn connections_that_break_are_let_go() {
    let Some(place) = Place::new() else { return };
    let port = free_port();
    let mut child = Session::start(&mut server(&place, port));
    go(&mut child);
    let descriptors = || fs::read_dir(format!("/proc/{}/fd", child.id())).unwrap().count();
    let mut first = BufReader::new(connect(port));
    assert_eq!(ask(&mut first, "first").unwrap(), "ok first\n");
    let before = descriptors();
    for _ in 0..50 {
        let mut client = connect(port);
        client.write_all(b"large 1000000\n").unwrap();
        client.read_exact(&mut [0; 100]).unwrap();
    }
    // The sockets are closed when both sides have seen the end.
    while descriptors() > before {
        assert_eq!(ask(&mut first, "still here").unwrap(), "ok still here\n");
    }
    stop(child, port);
}

#[test]
fn a_port_that_is_taken_is_refused_before_anything_begins() {
    let Some(place) = Place::new() else { return };
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let run: Run = place.run(&["--listen", &address, "--", "touch", "begun"]);
    assert!(run.code == Some(125) && run.err.contains(&format!("cannot listen at {address}")), "{run:?}");
    assert!(!place.work().join("begun").exists() && place.left().is_empty());
}

#[test]
fn a_session_that_ends_without_listening_ends() {
    let Some(place) = Place::new() else { return };
    let port = format!("127.0.0.1:{}", free_port());
    assert_eq!(place.run(&["--listen", &port, "--", "echo", "over"]).ok(), "over\n");
}

#[test]
fn servers_see_their_clients_addresses() {
    let Some(place) = Place::new().filter(|place| place.probe().exists() && network_of_its_own()) else { return };
    // A server that listens at IPv6 alone also has IPv4 clients, whose addresses cannot be shown there.
    let of_clients = [("gated", OUTSIDE4, "serve"), ("gated", OUTSIDE6, "serve6")];
    let of_loopback = [
        ("gated", OUTSIDE4, "serve6", "[::1]:"),
        ("gated", OUTSIDE6, "serve", "127.0.0.1:"),
        ("none", OUTSIDE4, "serve", "127.0.0.1:"),
        ("none", OUTSIDE6, "serve6", "[::1]:"),
    ];
    let all = of_clients.map(|(net, ip, serve)| (net, ip, serve, None)).into_iter();
    for (net, ip, serve, expected) in all.chain(of_loopback.map(|(net, ip, serve, seen)| (net, ip, serve, Some(seen))))
    {
        let case = format!("--net={net}, a client of {ip}, {serve}");
        let ip: IpAddr = ip.parse().unwrap();
        let address = TcpListener::bind((ip, 0)).unwrap().local_addr().unwrap();
        let (listen, port) = (address.to_string(), address.port().to_string());
        let arguments = ["--net", net, "--listen", &listen, "--", "./probe", serve, &port, "log"];
        let mut child = Session::start(place.xsync(&arguments).stdout(Stdio::piped()));
        child.stdout.as_mut().unwrap().read_exact(&mut [0; 10]).unwrap();
        let stream = loop {
            match TcpStream::connect(address) {
                Err(e) if e.kind() == ErrorKind::ConnectionRefused => std::thread::sleep(Duration::from_millis(1)),
                done => break done.unwrap(),
            }
        };
        let own = stream.local_addr().unwrap();
        let mut stream = BufReader::new(stream);
        let seen = ask(&mut stream, "who").unwrap();
        match expected {
            None => assert_eq!(seen, format!("{own}\n"), "{case}"),
            Some(expected) => assert!(seen.starts_with(expected), "{case}: {seen}"),
        }
        stream.get_mut().write_all(b"stop\n").unwrap();
        assert!(child.wait().unwrap().success(), "{case}");
    }
}

/// The supervisor may use descriptors up to the user's hard limit. The program has the limits that it was started with.
#[test]
fn few_descriptors_let_clients_wait() {
    let Some(place) = Place::new() else { return };
    for (soft, hard) in [(40, 1000), (40, 40), (41, 41)] {
        let port = free_port();
        let script = format!("ulimit -Hn {hard}; ulimit -Sn {soft}; exec \"$@\"");
        let mut command = Command::new("bash");
        command.args(["-c", &script, "bash", env!("CARGO_BIN_EXE_untorn-xsync"), "--size", "64M", "--place"]);
        let program =
            format!("ulimit -Sn; ulimit -Sn $(ulimit -Hn); exec {} serve {port} log", place.probe().display());
        command.arg(place.volumes()).args(["--listen", &format!("127.0.0.1:{port}"), "--", "bash", "-c", &program]);
        let mut child = Session::start(command.current_dir(place.work()).stdin(Stdio::null()).stdout(Stdio::piped()));
        let mut said = [0; 13];
        child.stdout.as_mut().unwrap().read_exact(&mut said).unwrap();
        assert_eq!(&said, format!("{soft}\nlistening\n").as_bytes());
        let mut clients: Vec<_> = (0..40).map(|_| BufReader::new(connect(port))).collect();
        for (n, client) in clients.iter_mut().enumerate() {
            client.get_mut().set_read_timeout(Some(Duration::from_secs(120))).unwrap();
            client.get_mut().write_all(format!("{n}\n").as_bytes()).unwrap();
        }
        if hard > soft {
            // No client has to wait for another one to leave.
            let mut answer = String::new();
            clients[39].read_line(&mut answer).unwrap();
            assert_eq!(answer, "ok 39\n");
            clients.truncate(39);
        }
        // Clients that have their answers leave, in the order in which they came. The others then get theirs.
        for (n, mut client) in clients.into_iter().enumerate() {
            let mut answer = String::new();
            client.read_line(&mut answer).unwrap();
            assert_eq!(answer, format!("ok {n}\n"));
        }
        stop(child, port);
    }
}
