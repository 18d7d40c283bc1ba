//! `log`, and the points that can be restored.

use crate::chain::objects::Objects;
use crate::program::arguments::{bucket, objects};
use crate::program::time_text::shown;
use crate::restore::plan::{Wanted, read};
use clap::Args;
use serde_json::json;
use std::fmt::Write;
use untorn_terminal::{Failure, Output};

/// Show the generations and snapshots in an object store.
#[derive(Args)]
pub struct Log {
    /// The place: s3://BUCKET/PREFIX, gs://…, az://… or file:///DIRECTORY.
    url: String,
    /// Print JSON, one object for each generation.
    #[arg(long)]
    json: bool,
}

impl Log {
    /// Shows them.
    pub fn run(self) -> Result<Output, Failure> {
        let bucket = bucket(&self.url)?;
        list(&objects(&bucket)?, self.json)
    }
}

/// A stretch of commits of one generation.
struct Stretch {
    generation: u64,
    /// The commit that it begins behind, or whose snapshot it begins with.
    base: u64,
    is_snapshot: bool,
    last: u64,
    time_first: u64,
    time: u64,
    who: String,
    objects: u64,
}

/// Lists the commits that can be restored, generation by generation.
///
/// # Errors
/// The bucket does not answer, or is damaged.
pub fn list(objects: &Objects<'_>, json: bool) -> Result<Output, Failure> {
    let chain = read(objects, Wanted::Newest)?;
    let begin = |at: &crate::object::manifest::Position, is_snapshot| Stretch {
        generation: at.generation,
        base: at.point.lsn,
        is_snapshot,
        last: at.point.lsn,
        time_first: at.time,
        time: at.time,
        who: at.who.clone(),
        objects: 0,
    };
    let mut stretches = vec![begin(&chain.start, chain.start.generation > 0)];
    for node in &chain.nodes {
        if node.is_end {
            stretches.push(begin(&node.after, node.snapshot.is_some()));
        } else if let Some(stretch) = stretches.last_mut() {
            (stretch.last, stretch.time) = (node.after.point.lsn, node.after.time);
            stretch.objects += 1;
        }
    }
    stretches.retain(|stretch| stretch.generation > 0);
    let kept = chain.manifest.registered.iter().filter(|known| chain.manifest.is_beyond(known.position.place()));
    let mut text = String::new();
    for known in kept {
        let at = &known.position;
        let _ = match json {
            true => {
                writeln!(text, "{}", json!({"generation": at.generation, "point": at.point.lsn, "time_ns": at.time}))
            }
            false => writeln!(text, "generation {}: the point {0}/{}, {}", at.generation, at.point.lsn, shown(at.time)),
        };
    }
    for stretch in &stretches {
        let _ = if json { stretch.write_json(&mut text) } else { stretch.write(&mut text) };
    }
    Ok(Output::text(text))
}

impl Stretch {
    fn first(&self) -> u64 {
        if self.is_snapshot { self.base } else { self.base + 1 }
    }

    fn write_json(&self, text: &mut String) -> std::fmt::Result {
        writeln!(
            text,
            "{}",
            json!({"generation": self.generation, "first": self.first(), "last": self.last, "snapshot": self.is_snapshot,
                "objects": self.objects, "time_first_ns": self.time_first, "time_ns": self.time, "who": self.who})
        )
    }

    fn write(&self, text: &mut String) -> std::fmt::Result {
        let how = if self.is_snapshot { "begins with a snapshot" } else { "goes on" };
        let range = match self.first() <= self.last {
            true => format!("#{} to #{}", self.first(), self.last),
            false => format!("no commit behind #{}", self.base),
        };
        let (from, to) = (shown(self.time_first), shown(self.time));
        writeln!(text, "generation {}: {range}, {from} to {to}, {how} ({})", self.generation, self.who)
    }
}
