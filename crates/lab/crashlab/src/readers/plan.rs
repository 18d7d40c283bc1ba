//! The plan of a program: everything that a seed decides before it runs.

use crate::simulation::{Cut, Options, PROFILES, SimProcess};
use fastrand::Rng;
use untorn::Error;

const STEPS_MAX: usize = 24;
/// The bytes of the journal, of its first segment, and of the largest commit that is not spilled. With the small
/// journal, commits wait for checkpoints.
pub(super) type Sizes = (u64, u64, u64);
pub(super) const LARGE: Sizes = (256 << 10, 4 << 10, 2 << 10);
pub(super) const SMALL: Sizes = (48 << 10, 8 << 10, 4 << 10);

/// The reason why a process ended early.
pub(super) enum Stop {
    /// It was killed.
    Dead,
    /// A violation.
    Wrong(String),
}

/// The result of an operation of a process, which may have been killed meanwhile.
pub(super) fn done<T>(process: &SimProcess, what: &str, result: Result<T, Error>) -> Result<T, Stop> {
    match process.is_dead() {
        true => Err(Stop::Dead),
        false => result.map_err(|e| Stop::Wrong(format!("{what}: {e}"))),
    }
}

/// One life of the owner.
#[derive(Clone)]
pub(super) struct LifePlan {
    pub steps: usize,
    /// The number of the call before which it is killed.
    pub dies_at: Option<u64>,
    pub closes: bool,
    pub has_page: bool,
    /// Instead of steps: a file waits for a long time.
    pub has_file_that_waits: bool,
}

impl Default for LifePlan {
    fn default() -> LifePlan {
        LifePlan { steps: 0, dies_at: None, closes: false, has_page: true, has_file_that_waits: false }
    }
}

/// Everything until the power is cut, or until all processes are done.
pub(super) struct BootPlan {
    pub lives: Vec<LifePlan>,
    pub readers: usize,
    pub off_at: u64,
    pub cut: Cut,
    pub turns_seed: u64,
}

/// A program.
pub(super) struct Plan {
    pub sizes: Sizes,
    /// Whether so little space is allowed for kept bytes that snapshots may be given up.
    pub may_give_up: bool,
    /// Whether nothing is kept at all.
    pub keeps_nothing: bool,
    /// A file that another program has moved away for a while.
    pub missing: Option<&'static str>,
    pub options: Options,
    pub owner_seed: u64,
    pub boots: Vec<BootPlan>,
}

impl BootPlan {
    fn draw(rng: &mut Rng, cuts_power: bool) -> BootPlan {
        let lives = (0..rng.usize(1..6)).map(|_| LifePlan {
            steps: rng.usize(1..STEPS_MAX),
            dies_at: (rng.u8(..3) > 0).then(|| rng.u64(1..1500)),
            closes: rng.bool(),
            ..LifePlan::default()
        });
        let lives = lives.collect();
        let cut = match rng.u8(..3) {
            0 => Cut::Nothing,
            1 => Cut::Everything,
            _ => Cut::Seed(rng.u64(..)),
        };
        let off_at = if cuts_power { rng.u64(1..6000) } else { u64::MAX };
        BootPlan { lives, readers: rng.usize(1..4), off_at, cut, turns_seed: rng.u64(..) }
    }
}

impl Plan {
    /// The program of a seed.
    pub fn of_seed(seed: u64) -> Plan {
        let (mut rng, may_give_up) = (Rng::with_seed(seed), seed % 8 == 7);
        let boots = rng.usize(..3);
        let mut boots: Vec<BootPlan> = (0..boots).map(|_| BootPlan::draw(&mut rng, true)).collect();
        boots.push(BootPlan::draw(&mut rng, false));
        Plan {
            sizes: if rng.u8(..4) == 0 || may_give_up { SMALL } else { LARGE },
            may_give_up,
            keeps_nothing: seed % 16 == 7,
            missing: None,
            options: Options {
                profile: PROFILES[rng.usize(..PROFILES.len())],
                direct: rng.bool(),
                lines: seed.is_multiple_of(4),
                seed,
                ..Options::default()
            },
            owner_seed: rng.u64(..),
            boots,
        }
    }

    /// Readers beside an owner with a file that waits.
    pub fn with_a_file_that_waits(seed: u64) -> Plan {
        let mut plan = Plan::of_seed(seed);
        plan.sizes = SMALL;
        plan.missing = Some("a");
        plan.options = Options { seed, ..Options::default() };
        let mut boot = plan.boots.pop().expect("one at least");
        boot.lives = vec![LifePlan { has_file_that_waits: true, ..LifePlan::default() }];
        plan.boots = vec![boot];
        plan
    }

    /// The program of the first owner, without readers, and without an early end.
    pub fn alone(&self) -> Option<Plan> {
        let first = self.boots.first()?.lives.first()?;
        let lives = vec![LifePlan { dies_at: None, closes: false, ..first.clone() }];
        let boot = BootPlan { lives, readers: 0, off_at: u64::MAX, cut: Cut::Nothing, turns_seed: 0 };
        Some(Plan {
            sizes: self.sizes,
            may_give_up: self.may_give_up,
            keeps_nothing: self.keeps_nothing,
            missing: self.missing,
            options: self.options,
            owner_seed: self.owner_seed,
            boots: vec![boot],
        })
    }
}
