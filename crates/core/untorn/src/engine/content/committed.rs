//! Committed changes that no checkpoint has started to apply: an overlay, with large commits above it.
//!
//! Merging many ranges into many takes longer than the rest of a large commit. So a large commit stays a separate layer
//! until the background thread, or a checkpoint, merges it. Nobody waits for that, because the merge works on a copy.

use crate::invariant;
use std::collections::VecDeque;
use std::sync::Arc;
use untorn_journal::commits::overlay::Overlay;
use untorn_os::holds;

/// A commit with fewer ranges is merged into the last one at once.
const LAYER_RANGES: usize = 32;
/// Number of layers from which merging pays, because each read goes through all of them.
const LAYERS_DUE: usize = 16;
/// With more layers, a commit merges the oldest.
const LAYERS_MOST: usize = 64;

#[derive(Default)]
pub(crate) struct Committed {
    base: Arc<Overlay>,
    /// Newer than the base, newest last.
    layers: VecDeque<Arc<Overlay>>,
}

/// Layers and the base below them, as of one moment.
pub(crate) struct Layers {
    base: Arc<Overlay>,
    layers: Vec<Arc<Overlay>>,
}

impl Committed {
    pub(crate) fn is_empty(&self) -> bool {
        self.overlays().all(Overlay::is_empty)
    }

    /// Newest first.
    pub(crate) fn overlays(&self) -> impl Iterator<Item = &Overlay> {
        self.layers.iter().rev().chain([&self.base]).map(|overlay| &**overlay)
    }

    /// Adds a newer commit on top.
    pub(crate) fn lay(&mut self, commit: Arc<Overlay>) {
        if commit.is_empty() {
            return;
        }
        if commit.ranges_len() < LAYER_RANGES {
            let last = self.layers.back_mut();
            let small = last.map_or(Some(&mut self.base), |last| (last.ranges_len() < LAYER_RANGES).then_some(last));
            // A layer that is being merged must not change.
            if let Some(below) = small.and_then(Arc::get_mut) {
                below.merge(&commit);
                return;
            }
        }
        self.layers.push_back(commit);
        if self.layers.len() > LAYERS_MOST
            && let Some(oldest) = self.layers.pop_front()
        {
            Arc::make_mut(&mut self.base).merge(&oldest);
        }
        debug_assert!(self.layers.len() <= LAYERS_MOST, "{} layers", self.layers.len());
    }

    /// Whether there are enough layers for a merge to pay.
    pub(crate) fn wants_merge(&self) -> bool {
        self.layers.len() >= LAYERS_DUE
    }

    /// The layers for [`Layers::merged`], or `None` if there are none.
    pub(crate) fn to_merge(&self) -> Option<Layers> {
        let layers = || Layers { base: self.base.clone(), layers: self.layers.iter().cloned().collect() };
        (!self.layers.is_empty()).then(layers)
    }

    /// Replaces these layers by their merged copy, unless they have changed.
    pub(crate) fn replace(&mut self, of: &Layers, merged: Overlay) {
        debug_assert!(!of.layers.is_empty(), "a base without layers was merged");
        let size = self.size();
        let same = |(one, other): (&Arc<Overlay>, &Arc<Overlay>)| Arc::ptr_eq(one, other);
        let are_here = self.layers.len() >= of.layers.len() && self.layers.iter().zip(&of.layers).all(same);
        let unchanged = Arc::ptr_eq(&self.base, &of.base) && are_here;
        if unchanged || !holds(invariant::LAYERS_AS_MERGED) {
            self.base = Arc::new(merged);
            self.layers.drain(..of.layers.len().min(self.layers.len()));
        }
        debug_assert_eq!(self.size(), size, "merging {} layers changed the size", of.layers.len());
    }

    /// The size that these commits give to the file, if they do.
    fn size(&self) -> Option<u64> {
        self.overlays().find_map(|overlay| overlay.size)
    }

    /// Everything as one overlay.
    pub(crate) fn into_merged(self) -> Overlay {
        let size = self.size();
        let merged = merge(Arc::unwrap_or_clone(self.base), self.layers);
        debug_assert_eq!(merged.size, size, "a merged commit has another size");
        merged
    }

    /// Lays everything over an older overlay.
    pub(crate) fn lay_over(&self, older: &mut Overlay) {
        let size = self.size().or(older.size);
        older.merge(&self.base);
        self.layers.iter().for_each(|layer| older.merge(layer));
        debug_assert_eq!(older.size, size, "a merged commit has another size");
    }
}

