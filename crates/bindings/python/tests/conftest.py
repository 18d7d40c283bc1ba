"""Helpers of the tests: a fresh directory for each, seeds that are printed, and children that are killed."""

from __future__ import annotations

import functools
import inspect
import os
import random
import signal
import tempfile
import threading
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def directory(tmp_path: Path) -> Iterator[Path]:
    """The working directory: an empty one."""
    before = os.getcwd()
    os.chdir(tmp_path)
    yield tmp_path
    os.chdir(before)


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "thread_unsafe: the test cannot run in several threads at a time")


@pytest.hookimpl(tryfirst=True)
def pytest_itemcollected(item: pytest.Item) -> None:
    """With `--parallel-threads`, each thread runs the test in an empty working directory of its own."""
    if "store" in getattr(item, "fixturenames", ()):
        # The threads would get the same one.
        item.add_marker("thread_unsafe")
    body = getattr(item, "obj", None)
    if body is None or inspect.iscoroutinefunction(body) or not hasattr(os, "unshare"):
        return

    @functools.wraps(body)
    def alone(*args: object, **kwargs: object) -> None:
        if threading.current_thread() is not threading.main_thread():
            os.unshare(os.CLONE_FS)
            os.chdir(tempfile.mkdtemp(dir=os.getcwd()))
        body(*args, **kwargs)

    item.obj = alone  # type: ignore[attr-defined]


@pytest.fixture
def randomness() -> random.Random:
    """Random numbers whose seed is printed; UNTORN_TEST_SEED repeats them."""
    seed = int(os.environ.get("UNTORN_TEST_SEED") or random.randrange(1 << 32))
    print(f"UNTORN_TEST_SEED={seed}")
    return random.Random(seed)


def extent(short: int, full: int) -> int:
    """How many times: `full` with UNTORN_FULL=1."""
    return full if os.environ.get("UNTORN_FULL") == "1" else short


def forked(body: Callable[[], object]) -> tuple[int, str]:
    """Runs `body` in a forked child. Its exit status, and the exception that ended it."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        status = 1
        try:
            body()
            status = 0
        except BaseException:
            os.write(writing, traceback.format_exc().encode()[-4000:])
        finally:
            os._exit(status)
    os.close(writing)
    with os.fdopen(reading) as pipe:
        said = pipe.read()
    _, status = os.waitpid(child, 0)
    return os.waitstatus_to_exitcode(status), said


def run_and_kill(body: Callable[[Callable[[int], None]], object], randomness: random.Random, most: int) -> int:
    """Runs `body` in a child, which calls its argument with a number after each commit, and kills it after a random one.

    The last number that was acknowledged; 0 if there was none.
    """
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.close(reading)
            body(lambda number: (os.write(writing, number.to_bytes(8, "little")), None)[1])
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(1)
    os.close(writing)
    last, wanted = 0, randomness.randrange(most)
    killed = False
    with os.fdopen(reading, "rb") as pipe:
        while True:
            if last >= wanted and not killed:
                # At a random point of the next commit.
                for _ in range(randomness.randrange(2000)):
                    pass
                os.kill(child, signal.SIGKILL)
                killed = True
            number = pipe.read(8)
            if len(number) < 8:
                break
            last = int.from_bytes(number, "little")
    _, status = os.waitpid(child, 0)
    assert killed and os.waitstatus_to_exitcode(status) == -signal.SIGKILL, "the child ended by itself"
    return last
