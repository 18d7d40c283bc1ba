//! Helpers of the behaviour tests: directories on a real disk, contents that name their version and file, assertions on
//! errors, messages of skipped tests, and a second process to be killed ([`child_process`]).

// Every test program compiles this for itself and uses only a part of it.
#![allow(dead_code, unused_imports)]

pub mod bank;
pub mod child_process;
pub mod mapping;
pub mod shown_files;
pub mod stepping;

use std::ffi::OsStr;
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::mpsc;
use std::time::{Duration, Instant};
use tempfile::TempDir;
use untorn::{Error, File, Store};
pub use untorn_testkit::{Mount, is_root, seed, skipped};

/// The bytes of a file in [`text`].
pub const TEXT_BYTES: usize = 10_000;

/// A new directory that other users can reach, on a disk (`/tmp` is often in memory). `UNTORN_TEST_DIR` puts it on
/// another file system.
pub fn directory() -> TempDir {
    let base = std::env::var_os("UNTORN_TEST_DIR").map_or(PathBuf::from("/var/tmp"), PathBuf::from);
    tempfile::Builder::new().prefix("untorn-test-").tempdir_in(base).expect("a directory for tests")
}

/// Sets a flag that ends threads when it is dropped, also after a panic: a scope waits for its threads.
pub struct SetOnDrop<'a>(pub &'a AtomicBool);

impl Drop for SetOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Relaxed);
    }
}

/// Contents with the version and the file in every line, a little over two pages of them.
pub fn text(version: &str, name: &str) -> Vec<u8> {
    let mut text = Vec::with_capacity(TEXT_BYTES + 64);
    for line in 0.. {
        if text.len() >= TEXT_BYTES {
            break;
        }
        writeln!(text, "{version} {name} line {line}").expect("writing to memory");
    }
    text.truncate(TEXT_BYTES);
    text
}

/// The whole contents of an Untorn file, including uncommitted changes.
#[track_caller]
pub fn contents(file: &File) -> Vec<u8> {
    let size = file.len().expect("size") as usize;
    // One byte more, to check that reading stops at the size.
    let mut bytes = vec![0xa5; size + 1];
    assert_eq!(file.read_at(&mut bytes, 0).expect("read_at"), size, "a read stops at the size, not before");
    bytes.truncate(size);
    bytes
}

/// Opens a file of the store and reads all of it.
#[track_caller]
pub fn stored(store: &Store, name: &str) -> Vec<u8> {
    match store.open_file(name) {
        Ok(file) => contents(&file),
        Err(e) => panic!("cannot open {name}: {e}"),
    }
}

/// The contents of a file as any other program sees them.
#[track_caller]
pub fn plain(path: impl AsRef<Path>) -> Vec<u8> {
    fs::read(path.as_ref()).unwrap_or_else(|e| panic!("cannot read {}: {e}", path.as_ref().display()))
}

/// Compares contents, and prints only the difference.
#[track_caller]
pub fn assert_same(found: &[u8], wanted: &[u8], what: &str) {
    if found == wanted {
        return;
    }
    let at = found.iter().zip(wanted).position(|(f, w)| f != w).unwrap_or(found.len().min(wanted.len()));
    let show = |bytes: &[u8]| String::from_utf8_lossy(&bytes[at..bytes.len().min(at + 60)]).into_owned();
    panic!(
        "{what}: {} bytes found, {} wanted, the first difference at {at}: found {:?}, wanted {:?}",
        found.len(),
        wanted.len(),
        show(found),
        show(wanted)
    );
}

/// The error of a call that must be refused with one of these kinds ([`Error::kind`]).
#[track_caller]
pub fn refused<T>(result: Result<T, Error>, kinds: &[&str]) -> Error {
    match result {
        Ok(_) => panic!("this must be refused ({kinds:?}), but it went through"),
        Err(e) => {
            assert!(kinds.contains(&e.kind()), "this must be refused as one of {kinds:?}, not as {}: {e}", e.kind());
            e
        }
    }
}

/// Asserts an error of the operating system with this number.
#[track_caller]
pub fn refused_with_errno<T>(result: Result<T, Error>, errno: i32) {
    let e = refused(result, &["io"]);
    assert_eq!(e.os_error(), Some(errno), "{e}");
}

/// Lets this program decide on each system call of this thread, for good.
pub fn filter_calls(program: &mut [libc::sock_filter]) {
    let filter = libc::sock_fprog { len: program.len() as u16, filter: program.as_mut_ptr() };
    // SAFETY: `filter` and the program that it points to outlive both calls.
    unsafe {
        assert_eq!(libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 0);
        assert_eq!(libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const filter), 0);
    }
}

