//! Netlink messages, which configure the network in the kernel.

use anyhow::{Context, Result, bail};
use rustix::net::{AddressFamily, Protocol, RecvFlags, SendFlags, SocketFlags, SocketType, recv, send, socket_with};
use std::io;

const HEADER_BYTES: usize = 16;
const NESTED: u16 = 0x8000;

/// The attributes of a message, or nested in an attribute.
#[derive(Clone, Debug, Default)]
pub struct Attributes(Vec<u8>);

impl Attributes {
    /// Adds an attribute with these bytes.
    pub fn with(mut self, kind: u16, bytes: &[u8]) -> Attributes {
        self.0.extend_from_slice(&(4 + bytes.len() as u16).to_ne_bytes());
        self.0.extend_from_slice(&kind.to_ne_bytes());
        self.0.extend_from_slice(bytes);
        self.0.resize(self.0.len().next_multiple_of(4), 0);
        self
    }

    /// Adds a number, in network byte order.
    pub fn with_number(self, kind: u16, number: u32) -> Attributes {
        self.with(kind, &number.to_be_bytes())
    }

    /// Adds a text that ends with a zero byte.
    pub fn with_text(self, kind: u16, text: &str) -> Attributes {
        self.with(kind, &[text.as_bytes(), &[0]].concat())
    }

    /// Adds an attribute that holds these attributes.
    pub fn with_nested(self, kind: u16, inner: Attributes) -> Attributes {
        self.with(kind | NESTED, &inner.0)
    }
}

/// Messages that are sent together, and the number of answers that the kernel will send.
#[derive(Debug, Default)]
pub struct Messages {
    bytes: Vec<u8>,
    answers: usize,
}

impl Messages {
    /// Adds a message: its kind, its flags besides "request", its fixed part and its attributes.
    pub fn push(&mut self, kind: u16, flags: i32, fixed: &[u8], attributes: Attributes) {
        let flags = flags | libc::NLM_F_REQUEST;
        self.answers += usize::from(flags & libc::NLM_F_ACK != 0);
        let length = HEADER_BYTES + fixed.len() + attributes.0.len();
        self.bytes.extend_from_slice(&(length as u32).to_ne_bytes());
        self.bytes.extend_from_slice(&kind.to_ne_bytes());
        self.bytes.extend_from_slice(&(flags as u16).to_ne_bytes());
        self.bytes.extend_from_slice(&[0; 8]);
        self.bytes.extend_from_slice(fixed);
        self.bytes.extend_from_slice(&attributes.0);
    }

    /// Sends the messages, and waits until the kernel has carried out or refused all of them.
    pub fn send(self, protocol: Option<Protocol>) -> Result<()> {
        let socket = socket_with(AddressFamily::NETLINK, SocketType::RAW, SocketFlags::CLOEXEC, protocol)
            .context("a socket to the kernel")?;
        send(&socket, &self.bytes, SendFlags::empty()).context("a message to the kernel")?;
        let (mut done, mut buffer) = (0, vec![0; 16 << 10]);
        while done < self.answers {
            let (_, got) = recv(&socket, &mut buffer[..], RecvFlags::empty()).context("an answer of the kernel")?;
            let mut rest = &buffer[..got];
            while rest.len() >= HEADER_BYTES + 4 {
                let length = u32::from_ne_bytes(rest[..4].try_into().expect("four bytes")) as usize;
                let kind = u16::from_ne_bytes(rest[4..6].try_into().expect("two bytes"));
                let error = i32::from_ne_bytes(rest[HEADER_BYTES..HEADER_BYTES + 4].try_into().expect("four bytes"));
                if i32::from(kind) != libc::NLMSG_ERROR || length < HEADER_BYTES + 4 {
                    bail!("the kernel gave an unexpected answer");
                }
                if error != 0 {
                    return Err(io::Error::from_raw_os_error(-error).into());
                }
                done += 1;
                rest = rest.get(length.next_multiple_of(4)..).unwrap_or_default();
            }
        }
        Ok(())
    }
}
