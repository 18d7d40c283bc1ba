//! `untorn sqlite`: databases of Untorn's extension for SQLite.

mod adopt;
mod belonging;
mod each;
mod plain;
mod status;

use clap::{Args, Subcommand};
use untorn_terminal::{Failure, Output};

/// Show, adopt and release SQLite databases, for Untorn's extension for SQLite.
///
/// With the extension, the VFS `untorn`, each transaction is one commit of a store. A database belongs to a store of its
/// own, `DB.untorn`, or to that of a directory. docs/SQLITE.md describes the extension.
#[derive(Args)]
pub struct Sqlite {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    Status(status::Status),
    Adopt(adopt::Adopt),
    Plain(plain::Plain),
}

impl Sqlite {
    pub fn run(self) -> Result<Output, Failure> {
        match self.command {
            Command::Status(command) => command.run(),
            Command::Adopt(command) => command.run(),
            Command::Plain(command) => command.run(),
        }
    }
}
