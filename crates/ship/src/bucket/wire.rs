//! Frames between a shipper and the program that serves a directory of another machine, over a connection of ssh.
//!
//! A frame has its length (4 bytes, of the rest), the number of the request (8 bytes), a kind (1 byte), and a body. All
//! numbers are little-endian. A text has its length before it (2 bytes).

use crate::bucket::{Created, Failed};
use bytes::Bytes;
use std::io::{self, Read, Write};

/// The first line of the serving program. Other output may come before it, such as that of a login shell.
pub const GREETING: &str = "untorn-ship serves version 1\n";

/// Most bytes of a frame: an object, and its name.
const FRAME_BYTES_MAX: usize = 1 << 30;
/// Most bytes of a name.
const NAME_BYTES_MAX: usize = 1024;

/// A request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Request {
    /// [`crate::bucket::Bucket::create`]
    Create(String, Bytes),
    /// [`crate::bucket::Bucket::get`]
    Get(String, u64),
    /// [`crate::bucket::Bucket::list`]; an empty text stands for no name.
    List(String, String),
    /// [`crate::bucket::Bucket::delete`]
    Delete(String),
}

/// The answer to a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// The object is new; the object was deleted.
    Done,
    /// The name is taken.
    Exists,
    /// It is not known whether the object is there.
    Unknown(String),
    /// There is no such object.
    Nothing,
    /// The object.
    Object(Bytes),
    /// Names.
    Names(Vec<String>),
    /// The request failed; whether it can succeed later.
    Failed(String, bool),
}

fn broken(why: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, why.to_owned())
}

/// Writes a frame.
///
/// # Errors
/// The connection.
fn send(to: &mut dyn Write, number: u64, kind: u8, parts: &[&[u8]]) -> io::Result<()> {
    let len = 9 + parts.iter().map(|part| part.len()).sum::<usize>();
    if len > FRAME_BYTES_MAX {
        return Err(broken("the object is too large for the connection"));
    }
    to.write_all(&(len as u32).to_le_bytes())?;
    to.write_all(&number.to_le_bytes())?;
    to.write_all(&[kind])?;
    parts.iter().try_for_each(|part| to.write_all(part))?;
    to.flush()
}

