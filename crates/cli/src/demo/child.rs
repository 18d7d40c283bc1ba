//! The program that is killed: updates both files for ever, and says after each update that it is durable.

use super::medium::{Managed, Medium, Plain};
use super::records::Records;
use super::source;
use crate::answer::{Answer, Failure};
use clap::{Args, ValueEnum};
use std::io::{Read, Write};
use std::path::PathBuf;
use std::time::Instant;

/// Who keeps the files.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Keeper {
    Plain,
    Untorn,
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
        match self.keeper {
            Keeper::Plain => self.update_for_ever(Plain::open(&self.dir)?),
            Keeper::Untorn => self.update_for_ever(Managed::open(&self.dir)?),
        }
    }

    fn update_for_ever(&self, mut medium: impl Medium) -> Result<Answer, Failure> {
        let texts = source::load(&self.texts)?;
        let mut random = fastrand::Rng::with_seed(self.seed);
        let mut records = Records::load(&medium)?;
        loop {
            let started = Instant::now();
            let generation = records.update(&mut medium, &texts, &mut random)?;
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
