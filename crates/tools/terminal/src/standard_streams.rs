//! The standard streams: which of them were closed at the start, and all writes of programs to them.
//!
//! Nothing here panics: a message that cannot be written does not change the actions of a program. Output is not
//! buffered, so that standard output and standard error keep their order when they go to one file. If a stream cannot
//! take data at the moment, this module waits, even if the stream is non-blocking. `untorn-house` refuses `println!`
//! and its kin in programs.

use parking_lot::Mutex;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::{Errno, FdFlags, fcntl_setfd};
use std::fmt::Arguments;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicU8, Ordering::Relaxed};

/// A bit for each standard descriptor that was closed at the start.
///
/// The runtime opens `/dev/null` in place of closed ones before `main`, and after that they look like descriptors that
/// were meant to be `/dev/null`.
static CLOSED: AtomicU8 = AtomicU8::new(0);

/// The loader calls this function before the runtime starts.
#[used]
// SAFETY: the section is a list of functions of this type.
#[unsafe(link_section = ".init_array")]
static LOOK: extern "C" fn() = look;

extern "C" fn look() {
    for descriptor in 0..3 {
        // SAFETY: only reads flags.
        if unsafe { libc::fcntl(descriptor, libc::F_GETFD) } == -1 {
            CLOSED.fetch_or(1 << descriptor, Relaxed);
        }
    }
}

/// Whether standard input was closed.
pub fn input_was_closed() -> bool {
    CLOSED.load(Relaxed) & 1 != 0
}

/// Whether standard output was closed.
pub fn output_was_closed() -> bool {
    CLOSED.load(Relaxed) & 2 != 0
}

/// Closes the streams that were closed at the start, for the program that this process becomes, so that it sees them as
/// closed, too.
pub fn leave_closed() {
    let streams = [rustix::stdio::stdin(), rustix::stdio::stdout(), rustix::stdio::stderr()];
    for (descriptor, stream) in streams.into_iter().enumerate() {
        if CLOSED.load(Relaxed) & 1 << descriptor != 0 {
            // The descriptor in its place belongs to this process alone.
            let _ = fcntl_setfd(stream, FdFlags::CLOEXEC);
        }
    }
}

/// Prints a message for people on standard error. Takes the arguments of `format!`, and ends the line if the text does
/// not.
#[macro_export]
macro_rules! tell {
    ($($arguments:tt)*) => { $crate::standard_streams::tell(::std::format_args!($($arguments)*)) };
}

/// Prints a part of a program's result on standard output. Takes the arguments of `format!`, and ends the line if the
/// text does not.
///
/// If it cannot be written, the program fails at its end ([`print`](crate::print)).
#[macro_export]
macro_rules! say {
    ($($arguments:tt)*) => { $crate::standard_streams::say(::std::format_args!($($arguments)*)) };
}

/// Consecutive messages that could not be written to standard error.
struct Untold {
    messages: usize,
    why: Errno,
}

static UNTOLD: Mutex<Untold> = Mutex::new(Untold { messages: 0, why: Errno::NOSPC });

/// The error that lost a part of the result.
static UNSAID: Mutex<Option<Errno>> = Mutex::new(None);

/// Writes the message of [`tell!`](crate::tell). The first message after lost ones also tells their number.
pub fn tell(message: Arguments<'_>) {
    let mut text = lines(message);
    let mut untold = UNTOLD.lock();
    if untold.messages > 0 {
        let (messages, why) = (untold.messages, io::Error::from(untold.why));
        text = format!("(messages lost before this one: {messages}, the last because of: {why})\n{text}");
    }
    match write_whole(rustix::stdio::stderr(), text.as_bytes()) {
        Ok(()) => untold.messages = 0,
        Err(why) => *untold = Untold { messages: untold.messages + 1, why },
    }
}

