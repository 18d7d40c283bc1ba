//! Power cuts: the possible states of the disk afterwards, enumerated or at random.

use super::disk_options::{Model, Profile};
use super::disk_state::State;
use super::effect::{Effect, Patch, close_over};
use super::inodes::{Image, PAGE_BYTES, Page, RESERVED, ROOT, SECTOR_BYTES, SECTORS_PER_PAGE, Slot, mix};
use super::stored_lines::Land;
use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

/// One possible result of a power cut. Its text form can be parsed again, to repeat a finding.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Cut {
    /// Everything unflushed is lost.
    Nothing,
    /// Everything survives.
    Everything,
    /// Of the independent units, only this one survives.
    Only(u32),
    /// All but this unit survive.
    Except(u32),
    /// The units up to this one survive, as if they had been written out in order.
    Upto(u32),
    /// The n-th combination of the states of all units; see [`Snapshot::outcomes`].
    Nth(u64),
    /// A random result, from a seed.
    Seed(u64),
}

impl fmt::Display for Cut {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Cut::Nothing => f.write_str("nothing"),
            Cut::Everything => f.write_str("everything"),
            Cut::Only(n) => write!(f, "only:{n}"),
            Cut::Except(n) => write!(f, "except:{n}"),
            Cut::Upto(n) => write!(f, "upto:{n}"),
            Cut::Nth(n) => write!(f, "nth:{n}"),
            Cut::Seed(n) => write!(f, "seed:{n}"),
        }
    }
}

impl FromStr for Cut {
    type Err = String;
    fn from_str(text: &str) -> Result<Cut, String> {
        let bad = |_| format!("no power cut: {text}");
        Ok(match text.split_once(':').unwrap_or((text, "")) {
            ("nothing", "") => Cut::Nothing,
            ("everything", "") => Cut::Everything,
            ("only", n) => Cut::Only(n.parse().map_err(bad)?),
            ("except", n) => Cut::Except(n.parse().map_err(bad)?),
            ("upto", n) => Cut::Upto(n.parse().map_err(bad)?),
            ("nth", n) => Cut::Nth(n.parse().map_err(bad)?),
            ("seed", n) => Cut::Seed(n.parse().map_err(bad)?),
            _ => return Err(format!("no power cut: {text}")),
        })
    }
}

/// A part that survives or not, independently of others. Its states are counted from 0 (nothing) to the last (all).
enum Unit {
    /// The ordered log: a prefix of these effects.
    Log(Vec<u32>),
    /// The contents of one write, in one of these ways.
    Data(u32, Vec<Land>),
    /// One metadata effect, or the new size that came with a write.
    Metadata(u32),
}

impl Unit {
    fn states(&self) -> u64 {
        match self {
            Unit::Log(effects) => effects.len() as u64 + 1,
            Unit::Data(_, lands) => lands.len() as u64,
            Unit::Metadata(_) => 2,
        }
    }

    /// The effect that gives the unit its position in time.
    fn last_effect(&self) -> u32 {
        match self {
            Unit::Log(effects) => effects.last().copied().unwrap_or(0),
            Unit::Data(effect, _) | Unit::Metadata(effect) => *effect,
        }
    }
}

struct Plan {
    units: Vec<Unit>,
    outcomes: u64,
    live_hash: u64,
}

/// A machine at one moment: its disk and its cache.
#[derive(Clone)]
pub struct Snapshot {
    state: State,
    call: u64,
    /// The machine's simulated time.
    uptime: Duration,
    plan: Arc<OnceLock<Plan>>,
}

impl Snapshot {
    pub(crate) fn new(state: State, call: u64, uptime: Duration) -> Snapshot {
        Snapshot { state, call, uptime, plan: Arc::default() }
    }

    /// The machine's simulated time.
    pub(crate) fn uptime(&self) -> Duration {
        self.uptime
    }

    /// The number of the next call; the crash is right before it.
    pub fn call(&self) -> u64 {
        self.call
    }

