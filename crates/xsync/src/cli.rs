//! The command line: help, completions and manual pages all come from here.

use anyhow::bail;
use clap::{Args, CommandFactory, Parser, Subcommand, ValueHint};
use std::ffi::OsString;
use std::io::ErrorKind;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use untorn_terminal::log::{self, LevelFilter, LogOptions};
use untorn_terminal::pages::{Completions, Man};
use untorn_terminal::user_namespace::is_root;
use untorn_terminal::{Failure, Output};
use untorn_xsync::commands::place_layers;
use untorn_xsync::commands::print_fstab::Provided;
use untorn_xsync::commands::run_on;
use untorn_xsync::commands::run_session::{Wanted, discard, resume};
use untorn_xsync::filter::syscall_filter::Maps;
use untorn_xsync::network::session_network::Net;
use untorn_xsync::report::status_socket;
use untorn_xsync::session::watcher;

/// The exit code if the session could not begin, its volume failed, or something was lost. Otherwise the exit code is
/// the program's.
const COULD_NOT: u8 = 125;

#[derive(Parser)]
#[command(
    name = env!("CARGO_BIN_NAME"),
    version,
    max_term_width = 100,
    args_conflicts_with_subcommands = true,
    subcommand_negates_reqs = true,
    disable_help_subcommand = true
)]
struct Cli {
    #[command(flatten)]
    log: LogOptions,
    #[command(flatten)]
    xsync: Option<Xsync>,
    #[command(subcommand)]
    command: Option<Command>,
}

#[derive(Subcommand)]
enum Command {
    Completions(Completions),
    Man(Man),
}

/// Run a program that never waits for the disk, and show nothing that a crash could take back.
///
/// The program works on a private volume whose journal keeps the order of all changes. fsync and similar calls return
/// at once; output of the program is shown as soon as everything that the program did before it is durable. So a
/// crash loses nothing that anybody has seen. Without --volume the program works in the current directory: its
/// changes are applied when it has ended.
///
/// Needs root, loop devices and mkfs.ext4; with --on, or with --place in a directory that an administrator provides,
/// none of them. Exit code: the program's; 125 the session could not begin, its volume failed, or input or output of
/// the program was lost, 126 the program cannot be executed, 127 it was not found, 128 and a signal's number.
#[derive(Args)]
#[command(after_help = "\
Examples:
  untorn xsync -- make install
  untorn xsync --listen 6379 --volume db.img:4G -- redis-server --dir /data --appendonly yes
  untorn xsync --volume db.img:4G -- sh -c 'sqlite3 /data/db < script.sql'
  untorn xsync --place /srv/untorn -- make                        # without root
  untorn xsync --on /srv/untorn -- git -C /srv/untorn/project gc

