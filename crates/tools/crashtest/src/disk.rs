//! Whether a disk keeps the bytes that it calls durable: numbered blocks are written and flushed until somebody pulls
//! the plug, and looked at afterwards.

use clap::{Args, Subcommand, ValueHint};
use std::fs::{File, OpenOptions};
use std::io::{BufRead, BufReader, ErrorKind, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::Duration;
use untorn_terminal::standard_streams::write_output;
use untorn_terminal::{Failure, Output, tell};

/// The file in the directory, which is written again and again from its beginning.
const NAME: &str = "untorn-disk-test";
const BLOCK_BYTES: usize = 4096;
const BLOCKS: u64 = 4096;
/// The silence after which `listen` takes the machine for dead.
const SILENCE: Duration = Duration::from_secs(10);
const LIES: u8 = 1;
const COULD_NOT: u8 = 2;

/// Test whether a disk keeps the blocks that it has acknowledged: pull the plug, and look.
///
/// On another machine, `listen`. On the machine with the disk, `write`, in a directory on that disk, and after some minutes
/// pull the plug, of the machine or of the disk. Then `check` with the number that `listen` has printed.
#[derive(Args)]
#[command(after_help = "\
Example:
  untorn-crashtest disk listen 0.0.0.0:7777                    on another machine
  untorn-crashtest disk write /mnt/disk --tell 10.0.0.2:7777   here; then pull the plug
  untorn-crashtest disk check /mnt/disk 48123                  here, when it runs again")]
pub struct Disk {
    #[command(subcommand)]
    step: Step,
}

#[derive(Subcommand)]
enum Step {
    /// Write a numbered block, flush, tell the number; for ever
    Write {
        /// A directory on the disk; 16 MiB are used.
        #[arg(value_hint = ValueHint::DirPath)]
        dir: PathBuf,
        /// Where `listen` runs, as HOST:PORT. Default: numbers are printed.
        #[arg(long, value_name = "HOST:PORT")]
        tell: Option<String>,
    },
    /// Take the numbers, until none comes any more, and print the last
    Listen {
        /// The address to listen on, as HOST:PORT.
        address: String,
    },
    /// Look whether all blocks up to this number are there. Exit code: 0 they are, 1 the disk lied, 2 could not be done
    Check {
        /// The directory of `write`.
        #[arg(value_hint = ValueHint::DirPath)]
        dir: PathBuf,
        /// The last number that was told; 0 if none was.
        last: u64,
    },
}

impl Disk {
    /// Runs the step.
    pub fn run(self) -> Result<Output, Failure> {
        match self.step {
            Step::Write { dir, tell } => write(&dir, tell.as_deref()),
            Step::Listen { address } => listen(&address),
            Step::Check { dir, last } => check(&dir, last),
        }
    }
}

/// The contents of a block: its number in every word, so that a torn one is noticed.
fn block(number: u64) -> Vec<u8> {
    number.to_le_bytes().repeat(BLOCK_BYTES / 8)
}

/// The number of a block; `None` if the block is torn.
fn number_of(bytes: &[u8]) -> Option<u64> {
    let number = u64::from_le_bytes(bytes[..8].try_into().expect("eight bytes"));
    (bytes == block(number)).then_some(number)
}

fn write(dir: &Path, tell: Option<&str>) -> Result<Output, Failure> {
    let path = dir.join(NAME);
    let failed = |e| Failure::io("write", &path, e).code(COULD_NOT);
    let file = OpenOptions::new().write(true).create(true).truncate(true).open(&path).map_err(failed)?;
    let begin = || -> std::io::Result<()> {
        (0..BLOCKS).try_for_each(|at| file.write_all_at(&block(0), at * BLOCK_BYTES as u64))?;
        file.sync_all()?;
        File::open(dir)?.sync_all()
    };
    begin().map_err(failed)?;
    let mut to = match tell {
        None => None,
        Some(address) => {
            let no_way = |e| Failure::new(format!("cannot reach {address}: {e}")).code(COULD_NOT);
            let stream = TcpStream::connect(address).map_err(no_way)?;
            stream.set_nodelay(true).map_err(no_way)?;
            tell!("writing and flushing; pull the plug when you like");
            Some(stream)
        }
    };
    for number in 1u64.. {
        let at = number % BLOCKS * BLOCK_BYTES as u64;
        file.write_all_at(&block(number), at).and_then(|()| file.sync_data()).map_err(failed)?;
        match &mut to {
            None => match write_output(format!("{number}\n").as_bytes()) {
                Ok(true) => {}
                // Nobody reads the numbers any more.
                Ok(false) => return Ok(Output::default()),
                Err(e) => return Err(Failure::new(format!("cannot print the numbers: {e}")).code(COULD_NOT)),
            },
            Some(stream) => {
                let lost = |e| Failure::new(format!("`listen` is gone: {e}")).code(COULD_NOT);
                stream.write_all(format!("{number}\n").as_bytes()).map_err(lost)?;
            }
        }
    }
    unreachable!("numbers do not end")
}

fn listen(address: &str) -> Result<Output, Failure> {
    let failed = |e: std::io::Error| Failure::new(format!("cannot listen on {address}: {e}")).code(COULD_NOT);
    let listener = TcpListener::bind(address).map_err(failed)?;
    tell!("waiting on {}", listener.local_addr().map_err(failed)?);
    let (stream, from) = listener.accept().map_err(failed)?;
    stream.set_read_timeout(Some(SILENCE)).map_err(failed)?;
    tell!("{from} tells its numbers");
    let mut last = 0;
    let mut lines = BufReader::new(stream);
    loop {
        let mut line = String::new();
        match lines.read_line(&mut line) {
            // A number that was cut off has no end of line.
            Ok(n) if n > 0 && line.ends_with('\n') => last = line.trim().parse().unwrap_or(last),
            Ok(_) => break,
            Err(e) if matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut | ErrorKind::ConnectionReset) => {
                break;
            }
            Err(e) => return Err(failed(e)),
        }
    }
    Ok(Output::text(format!("the last number is {last}: untorn-crashtest disk check DIR {last}\n")))
}

