//! PostMark in sessions: many small files.

use super::runs::{NAMES, finished, in_turns, outside, row, syncfs};
use super::session::{Host, command, guest};
use crate::measuring::bench_run::Run;
use crate::measuring::child::{Job, SessionJob};
use crate::measuring::fs::mounted_sync;
use crate::measuring::harness::timed;
use crate::report::section::{Row, Target};
use anyhow::Result;
use std::fs;
use std::path::Path;

pub const NOTES: &[&str] = &[
    "As many transactions as files, of 500 to 9,800 bytes; in a session on its volume. The session's start and end count. \
     Asynchronous: in the benchmark's own directory, with one syncfs in the end, or none. Mounted sync: an ext4 image \
     beside it; with few files only, as it takes its time.",
    "Everything that is dirty is written out before each run.",
];

/// The files of the smallest run, which also has the synchronous mount as a peer.
const FEW: u64 = 500;

pub fn rows(run: &Run, host: &Host, dir: &Path) -> Result<Vec<Row>> {
    let counts: &[u64] = if run.quick { &[50] } else { &[FEW, 2000, 5000, 10_000, 20_000] };
    let mail = dir.join("mail");
    fs::create_dir_all(&mail)?;
    let slow = mounted_sync(dir, 512 << 20)?;
    let mut rows = Vec::new();
    for &files in counts {
        run.progress.cell(format!("xsync: PostMark, {files} files"));
        let job = |dir: &Path| Job::Postmark { dir: dir.to_owned(), files, transactions: files };
        let session = host.on_volume(true, None, guest(&job("/data/mail".as_ref()))?);
        let exact = SessionJob { exact: true, ..session.clone() };
        let names =
            [NAMES[0], NAMES[1], "asynchronous, nothing at the end", "in a session with --exact", "mounted sync"];
        let names = if files <= FEW { &names[..] } else { &names[..4] };
        let times = in_turns(run, names, |who| {
            // Syncs, so that no contender pays for the changes of another one.
            rustix::fs::sync();
            match who {
                0 => timed(|| finished(&mut command(&session)?)),
                3 => timed(|| finished(&mut command(&exact)?)),
                4 => timed(|| finished(&mut outside(&job(&slow.path().join("mail")))?)),
                _ => timed(|| {
                    finished(&mut outside(&job(&mail))?)?;
                    if who == 1 { syncfs(&mail) } else { Ok(()) }
                }),
            }
        })?;
        let mut others = vec![(2, Target::AtMost(1.10))];
        if files <= FEW {
            others.push((4, Target::AtLeast(50.0)));
        }
        rows.push(row(run, format!("{files} files"), &times, (1, Target::AtMost(1.03)), &others));
    }
    Ok(rows)
}
