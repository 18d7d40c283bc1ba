//! Interruption by signals: cleans up, prints a message, and exits as shells expect.

use std::cell::UnsafeCell;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use std::{io, mem, ptr, thread};

/// The exit code of shells for "ended by Ctrl-C".
const INTERRUPTED: i32 = 130;

/// Ctrl-C, and the signals by which others end a process.
const ENDS: [libc::c_int; 3] = [libc::SIGINT, libc::SIGTERM, libc::SIGHUP];

/// The number of signals that have come and that no thread has handled yet.
struct Count(UnsafeCell<libc::sem_t>);

// SAFETY: all access is by the functions for semaphores, which are made for several threads.
unsafe impl Sync for Count {}

// SAFETY: a semaphore is numbers, for which zero is a value.
static COUNT: Count = Count(UnsafeCell::new(unsafe { mem::zeroed() }));

extern "C" fn count(_: libc::c_int) {
    // SAFETY: `handle` has initialized the semaphore, and a handler of signals may call this function.
    unsafe { libc::sem_post(COUNT.0.get()) };
}

/// Calls a function, in a thread of its own, for every Ctrl-C, SIGTERM and SIGHUP from now on.
///
/// A second call fails.
pub fn handle(mut handler: impl FnMut() + Send + 'static) -> io::Result<()> {
    static IS_HANDLED: AtomicBool = AtomicBool::new(false);
    if IS_HANDLED.swap(true, Ordering::SeqCst) {
        return Err(io::Error::new(io::ErrorKind::AlreadyExists, "signals are handled already"));
    }
    // SAFETY: `sem_init` is called once, before any other use of the semaphore.
    unsafe { libc::sem_init(COUNT.0.get(), 0, 0) };
    let wait = move || {
        loop {
            // SAFETY: the semaphore is initialized. An error is an interruption by a signal.
            if unsafe { libc::sem_wait(COUNT.0.get()) } == 0 {
                handler();
            }
        }
    };
    // The thread comes first: if it cannot be started, signals still end the process.
    let started = thread::Builder::new().name("signals".to_owned()).spawn(wait);
    started.map_err(|e| {
        let why = format!("no thread can be started; end some processes, or raise their limit (ulimit -u): {e}");
        io::Error::new(e.kind(), why)
    })?;
    // SAFETY: a `sigaction` is numbers, for which zero is a value: no signal is blocked. `count` may run at any moment.
    unsafe {
        let mut action: libc::sigaction = mem::zeroed();
        action.sa_sigaction = count as *const () as usize;
        action.sa_flags = libc::SA_RESTART;
        for signal in ENDS {
            if libc::sigaction(signal, &raw const action, ptr::null_mut()) != 0 {
                return Err(io::Error::last_os_error());
            }
        }
    }
    Ok(())
}

/// On Ctrl-C, SIGTERM or SIGHUP: cleans up, prints `message`, and ends the process.
pub fn on_interrupt(
    program: &'static str,
    message: &'static str,
    mut cleanup: impl FnMut() + Send + 'static,
) -> io::Result<()> {
    handle(move || {
        cleanup();
        crate::tell!("{program}: {message}");
        std::process::exit(INTERRUPTED);
    })
}

/// Removes a directory while another thread may still create a file in it.
///
/// The other thread's next step fails, because its directory is gone, and then the rest can be removed.
pub fn remove_meanwhile(dir: &Path) {
    remove_meanwhile_by(dir, || drop(std::fs::remove_dir_all(dir)));
}

/// Works like [`remove_meanwhile`], with another function that removes the directory.
pub fn remove_meanwhile_by(dir: &Path, remove: impl Fn()) {
    for _ in 0..100 {
        // The other thread may remove parts, too, so its errors say nothing about the directory.
        remove();
        if dir.symlink_metadata().is_err_and(|e| e.kind() == std::io::ErrorKind::NotFound) {
            return;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[cfg(test)]
mod tests {
    use super::remove_meanwhile_by;
    use std::cell::Cell;

    /// A part of the directory is removed by another thread first, which is an error of this one.
    #[test]
    fn a_part_that_is_gone_does_not_keep_the_directory() {
        let above = tempfile::tempdir().unwrap();
        let (dir, tried) = (above.path().join("dir"), Cell::new(0));
        std::fs::create_dir(&dir).unwrap();
        remove_meanwhile_by(&dir, || {
            tried.set(tried.get() + 1);
            match tried.get() {
                1 => assert!(std::fs::remove_file(dir.join("part")).is_err()),
                _ => std::fs::remove_dir_all(&dir).unwrap(),
            }
        });
        assert!(!dir.exists());
        assert_eq!(tried.get(), 2);
    }
}
