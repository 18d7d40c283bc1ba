"""Stores, transactions, and the functions that open files."""

from __future__ import annotations

import builtins
import os
import tempfile
from collections.abc import Iterable
from types import TracebackType
from typing import IO, TYPE_CHECKING, Any, Literal

from . import _untorn
from ._errors import NotFound, make_error
from ._io import (
    Path,
    RawFile,
    SnapshotRaw,
    _close_quietly,
    _follow,
    check_args,
    check_mode,
    decoded,
    file_args,
    wrap,
    wrap_snapshot,
)
from ._untorn import Ticket

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

    from ._memmap import memmap
    from .dbm import Table

FailureClass = Literal["power", "process"]
Readers = Literal["owner", "group", "all"]


def store_options(
    failure_class: FailureClass = "power",
    wait: float = 0.0,
    readers: Readers = "owner",
    journal_bytes: int | None = None,
    readers_space: int | None = None,
    accept_unknown: bool = False,
) -> dict[str, Any]:
    """Options of a store that is opened. ``wait`` is in seconds."""
    return {
        "failure_class": failure_class,
        "wait": wait,
        "readers": readers,
        "journal_bytes": journal_bytes,
        "readers_space": readers_space,
        "accept_unknown": accept_unknown,
    }


class Store(_untorn.Store):
    """An open store: a directory whose files change all or nothing.

    ``failure_class``: commits survive ``"power"`` cuts, or only the end of the ``"process"``. ``wait``: seconds to wait
    for another process that has the store open. ``readers``: the users that may read a store that this call creates.
    ``journal_bytes``, ``readers_space``: limits in bytes, as in docs/GUARANTEES.md. In a ``with`` block, the end closes the
    store.

    Raises ``Busy`` if it is open elsewhere, after ``wait``; ``NotFound`` without ``create``; ``UnknownState`` after a crash
    of the machine in class ``"process"``, unless ``accept_unknown``; ``Corrupt``.
    """

    def __new__(cls, path: Path, *, create: bool = True, **options: Any) -> Store:
        return super().__new__(cls, decoded(path), create, store_options(**options))

    def __init__(
        self,
        path: Path,
        *,
        create: bool = True,
        failure_class: FailureClass = "power",
        wait: float = 0.0,
        readers: Readers = "owner",
        journal_bytes: int | None = None,
        readers_space: int | None = None,
        accept_unknown: bool = False,
    ) -> None:
        pass

    def open(
        self,
        name: Path,
        mode: str = "r",
        buffering: int = -1,
        encoding: str | None = None,
        errors: str | None = None,
        newline: str | None = None,
        *,
        permissions: int = 0o666,
        commit_on_close: bool = False,
    ) -> IO[Any]:
        """Open a file of the store, by its name in it; otherwise like :func:`untorn.open`.

        All file objects of one file share its uncommitted changes. Raises ``NotFound`` and ``Exists`` as ``open`` does.
        """
        letters, text = check_mode(mode)
        check_args(text, buffering, encoding, errors, newline)
        name = decoded(name)
        file = self._open_file(name, file_args(letters, permissions))
        raw = RawFile(file, name, letters + ("" if text else "b"), commit_on_close=commit_on_close)
        return wrap(raw, text, buffering, encoding, errors, newline)

    def write(self, name: Path, data: str | ReadableBuffer) -> None:
        """Replace the contents of a file, whole or not at all; a ``str`` is written as UTF-8. Durable on return."""
        with self.transaction() as transaction, transaction.open(name, "wb") as file:
            file.write(data.encode() if isinstance(data, str) else data)

    def transaction(self) -> Transaction:
        """Begin a transaction over files and names, for a ``with`` or ``async with`` block."""
        return Transaction(self)

    def memmap(self, name: Path, *args: Any, **kwargs: Any) -> memmap:
        """A file of the store as an array; see :class:`untorn.memmap`."""
        from ._memmap import memmap

        return memmap(name, *args, store=self, **kwargs)

    def dbm(self, name: Path, flag: Literal["r", "w", "c", "n"] = "c", *, commit_on_close: bool = False) -> Table:
        """A table of the store; see :func:`untorn.dbm.open`."""
        from .dbm import Table

        return Table._open_in(self, name, flag, commit_on_close)

    def close(self) -> None:
        """Finish commits on their way, and leave the data files plain and complete.

        Uncommitted changes are discarded. Files that are still open raise ``Closed``.
        """
        self._close()

    def __enter__(self) -> Store:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<untorn.Store {os.fspath(self.path)!r}{' (closed)' if self.closed else ''}>"


