//! `follow`.

use crate::error::Error;
use crate::interface::{State, Target};
use crate::program::arguments::{bucket, nonces, objects};
use crate::program::interrupts::stop_flag;
use crate::program::restore::progress;
use crate::program::time_text::{parse_interval, shown};
use crate::restore::follow::{Followed, follow, promote};
use crate::store::live::now;
use crate::store::replica::{Replica, finish_promotion};
use clap::{Args, ValueHint};
use serde_json::json;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use untorn_terminal::{Failure, Output, say};

/// A promotion begins this close behind the newest commit.
const LAG_OF_PROMOTION_NS: u64 = 5_000_000_000;

/// Follow the commits in an object store live, in a directory that every reader sees as of one commit.
///
/// Programs must only read the directory (`untorn cat`, `untorn::Reader`, or plain files after it ended).
#[derive(Args)]
pub struct Follow {
    /// The place: s3://BUCKET/PREFIX, gs://…, az://… or file:///DIRECTORY.
    url: String,
    /// The directory: new, or one that followed before.
    #[arg(value_hint = ValueHint::DirPath)]
    dir: PathBuf,
    /// Wait so long between two looks at the place.
    #[arg(long, value_name = "DURATION", default_value = "1s", value_parser = parse_interval)]
    interval: Duration,
    /// Apply the commits that are there by now, and end.
    #[arg(long)]
    once: bool,
    /// Make the directory a store that can be written, and shut all other machines out of the place.
    #[arg(long)]
    promote: bool,
    /// The slot with which the promoted store ships.
    #[arg(long, value_name = "NAME", default_value = "ship", requires = "promote")]
    slot: String,
    /// Print JSON, one object for each event.
    #[arg(long)]
    json: bool,
}

impl Follow {
    /// Follows.
    pub fn run(self) -> Result<Output, Failure> {
        // Files get the permission bits that they have in the store.
        rustix::process::umask(rustix::fs::Mode::empty());
        let bucket = bucket(&self.url)?;
        if self.promote && finish_promotion(&self.dir, None, &self.slot)? {
            return Ok(self.promoted(None));
        }
        let objects = objects(&bucket)?;
        let mut replica = Replica::open(&self.dir, Box::new(progress))?;
        if self.promote {
            // A directory that cannot be written shuts nobody out. Behind a living owner, the last objects are left.
            while let Followed::Applied(state) | Followed::Replaced(state) = follow(&objects, &mut replica)?
                && now().saturating_sub(state.time) > LAG_OF_PROMOTION_NS
            {}
            let state = promote(&objects, &mut replica, &mut nonces()?)?;
            replica.close()?;
            finish_promotion(&self.dir, Some(&state), &self.slot)?;
            return Ok(self.promoted(Some(&state)));
        }
        let is_stopped = stop_flag("ends behind this object")?;
        while !is_stopped.load(Ordering::SeqCst) {
            match follow(&objects, &mut replica) {
                Ok(Followed::Nothing) if self.once => break,
                Ok(Followed::Nothing) => wait(self.interval, &is_stopped),
                Ok(Followed::Applied(state)) => self.tell(&state, "applied"),
                Ok(Followed::Replaced(state)) => self.tell(&state, "replaced"),
                Err(Error::Bucket(failed)) if failed.is_transient && !self.once => {
                    tracing::warn!(
                        id = "untorn.follow.retried",
                        error = %failed,
                        "the object store did not answer: it is asked again"
                    );
                    wait(self.interval.max(Duration::from_secs(1)), &is_stopped);
                }
                // The bucket was pruned meanwhile: the next look finds the new floor.
                Err(Error::Busy(_)) => wait(Duration::from_millis(100), &is_stopped),
                Err(e) => return Err(e.into()),
            }
        }
        let state = replica.state()?;
        replica.close()?;
        Ok(match state {
            Some(state) if !self.json => Output::text(format!(
                "{} stands at #{} of {}\n",
                self.dir.display(),
                state.point.lsn,
                shown(state.time)
            )),
            _ => Output::default(),
        })
    }

    fn promoted(&self, state: Option<&State>) -> Output {
        let lsn = state.map(|state| state.point.lsn);
        Output::text(match (self.json, lsn) {
            (true, lsn) => format!("{}\n", json!({"event": "promoted", "lsn": lsn})),
            (false, Some(lsn)) => format!(
                "{} is a store now, from #{lsn} on; other machines are shut out. Ship it: untorn ship {0} {}\n",
                self.dir.display(),
                self.url
            ),
            (false, None) => format!("{} is a store: its promotion is finished\n", self.dir.display()),
        })
    }

    fn tell(&self, state: &State, event: &str) {
        let (lsn, generation) = (state.point.lsn, state.generation);
        if self.json {
            let lag = now().saturating_sub(state.time);
            say!("{}", json!({"event": event, "generation": generation, "lsn": lsn, "lag_ns": lag}));
        } else if event == "replaced" {
            say!("everything is replaced by #{lsn} of generation {generation}");
        }
    }
}

fn wait(time: Duration, is_stopped: &AtomicBool) {
    let end = Instant::now() + time;
    while Instant::now() < end && !is_stopped.load(Ordering::SeqCst) {
        std::thread::sleep(Duration::from_millis(20).min(time));
    }
}
