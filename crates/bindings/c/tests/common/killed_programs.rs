//! Programs that are killed at random moments, and the output that they had printed by then.

use std::io::BufRead;
use std::process::Child;
use std::time::Duration;
use untorn_testkit::variable_or;

/// Random numbers of a test.
pub struct Moments {
    /// Printed, and given by `UNTORN_TEST_SEED`.
    pub seed: u64,
    random: u64,
}

impl Moments {
    pub fn of_test() -> Moments {
        let seed = variable_or("UNTORN_TEST_SEED", 1);
        println!("UNTORN_TEST_SEED={seed}");
        Moments { seed, random: seed }
    }

    pub fn below(&mut self, n: u64) -> u64 {
        self.random = self.random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.random >> 33) % n
    }
}

/// How often to kill, if `UNTORN_LIVE_KILLS` does not say.
pub fn kills(usual: u64) -> u64 {
    std::env::var("UNTORN_LIVE_KILLS").ok().and_then(|n| n.parse().ok()).unwrap_or(usual)
}

/// Kills a program a pause after its next line, and returns the two numbers of each line that it has printed since the
/// last read, such as `has 1 20`. The last line may be torn.
pub fn killed_after_pause(mut child: Child, mut out: impl BufRead, pause: Duration) -> Vec<(usize, u64)> {
    let mut lines = String::new();
    assert_ne!(out.read_line(&mut lines).expect("text"), 0, "the program ended by itself");
    std::thread::sleep(pause);
    child.kill().expect("a child to kill");
    out.read_to_string(&mut lines).expect("text");
    child.wait().expect("its end");
    let whole = lines.split_inclusive('\n').filter(|line| line.ends_with('\n'));
    whole
        .map(|line| {
            let words: Vec<u64> = line.split_whitespace().skip(1).map(|word| word.parse().expect("a number")).collect();
            (words[0] as usize, words[1])
        })
        .collect()
}
