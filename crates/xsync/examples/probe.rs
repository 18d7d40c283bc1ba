//! Tries system calls in a session, for the tests: `probe WHAT [ARGUMENT…]`. Prints `done`, or the error.

use rustix::fs::{CWD, FileType, Mode, mknodat};
use rustix::io::Errno;
use rustix::mm::{MapFlags, MprotectFlags, ProtFlags};
use rustix::mount::{MountFlags, mount_remount};
use rustix::net;
use std::fs::{File, OpenOptions};
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, Shutdown, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::os::unix::net::UnixStream;
use std::time::Duration;

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let done = match words[..] {
        ["map", path] => map(path, ProtFlags::READ | ProtFlags::WRITE, false),
        ["map-and-mprotect", path] => map(path, ProtFlags::READ, true),
        ["map-read-only", path] => File::open(path).and_then(|file| map_of(&file, ProtFlags::READ, false)),
        ["connect", path] => UnixStream::connect(path).map(drop),
        ["fifo", path] => OpenOptions::new().write(true).custom_flags(libc::O_NONBLOCK).open(path).map(drop),
        ["remount"] => mount_remount("/", MountFlags::BIND, "").map_err(io::Error::from),
        ["mount"] => rustix::mount::mount("x", "/tmp", "tmpfs", MountFlags::empty(), None).map_err(io::Error::from),
        ["loop"] => device(7, 0),
        ["socket", family] => socket(family.parse().expect("a number")),
        ["fsync"] => fsync(-1),
        ["fsync-closed"] => fsync(77),
        ["io_uring"] => called(libc::SYS_io_uring_setup),
        ["keyctl"] => called(libc::SYS_keyctl),
        ["x32"] => called(0x4000_0027),
        ["map-locked", path] => map_locked(path),
        ["map-and-wait", path] => map_and_wait(path),
        ["by-handle"] => called(libc::SYS_open_by_handle_at),
        ["append", path, count] => append(path, count.parse().expect("a number")),
        ["mixed", dir, count, seed] => mixed(dir, count.parse().expect("a number"), seed.parse().expect("a number")),
        ["stores", dir, count] => stores(dir, count.parse().expect("a number")),
        ["fill", path] => fill(path),
        ["shout", mib] => shout(mib.parse().expect("a number")),
        ["serve", port, log] => serve(TcpListener::bind((Ipv4Addr::UNSPECIFIED, number(port))), log),
        ["serve6", port, log] => serve(only6(number(port)), log),
        ["tell", kind, address, log, count] => tell(kind, address, log, count.parse().expect("a number")),
        ["crowd", address, count] => crowd(address, count.parse().expect("a number")),
        ["flows", address, count] => flows(address, count.parse().expect("a number")),
        ["swarm", address, count] => swarm(address, count.parse().expect("a number")),
        ["urgent", address] => urgent(address),
        ["ping", address] => ping(address.parse().expect("an address")),
        ["daemon", text] => daemon(text),
        _ => panic!("no such probe: {words:?}"),
    };
    match done {
        Ok(()) => println!("done"),
        Err(e) => {
            println!(
                "{}",
                e.raw_os_error().map_or(e.to_string(), |number| Errno::from_raw_os_error(number).to_string())
            );
            std::process::exit(1);
        }
    }
}

fn map(path: &str, protection: ProtFlags, more: bool) -> io::Result<()> {
    let file = OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path)?;
    file.set_len(8192)?;
    map_of(&file, protection, more)
}

fn map_of(file: &File, protection: ProtFlags, more: bool) -> io::Result<()> {
    // SAFETY: a new mapping, of a file that nobody truncates.
    let at = unsafe { rustix::mm::mmap(std::ptr::null_mut(), 4096, protection, MapFlags::SHARED, file.as_fd(), 0)? };
    if more {
        // SAFETY: the page was mapped above.
        unsafe { rustix::mm::mprotect(at, 4096, MprotectFlags::READ | MprotectFlags::WRITE)? };
    }
    if more || protection.contains(ProtFlags::WRITE) {
        // SAFETY: the page was mapped for writing.
        unsafe { at.cast::<u8>().write_volatile(b'x') };
    }
    Ok(())
}

