//! Passes descriptors between processes of a mount: in messages, and at their start.

use anyhow::{Result, ensure};
use rustix::fd::{AsFd, BorrowedFd, FromRawFd, OwnedFd};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags, SocketFlags, SocketType,
};
use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;

/// Makes the two ends of a connection. A message arrives whole; when one process ends, the other receives the end of
/// the connection.
pub fn connection() -> rustix::io::Result<(OwnedFd, OwnedFd)> {
    rustix::net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)
}

/// Sends a message, perhaps with a descriptor.
pub fn send(to: impl AsFd, bytes: &[u8], descriptor: Option<BorrowedFd<'_>>) -> rustix::io::Result<()> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    let descriptors: Vec<BorrowedFd<'_>> = descriptor.into_iter().collect();
    if !descriptors.is_empty() {
        ancillary.push(SendAncillaryMessage::ScmRights(&descriptors));
    }
    loop {
        match rustix::net::sendmsg(&to, &[IoSlice::new(bytes)], &mut ancillary, SendFlags::NOSIGNAL) {
            Err(Errno::INTR) => {}
            done => return done.map(drop),
        }
    }
}

/// Receives the next message: its length, 0 at the end of the connection, and perhaps a descriptor.
pub fn receive(from: impl AsFd, bytes: &mut [u8]) -> rustix::io::Result<(usize, Option<OwnedFd>)> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let received = loop {
        match rustix::net::recvmsg(&from, &mut [IoSliceMut::new(bytes)], &mut ancillary, RecvFlags::CMSG_CLOEXEC) {
            Err(Errno::INTR) => {}
            done => break done?,
        }
    };
    let descriptor = ancillary.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut descriptors) => descriptors.next(),
        _ => None,
    });
    Ok((received.bytes, descriptor))
}

/// Takes a descriptor that this process inherited, by its number. Child processes do not inherit it.
pub fn inherited(number: i32) -> Result<OwnedFd> {
    ensure!(number > 2, "{number} is no descriptor that was passed");
    // SAFETY: a system call about a number, which may be that of no descriptor.
    let known = unsafe { libc::fcntl(number, libc::F_SETFD, libc::FD_CLOEXEC) };
    ensure!(known == 0, "descriptor {number} was not passed: {}", std::io::Error::last_os_error());
    // SAFETY: it is open, and by agreement with the process that passed it nothing else here has it.
    Ok(unsafe { OwnedFd::from_raw_fd(number) })
}
