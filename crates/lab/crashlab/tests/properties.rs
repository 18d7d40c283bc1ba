//! Table I of *FCFS*: which changes are all or nothing on which file system, and which are with Untorn on it.
//!
//! Each file of a program holds one number in all of its words. The program increases it by one kind of change, flushes
//! it, and acknowledges it. The disk loses writes that were not flushed, in any combination. The test prints the matrix.

use anyhow::{Context, Result, bail};
use std::fs;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::Duration;
use untorn::Store;
use untorn_crashlab::device::watch::{self, Limits, say};
use untorn_crashlab::device::{Acks, Again, FileSystem, SOUND, serve_if_asked};
use untorn_crashlab::replay::{Bench, Check, Exploration, Program, Recorded, record};
use untorn_testkit::{seed, test_path, variable_or};

const ROUNDS: u64 = 12;
/// More than the kernel puts into one page or folio.
const FILE_BYTES: usize = 256 << 10;
const FILES: [&str; 2] = ["first", "second"];
const NEW: &str = "new";
const STORE: &str = "store";

/// The kinds of changes: the table's columns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Change {
    /// A new file replaces the file, by a rename.
    Name,
    /// One `pwrite` over the whole file.
    Data,
    /// One `pwrite` over each of two files.
    Several,
}

const CHANGES: [(Change, &str); 3] = [(Change::Name, "name"), (Change::Data, "data"), (Change::Several, "several")];

/// A program that makes changes of one kind, with Untorn or with the file system's own calls.
#[derive(Clone, Copy)]
struct Changing {
    change: Change,
    by_untorn: bool,
}

fn contents(number: u64) -> Vec<u8> {
    number.to_le_bytes().repeat(FILE_BYTES / 8)
}

impl Changing {
    /// The files that one change concerns.
    fn files(self) -> &'static [&'static str] {
        if self.change == Change::Several { &FILES } else { &FILES[..1] }
    }

    fn by_the_file_system(self, dir: &Path, mut acks: Acks) -> Result<()> {
        for number in 1..=ROUNDS {
            let bytes = contents(number);
            if self.change == Change::Name {
                fs::write(dir.join(NEW), &bytes)?;
                fs::File::open(dir.join(NEW))?.sync_all()?;
                fs::rename(dir.join(NEW), dir.join(FILES[0]))?;
                fs::File::open(dir)?.sync_all()?;
            } else {
                let open = |name| fs::OpenOptions::new().write(true).open(dir.join(name));
                let files = self.files().iter().map(open).collect::<Result<Vec<_>, _>>()?;
                files.iter().try_for_each(|file| file.write_all_at(&bytes, 0))?;
                files.iter().try_for_each(fs::File::sync_all)?;
            }
            acks.say(&number.to_string())?;
        }
        Ok(())
    }

    fn by_untorn(self, dir: &Path, mut acks: Acks) -> Result<()> {
        let store = Store::open(dir.join(STORE))?;
        let mut files = self.files().iter().map(|name| store.open_file(name)).collect::<Result<Vec<_>, _>>()?;
        for number in 1..=ROUNDS {
            let bytes = contents(number);
            if self.change == Change::Name {
                let new = store.open_or_create_file(NEW)?;
                new.write_all_at(&bytes, 0)?;
                new.commit()?;
                store.rename(NEW, FILES[0])?;
                files = vec![new];
            } else {
                files.iter().try_for_each(|file| file.write_all_at(&bytes, 0))?;
                store.syncv(&files.iter().collect::<Vec<_>>())?;
            }
            acks.say(&number.to_string())?;
        }
        Ok(())
    }

    fn found(self, dir: &Path) -> Result<Vec<Vec<u8>>> {
        if !self.by_untorn {
            return self.files().iter().map(|name| Ok(fs::read(dir.join(name))?)).collect();
        }
        let store = Store::open(dir.join(STORE))?;
        let read = |name: &&str| -> Result<Vec<u8>> {
            let file = store.open_file(name)?;
            let mut bytes = vec![0; usize::try_from(file.len()?)?];
            file.read_exact_at(&mut bytes, 0)?;
            Ok(bytes)
        };
        self.files().iter().map(read).collect()
    }
}

impl Program for Changing {
    fn prepare(&self, dir: &Path) -> Result<()> {
        if !self.by_untorn {
            return FILES.iter().try_for_each(|name| Ok(fs::write(dir.join(name), contents(0))?));
        }
        let store = Store::open_or_create(dir.join(STORE))?;
        for name in FILES {
            let file = store.open_or_create_file(name)?;
            file.write_all_at(&contents(0), 0)?;
            file.commit()?;
        }
        Ok(store.close()?)
    }

