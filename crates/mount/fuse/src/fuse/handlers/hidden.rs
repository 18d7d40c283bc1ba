//! Answers requests in the hidden directory, and to the file of marks in it.

use super::{Handlers, errno};
use crate::fuse::arrivals::mark_len;
use crate::fuse::kernel_cache::{HIDDEN, MARKS};
use crate::fuse::protocol::{Answer, Fields, Header, MAX_READ, opcode};
use crate::fuse::write_back_helper::marks;
use untorn_tree::{Attributes, Errno, Kind, ROOT, Result};

impl Handlers {
    /// Answers a request in the hidden directory, where files can be opened by their numbers, and nothing else can be
    /// done.
    pub(super) fn hidden(&self, header: &Header, mut fields: Fields<'_>) -> Result<Answer> {
        match header.opcode {
            opcode::LOOKUP => {
                let name = fields.name()?;
                if name == marks::NAME {
                    return Ok(Answer::default().unbelieved_entry(&self.marks_attributes()?));
                }
                let ino = name.to_str().and_then(|name| name.parse().ok()).ok_or(Errno(libc::ENOENT))?;
                let found = self.tree.attributes(ino)?;
                if found.kind != Kind::File || !self.cache.gives(ino, header.thread) {
                    return errno(libc::ENOENT);
                }
                Ok(Answer::default().unbelieved_entry(&found))
            }
            opcode::GETATTR => Ok(Answer::default().stat(&self.hidden_attributes()?)),
            opcode::STATFS => Ok(Answer::default().space(&self.tree.space()?)),
            opcode::OPENDIR => Ok(Answer::default().opened_directory()),
            opcode::RELEASEDIR => Ok(Answer::default()),
            _ => errno(libc::EACCES),
        }
    }

    /// Answers a request to the file of marks.
    pub(super) fn marks(&self, header: &Header, mut fields: Fields<'_>) -> Result<Answer> {
        match header.opcode {
            opcode::GETATTR => Ok(Answer::default().stat(&self.marks_attributes()?)),
            opcode::STATFS => Ok(Answer::default().space(&self.tree.space()?)),
            opcode::OPEN => Ok(Answer::default().opened(0, false)),
            opcode::RELEASE => Ok(Answer::default()),
            opcode::READ => {
                fields.skip(16)?;
                let len = fields.u32()? as usize;
                if len < mark_len() {
                    return errno(libc::EAGAIN);
                }
                if let Some(arrivals) = self.cache.arrivals() {
                    arrivals.wait();
                }
                Ok(Answer::default().raw(&vec![0; len.min(MAX_READ)]))
            }
            opcode::FLUSH => errno(libc::ENOSYS),
            _ => errno(libc::EACCES),
        }
    }

    pub(super) fn hidden_attributes(&self) -> Result<Attributes> {
        Ok(Attributes {
            ino: HIDDEN,
            kind: Kind::Directory,
            mode: 0o700,
            uid: rustix::process::geteuid().as_raw(),
            gid: rustix::process::getegid().as_raw(),
            nlink: 2,
            ..self.tree.attributes(ROOT)?
        })
    }

    fn marks_attributes(&self) -> Result<Attributes> {
        let of = self.hidden_attributes()?;
        Ok(Attributes { ino: MARKS, kind: Kind::File, mode: 0o600, nlink: 1, size: marks::SIZE, ..of })
    }
}
