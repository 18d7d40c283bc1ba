"""All-or-nothing updates of application data in files, on Linux. docs/PYTHON.md describes it with examples."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from ._errors import (
    Busy,
    Closed,
    Conflict,
    Corrupt,
    Denied,
    Error,
    Exists,
    Forked,
    Invalid,
    IsADirectory,
    NoMemory,
    NoSpace,
    NotADirectory,
    NotFound,
    Quarantined,
    SnapshotExpired,
    Uncommitted,
    UnknownState,
)
from ._io import BufferedRandom, BufferedReader, BufferedWriter, RawFile, TextIOWrapper
from ._reader import Metadata, Reader, Snapshot
from ._store import Store, Transaction, open, replace, sync, sync_async, write
from ._untorn import Change, Commit, Follow, Gate, Missed, Output, Ticket, __version__

if TYPE_CHECKING:
    from . import aio, dbm, shelve, sqlite
    from ._memmap import memmap as memmap
    from ._memmap import open_memmap as open_memmap

__all__ = [
    "BufferedRandom",
    "BufferedReader",
    "BufferedWriter",
    "Busy",
    "Change",
    "Closed",
    "Commit",
    "Conflict",
    "Corrupt",
    "Denied",
    "Error",
    "Exists",
    "Follow",
    "Forked",
    "Gate",
    "Invalid",
    "IsADirectory",
    "Metadata",
    "Missed",
    "NoMemory",
    "NoSpace",
    "NotADirectory",
    "NotFound",
    "Output",
    "Quarantined",
    "RawFile",
    "Reader",
    "Snapshot",
    "SnapshotExpired",
    "Store",
    "TextIOWrapper",
    "Ticket",
    "Transaction",
    "Uncommitted",
    "UnknownState",
    "__version__",
    "aio",
    "dbm",
    "open",
    "replace",
    "shelve",
    "sqlite",
    "sync",
    "sync_async",
    "write",
]


def __getattr__(name: str) -> Any:
    # Imported when they are used: numpy, for example, by programs with arrays only.
    if name in ("memmap", "open_memmap"):
        return getattr(importlib.import_module("._memmap", __name__), name)
    if name in ("aio", "dbm", "shelve", "sqlite"):
        return importlib.import_module("." + name, __name__)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
