//! Random programs over a heap on the simulated disk, in which one system call fails. The program goes on if it can,
//! and in the end the heap is as of a commit that may be the last.

use super::simulated::{
    HeapCase, HeapViolation, Moment, Place, REFUSED, Session, disk_of, is_refused_as_unknown, nothing, place_of,
    recover, run,
};
use crate::programs::program::{How, Trouble};
use crate::simulation::Fault;
use crate::simulation::state::inodes::mix;
use fastrand::Rng;
use std::sync::Arc;
use std::time::Instant;

/// The number of power cuts that are tried after a failed call that ended the program.
const CUTS_MAX: usize = 3;
/// The number of calls in a row that fail on a full disk.
const FULL: u64 = 40;

/// The counts of failed calls.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FailedCalls {
    /// Calls that failed, each in a run of its own.
    pub calls: u64,
    /// Runs in which the program got an error, and went on.
    pub went_on: u64,
    /// Runs that ended there, and were recovered.
    pub recovered: u64,
}

/// Runs the program of a seed once for each of some random calls, which fails with each of these errors, until the
/// deadline.
pub fn fail_calls(
    seed: u64,
    steps: usize,
    errors: &[i32],
    deadline: Instant,
    totals: &mut FailedCalls,
) -> Result<(), HeapViolation> {
    let place = place_of(seed);
    let violation = |crashes: Vec<Trouble>, what| HeapViolation { case: HeapCase { seed, steps, crashes }, what };
    let (moments, _) = run(&place, seed, steps).map_err(|what| violation(Vec::new(), what))?;
    let calls = moments.last().map_or(0, |moment| moment.call());
    drop(moments);
    let mut rng = Rng::with_seed(mix(seed));
    while Instant::now() < deadline {
        let call = rng.u64(..calls.max(1));
        for code in errors {
            let trouble = Trouble::Errno(call, *code);
            let went_on = fail_one_call(&place, seed, steps, trouble).map_err(|what| violation(vec![trouble], what))?;
            totals.calls += 1;
            totals.went_on += u64::from(went_on == Some(true));
            totals.recovered += u64::from(went_on == Some(false));
        }
    }
    Ok(())
}

/// Passes violations on; an error of the store becomes `None`.
fn refused<T>(done: Result<T, String>) -> Result<Option<T>, String> {
    match done {
        Ok(done) => Ok(Some(done)),
        Err(what) if what.starts_with(REFUSED) => Ok(None),
        Err(what) => match what.split_once(": refused") {
            // A change of the model, which prefixes its own description.
            Some(_) => Ok(None),
            None => Err(what),
        },
    }
}

/// Fails one call. True: the program went on after the failure; false: it ended, and was recovered; `None`: it got no
/// error.
fn fail_one_call(place: &Place, seed: u64, steps: usize, trouble: Trouble) -> Result<Option<bool>, String> {
    let disk = disk_of(place, seed);
    let mut fault = trouble.fault().expect("a call that fails");
    if trouble.to_string().starts_with(&format!("errno-{}@", libc::ENOSPC)) {
        fault = Fault { times: FULL, ..fault };
    }
    disk.fail(fault);
    let mut rng = Rng::with_seed(seed);
    let (mut commits, mut window) = nothing();
    let mut went_on = None;
    let mut left = steps;
    let ended = 'run: {
        let Some(mut session) = refused(Session::open(&disk, place, commits.clone(), window))? else {
            break 'run false;
        };
        while left > 0 {
            left -= 1;
            commits.clone_from(&session.commits);
            match rng.u32(..40) {
                n @ (0 | 1) => {
                    let Some(done) = refused(session.end(n == 0))? else { break 'run false };
                    (commits, window) = done;
                    let opened = refused(Session::open(&disk, place, commits.clone(), window))?;
                    let Some(opened) = opened else { break 'run false };
                    session = opened;
                }
                _ => {
                    let (begun, done) = (session.window.begun, refused(session.step(&mut rng))?);
                    if done.is_some() {
                        continue;
                    }
                    commits.clone_from(&session.commits);
                    disk.clear_faults();
                    if !goes_on(&mut session, begun)? {
                        break 'run false;
                    }
                    went_on = Some(true);
                }
            }
        }
        // The next commit has the changes of an asynchronous commit that failed.
        refused(session.wait())?;
        let done = refused(session.commit())?;
        commits.clone_from(&session.commits);
        if done.is_none() {
            break 'run false;
        }
        disk.clear_faults();
        session.finish()?;
        true
    };
    disk.clear_faults();
    if ended {
        return Ok(went_on);
    }
    let moment = disk.snapshot();
    disk.kill();
    for how in std::iter::once(How::Killed).chain(moment.cuts(CUTS_MAX, seed).into_iter().map(How::Power)) {
        // After a failed flush, the state of class `process` is unknown, whichever way the program ended.
        if !is_refused_as_unknown(place, &moment, how)? {
            recover(place, &moment, how, &commits, false)?;
        }
    }
    Ok(Some(false))
}

/// Continues after an error: repeats a commit that may have failed, and rolls everything else back. False: that is not
/// possible.
fn goes_on(session: &mut Session<'_>, begun: usize) -> Result<bool, String> {
    if session.window.begun > begun {
        // The changes of a failed commit are uncommitted again.
        let retried = session.heap.syncv(&[&session.note_file]);
        if retried.is_err() {
            return Ok(false);
        }
        session.settled();
        session.done(session.window.begun);
        session.compare()?;
        return Ok(true);
    }
    if session.window.begun > session.window.acknowledged {
        // Asynchronous commits are pending, and one of them may have failed.
        return Ok(false);
    }
    // SAFETY: nothing that was allocated since the last commit is used.
    let undone = unsafe { session.heap.rollback() }.and_then(|()| session.note_file.rollback());
    if undone.is_err() {
        return Ok(false);
    }
    session.back();
    session.compare()?;
    Ok(true)
}

/// Repeats one case, and returns the violation.
pub fn again_heap(case: &HeapCase) -> Result<(), String> {
    let place = place_of(case.seed);
    if let [trouble @ Trouble::Errno(..)] = case.crashes[..] {
        return fail_one_call(&place, case.seed, case.steps, trouble).map(drop);
    }
    let (moments, commits) = run(&place, case.seed, case.steps)?;
    let commits = Arc::new(commits);
    let mut moments: Vec<Moment> = moments.into_iter().map(|moment| (moment, commits.clone())).collect();
    for crash in &case.crashes {
        let Trouble::Crash(call, how) = *crash else { return Err(format!("{crash} is no crash")) };
        let found = moments.iter().find(|(moment, _)| moment.call() == call);
        let (moment, commits) = found.ok_or(crate::enumeration::enumerate::NO_SUCH_CALL)?;
        if how != How::Killed && is_refused_as_unknown(&place, moment, how)? {
            return Ok(());
        }
        moments = recover(&place, moment, how, commits, true)?;
    }
    Ok(())
}