    /// The names of files as programs see them, without Untorn's own, and the inode of each.
    pub(crate) fn names(&self) -> BTreeMap<PathBuf, Slot> {
        let live = &self.state.live;
        let (mut found, mut left) = (BTreeMap::new(), vec![(PathBuf::new(), ROOT)]);
        while let Some((path, slot)) = left.pop() {
            for (name, child) in live.get(slot).map_or(&[][..], |inode| inode.entries()) {
                let Some(inode) = live.get(*child) else { continue };
                let path = path.join(&**name);
                match name.as_encoded_bytes().ends_with(b".untorn") {
                    true => {}
                    false if inode.is_directory() => left.push((path, *child)),
                    false => _ = found.insert(path, *child),
                }
            }
        }
        found
    }

    /// The contents of a file as a program reads them.
    pub(crate) fn contents(&self, slot: Slot) -> Vec<u8> {
        let Some(inode) = self.state.live.get(slot) else { return Vec::new() };
        let mut contents = vec![0; inode.size() as usize];
        inode.read(&mut contents, 0);
        contents
    }

    /// The mark that the driver had set with [`SimDisk::set_mark`](crate::SimDisk::set_mark).
    pub fn mark(&self) -> u64 {
        self.state.mark
    }

    /// The number of independent units that are not yet durable.
    pub fn pending_count(&self) -> usize {
        self.plan().units.len()
    }

    /// The number of combinations of the units' states ([`Cut::Nth`]); `u64::MAX` if there are more. Several
    /// combinations may lead to the same image.
    pub fn outcomes(&self) -> u64 {
        self.plan().outcomes
    }

    /// Describes the pending effects.
    pub fn describe(&self) -> Vec<String> {
        self.state.pending.iter().map(|e| e.describe(&self.state.live)).collect()
    }

    /// Power cuts to explore, at most `at_most` (but at least two): every outcome if there are few enough; otherwise
    /// the two extremes, each unit alone lost or kept, and random ones.
    pub fn cuts(&self, at_most: usize, seed: u64) -> Vec<Cut> {
        let plan = self.plan();
        let at_most = at_most.max(2);
        if plan.outcomes <= at_most as u64 {
            return (0..plan.outcomes).map(Cut::Nth).collect();
        }
        let mut cuts = vec![Cut::Nothing, Cut::Everything];
        let units = plan.units.len() as u32;
        let mut singles: Vec<Cut> =
            (0..units).flat_map(|unit| [Cut::Except(unit), Cut::Only(unit), Cut::Upto(unit)]).collect();
        // With many units, half of the cuts must still be random.
        let room = (at_most - cuts.len()).div_ceil(2).min(singles.len());
        for at in 0..room {
            let left = singles.len() - at;
            singles.swap(at, at + (mix(seed ^ at as u64) % left as u64) as usize);
        }
        cuts.extend(&singles[..room]);
        cuts.extend((0..at_most - cuts.len()).map(|n| Cut::Seed(mix(seed ^ mix(n as u64 | 1 << 40)))));
        cuts
    }

    /// The state after all processes were killed: the cache is kept.
    pub(crate) fn state_after_kill(&self) -> State {
        let mut state = self.state.clone();
        state.live.collect();
        state
    }

    /// The state after a power cut and the next boot; also whether anything is missing, torn or damaged.
    pub(crate) fn state_after(&self, cut: Cut) -> (State, bool) {
        let image = self.image_after(cut);
        let something_lost = image.hash() != self.plan().live_hash;
        let mut state = self.state.clone();
        state.live = image.clone();
        state.durable = image;
        state.pending = Arc::default();
        state.diverged = false;
        for bad in &mut state.unreadable {
            bad.is_written = false;
        }
        state.boots += 1;
        (state, something_lost)
    }

    fn plan(&self) -> &Plan {
        self.plan.get_or_init(|| {
            let pending = &self.state.pending;
            let ordered = self.state.options.profile != Profile::AnyPosix;
            let mut units = Vec::with_capacity(pending.len() + 1);
            if ordered {
                let is_logged = |i: &u32| pending[*i as usize].is_logged();
                let log: Vec<u32> = (0..pending.len() as u32).filter(is_logged).collect();
                if !log.is_empty() {
                    units.push(Unit::Log(log));
                }
            }
            for (i, effect) in pending.iter().enumerate() {
                let i = i as u32;
                if let Some((_, grows)) = effect.contents() {
                    let lands = self.landings(effect, ordered);
                    if lands.len() > 1 {
                        units.push(Unit::Data(i, lands));
                    }
                    if grows && !ordered {
                        units.push(Unit::Metadata(i));
                    }
                } else if !ordered && effect.is_logged() {
                    units.push(Unit::Metadata(i));
                }
            }
            let outcomes = units.iter().fold(1u64, |n, unit| n.saturating_mul(unit.states()));
            Plan { units, outcomes, live_hash: self.state.live.hash() }
        })
    }

