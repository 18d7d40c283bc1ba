//! Databases under load from outside lose all uncommitted changes of their volume in a power cut.
//!
//! Every acknowledged transaction must be there afterwards. There are also tests with a package and a source tree that
//! `make xsync-programs` fetches.

mod common;

use common::{Place, Run, Session};
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::sync::mpsc;
use std::time::{Duration, Instant};

/// The time limit for the start of a server.
const START_TIME_MAX: Duration = Duration::from_secs(60);

fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

/// The programs of the newest PostgreSQL, in Debian's directory. Prints a message if there is none.
fn postgres() -> Option<PathBuf> {
    let versions = fs::read_dir("/usr/lib/postgresql").ok().into_iter().flatten().flatten();
    let mut found: Vec<_> = versions
        .map(|version| version.path().join("bin"))
        .filter(|bin| {
            ["initdb", "postgres", "pgbench", "pg_amcheck", "pg_checksums"].iter().all(|p| bin.join(p).exists())
        })
        .collect();
    found.sort();
    if found.is_empty() {
        println!("skipped: needs PostgreSQL with its contributed programs (the package postgresql)");
    }
    found.pop()
}

/// A database server in a session, with its clients outside.
struct Postgres<'a> {
    place: &'a Place,
    bin: PathBuf,
    port: String,
    volume: String,
}

impl Postgres<'_> {
    /// A session in which a command runs as the user postgres, as the documentation describes.
    fn session(&self, more: &[&str], before: &str, words: &str) -> Command {
        let user = "exec setpriv --reuid=postgres --regid=postgres --init-groups --reset-env";
        let script = format!("cd /; {before} {user} {}/{words}", self.bin.display());
        let session = ["--volume", &self.volume];
        self.place.xsync(&[&session[..], more, &["--", "sh", "-c", &script]].concat())
    }

    fn start(&self) -> Session {
        let listen = format!("127.0.0.1:{}", self.port);
        // A small log, so that the power cut also interrupts checkpoints.
        let server = format!("postgres -D /data/pg -k /tmp -p {} -c max_wal_size=4MB", self.port);
        let mut command = self.session(&["--listen", &listen], "", &server);
        let session = Session::start(command.stdout(Stdio::null()).stderr(Stdio::null()));
        let started = Instant::now();
        while self.outside("psql").args(["-c", "SELECT 1"]).output().unwrap().status.code() != Some(0) {
            assert!(started.elapsed() < START_TIME_MAX, "the server does not answer");
            std::thread::sleep(Duration::from_millis(20));
        }
        session
    }

    /// A client program.
    fn outside(&self, program: &str) -> Command {
        let mut command = Command::new(self.bin.join(program));
        command.args(["-h", "127.0.0.1", "-U", "postgres", "-p", &self.port]).stdin(Stdio::null());
        command.env("PGDATABASE", "postgres").current_dir("/");
        command
    }

    fn ask(&self, question: &str) -> String {
        let run: Run = self.outside("psql").args(["-qAtc", question]).output().unwrap().into();
        run.ok().trim().to_owned()
    }
}

