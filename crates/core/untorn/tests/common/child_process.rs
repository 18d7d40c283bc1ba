//! A second process that opens stores, obeys commands, and is killed at the right moment.
//!
//! It is the test program itself, started again to run only [`child_process`], which then obeys commands from its
//! standard input: one a line, words separated by tabs, one reply each.

use super::{TempDir, directory, text};
use std::collections::HashMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Stdio};
use std::str::FromStr;
use std::time::{Duration, Instant};
use untorn::reader::Snapshot;
use untorn::{Error, FailureClass, File, FileOptions, Reader, Readers, Store, StoreOptions};

const ENVIRONMENT: &str = "UNTORN_TEST_CHILD_PROCESS";
/// Marks replies among the test runner's output to the same pipe.
const MARK: &str = "> ";

/// An Untorn error that came from a child process.
#[derive(Debug)]
pub struct Refusal {
    /// [`Error::kind`].
    pub kind: String,
    /// The owner's process, of a "busy".
    pub pid: Option<u32>,
    /// The message.
    pub message: String,
}

/// A process that obeys commands. Killed when dropped.
pub struct ChildProcess {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl ChildProcess {
    /// A new process, which owns nothing yet.
    pub fn start() -> ChildProcess {
        let mut child = untorn_testkit::again!("child_process")
            .env(ENVIRONMENT, "1")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("cannot start a second process");
        let input = child.stdin.take().expect("piped");
        let output = BufReader::new(child.stdout.take().expect("piped"));
        ChildProcess { child, input, output }
    }

    /// A new process that owns the store.
    #[track_caller]
    pub fn owning(store: impl AsRef<Path>) -> ChildProcess {
        let mut process = ChildProcess::start();
        process.ok(&["open", path_text(&store)]);
        process
    }

    /// Sends one command without waiting for its reply.
    pub fn tell(&mut self, words: &[&str]) {
        writeln!(self.input, "{}", words.join("\t")).expect("the child process is gone");
    }

    /// Waits for a reply.
    #[track_caller]
    pub fn reply(&mut self) -> Result<String, Refusal> {
        let mut line = String::new();
        loop {
            line.clear();
            let bytes = self.output.read_line(&mut line).expect("the child process's reply");
            assert_ne!(bytes, 0, "the child process died instead of replying");
            let Some(reply) = line.trim_end_matches('\n').strip_prefix(MARK) else { continue };
            let mut words = reply.splitn(4, '\t');
            let mut next = || words.next().unwrap_or_default().to_owned();
            return match next().as_str() {
                "ok" => Ok(next().replace('\u{1}', "\n")),
                _ => Err(Refusal { kind: next(), pid: next().parse().ok(), message: next() }),
            };
        }
    }

    /// One command and its reply.
    #[track_caller]
    pub fn ask(&mut self, words: &[&str]) -> Result<String, Refusal> {
        self.tell(words);
        self.reply()
    }

    /// One command that must succeed.
    #[track_caller]
    pub fn ok(&mut self, words: &[&str]) -> String {
        self.ask(words).unwrap_or_else(|e| panic!("the child process was refused {words:?}: {}: {}", e.kind, e.message))
    }

    /// One command that must be refused in one of these ways.
    #[track_caller]
    pub fn refused(&mut self, words: &[&str], kinds: &[&str]) -> Refusal {
        let refusal = self.ask(words).expect_err("this must be refused");
        assert!(kinds.contains(&refusal.kind.as_str()), "one of {kinds:?} wanted, not {refusal:?}");
        refusal
    }

    /// Writes the version's [`text`] to the file and commits it.
    #[track_caller]
    pub fn commit(&mut self, name: &str, version: &str) {
        self.ok(&["fill", name, version]);
        self.ok(&["commit", name]);
    }

    /// Its process id.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Sends a signal, such as SIGSTOP or SIGCONT.
    pub fn signal(&self, signal: rustix::process::Signal) {
        signal_process(self.pid(), signal);
    }