    /// The possible ways in which a write can land, from nothing to all.
    fn landings(&self, effect: &Effect, ordered: bool) -> Vec<Land> {
        let (slot, patches, grows) = match effect {
            Effect::Write { slot, patches, grows, .. } => (*slot, patches, *grows),
            Effect::Store(stored) => return stored.landings(),
            _ => return Vec::new(),
        };
        let sectors = effect.sectors();
        if sectors == 0 {
            return vec![Land::Nothing];
        }
        let mut lands = vec![Land::Nothing];
        if sectors > 1 {
            lands.push(Land::First);
            // On an ordered disk, a size that includes a later block includes all data before it.
            if !(grows && ordered) {
                lands.push(Land::Last);
                if sectors > 2 {
                    lands.push(Land::Some);
                }
            }
        }
        let (mut any_new, mut any_old) = (false, false);
        for patch in patches {
            for bit in (0..SECTORS_PER_PAGE).filter(|bit| patch.mask & (1 << bit) != 0) {
                let new = is_new(&self.state.durable, slot, patch.page, bit);
                any_new |= new;
                any_old |= !new;
            }
        }
        let page_garbage = self.state.options.model == Model::PageGarbage;
        if (any_new && !ordered) || (any_old && page_garbage) {
            lands.push(Land::Garbage);
        }
        lands.push(Land::All);
        lands
    }

    /// The state of every unit after a cut.
    fn digits(&self, cut: Cut) -> Vec<u64> {
        let units = &self.plan().units;
        let all = |unit: &Unit| unit.states() - 1;
        let pick = |unit: &Unit, random: u64| (random >> 16) % unit.states();
        match cut {
            Cut::Nothing => vec![0; units.len()],
            Cut::Everything => units.iter().map(all).collect(),
            Cut::Only(n) => units.iter().enumerate().map(|(i, u)| if i == n as usize { all(u) } else { 0 }).collect(),
            Cut::Except(n) => units.iter().enumerate().map(|(i, u)| if i == n as usize { 0 } else { all(u) }).collect(),
            Cut::Upto(n) => {
                let last = units.get(n as usize).map_or(0, Unit::last_effect);
                units.iter().map(|unit| upto(unit, last)).collect()
            }
            Cut::Nth(mut n) => {
                let mut digits = Vec::with_capacity(units.len());
                for unit in units {
                    digits.push(n % unit.states());
                    n /= unit.states();
                }
                digits
            }
            Cut::Seed(seed) => {
                let random = |i: usize| mix(seed ^ mix(i as u64));
                let style = mix(seed ^ 0x5eed);
                let chance = [4, 8, 14][(style >> 8) as usize % 3];
                let in_order = style.is_multiple_of(4);
                let at = (style >> 16) as usize % units.len().max(1);
                let last = units.get(at).map_or(0, Unit::last_effect);
                units
                    .iter()
                    .enumerate()
                    .map(|(i, unit)| match in_order {
                        // Written out in order, with the last one torn.
                        true if i == at => pick(unit, random(i)),
                        true => upto(unit, last),
                        // Each unit by itself; few, half or most of them completely.
                        false if random(i) % 16 < chance => all(unit),
                        false if random(i) % 3 == 0 => pick(unit, random(i)),
                        false => 0,
                    })
                    .collect()
            }
        }
    }

