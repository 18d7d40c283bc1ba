//! A list that only grows, and that can be read without a lock.

use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering::*};

/// A list whose entries are never freed, so that signal handlers and forked children can read it.
pub(crate) struct AppendList<T>(AtomicPtr<Entry<T>>);

struct Entry<T> {
    value: T,
    before: *mut Entry<T>,
}

impl<T: Send + Sync> AppendList<T> {
    pub const fn new() -> AppendList<T> {
        AppendList(AtomicPtr::new(ptr::null_mut()))
    }

    /// The entries, the newest first.
    pub fn iter(&self) -> impl Iterator<Item = &T> {
        let mut next = self.0.load(Acquire);
        std::iter::from_fn(move || {
            // SAFETY: null, or an entry that is never freed and does not change.
            let entry = unsafe { next.as_ref() }?;
            next = entry.before;
            Some(&entry.value)
        })
    }

    /// Adds an entry, unless there is an equal one.
    pub fn add(&self, value: T)
    where
        T: PartialEq,
    {
        let entry = Box::into_raw(Box::new(Entry { value, before: ptr::null_mut() }));
        loop {
            let newest = self.0.load(Acquire);
            // SAFETY: made above, and nobody else has seen it.
            let is_known = unsafe {
                (*entry).before = newest;
                self.iter().any(|known| *known == (*entry).value)
            };
            if is_known {
                // SAFETY: as above.
                drop(unsafe { Box::from_raw(entry) });
                return;
            }
            if self.0.compare_exchange(newest, entry, AcqRel, Acquire).is_ok() {
                return;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_entries_are_added_once() {
        static LIST: AppendList<u32> = AppendList::new();
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| (0..100).for_each(|n| LIST.add(n)));
            }
        });
        let mut all: Vec<u32> = LIST.iter().copied().collect();
        all.sort_unstable();
        assert_eq!(all, (0..100).collect::<Vec<_>>());
    }
}
