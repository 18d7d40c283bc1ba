"""numpy arrays over files whose ``flush`` is all or nothing."""

from __future__ import annotations

import gc
import math
import os
import sys
import warnings
import weakref
from io import BytesIO
from types import TracebackType
from typing import IO, TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.lib import format as npy

from . import _untorn
from ._errors import Error, make_error
from ._io import Path, decoded
from ._store import Store, store_options
from ._untorn import Ticket

if TYPE_CHECKING:
    from numpy.typing import DTypeLike

Mode = Literal["r", "c", "r+", "w+", "readonly", "copyonwrite", "readwrite", "write"]
_MODES = {"readonly": "r", "copyonwrite": "c", "readwrite": "r+", "write": "w+"}


class _Mapped:
    """The mapping behind a memmap and its views."""

    def __init__(self, file: _untorn.File, alone: bool, read_only: bool) -> None:
        self.closed = False
        self.pid = os.getpid()
        self.file = file
        self.map = _untorn.Map(file, read_only)
        self.alone = alone
        self.views: dict[int, weakref.ref[Any]] = {}
        # The arrays of bytes below, which plain views keep, too.
        self.roots: list[np.ndarray[Any, Any]] = []

    def __del__(self) -> None:
        # A store's other handles may have changes of their own.
        if not getattr(self, "alone", False) or self.closed or self.pid != os.getpid():
            return
        try:
            lost = self.file.has_changes()
            self.map.end(False)
        except Error:
            return
        if lost:
            warnings.warn("unclosed memmap: changes since its last flush are discarded", ResourceWarning, source=self)

    def array(self, dtype: DTypeLike, offset: int, shape: Any, order: str) -> np.ndarray[Any, Any]:
        array = array_of(self.map, dtype, offset, shape, order)
        if isinstance(array.base, np.ndarray):
            self.roots.append(array.base)
        return array

    def has_views(self, apart_from: memmap) -> bool:
        others = [view for view in map(_call, list(self.views.values())) if view is not None and view is not apart_from]
        return bool(others) or any(sys.getrefcount(root) > _REFERENCES for root in self.roots)

    def note_view(self, view: memmap) -> None:
        key = id(view)
        views = self.views
        views[key] = weakref.ref(view, lambda _: views.pop(key, None))

    def close(self) -> bool:
        """Whether uncommitted changes were discarded."""
        self.closed = True
        self.file.close()
        return self.map.end(self.alone)


