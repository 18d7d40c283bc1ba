"""Children that are killed while they commit: the state is that of the last commit, or of the one on its way."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from itertools import count

import pytest
from conftest import extent, run_and_kill

import untorn
import untorn.dbm
import untorn.shelve

Acknowledge = Callable[[int], None]
SIZE = 3 * 4096 + 100


def byte(number: int) -> int:
    return number % 251


def last_number(contents: bytes) -> int:
    """The number of which the contents consist; all of it is the same."""
    number = contents[0] if contents else 0
    assert contents == bytes([number]) * len(contents), "a torn state"
    return number


def write_file(acknowledge: Acknowledge) -> None:
    with untorn.open("a", "w+b", failure_class="process") as file:
        for number in count(1):
            file.seek(0)
            file.write(bytes([byte(number)]) * SIZE)
            file.commit()
            acknowledge(number)


def read_file() -> int:
    with untorn.open("a", "r+b", failure_class="process") as file:
        return last_number(file.read())


def write_array(acknowledge: Acknowledge) -> None:
    array = untorn.memmap("m", "u1", "w+", shape=SIZE, failure_class="process")
    for number in count(1):
        array[:] = byte(number)
        array.flush()
        acknowledge(number)


def read_array() -> int:
    with untorn.memmap("m", "u1", "r+", failure_class="process") as array:
        return last_number(array.tobytes())


def write_shelf(acknowledge: Acknowledge) -> None:
    with untorn.shelve.open("s", failure_class="process") as shelf:
        shelf.clear()
        for number in count(1):
            for key in "abcdefgh":
                shelf[key] = [number] * 50
            shelf[f"only {number}"] = number
            shelf.pop(f"only {number - 1}", None)
            shelf.sync()
            acknowledge(number)


def read_shelf() -> int:
    with untorn.shelve.open("s", failure_class="process") as shelf:
        if not len(shelf):
            return 0
        number: int = shelf["a"][0]
        assert all(shelf[key] == [number] * 50 for key in "abcdefgh")
        assert sorted(shelf) == sorted([*"abcdefgh", f"only {number}"])
        return number


def write_by_tasks(acknowledge: Acknowledge) -> None:
    async def main() -> None:
        with untorn.Store("store", failure_class="process") as store:
            for number in count(1):
                async with store.transaction() as txn:
                    txn.open("a", "wb").write(bytes([byte(number)]) * SIZE)
                    txn.open("b", "wb").write(bytes([byte(number)]) * SIZE)
                acknowledge(number)

    asyncio.run(main())


def read_of_tasks() -> int:
    with untorn.Store("store", failure_class="process") as store:
        names = store.list()
        if not names:
            return 0
        assert names == ["a", "b"]
        with store.open("a", "rb") as a, store.open("b", "rb") as b:
            return last_number(a.read() + b.read())


@pytest.mark.filterwarnings("ignore:This process.*is multi-threaded:DeprecationWarning")
@pytest.mark.parametrize(
    ("write", "read"),
    [(write_file, read_file), (write_array, read_array), (write_shelf, read_shelf), (write_by_tasks, read_of_tasks)],
)
def test_kills(write: Callable[[Acknowledge], None], read: Callable[[], int], randomness: random.Random) -> None:
    kills = extent(12, 250)
    for _ in range(kills):
        acknowledged = run_and_kill(write, randomness, 30)
        found = read()
        if acknowledged:
            assert byte(found) in (byte(acknowledged), byte(acknowledged + 1))
    print(f"{write.__name__}: {kills} kills")
