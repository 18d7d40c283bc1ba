//! Helpers of tests: the test program as a second process, kills, example programs, file systems, settings.

mod builds;
mod mount;
mod settings;

pub use builds::{example, install, install_script, library_dir, link_by, preload_library, program, root};
pub use mount::Mount;
pub use settings::{NOBODY, drawn_seed, extent, is_full, is_root, seed, slice, variable, variable_or};

use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, Stdio};
use std::sync::mpsc::channel;
use std::time::Duration;

/// The name by which the test program knows a test of the calling module, wherever that module is in the program.
#[macro_export]
macro_rules! test_path {
    ($test:expr) => {
        $crate::path_in(module_path!(), $test)
    };
}

/// A command that runs only the named test of the calling module, in a second process of this program.
#[macro_export]
macro_rules! again {
    ($test:expr) => {
        $crate::again($crate::test_path!($test))
    };
}

/// Whether this process runs the named test of the calling module alone. If not, runs it in a process of its own, where
/// it must pass.
#[macro_export]
macro_rules! is_alone {
    ($test:expr) => {
        $crate::is_alone($crate::test_path!($test))
    };
}

/// The path of a test in a module, for [`test_path!`]: without the name of the program.
#[doc(hidden)]
pub fn path_in(module: &str, test: &str) -> String {
    module.split_once("::").map_or_else(|| test.to_owned(), |(_, inside)| format!("{inside}::{test}"))
}

/// A command that runs only the test of this path; [`again!`] knows the path.
#[doc(hidden)]
pub fn again(path: String) -> Command {
    let mut command = Command::new(std::env::current_exe().expect("this program's path"));
    command.args(["--exact", &path, "--nocapture", "--test-threads=1"]);
    command
}

/// See [`is_alone!`].
#[doc(hidden)]
pub fn is_alone(path: String) -> bool {
    const ALONE: &str = "UNTORN_TEST_ALONE";
    let is_alone = std::env::var_os(ALONE).is_some();
    let passes = || again(path.clone()).env(ALONE, "").status().expect("a second process").success();
    assert!(is_alone || passes(), "{path} alone");
    is_alone
}

/// Reports, past the test runner's capture, that the current test was skipped, and why.
pub fn skipped(why: &str) {
    let thread = std::thread::current();
    let line = format!("{} skipped: {why}\n", thread.name().unwrap_or("a test"));
    let _ = std::io::stderr().write_all(line.as_bytes());
}

/// Starts a process that prints `ack N` after each commit, kills it after a while, and returns the last N.
///
/// The while includes the start of the process, so that a kill may come before the first commit.
pub fn run_and_kill(command: &mut Command, after: Duration) -> u64 {
    kill_after_acks(command, 0, || std::thread::sleep(after))
}

/// Starts a process that prints `ack N` after each commit, and waits for so many of these lines. Kills the process when
/// `meanwhile`, which is called then, has returned. Returns the last N.
///
/// # Panics
/// The process ends by itself, or prints fewer lines within two minutes.
#[track_caller]
pub fn kill_after_acks(command: &mut Command, acks: usize, meanwhile: impl FnOnce()) -> u64 {
    let mut child = command.stdout(Stdio::piped()).spawn().expect("a second process");
    let output = child.stdout.take().expect("piped");
    let (enough, has_enough) = channel();
    // Reads while it runs: a full pipe would stop the child at the same place each time.
    let reader = std::thread::spawn(move || {
        let lines = BufReader::new(output).lines().map_while(Result::ok);
        let numbers = lines.filter_map(|line| line.strip_prefix("ack ")?.parse().ok());
        let mut last = None;
        for (at, number) in numbers.enumerate() {
            last = Some(number);
            if at + 1 == acks {
                let _ = enough.send(());
            }
        }
        last
    });
    let is_ready = acks == 0 || has_enough.recv_timeout(Duration::from_secs(120)).is_ok();
    if is_ready {
        meanwhile();
    }
    child.kill().expect("kill");
    assert_eq!(child.wait().expect("wait").signal(), Some(9), "it ended by itself: {command:?}");
    assert!(is_ready, "not even {acks} commits were acknowledged: {command:?}");
    reader.join().expect("reader").unwrap_or(0)
}

#[cfg(test)]
mod tests {
    #[test]
    fn a_test_is_found_in_its_module() {
        assert_eq!(crate::test_path!("name"), "tests::name");
        assert_eq!(crate::path_in("program", "name"), "name");
    }

    #[test]
    fn a_test_runs_again_alone() {
        if crate::is_alone!("a_test_runs_again_alone") {
            assert!(crate::again!("there is no such test").status().unwrap().success());
        }
    }
}