/// Each client inserts its numbers in order, and gets an acknowledgement for each. pgbench keeps the server busy
/// meanwhile.
#[test]
fn postgres_has_every_transaction_that_it_acknowledged() {
    const CLIENTS: usize = 3;
    const ACKNOWLEDGED_MIN: u64 = 300;
    let Some(place) = Place::new() else { return };
    let Some(bin) = postgres() else { return };
    let volume = format!("{}:320M", place.dir.path().join("pg.img").display());
    let server = Postgres { place: &place, bin, port: free_port().to_string(), volume };
    let own = "mkdir /data/pg; chown postgres: /data/pg;";
    let made: Run = server.session(&[], own, "initdb -k -A trust --wal-segsize=1 -D /data/pg").output().unwrap().into();
    made.ok();

    let mut session = server.start();
    server.ask("CREATE TABLE told(client int, n int, PRIMARY KEY (client, n))");
    let filled: Run = server.outside("pgbench").args(["-i", "-q"]).output().unwrap().into();
    filled.ok();
    let mut load = server.outside("pgbench");
    load.args(["-c", "4", "-T", "600"]).stdout(Stdio::null()).stderr(Stdio::null());
    let mut load = Session::start(&mut load);
    let total = AtomicU64::new(0);
    let (enough, reached) = mpsc::channel();
    let acknowledged: Vec<u64> = std::thread::scope(|scope| {
        let clients: Vec<_> = (0..CLIENTS)
            .map(|client| {
                let (server, total, enough) = (&server, &total, enough.clone());
                scope.spawn(move || {
                    let script = server.place.dir.path().join(format!("client{client}"));
                    let lines = (1..100_000).map(|n| format!("INSERT INTO told VALUES ({client}, {n}) RETURNING n;\n"));
                    fs::write(&script, lines.collect::<String>()).unwrap();
                    let mut psql = server.outside("psql");
                    psql.args(["-qAt"]).stdin(fs::File::open(script).unwrap()).stdout(Stdio::piped());
                    let mut psql = psql.stderr(Stdio::null()).spawn().unwrap();
                    let mut last = 0;
                    for line in BufReader::new(psql.stdout.take().unwrap()).lines() {
                        last = line.unwrap().parse().unwrap();
                        if total.fetch_add(1, SeqCst) + 1 == ACKNOWLEDGED_MIN {
                            enough.send(()).unwrap();
                        }
                    }
                    psql.wait().unwrap();
                    last
                })
            })
            .collect();
        reached.recv_timeout(START_TIME_MAX).expect("the clients were told too little");
        // The power is cut while all clients write.
        common::power_cut(&mut session, "data");
        clients.into_iter().map(|client| client.join().unwrap()).collect()
    });
    load.wait().unwrap();
    println!("acknowledged: {acknowledged:?}");

    let mut session = server.start();
    for (client, told) in acknowledged.into_iter().enumerate() {
        let kept = server.ask(&format!("SELECT count(*), max(n) FROM told WHERE client = {client}"));
        let kept: Vec<u64> = kept.split('|').map(|n| n.parse().unwrap()).collect();
        assert!(kept[0] == kept[1] && kept[1] >= told, "client {client} was told {told}, and {kept:?} is there");
    }
    let sums = "SELECT (SELECT sum(abalance) FROM pgbench_accounts), (SELECT sum(tbalance) FROM pgbench_tellers), \
                (SELECT sum(bbalance) FROM pgbench_branches), (SELECT coalesce(sum(delta), 0) FROM pgbench_history)";
    let sums = server.ask(sums);
    let sums: Vec<&str> = sums.split('|').collect();
    assert!(sums.iter().all(|sum| *sum == sums[0]), "{sums:?}");
    let whole: Run = server
        .outside("pg_amcheck")
        .args(["--install-missing", "--heapallindexed", "-d", "postgres"])
        .output()
        .unwrap()
        .into();
    whole.ok();
    rustix::process::kill_process(rustix::process::Pid::from_child(&session), rustix::process::Signal::INT).unwrap();
    assert_eq!(session.wait().unwrap().code(), Some(0));
    let sums: Run = server.session(&[], "", "pg_checksums --check -D /data/pg").output().unwrap().into();
    assert!(sums.ok().contains("Bad checksums:  0"));
}

