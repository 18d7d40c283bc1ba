"""Random steps against a model: a file beside a bytearray, a table beside a dictionary, with reopenings and kills."""

from __future__ import annotations

import os
import signal
import tempfile
from typing import Any

import pytest
from conftest import extent

import untorn
import untorn.dbm

hypothesis = pytest.importorskip("hypothesis", reason="skipped: hypothesis is not installed")
from hypothesis import HealthCheck, settings, strategies as st  # noqa: E402
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule  # noqa: E402

BYTES = st.binary(max_size=300)
OFFSETS = st.integers(0, 9000)
KEYS = st.binary(max_size=3)

pytestmark = pytest.mark.filterwarnings("ignore:This process.*is multi-threaded:DeprecationWarning")


class Machine(RuleBasedStateMachine):
    """Steps that both machines have."""

    handle: Any
    now: Any
    committed: Any

    def open(self) -> Any:
        raise NotImplementedError

    def copy(self, model: Any) -> Any:
        raise NotImplementedError

    def check(self) -> None:
        raise NotImplementedError

    def change_something(self) -> None:
        raise NotImplementedError

    @initialize()
    def begin(self) -> None:
        self.directory = tempfile.TemporaryDirectory()
        self.path = os.path.join(self.directory.name, "x")
        self.handle = self.open()

    @rule()
    def commit(self) -> None:
        self.handle.commit()
        self.committed = self.copy(self.now)

    @rule()
    def commit_async(self) -> None:
        self.handle.commit_async().result()
        self.committed = self.copy(self.now)

    @rule()
    def rollback(self) -> None:
        self.handle.rollback()
        self.now = self.copy(self.committed)
        self.check()

    @rule()
    def reopen(self) -> None:
        try:
            self.handle.close()
        except untorn.Uncommitted:
            assert self.now != self.committed or self.may_look_changed
        self.handle = self.open()
        self.now = self.copy(self.committed)
        self.check()

    # A write of the present bytes counts as a change.
    may_look_changed = True

    @rule(after_commit=st.booleans())
    def kill_a_child(self, after_commit: bool) -> None:
        """The store's owner is a child, which is killed."""
        self.reopen()
        self.handle.close()
        child = os.fork()
        if child == 0:
            try:
                self.handle = self.open()
                self.change_something()
                if after_commit:
                    self.handle.commit()
                self.change_something()
                os.kill(os.getpid(), signal.SIGKILL)
            finally:
                os._exit(1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
        self.handle = self.open()
        if after_commit:
            self.model_change()
            self.committed = self.copy(self.now)
        self.check()

    def model_change(self) -> None:
        raise NotImplementedError

    def teardown(self) -> None:
        if hasattr(self, "handle"):
            try:
                self.handle.close()
            except untorn.Uncommitted:
                pass
            self.directory.cleanup()


class FileMachine(Machine):
    def __init__(self) -> None:
        super().__init__()
        self.now, self.committed = bytearray(), bytearray()

    def open(self) -> Any:
        mode = "r+b" if os.path.exists(self.path) else "w+b"
        return untorn.open(self.path, mode, failure_class="process")

    def copy(self, model: bytearray) -> bytearray:
        return bytearray(model)

    def check(self) -> None:
        self.handle.seek(0)
        assert self.handle.read() == bytes(self.now)

    def change_something(self) -> None:
        self.handle.seek(0)
        self.handle.write(b"changed")
        self.handle.flush()

    def model_change(self) -> None:
        self.now[:7] = b"changed"

    @rule(offset=OFFSETS, data=BYTES)
    def write(self, offset: int, data: bytes) -> None:
        self.handle.seek(offset)
        self.handle.write(data)
        if data:
            self.now.extend(bytes(max(0, offset - len(self.now))))
            self.now[offset : offset + len(data)] = data

    @rule(offset=OFFSETS, size=st.integers(0, 9000))
    def read(self, offset: int, size: int) -> None:
        self.handle.seek(offset)
        assert self.handle.read(size) == bytes(self.now[offset : offset + size])

    @rule(size=OFFSETS)
    def truncate(self, size: int) -> None:
        self.handle.truncate(size)
        self.now = self.now[:size] + bytes(max(0, size - len(self.now)))


class TableMachine(Machine):
    def __init__(self) -> None:
        super().__init__()
        self.now, self.committed = {}, {}

    def open(self) -> Any:
        return untorn.dbm.open(self.path, "c", failure_class="process")

    def copy(self, model: dict[bytes, bytes]) -> dict[bytes, bytes]:
        return dict(model)

    def check(self) -> None:
        assert list(self.handle.items()) == sorted(self.now.items())
        assert len(self.handle) == len(self.now)

    def change_something(self) -> None:
        self.handle[b"changed"] = b"1" * 100
        self.handle.pop(b"", None)

    def model_change(self) -> None:
        self.now[b"changed"] = b"1" * 100
        self.now.pop(b"", None)

    @rule(key=KEYS, value=BYTES)
    def set(self, key: bytes, value: bytes) -> None:
        self.handle[key] = self.now[key] = value

    @rule(pairs=st.dictionaries(KEYS, BYTES, max_size=60))
    def update(self, pairs: dict[bytes, bytes]) -> None:
        self.handle.update(pairs)
        self.now.update(pairs)

    @rule(key=KEYS)
    def remove(self, key: bytes) -> None:
        assert self.handle.pop(key, None) == self.now.pop(key, None)

    @rule(start=KEYS, stop=KEYS)
    def ranges(self, start: bytes, stop: bytes) -> None:
        assert list(self.handle.range(start, stop)) == sorted(key for key in self.now if start <= key < stop)


SETTINGS = settings(
    max_examples=extent(15, 400),
    stateful_step_count=extent(20, 50),
    deadline=None,
    database=None,
    print_blob=True,
    suppress_health_check=list(HealthCheck),
)
TestFiles = FileMachine.TestCase
TestFiles.settings = SETTINGS
TestTables = TableMachine.TestCase
TestTables.settings = SETTINGS
