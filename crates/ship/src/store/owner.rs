//! The file with the identity under which a directory ships, and the place where it was drawn.
//!
//! ```text
//! file     magic "UNTORN-O", version u32 = 1, zero u32, id (16 bytes), place (16), first 16 bytes of the BLAKE3 before
//! ```

use crate::error::{Error, Result};
use crate::interface::{OwnerId, Random};
use std::fs::{File, OpenOptions};
use std::io::{ErrorKind, Read};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

const MAGIC: &[u8; 12] = b"UNTORN-O\x01\0\0\0";
const BYTES: usize = 64;

/// A file with an owner id. It is made with its first use, and never replaced, because its inode is a part of the place.
#[derive(Clone, Debug)]
pub struct OwnerFile(PathBuf);

impl OwnerFile {
    /// The file under this path.
    pub fn at(path: PathBuf) -> OwnerFile {
        OwnerFile(path)
    }

    /// Its path.
    pub fn path(&self) -> &Path {
        &self.0
    }

    /// The owner id; `None` if none was kept completely.
    ///
    /// # Errors
    /// The file cannot be read.
    pub fn read(&self) -> Result<Option<OwnerId>> {
        let mut file = match File::open(&self.0) {
            Ok(file) => file,
            Err(e) if e.kind() == ErrorKind::NotFound => return Ok(None),
            Err(e) => return Err(self.failed("read", e)),
        };
        let mut bytes = Vec::new();
        file.by_ref().take(BYTES as u64 + 1).read_to_end(&mut bytes).map_err(|e| self.failed("read", e))?;
        let is_whole = bytes.len() == BYTES && bytes.starts_with(MAGIC) && bytes[48..] == sum(&bytes[..48]);
        let random = |at: usize| Random::try_from(&bytes[at..at + 16]).ok();
        Ok(if is_whole { random(16).zip(random(32)).map(|(id, place)| OwnerId { id, place }) } else { None })
    }

    /// Keeps the owner id, durably.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn write(&self, owner: OwnerId) -> Result<()> {
        let mut bytes = [0; BYTES];
        bytes[..12].copy_from_slice(MAGIC);
        bytes[16..32].copy_from_slice(&owner.id);
        bytes[32..48].copy_from_slice(&owner.place);
        let sum = sum(&bytes[..48]);
        bytes[48..].copy_from_slice(&sum);
        let write = || {
            let file = self.open()?;
            file.write_all_at(&bytes, 0)?;
            file.set_len(BYTES as u64)?;
            file.sync_all()?;
            let parent = self.0.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
            File::open(parent)?.sync_all()
        };
        write().map_err(|e| self.failed("write", e))
    }

    /// This place: the machine, the file system, and the inode of the file.
    ///
    /// # Errors
    /// The file cannot be made.
    pub fn place(&self) -> Result<Random> {
        let opened = self.open().and_then(|file| Ok((file.metadata()?, untorn_os::file_system_id(&file))));
        let (about, file_system) = opened.map_err(|e| self.failed("make", e))?;
        let mut hash = blake3::Hasher::new();
        hash.update(b"untorn place").update(machine().as_bytes());
        match file_system {
            Some(id) => hash.update(&id),
            // Can be another number after a restart.
            None => hash.update(&about.dev().to_le_bytes()),
        };
        hash.update(&about.ino().to_le_bytes());
        let mut place = Random::default();
        place.copy_from_slice(&hash.finalize().as_bytes()[..16]);
        Ok(place)
    }

    fn open(&self) -> std::io::Result<File> {
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).truncate(false).mode(0o600).custom_flags(libc::O_NOFOLLOW);
        options.open(&self.0)
    }

    fn failed(&self, verb: &str, e: std::io::Error) -> Error {
        Error::store(format!("{verb} {}: {e}", self.0.display()))
    }
}

fn sum(bytes: &[u8]) -> [u8; 16] {
    let mut sum = [0; 16];
    sum.copy_from_slice(&blake3::hash(bytes).as_bytes()[..16]);
    sum
}

/// The machine's id, or its name where it has none.
fn machine() -> String {
    std::fs::read_to_string("/etc/machine-id").ok().filter(|id| id.trim().len() >= 16).unwrap_or_else(host)
}

/// The machine's name.
pub fn host() -> String {
    rustix::system::uname().nodename().to_string_lossy().into_owned()
}

/// This process, for people.
pub fn who() -> String {
    format!("{}, process {}", host(), std::process::id())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_owner_id_stays_and_a_copy_is_in_another_place() {
        let dir = tempfile::tempdir().unwrap();
        let file = OwnerFile::at(dir.path().join("owner"));
        assert_eq!(file.read().unwrap(), None);
        let place = file.place().unwrap();
        assert_eq!(file.read().unwrap(), None);
        let owner = OwnerId { id: [7; 16], place };
        file.write(owner).unwrap();
        assert_eq!((file.read().unwrap(), file.place().unwrap()), (Some(owner), place));
        let copy = OwnerFile::at(dir.path().join("copy"));
        std::fs::copy(file.path(), copy.path()).unwrap();
        assert_eq!(copy.read().unwrap(), Some(owner));
        assert_ne!(copy.place().unwrap(), place);
    }

    #[test]
    fn a_torn_file_is_none() {
        let dir = tempfile::tempdir().unwrap();
        let file = OwnerFile::at(dir.path().join("owner"));
        file.write(OwnerId { id: [7; 16], place: [8; 16] }).unwrap();
        let mut bytes = std::fs::read(file.path()).unwrap();
        bytes[20] ^= 1;
        std::fs::write(file.path(), bytes).unwrap();
        assert_eq!(file.read().unwrap(), None);
    }
}
