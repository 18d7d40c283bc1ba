"""Measures the package beside other ways to keep data in files, with pyperf.

    python bench.py -o result.json          (pip install pyperf; optional: numpy, sqlitedict, diskcache, safer)

Everything is durable, in class `power`, unless its name says otherwise. The directory is TMPDIR: choose one on the file
system that counts. UNTORN_COMMIT_COST is the program that makes the same commits without Python:

    cargo build --release -p untorn --example commit_cost         (target/release/examples/commit_cost)
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import os
import shelve
import subprocess
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import pyperf  # type: ignore[import-not-found]

import untorn
import untorn.shelve

DATA = os.urandom(4096)


def helper(path: str, data: bytes) -> None:
    """The usual way, with every flush: a new file, renamed over the old one."""
    new = path + ".new"
    with open(new, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    os.replace(new, path)
    directory = os.open(os.path.dirname(path), os.O_RDONLY)
    os.fsync(directory)
    os.close(directory)


def commit(file: Any, number: int) -> None:
    file.pwrite(DATA[:100], number % 40 * 100)
    file.commit()


def flush(array: Any, number: int) -> None:
    array[number % 256 << 12] = number % 251 + 1
    array.flush()


def set_key(shelf: Any, number: int) -> None:
    # Another value than the key had: what is unchanged is not written.
    start = number % 997
    shelf[str(number % 1000)] = DATA[start : start + 200]
    # sqlitedict has commit, diskcache commits by itself.
    getattr(shelf, "sync", getattr(shelf, "commit", lambda: None))()


def loop(action: Callable[[int], object]) -> Callable[[int], float]:
    """Times `action`, which gets the number of its call."""

    def timed(loops: int) -> float:
        start = time.perf_counter()
        for number in range(loops):
            action(number)
        return time.perf_counter() - start

    return timed


def within(open_it: Callable[[], Any], action: Callable[[Any, int], object]) -> Callable[[int], float]:
    """Times `action` on something that is opened before: pyperf calls this file once for each benchmark."""

    def timed(loops: int) -> float:
        with open_it() as opened:
            return loop(lambda number: action(opened, number))(loops)

    return timed


def optional(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError:
        return None


def tickets(wait: Callable[[list[untorn.Ticket]], Awaitable[object]]) -> Callable[[int], float]:
    """Times the wait for commits, 1,000 at once."""

    async def main(loops: int) -> float:
        spent = 0.0
        with untorn.open("tickets", "wb", 0, failure_class="process") as file:
            for done in range(0, loops, 1000):
                started = []
                for number in range(done, min(done + 1000, loops)):
                    file.pwrite(b"%08d" % number, 0)
                    started.append(file.commit_async())
                start = time.perf_counter()
                await wait(started)
                spent += time.perf_counter() - start
        return spent

    return lambda loops: asyncio.run(main(loops))


async def one_by_one(started: list[untorn.Ticket]) -> None:
    for ticket in started:
        await ticket


class Nothing:
    """Something to wait for that is there."""

    def __await__(self) -> Iterator[None]:
        return iter(())


def gather_nothing(loops: int) -> float:
    """Times `asyncio.gather` itself, which makes a task for everything that is no future."""

    async def main() -> float:
        spent = 0.0
        for done in range(0, loops, 1000):
            things = [Nothing() for _ in range(done, min(done + 1000, loops))]
            start = time.perf_counter()
            await asyncio.gather(*things)
            spent += time.perf_counter() - start
        return spent

    return asyncio.run(main())


def without_python(program: str) -> Callable[[int], float]:
    """The commits of a program in Rust."""
    return lambda loops: float(subprocess.check_output([program, ".", str(loops)]))


def main() -> None:
    if program := os.environ.get("UNTORN_COMMIT_COST"):
        os.environ["UNTORN_COMMIT_COST"] = os.path.abspath(program)
    runner = pyperf.Runner(processes=3, values=3, warmups=1)
    # The processes that measure get these, too.
    variables = runner.parse_args().inherit_environ or []
    runner.args.inherit_environ = [*variables, "TMPDIR", "UNTORN_COMMIT_COST"]
    runner.metadata["description"] = "untorn beside other ways"
    bench = runner.bench_time_func
    with tempfile.TemporaryDirectory() as directory:
        os.chdir(directory)
        here = os.path.join(directory, "file")
        bench("write 4 KiB: untorn.write", loop(lambda _: untorn.write(here, DATA)))
        bench("write 4 KiB: helper", loop(lambda _: helper(here, DATA)))
        if safer := optional("safer"):

            def with_safer(_: int) -> None:
                with safer.open(here, "wb") as file:
                    file.write(DATA)

            bench("write 4 KiB: safer (no flush)", loop(with_safer))

        bench("commit 100 bytes", within(lambda: untorn.open("raw", "w+b", 0), commit))
        fast = within(lambda: untorn.open("fast", "w+b", 0, failure_class="process"), commit)
        bench("commit 100 bytes, class process", fast)
        if program := os.environ.get("UNTORN_COMMIT_COST"):
            bench("commit 100 bytes, class process: Rust", without_python(program))
        bench("await a ticket, 1,000 one by one", tickets(one_by_one))
        bench("await a ticket, 1,000 in asyncio.gather", tickets(lambda started: asyncio.gather(*started)))
        bench("asyncio.gather of 1,000 that are done", gather_nothing)

        if np := optional("numpy"):
            shape = 1 << 20
            bench("flush one page: untorn.memmap", within(lambda: untorn.memmap("ours", "u1", "w+", shape=shape), flush))
            theirs = within(lambda: contextlib.nullcontext(np.memmap("theirs", "u1", "w+", shape=shape)), flush)
            bench("flush one page: numpy.memmap, not whole", theirs)

        bench("set a key: untorn.shelve", within(lambda: untorn.shelve.open("shelf"), set_key))
        for module in ("dbm.gnu", "dbm.sqlite3", "dbm.dumb"):
            if made := optional(module):
                bench(
                    f"set a key: shelve on {module}",
                    within(lambda made=made: shelve.Shelf(made.open("other", "n")), set_key),
                )
        if sqlitedict := optional("sqlitedict"):
            bench("set a key: sqlitedict", within(lambda: sqlitedict.SqliteDict("sqlitedict"), set_key))
        if diskcache := optional("diskcache"):
            cache = within(lambda: diskcache.Cache("diskcache", sqlite_synchronous=2), set_key)
            bench("set a key: diskcache, synchronous FULL", cache)


if __name__ == "__main__":
    main()
