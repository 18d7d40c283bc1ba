//! Loads C libraries when the benchmark runs, so that its build needs none of them.

use anyhow::{Result, anyhow};
use libloading::Library;

/// Loads the first of `files` that exists. It stays loaded.
pub fn load(files: &[&str], package: &str) -> Result<&'static Library> {
    for file in files {
        // SAFETY: a library of the distribution, whose initialisers have no demands.
        if let Ok(library) = unsafe { Library::new(*file) } {
            return Ok(Box::leak(Box::new(library)));
        }
    }
    Err(anyhow!("there is no {} (Debian's package {package}; `scripts/setup.sh bench` installs all)", files[0]))
}

/// Declares a struct of a library's functions. Their names in the library begin with a prefix.
macro_rules! functions {
    ($name:ident { $(fn $function:ident($($argument:ty),* $(,)?) $(-> $result:ty)?;)* }) => {
        pub struct $name {
            $($function: unsafe extern "C" fn($($argument),*) $(-> $result)?,)*
        }

        impl $name {
            pub fn of(library: &'static libloading::Library, prefix: &str) -> anyhow::Result<$name> {
                Ok($name {
                    $($function: {
                        let symbol = format!("{prefix}{}", stringify!($function));
                        // SAFETY: the declaration is that of the library's header.
                        *unsafe { library.get(symbol.as_bytes()) }?
                    },)*
                })
            }
        }
    };
}
pub(crate) use functions;

/// A path as a C string.
pub fn c_path(path: &std::path::Path) -> Result<std::ffi::CString> {
    use std::os::unix::ffi::OsStrExt;
    Ok(std::ffi::CString::new(path.as_os_str().as_bytes())?)
}

/// A C string that may be missing, as text.
///
/// # Safety
/// `text` is NULL or a C string.
pub unsafe fn c_text(text: *const std::ffi::c_char) -> String {
    if text.is_null() {
        return "no reason was given".to_owned();
    }
    // SAFETY: the caller's promise.
    unsafe { std::ffi::CStr::from_ptr(text) }.to_string_lossy().into_owned()
}
