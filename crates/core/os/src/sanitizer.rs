//! Sanitizers in the program, if they reserve addresses.

use std::ffi::CStr;

/// The name, for messages, of a sanitizer that reserves most addresses, including those of persistent heaps.
pub fn sanitizer() -> Option<&'static str> {
    let thread = (c"__tsan_init", "ThreadSanitizer");
    let memory = (c"__msan_init", "MemorySanitizer");
    let address = (c"__asan_init", "AddressSanitizer");
    // On x86-64, AddressSanitizer's own memory is at lower addresses.
    let all = if cfg!(target_arch = "x86_64") { &[thread, memory][..] } else { &[thread, memory, address] };
    all.iter().find(|(function, _)| is_loaded(function)).map(|(_, name)| *name)
}

/// Whether a function is loaded. Each sanitizer adds functions of its own to a program.
fn is_loaded(function: &CStr) -> bool {
    // SAFETY: looks up a name in the loaded objects; nothing is called.
    !unsafe { libc::dlsym(libc::RTLD_DEFAULT, function.as_ptr()) }.is_null()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_loaded_function_is_found() {
        assert!(is_loaded(c"getpid") && !is_loaded(c"__no_such_function"));
        assert_eq!(sanitizer(), None);
    }
}
