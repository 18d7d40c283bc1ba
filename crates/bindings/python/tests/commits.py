"""Programs that commit numbers in the working directory, and read the last one: for kills and for power cuts."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from itertools import count
from typing import Literal

import untorn
import untorn.dbm
import untorn.shelve

FailureClass = Literal["power", "process"]
Acknowledge = Callable[[int], None]
SIZE = 3 * 4096 + 100
# "process" in tests that kill, "power" in those that cut the power.
failure_class: FailureClass = "process"


def byte(number: int) -> int:
    return number % 251


def last_number(contents: bytes) -> int:
    """The number of which the contents consist; all of it is the same."""
    number = contents[0] if contents else 0
    assert contents == bytes([number]) * len(contents), "a torn state"
    return number


def write_file(acknowledge: Acknowledge) -> None:
    with untorn.open("a", "w+b", failure_class=failure_class) as file:
        for number in count(1):
            file.seek(0)
            file.write(bytes([byte(number)]) * SIZE)
            file.commit()
            acknowledge(number)


def read_file() -> int:
    with untorn.open("a", "r+b", failure_class=failure_class) as file:
        return last_number(file.read())


def write_array(acknowledge: Acknowledge) -> None:
    array = untorn.memmap("m", "u1", "w+", shape=SIZE, failure_class=failure_class)
    for number in count(1):
        array[:] = byte(number)
        array.flush()
        acknowledge(number)


def read_array() -> int:
    with untorn.memmap("m", "u1", "r+", failure_class=failure_class) as array:
        return last_number(array.tobytes())


def write_shelf(acknowledge: Acknowledge) -> None:
    with untorn.shelve.open("s", failure_class=failure_class) as shelf:
        shelf.clear()
        for number in count(1):
            for key in "abcdefgh":
                shelf[key] = [number] * 50
            shelf[f"only {number}"] = number
            shelf.pop(f"only {number - 1}", None)
            shelf.sync()
            acknowledge(number)


def read_shelf() -> int:
    with untorn.shelve.open("s", failure_class=failure_class) as shelf:
        if not len(shelf):
            return 0
        number: int = shelf["a"][0]
        assert all(shelf[key] == [number] * 50 for key in "abcdefgh")
        assert sorted(shelf) == sorted([*"abcdefgh", f"only {number}"])
        return number


def write_by_tasks(acknowledge: Acknowledge) -> None:
    async def main() -> None:
        with untorn.Store("store", failure_class=failure_class) as store:
            for number in count(1):
                async with store.transaction() as txn:
                    txn.open("a", "wb").write(bytes([byte(number)]) * SIZE)
                    txn.open("b", "wb").write(bytes([byte(number)]) * SIZE)
                acknowledge(number)

    asyncio.run(main())


def read_of_tasks() -> int:
    with untorn.Store("store", failure_class=failure_class) as store:
        names = store.list()
        if not names:
            return 0
        assert names == ["a", "b"]
        with store.open("a", "rb") as a, store.open("b", "rb") as b:
            return last_number(a.read() + b.read())


PROGRAMS: dict[str, tuple[Callable[[Acknowledge], None], Callable[[], int]]] = {
    "file": (write_file, read_file),
    "array": (write_array, read_array),
    "shelf": (write_shelf, read_shelf),
    "tasks": (write_by_tasks, read_of_tasks),
}


def last_in(program: str) -> int:
    """The number that a program left; 0 if it was ended before its file was there."""
    try:
        return PROGRAMS[program][1]()
    except FileNotFoundError:
        return 0
