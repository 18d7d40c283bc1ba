"""The bodies of CPython's own tests of `io`, `shelve` and `dbm`, run against this package.

Tests that do not apply are listed with the reason. Code that CPython tests here closes its files by itself, so they are
opened with `commit_on_close`.
"""

from __future__ import annotations

import io
import os
import unittest
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest

import untorn
import untorn.dbm
import untorn.shelve

for _name in ("test_io", "test_file", "test_univnewlines", "test_bufio", "test_shelve", "test_dbm"):
    pytest.importorskip(f"test.{_name}", reason="skipped: this Python comes without its own tests")

from test import mapping_tests, test_bufio, test_dbm, test_file, test_io, test_shelve, test_univnewlines  # noqa: E402

pytestmark = [
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
    pytest.mark.filterwarnings("ignore::EncodingWarning"),
]

FAST: Any = {"failure_class": "process"}

NO_DESCRIPTOR = "a file of Untorn has no descriptor"
OWN_OBJECTS = "tests objects of io that are not of this package"
NO_FINALISER = "a finaliser never commits"

NOT_HERE = {
    "test_closefd": NO_DESCRIPTOR,
    "test_closefd_attr": NO_DESCRIPTOR,
    "test_fileio_closefd": NO_DESCRIPTOR,
    "test_no_closefd_with_filename": NO_DESCRIPTOR,
    "test_opener": NO_DESCRIPTOR,
    "test_bad_opener_negative_1": NO_DESCRIPTOR,
    "test_bad_opener_other_negative": NO_DESCRIPTOR,
    "test_opener_invalid_fd": NO_DESCRIPTOR,
    "test_optional_abilities": NO_DESCRIPTOR,
    "test_fspath_support": NO_DESCRIPTOR,
    "test_read_closed": NO_DESCRIPTOR,
    "test_large_file_ops": "writes beyond 2 GiB, which tests of the library do",
    "test_unbounded_file": "reads /dev/zero",
    "test_destructor": NO_FINALISER,
    "test_garbage_collection": OWN_OBJECTS,
}


def open_file(
    file: Any,
    mode: str = "r",
    buffering: int = -1,
    encoding: str | None = None,
    errors: str | None = None,
    newline: str | None = None,
    closefd: bool = True,
    opener: Any = None,
) -> Any:
    """`open`, as the tests call it: files by name are Untorn's."""
    if isinstance(file, int) or not closefd or opener is not None:
        return io.open(file, mode, buffering, encoding, errors, newline, closefd, opener)
    if "U" in mode:
        raise ValueError(f"invalid mode: {mode!r}")
    if any(letter in mode for letter in "wax+"):
        return untorn.open(file, mode, buffering, encoding, errors, newline, commit_on_close=True, **FAST)
    return untorn.open(file, mode, buffering, encoding, errors, newline)


class Beside:
    """Skips the exceptions, and gives the tests our `open`."""

    open = staticmethod(open_file)

    def setUp(self) -> None:
        method = self._testMethodName  # type: ignore[attr-defined]
        if method in NOT_HERE:
            self.skipTest(NOT_HERE[method])  # type: ignore[attr-defined]
        super().setUp()  # type: ignore[misc]


def spaces(case: type) -> type:
    """The names that `test_io` gives its cases."""
    for name in io.__all__:
        if name != "open":
            setattr(case, name, getattr(io, name))
    for name in ("RawIO", "MisbehavedRawIO", "FileIO", "NonBlockWriterIO", "UnseekableIO", "RawIOWithoutRead"):
        name = name if name.startswith("Misbehaved") else "Mock" + name
        setattr(case, name, getattr(test_io, "C" + name))
    case.is_C = True  # type: ignore[attr-defined]
    return case


TestIO = spaces(type("TestIO", (Beside, test_io.IOTest), {}))
TestFile = type("TestFile", (Beside, test_file.AutoFileTests, unittest.TestCase), {})
TestOtherFile = type("TestOtherFile", (Beside, test_file.OtherFileTests, unittest.TestCase), {})
TestBufferSizes = type("TestBufferSizes", (Beside, test_bufio.BufferSizeTest, unittest.TestCase), {})
for _kind in ("CR", "LF", "CRLF", "Mixed"):
    _base = getattr(test_univnewlines, f"Test{_kind}Newlines")
    globals()[f"Test{_kind}Newlines"] = type(f"Test{_kind}Newlines", (Beside, _base, unittest.TestCase), {})


def open_shelf(*args: Any, **kwargs: Any) -> untorn.shelve.Shelf:
    return untorn.shelve.open(*args, commit_on_close=True, **FAST, **kwargs)


def open_table(*args: Any, **kwargs: Any) -> untorn.dbm.Table:
    return untorn.dbm.open(*args, commit_on_close=True, **FAST, **kwargs)


class Shelves:
    """`shelve` with our `open`."""

    def setUp(self) -> None:
        names = SimpleNamespace(open=open_shelf, Shelf=test_shelve.shelve.Shelf)
        patch = mock.patch.object(test_shelve, "shelve", names)
        patch.start()
        self.addCleanup(patch.stop)  # type: ignore[attr-defined]
        super().setUp()  # type: ignore[misc]


class TestShelve(Shelves, test_shelve.TestCase):
    pass


class ShelfMapping(Shelves, test_shelve.TestShelveFileBase, mapping_tests.BasicTestMappingProtocol):
    dbm_mod = untorn.dbm


TestShelf0 = type("TestShelf0", (ShelfMapping,), {"_args": {"protocol": 0}})
TestShelf5 = type("TestShelf5", (ShelfMapping,), {"_args": {"protocol": 5}})
TestShelfBack = type("TestShelfBack", (ShelfMapping,), {"_args": {"writeback": True}})
del ShelfMapping


class TestDbm(test_dbm.AnyDBMTestCase, unittest.TestCase):
    module = untorn.dbm

    def setUp(self) -> None:
        names = SimpleNamespace(
            open=open_table, error=untorn.dbm.error, whichdb=untorn.dbm.whichdb, _defaultmod=untorn.dbm
        )
        patch = mock.patch.object(test_dbm, "dbm", names)
        patch.start()
        self.addCleanup(patch.stop)
        test_dbm.setup_test_dir()
        self.addCleanup(test_dbm.cleaunup_test_dir)

    def test_whichdb(self) -> None:
        open_table("which", "n").close()
        self.assertEqual(untorn.dbm.whichdb("which"), "untorn.dbm")


def test_the_exceptions_are_tests() -> None:
    names = set(dir(TestIO)) | set(dir(TestFile)) | set(dir(TestOtherFile))
    assert set(NOT_HERE) <= names
    assert os.path.isdir(".")