/// A program that locks a file expects others to write it.
fn map_locked(path: &str) -> io::Result<()> {
    let file = File::open(path)?;
    rustix::fs::fcntl_lock(&file, rustix::fs::FlockOperation::LockShared)?;
    map_of(&file, ProtFlags::READ, false)
}

/// Shows the first byte of a map, waits for a line, and shows it again.
fn map_and_wait(path: &str) -> io::Result<()> {
    let file = File::open(path)?;
    // SAFETY: a new mapping, of a file that nobody truncates.
    let at = unsafe { rustix::mm::mmap(std::ptr::null_mut(), 1, ProtFlags::READ, MapFlags::SHARED, file.as_fd(), 0)? };
    for _ in 0..2 {
        // SAFETY: the page was mapped above.
        println!("{}", char::from(unsafe { at.cast::<u8>().read_volatile() }));
        io::stdin().read_line(&mut String::new())?;
    }
    Ok(())
}

fn device(major: u32, minor: u32) -> io::Result<()> {
    mknodat(CWD, "/tmp/device", FileType::BlockDevice, Mode::RUSR, rustix::fs::makedev(major, minor))?;
    File::open("/tmp/device").map(drop)
}

fn socket(family: i32) -> io::Result<()> {
    // SAFETY: numbers only.
    checked(unsafe { libc::socket(family, libc::SOCK_STREAM, 0) }.into())
}

fn fsync(descriptor: i32) -> io::Result<()> {
    // SAFETY: any number may be asked about.
    checked(unsafe { libc::fsync(descriptor) }.into())
}

fn called(number: libc::c_long) -> io::Result<()> {
    // SAFETY: without arguments each of these calls fails or does nothing.
    checked(unsafe { libc::syscall(number, 0, 0, 0, 0, 0) })
}

fn checked(result: i64) -> io::Result<()> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Writes numbered lines, and prints each number after its line is written.
fn append(path: &str, count: u64) -> io::Result<()> {
    let mut file = OpenOptions::new().append(true).create(true).open(path)?;
    for n in 0..count {
        file.write_all(format!("{n:08}\n").as_bytes())?;
        println!("{n}");
    }
    Ok(())
}

/// Makes, overwrites, renames and maps files in turn, and prints a line after each change: the name of the file, and
/// the number that fills it.
fn mixed(dir: &str, count: u64, seed: u64) -> io::Result<()> {
    let mut chance = seed;
    for n in 1..=count {
        chance = chance.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let (kind, slot) = (chance >> 33 & 3, chance >> 40 & 7);
        let path = format!("{dir}/file{slot}");
        let text = format!("{n:08}").repeat(600 * (1 + (chance >> 50 & 3) as usize));
        match kind {
            0 => std::fs::write(&path, &text)?,
            1 => {
                std::fs::write(format!("{path}.new"), &text)?;
                std::fs::rename(format!("{path}.new"), &path)?;
            }
            2 => {
                let _ = std::fs::remove_file(&path);
                std::fs::write(&path, &text)?;
                File::open(&path)?.sync_all()?;
            }
            _ => {
                std::fs::create_dir_all(format!("{dir}/dir{n}"))?;
                std::fs::write(format!("{dir}/dir{n}/inner"), &text)?;
                std::fs::rename(format!("{dir}/dir{n}/inner"), &path)?;
            }
        }
        println!("file{slot} {n} {}", text.len());
    }
    Ok(())
}

