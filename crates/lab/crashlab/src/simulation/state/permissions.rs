//! The rights of a user: operations that no refusal forbids, and that permission bits allow.

use super::disk_state::{State, errno};
use super::refusal::Act;
use std::io;
use std::path::Path;
use untorn_os::Kind;

/// Checks that the kernel does this for the user: no refusal forbids it, and permission bits allow it, if the disk has
/// them. Everything on the disk belongs to the user; root may do everything.
pub(crate) fn allows(state: &State, user: u32, path: &Path, act: Act) -> io::Result<()> {
    if let Some(refusal) = state.options.refusal {
        refusal.check(path, act)?;
    }
    if !state.options.permissions || user == 0 {
        return Ok(());
    }
    let meta = |path: &Path| state.named(path).and_then(|slot| state.meta(slot));
    let has = |path: &Path, bits: u32| meta(path).map_or(true, |meta| meta.mode & bits == bits);
    // A path that is not a directory leads to another error later.
    let has_in = |dir: &Path, bits| meta(dir).map_or(true, |meta| meta.kind != Kind::Directory) || has(dir, bits);
    let permitted = path.ancestors().skip(1).all(|dir| has_in(dir, 0o100))
        && match act {
            Act::List | Act::OpenForReading => has(path, 0o400),
            Act::OpenForWriting => has(path, 0o600),
            Act::Make | Act::Remove | Act::MoveAway | Act::MoveHere => {
                path.parent().is_none_or(|parent| has_in(parent, 0o300))
            }
            Act::Look | Act::Write | Act::SetMode => true,
        };
    if permitted { Ok(()) } else { Err(errno(libc::EACCES)) }
}
