//! The command line: help, completions and manual pages all come from here.

use crate::commands;
use crate::siblings::{Arguments, Other};
use clap::{CommandFactory, Parser, Subcommand};
use untorn_terminal::log::{self, LevelFilter, LogOptions};
use untorn_terminal::pages::{Completions, Man};
use untorn_terminal::{Failure, Output};

/// All-or-nothing updates of application data in files.
///
/// After a crash of the process, the kernel or the power, a file that is written through Untorn
/// holds exactly what it held at its last commit. This command shows the condition of the stores that
/// keep this promise, repairs them, and replaces files in the same manner.
///
/// A PATH is a store: a directory with `.untorn` in it, or a file with `<file>.untorn` beside it.
#[derive(Parser)]
#[command(name = env!("CARGO_BIN_NAME"), version, propagate_version = true, max_term_width = 100)]
struct Cli {
    #[command(flatten)]
    log: LogOptions,
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    Status(commands::status::Status),
    Check(commands::check::Check),
    Dump(commands::dump::Dump),
    Recover(commands::recover::Recover),
    Checkpoint(commands::checkpoint::Checkpoint),
    Eject(commands::eject::Eject),
    Rescue(commands::rescue_heaps::Rescue),
    Doctor(commands::doctor::Doctor),
    Put(commands::put::Put),
    Cat(commands::cat::Cat),
    Ls(commands::ls::Ls),
    Log(commands::log::Log),
    Diff(commands::diff::Diff),
    Tail(commands::tail::Tail),
    Cp(commands::cp::Cp),
    Readers(commands::audience::Readers),
    Slots(commands::slots::Slots),
    FindUnclean(commands::find_unclean::FindUnclean),
    PortCheck(commands::port_check::PortCheck),
    Preload(commands::preload::Preload),
    Sqlite(commands::sqlite::Sqlite),
    /// Cut the power under any program, and show the possible results (the program untorn-crashtest).
    #[command(disable_help_flag = true, disable_version_flag = true)]
    Crashtest(Arguments),
    /// Run a program that never waits for the disk, and lose nothing that it showed (the program untorn-xsync).
    #[command(disable_help_flag = true, disable_version_flag = true)]
    Xsync(Arguments),
    /// Show a store as a file system, on which fsync and msync of any program are all-or-nothing (the program
    /// untorn-mount).
    #[command(disable_help_flag = true, disable_version_flag = true)]
    Mount(Arguments),
    /// Commit everything on such a file system, and unmount it (the program untorn-mount).
    #[command(disable_help_flag = true, disable_version_flag = true)]
    Umount(Arguments),
    /// Commit files, several of one mount as one (the program untorn-mount).
    #[command(disable_help_flag = true, disable_version_flag = true)]
    Sync(Arguments),
    /// Make a store that can be mounted out of a plain tree (the program untorn-mount).
    #[command(disable_help_flag = true, disable_version_flag = true)]
    Import(Arguments),
    /// Make a plain tree out of a store that can be mounted (the program untorn-mount).
    #[command(disable_help_flag = true, disable_version_flag = true)]
    Export(Arguments),
    /// Run a program on a plain directory where its files are all-or-nothing; it is plain again after (the program
    /// untorn-mount).
    #[command(disable_help_flag = true, disable_version_flag = true)]
    Run(Arguments),
    /// Ship the commits of a store to an object store (the program untorn-ship).
    #[command(disable_help_flag = true, disable_version_flag = true)]
    Ship(Arguments),
    /// Restore any point of a store from an object store (the program untorn-ship).
    #[command(disable_help_flag = true, disable_version_flag = true)]
    Restore(Arguments),
    /// Follow a store's commits in an object store live (the program untorn-ship).
    #[command(disable_help_flag = true, disable_version_flag = true)]
    Follow(Arguments),
    /// Show the work of stores right now (the program untorn-top).
    #[command(disable_help_flag = true, disable_version_flag = true)]
    Top(Arguments),
    /// Give figures of stores to Prometheus (the program untorn-top).
    #[command(disable_help_flag = true, disable_version_flag = true)]
    Metrics(Arguments),
    /// Measure commits beside plain system calls (the program untorn-bench).
    #[command(disable_help_flag = true, disable_version_flag = true)]
    Bench(Arguments),
    /// Kill a program while it updates files, and count torn states (the program untorn-bench).
    #[command(disable_help_flag = true, disable_version_flag = true)]
    Demo(Arguments),
    Completions(Completions),
    Man(Man),
}

/// Runs the command that this process was started with.
pub fn run() -> Result<Output, Failure> {
    let cli = untorn_terminal::parse::<Cli>();
    // A command prints all that it finds, as its result.
    log::install(env!("CARGO_BIN_NAME"), &cli.log, LevelFilter::ERROR);
    match cli.command {
        Command::Status(c) => c.run(),
        Command::Check(c) => c.run(),
        Command::Dump(c) => c.run(),
        Command::Recover(c) => c.run(),
        Command::Checkpoint(c) => c.run(),
        Command::Eject(c) => c.run(),
        Command::Rescue(c) => c.run(),
        Command::Doctor(c) => c.run(),
        Command::Put(c) => c.run(),
        Command::Cat(c) => c.run(),
        Command::Ls(c) => c.run(),
        Command::Log(c) => c.run(),
        Command::Diff(c) => c.run(),
        Command::Tail(c) => c.run(),
        Command::Cp(c) => c.run(),
        Command::Readers(c) => c.run(),
        Command::Slots(c) => c.run(),
        Command::FindUnclean(c) => c.run(),
        Command::PortCheck(c) => c.run(),
        Command::Preload(c) => c.run(),
        Command::Sqlite(c) => c.run(),
        Command::Crashtest(_) => Err(Other::Crashtest.execute()),
        Command::Xsync(_) => Err(Other::Xsync.execute()),
        Command::Mount(_) => Err(Other::Mount.execute()),
        Command::Umount(_) => Err(Other::Umount.execute()),
        Command::Sync(_) => Err(Other::Sync.execute()),
        Command::Import(_) => Err(Other::Import.execute()),
        Command::Export(_) => Err(Other::Export.execute()),
        Command::Run(_) => Err(Other::Run.execute()),
        Command::Ship(_) => Err(Other::Ship.execute()),
        Command::Restore(_) => Err(Other::Restore.execute()),
        Command::Follow(_) => Err(Other::Follow.execute()),
        Command::Top(_) => Err(Other::Top.execute()),
        Command::Metrics(_) => Err(Other::Metrics.execute()),
        Command::Bench(_) => Err(Other::Bench.execute()),
        Command::Demo(_) => Err(Other::Demo.execute()),
        Command::Completions(c) => c.run(Cli::command()),
        Command::Man(c) => c.run(Cli::command()),
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_consistent() {
        super::Cli::command().debug_assert();
    }
}
