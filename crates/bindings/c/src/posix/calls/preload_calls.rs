//! Functions of `crates/bindings/preload` alone, which no library shows to programs.

use std::ffi::{CStr, c_char, c_int};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use untorn_os::program::{Obstacle, Program};

use crate::boundary::standard_error;

/// Programs that can be named on standard error; more are not.
const TOLD: usize = 64;

/// Looks at a program that is about to be started with this library. One that the library cannot be preloaded into is
/// named on standard error. Returns 0, or with `strict` the errno with which the start is refused.
///
/// `directories` is the PATH in which `program` is searched if it has no slash, or NULL. `told` has the programs that
/// were named. This may run in a child of `vfork`: it allocates nothing and takes no lock.
///
/// # Safety
/// The texts end in NUL, or are NULL. `told` points to 64 numbers that others change atomically only.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn untorn_preload_look_at(
    program: *const c_char,
    directories: *const c_char,
    told: *const u64,
    strict: c_int,
) -> c_int {
    let text = |text: *const c_char| match text.is_null() {
        true => &b""[..],
        // SAFETY: not NULL; the rest is the caller's promise.
        false => unsafe { CStr::from_ptr(text) }.to_bytes(),
    };
    // `env` has the library, too, and looks at the program that it searches.
    let mut found = Program::NONE;
    let examined = match directories.is_null() {
        true => found.examine(text(program), None),
        false => found.examine_found(text(program), text(directories)),
    };
    // The start itself fails as the kernel says.
    let Some(obstacle) = found.obstacle.filter(|_| examined.is_ok()) else { return 0 };
    // SAFETY: the caller's promise.
    let told = unsafe { std::slice::from_raw_parts(told.cast::<AtomicU64>(), TOLD) };
    tell(found.binary.as_bytes(), obstacle, told, strict != 0);
    if strict != 0 { libc::EACCES } else { 0 }
}

/// Names a program, once. Apart, so that most calls need little of a stack.
#[inline(never)]
fn tell(binary: &[u8], obstacle: Obstacle, told: &[AtomicU64], strict: bool) {
    let mut link = [0; libc::PATH_MAX as usize];
    let binary = if binary.starts_with(b"/proc/self/fd/") { target(binary, &mut link) } else { binary };
    if !standard_error::is_as_at_start() || !is_new(binary, told) {
        return;
    }
    let (begin, end): (&str, &str) = match strict {
        true => (" is not started (--strict): ", "\n"),
        false => (
            " cannot be preloaded: ",
            "; its changes of managed files are changes from outside: a file that is open becomes a conflict\n",
        ),
    };
    let mut line = [0; libc::PIPE_BUF];
    let mut len = 0;
    for part in [b"untorn: ", binary, begin.as_bytes(), obstacle.reason().as_bytes(), end.as_bytes()] {
        let Some(room) = line.get_mut(len..).and_then(|room| room.get_mut(..part.len())) else { return };
        room.copy_from_slice(part);
        len += part.len();
    }
    standard_error::write(line.get(..len).unwrap_or_default(), false);
}

/// The file of a descriptor's path, if it is one.
fn target<'a>(path: &'a [u8], link: &'a mut [u8; libc::PATH_MAX as usize]) -> &'a [u8] {
    let mut name = [0; 32];
    match name.get_mut(..path.len()) {
        // The last byte stays NUL.
        Some(room) if path.len() < 32 => room.copy_from_slice(path),
        _ => return path,
    }
    // SAFETY: the path ends in NUL, and the bytes are writable.
    let len = unsafe { libc::readlink(name.as_ptr().cast(), link.as_mut_ptr().cast(), link.len()) };
    usize::try_from(len).ok().and_then(|len| link.get(..len)).unwrap_or(path)
}

/// Notes a program. False: it was noted before, or there is no room.
fn is_new(binary: &[u8], told: &[AtomicU64]) -> bool {
    // FNV-1a; 0 is a free place.
    let hash = binary
        .iter()
        .fold(0xcbf2_9ce4_8422_2325, |hash: u64, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3));
    let hash = hash | 1;
    for place in told {
        match place.compare_exchange(0, hash, Relaxed, Relaxed) {
            Ok(_) => return true,
            Err(known) if known == hash => return false,
            Err(_) => {}
        }
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_is_new_once() {
        let told = [const { AtomicU64::new(0) }; 3];
        for name in ["a", "b", "c"] {
            assert!(is_new(name.as_bytes(), &told) && !is_new(name.as_bytes(), &told));
        }
        assert!(!is_new(b"d", &told), "there is no room");
    }
}
