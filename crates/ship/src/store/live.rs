//! A store that is shipped while another process may write it.

use crate::error::{Error, Result};
use crate::interface::{Commit, EpochStart, Hash, Held, Next, Owner, OwnerId, Point, Random, Source, StoreId};
use crate::store::body;
use crate::store::owner::{OwnerFile, who};
use crate::store::snapshot_pieces::SnapshotPieces;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};
use untorn::reader::{Acknowledged, Follow, Followed};
use untorn::{Reader, Slot};

/// A store, and the slot that keeps its log for the shipper.
pub struct LiveStore {
    path: PathBuf,
    own_files: PathBuf,
    /// `None`: the store is only compared.
    slot: Option<Slot>,
    owner: OwnerFile,
    store_id: StoreId,
    /// Device and inode of the store's directory, which another store may take the place of.
    identity: (u64, u64),
    reader: Reader,
    follow: Option<Follow>,
    /// A commit that the follower gave, and that did not fit.
    left: Option<untorn::reader::Commit>,
    /// The LSN behind which the next commits come, if `follow` is there.
    behind: u64,
    /// The last durable commit at the last look.
    durable_seen: Option<u64>,
}

/// Nanoseconds since 1970.
pub fn now() -> u64 {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, |since| since.as_nanos() as u64)
}

/// Log has the times of commits to the second.
const PRECISION_NS: u64 = 2_000_000_000;

/// When a commit was made, in nanoseconds since 1970: of a new one the time now, which is more precise.
fn time_of(commit: &untorn::reader::Commit) -> u64 {
    let since_1970 =
        |time: SystemTime| time.duration_since(SystemTime::UNIX_EPOCH).map_or(0, |since| since.as_nanos() as u64);
    let (now, made) = (now(), commit.time.map(since_1970));
    made.filter(|made| made + PRECISION_NS < now).unwrap_or(now)
}

fn failed(e: untorn::Error) -> Error {
    Error::store(e)
}

/// The directory with the store's own files.
fn own_files_of(path: &Path) -> PathBuf {
    if path.is_dir() {
        return path.join(".untorn");
    }
    let mut name = path.as_os_str().to_owned();
    name.push(".untorn");
    PathBuf::from(name)
}

fn identity_of(own_files: &Path) -> Result<(u64, u64)> {
    let about = own_files
        .metadata()
        .map_err(|e| Error::store(format!("look at {}: {e}; was the store moved or removed?", own_files.display())))?;
    Ok((about.dev(), about.ino()))
}

impl LiveStore {
    /// Opens a store, and its slot, which is made if it is not there.
    ///
    /// # Errors
    /// There is no store, or it cannot be shipped.
    pub fn open(path: &Path, slot: &str, cap: Option<u64>) -> Result<LiveStore> {
        let slot = Slot::open_or_create(path, slot, cap).map_err(failed)?;
        let owner = OwnerFile::at(slot.dir().join("owner"));
        LiveStore::with(path, Some(slot), owner)
    }

    /// Opens a store to compare it, without a slot.
    ///
    /// # Errors
    /// There is no store, or it cannot be read.
    pub fn open_to_compare(path: &Path) -> Result<LiveStore> {
        LiveStore::with(path, None, OwnerFile::at(PathBuf::new()))
    }

    fn with(path: &Path, slot: Option<Slot>, owner: OwnerFile) -> Result<LiveStore> {
        let own_files = own_files_of(path);
        let identity = identity_of(&own_files)?;
        let reader = Reader::open(path).map_err(failed)?;
        let store_id = reader.store_id().map_err(failed)?;
        let (path, follow, left) = (path.to_owned(), None, None);
        Ok(LiveStore {
            path,
            own_files,
            slot,
            owner,
            store_id,
            identity,
            reader,
            follow,
            left,
            behind: 0,
            durable_seen: None,
        })
    }

    /// The slot.
    pub fn slot(&self) -> Option<&Slot> {
        self.slot.as_ref()
    }

    /// Opens the store that is under the path now.
    fn reopen(&mut self) -> Result<()> {
        let identity = identity_of(&self.own_files)?;
        if identity != self.identity {
            self.reader = Reader::open(&self.path).map_err(failed)?;
            self.store_id = self.reader.store_id().map_err(failed)?;
            (self.identity, self.follow, self.left) = (identity, None, None);
        }
        Ok(())
    }

    fn follow_from(&mut self, behind: u64) -> Result<()> {
        if self.follow.is_none() || self.behind != behind {
            (self.follow, self.left) = (None, None);
            self.follow = Some(self.reader.follow_from(behind).map_err(failed)?);
            self.behind = behind;
        }
        Ok(())
    }

    /// The next item of the follower, without waiting.
    fn next(&mut self) -> Result<Option<Followed>> {
        if let Some(commit) = self.left.take() {
            return Ok(Some(Followed::Commit(commit)));
        }
        let Some(follow) = &mut self.follow else { return Ok(None) };
        let next = follow.next_within(Duration::ZERO);
        next.map_err(|e| {
            self.follow = None;
            failed(e)
        })
    }

