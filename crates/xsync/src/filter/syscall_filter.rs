//! The system-call filter of a session: flushes return at once, and calls that would lead out are refused.
//!
//! The filter is classic BPF over the number of a call and its arguments. It is installed with CAP_SYS_ADMIN
//! instead of `no_new_privs`, so that programs like `su` still work in the session.

use anyhow::{Context, Result};
use std::io;
use std::os::fd::{FromRawFd, OwnedFd};

/// The treatment of maps that a session shares with files.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Maps {
    /// They work; a later store may survive a crash that loses an earlier write
    #[default]
    Allow,
    /// A writable shared map of a file fails with EPERM
    Refuse,
    /// They work; from the first one on, fsync and similar calls commit
    Strict,
}

/// The system calls of an ABI that the filter treats, by their numbers.
#[derive(Debug)]
struct Abi {
    /// AUDIT_ARCH_* of `<linux/audit.h>`.
    architecture: u32,
    /// Numbers from here on belong to another ABI.
    numbers_end: u32,
    /// Flushes of a descriptor. They return 0 without a flush, because the session's output waits for the disk instead.
    flush: &'static [libc::c_long],
    /// `sync`, a flush without a descriptor.
    sync: libc::c_long,
    mmap: libc::c_long,
    /// The old `mmap`, whose arguments are in memory.
    old_mmap: Option<libc::c_long>,
    sockets: [libc::c_long; 2],
    /// `socketcall`, which makes sockets, and has its arguments in memory.
    socketcall: Option<libc::c_long>,
    /// Calls that rename, each with the index of the argument that is the old path. If the index is not 0, the argument
    /// before it is the directory.
    renames: &'static [(libc::c_long, usize)],
    /// Refused calls, which would lead out of the session: the kernel's keys and BPF programs, and files by handle on
    /// any mount.
    refused: [libc::c_long; 6],
    /// Calls that return ENOSYS, as on a kernel without them: io_uring opens sockets and flushes without passing the
    /// filter.
    missing: [libc::c_long; 3],
    /// Whether the supervisor can make rings of io_uring.
    has_rings: bool,
}

const NATIVE: Abi = Abi {
    #[cfg(target_arch = "x86_64")]
    architecture: 0xC000_003E,
    #[cfg(target_arch = "aarch64")]
    architecture: 0xC000_00B7,
    // Numbers of x32 have this bit.
    numbers_end: 0x4000_0000,
    flush: &[libc::SYS_fsync, libc::SYS_fdatasync, libc::SYS_syncfs, libc::SYS_sync_file_range],
    sync: libc::SYS_sync,
    mmap: libc::SYS_mmap,
    old_mmap: None,
    sockets: [libc::SYS_socket, libc::SYS_socketpair],
    socketcall: None,
    renames: &[
        #[cfg(target_arch = "x86_64")]
        (libc::SYS_rename, 0),
        (libc::SYS_renameat, 1),
        (libc::SYS_renameat2, 1),
    ],
    refused: [
        libc::SYS_keyctl,
        libc::SYS_add_key,
        libc::SYS_request_key,
        libc::SYS_bpf,
        libc::SYS_perf_event_open,
        libc::SYS_open_by_handle_at,
    ],
    missing: [libc::SYS_io_uring_setup, libc::SYS_io_uring_enter, libc::SYS_io_uring_register],
    has_rings: true,
};

/// 32-bit programs on x86-64: numbers of `<asm/unistd_32.h>`.
#[cfg(target_arch = "x86_64")]
const I386: Abi = Abi {
    architecture: 0x4000_0003,
    numbers_end: 0x4000_0000,
    flush: &[118, 148, 344, 314],
    sync: 36,
    mmap: 192,
    old_mmap: Some(90),
    sockets: [359, 360],
    socketcall: Some(102),
    renames: &[(38, 0), (302, 1), (353, 1)],
    refused: [288, 286, 287, 357, 336, 342],
    missing: [425, 426, 427],
    has_rings: false,
};

/// The ABIs that a session supports. Programs of all others are ended, with a message.
#[cfg(target_arch = "x86_64")]
const ABIS: [&Abi; 2] = [&NATIVE, &I386];
#[cfg(not(target_arch = "x86_64"))]
const ABIS: [&Abi; 1] = [&NATIVE];

/// The calls of `socketcall` that make sockets: SYS_SOCKET, SYS_SOCKETPAIR of `<linux/net.h>`.
const MAKE_SOCKETS: [u32; 2] = [1, 8];
/// The number -1, and all numbers from here on, are no calls in any ABI.
const NO_CALL: u32 = 1 << 31;
/// The families of sockets that stay in the session's network namespace.
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

/// A system call that the supervisor answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Call {
    /// A flush of a descriptor.
    Flush,
    /// `sync`.
    Sync,
    /// A shared map of a file.
    Map,
    /// Perhaps a shared map of a file: the arguments are in memory, as six numbers of 32 bits.
    OldMap,
    /// A rename, with the index of the argument that is the old path.
    Rename(usize),
    /// A ring of io_uring.
    Ring,
    /// A call of an ABI whose programs do not run in sessions.
    Unknown,
}

