//! Programs that somebody waits for: many small files, a database, a build.

use super::session::{Host, command, guest, wait};
use crate::bench_run::Run;
use crate::child::{Job, SessionJob};
use crate::harness::timed;
use crate::section::{Other, Row, Target, Waited};
use crate::statistics::{Measured, Ratio};
use anyhow::{Context, Result};
use std::fs::{self, File};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

pub const NOTES: &[&str] = &[
    "PostMark: as many transactions as files, of 500 to 9,800 bytes; in a session on its volume. The session's start and \
     end count. Asynchronous: in the benchmark's own directory, with one syncfs in the end, or none.",
    "SQLite: single inserts in WAL mode; its shell, of the package sqlite3. Durable: synchronous=FULL; asynchronous: \
     synchronous=OFF. In a session it flushes, and the session answers at once.",
    "Build: C files, by make -j2. In a session over the directory: its start, and applying the changes in the end, count; \
     without one, make and then syncfs.",
];

const NAMES: [&str; 2] = ["in a session", "asynchronous, syncfs at the end"];

pub fn rows(run: &Run, host: &Host, dir: &Path) -> Result<Vec<Row>> {
    let mut rows = vec![mail(run, host, dir)?];
    rows.extend(database(run, host, dir)?);
    rows.extend(build(run, host, dir)?);
    Ok(rows)
}

fn outside(job: &Job) -> Result<Command> {
    let words = guest(job)?;
    let mut command = Command::new(&words[0]);
    command.args(&words[1..]);
    Ok(command)
}

fn finished(command: &mut Command) -> Result<()> {
    wait(command.stdin(Stdio::null()).stdout(Stdio::null()).spawn()?)
}

fn syncfs(dir: &Path) -> Result<()> {
    Ok(rustix::fs::syncfs(File::open(dir)?)?)
}

/// A row of whole runs: the times of a session first.
fn row(run: &Run, cell: String, times: &[Measured], against: (usize, Target), others: &[(usize, Target)]) -> Row {
    let ratio = |who: usize, target: &Target| match target {
        Target::AtMost(_) => Ratio::cost(&times[0], &[&times[who]]),
        Target::AtLeast(_) => Ratio::speedup(&times[0], &[&times[who]]),
    };
    let others =
        others.iter().map(|(who, target)| Other::new(&times[*who].name, ratio(*who, target), Some(*target), run.quick));
    let row = Row {
        cell,
        load: "whole runs".to_owned(),
        contenders: times.iter().map(Measured::summary).collect(),
        ratio: Some(ratio(against.0, &against.1)),
        others: others.collect(),
        ..Row::default()
    };
    row.against_target(Some(against.1), Waited::Allowed, run.quick)
}

/// One run of each in turn, so many times.
fn in_turns(run: &Run, names: &[&str], mut once: impl FnMut(usize) -> Result<Duration>) -> Result<Vec<Measured>> {
    let mut times: Vec<_> = names.iter().map(|name| Measured::new(*name)).collect();
    for _ in 0..if run.quick { 1 } else { 3 } {
        for (who, measured) in times.iter_mut().enumerate() {
            measured.begin_round();
            measured.push(once(who)?);
        }
    }
    Ok(times)
}

fn mail(run: &Run, host: &Host, dir: &Path) -> Result<Row> {
    run.progress.cell("xsync: PostMark");
    let files = if run.quick { 100 } else { 10_000 };
    let job = |dir: &Path| Job::Postmark { dir: dir.to_owned(), files, transactions: files };
    let names = [NAMES[0], NAMES[1], "asynchronous, nothing at the end", "in a session with --exact"];
    let session = host.on_volume(true, None, guest(&job("/data/mail".as_ref()))?);
    let exact = SessionJob { exact: true, ..session.clone() };
    let mail = dir.join("mail");
    let times = in_turns(run, &names, |who| match who {
        0 => timed(|| finished(&mut command(&session)?)),
        3 => timed(|| finished(&mut command(&exact)?)),
        _ => {
            fs::create_dir_all(&mail)?;
            let time = timed(|| {
                finished(&mut outside(&job(&mail))?)?;
                if who == 1 { syncfs(&mail) } else { Ok(()) }
            });
            // Nobody is to pay for another one's changes.
            syncfs(&mail)?;
            time
        }
    })?;
    let others = [(2, Target::AtMost(1.10))];
    Ok(row(run, format!("PostMark {files}/{files}"), &times, (1, Target::AtMost(1.03)), &others))
}

