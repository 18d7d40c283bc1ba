//! Interruption: clean up, say what it means, exit as shells expect.

use std::path::Path;
use std::time::Duration;

/// What a shell calls "ended by Ctrl-C".
const INTERRUPTED: i32 = 130;

/// On Ctrl-C, SIGTERM or SIGHUP: cleans up, prints `message`, and ends the process.
pub fn on_interrupt(
    program: &'static str,
    message: &'static str,
    mut cleanup: impl FnMut() + Send + 'static,
) -> Result<(), ctrlc::Error> {
    ctrlc::set_handler(move || {
        cleanup();
        crate::tell!("{program}: {message}");
        std::process::exit(INTERRUPTED);
    })
}

/// Removes a directory while another thread may still be making a file in it: that thread's next step fails, as the
/// directory goes, and then all of it can be removed.
pub fn remove_meanwhile(dir: &Path) {
    remove_meanwhile_by(|| std::fs::remove_dir_all(dir));
}

/// As [`remove_meanwhile`] does, by another way to remove a directory.
pub fn remove_meanwhile_by(remove: impl Fn() -> std::io::Result<()>) {
    for _ in 0..100 {
        match remove() {
            Err(e) if e.kind() != std::io::ErrorKind::NotFound => std::thread::sleep(Duration::from_millis(20)),
            _ => return,
        }
    }
}
