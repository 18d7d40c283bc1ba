"""SQLite databases whose transactions are commits of Untorn: ``sqlite3`` with the VFS of docs/SQLITE.md.

The extension ``libuntorn_sqlite.so``, which ``make install`` installs, is loaded by SQLite's own C functions, so this
works with a ``sqlite3`` that has no ``enable_load_extension``.
"""

from __future__ import annotations

import ctypes
import os
import sqlite3
import sys
import threading
from typing import Any
from urllib.parse import quote

from ._errors import make_error
from ._io import Path, decoded

__all__ = ["connect", "load"]

_lock = threading.Lock()
_loaded = False

_FILE = "libuntorn_sqlite.so"
_OPEN_FLAGS = 0x2 | 0x4 | 0x80  # READWRITE, CREATE, MEMORY


def load(extension: Path | None = None) -> None:
    """Load the extension, once in a process.

    It is ``extension``, or the environment variable UNTORN_SQLITE, or ``libuntorn_sqlite.so`` below ``sys.prefix`` or
    ``/usr/local`` or ``/usr``, in ``lib/untorn``. Raises ``NotFound``, or ``Error`` of kind "unsupported" if SQLite cannot
    load it.
    """
    global _loaded
    with _lock:
        if not _loaded:
            _load(_find(extension))
            _loaded = True


def connect(
    database: Path, timeout: float = 5.0, *, store: Path | None = None, extension: Path | None = None, **kwargs: Any
) -> sqlite3.Connection:
    """``sqlite3.connect`` for a database whose transactions are commits: each one flush, whole in every journal mode.

    ``store`` is the directory of the store to which the database belongs; databases of one store that a transaction
    changes together (``ATTACH``) are one commit. Without it, the database has a store of its own beside it, or belongs
    to that of its directory. ``timeout`` is in seconds; the other arguments are those of ``sqlite3.connect``. Raises what
    :func:`load` raises, and ``sqlite3.Error``.
    """
    load(extension)
    if kwargs.pop("uri", True) is not True:
        raise TypeError("connect() makes the URI by itself")
    uri = f"file:{quote(decoded(database))}?vfs=untorn"
    if store is not None:
        uri += f"&store={quote(decoded(store))}"
    connection: sqlite3.Connection = sqlite3.connect(uri, timeout=timeout, uri=True, **kwargs)
    return connection


def _find(extension: Path | None) -> str:
    if extension is not None:
        return decoded(extension)
    if found := os.environ.get("UNTORN_SQLITE"):
        return found
    tried = [os.path.join(prefix, "lib/untorn", _FILE) for prefix in (sys.prefix, "/usr/local", "/usr")]
    for path in tried:
        if os.path.exists(path):
            return path
    raise make_error(
        "io",
        2,
        f"cannot find {_FILE} in {', '.join(map(os.path.dirname, tried))}. Install it by `make install`, or name it by the "
        "argument extension or the environment variable UNTORN_SQLITE",
        _FILE,
    )


def _load(path: str) -> None:
    import _sqlite3

    # The names that the module itself is linked with, so that it is the same SQLite.
    library = ctypes.CDLL(getattr(_sqlite3, "__file__", None))
    connection, message = ctypes.c_void_p(), ctypes.c_char_p()
    status = library.sqlite3_open_v2(b":memory:", ctypes.byref(connection), _OPEN_FLAGS, None)
    try:
        if status == 0:
            status = library.sqlite3_enable_load_extension(connection, 1)
        if status == 0:
            status = library.sqlite3_load_extension(connection, os.fsencode(path), None, ctypes.byref(message))
        # SQLITE_OK_LOAD_PERMANENTLY is reported as SQLITE_OK.
        if status != 0:
            said = message.value.decode(errors="replace") if message.value else f"SQLite's error {status}"
            raise make_error("unsupported", None, f"cannot load {path} into SQLite {sqlite3.sqlite_version}: {said}", path)
    finally:
        if message.value is not None:
            library.sqlite3_free(message)
        library.sqlite3_close(connection)