fn check(dir: &Path, last: u64) -> Result<Output, Failure> {
    let path = dir.join(NAME);
    let failed = |e| Failure::io("read", &path, e).code(COULD_NOT);
    let bytes = match std::fs::read(&path) {
        // The plug was pulled before the first number.
        Err(e) if e.kind() == ErrorKind::NotFound && last == 0 => return Ok(Output::text("no block was told\n")),
        read => read.map_err(failed)?,
    };
    if last == 0 {
        return Ok(Output::text("no block was told\n"));
    }
    if bytes.len() as u64 != BLOCKS * BLOCK_BYTES as u64 {
        let text = format!(
            "{} has {} bytes in place of {}: it is not the file of `write`, or the disk lost even its size\n",
            path.display(),
            bytes.len(),
            BLOCKS * BLOCK_BYTES as u64
        );
        return Ok(Output::text(text).code(LIES));
    }
    let found: Vec<Option<u64>> = bytes.chunks_exact(BLOCK_BYTES).map(number_of).collect();
    let newest = found.iter().flatten().max().copied().unwrap_or(0).max(last);
    let (mut lost, mut torn) = (0, 0);
    for at in 0..BLOCKS {
        // The last number that was told for this block.
        let least = if last < at { 0 } else { last - (last - at) % BLOCKS };
        match found.get(at as usize).copied().flatten() {
            Some(number) => lost += u64::from(number < least),
            // This one was being written.
            None if at == (newest + 1) % BLOCKS => {}
            None => torn += 1,
        }
    }
    if lost + torn == 0 {
        return Ok(Output::text(format!("all {last} blocks that were told are there\n")));
    }
    let text = format!(
        "the disk lied: of {last} blocks that it had acknowledged, {lost} are missing, and {torn} are damaged. Look for its \
         write cache (`hdparm -W`, a RAID controller's battery), for `barrier=0` among the mount's options, and for a virtual \
         machine's `cache=unsafe`\n"
    );
    Ok(Output::text(text).code(LIES))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The file after the last of these numbers.
    fn file(dir: &Path, last: u64) -> File {
        let file = OpenOptions::new().read(true).write(true).create(true).truncate(true).open(dir.join(NAME)).unwrap();
        for at in 0..BLOCKS {
            let number = (0..=last).rev().find(|n| n % BLOCKS == at).unwrap_or(0);
            file.write_all_at(&block(number), at * BLOCK_BYTES as u64).unwrap();
        }
        file
    }

    fn code(dir: &Path, last: u64) -> u8 {
        check(dir, last).unwrap().code
    }

    #[test]
    fn a_block_that_was_told_must_be_there_whole() {
        let dir = tempfile::tempdir().unwrap();
        for last in [5, BLOCKS - 1, BLOCKS, 3 * BLOCKS + 7] {
            let file = file(dir.path(), last);
            assert_eq!(code(dir.path(), last), 0, "{last}");
            // More may be there than was told.
            assert_eq!(code(dir.path(), last.saturating_sub(3)), 0, "{last}");
            assert_eq!(code(dir.path(), last + 1), LIES, "{last}");
            // The block that was being written may be torn, and no other.
            file.write_all_at(&[9], (last + 1) % BLOCKS * BLOCK_BYTES as u64 + 100).unwrap();
            assert_eq!(code(dir.path(), last), 0, "{last}");
            file.write_all_at(&[9], (last + 2) % BLOCKS * BLOCK_BYTES as u64 + 100).unwrap();
            assert_eq!(code(dir.path(), last), LIES, "{last}");
        }
    }
}
