//! Functions of the C++ library that open and rename files by system calls of their own: `std::fstream` and
//! `std::filesystem`.
//!
//! GNU's C++ library makes these calls in its shared library, where the header cannot rename them. So this library
//! defines the few functions through which all of them go, and the dynamic linker finds these definitions first. For
//! a program that manages no files, and for all other files, the C++ library's own functions are called.
//!
//! The static library is installed without these definitions: a static C++ library has its own, and a program cannot
//! have two.

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::path::PathBuf;
use std::sync::atomic::{AtomicPtr, Ordering::*};

use super::open_calls::recover_unmanaged;
use super::path_calls::{untorn_path_remove, untorn_path_rename, untorn_path_stat, untorn_path_truncate};
use crate::posix::files::managed_files::{find_by_key, is_any_managed};
use crate::posix::files::managed_stores::has_store;
use crate::posix::state::file_owner::is_borrower;
use crate::posix::state::patterns;
use crate::posix::state::posix_descriptor::{lstat, path_at, refusal};
use crate::posix::state::report::{errno, reported, set_errno, tell};

/// A function of the C++ library.
struct Original {
    name: &'static CStr,
    found: AtomicPtr<c_void>,
}

impl Original {
    const fn new(name: &'static CStr) -> Original {
        Original { name, found: AtomicPtr::new(std::ptr::null_mut()) }
    }

    /// The function, as a pointer of type `F`.
    ///
    /// # Safety
    /// `F` is the type of a pointer to this function.
    unsafe fn get<F: Copy>(&self) -> F {
        let mut found = self.found.load(Acquire);
        if found.is_null() {
            // SAFETY: a name that ends in NUL.
            found = unsafe { libc::dlsym(libc::RTLD_NEXT, self.name.as_ptr()) };
            if found.is_null() {
                // If the program loads this library by `dlopen`, and another library loads the C++ library, neither
                // comes next after the other.
                // SAFETY: names that end in NUL; nothing is loaded, and the library of the caller stays loaded.
                found = unsafe {
                    let library = libc::dlopen(c"libstdc++.so.6".as_ptr(), libc::RTLD_LAZY | libc::RTLD_NOLOAD);
                    if library.is_null() { library } else { libc::dlsym(library, self.name.as_ptr()) }
                };
            }
            if found.is_null() {
                tell(&format!("{}: the C++ library does not have it", self.name.to_string_lossy()));
                std::process::abort();
            }
            self.found.store(found, Release);
        }
        // SAFETY: the caller's promise.
        unsafe { std::mem::transmute_copy(&found) }
    }
}

/// `std::filesystem::path`: its first member is a string, whose first member points to its characters.
#[repr(C)]
struct CxxPath {
    text: *const c_char,
}

/// `std::error_code`.
#[repr(C)]
pub struct ErrorCode {
    value: c_int,
    category: *const c_void,
}

impl ErrorCode {
    /// Sets the result of a call that sets `errno`.
    fn set(&mut self, succeeded: bool) {
        static GENERIC: Original = Original::new(c"_ZNSt3_V216generic_categoryEv");
        static SYSTEM: Original = Original::new(c"_ZNSt3_V215system_categoryEv");
        self.value = if succeeded { 0 } else { errno() };
        // SAFETY: both return a reference and take nothing.
        let category: extern "C" fn() -> *const c_void =
            unsafe { if succeeded { SYSTEM.get() } else { GENERIC.get() } };
        self.category = category();
    }
}

/// The files and stores behind a path, as this process knows them.
struct KnownFiles {
    path: PathBuf,
    is_managed: bool,
    has_store: bool,
    is_named: bool,
}

/// Looks up a path that Untorn may have to handle.
///
/// # Safety
/// `path` is NULL or ends in NUL.
unsafe fn find(path: *const c_char) -> Option<KnownFiles> {
    if is_borrower() || !is_any_managed() && !patterns::is_any() {
        return None;
    }
    // SAFETY: the caller's promise.
    let given = unsafe { path_at(libc::AT_FDCWD, path) }?;
    let path = std::fs::canonicalize(&given).or_else(|_| std::path::absolute(&given)).ok()?;
    let stat = lstat(&path);
    let is_managed = stat.as_ref().is_some_and(|stat| find_by_key(stat).is_some());
    let (has_store, is_named) = (has_store(&path), patterns::match_path(&path));
    (is_managed || has_store || is_named).then_some(KnownFiles { path, is_managed, has_store, is_named })
}