    fn image_after(&self, cut: Cut) -> Image {
        let pending = &self.state.pending;
        let profile = self.state.options.profile;
        let ordered = profile != Profile::AnyPosix;
        let seed = mix(match cut {
            Cut::Nothing => 1,
            Cut::Everything => 2,
            Cut::Only(n) | Cut::Except(n) | Cut::Upto(n) => mix(n as u64),
            Cut::Nth(n) | Cut::Seed(n) => mix(n ^ 0xc07),
        });
        let mut lands = vec![Land::Nothing; pending.len()];
        let mut metadata = vec![false; pending.len()];
        for (unit, digit) in self.plan().units.iter().zip(self.digits(cut)) {
            match unit {
                Unit::Log(effects) => effects[..digit as usize].iter().for_each(|&i| metadata[i as usize] = true),
                Unit::Metadata(i) => metadata[*i as usize] = digit == 1,
                Unit::Data(i, ways) => {
                    let i = *i as usize;
                    lands[i] = ways[digit as usize];
                    let grows = ordered && self.needs_new_size(i, &metadata);
                    if grows && matches!(lands[i], Land::First | Land::All) {
                        metadata[i] = true;
                    }
                }
            }
        }
        if ordered {
            self.force_order(&mut lands, &mut metadata);
        }
        close_over(pending, &mut metadata, profile);

        let mut image = self.state.durable.clone();
        let mut written: Vec<Slot> = Vec::new();
        for (i, effect) in pending.iter().enumerate() {
            if effect.is_write() && (lands[i] != Land::Nothing || metadata[i]) {
                self.land(&mut image, effect, lands[i], metadata[i], mix(seed ^ i as u64));
                if !written.contains(&effect.slot()) {
                    written.push(effect.slot());
                }
            } else if metadata[i] {
                effect.apply_whole(&mut image);
            }
        }
        // Data behind the end of a file does not exist.
        for slot in written {
            if let Some(inode) = image.get_mut(slot) {
                inode.set_size(inode.size());
            }
        }
        image.collect();
        self.choose_times(&mut image, cut, seed);
        image
    }

    /// Whether a write made its file longer than it is on the disk with these log entries. If the file was cut, and the
    /// cut is not on the disk yet, the size before the cut covers the write.
    fn needs_new_size(&self, at: usize, logged: &[bool]) -> bool {
        let Effect::Write { slot, grows: true, to, .. } = *self.state.pending[at] else { return false };
        let mut before = self.state.pending[..at].iter().zip(logged);
        let cut =
            before.any(|(e, logged)| *logged && matches!(**e, Effect::Size { slot: s, to: Some(_), .. } if s == slot));
        cut || self.state.durable.get(slot).is_none_or(|inode| to > inode.size())
    }

    /// Enforces an ordered log: a size from writing past the end is logged when the data is written, after every entry
    /// that was logged before the write, and it covers only data that is written.
    fn force_order(&self, lands: &mut [Land], metadata: &mut [bool]) {
        let pending = &self.state.pending;
        // The device was flushed before a log entry that comes after contents were written out.
        let log_end = metadata.iter().rposition(|metadata| *metadata).unwrap_or(0);
        for out_at in 0..log_end {
            let Effect::WrittenOut { slot: out } = *pending[out_at] else { continue };
            for j in 0..out_at {
                if let Some((_, grows)) = pending[j].contents().filter(|_| pending[j].slot() == out) {
                    (lands[j], metadata[j]) = (Land::All, grows);
                }
            }
        }
        for i in (0..pending.len()).rev() {
            let Effect::Write { slot, grows: true, .. } = *pending[i] else { continue };
            if !metadata[i] {
                continue;
            }
            let durable_size = self.state.durable.get(slot).map_or(0, |inode| inode.size());
            for j in 0..i {
                match pending[j].contents() {
                    Some((range, grows)) => {
                        if pending[j].slot() == slot && (grows || range.end > durable_size) {
                            lands[j] = Land::All;
                            metadata[j] = grows;
                        }
                    }
                    None => metadata[j] = true,
                }
            }
        }
    }

    fn land(&self, image: &mut Image, effect: &Effect, land: Land, metadata: bool, seed: u64) {
        if let Effect::Store(stored) = effect {
            return stored.land(image, land, seed);
        }
        let sectors = effect.sectors();
        let half = sectors / 2;
        let by_chance = |ordinal: u32| mix(seed ^ mix(ordinal as u64 / 32)) >> (ordinal % 32) & 1 == 1;
        match land {
            Land::Nothing => effect.apply(image, |_| false, metadata),
            Land::All => effect.apply(image, |_| true, metadata),
            Land::Last => effect.apply(image, |ordinal| ordinal >= half, metadata),
            Land::Some => effect.apply(image, by_chance, metadata),
            Land::First if self.state.options.profile == Profile::AnyPosix => {
                effect.apply(image, |ordinal| ordinal < half, metadata);
            }
            Land::First => self.land_first_half(image, effect, half),
            Land::Garbage => {
                effect.apply(image, by_chance, metadata);
                self.land_garbage(image, effect, seed);
            }
        }
    }

