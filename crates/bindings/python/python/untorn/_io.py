"""File objects of Python's ``io`` over files that change all or nothing.

A file object is ``io``'s own class over a :class:`RawFile`, so everything that takes a file object works. Each has
``commit``, ``commit_async`` and ``rollback``. Leaving a ``with`` block commits, an exception rolls back, and a finaliser
never commits.
"""

from __future__ import annotations

import io
import operator
import os
import warnings
from collections.abc import Callable
from types import TracebackType
from typing import IO, TYPE_CHECKING, Any, TypeAlias

from ._errors import make_error
from ._untorn import File, SnapshotFile, Ticket

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer, WriteableBuffer

    from ._store import Transaction

Path: TypeAlias = "str | bytes | os.PathLike[str] | os.PathLike[bytes]"

_UNCOMMITTED = (
    "{}: closed with uncommitted changes, which were discarded. Call commit() before close(), or use the file in a "
    "`with` block; for code that closes the file by itself, open it with commit_on_close=True"
)


def decoded(path: Path) -> str:
    """A path as ``str``. Raises ``ValueError`` for one that no file can have, as ``open`` does."""
    name = os.fsdecode(path)
    if "\0" in name:
        raise ValueError("embedded null byte")
    return name


class RawFile(io.RawIOBase):
    """The unbuffered file: every call goes to Untorn. Positions are in bytes.

    ``pread`` and ``pwrite`` neither use nor move the position, and any number of threads may call them. They do not see
    bytes that a buffered object above holds back: call its ``flush`` first.
    """

    def __init__(
        self,
        file: File,
        name: str,
        mode: str,
        *,
        commit_on_close: bool = False,
        transaction: Transaction | None = None,
    ) -> None:
        self._file = file
        self.name = name
        self.mode = mode
        self._readable = "r" in mode or "+" in mode
        self._writable = mode[0] in "wax" or "+" in mode
        self._at_end = mode.startswith("a")
        self._commit_on_close = commit_on_close
        self._transaction = transaction
        self._pid = os.getpid()
        # Writes are dropped: buffers above are emptied.
        self._discarding = False
        # Closing neither commits nor complains.
        self._quiet = False
        if self._at_end:
            file.seek(0, 2)
        self._committed_position = file.tell()

    # The raw methods of io.

    def readable(self) -> bool:
        self._check_open()
        return self._readable

    def writable(self) -> bool:
        self._check_open()
        return self._writable

    def seekable(self) -> bool:
        self._check_open()
        return True

    def readinto(self, buffer: WriteableBuffer) -> int:
        """Read bytes from the position into ``buffer``. Returns how many; 0 at the end."""
        self._check_open()
        if not self._readable:
            raise io.UnsupportedOperation("File not open for reading")
        return self._file.readinto(buffer)

    def write(self, data: ReadableBuffer) -> int:
        """Write at the position, in mode "a" at the end, as an uncommitted change. Returns the number of bytes: all."""
        self._check_open()
        if not self._writable:
            raise io.UnsupportedOperation("File not open for writing")
        if self._discarding:
            return memoryview(data).nbytes
        return self._file.write(data, self._at_end)

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        self._check_open()
        return self._file.seek(offset, whence)

    def tell(self) -> int:
        self._check_open()
        return self._file.tell()

    def truncate(self, size: int | None = None) -> int:
        """Set the size in bytes, as an uncommitted change; new bytes are zero."""
        self._check_open()
        if not self._writable:
            raise io.UnsupportedOperation("truncate")
        size = self._file.tell() if size is None else size
        if not self._discarding:
            self._file.truncate(size)
        return size

    def fileno(self) -> int:
        """Raises ``io.UnsupportedOperation``: there is no descriptor that shows uncommitted changes."""
        raise io.UnsupportedOperation("a file of Untorn has no descriptor: its changes are not in the data file yet")

    # Calls that Python's files do not have.

    def pread(self, size: int, offset: int) -> bytes:
        """At most ``size`` bytes from ``offset``; fewer only at the end. Other threads run meanwhile."""
        self._check_open()
        return self._file.pread(size, offset)

    def pwrite(self, data: ReadableBuffer, offset: int) -> int:
        """Write at ``offset``, as an uncommitted change. Returns the number of bytes. Other threads run meanwhile."""
        self._check_open()
        if not self._writable:
            raise io.UnsupportedOperation("File not open for writing")
        return self._file.pwrite(data, offset)

    def commit(self) -> None:
        """Commit all changes of the file: durable on return, all or nothing.

        Raises ``Error``, whose ``outcome`` tells what became of the commit.
        """
        self._check_open()
        self._file.commit()
        self._committed_position = self._file.tell()

    def commit_async(self) -> Ticket:
        """Start a commit of all changes made so far; the ticket tells when it is durable."""
        self._check_open()
        ticket = self._file.commit_async()
        self._committed_position = self._file.tell()
        return ticket

    def rollback(self) -> None:
        """Forget all changes since the last commit; the position is that of the last commit, or of the opening."""
        self._check_open()
        self._file.rollback()
        self._file.seek(self._committed_position, 0)

    def close(self) -> None:
        """Close the file. Raises ``Uncommitted``, after closing, if it discarded changes."""
        if self.closed:
            return
        lost = False
        try:
            if self._writable and self._transaction is None and not self._quiet:
                if self._commit_on_close:
                    self._file.commit()
                else:
                    lost = self._file.has_changes()
        finally:
            super().close()
            self._file.close()
        if lost:
            raise make_error("uncommitted", None, _UNCOMMITTED.format(self.name), self.name)

    def _check_open(self) -> None:
        if self.closed:
            raise ValueError("I/O operation on closed file.")

    def __enter__(self) -> RawFile:
        self._check_open()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        _leave(self, self, kind is None)

    def __del__(self) -> None:
        if not getattr(self, "closed", True):
            _abandon(self, self)

    def __repr__(self) -> str:
        return f"<untorn.RawFile name={self.name!r} mode={self.mode!r}>"