impl Layers {
    pub(crate) fn merged(&self) -> Overlay {
        merge((*self.base).clone(), self.layers.iter().cloned())
    }
}

fn merge(mut base: Overlay, layers: impl IntoIterator<Item = Arc<Overlay>>) -> Overlay {
    layers.into_iter().filter(|_| holds(invariant::LAYERS_APPLIED)).for_each(|layer| base.merge(&layer));
    base
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::Bytes;
    use fastrand::Rng;
    use untorn_journal::commits::overlay::{Source, read_through};

    const BYTES: u64 = 4096;

    /// A commit of this many short ranges.
    fn commit(rng: &mut Rng, ranges: usize, value: u8, model: &mut [u8]) -> Arc<Overlay> {
        let mut overlay = Overlay::default();
        for _ in 0..ranges {
            let at = rng.u64(..BYTES - 8);
            let range = at..at + rng.u64(1..8);
            let source = Source::Bytes { bytes: Bytes::from(vec![value; 8]), origin: at };
            model[range.start as usize..range.end as usize].fill(value);
            overlay.insert(range, source);
        }
        Arc::new(overlay)
    }

    fn read(overlays: &[&Overlay]) -> Vec<u8> {
        let mut bytes = vec![0; BYTES as usize];
        read_through(overlays, None, &mut bytes, 0).expect("read");
        bytes
    }

    fn shown(committed: &Committed) -> Vec<u8> {
        read(&committed.overlays().collect::<Vec<_>>())
    }

    #[test]
    fn the_newest_commit_shows_however_they_are_merged() {
        for seed in 0..200 {
            let rng = &mut Rng::with_seed(seed);
            let (mut committed, mut model) = (Committed::default(), vec![0; BYTES as usize]);
            let mut merging: Option<(Layers, Overlay)> = None;
            for step in 1..150 {
                match rng.u8(..16) {
                    0 => {
                        merging = committed.to_merge().map(|layers| {
                            let merged = layers.merged();
                            (layers, merged)
                        });
                    }
                    1 => {
                        if let Some((layers, merged)) = merging.take() {
                            committed.replace(&layers, merged);
                        }
                    }
                    2 => {
                        let taken = std::mem::take(&mut committed);
                        let mut below = Overlay::default();
                        taken.lay_over(&mut below);
                        assert_eq!(read(&[&below]), shown(&taken), "seed {seed}, step {step}");
                        committed = Committed { base: Arc::new(taken.into_merged()), layers: VecDeque::new() };
                    }
                    n => {
                        let ranges = if n < 9 { rng.usize(1..4) } else { rng.usize(LAYER_RANGES..2 * LAYER_RANGES) };
                        committed.lay(commit(rng, ranges, step, &mut model));
                    }
                }
                assert!(shown(&committed) == model, "seed {seed}, step {step}");
                assert!(committed.layers.len() <= LAYERS_MOST);
            }
        }
    }

    #[test]
    fn small_commits_make_no_layers() {
        let (rng, mut model) = (&mut Rng::with_seed(1), vec![0; BYTES as usize]);
        let mut committed = Committed::default();
        (0..200).for_each(|n| committed.lay(commit(rng, 1, n, &mut model)));
        assert!(committed.to_merge().is_none());
        (0..200).for_each(|n| committed.lay(commit(rng, 2 * LAYER_RANGES, n, &mut model)));
        assert_eq!(committed.layers.len(), LAYERS_MOST);
        assert!(committed.wants_merge());
        assert_eq!(shown(&committed), model);
    }

    #[test]
    fn a_merged_copy_replaces_only_what_it_was_made_of() {
        let (rng, mut model) = (&mut Rng::with_seed(2), vec![0; BYTES as usize]);
        let mut committed = Committed::default();
        committed.lay(commit(rng, 2 * LAYER_RANGES, 1, &mut model));
        let layers = committed.to_merge().expect("a layer");
        let merged = layers.merged();
        // A small commit goes over the layers that are being merged, not into them.
        committed.lay(commit(rng, 1, 2, &mut model));
        committed.replace(&layers, merged);
        assert_eq!((shown(&committed) == model, committed.layers.len()), (true, 1));
        // A checkpoint took everything, and a commit followed.
        let layers = committed.to_merge().expect("a layer");
        let merged = layers.merged();
        let mut since = vec![0; BYTES as usize];
        committed = Committed::default();
        committed.lay(commit(rng, 2 * LAYER_RANGES, 3, &mut since));
        committed.replace(&layers, merged);
        assert_eq!(shown(&committed), since);
    }
}
