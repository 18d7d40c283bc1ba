//! The check that crash states of a recorded session must pass.

use anyhow::{Result, bail, ensure};
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use untorn_crashlab::device::watch::say;
use untorn_crashlab::replay::{Bench, Check, Exploration, Recording, explain};

/// The number of changes that the program `probe mixed` makes.
pub const CHANGES: u64 = 120;

/// Explores crash states. An error if the check finds a violation.
pub fn explore(recording: &Recording, told: &dyn Check, seed: u64, states: u64) -> Result<()> {
    let mut bench = Bench::new()?;
    let said = recording.said(recording.events.len());
    let whole = recording.image(recording.events.len());
    if let Err(why) = bench.with(recording.fs, &whole, |dir| told.check(dir, &said))?? {
        bail!("without any crash: {why}");
    }
    let all = Exploration { recording, check: told, seed, states, violations_max: 3, deadline: None };
    let (totals, violations) = all.run(&mut bench, |_| say("."))?;
    for violation in &violations {
        let text = explain(&mut bench, recording, &violation.state, &violation.verdict)?;
        say(&format!("VIOLATION {}", text.lines().last().unwrap_or_default()));
    }
    say(&format!("{} lines shown, {} flushes; {totals:?}", said.len(), recording.flushes()));
    ensure!(!said.is_empty() && totals.states > 0, "nothing was shown, or nothing could be lost");
    Ok(())
}

/// The oracle: it knows the program's changes, and finds the change after which the files are as they are.
pub struct Told {
    pub seed: u64,
    /// The mount point for the volume, if the volume is a file on the disk.
    pub image: Option<PathBuf>,
}

/// The contents of a file: the number that fills it, and its length. None if the file is incomplete.
type Held = Option<(u64, usize)>;

impl Check for Told {
    fn check(&self, dir: &Path, said: &[String]) -> Result<(), String> {
        let Some(at) = &self.image else { return self.judge(&dir.join("data"), said) };
        // Opens the image as a session does, which repairs a torn superblock.
        let image = untorn_xsync::volumes::volume::Image::open(&dir.join("volume.img"));
        let volume = image.and_then(|image| image.mount(at)).map_err(|e| format!("{e:#}"))?;
        let judged = self.judge(&at.join("data"), said);
        volume.unmount().map_err(|e| format!("{e:#}"))?;
        judged
    }
}

impl Told {
    /// Checks the files in a directory.
    pub fn judge(&self, data: &Path, said: &[String]) -> Result<(), String> {
        let shown = said.iter().filter(|line| line.starts_with("file")).count() as u64;
        let found = match files(data) {
            Ok(found) => found,
            // The crash came before the session began.
            Err(_) if shown == 0 => return Ok(()),
            Err(e) => return Err(format!("{shown} changes were shown: {e}")),
        };
        let mut state: BTreeMap<String, Held> = BTreeMap::new();
        for (n, slot, length) in changes(self.seed) {
            // In the state before change n, only the file of change n may differ, because it is being changed.
            if n > shown && same_but(&found, &state, &slot) {
                return Ok(());
            }
            state.insert(slot, Some((n, length)));
        }
        if same_but(&found, &state, "none") {
            return Ok(());
        }
        Err(format!("{shown} changes were shown, and the files are of no moment since then: {found:?}"))
    }
}

fn same_but(found: &BTreeMap<String, Held>, state: &BTreeMap<String, Held>, slot: &str) -> bool {
    let rest = |files: &BTreeMap<String, Held>| -> Vec<(String, Held)> {
        files.iter().filter(|(name, _)| *name != slot).map(|(name, held)| (name.clone(), *held)).collect()
    };
    rest(found) == rest(state)
}

/// The changes of `probe mixed`: number, file, length.
fn changes(seed: u64) -> Vec<(u64, String, usize)> {
    let mut chance = seed;
    let change = |n| {
        chance = chance.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (n, format!("file{}", chance >> 40 & 7), 8 * 600 * (1 + (chance >> 50 & 3) as usize))
    };
    (1..=CHANGES).map(change).collect()
}

fn files(data: &Path) -> std::io::Result<BTreeMap<String, Held>> {
    let mut found = BTreeMap::new();
    for entry in fs::read_dir(data)? {
        let entry = entry?;
        let name = entry.file_name().to_string_lossy().into_owned();
        // A file that has not got its name yet does not count.
        if entry.file_type()?.is_file() && !name.ends_with(".new") {
            let text = fs::read(entry.path())?;
            let number = text.get(..8).and_then(|digits| std::str::from_utf8(digits).ok()?.parse::<u64>().ok());
            let whole = number.filter(|number| text == format!("{number:08}").repeat(text.len() / 8).as_bytes());
            found.insert(name, whole.map(|number| (number, text.len())));
        }
    }
    Ok(found)
}