/// Reads a frame; `None` at the end of the connection.
fn receive(from: &mut dyn Read) -> io::Result<Option<(u64, u8, Bytes)>> {
    let mut len = [0; 4];
    let mut got = 0;
    while got < len.len() {
        match from.read(&mut len[got..]) {
            Ok(0) if got == 0 => return Ok(None),
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(n) => got += n,
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
        }
    }
    let len = u32::from_le_bytes(len) as usize;
    if !(9..=FRAME_BYTES_MAX).contains(&len) {
        return Err(broken("the other side sent something else than frames"));
    }
    let mut frame = Vec::new();
    // Memory grows with the bytes that come, not with the number that was announced.
    if from.take(len as u64).read_to_end(&mut frame)? < len {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    let number = u64::from_le_bytes(frame[..8].try_into().expect("8 bytes"));
    Ok(Some((number, frame[8], Bytes::from(frame).slice(9..))))
}

/// A text with its length before it.
fn text(value: &str) -> Vec<u8> {
    // A reason may be long; a name is not.
    let value: String = value.chars().take(usize::from(u16::MAX) / 4).collect();
    [&(value.len() as u16).to_le_bytes()[..], value.as_bytes()].concat()
}

fn take_text(body: &mut Bytes) -> io::Result<String> {
    let short = || broken("a frame is too short");
    if body.len() < 2 {
        return Err(short());
    }
    let len = usize::from(u16::from_le_bytes([body[0], body[1]]));
    if body.len() < 2 + len {
        return Err(short());
    }
    let value = body.split_to(2 + len).slice(2..);
    String::from_utf8(value.to_vec()).map_err(|_| broken("a name is not UTF-8"))
}

impl Request {
    /// Sends the request under a number.
    ///
    /// # Errors
    /// The connection.
    pub fn send(&self, to: &mut dyn Write, number: u64) -> io::Result<()> {
        match self {
            Request::Create(name, bytes) => send(to, number, 1, &[&text(name), bytes]),
            Request::Get(name, bytes_max) => send(to, number, 2, &[&text(name), &bytes_max.to_le_bytes()]),
            Request::List(prefix, after) => send(to, number, 3, &[&text(prefix), &text(after)]),
            Request::Delete(name) => send(to, number, 4, &[&text(name)]),
        }
    }

    /// Receives a request and its number; `None` at the end.
    ///
    /// # Errors
    /// The connection, or a frame that is no request.
    pub fn receive(from: &mut dyn Read) -> io::Result<Option<(u64, Request)>> {
        let Some((number, kind, mut body)) = receive(from)? else { return Ok(None) };
        let name = take_text(&mut body)?;
        let request = match kind {
            1 => Request::Create(name, body),
            2 => {
                let bytes_max = body.as_ref().try_into().map_err(|_| broken("a frame has a wrong length"))?;
                Request::Get(name, u64::from_le_bytes(bytes_max))
            }
            3 => Request::List(name, take_text(&mut body)?),
            4 => Request::Delete(name),
            _ => return Err(broken("an unknown request: the other side is a newer version")),
        };
        request.check().map_err(|why| broken(&why))?;
        Ok(Some((number, request)))
    }

    /// Whether names are plain: below the directory, and none of another kind of file.
    fn check(&self) -> Result<(), String> {
        let (name, is_whole) = match self {
            Request::Create(name, _) | Request::Get(name, _) | Request::Delete(name) => (name, true),
            Request::List(prefix, _) => (prefix, false),
        };
        let is_plain = |part: &str| {
            let is_known = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
            part.bytes().all(is_known) && !part.starts_with('.') && (!part.is_empty() || !is_whole)
        };
        match name.len() <= NAME_BYTES_MAX && name.split('/').all(is_plain) {
            true => Ok(()),
            false => Err(format!("{name:?} is no name of an object")),
        }
    }
}

impl Answer {
    /// Sends the answer to the request of this number.
    ///
    /// # Errors
    /// The connection.
    pub fn send(&self, to: &mut dyn Write, number: u64) -> io::Result<()> {
        match self {
            Answer::Done => send(to, number, 1, &[]),
            Answer::Exists => send(to, number, 2, &[]),
            Answer::Unknown(why) => send(to, number, 3, &[&text(why)]),
            Answer::Nothing => send(to, number, 4, &[]),
            Answer::Object(bytes) => send(to, number, 5, &[bytes]),
            Answer::Names(names) => {
                send(to, number, 6, &[&names.iter().flat_map(|name| text(name)).collect::<Vec<_>>()])
            }
            Answer::Failed(why, is_transient) => send(to, number, 7, &[&[u8::from(*is_transient)], &text(why)]),
        }
    }

    /// Receives an answer, and the number of its request; `None` at the end.
    ///
    /// # Errors
    /// The connection, or a frame that is no answer.
    pub fn receive(from: &mut dyn Read) -> io::Result<Option<(u64, Answer)>> {
        let Some((number, kind, mut body)) = receive(from)? else { return Ok(None) };
        let answer = match kind {
            1 => Answer::Done,
            2 => Answer::Exists,
            3 => Answer::Unknown(take_text(&mut body)?),
            4 => Answer::Nothing,
            5 => Answer::Object(body),
            6 => {
                let mut names = Vec::new();
                while !body.is_empty() {
                    names.push(take_text(&mut body)?);
                }
                Answer::Names(names)
            }
            7 if !body.is_empty() => {
                let is_transient = body.split_to(1)[0] != 0;
                Answer::Failed(take_text(&mut body)?, is_transient)
            }
            _ => return Err(broken("an unknown answer: the other side is a newer version")),
        };
        Ok(Some((number, answer)))
    }

    /// The answer to a request that failed.
    pub fn of(failed: Failed) -> Answer {
        Answer::Failed(failed.reason, failed.is_transient)
    }
}

impl From<Created> for Answer {
    fn from(created: Created) -> Answer {
        match created {
            Created::New => Answer::Done,
            Created::Exists => Answer::Exists,
            Created::Unknown(failed) => Answer::Unknown(failed.reason),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn through(request: &Request) -> io::Result<Option<(u64, Request)>> {
        let mut bytes = Vec::new();
        request.send(&mut bytes, 7)?;
        Request::receive(&mut bytes.as_slice())
    }

    #[test]
    fn requests_and_answers_come_as_they_were_sent() {
        let name = || "log/0000000001/00000000000000000002".to_owned();
        let requests = [
            Request::Create(name(), Bytes::from_static(b"\0bytes")),
            Request::Get(name(), 1 << 40),
            Request::List("log/".into(), name()),
            Request::Delete(name()),
        ];
        for request in requests {
            assert_eq!(through(&request).unwrap(), Some((7, request)));
        }
        let answers = [
            Answer::Done,
            Answer::Unknown("why".into()),
            Answer::Object(Bytes::from_static(b"\0")),
            Answer::Names(vec![name(), String::new()]),
            Answer::Failed("no".into(), true),
        ];
        for answer in answers {
            let mut bytes = Vec::new();
            answer.send(&mut bytes, 9).unwrap();
            assert_eq!(Answer::receive(&mut bytes.as_slice()).unwrap(), Some((9, answer)));
        }
    }

    #[test]
    fn names_that_lead_elsewhere_are_refused() {
        for name in ["", "/etc/passwd", "log/../../x", "log//x", "log/.hidden", "a\nb", &"x/".repeat(600)] {
            through(&Request::Get(name.into(), 1)).expect_err(name);
        }
    }

    #[test]
    fn cut_and_absurd_frames_are_errors() {
        let mut bytes = Vec::new();
        Request::Delete("log/1".into()).send(&mut bytes, 7).unwrap();
        for len in 1..bytes.len() {
            Request::receive(&mut &bytes[..len]).expect_err("a cut frame");
        }
        Request::receive(&mut &[0xff; 64][..]).expect_err("a frame of 4 GiB");
        Request::receive(&mut &b"Welcome to this machine"[..]).expect_err("a text");
    }
}
