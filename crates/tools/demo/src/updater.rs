//! The program that is killed: it updates both files forever, and reports each update once the update is durable.

use crate::mapped_files::{Mapped, PlainMapped};
use crate::medium::{Managed, Medium, Plain};
use crate::records::Records;
use crate::texts;
use clap::{Parser, ValueEnum};
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;
use untorn_terminal::{Failure, Output};

/// The way in which the files are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Keeper {
    Plain,
    Untorn,
    PlainMapped,
    UntornMapped,
}

impl Keeper {
    pub const ALL: [Keeper; 4] = [Keeper::Plain, Keeper::Untorn, Keeper::PlainMapped, Keeper::UntornMapped];

    /// The name for people.
    pub fn describe(self) -> &'static str {
        match self {
            Keeper::Plain => "pwrite + fdatasync",
            Keeper::Untorn => "Untorn",
            Keeper::PlainMapped => "mmap + msync",
            Keeper::UntornMapped => "Untorn mapped",
        }
    }

    /// The name as an argument, and of the directory.
    pub fn name(self) -> String {
        let value = self.to_possible_value().expect("no variant is skipped");
        value.get_name().to_owned()
    }

    /// Whether the keeper promises complete updates.
    pub fn is_atomic(self) -> bool {
        matches!(self, Keeper::Untorn | Keeper::UntornMapped)
    }

    /// Opens the two files. After a crash, Untorn recovers them.
    pub fn open(self, dir: &Path) -> Result<Box<dyn Medium>, Failure> {
        Ok(match self {
            Keeper::Plain => Box::new(Plain::open(dir)?),
            Keeper::Untorn => Box::new(Managed::open(dir)?),
            Keeper::PlainMapped => Box::new(PlainMapped::open(dir)?),
            Keeper::UntornMapped => Box::new(Mapped::open(dir)?),
        })
    }
}

/// The first argument of the program that is killed.
const CHILD: &str = "demo-child";

/// Arguments of the program that is killed.
#[derive(Parser)]
struct Child {
    #[arg(long)]
    keeper: Keeper,
    #[arg(long)]
    seed: u64,
    #[arg(long)]
    texts: PathBuf,
    dir: PathBuf,
}

/// Does the work of the program that is killed, if this process was started as that program. It ends only with its
/// parent.
pub fn run_if_child() -> Option<Result<Output, Failure>> {
    let mut arguments = std::env::args_os().skip(1);
    (arguments.next()? == CHILD).then(|| Child::parse_from(std::env::args_os().skip(1)).run())
}

/// The command that starts the program that is killed.
pub fn command(keeper: Keeper, seed: u64, texts: &Path, dir: &Path) -> Result<Command, Failure> {
    let program = std::env::current_exe().map_err(|e| Failure::new(format!("cannot find this program: {e}")))?;
    let mut command = Command::new(program);
    command.args([CHILD, "--keeper", keeper.name().as_str(), "--seed", &seed.to_string()]);
    command.arg("--texts").arg(texts).arg(dir);
    Ok(command)
}

impl Child {
    fn run(self) -> Result<Output, Failure> {
        let mut medium = self.keeper.open(&self.dir)?;
        let texts = texts::load(&self.texts)?;
        let mut random = fastrand::Rng::with_seed(self.seed);
        let mut records = Records::load(&*medium)?;
        loop {
            let started = Instant::now();
            let generation = records.update(&mut *medium, &texts, &mut random)?;
            medium.commit()?;
            let ack = Ack { generation, took_ns: started.elapsed().as_nanos() as u64 };
            if std::io::stdout().write_all(&ack.encode()).and_then(|()| std::io::stdout().flush()).is_err() {
                // The parent is gone, so there is no reason to go on.
                return Ok(Output::default());
            }
        }
    }
}

/// The child's report that an update is durable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ack {
    pub generation: u64,
    /// The time from the first write of the update until it was durable.
    pub took_ns: u64,
}

impl Ack {
    fn encode(self) -> [u8; 16] {
        let mut bytes = [0; 16];
        bytes[..8].copy_from_slice(&self.generation.to_le_bytes());
        bytes[8..].copy_from_slice(&self.took_ns.to_le_bytes());
        bytes
    }

    /// Reads the next report from the pipe. None at its end.
    pub fn read(from: &mut impl Read) -> Option<Ack> {
        let mut bytes = [[0; 8]; 2];
        from.read_exact(bytes.as_flattened_mut()).ok()?;
        Some(Ack { generation: u64::from_le_bytes(bytes[0]), took_ns: u64::from_le_bytes(bytes[1]) })
    }
}
