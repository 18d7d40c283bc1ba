//! The demonstration: kills a program a few hundred times while it updates two files, and counts torn states.
//!
//! It compares plain system calls with Untorn, each with calls that write and with mapped files.
//!
//! A program that embeds the demonstration calls [`run_if_child`] first, because the demonstration starts the running
//! program again as the victim. It has [`Demo`] among its arguments.

mod in_machine;
mod live_in_machine;
mod mapped_files;
mod medium;
mod records;
mod texts;
mod updater;
mod workplace;

pub use in_machine::update_until_the_end;
pub use live_in_machine::change_until_the_end;
pub use updater::run_if_child;

use clap::{Args, ValueHint};
use indicatif::{ProgressBar, ProgressStyle};
use records::Records;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use untorn_terminal::table::{bytes, table};
use untorn_terminal::{Failure, Output, tell};
use updater::{Ack, Keeper};
use workplace::Workplace;

/// The updates of the first child before it is killed. Their time decides how long the other children live.
const CALIBRATION_UPDATES: u64 = 12;
/// The limit for the life of a child, so that the demonstration ends.
const LIFE_MAX: Duration = Duration::from_millis(200);

/// The kills for each progress line, without a terminal.
const KILLS_PER_LINE: u64 = 50;

/// Show the purpose of Untorn: kill a program at random moments while it updates two files.
#[derive(Args)]
pub struct Demo {
    /// Text for the records: a file or a directory. Default: this machine's package database.
    #[arg(value_hint = ValueHint::AnyPath)]
    path: Option<PathBuf>,
    /// Number of kills, for each of the four variants.
    #[arg(long, default_value_t = 200, value_parser = clap::value_parser!(u64).range(1..))]
    kills: u64,
    /// Seed that repeats a sequence of updates and pauses.
    #[arg(long)]
    seed: Option<u64>,
    /// Directory to work in; files that are made there are removed. Default: a directory on a disk.
    #[arg(long, value_hint = ValueHint::DirPath)]
    dir: Option<PathBuf>,
}

/// The results for the files of one keeper.
#[derive(Default)]
struct Tally {
    kills: u64,
    torn: u64,
    lost: u64,
    updates: u64,
    update_ns: Vec<u64>,
    reopen_ns: Vec<u64>,
    first_torn: Option<String>,
}

impl Demo {
    /// Runs the demonstration in this program. The exit code is 1 if Untorn tore or lost an update.
    pub fn run(self, program: &'static str) -> Result<Output, Failure> {
        let seed = self.seed.unwrap_or_else(|| fastrand::u64(..1_000_000));
        let (source, texts) = texts::find(self.path.as_deref())?;
        let work = Workplace::new(program, self.dir.as_deref())?;
        let result = self.all(&work, &texts, &source, seed);
        work.wait_if_interrupted();
        result
    }

    fn all(&self, work: &Workplace, texts: &[Vec<u8>], source: &Path, seed: u64) -> Result<Output, Failure> {
        texts::save(&work.texts(), texts)?;
        let size = bytes(texts.iter().map(|t| t.len() as u64).sum());
        tell!("{} records, {size}, from {}, in two files: the records and their index", texts.len(), source.display());
        tell!(
            "A child updates {} records and both files' headers at a time, for ever; it is killed at random moments.",
            records::RECORDS_PER_UPDATE
        );
        tell!("Working in {}; seed {seed}\n\n", work.describe());
        let mut tallies = Vec::new();
        for keeper in Keeper::ALL {
            tallies.push((keeper, self.torture(keeper, work, texts, seed)?));
        }
        let failed = tallies.iter().any(|(keeper, tally)| keeper.is_atomic() && tally.torn + tally.lost > 0);
        Ok(Output::text(report(&tallies, seed)).code(u8::from(failed)))
    }

