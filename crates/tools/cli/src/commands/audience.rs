//! `untorn readers`.

use clap::{Args, ValueEnum, ValueHint};
use std::path::PathBuf;
use untorn::Readers as Who;
use untorn::offline;
use untorn_terminal::{Failure, Output};

/// Show or change who may read a store beside its owner (`untorn cat`, `ls`, `tail`, `cp`, and programs).
///
/// The journal holds bytes of ALL files of the store: a user who may read the store sees everything that is committed
/// to a file, even to a file that only its owner may read. Data files themselves stay as open as their own permission
/// bits say. Works while a program has the store open. Programs that have already opened something of the store keep
/// it open.
#[derive(Args)]
pub struct Readers {
    /// A store's directory, or a file with its own store.
    #[arg(value_hint = ValueHint::AnyPath)]
    path: PathBuf,
    /// Users who may read the store from now on. Without it, the command shows who may read it now.
    #[arg(value_enum)]
    who: Option<Audience>,
}

#[derive(Clone, Copy, ValueEnum)]
enum Audience {
    /// The user of the store, and root.
    Owner,
    /// The group of the store directory, too.
    Group,
    /// Everybody.
    All,
}

impl Readers {
    pub fn run(self) -> Result<Output, Failure> {
        let who = self.who.map(|who| match who {
            Audience::Owner => Who::Owner,
            Audience::Group => Who::Group,
            Audience::All => Who::All,
        });
        if let Some(who) = who {
            offline::set_readers(&self.path, who)?;
        }
        let text = match offline::readers(&self.path)? {
            Who::Owner => "owner: the user of the store, and root\n",
            Who::Group => "group: the user of the store, root, and the group of its store directory\n",
            Who::All => "all: everybody who may search the directories above\n",
        };
        Ok(Output::text(text))
    }
}