class Transaction:
    """Changes of files and names that happen completely or not at all.

    The end of its ``with`` block commits; an exception aborts. Files that it opened close with it. In an ``async with``
    block, the end awaits the commit.
    """

    def __init__(self, store: Store) -> None:
        self._txn = store._begin()
        self._store = store
        self._files: list[tuple[Any, RawFile]] = []
        self._added: list[tuple[Any, RawFile]] = []
        self._spoiled: str | None = None

    def open(
        self,
        name: Path,
        mode: str = "r+",
        buffering: int = -1,
        encoding: str | None = None,
        errors: str | None = None,
        newline: str | None = None,
        *,
        permissions: int = 0o666,
    ) -> IO[Any]:
        """Open a file whose changes belong to the transaction; modes as in :func:`untorn.open`.

        A ``with`` block around the file commits nothing: if it ends with an exception, the transaction cannot commit.
        """
        letters, text = check_mode(mode)
        check_args(text, buffering, encoding, errors, newline)
        name = decoded(name)
        file = self._open_raw(name, letters, permissions)
        raw = RawFile(file, name, letters + ("" if text else "b"), transaction=self)
        opened = wrap(raw, text, buffering, encoding, errors, newline)
        self._files.append((opened, raw))
        return opened

    def _open_raw(self, name: str, mode: str, permissions: int) -> _untorn.File:
        args = {**file_args(mode, permissions), "create": False, "create_new": False, "truncate": False}
        try:
            file = self._store._open_file(name, args)
        except NotFound:
            if mode[0] == "r":
                raise
            return self._txn.create(name, permissions)
        if mode[0] == "x":
            file.close()
            raise make_error("io", 17, f"cannot create {name}: File exists", name)
        if mode != "r":
            self._txn.add(file)
        if mode[0] == "w":
            file.truncate(0)
        return file

    def add(self, file: IO[Any]) -> None:
        """Add a file that is open: its uncommitted changes, past and future, belong to the transaction.

        It stays open when the transaction ends. Raises ``Error`` of kind "in-transaction" if it is in another one.
        """
        raw = raw_of(file)
        file.flush()
        self._txn.add(raw._file)
        raw._transaction = self
        self._added.append((file, raw))

    def rename(self, old: Path, new: Path) -> None:
        """Rename a file; a file with the new name is replaced. Raises ``NotFound``."""
        self._txn.rename(decoded(old), decoded(new))

    def unlink(self, name: Path) -> None:
        """Remove a file. Raises ``NotFound``."""
        self._txn.unlink(decoded(name))

    def mkdir(self, name: Path, permissions: int = 0o777) -> None:
        """Make a directory, with these permissions less the umask. Raises ``Exists``."""
        self._txn.mkdir(decoded(name), permissions)

    def rmdir(self, name: Path) -> None:
        """Remove an empty directory. Raises ``NotFound``, and ``Error`` with ``errno.ENOTEMPTY``."""
        self._txn.rmdir(decoded(name))

    def chmod(self, name: Path, permissions: int) -> None:
        """Set the permissions of a file or directory. Raises ``NotFound``."""
        self._txn.chmod(decoded(name), permissions)

    def commit(self) -> None:
        """Commit: after a crash at any point, all of it is there, or nothing. The transaction has ended then.

        Raises ``Error``, whose ``outcome`` tells what became of the commit.
        """
        self._flush()
        try:
            self._txn.commit()
        except BaseException:
            self._end(committed=False)
            raise
        self._end(committed=True)

    def commit_async(self) -> Ticket:
        """Start the commit; the ticket tells when it is durable. The transaction has ended then."""
        self._flush()
        try:
            ticket = self._txn.commit_async()
        except BaseException:
            self._end(committed=False)
            raise
        self._end(committed=True)
        return ticket

    def abort(self) -> None:
        """Drop all changes. Does nothing if the transaction has ended."""
        try:
            self._txn.abort()
        finally:
            self._end(committed=False)

    def _flush(self) -> None:
        if self._spoiled is not None:
            spoiled = self._spoiled
            self.abort()
            raise make_error(
                "invalid", None, f"the block of {spoiled} ended with an exception; the transaction was aborted"
            )
        for file, raw in self._files + self._added:
            if not raw.closed:
                file.flush()

    def _end(self, committed: bool) -> None:
        files, self._files = self._files, []
        for file, raw in files:
            if not raw.closed:
                _close_quietly(file, raw)
        added, self._added = self._added, []
        for file, raw in added:
            raw._transaction = None
            if not raw.closed:
                _follow(file, raw, committed)

    def _spoil(self, name: str) -> None:
        self._spoiled = name

    def __enter__(self) -> Transaction:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self.commit()
        else:
            self.abort()

    async def __aenter__(self) -> Transaction:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            # A task that is cancelled here leaves: the commit goes on, whole.
            await self.commit_async()
        else:
            self.abort()


def raw_of(file: object) -> RawFile:
    """The raw file below a file object of this package."""
    raw = file if isinstance(file, RawFile) else getattr(file, "_raw_file", None)
    if not isinstance(raw, RawFile):
        raise TypeError(f"{type(file).__name__} is not a writable file of untorn")
    return raw


