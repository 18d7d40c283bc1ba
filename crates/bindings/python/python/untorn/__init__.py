"""All-or-nothing updates of application data in files, on Linux. docs/PYTHON.md describes it with examples."""

from __future__ import annotations

from typing import Any

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
    "memmap",
    "open",
    "open_memmap",
    "replace",
    "sync",
    "sync_async",
    "write",
]


def __getattr__(name: str) -> Any:
    # numpy is imported by the programs that use arrays.
    if name in ("memmap", "open_memmap"):
        from . import _memmap

        return getattr(_memmap, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
