//! The slot whose acknowledgements the syncs of a mount wait for: the option `--remote`.

use std::str::FromStr;
use std::time::Duration;
use untorn::{OnTimeout, Remote};

/// A slot, and how syncs wait for it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AwaitedSlot {
    /// Its name.
    pub name: String,
    /// The time limit, and the action after it.
    pub how: Remote,
    /// The option's value, as it was given.
    pub text: String,
}

impl FromStr for AwaitedSlot {
    type Err = String;

    fn from_str(text: &str) -> Result<AwaitedSlot, String> {
        let mut parts = text.split(',');
        let name = parts.next().unwrap_or_default().to_owned();
        if name.is_empty() || name.contains('=') {
            return Err("it begins with the name of a slot".to_owned());
        }
        let mut how = Remote::default();
        for part in parts {
            match part.split_once('=') {
                Some(("timeout", seconds)) => {
                    let seconds = seconds.strip_suffix('s').unwrap_or(seconds).parse().ok();
                    let timeout = seconds.and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
                    how.timeout = timeout.ok_or_else(|| format!("`{part}` is no number of seconds"))?;
                }
                Some(("on-timeout", "hold")) => how.on_timeout = OnTimeout::Hold,
                Some(("on-timeout", "degrade")) => how.on_timeout = OnTimeout::Degrade,
                _ => {
                    return Err(format!(
                        "`{part}` is not known; there are timeout=SECONDS and on-timeout=hold|degrade"
                    ));
                }
            }
        }
        Ok(AwaitedSlot { name, how, text: text.to_owned() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_of_the_option() {
        let of = |text: &str| text.parse::<AwaitedSlot>().map(|slot| (slot.name, slot.how));
        let hold = Remote { timeout: Duration::from_secs(5), on_timeout: OnTimeout::Hold };
        assert_eq!(of("backup"), Ok(("backup".to_owned(), hold)));
        let degrade = Remote { timeout: Duration::from_millis(2500), on_timeout: OnTimeout::Degrade };
        assert_eq!(of("backup,timeout=2.5s,on-timeout=degrade"), Ok(("backup".to_owned(), degrade)));
        for bad in ["", "timeout=5", "backup,timeout=", "backup,timeout=-1", "backup,on-timeout=lie", "backup,soon"] {
            assert!(of(bad).is_err(), "{bad}");
        }
    }
}