    /// Kills, reopens and verifies, again and again.
    fn torture(&self, keeper: Keeper, work: &Workplace, texts: &[Vec<u8>], seed: u64) -> Result<Tally, Failure> {
        let dir = work.make(keeper)?;
        build(keeper, &dir, texts)?;
        let mut random = fastrand::Rng::with_seed(seed);
        let bar = bar(keeper, self.kills);
        let mut tally = Tally::default();
        let mut life = LIFE_MAX;
        for n in 0..self.kills {
            let spawned = Instant::now();
            work.spawn(keeper, &dir, random.u64(..))?;
            if n == 0 {
                work.wait_for_acks(CALIBRATION_UPDATES)?;
                life = LIFE_MAX.min(spawned.elapsed() * 3 / 2);
            } else {
                // Kills may come right after the start, so opening and recovery are killed, too.
                std::thread::sleep(life.mul_f64(random.f64()).saturating_sub(spawned.elapsed()));
            }
            let acks = work.kill()?;
            tally.kills += 1;
            tally.verify(keeper, &dir, texts, &acks)?;
            bar.set_message(format!("{} torn", tally.torn));
            bar.inc(1);
            if bar.is_hidden() && tally.kills.is_multiple_of(KILLS_PER_LINE) {
                tell!("{}: {} of {} kills, {} torn", bar.prefix(), tally.kills, self.kills, tally.torn);
            }
        }
        bar.finish();
        Ok(tally)
    }
}

impl Tally {
    /// Recovers the files by opening them, and verifies them. A torn database is built anew.
    fn verify(&mut self, keeper: Keeper, dir: &Path, texts: &[Vec<u8>], acks: &[Ack]) -> Result<(), Failure> {
        self.updates += acks.len() as u64;
        self.update_ns.extend(acks.iter().map(|ack| ack.took_ns));
        let started = Instant::now();
        let medium = keeper.open(dir)?;
        self.reopen_ns.push(started.elapsed().as_nanos() as u64);
        let found = records::verify(&*medium)?;
        medium.close()?;
        match found {
            Ok(generation) => self.lost += u64::from(acks.last().is_some_and(|ack| generation < ack.generation)),
            Err(torn) => {
                self.torn += 1;
                self.first_torn.get_or_insert_with(|| torn.to_string());
                build(keeper, dir, texts)?;
            }
        }
        Ok(())
    }
}

fn build(keeper: Keeper, dir: &Path, texts: &[Vec<u8>]) -> Result<(), Failure> {
    let mut medium = keeper.open(dir)?;
    Records::build(&mut *medium, texts)?;
    medium.commit()?;
    medium.close()
}

fn bar(keeper: Keeper, kills: u64) -> ProgressBar {
    let style = ProgressStyle::with_template("{prefix:>18} {wide_bar} {pos}/{len} kills, {msg}")
        .expect("the template is a constant");
    ProgressBar::new(kills).with_style(style).with_prefix(keeper.describe()).with_message("0 torn")
}

/// The median of durations, in a suitable unit.
fn median(mut ns: Vec<u64>) -> String {
    if ns.is_empty() {
        return "-".to_owned();
    }
    ns.sort_unstable();
    match ns[ns.len() / 2] as f64 / 1000.0 {
        us if us < 1000.0 => format!("{us:.0} µs"),
        us => format!("{:.1} ms", us / 1000.0),
    }
}

fn report(tallies: &[(Keeper, Tally)], seed: u64) -> String {
    let row = |name: &str, value: &dyn Fn(&Tally) -> String| {
        std::iter::once(name.to_owned()).chain(tallies.iter().map(|(_, tally)| value(tally))).collect()
    };
    let heads: Vec<&str> = std::iter::once("").chain(tallies.iter().map(|(keeper, _)| keeper.describe())).collect();
    let rows = [
        row("times killed", &|t| t.kills.to_string()),
        row("torn states found", &|t| t.torn.to_string()),
        row("acknowledged updates lost", &|t| t.lost.to_string()),
        row("updates made", &|t| t.updates.to_string()),
        row("time per update, both files, durable (median)", &|t| median(t.update_ns.clone())),
        row("time to reopen after a kill, recovery included (median)", &|t| median(t.reopen_ns.clone())),
    ];
    let mut text = format!("\n{}\n", table(&heads, &rows));
    for (keeper, tally) in tallies {
        let name = keeper.describe();
        match &tally.first_torn {
            Some(torn) if keeper.is_atomic() => {
                text += &format!("  {} FAILED: {torn}; please report this with `--seed {seed}`\n", name.to_uppercase());
            }
            Some(torn) => text += &format!("  {name}, for instance: {torn}\n"),
            None if keeper.is_atomic() && tally.lost == 0 => {
                text +=
                    &format!("  {name}: after every kill the last acknowledged update, or the one in flight, whole\n");
            }
            None if keeper.is_atomic() => {}
            None => text += &format!("  {name} was lucky this time: try more --kills\n"),
        }
        if keeper.is_atomic() && tally.lost > 0 {
            text += &format!(
                "  {} LOST acknowledged updates; please report this with `--seed {seed}`\n",
                name.to_uppercase()
            );
        }
    }
    text
}
