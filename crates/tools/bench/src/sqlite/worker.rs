//! A process with databases of SQLite, which repeats one kind of transaction.

use super::connection::{Connection, Sqlite, Statement};
use crate::measuring::harness::timed;
use crate::measuring::unavailable::unavailable;
use anyhow::{Context, Result, ensure};
use serde::{Deserialize, Serialize};
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::time::Duration;
use untorn::on_mount::Transaction;
use untorn_terminal::say;

/// The rows of a table, and their bytes.
const ROWS: u64 = 1000;
const ROW_BYTES: usize = 1000;

/// How the databases are kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Kept {
    Vfs,
    Wal,
    Delete,
    /// On a mount, whose transaction has the files of all databases; SQLite has its journal in memory and flushes nothing.
    InTransaction,
}

/// The work that the process repeats.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub enum Work {
    /// A transaction that updates a random row of each of the attached databases.
    Update { databases: usize, is_durable: bool },
    /// Threads with a connection each update random rows, each of a database of its own.
    Apart { threads: usize },
    /// Threads with a connection each update random rows of one database.
    Together { threads: usize },
    /// A random row is read, and nothing is cached.
    Read,
    /// A connection is opened, reads one row, and is closed.
    Open,
}

/// A process, and how many operations are one measurement.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Program {
    pub dir: PathBuf,
    pub kept: Kept,
    pub work: Work,
    pub operations: usize,
    /// Nothing is written to databases but at the end: so the bytes of the journal and those of the databases are known apart.
    pub is_apart: bool,
}

/// Fails with a reason if SQLite or the extension is missing.
pub fn need_extension() -> Result<()> {
    Sqlite::load().map_err(|e| unavailable(format!("{e:#}")))?.extend()
}

/// Measures the operations for each byte of the input; prints the nanoseconds of one, and the bytes that all have written.
/// At the end prints the bytes that bringing the databases up to date has written.
pub fn run(program: &Program) -> Result<()> {
    let process = Process::new(program)?;
    let mut operations = process.prepare()?;
    for byte in std::io::stdin().lock().bytes() {
        byte?;
        let before = bytes_written()?;
        let time = timed(|| operations(program.operations))?;
        say!("{} {}", time.as_nanos() / program.operations as u128, bytes_written()? - before);
    }
    drop(operations);
    let before = bytes_written()?;
    process.bring_up_to_date()?;
    say!("{}", bytes_written()? - before);
    Ok(())
}

/// The bytes that this process has sent to the disk, or will have: pages that it made dirty, and direct writes.
fn bytes_written() -> Result<u64> {
    let io = std::fs::read_to_string("/proc/self/io")?;
    let line = io.lines().find_map(|line| line.strip_prefix("write_bytes: "));
    line.context("no write_bytes in /proc/self/io")?.parse().context("/proc/self/io")
}

type Operations<'a> = Box<dyn FnMut(usize) -> Result<()> + 'a>;

/// Connections of one process.
struct Process<'a> {
    program: &'a Program,
    sqlite: Sqlite,
}