fn is_here(program: &str) -> bool {
    let mut command = Command::new(program);
    command.arg("--version").stdout(Stdio::null()).stderr(Stdio::null());
    command.status().is_ok_and(|status| status.success())
}

fn database(run: &Run, host: &Host, dir: &Path) -> Result<Option<Row>> {
    if !is_here("sqlite3") {
        run.progress.print("SQLite is not measured: install the package sqlite3.");
        return Ok(None);
    }
    run.progress.cell("xsync: SQLite");
    let commits = if run.quick { 20 } else { 10_000 };
    let script = |database: &str, synchronous: &str| {
        let mut text = format!(
            ".open {database}\nPRAGMA journal_mode=WAL;\nPRAGMA synchronous={synchronous};\nCREATE TABLE t(n, s);\n"
        );
        (0..commits).for_each(|n| text += &format!("INSERT INTO t VALUES ({n}, 'some text of a row');\n"));
        text + "SELECT count(*) FROM t;\n"
    };
    let names = [NAMES[0], "durable, without a session", "asynchronous"];
    let times = in_turns(run, &names, |who| {
        let work = dir.join("database");
        fs::create_dir_all(&work)?;
        let database = if who == 0 { "/data/t.db".to_owned() } else { work.join("t.db").display().to_string() };
        let synchronous = if who == 2 { "OFF" } else { "FULL" };
        let path = work.join("script");
        fs::write(&path, script(&database, synchronous))?;
        let time = if who == 0 {
            let shell = ["sh", "-c", "rm -f /data/t.db*; exec sqlite3"].map(str::to_owned).to_vec();
            let session = host.on_volume(true, None, shell);
            timed(|| wait(command(&session)?.stdin(File::open(&path)?).stdout(Stdio::null()).spawn()?))
        } else {
            let mut sqlite = Command::new("sqlite3");
            timed(|| wait(sqlite.stdin(File::open(&path)?).stdout(Stdio::null()).spawn()?))
        };
        fs::remove_dir_all(&work)?;
        time
    })?;
    let others = [(2, Target::AtMost(1.25))];
    Ok(Some(row(run, format!("SQLite, {commits} commits"), &times, (1, Target::AtLeast(50.0)), &others)))
}

fn build(run: &Run, host: &Host, dir: &Path) -> Result<Option<Row>> {
    if !is_here("make") || !is_here("cc") {
        run.progress.print("No build is measured: install make and a C compiler.");
        return Ok(None);
    }
    run.progress.cell("xsync: build");
    let files = if run.quick { 2 } else { 60 };
    let times = in_turns(run, &NAMES, |who| {
        let work = dir.join("source");
        write_source(&work, files)?;
        syncfs(&work)?;
        let make = ["make", "-s", "-j2"];
        let time = if who == 0 {
            let session = host.over_a_directory(make.map(str::to_owned).to_vec());
            timed(|| finished(command(&session)?.current_dir(&work)))
        } else {
            timed(|| {
                finished(Command::new(make[0]).args(&make[1..]).current_dir(&work))?;
                syncfs(&work)
            })
        };
        anyhow::ensure!(work.join("all").exists(), "the build has built nothing");
        fs::remove_dir_all(&work)?;
        time
    })?;
    Ok(Some(row(run, format!("build of {files} files"), &times, (1, Target::AtMost(1.03)), &[])))
}

/// A tree of C files that take a while to compile.
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
    let makefile = "CFLAGS := -O2\nOBJ := $(patsubst %.c,%.o,$(wildcard *.c))\nall: $(OBJ)\n\tcc -o $@ $^\n";
    fs::write(dir.join("Makefile"), makefile).context("the source tree")
}
