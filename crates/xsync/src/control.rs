//! Messages between the supervisor and the session's first process, each in one packet.

use anyhow::{Context, Result};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags, SocketFlags, SocketType, recvmsg, sendmsg, socketpair,
};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

const PACKET_BYTES_MAX: usize = 32 << 10;

/// The traffic that a socket of the supervisor in the session's network takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Takes {
    /// Connections to addresses outside.
    Connections,
    /// Datagrams for addresses outside.
    Datagrams,
}

/// Messages from the session's first process.
#[derive(Debug, Serialize, Deserialize)]
pub enum News {
    /// Comes with the descriptor on which the filter's questions arrive.
    Filter,
    /// Comes with the master of the session's terminal.
    Terminal,
    /// Comes with the session's network.
    Network,
    /// Comes with the session's mount namespace.
    Mounts,
    /// Comes with the mount table of that namespace.
    MountTable,
    /// Comes with a socket that takes the traffic to addresses outside.
    WayOut(Takes),
    /// The program runs. The list names the parts of the host that could not be shown.
    Running(Vec<String>),
    /// The program was stopped, by Ctrl-Z or otherwise.
    Stopped,
    /// The program ended, with this exit code in a shell's notation.
    Ended(u8),
    /// The session could not begin: the reason, and the exit code.
    Failed(String, u8),
}

/// Messages from the supervisor.
#[derive(Debug, Serialize, Deserialize)]
pub enum Order {
    /// A signal for the program's process group.
    Signal(i32),
}

/// One end of the connection between the supervisor and the first process.
#[derive(Debug)]
pub struct Control(OwnedFd);

impl Control {
    /// Wraps a connected socket.
    pub fn of(socket: OwnedFd) -> Control {
        Control(socket)
    }

    /// Makes a connection, and returns both ends.
    pub fn pair() -> Result<(Control, Control)> {
        let (a, b) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)
            .context("a socket between supervisor and session")?;
        Ok((Control(a), Control(b)))
    }

    /// Sends a message, perhaps with a descriptor.
    pub fn send(&self, message: &impl Serialize, descriptor: Option<BorrowedFd<'_>>) -> Result<()> {
        let mut bytes = serde_json::to_vec(message).expect("messages are plain data");
        bytes.truncate(PACKET_BYTES_MAX);
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut more = SendAncillaryBuffer::new(&mut space);
        let descriptors: Vec<BorrowedFd<'_>> = descriptor.into_iter().collect();
        if !descriptors.is_empty() {
            more.push(SendAncillaryMessage::ScmRights(&descriptors));
        }
        sendmsg(&self.0, &[IoSlice::new(&bytes)], &mut more, SendFlags::NOSIGNAL)
            .map(drop)
            .context("the other side of the session is gone")
    }

    /// Receives the next message. None if the other side is gone.
    pub fn receive<T: DeserializeOwned>(&self) -> Result<Option<(T, Option<OwnedFd>)>> {
        let mut bytes = vec![0; PACKET_BYTES_MAX];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut more = RecvAncillaryBuffer::new(&mut space);
        let got = loop {
            match recvmsg(&self.0, &mut [IoSliceMut::new(&mut bytes)], &mut more, RecvFlags::CMSG_CLOEXEC) {
                Err(Errno::INTR) => {}
                Err(Errno::CONNRESET) => return Ok(None),
                done => break done.context("the session's socket")?.bytes,
            }
        };
        if got == 0 {
            return Ok(None);
        }
        let descriptor = more.drain().find_map(|message| match message {
            RecvAncillaryMessage::ScmRights(mut all) => all.next(),
            _ => None,
        });
        Ok(Some((serde_json::from_slice(&bytes[..got]).context("a message of the session")?, descriptor)))
    }
}

impl AsFd for Control {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
