"""Measures the package beside other ways to keep data in files, with pyperf.

    python bench.py -o result.json          (pip install pyperf; optional: numpy, sqlitedict, diskcache, safer)

Everything is durable, in class `power`, unless its name says otherwise. The directory is TMPDIR: choose one on the file
system that counts.
"""

from __future__ import annotations

import asyncio
import importlib
import os
import shelve
import tempfile
import time
from collections.abc import Callable
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


def loop(action: Callable[[int], object]) -> Callable[[int], float]:
    """Times `action`, which gets the number of its call."""

    def timed(loops: int) -> float:
        start = time.perf_counter()
        for number in range(loops):
            action(number)
        return time.perf_counter() - start

    return timed


def optional(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError:
        return None


def tickets(loops: int) -> float:
    """1,000 awaited commits."""

    async def main() -> float:
        spent = 0.0
        with untorn.open("tickets", "wb", 0, failure_class="process") as file:
            for number in range(loops):
                started = []
                for _ in range(1000):
                    file.pwrite(b"%08d" % number, 0)
                    started.append(file.commit_async())
                start = time.perf_counter()
                await asyncio.gather(*started)
                spent += time.perf_counter() - start
        return spent / 1000

    return asyncio.run(main())


def main() -> None:
    runner = pyperf.Runner(processes=3, values=3, warmups=1)
    runner.metadata["description"] = "untorn beside other ways"
    with tempfile.TemporaryDirectory() as directory:
        os.chdir(directory)
        here = os.path.join(directory, "file")
        runner.bench_time_func("write 4 KiB: untorn.write", loop(lambda _: untorn.write(here, DATA)))
        runner.bench_time_func("write 4 KiB: helper", loop(lambda _: helper(here, DATA)))
        if safer := optional("safer"):

            def with_safer(_: int) -> None:
                with safer.open(here, "wb") as file:
                    file.write(DATA)

            runner.bench_time_func("write 4 KiB: safer (no flush)", loop(with_safer))

        raw = untorn.open("raw", "w+b", 0)
        runner.bench_time_func("commit 100 bytes", loop(lambda n: (raw.pwrite(DATA[:100], n % 40 * 100), raw.commit())))
        raw.close()
        fast = untorn.open("fast", "w+b", 0, failure_class="process")
        runner.bench_time_func(
            "commit 100 bytes, class process", loop(lambda n: (fast.pwrite(DATA[:100], n % 40 * 100), fast.commit()))
        )
        fast.close()
        runner.bench_time_func("await a ticket, 1,000 at once", tickets)

        if np := optional("numpy"):
            ours = untorn.memmap("ours", "u1", "w+", shape=1 << 20)
            runner.bench_time_func("flush one page: untorn.memmap", loop(lambda n: (ours.__setitem__(n % 256 << 12, n % 256), ours.flush())))
            ours.flush()
            ours.close()
            theirs = np.memmap("theirs", "u1", "w+", shape=1 << 20)
            runner.bench_time_func("flush one page: numpy.memmap, not whole", loop(lambda n: (theirs.__setitem__(n % 256 << 12, n % 256), theirs.flush())))

        def shelf(opened: Any, sync: Callable[[], object]) -> Callable[[int], float]:
            return loop(lambda n: (opened.__setitem__(str(n % 1000), DATA[:200]), sync()))

        with untorn.shelve.open("shelf") as opened:
            runner.bench_time_func("set a key: untorn.shelve", shelf(opened, opened.sync))
        for module in ("dbm.gnu", "dbm.sqlite3", "dbm.dumb"):
            if made := optional(module):
                with shelve.Shelf(made.open("other " + module, "c")) as opened:
                    runner.bench_time_func(f"set a key: shelve on {module}", shelf(opened, opened.sync))
        if sqlitedict := optional("sqlitedict"):
            with sqlitedict.SqliteDict("sqlitedict") as opened:
                runner.bench_time_func("set a key: sqlitedict", shelf(opened, opened.commit))
        if diskcache := optional("diskcache"):
            with diskcache.Cache("diskcache", sqlite_synchronous=2) as opened:
                runner.bench_time_func("set a key: diskcache, synchronous FULL", shelf(opened, lambda: None))


if __name__ == "__main__":
    main()
