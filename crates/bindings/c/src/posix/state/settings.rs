//! Settings of the program, by its calls or by its environment.

use std::ffi::OsString;
use std::sync::atomic::{AtomicU8, Ordering::*};

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
