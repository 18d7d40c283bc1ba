"""Forks, signals and threads."""

from __future__ import annotations

import multiprocessing
import os
import select
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from conftest import forked

import untorn

# A child of a process with threads is warned of from 3.12 on; these tests want one.
pytestmark = pytest.mark.filterwarnings("ignore:This process.*is multi-threaded:DeprecationWarning")


def test_a_child_cannot_use_the_parents_handles() -> None:
    with untorn.Store("store") as store, store.open("a", "w+b") as file:
        file.write(b"parent")

        def child() -> None:
            calls = [
                file.commit,
                file.commit_async,
                file.rollback,
                store.list,
                store.close,
                lambda: store.open("b", "w"),
                lambda: file.raw.pread(1, 0),
                lambda: store.transaction().commit(),
                file.close,
            ]
            for call in calls:
                with pytest.raises(untorn.Forked, match="untorn.Reader"):
                    call()
            assert untorn.Reader("store").read("a") == b""

        assert forked(child) == (0, "")
        file.commit()
        assert untorn.Reader("store").read("a") == b"parent"


def test_a_childs_exit_from_a_block_commits_nothing() -> None:
    def child() -> None:
        with pytest.raises(untorn.Forked):
            file.__exit__(None, None, None)

    with untorn.open("a", "w+b", commit_on_close=True) as file:
        file.write(b"half")
        assert forked(child) == (0, "")
        with untorn.open("a", "rb") as reading:
            assert reading.read() == b""
        file.rollback()


def _read(path: str) -> bytes:
    return untorn.Reader(path).read("a")


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_pool_workers_read(method: str) -> None:
    with untorn.Store("store") as store:
        store.write("a", b"shared")
        with multiprocessing.get_context(method).Pool(2) as pool:
            assert pool.map(_read, ["store"] * 4) == [b"shared"] * 4


@pytest.mark.parametrize("wait", ["open", "follow", "wait_for", "drain"])
def test_ctrl_c_ends_a_wait(wait: str) -> None:
    reading, writing = os.pipe()
    with untorn.Store("store") as store, store.open("a", "wb") as file, untorn.Gate() as gate:
        output = gate.output(writing)
        reader = untorn.Reader("store")
        waits = {
            "open": lambda: untorn.Store("store", wait=60),
            "follow": lambda: next(reader.follow()),
            "wait_for": lambda: reader.wait_for(1 << 40),
            "drain": gate.drain,
        }
        if wait == "drain":
            # More than a pipe takes, and nobody reads it.
            file.write(b"x")
            output.write(b"x" * (1 << 19), after=file.commit_async())
        main = threading.get_ident()
        ended = threading.Event()

        def interrupt() -> None:
            while not ended.wait(0.05):
                signal.pthread_kill(main, signal.SIGINT)

        other = threading.Thread(target=interrupt)
        try:
            other.start()
            waits[wait]()
            pytest.fail("the wait ended by itself")
        except KeyboardInterrupt:
            pass
        finally:
            while True:
                try:
                    ended.set()
                    other.join()
                    break
                except KeyboardInterrupt:
                    pass
        gate.close()
        file.commit()
    os.close(reading)
    os.close(writing)


def test_ctrl_c_ends_a_write_to_a_full_gate_and_loses_nothing() -> None:
    reading, writing = os.pipe()
    received = bytearray()
    with untorn.Gate(bytes_max=50_000) as gate:
        output = gate.output(writing)
        taken = b""
        # Until neither the pipe nor the gate takes more.
        while select.select([], [writing], [], 0)[1] or gate.held_bytes <= 10_000:
            if gate.held_bytes <= 10_000:
                piece = bytes([len(taken) % 251]) * 40_000
                output.write(piece)
                taken += piece
            time.sleep(0.01)
        os.close(writing)
        for _ in range(5):
            other = threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT))
            started = time.monotonic()
            with pytest.raises(KeyboardInterrupt):
                other.start()
                output.write(b"never" * 8000)
            assert time.monotonic() - started < 5
            other.join()

        def receive() -> None:
            while data := os.read(reading, 1 << 16):
                received.extend(data)

        reader = threading.Thread(target=receive)
        reader.start()
        output.write(b"end")
        output.close()
        gate.drain()
    reader.join()
    os.close(reading)
    assert received == taken + b"end"


def test_threads_write_their_own_ranges() -> None:
    threads, rounds, size = 8, 40, 1000
    with untorn.open("a", "w+b", 0) as file:
        file.truncate(threads * size)

        def work(number: int) -> None:
            for step in range(rounds):
                file.pwrite(bytes([step]) * size, number * size)
                if step % 8 == number:
                    file.commit_async().result()
                assert file.pread(size, number * size) == bytes([step]) * size

        with ThreadPoolExecutor(threads) as pool:
            list(pool.map(work, range(threads)))
    with untorn.open("a", "rb") as reading:
        assert reading.read() == bytes([rounds - 1]) * (threads * size)


def test_a_buffered_file_among_threads_loses_no_line() -> None:
    with untorn.open("log", "ab") as file:

        def work(number: int) -> None:
            for step in range(100):
                file.write(b"%d %d\n" % (number, step))
                if step % 25 == 0:
                    file.commit()

        with ThreadPoolExecutor(6) as pool:
            list(pool.map(work, range(6)))
    with untorn.open("log", "rb") as reading:
        assert sorted(reading) == sorted(b"%d %d\n" % (n, s) for n in range(6) for s in range(100))


def test_threads_open_and_close_meanwhile() -> None:
    with untorn.Store("store") as store:

        def work(number: int) -> None:
            for _ in range(20):
                with store.open(f"f{number % 3}", "ab") as file:
                    file.write(b".")

        with ThreadPoolExecutor(6) as pool:
            list(pool.map(work, range(6)))
        sizes = [len(untorn.Reader("store").read(f"f{n}")) for n in range(3)]
        assert sizes == [40, 40, 40]


def test_a_close_during_calls_of_other_threads() -> None:
    file = untorn.open("a", "w+b", 0)
    begun = threading.Barrier(5)
    failures = []

    def work() -> None:
        begun.wait()
        try:
            while True:
                file.pwrite(b"x" * 100, 0)
                file.commit()
        except ValueError:
            pass
        except BaseException as error:
            failures.append(error)

    workers = [threading.Thread(target=work) for _ in range(4)]
    for worker in workers:
        worker.start()
    begun.wait()
    time.sleep(0.02)
    try:
        file.close()
    except untorn.Uncommitted:
        pass
    for worker in workers:
        worker.join()
    assert failures == []


def test_the_end_of_the_interpreter_with_everything_open() -> None:
    program = """
import os, threading, untorn
store = untorn.Store("store")
file = store.open("a", "wb")
file.write(b"one")
file.commit()
file.write(b"two")
table = untorn.dbm.open("t", "c")
table["a"] = "1"
gate = untorn.Gate()
output = gate.output(os.pipe()[1])
output.write(b"x" * 100, after=file.commit_async())
txn = store.transaction()
txn.open("b", "wb").write(b"half")
follow = untorn.Reader("store").follow()
snapshot = untorn.Reader("store").snapshot()
threading.Thread(target=lambda: next(untorn.Reader("store").follow()), daemon=True).start()
try:
    import numpy
    array = untorn.memmap("m", mode="w+", shape=10)
    array[:] = 1
except ImportError:
    pass
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stderr) == (0, "")
    assert untorn.Reader("store").read("a") == b"onetwo"
    with untorn.Store("store") as store:
        assert store.list() == ["a"]
    with untorn.dbm.open("t", "r") as table:
        assert len(table) == 0