class memmap(np.ndarray[Any, Any]):
    """An array over a file, with the signature of ``numpy.memmap``. Modes: "r", "c", "r+" and "w+".

    ``flush`` commits all changes of the file: durable on return, all or nothing. Until then, no store reaches the
    file. With ``store``, ``filename`` is a name in that store; otherwise the file's store is beside it. A ``with`` block
    commits at its end, rolls back on an exception, and closes.

    ``offset`` is in bytes. Raises ``ValueError`` if the file is too short for ``shape`` in modes "r" and "c", and what
    :func:`untorn.open` raises. ``options`` are those of :class:`untorn.Store`.

    Mode "c" reads the file into memory: stores never reach the file, and ``flush`` does nothing.

    A store by another thread during ``flush`` is in that commit or in the next one, for each byte: docs/MAPPINGS.md.
    """

    filename: str = ""
    offset: int = 0
    mode: str = "r+"
    _mapped: _Mapped | None = None

    def __new__(
        cls,
        filename: Path,
        dtype: DTypeLike = np.uint8,
        mode: Mode = "r+",
        offset: int = 0,
        shape: int | tuple[int, ...] | None = None,
        order: Literal["C", "F"] = "C",
        *,
        store: Store | None = None,
        **options: Any,
    ) -> memmap:
        mode = _MODES.get(mode, mode)  # type: ignore[assignment]
        if mode not in ("r", "c", "r+", "w+"):
            raise ValueError(f"mode must be one of ['r', 'c', 'r+', 'w+'] (got {mode!r})")
        if mode == "w+" and shape is None:
            raise ValueError("shape must be given if mode == 'w+'")
        name = decoded(filename)
        if mode == "c":
            store_options(**options)
            array = array_of(_contents(name, store), dtype, offset, shape, order).view(cls)
            array.filename, array.offset, array.mode = name, offset, mode
            return array
        args = {
            "create": mode == "w+",
            "create_new": False,
            "read_only": mode == "r",
            "truncate": mode == "w+",
            "permissions": 0o666,
        }
        if store is not None:
            file = store._open_file(name, args)
        else:
            file = _untorn.File(name, args, store_options(**options))
        try:
            end = needed_bytes(np.dtype(dtype), offset, shape)
            if mode != "r" and end is not None and file.size() < end:
                file.truncate(end)
            mapped = _Mapped(file, store is None, mode == "r")
        except BaseException:
            file.close()
            raise
        array = mapped.array(dtype, offset, shape, order).view(cls)
        array._mapped, array.filename, array.offset, array.mode = mapped, name, offset, mode
        mapped.note_view(array)
        return array

    def __array_finalize__(self, of: Any) -> None:
        self._mapped = None
        if isinstance(of, memmap) and of._is_open() and np.may_share_memory(self, of):
            self._mapped, self.filename, self.offset, self.mode = of._mapped, of.filename, of.offset, of.mode
            if self._mapped is not None:
                self._mapped.note_view(self)

    def __array_wrap__(self, array: Any, context: Any = None, return_scalar: bool = False) -> Any:
        array = super().__array_wrap__(array, context)
        if self is array or type(self) is not memmap:
            return array
        # Results of computations are ordinary arrays.
        return array[()] if return_scalar else array.view(np.ndarray)

    def __getitem__(self, index: Any) -> Any:
        found = super().__getitem__(index)
        if type(found) is memmap and not found._is_open():
            return found.view(np.ndarray)
        return found

    def __reduce__(self) -> Any:
        return np.asarray(self).copy().__reduce__()

    def _is_open(self) -> bool:
        return self._mapped is not None or self.mode == "c"

    def _open(self) -> _Mapped:
        if self._mapped is None:
            raise ValueError(f"the array is {'a copy' if self.mode == 'c' else 'closed, or is not one'} of a file")
        return self._mapped

    def flush(self) -> None:
        """Commit all changes of the file: durable on return, all or nothing.

        Raises ``Error``, whose ``outcome`` tells what became of the commit.
        """
        if self.mode != "c":
            self._open().map.flush()

    def flush_async(self) -> Ticket:
        """Start a commit of all stores made so far; the ticket, which can be awaited, tells when it is durable."""
        return self._open().map.flush_async()

    def rollback(self) -> None:
        """Return to the last commit, also in memory."""
        self._open().map.rollback()

    def resized(self, shape: int | tuple[int, ...]) -> memmap:
        """The file as an array of another shape, with the same dtype, offset and memory; the file grows if needed.

        The growth is an uncommitted change, and new elements are 0. Older arrays stay valid.
        """
        mapped = self._open()
        end = needed_bytes(self.dtype, self.offset, shape)
        if end is not None and end > mapped.map.size():
            mapped.map.grow(end)
        array = mapped.array(self.dtype, self.offset, shape, "C").view(memmap)
        array._mapped, array.filename, array.offset, array.mode = mapped, self.filename, self.offset, self.mode
        mapped.note_view(array)
        return array

    def resize(self, *_: Any, **__: Any) -> None:
        """Raises ``ValueError``, as that of ``numpy.memmap`` does: an array that does not own its memory keeps its size."""
        raise ValueError("cannot resize this array in place: its memory is the file's. resized() gives a larger array")

    def close(self) -> None:
        """Close the file. Raises ``BufferError`` while views of the array exist, as ``mmap`` does.

        Changes in no commit are discarded, and ``Uncommitted`` says so, after closing. A closed array keeps its memory,
        with the contents of the last commit, and cannot be changed.
        """
        self._close(complain=True)

    def _close(self, complain: bool) -> None:
        mapped = self._mapped
        if mapped is None:
            return
        if mapped.has_views(self):
            # Views in a cycle that nobody reaches any more do not count.
            gc.collect()
            if mapped.has_views(self):
                raise BufferError(f"cannot close {self.filename}: arrays that are views of it exist; delete them first")
        self._mapped = None
        self.flags.writeable = False
        if mapped.close() and complain:
            raise make_error(
                "uncommitted",
                None,
                f"{self.filename}: the array was closed with changes in no commit, which were discarded. Call flush() "
                "before close(), or use the array in a `with` block",
                self.filename,
            )

    def __enter__(self) -> memmap:
        if self.mode != "c":
            self._open()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        mapped = self._mapped
        if mapped is None:
            return
        if self.mode != "r":
            if kind is None:
                mapped.map.flush()
            else:
                mapped.map.rollback()
        self._close(complain=False)


def _contents(name: str, store: Store | None) -> bytearray:
    """The contents of a file; without ``store``, those of its last commit."""
    with _open_for_reading(name, store) as file:
        return bytearray(file.read())


