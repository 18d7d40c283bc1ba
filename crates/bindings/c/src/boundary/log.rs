//! The log: messages about events that no call returns.

use crate::boundary::error::{Failure, Result, guard};
use crate::boundary::standard_error;
use parking_lot::{Mutex, RwLock};
use std::cell::Cell;
use std::collections::HashSet;
use std::ffi::{CString, c_char, c_int, c_void};
use std::fmt::{self, Write as _};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Once;
use std::sync::atomic::{AtomicI32, Ordering::Relaxed};
use tracing::field::{Field, Visit};
use tracing::level_filters::LevelFilter;
use tracing::span::{Attributes, Id, Record};
use tracing::subscriber::Interest;
use tracing::{Event, Level, Metadata, Subscriber};
use untorn::__private::DISCARDED;

/// A failure that stays, such as a journal that takes no more commits until the store is reopened.
pub const UNTORN_LOG_ERROR: c_int = 1;
/// Something waits or is out of order: a quarantined file, a failed checkpoint.
pub const UNTORN_LOG_WARN: c_int = 2;
/// The actions of recovery.
pub const UNTORN_LOG_INFO: c_int = 3;
/// Details.
pub const UNTORN_LOG_DEBUG: c_int = 4;

/// Receives a message of the log: its level, a text that is valid during the call, and the caller's pointer.
#[allow(non_camel_case_types)]
pub type untorn_log_callback =
    Option<unsafe extern "C" fn(level: c_int, message: *const c_char, user_data: *mut c_void)>;

/// A callback and its pointer.
#[derive(Clone, Copy)]
struct Sink {
    callback: unsafe extern "C" fn(c_int, *const c_char, *mut c_void),
    user_data: *mut c_void,
}

// SAFETY: the pointer is never followed here, and the header tells the caller that the callback may run in any thread.
unsafe impl Send for Sink {}
// SAFETY: as above.
unsafe impl Sync for Sink {}

static SINK: RwLock<Option<Sink>> = RwLock::new(None);
/// Messages up to this level go to the callback. 0: no messages do.
static SINK_LEVEL: AtomicI32 = AtomicI32::new(0);
/// Messages up to this level go to standard error. 0: no messages do.
static STDERR_LEVEL: AtomicI32 = AtomicI32::new(0);
static START: Once = Once::new();

thread_local! {
    static IN_CALLBACK: Cell<bool> = const { Cell::new(false) };
    static IS_TOLD: Cell<bool> = const { Cell::new(false) };
}

/// Hashes of the messages that [`tell`] has printed. After [`TOLD_MAX`] messages it prints no more.
static TOLD: Mutex<Option<HashSet<u64>>> = Mutex::new(None);
const TOLD_MAX: usize = 100;

/// Prints a message on standard error, once, unless the log is switched off (`UNTORN_LOG=off`).
pub(crate) fn tell(text: &str) {
    if is_off() {
        return;
    }
    let mut hasher = DefaultHasher::new();
    text.hash(&mut hasher);
    let is_new = {
        let mut told = TOLD.lock();
        let told = told.get_or_insert_default();
        told.len() < TOLD_MAX && told.insert(hasher.finish())
    };
    if is_new {
        standard_error::write(format!("untorn: {text}\n").as_bytes(), false);
    }
}

/// Runs a close whose discarded changes the program was already told about, so that no second message appears.
pub(crate) fn told<T>(close: impl FnOnce() -> T) -> T {
    IS_TOLD.set(true);
    let done = close();
    IS_TOLD.set(false);
    done
}

/// Sends messages of the library, up to a level (UNTORN_LOG_ERROR to UNTORN_LOG_DEBUG), to `callback`. NULL ends this;
/// so does level 0. Returns 0, or -1 with EINVAL. A message ends with the id of its event, such as
/// [untorn.checkpoint.waits], which stays the same between versions: docs/LOGS.md lists all ids and what to do.
///
/// The callback may be called in any thread, also in several at once, while locks of the library are held: it must not
/// call functions of this library, and must not longjmp. When this function returns, the callback that was set before
/// does not run any more, and is not called again.
///
/// Independently of the callback, the environment variable UNTORN_LOG (`error`, `warn`, `info` or `debug`), read at the
/// first call that opens something, sends messages to standard error: the one that the program was started with. If
/// descriptor 2 is of another file by then, nothing is written to it.
///
/// # Safety
/// `callback` can be called with `user_data` until this function is called again.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn untorn_set_log(level: c_int, callback: untorn_log_callback, user_data: *mut c_void) -> c_int {
    guard(-1, || set(level, callback.map(|callback| Sink { callback, user_data })).map(|()| 0))
}

