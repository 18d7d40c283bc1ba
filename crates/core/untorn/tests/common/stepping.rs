//! Steps through a child, instruction by instruction or call by call, and kills it.

use std::io::{BufRead, BufReader};
use std::process::Command;

/// In the child: lets the parent step through this thread from now on, until [`stop`].
pub fn traced() {
    // SAFETY: the thread that makes the call is the one that is traced.
    unsafe {
        libc::ptrace(libc::PTRACE_TRACEME, 0, 0, 0);
        println!("\nthread {}", libc::syscall(libc::SYS_gettid));
        libc::raise(libc::SIGSTOP);
    }
}

/// In the child: lets the parent kill this process now.
pub fn stop() {
    // SAFETY: a signal to the thread itself.
    unsafe { libc::raise(libc::SIGSTOP) };
}

/// Starts such a child, runs it for this many instructions, and kills it. Returns the number of instructions that it
/// ran, or None if tracing is not possible here.
pub fn killed_after(command: &mut Command, instructions: u64) -> Option<u64> {
    killed_when(command, |_, _, done| done >= instructions)
}

/// Like [`killed_after`], after this many stops: one before and one after each system call.
pub fn killed_at_call(command: &mut Command, stops: u64) -> Option<u64> {
    killed_between(command, libc::PTRACE_SYSCALL, |_, _, done| done >= stops)
}

/// Like [`killed_after`], as soon as `is_it` says so, which gets the lines that the child printed, its thread, and the
/// number of instructions that the thread ran.
pub fn killed_when(command: &mut Command, is_it: impl FnMut(&[String], i32, u64) -> bool) -> Option<u64> {
    killed_between(command, libc::PTRACE_SINGLESTEP, is_it)
}

fn killed_between(
    command: &mut Command,
    step: libc::c_uint,
    mut is_it: impl FnMut(&[String], i32, u64) -> bool,
) -> Option<u64> {
    let mut child = command.spawn().unwrap();
    let out = BufReader::new(child.stdout.as_mut().expect("a pipe"));
    let mut lines = Vec::new();
    let thread = out.lines().map_while(Result::ok).find_map(|line| {
        let thread = line.strip_prefix("thread ").and_then(|thread| thread.parse::<i32>().ok());
        lines.push(line);
        thread
    });
    let thread = thread.expect("a thread");
    let stopped = || {
        let mut status = 0;
        // SAFETY: writes the status.
        let got = unsafe { libc::waitpid(thread, &raw mut status, libc::__WALL) };
        (got == thread && libc::WIFSTOPPED(status)).then(|| libc::WSTOPSIG(status))
    };
    let is_traced = stopped() == Some(libc::SIGSTOP);
    let (mut done, mut ended) = (0, None);
    while is_traced && !is_it(&lines, thread, done) {
        // SAFETY: a thread that this one traces, and that is stopped.
        assert_eq!(unsafe { libc::ptrace(step, thread, 0, 0) }, 0, "{}", std::io::Error::last_os_error());
        match stopped() {
            Some(libc::SIGTRAP) => done += 1,
            Some(libc::SIGSTOP) => break,
            signal => {
                ended = Some(signal);
                break;
            }
        }
    }
    child.kill().expect("a child to kill");
    // The process is gone only after its traced thread was waited for.
    while stopped().is_some() {}
    child.wait().expect("its end");
    assert_eq!(ended, None, "the child ended or got a signal after {done} steps, before it was to stop");
    is_traced.then_some(done)
}