impl Process<'_> {
    fn new(program: &Program) -> Result<Process<'_>> {
        let sqlite = Sqlite::load()?;
        if program.kept == Kept::Vfs {
            sqlite.extend()?;
        }
        Ok(Process { program, sqlite })
    }

    /// The databases of a directory are of one store.
    fn uri(&self, n: usize) -> String {
        let dir: &Path = &self.program.dir;
        match self.program.kept {
            Kept::Vfs => format!("file:{0}/{n}.db?vfs=untorn&store={0}", dir.display()),
            Kept::Wal | Kept::Delete | Kept::InTransaction => format!("file:{}/{n}.db", dir.display()),
        }
    }

    fn settings(&self, schema: &str) -> String {
        let mode = match self.program.kept {
            Kept::Wal => "WAL",
            Kept::InTransaction => "MEMORY",
            Kept::Vfs | Kept::Delete => "DELETE",
        };
        // With WAL, NORMAL is the level that waits for nothing and keeps the database in order.
        let level = match (self.program.work, self.program.kept) {
            (Work::Update { is_durable: false, .. }, Kept::Wal) => "NORMAL",
            (Work::Update { is_durable: false, .. }, _) | (_, Kept::InTransaction) => "OFF",
            _ => "FULL",
        };
        let mut settings = format!("PRAGMA {schema}.journal_mode={mode}; PRAGMA {schema}.synchronous={level};");
        if self.program.kept == Kept::Wal && self.program.is_apart {
            settings += "PRAGMA wal_autocheckpoint=0;";
        }
        settings
    }

    /// A connection to a database, which has its rows.
    fn open(&self, n: usize) -> Result<Connection> {
        let connection = self.sqlite.open(&self.uri(n))?;
        connection.wait_for_others(Duration::from_secs(600));
        connection.execute(&self.settings("main"))?;
        fill(&connection, "main")?;
        Ok(connection)
    }

    fn prepare(&self) -> Result<Operations<'_>> {
        match self.program.work {
            Work::Update { databases, .. } => self.updates(databases),
            Work::Apart { threads } => self.threads(threads, |thread| thread),
            Work::Together { threads } => self.threads(threads, |_| 0),
            Work::Read => {
                let connection = self.open(0)?;
                connection.execute("PRAGMA cache_size=0")?;
                let statement = connection.prepare("SELECT v FROM t WHERE k = ?1")?;
                let mut random = fastrand::Rng::with_seed(7);
                repeated(move || {
                    let _ = &connection;
                    ensure!(statement.run(random.i64(0..ROWS as i64), None)? == 1, "a row is missing");
                    Ok(())
                })
            }
            Work::Open => {
                drop(self.open(0)?);
                repeated(|| {
                    let connection = self.sqlite.open(&self.uri(0))?;
                    ensure!(connection.prepare("SELECT v FROM t WHERE k = ?1")?.run(1, None)? == 1, "a row is missing");
                    Ok(())
                })
            }
        }
    }

    fn updates(&self, databases: usize) -> Result<Operations<'_>> {
        let connection = self.open(0)?;
        for n in 1..databases {
            connection.execute(&format!("ATTACH '{}' AS db{n}", self.uri(n)))?;
            connection.execute(&self.settings(&format!("db{n}")))?;
            fill(&connection, &format!("db{n}"))?;
        }
        let schemas = (0..databases).map(|n| if n == 0 { "main".to_owned() } else { format!("db{n}") });
        let mut updates = schemas.map(|schema| Update::new(&connection, &schema, 7)).collect::<Result<Vec<_>>>()?;
        let mut transaction = match self.program.kept {
            Kept::InTransaction => Some(self.transaction(databases)?),
            Kept::Vfs | Kept::Wal | Kept::Delete => None,
        };
        repeated(move || {
            match &mut updates[..] {
                [only] => only.run(),
                several => {
                    connection.execute("BEGIN")?;
                    several.iter_mut().try_for_each(Update::run)?;
                    connection.execute("COMMIT")
                }
            }?;
            transaction.as_mut().map_or(Ok(()), |(transaction, _)| Ok(transaction.commit_and_chain()?))
        })
    }

    /// A transaction of the mount over all databases. Their files stay open with it: closing one would end SQLite's locks.
    fn transaction(&self, databases: usize) -> Result<(Transaction, Vec<File>)> {
        let open = |n| File::options().read(true).write(true).open(self.program.dir.join(format!("{n}.db")));
        let files = (0..databases).map(open).collect::<std::io::Result<Vec<_>>>()?;
        let mut transaction = Transaction::begin_committed(&files[0])?;
        files[1..].iter().try_for_each(|file| transaction.add(file))?;
        Ok((transaction, files))
    }

    /// Each thread does its part of the operations. Threads of one database begin by taking the lock that they need: a
    /// transaction that has read cannot wait for it.
    fn threads(&self, threads: usize, database: impl Fn(usize) -> usize) -> Result<Operations<'_>> {
        let mut writers = (0..threads)
            .map(|thread| {
                let connection = self.open(database(thread))?;
                let update = Update::new(&connection, "main", thread as u64)?;
                Ok((update, connection))
            })
            .collect::<Result<Vec<_>>>()?;
        Ok(Box::new(move |operations| {
            std::thread::scope(|scope| {
                let running: Vec<_> = writers
                    .iter_mut()
                    .map(|(update, connection)| {
                        scope.spawn(move || {
                            (0..operations.div_ceil(threads)).try_for_each(|_| {
                                connection.execute("BEGIN IMMEDIATE")?;
                                update.run()?;
                                connection.execute("COMMIT")
                            })
                        })
                    })
                    .collect();
                running.into_iter().try_for_each(|thread| thread.join().expect("a thread that does not panic"))
            })
        }))
    }

    /// Writes into the databases everything that is only in a log.
    fn bring_up_to_date(&self) -> Result<()> {
        match self.program.kept {
            Kept::Vfs => self.sqlite.open(&self.uri(0))?.execute("PRAGMA untorn_release"),
            Kept::Wal => {
                let files = std::fs::read_dir(&self.program.dir)?.filter(|entry| {
                    entry.as_ref().is_ok_and(|entry| entry.file_name().to_string_lossy().ends_with(".db"))
                });
                (0..files.count())
                    .try_for_each(|n| self.sqlite.open(&self.uri(n))?.execute("PRAGMA wal_checkpoint(TRUNCATE)"))
            }
            Kept::Delete | Kept::InTransaction => Ok(()),
        }
    }
}

fn repeated<'a>(mut operation: impl FnMut() -> Result<()> + 'a) -> Result<Operations<'a>> {
    Ok(Box::new(move |operations| (0..operations).try_for_each(|_| operation())))
}

/// Makes the table, unless it is there.
fn fill(connection: &Connection, schema: &str) -> Result<()> {
    connection.execute(&format!(
        "BEGIN IMMEDIATE; CREATE TABLE IF NOT EXISTS {schema}.t(k INTEGER PRIMARY KEY, v);
         WITH RECURSIVE n(k) AS (SELECT 0 UNION ALL SELECT k + 1 FROM n WHERE k < {ROWS} - 1)
         INSERT OR IGNORE INTO {schema}.t SELECT k, randomblob({ROW_BYTES}) FROM n; COMMIT"
    ))
}

/// The update of a random row.
struct Update {
    statement: Statement,
    random: fastrand::Rng,
    value: [u8; ROW_BYTES],
}

impl Update {
    fn new(connection: &Connection, schema: &str, seed: u64) -> Result<Update> {
        let statement = connection.prepare(&format!("UPDATE {schema}.t SET v = ?2 WHERE k = ?1"))?;
        Ok(Update { statement, random: fastrand::Rng::with_seed(seed), value: [0; ROW_BYTES] })
    }

    fn run(&mut self) -> Result<()> {
        // SQLite does not write a row that stays the same.
        self.random.fill(&mut self.value);
        self.statement.run(self.random.i64(0..ROWS as i64), Some(&self.value)).map(drop)
    }
}
