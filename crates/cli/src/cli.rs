//! The command line: help, completions and man pages all come from here.

use crate::{answer, commands, demo};
use clap::{Parser, Subcommand};
use std::process::ExitCode;

/// All-or-nothing updates of application data in files.
///
/// After a crash of the process, the kernel or the power, a file that is written through Untorn
/// holds exactly what it held at its last commit. This command looks at the stores that keep this
/// promise, repairs them, and replaces files in the same manner.
///
/// A PATH is a store: a directory with `.untorn` in it, or a file with `<file>.untorn` beside it.
#[derive(Parser)]
#[command(name = "untorn", version, propagate_version = true, max_term_width = 100)]
pub struct Cli {
    #[command(subcommand)]
    pub command: Command,
}

#[derive(Subcommand)]
pub enum Command {
    Status(commands::status::Status),
    Check(commands::check::Check),
    Dump(commands::dump::Dump),
    Recover(commands::recover::Recover),
    Checkpoint(commands::checkpoint::Checkpoint),
    Eject(commands::eject::Eject),
    Doctor(commands::doctor::Doctor),
    Put(commands::put::Put),
    Bench(untorn_bench::Bench),
    Crashtest(commands::crashtest::Crashtest),
    CrashPart(commands::crashtest::CrashPart),
    Completions(commands::completions::Completions),
    Man(commands::man::Man),
    Demo(demo::Demo),
    DemoChild(demo::child::DemoChild),
}

impl Command {
    pub fn run(self) -> ExitCode {
        let result = match self {
            // Prints its tables as they come, and starts this program again as its own child.
            Command::Bench(bench) => return bench.run(),
            Command::Status(c) => c.run(),
            Command::Check(c) => c.run(),
            Command::Dump(c) => c.run(),
            Command::Recover(c) => c.run(),
            Command::Checkpoint(c) => c.run(),
            Command::Eject(c) => c.run(),
            Command::Doctor(c) => c.run(),
            Command::Put(c) => c.run(),
            Command::Crashtest(c) => c.run(),
            Command::CrashPart(c) => c.run(),
            Command::Completions(c) => c.run(),
            Command::Man(c) => c.run(),
            Command::Demo(c) => c.run(),
            Command::DemoChild(c) => c.run(),
        };
        answer::give(result)
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
