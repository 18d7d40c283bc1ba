//! Interruption: say what it means, clean up, exit as shells expect.

/// What a shell calls "ended by Ctrl-C".
const INTERRUPTED: i32 = 130;

/// On Ctrl-C, SIGTERM or SIGHUP: cleans up, says `message`, and ends the process.
pub fn on_interrupt(message: &'static str, mut cleanup: impl FnMut() + Send + 'static) -> Result<(), ctrlc::Error> {
    ctrlc::set_handler(move || {
        cleanup();
        eprintln!("untorn: {message}");
        std::process::exit(INTERRUPTED);
    })
}