def _open_for_reading(name: str, store: Store | None) -> IO[bytes]:
    if store is not None:
        return store.open(name, "rb")
    from ._store import open as open_file

    return open_file(name, "rb")


def _call(reference: weakref.ref[Any]) -> Any:
    return reference()


def _references() -> int:
    """References to an array of bytes that only its list and one array above it keep, as `has_views` counts them."""
    root = np.frombuffer(bytearray(1), np.uint8)
    kept = root[:]
    roots = [kept.base]
    del root
    return max(sys.getrefcount(root) for root in roots)


_REFERENCES = _references()


def needed_bytes(dtype: np.dtype[Any], offset: int, shape: int | tuple[int, ...] | None) -> int | None:
    """The end of an array in its file."""
    if shape is None:
        return None
    lengths = (shape,) if isinstance(shape, int) else tuple(shape)
    return offset + math.prod(lengths) * dtype.itemsize


def array_of(
    memory: Any, dtype: DTypeLike, offset: int, shape: int | tuple[int, ...] | None, order: str
) -> np.ndarray[Any, Any]:
    """An array over a buffer, checked as ``numpy.memmap`` does."""
    kind = np.dtype(dtype)
    if offset < 0:
        raise ValueError(f"the offset is {offset}; it must not be negative")
    has = memoryview(memory).nbytes - offset
    if shape is None:
        count, rest = divmod(has, kind.itemsize)
        if rest:
            raise ValueError("Size of available data is not a multiple of the data-type size.")
        shape = (count,)
    elif isinstance(shape, int):
        shape = (shape,)
    end = math.prod(shape) * kind.itemsize
    if end > has:
        raise ValueError(f"the file is too short: the array needs {end} bytes from offset {offset}, and there are {has}")
    if end == 0:
        return np.empty(shape, kind, order=order)  # type: ignore[call-overload,no-any-return]
    # `frombuffer` holds a buffer of the memory, which `np.ndarray` would not.
    root = np.frombuffer(memory, np.uint8)
    return root[offset : offset + end].view(kind).reshape(shape, order=order)  # type: ignore[call-overload,no-any-return]


def open_memmap(
    filename: Path,
    mode: Mode = "r+",
    dtype: DTypeLike | None = None,
    shape: int | tuple[int, ...] | None = None,
    fortran_order: bool = False,
    version: tuple[int, int] | None = None,
    *,
    store: Store | None = None,
    **options: Any,
) -> memmap:
    """A ``.npy`` file as an array, with the signature of ``numpy.lib.format.open_memmap``.

    Raises ``ValueError`` for a header that cannot be mapped, and what :class:`memmap` raises.
    """
    if mode in ("w+", "write"):
        kind = np.dtype(dtype)
        if kind.hasobject:
            raise ValueError("Array can't be memory-mapped: Python objects in dtype.")
        lengths = (shape,) if isinstance(shape, int) else tuple(shape or ())
        header = BytesIO()
        facts = {"descr": npy.dtype_to_descr(kind), "fortran_order": fortran_order, "shape": lengths}
        _write_header(header, facts, version)
        prefix = header.getvalue()
        array = memmap(
            filename, kind, "w+", len(prefix), lengths, "F" if fortran_order else "C", store=store, **options
        )
        array._open().file.pwrite(prefix, 0)
        return array
    name = decoded(filename)
    with _open_for_reading(name, store) as file:
        lengths, fortran_order, kind = _read_header(file)
        offset = file.tell()
    if kind.hasobject:
        raise ValueError("Array can't be memory-mapped: Python objects in dtype.")
    order: Literal["C", "F"] = "F" if fortran_order else "C"
    return memmap(name, kind, mode, offset, lengths, order, store=store, **options)


def _write_header(file: BytesIO, facts: dict[str, Any], version: tuple[int, int] | None) -> None:
    if version not in (None, (1, 0), (2, 0)):
        raise ValueError(f"the versions of .npy files that can be written are (1, 0) and (2, 0), not {version}")
    if version != (2, 0):
        try:
            npy.write_array_header_1_0(file, facts)
            return
        except ValueError:
            # The header is too long for version 1.0.
            if version is not None:
                raise
            file.seek(0)
            file.truncate()
    npy.write_array_header_2_0(file, facts)


def _read_header(file: IO[bytes]) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    match npy.read_magic(file):
        case (1, 0):
            return npy.read_array_header_1_0(file)
        case (2, 0):
            return npy.read_array_header_2_0(file)
        case version:
            raise ValueError(f"a .npy file of version {version} cannot be mapped, only (1, 0) and (2, 0)")