/// Writes the text of [`say!`](crate::say).
pub fn say(text: Arguments<'_>) {
    let mut unsaid = UNSAID.lock();
    // Stops after a gap, because a reader would take the rest for a complete result.
    if unsaid.is_none() {
        *unsaid = write_output(lines(text).as_bytes()).err();
    }
}

/// The error that lost a part of the result, if there was one.
pub fn lost_output() -> Option<io::Error> {
    UNSAID.lock().map(io::Error::from)
}

/// Writes to standard output. False if the reader has closed the pipe (`| head`).
///
/// # Errors
/// Standard output was closed (`EBADF`), or not all bytes could be written.
pub fn write_output(bytes: &[u8]) -> rustix::io::Result<bool> {
    if bytes.is_empty() {
        return Ok(true);
    }
    if output_was_closed() {
        return Err(Errno::BADF);
    }
    match write_whole(rustix::stdio::stdout(), bytes) {
        Err(Errno::PIPE) => Ok(false),
        done => done.map(|()| true),
    }
}

/// Writes everything, and waits whenever the stream cannot take data.
///
/// It waits even if the stream is non-blocking: another program may share the stream, and may have set that.
///
/// # Errors
/// Those of `write`, other than `EINTR` and `EAGAIN`.
pub fn write_whole(to: BorrowedFd<'_>, mut bytes: &[u8]) -> rustix::io::Result<()> {
    write_rest(to, &mut bytes)
}

/// Works like [`write_whole`]. After an error, `rest` are the bytes that were not written.
///
/// # Errors
/// Those of [`write_whole`].
pub fn write_rest(to: BorrowedFd<'_>, rest: &mut &[u8]) -> rustix::io::Result<()> {
    while !rest.is_empty() {
        match rustix::io::write(to, rest) {
            Ok(0) => return Err(Errno::IO),
            Ok(n) => *rest = &rest[n..],
            Err(Errno::INTR) => {}
            Err(Errno::AGAIN) => wait(to, PollFlags::OUT)?,
            Err(e) => return Err(e),
        }
    }
    Ok(())
}

/// Reads the bytes that are there. Waits if there are none, even if the stream is non-blocking. Returns zero at the
/// end.
///
/// # Errors
/// Those of `read`, other than `EINTR` and `EAGAIN`.
pub fn read_some(from: BorrowedFd<'_>, buffer: &mut [u8]) -> rustix::io::Result<usize> {
    loop {
        match rustix::io::read(from, &mut *buffer) {
            Err(Errno::INTR) => {}
            Err(Errno::AGAIN) => wait(from, PollFlags::IN)?,
            done => return done,
        }
    }
}

/// A reader that waits for bytes, even if the stream is non-blocking.
#[derive(Debug)]
pub struct Waiting(pub File);

impl Read for Waiting {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        Ok(read_some(self.0.as_fd(), buf)?)
    }
}

/// Waits until the stream can be written or read, or fails.
fn wait(stream: BorrowedFd<'_>, until: PollFlags) -> rustix::io::Result<()> {
    match poll(&mut [PollFd::new(&stream, until)], None) {
        Ok(_) | Err(Errno::INTR) => Ok(()),
        Err(e) => Err(e),
    }
}

/// Asks a question on standard error, and reads the answer from standard input. True if the answer is yes.
///
/// # Errors
/// The question cannot be asked. The message says how to do without.
pub fn confirmed(question: &str) -> Result<bool, String> {
    let mut line = String::new();
    write_whole(rustix::stdio::stderr(), format!("{question} [y/N] ").as_bytes())
        .map_err(io::Error::from)
        .and_then(|()| rustix::stdio::stdin().try_clone_to_owned())
        .and_then(|input| BufReader::new(Waiting(input.into())).read_line(&mut line))
        .map_err(|e| format!("cannot ask: {e}; nothing was changed. Use --yes"))?;
    Ok(matches!(line.trim().to_ascii_lowercase().as_str(), "y" | "yes"))
}

