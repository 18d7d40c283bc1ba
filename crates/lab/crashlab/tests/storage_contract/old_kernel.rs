//! Makes newer system calls unavailable to a thread, like an old kernel or a container's filter, so that the rules test
//! the library's fallbacks.

use std::io;

/// `PAGEMAP_SCAN` of `<linux/fs.h>`, Linux 6.7.
const PAGEMAP_SCAN: u32 = 0xc060_6610;

/// System calls that an old kernel does not have, or that a filter forbids.
const MISSING: [libc::c_long; 5] = [
    libc::SYS_openat2,
    libc::SYS_renameat2,
    libc::SYS_userfaultfd,
    libc::SYS_process_vm_readv,
    libc::SYS_process_vm_writev,
];

fn statement(code: u32, k: u32) -> libc::sock_filter {
    libc::sock_filter { code: code as u16, jt: 0, jf: 0, k }
}

/// Continues with the next statement if the value is `k`, and skips `skip` statements otherwise.
fn unless_equal(k: u32, skip: u8) -> libc::sock_filter {
    libc::sock_filter { code: (libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K) as u16, jt: 0, jf: skip, k }
}

/// From now on this thread, and those that it starts, do without these system calls (`ENOSYS`) and without
/// `PAGEMAP_SCAN` (`ENOTTY`).
pub fn imitate() -> io::Result<()> {
    let load = libc::BPF_LD | libc::BPF_W | libc::BPF_ABS;
    let answer = libc::BPF_RET | libc::BPF_K;
    let refuse = |errno: i32| statement(answer, libc::SECCOMP_RET_ERRNO | errno as u32);
    let number = std::mem::offset_of!(libc::seccomp_data, nr) as u32;
    // The lower half of the second argument, for both byte orders.
    let lower = if cfg!(target_endian = "big") { 4 } else { 0 };
    let request = (std::mem::offset_of!(libc::seccomp_data, args) + 8 + lower) as u32;
    let mut filter = vec![statement(load, number)];
    for call in MISSING {
        filter.extend([unless_equal(call as u32, 1), refuse(libc::ENOSYS)]);
    }
    filter.extend([unless_equal(libc::SYS_ioctl as u32, 3), statement(load, request)]);
    filter.extend([unless_equal(PAGEMAP_SCAN, 1), refuse(libc::ENOTTY)]);
    filter.push(statement(answer, libc::SECCOMP_RET_ALLOW));
    let program = libc::sock_fprog { len: filter.len() as u16, filter: filter.as_mut_ptr() };
    // SAFETY: plain numbers; the kernel asks for this before it takes a filter from an ordinary user.
    let done = unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) };
    if done != 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the kernel copies the filter, which is alive until then, and checks it.
    let done = unsafe { libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const program) };
    if done == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}
