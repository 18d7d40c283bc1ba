"""Reading a store from any process, as of one commit."""

from __future__ import annotations

import os
import stat as _stat
from types import TracebackType
from typing import IO, TYPE_CHECKING, Any, NamedTuple

from . import _untorn
from ._io import Path, SnapshotRaw, check_args, check_mode, decoded, wrap_snapshot

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import DTypeLike


class Metadata(NamedTuple):
    """Mode (with the type, as in ``os.stat``) and size in bytes of a name in a snapshot."""

    st_mode: int
    st_size: int


class Reader(_untorn.Reader):
    """A store opened for reading only: in any process, in any number of them, also in pool workers and after a fork.

    It shows durable commits, whole. Nobody waits for readers, and readers wait for nobody. Raises ``NotFound`` if there is
    no store.
    """

    def __new__(cls, path: Path) -> Reader:
        return super().__new__(cls, decoded(path))

    def __init__(self, path: Path) -> None:
        pass

    def __reduce__(self) -> tuple[type[Reader], tuple[str]]:
        return Reader, (os.path.abspath(self.path),)

    def snapshot(self) -> Snapshot:
        """The files as of the last durable commit, for a ``with`` block. The owner keeps their data until it is closed."""
        return Snapshot(self._snapshot())

    def memmap(
        self,
        name: Path,
        dtype: DTypeLike = "uint8",
        offset: int = 0,
        shape: int | tuple[int, ...] | None = None,
        order: str = "C",
    ) -> np.ndarray[Any, Any]:
        """A file as an array for reading, as of the last durable commit. ``offset`` is in bytes.

        Raises ``NotFound``, and ``ValueError`` if the file is too short for ``shape``.
        """
        from ._memmap import array_of

        return array_of(self._map(decoded(name)), dtype, offset, shape, order)


class Snapshot:
    """The files of a store as of one commit. It never shows contents of another one."""

    def __init__(self, snapshot: _untorn.Snapshot) -> None:
        self._snapshot = snapshot

    @property
    def lsn(self) -> int:
        """The place in the log of the commit that it shows."""
        return self._snapshot.lsn

    def open(
        self,
        name: Path,
        mode: str = "r",
        buffering: int = -1,
        encoding: str | None = None,
        errors: str | None = None,
        newline: str | None = None,
    ) -> IO[Any]:
        """Open a file for reading; modes "r" and "rb". Raises ``NotFound``; reading raises ``SnapshotExpired``."""
        letters, text = check_mode(mode)
        if letters != "r":
            raise ValueError(f"a snapshot is for reading only: mode 'r' or 'rb', not {mode!r}")
        check_args(text, buffering, encoding, errors, newline)
        name = decoded(name)
        raw = SnapshotRaw(self._snapshot._open(name), name)
        return wrap_snapshot(raw, text, buffering, encoding, errors, newline)

    def read(self, name: Path) -> bytes:
        """The contents of a file. Raises ``NotFound`` and ``SnapshotExpired``."""
        with self.open(name, "rb") as file:
            contents: bytes = file.read()
            return contents

    def list(self, directory: Path = "") -> list[str]:
        """Names in a directory, sorted; "" is the store itself. Raises ``NotFound``."""
        return self._snapshot.list(decoded(directory))

    def stat(self, name: Path) -> Metadata:
        """Type, permissions and size in bytes of a name. Raises ``NotFound``."""
        is_directory, size, mode = self._snapshot._metadata(decoded(name))
        return Metadata(mode | (_stat.S_IFDIR if is_directory else _stat.S_IFREG), size)

    def check(self) -> None:
        """Raise ``SnapshotExpired`` if the owner no longer keeps the data. Everything read so far is right."""
        self._snapshot.check()

    def refresh(self) -> None:
        """Advance to the last durable commit. Files that were opened before stay at theirs."""
        self._snapshot.refresh()

    def close(self) -> None:
        """Let the owner drop the data."""
        self._snapshot.close()

    def __enter__(self) -> Snapshot:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
