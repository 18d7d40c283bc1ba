//! Programs whose users wait for them: a database, a build.

use super::runs::{NAMES, ON_DEVICE, ON_JOURNALING, finished, in_turns, row, syncfs};
use super::session::{Host, Setting, command, wait};
use crate::measuring::bench_run::Run;
use crate::measuring::harness::timed;
use crate::measuring::scratch::Scratch;
use crate::report::section::{Row, Target};
use crate::report::statistics::Measured;
use anyhow::{Context, Result};
use std::fs::{self, File, Permissions};
use std::io::{BufRead, BufReader};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

pub const NOTES: &[&str] = &[
    "SQLite: single inserts in WAL mode; its shell, of the package sqlite3. Durable: synchronous=FULL; asynchronous: \
     synchronous=OFF; data=journal and on a block device: as in PostMark. In a session it flushes, and the session answers at once. Until the output: from the session's \
     start to the line that the script prints last, which comes when all is durable.",
    "Build: by make -j2, of the source tree that UNTORN_XSYNC_SOURCE names (Lua 5.4 if `make xsync-programs` fetched it), \
     else of C files made up. In a session over the directory: its start, and applying the changes in the end, count; \
     without one, make and then syncfs.",
];

pub fn rows(run: &Run, setting: &Setting) -> Result<Vec<Row>> {
    let mut rows = Vec::from_iter(database(run, setting, if run.quick { 20 } else { 10_000 })?);
    rows.extend(build(run, setting)?);
    Ok(rows)
}

fn is_here(program: &str) -> bool {
    let mut command = Command::new(program);
    command.arg("--version").stdout(Stdio::null()).stderr(Stdio::null());
    command.status().is_ok_and(|status| status.success())
}

/// Where and how SQLite runs.
enum Way<'a> {
    Session(&'a Host),
    Outside { dir: &'a PathBuf, synchronous: &'static str },
}

/// SQLite with `commits` commits.
pub fn database(run: &Run, setting: &Setting, commits: u64) -> Result<Option<Row>> {
    if !is_here("sqlite3") {
        run.progress.print("SQLite is not measured: install the package sqlite3.");
        return Ok(None);
    }
    run.progress.cell("xsync: SQLite");
    let script = |database: &str, synchronous: &str| {
        let mut text = format!(
            ".open {database}\nPRAGMA journal_mode=WAL;\nPRAGMA synchronous={synchronous};\nCREATE TABLE t(n, s);\n"
        );
        (0..commits).for_each(|n| text += &format!("INSERT INTO t VALUES ({n}, 'some text of a row');\n"));
        text + "SELECT count(*) FROM t;\n"
    };
    let outside = |dir| Way::Outside { dir, synchronous: "OFF" };
    let mut ways = vec![
        (NAMES[0], Way::Session(&setting.host)),
        ("durable, without a session", Way::Outside { dir: &setting.dir, synchronous: "FULL" }),
        ("asynchronous", outside(&setting.dir)),
    ];
    ways.extend(setting.journaling.as_ref().map(|dir| (ON_JOURNALING, outside(dir))));
    ways.extend(setting.on_device.as_ref().map(|host| (ON_DEVICE, Way::Session(host))));
    let names: Vec<&str> = ways.iter().map(|(name, _)| *name).collect();
    let mut shown = Vec::new();
    let mut times = in_turns(run.rounds(5), &names, |who| {
        let way = &ways[who].1;
        let (dir, database, synchronous) = match way {
            Way::Session(_) => (&setting.dir, None, "FULL"),
            Way::Outside { dir, synchronous } => (*dir, Some(dir.join("database/t.db")), *synchronous),
        };
        let work = dir.join("database");
        fs::create_dir_all(&work)?;
        let database = database.map_or("/data/t.db".to_owned(), |path| path.display().to_string());
        let path = work.join("script");
        fs::write(&path, script(&database, synchronous))?;
        if let Way::Session(host) = way {
            let clean = ["sh", "-c", "rm -f /data/t.db*"].map(str::to_owned).to_vec();
            finished(&mut command(&host.on_volume(None, clean))?)?;
        }
        rustix::fs::sync();
        let (start, mut until_shown) = (Instant::now(), Duration::ZERO);
        let mut sqlite = match way {
            Way::Session(host) => command(&host.on_volume(None, vec!["sqlite3".to_owned()]))?,
            Way::Outside { .. } => Command::new("sqlite3"),
        };
        let mut child = sqlite.stdin(File::open(&path)?).stdout(Stdio::piped()).spawn()?;
        for line in BufReader::new(child.stdout.take().expect("piped")).lines() {
            if line? == commits.to_string() {
                until_shown = start.elapsed();
            }
        }
        wait(child)?;
        let whole = start.elapsed();
        anyhow::ensure!(!until_shown.is_zero(), "SQLite did not say how many rows there are");
        if who == 0 {
            shown.push(until_shown);
        }
        fs::remove_dir_all(&work)?;
        Ok(whole)
    })?;
    let mut until_shown = Measured::new("in a session, until the output");
    for time in shown {
        until_shown.begin_round();
        until_shown.push(time);
    }
    times.push(until_shown);
    let others = [(2, Target::AtMost(1.25))];
    Ok(Some(row(run, format!("SQLite, {commits} commits"), &times, (1, Target::AtLeast(50.0)), &others)))
}

