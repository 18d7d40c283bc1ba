"""Exceptions of the package. Each one names the failure, the state that still holds, and the remedy."""

from __future__ import annotations

import errno as _errno
import os
from typing import Literal

Outcome = Literal["not-committed", "unknown", "committed"]


class Error(OSError):
    """An error of Untorn.

    ``errno`` and ``filename`` are those of an ``OSError``. ``kind`` is a name that stays the same over versions
    (docs/ERRORS.md lists them). ``outcome`` tells of the commit that failed: ``"not-committed"``, ``"unknown"`` (whole
    or not at all; the reopened store shows which), or ``"committed"``.
    """

    kind: str = "io"
    outcome: Outcome = "not-committed"

    def __str__(self) -> str:
        return str(self.strerror)


class Busy(Error):
    """Another process, or another handle of this one, has the store or file open."""


class Conflict(Error):
    """Another program changed or replaced a file, or names of a transaction collide. Nothing was overwritten."""


class Corrupt(Error):
    """On-disk state that a crash cannot explain. Nothing was changed."""


class UnknownState(Error):
    """A store of class ``process`` after a crash of the machine."""


class NoSpace(Error):
    """No space, quota or journal room. The commit did not happen, and can be tried again."""


class SnapshotExpired(Error):
    """The snapshot ended, or a file of it could not be kept. Take a new one."""


class Forked(Error):
    """The handle belongs to the parent process."""


class Quarantined(Error):
    """A file that cannot be brought to its last commit."""


class Closed(Error, ValueError):
    """The handle was closed."""


class Uncommitted(Error):
    """A file, array or table was closed with changes that were in no commit. They were discarded."""


class Invalid(Error, ValueError):
    """An invalid argument."""


class NoMemory(Error, MemoryError):
    """More memory is needed than there is, or than is allowed."""


class NotFound(Error, FileNotFoundError):
    """There is no such file or store."""


class Exists(Error, FileExistsError):
    """The file exists already."""


class Denied(Error, PermissionError):
    """The system does not permit it."""


class NotADirectory(Error, NotADirectoryError):
    """A directory was expected."""


class IsADirectory(Error, IsADirectoryError):
    """A file was expected."""


_KINDS: dict[str, tuple[type[Error], int]] = {
    "busy": (Busy, _errno.EBUSY),
    "corrupt": (Corrupt, _errno.EUCLEAN),
    "foreign": (Error, _errno.EMEDIUMTYPE),
    "newer-version": (Error, _errno.EPROTONOSUPPORT),
    "conflict": (Conflict, _errno.EEXIST),
    "needs-its-journal": (Error, _errno.ESTALE),
    "unknown-state": (UnknownState, _errno.ENOTRECOVERABLE),
    "failed-sync-not-committed": (Error, _errno.EIO),
    "failed-sync-unknown": (Error, _errno.EIO),
    "no-space": (NoSpace, _errno.ENOSPC),
    "untrusted": (Denied, _errno.EPERM),
    "no-memory": (NoMemory, _errno.ENOMEM),
    "racing-store": (Error, _errno.EBUSY),
    "layout-changed": (Error, _errno.EINVAL),
    "snapshot-expired": (SnapshotExpired, _errno.ESTALE),
    "snapshot-ended": (SnapshotExpired, _errno.ESTALE),
    "file-not-kept": (SnapshotExpired, _errno.ESTALE),
    "forked": (Forked, _errno.ECHILD),
    "closed": (Closed, _errno.EBADF),
    "uncommitted": (Uncommitted, _errno.EBUSY),
    "in-transaction": (Error, _errno.EBUSY),
    "invalid": (Invalid, _errno.EINVAL),
    "unsupported": (Error, _errno.EOPNOTSUPP),
}

_NUMBERS: dict[int, type[Error]] = {
    _errno.ENOENT: NotFound,
    _errno.EEXIST: Exists,
    _errno.EACCES: Denied,
    _errno.EPERM: Denied,
    _errno.ENOTDIR: NotADirectory,
    _errno.EISDIR: IsADirectory,
}

# The library's advice, in its own terms.
_CREATE = "The option `create` (in C UNTORN_CREATE) creates it"

_FORKED = (
    "this handle belongs to the parent process. In a child, read with untorn.Reader, or open the store anew after the "
    "parent has closed it; with multiprocessing, the start methods 'spawn' and 'forkserver' hand over no handles"
)


def make_error(
    kind: str,
    number: int | None,
    message: str,
    path: str | os.PathLike[str] | None = None,
    outcome: Outcome = "not-committed",
) -> Error:
    """The exception of a kind. ``number`` is the system's error number, where there is one."""
    message = message.replace(_CREATE, "Modes and flags that create it: 'w', 'a', 'x'; of a table 'c', 'n'")
    if kind == "io":
        number = number or _errno.EIO
        made = _NUMBERS.get(number, Error)
    else:
        made, usual = _KINDS.get(kind, (Error, _errno.EIO))
        number = number or usual
    if "quarantined" in message and made is Error:
        made = Quarantined
    error = made(number, _FORKED if kind == "forked" else message)
    error.kind, error.outcome = kind, outcome
    error.filename = None if path is None else os.fspath(path)
    return error
