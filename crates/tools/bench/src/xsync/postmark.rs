//! The workload of PostMark: small files are made, read, appended to and removed, as for mail and news of many people.

use anyhow::{Context, Result};
use fastrand::Rng;
use std::fs::{self, File, OpenOptions};
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

const BYTES_MIN: usize = 500;
const BYTES_MAX: usize = 9_800;
/// PostMark's own distribution of files over directories.
const DIRECTORIES: u64 = 10;

/// Makes `files` files, runs the transactions, and removes the files that are left. A transaction reads a file or
/// appends to one, and makes one or removes one.
pub fn run(dir: &Path, files: u64, transactions: u64) -> Result<()> {
    let mut random = Rng::with_seed(42);
    let text = vec![b'm'; BYTES_MAX];
    for n in 0..DIRECTORIES {
        fs::create_dir_all(dir.join(format!("d{n}"))).context("a directory of the mail")?;
    }
    let path = |n: u64| -> PathBuf { dir.join(format!("d{}/{n}", n % DIRECTORIES)) };
    let mut next = 0;
    let mut create = |random: &mut Rng| -> Result<u64> {
        let number = next;
        next += 1;
        let mut file = File::create_new(path(number)).context("a new mail")?;
        file.write_all(&text[..random.usize(BYTES_MIN..BYTES_MAX)])?;
        Ok(number)
    };
    let mut there: Vec<u64> = (0..files).map(|_| create(&mut random)).collect::<Result<_>>()?;
    let mut content = Vec::new();
    for _ in 0..transactions {
        let number = there[random.usize(..there.len())];
        if random.bool() {
            content.clear();
            File::open(path(number)).context("a mail")?.read_to_end(&mut content)?;
        } else {
            let mut file = OpenOptions::new().append(true).open(path(number)).context("a mail")?;
            file.write_all(&text[..random.usize(BYTES_MIN..BYTES_MAX)])?;
        }
        if random.bool() || there.len() < 2 {
            there.push(create(&mut random)?);
        } else {
            let gone = there.swap_remove(random.usize(..there.len()));
            fs::remove_file(path(gone)).context("a mail to be removed")?;
        }
    }
    for number in there {
        fs::remove_file(path(number)).context("a mail to be removed")?;
    }
    for n in 0..DIRECTORIES {
        fs::remove_dir(dir.join(format!("d{n}"))).context("a directory of the mail")?;
    }
    Ok(())
}

/// Whether PostMark itself is installed. It has no option that tells.
pub fn is_installed() -> bool {
    let started = Command::new("postmark").stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn();
    started.is_ok_and(|mut child| child.wait().is_ok())
}

/// A shell's script that runs PostMark itself in a directory, which it makes, and fails unless it made all its changes.
pub fn script(dir: &Path, files: u64, transactions: u64) -> String {
    let dir = dir.display();
    // It goes on behind errors, and prints them.
    format!(
        "mkdir -p {dir} && cd {dir} && printf 'set location {dir}\\nset size {BYTES_MIN} {BYTES_MAX}\\nset number {files}\\n\
         set transactions {transactions}\\nset seed 42\\nset buffering false\\nrun\\nquit\\n' | postmark 2>&1 | \
         awk '/rror/ {{ wrong = 1 }} /Deleting files...Done/ {{ done = 1 }} END {{ exit wrong || !done }}'"
    )
}

#[cfg(test)]
mod tests {
    #[test]
    fn it_leaves_nothing() {
        let dir = tempfile::tempdir().unwrap();
        super::run(dir.path(), 50, 200).unwrap();
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
    }

    #[test]
    fn errors_of_postmark_itself_are_noticed() {
        if !super::is_installed() {
            return;
        }
        let dir = tempfile::tempdir().unwrap();
        let runs = |dir: &std::path::Path| {
            let script = super::script(dir, 10, 20);
            std::process::Command::new("sh").args(["-c", &script]).status().unwrap().success()
        };
        assert!(runs(dir.path()));
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
        assert!(!runs(std::path::Path::new("/proc/mail")));
    }
}