fn build(run: &Run, setting: &Setting) -> Result<Option<Row>> {
    let built = measure_build(run, run.rounds(5), &Builder::usual(setting), Compiler::Compiles)?;
    Ok(built.map(|(cell, times)| row(run, cell, &times, (1, Target::AtMost(1.03)), &[])))
}

/// A contender of a build: the sessions over its directory, or none, and the directory.
pub struct Builder<'a> {
    pub name: &'a str,
    pub host: Option<&'a Host>,
    pub dir: &'a Path,
}

impl<'a> Builder<'a> {
    /// A build in a session over its directory, and builds without one.
    pub fn usual(setting: &'a Setting) -> Vec<Builder<'a>> {
        let mut all = vec![
            Builder { name: NAMES[0], host: Some(&setting.host), dir: &setting.dir },
            Builder { name: NAMES[1], host: None, dir: &setting.dir },
        ];
        let journaling = setting.journaling.as_deref();
        all.extend(journaling.map(|dir| Builder { name: ON_JOURNALING, host: None, dir }));
        all
    }
}

/// The work of a build's compiler.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Compiler {
    Compiles,
    /// It copies its output of an earlier build: the build is little more than its reads and writes.
    Copies,
}

/// The directory in a source tree with a compiler that copies, and its outputs.
const OBJECTS: &str = "objects";