SIGUSR1 to the command says what is held, as --status does. See docs/XSYNC.md.")]
struct Xsync {
    /// Keep the data in a volume: a file (made if it does not exist, made larger if it is smaller), or a block device.
    #[arg(long, value_name = "FILE[:SIZE]", value_hint = ValueHint::FilePath)]
    volume: Option<OsString>,
    /// Work on a directory that exists already, on an ext4 file system mounted with data=journal. The program may
    /// write to all of it. Needs no root if an administrator's watcher runs (see --print-fstab).
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath,
        conflicts_with_all = ["volume", "overlay", "size", "keep"])]
    on: Option<PathBuf>,
    /// The path at which the program sees that volume.
    #[arg(long, value_name = "DIR", default_value = "/data", requires = "volume")]
    at: PathBuf,
    /// A directory that the program may change, besides the current one; may be given several times.
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath)]
    overlay: Vec<PathBuf>,
    /// A port that programs outside may connect to, as soon as the program listens there; may be given several times.
    #[arg(long, value_name = "[ADDRESS:]PORT", value_parser = address)]
    listen: Vec<SocketAddr>,
    /// Whether the program can reach addresses outside.
    #[arg(long, value_enum, default_value_t)]
    net: Net,
    /// How writable shared maps of files are handled.
    #[arg(long, value_enum, default_value_t)]
    maps: Maps,
    /// Flushes have their usual results (EBADF, EINVAL, EIO), and io_uring works: the program writes to an overlay
    /// that answers its flushes. Changes of many small files cost more.
    #[arg(long)]
    exact: bool,
    /// Directory for volumes that are discarded in the end. Without root: a directory of an ext4 file system mounted
    /// with data=journal, where changes are kept until they are applied (see --print-fstab).
    #[arg(long, value_name = "DIR", default_value = "/var/lib/untorn-xsync", value_hint = ValueHint::DirPath)]
    place: PathBuf,
    /// Size of such a volume: everything that the program writes must fit.
    #[arg(long, default_value = "2G", value_parser = bytes, conflicts_with = "volume")]
    size: u64,
    /// Keep the volume: it holds the changes that were applied. --discard removes it.
    #[arg(long, conflicts_with = "volume")]
    keep: bool,
    /// Copy the volume's data to a new directory in the end.
    #[arg(long, value_name = "DIR", requires = "volume")]
    export: Option<PathBuf>,
    /// If the volume's disk fails, save the volume's files from memory to this new directory.
    #[arg(long, value_name = "DIR", conflicts_with = "on")]
    rescue: Option<PathBuf>,
    /// Refused: a session's volume is no store.
    #[arg(long, hide = true, num_args = 0..=1, value_name = "SLOT")]
    remote: Option<Option<String>>,
    /// First print which parts of this machine the program sees.
    #[arg(long)]
    explain: bool,
    /// Print at the end a summary of the session.
    #[arg(long)]
    summary: bool,
    /// Apply the changes in a volume, or in a directory beneath --place, that a crash or an error left.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["program", "volume", "overlay", "discard", "status"])]
    resume: Option<PathBuf>,
    /// Discard the changes in such a volume or directory.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["program", "volume", "overlay", "status"])]
    discard: Option<PathBuf>,
    /// Hold outside readers for the sessions of ordinary users (--on) on the file system of a directory, until ended.
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath,
        conflicts_with_all = ["program", "volume", "on", "overlay", "resume", "discard", "status"])]
    watch: Option<PathBuf>,
    /// Print the commands and settings by which an administrator lets a user have sessions without root: a directory
    /// (/srv/untorn) in an image (FILE:SIZE).
    #[arg(long, value_names = ["DIR", "FILE:SIZE"], num_args = 0..=2,
        conflicts_with_all = ["program", "volume", "on", "overlay", "resume", "discard", "status", "watch"])]
    print_fstab: Option<Vec<String>>,
    /// Print the state of this user's sessions.
    #[arg(long, conflicts_with_all = ["program", "volume", "overlay"])]
    status: bool,
    /// Print one JSON list, with --status.
    #[arg(long, requires = "status")]
    json: bool,
    /// The program and its arguments.
    #[arg(last = true, required_unless_present_any = ["resume", "discard", "status", "watch", "print_fstab"],
        value_hint = ValueHint::CommandWithArguments)]
    program: Vec<OsString>,
}

/// Runs the command that this process was started with.
pub fn run() -> Result<Output, Failure> {
    let cli = untorn_terminal::parse::<Cli>();
    log::install(env!("CARGO_BIN_NAME"), &cli.log, LevelFilter::WARN);
    match (cli.command, cli.xsync) {
        (Some(Command::Completions(completions)), _) => completions.run(Cli::command()),
        (Some(Command::Man(man)), _) => man.run(Cli::command()),
        (None, Some(xsync)) => xsync.run().map_err(|e| Failure::new(format!("{e:#}")).code(COULD_NOT)),
        (None, None) => Err(Failure::new("nothing to do; see --help").code(2)),
    }
}

