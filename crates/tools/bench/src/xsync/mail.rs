//! PostMark in sessions: many small files.

use super::postmark;
use super::runs::{NAMES, ON_DEVICE, ON_JOURNALING, finished, in_turns, row, syncfs};
use super::session::{Host, Setting, command, guest};
use crate::measuring::bench_run::Run;
use crate::measuring::child::{Job, SessionJob};
use crate::measuring::fs::mounted_sync;
use crate::measuring::harness::timed;
use crate::report::section::{Row, Target};
use crate::report::statistics::Measured;
use anyhow::Result;
use std::fs;
use std::path::Path;
use std::process::Command;

pub const NOTES: &[&str] = &[
    "As many transactions as files, of 500 to 9,800 bytes; in a session on its volume. The session's start and end count. \
     Asynchronous: in the benchmark's own directory, with one syncfs in the end, or none; data=journal: on an ext4 of its \
     own with data in its journal, as a session's volume has it. Mounted sync: an ext4 image beside it; with few files \
     only, as it takes its time. On a block device: the volume is a loop device over an image beside that of the place.",
    "Everything that is dirty is written out before each run.",
];

/// The files of the smallest run, which also has the synchronous mount as a peer.
const FEW: u64 = 500;

/// The name and the size of the file system whose calls wait for the disk.
pub const SYNC: &str = "mounted sync";
pub const SYNC_BYTES: u64 = 512 << 20;

/// Where and how PostMark runs.
enum Way<'a> {
    Session(SessionJob),
    Outside { dir: &'a Path, is_synced: bool },
}

pub fn rows(run: &Run, setting: &Setting) -> Result<Vec<Row>> {
    let counts: &[u64] = if run.quick { &[50] } else { &[FEW, 2000, 5000, 10_000, 20_000] };
    let slow = mounted_sync(&setting.dir, SYNC_BYTES, "sync")?;
    let mut rows = Vec::new();
    for &files in counts {
        run.progress.cell(format!("xsync: PostMark, {files} files"));
        let synchronous: Vec<(&str, &Path)> = if files <= FEW { vec![(SYNC, slow.path())] } else { Vec::new() };
        let times = measure(setting, (Program::Own, files), run.rounds(5), &synchronous)?;
        let mut others = vec![(2, Target::AtMost(1.10))];
        let last = times.len() - 1;
        others.extend((files <= FEW).then_some((last, Target::AtLeast(50.0))));
        rows.push(row(run, format!("{files} files"), &times, (1, Target::AtMost(1.03)), &others));
    }
    Ok(rows)
}

/// The times of PostMark with as many transactions as files: in sessions, without, and in directories that are mounted
/// so that each call waits for the disk.
pub fn measure(
    setting: &Setting,
    (program, files): (Program, u64),
    rounds: usize,
    synchronous: &[(&str, &Path)],
) -> Result<Vec<Measured>> {
    let mail = setting.dir.join("mail");
    fs::create_dir_all(&mail)?;
    let slow: Vec<_> = synchronous.iter().map(|(name, at)| (*name, at.join("mail"))).collect();
    let inside = program.words("/data/mail".as_ref(), files)?;
    let session = |host: &Host| host.on_volume(None, inside.clone());
    let exact = SessionJob { exact: true, ..session(&setting.host) };
    let mut ways = vec![
        (NAMES[0], Way::Session(session(&setting.host))),
        (NAMES[1], Way::Outside { dir: &mail, is_synced: true }),
        ("asynchronous, nothing at the end", Way::Outside { dir: &mail, is_synced: false }),
        ("in a session with --exact", Way::Session(exact)),
    ];
    if let Some(dir) = &setting.journaling {
        ways.push((ON_JOURNALING, Way::Outside { dir, is_synced: true }));
    }
    if let Some(host) = &setting.on_device {
        ways.push((ON_DEVICE, Way::Session(session(host))));
    }
    ways.extend(slow.iter().map(|(name, dir)| (*name, Way::Outside { dir, is_synced: false })));
    in_turns_of(&ways, (program, files), rounds)
}

/// The times of PostMark in sessions on the volume that is kept.
pub fn in_sessions((program, files): (Program, u64), rounds: usize, hosts: &[(&str, &Host)]) -> Result<Vec<Measured>> {
    let inside = program.words("/data/mail".as_ref(), files)?;
    let ways: Vec<_> =
        hosts.iter().map(|(name, host)| (*name, Way::Session(host.on_volume(None, inside.clone())))).collect();
    in_turns_of(&ways, (program, files), rounds)
}

/// The program that makes, changes and removes the files.
#[derive(Clone, Copy)]
pub enum Program {
    /// This project's.
    Own,
    /// PostMark 1.53 itself.
    PostMark,
}

impl Program {
    /// The command with as many transactions as files in a directory.
    fn words(self, dir: &Path, files: u64) -> Result<Vec<String>> {
        match self {
            Program::Own => guest(&Job::Postmark { dir: dir.to_owned(), files, transactions: files }),
            Program::PostMark => Ok(["sh", "-c", &postmark::script(dir, files, files)].map(str::to_owned).into()),
        }
    }
}

fn in_turns_of(ways: &[(&str, Way<'_>)], (program, files): (Program, u64), rounds: usize) -> Result<Vec<Measured>> {
    let names: Vec<&str> = ways.iter().map(|(name, _)| *name).collect();
    in_turns(rounds, &names, |who| {
        // Syncs, so that no contender pays for the changes of another one.
        rustix::fs::sync();
        match &ways[who].1 {
            Way::Session(session) => timed(|| finished(&mut command(session)?)),
            Way::Outside { dir, is_synced } => timed(|| {
                let words = program.words(dir, files)?;
                finished(Command::new(&words[0]).args(&words[1..]))?;
                if *is_synced { syncfs(dir) } else { Ok(()) }
            }),
        }
    })
}