fn lines(text: Arguments<'_>) -> String {
    let mut text = text.to_string();
    if !text.ends_with('\n') {
        text.push('\n');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fs::{OFlags, fcntl_setfl};
    use std::io::{Write, pipe};
    use std::os::fd::OwnedFd;
    use std::path::Path;
    use std::process::{Command, Stdio};

    #[test]
    fn a_stream_that_does_not_block_is_waited_for() {
        let (from, to) = pipe().unwrap();
        fcntl_setfl(&to, OFlags::NONBLOCK).unwrap();
        fcntl_setfl(&from, OFlags::NONBLOCK).unwrap();
        let sent: Vec<u8> = (0..300_000_u32).map(|i| (i % 251) as u8).collect();
        let mut came = Vec::new();
        std::thread::scope(|scope| {
            let sent = &sent;
            scope.spawn(move || write_whole(to.as_fd(), sent).unwrap());
            Waiting(OwnedFd::from(from).into()).read_to_end(&mut came).unwrap();
        });
        assert_eq!(came, sent);
    }

    #[test]
    fn what_is_not_taken_is_an_error() {
        let full = File::options().write(true).open("/dev/full").unwrap();
        assert_eq!(write_whole(full.as_fd(), b"lost"), Err(Errno::NOSPC));
        let (from, to) = pipe().unwrap();
        drop(from);
        assert_eq!(write_whole(to.as_fd(), b"lost"), Err(Errno::PIPE));
        assert_eq!(write_whole(to.as_fd(), b""), Ok(()));
        let mut rest = &b"lost"[..];
        assert_eq!((write_rest(to.as_fd(), &mut rest), rest.len()), (Err(Errno::PIPE), 4));
        assert!((&to).write_all(b"lost").is_err());
    }

    const CHILD: &str = "UNTORN_TEST_STREAMS";

    /// Runs in a process of its own, because its streams must be used by nothing else. The test harness prints, too,
    /// and ends if it cannot.
    #[test]
    fn says_and_tells() {
        let Some(streams) = std::env::var_os(CHILD) else { return };
        let open = |path| File::options().append(true).create(true).open(path).unwrap();
        let streams: Vec<File> = std::env::split_paths(&streams).map(open).collect();
        rustix::stdio::dup2_stdout(&streams[0]).unwrap();
        rustix::stdio::dup2_stderr(&streams[1]).unwrap();
        (0..3).for_each(|n| {
            crate::say!("said {n}");
            crate::tell!("told {n}");
        });
        std::process::exit(0);
    }

    fn child(out: &Path, err: &Path) {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", "standard_streams::tests::says_and_tells", "--nocapture"]);
        command.env(CHILD, std::env::join_paths([out, err]).unwrap()).stdout(Stdio::null()).stderr(Stdio::null());
        assert!(command.status().unwrap().success());
    }

    fn lines_of(path: &Path) -> Vec<String> {
        let text = std::fs::read_to_string(path).unwrap();
        text.lines().filter(|line| line.contains("said") || line.contains("told")).map(str::to_owned).collect()
    }

    #[test]
    fn both_streams_into_one_file_keep_their_order() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("log");
        child(&path, &path);
        assert_eq!(lines_of(&path), ["said 0", "told 0", "said 1", "told 1", "said 2", "told 2"]);
    }

    #[test]
    fn a_stream_that_takes_nothing_does_not_keep_the_other_from_it() {
        let dir = tempfile::tempdir().unwrap();
        let (said, told, full) = (dir.path().join("said"), dir.path().join("told"), Path::new("/dev/full"));
        child(&said, full);
        assert_eq!(lines_of(&said), ["said 0", "said 1", "said 2"]);
        child(full, &told);
        assert_eq!(lines_of(&told), ["told 0", "told 1", "told 2"]);
    }

    #[test]
    fn a_text_ends_its_line_once() {
        assert_eq!(lines(format_args!("a {}", 1)), "a 1\n");
        assert_eq!(lines(format_args!("a\nb\n")), "a\nb\n");
    }
}