/// Answers this system call of this thread with the action of a filter, for good.
pub fn forbid_call(call: libc::c_long, action: u32) {
    let statement = |code: u32, jt, jf, k| libc::sock_filter { code: code as u16, jt, jf, k };
    filter_calls(&mut [
        statement(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0, 0),
        statement(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, 0, 1, call as u32),
        statement(libc::BPF_RET | libc::BPF_K, 0, 0, action),
        statement(libc::BPF_RET | libc::BPF_K, 0, 0, libc::SECCOMP_RET_ALLOW),
    ]);
}

/// Fails if the work takes longer than the limit, to find deadlocks.
#[track_caller]
pub fn within<T: Send + 'static>(limit: Duration, what: &str, work: impl FnOnce() -> T + Send + 'static) -> T {
    let (done, wait) = mpsc::channel();
    let worker = std::thread::spawn(move || {
        let _ = done.send(work());
    });
    match wait.recv_timeout(limit) {
        Ok(result) => result,
        Err(mpsc::RecvTimeoutError::Timeout) => panic!("{what} hangs: not done after {limit:?}"),
        Err(mpsc::RecvTimeoutError::Disconnected) => match worker.join() {
            Err(panic) => std::panic::resume_unwind(panic),
            Ok(()) => unreachable!("the worker ended without a result"),
        },
    }
}

/// Waits until the condition holds; fails after the limit.
#[track_caller]
pub fn eventually(limit: Duration, what: &str, mut condition: impl FnMut() -> bool) {
    let start = Instant::now();
    while !condition() {
        assert!(start.elapsed() < limit, "{what}: not so after {limit:?}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// The value of Untorn's attribute of a file on the disk.
pub fn attribute(path: impl AsRef<Path>) -> Option<Vec<u8>> {
    let mut value = vec![0; 4096];
    match rustix::fs::lgetxattr(path.as_ref(), "user.untorn", &mut value[..]) {
        Ok(bytes) => Some(value[..bytes].to_vec()),
        Err(rustix::io::Errno::NODATA) => None,
        Err(e) => panic!("getxattr {}: {e}", path.as_ref().display()),
    }
}

/// The permission bits of a file.
#[track_caller]
pub fn mode(path: impl AsRef<Path>) -> u32 {
    use std::os::unix::fs::MetadataExt;
    fs::symlink_metadata(path.as_ref()).expect("stat").mode() & 0o7777
}

/// Sets permission bits, regardless of the umask.
#[track_caller]
pub fn set_mode(path: impl AsRef<Path>, mode: u32) {
    use std::os::unix::fs::PermissionsExt;
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).expect("chmod");
}

/// Runs a program that must succeed.
#[track_caller]
pub fn run<S: AsRef<OsStr>>(program: &str, arguments: impl IntoIterator<Item = S>) {
    let mut command = Command::new(program);
    command.args(arguments);
    let output = command.output().unwrap_or_else(|e| panic!("cannot run {program}: {e} (see `make setup`)"));
    assert!(output.status.success(), "{command:?} failed: {}", String::from_utf8_lossy(&output.stderr));
}

/// Every path below a directory with kind, size and modification time, to check that nothing was touched.
pub fn picture(root: &Path) -> Vec<String> {
    use std::os::unix::fs::MetadataExt;
    let mut lines = Vec::new();
    let mut left = vec![root.to_owned()];
    while let Some(dir) = left.pop() {
        for entry in fs::read_dir(&dir).expect("read_dir") {
            let entry = entry.expect("entry");
            let meta = fs::symlink_metadata(entry.path()).expect("stat");
            let (kind, size, mode) = (meta.file_type(), meta.len(), meta.mode());
            lines.push(format!("{:?} {kind:?} {size} {mode:o} {}.{}", entry.path(), meta.mtime(), meta.mtime_nsec()));
            if kind.is_dir() {
                left.push(entry.path());
            }
        }
    }
    lines.sort();
    lines
}

/// Removes a large file, and waits until its blocks are free: a child of another test may have it open until it begins
/// its own program.
pub fn make_room(ballast: &Path) {
    let dir = ballast.parent().expect("a directory");
    let free = || rustix::fs::statvfs(dir).expect("statvfs").f_bfree;
    let before = free();
    fs::remove_file(ballast).expect("remove");
    while free() <= before {
        std::thread::sleep(Duration::from_millis(5));
    }
}