    /// Adds commits without changes up to this LSN, which belong to no commit of a program.
    fn fill(&mut self, commits: &mut Vec<Commit>, from: u64, to: u64) -> Result<()> {
        if from > to {
            return Ok(());
        }
        let epochs = self.reader.epochs(from).map_err(failed)?;
        for lsn in from..=to {
            let of = epochs.iter().rev().find(|start| start.first_lsn <= lsn);
            let epoch = of
                .map(|start| start.epoch)
                .ok_or_else(|| Error::store(format!("the store does not know the epoch of its commit #{lsn}")))?;
            commits.push(Commit { lsn, epoch, time: 0, body: body::empty() });
        }
        Ok(())
    }
}

impl Owner for LiveStore {
    fn owner(&mut self) -> Result<Option<OwnerId>> {
        self.owner.read()
    }

    fn set_owner(&mut self, owner: OwnerId) -> Result<()> {
        self.owner.write(owner)
    }

    fn place(&mut self) -> Result<Random> {
        self.owner.place()
    }

    fn who(&self) -> String {
        who()
    }
}

impl Source for LiveStore {
    fn store_id(&self) -> StoreId {
        self.store_id
    }

    fn durable(&mut self) -> Result<Point> {
        self.reopen()?;
        let point = self.reader.last_commit().map_err(failed)?;
        self.durable_seen = Some(point.lsn);
        Ok(Point { epoch: point.epoch, lsn: point.lsn })
    }

    fn contains(&mut self, point: Point) -> Result<bool> {
        self.reopen()?;
        self.reader.contains(untorn::Point { epoch: point.epoch, lsn: point.lsn }).map_err(failed)
    }

    fn epochs(&mut self, from_lsn: u64) -> Result<Vec<EpochStart>> {
        self.reopen()?;
        let epochs = self.reader.epochs(from_lsn).map_err(failed)?;
        Ok(epochs.iter().map(|start| EpochStart { epoch: start.epoch, first_lsn: start.first_lsn }).collect())
    }

    fn commits(&mut self, behind: u64, bytes_max: u64) -> Result<Next> {
        // No newer commits than the caller has looked at: they would be dropped, and read again with all before them.
        let durable = match self.durable_seen {
            Some(seen) => seen,
            None => self.durable()?.lsn,
        };
        if durable <= behind {
            return Ok(Next::Commits(Vec::new()));
        }
        if behind == 0 {
            // The files may have had contents before the store was made: the log alone does not give them.
            return Ok(Next::Gap);
        }
        self.follow_from(behind)?;
        let (mut commits, mut bytes, mut last) = (Vec::new(), 0u64, behind);
        loop {
            let commit = match self.next()? {
                Some(Followed::Commit(commit)) => commit,
                Some(Followed::Missed { .. }) if commits.is_empty() => {
                    self.follow = None;
                    return Ok(Next::Gap);
                }
                Some(_) => {
                    // Told again by the next call, which begins there.
                    self.follow = None;
                    break;
                }
                None => {
                    let seen = self.follow.as_ref().map_or(last, Follow::lsn).min(durable);
                    self.fill(&mut commits, last + 1, seen)?;
                    last = last.max(seen);
                    break;
                }
            };
            if commit.lsn > durable {
                self.left = Some(commit);
                break;
            }
            let length = body::length(&commit.changes);
            if bytes + length > bytes_max {
                if !commits.is_empty() {
                    self.left = Some(commit);
                    break;
                }
                self.follow = None;
                return Ok(Next::Gap);
            }
            bytes += length;
            self.fill(&mut commits, last + 1, commit.lsn - 1)?;
            let body = body::encode(&commit.changes)?;
            commits.push(Commit { lsn: commit.lsn, epoch: commit.epoch, time: time_of(&commit), body });
            last = commit.lsn;
        }
        self.behind = last;
        Ok(Next::Commits(commits))
    }

    fn snapshot(&mut self) -> Result<Held> {
        self.reopen()?;
        let snapshot = self.reader.snapshot().map_err(failed)?;
        let lsn = snapshot.lsn();
        let epochs = self.reader.epochs(lsn).map_err(failed)?;
        let epoch = epochs.iter().rev().find(|start| start.first_lsn <= lsn).map_or(0, |start| start.epoch);
        let pieces = SnapshotPieces::new(snapshot, self.path.clone());
        Ok(Held { point: Point { epoch, lsn }, time: now(), pieces: Box::new(pieces) })
    }

    fn acknowledge(&mut self, point: Point, hash: Hash) -> Result<()> {
        let point = untorn::Point { epoch: point.epoch, lsn: point.lsn };
        let acknowledged = Acknowledged { point, hash, time_ns: now(), ..Acknowledged::default() };
        self.slot.as_ref().map_or(Ok(()), |slot| slot.acknowledge(&acknowledged).map_err(failed))
    }
}