class SnapshotRaw(io.RawIOBase):
    """A file as of one commit, for reading."""

    def __init__(self, file: SnapshotFile, name: str) -> None:
        self._file = file
        self.name = name
        self.mode = "rb"
        self._position = 0

    def readable(self) -> bool:
        self._check_open()
        return True

    def seekable(self) -> bool:
        self._check_open()
        return True

    def write(self, data: ReadableBuffer) -> int:
        self._check_open()
        raise io.UnsupportedOperation("File not open for writing")

    def readinto(self, buffer: WriteableBuffer) -> int:
        self._check_open()
        n = self._file.pread_into(buffer, self._position)
        self._position += n
        return n

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        self._check_open()
        offset = operator.index(offset)
        if whence == os.SEEK_CUR:
            offset += self._position
        elif whence == os.SEEK_END:
            offset += self._file.size()
        elif whence != os.SEEK_SET:
            raise ValueError(f"invalid whence ({whence}, should be 0, 1 or 2)")
        if offset < 0:
            raise ValueError(f"negative seek position {offset}")
        self._position = offset
        return offset

    def tell(self) -> int:
        self._check_open()
        return self._position

    def close(self) -> None:
        if not self.closed:
            super().close()
            self._file.close()

    def _check_open(self) -> None:
        if self.closed:
            raise ValueError("I/O operation on closed file.")


class _Committing:
    """The part that buffered and text files share."""

    _raw_file: RawFile

    if TYPE_CHECKING:
        closed: Any
        flush: Callable[[], None]

    def commit(self) -> None:
        """Flush Python's buffers, then commit all changes of the file: durable on return, all or nothing.

        Raises ``Error``, whose ``outcome`` tells what became of the commit.
        """
        self.flush()
        self._raw_file.commit()

    def commit_async(self) -> Ticket:
        """Flush Python's buffers, then start a commit; the ticket tells when it is durable."""
        self.flush()
        return self._raw_file.commit_async()

    def rollback(self) -> None:
        """Forget all changes since the last commit; the position is that of the last commit, or of the opening."""
        raw = self._raw_file
        _discard_buffers(self, raw)
        raw.rollback()
        self._seek_to(raw.tell())

    def _seek_to(self, position: int) -> None:
        """Let buffers above go by the raw position."""

    def close(self) -> None:
        """Flush Python's buffers and close. Raises ``Uncommitted``, after closing, if changes were discarded."""
        super().close()  # type: ignore[misc]

    def detach(self) -> Any:
        """Separate the file below, which stays open."""
        below = super().detach()  # type: ignore[misc]
        del self._raw_file
        return below

    def __enter__(self) -> Any:
        if self.closed:
            raise ValueError("I/O operation on closed file.")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        _leave(self, self._raw_file, kind is None)

    def __del__(self) -> None:
        raw = getattr(self, "_raw_file", None)
        if raw is not None and not raw.closed:
            _abandon(self, raw)


class BufferedRandom(_Committing, io.BufferedRandom):
    """A buffered file for reading and writing."""

    def __init__(self, raw: RawFile, buffer_size: int = io.DEFAULT_BUFFER_SIZE) -> None:
        self._raw_file = raw
        super().__init__(raw, buffer_size)


class BufferedWriter(_Committing, io.BufferedWriter):
    """A buffered file for writing."""

    def __init__(self, raw: RawFile, buffer_size: int = io.DEFAULT_BUFFER_SIZE) -> None:
        self._raw_file = raw
        super().__init__(raw, buffer_size)


class BufferedReader(_Committing, io.BufferedReader):
    """A buffered file for reading."""

    def __init__(self, raw: RawFile, buffer_size: int = io.DEFAULT_BUFFER_SIZE) -> None:
        self._raw_file = raw
        super().__init__(raw, buffer_size)


class TextIOWrapper(_Committing, io.TextIOWrapper):
    """A text file. ``buffer`` is the binary file below, and ``buffer.raw`` the :class:`RawFile`."""

    def __init__(
        self,
        buffer: BufferedRandom | BufferedWriter | BufferedReader,
        encoding: str | None,
        errors: str | None,
        newline: str | None,
        line_buffering: bool = False,
    ) -> None:
        self._raw_file = buffer._raw_file
        super().__init__(buffer, encoding, errors, newline, line_buffering)

    def _seek_to(self, position: int) -> None:
        self.seek(position)


