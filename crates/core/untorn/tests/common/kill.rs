//! Runs processes that print their commits, and kills them at random moments.

use std::io::{BufRead, BufReader};
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, Stdio};
use std::time::Duration;

/// Starts a process that prints `ack N` after each commit, kills it after a while, and returns the last N.
pub fn run_and_kill(command: &mut Command, after: Duration) -> u64 {
    let mut child = command.stdout(Stdio::piped()).spawn().expect("a second process");
    let output = child.stdout.take().expect("piped");
    // Reads while it runs: a full pipe would stop the child at the same place each time.
    let reader = std::thread::spawn(move || {
        let lines = BufReader::new(output).lines().map_while(Result::ok);
        lines.filter_map(|line| line.strip_prefix("ack ")?.parse().ok()).last()
    });
    std::thread::sleep(after);
    child.kill().expect("kill");
    assert_eq!(child.wait().expect("wait").signal(), Some(9), "it ended by itself: {command:?}");
    reader.join().expect("reader").unwrap_or(0)
}