impl Xsync {
    fn run(self) -> anyhow::Result<Output> {
        anyhow::ensure!(
            self.remote.is_none(),
            "--remote: output can wait for a slot of a store, which `untorn ship` ships elsewhere, and a session's volume is \
             no store; keep the data in a store that is mounted with `untorn mount --remote`, or let the program use the \
             library"
        );
        if let Some(path) = self.resume.as_ref().or(self.discard.as_ref())
            && path.symlink_metadata().is_err_and(|e| e.kind() == ErrorKind::NotFound)
        {
            bail!("{} is not there: it is applied or thrown away already, or has another name", path.display());
        }
        if let Some(path) = &self.resume {
            let done = if path.is_dir() { place_layers::resume(path) } else { resume(path) };
            return done.map(|()| Output::default());
        }
        if let Some(path) = &self.discard {
            let done = if path.is_dir() { place_layers::discard(path) } else { discard(path) };
            return done.map(|()| Output::default());
        }
        if let Some(words) = &self.print_fstab {
            return Ok(Output::text(Provided::of(words)?.commands()));
        }
        if let Some(dir) = &self.watch {
            return watcher::watch(dir).map(|()| Output::default());
        }
        if self.status {
            return Ok(status(self.json));
        }
        let volume = self.volume.map(volume_and_size).transpose()?;
        anyhow::ensure!(self.at.is_absolute(), "--at {} is not an absolute path", self.at.display());
        let wanted = Wanted {
            volume,
            at: self.at,
            overlays: self.overlay,
            place: self.place,
            bytes: self.size,
            keep: self.keep,
            export: self.export,
            rescue: self.rescue,
            listen: self.listen,
            net: self.net,
            maps: self.maps,
            exact: self.exact,
            explain: self.explain,
            summary: self.summary,
            ..Wanted::new(self.program)
        };
        let code = match &self.on {
            Some(dir) => run_on::run(&wanted, dir)?,
            None if is_root() => wanted.run()?,
            None => place_layers::run(&wanted)?,
        };
        Ok(Output::default().code(code))
    }
}

fn status(json: bool) -> Output {
    let reports = status_socket::ask_all();
    Output::text(match (json, reports.is_empty()) {
        (true, _) => serde_json::to_string_pretty(&reports).expect("reports are plain data") + "\n",
        (false, true) => "no session\n".to_owned(),
        (false, false) => reports.iter().map(|report| format!("{report}\n")).collect(),
    })
}

/// Parses `PORT`, which means all addresses of this machine, or `ADDRESS:PORT`.
fn address(text: &str) -> Result<SocketAddr, String> {
    let port = text.parse::<u16>().ok().map(|port| SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), port));
    let address = port.or_else(|| text.parse().ok()).filter(|address| address.port() > 0);
    address.ok_or_else(|| format!("`{text}` is neither a port nor an address of this machine with a port"))
}

/// Parses `FILE` or `FILE:SIZE`.
fn volume_and_size(text: OsString) -> anyhow::Result<(PathBuf, Option<u64>)> {
    let Some((path, size)) = text.to_str().and_then(|text| text.rsplit_once(':')) else {
        return Ok((text.into(), None));
    };
    Ok((path.into(), Some(bytes(size).map_err(anyhow::Error::msg)?)))
}

/// Parses a number of bytes, with K, M, G or T for binary multiples.
fn bytes(text: &str) -> Result<u64, String> {
    let (number, shift) = match text.chars().last() {
        Some('K' | 'k') => (&text[..text.len() - 1], 10),
        Some('M' | 'm') => (&text[..text.len() - 1], 20),
        Some('G' | 'g') => (&text[..text.len() - 1], 30),
        Some('T' | 't') => (&text[..text.len() - 1], 40),
        _ => (text, 0),
    };
    let parsed = number.parse::<u64>().ok().and_then(|number| number.checked_mul(1 << shift));
    parsed.ok_or_else(|| format!("`{text}` is no size: give a number of bytes, or one with K, M, G or T"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn sizes_have_units() {
        assert_eq!(bytes("4096"), Ok(4096));
        assert_eq!(bytes("2G"), Ok(2 << 30));
        assert!(bytes("G").is_err() && bytes("99999999999T").is_err());
        let (path, size) = volume_and_size("a:b.img:3M".into()).unwrap();
        assert_eq!((path, size), ("a:b.img".into(), Some(3 << 20)));
    }
}
