//! Kills a program under the porting header at each system call, from the one that marks its file on. Then the next
//! program renames the file, and opens it under the new name.

mod common;

use common::{cc, crate_dir, link_with, output_of, run, skipped};
use parking_lot::Mutex;
use std::fs;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};
use untorn_testkit::{drawn_seed, slice};

/// Runs a program, and kills it at the entry of the first system call for which `is_it` is true. `is_it` gets the
/// call's number in the program and its number in the system. False: the program ended by itself, or cannot be
/// traced.
fn killed_at(command: &mut Command, mut is_it: impl FnMut(u64, u64) -> bool) -> bool {
    /// The size of `struct ptrace_syscall_info`, whose first byte is the kind of the stop.
    const INFO_BYTES: usize = 88;
    const ENTRY: u8 = 1;
    /// `PTRACE_O_EXITKILL`.
    const EXIT_KILL: libc::c_int = 0x10_0000;
    // SAFETY: one system call.
    unsafe {
        command.pre_exec(|| match libc::ptrace(libc::PTRACE_TRACEME, 0, 0usize, 0usize) {
            0 => Ok(()),
            _ => Err(std::io::Error::last_os_error()),
        });
    }
    let Ok(child) = command.stderr(Stdio::null()).spawn() else { return false };
    let (pid, options) = (child.id() as i32, libc::PTRACE_O_TRACESYSGOOD | libc::PTRACE_O_TRACECLONE | EXIT_KILL);
    let (mut calls, mut killed, mut begun) = (0, false, false);
    loop {
        let mut status = 0;
        // SAFETY: writes the status. This test has no other children meanwhile.
        let stopped = unsafe { libc::waitpid(-1, &raw mut status, libc::__WALL) };
        if stopped < 0 {
            return killed;
        }
        if !libc::WIFSTOPPED(status) {
            continue;
        }
        let mut signal = 0;
        match libc::WSTOPSIG(status) {
            _ if !begun => {
                begun = true;
                // SAFETY: takes numbers.
                unsafe { libc::ptrace(libc::PTRACE_SETOPTIONS, pid, 0usize, options as usize) };
            }
            stop if stop == libc::SIGTRAP | 0x80 => {
                let mut info = [0u8; INFO_BYTES];
                // SAFETY: writes at most the number of bytes that it is given.
                unsafe { libc::ptrace(libc::PTRACE_GET_SYSCALL_INFO, stopped, INFO_BYTES, info.as_mut_ptr()) };
                if info[0] == ENTRY && !killed {
                    calls += 1;
                    killed = is_it(calls, u64::from_ne_bytes(info[24..32].try_into().expect("eight bytes")));
                    if killed {
                        // SAFETY: takes numbers.
                        unsafe { libc::kill(pid, libc::SIGKILL) };
                    }
                }
            }
            libc::SIGTRAP | libc::SIGSTOP => {}
            other => signal = other,
        }
        // SAFETY: takes numbers.
        unsafe { libc::ptrace(libc::PTRACE_SYSCALL, stopped, 0usize, signal as usize) };
    }
}

/// Two closed managed files.
fn begin(program: &Path, dir: &Path) {
    let _ = fs::remove_dir_all(dir);
    fs::create_dir(dir).expect("a directory");
    fs::write(dir.join("new.m"), "new").expect("a file");
    fs::write(dir.join("db.m"), "db").expect("a file");
    run(Command::new(program).arg("read").arg(dir));
}

/// The tests start processes and wait for any of them, so one runs at a time.
static TURN: Mutex<()> = Mutex::new(());

#[test]
fn a_file_that_cannot_be_recovered_is_neither_read_nor_renamed() {
    let _turn = TURN.lock();
    let scratch = tempfile::tempdir_in("/var/tmp").expect("a scratch directory");
    let (program, dir) = (scratch.path().join("left_mark"), scratch.path().join("files"));
    run(link_with(cc().arg(crate_dir().join("tests/left_mark.c")), &program));
    begin(&program, &dir);
    run(Command::new(&program).arg("unclosed").arg(&dir));
    let chattr = |change: &str| {
        let done = Command::new("chattr").arg(change).arg(dir.join("new.m")).stderr(Stdio::null()).status();
        done.is_ok_and(|status| status.success())
    };
    if !chattr("+i") {
        return skipped("chattr +i is not possible here");
    }
    let refused =
        ["look", "rename"].map(|mode| Command::new(&program).arg(mode).arg(&dir).output().expect("it starts"));
    let kept = fs::read(dir.join("new.m")).expect("the file");
    assert!(chattr("-i"));
    for output in refused {
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!output.status.success() && said.contains("Its commits are kept"), "{said}");
    }
    assert_eq!(kept, b"new");
    run(Command::new(&program).arg("rename").arg(&dir));
    assert_eq!(output_of(Command::new(&program).arg("read").arg(&dir)), "NNNNNNNNNNNNNNN\n");
}

#[test]
fn a_file_that_was_marked_and_not_committed_can_be_renamed() {
    let _turn = TURN.lock();
    let scratch = tempfile::tempdir().expect("a scratch directory");
    let (program, dir) = (scratch.path().join("left_mark"), scratch.path().join("files"));
    run(link_with(cc().arg(crate_dir().join("tests/left_mark.c")), &program));
    let first = || {
        let mut first = Command::new(&program);
        first.arg("first").arg(&dir);
        first
    };
    begin(&program, &dir);
    let (mut all, mut marked) = (0, 0);
    killed_at(&mut first(), |n, call| {
        (all, marked) = (n, if marked == 0 && call == libc::SYS_fsetxattr as u64 { n } else { marked });
        false
    });
    if all == 0 {
        return skipped("programs cannot be traced here");
    }
    assert!(marked > 0, "the file was never marked");
    let mut waited = 0;
    let calls: Vec<u64> = (marked..=all).collect();
    for at in slice(&calls, 24, drawn_seed()) {
        begin(&program, &dir);
        if !killed_at(&mut first(), |n, _| n == at) {
            continue;
        }
        waited += 1;
        run(Command::new(&program).arg("rename").arg(&dir));
        let shown = output_of(Command::new(&program).arg("read").arg(&dir));
        assert!(["new\n", "NEW\n"].contains(&shown.as_str()), "killed at call {at} of {all}: {shown:?}");
        // The store of a file is removed if that is allowed, and a plain file remains.
        for name in ["new.m.untorn", "db.m.untorn"] {
            let _ = fs::remove_dir_all(dir.join(name));
        }
        let shown = output_of(Command::new(&program).arg("read").arg(&dir));
        assert!(["new\n", "NEW\n"].contains(&shown.as_str()), "killed at call {at} of {all}, without its store");
    }
    assert!(waited > 0, "no program was killed");
}