    /// Lands the first half, with the part of the new size that belongs to it.
    fn land_first_half(&self, image: &mut Image, effect: &Effect, half: u32) {
        effect.apply(image, |ordinal| ordinal < half, false);
        let Effect::Write { slot, patches, to, grows: true, .. } = effect else { return };
        let bits = patches.iter().flat_map(|patch| {
            (0..SECTORS_PER_PAGE).filter(|bit| patch.mask & (1 << bit) != 0).map(|bit| (patch.page, bit))
        });
        if let Some((page, bit)) = bits.take(half as usize).last()
            && let Some(inode) = image.get_mut(*slot)
        {
            let end = page as u64 * PAGE_BYTES as u64 + (bit as u64 + 1) * SECTOR_BYTES as u64;
            inode.set_size(inode.size().max(end.min(*to)));
        }
    }

    /// Fills new sectors, and with [`Model::PageGarbage`] whole pages, with random bytes or old contents of other
    /// files.
    fn land_garbage(&self, image: &mut Image, effect: &Effect, seed: u64) {
        let Effect::Write { slot, patches, .. } = effect else { return };
        let whole_pages = self.state.options.model == Model::PageGarbage;
        let Some(inode) = image.get_mut(*slot) else { return };
        let sure = seed as usize % patches.len().max(1);
        for (nth, patch) in patches.iter().enumerate() {
            let chance = mix(seed ^ mix(nth as u64 + 0x6a));
            let mut mask = 0u8;
            if whole_pages {
                mask = if nth == sure || chance & 1 == 1 { 0xff } else { 0 };
            } else {
                for bit in (0..SECTORS_PER_PAGE).filter(|bit| patch.mask & (1 << bit) != 0) {
                    let new = is_new(&self.state.durable, *slot, patch.page, bit);
                    if new && (nth == sure || chance >> bit & 1 == 1) {
                        mask |= 1 << bit;
                    }
                }
            }
            if mask != 0 {
                let bytes = Some(self.garbage_page(chance));
                Patch { page: patch.page, mask, bytes }.apply(inode, mask);
            }
        }
    }

    fn garbage_page(&self, seed: u64) -> Arc<Page> {
        let stale = &self.state.stale;
        if !stale.is_empty() && seed & 2 == 2 {
            return stale[(seed >> 8) as usize % stale.len()].clone();
        }
        let mut page = Page::zeroed();
        for (i, word) in Page::bytes_mut(&mut page).as_chunks_mut::<8>().0.iter_mut().enumerate() {
            *word = mix(seed ^ i as u64).to_le_bytes();
        }
        page
    }

    /// Chooses modification times, which prove nothing after a crash: a file that was being changed has its old or its
    /// new one.
    fn choose_times(&self, image: &mut Image, cut: Cut, seed: u64) {
        if cut == Cut::Nothing {
            return;
        }
        for slot in 0..image.slots() {
            let new = cut == Cut::Everything || mix(seed ^ slot as u64) & 1 == 1;
            if new && let Some(live) = self.state.live.get(slot) {
                image.set_time(slot, live.mtime_ns);
            }
        }
    }
}

/// The state of a unit when everything up to effect `last` is written.
fn upto(unit: &Unit, last: u32) -> u64 {
    match unit {
        Unit::Log(effects) => effects.partition_point(|&effect| effect <= last) as u64,
        Unit::Data(effect, _) | Unit::Metadata(effect) => {
            if *effect <= last {
                unit.states() - 1
            } else {
                0
            }
        }
    }
}

/// Whether a sector has never been durably written: it may have any contents once a size includes it. In a hole within
/// the durable size, that would be old data of another file in the middle of this one, which file systems prevent (ext4
/// does not with `data=writeback`): there it is zeros or new.
fn is_new(durable: &Image, slot: Slot, page: u32, bit: u32) -> bool {
    let Some(inode) = durable.get(slot) else { return true };
    let start = page as u64 * PAGE_BYTES as u64 + bit as u64 * SECTOR_BYTES as u64;
    start >= inode.size() || inode.page(page).is_some_and(|page| Arc::ptr_eq(page, &RESERVED))
}