def open(
    path: Path,
    mode: str = "r",
    buffering: int = -1,
    encoding: str | None = None,
    errors: str | None = None,
    newline: str | None = None,
    *,
    permissions: int = 0o666,
    commit_on_close: bool = False,
    **options: Any,
) -> IO[Any]:
    """Open a file whose changes are all or nothing, like the built-in ``open``. Its store is beside it, ``<path>.untorn/``.

    ``with`` commits when the block ends well, and rolls back on an exception. ``close()`` with uncommitted changes
    raises ``Uncommitted`` after closing, unless ``commit_on_close``. In mode "r", it shows the last commit, also while
    another process has the file open, and creates nothing. ``options`` are those of :class:`Store`, as are the errors;
    besides, ``NotFound``, ``Exists`` and ``Denied`` as for ``open``, and ``Invalid`` for a directory.
    """
    letters, text = check_mode(mode)
    check_args(text, buffering, encoding, errors, newline)
    path = decoded(path)
    if letters == "r":
        snapshot = _untorn.Reader._containing(path) if _has_store(path) else None
        if snapshot is None:
            return builtins.open(path, "r" if text else "rb", buffering, encoding, errors, newline)
        reader, name = snapshot
        return wrap_snapshot(
            SnapshotRaw(reader._snapshot()._open(name), path), text, buffering, encoding, errors, newline
        )
    file = _untorn.File(path, file_args(letters, permissions), store_options(**options))
    raw = RawFile(file, path, letters + ("" if text else "b"), commit_on_close=commit_on_close)
    return wrap(raw, text, buffering, encoding, errors, newline)


def _has_store(path: str) -> bool:
    """Whether the file has a store beside it, or is in one."""
    path = os.path.realpath(path)
    if os.path.lexists(path + ".untorn"):
        return True
    while path != "/":
        path = os.path.dirname(path)
        if os.path.lexists(os.path.join(path, ".untorn")):
            return True
    return False


def write(path: Path, data: str | ReadableBuffer) -> None:
    """Replace the contents of a file, whole or not at all; a ``str`` is written as UTF-8.

    Owner, mode, ACL and extended attributes are kept. It is durable on return: file and directory are flushed. A file
    that belongs to a store is replaced by a commit of that store; raises ``Busy`` if that store is open.
    """
    _untorn.put(decoded(path), data.encode() if isinstance(data, str) else data)


class replace:
    """Replace a file by everything that is written in a ``with`` block; nothing changes on an exception.

    The block gets an ordinary file, without a name, in the same directory. ``mode`` is "w", "wb", "w+" or "w+b". Large
    contents are written twice. The end raises what :func:`write` raises.
    """

    def __init__(
        self,
        path: Path,
        mode: str = "w",
        encoding: str | None = None,
        errors: str | None = None,
        newline: str | None = None,
    ) -> None:
        letters, text = check_mode(mode)
        if letters[0] != "w":
            raise ValueError(f"replace() takes the modes 'w' and 'w+', with 'b' or without, not {mode!r}")
        check_args(text, -1, encoding, errors, newline)
        self._path = decoded(path)
        self._args: Any = {"mode": "w+" if text else "w+b", "encoding": encoding, "errors": errors, "newline": newline}
        self._file: IO[Any] | None = None

    def __enter__(self) -> IO[Any]:
        directory = os.path.dirname(os.path.realpath(self._path))
        self._file = tempfile.TemporaryFile(dir=directory, **self._args)
        return self._file

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        file, self._file = self._file, None
        assert file is not None
        with file:
            if kind is None:
                file.flush()
                os.lseek(file.fileno(), 0, os.SEEK_SET)
                _untorn.put_from(self._path, file.fileno())


def sync(*things: object) -> None:
    """Commit files, memmaps and at most one table of one store as one commit: all of them, or none.

    Raises ``Invalid`` if they are of several stores, and ``Error``, whose ``outcome`` tells what became of the commit.
    """
    files, table = _handles(things)
    if table is not None:
        table._table.sync(files)
    else:
        _untorn.sync(files, True)
    _note_positions(things)


def sync_async(*things: object) -> Ticket:
    """Start a commit of files and memmaps of one store, as :func:`sync` does; the ticket tells when it is durable."""
    files, table = _handles(things)
    if table is not None:
        raise TypeError("sync_async() takes files and memmaps; commit a table by its commit_async()")
    ticket = _untorn.sync(files, False)
    assert ticket is not None
    _note_positions(things)
    return ticket


def _handles(things: Iterable[object]) -> tuple[list[_untorn.File], Table | None]:
    from .dbm import Table

    files: list[_untorn.File] = []
    table: Table | None = None
    for thing in things:
        if isinstance(thing, Table):
            if table is not None:
                raise TypeError("sync() takes one table at most")
            table = thing
        elif (mapped := getattr(thing, "_mapped", None)) is not None:
            files.append(mapped.file)
        else:
            raw = raw_of(thing)
            thing.flush()  # type: ignore[attr-defined]
            files.append(raw._file)
    return files, table


def _note_positions(things: Iterable[object]) -> None:
    for thing in things:
        raw = thing if isinstance(thing, RawFile) else getattr(thing, "_raw_file", None)
        if raw is not None:
            raw._committed_position = raw.tell()
