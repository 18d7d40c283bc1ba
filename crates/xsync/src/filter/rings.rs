//! Rings of io_uring for a session with `--exact`.
//!
//! Operations in a ring bypass the filter of system calls. So the supervisor makes each ring, and forbids in it the
//! operations that the filter would refuse: sockets of families that lead out.

use rustix::fs::{Mode, OFlags, open};
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::fs::FileExt;

/// `_IOW('!', 2, __u64)`, `_IOW('!', 3, struct seccomp_notif_addfd)` of `<linux/seccomp.h>`.
const STILL_ASKS: libc::Ioctl = 0x4008_2102;
const ADD_DESCRIPTOR: libc::Ioctl = 0x4018_2103;
/// SECCOMP_ADDFD_FLAG_SEND: the descriptor's number is the answer.
const AS_ANSWER: u32 = 2;

/// The size of `struct io_uring_params`, and the offset of its flags.
const PARAMETER_BYTES: usize = 120;
const FLAGS_AT: usize = 8;

/// Allowed flags IORING_SETUP_*, of <linux/io_uring.h>: the size of the completion queue, its clamping, going on after
/// a bad request, when completions are processed, and sizes of entries.
const ALLOWED: u32 = 1 << 3 | 1 << 4 | 1 << 7 | 1 << 8 | 1 << 9 | 1 << 10 | 1 << 11 | 1 << 16;
/// Flags that are dropped: they promise which task submits, for speed only, and the supervisor would count as that
/// task.
const LEFT_OUT: u32 = 1 << 12 | 1 << 13;
/// IORING_SETUP_SQPOLL, which is refused: the kernel's thread would have the supervisor's rights.
const THREAD: u32 = 1 << 1;
/// IORING_SETUP_R_DISABLED.
const DISABLED: u32 = 1 << 6;

/// Calls of IORING_REGISTER_*.
const PROBE: u32 = 8;
const RESTRICTIONS: u32 = 11;
const ENABLE: u32 = 12;
/// Calls of IORING_REGISTER_* that a program may make: buffers, files, events, users, limits of workers, rings of
/// buffers; all known to Linux 6.0.
const REGISTERED: [u8; 24] = [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23, 24, 25];
/// The last operation that was examined for this list (IORING_OP_PIPE of Linux 6.16). Newer operations are refused.
const OPERATION_MAX: u8 = 62;
/// IORING_OP_SOCKET, IORING_OP_URING_CMD (for drivers), IORING_OP_RECV_ZC (for network cards).
const REFUSED: [u8; 3] = [45, 46, 58];
const OPERATIONS_KNOWN_MAX: usize = 256;

/// `struct io_uring_restriction`.
#[repr(C)]
#[derive(Clone, Copy)]
struct Restriction {
    kind: u16,
    value: u8,
    zero: [u8; 13],
}

/// Answers `io_uring_setup`. The program gets the error, if there is one, as its result.
pub fn answer(listener: &OwnedFd, asked: &libc::seccomp_notif) -> Result<(), i32> {
    make(listener, asked).map_err(|e| e.raw_os_error().unwrap_or(libc::ENOSYS))
}

fn make(listener: &OwnedFd, asked: &libc::seccomp_notif) -> io::Result<()> {
    let [entries, at, ..] = asked.data.args;
    let memory = open(format!("/proc/{}/mem", asked.pid), OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())?;
    let memory = File::from(memory);
    let mut id = asked.id;
    // SAFETY: the request reads `id`, which outlives the call. As the process still asks, the memory is its own.
    checked(unsafe { libc::ioctl(listener.as_raw_fd(), STILL_ASKS, &mut id) }.into())?;
    let mut parameters = [0_u8; PARAMETER_BYTES];
    memory.read_exact_at(&mut parameters, at).map_err(|_| io::Error::from_raw_os_error(libc::EFAULT))?;
    let flags = u32::from_ne_bytes(parameters[FLAGS_AT..FLAGS_AT + 4].try_into().expect("four bytes"));
    let ring = restricted(entries as u32, flags, &mut parameters)?;
    memory.write_all_at(&parameters, at).map_err(|_| io::Error::from_raw_os_error(libc::EFAULT))?;
    let (srcfd, newfd_flags) = (ring.as_raw_fd() as u32, libc::O_CLOEXEC as u32);
    let mut added = libc::seccomp_notif_addfd { id: asked.id, flags: AS_ANSWER, srcfd, newfd: 0, newfd_flags };
    // SAFETY: the request reads `added`, which outlives the call.
    checked(unsafe { libc::ioctl(listener.as_raw_fd(), ADD_DESCRIPTOR, &mut added) }.into()).map(drop)
}

/// Makes a ring that allows no operation that the filter refuses.
fn restricted(entries: u32, flags: u32, parameters: &mut [u8; PARAMETER_BYTES]) -> io::Result<OwnedFd> {
    if flags & THREAD != 0 {
        return Err(io::Error::from_raw_os_error(libc::EPERM));
    }
    if flags & !(ALLOWED | LEFT_OUT) != 0 {
        return Err(io::Error::from_raw_os_error(libc::EINVAL));
    }
    parameters[FLAGS_AT..FLAGS_AT + 4].copy_from_slice(&(flags & !LEFT_OUT | DISABLED).to_ne_bytes());
    // SAFETY: the parameters are as large as the kernel has them, and outlive the call.
    let ring = checked(unsafe { libc::syscall(libc::SYS_io_uring_setup, entries, parameters.as_mut_ptr()) })?;
    // SAFETY: the call has just returned this descriptor, and nobody else has it.
    let ring = unsafe { OwnedFd::from_raw_fd(ring as i32) };
    let mut restrictions = Vec::new();
    let mut allow = |kind, value| restrictions.push(Restriction { kind, value, zero: [0; 13] });
    REGISTERED.iter().for_each(|call| allow(0, *call));
    let operations = 0..=last_operation(&ring)?.min(OPERATION_MAX);
    operations.filter(|operation| !REFUSED.contains(operation)).for_each(|operation| allow(1, operation));
    // Kind 2: every flag of an entry is allowed.
    allow(2, u8::MAX);
    register(&ring, RESTRICTIONS, restrictions.as_mut_ptr().cast(), restrictions.len())
        .map_err(|_| io::Error::from_raw_os_error(libc::ENOSYS))?;
    register(&ring, ENABLE, std::ptr::null_mut(), 0)?;
    let now = u32::from_ne_bytes(parameters[FLAGS_AT..FLAGS_AT + 4].try_into().expect("four bytes"));
    parameters[FLAGS_AT..FLAGS_AT + 4].copy_from_slice(&(now & !DISABLED).to_ne_bytes());
    Ok(ring)
}

/// The last operation that the kernel knows. The kernel refuses restrictions that name operations beyond it.
fn last_operation(ring: &OwnedFd) -> io::Result<u8> {
    // `struct io_uring_probe`: the last operation comes first; 16 bytes, and 8 for each operation.
    let mut probe = [0_u64; 2 + OPERATIONS_KNOWN_MAX];
    register(ring, PROBE, probe.as_mut_ptr().cast(), OPERATIONS_KNOWN_MAX)?;
    Ok(probe[0].to_ne_bytes()[0])
}

fn register(ring: &OwnedFd, call: u32, at: *mut libc::c_void, count: usize) -> io::Result<()> {
    // SAFETY: the callers pass as many structures as the call takes, which outlive it.
    checked(unsafe { libc::syscall(libc::SYS_io_uring_register, ring.as_raw_fd(), call, at, count) }).map(drop)
}

fn checked(result: libc::c_long) -> io::Result<libc::c_long> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}
