//! Makes the mapping of a file for its first map: in new memory, or in live memory. Further maps must fit it.

use crate::engine::content::Content;
use crate::engine::files::file_state::{FileState, Life};
use crate::engine::handles::map_options::MapOptions;
use crate::engine::region::Region;
use rustix::io::Errno;
use std::path::Path;
use std::sync::Arc;
use untorn_journal::{Error, Result};
use untorn_os::{LiveMemory, MapRequest, TrackerKind, memory_limit};

/// Contents of live memory when it is mapped.
#[derive(Clone, Copy)]
pub(crate) enum LiveInit {
    /// None: it is filled with the content of the file.
    Nothing,
    /// This many bytes, which are the state that a commit would give to the file.
    Bytes(u64),
}

/// Least address space of a mapped file, unless [`MapOptions::address_space`] sets it: the reservation is this much or
/// four times the file's size, whichever is larger.
const ADDRESS_SPACE_MIN: u64 = 64 << 30;

pub(super) fn new_region(
    state: &FileState,
    options: &MapOptions,
    live: Option<(&LiveMemory, LiveInit)>,
) -> Result<Region> {
    let content = &state.content;
    let Some(data) = content.data.clone().filter(|_| state.life == Life::Named) else {
        return Err(not_made_yet(state.path()));
    };
    check_memory(state, options)?;
    let is_explicit = options.tracker == Some(TrackerKind::Explicit);
    let check = if is_explicit { options.unmarked_check() } else { None };
    let size = content.size_max();
    let least = options.end(size).unwrap_or(u64::MAX).max(size);
    let wanted = options.address_space.unwrap_or(size.saturating_mul(4).max(ADDRESS_SPACE_MIN)).max(least);
    let mut request = MapRequest {
        address_space: wanted,
        address: options.address,
        read_only: !state.writable,
        tracker: options.tracker.filter(|_| check.is_none()),
        huge_pages: options.huge_pages,
    };
    if let Some((memory, kept)) = live {
        return live_region(state, data, &request, memory, kept);
    }
    let mut mapping = data.map(&request);
    // Valgrind returns EINVAL.
    let no_room = |e: &std::io::Error| matches!(Errno::from_io_error(e), Some(Errno::NOMEM | Errno::INVAL));
    while options.address_space.is_none() && request.address_space > least && mapping.as_ref().is_err_and(no_room) {
        request.address_space = (request.address_space / 2).max(least);
        mapping = data.map(&request);
    }
    let mapping = mapping.map_err(|e| cannot_map(state, options.address, e))?;
    let mut region = Region::new(mapping, data, content, state.writable, is_explicit).map_err(|e| match e {
        // The error of strict overcommit for a writable private mapping.
        Error::Io { source, .. } if Errno::from_io_error(&source) == Some(Errno::NOMEM) => no_memory(
            content,
            format!(
                "the system refuses a private mapping of {size} bytes (strict overcommit, vm.overcommit_memory=2, or a \
                 limit, `ulimit -v`)"
            ),
        ),
        e => e,
    })?;
    region.quiet = options.quiet;
    if let Some(how) = check {
        region.check_from_now_on(how);
    }
    Ok(region)
}

/// The error for a file that an uncommitted transaction creates.
pub(crate) fn not_made_yet(path: &Path) -> Error {
    Error::invalid(format!("{} does not exist yet: commit the transaction that makes it, then map it", path.display()))
}

/// The error for a mapping that failed.
fn cannot_map(state: &FileState, address: Option<usize>, e: std::io::Error) -> Error {
    let content = &state.content;
    match Errno::from_io_error(&e) {
        Some(Errno::NOMEM) => {
            no_memory(content, "no room in the address space for its mapping (is there a limit, `ulimit -v`?)".into())
        }
        Some(Errno::OPNOTSUPP) => Error::Unsupported {
            path: content.path.clone(),
            detail: "the tracker `scan` needs Linux 6.7 or newer and a permitted userfaultfd; the tracker `pagemap` \
                     works everywhere"
                .into(),
        },
        Some(Errno::ACCESS) => Error::Unsupported {
            path: content.path.clone(),
            detail: "finding stores to a mapping needs /proc/self/pagemap, which the kernel denies to a process that \
                     has changed its user: call prctl(PR_SET_DUMPABLE, 1) after the change"
                .into(),
        },
        Some(Errno::EXIST) => Error::invalid(format!(
            "{}: something else is mapped at address {:#x}",
            state.path().display(),
            address.unwrap_or_default()
        )),
        _ => Error::io("map", &content.path, e),
    }
}

/// Maps a file in memory that outlives the process.
fn live_region(
    state: &FileState,
    data: Arc<dyn untorn_os::File>,
    request: &MapRequest,
    memory: &LiveMemory,
    kept: LiveInit,
) -> Result<Region> {
    if !state.writable {
        return Err(Error::invalid(format!(
            "{}: a live heap needs a file that can be written; this file, or its file system, is read-only",
            state.path().display()
        )));
    }
    let bytes = match kept {
        LiveInit::Nothing => 0,
        LiveInit::Bytes(bytes) => bytes,
    };
    let mapping = memory.map(data.clone(), request, bytes).map_err(|e| cannot_map(state, request.address, e))?;
    match kept {
        LiveInit::Nothing => Region::new_live(mapping, data, &state.content),
        LiveInit::Bytes(bytes) => Ok(Region::resumed(mapping, data, bytes)),
    }
}

fn no_memory(content: &Content, detail: String) -> Error {
    Error::NoMemory { path: content.path.clone(), detail }
}

/// Checks that the stored pages will fit in memory, which they take until they are dropped. A program that could store
/// to more pages than fit must state a limit, because running out of memory kills the program without naming a limit.
fn check_memory(state: &FileState, options: &MapOptions) -> Result<()> {
    if !state.writable {
        return Ok(());
    }
    let Some(limit) = memory_limit() else { return Ok(()) };
    let (most, what) = match options.dirty_max {
        Some(most) => (most, "`dirty_max`".to_owned()),
        None => match options.in_use {
            Some(bytes) => (bytes, "the part of the file in use".to_owned()),
            None => (state.content.size(), "the file".to_owned()),
        },
    };
    if most <= limit.bytes {
        return Ok(());
    }
    Err(no_memory(
        &state.content,
        format!(
            "{what} has {most} bytes, but {} allows only {} bytes of memory and swap; set a `dirty_max` below this \
             limit, and commit before the changed pages exceed it",
            limit.of, limit.bytes
        ),
    ))
}

pub(super) fn check_same(region: &Region, writable: bool, options: &MapOptions, end: Option<u64>) -> Result<()> {
    let start = region.address() as usize;
    let wrong = match options {
        MapOptions { tracker: Some(t), .. } if *t != region.tracker() => {
            format!("with the tracker {}", region.tracker())
        }
        MapOptions { address: Some(a), .. } if *a != start => format!("at address {start:#x}"),
        MapOptions { address_space: Some(n), .. } if *n > region.address_space() => {
            format!("with {} bytes of address space", region.address_space())
        }
        _ if end.is_none_or(|end| end > region.address_space()) => {
            format!("with {} bytes of address space, too few for this range", region.address_space())
        }
        _ if writable && !region.writable => "for reading only, because the file could not be written then".to_owned(),
        _ => return Ok(()),
    };
    Err(Error::invalid(format!("the file is mapped already {wrong}; unmap it first, or map it the same way")))
}
