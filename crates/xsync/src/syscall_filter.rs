//! The system calls of a session: those that wait for the disk answer at once, those that lead out are refused.
//!
//! The filter is classic BPF over the number of a call and its arguments. It is installed with CAP_SYS_ADMIN
//! instead of `no_new_privs`, so that programs like `su` still work in the session.

use anyhow::{Context, Result};
use std::io;
use std::os::fd::{FromRawFd, OwnedFd};

/// What is done about maps that a session shares with files.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Maps {
    /// They work; a later store may survive an earlier write
    #[default]
    Allow,
    /// A writable shared map of a file fails with EPERM
    Refuse,
    /// As soon as there is one, fsync and its kin commit
    Strict,
}

#[cfg(target_arch = "x86_64")]
const ARCHITECTURE: u32 = 0xC000_003E;
#[cfg(target_arch = "aarch64")]
const ARCHITECTURE: u32 = 0xC000_00B7;
/// System calls of x32 have this bit; another ABI of the same machine.
const X32: u32 = 0x4000_0000;

/// Answered with 0 without any flush, as the session's output waits for the disk instead.
const SYNC_OF_A_DESCRIPTOR: [libc::c_long; 4] =
    [libc::SYS_fsync, libc::SYS_fdatasync, libc::SYS_syncfs, libc::SYS_sync_file_range];
/// Leads past the session's walls: keys and programs of the kernel, files by their handle on any mount.
const REFUSED: [libc::c_long; 6] = [
    libc::SYS_keyctl,
    libc::SYS_add_key,
    libc::SYS_request_key,
    libc::SYS_bpf,
    libc::SYS_perf_event_open,
    libc::SYS_open_by_handle_at,
];
/// As on a kernel without it: io_uring opens sockets, and flushes, behind the filter's back.
const MISSING: [libc::c_long; 3] = [libc::SYS_io_uring_setup, libc::SYS_io_uring_enter, libc::SYS_io_uring_register];
/// Sockets that stay in the session's network namespace.
const FAMILIES: [libc::c_int; 4] = [libc::AF_UNIX, libc::AF_INET, libc::AF_INET6, libc::AF_NETLINK];

const ALLOW: u32 = libc::SECCOMP_RET_ALLOW;
const NOTIFY: u32 = libc::SECCOMP_RET_USER_NOTIF;
const fn errno(number: libc::c_int) -> u32 {
    libc::SECCOMP_RET_ERRNO | number as u32
}

/// Offsets in `struct seccomp_data`.
const NUMBER_AT: u32 = 0;
const ARCHITECTURE_AT: u32 = 4;
const fn argument_at(n: u32) -> u32 {
    16 + 8 * n
}

type Instruction = libc::sock_filter;

const fn statement(code: u32, k: u32) -> Instruction {
    Instruction { code: code as u16, jt: 0, jf: 0, k }
}

const fn jump(kind: u32, k: u32, if_true: u8, if_false: u8) -> Instruction {
    Instruction { code: (libc::BPF_JMP | kind | libc::BPF_K) as u16, jt: if_true, jf: if_false, k }
}

const fn load(at: u32) -> Instruction {
    statement(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, at)
}

const fn answer(value: u32) -> Instruction {
    statement(libc::BPF_RET | libc::BPF_K, value)
}

/// The filter: a block for each call that is not simply allowed; each block ends with an answer. With `exact`, flushes of
/// a descriptor are the overlay's, and rings of io_uring are made by the supervisor.
pub fn program(maps: Maps, exact: bool) -> Vec<Instruction> {
    let mut filter = vec![
        load(ARCHITECTURE_AT),
        jump(libc::BPF_JEQ, ARCHITECTURE, 1, 0),
        answer(errno(libc::ENOSYS)),
        load(NUMBER_AT),
        jump(libc::BPF_JGE, X32, 0, 1),
        answer(errno(libc::ENOSYS)),
    ];
    let mut on = |call: libc::c_long, block: &[Instruction]| {
        filter.push(jump(libc::BPF_JEQ, call as u32, 0, block.len() as u8));
        filter.extend_from_slice(block);
    };
    let synced = if maps == Maps::Strict { NOTIFY } else { errno(0) };
    for call in SYNC_OF_A_DESCRIPTOR.into_iter().filter(|_| !exact || maps == Maps::Strict) {
        let no_descriptor = jump(libc::BPF_JSET, 1 << 31, 0, 1);
        on(call, &[load(argument_at(0)), no_descriptor, answer(errno(libc::EBADF)), answer(synced)]);
    }
    on(libc::SYS_sync, &[answer(synced)]);
    let anonymous = jump(libc::BPF_JSET, libc::MAP_ANONYMOUS as u32, 1, 0);
    let shared = jump(libc::BPF_JSET, libc::MAP_SHARED as u32, 1, 0);
    on(libc::SYS_mmap, &[load(argument_at(3)), anonymous, shared, answer(ALLOW), answer(NOTIFY)]);
    let mut families = vec![load(argument_at(0))];
    for family in FAMILIES {
        families.extend([jump(libc::BPF_JEQ, family as u32, 0, 1), answer(ALLOW)]);
    }
    families.push(answer(errno(libc::EAFNOSUPPORT)));
    on(libc::SYS_socket, &families);
    on(libc::SYS_socketpair, &families);
    REFUSED.iter().for_each(|call| on(*call, &[answer(errno(libc::EPERM))]));
    // Flushes in a ring could not be held until a commit, as strict maps ask for.
    if exact && maps != Maps::Strict {
        on(libc::SYS_io_uring_setup, &[answer(NOTIFY)]);
    } else {
        MISSING.iter().for_each(|call| on(*call, &[answer(errno(libc::ENOSYS))]));
    }
    filter.push(answer(ALLOW));
    filter
}

/// Installs the filter for this process and all that it starts. Returns the descriptor that hears what the filter
/// asks a supervisor about. Needs CAP_SYS_ADMIN.
pub fn install(maps: Maps, exact: bool) -> Result<OwnedFd> {
    let mut filter = program(maps, exact);
    let program = libc::sock_fprog { len: filter.len() as u16, filter: filter.as_mut_ptr() };
    let attempt = |flags: libc::c_ulong| {
        // SAFETY: `program` is what the call reads, and outlives the call.
        unsafe { libc::syscall(libc::SYS_seccomp, libc::SECCOMP_SET_MODE_FILTER, flags, &program) }
    };
    // A signal does not interrupt a call that the supervisor is looking at; older kernels do not know that.
    let mut listener = attempt(libc::SECCOMP_FILTER_FLAG_NEW_LISTENER | libc::SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV);
    if listener < 0 {
        listener = attempt(libc::SECCOMP_FILTER_FLAG_NEW_LISTENER);
    }
    if listener < 0 {
        return Err(io::Error::last_os_error()).context("cannot install the filter of system calls (seccomp)");
    }
    // SAFETY: the call has just returned this descriptor, and nobody else has it.
    Ok(unsafe { OwnedFd::from_raw_fd(listener as libc::c_int) })
}