/// Refuses a call that would bypass a managed file that is open.
fn refuse(call: &str, found: &KnownFiles) {
    reported(call, (), || {
        Err(refusal(
            libc::ENOTSUP,
            format!(
                "{} is a managed file, and {call} would bypass Untorn: use open, fopen, read and write instead",
                found.path.display()
            ),
        ))
    });
}

/// `std::ios_base::out`, `app` and `trunc`.
const WRITES: c_int = 1 << 4 | 1 | 1 << 5;

/// Opens the file of a `std::fstream`. NULL with ENOTSUP for a managed file that is open. A file that needs recovery
/// is recovered first.
///
/// # Safety
/// As for `std::basic_filebuf::open`.
#[unsafe(export_name = "_ZNSt12__basic_fileIcE4openEPKcSt13_Ios_Openmodei")]
unsafe extern "C" fn basic_file_open(
    this: *mut c_void,
    path: *const c_char,
    mode: c_int,
    rights: c_int,
) -> *mut c_void {
    static ORIGINAL: Original = Original::new(c"_ZNSt12__basic_fileIcE4openEPKcSt13_Ios_Openmodei");
    // SAFETY: the caller's promise.
    if let Some(found) = unsafe { find(path) } {
        if found.is_managed {
            refuse("std::fstream", &found);
            return std::ptr::null_mut();
        }
        if found.has_store && !reported("std::fstream", false, || recover_unmanaged(&found.path).map(|()| true)) {
            return std::ptr::null_mut();
        }
        if found.is_named && mode & WRITES != 0 {
            tell(&format!(
                "std::fstream: {} is written as the kernel does, not all or nothing: use open, fopen, read and write",
                found.path.display()
            ));
        }
    }
    type Open = unsafe extern "C" fn(*mut c_void, *const c_char, c_int, c_int) -> *mut c_void;
    // SAFETY: the original function, with its own type.
    unsafe { ORIGINAL.get::<Open>()(this, path, mode, rights) }
}

/// `std::filesystem::rename`: as untorn_path_rename().
///
/// # Safety
/// As for `std::filesystem::rename`.
#[unsafe(export_name = "_ZNSt10filesystem6renameERKNS_7__cxx114pathES3_RSt10error_code")]
unsafe extern "C" fn filesystem_rename(from: &CxxPath, to: &CxxPath, error: &mut ErrorCode) {
    static ORIGINAL: Original = Original::new(c"_ZNSt10filesystem6renameERKNS_7__cxx114pathES3_RSt10error_code");
    // SAFETY: strings of C++ end in NUL.
    unsafe {
        if find(from.text).is_some() || find(to.text).is_some() {
            error.set(untorn_path_rename(from.text, to.text) == 0);
        } else {
            ORIGINAL.get::<unsafe extern "C" fn(&CxxPath, &CxxPath, &mut ErrorCode)>()(from, to, error);
        }
    }
}

/// `std::filesystem::remove`: as untorn_path_remove(). Returns whether a file was removed.
///
/// # Safety
/// As for `std::filesystem::remove`.
#[unsafe(export_name = "_ZNSt10filesystem6removeERKNS_7__cxx114pathERSt10error_code")]
unsafe extern "C" fn filesystem_remove(path: &CxxPath, error: &mut ErrorCode) -> bool {
    static ORIGINAL: Original = Original::new(c"_ZNSt10filesystem6removeERKNS_7__cxx114pathERSt10error_code");
    // SAFETY: strings of C++ end in NUL.
    unsafe {
        if find(path.text).is_none() {
            return ORIGINAL.get::<unsafe extern "C" fn(&CxxPath, &mut ErrorCode) -> bool>()(path, error);
        }
        let removed = untorn_path_remove(path.text) == 0;
        error.set(removed || errno() == libc::ENOENT);
        removed
    }
}