/// Each of many clients counts up its own number. The power is cut meanwhile.
#[test]
fn redis_has_every_answer_of_many_clients() {
    const CLIENTS: usize = 8;
    const ACKNOWLEDGED_MIN: u64 = 2000;
    let Some(place) = Place::new() else { return };
    if Command::new("redis-server").arg("--version").output().is_err() {
        println!("skipped: needs the program redis-server");
        return;
    }
    let port = free_port();
    let volume = format!("{}:96M", place.dir.path().join("redis.img").display());
    let start = || {
        let (listen, port) = (format!("127.0.0.1:{port}"), port.to_string());
        let server =
            ["redis-server", "--port", &port, "--dir", "/data", "--appendonly", "yes", "--appendfsync", "always"];
        let session = ["--listen", &listen, "--volume", &volume, "--"];
        Session::start(place.xsync(&[&session[..], &server[..]].concat()).stdout(Stdio::null()))
    };
    let connect = || loop {
        match TcpStream::connect(("127.0.0.1", port)) {
            Err(_) => std::thread::sleep(Duration::from_millis(2)),
            Ok(stream) => return BufReader::new(stream),
        }
    };
    let mut session = start();
    let total = AtomicU64::new(0);
    let (enough, reached) = mpsc::channel();
    let acknowledged: Vec<u64> = std::thread::scope(|scope| {
        let clients: Vec<_> = (0..CLIENTS)
            .map(|client| {
                let (total, enough, connect) = (&total, enough.clone(), &connect);
                scope.spawn(move || {
                    let (mut stream, mut last, mut line) = (connect(), 0, String::new());
                    loop {
                        let asked =
                            stream.get_mut().write_all(format!("SET client{client} {}\r\n", last + 1).as_bytes());
                        line.clear();
                        if asked.is_err() || stream.read_line(&mut line).is_err() || line != "+OK\r\n" {
                            return last;
                        }
                        last += 1;
                        if total.fetch_add(1, SeqCst) + 1 == ACKNOWLEDGED_MIN {
                            enough.send(()).unwrap();
                        }
                    }
                })
            })
            .collect();
        reached.recv_timeout(START_TIME_MAX).expect("the clients were told too little");
        common::power_cut(&mut session, "data");
        clients.into_iter().map(|client| client.join().unwrap()).collect()
    });
    println!("acknowledged: {acknowledged:?}");
    let mut session = start();
    let (mut stream, mut line) = (connect(), String::new());
    for (client, told) in acknowledged.into_iter().enumerate() {
        line.clear();
        // Redis first loads its log, and answers with an error meanwhile.
        while line.is_empty() || line.starts_with("-LOADING") {
            line.clear();
            stream.get_mut().write_all(format!("GET client{client}\r\n").as_bytes()).unwrap();
            stream.read_line(&mut line).unwrap();
        }
        assert!(line != "$-1\r\n", "client {client} was told {told}, and nothing is there");
        line.clear();
        stream.read_line(&mut line).unwrap();
        let kept: u64 = line.trim().parse().unwrap();
        // One more increment may have been committed without an answer.
        assert!(kept == told || kept == told + 1, "client {client} was told {told}, and {kept} is there");
    }
    stream.get_mut().write_all(b"SHUTDOWN\r\n").unwrap();
    assert_eq!(session.wait().unwrap().code(), Some(0));
}

/// A file that `make xsync-programs` has fetched. Panics without it.
fn fetched(variable: &str) -> PathBuf {
    std::env::var_os(variable)
        .unwrap_or_else(|| panic!("run this by `make xsync-programs`, which sets {variable}"))
        .into()
}

fn copy(from: &Path, to: &Path) {
    assert!(Command::new("cp").arg("-a").args([from, to]).status().unwrap().success());
}

#[test]
#[ignore = "make xsync-programs fetches the source"]
fn a_source_tree_of_others_is_built() {
    let source = fetched("UNTORN_XSYNC_SOURCE");
    let Some(place) = Place::new() else { return };
    copy(&source, &place.work().join("tree"));
    copy(&source, &place.dir.path().join("outside"));
    place.run(&["--", "make", "-C", "tree", "-j2", "generic"]).ok();
    let mut outside = Command::new("make");
    let outside: Run =
        outside.args(["-j2", "generic"]).current_dir(place.dir.path().join("outside")).output().unwrap().into();
    outside.ok();
    // Compilers produce the same output from the same input.
    for program in ["src/lua", "src/luac", "src/liblua.a"] {
        let read = |dir: PathBuf| fs::read(dir.join(program)).unwrap();
        let same = read(place.work().join("tree")) == read(place.dir.path().join("outside"));
        assert!(same || program.ends_with(".a"), "{program} differs");
    }
    let said: Run =
        Command::new(place.work().join("tree/src/lua")).args(["-e", "print(6 * 7)"]).output().unwrap().into();
    assert_eq!(said.ok(), "42\n");
}

#[test]
#[ignore = "make xsync-programs fetches the package"]
fn a_package_of_others_is_installed() {
    let package = fetched("UNTORN_XSYNC_PACKAGE");
    let Some(place) = Place::new() else { return };
    fs::copy(package, place.work().join("p.deb")).unwrap();
    let script = "mkdir -p root/var/lib/dpkg/info root/var/lib/dpkg/updates; touch root/var/lib/dpkg/status; \
        dpkg --root=root --force-depends --force-script-chrootless --log=/dev/null -i p.deb > /tmp/said 2>&1 || cat /tmp/said; \
        dpkg --root=root -s hello | grep Status";
    assert_eq!(place.script(script).ok().trim(), "Status: install ok installed");
    // The applied files must match the package's checksums.
    let mut verify = Command::new("dpkg");
    let run: Run = verify
        .arg(format!("--root={}", place.work().join("root").display()))
        .args(["--verify", "hello"])
        .output()
        .unwrap()
        .into();
    assert_eq!(run.ok(), "");
    let said: Run = Command::new(place.work().join("root/usr/bin/hello")).output().unwrap().into();
    assert_eq!(said.ok(), "Hello, world!\n");
}
