"""Stores, transactions, `sync`, readers."""

from __future__ import annotations

import gc
import os
import pickle
import threading

import pytest

import untorn


@pytest.fixture
def store():  # noqa: ANN201
    with untorn.Store("store") as opened:
        yield opened


def test_a_transaction_is_whole(store: untorn.Store) -> None:
    with store.transaction() as txn:
        txn.mkdir("sub")
        txn.open("sub/a", "wb").write(b"A" * 10_000)
        txn.open("b", "w").write("B")
        assert store.list() == []
    assert store.list() == ["b", "sub"]
    with pytest.raises(ZeroDivisionError), store.transaction() as txn:
        txn.open("b", "r+").write("C")
        txn.rename("sub/a", "a")
        txn.chmod("b", 0o600)
        1 / 0
    assert store.list() == ["b", "sub"] and store.open("b", "r+").read() == "B"
    with store.transaction() as txn:
        file = txn.open("b", "ab")
        file.write(b"!")
        txn.unlink("sub/a")
        txn.rmdir("sub")
        txn.chmod("b", 0o600)
    assert file.closed
    assert store.list() == ["b"]
    store.checkpoint()
    assert os.stat("store/b").st_mode & 0o777 == 0o600
    with pytest.raises(untorn.Invalid, match="has ended"):
        txn.commit()
    txn.abort()
    gc.collect()


pytestmark = pytest.mark.filterwarnings("ignore:unclosed file:ResourceWarning")


def test_files_within_a_transaction_commit_with_it_only(store: untorn.Store) -> None:
    store.write("a", "one")
    with store.transaction() as txn:
        with txn.open("a", "wb") as file:
            file.write(b"two")
        assert file.closed and untorn.Reader("store").read("a") == b"one"
    assert untorn.Reader("store").read("a") == b"two"
    with pytest.raises(untorn.Invalid, match="ended with an exception"), store.transaction() as txn:
        with pytest.raises(ZeroDivisionError), txn.open("a", "wb") as file:
            file.write(b"half")
            1 / 0
    assert untorn.Reader("store").read("a") == b"two"
    with store.open("a", "r+b") as file:
        file.write(b"T")
        with store.transaction() as txn:
            txn.add(file)
            file.write(b"WO")
            with pytest.raises(untorn.Error) as taken:
                file.commit()
            assert taken.value.kind == "in-transaction"
        file.write(b"!")
        with pytest.raises(ZeroDivisionError), store.transaction() as txn:
            txn.add(file)
            file.write(b"lost")
            1 / 0
        assert file.tell() == 3
        file.write(b".")
    assert untorn.Reader("store").read("a") == b"TWO."
    with store.transaction() as txn, pytest.raises(FileExistsError):
        txn.open("a", "x")


def test_sync_commits_files_together(store: untorn.Store) -> None:
    with store.open("a", "wb") as a, store.open("b", "w") as b:
        a.write(b"1")
        b.write("2")
        untorn.sync(a, b)
        assert untorn.Reader("store").read("a") == b"1"
        assert untorn.Reader("store").read("b") == b"2"
        a.write(b"3")
        ticket = untorn.sync_async(a, b)
        ticket.result()
        reader = untorn.Reader("store")
        assert ticket.lsn is not None and reader.wait_for(ticket.lsn, 10)
        assert reader.read("a") == b"13"
        with untorn.Store("other") as other, other.open("c", "wb") as c, pytest.raises(ValueError, match="another store"):
            untorn.sync(a, c)
    with pytest.raises(TypeError):
        untorn.sync(1)


def test_handles_share_uncommitted_changes(store: untorn.Store) -> None:
    with store.open("a", "w+b", 0) as a, store.open("a", "rb", 0) as other:
        a.write(b"new")
        assert other.pread(10, 0) == b"new"
        a.rollback()
        assert other.pread(10, 0) == b""


def test_a_closed_store(store: untorn.Store) -> None:
    file = store.open("a", "r+b" if "a" in store.list() else "w+b", 0)
    file.commit()
    store.close()
    store.close()
    assert store.closed
    with pytest.raises(untorn.Closed):
        file.write(b"x")
    with pytest.raises(ValueError):
        store.list()
    with pytest.raises(untorn.Closed):
        file.close()
    assert file.closed


def test_options_and_status() -> None:
    with pytest.raises(FileNotFoundError):
        untorn.Store("none", create=False)
    with pytest.raises(ValueError, match="readers"):
        untorn.Store("none", readers="nobody")  # type: ignore[arg-type]
    with untorn.Store(b"store", failure_class="process", journal_bytes=1 << 20, readers_space=0) as store:
        store.write("a", b"x")
        status = store.status()
        assert status["failure_class"] == "process" and status["journal_bytes_max"] == 1 << 20
        assert status["quarantined"] == [] and status["failed"] is None
        with pytest.raises(untorn.Busy):
            untorn.Store("store")
        store.rename("a", "b")
        store.wait()
    assert not os.path.exists("none")


def test_snapshots_stay_at_their_commit(store: untorn.Store) -> None:
    store.write("a", b"one")
    reader = untorn.Reader("store")
    with reader.snapshot() as snapshot, snapshot.open("a", "r") as text:
        store.write("a", b"two!")
        store.write("b", b"new")
        store.checkpoint()
        assert snapshot.read("a") == b"one" and snapshot.list() == ["a"]
        assert text.read() == "one" and text.seek(0, 2) == 3
        assert snapshot.stat("a").st_size == 3
        snapshot.check()
        lsn = snapshot.lsn
        snapshot.refresh()
        assert snapshot.lsn > lsn and snapshot.read("a") == b"two!"
        with pytest.raises(ValueError):
            snapshot.open("a", "w")
    with pytest.raises(ValueError):
        snapshot.list()
    again = pickle.loads(pickle.dumps(reader))
    assert again.read("a") == b"two!"


def test_follow(store: untorn.Store) -> None:
    store.write("a", b"one")
    reader = untorn.Reader("store")
    follow = reader.follow()
    assert follow.next_within(0) is None
    start = follow.lsn

    def work() -> None:
        store.write("a", b"two")
        store.rename("a", "b")

    worker = threading.Thread(target=work)
    worker.start()
    first, second = next(follow), next(follow)
    worker.join()
    assert isinstance(first, untorn.Commit) and isinstance(second, untorn.Commit)
    written = [change for change in first.changes if change.kind == "written"]
    assert [(change.path, change.read()) for change in written] == [("a", b"two")] and written[0].range == (0, 3)
    assert [(change.kind, change.to) for change in second.changes] == [("renamed", "b")]
    assert [c.lsn for c in (next(reader.follow(start)),)] == [first.lsn]
    assert reader.wait_for(second.lsn + 100, 0.01) is False


def test_gate(store: untorn.Store) -> None:
    reading, writing = os.pipe()
    with store.open("a", "wb") as file, untorn.Gate() as gate:
        output = gate.output(writing)
        os.close(writing)
        for number in range(10):
            file.write(b"%d" % number)
            output.write(b"%d\n" % number, after=file.commit_async())
        output.write(b"end\n")
        output.close()
    with os.fdopen(reading, "rb") as pipe:
        assert pipe.read() == b"".join(b"%d\n" % number for number in range(10)) + b"end\n"
    with pytest.raises(ValueError):
        gate.drain()
    with pytest.raises(OSError), untorn.Gate() as gate:
        gate.output(10_000)
