//! Limits repeated messages.
//!
//! A message is shown once in [`WINDOW`]. The next message of any kind after that, or the end of the program, tells how
//! often it was repeated. No thread waits for that moment, because some programs must have one thread.
//!
//! `tracing-throttle` does this too, with a background task of tokio and a map of locks. The command `untorn` has
//! neither.

use super::entry::Entry;
use serde_json::Value;
use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::time::{Duration, Instant};

/// The time in which a repeated message is shown once.
pub const WINDOW: Duration = Duration::from_secs(10);
/// The most messages that are remembered. If there are more, further ones are shown each time.
const REMEMBERED_MAX: usize = 1000;
/// Numbers that tell messages apart. All others are amounts.
const NAMES: [&str; 2] = ["ino", "errno"];

/// The messages that were shown within the last [`WINDOW`].
#[derive(Default)]
pub struct Repeats {
    shown: HashMap<u64, Shown>,
}

struct Shown {
    entry: Entry,
    at: Instant,
    repeated: u64,
}

impl Repeats {
    /// Takes a message. Returns the messages to be shown now.
    pub fn take(&mut self, entry: Entry, now: Instant) -> Vec<Entry> {
        let mut shown = self.end(|shown| now.saturating_duration_since(shown.at) >= WINDOW);
        let key = key(&entry);
        if let Some(before) = self.shown.get_mut(&key) {
            before.repeated += 1;
            return shown;
        }
        if self.shown.len() < REMEMBERED_MAX {
            self.shown.insert(key, Shown { entry: entry.clone(), at: now, repeated: 0 });
        }
        shown.push(entry);
        shown
    }

    /// Ends all windows. Returns the messages that tell how often others were repeated.
    pub fn rest(&mut self) -> Vec<Entry> {
        self.end(|_| true)
    }

    fn end(&mut self, is_over: impl Fn(&Shown) -> bool) -> Vec<Entry> {
        let over = self.shown.extract_if(|_, shown| is_over(shown));
        let mut told: Vec<Shown> = over.map(|(_, shown)| shown).filter(|shown| shown.repeated > 0).collect();
        told.sort_by_key(|shown| shown.at);
        told.into_iter().map(Shown::summary).collect()
    }
}

impl Shown {
    fn summary(self) -> Entry {
        let Shown { mut entry, repeated, .. } = self;
        let times = if repeated == 1 { "once".to_owned() } else { format!("{repeated} times") };
        entry.message = format!("repeated {times}: {}", entry.message);
        entry.fields.push(("repeated", repeated.into()));
        entry
    }
}

/// The hash of the parts that make two messages one: the id, the text, and the fields other than amounts.
fn key(entry: &Entry) -> u64 {
    let mut hasher = DefaultHasher::new();
    (&entry.id, &entry.target, &entry.message).hash(&mut hasher);
    let is_amount = |name: &str, value: &Value| value.is_number() && !NAMES.contains(&name);
    for (name, value) in entry.fields.iter().filter(|(name, value)| !is_amount(name, value)) {
        (name, value.to_string()).hash(&mut hasher);
    }
    hasher.finish()
}

#[cfg(test)]
mod tests {
    use super::*;
    use tracing::Level;

    fn entry(file: &str, bytes: u64) -> Entry {
        Entry {
            level: Level::WARN,
            target: String::new(),
            id: "untorn.checkpoint.waits".to_owned(),
            message: "waits".to_owned(),
            fields: vec![("file", file.into()), ("bytes", bytes.into())],
        }
    }

    fn texts(entries: Vec<Entry>) -> Vec<String> {
        entries.iter().map(Entry::text).collect()
    }

    #[test]
    fn a_repeated_message_is_shown_once_and_then_counted() {
        let (mut repeats, start) = (Repeats::default(), Instant::now());
        let at = |seconds| start + Duration::from_secs(seconds);
        assert_eq!(texts(repeats.take(entry("a", 1), start)), ["waits; file: a; bytes: 1"]);
        for seconds in 1..=3 {
            assert!(repeats.take(entry("a", seconds), at(seconds)).is_empty(), "an amount makes no other message");
        }
        assert_eq!(texts(repeats.take(entry("b", 1), at(4))), ["waits; file: b; bytes: 1"], "another file");
        let told = "repeated 3 times: waits; file: a; bytes: 1; repeated: 3";
        assert_eq!(texts(repeats.take(entry("a", 9), at(10))), [told, "waits; file: a; bytes: 9"]);
        assert!(repeats.take(entry("a", 9), at(11)).is_empty());
        assert_eq!(texts(repeats.rest()), ["repeated once: waits; file: a; bytes: 9; repeated: 1"]);
        assert!(repeats.rest().is_empty());
    }

    #[test]
    fn memory_is_limited() {
        let (mut repeats, now) = (Repeats::default(), Instant::now());
        for file in 0..2 * REMEMBERED_MAX {
            assert_eq!(repeats.take(entry(&file.to_string(), 1), now).len(), 1);
        }
        assert_eq!(repeats.shown.len(), REMEMBERED_MAX);
    }
}