/// The call that the filter forwarded.
pub fn call_of(asked: &libc::seccomp_data) -> Call {
    let abi = ABIS.into_iter().find(|abi| abi.architecture == asked.arch && (asked.nr as u32) < abi.numbers_end);
    let (Some(abi), number) = (abi, libc::c_long::from(asked.nr)) else { return Call::Unknown };
    if let Some((_, path)) = abi.renames.iter().find(|(call, _)| *call == number) {
        return Call::Rename(*path);
    }
    match number {
        _ if number == abi.mmap => Call::Map,
        _ if Some(number) == abi.old_mmap => Call::OldMap,
        _ if number == abi.sync => Call::Sync,
        _ if abi.flush.contains(&number) => Call::Flush,
        _ => Call::Ring,
    }
}

/// The filter, with a part for each ABI. With `exact`, the overlay answers flushes of a descriptor, and the supervisor
/// makes rings of io_uring. With `renames`, the supervisor examines renames.
pub fn program(maps: Maps, exact: bool, renames: bool) -> Vec<Instruction> {
    let mut filter = vec![load(ARCHITECTURE_AT)];
    for abi in ABIS {
        let part = part(abi, maps, exact, renames);
        filter.push(jump(libc::BPF_JEQ, abi.architecture, 1, 0));
        filter.push(statement(libc::BPF_JMP | libc::BPF_JA, part.len() as u32));
        filter.extend(part);
    }
    filter.push(answer(NOTIFY));
    filter
}

/// A block for each call that is not simply allowed; each block ends with an answer.
fn part(abi: &Abi, maps: Maps, exact: bool, renames: bool) -> Vec<Instruction> {
    let mut filter = vec![
        load(NUMBER_AT),
        jump(libc::BPF_JGE, NO_CALL, 0, 1),
        answer(errno(libc::ENOSYS)),
        jump(libc::BPF_JGE, abi.numbers_end, 0, 1),
        answer(NOTIFY),
    ];
    let mut on = |call: libc::c_long, block: &[Instruction]| {
        filter.push(jump(libc::BPF_JEQ, call as u32, 0, block.len() as u8));
        filter.extend_from_slice(block);
    };
    let synced = if maps == Maps::Strict { NOTIFY } else { errno(0) };
    for call in abi.flush.iter().filter(|_| !exact || maps == Maps::Strict) {
        let no_descriptor = jump(libc::BPF_JSET, 1 << 31, 0, 1);
        on(*call, &[load(argument_at(0)), no_descriptor, answer(errno(libc::EBADF)), answer(synced)]);
    }
    on(abi.sync, &[answer(synced)]);
    let anonymous = jump(libc::BPF_JSET, libc::MAP_ANONYMOUS as u32, 1, 0);
    let shared = jump(libc::BPF_JSET, libc::MAP_SHARED as u32, 1, 0);
    on(abi.mmap, &[load(argument_at(3)), anonymous, shared, answer(ALLOW), answer(NOTIFY)]);
    abi.old_mmap.iter().for_each(|call| on(*call, &[answer(NOTIFY)]));
    let mut families = vec![load(argument_at(0))];
    for family in FAMILIES {
        families.extend([jump(libc::BPF_JEQ, family as u32, 0, 1), answer(ALLOW)]);
    }
    families.push(answer(errno(libc::EAFNOSUPPORT)));
    abi.sockets.iter().for_each(|call| on(*call, &families));
    // The arguments of `socketcall` are in memory, which the program could change after a check. Programs try the calls
    // above first, so the calls of `socketcall` that make sockets are refused.
    let mut makes_sockets = vec![load(argument_at(0))];
    for call in MAKE_SOCKETS {
        makes_sockets.extend([jump(libc::BPF_JEQ, call, 0, 1), answer(errno(libc::ENOSYS))]);
    }
    makes_sockets.push(answer(ALLOW));
    abi.socketcall.iter().for_each(|call| on(*call, &makes_sockets));
    abi.renames.iter().filter(|_| renames).for_each(|(call, _)| on(*call, &[answer(NOTIFY)]));
    abi.refused.iter().for_each(|call| on(*call, &[answer(errno(libc::EPERM))]));
    // With `--maps=strict` a flush waits for a commit, and the supervisor could not hold a flush in a ring.
    if abi.has_rings && exact && maps != Maps::Strict {
        on(abi.missing[0], &[answer(NOTIFY)]);
    } else {
        abi.missing.iter().for_each(|call| on(*call, &[answer(errno(libc::ENOSYS))]));
    }
    filter.push(answer(ALLOW));
    filter
}

/// Installs the filter for this process and all its later children. Needs CAP_SYS_ADMIN.
///
/// Returns the descriptor on which a supervisor receives the forwarded calls.
pub fn install(maps: Maps, exact: bool, renames: bool) -> Result<OwnedFd> {
    let mut filter = program(maps, exact, renames);
    let program = libc::sock_fprog { len: filter.len() as u16, filter: filter.as_mut_ptr() };
    let attempt = |flags: libc::c_ulong| {
        // SAFETY: the call reads `program`, which outlives the call.
        unsafe { libc::syscall(libc::SYS_seccomp, libc::SECCOMP_SET_MODE_FILTER, flags, &program) }
    };
    // With this flag a signal does not interrupt a call that the supervisor is answering. Older kernels do not have it.
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