/// Many times, writes a number to the file `log`, then stores it to pages of the file `map`. So in memory, `map` never
/// has a number that `log` lacks.
fn stores(dir: &str, count: u64) -> io::Result<()> {
    const PAGES: usize = 256;
    let new = |name: &str| {
        OpenOptions::new().read(true).write(true).create(true).truncate(true).open(format!("{dir}/{name}"))
    };
    let (log, map) = (new("log")?, new("map")?);
    map.write_all_at(&[0; PAGES * 4096], 0)?;
    let (both, len) = (ProtFlags::READ | ProtFlags::WRITE, PAGES * 4096);
    // SAFETY: a new mapping, of a file that nobody truncates.
    let at = unsafe { rustix::mm::mmap(std::ptr::null_mut(), len, both, MapFlags::SHARED, map.as_fd(), 0)? };
    for n in 1..=count {
        log.write_all_at(&n.to_le_bytes(), 0)?;
        for page in (0..8).map(|k| (n as usize * 8 + k) % PAGES) {
            // SAFETY: pages of the mapping, which nobody else uses.
            unsafe { at.byte_add(page * 4096).cast::<u64>().write_volatile(n) };
        }
        if n % 100 == 0 {
            println!("log {n}");
        }
    }
    Ok(())
}

fn fill(path: &str) -> io::Result<()> {
    let mut file = File::create(path)?;
    loop {
        file.write_all(&[1; 1 << 16])?;
    }
}

fn shout(mib: u64) -> io::Result<()> {
    let (piece, mut out) = (vec![b'!'; 1 << 20], io::stdout().lock());
    for _ in 0..mib {
        out.write_all(&piece)?;
    }
    out.write_all(b"\n")
}

/// A port number.
fn number(port: &str) -> u16 {
    port.parse().expect("a port")
}

/// Listens at IPv6 alone.
fn only6(port: u16) -> io::Result<TcpListener> {
    let socket = net::socket(net::AddressFamily::INET6, net::SocketType::STREAM, None)?;
    net::sockopt::set_ipv6_v6only(&socket, true)?;
    net::bind(&socket, &SocketAddr::from((Ipv6Addr::UNSPECIFIED, port)))?;
    net::listen(&socket, 64)?;
    Ok(socket.into())
}

/// A server that answers a line after it has written the line to its log. It prints a line when it listens. `who`
/// returns the client's address. `get` changes nothing. `touch` makes a file, without a log line. `large` is answered
/// by the given number of bytes. `bye` is logged, and ends the connection without an answer. `stop` ends the server.
fn serve(listener: io::Result<TcpListener>, log: &str) -> io::Result<()> {
    let listener = listener?;
    println!("listening");
    for stream in listener.incoming() {
        let (stream, log) = (stream?, log.to_owned());
        std::thread::spawn(move || -> io::Result<()> {
            let mut log = OpenOptions::new().append(true).create(true).open(log)?;
            for line in BufReader::new(stream.try_clone()?).lines() {
                let line = line?;
                if line == "stop" {
                    std::process::exit(0);
                }
                if line == "who" {
                    writeln!(&stream, "{}", stream.peer_addr()?)?;
                    continue;
                }
                if line.starts_with("get ") {
                    writeln!(&stream, "nothing changed")?;
                    continue;
                }
                if let Some(path) = line.strip_prefix("touch ") {
                    File::create(path)?;
                    continue;
                }
                if let Some(bytes) = line.strip_prefix("large ") {
                    (&stream).write_all(&vec![b'!'; bytes.parse().expect("a number")])?;
                    continue;
                }
                log.write_all(format!("{line}\n").as_bytes())?;
                log.sync_all()?;
                if line.starts_with("bye") {
                    return Ok(());
                }
                (&stream).write_all(format!("ok {line}\n").as_bytes())?;
            }
            Ok(())
        });
    }
    Ok(())
}