/// The times of a build, which is described. `None`, with a message, if there is no compiler.
pub fn measure_build(
    run: &Run,
    rounds: usize,
    builders: &[Builder<'_>],
    compiler: Compiler,
) -> Result<Option<(String, Vec<Measured>)>> {
    if !is_here("make") || !is_here("cc") {
        run.progress.print("No build is measured: install make and a C compiler.");
        return Ok(None);
    }
    run.progress.cell("xsync: build");
    let source = std::env::var_os("UNTORN_XSYNC_SOURCE").map(PathBuf::from);
    let files = if run.quick { 2 } else { 60 };
    let names: Vec<&str> = builders.iter().map(|builder| builder.name).collect();
    let prepare = |work: &Path| match &source {
        Some(source) => copy_tree(source, work),
        None => write_source(work, files),
    };
    let make = |work: &Path| {
        let cc = match compiler {
            Compiler::Compiles => "cc".to_owned(),
            Compiler::Copies => work.join(OBJECTS).join("cc").display().to_string(),
        };
        vec!["make".to_owned(), "-s".to_owned(), "-j2".to_owned(), format!("CC={cc}")]
    };
    let outside = |work: &Path| {
        let words = make(work);
        finished(Command::new(&words[0]).args(&words[1..]).current_dir(work))
    };
    let scratch = Scratch::new_in(&std::env::temp_dir())?;
    let earlier = scratch.path().join("source");
    if compiler == Compiler::Copies {
        prepare(&earlier)?;
        write_copying_compiler(&earlier.join(OBJECTS))?;
        outside(&earlier)?;
    }
    let times = in_turns(rounds, &names, |who| {
        let Builder { host, dir, .. } = builders[who];
        let work = dir.join("source");
        prepare(&work)?;
        if compiler == Compiler::Copies {
            copy_tree(&earlier.join(OBJECTS), &work.join(OBJECTS))?;
        }
        rustix::fs::sync();
        let time = match host {
            Some(host) => {
                let session = host.over_a_directory(make(&work));
                timed(|| finished(command(&session)?.current_dir(&work)))
            }
            None => timed(|| {
                outside(&work)?;
                syncfs(&work)
            }),
        };
        anyhow::ensure!(source.is_some() || work.join("all").exists(), "the build has built nothing");
        fs::remove_dir_all(&work)?;
        time
    })?;
    let cell = match &source {
        Some(source) => format!("build of {}", source.file_name().unwrap_or_default().display()),
        None => format!("build of {files} files"),
    };
    Ok(Some((cell, times)))
}

/// Makes a compiler that compiles each file once, and later copies its output.
fn write_copying_compiler(objects: &Path) -> Result<()> {
    fs::create_dir(objects)?;
    let path = objects.join("cc");
    let script = "#!/bin/sh\nfor word; do [ \"$before\" = -o ] && out=$word; before=$word; done\n\
                  kept=${0%/*}/${out##*/}.kept\n\
                  if [ -n \"$out\" ] && [ -e \"$kept\" ]; then exec cp \"$kept\" \"$out\"; fi\n\
                  cc \"$@\" || exit\n[ -z \"$out\" ] || cp \"$out\" \"$kept\"\n";
    fs::write(&path, script)?;
    Ok(fs::set_permissions(&path, Permissions::from_mode(0o755))?)
}

fn copy_tree(from: &Path, to: &Path) -> Result<()> {
    let status = Command::new("cp").arg("-r").arg(from).arg(to).status()?;
    anyhow::ensure!(status.success(), "cannot copy {}", from.display());
    Ok(())
}

/// Writes a tree of C files that take a while to compile.
fn write_source(dir: &Path, files: usize) -> Result<()> {
    fs::create_dir_all(dir).context("the source tree")?;
    for n in 0..files {
        let mut text = "#include <stdio.h>\n#include <stdlib.h>\n#include <string.h>\n#include <math.h>\n".to_owned();
        for k in 0..60 {
            text += &format!(
                "static int f{k}(char *s, int n) {{ int i, r = {k}; for (i = 0; i < n; i++) r += s[i] * {n} + \
                 (int)strlen(s) % 7; return r; }}\n"
            );
        }
        let sum: String = (0..60).map(|k| format!(" + f{k}(s, {k})")).collect();
        text += &format!("int part{n}(char *s) {{ return 0{sum}; }}\n");
        fs::write(dir.join(format!("part{n}.c")), text)?;
    }
    let sum: String = (0..files).map(|n| format!(" + part{n}(\"text\")")).collect();
    let declared: String = (0..files).map(|n| format!("int part{n}(char *);\n")).collect();
    fs::write(dir.join("main.c"), format!("{declared}int main(void) {{ return (0{sum}) & 1; }}\n"))?;
    let makefile = "CFLAGS := -O2\nOBJ := $(patsubst %.c,%.o,$(wildcard *.c))\nall: $(OBJ)\n\t$(CC) -o $@ $^\n";
    fs::write(dir.join("Makefile"), makefile).context("the source tree")
}
