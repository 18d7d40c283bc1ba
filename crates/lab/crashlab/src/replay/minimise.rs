//! Minimises a violation: finds a state with few lost writes that still shows it.

use super::bench::{Bench, Check, Verdict};
use super::crash_state::{Fate, State};
use super::recording::Recording;
use anyhow::Result;

/// Restores lost writes as long as the check still fails: first many at a time, then single ones, then the sectors of
/// torn ones. At most `tries` states are checked.
pub fn minimise(
    bench: &mut Bench,
    recording: &Recording,
    state: &State,
    check: &dyn Check,
    mut tries: usize,
) -> Result<(State, Verdict)> {
    let flushed = recording.image(recording.flushed(state.cut));
    let mut fails = |candidate: &State| -> Result<Option<Verdict>> {
        if tries == 0 {
            return Ok(None);
        }
        tries -= 1;
        let image = candidate.image(recording, &flushed);
        let verdict = bench.judge(recording, candidate.cut, &image, check)?;
        Ok((verdict != Verdict::Sound).then_some(verdict))
    };
    let Some(mut why) = fails(state)? else { return Ok((state.clone(), Verdict::Sound)) };
    let mut smallest = state.clone();
    let mut take = |candidate: State, smallest: &mut State| -> Result<bool> {
        let Some(verdict) = fails(&candidate)? else { return Ok(false) };
        (*smallest, why) = (candidate, verdict);
        Ok(true)
    };
    let mut size = state.fates.len().div_ceil(2);
    while size > 0 {
        let damaged: Vec<usize> =
            smallest.fates.iter().filter(|(_, fate)| **fate != Fate::Kept).map(|(event, _)| *event).collect();
        let mut changed = false;
        for part in damaged.chunks(size).filter(|part| part.len() < damaged.len()) {
            let mut candidate = smallest.clone();
            part.iter().for_each(|event| drop(candidate.fates.insert(*event, Fate::Kept)));
            changed |= take(candidate, &mut smallest)?;
        }
        size = if changed && size == 1 { 1 } else { size / 2 };
    }
    for (event, fate) in smallest.fates.clone() {
        let Fate::Torn(sectors) = fate else { continue };
        // If it shows the violation as well, a lost write is easier to read than a torn one.
        let mut candidate = smallest.clone();
        candidate.fates.insert(event, Fate::Lost);
        if take(candidate, &mut smallest)? {
            continue;
        }
        for n in (0..sectors.len()).filter(|n| !sectors[*n]) {
            let mut candidate = smallest.clone();
            let Some(Fate::Torn(now)) = candidate.fates.get_mut(&event) else { continue };
            now[n] = true;
            if now.contains(&false) {
                take(candidate, &mut smallest)?;
            }
        }
    }
    Ok((smallest, why))
}