/// Writes numbered lines to the log, sends each of them outside after that, and waits for an answer.
fn tell(kind: &str, address: &str, log: &str, count: u64) -> io::Result<()> {
    let mut log = OpenOptions::new().append(true).create(true).open(log)?;
    let mut line = |n| -> io::Result<String> {
        let line = format!("{n:08}\n");
        log.write_all(line.as_bytes())?;
        log.sync_all().map(|()| line)
    };
    let mut answer = [0; 100];
    if kind == "udp" {
        let address: SocketAddr = address.parse().expect("an address");
        let any: IpAddr = if address.is_ipv4() { [0; 4].into() } else { [0_u16; 8].into() };
        let socket = UdpSocket::bind((any, 0))?;
        for n in 0..count {
            socket.send_to(line(n)?.as_bytes(), address)?;
            let (_, from) = socket.recv_from(&mut answer)?;
            assert_eq!(from, address);
        }
        return Ok(());
    }
    if kind == "connect" {
        // The connection itself is the message.
        for n in 0..count {
            line(n)?;
            TcpStream::connect(address)?.read_exact(&mut answer[..1])?;
        }
        return Ok(());
    }
    let mut stream = TcpStream::connect(address)?;
    for n in 0..count {
        stream.write_all(line(n)?.as_bytes())?;
        stream.read_exact(&mut answer[..1])?;
    }
    // The ends close in turn: bytes that come after this end was closed are read, too.
    stream.shutdown(Shutdown::Write)?;
    io::copy(&mut stream, &mut io::stdout()).map(drop)
}

/// Opens many connections at the same time. Each sends its number, and must get it back.
fn crowd(address: &str, count: usize) -> io::Result<()> {
    let mut all = (0..count).map(|_| TcpStream::connect(address)).collect::<io::Result<Vec<_>>>()?;
    for (n, stream) in all.iter_mut().enumerate() {
        stream.write_all(format!("{n:08}\n").as_bytes())?;
    }
    for (n, stream) in all.iter_mut().enumerate() {
        let mut answer = [0; 9];
        stream.read_exact(&mut answer)?;
        assert_eq!(answer, format!("{n:08}\n").as_bytes());
    }
    Ok(())
}

/// Sends datagrams from `count` sockets, and waits for an answer to each.
fn flows(address: &str, count: usize) -> io::Result<()> {
    for _ in 0..count {
        let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0))?;
        socket.send_to(b"?", address)?;
        socket.recv(&mut [0])?;
    }
    Ok(())
}

/// Sends a datagram from each of many sockets at the same time. Each must get its own number back.
fn swarm(address: &str, count: usize) -> io::Result<()> {
    let all = (0..count).map(|_| UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0))).collect::<io::Result<Vec<_>>>()?;
    for (n, socket) in all.iter().enumerate() {
        socket.set_read_timeout(Some(Duration::from_secs(20)))?;
        socket.send_to(&n.to_ne_bytes(), address)?;
    }
    let mut wrong = 0;
    for (n, socket) in all.iter().enumerate() {
        let mut answer = [0; 8];
        wrong += usize::from(socket.recv(&mut answer).is_err() || answer != n.to_ne_bytes());
    }
    if wrong > 0 { Err(io::Error::other(format!("{wrong} of {count} answers are missing or wrong"))) } else { Ok(()) }
}

/// Sends three bytes, the second of them urgent.
fn urgent(address: &str) -> io::Result<()> {
    let mut stream = TcpStream::connect(address)?;
    stream.write_all(b"a")?;
    // SAFETY: the call reads the byte, which outlives the call.
    checked(unsafe { libc::send(stream.as_raw_fd(), b"b".as_ptr().cast(), 1, libc::MSG_OOB) } as i64)?;
    stream.write_all(b"c")
}

/// Sends an ICMP echo request.
fn ping(to: Ipv4Addr) -> io::Result<()> {
    // SAFETY: numbers, and a structure of them that outlives the call.
    unsafe {
        let socket = libc::socket(libc::AF_INET, libc::SOCK_RAW, libc::IPPROTO_ICMP);
        checked(socket.into())?;
        let mut address: libc::sockaddr_in = std::mem::zeroed();
        address.sin_family = libc::AF_INET as u16;
        address.sin_addr.s_addr = to.to_bits().to_be();
        let request: [u8; 8] = [8, 0, 0xf7, 0xff, 0, 0, 0, 0];
        let size = size_of_val(&address) as u32;
        checked(libc::sendto(socket, request.as_ptr().cast(), 8, 0, (&raw const address).cast(), size) as i64)
    }
}

/// Starts a process in a session of its own, which writes to this process's output.
fn daemon(text: &str) -> io::Result<()> {
    std::process::Command::new("setsid").args(["sh", "-c", "echo $0", text]).spawn()?.wait().map(drop)
}