    /// Kills the process, and waits for its end.
    pub fn kill(mut self) {
        self.child.kill().expect("kill");
        let status = self.child.wait().expect("wait");
        assert_eq!(status.signal(), Some(9), "the child process was to die by the signal, not before it");
    }
}

impl Drop for ChildProcess {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Sends a signal to a process of the tests.
pub fn signal_process(pid: u32, signal: rustix::process::Signal) {
    let pid = rustix::process::Pid::from_raw(pid as i32).expect("a process id");
    rustix::process::kill_process(pid, signal).expect("kill");
}

/// Reads a child's output up to this line, and returns the rest of it.
///
/// # Panics
/// The child ended before.
#[track_caller]
pub fn output_after(child: &mut Child, line: &str, what: &str) -> BufReader<ChildStdout> {
    let mut out = BufReader::new(child.stdout.take().expect("a pipe"));
    let mut found = String::new();
    while found.trim_end() != line {
        found.clear();
        assert_ne!(out.read_line(&mut found).expect("text"), 0, "{what}: the child ended by itself");
    }
    out
}

/// Kills a child a pause after its first line, and returns the two numbers of each line that it printed until then,
/// such as `did 1 20`. The last line may be torn.
///
/// # Panics
/// The child ended before its first line.
#[track_caller]
pub fn killed_after_pause(mut child: Child, mut out: impl BufRead, pause: Duration) -> Vec<(usize, u64)> {
    let mut lines = String::new();
    // A kill before it might hit nothing.
    assert_ne!(out.read_line(&mut lines).expect("text"), 0, "the child ended by itself");
    let pid = child.id();
    let killer = std::thread::spawn(move || {
        std::thread::sleep(pause);
        signal_process(pid, rustix::process::Signal::KILL);
    });
    out.read_to_string(&mut lines).expect("text");
    killer.join().expect("a thread");
    child.wait().expect("its end");
    let whole = lines.split_inclusive('\n').filter(|line| line.ends_with('\n'));
    let numbers = whole.map(|line| {
        let words: Vec<u64> = line.split_whitespace().skip(1).map(|word| word.parse().expect("a number")).collect();
        (words[0] as usize, words[1])
    });
    numbers.collect()
}

/// The number of times that a test kills its children, unless `UNTORN_LIVE_KILLS` says otherwise.
pub fn kills<N: FromStr>(usual: N) -> N {
    std::env::var("UNTORN_LIVE_KILLS").ok().and_then(|n| n.parse().ok()).unwrap_or(usual)
}

/// A path for a command; the tests' directories have plain names.
pub fn path_text(path: &(impl AsRef<Path> + ?Sized)) -> &str {
    path.as_ref().to_str().expect("a path in UTF-8")
}

/// A store whose files were closed clean with version "old". Then each was committed with version "new", and the owner
/// was killed before it could close.
#[track_caller]
pub fn crashed_store(names: &[&str]) -> TempDir {
    let dir = directory();
    crash_in(dir.path(), names);
    dir
}

/// Makes such a store in an existing directory.
#[track_caller]
pub fn crash_in(dir: &Path, names: &[&str]) {
    close_clean_with(dir, names, "old");
    let mut process = ChildProcess::owning(dir);
    for name in names {
        process.ok(&["create", name]);
        process.commit(name, "new");
    }
    process.kill();
}

/// Commits the version to each file, creating missing files, and closes.
#[track_caller]
pub fn close_clean_with(dir: &Path, names: &[&str], version: &str) {
    let store = Store::open_or_create(dir).expect("open");
    for name in names {
        let file = store.open_or_create_file(name).expect("create");
        file.write_all_at(&text(version, name), 0).expect("write");
        file.commit().expect("commit");
    }
    store.close().expect("close");
}

/// In the second process: obeys commands. In the first: checks that a second process obeys, replies with errors, and
/// dies.
#[test]
fn child_process() {
    if std::env::var_os(ENVIRONMENT).is_some() {
        obey();
        return;
    }
    let dir = directory();
    let mut process = ChildProcess::owning(dir.path());
    process.ok(&["create", "a"]);
    process.commit("a", "first");
    assert_eq!(process.ok(&["read", "a"]).as_bytes(), &text("first", "a")[..20]);
    process.refused(&["file", "b"], &["io"]);
    process.kill();
}

#[derive(Default)]
struct Handles {
    store: Option<Store>,
    reader: Option<Reader>,
    held: Option<Snapshot>,
    files: HashMap<String, File>,
}

fn obey() {
    let mut handles = Handles::default();
    for line in std::io::stdin().lines() {
        let line = line.expect("a command");
        let words: Vec<&str> = line.split('\t').collect();
        let reply = match handles.perform(&words) {
            Ok(value) => format!("ok\t{value}"),
            Err(e) => {
                let pid = if let Error::Busy { pid: Some(pid), .. } = e { pid.to_string() } else { String::new() };
                format!("refused\t{}\t{pid}\t{}", e.kind(), e.to_string().replace('\n', " "))
            }
        };
        // Straight to the pipe: the test runner may have left the line unfinished.
        write!(std::io::stdout(), "\n{MARK}{reply}\n").expect("reply");
        std::io::stdout().flush().expect("reply");
    }
}

/// The contents of the block of that number.
pub fn block(n: usize) -> Vec<u8> {
    (n * 8192..(n + 1) * 8192).map(|at| (at / 7) as u8).collect()
}

/// The offset at which a block is written.
pub fn block_offset(n: usize) -> u64 {
    n as u64 * 12_000
}

impl Handles {
    fn perform(&mut self, words: &[&str]) -> Result<String, Error> {
        match words {
            ["open", path, options @ ..] => self.store = Some(store_options(options).open(path)?),
            ["lone", path] => self.keep("lone", File::open_or_create(path)?),
            ["file", name] => self.keep(name, self.store().open_file(name)?),
            ["create", name] => self.keep(name, self.store().open_or_create_file(name)?),
            ["create", name, mode] => {
                let options = FileOptions::new().create(true).mode(octal(mode));
                self.keep(name, options.open_in(self.store(), name)?);
            }
            ["txn-create", name, mode, version] => {
                let mut txn = self.store().begin();
                let file = txn.create(name, octal(mode))?;
                file.write_all_at(&text(version, name), 0)?;
                txn.commit()?;
                self.keep(name, file);
            }
            ["txn", steps @ ..] => self.transaction(steps)?,
            ["chmod", name, mode] => {
                let mut txn = self.store().begin();
                txn.chmod(name, octal(mode))?;
                txn.commit()?;
            }
            ["quarantined"] => {
                let all = self.store().status().quarantined;
                return Ok(all.iter().map(|q| q.path.display().to_string()).collect::<Vec<_>>().join(" "));
            }
            ["fill", name, version] => self.files[*name].write_all_at(&text(version, name), 0)?,
            ["blocks", name, count] => self.commit_blocks(name, count.parse().expect("a number"))?,
            ["commit", name] => self.files[*name].commit()?,
            ["store-mapped", name] => {
                let map = self.files[*name].map()?;
                map.store(b"mapped", 0)?;
                map.msync()?;
            }
            ["read", name] => {
                let mut start = [0; 20];
                let bytes = self.files[*name].read_at(&mut start, 0)?;
                // A reply is one line.
                return Ok(String::from_utf8_lossy(&start[..bytes]).replace('\n', "\u{1}"));
            }
            ["reader", path] => self.reader = Some(Reader::open(path)?),
            ["show", name] => {
                let bytes = self.reader.as_ref().expect("a reader").read(name)?;
                return Ok(String::from_utf8_lossy(&bytes[..20.min(bytes.len())]).replace('\n', "\u{1}"));
            }
            ["hold", path] => {
                let reader = Reader::open(path)?;
                self.held = Some(reader.snapshot()?);
            }
            ["show-held", name] => {
                let file = self.held.as_ref().expect("a snapshot").open(name)?;
                let mut start = [0; 20];
                let bytes = file.read_at(&mut start, 0)?;
                return Ok(String::from_utf8_lossy(&start[..bytes]).replace('\n', "\u{1}"));
            }
            ["release"] => self.held = None,
            ["readers", path, who] => {
                let who = match *who {
                    "all" => Readers::All,
                    "group" => Readers::Group,
                    _ => Readers::Owner,
                };
                untorn::offline::set_readers(Path::new(path), who)?;
            }
            ["checkpoint"] => self.store().checkpoint()?,
            ["close"] => {
                self.files.clear();
                self.store.take().expect("a store").close()?;
            }
            ["many", count] => self.commit_many(count.parse().expect("a number"))?,
            ["race", path, rounds] => race(path, rounds.parse().expect("a number"))?,
            ["fork"] => return Ok(fork_sleeper().to_string()),
            ["fork-use", name] => return Ok(self.use_in_fork(name)),
            ["become", uid] => become_user(uid.parse().expect("a user id"), uid.parse().expect("a group id")),
            ["become", uid, gid] => become_user(uid.parse().expect("a user id"), gid.parse().expect("a group id")),
            ["dumpable"] => {
                let dumpable = rustix::process::DumpableBehavior::Dumpable;
                rustix::process::set_dumpable_behavior(dumpable).expect("prctl");
            }
            ["umask", bits] => _ = rustix::process::umask(rustix::fs::Mode::from_raw_mode(octal(bits))),
            ["descriptors", limit] => {
                let limit = limit.parse().ok();
                let limit = rustix::process::Rlimit { current: limit, maximum: limit };
                rustix::process::setrlimit(rustix::process::Resource::Nofile, limit).expect("setrlimit");
            }
            _ => panic!("no such command: {words:?}"),
        }
        Ok(String::new())
    }

