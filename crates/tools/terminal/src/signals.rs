//! Interruption by signals: cleans up, prints a message, and exits as shells expect.

use std::path::Path;
use std::time::Duration;

/// The exit code of shells for "ended by Ctrl-C".
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

/// Removes a directory while another thread may still create a file in it.
///
/// The other thread's next step fails, because its directory is gone, and then the rest can be removed.
pub fn remove_meanwhile(dir: &Path) {
    remove_meanwhile_by(|| std::fs::remove_dir_all(dir));
}

/// Works like [`remove_meanwhile`], with another function that removes the directory.
pub fn remove_meanwhile_by(remove: impl Fn() -> std::io::Result<()>) {
    for _ in 0..100 {
        match remove() {
            Err(e) if e.kind() != std::io::ErrorKind::NotFound => std::thread::sleep(Duration::from_millis(20)),
            _ => return,
        }
    }
}
