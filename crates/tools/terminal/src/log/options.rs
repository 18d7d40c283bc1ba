//! The options of the log, which every program has, and the variable `UNTORN_LOG`.

use clap::{ArgAction, Args, ValueEnum};
use std::ffi::{OsStr, OsString};
use tracing::Metadata;
use tracing::level_filters::LevelFilter;
use tracing_subscriber::filter::Targets;

/// The levels, from the quietest up.
const LEVELS: [LevelFilter; 6] = [
    LevelFilter::OFF,
    LevelFilter::ERROR,
    LevelFilter::WARN,
    LevelFilter::INFO,
    LevelFilter::DEBUG,
    LevelFilter::TRACE,
];

/// The form of the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum LogFormat {
    /// Lines for people, on standard error.
    Human,
    /// Lines of JSON, on standard error.
    Json,
    /// Entries of systemd's journal.
    Journal,
}

/// The options of the log.
#[derive(Args, Clone, Copy, Debug, Default)]
pub struct LogOptions {
    /// Log more: each -v adds a level (error, warn, info, debug, trace).
    #[arg(short, long, global = true, action = ArgAction::Count, help_heading = "Log")]
    pub verbose: u8,
    /// Log less: each -q takes a level away.
    #[arg(short, long, global = true, action = ArgAction::Count, help_heading = "Log")]
    pub quiet: u8,
    /// The form of the log: by default the journal's where standard error is the journal, else human.
    #[arg(long, global = true, value_enum, value_name = "FORMAT", help_heading = "Log")]
    pub log_format: Option<LogFormat>,
}

impl LogOptions {
    /// The filter that these options and the variable `UNTORN_LOG` make, and the variable if it is no filter. The
    /// options come first.
    pub(super) fn filter(&self, variable: Option<&OsStr>, usual: LevelFilter) -> (Filter, Option<String>) {
        if self.verbose > 0 || self.quiet > 0 {
            let at = LEVELS.iter().position(|level| *level == usual).unwrap_or(0);
            let at = (at + usize::from(self.verbose)).saturating_sub(self.quiet.into()).min(LEVELS.len() - 1);
            return (Filter(Targets::new().with_default(LEVELS[at])), None);
        }
        let usually = Filter(Targets::new().with_default(usual));
        let Some(variable) = variable else { return (usually, None) };
        let text = variable.to_string_lossy();
        match text.trim() {
            "" | "off" | "0" => (Filter(Targets::new().with_default(LevelFilter::OFF)), None),
            text if text.split(',').any(is_unknown) => (usually, Some(text.escape_default().to_string())),
            text => match text.parse::<Targets>() {
                Ok(targets) if targets.default_level().is_none() => (Filter(targets.with_default(usual)), None),
                Ok(targets) => (Filter(targets), None),
                Err(_) => (usually, Some(text.escape_default().to_string())),
            },
        }
    }

    /// These options as arguments.
    pub(super) fn arguments(&self) -> Vec<OsString> {
        let repeated = |option: &str, times: u8| std::iter::repeat_n(OsString::from(option), times.into());
        let format = self.log_format.and_then(|format| format.to_possible_value());
        let format = format.map(|value| format!("--log-format={}", value.get_name()).into());
        repeated("--verbose", self.verbose).chain(repeated("--quiet", self.quiet)).chain(format).collect()
    }
}

/// Whether a word is neither a level nor a module. Of other libraries, modules are named with a level.
fn is_unknown(word: &str) -> bool {
    let is_level = || !word.is_empty() && word.parse::<LevelFilter>().is_ok();
    !word.contains('=') && !word.starts_with("untorn") && !is_level()
}

/// A choice of events by their level and by the module that they come from.
pub struct Filter(Targets);

impl Filter {
    /// Whether an event is logged.
    pub fn passes(&self, metadata: &Metadata<'_>) -> bool {
        self.0.would_enable(metadata.target(), metadata.level())
    }

    /// The level above which no event is logged.
    pub fn max(&self) -> LevelFilter {
        let levels = self.0.iter().map(|(_, level)| level).chain(self.0.default_level());
        levels.max().unwrap_or(LevelFilter::OFF)
    }
}

/// The number of options of the log at the beginning of some arguments, with their values.
pub fn leading_options(arguments: &[OsString]) -> usize {
    let mut at = 0;
    while let Some(argument) = arguments.get(at).and_then(|argument| argument.to_str()) {
        let short = argument.strip_prefix('-').filter(|letters| !letters.is_empty());
        at += match argument {
            "--verbose" | "--quiet" => 1,
            "--log-format" => 2,
            _ if argument.starts_with("--log-format=") => 1,
            _ if short.is_some_and(|letters| letters.chars().all(|c| c == 'v' || c == 'q')) => 1,
            _ => break,
        };
    }
    at.min(arguments.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn max(verbose: u8, quiet: u8, variable: Option<&str>) -> LevelFilter {
        let options = LogOptions { verbose, quiet, log_format: None };
        options.filter(variable.map(OsStr::new), LevelFilter::WARN).0.max()
    }

    #[test]
    fn options_come_before_the_variable() {
        assert_eq!(max(0, 0, None), LevelFilter::WARN);
        assert_eq!((max(1, 0, None), max(9, 0, None)), (LevelFilter::INFO, LevelFilter::TRACE));
        assert_eq!((max(0, 1, None), max(0, 9, None)), (LevelFilter::ERROR, LevelFilter::OFF));
        assert_eq!((max(0, 0, Some("debug")), max(0, 1, Some("debug"))), (LevelFilter::DEBUG, LevelFilter::ERROR));
        for off in ["", "off", "0"] {
            assert_eq!(max(0, 0, Some(off)), LevelFilter::OFF);
        }
    }

    #[test]
    fn the_variable_may_name_modules() {
        let filter = |text: &str| LogOptions::default().filter(Some(text.as_ref()), LevelFilter::WARN);
        let (named, unknown) = filter("untorn_tree=trace");
        assert_eq!((named.max(), unknown), (LevelFilter::TRACE, None));
        assert!(named.0.would_enable("untorn_tree::tree", &tracing::Level::TRACE));
        assert!(named.0.would_enable("untorn::engine", &tracing::Level::WARN), "the others are as usual");
        assert!(!named.0.would_enable("untorn::engine", &tracing::Level::INFO));
        assert_eq!(filter("untorn_tree").0.max(), LevelFilter::TRACE);
        for text in ["untorn=loud", "loud", "debug,", "info, debug"] {
            let (usual, unknown) = filter(text);
            assert_eq!((usual.max(), unknown.as_deref()), (LevelFilter::WARN, Some(text)));
        }
    }

    #[test]
    fn other_processes_get_the_same_options() {
        let options = LogOptions { verbose: 2, quiet: 1, log_format: Some(LogFormat::Json) };
        assert_eq!(options.arguments(), ["--verbose", "--verbose", "--quiet", "--log-format=json"]);
        assert_eq!(LogOptions::default().arguments(), Vec::<OsString>::new());
    }

    #[test]
    fn options_at_the_beginning_are_counted() {
        let count = |text: &str| leading_options(&text.split_whitespace().map(OsString::from).collect::<Vec<_>>());
        assert_eq!(count("-v -vvq --quiet --log-format json --log-format=human status -v"), 6);
        assert_eq!((count(""), count("status -v"), count("-x -v"), count("-"), count("--log-format")), (0, 0, 0, 0, 1));
    }
}