    fn store(&self) -> &Store {
        self.store.as_ref().expect("a store was opened before")
    }

    fn keep(&mut self, name: &str, file: File) {
        self.files.insert(name.to_owned(), file);
    }

    /// Blocks with gaps between them, several in a commit.
    fn commit_blocks(&self, name: &str, count: usize) -> Result<(), Error> {
        for n in 0..count {
            self.files[name].write_all_at(&block(n), block_offset(n))?;
            if n % 50 == 49 || n + 1 == count {
                self.files[name].commit()?;
            }
        }
        Ok(())
    }

    /// One commit of steps, each an operation and its arguments with colons between.
    fn transaction(&mut self, steps: &[&str]) -> Result<(), Error> {
        let mut txn = self.store().begin();
        let mut made = Vec::new();
        for step in steps {
            match step.split(':').collect::<Vec<_>>()[..] {
                ["create", name, mode] => {
                    let file = txn.create(name, octal(mode))?;
                    file.write_all_at(&text("new", name), 0)?;
                    made.push((name.to_owned(), file));
                }
                ["rename", from, to] => txn.rename(from, to)?,
                ["unlink", name] => txn.unlink(name)?,
                ["mkdir", name, mode] => txn.mkdir(name, octal(mode))?,
                ["rmdir", name] => txn.rmdir(name)?,
                ["chmod", name, mode] => txn.chmod(name, octal(mode))?,
                _ => panic!("no such step: {step}"),
            }
        }
        txn.commit()?;
        self.files.extend(made);
        Ok(())
    }