def _discard_buffers(file: Any, raw: RawFile) -> None:
    """Empty Python's buffers by a flush into a file that takes nothing."""
    raw._discarding = True
    try:
        file.flush()
    finally:
        raw._discarding = False


def _follow(file: Any, raw: RawFile, committed: bool) -> None:
    """Let a file go on after a transaction of which it was a part."""
    if committed:
        raw._committed_position = raw.tell()
        return
    _discard_buffers(file, raw)
    raw.seek(raw._committed_position)
    if file is not raw:
        file._seek_to(raw._committed_position)


def _leave(file: Any, raw: RawFile, well: bool) -> None:
    """Leave a ``with`` block."""
    if raw.closed:
        return
    transaction = raw._transaction
    try:
        if not raw._writable:
            pass
        elif well:
            file.flush()
            if transaction is None:
                raw.commit()
        else:
            raw._discarding = True
            if transaction is None:
                raw._file.rollback()
            else:
                transaction._spoil(raw.name)
    except BaseException:
        raw._discarding = True
        if transaction is not None:
            transaction._spoil(raw.name)
        raise
    finally:
        _close_quietly(file, raw)


def _close_quietly(file: Any, raw: RawFile) -> None:
    """Close without a complaint about changes: they were committed, or are discarded on purpose."""
    raw._quiet = raw._discarding = True
    file.close()
    raw.close()


def _abandon(file: Any, raw: RawFile) -> None:
    """A file that nobody closed: its changes are discarded, for a finaliser never commits."""
    try:
        _close_quietly(file, raw)
    except Exception:
        # Nobody could handle it.
        pass
    if raw._pid == os.getpid():
        warnings.warn(f"unclosed file {raw!r}: uncommitted changes are discarded", ResourceWarning, source=file)


def check_mode(mode: str) -> tuple[str, bool]:
    """The mode without "b" and "t", and whether it is of text. Raises as ``open`` does."""
    if not isinstance(mode, str):
        raise TypeError(f"open() argument 'mode' must be str, not {type(mode).__name__}")
    letters = set(mode)
    if letters - set("rwaxbt+") or len(letters) != len(mode):
        raise ValueError(f"invalid mode: {mode!r}")
    if "b" in letters and "t" in letters:
        raise ValueError("can't have text and binary mode at once")
    if len(letters & set("rwax")) != 1:
        raise ValueError("must have exactly one of create/read/write/append mode")
    kind = next(letter for letter in mode if letter in "rwax")
    return kind + ("+" if "+" in letters else ""), "b" not in letters


def file_args(mode: str, permissions: int) -> dict[str, Any]:
    """How Untorn opens a file in a mode without "b" and "t"."""
    return {
        "create": mode[0] in "wa",
        "create_new": mode[0] == "x",
        "read_only": mode == "r",
        "truncate": mode[0] == "w",
        "permissions": permissions,
    }


def check_args(
    text: bool, buffering: int, encoding: str | None, errors: str | None, newline: str | None
) -> None:
    """Raise and warn as ``open`` does, before anything is opened."""
    if text and buffering == 0:
        raise ValueError("can't have unbuffered text I/O")
    if buffering == 1 and not text:
        warnings.warn("line buffering (buffering=1) isn't supported in binary mode", RuntimeWarning, stacklevel=3)
    if newline not in (None, "", "\n", "\r", "\r\n"):
        raise ValueError(f"illegal newline value: {newline!r}")
    for name, value in (("encoding", encoding), ("errors", errors), ("newline", newline)):
        if not text and value is not None:
            raise ValueError(f"binary mode doesn't take {'an' if name[0] in 'e' else 'a'} {name} argument")


def wrap(
    raw: RawFile, text: bool, buffering: int, encoding: str | None, errors: str | None, newline: str | None
) -> IO[Any]:
    """The file object of a mode, as ``open`` makes it."""
    if buffering == 0:
        return raw  # type: ignore[return-value]
    line_buffering = buffering == 1 and text
    size = io.DEFAULT_BUFFER_SIZE if buffering in (-1, 1) else buffering
    buffer: BufferedRandom | BufferedWriter | BufferedReader
    if "+" in raw.mode:
        buffer = BufferedRandom(raw, size)
    elif raw._writable:
        buffer = BufferedWriter(raw, size)
    else:
        buffer = BufferedReader(raw, size)
    if not text:
        return buffer
    wrapped = TextIOWrapper(buffer, encoding, errors, newline, line_buffering)
    wrapped.mode = raw.mode  # type: ignore[misc]
    return wrapped


def wrap_snapshot(
    raw: SnapshotRaw, text: bool, buffering: int, encoding: str | None, errors: str | None, newline: str | None
) -> IO[Any]:
    """The file object of a file that is only read."""
    if buffering == 0:
        return raw  # type: ignore[return-value]
    buffer = io.BufferedReader(raw, io.DEFAULT_BUFFER_SIZE if buffering in (-1, 1) else buffering)
    return io.TextIOWrapper(buffer, encoding, errors, newline) if text else buffer
