"""A shelf over :mod:`untorn.dbm`: keys are ``str``, values are pickled, changes are all or nothing."""

from __future__ import annotations

import builtins
import shelve as _shelve
from types import TracebackType
from typing import TYPE_CHECKING, Any

from . import dbm as _dbm
from ._io import Path

if TYPE_CHECKING:
    from ._store import Store

__all__ = ["Shelf", "open"]


class Shelf(_shelve.Shelf[Any]):
    """A persistent dictionary. ``sync()`` commits.

    A ``with`` block commits at its end, rolls back on an exception, and closes. ``close()`` with uncommitted changes
    raises ``Uncommitted`` after closing, unless the shelf was opened with ``commit_on_close``. With ``writeback``,
    values that were read count as changed, as in ``shelve``.
    """

    writeback: bool
    cache: builtins.dict[str, Any]

    def __init__(self, table: _dbm.Table, protocol: int | None = None, writeback: bool = False) -> None:
        super().__init__(table, protocol, writeback)

    def transaction(self) -> _Block:
        """A ``with`` block that commits at its end, rolls back on an exception, and leaves the shelf open.

        Its beginning raises ``Invalid`` if there are uncommitted changes.
        """
        return _Block(self)

    def commit(self) -> None:
        """Commit all changes: durable on return, all or nothing.

        Raises ``Error``, whose ``outcome`` tells what became of the commit.
        """
        self.sync()

    def rollback(self) -> None:
        """Return to the last commit."""
        self.cache = {}
        self._table().rollback()

    def close(self) -> None:
        """Close. Raises ``Uncommitted``, after closing, if it discarded changes."""
        table = self._table(of_closed=True)
        if table is None:
            return
        try:
            if table._commit_on_close:
                self.sync()
            else:
                self._write_cache()
        finally:
            self._forget(table)

    def _write_cache(self) -> None:
        """Put the values that were read with ``writeback`` into the table, in no commit."""
        if self.writeback and self.cache:
            self.writeback = False
            for key, value in self.cache.items():
                self[key] = value
            self.writeback = True
            self.cache = {}

    def _forget(self, table: _dbm.Table) -> None:
        self.cache = {}
        self.dict = _shelve._ClosedDict()  # type: ignore[attr-defined]
        table.close()

    def _table(self, of_closed: bool = False) -> Any:
        table = getattr(self, "dict", None)
        if isinstance(table, _dbm.Table):
            return table
        if of_closed:
            return None
        raise ValueError("invalid operation on closed shelf")

    def __enter__(self) -> Shelf:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        table = self._table(of_closed=True)
        if table is None:
            return
        try:
            if kind is None:
                self.sync()
            else:
                table.rollback()
        finally:
            self._forget(table)

    def __del__(self) -> None:
        # The table discards and warns; a finaliser never commits.
        pass


class _Block:
    """A transaction of a shelf."""

    def __init__(self, shelf: Shelf) -> None:
        self._shelf = shelf

    def __enter__(self) -> Shelf:
        self._shelf._table().transaction().__enter__()
        return self._shelf

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self._shelf.sync()
        else:
            self._shelf.rollback()


def open(
    filename: Path,
    flag: _dbm.Flag = "c",
    protocol: int | None = None,
    writeback: bool = False,
    *,
    store: Store | None = None,
    commit_on_close: bool = False,
    **options: Any,
) -> Shelf:
    """Open a shelf, as ``shelve.open`` does. With ``store``, ``filename`` is a name in that store.

    ``options`` and errors are those of :func:`untorn.dbm.open`.
    """
    if store is not None:
        table = store.dbm(filename, flag, commit_on_close=commit_on_close)
    else:
        table = _dbm.open(filename, flag, commit_on_close=commit_on_close, **options)
    return Shelf(table, protocol, writeback)
