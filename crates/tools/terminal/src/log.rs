//! The log of a program: events of the library and of the program itself, which no call returns.
//!
//! [`install`] is called once, when the command line is known. `docs/LOGS.md` lists every event, by its id.
//!
//! Nothing here keeps a descriptor open: daemons close all that they have, and the number of a closed descriptor may
//! soon be that of a file of the user. So each message to the journal has a socket of its own.

mod entry;
mod options;
mod places;
mod repeats;

pub use options::{LogFormat, LogOptions, leading_options};
pub use tracing::level_filters::LevelFilter;

use entry::Entry;
use options::Filter;
use parking_lot::Mutex;
use places::{Places, is_journal};
use repeats::Repeats;
use std::ffi::OsString;
use std::sync::OnceLock;
use std::time::Instant;
use tracing::span::{Attributes, Id, Record};
use tracing::subscriber::Interest;
use tracing::{Event, Metadata, Subscriber};

/// The log of this process.
static LOG: OnceLock<Log> = OnceLock::new();

struct Log {
    filter: Filter,
    /// The options that a process of this program gets, so that its log is the same.
    options: LogOptions,
    repeats: Mutex<Repeats>,
    places: Mutex<Places>,
}

/// Starts the log of this program. Without options, and without `UNTORN_LOG`, it has messages up to `usual`.
pub fn install(program: &'static str, options: &LogOptions, usual: LevelFilter) {
    let (filter, unknown) = options.filter(std::env::var_os("UNTORN_LOG").as_deref(), usual);
    if let Some(unknown) = unknown {
        crate::tell!(
            "{program}: UNTORN_LOG={unknown} is no level and no filter like `warn,untorn_tree=debug`: ignored"
        );
    }
    let places = Places::new(program, options.log_format, is_journal(rustix::stdio::stderr()));
    let log = Log { filter, options: *options, repeats: Mutex::default(), places: Mutex::new(places) };
    if LOG.set(log).is_ok() {
        // Nobody else sets one.
        let _ = tracing::subscriber::set_global_default(ToLog);
    }
}

/// Sends messages to the journal, or to the system's log, from now on: nobody reads this process's standard error.
pub fn leave_terminal() {
    if let Some(log) = LOG.get() {
        log.places.lock().leave_terminal();
    }
}

/// The options of the log with which another process of this program is started.
pub fn options() -> Vec<OsString> {
    LOG.get().map(|log| log.options.arguments()).unwrap_or_default()
}

/// Logs the failure of a program whose standard error nobody reads.
pub(crate) fn failed(message: &str) {
    if LOG.get().is_some_and(|log| log.places.lock().has_left_terminal()) {
        tracing::error!(id = "untorn.program.failed", error = message, "the program ended with a failure");
    }
}

/// Tells how often messages were repeated that were not shown. Called at the end of a program.
pub(crate) fn finish() {
    if let Some(log) = LOG.get() {
        let rest = log.repeats.lock().rest();
        log.write(&rest);
    }
}

impl Log {
    fn take(&self, entry: Entry) {
        let shown = self.repeats.lock().take(entry, Instant::now());
        self.write(&shown);
    }

    fn write(&self, entries: &[Entry]) {
        let places = self.places.lock();
        entries.iter().for_each(|entry| places.write(entry));
    }
}

/// The subscriber, which passes events to the log. There are no spans.
struct ToLog;

impl ToLog {
    fn filter() -> Option<&'static Filter> {
        LOG.get().map(|log| &log.filter)
    }
}

impl Subscriber for ToLog {
    fn register_callsite(&self, metadata: &'static Metadata<'static>) -> Interest {
        if self.enabled(metadata) { Interest::always() } else { Interest::never() }
    }

    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.is_event() && ToLog::filter().is_some_and(|filter| filter.passes(metadata))
    }

    fn max_level_hint(&self) -> Option<LevelFilter> {
        ToLog::filter().map(Filter::max)
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, event: &Event<'_>) {
        if let Some(log) = LOG.get() {
            log.take(Entry::of(event));
        }
    }

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}
