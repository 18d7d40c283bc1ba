"""The package's types: of its own code, of the stub of the extension, and as programs see them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import untorn

pytest.importorskip("mypy", reason="skipped: mypy is not installed")

PROGRAM = """
import untorn
with untorn.Store("store", readers="group", wait=1.0) as store, store.transaction() as txn:
    reveal_type(txn.open("a", "wb"))
reveal_type(untorn.open("a").write)
ticket = untorn.sync_async()
reveal_type(ticket.lsn)
reveal_type(untorn.dbm.open("t", "c")["a"])
reveal_type(untorn.memmap("a").flush)
untorn.write("a", 1)
untorn.Store("store", readers="nobody")
"""


def run(*args: str) -> tuple[int, str]:
    done = subprocess.run([sys.executable, "-m", *args], capture_output=True, text=True)
    return done.returncode, done.stdout + done.stderr


def test_the_package_is_typed() -> None:
    package = Path(untorn.__file__).parent
    assert (package / "py.typed").exists()
    os.symlink(package, "untorn")
    status, said = run("mypy", "--strict", "-p", "untorn")
    assert status == 0, said


def test_modules_are_imported_when_they_are_used() -> None:
    program = "import sys, untorn\nassert not {'numpy', 'sqlite3', 'asyncio', 'shelve'} & set(sys.modules)\n"
    program += "print(untorn.dbm.open, untorn.shelve.open, untorn.aio.GatedWriter, untorn.sqlite.connect, untorn.memmap)\n"
    program += "untorn.none"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout and "has no attribute 'none'" in done.stderr, done.stderr


def test_the_stub_is_that_of_the_extension() -> None:
    status, said = run("mypy.stubtest", "untorn._untorn")
    assert status == 0, said


def test_programs_see_the_types() -> None:
    Path("program.py").write_text(PROGRAM)
    status, said = run("mypy", "program.py")
    assert status == 1
    for expected in ("int | None", "bytes", "IO[Any]", "def ()"):
        assert expected in said
    assert said.count("error:") == 2, said
