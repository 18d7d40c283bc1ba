//! An event as data, and its forms: a line for people, and JSON.

use serde_json::{Map, Value};
use std::fmt::{self, Write as _};
use std::time::{SystemTime, UNIX_EPOCH};
use tracing::field::{Field, Visit};
use tracing::{Event, Level};

/// The most bytes of one text that are kept, so that a message fits into a datagram.
const TEXT_MAX: usize = 8 << 10;

/// An event.
#[derive(Debug, Clone)]
pub struct Entry {
    pub level: Level,
    /// The module that it comes from.
    pub target: String,
    /// The id in `docs/LOGS.md`. Empty for events of other libraries.
    pub id: String,
    pub message: String,
    /// The other fields, in their order.
    pub fields: Vec<(&'static str, Value)>,
}

impl Entry {
    /// Takes the fields of an event.
    pub fn of(event: &Event<'_>) -> Entry {
        let metadata = event.metadata();
        let mut entry = Entry {
            level: *metadata.level(),
            target: metadata.target().to_owned(),
            id: String::new(),
            message: String::new(),
            fields: Vec::new(),
        };
        event.record(&mut entry);
        entry
    }

    /// The level's name in JSON.
    pub fn level_name(&self) -> &'static str {
        match self.level {
            Level::ERROR => "error",
            Level::WARN => "warn",
            Level::INFO => "info",
            Level::DEBUG => "debug",
            Level::TRACE => "trace",
        }
    }

    /// The message and its fields, in one line without control characters.
    pub fn text(&self) -> String {
        let mut text = String::new();
        escape(&mut text, &self.message);
        for (name, value) in &self.fields {
            text.push_str("; ");
            text.push_str(name);
            text.push_str(": ");
            match value {
                Value::String(value) => escape(&mut text, value),
                value => _ = write!(text, "{value}"),
            }
        }
        text
    }

    /// A line for people, with the name of the program.
    pub fn line(&self, program: &str) -> String {
        let level = if self.level == Level::WARN { "warning" } else { self.level_name() };
        let id = if self.id.is_empty() { String::new() } else { format!(" [{}]", self.id) };
        format!("{program}: {level}: {}{id}", self.text())
    }

    /// A line of JSON.
    pub fn json(&self, program: &str, time: SystemTime) -> String {
        let fields: Map<String, Value> =
            self.fields.iter().map(|(name, value)| ((*name).to_owned(), value.clone())).collect();
        serde_json::json!({
            "time": utc(time),
            "level": self.level_name(),
            "program": program,
            "pid": std::process::id(),
            "target": self.target,
            "id": self.id,
            "message": self.message,
            "fields": fields,
        })
        .to_string()
    }

    fn add(&mut self, field: &Field, value: Value) {
        match (field.name(), value) {
            ("message", Value::String(text)) => self.message = text,
            ("id", Value::String(text)) => self.id = text,
            (name, value) => self.fields.push((name, value)),
        }
    }
}

impl Visit for Entry {
    fn record_f64(&mut self, field: &Field, value: f64) {
        self.add(field, value.into());
    }

    fn record_i64(&mut self, field: &Field, value: i64) {
        self.add(field, value.into());
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        self.add(field, value.into());
    }

    fn record_bool(&mut self, field: &Field, value: bool) {
        self.add(field, value.into());
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.add(field, clipped(value.to_owned()).into());
    }

    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.add(field, clipped(format!("{value:?}")).into());
    }
}

fn clipped(mut text: String) -> String {
    if text.len() > TEXT_MAX {
        let is_end = |at: &usize| text.is_char_boundary(*at);
        text.truncate((0..=TEXT_MAX).rev().find(is_end).unwrap_or(0));
        text.push('…');
    }
    text
}

/// Adds a text without characters that end a line or move the cursor.
fn escape(to: &mut String, text: &str) {
    for character in text.chars() {
        match character {
            c if c.is_control() => to.extend(c.escape_default()),
            c => to.push(c),
        }
    }
}

/// A time as RFC 3339 writes it, in UTC, with microseconds.
fn utc(time: SystemTime) -> String {
    let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    let seconds = libc::time_t::try_from(since.as_secs()).unwrap_or(libc::time_t::MAX);
    // SAFETY: a broken-down time is numbers and a pointer, for which zero is a value; the call fills it, and keeps
    // neither pointer.
    let parts = unsafe {
        let mut parts: libc::tm = std::mem::zeroed();
        libc::gmtime_r(&raw const seconds, &raw mut parts);
        parts
    };
    format!(
        "{:04}-{:02}-{:02}T{:02}:{:02}:{:02}.{:06}Z",
        parts.tm_year + 1900,
        parts.tm_mon + 1,
        parts.tm_mday,
        parts.tm_hour,
        parts.tm_min,
        parts.tm_sec,
        since.subsec_micros()
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    fn entry() -> Entry {
        Entry {
            level: Level::WARN,
            target: "untorn::engine".to_owned(),
            id: "untorn.checkpoint.waits".to_owned(),
            message: "a committed change waits".to_owned(),
            fields: vec![("file", "a\nb".into()), ("tries", 3.into())],
        }
    }

    #[test]
    fn a_line_is_one_line() {
        let line = "untorn-mount: warning: a committed change waits; file: a\\nb; tries: 3 [untorn.checkpoint.waits]";
        assert_eq!(entry().line("untorn-mount"), line);
        assert_eq!(
            Entry { id: String::new(), ..entry() }.line("x"),
            "x: warning: a committed change waits; file: a\\nb; tries: 3"
        );
    }

    #[test]
    fn json_has_every_field() {
        let line = entry().json("untorn", UNIX_EPOCH + Duration::new(1_795_000_000, 1_500));
        let value: Value = serde_json::from_str(&line).unwrap();
        assert!(!line.contains('\n'));
        assert_eq!(value["time"], "2026-11-18T11:06:40.000001Z");
        assert_eq!((&value["level"], &value["id"]), (&"warn".into(), &"untorn.checkpoint.waits".into()));
        assert_eq!((&value["fields"]["file"], &value["fields"]["tries"]), (&"a\nb".into(), &3.into()));
    }

    #[test]
    fn a_text_is_not_longer_than_a_datagram() {
        let text = clipped("ä".repeat(TEXT_MAX));
        assert!(text.len() <= TEXT_MAX + "…".len() && text.ends_with("ä…"));
    }
}