    fn run(&self, dir: &Path, acks: &Path) -> Result<()> {
        let acks = Acks::open(acks)?;
        if self.by_untorn { self.by_untorn(dir, acks) } else { self.by_the_file_system(dir, acks) }
    }
}

impl Check for Changing {
    fn check(&self, dir: &Path, said: &[String]) -> Result<(), String> {
        let files = self.found(dir).map_err(|e| format!("{e:#}"))?;
        let number = files[0].first_chunk().map_or(u64::MAX, |word| u64::from_le_bytes(*word));
        let whole = contents(number);
        if files.iter().any(|bytes| *bytes != whole) {
            return Err(format!("change {number} is torn"));
        }
        let told = said.last().map_or(Ok(0), |line| line.parse()).map_err(|e| format!("{e}"))?;
        if number < told {
            return Err(format!("change {told} was acknowledged, {number} is there"));
        }
        Ok(())
    }
}

fn again() -> Result<Again> {
    Ok(Again::test(&test_path!("part"))?)
}

/// Runs devices and workers, which are other processes of these tests. It does nothing in a normal run.
#[test]
fn part() {
    serve_if_asked();
    watch::work_if_asked(|job| {
        let words: Vec<_> = job.split(' ').collect();
        match words[..] {
            [watch::PROBE] => watch::try_mount(&again()?),
            [fs, keeper, states] => {
                fs.parse().map_err(anyhow::Error::msg).and_then(|fs| explore(fs, keeper == "untorn", states.parse()?))
            }
            _ => bail!("no such job: {job}"),
        }
    });
}

/// Prints for each kind of change the numbers of violations and of states.
fn explore(fs: FileSystem, by_untorn: bool, states: u64) -> Result<()> {
    let (base, mut bench) = (fs.make(0)?, Bench::new()?);
    for (change, name) in CHANGES {
        let changing = Changing { change, by_untorn };
        let recording =
            record(&again()?, fs, base.clone(), Vec::new(), &changing, Recorded::default()).context(name)?;
        let all = Exploration {
            recording: &recording,
            check: &changing,
            seed: seed(),
            states,
            violations_max: usize::MAX,
            deadline: None,
        };
        let (totals, violations) = all.run(&mut bench, |_| say("."))?;
        let why = violations.first().map_or(String::new(), |violation| format!("{:?}", violation.verdict));
        say(&format!("{name} {} {} {why}", totals.broken + totals.unmountable, totals.states));
    }
    Ok(())
}

/// Whether each kind of change was all or nothing in all crash states.
fn row(fs: FileSystem, keeper: &str, states: u64) -> [bool; 3] {
    let limits = Limits { whole: Duration::from_secs(300), silence: Duration::from_secs(60) };
    let mut found = Vec::new();
    let done = watch::supervise(&again().expect("this program"), &format!("{fs} {keeper} {states}"), limits, |line| {
        if line != "." {
            let words: Vec<_> = line.splitn(4, ' ').collect();
            let (name, broken, states) = (words[0], words[1], words[2]);
            println!("{fs}, {keeper}, {name}: {broken} of {states} states {}", words.get(3).unwrap_or(&""));
            found.push(broken == "0");
        }
    });
    done.unwrap_or_else(|e| panic!("{fs} {keeper}: {e}"));
    found.try_into().expect("one answer for each kind of change")
}

#[test]
fn changes_that_are_all_or_nothing() {
    let programs: Vec<_> = SOUND.iter().map(|fs| fs.mkfs()).collect();
    if let Some(why) = watch::missing(&programs).or_else(|| watch::probe(&again().expect("this program"))) {
        println!("skipped: {why}");
        return;
    }
    let states = variable_or("UNTORN_REPLAY_STATES", 90) / 3;
    let (mut wrong, mut table) = (Vec::new(), String::new());
    for fs in SOUND {
        for keeper in ["alone", "untorn"] {
            let whole = row(fs, keeper, states);
            let expected = match (keeper, fs) {
                ("untorn", _) => [true; 3],
                // Both writes are as a rule in one transaction of its journal, but nothing promises that.
                (_, FileSystem::Ext4Journal) => [true, whole[1], whole[2]],
                // Between the flushes of two files the first one has the change, and the second one lacks it.
                _ => [true, whole[1], false],
            };
            if whole != expected {
                wrong.push(format!("{fs}, {keeper}: {whole:?}"));
            }
            let words = whole.map(|whole| if whole { "yes" } else { "no" });
            let file_system = format!("{fs} {}", if keeper == "untorn" { "and Untorn" } else { "" });
            table += &format!("{file_system:<24} {:<6} {:<6} {}\n", words[0], words[1], words[2]);
        }
    }
    println!("{:<24} {:<6} {:<6} two files\n{table}", "all or nothing:", "a name", "data");
    assert!(wrong.is_empty(), "{wrong:?}");
}
