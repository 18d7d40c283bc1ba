//! The program that is killed: updates both files for ever, and says after each update that it is durable.

use super::mapped::{Mapped, PlainMapped};
use super::medium::{Managed, Medium, Plain};
use super::records::Records;
use super::source;
use crate::answer::{Answer, Failure};
use clap::{Args, ValueEnum};
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::time::Instant;

/// Who keeps the files.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Keeper {
    Plain,
    Untorn,
    PlainMapped,
    UntornMapped,
}

impl Keeper {
    pub const ALL: [Keeper; 4] = [Keeper::Plain, Keeper::Untorn, Keeper::PlainMapped, Keeper::UntornMapped];

    /// For people.
    pub fn describe(self) -> &'static str {
        match self {
            Keeper::Plain => "pwrite + fdatasync",
            Keeper::Untorn => "Untorn",
            Keeper::PlainMapped => "mmap + msync",
            Keeper::UntornMapped => "Untorn mapped",
        }
    }

    /// Promises whole updates.
    pub fn is_atomic(self) -> bool {
        matches!(self, Keeper::Untorn | Keeper::UntornMapped)
    }

    /// Opens the two files; after a crash, Untorn recovers them.
    pub fn open(self, dir: &Path) -> Result<Box<dyn Medium>, Failure> {
        Ok(match self {
            Keeper::Plain => Box::new(Plain::open(dir)?),
            Keeper::Untorn => Box::new(Managed::open(dir)?),
            Keeper::PlainMapped => Box::new(PlainMapped::open(dir)?),
            Keeper::UntornMapped => Box::new(Mapped::open(dir)?),
        })
    }
}

/// The child of `untorn demo`.
#[derive(Args)]
#[command(hide = true)]
pub struct DemoChild {
    #[arg(long)]
    keeper: Keeper,
    #[arg(long)]
    seed: u64,
    #[arg(long)]
    texts: PathBuf,
    dir: PathBuf,
}

impl DemoChild {
    pub fn run(self) -> Result<Answer, Failure> {
        let mut medium = self.keeper.open(&self.dir)?;
        let texts = source::load(&self.texts)?;
        let mut random = fastrand::Rng::with_seed(self.seed);
        let mut records = Records::load(&*medium)?;
        loop {
            let started = Instant::now();
            let generation = records.update(&mut *medium, &texts, &mut random)?;
            medium.commit()?;
            let ack = Ack { generation, took_ns: started.elapsed().as_nanos() as u64 };
            if std::io::stdout().write_all(&ack.encode()).and_then(|()| std::io::stdout().flush()).is_err() {
                // The parent is gone, and with it the reason to go on.
                return Ok(Answer::default());
            }
        }
    }
}

/// The child's word that an update is durable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ack {
    pub generation: u64,
    /// From the first write of the update until it was durable.
    pub took_ns: u64,
}

impl Ack {
    fn encode(self) -> [u8; 16] {
        let mut bytes = [0; 16];
        bytes[..8].copy_from_slice(&self.generation.to_le_bytes());
        bytes[8..].copy_from_slice(&self.took_ns.to_le_bytes());
        bytes
    }

    /// The next one from the pipe; none at its end.
    pub fn read(from: &mut impl Read) -> Option<Ack> {
        let mut bytes = [[0; 8]; 2];
        from.read_exact(bytes.as_flattened_mut()).ok()?;
        Some(Ack { generation: u64::from_le_bytes(bytes[0]), took_ns: u64::from_le_bytes(bytes[1]) })
    }
}
