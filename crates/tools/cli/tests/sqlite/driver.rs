//! Builds of the extension, and a program that runs SQL on several connections.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::OnceLock;
use untorn_testkit::{library_dir, link_by, root};

#[track_caller]
pub fn succeed(command: &mut Command) -> String {
    let output = command.stdin(Stdio::null()).output().unwrap_or_else(|e| panic!("{command:?}: {e}"));
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?}: {}{error}", String::from_utf8_lossy(&output.stdout));
    String::from_utf8(output.stdout).expect("UTF-8")
}

/// The directory of the builds, which goes with this process.
fn builds() -> &'static Path {
    static DIR: OnceLock<tempfile::TempDir> = OnceLock::new();
    let dir = DIR.get_or_init(|| tempfile::tempdir().unwrap());
    dir.path()
}

/// The extension, linked with these options of the compiler. Each option makes a build that is wrong or prints calls.
pub fn extension(options: &[&str]) -> PathBuf {
    let dir = builds().join(format!("build{}", options.concat()));
    if !dir.exists() {
        // Under another name until it is complete: tests run at the same time.
        let made = tempfile::tempdir_in(builds()).unwrap().keep();
        link_by("crates/bindings/sqlite/link.sh", &made.join("libuntorn_sqlite.so"), options);
        // Another test may have been faster.
        let _ = fs::rename(made, &dir);
    }
    dir.join("libuntorn_sqlite.so")
}

/// The program of `drive.c`, with the system's SQLite, or with that of a directory that has `sqlite3.c` and `sqlite3.h`.
pub fn program() -> &'static Path {
    static COMPILED: OnceLock<PathBuf> = OnceLock::new();
    COMPILED.get_or_init(|| compile("drive", &[], &[]))
}

/// The program with the VFS in it: libuntorn_sqlite.a and libuntorn.a. An SQLite that is compiled with it starts the VFS.
pub fn static_program() -> PathBuf {
    let archive = builds().join("libuntorn_sqlite.a");
    succeed(Command::new(root().join("crates/bindings/sqlite/archive.sh")).arg(&archive));
    let options = ["-DUNTORN_STATIC", "-DSQLITE_EXTRA_INIT=untorn_sqlite_init"];
    compile("static", &options, &[archive, library_dir().join("libuntorn.a")])
}

fn compile(name: &str, options: &[&str], archives: &[PathBuf]) -> PathBuf {
    let (source, to) = (Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/sqlite/drive.c"), builds().join(name));
    let mut compiler = Command::new("cc");
    compiler.args(["-O1", "-g", "-o"]).arg(&to).args(options);
    match std::env::var_os("UNTORN_TEST_SQLITE").map(PathBuf::from) {
        Some(dir) => compiler.arg("-w").arg(source).arg("-I").arg(&dir).arg(dir.join("sqlite3.c")).args(archives),
        None => compiler.args(["-Wall", "-Wextra", "-Werror"]).arg(source).args(archives).arg("-lsqlite3"),
    };
    succeed(compiler.args(["-lpthread", "-ldl", "-lm", "-lgcc_s"]));
    to
}

/// An answer: rows, SQLite's code, and its message.
#[derive(Debug, PartialEq, Eq)]
pub struct Answer {
    pub rows: Vec<String>,
    pub code: i32,
    pub message: String,
}

impl Answer {
    /// The rows of a statement that must succeed, joined by commas.
    #[track_caller]
    pub fn ok(self) -> String {
        assert_eq!(self.code, 0, "{self:?}");
        self.rows.join(",")
    }
}

/// The program, running.
pub struct Driver {
    pub child: Child,
    input: Option<ChildStdin>,
    output: BufReader<ChildStdout>,
}

impl Driver {
    pub fn start() -> Driver {
        Driver::with(Some(&extension(&[])))
    }

    /// SQLite without the extension.
    pub fn plain() -> Driver {
        Driver::with(None)
    }

    pub fn with(extension: Option<&Path>) -> Driver {
        let mut command = Command::new(program());
        command.args(extension);
        Driver::from(&mut command)
    }

    pub fn from(command: &mut Command) -> Driver {
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let (input, output) = (child.stdin.take(), BufReader::new(child.stdout.take().expect("piped")));
        Driver { child, input, output }
    }

    /// Sends a command.
    pub fn say(&mut self, command: &str) {
        writeln!(self.input.as_mut().expect("open"), "{command}").unwrap();
    }

    /// The next line that the program prints; `None` at its end.
    pub fn line(&mut self) -> Option<String> {
        let mut line = String::new();
        (self.output.read_line(&mut line).unwrap() > 0).then(|| line.trim_end().to_owned())
    }

    /// Sends a command and waits for its answer.
    #[track_caller]
    pub fn tell(&mut self, command: &str) -> Answer {
        self.say(command);
        let mut rows = Vec::new();
        loop {
            let mut line = String::new();
            assert_ne!(self.output.read_line(&mut line).unwrap(), 0, "the program ended at: {command}");
            let line = line.trim_end_matches('\n');
            if let Some(row) = line.strip_prefix("row ") {
                rows.push(row.to_owned());
            } else if let Some(done) = line.strip_prefix("done ") {
                let (code, message) = done.split_once(' ').expect("a code");
                return Answer { rows, code: code.parse().unwrap(), message: message.to_owned() };
            }
        }
    }

    /// Opens connection `at` with a database of a directory, in the VFS `untorn`.
    #[track_caller]
    pub fn open(&mut self, at: usize, dir: &Path, name: &str) {
        self.tell(&format!("open {at} {}", uri(dir, name))).ok();
    }

    /// The result of a statement on connection 0.
    #[track_caller]
    pub fn sql(&mut self, sql: &str) -> String {
        self.tell(&format!("0 {sql}")).ok()
    }

    /// Ends the program in the usual way.
    #[track_caller]
    pub fn end(mut self) {
        drop(self.input.take());
        assert!(self.child.wait().unwrap().success());
    }

    pub fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

impl Drop for Driver {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The URI of a database; parameters may follow the name.
pub fn uri(dir: &Path, name: &str) -> String {
    let mark = if name.contains('?') { '&' } else { '?' };
    format!("file:{}{mark}vfs=untorn", dir.join(name).display())
}

/// SQL on a database by SQLite's own VFS, in a process of its own.
pub fn plain(dir: &Path, name: &str, sql: &str) -> Answer {
    let mut driver = Driver::plain();
    driver.tell(&format!("open 0 {}", dir.join(name).display())).ok();
    driver.tell(&format!("0 {sql}"))
}
