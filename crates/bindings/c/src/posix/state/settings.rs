//! Settings of the program, by its calls or by its environment.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU8, Ordering::*};
use std::time::Duration;

use super::report::tell;

/// A setting that the environment has until the program makes a call.
struct Switch(AtomicU8);

const UNSET: u8 = 0;
const OFF: u8 = 1;
const ON: u8 = 2;

impl Switch {
    fn set(&self, on: bool) {
        self.0.store(if on { ON } else { OFF }, Release);
    }

    fn get(&self, environment: impl FnOnce() -> bool) -> bool {
        if self.0.load(Acquire) == UNSET {
            let wanted = if environment() { ON } else { OFF };
            // A call of another thread comes first.
            let _ = self.0.compare_exchange(UNSET, wanted, AcqRel, Acquire);
        }
        self.0.load(Acquire) == ON
    }
}

static INVALIDATE_ROLLS_BACK: Switch = Switch(AtomicU8::new(UNSET));

/// A variable of the environment that is set and not empty.
fn variable(name: &str) -> Option<OsString> {
    std::env::var_os(name).filter(|value| !value.is_empty())
}

/// The values of a variable of the environment that colons separate.
pub(crate) fn list(name: &str) -> Vec<OsString> {
    let given = variable(name).unwrap_or_default();
    let values = given.as_bytes().split(|byte| *byte == b':').filter(|value| !value.is_empty());
    values.map(|value| OsStr::from_bytes(value).to_owned()).collect()
}

/// How long a call waits for a file that another process has open.
pub(crate) fn patience() -> Duration {
    static GIVEN: OnceLock<Duration> = OnceLock::new();
    *GIVEN.get_or_init(|| {
        let Some(given) = variable("UNTORN_WAIT") else { return Duration::ZERO };
        let seconds = given.to_str().and_then(|given| given.parse().ok());
        seconds.and_then(|seconds| Duration::try_from_secs_f64(seconds).ok()).unwrap_or_else(|| {
            tell(&format!("UNTORN_WAIT={}: not a number of seconds, so no call waits", given.display()));
            Duration::ZERO
        })
    })
}

/// Whether `msync(MS_INVALIDATE)` discards all changes since the last commit.
pub(crate) fn invalidate_rolls_back() -> bool {
    INVALIDATE_ROLLS_BACK.get(|| match variable("UNTORN_INVALIDATE") {
        Some(value) if value == "rollback" => true,
        Some(value) => {
            tell(&format!("UNTORN_INVALIDATE={}: the only value is `rollback`; it is ignored", value.display()));
            false
        }
        None => false,
    })
}

/// When a managed file is committed, beside its syncs.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Mode {
    Sync,
    Close,
    Write,
}

fn mode() -> Mode {
    static MODE: OnceLock<Mode> = OnceLock::new();
    *MODE.get_or_init(|| match variable("UNTORN_COMMIT") {
        None => Mode::Sync,
        Some(value) if value == "fsync" => Mode::Sync,
        Some(value) if value == "close" => Mode::Close,
        Some(value) if value == "write" => Mode::Write,
        Some(value) => {
            let value = value.display();
            tell(&format!("UNTORN_COMMIT={value}: the values are fsync, close and write; as if it were fsync"));
            Mode::Sync
        }
    })
}

/// Whether the environment asks for a commit when a file's last writer ends: for programs that never sync, and whose
/// sources stay as they are.
pub(crate) fn commits_on_close() -> bool {
    mode() == Mode::Close || variable("UNTORN_COMMIT_ON_CLOSE").is_some_and(|wanted| wanted != "0")
}

/// Whether each change by a call is a commit.
pub(crate) fn commits_writes() -> bool {
    mode() == Mode::Write
}

pub(crate) fn set_invalidate_rolls_back(on: bool) {
    INVALIDATE_ROLLS_BACK.set(on);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_comes_before_the_environment() {
        let switch = Switch(AtomicU8::new(UNSET));
        assert!(switch.get(|| true) && switch.get(|| panic!("the environment is read once")));
        switch.set(false);
        assert!(!switch.get(|| true));
        let called = Switch(AtomicU8::new(UNSET));
        called.set(true);
        assert!(called.get(|| false));
    }
}