    /// One commit that creates this many files, then one that changes them all.
    fn commit_many(&self, count: usize) -> Result<(), Error> {
        let mut txn = self.store().begin();
        let mut files = Vec::new();
        for i in 0..count {
            let file = txn.create(format!("file {i}"), 0o644)?;
            file.write_all_at(&text("first", &i.to_string()), 0)?;
            files.push(file);
        }
        txn.commit()?;
        for (i, file) in files.iter().enumerate() {
            file.write_all_at(&text("later", &i.to_string()), 0)?;
        }
        self.store().syncv(&files.iter().collect::<Vec<_>>())
    }

    /// Uses a handle in a forked child; returns the outcome.
    fn use_in_fork(&self, name: &str) -> String {
        let file = &self.files[name];
        // SAFETY: the child makes only the calls that the test is about, then leaves by `_exit`.
        let pid = unsafe { libc::fork() };
        assert!(pid >= 0, "fork");
        if pid == 0 {
            // SAFETY: async-signal-safe; ends a child that hangs on an inherited lock.
            unsafe { libc::alarm(5) };
            let forked = |result: Result<(), Error>| matches!(result, Err(Error::Forked));
            let all = [
                forked(file.read_at(&mut [0; 10], 0).map(drop)),
                forked(file.write_all_at(b"child", 0)),
                forked(file.commit()),
                forked(self.store().checkpoint()),
                forked(self.store().open_file("other").map(drop)),
            ];
            let wrong = all.iter().filter(|refused| !**refused).count();
            // SAFETY: ends this process at once.
            unsafe { libc::_exit(wrong as i32) };
        }
        let mut status = 0;
        // SAFETY: waits for the child that was just made; `status` is ours.
        unsafe { libc::waitpid(pid, &raw mut status, 0) };
        match (libc::WIFEXITED(status), libc::WEXITSTATUS(status)) {
            (true, 0) => "refused".to_owned(),
            (true, wrong) => format!("{wrong} of 5 calls were not refused as forked"),
            (false, _) => format!("died by signal {}", libc::WTERMSIG(status)),
        }
    }
}

fn store_options(words: &[&str]) -> StoreOptions {
    words.iter().fold(StoreOptions::new().create(true), |options, word| match word.split_once('=') {
        Some(("class", "process")) => options.class(FailureClass::Process),
        Some(("readers-space", bytes)) => options.readers_space(bytes.parse().expect("a number")),
        Some(("readers", "all")) => options.readers(Readers::All),
        Some(("readers", "group")) => options.readers(Readers::Group),
        Some(("journal", bytes)) => options.journal_bytes(bytes.parse().expect("a number")),
        None if *word == "wait" => options.wait(true),
        _ => panic!("no such option: {word}"),
    })
}

fn octal(text: &str) -> u32 {
    u32::from_str_radix(text, 8).expect("an octal number")
}

/// Opens, commits and closes until it was the owner this many times. Meanwhile nobody else may be the owner.
fn race(path: &str, rounds: u32) -> Result<(), Error> {
    let token = Path::new(path).join("only-one-at-a-time");
    let start = Instant::now();
    let mut won = 0;
    while won < rounds {
        assert!(start.elapsed() < Duration::from_secs(120), "wedged: owner only {won} times");
        let store = match Store::open_or_create(path) {
            Ok(store) => store,
            Err(Error::Busy { .. }) => {
                std::thread::sleep(Duration::from_micros(300));
                continue;
            }
            Err(e) => return Err(e),
        };
        std::fs::File::create_new(&token).expect("two owners at one time");
        let counter = store.open_or_create_file("counter")?;
        let mut bytes = [0; 8];
        counter.read_at(&mut bytes, 0)?;
        counter.write_all_at(&(u64::from_le_bytes(bytes) + 1).to_le_bytes(), 0)?;
        counter.commit()?;
        std::fs::remove_file(&token).expect("the token is ours");
        drop(counter);
        store.close()?;
        won += 1;
    }
    Ok(())
}

/// A forked child that only sleeps, for half a minute at most. `fork` has returned in the child as well, so the child
/// has released its copies of the store's locks.
fn fork_sleeper() -> i32 {
    let mut pipe = [0; 2];
    // SAFETY: room for two descriptors.
    assert_eq!(unsafe { libc::pipe2(pipe.as_mut_ptr(), libc::O_CLOEXEC) }, 0, "pipe");
    // SAFETY: the child calls only async-signal-safe functions.
    let pid = unsafe { libc::fork() };
    assert!(pid >= 0, "fork");
    if pid == 0 {
        // SAFETY: async-signal-safe, all of them.
        unsafe {
            libc::write(pipe[1], [1u8].as_ptr().cast(), 1);
            libc::alarm(30);
            libc::pause();
            libc::_exit(0);
        }
    }
    let mut byte = 0u8;
    // SAFETY: one byte, and the descriptors made above, which nobody else uses.
    unsafe {
        assert_eq!(libc::read(pipe[0], (&raw mut byte).cast(), 1), 1, "the child lives");
        libc::close(pipe[0]);
        libc::close(pipe[1]);
    }
    pid
}

/// Changes from root to an ordinary user, for good, in all threads.
fn become_user(uid: u32, gid: u32) {
    // SAFETY: no pointers but an empty list of groups.
    let done = unsafe {
        libc::setgroups(0, std::ptr::null()) == 0
            && libc::setresgid(gid, gid, gid) == 0
            && libc::setresuid(uid, uid, uid) == 0
    };
    assert!(done, "cannot become user {uid}");
}