/// `std::filesystem::resize_file`: as untorn_path_truncate().
///
/// # Safety
/// As for `std::filesystem::resize_file`.
#[unsafe(export_name = "_ZNSt10filesystem11resize_fileERKNS_7__cxx114pathEmRSt10error_code")]
unsafe extern "C" fn filesystem_resize(path: &CxxPath, size: u64, error: &mut ErrorCode) {
    static ORIGINAL: Original = Original::new(c"_ZNSt10filesystem11resize_fileERKNS_7__cxx114pathEmRSt10error_code");
    // SAFETY: strings of C++ end in NUL.
    unsafe {
        if find(path.text).is_none() {
            return ORIGINAL.get::<unsafe extern "C" fn(&CxxPath, u64, &mut ErrorCode)>()(path, size, error);
        }
        error.set(match libc::off_t::try_from(size) {
            Ok(size) => untorn_path_truncate(path.text, size) == 0,
            Err(_) => {
                set_errno(libc::EINVAL);
                false
            }
        });
    }
}

/// The size of a managed file that is open, uncommitted changes included.
///
/// # Safety
/// `path` is NULL or ends in NUL.
unsafe fn managed_size(path: *const c_char) -> Option<u64> {
    // SAFETY: the caller's promise; zeros are a valid `stat`.
    unsafe {
        find(path).filter(|found| found.is_managed)?;
        let mut stat: libc::stat = std::mem::zeroed();
        (untorn_path_stat(path, &raw mut stat) == 0).then_some(stat.st_size as u64)
    }
}

/// `std::filesystem::file_size`: the size of a managed file includes uncommitted changes.
///
/// # Safety
/// As for `std::filesystem::file_size`.
#[unsafe(export_name = "_ZNSt10filesystem9file_sizeERKNS_7__cxx114pathERSt10error_code")]
unsafe extern "C" fn filesystem_size(path: &CxxPath, error: &mut ErrorCode) -> u64 {
    static ORIGINAL: Original = Original::new(c"_ZNSt10filesystem9file_sizeERKNS_7__cxx114pathERSt10error_code");
    // SAFETY: strings of C++ end in NUL.
    unsafe {
        match managed_size(path.text) {
            Some(size) => {
                error.set(true);
                size
            }
            None => ORIGINAL.get::<unsafe extern "C" fn(&CxxPath, &mut ErrorCode) -> u64>()(path, error),
        }
    }
}

/// `std::filesystem::file_size` without an error code: errors are thrown by the C++ library's function.
///
/// # Safety
/// As for `std::filesystem::file_size`.
#[unsafe(export_name = "_ZNSt10filesystem9file_sizeERKNS_7__cxx114pathE")]
unsafe extern "C-unwind" fn filesystem_size_or_throw(path: &CxxPath) -> u64 {
    static ORIGINAL: Original = Original::new(c"_ZNSt10filesystem9file_sizeERKNS_7__cxx114pathE");
    // SAFETY: strings of C++ end in NUL.
    unsafe {
        managed_size(path.text).unwrap_or_else(|| ORIGINAL.get::<unsafe extern "C-unwind" fn(&CxxPath) -> u64>()(path))
    }
}

/// `std::filesystem::copy_file`. From or to a managed file that is open: ENOTSUP.
///
/// # Safety
/// As for `std::filesystem::copy_file`.
#[unsafe(export_name = "_ZNSt10filesystem9copy_fileERKNS_7__cxx114pathES3_NS_12copy_optionsERSt10error_code")]
unsafe extern "C" fn filesystem_copy(from: &CxxPath, to: &CxxPath, options: c_uint, error: &mut ErrorCode) -> bool {
    static ORIGINAL: Original =
        Original::new(c"_ZNSt10filesystem9copy_fileERKNS_7__cxx114pathES3_NS_12copy_optionsERSt10error_code");
    // SAFETY: strings of C++ end in NUL.
    let found = unsafe { [find(from.text), find(to.text)] };
    for found in found.into_iter().flatten() {
        if found.is_managed {
            refuse("std::filesystem::copy_file", &found);
            error.set(false);
            return false;
        }
        if found.has_store
            && !reported("std::filesystem::copy_file", false, || recover_unmanaged(&found.path).map(|()| true))
        {
            error.set(false);
            return false;
        }
    }
    type Copy = unsafe extern "C" fn(&CxxPath, &CxxPath, c_uint, &mut ErrorCode) -> bool;
    // SAFETY: the original function, with its own type.
    unsafe { ORIGINAL.get::<Copy>()(from, to, options, error) }
}
