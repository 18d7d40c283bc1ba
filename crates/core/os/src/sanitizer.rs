//! Sanitizers that a program was built with, as far as they keep addresses for themselves.

use std::ffi::CStr;

/// A sanitizer that keeps most addresses for itself, those of persistent heaps among them: its name, for messages.
pub fn sanitizer() -> Option<&'static str> {
    let thread = (c"__tsan_init", "ThreadSanitizer");
    let memory = (c"__msan_init", "MemorySanitizer");
    let address = (c"__asan_init", "AddressSanitizer");
    // On x86-64 AddressSanitizer has its own memory at lower addresses.
    let all = if cfg!(target_arch = "x86_64") { &[thread, memory][..] } else { &[thread, memory, address] };
    all.iter().find(|(function, _)| is_loaded(function)).map(|(_, name)| *name)
}

/// Sanitizers bring functions of their own into a program.
fn is_loaded(function: &CStr) -> bool {
    // SAFETY: looks a name up in what is loaded; nothing is called.
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