fn set(level: c_int, sink: Option<Sink>) -> Result<()> {
    if !(0..=UNTORN_LOG_DEBUG).contains(&level) {
        return Err(Failure::invalid(format!("there is no log level {level}")));
    }
    if IN_CALLBACK.get() {
        return Err(Failure::invalid("a log callback must not call functions of this library"));
    }
    start();
    // Waits for callbacks that are running.
    let mut now = SINK.write();
    *now = sink;
    SINK_LEVEL.store(if sink.is_some() { level } else { 0 }, Relaxed);
    Ok(())
}

/// Starts the log. Every function that opens something calls it.
pub(crate) fn start() {
    START.call_once(|| {
        if let Some(wanted) = std::env::var_os("UNTORN_LOG") {
            let level = match wanted.to_string_lossy().to_ascii_lowercase().as_str() {
                "" | "off" | "0" => 0,
                "error" => UNTORN_LOG_ERROR,
                "info" => UNTORN_LOG_INFO,
                "debug" | "trace" => UNTORN_LOG_DEBUG,
                _ => UNTORN_LOG_WARN,
            };
            STDERR_LEVEL.store(level, Relaxed);
        }
        // The only subscriber of this library's own copy of `tracing`.
        let _ = tracing::subscriber::set_global_default(Log { _not_empty: 0 });
    });
}

/// Whether the environment switches all messages off.
pub(crate) fn is_off() -> bool {
    std::env::var_os("UNTORN_LOG").is_some_and(|wanted| wanted.eq_ignore_ascii_case("off") || wanted == "0")
}

fn number(level: Level) -> c_int {
    match level {
        Level::ERROR => UNTORN_LOG_ERROR,
        Level::WARN => UNTORN_LOG_WARN,
        Level::INFO => UNTORN_LOG_INFO,
        _ => UNTORN_LOG_DEBUG,
    }
}

fn word(level: c_int) -> &'static str {
    match level {
        UNTORN_LOG_ERROR => "error",
        UNTORN_LOG_WARN => "warning",
        UNTORN_LOG_INFO => "info",
        _ => "debug",
    }
}

/// The subscriber that passes events to the callback and to standard error. There are no spans.
struct Log {
    /// A pointer to an empty value would lie behind its allocation, which LeakSanitizer takes for lost.
    _not_empty: u8,
}

impl Subscriber for Log {
    fn register_callsite(&self, _: &'static Metadata<'static>) -> Interest {
        // The level may change at any time.
        Interest::sometimes()
    }

    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        let level = number(*metadata.level());
        metadata.target() == DISCARDED || level <= SINK_LEVEL.load(Relaxed).max(STDERR_LEVEL.load(Relaxed))
    }

    fn max_level_hint(&self) -> Option<LevelFilter> {
        Some(LevelFilter::DEBUG)
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, event: &Event<'_>) {
        let mut text = Text::default();
        event.record(&mut text);
        let level = number(*event.metadata().level());
        let (to_stderr, to_sink) = (level <= STDERR_LEVEL.load(Relaxed), level <= SINK_LEVEL.load(Relaxed));
        if to_stderr {
            standard_error::write(format!("untorn: {}: {}\n", word(level), text.line()).as_bytes(), true);
        }
        if to_sink {
            send(level, text.line());
        }
        // Most programs have no log, but a program has to learn that changes were discarded.
        if event.metadata().target() == DISCARDED && !to_stderr && !to_sink && !IS_TOLD.get() {
            tell(&text.line());
        }
    }

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

fn send(level: c_int, line: String) {
    if IN_CALLBACK.replace(true) {
        return;
    }
    let sink = SINK.read();
    if let Some(Sink { callback, user_data }) = *sink {
        let mut bytes = line.into_bytes();
        bytes.retain(|&byte| byte != 0);
        let message = CString::new(bytes).unwrap_or_default();
        // SAFETY: the caller of `untorn_set_log` promised it; the lock keeps that promise from ending meanwhile.
        unsafe { callback(level, message.as_ptr(), user_data) };
    }
    drop(sink);
    IN_CALLBACK.set(false);
}

/// An event as a line: the message, its fields, and its id, which docs/LOGS.md lists.
#[derive(Default)]
struct Text {
    message: String,
    fields: String,
    id: String,
}

impl Text {
    fn line(&self) -> String {
        format!("{}{}{}", self.message, self.fields, self.id)
    }
}

impl Visit for Text {
    fn record_str(&mut self, field: &Field, value: &str) {
        match field.name() {
            "id" => self.id = format!(" [{value}]"),
            _ => self.record_debug(field, &value),
        }
    }

    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        let done = match field.name() {
            "message" => write!(self.message, "{value:?}"),
            name => write!(self.fields, "; {name}: {value:?}"),
        };
        done.expect("a string takes everything");
    }
}
