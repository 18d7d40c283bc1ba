"""Tables from bytes to bytes, with the interface of ``dbm``. Keys are in order, and ranges of them can be listed.

A commit writes changed lines of 64 bytes. A ``str`` as key or value is stored as UTF-8, as in ``dbm.gnu``.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator, MutableMapping
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal

from . import _untorn
from ._errors import Error, NotFound, make_error
from ._io import Path, decoded, file_args
from ._store import open as open_file
from ._store import store_options
from ._untorn import Ticket

if TYPE_CHECKING:
    from ._store import Store

__all__ = ["Table", "error", "open", "whichdb"]

#: The exception of this module, as other ``dbm`` modules have one.
error = Error
library = "untorn.dbm"

Flag = Literal["r", "w", "c", "n"]

_BATCH = 256

# The first bytes of a heap (docs/FORMAT.md).
_MAGIC = b"UNTORNHP"


def _bytes(value: str | bytes) -> bytes:
    if isinstance(value, str):
        return value.encode()
    if isinstance(value, (bytes, bytearray, memoryview)):
        return bytes(value)
    raise TypeError(f"keys and values are bytes or str, not {type(value).__name__}")


class Table(MutableMapping[bytes, bytes]):
    """A table: a mutable mapping from bytes to bytes whose changes are all or nothing.

    ``commit()`` (or ``sync()``) makes changes durable. A ``with`` block commits at its end, rolls back on an exception,
    and closes. ``close()`` with uncommitted changes raises ``Uncommitted`` after closing, unless ``commit_on_close``.
    Threads may share a table: each call is whole. With flag "r", changes raise ``Invalid``.
    """

    def __init__(self, table: _untorn.Table, name: str, writable: bool, commit_on_close: bool) -> None:
        self._table = table
        self._name = name
        self._writable = writable
        self._commit_on_close = commit_on_close
        self._pid = os.getpid()

    @classmethod
    def _open_in(cls, store: Store, name: Path, flag: Flag, commit_on_close: bool) -> Table:
        name = decoded(name)
        table = cls(_untorn.Table.open_in(store, name, flag in "cn"), name, flag != "r", commit_on_close)
        return table._emptied() if flag == "n" else table

    def _emptied(self) -> Table:
        self.clear()
        return self

    def _check_writable(self) -> None:
        if not self._writable:
            raise make_error("invalid", None, f"{self._name} was opened with flag 'r', for reading only", self._name)

    def __getitem__(self, key: str | bytes) -> bytes:
        value = self._table.get(_bytes(key))
        if value is None:
            raise KeyError(key)
        return value

    def get(self, key: str | bytes, default: Any = None) -> Any:
        value = self._table.get(_bytes(key))
        return default if value is None else value

    def __setitem__(self, key: str | bytes, value: str | bytes) -> None:
        self._check_writable()
        self._table.set(_bytes(key), _bytes(value))

    def setdefault(self, key: str | bytes, default: Any = b"") -> Any:
        value = self._table.get(_bytes(key))
        if value is not None:
            return value
        self[key] = default
        return default

    def __delitem__(self, key: str | bytes) -> None:
        self._check_writable()
        self._table.remove(_bytes(key))

    def __contains__(self, key: object) -> bool:
        return self._table.contains(_bytes(key))  # type: ignore[arg-type]

    def __len__(self) -> int:
        return self._table.len()

    def __iter__(self) -> Iterator[bytes]:
        return self.range()

    def range(self, start: str | bytes = b"", stop: str | bytes | None = None) -> Iterator[bytes]:
        """Keys in order, from ``start`` up to, and without, ``stop``. The table may change meanwhile."""
        start, end = _bytes(start), None if stop is None else _bytes(stop)
        behind = False
        while batch := self._table.keys(start, behind, _BATCH):
            for key in batch:
                if end is not None and key >= end:
                    return
                yield key
            start, behind = batch[-1], True

    def keys(self) -> Any:
        """All keys, as a list, in order; as in ``dbm``."""
        return list(self)

    def firstkey(self) -> bytes | None:
        """The first key; ``None`` if there is none."""
        first = self._table.keys(b"", False, 1)
        return first[0] if first else None

    def nextkey(self, key: str | bytes) -> bytes | None:
        """The key behind this one; ``None`` if there is none."""
        following = self._table.keys(_bytes(key), True, 1)
        return following[0] if following else None

    def clear(self) -> None:
        """Remove everything, as an uncommitted change."""
        self._check_writable()
        self._table.clear()

    def commit(self) -> None:
        """Commit all changes: durable on return, all or nothing.

        Raises ``Error``, whose ``outcome`` tells what became of the commit.
        """
        self._table.commit()

    def commit_async(self) -> Ticket:
        """Start a commit of all changes made so far; the ticket tells when it is durable."""
        return self._table.commit_async()

    def sync(self) -> None:
        """Commit, as other ``dbm`` modules name it."""
        if self._writable:
            self.commit()

    def rollback(self) -> None:
        """Return to the last commit."""
        self._table.rollback()

    def transaction(self) -> _Block:
        """A ``with`` block that commits at its end, rolls back on an exception, and leaves the table open.

        Its beginning raises ``Invalid`` if there are uncommitted changes.
        """
        return _Block(self)

    @property
    def closed(self) -> bool:
        """Whether the table was closed."""
        return self._table.closed

    def close(self) -> None:
        """Close. Raises ``Uncommitted``, after closing, if it discarded changes."""
        if self._table.closed:
            return
        lost = False
        try:
            if self._commit_on_close:
                self.sync()
            else:
                lost = self._table.has_changes()
        finally:
            self._table.close()
        if lost:
            raise make_error(
                "uncommitted",
                None,
                f"{self._name}: closed with uncommitted changes, which were discarded. Call commit() or sync() before "
                "close(), or use a `with` block; for code that closes the table by itself, open it with "
                "commit_on_close=True",
                self._name,
            )

    def __enter__(self) -> Table:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._table.closed:
            return
        try:
            if kind is None:
                self.sync()
        finally:
            self._table.close()

    def __del__(self) -> None:
        table = getattr(self, "_table", None)
        if table is None or self._pid != os.getpid() or table.closed:
            return
        table.close()
        warnings.warn(f"unclosed table {self._name!r}: uncommitted changes are discarded", ResourceWarning, source=self)

    def __repr__(self) -> str:
        return f"<untorn.dbm.Table {self._name!r}{' (closed)' if self._table.closed else ''}>"


class _Block:
    """A transaction of a table."""

    def __init__(self, table: Table) -> None:
        self._table = table

    def __enter__(self) -> Table:
        if self._table._table.has_changes():
            raise make_error("invalid", None, "the table has uncommitted changes; commit() or rollback() first")
        return self._table

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self._table.commit()
        else:
            self._table.rollback()


def open(file: Path, flag: Flag = "r", mode: int = 0o666, *, commit_on_close: bool = False, **options: Any) -> Table:
    """Open a table; flags as in ``dbm.open``: "r" and "w" for an existing one, "c" creates, "n" begins empty.

    The table is the heap ``file``, with a store beside it. One process opens it at a time, also with flag "r".
    ``options`` and errors are those of :class:`untorn.Store`; an ordinary file raises ``Error`` of kind "foreign".
    """
    if flag not in ("r", "w", "c", "n"):
        raise ValueError(f"flag is 'r', 'w', 'c' or 'n', not {flag!r}")
    name = decoded(file)
    is_new = not os.path.exists(name)
    if is_new and flag in "rw":
        raise make_error("io", 2, f"cannot open {name}: No such file or directory. Flag 'c' creates it", name)
    store = store_options(**options)
    if is_new:
        # For its permissions.
        _untorn.File(name, file_args("a", mode), store).close()
    table = Table(_untorn.Table(name, flag in "cn", store), name, flag != "r", commit_on_close)
    return table._emptied() if flag == "n" else table


def whichdb(path: Path) -> str | None:
    """``"untorn.dbm"`` if the file is a table of this module, ``None`` if there is no file, otherwise ``""``."""
    name = decoded(path)
    try:
        with open_file(name, "rb") as file:
            start = file.read(len(_MAGIC))
    except (NotFound, FileNotFoundError):
        return None
    return "untorn.dbm" if os.path.isdir(name + ".untorn") and start == _MAGIC else ""
